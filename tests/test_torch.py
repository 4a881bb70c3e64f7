# SPDX-License-Identifier: Apache-2.0
"""PyTorch on CPUs: tensors over symmetric memory, and the backend of torch.distributed."""

import gc
import operator
import os
import pathlib
import re
import threading

import numpy as np
import pytest
from jobcheck import assert_usable, random_array, same_bytes

import nvsym
from nvsym import SHMEMBuffer
from nvsym.dtypes import DTYPES

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
dist = torch.distributed

# What PyTorch says about itself.
pytestmark = [pytest.mark.filterwarnings("ignore::FutureWarning"), pytest.mark.filterwarnings("ignore::UserWarning")]

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / "examples"
PES = pytest.mark.pes(1, 2, 4)
NODES = pytest.mark.pes(4, nodes=2)
SHARED = [d for d in DTYPES if isinstance(getattr(torch, d.name, None), torch.dtype)]


def same_tensors(a, b):
    """Equal in type, shape and bytes."""
    a, b = a.contiguous(), b.contiguous()
    return a.dtype == b.dtype and a.shape == b.shape and bytes_of(a) == bytes_of(b)


def bytes_of(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


# ---- tensors --------------------------------------------------------------------------------------------------------


@pytest.mark.pes(1)
@pytest.mark.parametrize("dtype", [d.numpy for d in SHARED], ids=[d.name for d in SHARED])
def test_round_trip(ctx, dtype):
    """NumPy to a buffer, to PyTorch and back, bit for bit and without a copy on the way."""
    import nvsym.torch as nt

    values = random_array(dtype, 12, 3)
    b = SHMEMBuffer[dtype].from_numpy(values)
    t = nt.tensor(b)
    assert t.dtype == nt.torch_dtype(dtype)
    assert nt.numpy_dtype(t.dtype) == dtype
    assert t.data_ptr() == b.unsafe_ptr()
    assert bytes_of(t) == values.tobytes()
    back = nt.buffer(t)
    assert type(back) is SHMEMBuffer[dtype]
    assert back.unsafe_ptr() == b.unsafe_ptr()
    assert same_bytes(back.to_numpy(), values)
    assert same_bytes(SHMEMBuffer[dtype].from_dlpack(b).to_numpy(), values)
    if dtype.itemsize > 1 or dtype.kind in "biu":  # PyTorch's own exchange of small floats differs between its versions
        assert same_bytes(SHMEMBuffer.from_dlpack(t).to_numpy(), values)
    # What one side writes the other sees.
    t[2:4] = t[:2].clone()
    values[2:4] = values[:2]
    assert same_bytes(b.to_numpy(), values)
    assert bytes_of(nt.tensor(b[3:9])) == values[3:9].tobytes()
    square = nt.tensor(b, (3, 4))
    assert square.shape == (3, 4)
    assert square.data_ptr() == b.unsafe_ptr()
    assert bytes_of(square[1]) == values[4:8].tobytes()
    assert nt.tensor(b.peer(0)).data_ptr() == b.unsafe_ptr()


@PES
def test_tensors(ctx):
    import nvsym.torch as nt

    me, n = ctx.my_pe(), ctx.n_pes()
    t = nt.empty(3, 5)
    assert (t.shape, t.dtype) == ((3, 5), torch.float32)
    t.fill_(me)
    nvsym.barrier_all()
    nvsym.put(nt.buffer(t)[:5], np.full(5, 10 + me, "f4"), (me + 1) % n)
    nvsym.barrier_all()
    assert t[0].tolist() == [10 + (me - 1) % n] * 5
    assert t[1].tolist() == [me] * 5
    neighbour = nt.tensor(SHMEMBuffer["i8"].full(4, me).peer((me + 1) % n))
    assert neighbour.tolist() == [(me + 1) % n] * 4
    nvsym.allreduce(nt.buffer(t[1]), nt.buffer(t[2]))
    assert nt.empty([2, 3], dtype=torch.bfloat16).dtype == torch.bfloat16
    assert nt.empty((), dtype=torch.int64).shape == ()
    assert nt.empty(0).numel() == 0
    assert nt.tensor(SHMEMBuffer["f4"](0)).shape == (0,)
    del neighbour
    for bad, error in (
        (torch.zeros(3), ValueError),
        (t[:, 0], ValueError),
        (t.numpy(), TypeError),
        (torch.zeros(3, dtype=torch.complex32), TypeError),
    ):
        with pytest.raises(error, match=r"^(tensor|dtype): "):
            nt.buffer(bad)
    b = SHMEMBuffer["f4"].zeros(6)
    with pytest.raises(ValueError, match=r"^shape: "):
        nt.tensor(b, (4, 2))
    with pytest.raises(ValueError, match=r"^shape: .* below zero"):
        nt.tensor(b, (-2, -3))
    assert nt.tensor(b, 6).shape == nt.tensor(b, np.array([6])).shape == (6,)
    for shape in (2.5, "3", [2.0], (2, [3])):
        with pytest.raises(TypeError, match=r"^shape: "):
            nt.empty(shape)
    with pytest.raises(ValueError, match=r"^shape: .* below zero"):
        nt.empty(-2, -3)
    assert nt.empty(np.int64(2), 3).shape == (2, 3)
    for kind in ("float32", np.float32):
        with pytest.raises(TypeError, match=r"^dtype: expected a torch.dtype"):
            nt.empty(3, dtype=kind)
    with pytest.raises(TypeError, match=r"^buffer: "):
        nt.tensor(np.zeros(3))
    with pytest.raises(TypeError, match="longdouble"):
        nt.tensor(SHMEMBuffer[np.longdouble].zeros(1))


@pytest.mark.pes(2)
def test_a_tensor_keeps_its_memory(ctx):
    import nvsym.torch as nt

    for how in ("freed", "dropped", "empty"):
        live = ctx.heap.live
        if how == "empty":
            t = nt.empty(4, dtype=torch.int32).fill_(5)
        else:
            b = SHMEMBuffer["i4"].full(4, 5)
            t = nt.tensor(b)
            if how == "freed":
                b.free()
            del b
        view = t[1:]
        del t
        gc.collect()
        nvsym.collect()
        others = [SHMEMBuffer["i4"].full(4, 7) for _ in range(4)]
        assert view.tolist() == [5, 5, 5]
        view.fill_(6)
        assert all(other.to_numpy().tolist() == [7] * 4 for other in others)
        del view, others
        gc.collect()
        nvsym.collect()
        assert ctx.heap.live == live


# ---- the process group ----------------------------------------------------------------------------------------------


@pytest.fixture
def group(ctx):
    """The default group of torch.distributed over the job; small pieces, so that ordinary tensors take several."""
    import nvsym.torch as nt

    dist.init_process_group("nvsym", init_method="nvsym://", pg_options=nt.Options(staging="64K", groups=4))
    yield dist.group.WORLD
    dist.destroy_process_group()


SIZES = (1, 0, 1000, 70_001)  # the last takes several pieces


def ranked(shape, rank, dtype=torch.float32):
    """Numbers of a rank, small enough for every sum to be exact in every type."""
    count = int(np.prod(shape))
    return (torch.arange(count).remainder(3) + rank % 2).reshape(shape).to(dtype)


@PES
@NODES
def test_the_group(ctx, group):
    assert dist.get_backend() == "nvsym"
    assert (dist.get_rank(), dist.get_world_size()) == (ctx.my_pe(), ctx.n_pes())
    assert type(group) is nvsym.torch.ProcessGroup
    dist.barrier()
    work = dist.barrier(async_op=True)
    assert work.wait()
    assert work.is_completed()


OPERATORS = [
    ("SUM", operator.add), ("PRODUCT", operator.mul), ("MIN", torch.minimum), ("MAX", torch.maximum),
    ("BAND", operator.and_), ("BOR", operator.or_), ("BXOR", operator.xor),
]  # fmt: skip


@PES
@pytest.mark.parametrize(("name", "combine"), OPERATORS, ids=[name for name, _ in OPERATORS])
def test_all_reduce(ctx, group, name, combine):
    me, n = ctx.my_pe(), ctx.n_pes()
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.int16):
        if name.startswith("B") and dtype.is_floating_point:
            with pytest.raises(TypeError, match=r"^op: "):
                dist.all_reduce(torch.ones(3, dtype=dtype), getattr(dist.ReduceOp, name))
            continue
        for size in SIZES if dtype in (torch.float32, torch.int64) else (999,):
            expected = ranked((size,), 0, dtype)
            for rank in range(1, n):
                expected = combine(expected, ranked((size,), rank, dtype))
            t = ranked((size,), me, dtype)
            dist.all_reduce(t, getattr(dist.ReduceOp, name))
            assert same_tensors(t, expected)


