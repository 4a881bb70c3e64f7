# SPDX-License-Identifier: Apache-2.0
"""Collective operations: results against an exact reference, the same bits on all PEs; calls that do not fit."""

import functools
import hashlib
import time

import numpy as np
import pytest

import nvsym

PES = pytest.mark.pes(1, 2, 4)
NODES = pytest.mark.pes(4, nodes=2)
ALGORITHMS = ("auto", "one_shot", "two_shot", "mpi")
STAGE = 16384  # bytes up to which a payload goes through the control block of a team
OPS = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
INTEGERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64", "longdouble")
SMALL_FLOATS = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz")
COMPLEX = ("complex64", "complex128")
ALL = INTEGERS + FLOATS + SMALL_FLOATS + COMPLEX


def ops_of(dtype):
    if dtype in INTEGERS:
        return tuple(OPS)
    return ("sum", "prod") if dtype in COMPLEX else ("sum", "prod", "min", "max")


def values_of(dtype, n, pe, salt=0):
    """Values for which no order of summation matters, except for the last bits of floats."""
    numpy = nvsym.SHMEMBuffer[dtype].dtype
    rng = np.random.default_rng([pe, n, salt])
    if dtype == "bool":
        return rng.integers(0, 2, n).astype(bool)
    if dtype in INTEGERS:
        limits = np.iinfo(numpy)
        return rng.integers(limits.min, limits.max, n, numpy, endpoint=True)
    values = rng.uniform(-2, 2, n)
    if dtype in COMPLEX:
        return (values + 1j * rng.uniform(-2, 2, n)).astype(numpy)
    return values.astype(numpy)


def reference(op, dtype, arrays):
    """By PE, 0 first; 16- and 8-bit floats in float32, rounded once."""
    numpy = arrays[0].dtype
    if dtype == "bool" and op in ("sum", "prod"):
        op = "or" if op == "sum" else "and"
    work = np.float32 if dtype in ("float16", "bfloat16", *SMALL_FLOATS) else numpy
    result = arrays[0].astype(work)
    with np.errstate(all="ignore"):
        for array in arrays[1:]:
            result = OPS[op](result, array.astype(work))
        return result.astype(numpy)


def bits(array):
    if array.dtype == np.longdouble:  # the padding is nobody's
        return array.astype(">c32" if array.dtype.kind == "c" else np.longdouble).tolist()
    return array.tobytes()


def equal(found, expected):
    if found.dtype.kind in "fcV" or found.dtype.itemsize < 4:
        wide = (
            np.complex128 if found.dtype.kind == "c" else np.longdouble if found.dtype == np.longdouble else np.float64
        )
        if found.dtype.kind == "c":  # NumPy's own product of complex numbers may be fused, by the processor
            return np.allclose(found, expected, rtol=8 * np.finfo(found.dtype).eps, atol=0, equal_nan=True)
        return np.array_equal(found.astype(wide), expected.astype(wide), equal_nan=True)
    return np.array_equal(found, expected)


@PES
@NODES
@pytest.mark.parametrize("dtype", ALL)
def test_reduce_each_op(ctx, dtype):
    me, n = ctx.my_pe(), ctx.n_pes()
    for count in (0, 1, 7, 333):
        sources = [values_of(dtype, count, pe) for pe in range(n)]
        source = nvsym.SHMEMBuffer[dtype].from_numpy(sources[me])
        dest = nvsym.SHMEMBuffer[dtype](count)
        for op in ops_of(dtype):
            expected = reference(op, dtype, sources)
            for algorithm in ALGORITHMS:
                dest.enqueue_copy_from(np.zeros(count, source.dtype))
                nvsym.allreduce(dest, source, op, algorithm=algorithm)
                assert equal(dest.to_numpy(), expected), (op, algorithm, count)
            assert equal(source.to_numpy(), sources[me])
        nvsym.barrier_all()


