# SPDX-License-Identifier: Apache-2.0
"""What the tests of the NVSHMEM backend share. They need a GPU: `make test-gpu`, which is tools/gpu.sh."""

import os

import pytest

import nvsym

# In a run on host memory there is nothing to collect here.
collect_ignore_glob = [] if "nvshmem" in os.environ.get("NVSYM_TEST_BACKENDS", "") else ["test_*.py"]


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
