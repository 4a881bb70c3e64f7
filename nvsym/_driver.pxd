# SPDX-License-Identifier: Apache-2.0
# The CUDA driver, opened at first use. A module that calls it does, once, where it can raise:
#
#     load_cuda()
#
# and then, with or without the GIL:
#
#     CHECK_CUDA(cuda.cuStreamSynchronize(stream), b"cuStreamSynchronize")
#
# `cuda` always points to a whole table. Before load_cuda(), and for a function that the driver does not have, a member
# returns a status that CHECK_CUDA turns into NotAvailableError, so no call site tests for NULL.
from .libcuda cimport CUDADriver, CUresult, CUDA_SUCCESS

cdef CUDADriver *cuda

cdef enum:
    CUDA_NOT_LOADED = -2147483001
    CUDA_NO_FUNCTION = -2147483002

# Opens the library, or says why it cannot. Cheap when it is open.
cdef int load_cuda() except -1 nogil

# As cuDriverGetVersion: 12040 is 12.4; 0 while the library is not open.
cdef int cuda_version() noexcept nogil

# Whether the driver has the function behind a member: cuda_has(<void *> cuda.cuMulticastCreate).
cdef bint cuda_has(void *function) noexcept nogil

cdef int raise_cuda(CUresult status, const char *call) except -1 nogil

cdef inline int CHECK_CUDA(CUresult status, const char *call) except -1 nogil:
    if status == CUDA_SUCCESS:
        return 0
    return raise_cuda(status, call)
