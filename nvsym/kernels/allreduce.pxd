# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from ..cuda_runtime cimport CudaRuntime
from ..libcuda cimport CUfunction, CUstream
from ..types cimport NVSYM_DTYPE_COUNT, NVSYM_OP_COUNT
from .staged cimport MAX_BLOCKS, StagedCopies

cdef enum:
    MAX_PES     = 32    # of a team that uses the kernels
    LL_STAGES   = 2
    LL_BLOCKS   = 128
    LL_RESIDENT = 1344  # threads that a processor takes at a time: of an allreduce, which have up to 40 registers, and of moves, up to 32
    PUSH_THREADS = 512
    PUSH_STEPS   = 4
    PUSH_STAGES  = 2 * PUSH_STEPS
    PUSH_PACKS   = 4
    PAD_BYTES    = (2 * MAX_BLOCKS + 1) * MAX_PES * 4

cdef enum Kernel:
    KERNEL_ONE_SHOT = 0
    KERNEL_TWO_SHOT
    KERNEL_LOW_LATENCY
    KERNEL_PUSH
    KERNEL_STAGED
    KERNEL_COUNT_COPY       # behind copies of that
    KERNEL_COUNT

# nvsym::Team of include/nvsym/collectives.cuh.
cdef struct TeamArgs:
    int32_t    me
    int32_t    n
    uint32_t * epochs
    void *     pad
    void *     ll
    uint64_t   ll_bytes
    void *     push
    uint64_t   push_blocks
    uint32_t * failure
    uint64_t   limit_ns
    uint32_t   op           # Launched, and the slot of the team << 8
    int64_t    delta[MAX_PES]

# What a kernel is part of, as failures name it.
cdef enum Launched:
    LAUNCHED_ALLREDUCE = 0
    LAUNCHED_BROADCAST
    LAUNCHED_FCOLLECT
    LAUNCHED_ALLTOALL
    LAUNCHED_REDUCESCATTER
    LAUNCHED_BARRIER

# A team's part: its place in the workspace, and the stream of its last kernel.
cdef struct TeamKernels:
    TeamArgs args
    int      slot       # -1: the team has no kernels
    CUstream last       # of the last kernel that is no part of a graph
    CUstream captured   # of the last one that went into a graph

cdef class AllreduceKernels:
    cdef CudaRuntime gpu
    cdef int         ordinal
    cdef int         n_pes
    cdef int         arch
    cdef int         blocks         # at most
    cdef size_t      slot_bytes
    cdef size_t      ll_bytes       # data and flags of one block from one PE
    cdef size_t      push_bytes     # what the team of the first slot has to push to; 0: it does not push
    cdef char *      workspace      # symmetric
    cdef uint32_t *  epochs         # local
    cdef uint32_t *  failure        # pinned: [1 + MAX_PES], see nvsym::Team
    cdef uint64_t    limit_ns
    cdef object      free_slots
    cdef StagedCopies staged        # of the team of the first slot, or None
    cdef size_t      staged_from    # bytes
    cdef str         broken         # an operation that was enqueued in part, or None
    cdef dict        members        # slot -> the world numbers of the team's PEs
    cdef bint        overlap        # small kernels may be launched while the one before them runs
    cdef bint        told           # the failure has been raised, or another one while it was there
    cdef list        modules
    cdef CUfunction  functions[NVSYM_DTYPE_COUNT][NVSYM_OP_COUNT][KERNEL_COUNT]
    cdef readonly double compile_seconds

    cdef int agree(self, int blocks, int sharing)
    cdef int set_lines(self, size_t lines) noexcept      # of a block of low latency
    cdef size_t workspace_bytes(self)
    cdef int open(self, void *workspace) except -1
    cdef size_t stage_bytes(self, size_t size)
    cdef int open_stages(self, size_t size, void *memory) except -1
    cdef int close(self) except -1
    cdef int attach(self, TeamKernels *team, int slot, int me, int n, const int64_t *delta) except -1
    cdef int detach(self, TeamKernels *team) except -1
    cdef bint loaded(self, int dtype, int op) noexcept
    cdef int prepare(self, int dtype, int op) except -1
    cdef int check(self) except -1
    cdef bint failed(self) noexcept
    cdef int follow(self, TeamKernels *team, CUstream stream) except -1
    cdef object explain(self, const TeamKernels *team, size_t nbytes, bint in_place)
    cdef bint early(self, Kernel kernel, unsigned int blocks, unsigned int threads) noexcept nogil
    cdef size_t most_in_lines(self, size_t resident) noexcept nogil
    cdef unsigned int line_threads(self, size_t lines, unsigned int threads) noexcept nogil
    cdef size_t most_pushed(self) noexcept nogil
    cdef bint stages(self, const TeamKernels *team, size_t nbytes) noexcept
    cdef bint pushes(self, const TeamKernels *team, size_t nbytes) noexcept
    cdef Kernel choose(self, const TeamKernels *team, size_t nbytes, bint in_place) noexcept
    cdef int launch(self, TeamKernels *team, Kernel kernel, int dtype, int op, void *dst, const void *src, uint64_t count,
                    size_t itemsize, CUstream stream) except -1
    cdef int launch_staged(self, TeamKernels *team, const CUfunction *functions, char *dst, const char *src, size_t nbytes, size_t itemsize,
                           CUstream stream) except -1
