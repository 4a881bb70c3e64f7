# SPDX-License-Identifier: Apache-2.0
"""Processes with GPU memory and a job end with the right status in every order, and print nothing of their own."""

import inspect
import re
from pathlib import Path

import pytest
from simulated import REAL, here, share_without_mps

ROOT = Path(__file__).resolve().parents[2]

PROLOGUE = """
import atexit, gc, os, sys, threading
import numpy as np
import nvsym
ctx = nvsym.init(backend="nvshmem", heap_size="64M")
me, n = ctx.my_pe(), ctx.n_pes()
F = nvsym.SHMEMBuffer[np.float32]
b, d = F.full(1000, me), F.zeros(1000)
stream, event = nvsym.Stream(), nvsym.Event()
pinned = ctx.enqueue_create_host_buffer(np.float32, 1000)
nvsym.put(d, b, (me + 1) % n, stream=stream)
event.record(stream)
"""

# What the program does last; its status; what stderr must say (else it must be empty).
ENDINGS = {
    "nothing": ("", 0, None),
    "finalize": ("nvsym.finalize()", 0, None),
    "finalize, then objects": ("nvsym.finalize(); del b, d, stream, event, pinned", 0, None),
    "objects, then finalize": ("del b, d, stream, event, pinned; gc.collect(); nvsym.finalize()", 0, None),
    "finalize and init": ("nvsym.finalize(); nvsym.init(backend='nvshmem', heap_size='64M'); F.zeros(3)", 0, None),
    "MPI.Finalize": ("from mpi4py import MPI; MPI.Finalize()", 0, None),
    "finalize, MPI.Finalize": ("from mpi4py import MPI; nvsym.finalize(); MPI.Finalize()", 0, None),
    "MPI.Finalize, objects": ("from mpi4py import MPI; MPI.Finalize(); del b, d, stream, event, pinned", 0, None),
    "a cycle of objects": ("b.__class__.cycle = [b, d, stream, event, pinned, ctx]", 0, None),
    "an exit handler": ("atexit.register(lambda: (nvsym.barrier_all(), b.to_numpy()))", 0, None),
    "a thread": ("t = threading.Thread(target=lambda: b.to_numpy()); t.start(); t.join()", 0, None),
    "work in flight": ("big = F(4 << 20); [big.enqueue_copy_to(np.empty(1 << 22, 'f'), stream=stream) for _ in F.dtype.str]",
                       0, None),
    "sys.exit(0)": ("sys.exit(0)", 0, None),
    "sys.exit(5)": ("sys.exit(5)", 5, None),
    "torch": ("import torch; t = torch.from_dlpack(b); t += 1; u = torch.zeros(5, device='cuda')", 0, None),
    "an exception": ("raise RuntimeError('of the program')", "not zero", r"RuntimeError: of the program"),
    "an exception after finalize": ("nvsym.finalize(); raise RuntimeError('of the program')", "not zero",
                                    r"RuntimeError: of the program"),
    "an exception on one PE": ("if me == n - 1: raise RuntimeError('of the program')\nnvsym.finalize()", "not zero",
                               r"RuntimeError: of the program"),
}  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS)
@here
def test_ending(mpirun, n, ending):
    code, status, says = ENDINGS[ending]
    if ending == "torch" and not REAL:
        pytest.skip("a real GPU: PyTorch knows no other")
    job = mpirun(n, PROLOGUE + code + "\n", check=False, timeout=90)
    if status == "not zero":
        assert job.returncode != 0, job.describe()
    else:
        assert job.returncode == status, job.describe()
    errors = "".join(job.pe_stderr)
    if says is None:
        assert errors == "", job.describe()
    else:
        assert re.search(says, errors), job.describe()
    assert "".join(job.pe_stdout) == "", job.describe()


# What a PE does whose barrier has failed, before the PE that is late comes, and what all do then.
LATE = {
    "event": ("event.record(stream); event.synchronize()", "nvsym.finalize()"),
    "device": ("ctx.device.synchronize()", "nvsym.finalize()"),
    "finalize": ("", "nvsym.finalize()"),
    "torch": ("dist.barrier()", "dist.destroy_process_group(); nvsym.finalize()"),
}


