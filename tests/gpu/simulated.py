# SPDX-License-Identifier: Apache-2.0
"""What takes the place of PyTorch and CuPy where they are missing or the GPUs are simulated: both know real ones only."""

import ctypes
import importlib
import os

import pytest

import nvsym
from nvsym import _driver

# Tests that start jobs of their own have one configuration: that of tools/gpu.sh, or two simulated GPUs.
REAL = "nvshmem" in os.environ.get("NVSYM_TEST_BACKENDS", "")
PES = int(os.environ.get("NVSYM_TEST_GPU_PES", "1" if REAL else "2"))
here = pytest.mark.parametrize("n", [pytest.param(PES, id=f"{'nvshmem' if REAL else 'simulator'}-n{PES}")])


def is_simulated():
    """Whether this PE's GPU is a simulated one, which runs no compiled kernels."""
    return _driver.is_simulated()


def need_real_gpu(what):
    if is_simulated():
        pytest.skip(f"a real GPU: {what}")


def library(name):
    """A library for GPUs, or None where it is not installed or the GPU is simulated."""
    try:
        return None if is_simulated() else importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def share_without_mps(n):
    """Whether `n` PEs that a test starts share a real GPU without MPS, where NVSHMEM has no collectives.

    tools/gpu.sh says which GPUs there are: one, or one for each PE.
    """
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return REAL and len(gpus) < n and "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


class TorchStream:
    """A stream as PyTorch shows it."""

    def __init__(self):
        self.kept = nvsym.Stream()
        self.cuda_stream = self.kept.handle


class CupyStream:
    """A stream as CuPy shows it."""

    def __init__(self):
        self.kept = nvsym.Stream()
        self.ptr = self.kept.handle


class Graph:
    """A capture into a graph by the driver's own calls; PyTorch's CUDAGraph makes the same ones."""

    def __init__(self, stream, mode=1):
        self.cuda = ctypes.CDLL(_driver.library_info().path)
        self.stream = ctypes.c_void_p(stream.handle)
        self.graph, self.executable = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.cuda.cuStreamBeginCapture_v2(self.stream, mode))

    @staticmethod
    def check(status):
        assert status == 0, status

    def end(self):
        self.check(self.cuda.cuStreamEndCapture(self.stream, ctypes.byref(self.graph)))
        flags = ctypes.c_ulonglong(0)
        self.check(self.cuda.cuGraphInstantiateWithFlags(ctypes.byref(self.executable), self.graph, flags))

    def replay(self):
        self.check(self.cuda.cuGraphLaunch(self.executable, self.stream))

    def destroy(self):
        self.check(self.cuda.cuStreamSynchronize(self.stream))
        self.check(self.cuda.cuGraphExecDestroy(self.executable))
        self.check(self.cuda.cuGraphDestroy(self.graph))
