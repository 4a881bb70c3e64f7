# SPDX-License-Identifier: Apache-2.0
"""The operations of nvsym that are measured."""

from functools import partial
from typing import Any

import numpy as np

import nvsym

from .data import Shape, arrived, operands, pattern, reduced, same
from .sampling import Case

__all__ = ["NvsymCases"]

# Element types, operators and algorithms come from the command line, which a type checker cannot follow.
SHMEMBuffer: Any = nvsym.SHMEMBuffer
allreduce: Any = nvsym.allreduce


class NvsymCases:
    """Makes the cases; each method is collective and returns the ways of the operation to be tried.

    Parameters
    ----------
    name : str
        What the table calls it.
    algorithm : str, optional
        Of allreduce, in place of the one that is asked for; it is then all that is measured.
    """

    def __init__(self, name="nvsym", algorithm=None):
        self.name = name
        self.algorithm = algorithm
        self.me = nvsym.my_pe()
        self.n = nvsym.n_pes()
        self.right = (self.me + 1) % self.n
        self.left = (self.me - 1) % self.n

    def describe(self):
        if self.algorithm is not None:
            return f"{self.name}: algorithm {self.algorithm!r} of allreduce"
        return f"nvsym {nvsym.__version__}, {nvsym.context().backend} backend"

    def _case(self, variant, call, buffers, check=lambda: True, steps=1):
        def close():
            for buffer in buffers:
                buffer.free()

        return Case(self.name, variant, call, nvsym.barrier_all, check, close, steps)

    def _buffers(self, shape: Shape):
        kind = SHMEMBuffer[shape.dtype]
        source = kind.from_numpy(pattern(shape.count, shape.dtype, self.me))
        return kind.zeros(shape.count), source

    def put(self, shape: Shape):
        """A put to the next PE, complete there; with a signal behind it if the shape says so."""
        dest, source = self._buffers(shape)
        local = source if shape.local == "buffer" else pattern(shape.count, shape.dtype, self.me)
        signal = SHMEMBuffer[np.uint64].zeros(1)
        put, put_signal, quiet, pe = nvsym.put, nvsym.put_signal, nvsym.quiet, self.right

        def plain():
            put(dest, local, pe)
            quiet()

        def signalled():
            put_signal(dest, local, signal, 1, pe)
            quiet()

        def check():
            arrived = same(dest.to_numpy(), pattern(shape.count, shape.dtype, self.left))
            return arrived and (not shape.signal or int(signal.to_numpy()[0]) == 1)

        call = signalled if shape.signal else plain
        return [self._case("put_signal" if shape.signal else "", call, [dest, source, signal], check)]

    def get(self, shape: Shape):
        """A get from the next PE."""
        dest, source = self._buffers(shape)
        local = dest if shape.local == "buffer" else np.zeros(shape.count, shape.dtype)

        def check():
            found = local if isinstance(local, np.ndarray) else local.to_numpy()
            return same(found, pattern(shape.count, shape.dtype, self.right))

        return [self._case("", partial(nvsym.get, local, source, self.right), [dest, source], check)]

    def latency(self, shape: Shape):
        """A message and its answer between two neighbours: put_signal and signal_wait_until."""
        dest, source = self._buffers(shape)
        signal = SHMEMBuffer[np.uint64].zeros(1)
        put_signal, wait = nvsym.put_signal, nvsym.signal_wait_until
        other = self.me ^ 1
        count = 0

        def lead():
            nonlocal count
            count += 1
            put_signal(dest, source, signal, count, other)
            wait(signal, "ge", count)

        def follow():
            nonlocal count
            count += 1
            wait(signal, "ge", count)
            put_signal(dest, source, signal, count, other)

        def idle():
            pass

        def check():
            return other >= self.n or same(dest.to_numpy(), pattern(shape.count, shape.dtype, other))

        call = idle if other >= self.n else (follow if self.me & 1 else lead)
        return [self._case("put_signal", call, [dest, source, signal], check, steps=2)]

    def allreduce(self, shape: Shape):
        """An allreduce over all PEs."""
        dest, source = self._buffers(shape)

        def check():
            return same(dest.to_numpy(), reduced(shape.count, shape.dtype, shape.op, self.n))

        algorithm = self.algorithm or shape.algorithm
        call = partial(allreduce, dest, source, shape.op, algorithm=algorithm)
        return [self._case("" if algorithm == "auto" else algorithm, call, [dest, source], check)]

    def collective(self, name, shape: Shape):
        """One of `COLLECTIVES`; the broadcast from PE 0."""
        dest, source = self._buffers(shape)
        dest_count, source_count = operands(name, shape.count, self.n)
        to, what, function = dest[0:dest_count], source[0:source_count], getattr(nvsym, name)
        more = {"broadcast": (0,), "reducescatter": (shape.op,)}.get(name, ())
        call = partial(function, to, what, *more)
        return [
            self._case("", call, [dest, source], lambda: arrived(name, shape, self.me, self.n, dest.to_numpy()))
        ]  # fmt: skip

    def barrier(self, shape: Shape):
        """A barrier of all PEs."""
        return [self._case("", nvsym.barrier_all, [])]

    def atomic(self, name, shape: Shape):
        """An atomic operation on an element of the next PE."""
        target = SHMEMBuffer[shape.dtype].zeros(1)
        pe = self.right
        arguments = {"fetch": (pe,), "inc": (pe,), "compare_swap": (0, 1, pe)}.get(name, (1, pe))

        def check():
            expected = {"fetch": 0, "and": 0}.get(name, 1)
            return bool(target.to_numpy()[0] == expected)

        return [self._case("", partial(getattr(nvsym, f"atomic_{name}"), target, *arguments), [target], check)]

    def copy(self, kind, direction, shape: Shape):
        """A copy of an array to a buffer of this PE, or back."""
        dest, source = self._buffers(shape)
        array: Any = pattern(shape.count, shape.dtype, self.me)
        if kind == "HostBuffer":
            array = nvsym.HostBuffer(shape.dtype, shape.count)
            array[:] = pattern(shape.count, shape.dtype, self.me)
        if direction == "to buffer":
            call = partial(dest.enqueue_copy_from, array)
            return [self._case("", call, [dest, source], lambda: same(dest.to_numpy(), np.asarray(array)))]
        wanted = array.copy()
        array[:] = 0
        call = partial(source.enqueue_copy_to, array)
        return [self._case("", call, [dest, source], lambda: same(np.asarray(array), np.asarray(wanted)))]

    def overhead(self, name, shape: Shape):
        """What a call costs on this PE, without another one: puts and the like go to the PE itself."""
        kind, me = SHMEMBuffer[shape.dtype], self.me
        if name == "my_pe":
            return [self._case("", nvsym.my_pe, [], lambda: nvsym.my_pe() == me)]
        if name == "n_pes":
            return [self._case("", nvsym.n_pes, [], lambda: nvsym.n_pes() == self.n)]
        if name == "quiet":
            return [self._case("", nvsym.quiet, [])]
        if name == "allocate + free":
            return [self._case("", lambda: kind(shape.count).free(), [])]
        dest, source = self._buffers(shape)
        signal = SHMEMBuffer[np.int64].zeros(1)
        put, quiet = nvsym.put, nvsym.quiet

        def put_quiet():
            put(dest, source, me)
            quiet()

        call = {
            "slice": lambda: dest[0:1],
            "put + quiet": put_quiet,
            "get": partial(nvsym.get, dest, source, me),
            "atomic_fetch_add": partial(nvsym.atomic_fetch_add, signal, 1, me),
        }[name]
        return [self._case("", call, [dest, source, signal])]
