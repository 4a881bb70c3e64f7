# SPDX-License-Identifier: Apache-2.0
"""``python -m nvsym bench init``: how long it takes to begin and end a job, beside what is below it."""

import statistics
import time

from .sampling import PeerUnavailableError, agree

__all__ = ["INIT_METHOD", "measure_init"]

INIT_METHOD = (
    "The PEs meet, then the job is begun and its heap allocated, and later ended, each by the host's clock; the maximum over "
    "the PEs. nvsym and the peer take turns (A B A B ...) in one process. The first beginning of a process, which makes the "
    "context of the GPU and loads the libraries, is a row of its own: --first says whose it is. The other rows are medians."
)


class _Nvsym:
    name = "nvsym"

    def __init__(self, backend, heap):
        import nvsym

        self.begin = lambda: nvsym.init(backend=backend, heap_size=heap)
        self.end = lambda context: context.finalize()


class _Nvshmem:
    """NVSHMEM by itself, with an allocation of the same size."""

    name = "nvshmem"

    def __init__(self, comm, heap):
        from mpi4py import MPI

        import nvsym

        from . import nvshmem_alone

        gpus = nvsym.SHMEMContext.number_of_devices()
        if gpus == 0:
            raise PeerUnavailableError("nvshmem: it needs GPUs, and there are none")
        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        ordinal = node.Get_rank() % gpus
        node.Free()
        self.begin = lambda: nvshmem_alone.begin(comm, ordinal, heap)
        self.end = nvshmem_alone.end


class _Mpi4py:
    """A window of the same size, which is what MPI has in place of a heap."""

    name = "mpi4py"

    def __init__(self, comm, heap):
        from mpi4py import MPI

        self.begin = lambda: MPI.Win.Allocate(heap, 1, comm=comm)
        self.end = lambda window: window.Free()


def measure_init(comm, backend, peers, heap, rounds, first):
    """Begin and end jobs; collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    backend : str
        Of nvsym.
    peers : list of str
    heap : int
        Bytes.
    rounds : int
        Of each, the first of all included.
    first : {"nvsym", "peer"}

    Returns
    -------
    rows : list of dict
        With ``"what"`` and ``"seconds"``: by library.
    unavailable : dict of str to str
    """
    libraries, unavailable = [_Nvsym(backend, heap)], {}
    for name in peers:
        make = {"nvshmem": _Nvshmem, "mpi4py": _Mpi4py}.get(name)
        if make is None:
            unavailable[name] = f"{name}: how it begins is not measured"
            continue
        library, reason = agree(comm, lambda make=make: make(comm, heap))
        if reason is None:
            libraries.append(library)
        else:
            unavailable[name] = reason
    if first == "peer":
        libraries.append(libraries.pop(0))
    begins = {library.name: [] for library in libraries}
    ends = {library.name: [] for library in libraries}
    cold = {}
    for turn in range(rounds):
        for library in libraries:
            if library.name in unavailable:
                continue
            job, taken, reason = _timed(comm, library, library.begin)
            if reason is not None:
                unavailable[library.name] = f"{library.name}: {reason}"
                continue
            _, over, _ = _timed(comm, library, lambda library=library, job=job: library.end(job))
            if turn == 0 and not cold:
                cold[library.name] = taken
            else:
                begins[library.name].append(taken)
            ends[library.name].append(over)
    rows = [{"what": "first beginning of a process", "seconds": cold}]
    for what, found in (("beginning", begins), ("end", ends)):
        medians = {name: statistics.median(times) for name, times in found.items() if times}
        rows.append({"what": what, "seconds": medians})
    return rows, unavailable


def _timed(comm, library, action):
    """What it returned, the seconds of the slowest PE, and why it failed on one of them, or None."""
    from mpi4py import MPI

    comm.Barrier()
    start = time.perf_counter()
    if library.name == "nvsym":
        result, reason = action(), None
        taken = time.perf_counter() - start
    else:

        def timed():
            outcome = action()
            return outcome, time.perf_counter() - start

        pair, reason = agree(comm, timed)
        result, taken = pair if pair is not None else (None, 0.0)
    return result, comm.allreduce(taken, MPI.MAX), reason