@PES
@NODES
def test_all_reduce_forms(ctx, group):
    me, n = ctx.my_pe(), ctx.n_pes()
    total = n * (n + 1) / 2
    scalar = torch.tensor(me + 1.0)
    dist.all_reduce(scalar)
    assert scalar.item() == total
    t = torch.full((30, 40), me + 1.0)
    dist.all_reduce(t[:, ::2])  # not contiguous
    assert t[:, ::2].eq(total).all()
    assert t[:, 1::2].eq(me + 1).all()
    transposed = torch.full((30, 20), me + 1.0).t()
    dist.all_reduce(transposed)
    assert transposed.eq(total).all()
    mean = torch.full((1000,), me + 1.0)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert mean.eq(total / n).all()
    z = torch.full((10,), complex(me + 1, -1))
    dist.all_reduce(z)
    assert z.eq(complex(total, -n)).all()
    parameter = torch.nn.Parameter(torch.full((3,), me + 1.0))
    dist.all_reduce(parameter.data)
    assert parameter.eq(total).all()
    needs_grad = torch.full((3,), me + 1.0, requires_grad=True)
    dist.all_reduce(needs_grad)
    assert needs_grad.eq(total).all()
    with pytest.raises(TypeError, match="AVG"):
        dist.all_reduce(torch.ones(3, dtype=torch.int32), dist.ReduceOp.AVG)
    with pytest.raises(TypeError, match="layout"):
        dist.all_reduce(torch.eye(3).to_sparse_csr())
    many = [torch.full((k,), me + 1.0) for k in (1, 5, 20_000)]
    group.allreduce_coalesced(many).wait()
    assert all(t.eq(total).all() for t in many)
    root = n - 1
    t = torch.full((20_000,), me + 1.0)
    dist.reduce(t, dst=root)
    assert t.eq(total if me == root else me + 1).all()


