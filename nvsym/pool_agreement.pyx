# SPDX-License-Identifier: Apache-2.0
"""Agreement between the PEs that share a pool: some of a job, or this process alone."""

from .errors import PeerError, PeerTimeoutError

from .agreement cimport Agreement
from .libcuda cimport CUDA_ERROR_SYSTEM_NOT_READY


class Alone:
    """The group of a pool whose GPUs all belong to this process."""

    def Get_rank(self):
        return 0

    def Get_size(self):
        return 1

    def Get_ranks(self):
        return [0]


cdef class PoolAgreement(Agreement):
    """The PEs that own the GPUs of a pool. They exchange messages, and need no communicator of their own.

    Parameters
    ----------
    group : Group or Alone
    limit : float
        Seconds that a wait may last; 0 for no limit.
    names : list of str
        What messages call each member.
    watch : callable
        Called now and then while waiting; raises if a member is gone.
    """

    def __init__(self, group, double limit, names, watch):
        Agreement.__init__(self, group, limit, names)
        self.watch = watch

    cpdef wait(self, object request, str what):
        try:
            Agreement.wait(self, request, what)
        except BaseException:
            request.give_up()
            raise

    def check_arrived(self, request, str what):
        missing = request.missing()
        if missing:
            raise PeerTimeoutError(f"{what}: nothing came from {self.list_names(missing)} within {self.limit:g} s (NVSYM_TIMEOUT). "
                                   "All PEs that own one of the devices have to make the call", [self.pes()[rank] for rank in missing])
        request.keep()      # what others have not fetched does not matter here: all that this PE decides by has come

    def pes(self):
        """The world numbers of the members."""
        return self.comm.Get_ranks()

    def is_broken(self):
        """Whether the members can no longer agree, because one of them was given up."""
        return self.broken is not None

    def leave(self, str what, error):
        """Note that `error` takes this PE out of what the others go on with, unless it is raised on all."""
        self.left(what, error)

    def time_limit(self):
        """Seconds that a wait may last; 0: no limit."""
        return self.limit

    def look(self):
        """See whether a member is gone, as waiting does now and then."""
        if self.watch is not None:
            self.watch()

    def decide(self, str what, error, bint retry):
        """What all do after a step: go on, or try again, or raise.

        Parameters
        ----------
        what : str
            The step that was made.
        error : Exception or None
            Why it failed here.
        retry : bool
            Whether CUDA_ERROR_SYSTEM_NOT_READY, where nothing worse has happened, is answered by another try.

        Returns
        -------
        bool
            Whether to try again; the same on all.

        Raises
        ------
        Exception
            On every PE alike, as `vote` does.
        """
        cdef bint follows = isinstance(error, PeerError)    # of the failure of another PE
        self.out[:] = 0
        self.out[0] = error is not None
        self.out[1] = getattr(error, "status", None) == CUDA_ERROR_SYSTEM_NOT_READY
        self.out[2] = error is not None and not follows
        self.exchange(what)
        failed = self.in_array[:, 0] != 0
        if not failed.any():
            return False
        if retry and self.in_array[failed, 1].all():
            return True
        if follows and self.in_array[:, 2].any():
            error = None
        self.raise_for_all(what, error)
