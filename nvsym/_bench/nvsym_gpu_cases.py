# SPDX-License-Identifier: Apache-2.0
"""The operations of nvsym on GPUs that are measured."""

from functools import partial
from typing import Any

import numpy as np

import nvsym

from .data import Shape, operands, pattern
from .gpu_cases import GpuCases
from .sampling import PlainLoop

__all__ = ["NvsymGpuCases"]

# Element types come from the command line, which a type checker cannot follow.
SHMEMBuffer: Any = nvsym.SHMEMBuffer


class NvsymGpuCases(GpuCases):
    """Makes the cases of nvsym; with a `name` of its own, one more algorithm of allreduce."""

    def __init__(self, gpu, name="nvsym", algorithm=None):
        super().__init__(gpu)
        self.name = name
        self.algorithm = algorithm
        self.dest: Any = None
        self.source: Any = None
        self.signal: Any = None

    def describe(self):
        if self.algorithm is not None:
            return f"{self.name}: algorithm {self.algorithm!r} of allreduce"
        device = self.gpu.context.device
        return f"nvsym {nvsym.__version__}, {self.gpu.context.backend} backend on {device.name}"

    def prepare(self, nbytes, dtype):
        kind = SHMEMBuffer[dtype]
        count = max(1, -(-nbytes // dtype.itemsize))
        self.dest, self.source = kind(count), kind(count)
        self.signal = SHMEMBuffer[np.uint64].zeros(1)
        self.gpu.fill(self.source.unsafe_ptr(), count, dtype, self.me)
        self.gpu.wipe(self.dest.unsafe_ptr(), count * dtype.itemsize)

    def release(self):
        for buffer in (self.dest, self.source, self.signal):
            if buffer is not None:
                buffer.free()
        self.dest = self.source = self.signal = None

    def _slices(self, shape: Shape):
        return self.dest[0 : shape.count], self.source[0 : shape.count]

    def put(self, shape: Shape):
        dest, source = self._slices(shape)
        local = source if shape.local == "buffer" else pattern(shape.count, shape.dtype, self.me)
        put, put_signal, quiet, signal, pe = nvsym.put, nvsym.put_signal, nvsym.quiet, self.signal, self.right

        plain = PlainLoop("put(dest, local, pe); quiet()", put=put, quiet=quiet, dest=dest, local=local, pe=pe)
        signalled = PlainLoop(
            "put_signal(dest, local, signal, 1, pe); quiet()", put_signal=put_signal, quiet=quiet, dest=dest, local=local,
            signal=signal, pe=pe,
        )  # fmt: skip
        return [
            self._case(
                signalled if shape.signal else plain, variant="put_signal" if shape.signal else "",
                at=dest.unsafe_ptr(), shape=shape, expected=("pattern", self.left),
            )
        ]  # fmt: skip

    def get(self, shape: Shape):
        dest, source = self._slices(shape)
        if shape.local == "buffer":
            call = PlainLoop("get(dest, source, pe)", get=nvsym.get, dest=dest, source=source, pe=self.right)
            return [self._case(call, at=dest.unsafe_ptr(), shape=shape, expected=("pattern", self.right))]
        array = np.zeros(shape.count, shape.dtype)
        wanted = pattern(shape.count, shape.dtype, self.right)
        call = PlainLoop("get(array, source, pe)", get=nvsym.get, array=array, source=source, pe=self.right)
        return [self._case(call, check=lambda: bool((array == wanted).all()))]

    def latency(self, shape: Shape):
        dest, source = self._slices(shape)
        signal, other = self.signal, self.other
        put_signal, wait = nvsym.put_signal, nvsym.signal_wait_until
        if other >= self.n:
            return [self._case(lambda: None, variant="put_signal", steps=2)]
        self.count = 0

        def lead():
            self.count += 1
            put_signal(dest, source, signal, self.count, other)
            wait(signal, "ge", self.count)

        def follow():
            self.count += 1
            wait(signal, "ge", self.count)
            put_signal(dest, source, signal, self.count, other)

        def close():
            self.gpu.synchronize()
            signal.fill(0)
            self.gpu.synchronize()

        return [
            self._case(
                follow if self.me & 1 else lead, variant="put_signal", at=dest.unsafe_ptr(), shape=shape,
                expected=("pattern", other), steps=2, close=close,
            )
        ]  # fmt: skip

    def allreduce(self, shape: Shape):
        dest, source = self._slices(shape)
        algorithm = self.algorithm or shape.algorithm
        call = PlainLoop(
            "allreduce(dest, source, op, algorithm=algorithm)", allreduce=nvsym.allreduce, dest=dest,
            source=dest if shape.in_place else source, op=shape.op, algorithm=algorithm,
        )  # fmt: skip
        variant = "" if algorithm == "auto" else algorithm
        return [self._allreduce_case(call, shape, dest.unsafe_ptr(), source.unsafe_ptr(), variant=variant)]

    def collective(self, name, shape: Shape):
        dest_count, source_count = operands(name, shape.count, self.n)
        dest, source = self.dest[0:dest_count], self.source[0:source_count]
        more = {"broadcast": ", 0", "reducescatter": ", op"}.get(name, "")
        call = PlainLoop(
            f"{name}(dest, source{more})", dest=dest, source=source, op=shape.op, **{name: getattr(nvsym, name)}
        )
        return [self._collective_case(call, name, shape, dest.unsafe_ptr())]

    def barrier(self, shape: Shape):
        return [self._case(PlainLoop("barrier_all()", barrier_all=nvsym.barrier_all))]

    def atomic(self, name, shape: Shape):
        target = self.dest[0:1]
        arguments = {"fetch": (self.right,), "inc": (self.right,), "compare_swap": (0, 1, self.right)}.get(
            name, (1, self.right)
        )

        def check():
            return bool(target.to_numpy()[0] == {"fetch": 0, "and": 0}.get(name, 1))

        call = partial(getattr(nvsym, f"atomic_{name}"), target, *arguments)
        return [self._case(call, check=check, reset=lambda: target.fill(0))]

    def copy(self, kind, direction, shape: Shape):
        device = self.dest[0 : shape.count]
        host: Any
        if kind == "pinned":
            host = self.gpu.context.enqueue_create_host_buffer(shape.dtype, shape.count)
        else:
            host = np.empty(shape.count, shape.dtype)
        if direction == "to GPU":
            host[:] = pattern(shape.count, shape.dtype, self.me)
            call = partial(device.enqueue_copy_from, host)
            return [self._case(call, at=device.unsafe_ptr(), shape=shape, expected=("pattern", self.me))]
        device = self.source[0 : shape.count]
        host.view(np.uint8)[:] = 0x55
        wanted = pattern(shape.count, shape.dtype, self.me)
        call = partial(device.enqueue_copy_to, host)
        return [self._case(call, check=lambda: bool(np.array_equal(host, wanted)))]

    def overhead(self, name, shape: Shape):
        me, pe = self.me, self.right
        dest, source = self._slices(shape)
        kind = SHMEMBuffer[shape.dtype]
        texts = {
            "my_pe": "my_pe()",
            "n_pes": "n_pes()",
            "slice": "dest[0:1]",
            "put": "put(dest, source, pe)",
            "get": "get(dest, source, pe)",
            "put_signal": "put_signal(dest, source, signal, 1, pe)",
            "signal_op": "signal_op(signal, 1, pe)",
            "quiet": "quiet()",
            "barrier_all": "barrier_all()",
            "reduce by NVSHMEM": "allreduce(dest, source, algorithm='nvshmem')",
            "allreduce": "allreduce(dest, source)",
            "allocate + free": "kind(count).free()",
        }
        functions = {
            one: getattr(nvsym, one)
            for one in ("my_pe", "n_pes", "put", "get", "put_signal", "signal_op", "quiet", "barrier_all", "allreduce")
        }
        call = PlainLoop(
            texts[name], dest=dest, source=source, signal=self.signal, pe=pe, kind=kind, count=shape.count, **functions
        )
        check = {"my_pe": lambda: nvsym.my_pe() == me, "n_pes": lambda: nvsym.n_pes() == self.n}.get(name)
        return [self._case(call, check=check)]
