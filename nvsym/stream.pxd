# SPDX-License-Identifier: Apache-2.0
from .device cimport Device

cdef class Stream:
    cdef readonly Device device
    cdef void *          ptr        # CUstream, or the queue in host memory; NULL: the device's default stream
    cdef bint            owned
    cdef object          __weakref__

    cdef int check(self) except -1


cdef class Event:
    cdef readonly Device device
    cdef readonly bint   timing
    cdef void *          ptr
    cdef object          __weakref__

    cdef int check(self) except -1


# The device of the job, or the host's memory where there is no job.
cdef Device default_device()

# The raw stream of a `stream=` argument (not None) for work on `device`.
cdef int stream_ptr(object stream, Device device, void **ptr) except -1

# A Stream over a raw stream that somebody else owns; NULL: the device's default stream.
cdef Stream borrow_stream(Device device, void *ptr)
