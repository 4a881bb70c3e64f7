# SPDX-License-Identifier: Apache-2.0
"""What the CUDA driver and a plain kernel reach by themselves, called from C: copies, peer copies, an empty launch."""

from typing import Any

import numpy as np

import nvsym

from .data import Shape, pattern
from .gpu import CopyKernel
from .gpu_cases import GpuCases

__all__ = ["CudaCases"]

SHMEMBuffer: Any = nvsym.SHMEMBuffer

_BLOCKS = (16, 64, 132, 264)  # of the copy kernel; few are enough for a link, all processors for memory


class CudaCases(GpuCases):
    """Makes the cases of the driver. Peer memory is that of nvsym's heap, which the driver can address."""

    name = "cuda"

    def __init__(self, gpu):
        super().__init__(gpu)
        self.dest: Any = None
        self.source = 0
        self.kernel: bool | None = None

    def describe(self):
        import ctypes

        version = ctypes.c_int()
        self.gpu.call("cuDriverGetVersion", ctypes.byref(version))
        major, minor = version.value // 1000, version.value % 1000 // 10
        return f"cuda: the driver's copies and a copy kernel, from C; CUDA {major}.{minor}"

    def prepare(self, nbytes, dtype):
        count = max(1, -(-nbytes // dtype.itemsize))
        self.dest = SHMEMBuffer[dtype](count)
        self.source = self.gpu.alloc(count * dtype.itemsize)
        self.gpu.fill(self.source, count, dtype, self.me)
        self.gpu.fill(self.dest.unsafe_ptr(), count, dtype, self.me)

    def release(self):
        if self.source:
            self.gpu.free(self.source)
            self.source = 0
        if self.dest is not None:
            self.dest.free()
            self.dest = None

    def _has_kernel(self):
        if self.kernel is None:
            try:
                self.kernel = self.gpu.function("nvsym_bench_copy") != 0
            except RuntimeError:  # no NVRTC: the driver's copies remain
                self.kernel = False
        return self.kernel

    def _peer_copies(self, to, source, shape, at, expected):
        """The ways of a copy of which one side is another PE's memory."""
        ways = [("cuMemcpyAsync", self.gpu.native("cuMemcpyAsync", to, source, shape.nbytes, self.gpu.stream))]
        if shape.nbytes % 16 == 0 and shape.nbytes and self._has_kernel():
            useful = max(1, shape.nbytes // (512 * 16))
            blocks = dict.fromkeys(min(count, useful) for count in _BLOCKS)
            ways += [
                (f"kernel of {count} blocks", CopyKernel(self.gpu, to, source, shape.nbytes, count).call)
                for count in blocks
            ]
        return [self._case(call, variant=variant, at=at, shape=shape, expected=expected) for variant, call in ways]

    def put(self, shape: Shape):
        if shape.signal:
            self._missing("no put with signal")
        peer = self.dest[0 : shape.count].peer(self.right)._data_ptr()
        return self._peer_copies(peer, self.source, shape, self.dest.unsafe_ptr(), ("pattern", self.left))

    def get(self, shape: Shape):
        peer = self.dest[0 : shape.count].peer(self.right)._data_ptr()
        cases = self._peer_copies(self.source, peer, shape, self.source, ("pattern", self.right))
        for case in cases:
            case.close = lambda: self.gpu.fill(self.source, shape.count, shape.dtype, self.me)
        return cases

    def copy(self, kind, direction, shape: Shape):
        host: Any
        if kind == "pinned":
            host = nvsym.HostBuffer(shape.dtype, shape.count, self.gpu.context.device)
        else:
            host = np.empty(shape.count, shape.dtype)
        at, device = host.ctypes.data, self.dest.unsafe_ptr()
        stream = self.gpu.stream
        if direction == "to GPU":
            host[:] = pattern(shape.count, shape.dtype, self.me)
            call = self.gpu.native("cuMemcpyAsync", device, at, shape.nbytes, stream, keep=host)
            return [
                self._case(call, variant="cuMemcpyAsync", at=device, shape=shape, expected=("pattern", self.me))
            ]  # fmt: skip
        host.view(np.uint8)[:] = 0x55
        wanted = pattern(shape.count, shape.dtype, self.me)
        call = self.gpu.native("cuMemcpyAsync", at, self.source, shape.nbytes, stream, keep=host)
        return [
            self._case(call, variant="cuMemcpyAsync", check=lambda: bool(np.array_equal(host, wanted)))
        ]  # fmt: skip

    def device_copy(self, shape: Shape):
        """A copy within the GPU."""
        at = self.dest.unsafe_ptr()
        return self._peer_copies(at, self.source, shape, at, ("pattern", self.me))

    def overhead(self, name, shape: Shape):
        if name == "allreduce":
            return [self._case(self.gpu.empty_kernel(), variant="launch of an empty kernel")]
        if name == "signal_op":  # the least that sets a word in the order of a stream
            write = self.gpu.native("cuStreamWriteValue64_v2", self.gpu.stream, self.source, 1, 0)
            return [self._case(write, variant="cuStreamWriteValue64")]
        return super().overhead(name, shape)
