# SPDX-License-Identifier: Apache-2.0
"""What the cases of every library on GPUs have in common."""

from .data import Shape, arriving
from .gpu import Gpu
from .sampling import Case, PeerUnavailableError

__all__ = ["GpuCases"]


class GpuCases:
    """A library's cases on GPUs.

    `prepare` and `release` are collective; between them the methods that are named after operations return the ways of an
    operation to be tried, or raise `PeerUnavailableError` with the reason. They enqueue on the stream of `gpu`.

    Parameters
    ----------
    gpu : Gpu
    """

    name = ""

    def __init__(self, gpu: Gpu):
        self.gpu = gpu
        self.me, self.n = gpu.me, gpu.n
        self.right = (self.me + 1) % self.n
        self.left = (self.me - 1) % self.n
        self.other = self.me ^ 1  # the partner of a ping-pong; the last of an odd number has none

    def describe(self) -> str:
        """The library and its version, in a line."""
        raise NotImplementedError

    def prepare(self, nbytes, dtype):
        """Make memory for rows of up to so many bytes."""

    def release(self):
        """Give it back."""

    def close(self):
        """End the library's part of the job."""

    def _missing(self, why):
        raise PeerUnavailableError(f"{self.name}: {why}")

    def _case(self, call, *, variant="", at=0, shape=None, expected=(), check=None, reset=None, **more):
        """A case that leaves `expected` of `data.expected_bytes` at an address."""
        if shape is not None:
            if reset is None:
                reset = lambda: self.gpu.wipe(at, shape.nbytes)  # noqa: E731
            if check is None:
                check = lambda: self.gpu.matches(at, shape.count, shape.dtype, *expected)  # noqa: E731
        return Case(
            self.name, variant, call, check=check or (lambda: True), reset=reset or (lambda: None),
            loop=getattr(call, "loop", None), **more,
        )  # fmt: skip

    def _allreduce_case(self, call, shape, dest, source, **more):
        """A case of allreduce between addresses; in place, where the shape says so, each time with the operand of `source`."""
        if shape.in_place:
            more |= {"in_place": True, "reset": lambda: self.gpu.copy(dest, source, shape.nbytes)}
        return self._case(call, at=dest, shape=shape, expected=self._reduced(shape), **more)

    def _collective_case(self, call, name, shape, at, **more):
        """A case of one of `COLLECTIVES` that leaves its result at an address."""
        item, parts = shape.dtype.itemsize, arriving(name, shape, self.me, self.n)

        def check():
            return all(
                self.gpu.matches(at + first * item, count, shape.dtype, *expected) for first, count, expected in parts
            )

        size = sum(count for _, count, _ in parts) * item
        more.setdefault("reset", lambda: self.gpu.wipe(at, size))
        return self._case(call, check=check, **more)

    def _reduced(self, shape: Shape):
        return ("reduced", shape.op, self.n)

    # What a library does not have is not compared.

    def put(self, shape: Shape):
        """A put to the next PE, complete there."""
        self._missing("no put")

    def get(self, shape: Shape):
        """A get from the next PE."""
        self._missing("no get")

    def latency(self, shape: Shape):
        """A message and its answer between two neighbours."""
        self._missing("no message with notification")

    def allreduce(self, shape: Shape):
        """An allreduce over all PEs."""
        self._missing("no allreduce")

    def collective(self, name, shape: Shape):
        """One of `COLLECTIVES`; the broadcast from PE 0."""
        self._missing(f"no {name}")

    def barrier(self, shape: Shape):
        """A barrier of all PEs."""
        self._missing("no barrier")

    def atomic(self, name, shape: Shape):
        """An atomic operation on an element of the next PE."""
        self._missing("no atomic operations from the host")

    def copy(self, kind, direction, shape: Shape):
        """A copy between host and GPU."""
        self._missing("no copies between host and GPU")

    def overhead(self, name, shape: Shape):
        """What a call costs the caller."""
        self._missing(f"no {name}")
