# SPDX-License-Identifier: Apache-2.0
"""Buffers on GPUs in PyTorch, CuPy, JAX, Numba and Triton, and torch.distributed over NVSHMEM."""

import os
import pathlib

import numpy as np
import pytest
from simulated import share_without_mps

import nvsym
from nvsym import SHMEMBuffer
from nvsym.dtypes import DTYPES

# JAX would take most of the GPU's memory, and each PE has a JAX.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.cuda.is_available():
    pytest.skip("this PyTorch sees no GPU", allow_module_level=True)
dist = torch.distributed

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent.parent / "examples"
PES = pytest.mark.pes(1, 2, 4, timeout=120)
F32 = SHMEMBuffer[np.float32]


def random_bytes(dtype, n, seed):
    """Elements with random bytes; valid ones for bool."""
    random = np.random.default_rng(seed)
    if dtype == np.bool_:
        return random.integers(0, 2, n).astype(bool)
    return random.integers(0, 256, n * dtype.itemsize, np.uint8).view(dtype)


def late(tensor, value):
    """Set a tensor some milliseconds from now, on the current stream."""
    torch.cuda._sleep(20_000_000)
    tensor.fill_(value)


# NumPy 2.5 has no np.row_stack any more, and numba-cuda names it when it first compiles.
ROW_STACK = """
import numpy as np
if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack
"""

# A program that runs the script that its arguments name, with that.
WITH_ROW_STACK = f"""{ROW_STACK}
import runpy
import sys
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def numba_cuda():
    """numba.cuda, able to compile in this process."""
    cuda = pytest.importorskip("numba.cuda", reason="Numba is not installed")
    exec(ROW_STACK, {})
    return cuda


# ---- arrays ---------------------------------------------------------------------------------------------------------


@PES
def test_round_trips(ctx):
    """NumPy, a buffer, PyTorch, CuPy and back, bit for bit, for every type that both have."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    import nvsym.torch as nt

    native = []
    for element in DTYPES:
        values = random_bytes(element.numpy, 40, element.id)
        b = SHMEMBuffer[element.numpy].from_numpy(values)
        if not isinstance(getattr(torch, element.name, None), torch.dtype):
            with pytest.raises(TypeError, match=element.name):
                nt.tensor(b)
            continue
        tensor = nt.tensor(b)
        assert tensor.is_cuda
        assert tensor.data_ptr() == b.unsafe_ptr()
        assert tensor.dtype == nt.torch_dtype(element.numpy)
        try:
            array = cupy.from_dlpack(tensor)
            native.append(element.name)
        except (TypeError, ValueError, RuntimeError, BufferError):
            assert element.name.startswith(("bfloat16", "float8"))  # what CuPy does not have goes as bytes
            array = cupy.from_dlpack(tensor.view(torch.uint8))
        assert array.data.ptr == b.unsafe_ptr()
        back = SHMEMBuffer.from_dlpack(array)
        assert back.to_numpy().tobytes() == values.tobytes()
        assert cupy.asnumpy(array).tobytes() == values.tobytes()
        assert type(nt.buffer(tensor)) is SHMEMBuffer[element.numpy]
        assert nt.buffer(tensor).to_numpy().tobytes() == values.tobytes()
        del tensor, array
    assert set(native) >= {"bool", "int8", "int64", "uint8", "float16", "float32", "float64", "complex64", "complex128"}


