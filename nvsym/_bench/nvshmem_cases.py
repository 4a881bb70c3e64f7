# SPDX-License-Identifier: Apache-2.0
"""NVSHMEM's own calls, made in a loop of C on the same symmetric heap: what a C++ program pays."""

import ctypes
from typing import Any

import numpy as np

import nvsym

from .. import _nvshmem
from ..dtypes import as_dtype
from .data import Shape
from .gpu import address_of
from .gpu_cases import GpuCases
from .loops import NativeCalls

__all__ = ["NvshmemCases"]

SHMEMBuffer: Any = nvsym.SHMEMBuffer

_SET, _GE = 9, 5  # NVSHMEM_SIGNAL_SET, NVSHMEM_CMP_GE
_WORLD = 0  # NVSHMEM_TEAM_WORLD


class NvshmemCases(GpuCases):
    """Makes the cases of NVSHMEM."""

    name = "nvshmem"

    def __init__(self, gpu):
        super().__init__(gpu)
        self.info = _nvshmem.library_info()
        self.library = ctypes.CDLL(self.info.path)
        self.dest: Any = None
        self.source: Any = None
        self.signal: Any = None

    def describe(self):
        return f"nvshmem: NVSHMEM {self.info.version}, its calls on streams from C"

    def prepare(self, nbytes, dtype):
        kind = SHMEMBuffer[dtype]
        count = max(1, -(-nbytes // dtype.itemsize))
        self.dest, self.source = kind(count), kind(count)
        self.signal = SHMEMBuffer[np.uint64].zeros(1)
        self.gpu.fill(self.source.unsafe_ptr(), count, dtype, self.me)

    def release(self):
        for buffer in (self.dest, self.source, self.signal):
            if buffer is not None:
                buffer.free()
        self.dest = self.source = self.signal = None

    def _call(self, name, *arguments, calls=None, **more):
        address = address_of(self.library, name)
        if address == 0:
            self._missing(f"NVSHMEM {self.info.version} has no {name}")
        return (calls or NativeCalls()).add(name, address, *arguments, **more)

    def _at(self):
        return self.dest.unsafe_ptr(), self.source.unsafe_ptr(), self.signal.unsafe_ptr()

    def _put(self, shape, signal):
        dest, source, at = self._at()
        if signal:
            return self._call(
                "nvshmemx_putmem_signal_on_stream", dest, source, shape.nbytes, at, 1, _SET, self.right, self.gpu.stream
            )
        return self._call("nvshmemx_putmem_on_stream", dest, source, shape.nbytes, self.right, self.gpu.stream)

    def put(self, shape: Shape):
        calls = self._put(shape, shape.signal)
        self._call("nvshmemx_quiet_on_stream", self.gpu.stream, calls=calls)
        variant = "putmem_signal_on_stream" if shape.signal else ""
        return [
            self._case(
                calls, variant=variant, at=self.dest.unsafe_ptr(), shape=shape, expected=("pattern", self.left)
            )
        ]  # fmt: skip

    def _get(self, shape):
        dest, source, _ = self._at()
        return self._call("nvshmemx_getmem_on_stream", dest, source, shape.nbytes, self.right, self.gpu.stream)

    def get(self, shape: Shape):
        calls = self._get(shape)
        return [self._case(calls, at=self.dest.unsafe_ptr(), shape=shape, expected=("pattern", self.right))]

    def latency(self, shape: Shape):
        if self.other >= self.n:
            return [self._case(lambda: None, steps=2)]
        dest, source, at = self._at()
        stream = self.gpu.stream
        calls = NativeCalls()

        def send():
            self._call(
                "nvshmemx_putmem_signal_on_stream", dest, source, shape.nbytes, at, 1, _SET, self.other, stream,
                calls=calls, step=4,
            )  # fmt: skip

        def receive():
            self._call("nvshmemx_signal_wait_until_on_stream", at, _GE, 1, stream, calls=calls, step=2)

        for part in (receive, send) if self.me & 1 else (send, receive):
            part()

        def close():
            self.gpu.synchronize()
            self.signal.fill(0)
            self.gpu.synchronize()

        return [
            self._case(
                calls, variant="putmem_signal_on_stream", at=dest, shape=shape, expected=("pattern", self.other),
                steps=2, close=close,
            )
        ]  # fmt: skip

    def _reduce(self, shape):
        dest, source, _ = self._at()
        kind = as_dtype(shape.dtype).nvshmem
        if kind is None:
            self._missing(f"no reduction of {shape.dtype.name}")
        if shape.in_place:
            source = dest
        return self._call(
            f"nvshmemx_{kind}_{shape.op}_reduce_on_stream",
            _WORLD,
            dest,
            source,
            shape.count,
            self.gpu.stream,
            status=True,
        )

    def allreduce(self, shape: Shape):
        dest, source, _ = self._at()
        return [self._allreduce_case(self._reduce(shape), shape, dest, source)]

    def collective(self, name, shape: Shape):
        dest, source, _ = self._at()
        if name == "reducescatter":
            kind = as_dtype(shape.dtype).nvshmem
            if kind is None:
                self._missing(f"no reduce-scatter of {shape.dtype.name}")
            function, sizes = f"nvshmemx_{kind}_{shape.op}_reducescatter_on_stream", [shape.count // self.n]
        else:
            function = f"nvshmemx_{name}mem_on_stream"
            sizes = [shape.nbytes, 0] if name == "broadcast" else [shape.nbytes // self.n]  # 0: the root
        calls = self._call(function, _WORLD, dest, source, *sizes, self.gpu.stream, status=True)
        return [self._collective_case(calls, name, shape, dest)]

    def _barrier(self):
        return self._call("nvshmemx_barrier_all_on_stream", self.gpu.stream)

    def barrier(self, shape: Shape):
        return [self._case(self._barrier())]

    def overhead(self, name, shape: Shape):
        if name == "put":
            return [self._case(self._put(shape, False))]
        if name == "put_signal":
            return [self._case(self._put(shape, True))]
        if name == "get":
            return [self._case(self._get(shape))]
        if name == "signal_op":
            at = self.signal.unsafe_ptr()
            return [self._case(self._call("nvshmemx_signal_op_on_stream", at, 1, _SET, self.right, self.gpu.stream))]
        if name == "quiet":
            return [self._case(self._call("nvshmemx_quiet_on_stream", self.gpu.stream))]
        if name == "barrier_all":
            return [self._case(self._barrier())]
        if name == "reduce by NVSHMEM":
            return [self._case(self._reduce(shape))]
        return super().overhead(name, shape)
