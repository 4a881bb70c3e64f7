# SPDX-License-Identifier: Apache-2.0
"""What the C interface does, on any number of PEs and nodes: `check.py NAME ...` runs functions below on each PE.

Each has a context of its own, and its name is printed when it is done. Needs probe, compiled from probe.pyx, on its path.
A failed assertion ends the job.
"""

import os
import sys
import threading

import numpy as np
import probe

import nvsym
from nvsym.dtypes import DTYPES

C = probe.CODES


def ok(status):
    """A status that must be one of success."""
    assert status == probe.OK, probe.last_error()


def refused(status, code, *words):
    """A status that must be an error, and what it says."""
    text = probe.last_error()
    assert status == C[code], (status, text)
    for word in words:
        assert word in text, text


def raises(cls, function, *args):
    """The message of the exception."""
    try:
        function(*args)
    except cls as error:
        return str(error)
    raise AssertionError(f"no {cls.__name__}")


def closed():
    """Before and after a job."""
    for _ in range(2):
        assert probe.numbers() == (-1, 0)
        refused(probe.raw_stream_put(4096, 4096, 8, 0, 0), "closed", "nvsym.init() has not been called")
        assert probe.peer_ptr(4096, 0) == 0
        raises(nvsym.NotInitializedError, probe.check, C["closed"])
        raises(nvsym.NotInitializedError, probe.barrier_all)
        with nvsym.SHMEMContext(heap_size="16M") as ctx:
            assert probe.numbers() == (ctx.my_pe(), ctx.n_pes())


def accessors(ctx):
    """nvsym_data gives the address for the one right C type, and raises TypeError for all others."""
    assert {d.name: d.id for d in DTYPES} == probe.DTYPES
    for dtype in DTYPES:
        buffer = nvsym.SHMEMBuffer[dtype.name](5)
        address = buffer.unsafe_ptr()
        assert probe.fields(buffer) == (address, 5, dtype.itemsize, dtype.id)
        assert probe.raw_data(buffer[2:4], -1) == (address + 2 * dtype.itemsize, 2)
        for name, accessor in [*probe.ACCESSORS.items(), *probe.OTHER_NAMES.items()]:
            if name == dtype.name:
                assert accessor(buffer) == address
            else:
                assert dtype.name in raises(TypeError, accessor, buffer)
        buffer.free()
        raises(nvsym.FreedBufferError, probe.raw_data, buffer, -1)
        if dtype.name in probe.ACCESSORS:
            raises(nvsym.FreedBufferError, probe.ACCESSORS[dtype.name], buffer)
    raises(TypeError, probe.ACCESSORS["int32"], None)
    raises(TypeError, probe.ACCESSORS["int32"], np.zeros(3, np.int32))
    raises(TypeError, probe.raw_data, np.zeros(3, np.int32), -1)
    empty = nvsym.SHMEMBuffer[np.int32](0)
    assert probe.raw_data(empty, probe.DTYPES["int32"])[1] == 0


def objects(ctx):
    """The fields of the other objects."""
    me, n = ctx.my_pe(), ctx.n_pes()
    buffer = nvsym.SHMEMBuffer[np.float32](12)
    for pe in range(n):
        try:
            there = buffer.peer(pe)
        except nvsym.PeerUnreachableError:
            assert probe.peer_ptr(buffer.unsafe_ptr(), pe) == 0
            continue
        assert probe.buffer_fields(there) == (there._data_ptr(), 12, 4)
        assert probe.peer_ptr(buffer.unsafe_ptr(), pe) == there._data_ptr()
        assert probe.raw_data(there, probe.DTYPES["float32"]) == (there._data_ptr(), 12)
        raises(TypeError, probe.raw_data, there, probe.DTYPES["int32"])
    assert probe.peer_ptr(buffer.unsafe_ptr(), -1) == probe.peer_ptr(buffer.unsafe_ptr(), n) == 0
    stream = nvsym.Stream()
    assert probe.stream_field(stream) == stream.handle != 0
    assert probe.stream_field(ctx.stream) == ctx.stream.handle
    assert [probe.stream_handle(s) for s in (None, ctx.stream, stream)] == [ctx.stream.handle] * 2 + [stream.handle]
    raises(TypeError, probe.quiet, "stream")
    assert probe.team_fields(None) == (me, n, list(range(n)))
    team = nvsym.TEAM_WORLD.split_strided(n - 1, -1, n) if n > 1 else nvsym.TEAM_WORLD.split_strided(0, 1, 1)
    assert probe.team_fields(team) == (team.my_pe(), n, team.pes)
    assert n == 1 or team.pes == list(range(n))[::-1]
    team.destroy()
    raises(nvsym.NVSymError, probe.team_fields, team)
    raises(TypeError, probe.team_fields, 3)
    assert probe.null_arguments() == (ctx.stream.handle, n)
    for name, function in probe.NO_OBJECTS.items():
        text = raises(TypeError, function, ctx.device)
        assert text.startswith(name), text
        assert text.endswith("not NULL"), text


