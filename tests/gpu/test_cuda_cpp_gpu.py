# SPDX-License-Identifier: Apache-2.0
"""The examples of CUDA C++ on GPUs: kernels compiled by NVRTC and by nvcc, over the memory of all PEs."""

import shutil
from pathlib import Path

import pytest
from simulated import PES, REAL, here, share_without_mps

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "cuda_cpp"

pytestmark = [
    pytest.mark.skipif(not REAL, reason="a real GPU: a simulated one runs no kernels"),
    pytest.mark.skipif(
        share_without_mps(PES), reason="MPS: kernels of several PEs on one GPU have to run at the same time"
    ),
    here,
]


@pytest.mark.parametrize("count", [1, 1003, 200_000])
def test_ring_by_nvrtc(mpirun, n, count):
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    job = mpirun(n, EXAMPLES / "ring.py", "--count", count, timeout=120)
    assert job.stdout == f"3 sums of {count} elements over {n} PEs by a ring\nall elements are right\n"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_histogram_by_nvcc(mpirun, n):
    job = mpirun(n, EXAMPLES / "histogram.py", "--samples", 50_001, "--bins", 777, timeout=180)
    assert job.stdout == f"{n * 50_001} samples in 777 bins on {n} PEs\nall bins are right\n"