@PES
def test_tensors_of_others_are_copied_in_order(ctx):
    """What another library has enqueued on its tensor is waited for."""
    stream = torch.cuda.Stream()
    x = torch.zeros(100_000, device="cuda")
    b, out = F32.zeros(100_000), torch.zeros(100_000, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        late(x, 7)
        copied = SHMEMBuffer.from_dlpack(x)
        assert (copied.to_numpy() == 7).all()
        late(x, 8)
        b.enqueue_copy_from(x)
        assert (b.to_numpy() == 8).all()
        mine = nvsym.Stream()
        late(x, 9)
        b.enqueue_copy_from(x, stream=mine)
        b.enqueue_copy_to(out, stream=mine)
        mine.synchronize()
    assert out.eq(9).all()
    for bad, error in ((x.double(), TypeError), (x[:10], ValueError), (x.view(2, -1).t(), ValueError)):
        with pytest.raises(error, match=r"^src: "):
            b.enqueue_copy_from(bad)
    with pytest.raises((TypeError, ValueError), match=r"^src: "):
        b.enqueue_copy_from(x.view(torch.uint8))
    # Other devices' memory, and host tensors, as before.
    b.enqueue_copy_from(torch.full((100_000,), 3.0))
    assert (b.to_numpy() == 3).all()
    assert (SHMEMBuffer.from_dlpack(torch.ones(5)).to_numpy() == 1).all()


@PES
def test_cupy(ctx):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    b = F32.full(1000, 1)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = cupy.from_dlpack(b)
        array += 1
        b.enqueue_copy_from(array * 2, stream=stream)
        nvsym.put(b[:10], b[10:20], ctx.my_pe(), stream=stream)
    stream.synchronize()
    assert (b.to_numpy() == 4).all()
    assert cupy.asarray(b).data.ptr == b.unsafe_ptr()
    assert (SHMEMBuffer.from_dlpack(cupy.arange(5)).to_numpy() == np.arange(5)).all()
    del array


@PES
def test_numba(ctx):
    cuda = numba_cuda()
    right = (ctx.my_pe() + 1) % ctx.n_pes()

    @cuda.jit
    def add(mine, other):
        i = cuda.grid(1)
        if i < len(mine):
            mine[i] = other[i] + 1

    source, dest = F32.full(1000, ctx.my_pe()), F32.zeros(1000)
    nvsym.barrier_all()
    ctx.synchronize()
    stream = cuda.stream()
    add[8, 128, stream](cuda.as_cuda_array(dest), cuda.as_cuda_array(source.peer(right)))
    nvsym.put(dest[:10], dest[10:20], ctx.my_pe(), stream=stream)
    stream.synchronize()
    assert (dest.to_numpy() == right + 1).all()
    nvsym.barrier_all()
    ctx.synchronize()


@PES
def test_jax(ctx):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    try:
        jax.devices("cuda")
    except RuntimeError as error:
        pytest.skip(f"this JAX sees no GPU: {error}")
    b = F32.full(1000, 2)
    array = jax.numpy.from_dlpack(b)
    assert array.unsafe_buffer_pointer() == b.unsafe_ptr()
    with jax.default_device(jax.devices("cuda")[ctx.device.ordinal]):
        double = array * 2
        other = SHMEMBuffer.from_dlpack(double)
        assert (other.to_numpy() == 4).all()
        b.enqueue_copy_from(jax.numpy.full(1000, 5, jax.numpy.float32))
    assert (b.to_numpy() == 5).all()
    del array


@pytest.mark.parametrize("n", [pytest.param(1, id="nvshmem-n1")])
def test_one_nvshmem_beside_pytorch(mpirun, n):
    """PyTorch brings an NVSHMEM too; the process has one, and PyTorch's symmetric memory can be asked for it."""
    result = mpirun(
        n,
        """
        import nvsym, torch, torch.distributed._symmetric_memory as symm_mem
        from nvsym import _nvshmem
        with nvsym.SHMEMContext(backend="nvshmem") as ctx:
            b = nvsym.SHMEMBuffer["f4"].full(10, 1)
            print("available:", symm_mem.is_nvshmem_available())
            nvsym.allreduce(b, b)
            assert (b.to_numpy() == 1).all()
            with open("/proc/self/maps") as maps:
                files = {line.split()[-1] for line in maps if "libnvshmem_host" in line}
            print("loaded:", *files)
            assert len(files) == 1, files
    """,
        timeout=120.0,
    )
    assert "available:" in result.stdout


# ---- torch.distributed ----------------------------------------------------------------------------------------------


@pytest.fixture
def group(ctx, limited):
    """The default group over the job; small pieces, so that ordinary tensors take several."""
    import nvsym.torch as nt

    if limited:
        pytest.skip("PEs share a GPU without MPS: NVSHMEM has no collectives (capability 'collectives')")
    torch.cuda.set_device(ctx.device.ordinal)
    dist.init_process_group("nvsym", init_method="nvsym://", pg_options=nt.Options(staging="256K", groups=4))
    yield dist.group.WORLD
    dist.destroy_process_group()


def cuda(*shape, value=0.0, dtype=torch.float32):
    return torch.full(shape, value, dtype=dtype, device="cuda")


@PES
def test_group_reductions(ctx, group):
    import nvsym.torch as nt

    me, n = ctx.my_pe(), ctx.n_pes()
    total = n * (n + 1) / 2
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64):
        for size in (1, 1000, 300_001):
            t = cuda(size, value=me + 1, dtype=dtype)
            dist.all_reduce(t)
            assert t.eq(total).all()
    t = cuda(30, 40, value=me + 1.0)
    dist.all_reduce(t[:, ::2], dist.ReduceOp.MAX)
    assert t[:, ::2].eq(n).all()
    assert t[:, 1::2].eq(me + 1).all()
    t = cuda(5, value=me + 1.0)
    dist.all_reduce(t, dist.ReduceOp.AVG)
    assert t.eq(total / n).all()
    host = torch.full((100_000,), me + 1.0)
    dist.all_reduce(host)
    assert host.eq(total).all()
    inside = nt.empty(300_001).fill_(me + 1)
    dist.all_reduce(inside)
    assert inside.eq(total).all()
    out = cuda(1000)
    dist.reduce_scatter_tensor(out, torch.cat([cuda(1000, value=me + block) for block in range(n)]))
    assert out.eq(sum(rank + me for rank in range(n))).all()
    dist.reduce(t, dst=n - 1)
    with pytest.raises(TypeError, match=r"^op: "):
        dist.all_reduce(cuda(3), dist.ReduceOp.BAND)