def one_sided(ctx):
    """Puts, gets and signals, on the default stream and on another, between all pairs."""
    me, n = ctx.my_pe(), ctx.n_pes()
    data, seen = nvsym.SHMEMBuffer[np.int64](n * 1000), nvsym.SHMEMBuffer[np.int64](1000)
    source, signals = nvsym.SHMEMBuffer[np.int64](1000), nvsym.SHMEMBuffer[np.uint64](2 * n)
    for stream in (None, nvsym.Stream()):
        data.fill(-1)
        signals.fill(0)
        source.enqueue_copy_from(np.arange(1000) + 1000 * me)
        ctx.barrier_all()
        ctx.synchronize()  # the other stream is not ordered behind the context's
        for pe in range(n):
            ok(probe.put(data[me * 1000 :].unsafe_ptr(), source.unsafe_ptr(), 4000, pe, stream))
            there, half = data[me * 1000 + 500 :].unsafe_ptr(), source[500:].unsafe_ptr()
            signal = signals[me : me + 1].unsafe_ptr()
            ok(probe.put_signal(there, half, 4000, signal, 7 + me, probe.SET, pe, stream))
            ok(probe.signal_op(signals[n + me :].unsafe_ptr(), 5, probe.ADD, pe, stream))
            ok(probe.signal_op(signals[n + me :].unsafe_ptr(), 2**64 - 1, probe.ADD, pe, stream))
        for pe in range(n):
            ok(probe.signal_wait_until(signals[pe:].unsafe_ptr(), probe.CMPS["eq"], 7 + pe, stream))
            ok(probe.signal_wait_until(signals[n + pe :].unsafe_ptr(), probe.CMPS["eq"], 4, stream))
        ok(probe.synchronize(stream))
        if ctx.backend == "host":
            assert [probe.signal_fetch(signals[pe:].unsafe_ptr()) for pe in range(2 * n)] == signals.to_numpy().tolist()
        assert signals.to_numpy().tolist() == [*range(7, 7 + n), *[4] * n]
        ok(probe.fence(stream))
        ok(probe.quiet(stream))
        ok(probe.barrier_all(stream))
        ok(probe.synchronize(stream))
        assert np.array_equal(data.to_numpy(), np.arange(1000 * n))
        other = (me + 1) % n
        ok(probe.get(seen.unsafe_ptr(), source.unsafe_ptr(), 8000, other, stream))
        ok(probe.synchronize(stream))
        assert np.array_equal(seen.to_numpy(), np.arange(1000) + 1000 * other)
        ctx.barrier_all()
        ctx.synchronize()


