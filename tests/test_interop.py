# SPDX-License-Identifier: Apache-2.0
"""Buffers in other libraries in host memory: mpi4py, Numba, and NumPy to PyTorch to JAX and back."""

import pathlib
import re

import ml_dtypes
import numpy as np
import pytest
from jobcheck import random_array, right_of, same_bytes

import nvsym
from nvsym import SHMEMBuffer, _mpi_gpu
from nvsym.dtypes import DTYPES

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / "examples"
PES = pytest.mark.pes(1, 2, 4)


# ---- mpi4py ---------------------------------------------------------------------------------------------------------


@PES
def test_mpi_calls_take_buffers(ctx):
    """Whole buffers, slices, peers' memory and explicit types, sent from where they are and received into place."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    me, n = ctx.my_pe(), ctx.n_pes()
    right, left = right_of(ctx), (me - 1) % n
    b = SHMEMBuffer["f8"].full(100, me)
    got = SHMEMBuffer["f8"].zeros(100)
    comm.Sendrecv(b, right, recvbuf=got, source=left)
    assert (got.to_numpy() == left).all()
    comm.Sendrecv(b[10:20], right, recvbuf=got[:10], source=left)
    comm.Sendrecv([b[:50], 50, MPI.DOUBLE], right, recvbuf=[got[50:], 50, MPI.DOUBLE], source=left)
    assert (got.to_numpy() == left).all()
    comm.Allreduce(MPI.IN_PLACE, b, MPI.SUM)
    assert (b.to_numpy() == n * (n - 1) / 2).all()
    everyone = SHMEMBuffer["i4"].zeros(n)
    comm.Allgather(SHMEMBuffer["i4"].full(1, me), everyone)
    assert everyone.to_numpy().tolist() == list(range(n))
    comm.Bcast(everyone[:1] if me else SHMEMBuffer["i4"].adopt(everyone.unsafe_ptr(), 1), 0)
    # A type that MPI and the buffer protocol do not know goes as bytes of the array over the buffer.
    small = SHMEMBuffer["bfloat16"].full(8, me)
    with pytest.raises((BufferError, TypeError)):
        memoryview(small)
    arrived = SHMEMBuffer["bfloat16"].zeros(8)
    comm.Sendrecv(np.asarray(small).view(np.uint8), right, recvbuf=np.asarray(arrived).view(np.uint8), source=left)
    assert (arrived.to_numpy() == ml_dtypes.bfloat16(left)).all()
    # Into the neighbour's memory, for what it is worth.
    nvsym.barrier_all()
    if me == 0:
        comm.Send(b, n - 1, 7) if n > 1 else None
    if me == n - 1 and n > 1:
        comm.Recv(got.peer(0), 0, 7)
    nvsym.barrier_all()
    if me == 0 and n > 1:
        assert (got.to_numpy() == b.to_numpy()).all()
    capability = {name: (has, reason) for name, has, reason in ctx.capabilities()}["mpi_takes_buffers"]
    assert capability == (True, "buffers are host memory: MPI calls take them as they are")


@pytest.mark.pes(1)
def test_whether_mpi_takes_gpu_memory(ctx, monkeypatch):
    """The library is asked, and its silence is a no."""
    answer, reason = _mpi_gpu.takes_gpu_memory()
    assert isinstance(answer, bool)
    assert "to_numpy()" in reason or "CUDA-aware" in reason
    monkeypatch.setattr(_mpi_gpu, "_QUERY", "MPIX_No_such_question")
    answer, reason = _mpi_gpu.takes_gpu_memory()
    assert not answer
    assert "does not say" in reason


# ---- several libraries ----------------------------------------------------------------------------------------------


@pytest.mark.pes(1)
@pytest.mark.parametrize("dtype", [d.numpy for d in DTYPES], ids=[d.name for d in DTYPES])
def test_round_trip_through_all(ctx, dtype):
    """NumPy, a buffer, PyTorch, JAX and back are the same bits, as far as each has the type; nothing is copied but to the buffer."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    import nvsym.torch

    element = next(d for d in DTYPES if d.numpy == dtype)
    values = random_array(dtype, 24, 11)
    b = SHMEMBuffer[dtype].from_numpy(values)
    assert same_bytes(np.asarray(b), values)
    current = b
    if isinstance(getattr(torch, element.name, None), torch.dtype):
        tensor = nvsym.torch.tensor(b)
        assert tensor.data_ptr() == b.unsafe_ptr()
        current = nvsym.torch.buffer(tensor)
    if element.dlpack is not None:
        with jax.enable_x64(True):
            array = jax.numpy.from_dlpack(current)
            assert array.unsafe_buffer_pointer() == b.unsafe_ptr()
            assert array.dtype == dtype
            current = SHMEMBuffer.from_dlpack(array)
        del array
    assert type(current) is SHMEMBuffer[dtype]
    assert same_bytes(current.to_numpy(), values)
    assert same_bytes(np.asarray(current), values)


# ---- Numba ----------------------------------------------------------------------------------------------------------


@PES
def test_numba_reads_a_peer(ctx):
    numba = pytest.importorskip("numba", reason="Numba is not installed")

    @numba.njit(nogil=True)
    def shifted(mine, other):
        for i in range(len(mine)):
            mine[i] = other[i] + 1

    me = ctx.my_pe()
    source, dest = SHMEMBuffer["i8"].full(1000, 10 * me), SHMEMBuffer["i8"].zeros(1000)
    nvsym.barrier_all()
    shifted(np.asarray(dest), np.asarray(source.peer(right_of(ctx))))
    assert (dest.to_numpy() == 10 * right_of(ctx) + 1).all()
    nvsym.barrier_all()


@pytest.mark.parametrize("n", [1, 4])
def test_numba_example(mpirun, n):
    pytest.importorskip("numba", reason="Numba is not installed")
    job = mpirun(n, EXAMPLES / "numba_heat.py", "--cells", 1001, "--steps", 50, "--backend", "host", timeout=120.0)
    assert re.search(rf"^{n} PEs, host backend, 50 steps of 1001 cells", job.stdout)
    assert re.search(r"differs from that of one process by \S+ at most$", job.stdout.rstrip())
    assert not any(job.pe_stdout[1:])