@PES
def test_group_movement(ctx, group):
    me, n = ctx.my_pe(), ctx.n_pes()
    for dtype in (torch.float32, torch.bool, torch.float8_e4m3fn, torch.complex64):
        for size in (1, 1001, 200_003):
            everyone = [(torch.arange(size, device="cuda") % 7 + rank).to(dtype) for rank in range(n)]
            mine = everyone[me].clone()
            dist.broadcast(mine, src=n - 1)
            assert mine.view(torch.uint8).equal(everyone[-1].view(torch.uint8))
            parts = [torch.empty_like(mine) for _ in range(n)]
            dist.all_gather(parts, everyone[me])
            assert all(a.view(torch.uint8).equal(b.view(torch.uint8)) for a, b in zip(parts, everyone, strict=True))
            out = torch.empty(n * size, dtype=dtype, device="cuda")
            dist.all_to_all_single(out, everyone[me].repeat(n))
            assert out.view(torch.uint8).equal(torch.cat(everyone).view(torch.uint8))
    sends, receives = [me + 2 * j for j in range(n)], [i + 2 * me for i in range(n)]
    out = cuda(sum(receives), 300)
    dist.all_to_all_single(out, cuda(sum(sends), 300, value=me), receives, sends)
    assert out[:, 0].tolist() == [float(i) for i, rows in enumerate(receives) for _ in range(rows)]
    seen = [None] * n
    dist.all_gather_object(seen, {"rank": me})
    assert [each["rank"] for each in seen] == list(range(n))