@PES
@pytest.mark.parametrize("lay_out", [lambda t: t[::2], lambda t: t.view(2, 10).t()], ids=["every second", "transposed"])
def test_tensors_that_are_not_contiguous(ctx, group, lay_out):
    """Their elements are moved, and what lies between them stays."""
    me, n = ctx.my_pe(), ctx.n_pes()
    for dtype in (torch.float32, torch.bfloat16, torch.uint8):
        source = ranked((20,), me, dtype)
        everyone = [ranked((20,), rank, dtype) for rank in range(n)]
        t = source.clone()
        dist.broadcast(lay_out(t), src=n - 1)
        expected = source.clone()
        lay_out(expected).copy_(lay_out(everyone[n - 1]))
        assert same_tensors(t, expected)
        gathered = [torch.zeros(20, dtype=dtype) for _ in range(n)]
        dist.all_gather([lay_out(one) for one in gathered], lay_out(source))
        for rank, one in enumerate(gathered):
            expected = torch.zeros(20, dtype=dtype)
            lay_out(expected).copy_(lay_out(everyone[rank]))
            assert same_tensors(one, expected)
        t = source.clone()
        dist.all_reduce(lay_out(t), dist.ReduceOp.MAX)
        expected = source.clone()
        lay_out(expected).copy_(torch.stack([lay_out(one) for one in everyone]).amax(0))
        assert same_tensors(t, expected)


@PES
def test_a_single_element_with_any_stride(ctx, group):
    """PyTorch calls it contiguous, whatever its stride is."""
    me, n = ctx.my_pe(), ctx.n_pes()
    numbers = torch.arange(8.0) + me
    t = numbers[::4][:1]
    assert t.stride() == (4,)
    dist.broadcast(t, src=n - 1)
    assert numbers.tolist() == [n - 1, *(k + me for k in range(1, 8))]
    dist.all_reduce(t)
    assert t.item() == n * (n - 1)
    parts = [torch.empty(2, 2)[:, :1][:1] for _ in range(n)]
    dist.all_gather(parts, torch.full((2, 2), float(me))[:, :1][:1])
    assert [part.item() for part in parts] == list(range(n))
    out = torch.empty(n, 2)[:, :1]
    dist.all_to_all_single(out, torch.full((n, 1), float(me)))
    assert out.flatten().tolist() == list(range(n))


@PES
def test_a_gather_into_any_layout(ctx, group):
    """Its blocks need not be views of it."""
    me, n = ctx.my_pe(), ctx.n_pes()
    out = torch.empty(3, 2 * n).t()
    dist.all_gather_into_tensor(out, torch.arange(6.0) + me)
    assert out.equal(torch.stack([torch.arange(6.0) + rank for rank in range(n)]).view(2 * n, 3))


@PES
def test_tensors_that_are_negated_when_they_are_read(ctx, group):
    """Their memory is not their elements."""
    import nvsym.torch as nt

    me, n = ctx.my_pe(), ctx.n_pes()
    z = nt.empty(3, dtype=torch.complex64).fill_(complex(me + 1, -2))
    for t in (z.conj(), z[:1].conj().imag):
        with pytest.raises(ValueError, match=r"^tensor: .*resolve_"):
            nt.buffer(t)
    t = z[:1].conj().imag
    dist.all_reduce(t, dist.ReduceOp.PRODUCT)
    assert t.item() == 2**n
    z.fill_(complex(me + 1, -2))
    t = z[:1].conj().imag
    dist.broadcast(t, src=0)
    assert t.item() == 2
    parts = [torch.empty(1) for _ in range(n)]
    dist.all_gather(parts, t)
    assert all(part.item() == 2 for part in parts)


