# SPDX-License-Identifier: Apache-2.0
"""Small put, get and put_signal by one kernel.

A call of the copy engine costs the host and the GPU several microseconds, whatever it copies; a kernel costs less, and can set
the signal as well. Copies of many bytes are the copy engine's, which leaves the processors to others.
"""

from libc.stdint cimport uint32_t, uint64_t

from .. import _driver
from ..errors import BackendError, NotAvailableError
from . import compiler

from .._driver cimport CHECK_CUDA, cuda
from ..cuda_runtime cimport CudaRuntime
from .launch cimport arch_of, can_launch_early, launch_own, load_functions
from ..libcuda cimport CUfunction, CUmodule, CUstream

cdef enum:
    THREADS      = 512          # of a block
    EARLY_BLOCKS = 4            # that may wait on the processors for the kernel before them to end
    BLOCKS       = 32           # at most: few bytes need no more, and others need processors
    # The table: bytes up to which a kernel is faster than NVSHMEM's own call.
    PUT_UP_TO    = 256 << 10
    PUT_LINKED   = 0            # to another GPU a copy engine is as fast, and its call costs the host less;
    GET_UP_TO    = 256 << 10
    GET_LINKED   = 16 << 10     # so it is from another GPU up to so many bytes
    SIGNAL_UP_TO = 64 << 10     # by one block


cdef class PutKernels:
    """The kernels of one GPU. `linked`: each PE has a GPU of its own; `limit`: instead of the table; None: the table."""

    def __init__(self, CudaRuntime gpu not None, int ordinal, bint linked, limit):
        self.gpu = gpu
        self.ordinal = ordinal
        self.put_up_to = (PUT_LINKED if linked else PUT_UP_TO) if limit is None else limit
        self.get_above = GET_LINKED if linked and limit is None else 0
        self.get_up_to = GET_UP_TO if limit is None else limit
        self.signal_up_to = SIGNAL_UP_TO if limit is None else limit

    cdef bint ready(self) except -1:
        if self.copy != NULL:
            return True
        if _driver.is_simulated():
            self.why_not = "the simulated CUDA driver runs no compiled kernels"
            self.put_up_to = self.get_up_to = self.signal_up_to = 0
            return False
        if self.gpu.any_capturing():
            return False    # nothing can be loaded now; NVSHMEM's call means the same
        try:
            self.prepare()
        except (NotAvailableError, BackendError) as error:     # no compiler, or one that is older than the GPU
            self.why_not = str(error)
            self.put_up_to = self.get_up_to = self.signal_up_to = 0
            return False
        return True

    cdef int prepare(self) except -1:
        cdef CUfunction functions[2]
        cdef int arch
        cdef size_t module
        if self.copy != NULL:
            return 0
        arch = arch_of(self.ordinal)
        self.overlap = can_launch_early(arch)
        cubin, _ = compiler.put_cubin(arch)
        module = load_functions(self.gpu, self.ordinal, cubin, ("nvsym_copy", "nvsym_copy_signal"), functions)
        if self.copy != NULL:       # another thread was faster
            return CHECK_CUDA(cuda.cuModuleUnload(<CUmodule> module), b"cuModuleUnload")
        self.module = module
        self.copy_signal, self.copy = functions[1], functions[0]
        return 0

    cdef int close(self) except -1:
        cdef size_t module = self.module
        self.copy = self.copy_signal = NULL
        self.module = 0
        if module:
            CHECK_CUDA(cuda.cuModuleUnload(<CUmodule> module), b"cuModuleUnload")
        return 0

    cdef int put(self, void *dst, const void *src, size_t nbytes, CUstream stream) except -1:
        cdef void *arguments[3]
        cdef uint64_t count = nbytes
        cdef unsigned int threads = threads_for(nbytes)
        cdef unsigned int blocks = <unsigned int> min((nbytes + 16 * THREADS - 1) // (16 * THREADS), <size_t> BLOCKS)
        if nbytes == 0:
            return 0
        arguments[0], arguments[1], arguments[2] = &dst, &src, &count
        with nogil:
            launch_own(self.copy, blocks, threads, arguments, stream, self.overlap and blocks <= EARLY_BLOCKS)
        return 0

    cdef int put_signal(self, void *dst, const void *src, size_t nbytes, uint64_t *signal, uint64_t value, bint add,
                        CUstream stream) except -1:
        cdef void *arguments[6]
        cdef uint64_t count = nbytes
        cdef uint32_t adds = add
        arguments[0], arguments[1], arguments[2], arguments[3], arguments[4] = &dst, &src, &count, &signal, &value
        arguments[5] = &adds
        with nogil:
            launch_own(self.copy_signal, 1, threads_for(nbytes), arguments, stream, self.overlap)
        return 0


cdef inline unsigned int threads_for(size_t nbytes) noexcept nogil:
    """Whole warps with 16 bytes for each thread, up to a block."""
    return <unsigned int> max(<size_t> 32, min((nbytes // 16 + 31) // 32 * 32, <size_t> THREADS))
