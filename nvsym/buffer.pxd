# SPDX-License-Identifier: Apache-2.0
from cpython.long cimport PyLong_CheckExact

from .device cimport Device
from .heap cimport Allocation
from .job cimport Job
from .memory cimport HostArray

cdef class Memory:
    cdef Device device
    cdef void * ptr
    cdef size_t nbytes

cdef class SHMEMBuffer:
    cdef Job        job
    cdef Allocation block
    cdef char *     ptr         # this PE's copy, the symmetric address
    cdef size_t     count       # elements
    cdef size_t     item        # bytes of an element
    cdef int        type_id     # enum nvsym_dtype
    cdef object     element     # nvsym.dtypes.DType
    cdef object     keep        # what an adopted buffer's memory belongs to
    cdef bint       is_view
    cdef dict       tables      # TeamData -> the Buffer of peer_pointers()
    cdef object     __weakref__

    cdef int check(self) except -1
    cdef int stream_of(self, object stream, void **ptr) except -1
    cdef SHMEMBuffer alias(self, size_t start, size_t count)
    cdef int bind(self, Job job, Allocation block, object element, size_t count) except -1
    cdef int fill_now(self, object pattern) except -1
    cdef int copy_now(self, void *dst, const void *src, size_t nbytes, object keeper) except -1
    cdef object keeper(self)
    cdef int copy_host(self, object other, str name, object stream, bint out) except -1
    cdef int gpu_array(self, HostArray array, str name, object tensor, void *stream, bint writable) except -1

# Raise what is wrong with an argument that is no live SHMEMBuffer.
cdef SHMEMBuffer no_buffer(object obj, str name)

# A live SHMEMBuffer that an argument must be.
cdef inline SHMEMBuffer as_buffer(object obj, str name):
    cdef Allocation block
    if isinstance(obj, SHMEMBuffer):
        block = (<SHMEMBuffer> obj).block
        if block is not None and not block.freed and block.heap.closed is None:
            return <SHMEMBuffer> obj
    return no_buffer(obj, name)

# That the buffer of an argument is alive.
cdef int check_named(SHMEMBuffer buffer, str name) except -1
# That an argument, if it is a buffer of either kind, has not been freed.
cdef int check_alive(object value, str name) except -1
cdef SHMEMBuffer create_buffer(object dtype, object n)

cdef extern from "Python.h":
    # Of an int, where it does not raise.
    long int_value "PyLong_AsLongAndOverflow" (object obj, int *overflow)

# The same for whatever has an index, or the reason why it is no number of a PE.
cdef int any_pe(object pe, int n_pes) except -1

# The number of a PE that exists.
cdef inline int as_pe(object pe, int n_pes) except -1:
    cdef int overflow = 0
    cdef long number
    if PyLong_CheckExact(pe):
        number = int_value(pe, &overflow)
        if not overflow and 0 <= number < n_pes:
            return <int> number
    return any_pe(pe, n_pes)