@PES
def test_group_streams(ctx, group):
    """A call waits for the current stream, and who waits for its work is behind it."""
    me, n = ctx.my_pe(), ctx.n_pes()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        t = cuda(200_000)
        late(t, me + 1)
        work = dist.all_reduce(t, async_op=True)
        future = work.get_future().then(lambda done: done.value()[0] * 2)
        work.wait()
        doubled = future.wait()
        assert float(t.sum()) == 200_000 * n * (n + 1) / 2
        assert float(doubled.sum()) == 2 * 200_000 * n * (n + 1) / 2
    for i in range(20):
        t = cuda(1000, value=i + me)
        dist.all_reduce(t)
        assert float(t[0]) == sum(i + rank for rank in range(n))
    dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait()
    assert work.is_completed()


@PES
def test_groups_of_some(ctx, group):
    me, n = ctx.my_pe(), ctx.n_pes()
    backwards = dist.new_group(list(reversed(range(n))))
    t = cuda(1000, value=me + 1.0)
    dist.all_reduce(t, group=backwards)
    assert t.eq(n * (n + 1) / 2).all()
    if n == 4:
        pairs = [dist.new_group([0, 2]), dist.new_group([3, 1])]
        t = cuda(1000, value=me + 1.0)
        dist.all_reduce(t, group=pairs[me % 2])
        assert t.eq(4 if me % 2 == 0 else 6).all()


@PES
def test_group_in_a_graph(ctx, group, meet):
    import nvsym.torch as nt

    me, n = ctx.my_pe(), ctx.n_pes()
    inside, outside = nt.empty(1000), cuda(1000)

    def step():
        inside.add_(me + 1)
        outside.add_(me + 1)
        dist.all_reduce(inside)
        work = dist.all_reduce(outside, async_op=True)
        work.wait()
        inside.div_(n)
        outside.div_(n)

    inside.zero_()
    step()  # what is loaded at first use
    inside.zero_()
    outside.zero_()
    torch.cuda.synchronize()
    meet()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    expected = 5 * (n + 1) / 2
    assert inside.eq(expected).all()
    assert outside.eq(expected).all()
    meet()
    step()
    assert inside.eq(expected + (n + 1) / 2).all()


@PES
def test_data_parallel_on_gpus(ctx, group):
    me, n = ctx.my_pe(), ctx.n_pes()
    torch.manual_seed(me)
    model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.Tanh(), torch.nn.Linear(300, 3)).double().cuda()
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    x = torch.randn(4 * n, 20, generator=torch.Generator().manual_seed(7), dtype=torch.float64).cuda()
    for _ in range(3):
        model.zero_grad()
        parallel(x[4 * me : 4 * me + 4]).square().mean().backward()
    summed = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).square().mean().backward()
    for p, together in zip(model.parameters(), summed, strict=True):
        torch.testing.assert_close(p.grad, together, rtol=1e-9, atol=1e-12)


# ---- examples -------------------------------------------------------------------------------------------------------

RUNS = {
    "cupy_ring": ("cupy", [], "every PE has every block"),
    "triton_allreduce": ("triton", ["--count", 100_001], "the same bits as nvsym.allreduce"),
    "numba_heat": ("numba.cuda", ["--backend", "nvshmem"], "of one process"),
    "jax_regression": ("jax", ["--backend", "nvshmem"], "the same on all PEs"),
    "torch_graph": ("torch", [], "the same bits in all ways"),
    "torch_ddp_digits": ("sklearn", ["--backend", "nvshmem", "--epochs", 2], "the losses agree"),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("n", [pytest.param(n, id=f"nvshmem-n{n}") for n in (1, 2, 4)])
def test_example(mpirun, name, n):
    library, options, words = RUNS[name]
    pytest.importorskip(library, reason=f"{library} is not installed")
    if share_without_mps(n) and name not in ("cupy_ring", "numba_heat"):
        pytest.skip("PEs share a GPU without MPS: NVSHMEM has no collectives (capability 'collectives')")
    script = EXAMPLES / f"{name}.py"
    program = (WITH_ROW_STACK, script) if name == "numba_heat" else (script,)
    job = mpirun(n, *program, *options, timeout=180.0)
    assert words in job.stdout
    assert "FAILED" not in job.stdout