@PES
def test_means_of_small_floats(ctx, group):
    me, n = ctx.my_pe(), ctx.n_pes()
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        t = torch.full((5,), 2.0 * (me % 2)).to(dtype)
        dist.all_reduce(t, dist.ReduceOp.AVG)
        assert t.float().eq(2.0 * (n // 2) / n).all()
        out = torch.empty(5, dtype=dtype)
        dist.reduce_scatter_tensor(out, torch.full((5 * n,), 1.0).to(dtype), dist.ReduceOp.AVG)
        assert out.float().eq(1).all()


@PES
def test_tensors_whose_elements_share_memory(ctx, group):
    """They can be sent, but not written: all ranks are told before anything is moved, and go on in step."""
    me, n = ctx.my_pe(), ctx.n_pes()
    shared = torch.tensor([float(me)]).expand(6)
    if n > 1:
        with pytest.raises(ValueError if me else nvsym.CollectiveError, match="share memory"):
            dist.broadcast(torch.zeros(6) if me == 0 else shared, src=0)
    with pytest.raises(ValueError, match="share memory"):
        dist.all_reduce(shared)
    t = shared if me == 0 else torch.zeros(6)
    dist.broadcast(t, src=0)
    assert t.eq(0).all()
    for k in range(3):
        t = torch.full((6,), me + k + 1.0)
        dist.all_reduce(t)
        assert t.eq(n * (n + 1) / 2 + k * n).all()


@PES
def test_symmetric_tensors_are_used_where_they_are(ctx, group, monkeypatch):
    import nvsym.torch as nt
    from nvsym.torch.staging import Place

    me, n = ctx.my_pe(), ctx.n_pes()
    t = nt.empty(100_000).fill_(me + 1)

    def staged(*args):
        raise AssertionError("it went through staging memory")

    with monkeypatch.context() as patched:
        patched.setattr(Place, "get", staged)
        dist.all_reduce(t)
        dist.broadcast(t[:10], src=n - 1)
        work = dist.all_reduce(t[50_000:], async_op=True)
        work.wait()
        with pytest.raises(AssertionError, match="staging"):
            dist.all_reduce(torch.ones(3))
    total = n * (n + 1) / 2
    assert t[:50_000].eq(total).all()
    assert t[50_000:].eq(total * n).all()


@pytest.mark.pes(2, 4)
def test_a_symmetric_tensor_meets_others(ctx, group):
    """It is broadcast where it is, and the other ranks' tensors need not be symmetric."""
    import nvsym.torch as nt

    me, n = ctx.my_pe(), ctx.n_pes()
    symmetric = nt.empty(1000)
    t = symmetric if me == 0 else torch.empty(1000)
    for root in (0, n - 1):
        t.fill_(me + 1)
        dist.broadcast(t, src=root)
        assert t.eq(root + 1).all()


@PES
@NODES
def test_movement(ctx, group):
    """Everything that only moves data, for types without a reduction too."""
    me, n = ctx.my_pe(), ctx.n_pes()
    for dtype in (torch.float32, torch.bool, torch.complex128, torch.float8_e4m3fn, torch.int8):
        for size in SIZES:
            mine = ranked((size,), me, dtype)
            everyone = [ranked((size,), rank, dtype) for rank in range(n)]
            t = mine.clone()
            dist.broadcast(t, src=n - 1)
            assert same_tensors(t, everyone[n - 1])
            parts = [torch.empty_like(mine) for _ in range(n)]
            dist.all_gather(parts, mine)
            assert all(map(same_tensors, parts, everyone))
            flat = torch.empty(n * size, dtype=dtype)
            dist.all_gather_into_tensor(flat, mine)
            assert bytes_of(flat) == b"".join(map(bytes_of, everyone))
            gathered = [torch.empty_like(mine) for _ in range(n)] if me == 0 else None
            dist.gather(mine, gathered, dst=0)
            if me == 0:
                assert all(map(same_tensors, gathered, everyone))
            scattered = torch.empty_like(mine)
            dist.scatter(scattered, everyone if me == n - 1 else None, src=n - 1)
            assert same_tensors(scattered, mine)
            out = torch.empty(n * size, dtype=dtype)
            dist.all_to_all_single(out, torch.cat([ranked((size,), me + rank, dtype) for rank in range(n)]))
            assert bytes_of(out) == b"".join(bytes_of(ranked((size,), me + rank, dtype)) for rank in range(n))


@PES
def test_movement_of_odd_layouts(ctx, group):
    me, n = ctx.my_pe(), ctx.n_pes()
    t = torch.full((4, 6), float(me)).t()
    dist.broadcast(t, src=n - 1)
    assert t.eq(n - 1).all()
    parts = [torch.empty(6, 4).t() for _ in range(n)]
    mine = torch.arange(24.0).reshape(6, 4).t() + me
    dist.all_gather(parts, mine)
    assert all(part.equal(mine - me + rank) for rank, part in enumerate(parts))
    table = torch.empty(2 * n, 3)
    dist.all_gather_into_tensor(table, torch.full((2, 3), float(me)))
    assert table[:, 0].tolist() == [float(rank) for rank in range(n) for _ in range(2)]
    stacked = torch.empty(n, 2, 3)
    dist.all_gather_into_tensor(stacked, torch.full((2, 3), float(me)))
    assert stacked[:, 0, 0].tolist() == list(range(n))


@PES
@NODES
def test_reduce_scatter(ctx, group):
    me, n = ctx.my_pe(), ctx.n_pes()
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        for size in SIZES:
            blocks = [[ranked((size,), rank + block, dtype) for block in range(n)] for rank in range(n)]
            expected = sum(blocks[rank][me] for rank in range(n))
            out = torch.empty(size, dtype=dtype)
            dist.reduce_scatter(out, blocks[me])
            assert same_tensors(out, expected)
            out = torch.empty(size, dtype=dtype)
            dist.reduce_scatter_tensor(out, torch.cat(blocks[me]))
            assert same_tensors(out, expected)
    mean = torch.empty(5)
    dist.reduce_scatter_tensor(mean, torch.full((5 * n,), me + 1.0), dist.ReduceOp.AVG)
    assert mean.eq((n + 1) / 2).all()


@PES
@NODES
def test_all_to_all_with_sizes(ctx, group):
    me, n = ctx.my_pe(), ctx.n_pes()
    # Rank i sends i + 2j rows to rank j.
    sends, receives = [me + 2 * j for j in range(n)], [i + 2 * me for i in range(n)]
    source = torch.cat([torch.full((rows, 700), 10.0 * me + j) for j, rows in enumerate(sends)])
    out = torch.empty(sum(receives), 700)
    dist.all_to_all_single(out, source, receives, sends)
    assert out.equal(torch.cat([torch.full((rows, 700), 10.0 * i + me) for i, rows in enumerate(receives)]))
    outs = [torch.empty(rows, 3) for rows in receives]
    dist.all_to_all(outs, [torch.full((rows, 3), 10.0 * me + j) for j, rows in enumerate(sends)])
    assert all(t.eq(10.0 * i + me).all() for i, t in enumerate(outs))
    wrong = [torch.empty(rows + (i == me == 0), 3) for i, rows in enumerate(receives)]
    with pytest.raises(ValueError, match="sizes do not go together"):
        dist.all_to_all(wrong, [torch.full((rows, 3), 1.0) for rows in sends])
    with pytest.raises(ValueError, match="split"):
        dist.all_to_all_single(out, source, receives, [*sends[:-1], sends[-1] + 1])
    dist.barrier()


@PES
def test_objects(ctx, group):
    me, n = ctx.my_pe(), ctx.n_pes()
    everyone = [None] * n
    dist.all_gather_object(everyone, {"rank": me, "text": "x" * (1000 * me)})
    assert [each["rank"] for each in everyone] == list(range(n))
    assert len(everyone[-1]["text"]) == 1000 * (n - 1)
    told = [{"from": me}]
    dist.broadcast_object_list(told, src=n - 1)
    assert told == [{"from": n - 1}]


@PES
def test_functional_collectives(ctx, group):
    funcol = pytest.importorskip("torch.distributed._functional_collectives")
    me, n = ctx.my_pe(), ctx.n_pes()
    t = torch.full((6,), me + 1.0)
    total = funcol.all_reduce(t, "sum", group)
    assert total.eq(n * (n + 1) / 2).all()
    assert t.eq(me + 1).all()
    gathered = funcol.all_gather_tensor(t, 0, group)
    assert gathered.tolist() == [rank + 1.0 for rank in range(n) for _ in range(6)]
    scattered = funcol.reduce_scatter_tensor(torch.full((2 * n,), 1.0), "sum", 0, group)
    assert scattered.tolist() == [n, n]


@PES
def test_work_and_futures(ctx, group):
    """Calls that are not waited for at once are carried out in their order by another thread."""
    me, n = ctx.my_pe(), ctx.n_pes()
    tensors = [torch.full((20_000,), float(me + i)) for i in range(10)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    seen = []
    future = works[3].get_future().then(lambda done: seen.append(threading.current_thread().name) or done.value())
    for i in reversed(range(10)):
        assert works[i].wait()
        assert works[i].is_completed()
        assert works[i].is_success()
        assert tensors[i].eq(sum(rank + i for rank in range(n))).all()
    assert future.wait()[0].data_ptr() == tensors[3].data_ptr()
    assert len(seen) == 1
    assert works[0].result()[0] is tensors[0]
    assert works[0].get_future() is works[0].get_future()


@PES
def test_callbacks_that_call(ctx, group):
    """They run in the thread of the group, and may make calls of it and wait for them."""
    n = ctx.n_pes()

    def twice(done):
        # The second one is behind what was called meanwhile.
        work = dist.all_reduce(done.value()[0], async_op=True)
        work.wait()
        return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]

    t, others = torch.ones(100_000), [torch.ones(3) for _ in range(3)]
    works = [dist.all_reduce(other, async_op=True) for other in others[:2]]
    first = dist.all_reduce(t, async_op=True)
    future = first.get_future().then(twice)
    assert future.wait().eq(n**3).all()
    works.append(dist.all_reduce(others[2], async_op=True))
    for work, other in zip(works, others, strict=True):
        work.wait()
        assert other.eq(n).all()
    order = []
    first = dist.all_reduce(t, async_op=True)
    second = dist.all_reduce(others[0], async_op=True)
    future = first.get_future().then(lambda _: second.wait() and order.append("then"))
    future.wait()
    assert order == ["then"]


@pytest.mark.pes(2, 4)
@NODES
def test_lengths_that_differ_by_a_little(ctx, group):
    """They are found where they round up to the same, and where one of them is zero."""
    me, n = ctx.my_pe(), ctx.n_pes()
    k = 3 + (me == 1)

    def gather():
        dist.all_gather([torch.empty(k) for _ in range(n)], torch.ones(k))

    def gather_to_one():
        dist.gather(torch.ones(k), [torch.empty(k) for _ in range(n)] if me == 0 else None)

    def exchange(length):
        dist.all_to_all_single(torch.empty(n * length), torch.ones(n * length))

    for call in (gather, gather_to_one, lambda: exchange(k), lambda: exchange(k - 3)):
        with pytest.raises(nvsym.CollectiveError, match="different calls"):
            call()
    dist.barrier()


@pytest.mark.pes(2, 4)
@NODES
def test_errors(ctx, group):
    me, n = ctx.my_pe(), ctx.n_pes()
    with pytest.raises(nvsym.CollectiveError, match="different calls"):
        dist.all_reduce(torch.ones(3 + me))
    work = dist.all_reduce(torch.ones(3 + me), async_op=True)
    with pytest.raises(nvsym.CollectiveError, match="different calls"):
        work.wait()
    assert isinstance(work.exception(), nvsym.CollectiveError)
    assert not work.is_success()
    with pytest.raises(RuntimeError, match="different calls"):
        work.get_future().wait()
    work = dist.all_reduce(torch.ones(3 + me), async_op=True)
    with pytest.raises(RuntimeError, match="different calls"):
        work.get_future().wait()
    # A call that is bad on one rank only: the others are told why.
    for bad, error, words in (
        (lambda: dist.all_reduce(torch.eye(3).to_sparse_csr()), TypeError, "layout"),
        (lambda: dist.all_reduce(torch.empty(3, dtype=torch.bits8)), TypeError, "bits8"),
        (lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), dist.ReduceOp.AVG), TypeError, "AVG"),
        (lambda: dist.all_gather([torch.empty(4)] * n, torch.ones(3)), ValueError, "tensor_list"),
        (lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND, async_op=True).wait(), TypeError, "op: "),
    ):
        if me == 0:
            with pytest.raises(error, match=words):
                bad()
        else:
            with pytest.raises(nvsym.CollectiveError, match=f"PE 0: {error.__name__}: .*{words}"):
                dist.all_reduce(torch.ones(3))
    # And one that is bad on all.
    with pytest.raises(nvsym.NotAvailableError, match="PREMUL"):
        dist.all_reduce(torch.ones(3), dist._make_nccl_premul_sum(2.0))
    with pytest.raises(nvsym.NotAvailableError, match="put_signal"):
        dist.send(torch.ones(3), dst=(me + 1) % n)
    with pytest.raises(ValueError, match="tensor_list"):
        dist.all_gather([torch.empty(4)] * n, torch.ones(3))
    with pytest.raises((TypeError, ValueError, RuntimeError), match="output"):
        dist.all_gather_into_tensor(torch.empty(3 * n + 1), torch.ones(3))
    with pytest.raises(ValueError, match="meta"):
        dist.all_reduce(torch.ones(3, device="meta"))
    t = torch.full((3,), me + 1.0)
    dist.all_reduce(t)
    assert t.eq(n * (n + 1) / 2).all()
    assert_usable(ctx)