def reductions(ctx):
    """Allreduce of every type against Python's own, over the world and over a team."""
    me, n = ctx.my_pe(), ctx.n_pes()
    row, column = nvsym.TEAM_WORLD.split_2d(2)
    pairs = [("float32", "sum"), ("float64", "max"), ("int16", "and"), ("bfloat16", "sum")]
    if ctx.backend == "host":  # NVSHMEM itself has none of these, and the simulated GPU runs no kernels
        pairs.append(("float8_e4m3fn", "sum"))
    for name, op in pairs:
        for count in (1, 700, 30000):
            a, b, c = (nvsym.SHMEMBuffer[name](count) for _ in range(3))
            a.enqueue_copy_from((np.arange(count) % 5 + me).astype(a.dtype))
            ctx.barrier_all()
            ctx.synchronize()
            for team, stream in ((None, None), (row, None), (column, nvsym.Stream())):
                ok(
                    probe.allreduce(
                        b.unsafe_ptr(), a.unsafe_ptr(), count, probe.DTYPES[name], probe.OPS[op], team, stream
                    )
                )
                ok(probe.synchronize(stream))
                nvsym.allreduce(c, a, op, team=team)
                assert b.to_numpy().tobytes() == c.to_numpy().tobytes(), (name, op, count)
            for x in (a, b, c):
                x.free()
    before = nvsym.SHMEMBuffer[np.int32].full(1, me)
    ok(probe.allreduce(before.unsafe_ptr(), before.unsafe_ptr(), 1, probe.DTYPES["int32"], probe.OPS["sum"]))
    assert before.to_numpy()[0] == n * (n - 1) // 2


def barriers(ctx):
    """What was put before a barrier is there after it; also for callers that hold the GIL, and on a team."""
    me, n = ctx.my_pe(), ctx.n_pes()
    data = nvsym.SHMEMBuffer[np.int64].zeros(1)
    source = nvsym.SHMEMBuffer[np.int64].zeros(1)
    row, _ = nvsym.TEAM_WORLD.split_2d(2)
    for i, meet in enumerate((probe.barrier_all, probe.barrier_with_gil, lambda: probe.barrier_with_gil(row)), 1):
        source.fill(10 * i + me)
        ok(probe.put(data.unsafe_ptr(), source.unsafe_ptr(), 8, me ^ 1 if me ^ 1 < n else me))
        ok(meet())
        assert data.to_numpy()[0] == 10 * i + (me ^ 1 if me ^ 1 < n else me)
        ok(probe.sync())
    ok(probe.sync(row))


def errors(ctx):
    """Every argument that can be checked is, and the words say what it was."""
    n = ctx.n_pes()
    buffer = nvsym.SHMEMBuffer[np.uint64].zeros(4)
    a, local = buffer.unsafe_ptr(), np.zeros(4, np.uint64)
    stream = nvsym.Stream()
    for pe in (-1, n, 2**31 - 1):
        refused(probe.put(a, a, 8, pe), "argument", f"pe: {pe} is not in 0..{n - 1}")
        refused(probe.get(a, a, 8, pe), "argument", f"pe: {pe}")
        refused(probe.put_signal(a, a, 8, a, 1, probe.SET, pe), "argument", f"pe: {pe}")
        refused(probe.signal_op(a, 1, probe.SET, pe), "argument", f"pe: {pe}")
    assert "pe: -1" in raises(ValueError, lambda: probe.check(probe.put(a, a, 8, -1)))
    wild = local.ctypes.data
    refused(probe.put(wild, a, 8, 0, stream), "argument", "dest: 8 bytes at 0x", "not in the symmetric heap")
    refused(probe.get(wild, wild, 8, 0, stream), "argument", "source: 8 bytes at 0x")
    refused(probe.put(a, a, 2**40, 0, stream), "argument", f"dest: {2**40} bytes")
    refused(probe.put_signal(a, a, 8, wild, 1, probe.SET, 0, stream), "argument", "signal: 8 bytes at 0x")
    refused(probe.signal_op(a + 4, 1, probe.SET, 0, stream), "argument", "signal: ")
    refused(probe.signal_op(a, 1, 3, 0), "argument", "op: 3 is neither")
    refused(probe.put_signal(a, a, 8, a, 1, 3, 0), "argument", "op: 3 is neither")
    refused(probe.signal_wait_until(a, 9, 1), "argument", "cmp: 9 is no comparison")
    if ctx.backend == "host":  # a GPU's streams are the driver's, which cannot be asked
        refused(
            probe.raw_stream_put(a, a, 8, 0, 12345), "argument", "stream: the handle is not that of a stream in host"
        )
    assert np.array_equal(buffer.to_numpy(), np.zeros(4))
    other = "another call of this thread came after it"
    assert other in raises(MemoryError, probe.check, C["memory"])
    refused(probe.signal_op(a, 1, 3, 0), "argument", "op: 3")
    ok(probe.quiet())
    assert probe.last_error() == "the last call of this thread did not fail"
    ok(probe.put(a, a, 8, 0))
    ctx.barrier_all()
    if ctx.backend != "host":  # there the others have enqueued their part already, and would wait
        return
    f32 = probe.DTYPES["float32"]
    # A call that is bad on one PE fails on all, with its reason.
    for args, words in (
        ((wild, a, 1, f32, 0), "dest: 4 bytes at 0x"),
        ((a, wild, 1, f32, 0), "source: 4 bytes"),
        ((a, a + 4, 2, f32, 0), "dest: it overlaps source"),
        ((a, a, 1, 99, 0), "dtype, op: 99 and 0"),
        ((a, a, 1, f32, 77), "dtype, op: "),
        ((a, a, 1, f32, probe.OPS["and"]), "and is not defined for float32"),
        ((a, a, 2**63, f32, 0), "count: "),
    ):
        for own in (None, stream):
            if ctx.my_pe() == n - 1:
                refused(probe.allreduce(*args, None, own), "argument", words)
                ok(probe.synchronize(own))
            elif own is None:
                refused(probe.allreduce(a, a, 1, f32, 0, None, own), "collective", f"PE {n - 1}", words[:9])
            else:
                ok(probe.allreduce(a, a, 1, f32, 0, None, own))
                refused(probe.synchronize(own), "collective", f"PE {n - 1}", words[:9])
    ok(probe.barrier_all())


