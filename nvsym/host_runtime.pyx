# SPDX-License-Identifier: Apache-2.0
"""Streams, events and copies in host memory.

The default stream (NULL) runs each operation in the calling thread before the call returns. Every other stream has a
thread of its own (host_queue.h), so that what is enqueued there is asynchronous, waits included. They do not wait for
each other, as CUDA's non-blocking streams do not.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memmove

from .errors import ForkError, NVSymError

from .runtime cimport Runtime
from .status cimport STATUS_ARGUMENT, STATUS_MEMORY, Status, raise_status, status_text

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **ptr, size_t alignment, size_t nbytes)

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1

cdef extern from "host_queue.h" nogil:
    enum:
        HQ_PAYLOAD

    ctypedef struct hq:
        pass

    ctypedef struct hq_node:
        hq_node *next
        void *   keep

    ctypedef struct hq_event:
        pass

    ctypedef struct hq_record:
        pass

    ctypedef int (*hq_fn)(void *payload, void *status) noexcept

    hq *     hq_create(size_t status_size)
    int      hq_push(hq *q, hq_fn fn, hq_fn skip, const void *payload, size_t size, void *keep)
    void     hq_close(hq *q)
    hq_node *hq_reap()
    int      hq_inside(const hq *q)
    int      hq_idle(hq *q)
    uint64_t hq_last(hq *q)
    int      hq_drain_for(hq *q, uint64_t last, long milliseconds)
    int      hq_take_failure(hq *q, void *status)
    int      hq_take_any_failure(void *status)
    int      hq_is_registered(const void *p)
    int      hq_watch_forks()
    int      hq_lost(const hq *q)
    uint64_t hq_ticket()
    int      hq_ticket_done(uint64_t ticket)
    bint     hq_drain_all_for(uint64_t ticket, long milliseconds)

    hq_event * hq_event_create()
    int        hq_event_lost(const hq_event *e)
    void       hq_event_drop(hq_event *e)
    hq_record *hq_event_next(hq_event *e, const hq *by)
    hq_record *hq_event_last(hq_event *e)
    void       hq_record_drop(hq_event *e, hq_record *r)
    int        hq_event_behind(hq_event *e)
    void       hq_event_reach(hq_event *e, hq_record *r)
    int        hq_event_wait_for(hq_event *e, const hq_record *r, long milliseconds)
    int        hq_event_reached(hq_event *e)
    int64_t    hq_event_time(hq_event *e)
    int        hq_push_event(hq *q, hq_event *e, hq_record *r, int wait)

cdef enum:
    PAGE = 4096
    LINE = 256                  # alignment of small blocks, that of the symmetric heap
    LOOK_AROUND = 50            # milliseconds of a wait between two looks for signals
    RELEASE_GIL_ABOVE = 65536   # bytes; shorter copies cost less than giving the GIL away and taking it back

cdef enum:
    PER_THREAD_DEFAULT = 2      # the largest of CUDA's special stream handles


cdef struct CopyArgs:
    void *      dst
    const void *src
    size_t      nbytes


cdef int run_copy(void *payload, Status *status) noexcept nogil:
    cdef CopyArgs *args = <CopyArgs *> payload
    memmove(args.dst, args.src, args.nbytes)
    return 0


cdef int check_stream(void *stream) except -1:
    if stream != NULL and hq_lost(<hq *> stream):
        raise ForkError("the stream was made before this process was forked, and its thread is in the parent; make "
                        "another")
    return 0


cdef int check_event(void *event) except -1:
    if hq_event_lost(<hq_event *> event):
        raise ForkError("the event was made before this process was forked, and belongs to the parent; make another")
    return 0


cdef bint inside_operation() noexcept nogil:
    return hq_inside(NULL)


cdef int check_outside(const hq *queue) except -1:
    """That this thread does not run an operation of the queue (NULL: of any), and would wait for itself."""
    if hq_inside(queue):
        raise NVSymError("a function that was enqueued on a stream waits for that stream, and would wait for ever: synchronize() of it or "
                         "of the device, to_numpy() of a Buffer (such as a peer's) and finalize() belong outside of it")
    return 0


cdef int enqueue(void *stream, host_op op, host_op skip, const void *payload, size_t nbytes, bint *run_now,
                 Status *status) noexcept nogil:
    run_now[0] = <size_t> stream <= PER_THREAD_DEFAULT
    if run_now[0]:
        return 0
    # A queue that the parent of a forked process made is not registered here.
    if not hq_is_registered(stream):
        status_text(status, STATUS_ARGUMENT, b"stream: the handle is not that of a stream in host memory, where the buffers live")
        return -1
    if nbytes > HQ_PAYLOAD or hq_push(<hq *> stream, <hq_fn> op, <hq_fn> skip, payload, nbytes, NULL):
        status_text(status, STATUS_MEMORY, b"no memory to enqueue an operation")
        return -1
    return 0


cdef class HostRuntime(Runtime):
    """Host memory. There is one, `host_runtime`."""

    cdef int push(self, void *stream, host_op op, host_op skip, const void *payload, size_t nbytes, object keep) except -1:
        cdef PyObject *held = NULL
        if nbytes > HQ_PAYLOAD:
            raise AssertionError(f"an operation of {nbytes} bytes does not fit a node of a queue")
        check_stream(stream)
        if keep is not None:
            Py_INCREF(keep)
            held = <PyObject *> keep
        if hq_push(<hq *> stream, <hq_fn> op, <hq_fn> skip, payload, nbytes, held):
            if held != NULL:
                Py_DECREF(keep)
            raise MemoryError("no memory to enqueue an operation")
        return 0

    cdef int copy(self, int device, void *dst, const void *src, size_t nbytes, void *stream, object keep) except -1:
        cdef CopyArgs args
        if stream == NULL:
            return self.copy_now(-1, dst, src, nbytes)
        args.dst = dst
        args.src = src
        args.nbytes = nbytes
        self.reap()
        return self.push(stream, run_copy, NULL, &args, sizeof(args), keep)

    cdef int copy_now(self, int device, void *dst, const void *src, size_t nbytes) except -1:
        if nbytes < RELEASE_GIL_ABOVE:
            memmove(dst, src, nbytes)
        else:
            with nogil:
                memmove(dst, src, nbytes)
        return 0

    cdef void *alloc(self, int device, size_t nbytes) except NULL:
        cdef void *ptr = NULL
        if posix_memalign(&ptr, PAGE if nbytes >= PAGE else LINE, max(nbytes, 1)):
            raise MemoryError(f"no host memory for {nbytes} bytes")
        return ptr

    cdef void dealloc(self, int device, void *ptr) noexcept:
        free(ptr)

    cdef void *alloc_pinned(self, int device, size_t nbytes) except NULL:
        return self.alloc(device, nbytes)

    cdef void dealloc_pinned(self, void *ptr) noexcept:
        free(ptr)

    cdef void *stream_create(self, int device) except NULL:
        self.reap()
        cdef hq *queue = hq_create(sizeof(Status))
        if queue == NULL:
            raise MemoryError("no thread or memory for another stream")
        return queue

    cdef void stream_destroy(self, void *stream) noexcept:
        hq_close(<hq *> stream)     # it runs on until it is empty; reap() frees it

    cdef void *stream_check(self, size_t handle) except? NULL:
        if handle <= PER_THREAD_DEFAULT:
            return NULL
        if not hq_is_registered(<void *> handle):
            raise ValueError(f"stream: {handle:#x} is not a stream in host memory, where the buffer lives")
        return <void *> handle

    cdef bint stream_idle(self, void *stream) except -1:
        check_stream(stream)
        return stream == NULL or hq_idle(<hq *> stream)

    cdef int stream_drain(self, void *stream) except -1:
        cdef Status status
        cdef uint64_t last
        cdef bint done
        cdef int failed = -1
        if stream == NULL:
            return 0
        check_stream(stream)
        check_outside(<hq *> stream)
        while failed < 0:   # what came behind a failure meanwhile is passed over
            last = hq_last(<hq *> stream)
            done = False
            while not done:
                with nogil:
                    done = hq_drain_for(<hq *> stream, last, LOOK_AROUND)
                if not done:
                    PyErr_CheckSignals()
            self.reap()
            failed = hq_take_failure(<hq *> stream, &status)
        if failed:
            raise_status(&status)
        return 0

    cdef void *event_create(self, int device, bint timing) except NULL:
        cdef hq_event *event = hq_event_create()
        if event == NULL:
            raise MemoryError("no memory for an event")
        return event

    cdef void event_destroy(self, void *event) noexcept:
        hq_event_drop(<hq_event *> event)

    cdef int event_record(self, int device, void *event, void *stream) except -1:
        check_event(event)
        check_stream(stream)
        cdef hq_record *record = hq_event_next(<hq_event *> event, <hq *> stream)
        if record == NULL:
            raise MemoryError("no memory to record an event")
        if stream == NULL or hq_push_event(<hq *> stream, <hq_event *> event, record, 0):
            hq_event_reach(<hq_event *> event, record)
            hq_record_drop(<hq_event *> event, record)
            if stream != NULL:
                raise MemoryError("no memory to record an event")
        return 0

    cdef int event_enqueue_wait(self, void *event, void *stream) except -1:
        if stream == NULL:
            return self.event_drain(event)
        check_event(event)
        check_stream(stream)
        cdef hq_record *record = hq_event_last(<hq_event *> event)
        if record != NULL and hq_push_event(<hq *> stream, <hq_event *> event, record, 1):
            hq_record_drop(<hq_event *> event, record)
            raise MemoryError("no memory to enqueue a wait")
        return 0

    cdef bint event_reached(self, void *event) except -1:
        check_event(event)
        return hq_event_reached(<hq_event *> event)

    cdef int event_drain(self, void *event) except -1:
        check_event(event)
        if hq_event_behind(<hq_event *> event):
            raise NVSymError("a function that was enqueued on a stream waits for an event that is recorded behind it on that stream, and "
                             "would wait for ever")
        cdef hq_record *record = hq_event_last(<hq_event *> event)
        cdef bint done = record == NULL
        try:
            while not done:
                with nogil:
                    done = hq_event_wait_for(<hq_event *> event, record, LOOK_AROUND)
                if not done:
                    PyErr_CheckSignals()
        finally:
            hq_record_drop(<hq_event *> event, record)
        return 0

    cdef double event_elapsed(self, void *start, void *end) except? -1.0:
        for event in (<size_t> start, <size_t> end):
            check_event(<void *> <size_t> event)
            if hq_event_time(<hq_event *> <size_t> event) < 0:
                raise ValueError("elapsed_time() of an event that was never recorded")
            if not hq_event_reached(<hq_event *> <size_t> event):
                raise ValueError("elapsed_time() of an event that is not reached yet; synchronize() it first")
        return (hq_event_time(<hq_event *> end) - hq_event_time(<hq_event *> start)) / 1e6

    cdef uint64_t ticket(self) except? 0:
        return hq_ticket()

    cdef bint ticket_done(self, uint64_t ticket) except -1:
        return hq_ticket_done(ticket)

    cdef int drain_all(self, int device) except -1:
        check_outside(NULL)
        cdef uint64_t ticket = hq_ticket()
        cdef bint done = False
        while not done:
            with nogil:
                done = hq_drain_all_for(ticket, LOOK_AROUND)
            if not done:
                PyErr_CheckSignals()
        self.reap()
        return 0

    cdef int raise_failure(self) except -1:
        cdef Status status
        if hq_take_any_failure(&status):
            raise_status(&status)
        return 0

    cdef void reap(self) noexcept:
        # The list is taken before anything is released: a release may run code that comes back here.
        cdef hq_node *node = hq_reap()
        cdef hq_node *following
        while node != NULL:
            following = node.next
            if node.keep != NULL:
                Py_DECREF(<object> node.keep)
            free(node)
            node = following


if hq_watch_forks():
    raise MemoryError("no memory to register what happens at a fork")

cdef HostRuntime host_runtime = HostRuntime()


cdef HostRuntime get_host_runtime():
    return host_runtime