@pytest.mark.pes(4)
@NODES
def test_groups(ctx, group):
    """Further groups, in an order of their own, at the same time and in different order on the ranks."""
    me = ctx.my_pe()
    pairs = [dist.new_group([0, 1]), dist.new_group([3, 2])]
    mine = pairs[me // 2]
    t = torch.full((50_000,), me + 1.0)
    dist.all_reduce(t, group=mine)
    assert t.eq(3 if me < 2 else 7).all()
    t = torch.full((5,), float(me))
    dist.broadcast(t, src=3 if me >= 2 else 0, group=mine)
    assert t.eq(3 if me >= 2 else 0).all()
    a, b = dist.new_group([0, 1, 2, 3]), dist.new_group([0, 1, 2, 3])
    one, two = torch.full((30_000,), 1.0), torch.full((30_000,), 2.0)
    order = [(one, a), (two, b)] if me % 2 else [(two, b), (one, a)]
    for work in [dist.all_reduce(t, group=g, async_op=True) for t, g in order]:
        work.wait()
    assert one.eq(4).all()
    assert two.eq(8).all()
    trio = dist.new_group([2, 0, 3])
    if me != 1:
        t = torch.tensor([float(me)])
        parts = [torch.empty(1) for _ in range(3)]
        dist.all_gather(parts, t, group=trio)
        assert sorted(part.item() for part in parts) == [0, 2, 3]
        # Four may exist on a PE.
        dist.destroy_process_group(trio)
    fourth = dist.new_group([0, 1, 2, 3])
    for _ in range(40):  # more than there may be teams
        with pytest.raises(ValueError, match="groups="):
            dist.new_group([0, 1, 2, 3])
    dist.barrier(group=fourth)


@PES
@NODES
def test_data_parallel(ctx, group):
    """DistributedDataParallel: the gradients of the mean over all ranks' samples."""
    me, n = ctx.my_pe(), ctx.n_pes()
    torch.manual_seed(me)  # the ranks' weights differ at first
    model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.Tanh(), torch.nn.Linear(300, 3))
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    everyone = [torch.empty_like(weights) for _ in range(n)]
    dist.all_gather(everyone, weights)
    assert all(other.equal(everyone[0]) for other in everyone)
    x = torch.randn(4 * n, 20, generator=torch.Generator().manual_seed(7))
    for _ in range(2):
        model.zero_grad()
        parallel(x[4 * me : 4 * me + 4]).square().mean().backward()
    summed = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).square().mean().backward()
    for p, together in zip(model.parameters(), summed, strict=True):
        torch.testing.assert_close(p.grad, together, rtol=1e-5, atol=1e-7)


