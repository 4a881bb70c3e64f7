# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ..cuda_runtime cimport CudaRuntime
from ..libcuda cimport CUevent, CUfunction, CUstream

# As in include/nvsym/collectives.cuh and staged.cuh.
cdef enum:
    MAX_BLOCKS   = 256
    EMPTY        = 0x9e3779b9   # what a word of a stage holds while nothing has come
    STAGES       = 2
    STAGED_PACKS = 2            # of 16 bytes, that a thread reduces at a time
    LOOSE_LINES  = 4

# nvsym::StageFlags, nvsym::StageRounds and nvsym::Stage of include/nvsym/staged.cuh.
cdef struct StageFlags:
    uint32_t emptied[STAGES][MAX_BLOCKS]
    uint32_t seen[MAX_BLOCKS]
    uint32_t loose[STAGES][LOOSE_LINES][4]
    uint32_t failed
    uint32_t aligned[3]

cdef struct StageRounds:
    uint32_t round[STAGES][MAX_BLOCKS]
    uint32_t seen[MAX_BLOCKS]
    uint32_t in_place[STAGES][MAX_BLOCKS]
    uint32_t copied[STAGES]
    uint32_t failed

cdef struct Stage:
    StageFlags * flags
    StageRounds * rounds
    char *       packs
    uint8_t *    marks
    uint64_t     pushed
    uint32_t     number
    uint32_t     in_place

# Whether copies and kernels of a graph that wait for each other's PEs run side by side.
cdef bint enough_queues() except -1

# A stream that copies, and events by which the caller's stream waits for it.
cdef class Lane:
    cdef CUstream stream
    cdef CUevent  counted[STAGES]   # behind what counts a copy

    cdef int close(self) except -1

# The stages of two PEs, and the streams that fill them.
cdef class StagedCopies:
    cdef CudaRuntime gpu
    cdef int         ordinal
    cdef size_t      size           # bytes of an operand that one stage takes
    cdef size_t      pushed         # bytes that the kernel sends itself, while a copy engine begins
    cdef char *      memory         # symmetric
    cdef StageRounds * rounds
    cdef list        lanes          # the first one is never captured
    cdef bint        in_part        # an allreduce that runs has been enqueued in part

    cdef size_t memory_bytes(self)
    cdef int open(self, void *memory) except -1
    cdef int close(self) except -1
    # Enqueue an allreduce on a stream. `kernel`, `count_copy`: nvsym_staged of the type and operator, and nvsym_count_copy; `team`: its
    # nvsym::Team; `delta`: to the peer.
    cdef int enqueue(self, CUfunction kernel, CUfunction count_copy, void *team, int64_t delta, unsigned int blocks, char *dst,
                     const char *src, size_t nbytes, size_t itemsize, CUstream stream) except -1

    cdef Lane lane_for(self, CUstream stream)
    cdef char * stage_of(self, size_t number) noexcept nogil
    cdef int send(self, Lane lane, CUfunction count_copy, uint32_t number, int64_t delta, const char *src, size_t skip,
                  size_t nbytes) except -1 nogil
