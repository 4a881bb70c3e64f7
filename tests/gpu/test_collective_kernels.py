# SPDX-License-Identifier: Apache-2.0
"""The kernels of the collectives, of small puts, and of users, on GPUs."""

import hashlib
import random
import time

import numpy as np
import pytest
from simulated import Graph

import nvsym
from nvsym.dtypes import DTYPES, OPS, REDUCIBLE
from nvsym.kernels import compiler

U64 = nvsym.SHMEMBuffer[np.uint64]
F32 = nvsym.SHMEMBuffer[np.float32]
MIDDLE = 50_001  # low latency with larger blocks, in most element types
SIZES = (0, 1, 7, 8 << 10, (8 << 10) + 1, (8 << 10) + 7, MIDDLE, (256 << 10) + 5)
LARGE = (16 << 20) + 24
PERIOD = 4099  # elements after which the operands repeat, so that a reference of many costs little

FOLDS = {
    "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def operands(dtype, op, n):
    """One period of each PE's operand: numbers whose result is finite and, for floats, not exact."""
    parts = []
    for pe in range(n):
        rng = np.random.default_rng([pe, dtype.id])
        if dtype.kind == "bool":
            parts.append(rng.integers(0, 2, PERIOD).astype(bool))
        elif dtype.kind in ("int", "uint"):
            parts.append(rng.integers(0, 256, PERIOD * dtype.itemsize, np.uint8).view(dtype.numpy))
        else:
            spread = rng.standard_normal(PERIOD)
            parts.append((spread if op != "prod" else 1 + spread / 8).astype(np.float32).astype(dtype.numpy))
    return parts


def reference(dtype, op, parts):
    """The fold by PE, 0 first, in the type that is summed in, and how far a float may be from the same in float64."""
    wide = np.float32 if dtype.kind == "float" and dtype.itemsize <= 2 else dtype.numpy
    total = parts[0].astype(wide)
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            total = FOLDS[op](total, part.astype(wide)).astype(wide)
        total = total.astype(dtype.numpy)
    if dtype.kind == "float":
        exact = parts[0].astype(np.float64)
        for part in parts[1:]:
            exact = FOLDS[op](exact, part.astype(np.float64))
        bits = {1: 1, 2: 5, 4: 19, 8: 48}[dtype.itemsize]
        assert np.allclose(total.astype(np.float64), exact, rtol=2.0**-bits, atol=2.0**-bits)
    return total


def same_bytes(found, expected, count):
    expected = np.resize(expected.view(f"V{expected.itemsize}"), count)
    return found.tobytes() == expected.tobytes()


TYPES = [dtype.name for dtype in DTYPES if dtype.name in compiler.TYPES]


@pytest.mark.pes(2, 4, timeout=240)
@pytest.mark.parametrize("name", TYPES)
def test_allreduce(ctx, limited, meet, name):
    """Each operator, algorithm and size, in misaligned slices, against a reference, bit for bit."""
    if limited:
        pytest.skip("kernels of collectives: NVSHMEM has no collectives where PEs share a GPU without MPS")
    dtype = next(d for d in DTYPES if d.name == name)
    me, n = ctx.my_pe(), ctx.n_pes()
    cls = nvsym.SHMEMBuffer[dtype.numpy]
    source, dest = cls(SIZES[-1] + 16), cls(SIZES[-1] + 16)
    wrong = []
    for op in OPS:
        if (dtype.id, op.id) not in REDUCIBLE:
            continue
        parts = operands(dtype, op.name, n)
        total = reference(dtype, op.name, parts)
        for i, size in enumerate(SIZES):
            mine = np.resize(parts[me], size)
            ways = [("auto", 0, 0), ("auto", 3, None)]
            if size != MIDDLE:
                ways += [("one_shot", 1, 1), ("two_shot", 5, 2), ("two_shot", i % 4, None)]
            for algorithm, offset, out in ways:
                s = source[offset : offset + size]
                d = s if out is None else dest[out : out + size]
                s.enqueue_copy_from(mine)
                nvsym.allreduce(d, s, op.name, algorithm=algorithm)
                if not same_bytes(d.to_numpy(), total, size):
                    wrong.append((op.name, size, algorithm, offset, out))
    source.free()
    dest.free()
    source, dest = cls(LARGE + 1), cls(LARGE + 1)
    parts = operands(dtype, "max", n)
    source[1:].enqueue_copy_from(np.resize(parts[me], LARGE))
    for op, algorithm in (("sum", "auto"), ("sum", "one_shot"), ("max", "auto")):
        nvsym.allreduce(dest[1:], source[1:], op, algorithm=algorithm)
        if not same_bytes(dest[1:].to_numpy(), reference(dtype, op, parts), LARGE):
            wrong.append((op, LARGE, algorithm))
    source.free()
    dest.free()
    assert not wrong
    meet()


@pytest.mark.pes(2, 4)
def test_the_same_bits_everywhere_and_always(ctx, limited, meet):
    from mpi4py import MPI

    if limited:
        pytest.skip("kernels of collectives: NVSHMEM has no collectives where PEs share a GPU without MPS")
    hashes = {}
    for name in ("float32", "bfloat16", "float8_e4m3fn"):
        cls = nvsym.SHMEMBuffer[name]
        for size in (1000, 100_000, 1 << 20):
            data = np.random.default_rng(ctx.my_pe()).standard_normal(size).astype(np.float32).astype(cls.dtype)
            source, dest = cls.from_numpy(data), cls(size)
            for _ in range(20):
                dest.fill(0)
                nvsym.allreduce(dest, source)
                digest = hashlib.sha256(dest.to_numpy().tobytes()).hexdigest()
                hashes.setdefault((name, size), set()).add(digest)
    for found in MPI.COMM_WORLD.allgather(hashes):
        assert found == hashes
    assert all(len(digests) == 1 for digests in hashes.values())
    meet()


@pytest.mark.pes(2, 4, timeout=120)
@pytest.mark.parametrize("name", ["uint8", "bfloat16", "float32", "complex128"])
def test_other_collectives(ctx, limited, meet, name):
    """Every size and alignment: of the low latency, of the barriers, and of a broadcast in shares."""
    if limited:
        pytest.skip("kernels of collectives: NVSHMEM has no collectives where PEs share a GPU without MPS")
    dtype = next(d for d in DTYPES if d.name == name)
    me, n = ctx.my_pe(), ctx.n_pes()
    cls = nvsym.SHMEMBuffer[dtype.numpy]
    rng = np.random.default_rng(5)
    most = 300_007
    source, dest = cls(n * most + 16), cls(n * most + 16)
    wrong = []
    for size in (1, 2, 7, 64, 1000, 4096, 8191, 16_385, 65_537, most):
        data = [rng.integers(0, 256, n * size * dtype.itemsize, np.uint8) for _ in range(n)]
        data = [part.view(dtype.numpy) for part in data]
        a, b = (int(k) for k in rng.integers(0, 16, 2))
        narrow, wide = source[a : a + size], source[a : a + n * size]
        to, to_all = dest[b : b + size], dest[b : b + n * size]

        def check(what, buffer, expected, size=size, a=a, b=b):
            if buffer.to_numpy().tobytes() != expected.tobytes():
                wrong.append((what, size, a, b))
            meet()

        wide.enqueue_copy_from(data[me])
        for root in range(n):
            to.fill(0)
            nvsym.broadcast(to, narrow, root)
            check(f"broadcast from {root}", to, data[root][:size])
        nvsym.fcollect(to_all, narrow)
        check("fcollect", to_all, np.concatenate([part[:size] for part in data]))
        nvsym.alltoall(to_all, wide)
        check("alltoall", to_all, np.concatenate([part[me * size : (me + 1) * size] for part in data]))
        nvsym.broadcast(narrow, narrow, 1)
        check("broadcast in place", narrow, data[1][:size])
    assert not wrong
    meet()


@pytest.mark.pes(2, 4, timeout=120)
@pytest.mark.parametrize("name", ["bool", "int16", "float64", "float16", "float8_e5m2"])
def test_reducescatter(ctx, limited, meet, name):
    if limited:
        pytest.skip("kernels of collectives: NVSHMEM has no collectives where PEs share a GPU without MPS")
    dtype = next(d for d in DTYPES if d.name == name)
    me, n = ctx.my_pe(), ctx.n_pes()
    cls = nvsym.SHMEMBuffer[dtype.numpy]
    most = 300_007
    source, dest = cls(n * most + 16), cls(most + 16)
    wrong = []
    for op in ("sum", "max"):
        parts = operands(dtype, op, n)
        total = reference(dtype, op, parts)
        for size in (1, 7, 8192, 8193, 65_543, most):
            for a, b in ((0, 0), (3, 1), (8, 8)):
                source[a : a + n * size].enqueue_copy_from(np.resize(parts[me], n * size))
                nvsym.reducescatter(dest[b : b + size], source[a : a + n * size], op)
                whole = np.resize(total.view(f"V{total.itemsize}"), n * size)
                if dest[b : b + size].to_numpy().tobytes() != whole[me * size : (me + 1) * size].tobytes():
                    wrong.append((op, size, a, b))
                meet()
    assert not wrong
    meet()


@pytest.mark.pes(2, 4, timeout=120)
def test_graph_with_delays(ctx, limited, meet):
    """Every collective in one graph, replayed by PEs that get apart, with calls outside of it between the replays."""
    torch = pytest.importorskip("torch")
    if limited:
        pytest.skip("kernels of collectives: NVSHMEM has no collectives where PEs share a GPU without MPS")
    me, n = ctx.my_pe(), ctx.n_pes()
    size = 3000
    source = nvsym.SHMEMBuffer["int64"].full(size, me + 1)
    total, inplace, large = (nvsym.SHMEMBuffer["int64"].zeros(k) for k in (size, size, 60_000))
    wide, part = nvsym.SHMEMBuffer["int64"].zeros(n * size), nvsym.SHMEMBuffer["int64"].zeros(size)
    counter = U64.zeros(1)
    calls = {
        "total": lambda s: nvsym.allreduce(total, source, stream=s),
        "inplace": lambda s: (inplace.fill(me + 1, stream=s), nvsym.allreduce(inplace, inplace, stream=s)),
        "large": lambda s: (large.fill(me + 1, stream=s), nvsym.allreduce(large, large, stream=s)),
        "wide": lambda s: nvsym.fcollect(wide, source, stream=s),
        "part": lambda s: nvsym.reducescatter(part, wide, stream=s),
        "root": lambda s: nvsym.broadcast(inplace, total, n - 1, stream=s),
        "put": lambda s: nvsym.put_signal(large[:size], total, counter, 1, (me + 1) % n, op="add", stream=s),
        "quiet": lambda s: nvsym.quiet(stream=s),
        "barrier": lambda s: nvsym.barrier_all(stream=s),
    }
    for call in calls.values():
        call(None)
    ctx.synchronize()
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        for call in calls.values():
            call(stream)
        graph.capture_end()
    for buffer in (total, inplace, large, wide, part):
        buffer.fill(0)
    counter.fill(0)
    meet()
    rng = random.Random(me)
    replays = 1000
    with torch.cuda.stream(stream):
        for i in range(replays):
            if rng.random() < 0.05:
                torch.cuda._sleep(rng.randrange(500_000))
            if rng.random() < 0.01:
                time.sleep(rng.random() / 100)
            graph.replay()
            if i % 100 == 50:
                nvsym.allreduce(total, source, stream=stream)
    torch.cuda.synchronize()
    meet()
    expected = n * (n + 1) // 2
    assert (total.to_numpy() == expected).all()
    assert (inplace.to_numpy() == expected).all()
    assert (large.to_numpy() == expected).all()
    assert (wide.to_numpy() == np.repeat(np.arange(1, n + 1), size)).all()
    assert (part.to_numpy() == n * (me + 1)).all()
    assert counter.to_numpy()[0] == replays
    meet()


@pytest.mark.pes(2)
def test_two_streams(ctx, limited, meet):
    """Calls on one team from two streams that nobody orders are run one after the other."""
    if limited:
        pytest.skip("kernels of collectives: NVSHMEM has no collectives where PEs share a GPU without MPS")
    me = ctx.my_pe()
    torch = pytest.importorskip("torch")
    streams = [nvsym.Stream(), nvsym.Stream(), torch.cuda.Stream()]
    sources = [F32.full(1 << k, me + k) for k in (4, 12, 18)]
    dests = [F32.zeros(len(source)) for source in sources]
    meet()
    rng = random.Random(3)  # the same on all PEs
    for _ in range(300):
        k = rng.randrange(3)
        nvsym.allreduce(dests[k], sources[k], stream=streams[rng.randrange(3)])
        nvsym.broadcast(dests[k], sources[k], 1, stream=streams[rng.randrange(3)])
    ctx.synchronize()
    for k, dest in zip((4, 12, 18), dests, strict=True):
        assert (dest.to_numpy() == 1 + k).all()
    # What was enqueued on a stream before its capture began cannot be waited for while it lasts.
    captured = nvsym.Stream()
    nvsym.allreduce(dests[0], sources[0], stream=captured)
    graph = Graph(captured)
    with pytest.raises(nvsym.BackendError, match="before its capture began"):
        nvsym.allreduce(dests[0], sources[0], stream=streams[0])
    graph.end()
    nvsym.allreduce(dests[0], sources[0], stream=streams[0])
    ctx.synchronize()
    # In one capture the order becomes a part of the graph.
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(first):
        graph.capture_begin(capture_error_mode="thread_local")
        second.wait_stream(first)
        for i in range(20):
            nvsym.allreduce(dests[i % 3], sources[i % 3], stream=(first, second)[i % 2])
        first.wait_stream(second)
        graph.capture_end()
        for _ in range(50):
            graph.replay()
    torch.cuda.synchronize()
    for k, dest in zip((4, 12, 18), dests, strict=True):
        assert (dest.to_numpy() == 1 + 2 * k).all()
    # A capture between two calls does not take the place of the first one in their order.
    kept = []
    for _ in range(10):
        graph = torch.cuda.CUDAGraph()
        for _ in range(20):
            nvsym.allreduce(dests[2], sources[2], stream=streams[0])
            nvsym.barrier_all(stream=streams[0])
        with torch.cuda.stream(first):
            graph.capture_begin(capture_error_mode="thread_local")
            nvsym.allreduce(dests[1], sources[1], stream=first)
            nvsym.barrier_all(stream=first)
            graph.capture_end()
        nvsym.allreduce(dests[2], sources[2], stream=streams[1])
        nvsym.barrier_all(stream=streams[1])
        kept.append(graph)
    ctx.synchronize()
    assert (dests[2].to_numpy() == 1 + 2 * 18).all()
    # A barrier is behind the team's other barriers alone: not behind a wait that comes after an allreduce elsewhere.
    signal = U64.zeros(1)
    meet()
    nvsym.allreduce(dests[0], sources[0], stream=streams[0])
    if me == 0:
        nvsym.signal_wait_until(signal, "ge", 1, stream=streams[0])
        nvsym.barrier_all(stream=streams[1])
    else:
        nvsym.barrier_all(stream=streams[1])
        nvsym.signal_op(signal, 1, 0, stream=streams[1])
    ctx.synchronize()
    meet()


@pytest.mark.pes(2, 4, own_job=True, timeout=120)
@pytest.mark.parametrize("complete", [True, False], ids=["barrier", "sync"])
def test_a_pe_that_is_late_for_a_barrier_is_named(monkeypatch, complete):
    from mpi4py import MPI

    monkeypatch.setenv("NVSYM_TIMEOUT", "1.5")
    ctx = nvsym.init(backend="nvshmem", heap_size="64M")
    if not next(has for name, has, _ in ctx.capabilities() if name == "collectives"):
        pytest.skip("kernels of collectives: NVSHMEM has no collectives where PEs share a GPU without MPS")
    me, n = ctx.my_pe(), ctx.n_pes()
    meet = nvsym.barrier_all if complete else nvsym.sync_all
    for _ in range(3):
        meet()
    ctx.synchronize()
    MPI.COMM_WORLD.Barrier()
    if me == n - 1:
        time.sleep(4)
    else:
        meet()
        with pytest.raises(nvsym.PeerTimeoutError, match=f"barrier: PE {n - 1} did not arrive within 1.5 s") as caught:
            ctx.synchronize()
        assert caught.value.pes == (n - 1,)
        with pytest.raises(nvsym.PeerTimeoutError):
            meet()
    MPI.COMM_WORLD.Barrier()
    nvsym.finalize()


@pytest.mark.pes(2, 4, own_job=True, timeout=120)
def test_a_late_pe_is_named(monkeypatch):
    """The others raise within the time limit and name it; all of them end their job."""
    from mpi4py import MPI

    monkeypatch.setenv("NVSYM_TIMEOUT", "1.5")
    ctx = nvsym.init(backend="nvshmem", heap_size="64M")
    if not next(has for name, has, _ in ctx.capabilities() if name == "collectives"):
        pytest.skip("kernels of collectives: NVSHMEM has no collectives where PEs share a GPU without MPS")
    me, n = ctx.my_pe(), ctx.n_pes()
    source, dest = F32.full(1000, 1), F32.zeros(1000)
    nvsym.allreduce(dest, source)
    nvsym.broadcast(dest, source, 0)
    ctx.synchronize()
    MPI.COMM_WORLD.Barrier()
    if me == n - 1:
        time.sleep(4)
    else:
        began = time.monotonic()
        nvsym.allreduce(dest, source)
        with pytest.raises(
            nvsym.PeerTimeoutError, match=f"allreduce: PE {n - 1} did not arrive within 1.5 s"
        ) as caught:
            ctx.synchronize()
        assert 1.4 < time.monotonic() - began < 3
        assert caught.value.pes == (n - 1,)
        with pytest.raises(nvsym.PeerTimeoutError):
            nvsym.broadcast(dest, source, 0)
        assert (source.to_numpy() == 1).all()  # what is no collective goes on
    MPI.COMM_WORLD.Barrier()
    nvsym.finalize()
    ctx = nvsym.init(backend="nvshmem", heap_size="64M")
    source, dest = F32.full(1000, 1), F32.zeros(1000)
    nvsym.allreduce(dest, source)
    assert (dest.to_numpy() == n).all()
    nvsym.finalize()


@pytest.mark.pes(4, own_job=True, timeout=120)
def test_two_levels(monkeypatch):
    """Two pairs of PEs of one node, taken for two nodes: the kernels and teams of an allreduce between nodes, on one machine."""
    monkeypatch.setenv("NVSYM_TEST_NODE_SIZE", "2")
    ctx = nvsym.init(backend="nvshmem", heap_size="128M")
    if not next(has for name, has, _ in ctx.capabilities() if name == "collectives"):
        pytest.skip("kernels of collectives: NVSHMEM has no collectives where PEs share a GPU without MPS")
    me, n = ctx.my_pe(), ctx.n_pes()
    for name in ("float32", "float16", "int64", "bool"):
        dtype = next(d for d in DTYPES if d.name == name)
        cls = nvsym.SHMEMBuffer[dtype.numpy]
        most = 1_300_003
        source, dest = cls(most + 8), cls(most + 8)
        assert nvsym.explain_allreduce(dest, source).algorithm == "two_level"
        for op in ("sum", "max"):
            parts = operands(dtype, op, n)
            wide = np.float32 if name == "float16" else dtype.numpy
            halves = [FOLDS[op](parts[i].astype(wide), parts[i + 1].astype(wide)).astype(wide) for i in (0, 2)]
            total = FOLDS[op](*halves).astype(dtype.numpy)
            for size, a, b in ((1, 0, 0), (7, 1, 2), (1000, 3, None), (100_001, 0, 1), (most, 5, 3), (most, 1, None)):
                s = source[a : a + size]
                d = s if b is None else dest[b : b + size]
                s.enqueue_copy_from(np.resize(parts[me], size))
                nvsym.allreduce(d, s, op)
                assert same_bytes(d.to_numpy(), total, size), (name, op, size, a, b)
    odd = nvsym.TEAM_WORLD.split_strided(0, 3, 2)  # one of each pair
    if odd is not None:
        x = F32.adopt(source.unsafe_ptr(), 100)  # bytes of `source`, large enough
        x.fill(me + 1)
        assert nvsym.explain_allreduce(x, team=odd).algorithm == "two_level"
        nvsym.allreduce(x, x, team=odd)
        assert (x.to_numpy() == 5).all()
        odd.destroy()
    nvsym.finalize()


@pytest.mark.pes(2, own_job=True, timeout=120)
def test_two_pes_on_a_link(monkeypatch):
    """What two PEs with a GPU each do, also where they share one: pushing, copies in several rounds; late PEs; graphs."""
    from mpi4py import MPI

    monkeypatch.setenv("NVSYM_TEST_PUSH", "1")
    monkeypatch.setenv("NVSYM_STAGE_SIZE", "4M")
    monkeypatch.setenv("NVSYM_TIMEOUT", "2")
    torch = pytest.importorskip("torch")
    ctx = nvsym.init(backend="nvshmem", heap_size="256M")
    if not next(has for name, has, _ in ctx.capabilities() if name == "collectives"):
        pytest.skip("kernels of collectives: NVSHMEM has no collectives where PEs share a GPU without MPS")
    nvsym.warmup([np.float32], ["sum"])
    nvsym.barrier_all()
    ctx.synchronize()
    me, rng = ctx.my_pe(), random.Random(1)
    most = (17 << 20) // 4 + 3
    pushed = (64 << 10) + 5
    source, dest = F32(most + 8), F32(most + 8)
    data = [np.random.default_rng(pe).standard_normal(most).astype(np.float32) for pe in range(2)]
    for pe in range(2):
        data[pe][pe::10_007].view(np.uint32)[:] = 0x9E3779B9  # what stages hold while nothing has come
    for size, algorithm in ((pushed, "push"), ((4 << 20) // 4, "push"), (most, "staged")):
        for a, b in ((0, 0), (1, 1), (3, None), (2, 1)):
            s = source[a : a + size]
            d = s if b is None else dest[b : b + size]
            assert nvsym.explain_allreduce(d, s).algorithm == algorithm
            s.enqueue_copy_from(data[me][:size])
            nvsym.allreduce(d, s, algorithm=rng.choice(["auto", "one_shot"]) if algorithm == "push" else "auto")
            assert (d.to_numpy() == data[0][:size] + data[1][:size]).all(), (size, a, b)
            nvsym.barrier_all()
    # In a graph, at different speeds: each call takes what the last one gave.
    x = dest[:most]
    x.fill(1)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        nvsym.allreduce(x, x, stream=stream)
        nvsym.allreduce(x[:pushed], x[:pushed], stream=stream)
        graph.capture_end()
        for _ in range(12):
            time.sleep(rng.random() * 0.01 * (1 + me))
            graph.replay()
    torch.cuda.synchronize()
    assert (x.to_numpy()[:pushed] == 2.0**24).all()
    assert (x.to_numpy()[pushed:] == 2.0**12).all()
    MPI.COMM_WORLD.Barrier()
    if me == 1:
        time.sleep(4)
    else:
        nvsym.allreduce(dest, source)
        with pytest.raises(nvsym.PeerTimeoutError, match="allreduce: PE 1 did not arrive within 2 s"):
            ctx.synchronize()
    MPI.COMM_WORLD.Barrier()
    nvsym.finalize()


@pytest.mark.pes(1, 2, 4)
def test_small_puts(ctx, meet):
    """Sizes around those of the table, at any alignment, with and without a signal."""
    me, n = ctx.my_pe(), ctx.n_pes()
    right, left = (me + 1) % n, (me - 1) % n
    most = 300_000
    cls = nvsym.SHMEMBuffer["uint8"]
    pattern = [np.random.default_rng(pe).integers(0, 256, most + 64, np.uint8) for pe in range(n)]
    source, dest, fetched = cls.from_numpy(pattern[me]), cls.zeros(most + 64), cls.zeros(most + 64)
    signals = U64.zeros(2)
    meet()
    expected = 0
    for size in (0, 1, 3, 16, 17, 512, 4095, 4096, 65_536, 65_537, 262_144, 262_145, most):
        for a, b in ((0, 0), (1, 1), (3, 9), (4, 12), (8, 0)):
            dest.fill(0)
            meet()
            nvsym.put(dest[b : b + size], source[a : a + size], right)
            nvsym.get(fetched[b : b + size], source[a : a + size], right)
            meet()
            found = dest.to_numpy()
            assert (found[b : b + size] == pattern[left][a : a + size]).all(), (size, a, b)
            assert not found[:b].any(), (size, a, b)
            assert not found[b + size :].any(), (size, a, b)
            assert (fetched[b : b + size].to_numpy() == pattern[right][a : a + size]).all(), (size, a, b)
            dest.fill(0)
            meet()
            nvsym.put_signal(dest[b : b + size], source[a : a + size], signals[0:1], size + 1, right)
            nvsym.put_signal(dest[b : b + size], source[a : a + size], signals[1:2], size, right, op="add")
            expected += size
            meet()
            assert (dest.to_numpy()[b : b + size] == pattern[left][a : a + size]).all(), (size, a, b)
            assert signals.to_numpy().tolist() == [size + 1, expected]
    meet()


@pytest.mark.pes(2, own_job=True)
def test_puts_without_kernels(monkeypatch):
    monkeypatch.setenv("NVSYM_COPY_KERNEL", "0")
    ctx = nvsym.init(backend="nvshmem", heap_size="64M")
    me = ctx.my_pe()
    source, dest, signal = F32.full(1000, me + 1), F32.zeros(1000), U64.zeros(1)
    nvsym.put_signal(dest, source, signal, 3, 1 - me)
    nvsym.barrier_all()
    ctx.synchronize()
    assert (dest.to_numpy() == 2 - me).all()
    assert signal.to_numpy()[0] == 3
    nvsym.finalize()


SCALE = r"""
extern "C" __global__ void scale(float *x, int n, float factor, double add, unsigned char flag)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && flag)
        x[i] = x[i] * factor + (float)add;
}
extern "C" __global__ void store_to_all(float *const *peers, int n_pes, int me)
{
    for (int p = 0; p < n_pes; p++)
        if (threadIdx.x == 0)
            peers[p][me] = 10.0f + me;
}
extern "C" __global__ void grid_sum(float *x, unsigned *arrived, int n)
{
    extern __shared__ float parts[];
    parts[threadIdx.x] = 1.0f;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrived, 1);
        while (*(volatile unsigned *)arrived < gridDim.x)
            ;
        atomicAdd(x, parts[0]);
    }
}
"""


@pytest.mark.pes(1, 2, 4)
def test_users_kernels(ctx, meet):
    cupy = pytest.importorskip("cupy")
    me, n = ctx.my_pe(), ctx.n_pes()
    module = cupy.RawModule(code=SCALE)
    scale = module.get_function("scale")
    x = F32.full(1000, 2)
    for kernel in (scale, scale.kernel.ptr):
        x.fill(2)
        ctx.enqueue_function(kernel, x, 999, 3.0, 1.5, True, grid_dim=4, block_dim=256)
        ctx.enqueue_function(
            kernel, x, 999, np.float32(1), np.float64(0), np.uint8(0), grid_dim=(4, 1), block_dim=(256,)
        )
        assert x.to_numpy().tolist() == [7.5] * 999 + [2]
    array = cupy.ones(10, cupy.float32)
    cupy.cuda.runtime.deviceSynchronize()
    ctx.enqueue_function(scale, array, 10, 2.0, 0.0, 1, grid_dim=1, block_dim=32)
    ctx.synchronize()
    assert array.get().tolist() == [2] * 10
    for wrong, error, text in (
        ((x, 999, 3.0, 1.5), TypeError, "5 parameters, 4 arguments"),
        ((x, 1 << 40, 3.0, 1.5, 1), OverflowError, "argument 1"),
        ((x, 5, np.float64(3), 1.5, 1), TypeError, "argument 2"),
        ((x, 5, 3.0, 1.5, 2.0), TypeError, "argument 4"),
        ((x, "n", 3.0, 1.5, 1), TypeError, "argument 1"),
        ((np.zeros(4, np.float32), 5, 3.0, 1.5, 1), TypeError, "host memory"),
    ):
        with pytest.raises(error, match=text):
            ctx.enqueue_function(scale, *wrong, grid_dim=1, block_dim=32)
    for dimension in (0, -1, (1, 1, 1, 1), "x", 1.5):
        with pytest.raises((TypeError, ValueError), match="grid_dim"):
            ctx.enqueue_function(scale, x, 5, 3.0, 1.5, 1, grid_dim=dimension, block_dim=32)
    with pytest.raises(TypeError, match="kernel"):
        ctx.enqueue_function("scale", x, grid_dim=1, block_dim=1)
    with pytest.raises(nvsym.BackendError, match="cuLaunchKernel"):
        ctx.enqueue_function(scale, x, 5, 3.0, 1.5, 1, grid_dim=1, block_dim=4096)

    board = F32.zeros(n + 3)
    table = board[1:].peer_pointers()
    assert table is not None
    assert (table.dtype, table.shape, table.device) == (np.uint64, (n,), ctx.device)
    view = board[1:]
    assert view.peer_pointers() is view.peer_pointers(nvsym.TEAM_WORLD)
    assert view.peer_pointers().to_numpy().tolist() == [view.peer(pe)._data_ptr() for pe in range(n)]
    meet()
    ctx.enqueue_function(module.get_function("store_to_all"), table, n, me, grid_dim=1, block_dim=32)
    meet()
    assert board.to_numpy().tolist() == [0] + [10 + pe for pe in range(n)] + [0, 0]
    meet()

    total, arrived = F32.zeros(1), nvsym.SHMEMBuffer["uint32"].zeros(1)
    ctx.enqueue_function(
        module.get_function("grid_sum"), total, arrived, 3, grid_dim=8, block_dim=64, shared_mem_bytes=64 << 10,
        cooperative=True,
    )  # fmt: skip
    assert total.to_numpy()[0] == 8
    table = board.peer_pointers()
    board.free()
    with pytest.raises(nvsym.FreedBufferError):
        table.to_numpy()
    meet()


@pytest.mark.pes(1)
def test_kernels_of_cuda_core(ctx):
    core = pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    if not hasattr(core, "Program"):  # of an older version
        core = pytest.importorskip("cuda.core.experimental")
    device = core.Device(ctx.device.ordinal)
    device.set_current()
    options = core.ProgramOptions(arch=f"sm_{device.arch}")
    program = core.Program(SCALE, code_type="c++", options=options)
    kernel = program.compile("cubin", name_expressions=("scale",)).get_kernel("scale")
    x = F32.full(100, 2)
    ctx.enqueue_function(kernel, x, 100, 3.0, 1.0, 1, grid_dim=1, block_dim=128)
    assert (x.to_numpy() == 7).all()
