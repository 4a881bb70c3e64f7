# SPDX-License-Identifier: Apache-2.0
"""Agreement between PEs: what must happen on all of them or on none ends in a vote here.

All host-side collective calls of a team (allocation, free, collect, split, finalize) exchange one record of the same form,
in order. So when two PEs make different calls, the records meet and both find out, instead of waiting for each other.
Waiting is polling (of a nonblocking MPI collective): it yields the core, sees peers that are gone, and has a time limit.
"""

from libc.stdint cimport int64_t

import builtins
import time

import numpy as np

from . import errors
from .errors import BackendError, NVSymError, PeerTimeoutError

from .status cimport error_text

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int microseconds)

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1

cdef enum:
    YIELDS       = 500          # polls that only yield, before the polls that sleep
    SHORTEST     = 20           # microseconds of a sleep, growing
    LONGEST      = 1000
    WATCH_PERIOD = 20_000_000   # nanoseconds between two looks at the peers


cdef list _abandoned = []   # requests that were left: MPI may still read and write their arrays, which they hold


cdef class Agreement:
    """The PEs of a communicator, for collective decisions.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Used by nobody else.
    limit : float
        Seconds that a wait for the others may last; 0 for no limit.
    names : list of str, optional
        What messages call each member.
    """

    def __init__(self, comm, double limit, names=None):
        self.comm = comm
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self.limit = limit
        self.names = names if names is not None else [f"PE {rank}" for rank in range(self.size)]
        self.out_array = np.zeros(FIELDS, np.int64)
        self.in_array = np.zeros((self.size, FIELDS), np.int64)
        self.out = self.out_array
        self.all = self.in_array

    cdef int exchange(self, str what) except -1:
        """Send the record in `out`; afterwards `all` has those of all PEs."""
        if self.broken is not None:
            raise NVSymError(f"{what}: the PEs can no longer agree, since {self.broken}")
        if self.size == 1:
            self.all[0, :] = self.out
            return 0
        if self.waiting is not None:
            # The record of the call that waits is lost already.
            self.broken = (f"{what} began in one thread (or signal handler) while {self.waiting} had not ended in another; host-side "
                           "collective calls must come from one thread at a time")
            raise NVSymError(f"{what}: the PEs can no longer agree, since {self.broken}")
        self.wait(self.comm.Iallgather(self.out_array, self.in_array), what)
        if self.broken is not None:
            raise NVSymError(f"{what}: the PEs can no longer agree, since {self.broken}")
        return 0

    cpdef wait(self, object request, str what):
        """Wait for a nonblocking MPI operation without keeping the core or the GIL from others."""
        cdef int64_t start = 0, watched = 0, now
        cdef int polls = 0
        cdef unsigned int pause = SHORTEST
        test = request.Test
        self.waiting = what
        try:
            while not test():
                polls += 1
                if polls <= YIELDS:
                    with nogil:
                        sched_yield()
                    if polls & 63:
                        continue
                else:
                    with nogil:
                        usleep(pause)
                    pause = min(pause + pause // 4, <unsigned int> LONGEST)
                now = time.monotonic_ns()
                if start == 0:
                    start = watched = now
                if now - watched < WATCH_PERIOD:
                    continue
                watched = now
                PyErr_CheckSignals()
                if self.watch is not None:
                    self.watch()
                if self.limit > 0 and now - start > self.limit * 1e9:
                    if not test():      # this PE itself may have stood still
                        self.check_arrived(request, what)
                    break
        except BaseException as error:
            _abandoned.append(request)
            self.left(what, error)
            raise
        finally:
            self.waiting = None

    cdef int left(self, str what, object error) except -1:
        """Note that `error`, such as a KeyboardInterrupt, has taken this PE out of a step that the others go on with."""
        if self.size > 1 and self.broken is None and not getattr(error, "_on_all_pes", False):
            self.broken = f"{what} was left with {type(error).__name__}: {error_text(error)}"
        return 0

    def check_arrived(self, request, str what):
        """At the time limit of a wait: raise, unless what was waited for is known to be here."""
        raise PeerTimeoutError(f"{what}: not all PEs arrived within {self.limit:g} s (NVSYM_TIMEOUT, and NVSYM_INIT_TIMEOUT for init)")

    def gather(self, obj, str what):
        """The objects of all PEs, in order. They are pickled."""
        if self.size == 1:
            return [obj]
        try:
            return self.gather_pickled(obj, what)
        except BaseException as error:
            self.left(what, error)
            raise

    def gather_pickled(self, obj, str what):
        cdef int rank
        import pickle
        data = np.frombuffer(pickle.dumps(obj), np.uint8)
        self.out[:] = 0
        self.out[0] = len(data)
        self.exchange(what)
        counts = [self.all[rank, 0] for rank in range(self.size)]
        received = np.empty(sum(counts), np.uint8)
        self.wait(self.comm.Iallgatherv(data, [received, counts]), what)
        ends = np.cumsum(counts)
        return [pickle.loads(received[end - count:end].tobytes()) for end, count in zip(ends, counts)]

    def duplicate(self):
        """Another communicator of these PEs. Collective."""
        from mpi4py import MPI
        try:
            return self.comm.Dup()
        except MPI.Exception as error:
            raise no_communicator(error) from error

    def ranks_here(self):
        """The ranks of the PEs on this one's node, in order. Collective."""
        from mpi4py import MPI
        node = self.comm.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank)
        try:
            return node.allgather(self.rank)
        finally:
            node.Free()

    def vote(self, str what, error=None):
        """Raise on every PE if `error` is not None on any.

        Parameters
        ----------
        what : str
            The step that was tried.
        error : Exception, optional
            Why it failed here.

        Raises
        ------
        Exception
            Of the class of the first failing PE's error, with the PE and the reason of each.
        """
        self.out[:] = 0
        self.out[0] = error is not None
        self.exchange(what)
        if self.in_array[:, 0].any():
            self.raise_for_all(what, error)

    def attempt(self, str what, action):
        """Call `action`, this PE's part of a step, and vote on it."""
        error = None
        try:
            action()
        except Exception as e:
            error = e
        except BaseException as e:
            self.left(what, e)
            raise
        self.vote(what, error)

    def raise_for_all(self, str what, error):
        """Collect the failures of all PEs, of which there is at least one, and raise the same exception everywhere."""
        own = None if error is None else (_class_name(error), error_text(error), getattr(error, "pes", ()))
        failures = self.gather(own, what)
        failing = [rank for rank, failure in enumerate(failures) if failure is not None]
        if not failing:
            raise AssertionError(f"{what}: a PE voted no and gave no reason")
        if self.size == 1:
            raise error
        reasons = {}
        for rank in failing:
            reasons.setdefault(failures[rank][1], []).append(rank)
        lines = [f"{self.list_names(ranks)}: {reason}" for reason, ranks in reasons.items()]
        cls = _class_of(failures[failing[0]][0])
        failure = cls(f"{what} failed on {len(failing)} of {self.size} PEs. " + "; ".join(lines))
        failure._on_all_pes = True
        raise failure from error

    def list_names(self, ranks):
        if len(ranks) == self.size and self.size > 2:
            return "all PEs"
        shown = ", ".join([self.names[rank] for rank in ranks[:8]])
        return shown if len(ranks) <= 8 else f"{shown} and {len(ranks) - 8} more"

    def same(self, str what, value, explain):
        """Raise `CollectiveError` on every PE unless all gave an equal `value`.

        Parameters
        ----------
        what : str
            The step, for the message.
        value : object
            Picklable and comparable.
        explain : str
            What to do about a difference.
        """
        values = self.gather(value, what)
        if any(other != values[0] for other in values):
            groups = {}
            for rank, other in enumerate(values):
                groups.setdefault(repr(other), []).append(rank)
            parts = "; ".join(f"{self.list_names(ranks)}: {text}" for text, ranks in groups.items())
            failure = errors.CollectiveError(f"{what} differs between PEs. {parts}. {explain}")
            failure._on_all_pes = True
            raise failure


def no_communicator(error):
    """What is raised where MPI has made none for a team."""
    return BackendError(f"MPI gives no communicator for another team ({' '.join(str(error).split())}). It may have run out of them: "
                        "destroy() teams, and Free() communicators, that are not used any more")


def _class_name(error):
    """The nearest class of an error that the other PEs can make from a message."""
    for cls in type(error).__mro__:
        if _class_of(cls.__name__) is cls:
            return cls.__name__
    return "RuntimeError"


def _class_of(name):
    cls = getattr(errors, name, None) or getattr(builtins, name, None)
    # Those whose constructor takes more than a message cannot travel.
    if cls is None or not (isinstance(cls, type) and issubclass(cls, Exception)) or issubclass(cls, (UnicodeError, BaseExceptionGroup)):
        return RuntimeError
    return cls
