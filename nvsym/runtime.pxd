# SPDX-License-Identifier: Apache-2.0
# What the layers above need of a kind of memory and of the processor that works on it: streams, events, copies, allocation.
# One class implements it for host memory (host_runtime), one for CUDA. Streams and events are raw pointers here.
from libc.stdint cimport uint64_t

cdef class Runtime:
    # `keep` lives until the copy is done.
    cdef int      copy(self, int device, void *dst, const void *src, size_t nbytes, void *stream, object keep) except -1
    # Done, and seen by whoever reads the memory, when the call returns. Waits for no stream.
    cdef int      copy_now(self, int device, void *dst, const void *src, size_t nbytes) except -1
    # Fill with `count` copies of a pattern. False: it cannot, and the caller copies. A stream of NULL is the default one.
    cdef bint     fill(self, int device, void *dst, const void *pattern, size_t itemsize, size_t count, void *stream) except -1
    # The same, done when the call returns; waits for no stream.
    cdef bint     fill_now(self, int device, void *dst, const void *pattern, size_t itemsize, size_t count) except -1
    cdef void *   alloc(self, int device, size_t nbytes) except NULL
    cdef void     dealloc(self, int device, void *ptr) noexcept
    cdef void *   alloc_pinned(self, int device, size_t nbytes) except NULL
    cdef void     dealloc_pinned(self, void *ptr) noexcept

    cdef void *   stream_create(self, int device) except NULL
    cdef void     stream_destroy(self, void *stream) noexcept      # what is enqueued still runs
    cdef void *   stream_check(self, size_t handle) except? NULL   # the stream of a handle from outside
    cdef bint     stream_idle(self, void *stream) except -1
    cdef int      stream_drain(self, void *stream) except -1
    # What is enqueued on `after` from now on comes behind what is on `before` now.
    cdef int      stream_order(self, void *before, void *after) except -1

    cdef void *   event_create(self, int device, bint timing) except NULL
    cdef void     event_destroy(self, void *event) noexcept
    cdef int      event_record(self, int device, void *event, void *stream) except -1
    cdef int      event_enqueue_wait(self, void *event, void *stream) except -1
    cdef bint     event_reached(self, void *event) except -1
    cdef int      event_drain(self, void *event) except -1
    cdef double   event_elapsed(self, void *start, void *end) except? -1.0   # milliseconds

    # A ticket stands for all work that this process has enqueued through nvsym so far.
    cdef uint64_t ticket(self) except? 0
    cdef bint     ticket_done(self, uint64_t ticket) except -1
    cdef int      drain_all(self, int device) except -1
    cdef int      raise_failure(self) except -1                     # of work that nobody has waited for; each once
    cdef void     reap(self) noexcept                              # drop what finished work kept alive
