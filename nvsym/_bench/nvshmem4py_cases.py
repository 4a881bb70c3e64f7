# SPDX-License-Identifier: Apache-2.0
"""The same operations in nvshmem4py (``nvshmem.core``), on the NVSHMEM that nvsym has initialised."""

from typing import Any

from ..dtypes import as_dtype
from .data import Shape, operands
from .gpu_cases import GpuCases
from .sampling import PeerUnavailableError, PlainLoop

__all__ = ["Nvshmem4pyCases"]

_WORLD = 0  # NVSHMEM_TEAM_WORLD
_LARGEST = 256 << 20  # bytes; nvshmem_malloc ends the process where memory runs out


class Nvshmem4pyCases(GpuCases):
    """Makes the cases of nvshmem4py.

    It is told that NVSHMEM is initialised, as it is: there is one NVSHMEM in a process, and one heap.
    """

    name = "nvshmem4py"

    def __init__(self, gpu):
        super().__init__(gpu)
        try:
            import nvshmem
            import nvshmem.core as core
            from cuda.core import Device, Stream
            from nvshmem.core import _internal_tracking as tracking
        except ImportError as error:
            raise PeerUnavailableError(f"nvshmem4py: {error}; pip install nvshmem4py-cu13") from None
        self.core, self.tracking = core, tracking
        self.version = nvshmem.__version__
        device = Device(gpu.ordinal)
        device.set_current()
        tracking._cached_device["device"] = device
        tracking._is_initialized["status"] = tracking.InternalInitStatus.INITIALIZED
        self.stream = Stream.from_handle(gpu.stream)
        self.buffers: list[Any] = []
        self.arrays: list[Any] = []
        self.why_no_arrays: str | None = None

    def describe(self):
        return f"nvshmem4py {self.version}: nvshmem.core"

    def prepare(self, nbytes, dtype):
        if nbytes > _LARGEST:
            nbytes = _LARGEST
        self.largest = nbytes
        self.dtype = dtype
        self.signal = self.core.buffer(64)
        self.gpu.fill(int(self.signal.handle), 8, as_dtype("uint64").numpy, 0)

    def release(self):
        self._drop()
        self.core.free(self.signal)

    def close(self):
        self.tracking._is_initialized["status"] = self.tracking.InternalInitStatus.DE_INITIALIZED

    def _drop(self):
        self.gpu.synchronize()
        for buffer in self.buffers:
            self.core.free(buffer)
        for array in self.arrays:
            self.core.free_array(array)
        self.buffers, self.arrays = [], []

    def _fits(self, shape):
        if shape.nbytes > self.largest:
            self._missing(f"measured up to {self.largest} bytes")

    def _pair(self, shape):
        """Two buffers of the size: a call always moves whole ones."""
        self._fits(shape)
        self._drop()
        self.buffers = [self.core.buffer(max(shape.nbytes, 1)) for _ in range(2)]
        dest, source = self.buffers
        self.gpu.fill(int(source.handle), shape.count, shape.dtype, self.me)
        return dest, source

    def _array_pair(self, shape, counts=None):
        """Two arrays, of the size or of so many elements: a call always takes whole ones."""
        self._fits(shape)
        name = as_dtype(shape.dtype).name
        if name not in ("float16", "float32", "float64") and shape.dtype.kind not in "iu":
            self._missing(f"it reduces CuPy arrays, and CuPy has no {name}")
        self._drop()
        self.arrays = [self.core.array((count,), dtype=name) for count in counts or 2 * [shape.count]]
        dest, source = self.arrays
        self.gpu.fill(int(source.data.ptr), source.size, shape.dtype, self.me)
        return dest, source

    def put(self, shape: Shape):
        dest, source = self._pair(shape)
        core, pe, stream, signal = self.core, self.right, self.stream, self.signal
        put, put_signal, quiet, as_set = core.put, core.put_signal, core.quiet, core.SignalOp.SIGNAL_SET

        plain = PlainLoop(
            "put(dest, source, pe, stream); quiet(stream)",
            put=put,
            quiet=quiet,
            dest=dest,
            source=source,
            pe=pe,
            stream=stream,
        )
        signalled = PlainLoop(
            "put_signal(dest, source, signal, 1, as_set, pe, stream); quiet(stream)", put_signal=put_signal, quiet=quiet,
            dest=dest, source=source, signal=signal, as_set=as_set, pe=pe, stream=stream,
        )  # fmt: skip
        return [
            self._case(
                signalled if shape.signal else plain, variant="Buffer", at=int(dest.handle), shape=shape,
                expected=("pattern", self.left),
            )
        ]  # fmt: skip

    def get(self, shape: Shape):
        dest, source = self._pair(shape)
        get, pe, stream = self.core.get, self.right, self.stream
        return [
            self._case(
                PlainLoop("get(dest, source, pe, stream)", get=get, dest=dest, source=source, pe=pe, stream=stream), variant="Buffer", at=int(dest.handle), shape=shape,
                expected=("pattern", self.right),
            )
        ]  # fmt: skip

    def allreduce(self, shape: Shape):
        if shape.op not in ("sum", "min", "max"):
            self._missing("it reduces by sum, min and max only")
        dest, source = self._array_pair(shape)
        call = PlainLoop(
            "reduce(world, dest, source, op, stream)", reduce=self.core.reduce, world=_WORLD, dest=dest,
            source=dest if shape.in_place else source, op=shape.op, stream=self.stream,
        )  # fmt: skip
        return [
            self._allreduce_case(call, shape, int(dest.data.ptr), int(source.data.ptr), variant="CuPy array")
        ]  # fmt: skip

    def collective(self, name, shape: Shape):
        if name == "reducescatter" and shape.op not in ("sum", "min", "max"):
            self._missing("it reduces by sum, min and max only")
        dest, source = self._array_pair(shape, operands(name, shape.count, self.n))
        more = {"broadcast": "0, ", "reducescatter": "op, "}.get(name, "")
        call = PlainLoop(
            f"{name}(world, dest, source, {more}stream)", world=_WORLD, dest=dest, source=source, op=shape.op,
            stream=self.stream, **{name: getattr(self.core, name)},
        )  # fmt: skip
        return [self._collective_case(call, name, shape, int(dest.data.ptr), variant="CuPy array")]

    def barrier(self, shape: Shape):
        barrier, stream = self.core.barrier_all, self.stream
        return [self._case(PlainLoop("barrier(stream)", barrier=barrier, stream=stream))]

    def overhead(self, name, shape: Shape):
        core, pe, stream, signal = self.core, self.right, self.stream, self.signal
        as_set = core.SignalOp.SIGNAL_SET
        if name in ("put", "get", "put_signal"):
            dest, source = self._pair(shape)
            texts = {
                "put": "put(dest, source, pe, stream)",
                "get": "get(dest, source, pe, stream)",
                "put_signal": "put_signal(dest, source, signal, 1, as_set, pe, stream)",
            }
            call = PlainLoop(
                texts[name], put=core.put, get=core.get, put_signal=core.put_signal, dest=dest, source=source, pe=pe,
                stream=stream, signal=signal, as_set=as_set,
            )  # fmt: skip
            return [self._case(call, variant="Buffer")]
        if name in ("allreduce", "reduce by NVSHMEM"):
            dest, source = self._array_pair(shape)
            call = PlainLoop(
                "reduce(world, dest, source, 'sum', stream)", reduce=core.reduce, world=_WORLD, dest=dest, source=source,
                stream=stream,
            )  # fmt: skip
            return [self._case(call, variant="CuPy array")]
        texts = {
            "signal_op": "signal_op(signal, 1, as_set, pe, stream)",
            "quiet": "quiet(stream)",
            "barrier_all": "barrier_all(stream)",
        }
        if name in texts:
            call = PlainLoop(
                texts[name], signal_op=core.signal_op, quiet=core.quiet, barrier_all=core.barrier_all, signal=signal,
                as_set=as_set, pe=pe, stream=stream,
            )  # fmt: skip
            return [self._case(call)]
        return super().overhead(name, shape)