def run_torch(mpirun, n, code, **environ):
    return mpirun(n, "import torch, torch.distributed as dist, nvsym, nvsym.torch\n" + code, env=environ, timeout=60.0)


def test_the_environment_names_the_ranks(mpirun):
    """init_process_group("nvsym") alone, with the variables that every backend reads."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    result = run_torch(
        mpirun,
        2,
        """
import os
from mpi4py import MPI
os.environ["RANK"], os.environ["WORLD_SIZE"] = str(MPI.COMM_WORLD.rank), str(MPI.COMM_WORLD.size)
dist.init_process_group("nvsym", pg_options=nvsym.torch.Options(heap_size="64M"))
t = torch.ones(3)
dist.all_reduce(t)
assert t.tolist() == [2, 2, 2] and nvsym.is_initialized()
dist.destroy_process_group()
assert not nvsym.is_initialized()
print("fine")
""",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    assert result.stdout.count("fine") == 2


def test_one_job_after_another_and_an_end_without_destroy(mpirun):
    result = run_torch(
        mpirun,
        2,
        """
for _ in range(2):
    dist.init_process_group("nvsym", init_method="nvsym://?heap_size=64M&backend=host")
    t = torch.ones(3)
    dist.all_reduce(t)
    assert t.tolist() == [2, 2, 2]
    dist.destroy_process_group()
    assert not nvsym.is_initialized()
