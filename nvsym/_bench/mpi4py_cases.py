# SPDX-License-Identifier: Apache-2.0
"""The same operations in mpi4py, each in the ways that can be its fastest.

Data are NumPy arrays with their MPI datatype given, which spares mpi4py the search for it. One-sided operations go to
windows that are locked for all PEs once, from `Win.Allocate` and from `Win.Allocate_shared`, and are completed at the
target by `Flush`.
"""

from functools import partial

import numpy as np

from .data import Shape, arrived, operands, pattern, reduced, same
from .sampling import Case, PeerUnavailableError

__all__ = ["Mpi4pyCases", "mpi_library"]


class Mpi4pyCases:
    """Makes the cases; each method is collective and returns the ways of the operation to be tried.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The PEs of the job.
    several_nodes : bool
        Then there is no window of shared memory over all of them.
    """

    name = "mpi4py"

    def __init__(self, comm, several_nodes):
        from mpi4py import MPI

        self.MPI = MPI
        self.comm = comm
        self.me = comm.Get_rank()
        self.n = comm.Get_size()
        self.right = (self.me + 1) % self.n
        self.left = (self.me - 1) % self.n
        vendor, version = MPI.get_vendor()
        self.open_mpi_4 = vendor == "Open MPI" and version < (5,)
        self.windows = {"Win.Allocate": MPI.Win.Allocate}
        if not several_nodes:
            self.windows["Win.Allocate_shared"] = MPI.Win.Allocate_shared

    def describe(self):
        import mpi4py

        return f"mpi4py {mpi4py.__version__} with {mpi_library()}"

    def _datatype(self, dtype):
        if dtype.isbuiltin == 1:
            return self.MPI.Datatype.fromcode(dtype.char)
        raise PeerUnavailableError(f"mpi4py: MPI has no datatype for {dtype.name}")

    def _case(self, variant, call, check=lambda: True, close=lambda: None, steps=1):
        return Case(self.name, variant, call, self.comm.Barrier, check, close, steps)

    def _window(self, make, nbytes):
        window = make(max(nbytes, 1), 1, comm=self.comm)
        window.Lock_all(self.MPI.MODE_NOCHECK)
        return window

    def _free(self, window):
        def close():
            window.Unlock_all()
            window.Free()

        return close

    def _memory(self, window, dtype):
        return np.frombuffer(window.tomemory(), dtype)

    def put(self, shape: Shape):
        """`Put` and `Flush` to the next PE."""
        if shape.signal:
            raise PeerUnavailableError("mpi4py: MPI has no put with signal")
        cases = []
        for variant, make in self.windows.items():
            window = self._window(make, shape.nbytes)
            source = [pattern(shape.count, shape.dtype, self.me), self._bytes_or_type(shape.dtype)]
            cases.append(self._put_case(window, variant, source, shape))
        return cases

    def _bytes_or_type(self, dtype):
        try:
            return self._datatype(dtype)
        except PeerUnavailableError:
            return self.MPI.BYTE  # what is only moved needs no type

    def _put_case(self, window, variant, source, shape):
        put, flush, pe = window.Put, window.Flush, self.right

        def call():
            put(source, pe)
            flush(pe)

        def check():
            window.Sync()
            return same(self._memory(window, shape.dtype)[: shape.count], pattern(shape.count, shape.dtype, self.left))

        return self._case(variant, call, check, self._free(window))

    def get(self, shape: Shape):
        """`Get` and `Flush` from the next PE."""
        cases = []
        for variant, make in self.windows.items():
            window = self._window(make, shape.nbytes)
            self._memory(window, shape.dtype)[: shape.count] = pattern(shape.count, shape.dtype, self.me)
            window.Sync()
            self.comm.Barrier()
            cases.append(self._get_case(window, variant, shape))
        return cases

    def _get_case(self, window, variant, shape):
        array = np.zeros(shape.count, shape.dtype)
        dest = [array, self._bytes_or_type(shape.dtype)]
        get, flush, pe = window.Get, window.Flush, self.right

        def call():
            get(dest, pe)
            flush(pe)

        return self._case(
            variant, call, lambda: same(array, pattern(shape.count, shape.dtype, self.right)), self._free(window)
        )

    def latency(self, shape: Shape):
        """A message and its answer between two neighbours: `Send` and `Recv`."""
        received = np.zeros(shape.count, shape.dtype)
        datatype = self._bytes_or_type(shape.dtype)
        out, into = [pattern(shape.count, shape.dtype, self.me), datatype], [received, datatype]
        send, receive, other = self.comm.Send, self.comm.Recv, self.me ^ 1

        def lead():
            send(out, other)
            receive(into, other)

        def follow():
            receive(into, other)
            send(out, other)

        def check():
            return other >= self.n or same(received, pattern(shape.count, shape.dtype, other))

        call = (lambda: None) if other >= self.n else (follow if self.me & 1 else lead)
        return [self._case("Send/Recv", call, check, steps=2)]

    def _op(self, op):
        names = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "and": "BAND", "or": "BOR", "xor": "BXOR"}
        return getattr(self.MPI, names[op])

    def allreduce(self, shape: Shape):
        """`Allreduce` of NumPy arrays."""
        datatype = self._datatype(shape.dtype)
        if shape.dtype.kind == "b":
            raise PeerUnavailableError("mpi4py: MPI reduces bool by other operators")
        result = np.zeros(shape.count, shape.dtype)
        source = [pattern(shape.count, shape.dtype, self.me), datatype]
        call = partial(self.comm.Allreduce, source, [result, datatype], self._op(shape.op))
        return [self._case("", call, lambda: same(result, reduced(shape.count, shape.dtype, shape.op, self.n)))]

    def collective(self, name, shape: Shape):
        """`Bcast` (in place), `Allgather`, `Alltoall` and `Reduce_scatter_block` of NumPy arrays."""
        datatype = self._bytes_or_type(shape.dtype) if name != "reducescatter" else self._datatype(shape.dtype)
        if name == "reducescatter" and shape.dtype.kind == "b":
            raise PeerUnavailableError("mpi4py: MPI reduces bool by other operators")
        dest_count, source_count = operands(name, shape.count, self.n)
        dest, source = np.zeros(dest_count, shape.dtype), pattern(source_count, shape.dtype, self.me)
        out, into = [source, datatype], [dest, datatype]
        if name == "broadcast":
            if self.me == 0:
                dest[:] = source
            call = partial(self.comm.Bcast, into, 0)
        elif name == "fcollect":
            call = partial(self.comm.Allgather, out, into)
        elif name == "alltoall":
            call = partial(self.comm.Alltoall, out, into)
        else:
            call = partial(self.comm.Reduce_scatter_block, out, into, self._op(shape.op))
        return [self._case("", call, lambda: arrived(name, shape, self.me, self.n, dest))]

    def barrier(self, shape: Shape):
        """`Barrier`."""
        return [self._case("", self.comm.Barrier)]

    def atomic(self, name, shape: Shape):
        """The operation of MPI-3 that does the same, and `Flush`."""
        self._datatype(shape.dtype)
        windows = dict(self.windows)
        if name == "compare_swap" and self.open_mpi_4:
            del windows["Win.Allocate"]  # there 8 bytes end the process (seen in Open MPI 4.1.4)
        if not windows:
            raise PeerUnavailableError("mpi4py: Compare_and_swap crashes in Open MPI 4")
        cases = []
        for variant, make in windows.items():
            window = self._window(make, shape.nbytes)
            self._memory(window, shape.dtype)[:1] = 0
            window.Sync()
            self.comm.Barrier()
            cases.append(self._atomic_case(window, variant, name, shape, self.right))
        return cases

    def _atomic_case(self, window, variant, name, shape, pe):
        MPI = self.MPI
        datatype = self._datatype(shape.dtype)
        operand = [np.ones(1, shape.dtype), datatype]
        old = [np.zeros(1, shape.dtype), datatype]
        zero = [np.zeros(1, shape.dtype), datatype]
        flush = window.Flush
        fetching = {"fetch": MPI.NO_OP, "fetch_add": MPI.SUM, "swap": MPI.REPLACE}
        storing = {"set": MPI.REPLACE, "add": MPI.SUM, "inc": MPI.SUM, "and": MPI.BAND, "or": MPI.BOR, "xor": MPI.BXOR}
        if name == "compare_swap":
            compare = window.Compare_and_swap

            def call():
                compare(operand, zero, old, pe, 0)
                flush(pe)

        elif name in fetching:
            fetch, op = window.Fetch_and_op, fetching[name]

            def call():
                fetch(operand, old, pe, 0, op)
                flush(pe)

        else:
            accumulate, store_op = window.Accumulate, storing[name]

            def call():
                accumulate(operand, pe, 0, store_op)
                flush(pe)

        def check():
            window.Sync()
            return bool(self._memory(window, shape.dtype)[0] == {"fetch": 0, "and": 0}.get(name, 1))

        return self._case(variant, call, check, self._free(window))

    def copy(self, kind, direction, shape: Shape):
        """MPI is no way to copy within a process."""
        raise PeerUnavailableError("mpi4py: copies within a process are compared with NumPy's")

    def overhead(self, name, shape: Shape):
        """What comes closest to a call that nvsym makes on its own PE."""
        if name == "slice":
            raise PeerUnavailableError("mpi4py: a slice is NumPy's own")
        if name == "my_pe":
            return [self._case("Get_rank", self.comm.Get_rank)]
        if name == "n_pes":
            return [self._case("Get_size", self.comm.Get_size)]
        if name == "allocate + free":
            allocate, comm, nbytes = self.MPI.Win.Allocate, self.comm, shape.nbytes
            return [self._case("Win.Allocate", lambda: allocate(nbytes, 1, comm=comm).Free())]
        cases = []
        for variant, make in self.windows.items():
            window = self._window(make, max(shape.nbytes, 8))
            array = np.zeros(shape.count, shape.dtype)
            cases.append(self._case(variant, self._own_call(name, window, array), close=self._free(window)))
        return cases

    def _own_call(self, name, window, array):
        pe, spec = self.me, [array, self._bytes_or_type(array.dtype)]
        put, get, flush, fetch, add = window.Put, window.Get, window.Flush, window.Fetch_and_op, self.MPI.SUM
        integers = [[np.ones(1, np.int64), self.MPI.INT64_T], [np.ones(1, np.int64), self.MPI.INT64_T]]

        def put_flush():
            put(spec, pe)
            flush(pe)

        def get_flush():
            get(spec, pe)
            flush(pe)

        def fetch_add():
            fetch(*integers, pe, 0, add)
            flush(pe)

        return {"quiet": window.Flush_all, "put + quiet": put_flush, "get": get_flush, "atomic_fetch_add": fetch_add}[
            name
        ]


def mpi_library():
    """The MPI that mpi4py has loaded, in words."""
    from mpi4py import MPI

    return " ".join(MPI.Get_library_version().splitlines()[0].strip("\0").split())
