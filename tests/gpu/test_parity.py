# SPDX-License-Identifier: Apache-2.0
"""The interface on GPUs, by the same rules as in host memory."""

import contextlib
import ctypes
import gc
import os
import threading
import time
import weakref

import numpy as np
import pytest
from simulated import CupyStream, Graph, TorchStream, is_simulated, library, need_real_gpu

import nvsym
from nvsym import _driver
from nvsym.dtypes import DTYPES, OPS, REDUCIBLE
from nvsym.kernels import compiler

pytestmark = pytest.mark.pes(1, 2, 4, backends=("simulator", "nvshmem"))

BY_NAME = {dtype.name: dtype for dtype in DTYPES}
REDUCED = [d.name for d in DTYPES if d.kind in ("int", "uint")] + ["float16", "bfloat16", "float32", "float64"]
U64 = nvsym.SHMEMBuffer[np.uint64]
F32 = nvsym.SHMEMBuffer[np.float32]


def values(dtype, n, seed):
    """Numbers that every type holds exactly."""
    return np.random.default_rng(seed).choice([1, 2, 4], n).astype(np.float32).astype(dtype.numpy)


def same(a, b):
    """Equal, bit for bit where there is no padding."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype:
        return False
    if a.dtype.kind == "V":
        return np.array_equal(
            a.view(np.uint8 if a.itemsize == 1 else np.uint16), b.view(np.uint8 if b.itemsize == 1 else np.uint16)
        )
    return np.array_equal(a, b)


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_members(ctx, meet, name):
    dtype = BY_NAME[name]
    cls = nvsym.SHMEMBuffer[dtype.numpy]
    data = values(dtype, 37, ctx.my_pe())
    b = cls.from_numpy(data)
    assert type(b) is cls
    assert (len(b), b.dtype, b.itemsize, b.nbytes) == (37, dtype.numpy, dtype.itemsize, 37 * dtype.itemsize)
    assert b.get_type_name() == cls.get_type_name() == f"SHMEMBuffer[{name}]"
    assert b.device == ctx.device
    assert b.device_type == "symmetric"
    assert not b.device.is_host
    assert same(b.to_numpy(), data)
    assert same(b[3:9].to_numpy(), data[3:9])
    assert b[3:9].unsafe_ptr() == b.unsafe_ptr() + 3 * dtype.itemsize
    assert same(cls.adopt(b.unsafe_ptr() + dtype.itemsize, 5).to_numpy(), data[1:6])
    if name != "float8_e8m0fnu":  # it has no zero
        assert same(cls.zeros(5).to_numpy(), np.zeros(5, dtype.numpy))
    two = np.array([2], np.float32).astype(dtype.numpy)
    assert same(cls.full(1000, two[0]).to_numpy(), np.repeat(two, 1000))
    b[1:36].fill(two[0])
    assert same(b.to_numpy(), np.concatenate([data[:1], np.repeat(two, 35), data[36:]]))
    assert len(cls(0).to_numpy()) == 0
    assert same(np.asarray(b), b.to_numpy())
    with pytest.raises(ValueError, match="without a copy"):
        b.__array__(copy=False)
    with pytest.raises((BufferError, TypeError), match=r"no buffer protocol|to_numpy"):
        memoryview(b)
    view = b[2:5]
    b.free()
    assert b.is_freed
    for use in (b.to_numpy, view.to_numpy, b.unsafe_ptr, lambda: b.fill(1), lambda: view[0:1]):
        with pytest.raises(nvsym.FreedBufferError):
            use()
    meet()


@pytest.mark.parametrize("n", [1, 1000, 16384, 100_000, 1 << 20, 3_000_001])
def test_copies(ctx, n):
    """Pinned and pageable memory; the sizes take every way through the driver and the staging blocks."""
    data = np.arange(n, dtype=np.float32)
    b = F32(n)
    for source in (data, np.frombuffer(data.tobytes(), np.float32), memoryview(data)):
        b.fill(-1)
        b.enqueue_copy_from(source)
        out = np.empty_like(data)
        b.enqueue_copy_to(out)
        ctx.synchronize()
        assert np.array_equal(out, data)
    pinned = ctx.enqueue_create_host_buffer(np.float32, n)
    pinned[:] = data + 1
    b.enqueue_copy_from(pinned)
    back = ctx.enqueue_create_host_buffer(np.float32, n)
    b.enqueue_copy_to(back)
    ctx.synchronize()
    assert np.array_equal(back, data + 1)
    b.enqueue_copy_from(data.ctypes.data)
    b.enqueue_copy_to(out.ctypes.data)
    ctx.synchronize()
    assert np.array_equal(out, data)


def test_many_copies_share_a_stream(ctx):
    """Copies in both directions behind each other, of sizes that wrap around the staging blocks."""
    rng = np.random.default_rng(7)
    sizes = [int(n) for n in rng.integers(1, 1 << 21, 24)]
    streams = [ctx.stream, nvsym.Stream(), nvsym.Stream()]
    buffers = [F32(n) for n in sizes]
    expected, found = [], []
    for i, b in enumerate(buffers):
        data = rng.random(len(b), np.float32)
        out = np.empty_like(data)
        b.enqueue_copy_from(data.copy(), stream=streams[i % 3])
        b.enqueue_copy_to(out, stream=streams[i % 3])
        expected.append(data)
        found.append(out)
    ctx.synchronize()
    for data, out in zip(expected, found, strict=True):
        assert np.array_equal(data, out)


def test_copies_of_other_libraries(ctx):
    need_real_gpu("PyTorch and CuPy know no other")
    torch = pytest.importorskip("torch")
    cupy = pytest.importorskip("cupy")
    b = F32(1000)
    data = torch.arange(1000, dtype=torch.float32)
    b.enqueue_copy_from(data)
    out = torch.zeros(1000)
    b.enqueue_copy_to(out)
    ctx.synchronize()
    assert torch.equal(out, data)
    pinned = torch.arange(1000, dtype=torch.float32).pin_memory()
    b.enqueue_copy_from(pinned + 0)
    ctx.synchronize()
    # Tensors on this GPU: a copy from or to one comes behind what its library has enqueued on it, here after some milliseconds.
    for tensor, to_numpy in (
        (torch.zeros(1000, device="cuda"), lambda t: t.cpu().numpy()),
        (cupy.zeros(1000, cupy.float32), cupy.asnumpy),
    ):
        for i in range(1, 4):
            torch.cuda._sleep(10_000_000)  # on the legacy default stream, where both libraries are
            tensor[:] = i
            b.enqueue_copy_from(tensor)
            assert (b.to_numpy() == i).all()
            torch.cuda._sleep(10_000_000)
            tensor[:] = -1
            b[:500].enqueue_copy_to(tensor[:500])
            ctx.synchronize()
            assert to_numpy(tensor).tolist() == [i] * 500 + [-1] * 500
        with pytest.raises(TypeError, match="host memory"):
            nvsym.put(b, tensor, ctx.my_pe())
    ctx.synchronize()


def test_copies_refused(ctx):
    b = F32.full(8, 5)
    readonly = np.zeros(8, np.float32)
    readonly.flags.writeable = False
    for wrong, error in (
        (np.zeros(8, np.float64), TypeError),
        (np.zeros(7, np.float32), ValueError),
        (np.zeros((8, 2), np.float32)[:, 0], ValueError),
        (readonly, ValueError),
        ("text", TypeError),
        (0, ValueError),
        (None, TypeError),
    ):
        with pytest.raises(error):
            b.enqueue_copy_to(wrong)
        if wrong is not readonly:
            with pytest.raises(error):
                b.enqueue_copy_from(wrong)
    assert (b.to_numpy() == 5).all()


class Gate:
    """What is enqueued on a stream behind it waits until the host opens it.

    It opens by itself after some seconds: what must not wait for it then fails, and does not hang.
    """

    def __init__(self, ctx, stream, latest=10.0):
        self.late = False
        self.word = ctx.enqueue_create_host_buffer(np.uint64, 1)
        self.word[:] = 0
        cuda = ctypes.CDLL(_driver.library_info().path)
        address, at_least = self.word.ctypes.data, 0
        status = cuda.cuStreamWaitValue64_v2(
            ctypes.c_void_p(stream.handle), ctypes.c_uint64(address), ctypes.c_uint64(1), ctypes.c_uint(at_least)
        )
        assert status == 0, status
        self.timer = threading.Timer(latest, self.open_late)
        self.timer.start()

    def open(self):
        self.timer.cancel()
        self.word[:] = 1

    def open_late(self):
        self.late = True
        self.word[:] = 1


def test_copies_do_not_block(ctx, meet):
    """A copy of pageable memory behind a stream that waits returns at once, and keeps the memory alive until then."""
    n = 9 << 20  # more than the staging blocks of a stream hold at a time
    b, other = F32.full(n, 3), F32(n)
    stream = nvsym.Stream()

    class Watched(np.ndarray):
        """An array that a weak reference can be made to."""

    source = np.full(n, 7, np.float32).view(Watched)
    out = np.zeros(n, np.float32)
    gate = Gate(ctx, stream)
    began = time.perf_counter()
    b.enqueue_copy_to(out, stream=stream)
    other.enqueue_copy_from(source, stream=stream)
    assert time.perf_counter() - began < 5
    kept = weakref.ref(source)
    del source
    gc.collect()
    assert kept() is not None
    assert not stream.query()
    time.sleep(0.05)
    assert out[0] == 0
    # Other streams copy meanwhile.
    third = F32.full(1 << 20, 9)
    assert (third.to_numpy() == 9).all()
    assert not gate.late, "what is on other streams waited for the gate"
    gate.open()
    stream.synchronize()
    assert (out == 3).all()
    assert (other.to_numpy() == 7).all()
    ctx.synchronize()
    gc.collect()
    assert kept() is None
    meet()


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_put_and_get(ctx, meet, name):
    dtype = BY_NAME[name]
    cls = nvsym.SHMEMBuffer[dtype.numpy]
    me, n = ctx.my_pe(), ctx.n_pes()
    right, left = (me + 1) % n, (me - 1) % n
    for size in (1, 1001):
        source = cls.from_numpy(values(dtype, size, me))
        dest, fetched, hosted = cls.zeros(size), cls.zeros(size), cls.zeros(size)
        nvsym.put(dest, source, right)
        nvsym.put(hosted, values(dtype, size, 100 + me), right)
        nvsym.get(fetched, source, right)
        out = np.zeros(size, dtype.numpy)
        nvsym.get(out, source, left)
        nvsym.fence()
        nvsym.quiet()
        meet()
        assert same(dest.to_numpy(), values(dtype, size, left))
        assert same(hosted.to_numpy(), values(dtype, size, 100 + left))
        assert same(fetched.to_numpy(), values(dtype, size, right))
        assert same(out, values(dtype, size, left))
        assert same(dest.peer(right).to_numpy(), values(dtype, size, me))
        meet()


def test_put_of_slices_and_sizes(ctx, meet):
    me, n = ctx.my_pe(), ctx.n_pes()
    dest = F32.zeros(4 << 20)
    source = F32.full(4 << 20, me + 1)
    for size in (0, 1, 3, 4096, 1 << 20, 4 << 20):
        dest.fill(0)
        meet()
        nvsym.put(dest[:size], source[:size], (me + 1) % n)
        meet()
        found = dest.to_numpy()
        assert (found[:size] == (me - 1) % n + 1).all()
        assert (found[size:] == 0).all()
        meet()


def test_signals(ctx, limited, meet):
    me, n = ctx.my_pe(), ctx.n_pes()
    right, left = (me + 1) % n, (me - 1) % n
    signals = U64.zeros(4)
    dest, source = F32.zeros(1000), F32.full(1000, me + 1)
    nvsym.put_signal(dest, source, signals[0:1], 5, right)
    nvsym.put_signal(dest, source, signals[1:2], 3, right, op="add")
    nvsym.put_signal(dest, np.full(1000, me + 1, np.float32), signals[2:3], 2**63, right)
    nvsym.signal_op(signals[0:1], 2, right, op="add")
    nvsym.signal_op(signals[3:4], 2**64 - 1, right)
    waits = [(0, "eq", 7), (0, "ge", 6), (0, "gt", 6), (0, "ne", 0), (1, "le", 3), (1, "lt", 4), (2, "eq", 2**63)]
    if limited:
        with pytest.raises(nvsym.NotAvailableError, match="MPS"):
            nvsym.signal_wait_until(signals[0:1], "eq", 7)
        meet()
    else:
        nvsym.signal_wait_until(signals[1:2], "eq", 3)
        for i, cmp, value in waits:
            nvsym.signal_wait_until(signals[i : i + 1], cmp, value)
    meet()
    assert signals.to_numpy().tolist() == [7, 3, 2**63, 2**64 - 1]
    assert (dest.to_numpy() == left + 1).all()
    meet()


@pytest.mark.parametrize("name", ["int32", "uint32", "int64", "uint64", "float32", "float64"])
def test_atomics(ctx, meet, name):
    me, n = ctx.my_pe(), ctx.n_pes()
    floating = name.startswith("float")
    counters = nvsym.SHMEMBuffer[name].zeros(3)
    count, own, unused = counters[0:1], counters[1:2], counters[2:3]
    old = [int(nvsym.atomic_fetch_add(count, 1, 0)) for _ in range(50)]
    assert old == sorted(set(old))
    nvsym.atomic_add(count, 2, 0)
    meet()
    assert nvsym.atomic_fetch(count, 0) == 52 * n
    right = (me + 1) % n
    nvsym.atomic_set(own, me + 5, right)
    assert nvsym.atomic_swap(own, me + 6, right) == me + 5
    if not floating:
        assert nvsym.atomic_compare_swap(own, me + 6, 12, right) == me + 6
        assert nvsym.atomic_compare_swap(own, 99, 1, right) == 12
        nvsym.atomic_or(own, 3, right)
        nvsym.atomic_and(own, 13, right)
        nvsym.atomic_xor(own, 1, right)
        nvsym.atomic_inc(own, right)
        assert nvsym.atomic_fetch(own, right) == 13
    else:
        nvsym.atomic_add(own, 0.25, right)
        assert nvsym.atomic_fetch(own, right) == me + 6.25
        with pytest.raises(TypeError):
            nvsym.atomic_or(own, 1, right)
    assert isinstance(nvsym.atomic_fetch(own, right), np.dtype(name).type)
    with pytest.raises(ValueError):
        nvsym.atomic_add(count, 1, n)
    with pytest.raises(ValueError):
        nvsym.atomic_add(counters, 1, 0)
    meet()
    assert unused.to_numpy()[0] == 0
    meet()


def test_atomics_are_done_when_they_return(ctx, meet):
    """Also those that return nothing; and calls of several threads get a result each."""
    counter, many = nvsym.SHMEMBuffer[np.int64].zeros(1), F32(16 << 20)
    meet()
    nvsym.atomic_add(counter, 1, ctx.my_pe())  # whatever the first one loads
    for _ in range(4):
        many.fill(1)
        nvsym.atomic_add(counter, 1, ctx.my_pe())
        assert ctx.stream.query()
    meet()
    found, barrier = [[] for _ in range(4)], threading.Barrier(4)

    def count(own):
        barrier.wait()
        own.extend(int(nvsym.atomic_fetch_add(counter, 1, 0)) for _ in range(200))

    threads = [threading.Thread(target=count, args=(own,)) for own in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({old for own in found for old in own}) == 800
    assert all(own == sorted(own) for own in found)
    meet()
    if ctx.my_pe() == 0:
        assert counter.to_numpy()[0] == 5 + 800 * ctx.n_pes()
    graph = Graph(ctx.stream)
    for call in (lambda: nvsym.atomic_add(counter, 1, 0), lambda: nvsym.atomic_fetch(counter, 0)):
        with pytest.raises(nvsym.BackendError, match="captured into a CUDA graph"):
            call()
    graph.end()
    meet()


def combined(op, parts):
    if parts[0].dtype.itemsize <= 2 and parts[0].dtype.kind not in "biu":
        return combined(op, [part.astype(np.float32) for part in parts]).astype(parts[0].dtype)
    ufunc = {
        "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }[op]  # fmt: skip
    total = parts[0]
    for part in parts[1:]:
        total = ufunc(total, part).astype(total.dtype)
    return total


@pytest.mark.parametrize("op", [op.name for op in OPS])
@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_reductions(ctx, limited, meet, name, op):
    dtype = BY_NAME[name]
    cls = nvsym.SHMEMBuffer[dtype.numpy]
    me, n = ctx.my_pe(), ctx.n_pes()
    size = 257
    source = cls.from_numpy(values(dtype, size * n, me))
    dest, part = cls.zeros(size * n), cls.zeros(size)
    untouched = dest.to_numpy()
    in_nvshmem = name in REDUCED and (op not in ("and", "or", "xor") or dtype.kind != "float")
    defined = (dtype.id, next(o.id for o in OPS if o.name == op)) in REDUCIBLE
    here = in_nvshmem or (defined and name in compiler.TYPES and not is_simulated())
    expected = combined(op, [values(dtype, size * n, pe) for pe in range(n)]) if defined else None
    for possible, target, call in (
        (here, dest, lambda: nvsym.reduce(dest, source, op)),
        (here, part, lambda: nvsym.reducescatter(part, source, op)),
        (in_nvshmem, source, lambda: nvsym.allreduce(source, source, op, algorithm="nvshmem")),
    ):
        if not possible or limited:
            with pytest.raises((TypeError, ValueError, nvsym.NotAvailableError)):
                call()
            continue
        call()
        found = expected[me * size : (me + 1) * size] if target is part else expected
        assert same(target.to_numpy(), found)
    meet()
    if limited or not here:
        assert same(dest.to_numpy(), untouched)


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_collectives(ctx, limited, meet, name):
    dtype = BY_NAME[name]
    cls = nvsym.SHMEMBuffer[dtype.numpy]
    me, n = ctx.my_pe(), ctx.n_pes()
    for size in (1, 1000):
        mine = [values(dtype, size * n, 10 + pe) for pe in range(n)]
        source = cls.from_numpy(mine[me][:size])
        blocks = cls.from_numpy(mine[me])
        wide, narrow = cls.zeros(size * n), cls.zeros(size)
        if limited:
            for call, arguments in (
                (nvsym.broadcast, (narrow, source, 0)),
                (nvsym.fcollect, (wide, source)),
                (nvsym.alltoall, (wide, blocks)),
            ):
                with pytest.raises(nvsym.NotAvailableError, match="MPS"):
                    call(*arguments)
            meet()
            continue
        nvsym.broadcast(narrow, source, n - 1)
        assert same(narrow.to_numpy(), mine[n - 1][:size])
        nvsym.fcollect(wide, source)
        assert same(wide.to_numpy(), np.concatenate([part[:size] for part in mine]))
        nvsym.alltoall(wide, blocks)
        assert same(wide.to_numpy(), np.concatenate([part[me * size : (me + 1) * size] for part in mine]))
        meet()


def test_teams(ctx, limited, meet):
    me, n = ctx.my_pe(), ctx.n_pes()
    assert nvsym.TEAM_WORLD.pes == nvsym.TEAM_NODE.pes == nvsym.TEAM_SHARED.pes == list(range(n))
    half = max(1, n // 2)
    for team, members in (
        (nvsym.TEAM_WORLD.split_strided(0, 1, half), list(range(half))),
        (nvsym.TEAM_WORLD.split_strided(n - 1, -1, n), list(range(n))[::-1]),
    ):
        assert (team is not None) == (me in members)
        if team is None:
            continue
        assert team.pes == members
        assert team.my_pe() == members.index(me)
        with team:
            pass
    meet()
    team = nvsym.TEAM_WORLD.split_strided(0, 1, half)
    source, dest = F32.full(100, me + 1), F32.zeros(100)
    if team is not None:
        if limited and half < n:
            for call in (lambda: nvsym.allreduce(dest, source, team=team), lambda: nvsym.barrier(team)):
                with pytest.raises(nvsym.NotAvailableError, match="MPS"):
                    call()
        elif not limited:
            for _ in range(3):
                nvsym.allreduce(dest, source, team=team)
                nvsym.barrier(team)
                nvsym.sync(team)
            assert (dest.to_numpy() == half * (half + 1) / 2).all()
        team.destroy()
    x, y = nvsym.TEAM_WORLD.split_2d(2)
    assert x.pes == [pe for pe in range(n) if pe // 2 == me // 2]
    assert y.pes == [pe for pe in range(n) if pe % 2 == me % 2]
    if not limited:
        nvsym.allreduce(dest, source, team=y)
        assert (dest.to_numpy() == sum(pe + 1 for pe in y.pes)).all()
    y.destroy()
    x.destroy()
    meet()


def test_explained_choice(ctx, limited, meet):
    few, many, other = F32(4), F32(1 << 20), F32(1 << 20)
    by_kernel = next(has for name, has, _ in ctx.capabilities() if name == "kernels")
    choices = [nvsym.explain_allreduce(b, o) for b, o in ((few, other[:4]), (many, other), (many, None))]
    names = [choice.algorithm for choice in choices]
    if ctx.n_pes() == 1:
        assert names == ["copy"] * 3
    elif by_kernel:
        assert names[0] == "low_latency"
        assert set(names[1:]) <= {"push", "one_shot", "two_shot"}
        assert names[2] != "one_shot"
        assert nvsym.explain_allreduce(many, other, algorithm="two_shot").algorithm == "two_shot"
    else:
        assert names == ["nvshmem"] * 3
    assert nvsym.explain_allreduce(F32(0)).algorithm in ("none", "copy")
    if ctx.n_pes() > 1 and not limited:
        assert nvsym.explain_allreduce(many, algorithm="nvshmem").algorithm == "nvshmem"
    with pytest.raises(ValueError, match="mpi"):
        nvsym.explain_allreduce(many, algorithm="mpi")
    assert nvsym.warmup(["float32", "int64"], ["sum", "xor"]) >= 0
    meet()


def streams_of_all_kinds():
    raw = nvsym.Stream()
    streams = {"none": None, "own": nvsym.Stream(), "int": raw.handle, "legacy": 1, "per thread": 2, "zero": 0}
    torch, cupy = library("torch"), library("cupy")
    streams["torch"] = torch.cuda.Stream() if torch else TorchStream()
    streams["cupy"] = cupy.cuda.Stream(non_blocking=True) if cupy else CupyStream()
    if torch:
        streams["torch default"] = torch.cuda.default_stream()
    return streams, raw


def test_streams(ctx, limited, meet):
    me, n = ctx.my_pe(), ctx.n_pes()
    streams, _raw = streams_of_all_kinds()
    for name, stream in streams.items():
        source, dest = F32(10_000), F32.zeros(10_000)
        meet()
        source.fill(me + 1, stream=stream)
        nvsym.put(dest, source, (me + 1) % n, stream=stream)
        nvsym.barrier_all(stream=stream)
        out = np.zeros(10_000, np.float32)
        dest.enqueue_copy_to(out, stream=stream)
        ctx.synchronize()
        assert (out == (me - 1) % n + 1).all(), name
        if not limited:
            nvsym.allreduce(dest, source, stream=stream)
            ctx.synchronize()
            assert (dest.to_numpy() == n * (n + 1) / 2).all(), name
    for wrong, error in (("s", TypeError), (object(), TypeError), (-1, ValueError), (True, TypeError)):
        with pytest.raises(error):
            nvsym.barrier_all(stream=wrong)
    meet()


def test_events(ctx):
    first, second = nvsym.Stream(), nvsym.Stream()
    b = F32(8 << 20)
    start, end = nvsym.Event(timing=True), nvsym.Event(timing=True)
    start.record(first)
    b.fill(1, stream=first)
    end.record(first)
    second.wait_event(end)
    b[:10].fill(2, stream=second)
    second.synchronize()
    assert end.query()
    assert 0 < start.elapsed_time(end) < 1000
    assert b.to_numpy()[:11].tolist() == [2] * 10 + [1]
    with pytest.raises(ValueError):
        start.elapsed_time(nvsym.Event())
    first.record_event().synchronize()
    assert first.query()


@contextlib.contextmanager
def capture():
    """A stream of another library, and a graph of what is enqueued on it inside."""
    torch = library("torch")
    if not torch:
        stream = TorchStream()
        graph = Graph(stream.kept)
        yield stream, graph
        graph.end()
        return
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        yield stream, graph
        graph.capture_end()


def test_capture(ctx, limited, meet):
    me, n = ctx.my_pe(), ctx.n_pes()
    right, left = (me + 1) % n, (me - 1) % n
    source, dest, total, filled = F32.full(1000, me + 1), F32.zeros(1000), F32.zeros(1000), F32.zeros(1000)
    signal = U64.zeros(1)
    meet()
    with capture() as (stream, graph):
        filled.fill(4, stream=stream)
        nvsym.put(dest, source, right, stream=stream)
        nvsym.get(filled, source, right, stream=stream)
        nvsym.put_signal(dest, source, signal, 1, right, op="add", stream=stream)
        nvsym.quiet(stream=stream)
        if not limited:
            nvsym.signal_wait_until(signal, "ge", 1, stream=stream)
            nvsym.allreduce(total, source, stream=stream)
            nvsym.barrier_all(stream=stream)
        else:
            with pytest.raises(nvsym.NotAvailableError, match="graph"):
                nvsym.barrier_all(stream=stream)
        # What cannot be captured says so before the driver sees it, and the capture goes on.
        for call in (
            lambda: F32(5), lambda: F32.zeros(5), source.free, nvsym.collect, nvsym.finalize,
            lambda: dest.enqueue_copy_from(np.zeros(1000, np.float32), stream=stream),
            lambda: dest.enqueue_copy_to(np.zeros(1000, np.float32), stream=stream),
        ):  # fmt: skip
            with pytest.raises(nvsym.BackendError, match="captur"):
                call()
    assert (dest.to_numpy() == 0).all()
    meet()  # all have looked before the first one puts
    for _ in range(5):
        graph.replay()
    ctx.device.synchronize()
    meet()
    assert (dest.to_numpy() == left + 1).all()
    assert (filled.to_numpy() == right + 1).all()
    assert signal.to_numpy()[0] == 5
    if not limited:
        assert (total.to_numpy() == n * (n + 1) / 2).all()
    meet()


@pytest.mark.parametrize("size", [1000, 40_000, 500_000])
def test_a_put_takes_what_a_get_before_it_brings(ctx, meet, size):
    """Both by one array in pageable memory, which is staged in pieces: in the order of the stream all the same."""
    me, n = ctx.my_pe(), ctx.n_pes()
    left, right = (me - 1) % n, (me + 1) % n
    stream = nvsym.Stream()
    source, dest = F32(size), F32.zeros(size)
    through = np.zeros(size, np.float32)
    for step in range(5):
        source.fill(100 * step + me, stream=stream)
        stream.synchronize()
        meet()
        nvsym.get(through, source, right, stream=stream)
        nvsym.put(dest, through, right, stream=stream)
        stream.synchronize()
        meet()
        assert (dest.to_numpy() == 100 * step + (left + 1) % n).all()
        meet()


def test_signal_op_in_a_graph_is_behind_the_puts(ctx, limited, meet):
    me, n = ctx.my_pe(), ctx.n_pes()
    left, right = (me - 1) % n, (me + 1) % n
    stream = nvsym.Stream()
    size = 30_000  # the kernel's where PEs share a GPU, the copy engine's to another one
    source, dest, beside, signal = F32(size), F32.zeros(size), F32.zeros(size), U64.zeros(3)
    found = ctx.enqueue_create_host_buffer(np.float32, size)
    meet()
    graph = Graph(stream)
    nvsym.put(dest, source, right, stream=stream)
    nvsym.signal_op(signal[0:1], 3, right, op="add", stream=stream)
    nvsym.signal_op(signal[1:2], 2**64 - 1, right, stream=stream)
    nvsym.put_signal(beside, source, signal[2:3], 1, right, op="add", stream=stream)  # more than a kernel takes
    graph.end()
    for step in range(1, 21):
        source.fill(100 * step + me, stream=stream)
        graph.replay()
        if limited:
            stream.synchronize()
            meet()
        else:
            nvsym.signal_wait_until(signal[0:1], "ge", 3 * step, stream=stream)
        dest.enqueue_copy_to(found, stream=stream)
        stream.synchronize()
        assert (np.asarray(found) == 100 * step + left).all()
        if not limited:
            nvsym.signal_wait_until(signal[2:3], "eq", step, stream=stream)
        beside.enqueue_copy_to(found, stream=stream)
        stream.synchronize()
        assert (np.asarray(found) == 100 * step + left).all()
        meet()
    assert signal.to_numpy().tolist() == [60, 2**64 - 1, 20]
    graph.destroy()
    meet()


def test_deferred_frees(ctx, limited, meet):
    """A block that is dropped while work on it is enqueued is not handed out before that work is done."""
    me, n = ctx.my_pe(), ctx.n_pes()
    stream = nvsym.Stream()
    gate = U64.zeros(1)
    size = 1 << 20
    target = F32.zeros(size)
    meet()
    if not limited:
        nvsym.signal_wait_until(gate, "eq", 1, stream=stream)
    source = F32.full(size, me + 1)
    address = source.unsafe_ptr()
    live = ctx.heap.live
    nvsym.put(target, source, (me + 1) % n, stream=stream)
    del source
    gc.collect()
    nvsym.collect()
    if not limited:
        assert ctx.heap.live == live
        assert F32.full(size, 99).unsafe_ptr() != address
        nvsym.signal_op(gate, 1, me, stream=nvsym.Stream())
    stream.synchronize()
    meet()
    assert (target.to_numpy() == (me - 1) % n + 1).all()
    meet()
    gc.collect()
    nvsym.collect()
    assert ctx.heap.live == live - 1


def test_dropping_buffers(ctx):
    gc.collect()
    nvsym.collect()
    before = ctx.heap.live
    for i in range(200):
        F32(1000 + i).fill(1)
    ctx.synchronize()
    gc.collect()
    nvsym.collect()
    assert ctx.heap.live == before


def test_heap_growth_and_exhaustion(ctx, meet):
    kept = F32.full(1000, 5)
    size = ctx.heap.size
    large = F32.full(size // 4 + 1, 6)  # one element more than a whole arena
    assert ctx.heap.size > size
    for n in (1 << 36, 1 << 38, (1 << 62) // 4 - 1):
        with pytest.raises(nvsym.HeapExhaustedError, match="asked for"):
            F32(n)
    assert (kept.to_numpy() == 5).all()
    assert (large.to_numpy() == 6).all()
    right = (ctx.my_pe() + 1) % ctx.n_pes()
    nvsym.put(large[:1000], kept, right)
    meet()
    assert (large.to_numpy()[:1001] == [5] * 1000 + [6]).all()
    large.free()


def test_exhaustion_on_one_pe(ctx, monkeypatch):
    kept = F32.full(1000, 5)
    if ctx.my_pe() == ctx.n_pes() - 1:
        monkeypatch.setenv("NVSHMEM_MAX_MEMORY_PER_GPU", "512M")
    with pytest.raises(nvsym.HeapExhaustedError):
        F32(ctx.heap.size // 4 + 2)
    monkeypatch.undo()
    assert (kept.to_numpy() == 5).all()
    assert (F32.full(1000, 1).to_numpy() == 1).all()


def test_exchange_with_torch_and_cupy(ctx):
    need_real_gpu("PyTorch and CuPy know no other")
    torch = pytest.importorskip("torch")
    cupy = pytest.importorskip("cupy")
    b = F32.full(1000, 3)
    t = torch.from_dlpack(b)
    assert t.device.type == "cuda"
    assert t.data_ptr() == b.unsafe_ptr()
    t += 1
    torch.cuda.synchronize()
    assert (b.to_numpy() == 4).all()
    c = cupy.from_dlpack(b)
    c *= 2
    cupy.cuda.runtime.deviceSynchronize()
    assert (b.to_numpy() == 8).all()
    interface = b.__cuda_array_interface__
    assert interface["version"] == 3
    assert interface["shape"] == (1000,)
    assert interface["typestr"] == "<f4"
    assert interface["data"] == (b.unsafe_ptr(), False)
    assert interface["strides"] is None
    assert interface["stream"] == ctx.stream.handle
    d = cupy.asarray(b)
    assert d.data.ptr == b.unsafe_ptr()
    assert torch.as_tensor(b, device="cuda").data_ptr() == b.unsafe_ptr()
    assert cupy.asarray(b.peer(ctx.my_pe())).data.ptr == b.unsafe_ptr()
    # What is enqueued on the job's stream comes before what a consumer does.
    for i in range(20):
        b.fill(i)
        assert float(torch.from_dlpack(b).sum()) == 1000 * i
        assert float(cupy.asarray(b).sum()) == 1000 * i
    bf16 = nvsym.SHMEMBuffer["bfloat16"].full(8, 2)
    assert torch.from_dlpack(bf16).dtype is torch.bfloat16
    assert not hasattr(bf16, "__cuda_array_interface__")
    for wrong in (0, "x"):
        with pytest.raises(ValueError, match="stream"):
            b.__dlpack__(stream=wrong)
    del t, c, d


def test_a_tensor_keeps_freed_memory(ctx, meet):
    need_real_gpu("PyTorch and CuPy know no other")
    torch = pytest.importorskip("torch")
    b = F32.full(1000, 3)
    address = b.unsafe_ptr()
    tensor = torch.from_dlpack(b)
    b.free()
    others = [F32.full(1000, 9) for _ in range(4)]
    assert address not in [other.unsafe_ptr() for other in others]
    assert float(tensor.sum()) == 3000
    del tensor
    meet()
    nvsym.collect()


def test_devices(ctx):
    devices = ctx.devices()
    assert len(devices) == ctx.n_pes()
    assert ctx.device == devices[ctx.my_pe()]
    # tools/gpu.sh gives all PEs one GPU or one to each, as the simulator does.
    gpus = ctx.n_pes() if is_simulated() else len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
    assert len({device.uuid for device in devices}) == gpus
    assert ctx.device == nvsym.Device(ctx.device.ordinal)
    assert ctx.device.can_access(devices[-1])
    assert ctx.number_of_devices() == gpus
    with pytest.raises(nvsym.NotAvailableError, match="CUDA_VISIBLE_DEVICES"):
        nvsym.Device(99)
    names = [name for name, _, _ in ctx.capabilities()]
    assert {"multicast", "kernels"} <= set(names)
    with pytest.raises(nvsym.MulticastUnsupportedError, match="disabled by"):
        F32.zeros(4).multicast()
