# SPDX-License-Identifier: Apache-2.0
"""What the NVSHMEM backend checks on all PEs before NVSHMEM could end the process, with a simulated GPU on each PE."""

import pytest

from nvsym import simulator

PROLOGUE = """
import os, numpy as np
from mpi4py import MPI
me, n = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
last = me == n - 1
import nvsym
def init(**options):
    return nvsym.init(backend="nvshmem", heap_size="4M", **options)
def refused(error, *texts, call=init):
    try:
        call()
    except error as e:
        assert all(text in str(e) for text in texts), e
        print("refused")
    else:
        raise AssertionError("nothing was raised")
"""

# What differs from a working machine, and the exception that every PE gets.
CASES = {
    "the library is missing on one PE": """
        if last: os.environ["NVSYM_LIBNVSHMEM"] = "/nowhere/libnvshmem_host.so.3"
        refused(nvsym.NotAvailableError, "/nowhere", "PE 1")""",
    "another version on one PE": """
        if last: os.environ["NVSYM_SIM_NVSHMEM"] = "30700"
        refused(nvsym.CollectiveError, "3.8.0", "3.7.0")""",
    "a version that is too old": """
        os.environ["NVSYM_SIM_NVSHMEM"] = "30200"
        refused(nvsym.NotAvailableError, "3.2.0")""",
    "no GPU on one PE": """
        if last: os.environ["CUDA_VISIBLE_DEVICES"] = ""
        refused(nvsym.NVSymError, "PE 1", "GPU")""",
    "NVSHMEM fails on one PE": """
        if last: os.environ["NVSYM_SIM_FREE"] = "1000000"
        refused(nvsym.HeapExhaustedError, "PE 1", "free")""",
    "NVSHMEM fails on all PEs": """
        os.environ["NVSYM_SIM_FAIL"] = "nvshmemx_hostlib_init_attr:1:7"
        refused(nvsym.BackendError, "NVSHMEMX_ERROR_INTERNAL")""",
    "somebody else has initialised NVSHMEM": """
        os.environ["NVSYM_SIM_INITIALIZED"] = "2"
        refused(nvsym.BackendError, "another library")""",
    "a size that is none": """
        if last: os.environ["NVSHMEM_SYMMETRIC_SIZE"] = "10X"
        refused(nvsym.SettingError, "NVSHMEM_SYMMETRIC_SIZE", "PE 1")""",
    "the MPI bootstrap with another MPI": """
        refused(nvsym.NotAvailableError, "Open MPI", "uid", call=lambda: init(bootstrap="mpi"))""",
    "PEs share a GPU without MPS": """
        init()
        a = nvsym.SHMEMBuffer["float32"].full(4, me)
        refused(nvsym.NotAvailableError, "nvidia-cuda-mps-control", call=lambda: nvsym.broadcast(a, a, 0))
        nvsym.put(a, np.full(4, 7, np.float32), 1 - me)
        nvsym.barrier_all()
        assert (a.to_numpy() == 7).all()""",
    "PEs share a GPU under MPS with too large shares": """
        os.environ["NVSYM_SIM_MPS"] = "1"
        init()
        a = nvsym.SHMEMBuffer["float32"].full(4, me)
        refused(nvsym.NotAvailableError, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", call=lambda: nvsym.broadcast(a, a, 0))""",
}


@pytest.mark.parametrize("case", CASES)
def test_refusal(mpirun, case):
    if "another MPI" in case:
        from nvsym._launch import find_launcher

        if find_launcher().kind == "openmpi":
            pytest.skip("another MPI than Open MPI: there is none")
    code = PROLOGUE + "\n".join(line.removeprefix("        ") for line in CASES[case].splitlines())
    job = mpirun(2, code + "\n", env=simulator.environment(devices=1 if "share a GPU" in case else 2), timeout=40)
    assert job.pe_stdout == ["refused\n"] * 2
    assert "FATAL" not in job.stderr


@pytest.mark.parametrize("call", ["nvshmemx_hostlib_init_attr", "cuStreamCreate"])
def test_a_failure_of_one_pe_does_not_leave_the_others(mpirun, call):
    """Inside NVSHMEM's initialisation a PE waits for the others without end; the one that failed ends all of them."""
    job = mpirun(
        2,
        """
        import nvsym
        nvsym.init(backend="nvshmem", heap_size="4M")
        """,
        env=simulator.environment(devices=2, fail=f"{call}:1:7@pe1")
        | {"NVSYM_INIT_TIMEOUT": "4"},  # longer than imports from a cold disk
        timeout=25,
        check=False,
    )
    assert job.returncode != 0
    assert f"{call} failed" in job.pe_stderr[1], job.describe()
    if call == "cuStreamCreate":
        assert "PE 1" in job.pe_stderr[0], job.describe()
    else:
        assert "still inside NVSHMEM's initialisation" in job.pe_stderr[1], job.describe()