@pytest.mark.parametrize("waits", LATE)
@here
def test_a_barrier_that_failed_is_told(mpirun, n, waits):
    """By whatever the host waits with, or by finalize."""
    if n == 1 or not REAL or share_without_mps(n):
        pytest.skip("kernels of collectives: it takes several PEs with a GPU each, or under MPS")
    if waits == "torch":
        pytest.importorskip("torch")
    early, end = LATE[waits]
    begin = """
        import torch, torch.distributed as dist, nvsym.torch
        torch.cuda.set_device(ctx.device.ordinal)
        from mpi4py import MPI
        MPI.COMM_WORLD.Barrier()    # imports take longer than NVSYM_TIMEOUT
        dist.init_process_group("nvsym", init_method="nvsym://")
        dist.barrier()
    """
    job = mpirun(
        n,
        PROLOGUE
        + (inspect.cleandoc(begin) if waits == "torch" else "nvsym.barrier_all(); ctx.synchronize()")
        + "\n"
        + inspect.cleandoc(f"""
            import time
            from mpi4py import MPI
            told = False
            def attempt(call):
                global told
                try:
                    call()
                except nvsym.PeerTimeoutError as error:
                    told = True
                    assert "barrier: PE {n - 1} did not arrive" in str(error), error
            MPI.COMM_WORLD.Barrier()
            if me == {n - 1}:
                time.sleep(2.5)
            else:
                if {waits != "torch"}:
                    nvsym.barrier_all(stream=stream)
                attempt(lambda: exec({early!r}))
            MPI.COMM_WORLD.Barrier()
            attempt(lambda: exec({end!r}))
            assert told == (me != {n - 1}), told
        """)
        + "\n",
        env={"NVSYM_TIMEOUT": "1"},
        timeout=90,
    )
    assert "".join(job.pe_stderr) == "", job.describe()


EXAMPLES = {
    "hello.py": [], "ring_shift.py": ["--count", 5001], "halo_exchange.py": [], "allreduce.py": ["-e", "64K", "-n", 3],
    "data_parallel_digits.py": [],
}  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES)
@here
def test_example(mpirun, n, example):
    text = (ROOT / "examples" / example).read_text()
    refused = share_without_mps(n) and re.search(r"nvsym\.(allreduce|fcollect|signal_wait_until)\(", text)
    job = mpirun(n, ROOT / "examples" / example, *EXAMPLES[example], check=False, timeout=120,
                 env={"NVSYM_BACKEND": "nvshmem"})  # fmt: skip
    if refused:
        assert job.returncode != 0
        assert "nvidia-cuda-mps-control" in job.stderr, job.describe()
    else:
        assert job.returncode == 0, job.describe()


@here
def test_bootstrap_by_mpi(mpirun, n):
    job = mpirun(
        n,
        """
        import numpy as np, nvsym
        from mpi4py import MPI
        openmpi = MPI.Get_library_version().startswith("Open MPI")
        try:
            ctx = nvsym.init(backend="nvshmem", bootstrap="mpi", heap_size="64M")
        except nvsym.NotAvailableError as error:
            assert not openmpi and "uid" in str(error), error
        else:
            b = nvsym.SHMEMBuffer[np.float32].zeros(4)
            nvsym.put(b, np.full(4, 3, np.float32), (nvsym.my_pe() + 1) % nvsym.n_pes())
            nvsym.barrier_all(); ctx.synchronize()
            assert (b.to_numpy() == 3).all()
            nvsym.finalize()
        """,
        timeout=90,
    )
    assert "".join(job.pe_stderr) == "", job.describe()


@here
def test_the_kept_cpu_mask(mpirun, n):
    mpirun(
        n,
        """
        import os
        before = os.sched_getaffinity(0)
        import nvsym
        nvsym.init(backend="nvshmem", heap_size="64M")
        assert os.sched_getaffinity(0) == before
        """,
        timeout=90,
    )


@here
def test_all_of_init_or_none(mpirun, n):
    """A PE without the library, or with a setting that is none, is an exception on every PE; the others do not hang."""
    job = mpirun(
        n,
        """
        import os, sys
        from mpi4py import MPI
        me, n = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        if me == n - 1:
            os.environ["NVSYM_LIBNVSHMEM"] = "/nowhere/libnvshmem_host.so.3"
        import nvsym
        try:
            nvsym.init(backend="nvshmem")
        except nvsym.NotAvailableError as error:
            assert "/nowhere" in str(error), error
            assert not nvsym.is_initialized()
            print("refused")
        """,
        timeout=60,
    )
    assert job.pe_stdout == ["refused\n"] * n
