# SPDX-License-Identifier: Apache-2.0
"""Between nodes: one-sided operations by MPI-3 RMA on a window over the symmetric heaps, collectives by MPI.

mpi4py makes the calls, so no MPI is linked. Two rules follow from MPI:

- In a job of several nodes *all* atomics and signals go through the window, also between PEs of one node: MPI's atomics are
  atomic among themselves, not with those of the processor.
- A PE that waits has to call MPI now and then (`progress`), or the operations that others direct at it may stand still.

Reductions gather each PE's share of the data and reduce it here, in the order of the PEs, so that the result has the same
bits as within a node and every element type works.
"""

import time

import numpy as np

from ..backend import COLLECTIVE_NAMES
from ..errors import BackendError, CollectiveError, PeerExitedError

__all__ = ["InterNode", "TeamComm"]

CHUNK = 1 << 30  # bytes of one MPI call; counts are ints in MPI-3
GRACE = 5.0  # seconds of waiting before a PE that is finalizing counts as one that will not come

# The predefined MPI types; MPI's atomics take no others.
_ATOMIC_TYPES = {
    "int32": "INT32_T",
    "uint32": "UINT32_T",
    "int64": "INT64_T",
    "uint64": "UINT64_T",
    "float32": "FLOAT",
    "float64": "DOUBLE",
}

_RECORD = 5  # kind, arg, dtype, failed, count
_TEXT = 512


class InterNode:
    """The window of a job over several nodes.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        All PEs of the job; used by nobody else.
    address, nbytes : int
        This PE's region of its node's segment, which the window covers. The state of the PE is at its beginning.
    """

    def __init__(self, comm, address, nbytes):
        from mpi4py import MPI

        self.MPI = MPI
        self.comm = comm
        self.address = address
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise BackendError(
                "a job of several nodes needs an MPI that was initialised with MPI_THREAD_MULTIPLE "
                f"(level {MPI.Query_thread()} was provided)"
            )
        self.window = MPI.Win.Create(MPI.buffer.fromaddress(address, nbytes), 1, MPI.INFO_NULL, comm)
        model = self.window.Get_attr(MPI.WIN_MODEL)
        if model != MPI.WIN_UNIFIED:
            self.window.Free()
            raise BackendError(
                "the MPI keeps separate copies of window memory (MPI_WIN_SEPARATE); nvsym needs MPI_WIN_UNIFIED"
            )
        self.window.Lock_all(MPI.MODE_NOCHECK)
        self.dirty = False  # puts that are not yet complete at their targets

    def close(self):
        self.window.Unlock_all()
        self.window.Free()

    def progress(self):
        self.comm.Iprobe(self.MPI.ANY_SOURCE, self.MPI.ANY_TAG)

    def _spec(self, address, nbytes):
        return [self.MPI.buffer.fromaddress(address, nbytes), nbytes, self.MPI.BYTE]

    def put(self, dest, src, nbytes, pe):
        for start in range(0, nbytes, CHUNK):
            n = min(CHUNK, nbytes - start)
            self.window.Put(self._spec(src + start, n), pe, (dest - self.address + start, n, self.MPI.BYTE))
        self.window.Flush_local(pe)
        self.dirty = True

    def get(self, dest, src, nbytes, pe):
        for start in range(0, nbytes, CHUNK):
            n = min(CHUNK, nbytes - start)
            self.window.Get(self._spec(dest + start, n), pe, (src - self.address + start, n, self.MPI.BYTE))
        self.window.Flush(pe)

    def signal(self, sig, value, op, pe):
        """Everything put to `pe` before is complete there when the signal changes."""
        MPI = self.MPI
        self.window.Flush(pe)
        operand = np.array([value], np.uint64)
        self.window.Accumulate(
            [operand, 1, MPI.UINT64_T],
            pe,
            (sig - self.address, 1, MPI.UINT64_T),
            MPI.SUM if op == "add" else MPI.REPLACE,
        )
        self.window.Flush(pe)

    def quiet(self):
        if self.dirty:
            self.window.Flush_all()
            self.dirty = False

    def atomic(self, amo, numpy_dtype, dest, operand, cond, pe):
        """The old value of the element (for `set` and the like: whatever it was)."""
        MPI = self.MPI
        old = np.empty(1, numpy_dtype)
        datatype = getattr(MPI, _ATOMIC_TYPES[numpy_dtype.name])
        displacement = dest - self.address
        if amo == "compare_swap":
            self.window.Compare_and_swap(
                [operand, 1, datatype], [cond, 1, datatype], [old, 1, datatype], pe, displacement
            )
        else:
            ops = {
                "fetch": MPI.NO_OP,
                "set": MPI.REPLACE,
                "swap": MPI.REPLACE,
                "add": MPI.SUM,
                "and": MPI.BAND,
                "or": MPI.BOR,
                "xor": MPI.BXOR,
            }
            if amo == "fetch":
                operand = np.zeros(1, numpy_dtype)
            self.window.Fetch_and_op([operand, 1, datatype], [old, 1, datatype], pe, displacement, ops[amo])
        self.window.Flush(pe)
        return old

    def state(self, pe):
        """The state word of a PE on another node."""
        word = np.empty(1, np.uint32)
        self.window.Get([word, 4, self.MPI.BYTE], pe, (0, 4, self.MPI.BYTE))
        self.window.Flush(pe)
        return int(word[0])


