# SPDX-License-Identifier: Apache-2.0
"""The same operations in shmem4py, where the job was started by an OpenSHMEM's launcher (``oshrun``)."""

from functools import partial

import numpy as np

from .data import Shape, arrived, operands, pattern, reduced, same
from .mpi4py_cases import mpi_library
from .sampling import Case, PeerUnavailableError

__all__ = ["Shmem4pyCases"]


class Shmem4pyCases:
    """Makes the cases; each method is collective and returns the ways of the operation to be tried.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The PEs of the job.
    """

    name = "shmem4py"

    def __init__(self, comm):
        library = mpi_library()
        if not library.startswith("Open MPI"):
            raise PeerUnavailableError(
                f"shmem4py: its OpenSHMEM (Open MPI's) and the MPI of this job ({library}) cannot be in one process; "
                "start the job by oshrun, with mpi4py on Open MPI (MPI4PY_LIBMPI)"
            )
        try:
            from shmem4py import shmem
        except ImportError as error:
            raise PeerUnavailableError(f"shmem4py: {error}; pip install shmem4py where oshcc is") from None
        if shmem.my_pe() != comm.Get_rank() or shmem.n_pes() != comm.Get_size():
            raise PeerUnavailableError("shmem4py: its PEs are not those of this job; start the job by oshrun")
        self.shmem = shmem
        self.me = shmem.my_pe()
        self.n = shmem.n_pes()
        self.right = (self.me + 1) % self.n
        self.left = (self.me - 1) % self.n

    def describe(self):
        import shmem4py

        version = ".".join(map(str, self.shmem.info_get_version()))
        return f"shmem4py {shmem4py.__version__} with {self.shmem.info_get_name()} (OpenSHMEM {version})"

    def _case(self, variant, call, arrays, check=lambda: True, steps=1):
        def close():
            for array in arrays:
                self.shmem.del_array(array)

        return Case(self.name, variant, call, self.shmem.barrier_all, check, close, steps)

    def _arrays(self, shape: Shape):
        if shape.dtype.char not in "bBhHiIlLqQfd":
            raise PeerUnavailableError(f"shmem4py: not compared for {shape.dtype.name}")
        dest = self.shmem.zeros(shape.count, shape.dtype)
        source = self.shmem.empty(shape.count, shape.dtype)
        source[:] = pattern(shape.count, shape.dtype, self.me)
        self.shmem.barrier_all()
        return dest, source

    def put(self, shape: Shape):
        """`put` and `quiet` to the next PE."""
        if shape.signal:
            raise PeerUnavailableError("shmem4py: Open MPI 4's OpenSHMEM has no put with signal")
        dest, source = self._arrays(shape)
        put, quiet, pe = self.shmem.put, self.shmem.quiet, self.right

        def call():
            put(dest, source, pe)
            quiet()

        return [self._case("", call, [dest, source], lambda: same(dest, pattern(shape.count, shape.dtype, self.left)))]

    def get(self, shape: Shape):
        """`get` from the next PE."""
        dest, source = self._arrays(shape)
        call = partial(self.shmem.get, dest, source, self.right)
        return [self._case("", call, [dest, source], lambda: same(dest, pattern(shape.count, shape.dtype, self.right)))]

    def latency(self, shape: Shape):
        """A message and its answer between two neighbours: put, fence, a flag, and a wait for it."""
        dest, source = self._arrays(shape)
        flag = self.shmem.zeros(1, np.int64)
        value = np.zeros(1, np.int64)
        put, fence, wait, ge = self.shmem.put, self.shmem.fence, self.shmem.wait_until, self.shmem.CMP.GE
        other = self.me ^ 1

        def send():
            put(dest, source, other)
            fence()
            put(flag, value, other)

        def lead():
            value[0] += 1
            send()
            wait(flag, ge, value[0])

        def follow():
            value[0] += 1
            wait(flag, ge, value[0])
            send()

        def check():
            return other >= self.n or same(dest, pattern(shape.count, shape.dtype, other))

        call = (lambda: None) if other >= self.n else (follow if self.me & 1 else lead)
        return [self._case("put, fence, put", call, [dest, source, flag], check, steps=2)]

    def allreduce(self, shape: Shape):
        """The reduction of that operator."""
        dest, source = self._arrays(shape)
        call = partial(getattr(self.shmem, f"{shape.op}_reduce"), dest, source)
        return [
            self._case(
                "", call, [dest, source], lambda: same(dest, reduced(shape.count, shape.dtype, shape.op, self.n))
            )
        ]

    def collective(self, name, shape: Shape):
        """The collective of the same name; in a broadcast the root's dest is not written, so it begins as what is expected."""
        if name == "reducescatter":
            raise PeerUnavailableError("shmem4py: OpenSHMEM has no reduce-scatter")
        dest, source = self._arrays(shape)
        dest_count, source_count = operands(name, shape.count, self.n)
        if name == "broadcast" and self.me == 0:
            dest[:] = source
        more = (0,) if name == "broadcast" else ()
        call = partial(getattr(self.shmem, name), dest[:dest_count], source[:source_count], *more)
        return [self._case("", call, [dest, source], lambda: arrived(name, shape, self.me, self.n, dest))]

    def barrier(self, shape: Shape):
        """`barrier_all`."""
        return [self._case("", self.shmem.barrier_all, [])]

    def atomic(self, name, shape: Shape):
        """The atomic operation of the same name."""
        target = self.shmem.zeros(1, shape.dtype)
        pe = self.right
        arguments = {"fetch": (pe,), "inc": (pe,), "compare_swap": (0, 1, pe)}.get(name, (1, pe))
        call = partial(getattr(self.shmem, f"atomic_{name}"), target, *arguments)
        return [self._case("", call, [target], lambda: bool(target[0] == {"fetch": 0, "and": 0}.get(name, 1)))]

    def copy(self, kind, direction, shape: Shape):
        """Its buffers are NumPy arrays."""
        raise PeerUnavailableError("shmem4py: copies within a process are compared with NumPy's")

    def overhead(self, name, shape: Shape):
        """The same call on the PE itself."""
        shmem, me = self.shmem, self.me
        plain = {"my_pe": shmem.my_pe, "n_pes": shmem.n_pes, "quiet": shmem.quiet}
        if name in plain:
            return [self._case("", plain[name], [])]
        if name == "allocate + free":
            return [self._case("", lambda: shmem.del_array(shmem.empty(shape.count, shape.dtype)), [])]
        if name == "slice":
            raise PeerUnavailableError("shmem4py: a slice is NumPy's own")
        dest, source = self._arrays(shape)
        integer = shmem.zeros(1, np.int64)

        def put_quiet():
            shmem.put(dest, source, me)
            shmem.quiet()

        call = {
            "put + quiet": put_quiet,
            "get": partial(shmem.get, dest, source, me),
            "atomic_fetch_add": partial(shmem.atomic_fetch_add, integer, 1, me),
        }[name]
        return [self._case("", call, [dest, source, integer])]