def sizes(itemsize):
    at_stage = STAGE // itemsize
    return (4096 // itemsize - 1, 4096 // itemsize + 1, at_stage - 1, at_stage, at_stage + 1, 3 * at_stage + 5, 300_000)


@PES
@NODES
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8"])
def test_reduce_sizes_in_and_out_of_place(ctx, dtype):
    """The same bits on every PE, by every algorithm, in every run."""
    me, n = ctx.my_pe(), ctx.n_pes()
    itemsize = nvsym.SHMEMBuffer[dtype].itemsize
    hashes = []
    for count in sizes(itemsize):
        sources = [values_of(dtype, count, pe) for pe in range(n)]
        expected = reference("sum", dtype, sources)
        for algorithm in ALGORITHMS:
            source = nvsym.SHMEMBuffer[dtype].from_numpy(sources[me])
            dest = nvsym.SHMEMBuffer[dtype](count)
            nvsym.reduce(dest, source, "sum", algorithm=algorithm)
            first = dest.to_numpy()
            assert equal(first, expected), (count, algorithm)
            nvsym.reduce(source, source, "sum", algorithm=algorithm)  # in place
            assert source.to_numpy().tobytes() == first.tobytes(), (count, algorithm)
            hashes.append(hashlib.sha256(first.tobytes()).digest())
            source.free()
            dest.free()
    mine = np.frombuffer(b"".join(hashes), np.uint8)
    everyone = nvsym.SHMEMBuffer["uint8"].zeros(n * len(mine))
    nvsym.fcollect(everyone, nvsym.SHMEMBuffer["uint8"].from_numpy(mine))
    assert (everyone.to_numpy().reshape(n, -1) == mine).all()
    nvsym.barrier_all()


@PES
@NODES
@pytest.mark.parametrize("count", [0, 1, 13, 4096, 4097, 20_000])
def test_moving_collectives(ctx, count):
    me, n = ctx.my_pe(), ctx.n_pes()
    Buffer = nvsym.SHMEMBuffer["int32"]
    source = Buffer.from_numpy(np.arange(count, dtype=np.int32) + 1000 * me)
    dest = Buffer.full(count, -1)
    for root in range(n):
        nvsym.broadcast(dest, source, root)
        assert np.array_equal(dest.to_numpy(), np.arange(count) + 1000 * root)
        own = Buffer.from_numpy(np.arange(count, dtype=np.int32) * (me + 1))
        nvsym.broadcast(own, own, root)
        assert np.array_equal(own.to_numpy(), np.arange(count) * (root + 1))
    whole = Buffer.full(n * count, -1)
    nvsym.fcollect(whole, source)
    assert np.array_equal(whole.to_numpy().reshape(n, count), np.arange(count) + 1000 * np.arange(n)[:, None])
    blocks = Buffer.from_numpy((10 * me + np.repeat(np.arange(n), count)).astype(np.int32))
    nvsym.alltoall(whole, blocks)
    assert np.array_equal(whole.to_numpy(), 10 * np.repeat(np.arange(n), count) + me)
    for op in ("sum", "max"):
        nvsym.reducescatter(dest, blocks, op)
        expected = sum(10 * pe + me for pe in range(n)) if op == "sum" else 10 * (n - 1) + me
        assert (dest.to_numpy() == expected).all()
    nvsym.barrier_all()


@PES
@NODES
def test_many_small_calls_back_to_back(ctx):
    """Nothing of one call is seen by another."""
    me, n = ctx.my_pe(), ctx.n_pes()
    source = nvsym.SHMEMBuffer["int64"].zeros(2)
    dest = nvsym.SHMEMBuffer["int64"].zeros(2)
    big = nvsym.SHMEMBuffer["int64"].zeros(3000)
    for i in range(150):
        np.asarray(source)[:] = i + me
        nvsym.allreduce(dest, source)
        assert (dest.to_numpy() == n * i + n * (n - 1) // 2).all(), i
        nvsym.broadcast(dest, source, i % n)
        assert (dest.to_numpy() == i + i % n).all(), i
        if i % 10 == 0:
            np.asarray(big)[:] = i + me
            nvsym.allreduce(big, big)
            assert (np.asarray(big) == n * i + n * (n - 1) // 2).all(), i
    nvsym.barrier_all()


@PES
@NODES
def test_on_streams(ctx):
    me, n = ctx.my_pe(), ctx.n_pes()
    stream = nvsym.Stream()
    a = nvsym.SHMEMBuffer["float64"].full(1000, me + 1.0)
    b = nvsym.SHMEMBuffer["float64"].zeros(1000)
    whole = nvsym.SHMEMBuffer["float64"].zeros(1000 * n)
    part = nvsym.SHMEMBuffer["float64"].zeros(1000)
    nvsym.allreduce(b, a, stream=stream)
    nvsym.allreduce(b, b, "max", stream=stream)
    nvsym.fcollect(whole, b, stream=stream)
    nvsym.alltoall(whole, nvsym.SHMEMBuffer["float64"].full(1000 * n, me), stream=stream)
    nvsym.reducescatter(part, whole, stream=stream)
    nvsym.broadcast(a, part, n - 1, stream=stream)
    stream.synchronize()
    assert (b.to_numpy() == n * (n + 1) / 2).all()
    # Block i of `whole` holds i everywhere, so PE i has n * i.
    assert (part.to_numpy() == n * me).all()
    assert (a.to_numpy() == n * (n - 1)).all()
    nvsym.barrier_all()


@pytest.mark.pes(4)
@NODES
def test_teams_interleaved(ctx):
    """Teams that overlap, on streams of their own and on none, in different orders on different PEs."""
    me = ctx.my_pe()
    x, y = nvsym.TEAM_WORLD.split_2d(2)
    rows, columns = nvsym.Stream(), nvsym.Stream()
    a = nvsym.SHMEMBuffer["int64"].full(100, me)
    in_row = nvsym.SHMEMBuffer["int64"].zeros(100)
    in_column = nvsym.SHMEMBuffer["int64"].zeros(100)
    for i in range(30):
        calls = [
            lambda: nvsym.allreduce(in_row, a, team=x, stream=rows),
            lambda: nvsym.allreduce(in_column, a, team=y, stream=columns),
        ]
        for call in calls if me % 2 else reversed(calls):
            call()
        rows.synchronize()
        columns.synchronize()
        assert (in_row.to_numpy() == 4 * (me // 2) + 1).all(), i
        assert (in_column.to_numpy() == 2 * (me % 2) + 2).all(), i
    nvsym.barrier(x)
    nvsym.sync(y)
    for team in (y, x):
        team.destroy()
    single = nvsym.TEAM_WORLD.split_2d(1)[0]
    nvsym.allreduce(in_row, a, team=single)
    assert (in_row.to_numpy() == me).all()
    single.destroy()
    nvsym.barrier_all()


def call_for(seconds, team):
    """Call until that raises: the stream's thread may not have begun with its own call yet."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        nvsym.barrier(team)


@PES
@NODES
def test_a_team_in_two_streams_at_once_is_an_error(ctx):
    stream = nvsym.Stream()
    gate = nvsym.SHMEMBuffer["uint64"].zeros(1)
    team = nvsym.TEAM_WORLD.split_strided(0, 1, ctx.n_pes())
    a = nvsym.SHMEMBuffer["int64"].zeros(100)
    if ctx.n_pes() > 1 and ctx.my_pe() == 0:
        # The call on the stream waits for the others; meanwhile this thread makes another.
        nvsym.allreduce(a, a, team=team, stream=stream)
        time.sleep(1.0)  # until the stream's thread has begun it
        with pytest.raises(nvsym.CollectiveError, match="ordered"):
            call_for(5.0, team)
        for pe in range(ctx.n_pes()):
            nvsym.signal_op(gate, 1, pe)
        stream.synchronize()
    elif ctx.n_pes() > 1:
        nvsym.signal_wait_until(gate, "eq", 1)
        nvsym.allreduce(a, a, team=team)
    nvsym.allreduce(a, a, team=team)
    team.destroy()
    nvsym.barrier_all()


MISMATCHES = {
    "op": lambda me, a, b: nvsym.allreduce(a, a, "max" if me == 1 else "sum"),
    "count": lambda me, a, b: nvsym.allreduce(a[: 5 + (me == 1)], a[: 5 + (me == 1)]),
    "count, large": lambda me, a, b: nvsym.allreduce(b[: 9000 + (me == 1)], b[: 9000 + (me == 1)]),
    "dtype": lambda me, a, b: nvsym.allreduce(b, b) if me == 1 else nvsym.allreduce(a, a),
    "root": lambda me, a, b: nvsym.broadcast(a, a, int(me == 1)),
    "call": lambda me, a, b: nvsym.barrier_all() if me == 1 else nvsym.allreduce(a, a),
    "algorithm": lambda me, a, b: nvsym.allreduce(a, a, algorithm="one_shot" if me == 1 else "two_shot"),
}


@pytest.mark.pes(2, 4)
@NODES
@pytest.mark.parametrize("kind", [kind for kind in MISMATCHES if kind != "algorithm"])
def test_calls_that_differ_raise_on_all(ctx, kind):
    me = ctx.my_pe()
    a = nvsym.SHMEMBuffer["float32"].full(10_000, 1)
    b = nvsym.SHMEMBuffer["int64"].full(10_000, 1)
    for _ in range(3):
        with pytest.raises(nvsym.CollectiveError, match=r"PE 0.*PE 1") as caught:
            MISMATCHES[kind](me, a, b)
        assert "different calls" in str(caught.value)
    assert (a.to_numpy() == 1).all()
    assert (b.to_numpy() == 1).all()
    nvsym.allreduce(a, a)
    assert (a.to_numpy() == ctx.n_pes()).all()
    nvsym.barrier_all()


MOVES = {
    "broadcast": lambda dest, source, **kw: nvsym.broadcast(dest[: len(source)], source, 0, **kw),
    "fcollect": lambda dest, source, **kw: nvsym.fcollect(dest, source, **kw),
    "alltoall": lambda dest, source, **kw: nvsym.alltoall(dest[: len(source)], source, **kw),
}


@pytest.mark.pes(2, 4)
@NODES
@pytest.mark.parametrize("call", MOVES)
def test_types_that_differ_raise_on_all(ctx, call):
    """Also where the bytes are as many, and nothing is reduced."""
    me, n = ctx.my_pe(), ctx.n_pes()
    stream = nvsym.Stream()
    source = nvsym.SHMEMBuffer["uint8"].full(4 * STAGE, me)
    dest = nvsym.SHMEMBuffer["uint8"].full(n * 4 * STAGE, 7)

    def views(dtype, nbytes):
        cls = nvsym.SHMEMBuffer[dtype]
        return [cls.adopt(b.unsafe_ptr(), size // cls.itemsize) for b, size in ((dest, n * nbytes), (source, nbytes))]

    for types in (("int32", "float32"), ("float32", "float64"), ("float16", "bfloat16"), ("bool", "int8")):
        for nbytes in (32, 4 * STAGE):
            mine = views(types[me == 1], nbytes)
            counts = [len(views(dtype, nbytes)[1]) // (n if call == "alltoall" else 1) for dtype in types]
            text = (
                rf"different calls.*PE 0: {call} of {counts[0]} {types[0]}\b.*PE 1: {call} of {counts[1]} {types[1]}\b"
            )
            with pytest.raises(nvsym.CollectiveError, match=text):
                MOVES[call](*mine)
            MOVES[call](*mine, stream=stream)
            with pytest.raises(nvsym.CollectiveError, match=text):
                stream.synchronize()
    assert (dest.to_numpy() == 7).all()
    MOVES[call](*views("float32", 32))
    assert (dest.to_numpy()[:32] == (np.repeat(range(n), 32 // n) if call == "alltoall" else 0)).all()
    nvsym.barrier_all()


FAILURES = {
    "op": (lambda a: nvsym.allreduce(a, a, "mean"), ValueError, "op.*mean"),
    "op for the type": (lambda a: nvsym.allreduce(a, a, "xor"), TypeError, "xor.*float32"),
    "algorithm": (lambda a: nvsym.allreduce(a, a, algorithm="ring"), ValueError, "algorithm.*ring.*one_shot"),
    "multimem": (lambda a: nvsym.allreduce(a, a, algorithm="multimem"), ValueError, "algorithm.*multimem.*multicast"),
    "nvshmem": (lambda a: nvsym.allreduce(a, a, algorithm="nvshmem"), ValueError, "algorithm.*nvshmem.*host"),
    "length": (lambda a: nvsym.allreduce(a[:5], a[5:]), ValueError, "dest.*5.*15"),
    "overlap": (lambda a: nvsym.allreduce(a[:15], a[5:]), ValueError, "dest.*overlaps"),
    "type": (lambda a: nvsym.allreduce(a, other_of(a)), TypeError, "dest.*float32.*source.*int8"),
    "an array": (lambda a: nvsym.allreduce(np.zeros(20, np.float32), a), TypeError, "dest.*SHMEMBuffer"),
    "team": (lambda a: nvsym.allreduce(a, a, team="world"), TypeError, "team.*Team.*str"),
    "root": (lambda a: nvsym.broadcast(a, a, nvsym.n_pes()), ValueError, "root.*TEAM_WORLD"),
    "root below": (lambda a: nvsym.broadcast(a, a, -1), ValueError, "root: -1"),
    "root far above": (lambda a: nvsym.broadcast(a, a, 1 << 40), ValueError, "root: 1099511627776"),
    "root is a float": (lambda a: nvsym.broadcast(a, a, 0.0), TypeError, "root: .*float"),
    "root is a text": (lambda a: nvsym.broadcast(a, a, "0"), TypeError, "root: .*str"),
    "fcollect": (lambda a: nvsym.fcollect(a, a), ValueError, "dest.*20"),
    "alltoall in place": (lambda a: nvsym.alltoall(a, a), ValueError, "dest.*source"),
    "alltoall length": (lambda a: nvsym.alltoall(a[:13], a[:13]), ValueError, "source.*13.*block"),
    "reducescatter": (lambda a: nvsym.reducescatter(a, a), ValueError, "dest"),
    "stream": (lambda a: nvsym.allreduce(a, a, stream="s"), TypeError, "stream"),
    "stream that raises": (lambda a: nvsym.allreduce(a, a, stream=NoStream()), RuntimeError, "no stream"),
    "a peer's buffer": (lambda a: nvsym.allreduce(a.peer(nvsym.my_pe()), a), TypeError, "source.*dest"),
    "a freed buffer": (lambda a: nvsym.allreduce(freed(), a), nvsym.FreedBufferError, "^dest: "),
    "barrier": (lambda a: nvsym.barrier(stream="s"), TypeError, "stream"),
    "barrier of no team": (lambda a: nvsym.barrier(3), TypeError, "team"),
    "barrier_all": (lambda a: nvsym.barrier_all(stream=NoStream()), RuntimeError, "no stream"),
    "sync_all": (lambda a: nvsym.sync_all(stream="s"), TypeError, "stream"),
}


class NoStream:
    """What looks like another library's stream."""

    @property
    def ptr(self):
        raise RuntimeError("no stream")


@functools.cache
def freed():
    """A view of a buffer that all PEs freed before the first call; made by `test_a_bad_call_on_one_pe_raises_on_all`."""
    buffer = nvsym.SHMEMBuffer["float32"](20)
    view = buffer[:]
    buffer.free()
    return view


def other_of(a):
    return nvsym.SHMEMBuffer["int8"].adopt(a.unsafe_ptr(), len(a))


@pytest.mark.pes(2, 4)
@NODES
@pytest.mark.parametrize("case", FAILURES)
def test_a_bad_call_on_one_pe_raises_on_all(ctx, case):
    me, n = ctx.my_pe(), ctx.n_pes()
    bad, error, text = FAILURES[case]
    a = nvsym.SHMEMBuffer["float32"].full(20, 1)
    freed()
    start = time.monotonic()
    for _ in range(2):
        if me == n - 1:
            with pytest.raises(error, match=text):
                bad(a)
        else:
            with pytest.raises(
                nvsym.CollectiveError, match=rf"failed on another PE.*PE {n - 1}: {error.__name__}: .*"
            ) as caught:
                nvsym.allreduce(a, a)
            assert "PE 0:" not in str(caught.value)
    # On all PEs at once each has its own reason.
    with pytest.raises(error, match=text):
        bad(a)
    assert time.monotonic() - start < 10
    assert (a.to_numpy() == 1).all()
    nvsym.allreduce(a, a)
    assert (a.to_numpy() == n).all()
    nvsym.barrier_all()


@pytest.mark.pes(2)
@pytest.mark.pes(2, nodes=2)
def test_a_failure_on_a_stream_is_raised_at_its_end(ctx):
    me = ctx.my_pe()
    stream = nvsym.Stream()
    a = nvsym.SHMEMBuffer["float32"].full(20, 1)
    nvsym.allreduce(a, a, "max" if me else "sum", stream=stream)
    nvsym.put(a, np.full(20, 9, np.float32), me, stream=stream)
    with pytest.raises(nvsym.CollectiveError, match="different calls"):
        stream.synchronize()
    stream.synchronize()  # once
    assert (a.to_numpy() == 1).all()
    nvsym.allreduce(a, a, stream=stream)
    stream.synchronize()
    assert (a.to_numpy() == 2).all()
    nvsym.barrier_all()


@pytest.mark.pes(2)
def test_a_freed_buffer_on_one_pe(ctx):
    a = nvsym.SHMEMBuffer["float32"].full(20, 1)
    freed = nvsym.SHMEMBuffer["float32"].full(20, 1)
    freed.free()
    if ctx.my_pe() == 0:
        with pytest.raises(nvsym.FreedBufferError):
            nvsym.allreduce(a, freed)
    else:
        with pytest.raises(nvsym.CollectiveError, match="PE 0: FreedBufferError"):
            nvsym.allreduce(a, a)
    nvsym.allreduce(a, a)
    assert (a.to_numpy() == 2).all()


@pytest.mark.pes(2, 4)
def test_nan_and_signed_zero(ctx):
    """min and max take a NaN of any PE; a sum of -0.0 is -0.0."""
    me, n = ctx.my_pe(), ctx.n_pes()
    values = np.array(
        [np.nan if me == n - 1 else 1.0, np.nan if me == 0 else 1.0, np.inf if me else -np.inf, -0.0], np.float64
    )
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        a = nvsym.SHMEMBuffer[dtype].from_numpy(values.astype(nvsym.SHMEMBuffer[dtype].dtype))
        b = nvsym.SHMEMBuffer[dtype](4)
        for op in ("min", "max", "sum"):
            nvsym.allreduce(b, a, op)
            found = b.to_numpy().astype(np.float64)
            assert np.isnan(found[:2]).all(), (dtype, op, found)
        assert np.isnan(found[2])
        assert found[3] == 0
        assert np.signbit(found[3])
        nvsym.barrier_all()


def test_the_setting_of_the_algorithm(mpirun):
    done = mpirun(
        2,
        """
        import nvsym
        ctx = nvsym.init(heap_size="1M")
        a = nvsym.SHMEMBuffer["float32"].full(20, 1)
        for call in (nvsym.allreduce, nvsym.explain_allreduce):
            for algorithm in ("auto", "nvshmem"):
                try:
                    call(a, a, algorithm=algorithm)
                except ValueError as error:
                    print(error)
        nvsym.allreduce(a, a, algorithm="two_shot")
        print(a.to_numpy()[0])
        """,
        env={"NVSYM_ALLREDUCE_ALGORITHM": "multimem"},
    )
    for text in done.pe_stdout:
        said = text.splitlines()
        for by_setting, by_call in (said[:2], said[2:4]):
            assert by_setting.startswith("the setting NVSYM_ALLREDUCE_ALGORITHM: 'multimem' cannot be used here: ")
            assert by_call.startswith("algorithm: 'nvshmem' cannot be used here: ")
        assert text.endswith("2.0\n")
    code = """
        import nvsym
        nvsym.init(heap_size="1M")
        a = nvsym.SHMEMBuffer["float32"].full(20, 1)
        nvsym.allreduce(a, a)
        print(a.to_numpy()[0])
        """
    assert mpirun(2, code, env={"NVSYM_ALLREDUCE_ALGORITHM": "mpi"}).pe_stdout == ["2.0\n"] * 2


def test_the_setting_of_the_algorithm_is_the_same_on_all_pes(mpirun):
    code = """
        import os
        from mpi4py import MPI
        if MPI.COMM_WORLD.rank == 1:
            os.environ["NVSYM_ALLREDUCE_ALGORITHM"] = "one_shot"
        import nvsym
        try:
            nvsym.init(heap_size="1M")
        except nvsym.CollectiveError as error:
            print("NVSYM_ALLREDUCE_ALGORITHM" in str(error))
        """
    assert mpirun(2, code).pe_stdout == ["True\n"] * 2


@pytest.mark.pes(1, 2, 4)
def test_explained_choice(ctx):
    cls = nvsym.SHMEMBuffer[np.float32]
    few, many, other = cls(4), cls(1 << 20), cls(1 << 20)
    choice = nvsym.explain_allreduce(few)
    assert (choice.backend, choice.n_pes, choice.nbytes, choice.dtype, choice.op) == (
        ctx.backend, ctx.n_pes(), 16, "float32", "sum",
    )  # fmt: skip
    assert choice.asked == "auto"
    assert choice.asked_by == "default"
    names = [nvsym.explain_allreduce(buffer, other[: len(buffer)]).algorithm for buffer in (few, many)]
    if ctx.n_pes() == 1:
        assert names == ["copy", "copy"]
    else:
        assert names == ["one_shot", "two_shot"]
        for algorithm in ("one_shot", "two_shot", "mpi"):
            choice = nvsym.explain_allreduce(many, other, "max", algorithm=algorithm)
            assert (choice.algorithm, choice.asked_by, choice.op) == (algorithm, "call", "max")
    assert len({str(nvsym.explain_allreduce(buffer)) for buffer in (few, few[1:], few[:])}) == 2
    for text in ("float32", f"{ctx.n_pes()} PEs", ctx.backend):
        assert text in str(choice)
    # As the call itself, it refuses what cannot be done.
    with pytest.raises(ValueError, match="multicast"):
        nvsym.explain_allreduce(few, algorithm="multimem")
    with pytest.raises(ValueError, match="ring"):
        nvsym.explain_allreduce(few, algorithm="ring")
    with pytest.raises(ValueError, match="dest"):
        nvsym.explain_allreduce(few, many)
    with pytest.raises(TypeError, match="op"):
        nvsym.explain_allreduce(few, op="xor")
    nvsym.barrier_all()


@pytest.mark.pes(4, nodes=2)
def test_explained_choice_on_two_nodes(ctx):
    assert len(set(ctx.nodes())) == 2
    a = nvsym.SHMEMBuffer[np.float32](8)
    assert nvsym.explain_allreduce(a).algorithm == "mpi"
    assert nvsym.explain_allreduce(a, team=nvsym.TEAM_NODE).algorithm == "one_shot"
    nvsym.barrier_all()


@pytest.mark.pes(1, 2)
def test_warmup(ctx):
    assert nvsym.warmup() >= 0
    assert nvsym.warmup(dtypes=(np.float64, "bfloat16"), ops=("sum", "max")) >= 0
    for one in ("float32", np.float32, np.dtype(np.float32)):
        assert nvsym.warmup(one, "max") >= 0
    for arguments, text in ((("flot",), "'flot'"), ((None,), "dtypes: .*NoneType"), (("float32", 1), "ops: .*int")):
        with pytest.raises(TypeError, match=text):
            nvsym.warmup(*arguments)
    with pytest.raises(ValueError, match="mean"):
        nvsym.warmup(ops=["mean"])
    with pytest.raises(TypeError, match="dtype"):
        nvsym.warmup(dtypes=["text"])
    nvsym.barrier_all()
