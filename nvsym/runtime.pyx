# SPDX-License-Identifier: Apache-2.0
"""`Runtime`: what a kind of memory must offer to the layers above (see runtime.pxd)."""

from libc.stdint cimport uint64_t


cdef class Runtime:
    """The operations of a kind of memory. Abstract: a subclass implements every method of runtime.pxd."""

    cdef int copy(self, int device, void *dst, const void *src, size_t nbytes, void *stream, object keep) except -1:
        raise NotImplementedError

    cdef int copy_now(self, int device, void *dst, const void *src, size_t nbytes) except -1:
        raise NotImplementedError

    cdef bint fill(self, int device, void *dst, const void *pattern, size_t itemsize, size_t count, void *stream) except -1:
        return False

    cdef bint fill_now(self, int device, void *dst, const void *pattern, size_t itemsize, size_t count) except -1:
        return False

    cdef void *alloc(self, int device, size_t nbytes) except NULL:
        raise NotImplementedError

    cdef void dealloc(self, int device, void *ptr) noexcept:
        pass

    cdef void *alloc_pinned(self, int device, size_t nbytes) except NULL:
        raise NotImplementedError

    cdef void dealloc_pinned(self, void *ptr) noexcept:
        pass

    cdef void *stream_create(self, int device) except NULL:
        raise NotImplementedError

    cdef void stream_destroy(self, void *stream) noexcept:
        pass

    cdef void *stream_check(self, size_t handle) except? NULL:
        raise NotImplementedError

    cdef bint stream_idle(self, void *stream) except -1:
        raise NotImplementedError

    cdef int stream_drain(self, void *stream) except -1:
        raise NotImplementedError

    cdef int stream_order(self, void *before, void *after) except -1:
        raise NotImplementedError

    cdef void *event_create(self, int device, bint timing) except NULL:
        raise NotImplementedError

    cdef void event_destroy(self, void *event) noexcept:
        pass

    cdef int event_record(self, int device, void *event, void *stream) except -1:
        raise NotImplementedError

    cdef int event_enqueue_wait(self, void *event, void *stream) except -1:
        raise NotImplementedError

    cdef bint event_reached(self, void *event) except -1:
        raise NotImplementedError

    cdef int event_drain(self, void *event) except -1:
        raise NotImplementedError

    cdef double event_elapsed(self, void *start, void *end) except? -1.0:
        raise NotImplementedError

    cdef uint64_t ticket(self) except? 0:
        raise NotImplementedError

    cdef bint ticket_done(self, uint64_t ticket) except -1:
        raise NotImplementedError

    cdef int drain_all(self, int device) except -1:
        raise NotImplementedError

    cdef int raise_failure(self) except -1:
        return 0

    cdef void reap(self) noexcept:
        pass
