# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint64_t

from ..libcuda cimport CUfunction, CUstream
from ..types cimport NVSYM_DTYPE_COUNT, NVSYM_OP_COUNT
from .allreduce cimport MAX_PES, AllreduceKernels, TeamKernels

cdef enum:
    LL_SCATTER = 1024   # threads of a reduce-scatter of low latency that a processor takes at a time; they have up to 56 registers

# nvsym::Distances of include/nvsym/multimem_allreduce.cuh.
cdef struct Distances:
    int64_t delta[MAX_PES]
    int64_t multicast

# In the order of compiler.MOVES; the forms of low latency follow.
cdef enum Move:
    MOVE_BROADCAST = 0
    MOVE_FCOLLECT
    MOVE_ALLTOALL
    MOVE_COUNT

# The other collectives. They have a workspace and failures of their own; what is inherited is how a team gets its place there.
cdef class ExchangeKernels(AllreduceKernels):
    cdef CUfunction orders[2]       # of compiler.ORDERS; there as soon as the kernels are open
    cdef CUfunction moves[2 * MOVE_COUNT]
    cdef CUfunction scatters[NVSYM_DTYPE_COUNT][NVSYM_OP_COUNT][2]
    cdef CUfunction switched[NVSYM_DTYPE_COUNT][NVSYM_OP_COUNT]
    cdef CUfunction levels[NVSYM_DTYPE_COUNT][NVSYM_OP_COUNT][2]
    cdef bint apart                 # each PE has a GPU of its own

    cdef bint few(self, const TeamKernels *team, size_t nbytes, size_t resident) noexcept
    cdef bint can_move(self) noexcept
    cdef bint can_scatter(self, int dtype, int op) noexcept
    cdef int prepare_orders(self, object made) except -1    # of what compiler.order_cubin returned
    cdef int prepare_moves(self) except -1
    cdef int prepare_scatter(self, int dtype, int op) except -1
    # Ordered behind the team's barriers on other streams, not behind its other kernels: it shares no flags with these.
    cdef int barrier(self, TeamKernels *team, CUstream stream) except -1
    # What the stream has stored so far is seen by other GPUs before what it stores next: a quiet in a graph.
    cdef int fence(self, CUstream stream) except -1
    # `order`: the part of the team that knows the stream of its last kernel. `nbytes`: of one block; nothing for 0.
    cdef int move(self, TeamKernels *team, TeamKernels *order, Move kind, void *dst, const void *src, size_t nbytes, int root,
                  CUstream stream) except -1
    # The two kernels of an allreduce over several nodes, by the part of the team that is on this one.
    cdef int prepare_levels(self, int dtype, int op) except -1
    cdef int level_in(self, TeamKernels *team, int dtype, int op, void *sums, const void *src, size_t count,
                      CUstream stream) except -1
    cdef int level_out(self, TeamKernels *team, int dtype, int op, void *dst, const void *rows, size_t count, int nodes,
                       CUstream stream) except -1
    # The allreduce through a multicast address.
    cdef object why_no_multimem(self, int dtype, int op)
    cdef int prepare_multimem(self, int dtype, int op) except -1
    cdef int multimem(self, TeamKernels *team, TeamKernels *order, int dtype, int op, void *dst, const void *src, size_t count,
                      size_t itemsize, Distances *distances, CUstream stream) except -1
    cdef int scatter(self, TeamKernels *team, TeamKernels *order, int dtype, int op, void *dst, const void *src, size_t count,
                     size_t itemsize, CUstream stream) except -1
