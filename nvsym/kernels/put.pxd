# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t

from ..cuda_runtime cimport CudaRuntime
from ..libcuda cimport CUfunction, CUstream

# Small copies between memories that this GPU can address, where a kernel is faster than the copy engine.
cdef class PutKernels:
    cdef CudaRuntime   gpu
    cdef int           ordinal
    cdef CUfunction    copy
    cdef CUfunction    copy_signal
    cdef size_t        module
    cdef bint          overlap          # see AllreduceKernels
    cdef readonly size_t put_up_to      # bytes, by the table; 0: never
    cdef readonly size_t get_up_to
    cdef readonly size_t get_above      # below, NVSHMEM's own call is as fast
    cdef readonly size_t signal_up_to
    cdef readonly str  why_not          # why there are no kernels, or None

    # Whether the kernels are loaded; loads them where that can be done now.
    cdef bint ready(self) except -1
    cdef int prepare(self) except -1
    cdef int close(self) except -1
    cdef int put(self, void *dst, const void *src, size_t nbytes, CUstream stream) except -1
    cdef int put_signal(self, void *dst, const void *src, size_t nbytes, uint64_t *signal, uint64_t value, bint add,
                        CUstream stream) except -1
