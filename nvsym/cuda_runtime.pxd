# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t

from .libcuda cimport CUcontext, CUevent, CUstream
from .runtime cimport Runtime

cdef enum:
    MAX_DEVICES = 64

# A stream that nvsym enqueued work on. A stream of nvsym's own can be asked at any time; one of another library may be
# destroyed by its owner, so an event is recorded behind each piece of work on it.
cdef struct Used:
    CUstream stream
    CUevent  event      # own stream: of the running snapshot; other: behind the last work
    bint     own
    CUcontext context   # of the stream, and so of the event
    bint     recorded
    uint64_t capture    # other: the capture that the last work was a part of; 0: it was none

cdef class CudaRuntime(Runtime):
    cdef CUcontext contexts[MAX_DEVICES]    # primary contexts that are retained
    cdef int       n_devices
    cdef Used *    used
    cdef int       n_used
    cdef int       used_room
    cdef CUstream  last                     # own stream of the last work: nothing to note
    cdef uint64_t  seq                      # counts work; a ticket is a value of it
    cdef uint64_t  done_seq
    cdef uint64_t  snapshot_seq             # 0: no snapshot is running
    cdef CUstream  side[MAX_DEVICES]        # for copies that wait for no stream
    cdef list      own_streams
    cdef list      watchers                 # streams of which each is a part of a capture, to ask them whether that goes on
    cdef list      kept                     # (event, its context, what lives until it)
    cdef dict      spare_events             # by context: an event can be recorded on streams of its own context only
    cdef dict      pinned                   # bytes of each piece of pinned memory, by its address
    cdef list      parked                   # addresses of what nobody has any more: to free it waits for all that runs on a GPU
    cdef size_t    parked_bytes
    cdef object    after_drain              # called once a stream or event has been waited for; may raise. None: nothing

    cdef int use(self, int device) except -1                # make the device's primary context current in this thread
    cdef int mark(self, void *stream) except -1             # work has been enqueued on the stream
    # The same without the GIL, where they have little to do; False: call the other one.
    cdef bint using(self, int device) noexcept nogil
    cdef bint marked(self, void *stream) noexcept nogil
    cdef bint capturing(self, void *stream) except -1
    cdef bint any_capturing(self) except -1
    # Work on `after` comes behind what nvsym has enqueued on `before`, which may be a stream that is gone. Between a stream that
    # is captured and one that is not, there is no such order: what is captured runs when its graph is launched.
    cdef int order_behind(self, void *before, void *after) except -1
    cdef int capture_id(self, void *stream, uint64_t *number) except -1     # 0: not captured
    cdef int watch_capture(self, void *stream, uint64_t number) except -1
    cdef bint capture_runs(self, uint64_t number) except -1
    cdef int forget_ended_captures(self) except -1
    cdef int keep_until(self, void *stream, object keep) except -1
    cdef CUcontext context_of(self, void *stream) except? NULL
    cdef CUevent spare_event(self, CUcontext context) except NULL
    cdef int put_back(self, CUevent event, CUcontext context) except -1
    cdef int make_room(self) except -1
    cdef bint idle(self) except -1
    cdef int free_parked(self) except -1
    cdef int take_snapshot(self) except -1
    cdef bint snapshot_done(self) except -1
    # Copy through pinned blocks; False: it cannot be done here and now, and nothing was enqueued.
    cdef bint stage(self, int device, void *dst, const void *src, size_t nbytes, bint to_host, void *stream) except -1
    cdef bint pageable(self, const void *ptr) except -1
    cdef CUstream side_stream(self, int device) except NULL

cdef CudaRuntime get_cuda_runtime()