dist.init_process_group("nvsym", init_method="nvsym://?heap_size=64M")
works = [dist.all_reduce(torch.ones(100_000), async_op=True) for _ in range(5)]
print("fine", flush=True)
""",
    )
    assert result.stdout.count("fine") == 2


def test_many_jobs_in_a_process(mpirun):
    """They share one meeting point, and leave nothing open."""
    result = run_torch(
        mpirun,
        2,
        """
import os
opened = []
for k in range(6):
    dist.init_process_group("nvsym", init_method="nvsym://?heap_size=16M")
    store = dist.distributed_c10d._get_default_store()
    assert not store.check(["mine"])
    dist.barrier()
    store.set("mine", str(k))
    dist.destroy_process_group()
    opened.append(len(os.listdir("/proc/self/fd")))
assert opened[1] == opened[-1], opened
print("fine")
""",
    )
    assert result.stdout.count("fine") == 2


def test_the_store_does_not_need_its_file_to_be_there(mpirun):
    """PE 0 removes it when it ends; another PE uses it for the last time when it ends, and would wait for it."""
    result = run_torch(
        mpirun,
        2,
        """
import datetime, os
from nvsym.torch import _register
dist.init_process_group("nvsym", init_method="nvsym://?heap_size=16M", timeout=datetime.timedelta(seconds=5))
dist.barrier()
if dist.get_rank() == 0:
    _register._remove_folders()
dist.barrier()
store = dist.distributed_c10d._get_default_store()
store.add("late", 1)
dist.barrier()
assert int(store.get("late")) == 2
dist.destroy_process_group()
print("fine")
""",
    )
    assert result.stdout.count("fine") == 2


def test_powersgd(mpirun):
    """A hook of DistributedDataParallel whose callbacks make calls."""
    result = run_torch(
        mpirun,
        2,
        """
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
dist.init_process_group("nvsym", init_method="nvsym://?backend=host&heap_size=64M")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(200, 300))
state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
for _ in range(4):
    model(torch.randn(4, 200)).sum().backward()
