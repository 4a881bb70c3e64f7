# SPDX-License-Identifier: Apache-2.0
"""Streams, events and copies of CUDA, over the driver's interface.

A call makes the primary context of its device current in the calling thread and leaves it so, as the CUDA runtime's
``cudaSetDevice`` does.
"""

from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from .errors import BackendError, NotAvailableError

from ._driver cimport CHECK_CUDA, cuda, load_cuda
from .libcuda cimport (
    CU_EVENT_DEFAULT, CU_EVENT_DISABLE_TIMING, CU_MEMHOSTALLOC_PORTABLE,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_STREAM_CAPTURE_STATUS_NONE, CU_STREAM_LEGACY, CU_STREAM_NON_BLOCKING, CU_STREAM_PER_THREAD,
    CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_INVALID_HANDLE,
    CUDA_ERROR_NO_DEVICE, CUDA_ERROR_NOT_READY, CUDA_SUCCESS, CUcontext, CUdevice, CUdeviceptr,
    CUevent, CUresult, CUstream, CUstreamCaptureStatus)
from .runtime cimport Runtime
from .staging cimport follows_staged, staged_copy

cdef extern from *:
    """
    /* Work is counted with and without the GIL. A sequentially consistent count also orders what `marked` reads. */
    static inline void nvsym_count_up(uint64_t *p) { __atomic_fetch_add(p, 1, __ATOMIC_SEQ_CST); }
    """
    void count_up "nvsym_count_up"(uint64_t *p) noexcept nogil

cdef enum:
    STAGED_BELOW = 65536    # bytes of pageable memory that the driver stages itself, without waiting, on the way to the GPU
    STAGED_NOW   = 1 << 20  # bytes from which staging is faster than the driver where the caller waits anyway
    FIRST_ROOM   = 64       # streams

cdef size_t MOST_PARKED = <size_t> 1 << 30     # bytes of pinned memory from which an allocation waits until it can be freed


