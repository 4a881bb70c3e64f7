# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint64_t

from ..cuda_runtime cimport CudaRuntime
from ..libcuda cimport CUevent, CUfunction, CUstream

# The streams and slots by which two PEs send each other the chunks of large operands; see include/nvsym/staged.cuh.
cdef class StagedCopies:
    cdef CudaRuntime gpu
    cdef int         ordinal
    cdef size_t      chunk          # bytes
    cdef size_t      least          # bytes of operands that are sent so
    cdef size_t      stride         # from one slot to the next
    cdef char *      slots          # symmetric
    cdef CUstream    lanes[2]       # every other chunk goes by each: while one tells and waits, the other copies
    cdef CUevent     events[2]

    # Symmetric memory that `open` needs.
    cdef size_t slot_bytes(self)
    cdef int open(self, char *slots) except -1
    cdef int close(self) except -1
    # Enqueue an allreduce on a stream, also while it is captured. `turn`, `fold`: the kernels; `team`: their nvsym::Team;
    # `delta`: to the peer's memory; `blocks`: of a fold, at most.
    cdef int enqueue(self, CUfunction turn, CUfunction fold, void *team, int64_t delta, unsigned int blocks, char *dst,
                     const char *src, size_t nbytes, size_t itemsize, CUstream stream) except -1

    cdef int fork(self, CUstream stream) except -1 nogil
    cdef int join(self, CUstream stream) except -1 nogil
    cdef int fold_chunk(self, CUfunction fold, void *team, unsigned int blocks, char *dst, const char *src, const char *slot,
                        uint64_t count, size_t itemsize, CUstream stream) except -1 nogil
