# SPDX-License-Identifier: Apache-2.0
"""What the tests of the NVSHMEM backend share. They run on simulated GPUs in `make test`, on a real one in `make test-gpu`."""

import os
import sys
import time

import pytest

import nvsym
from nvsym import simulator

# Where host memory alone was asked for there is nothing to collect here.
CHOSEN = os.environ.get("NVSYM_TEST_BACKENDS") or "simulator"
collect_ignore_glob = [] if {"nvshmem", "simulator"} & set(CHOSEN.split(",")) else ["test_*.py"]
if "nvshmem" not in CHOSEN:
    # Compiled kernels, which simulated GPUs do not run.
    collect_ignore_glob += ["test_collective_kernels.py", "test_members_in_one_launch.py"]

# Libraries that the tests shall do without, though they are installed: compute-sanitizer would look at all of their kernels.
for library in filter(None, os.environ.get("NVSYM_TEST_WITHOUT", "").split(",")):
    sys.modules[library] = None  # type: ignore[assignment]


def pytest_runtest_setup(item):
    """With one PE tests may be bounded in time together, as they are under compute-sanitizer (tools/gpu.sh)."""
    if time.time() > float(os.environ.get("NVSYM_TEST_DEADLINE", "inf")):
        pytest.skip("time for this test (NVSYM_TEST_DEADLINE)")


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """The environment of the PEs and of the programs that tests start: multicast is off, and the GPUs may be simulated ones."""
    monkeypatch.setenv("NVSHMEM_DISABLE_NVLS", "1")
    if "nvshmem" not in CHOSEN:
        # There are tests of a heap that grows, and what they fill is this machine's memory.
        monkeypatch.setenv("NVSYM_HEAP_SIZE", os.environ.get("NVSYM_HEAP_SIZE") or "256M")
        for name, value in simulator.environment(devices=os.environ.get("NVSYM_SIM_DEVICES") or 4).items():
            monkeypatch.setenv(name, value)


def capability(ctx, wanted):
    return next(has for name, has, _ in ctx.capabilities() if name == wanted)


@pytest.fixture
def limited(ctx):
    """Whether PEs share a GPU without MPS, where NVSHMEM has little more than put, get and the barrier of all PEs."""
    return not capability(ctx, "collectives")


@pytest.fixture
def meet(ctx):
    """Wait until what all PEs have enqueued so far is done."""

    def wait():
        nvsym.barrier_all()
        ctx.synchronize()

    return wait
