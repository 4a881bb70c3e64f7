# SPDX-License-Identifier: Apache-2.0
"""`Stream` and `Event`: queues of work in order, as CUDA has them, and the same in host memory.

In host memory the default stream runs each operation in the calling thread before the call returns; a stream made with
`Stream(device)` has a thread of its own, so that what is enqueued there is asynchronous, waits included. Neither waits for
the other.
"""

cimport cython

from .device cimport Device


@cython.no_gc_clear     # the destructor needs the device
cdef class Stream:
    """A queue of operations that run in order.

    Parameters
    ----------
    device : Device, optional
        Where the stream runs. Default: the device of the job, or the host's memory where there is no job.

    Attributes
    ----------
    device : Device
    handle : int
        The raw stream, for other libraries. 0: the device's default stream.
    """

    def __init__(self, Device device=None):
        if self.device is not None:
            raise TypeError("a Stream cannot be initialised twice")
        if device is None:
            device = default_device()
        device.check()
        self.ptr = device.runtime.stream_create(device.here())
        self.device = device
        self.owned = True

    def __dealloc__(self):
        if self.owned:
            self.device.runtime.stream_destroy(self.ptr)

    @property
    def handle(self):
        return <size_t> self.ptr

    def synchronize(self):
        """Wait until all that was enqueued is done.

        Raises
        ------
        NVSymError
            What an operation on the stream failed with, once. What was enqueued behind that operation was not run.
        """
        self.check()
        self.device.runtime.stream_drain(self.ptr)

    def query(self):
        """Whether all that was enqueued is done."""
        self.check()
        return self.device.runtime.stream_idle(self.ptr)

    def record_event(self, Event event=None):
        """Record `event` (a new one if None) behind what is enqueued, and return it."""
        self.check()
        if event is None:
            event = Event(self.device)
        event.record(self)
        return event

    def wait_event(self, Event event not None):
        """What is enqueued from now on waits for the last record of `event`; one never recorded is no wait."""
        self.check()
        event.check()
        self.device.runtime.event_enqueue_wait(event.ptr, self.ptr)

    def __eq__(self, other):
        if not isinstance(other, Stream):
            return NotImplemented
        cdef Stream that = <Stream> other
        return self.ptr == that.ptr and self.device == that.device

    def __hash__(self):
        return hash(<size_t> self.ptr)

    def __repr__(self):
        kind = "default" if self.ptr == NULL else hex(<size_t> self.ptr)
        return f"<Stream {kind} on {self.device!r}>"

    def __reduce__(self):
        raise TypeError("a Stream belongs to its process and cannot be pickled")

    cdef int check(self) except -1:
        if self.device is None:
            raise ValueError("the Stream was never initialised")
        return 0


@cython.no_gc_clear
cdef class Event:
    """A point in a stream that the host or another stream can wait for.

    Parameters
    ----------
    device : Device, optional
        As for `Stream`.
    timing : bool
        Whether `elapsed_time` will be asked.
    """

    def __init__(self, Device device=None, *, bint timing=False):
        if self.device is not None:
            raise TypeError("an Event cannot be initialised twice")
        if device is None:
            device = default_device()
        device.check()
        self.ptr = device.runtime.event_create(device.here(), timing)
        self.device = device
        self.timing = timing

    def __dealloc__(self):
        if self.ptr != NULL:
            self.device.runtime.event_destroy(self.ptr)

    def record(self, Stream stream=None):
        """Record the event behind what is enqueued on `stream` (the device's default stream if None)."""
        self.check()
        if stream is not None and stream.device != self.device:
            raise ValueError(f"stream: {stream!r} is not on the event's device, {self.device!r}")
        self.device.runtime.event_record(self.device.here(), self.ptr, NULL if stream is None else stream.ptr)

    def synchronize(self):
        """Wait until the stream has reached the last record.

        Raises
        ------
        PeerTimeoutError
            On GPUs, if a collective has given up waiting for another PE, and nobody has been told yet.
        """
        self.check()
        self.device.runtime.event_drain(self.ptr)

    def query(self):
        """Whether the stream has reached the last record."""
        self.check()
        return self.device.runtime.event_reached(self.ptr)

    def elapsed_time(self, Event end not None):
        """Milliseconds from this event to `end`.

        Raises
        ------
        ValueError
            If one of the two was made without ``timing=True``, was never recorded, or is not reached yet.
        """
        if not (self.timing and end.timing):
            raise ValueError("elapsed_time() needs events made with timing=True")
        return self.device.runtime.event_elapsed(self.ptr, end.ptr)

    def __reduce__(self):
        raise TypeError("an Event belongs to its process and cannot be pickled")

    cdef int check(self) except -1:
        if self.device is None:
            raise ValueError("the Event was never initialised")
        return 0


cdef Device default_device():
    from .context import _job_device    # a Stream is made before or after a job; the job knows its device
    device = _job_device()
    return Device.cpu() if device is None else device


cdef int stream_ptr(object stream, Device device, void **ptr) except -1:
    cdef object handle
    if isinstance(stream, Stream):
        if (<Stream> stream).device is not device and (<Stream> stream).device != device:
            raise ValueError(f"stream: {stream!r} is not a stream of {device!r}, where the buffer lives")
        ptr[0] = (<Stream> stream).ptr
        return 0
    if isinstance(stream, int) and not isinstance(stream, bool):
        handle = stream
    elif hasattr(stream, "__cuda_stream__"):
        handle = stream.__cuda_stream__()[1]
    elif hasattr(stream, "cuda_stream"):
        handle = stream.cuda_stream
    elif hasattr(stream, "ptr"):
        handle = stream.ptr
    else:
        raise TypeError("stream: expected None, an int, a Stream, or an object with __cuda_stream__, cuda_stream or ptr, "
                        f"not {type(stream).__name__}")
    try:
        ptr[0] = <void *> <size_t> handle
    except (OverflowError, TypeError):
        raise ValueError(f"stream: {handle!r} is no stream handle") from None
    ptr[0] = device.runtime.stream_check(<size_t> ptr[0])
    return 0


cdef Stream borrow_stream(Device device, void *ptr):
    cdef Stream stream = Stream.__new__(Stream)
    stream.device = device
    stream.ptr = ptr
    return stream
