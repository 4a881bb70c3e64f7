# SPDX-License-Identifier: Apache-2.0
"""What the cases of all GPU libraries share: the CUDA driver, memory with known contents, graphs."""

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np

import nvsym

from .. import _driver
from ..errors import BackendError
from ..kernels import compiler
from .data import expected_bytes, same
from .loops import NativeCalls

__all__ = ["CopyKernel", "Gpu", "Graph"]

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: other threads of the process, of other libraries, go on calling CUDA
_MAJOR, _MINOR, _PROCESSORS = 75, 76, 16  # CUdevice_attribute
_STAGE = 48 << 20  # bytes that go between host and GPU at a time: whole periods of the pattern in every element type
_WHOLE = 64 << 20  # bytes up to which a result is compared in full

_KERNELS = """
extern "C" __global__ void nvsym_bench_empty() {}

// The plain way to move memory by the processors of a GPU: 16 bytes at a time, four of them in flight in each thread.
extern "C" __global__ void nvsym_bench_copy(uint4 *to, const uint4 *from, unsigned long long n)
{
    const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * stride < n; i += 4 * stride) {
        uint4 a = from[i], b = from[i + stride], c = from[i + 2 * stride], d = from[i + 3 * stride];
        to[i] = a, to[i + stride] = b, to[i + 2 * stride] = c, to[i + 3 * stride] = d;
    }
    for (; i < n; i += stride)
        to[i] = from[i];
}
"""