cdef class CudaRuntime(Runtime):
    """The GPUs of this process. There is one, made when it is first asked for."""

    def __init__(self):
        load_cuda()
        cdef CUresult status = cuda.cuInit(0)
        if status == CUDA_ERROR_NO_DEVICE:
            raise NotAvailableError("the CUDA driver finds no GPU (check nvidia-smi; CUDA_VISIBLE_DEVICES may hide them, and a "
                                    "container has to be started with GPU access)")
        CHECK_CUDA(status, b"cuInit")
        CHECK_CUDA(cuda.cuDeviceGetCount(&self.n_devices), b"cuDeviceGetCount")
        if self.n_devices == 0:
            raise NotAvailableError("the CUDA driver finds no GPU (CUDA_VISIBLE_DEVICES may hide them)")
        self.n_devices = min(self.n_devices, MAX_DEVICES)
        self.seq = 1
        self.own_streams = []
        self.watchers = []
        self.pinned = {}
        self.parked = []
        self.kept = []
        self.spare_events = {}

    def __dealloc__(self):
        free(self.used)

    cdef int use(self, int device) except -1:
        cdef CUcontext current = NULL
        cdef CUdevice handle
        if device < 0 or device >= self.n_devices:
            raise ValueError(f"device: {device} is not in 0..{self.n_devices - 1}")
        if self.contexts[device] == NULL:
            CHECK_CUDA(cuda.cuDeviceGet(&handle, device), b"cuDeviceGet")
            CHECK_CUDA(cuda.cuDevicePrimaryCtxRetain(&self.contexts[device], handle), b"cuDevicePrimaryCtxRetain")
        CHECK_CUDA(cuda.cuCtxGetCurrent(&current), b"cuCtxGetCurrent")
        if current != self.contexts[device]:
            CHECK_CUDA(cuda.cuCtxSetCurrent(self.contexts[device]), b"cuCtxSetCurrent")
        return 0

    cdef bint using(self, int device) noexcept nogil:
        cdef CUcontext current = NULL
        return cuda.cuCtxGetCurrent(&current) == CUDA_SUCCESS and current != NULL and current == self.contexts[device]

    # ---- what work is where -----------------------------------------------------------------------------------------

    cdef int mark(self, void *stream) except -1:
        cdef int i
        cdef Used *used
        count_up(&self.seq)
        if stream == self.last and stream != NULL:
            return 0
        # The default streams have one handle on all GPUs.
        cdef CUcontext context = self.context_of(stream) if <size_t> stream <= <size_t> CU_STREAM_PER_THREAD else NULL
        for i in range(self.n_used):
            if self.used[i].stream == stream and (context == NULL or self.used[i].context == context):
                used = &self.used[i]
                break
        else:
            self.make_room()
            used = &self.used[self.n_used]
            used.stream = stream
            used.own = <size_t> stream in self.own_streams
            used.context = self.context_of(stream)
            used.event = NULL if used.own else self.spare_event(used.context)
            used.recorded, used.capture = False, 0
            self.n_used += 1
        if used.own:
            self.last = stream
        elif self.capturing(stream):
            self.capture_id(stream, &used.capture)
            self.watch_capture(stream, used.capture)
        else:
            CHECK_CUDA(cuda.cuEventRecord(used.event, used.stream), b"cuEventRecord")
            used.recorded, used.capture = True, 0
        return 0

    cdef bint marked(self, void *stream) noexcept nogil:
        if stream != self.last or stream == NULL:
            return False
        count_up(&self.seq)
        return stream == self.last

    cdef int make_room(self) except -1:
        """Room for one more stream. Nothing is waited for: what is on a stream may be waiting for what comes after this call."""
        cdef int i = 0, room
        cdef Used *used
        if self.n_used < self.used_room:
            return 0
        # Streams of others, and own ones that were dropped, are of no interest any more once their work is done.
        if self.n_used > 0 and not self.any_capturing():
            while i < self.n_used:
                used = &self.used[i]
                if used.own or not used.recorded or cuda.cuEventQuery(used.event) != CUDA_SUCCESS:
                    i += 1
                    continue
                self.put_back(used.event, used.context)
                self.n_used -= 1
                self.used[i] = self.used[self.n_used]
        if self.n_used > self.used_room // 2 or self.used_room == 0:
            room = max(2 * self.used_room, <int> FIRST_ROOM)
            used = <Used *> realloc(self.used, room * sizeof(Used))
            if used == NULL:
                raise MemoryError("no memory for the table of streams")
            self.used, self.used_room = used, room
        return 0

    cdef bint capturing(self, void *stream) except -1:
        cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
        cdef CUresult asked = cuda.cuStreamIsCapturing(stream, &status)
        # The legacy default stream answers with an error while any other stream is captured in global mode. Others may be gone.
        if asked != CUDA_SUCCESS:
            return asked != CUDA_ERROR_INVALID_HANDLE and asked != CUDA_ERROR_CONTEXT_IS_DESTROYED
        return status != CU_STREAM_CAPTURE_STATUS_NONE

    cdef bint any_capturing(self) except -1:
        cdef int i
        for handle in self.own_streams:
            if self.capturing(<void *> <size_t> handle):
                return True
        self.forget_ended_captures()
        for i in range(self.n_used):
            if not self.used[i].own and (self.used[i].capture != 0 or not self.used[i].recorded):
                return True
        return False

    cdef int order_behind(self, void *before, void *after) except -1:
        cdef int i
        cdef uint64_t first = 0, second = 0
        cdef Used *used
        if self.capturing(after):
            self.capture_id(after, &second)
            for i in range(self.n_used):
                if self.used[i].stream == before and before != NULL:
                    if self.used[i].own:
                        self.capture_id(before, &first)
                    else:   # its owner may have destroyed it since
                        first = self.used[i].capture
            if second != 0 and first == second:
                self.stream_order(before, after)
            return 0
        for i in range(self.n_used):
            used = &self.used[i]
            if used.stream != before and used.stream != NULL:
                continue
            if not used.own:
                if used.recorded:
                    CHECK_CUDA(cuda.cuStreamWaitEvent(after, used.event, 0), b"cuStreamWaitEvent")
            elif self.capturing(before):
                raise BackendError("what was enqueued on a stream before its capture began may still run, and a call on another "
                                   "stream has to come behind it; order the streams, or wait, before the capture begins")
            else:
                self.stream_order(before, after)
        return 0

    cdef int capture_id(self, void *stream, uint64_t *number) except -1:
        cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
        if cuda.cuStreamGetCaptureInfo(stream, &status, number, NULL, NULL, NULL) != CUDA_SUCCESS or (
                status == CU_STREAM_CAPTURE_STATUS_NONE):
            number[0] = 0
        return 0

    cdef int watch_capture(self, void *stream, uint64_t number) except -1:
        """Make a stream of nvsym's own a part of the capture that a stream of others is in.

        The other stream may be destroyed when the capture has ended, and to ask the driver about it then would end the process.
        """
        cdef CUstream watcher = NULL
        cdef uint64_t other = 0
        if number == 0 or self.capture_runs(number):
            return 0
        for handle in self.watchers:
            self.capture_id(<void *> <size_t> handle, &other)
            if other == 0:
                watcher = <CUstream> <size_t> handle
                break
        else:
            CHECK_CUDA(cuda.cuStreamCreate(&watcher, CU_STREAM_NON_BLOCKING), b"cuStreamCreate")
            self.watchers.append(<size_t> watcher)
        self.stream_order(stream, watcher)
        self.stream_order(watcher, stream)      # a capture cannot end while a stream has not come back
        return 0

    cdef bint capture_runs(self, uint64_t number) except -1:
        """Whether a capture that is watched has not ended."""
        cdef uint64_t other = 0
        for handle in self.watchers:
            self.capture_id(<void *> <size_t> handle, &other)
            if other == number and number != 0:
                return True
        return False

    cdef int forget_ended_captures(self) except -1:
        """Forget the captures of streams of others that have ended, and streams that were seen in one only.

        What was captured runs when its graph is launched, which nvsym does not see: the graph's owner keeps its buffers.
        """
        cdef int i = 0
        while i < self.n_used:
            if self.used[i].own or (self.used[i].recorded and self.used[i].capture == 0) or self.capture_runs(self.used[i].capture):
                i += 1
                continue
            if self.used[i].recorded:   # the event is behind what was enqueued before the capture
                self.used[i].capture = 0
                i += 1
                continue
            if self.used[i].event != NULL:
                self.put_back(self.used[i].event, self.used[i].context)
            self.n_used -= 1
            self.used[i] = self.used[self.n_used]
        return 0

    cdef uint64_t ticket(self) except? 0:
        return self.seq

    cdef bint ticket_done(self, uint64_t ticket) except -1:
        cdef int i
        if ticket <= self.done_seq or self.n_used == 0:
            return True
        for i in range(2):    # no-cython-lint
            if self.snapshot_seq == 0 and not self.take_snapshot():
                return False
            if not self.snapshot_done():
                return False
            self.done_seq = self.snapshot_seq
            self.snapshot_seq = 0
            if ticket <= self.done_seq:
                return True
        return False

    cdef int take_snapshot(self) except -1:
        """Record an event behind the work on each own stream; 0 if one is being captured and cannot be asked."""
        cdef int i
        cdef Used *used
        cdef uint64_t seq = self.seq    # before the events: what another thread counts meanwhile is not behind them
        self.forget_ended_captures()
        for i in range(self.n_used):
            used = &self.used[i]
            if not used.own:
                if used.capture != 0 or not used.recorded:
                    return 0
                continue
            if self.capturing(used.stream):
                return 0
        for i in range(self.n_used):
            used = &self.used[i]
            if used.own:
                if used.event == NULL:
                    used.event = self.spare_event(used.context)
                CHECK_CUDA(cuda.cuEventRecord(used.event, used.stream), b"cuEventRecord")
        self.snapshot_seq = seq
        self.last = NULL
        return 1

    cdef bint snapshot_done(self) except -1:
        cdef int i
        cdef CUresult status
        for i in range(self.n_used):
            if self.used[i].event == NULL:
                continue
            status = cuda.cuEventQuery(self.used[i].event)
            if status == CUDA_ERROR_NOT_READY:
                return False
            CHECK_CUDA(status, b"cuEventQuery")
        return True

    cdef int drain_all(self, int device) except -1:
        cdef uint64_t seq = self.seq
        cdef unsigned int flags = 0
        cdef int i, active = 0, handle = 0
        cdef bint alone = True
        if 0 <= device < self.n_devices and self.contexts[device] == NULL:
            CHECK_CUDA(cuda.cuDeviceGet(&handle, device), b"cuDeviceGet")
            CHECK_CUDA(cuda.cuDevicePrimaryCtxGetState(handle, &flags, &active), b"cuDevicePrimaryCtxGetState")
            if not active:      # nobody in this process has worked on it
                return 0
        self.use(device)
        with nogil:
            CHECK_CUDA(cuda.cuCtxSynchronize(), b"cuCtxSynchronize")
        for i in range(self.n_devices):
            if i != device and self.contexts[i] != NULL:
                alone = False   # a ticket counts the work on all GPUs: it asks the streams
        if alone:
            self.done_seq = max(self.done_seq, seq)
        self.reap()
        if self.parked and (alone or self.idle()):
            self.free_parked()
        return 0

    cdef bint idle(self) except -1:
        """Whether nothing of what nvsym has enqueued is left to do."""
        return not self.any_capturing() and self.ticket_done(self.seq)

    cdef CUcontext context_of(self, void *stream) except? NULL:
        """The context of a stream; of one that the driver does not know, or will not tell of now, the current one."""
        cdef CUcontext context = NULL
        if cuda.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS or context == NULL:
            CHECK_CUDA(cuda.cuCtxGetCurrent(&context), b"cuCtxGetCurrent")
        return context

    cdef CUevent spare_event(self, CUcontext context) except NULL:
        """An event of a context; `put_back` takes it when it is of no use any more."""
        cdef CUevent event = NULL
        cdef CUcontext current = NULL
        cdef list spare = <list> self.spare_events.get(<size_t> context)
        if spare:
            return <CUevent> <size_t> spare.pop()
        CHECK_CUDA(cuda.cuCtxGetCurrent(&current), b"cuCtxGetCurrent")
        try:
            if current != context:
                CHECK_CUDA(cuda.cuCtxSetCurrent(context), b"cuCtxSetCurrent")
            CHECK_CUDA(cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), b"cuEventCreate")
        finally:
            if current != context:
                CHECK_CUDA(cuda.cuCtxSetCurrent(current), b"cuCtxSetCurrent")
        return event

    cdef int put_back(self, CUevent event, CUcontext context) except -1:
        self.spare_events.setdefault(<size_t> context, []).append(<size_t> event)
        return 0

    cdef int keep_until(self, void *stream, object keep) except -1:
        """Hold an object until what is enqueued on the stream now is done. A captured copy is the caller's to keep."""
        cdef CUevent event
        cdef CUcontext context
        if keep is None or self.capturing(stream):
            return 0
        context = self.context_of(stream)
        event = self.spare_event(context)
        CHECK_CUDA(cuda.cuEventRecord(event, stream), b"cuEventRecord")
        self.kept.append((<size_t> event, <size_t> context, keep))
        if len(self.kept) >= 64:
            self.reap()
        return 0

    cdef void reap(self) noexcept:
        cdef list kept = self.kept
        if not kept or self.any_capturing():    # the question would end a capture
            return
        self.kept = []
        for event, context, keep in kept:
            if cuda.cuEventQuery(<CUevent> <size_t> event) == CUDA_SUCCESS:
                self.put_back(<CUevent> <size_t> event, <CUcontext> <size_t> context)
            else:
                self.kept.append((event, context, keep))

    # ---- memory -----------------------------------------------------------------------------------------------------

    cdef bint pageable(self, const void *ptr) except -1:
        """Whether the memory is host memory that the driver has not page-locked."""
        cdef unsigned int kind = 0
        return cuda.cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, <CUdeviceptr> ptr) != CUDA_SUCCESS

    cdef int copy(self, int device, void *dst, const void *src, size_t nbytes, void *stream, object keep) except -1:
        self.use(device)
        if nbytes == 0:
            return 0
        cdef bint to_host = self.pageable(dst)
        cdef bint from_host = not to_host and self.pageable(src)
        if (to_host or from_host) and self.capturing(stream):
            raise BackendError("a copy of pageable host memory cannot be captured into a CUDA graph; use a HostBuffer")
        # The driver would keep the caller in a copy to pageable memory until the stream has come to it. From there it would take now
        # what such a copy has yet to bring.
        cdef bint follows = from_host and follows_staged(src, nbytes)
        if not ((to_host or from_host and (nbytes > STAGED_BELOW or follows)) and self.stage(device, dst, src, nbytes, to_host, stream)):
            if follows:
                raise BackendError("a copy from host memory that another copy has yet to bring data to needs pinned memory, which cannot "
                                   "be allocated while a stream is in a capture; wait for the first copy, or use HostBuffers")
            with nogil:
                CHECK_CUDA(cuda.cuMemcpyAsync(<CUdeviceptr> dst, <CUdeviceptr> src, nbytes, stream), b"cuMemcpyAsync")
        self.mark(stream)
        return self.keep_until(stream, keep)

    cdef bint stage(self, int device, void *dst, const void *src, size_t nbytes, bint to_host, void *stream) except -1:
        if staged_copy(device, dst, src, nbytes, to_host, stream, False):
            return True
        return not self.any_capturing() and staged_copy(device, dst, src, nbytes, to_host, stream, True)

    cdef CUstream side_stream(self, int device) except NULL:
        self.use(device)
        if self.side[device] == NULL:
            CHECK_CUDA(cuda.cuStreamCreate(&self.side[device], CU_STREAM_NON_BLOCKING), b"cuStreamCreate")
        return self.side[device]

    cdef int copy_now(self, int device, void *dst, const void *src, size_t nbytes) except -1:
        if nbytes == 0:
            return 0
        if device < 0:
            raise ValueError("a copy of GPU memory needs its device")
        cdef CUstream side = self.side_stream(device)
        cdef bint to_host = nbytes >= STAGED_NOW and self.pageable(dst)
        cdef bint staged = nbytes >= STAGED_NOW and (to_host or self.pageable(src)) and (
            self.stage(device, dst, src, nbytes, to_host, side))
        with nogil:
            if not staged:
                CHECK_CUDA(cuda.cuMemcpyAsync(<CUdeviceptr> dst, <CUdeviceptr> src, nbytes, side), b"cuMemcpyAsync")
            CHECK_CUDA(cuda.cuStreamSynchronize(side), b"cuStreamSynchronize")
        return 0

    cdef bint fill(self, int device, void *dst, const void *pattern, size_t itemsize, size_t count, void *stream) except -1:
        cdef size_t total = itemsize * count, done = itemsize, i
        cdef CUdeviceptr to = <CUdeviceptr> dst
        cdef const unsigned char *bytes_of = <const unsigned char *> pattern
        cdef bint uniform = True
        cdef uint16_t half
        cdef uint32_t word
        self.use(device)
        if total == 0:
            return True
        for i in range(1, itemsize):
            if bytes_of[i] != bytes_of[0]:
                uniform = False
        with nogil:
            if uniform:
                CHECK_CUDA(cuda.cuMemsetD8Async(to, bytes_of[0], total, stream), b"cuMemsetD8Async")
            elif itemsize == 2:
                memcpy(&half, pattern, 2)
                CHECK_CUDA(cuda.cuMemsetD16Async(to, half, count, stream), b"cuMemsetD16Async")
            elif itemsize == 4:
                memcpy(&word, pattern, 4)
                CHECK_CUDA(cuda.cuMemsetD32Async(to, word, count, stream), b"cuMemsetD32Async")
            else:
                # The first element by words, the rest by copies that double what is there.
                for i in range(itemsize // 4):
                    memcpy(&word, bytes_of + 4 * i, 4)
                    CHECK_CUDA(cuda.cuMemsetD32Async(to + 4 * i, word, 1, stream), b"cuMemsetD32Async")
                while done < total:
                    i = min(done, total - done)
                    CHECK_CUDA(cuda.cuMemcpyAsync(to + done, to, i, stream), b"cuMemcpyAsync")
                    done += i
        self.mark(stream)
        return True

    cdef bint fill_now(self, int device, void *dst, const void *pattern, size_t itemsize, size_t count) except -1:
        cdef CUstream side = self.side_stream(device)
        self.fill(device, dst, pattern, itemsize, count, side)
        with nogil:
            CHECK_CUDA(cuda.cuStreamSynchronize(side), b"cuStreamSynchronize")
        return True

    cdef void *alloc(self, int device, size_t nbytes) except NULL:
        cdef CUdeviceptr ptr = 0
        self.use(device)
        CHECK_CUDA(cuda.cuMemAlloc(&ptr, max(nbytes, 1)), b"cuMemAlloc")
        return <void *> ptr

    cdef void dealloc(self, int device, void *ptr) noexcept:
        cuda.cuMemFree(<CUdeviceptr> ptr)

    cdef void *alloc_pinned(self, int device, size_t nbytes) except NULL:
        cdef void *ptr = NULL
        cdef CUresult status
        self.use(device)
        if self.any_capturing():
            raise BackendError("pinned memory cannot be allocated while a stream is being captured into a CUDA graph; make it before or "
                               "after the capture")
        if self.parked and (self.parked_bytes > MOST_PARKED or self.idle()):
            self.free_parked()
        status = cuda.cuMemHostAlloc(&ptr, max(nbytes, 1), CU_MEMHOSTALLOC_PORTABLE)
        if status != CUDA_SUCCESS and self.parked:
            self.free_parked()
            status = cuda.cuMemHostAlloc(&ptr, max(nbytes, 1), CU_MEMHOSTALLOC_PORTABLE)
        CHECK_CUDA(status, b"cuMemHostAlloc")
        self.pinned[<size_t> ptr] = nbytes
        return ptr

    cdef void dealloc_pinned(self, void *ptr) noexcept:
        # Called from destructors. The driver frees it when all that runs on a GPU is done, which may be waiting for this thread.
        self.parked.append(<size_t> ptr)
        self.parked_bytes += <size_t> self.pinned.pop(<size_t> ptr, 0)

    cdef int free_parked(self) except -1:
        """Free pinned memory that was given up. It waits for all that runs on a GPU."""
        cdef list parked = self.parked
        cdef void *ptr
        self.parked, self.parked_bytes = [], 0
        for address in parked:
            ptr = <void *> <size_t> address
            with nogil:
                cuda.cuMemFreeHost(ptr)
        return 0

    # ---- streams and events -----------------------------------------------------------------------------------------

    cdef void *stream_create(self, int device) except NULL:
        cdef CUstream stream = NULL
        self.use(device)
        CHECK_CUDA(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), b"cuStreamCreate")
        self.own_streams.append(<size_t> stream)
        return stream

    cdef void stream_destroy(self, void *stream) noexcept:
        # What is on it runs on. An event behind it takes the place of the stream, which cannot be asked any more.
        cdef int i
        self.own_streams.remove(<size_t> stream)
        if self.last == stream:
            self.last = NULL
        for i in range(self.n_used):
            if self.used[i].stream == stream:
                self.used[i].own = False
                if self.used[i].event == NULL:
                    try:
                        self.used[i].event = self.spare_event(self.used[i].context)
                    except Exception:   # no event left: the snapshot never counts this stream as done, drain_all does
                        self.used[i].recorded = False
                        continue
                self.used[i].recorded = cuda.cuEventRecord(self.used[i].event, stream) == CUDA_SUCCESS
                self.used[i].stream = NULL
        cuda.cuStreamDestroy(stream)

    cdef void *stream_check(self, size_t handle) except? NULL:
        # The driver has no way to ask whether a handle is a stream. 0 is the legacy default stream by another name: where NULL
        # stands for a stream, the layers above take it for one that is always done.
        return <void *> <size_t> CU_STREAM_LEGACY if handle == 0 else <void *> handle

    cdef bint stream_idle(self, void *stream) except -1:
        cdef CUresult status = cuda.cuStreamQuery(stream)
        if status == CUDA_ERROR_NOT_READY:
            return False
        CHECK_CUDA(status, b"cuStreamQuery")
        return True

    cdef int stream_drain(self, void *stream) except -1:
        with nogil:
            CHECK_CUDA(cuda.cuStreamSynchronize(stream), b"cuStreamSynchronize")
        self.reap()
        if self.parked and self.idle():
            self.free_parked()
        return self.raise_failure()

    cdef int raise_failure(self) except -1:
        if self.after_drain is not None:
            self.after_drain()
        return 0

    cdef int stream_order(self, void *before, void *after) except -1:
        cdef CUevent event
        cdef CUcontext context
        if before == after:
            return 0
        context = self.context_of(before)
        event = self.spare_event(context)
        CHECK_CUDA(cuda.cuEventRecord(event, before), b"cuEventRecord")
        CHECK_CUDA(cuda.cuStreamWaitEvent(after, event, 0), b"cuStreamWaitEvent")
        self.put_back(event, context)   # a wait that is enqueued is for the record before it
        return 0

    cdef void *event_create(self, int device, bint timing) except NULL:
        cdef CUevent event = NULL
        self.use(device)
        CHECK_CUDA(cuda.cuEventCreate(&event, CU_EVENT_DEFAULT if timing else CU_EVENT_DISABLE_TIMING), b"cuEventCreate")
        return event

    cdef void event_destroy(self, void *event) noexcept:
        cuda.cuEventDestroy(event)

    cdef int event_record(self, int device, void *event, void *stream) except -1:
        self.use(device)    # whose default stream NULL is
        return CHECK_CUDA(cuda.cuEventRecord(event, stream), b"cuEventRecord")

    cdef int event_enqueue_wait(self, void *event, void *stream) except -1:
        return CHECK_CUDA(cuda.cuStreamWaitEvent(stream, event, 0), b"cuStreamWaitEvent")

    cdef bint event_reached(self, void *event) except -1:
        cdef CUresult status = cuda.cuEventQuery(event)
        if status == CUDA_ERROR_NOT_READY:
            return False
        CHECK_CUDA(status, b"cuEventQuery")
        return True

    cdef int event_drain(self, void *event) except -1:
        with nogil:
            CHECK_CUDA(cuda.cuEventSynchronize(event), b"cuEventSynchronize")
        return self.raise_failure()

    cdef double event_elapsed(self, void *start, void *end) except? -1.0:
        cdef float ms = 0
        cdef CUresult status = cuda.cuEventElapsedTime(&ms, start, end)
        if status == CUDA_ERROR_NOT_READY:
            raise ValueError("elapsed_time() of an event that is not reached yet; synchronize() it first")
        CHECK_CUDA(status, b"cuEventElapsedTime")
        return ms


cdef CudaRuntime _runtime = None


cdef CudaRuntime get_cuda_runtime():
    global _runtime
    if _runtime is None:
        _runtime = CudaRuntime()
    return _runtime
