# SPDX-License-Identifier: Apache-2.0
from ..cuda_runtime cimport CudaRuntime
from ..libcuda cimport CUfunction, CUstream

# Launch a user's kernel in the current context. See SHMEMContext.enqueue_function for what kernel and arguments may be.
cdef int launch_kernel(object kernel, list arguments, const unsigned int *grid, const unsigned int *block, size_t shared,
                       bint cooperative, CUstream stream) except -1

# 90 of a GPU of compute capability 9.0.
cdef int arch_of(int ordinal) except -1

# Whether GPUs of a compute capability (90: 9.0) and the driver launch a kernel while the one before it on the stream still runs.
cdef bint can_launch_early(int arch) except -1

# Load machine code onto a GPU and put its functions of these names into a table, the first one last; the module's handle.
cdef size_t load_functions(CudaRuntime gpu, int ordinal, bytes cubin, object names, CUfunction *functions) except 0

# Launch one of nvsym's kernels. `early`: it begins with await_predecessor(), and its blocks may take their places on the
# processors while the kernel before it still runs; only where can_launch_early().
cdef int launch_own(CUfunction function, unsigned int blocks, unsigned int threads, void **arguments, CUstream stream,
                    bint early) except -1 nogil

# Let go of the kernels that have been launched.
cdef int forget_kernels() except -1
