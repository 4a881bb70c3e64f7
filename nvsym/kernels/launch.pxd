# SPDX-License-Identifier: Apache-2.0
from ..libcuda cimport CUstream

# Launch a user's kernel in the current context. See SHMEMContext.enqueue_function for what kernel and arguments may be.
cdef int launch_kernel(object kernel, list arguments, const unsigned int *grid, const unsigned int *block, size_t shared,
                       bint cooperative, CUstream stream) except -1

# Let go of the kernels that have been launched.
cdef int forget_kernels() except -1
