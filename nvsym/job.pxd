# SPDX-License-Identifier: Apache-2.0
from .agreement cimport Agreement
from .backend cimport ALGO_COUNT, Backend, Functions, TeamData
from .heap cimport Heap
from .types cimport NVSYM_DTYPE_COUNT, NVSYM_OP_COUNT

cdef class Job:
    cdef Backend         backend
    cdef Heap            heap
    cdef Agreement       agreement      # of all PEs, for host-side collective calls
    cdef readonly int    my_pe
    cdef readonly int    n_pes
    cdef object          settings
    cdef object          comm           # the caller's, who may free it
    cdef str             comm_name
    cdef tuple           arguments      # of init, to compare a later one with
    cdef int             count          # inits that wait for their finalize
    cdef int             pid
    cdef list            teams          # (TeamData, Agreement), in the order they were made
    cdef int             default_algorithm      # of allreduce, by NVSYM_ALLREDUCE_ALGORITHM
    cdef char            reduces[NVSYM_DTYPE_COUNT][NVSYM_OP_COUNT][ALGO_COUNT + 1]     # known to be possible; last: reducescatter
    cdef list            closers        # called when all PEs have agreed to end the job, before the backend stops
    cdef list            close_failures     # what these could not give back
    cdef object          failure        # the exception that this PE is about to end in

    cdef int close(self) except -1
    cdef int take_failures(self) except -1
    cdef int call_closers(self) except -1
    cdef int add_team(self, TeamData data, Agreement agreement) except -1
    cdef int drop_team(self, TeamData data) except -1

# The job of this process; raises NotInitializedError or ForkError where there is none.
cdef Job current_job()
cdef Job open_job(object comm, object backend, object device, object bootstrap, object heap_size)
cdef Job job_or_none()
cdef int close_job() except -1
# End a job that could not be begun wholly, which all PEs know of, or whose PEs can no longer agree.
cdef int abandon_job() except -1

# What the C interface calls; all zero while there is no job in this process.
cdef Functions *job_functions() noexcept nogil
cdef int publish(Job job, TeamData world) except -1