class TeamComm:
    """The collectives of a team by MPI: where members are on several nodes, or `algorithm="mpi"` is asked for.

    Parameters
    ----------
    agreement : Agreement
        Over a communicator of the team that only its collectives use; its `wait` is how they wait.
    pes : list of int
        World numbers of the members.
    my_pe : int
        That of this one.
    state : callable
        Gives the state of a PE, of the number in the world.
    exiting : int
        The state of a PE that is finalizing.
    """

    def __init__(self, agreement, pes, my_pe, state, exiting):
        from mpi4py import MPI

        self.MPI = MPI
        self.agreement = agreement
        self.comm = agreement.comm
        self.pes = pes
        self.my_pe = my_pe
        self.state = state
        self.exiting = exiting
        self.started = 0.0
        self.looked = 0.0
        self.what = ""
        self.in_records = np.zeros((len(pes), _RECORD), np.int64)

    def watch(self):
        """Raise if a member that has not come is finalizing. Called now and then while waiting."""
        now = time.monotonic()
        if now - self.started < GRACE or now - self.looked < 1.0:
            return
        self.looked = now
        gone = [pe for pe in self.pes if pe != self.my_pe and self.state(pe) == self.exiting]
        if gone:
            raise PeerExitedError(f"{self.what}: PE {gone[0]} is finalizing and will not take part", gone)

    def wait(self, request):
        self.agreement.wait(request, self.what)

    def announce(self, kind, arg, dtype, count, failed=None, describe=None):
        """Exchange what each member calls; raise `CollectiveError` on all unless the calls go together."""
        self.what = COLLECTIVE_NAMES[kind]
        self.started = time.monotonic()
        record = np.array([kind, arg, dtype, failed is not None, count], np.int64)
        self.wait(self.comm.Iallgather(record, self.in_records))
        records = self.in_records
        if records[:, 3].any():
            text = np.zeros(_TEXT, np.uint8)
            encoded = (failed or "").encode()[:_TEXT]
            text[: len(encoded)] = np.frombuffer(encoded, np.uint8)
            texts = np.zeros((len(self.pes), _TEXT), np.uint8)
            self.wait(self.comm.Iallgather(text, texts))
            if failed is None:
                bad = [i for i in range(len(self.pes)) if records[i, 3]]
                reasons = "; ".join(
                    f"PE {self.pes[i]}: {texts[i].tobytes().rstrip(bytes(1)).decode(errors='replace')}" for i in bad
                )
                raise CollectiveError(f"{self.what}: the call failed on another PE and was not carried out. {reasons}")
        elif (records != records[0]).any():
            calls = "; ".join(
                f"PE {pe}: {describe(*map(int, row))}" for pe, row in zip(self.pes[:16], records.tolist(), strict=False)
            )
            raise CollectiveError(f"the PEs of the team made different calls. {calls}")

    def _bytes(self, address, nbytes):
        return np.frombuffer(self.MPI.buffer.fromaddress(address, nbytes), np.uint8)

    def broadcast(self, dest, src, nbytes, root, my_pe):
        at = src if my_pe == root else dest
        for start in range(0, nbytes, CHUNK):
            self.wait(self.comm.Ibcast(self._bytes(at + start, min(CHUNK, nbytes - start)), root))
        if my_pe == root and dest != src:
            self._bytes(dest, nbytes)[:] = self._bytes(src, nbytes)

    def fcollect(self, dest, src, nbytes):
        self.wait(self.comm.Iallgather(self._bytes(src, nbytes), self._bytes(dest, nbytes * len(self.pes))))

    def alltoall(self, dest, src, nbytes):
        total = nbytes * len(self.pes)
        self.wait(self.comm.Ialltoall(self._bytes(src, total), self._bytes(dest, total)))

    def shares(self, src, counts, itemsize, my_pe):
        """Each PE's share of the data of all: an array of as many rows as PEs, in their order. `counts`: elements by PE."""
        n = len(self.pes)
        sent = [count * itemsize for count in counts]
        starts = np.concatenate(([0], np.cumsum(sent[:-1]))).tolist()
        mine = sent[my_pe]
        received = np.empty((n, mine), np.uint8)
        self.wait(
            self.comm.Ialltoallv(
                [self._bytes(src, sum(sent)), sent, starts, self.MPI.BYTE],
                [received, [mine] * n, [i * mine for i in range(n)], self.MPI.BYTE],
            )
        )
        return received

    def gather_shares(self, share, dest, counts, itemsize):
        sizes = [count * itemsize for count in counts]
        starts = np.concatenate(([0], np.cumsum(sizes[:-1]))).tolist()
        self.wait(self.comm.Iallgatherv(share, [self._bytes(dest, sum(sizes)), sizes, starts, self.MPI.BYTE]))
