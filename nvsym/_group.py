# SPDX-License-Identifier: Apache-2.0
"""Exchange of data among some PEs of a job, without a communicator of their own.

Making a communicator of some of the PEs can wait without limit for one that never comes; messages from each to each can be
given up, and it is known whose is missing.
"""

import numpy as np

__all__ = ["Group", "Requests"]

_abandoned = []  # a member that is late may still fetch what was sent to it


class Requests:
    """Messages under way, in the form of one request of MPI."""

    def __init__(self, MPI, receives, sends, keep):
        self._MPI = MPI
        self._receives = receives  # of each sender, by its number in the group
        self._all = [*receives.values(), *sends]
        self._keep = keep

    def Test(self):
        """Whether all are done."""
        return self._MPI.Request.Testall(self._all)

    def missing(self):
        """The members from which nothing has come."""
        return [member for member, request in self._receives.items() if not request.Test()]

    def give_up(self):
        """Let go of the messages that did not come, so that none is written to memory that is used for something else."""
        for request in self._receives.values():
            if request:
                request.Cancel()
                request.Wait()
        self.keep()

    def keep(self):
        """Leave what was sent where it is, for members that have yet to fetch it."""
        _abandoned.append(self)


class Group:
    """Members of a communicator, with those of the methods of a communicator that `Agreement` uses.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    ranks : sequence of int
        In `comm`, of the members; this process is one of them.
    tag : int
        Used for nothing else between them.
    """

    def __init__(self, comm, ranks, tag):
        from mpi4py import MPI

        self._MPI = MPI
        self._comm = comm
        self._ranks = list(ranks)
        self._tag = tag
        self._rank = self._ranks.index(comm.Get_rank())

    def Get_rank(self):
        """The number of this process in the group."""
        return self._rank

    def Get_size(self):
        """The number of members."""
        return len(self._ranks)

    def Get_ranks(self):
        """The numbers of the members in the communicator."""
        return self._ranks

    def _exchange(self, out, parts):
        others = [i for i in range(len(self._ranks)) if i != self._rank]
        receives = {i: self._comm.Irecv(parts[i], self._ranks[i], self._tag) for i in others}
        out = np.array(out)
        sends = [self._comm.Isend(out, self._ranks[i], self._tag) for i in others]
        parts[self._rank][...] = out
        return Requests(self._MPI, receives, sends, out)

    def Iallgather(self, out, into):
        """Every member's `out` to the rows of everybody's `into`."""
        return self._exchange(out, into)

    def Iallgatherv(self, data, spec):
        """The same with a length for each member; `spec` is (array, lengths)."""
        received, counts = spec
        ends = np.cumsum(counts)
        return self._exchange(data, [received[end - count : end] for end, count in zip(ends, counts, strict=True)])