def address_of(library, name):
    """The address of a function of a `ctypes.CDLL`; 0 where it has none."""
    function = getattr(library, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value


class Gpu:
    """The GPU of this PE, and memory on it.

    Attributes
    ----------
    context : nvsym.SHMEMContext
    stream : int
        The one that everything is enqueued on, of whatever library.
    me, n : int
    ordinal : int
    """

    def __init__(self, context):
        self.context = context
        self.stream = context.stream.handle
        self.me, self.n = context.my_pe(), context.n_pes()
        self.ordinal = context.device.ordinal
        self.library = ctypes.CDLL(_driver.library_info().path)
        self.stage: Any = None
        self.module = None
        uuids = [device.uuid for device in context.devices()]
        self.sharing = [pe for pe, uuid in enumerate(uuids) if uuid == uuids[self.me]]
        self.gpus = len(set(uuids))

    def call(self, name, *arguments):
        """Call a function of the driver with integers and addresses."""
        status = getattr(self.library, name)(
            *[ctypes.c_size_t(a) if isinstance(a, int) else a for a in arguments]
        )  # an int of ctypes would have 32 bits
        if status:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(status, ctypes.byref(text))
            raise BackendError(f"{name} returned {status} ({(text.value or b'an unknown error').decode()})")

    def native(self, name, *arguments, keep=None):
        """A function of the driver to be called in a loop."""
        return NativeCalls().add(name, address_of(self.library, name), *arguments, status=True, keep=keep)

    def attribute(self, number):
        """An attribute of the GPU."""
        value, device = ctypes.c_int(), ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), self.ordinal)
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
        return value.value

    def synchronize(self):
        """Wait for the stream."""
        self.context.stream.synchronize()

    # ---- memory -----------------------------------------------------------------------------------------------------

    def free_bytes(self):
        """What is free of the GPU's memory."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def alloc(self, nbytes):
        """Plain memory of this GPU; an address."""
        at = ctypes.c_size_t()
        self.call("cuMemAlloc_v2", ctypes.byref(at), max(nbytes, 16))
        return at.value

    def free(self, at):
        """Give `alloc`'s memory back."""
        self.synchronize()
        self.call("cuMemFree_v2", at)

    def _staging(self):
        if self.stage is None:
            self.stage = nvsym.HostBuffer(np.uint8, _STAGE, self.context.device)
        return self.stage

    def fill(self, at, count, dtype, pe):
        """Write what PE `pe` sends (`data.pattern`) to `count` elements."""
        stage = self._staging()
        nbytes = count * dtype.itemsize
        block = expected_bytes("pattern", dtype, min(nbytes, _STAGE), pe)
        stage[: block.nbytes] = block
        for start in range(0, nbytes, _STAGE):
            size = min(_STAGE, nbytes - start)
            self.call("cuMemcpyAsync", at + start, stage.unsafe_ptr(), size, self.stream)
        self.synchronize()

    def wipe(self, at, nbytes):
        """Write what is no result of anything."""
        if nbytes:
            self.call("cuMemsetD8Async", at, 0x55, nbytes, self.stream)

    def copy(self, to, source, nbytes):
        """Copy within the GPU, on the stream."""
        if nbytes:
            self.call("cuMemcpyAsync", to, source, nbytes, self.stream)

    def matches(self, at, count, dtype, *expected):
        """Whether memory holds what `data.expected_bytes` says; above 64 MiB its beginning, middle and end are looked at."""
        nbytes = count * dtype.itemsize
        parts = [(start, min(_STAGE, nbytes - start)) for start in range(0, nbytes, _STAGE)]
        if nbytes > _WHOLE:
            parts = [parts[0], parts[len(parts) // 2], parts[-1]]
        stage = self._staging()
        for start, size in parts:
            self.call("cuMemcpyAsync", stage.unsafe_ptr(), at + start, size, self.stream)
            self.synchronize()
            wanted = expected_bytes(expected[0], dtype, size, *expected[1:])
            found = stage[:size]
            # The bytes first: that is fast, and enough where nothing is rounded.
            if not np.array_equal(found.view(np.ndarray), wanted) and not same(
                np.asarray(found).view(dtype), wanted.view(dtype).astype(_wide(dtype))
            ):
                return False
        return True

    # ---- kernels ----------------------------------------------------------------------------------------------------

    def function(self, name):
        """A kernel of this module."""
        if self.module is None:
            arch = 10 * self.attribute(_MAJOR) + self.attribute(_MINOR)
            self.cubin = _cubin(arch)
            module = ctypes.c_void_p()
            self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(self.cubin))
            self.module = module
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), self.module, ctypes.c_char_p(name.encode()))
        return function.value or 0

    def empty_kernel(self):
        """A launch of a kernel that does nothing."""
        function = self.function("nvsym_bench_empty")
        return self.native("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, self.stream, 0, 0)

    def close(self):
        """Give back what is held."""
        self.stage = None
        if self.module is not None:
            self.call("cuModuleUnload", self.module)
            self.module = None


@lru_cache
def _cubin(arch):
    return compiler.compile_cubin(_KERNELS, "bench.cu", arch)


def _wide(dtype):
    return dtype if dtype.kind in "biu" else np.complex128 if dtype.kind == "c" else np.float64


class CopyKernel:
    """A launch of the copy kernel with its arguments, on `blocks` blocks."""

    def __init__(self, gpu, to, source, nbytes, blocks):
        if (to | source | nbytes) % 16:
            raise ValueError("the copy kernel moves 16 bytes at a time")
        self.values = (ctypes.c_size_t * 3)(to, source, nbytes // 16)
        base = ctypes.addressof(self.values)
        self.pointers = (ctypes.c_void_p * 3)(base, base + 8, base + 16)
        function = gpu.function("nvsym_bench_copy")
        self.call = gpu.native(
            "cuLaunchKernel", function, blocks, 1, 1, 512, 1, 1, 0, gpu.stream, ctypes.addressof(self.pointers), 0,
            keep=self,
        )  # fmt: skip


class Graph:
    """What a function enqueues on the stream, captured so many times into a CUDA graph.

    Attributes
    ----------
    launch : NativeCalls
    """

    def __init__(self, gpu, enqueue, times):
        self.gpu = gpu
        self.executable = None
        graph = ctypes.c_void_p()
        gpu.call("cuStreamBeginCapture_v2", gpu.stream, _RELAXED)
        try:
            for _ in range(times):
                enqueue()
        except BaseException:
            gpu.library.cuStreamEndCapture(ctypes.c_void_p(gpu.stream), ctypes.byref(graph))
            if graph:
                gpu.call("cuGraphDestroy", graph)
            raise
        gpu.call("cuStreamEndCapture", gpu.stream, ctypes.byref(graph))
        executable = ctypes.c_void_p()
        try:
            gpu.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, 0)
        finally:
            gpu.call("cuGraphDestroy", graph)
        self.executable = executable
        self.launch = gpu.native("cuGraphLaunch", executable.value, gpu.stream, keep=self)

    def close(self):
        """Give the graph back, once it has run."""
        if self.executable is not None:
            self.gpu.synchronize()
            self.gpu.call("cuGraphExecDestroy", self.executable)
            self.executable = None