grads = [torch.empty(300, 200) for _ in range(2)]
dist.all_gather(grads, model.module.weight.grad)
assert grads[0].equal(grads[1])
dist.destroy_process_group()
print("fine")
""",
    )
    assert result.stdout.count("fine") == 2


def test_wrong_ranks_and_options(mpirun):
    result = run_torch(
        mpirun,
        2,
        """
from mpi4py import MPI
me = MPI.COMM_WORLD.rank
def refused(words, **options):
    try:
        dist.init_process_group("nvsym", **options)
    except (ValueError, TypeError) as error:
        assert words in str(error), error
    else:
        raise AssertionError("not refused: " + words)
refused("asks for rank", init_method="nvsym://?heap_size=64M&rank=7")
refused("has the option 'size'", init_method="nvsym://?size=3")
refused("'backend=host' where nothing is", init_method="nvsym://backend=host")
refused("no whole number", init_method="nvsym://?rank=first")
store = dist.HashStore()
refused("is PE", store=store, rank=1 - me, world_size=2, pg_options=nvsym.torch.Options(heap_size="64M"))
refused("pg_options", store=store, rank=me, world_size=2, pg_options={"heap_size": "64M"})
refused("groups", store=store, rank=me, world_size=2, pg_options=nvsym.torch.Options(heap_size="64M", groups=99))
# From here on a job runs, of 64 MiB in host memory: what asks for another one is told so, and not passed over.
refused("groups: 'a'", init_method="nvsym://", pg_options=nvsym.torch.Options(groups="a"))
refused("staging: '1X'", init_method="nvsym://", pg_options=nvsym.torch.Options(staging="1X"))
refused("heap_size: '1X'", init_method="nvsym://", pg_options=nvsym.torch.Options(heap_size="1X"))
refused("pg_options: a heap of 1 GiB", init_method="nvsym://", pg_options=nvsym.torch.Options(heap_size="1G"))
refused("pg_options: backend 'nvshmem'", init_method="nvsym://", pg_options=nvsym.torch.Options(backend="nvshmem"))
refused("init_method: a heap of 1 GiB", init_method="nvsym://?heap_size=1G")
refused("init_method: backend 'nvshmem'", init_method="nvsym://?backend=nvshmem")
same = nvsym.torch.Options(backend="host", heap_size="64M")
dist.init_process_group("nvsym", init_method="nvsym://?backend=host&heap_size=64M", pg_options=same)
print("fine")
""",
    )
    assert result.stdout.count("fine") == 2


@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_example_trains_as_gloo_does(mpirun, n):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    job = mpirun(n, EXAMPLES / "torch_ddp_digits.py", "--epochs", 3, "--backend", "host", timeout=120.0)
    found = re.findall(r"^(gloo|nvsym) *: (\d) ranks, (\d+) steps, loss (\S+) -> (\S+), ", job.stdout, re.MULTILINE)
    assert [row[:3] for row in found] == [("gloo", str(n), "66"), ("nvsym", str(n), "66")]
    assert all(float(row[4]) < 0.3 < 2 < float(row[3]) for row in found)
    assert "the same on all ranks" in job.stdout
    assert job.stdout.endswith("the losses agree\n")
    assert not any(job.pe_stdout[1:])


def test_a_killed_job_leaves_nothing_for_ever(tmp_path):
    """The meeting point of a job that was killed is removed by the next one; that of a running one stays."""
    import signal
    import subprocess
    import sys

    code = """
import nvsym.torch, os, signal, sys, torch.distributed as dist
dist.init_process_group("nvsym", init_method="nvsym://?heap_size=16M")
print("begun", flush=True)
if len(sys.argv) > 1:
    sys.stdin.read()
"""
    environ = {**os.environ, "NVSYM_SHM_DIR": str(tmp_path)}
    command = [sys.executable, "-c", code, "wait"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environ, "text": True}
    running = subprocess.Popen(command, **pipes)
    killed = subprocess.Popen(command, **pipes)
    try:
        assert running.stdout.readline() == killed.stdout.readline() == "begun\n"
        assert len(list(tmp_path.glob("nvsym-torch-*"))) == 2
        killed.send_signal(signal.SIGKILL)
        killed.wait(30)
        subprocess.run(command[:-1], env=environ, check=True, timeout=60, stdout=subprocess.DEVNULL)
        assert len(list(tmp_path.glob("nvsym-torch-*"))) == 1
        running.communicate("", timeout=60)
        assert running.returncode == 0
    finally:
        for process in (running, killed):
            process.kill()
            process.wait(30)
            process.stdin.close()
            process.stdout.close()
    assert not list(tmp_path.glob("nvsym-torch-*"))