def pools(ctx):
    """SymmetricPool: the addresses for kernels."""
    pool = nvsym.SymmetricPool.allocate(ctx.devices(), 1 << 21)
    assert probe.pool_field(pool) == pool.byte_size == 1 << 21
    for device in ctx.devices():
        expected = pool.unicast_view(device)._data_ptr(), pool.multicast_view(ctx.device)._data_ptr()
        assert probe.pool_addresses(pool, device) == expected
    raises(TypeError, probe.pool_addresses, 3, ctx.device)
    raises(TypeError, probe.pool_addresses, pool, 3)
    ctx.barrier_all()


def waiting(ctx):
    """Who waits with the GIL does not keep it from the thread that ends the wait; a wait ends with its time limit."""
    signal = nvsym.SHMEMBuffer[np.uint64].zeros(1)
    address = signal.unsafe_ptr()

    def later():
        for _ in range(100):
            sum(range(1000))
        ok(probe.signal_op(address, 3, probe.SET, ctx.my_pe()))

    thread = threading.Timer(0.2, later)
    thread.start()
    ok(probe.signal_wait_until_with_gil(address, probe.CMPS["eq"], 3))
    thread.join()
    refused(probe.signal_wait_until(address, probe.CMPS["eq"], 4), "timeout", "NVSYM_TIMEOUT")
    raises(nvsym.PeerTimeoutError, lambda: probe.check(probe.signal_wait_until(address, probe.CMPS["lt"], 3)))
    ok(probe.signal_wait_until(address, probe.CMPS["ge"], 3))
    ctx.barrier_all()


def without_gil(ctx):
    """Nothing that does not wait needs the GIL."""
    me, n = ctx.my_pe(), ctx.n_pes()
    data, signal = nvsym.SHMEMBuffer[np.uint64].zeros(4 * n), nvsym.SHMEMBuffer[np.uint64].zeros(1)
    assert probe.without_gil(data[4 * me : 4 * me + 4], signal, (me + 1) % n, 100) == 0, probe.last_error()
    ctx.barrier_all()
    mine = data.to_numpy().reshape(n, 4)[(me - 1) % n]
    assert mine.tolist() == [100] * 4
    assert signal.to_numpy()[0] == 400


def forked(ctx):
    """A forked child is told that the job is not its own."""
    buffer = nvsym.SHMEMBuffer[np.uint64].zeros(1)
    a = buffer.unsafe_ptr()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            refused(probe.raw_stream_put(a, a, 8, 0, 0), "closed", "forked")
            assert probe.numbers() == (-1, 0)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    ok(probe.put(a, a, 8, 0))
    ctx.barrier_all()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        if name == "closed":
            closed()
        else:
            with nvsym.SHMEMContext(heap_size="16M") as ctx:
                globals()[name](ctx)
        print(name, flush=True)
