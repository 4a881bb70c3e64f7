# SPDX-License-Identifier: Apache-2.0
"""`SHMEMBuffer[dtype]`: a typed buffer on the symmetric heap, at the same offset on every PE."""

cimport cython
from libc.stdint cimport int64_t

from operator import index

import numpy as np

from .dtypes import as_dtype
from .errors import FreedBufferError, MulticastUnsupportedError, PeerUnreachableError

from .device cimport Device
from .heap cimport Allocation
from .job cimport Job, current_job
from .memory cimport (
    Buffer, HostArray, array_over, as_count, as_requested, cuda_array_interface, dlpack_memory, export_array, fill_view,
    hand_over, host_array, is_gpu_tensor, make_buffer)
from .stream cimport stream_ptr
from .team cimport Team, as_team

cdef extern from "Python.h":
    long PyLong_AsLongAndOverflow(object obj, int *overflow) except? -1

cdef enum:
    FILL_STEP = 1 << 20     # bytes

cdef dict KIND_ORDER = {"bool": 0, "int": 1, "uint": 1, "float": 2, "complex": 3}

cdef dict _classes = {}     # DType -> the class of its buffers


cdef class SHMEMBuffer:
    """A buffer of `n` elements on the symmetric heap.

    ``SHMEMBuffer[dtype]`` is the class of the buffers of one element type: ``SHMEMBuffer[numpy.float32](1024)``. Making
    one is collective: every PE of the job makes it, with the same element type and length. The contents are not initialised.

    Parameters
    ----------
    n : int
        Elements; 0 is allowed.

    Attributes
    ----------
    dtype : numpy.dtype
        Also of the class.
    itemsize, nbytes : int
        Bytes of one element, and of all.
    device : Device
        Where this PE's copy lives.
    is_freed : bool

    Raises
    ------
    CollectiveError
        On every PE, if the PEs ask for different element types or lengths.
    HeapExhaustedError
        On every PE, if there is no room on one.
    TypeError, ValueError
        For an `n` that is no number of elements; on every PE.
    """

    device_type = "symmetric"

    def __class_getitem__(cls, dtype):
        element = as_dtype(dtype)
        found = _classes.get(element)
        if found is None:
            name = f"SHMEMBuffer[{element.name}]"
            found = type(name, (SHMEMBuffer,), {
                "__slots__": (), "__module__": "nvsym", "__qualname__": name, "__doc__": SHMEMBuffer.__doc__,
                "_element": element, "dtype": element.numpy, "itemsize": element.itemsize,
            })
            found = _classes.setdefault(element, found)
        if cls is not SHMEMBuffer and cls is not found:
            raise TypeError(f"{cls.__name__} has its element type already")
        return found

    def __init__(self, n):
        if self.block is not None:
            raise TypeError("a SHMEMBuffer cannot be initialised twice")
        allocate(self, n, False, None)

    @classmethod
    def zeros(cls, n):
        """A buffer of zeros on every PE; collective. No PE returns before all are zero."""
        return cls.full(n, 0)

    @classmethod
    def full(cls, n, value):
        """A buffer with `value` in each element on every PE; collective. The PEs may give different values.

        Raises
        ------
        TypeError, ValueError, OverflowError
            On every PE, if a value is none of the element type.
        """
        cdef SHMEMBuffer buffer = _new(cls)
        error = None
        try:
            pattern = as_pattern(value, buffer._element)
        except Exception as e:
            error = e
        allocate(buffer, n, True, error)
        buffer.job.agreement.attempt("filling a new buffer", lambda: buffer.fill_now(pattern))
        return buffer

    @classmethod
    def from_numpy(cls, array):
        """A buffer with the contents of this PE's `array`; collective. All arrays have the same length.

        Parameters
        ----------
        array : array
            C-contiguous, in host memory, of the element type of the class.

        Raises
        ------
        TypeError, ValueError
            On every PE, if an array is not of this form.
        """
        cdef SHMEMBuffer buffer = _new(cls)
        cdef HostArray host = HostArray()
        error = None
        n = 0
        try:
            n = np.asarray(array).size
            host_array(host, "array", array, cls._element, n, False)
        except Exception as e:
            error = e
        allocate(buffer, n, True, error)
        buffer.job.agreement.attempt("filling a new buffer", lambda: buffer.copy_now(buffer.ptr, host.ptr, host.nbytes, buffer.keeper()))
        return buffer

    @classmethod
    def from_dlpack(cls, tensor):
        """A buffer with a copy of this PE's `tensor`; collective. All tensors have the same number of elements.

        Parameters
        ----------
        tensor : object with ``__dlpack__``
            Of PyTorch, CuPy, JAX, NumPy and so on: C-contiguous, in host memory or on this PE's GPU. What its library has
            enqueued on it is waited for. ``SHMEMBuffer.from_dlpack(tensor)`` takes the element type from the tensor; that
            of ``SHMEMBuffer[dtype].from_dlpack(tensor)`` must be the same.

        Raises
        ------
        TypeError, ValueError, BufferError
            On every PE, if a tensor is not of this form.
        """
        cdef HostArray source = HostArray()
        cdef SHMEMBuffer buffer
        cdef Job job = current_job()
        cdef void *stream = job.backend.stream.ptr
        kind = cls
        error = None
        n = 0
        try:
            job.backend.check_host_call()
            element = dlpack_memory(source, "tensor", tensor, job.backend.device, <size_t> stream, False)
            wanted = getattr(cls, "_element", None)
            if wanted is not None and wanted is not element:
                raise TypeError(f"tensor: dtype {element.name} differs from {wanted.name}, and nothing is converted")
            kind = SHMEMBuffer[element.numpy]
            n = source.nbytes // <size_t> element.itemsize
        except Exception as e:
            error = e
            if getattr(kind, "_element", None) is None:
                kind = SHMEMBuffer[np.uint8]    # only to tell the others of the error
        buffer = _new(kind)
        allocate(buffer, n, True, error)

        def copy():
            keep = (source.keep, buffer.keeper())
            job.backend.runtime.copy(job.backend.device.ordinal, buffer.ptr, source.ptr, source.nbytes, stream, keep)
            job.backend.runtime.stream_drain(stream)

        job.agreement.attempt("filling a new buffer", copy)
        return buffer

    @classmethod
    def adopt(cls, ptr, n, *, owner=None):
        """A buffer over symmetric memory that exists; not collective.

        Parameters
        ----------
        ptr : int
            This PE's symmetric address. For operations on other PEs it must be the same place on all.
        n : int
            Elements.
        owner : object, optional
            Kept alive by the buffer. The memory stays its own: `free` only ends the use of this buffer.

        Raises
        ------
        ValueError
            If the range is not inside the symmetric heap, or not aligned to the element.
        """
        cdef SHMEMBuffer buffer = _new(cls)
        cdef Job job = current_job()
        cdef size_t address = as_address(ptr, "ptr")
        cdef int64_t count = as_count(n, cls._element)
        cdef int arena
        cdef size_t base, nbytes = count * cls.itemsize
        if address % <size_t> cls.dtype.alignment:
            raise ValueError(f"ptr: {address:#x} is not a multiple of {cls.dtype.alignment}, which {cls._element.name} "
                             "needs")
        for arena in range(job.backend.arena_count()):
            base = <size_t> job.backend.arena_base(arena)
            if base <= address and nbytes <= job.backend.arena_size(arena) - min(address - base, job.backend.arena_size(arena)):
                break
        else:
            raise ValueError(f"ptr: {nbytes} bytes at {address:#x} are not in the symmetric heap")
        cdef Allocation block = Allocation.__new__(Allocation)
        block.heap = job.heap
        block.noted = True      # not of the allocator: nothing to give back
        block.id = -1
        block.nbytes = nbytes
        block.ptr = <char *> address
        buffer.bind(job, block, cls._element, count)
        buffer.keep = owner
        return buffer

    @classmethod
    def get_type_name(cls):
        """``"SHMEMBuffer[float32]"``."""
        return f"SHMEMBuffer[{_element_of(cls).name}]"

    def __len__(self):
        return self.count

    @property
    def nbytes(self):
        return self.count * self.item

    @property
    def device(self):
        return None if self.job is None else self.job.backend.device

    @property
    def is_freed(self):
        return self.block is None or self.block.freed or self.block.heap.closed is not None

    def unsafe_ptr(self):
        """The address of this PE's copy, as an int: the symmetric address that kernels take."""
        self.check()
        return <size_t> self.ptr

    def __getitem__(self, key):
        """``b[i:j]``: a view of the same memory, symmetric like it. Step 1 only."""
        cdef Py_ssize_t start, stop, step
        self.check()
        if not isinstance(key, slice):
            raise TypeError(f"a SHMEMBuffer takes a slice, not {key!r}; b[i:i+1] is one element, to_numpy() gives values")
        start, stop, step = key.indices(self.count)
        if step != 1:
            raise ValueError(f"step: a slice of a SHMEMBuffer has step 1, not {step}")
        return self.alias(start, max(stop - start, 0))

    def enqueue_copy_to(self, dst, *, stream=None):
        """Copy the whole buffer to other memory, in the order of `stream`.

        Parameters
        ----------
        dst : int, HostBuffer or array
            An address with room for `nbytes`, or a C-contiguous writable array of the same element type and length: in host
            memory (buffer protocol or DLPack), or on this PE's GPU (DLPack), where `stream` waits for what its library has
            enqueued on it. It is kept alive until the copy is done; an address is the caller's to keep.
        stream : stream, optional
            Default: that of the context.

        Raises
        ------
        TypeError
            For another element type or a wrong kind of object.
        ValueError
            For another length, a layout that is not contiguous, or a read-only destination. Nothing is enqueued.
        """
        self.copy_host(dst, "dst", stream, True)

    def enqueue_copy_from(self, src, *, stream=None):
        """Overwrite the whole buffer from other memory, in the order of `stream`.

        Parameters
        ----------
        src : int, HostBuffer or array
            As for `enqueue_copy_to`, but it may be read-only. Do not change it before the copy is done.
        stream : stream, optional
            Default: that of the context.

        Raises
        ------
        TypeError, ValueError
            As for `enqueue_copy_to`.
        """
        self.copy_host(src, "src", stream, False)

    def to_numpy(self):
        """A new NumPy array with the contents, after what this PE enqueued on its default stream is done."""
        self.check()
        array = np.empty(self.count, self.element.numpy)
        cdef void *address = <void *> <size_t> array.ctypes.data
        self.job.backend.runtime.stream_drain(self.job.backend.stream.ptr)
        # Where Python code has run, another thread may have ended the job: the memory is held first, and looked at then.
        keeper = self.keeper()
        self.check()
        self.copy_now(address, self.ptr, self.count * self.item, keeper)
        return array

    def fill(self, value, stream=None):
        """Set every element to `value`, in the order of `stream`.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If the value is none of the element type.
        """
        cdef void *ptr = NULL
        self.check()
        self.stream_of(stream, &ptr)
        pattern = as_pattern(value, self.element)
        cdef void *source = <void *> <size_t> pattern.ctypes.data
        keeper = self.keeper()
        self.check()
        if self.job.backend.runtime.fill(self.job.backend.device.ordinal, self.ptr, source, self.item, self.count, ptr):
            return
        pattern = np.repeat(pattern, self.count)
        source = <void *> <size_t> pattern.ctypes.data
        keep = (self, pattern, keeper)
        self.check()
        self.job.backend.runtime.copy(self.job.backend.device.ordinal, self.ptr, source, self.count * self.item, ptr, keep)

    def peer(self, pe):
        """A `Buffer` over the copy of another PE.

        Raises
        ------
        ValueError
            If there is no such PE.
        PeerUnreachableError
            If its memory cannot be addressed from here.
        """
        self.check()
        cdef int number = as_pe(pe, self.job.n_pes)
        cdef void *ptr = self.job.backend.peer_ptr(self.ptr, number)
        if ptr == NULL:
            raise PeerUnreachableError(
                f"the memory of PE {number} ({self.job.agreement.names[number]}) cannot be addressed from PE "
                f"{self.job.my_pe} ({self.job.agreement.names[self.job.my_pe]}), which is on another node; use put and get", [number])
        cdef Buffer buffer = make_buffer(self.job.backend.devices[number], self.element, (self.count,), ptr, self.block,
                                         self.keeper())
        buffer.via = self.job.backend.device
        return buffer

    def peer_pointers(self, team=None):
        """The addresses of this buffer on the PEs of a team, as kernels take them.

        Parameters
        ----------
        team : Team, optional
            Default: TEAM_WORLD.

        Returns
        -------
        Buffer
            uint64, one for each PE of the team, in its order; in memory of this PE's device. It is made once for each team
            and lives as long as the buffer: of a freed buffer it raises on use.

        Raises
        ------
        PeerUnreachableError
            If one of the PEs cannot be addressed from here; those of TEAM_SHARED all can.
        BackendError
            If it would have to be made during the capture of a CUDA graph.
        """
        cdef Team t = as_team(team, "team")
        cdef int i
        cdef Memory memory
        self.check()
        t.check()
        if self.tables is None:
            self.tables = {}
        found = self.tables.get(t.data)
        if found is not None:
            return found
        addresses = np.zeros(t.data.n_pes, np.uint64)
        for i in range(t.data.n_pes):
            addresses[i] = <size_t> self.job.backend.peer_ptr(self.ptr, t.data.pes[i])
        unreachable = [t.data.pes[i] for i in range(t.data.n_pes) if addresses[i] == 0]
        if unreachable:
            raise PeerUnreachableError(
                f"the memory of {len(unreachable)} of the {t.data.n_pes} PEs of {t!r} cannot be addressed from here (PE "
                f"{unreachable[0]} is the first); those of TEAM_SHARED can", unreachable)
        self.job.backend.check_host_call()
        memory = Memory(self.job.backend.device, addresses.nbytes)
        self.job.backend.runtime.copy_now(self.job.backend.device.ordinal, memory.ptr, <void *> <size_t> addresses.ctypes.data,
                                          addresses.nbytes)
        found = make_buffer(self.job.backend.device, as_dtype(np.uint64), addresses.shape, memory.ptr, self.block, memory)
        (<Buffer> found).readonly = True
        self.tables[t.data] = found
        return found

    def multicast(self, team=None):
        """A `Buffer` over the multicast alias of the buffer: a store goes to all PEs of `team`, a load reduces over them.

        Raises
        ------
        MulticastUnsupportedError
            With the reason.
        """
        self.check()
        cdef Team t = as_team(team, "team")
        cdef Buffer buffer
        t.check()
        cdef void *ptr = self.job.backend.multicast_ptr(t.data, self.ptr)
        if ptr != NULL:
            buffer = make_buffer(self.job.backend.device, self.element, (self.count,), ptr, self.block,
                                 self.keeper())
            buffer.no_host_access = "a multicast address is for kernels: the host and copies must not touch it"
            return buffer
        for name, _, reason in self.job.backend.capabilities():
            if name == "multicast":
                raise MulticastUnsupportedError(f"no multicast alias: {reason}")

    def free(self):
        """Give the memory back; collective: every PE frees the same buffer.

        The buffer and its views raise on use from now on. Arrays of other libraries over the memory stay valid: the memory
        is only handed out again when they are gone, and what was enqueued on it is done, on every PE.

        Raises
        ------
        FreedBufferError
            On every PE, if it was freed before.
        ValueError
            On every PE, for a view.
        CollectiveError
            On every PE, if the PEs free different buffers.
        """
        cdef Job job = current_job() if self.job is None else self.job
        if job.heap.closed is not None:
            current_job()
            self.block.check()
        if self.block is not None and self.block.id == -1:
            self.block.check()
            if self.is_view:
                raise ValueError("a view cannot be freed; free the buffer that it is a view of")
            self.block.freed = True
            self.keep = None
            return
        error = None
        try:
            if self.is_view:
                raise ValueError("a view cannot be freed; free the buffer that it is a view of")
            self.check()
            job.backend.check_host_call()
        except Exception as e:
            error = e
        job.heap.free_block(self.block, error)

    def __enter__(self):
        self.check()
        return self

    def __exit__(self, cls, value, trace):
        # After an exception the other PEs may be elsewhere: the buffer is dropped instead, and settled later.
        if cls is None and not self.is_freed:
            self.free()

    def __getbuffer__(self, Py_buffer *view, int flags):
        self.check()
        if not self.job.backend.device.is_host:
            raise BufferError("memory of a GPU has no buffer protocol; use to_numpy(), DLPack or __cuda_array_interface__")
        fill_view(array_over(self.block, self.keeper(), self.ptr, self.element, (self.count,), False), self.element,
                  view, flags)

    def __array__(self, dtype=None, copy=None):
        self.check()
        if self.job.backend.device.is_host:
            array = array_over(self.block, self.keeper(), self.ptr, self.element, (self.count,), False)
            return as_requested(array, dtype, copy)
        if copy is False:
            raise ValueError("memory of a GPU cannot be seen as a NumPy array without a copy")
        return as_requested(self.to_numpy(), dtype, None)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.check()
        hand_over(self.job.backend.device, self.job.backend.stream, stream)
        return export_array(self.block, self.keeper(), self.ptr, self.element, (self.count,),
                            self.job.backend.device, False, max_version, dl_device, copy)

    def __dlpack_device__(self):
        self.check()
        return (self.job.backend.device.dlpack_type, max(self.job.backend.device.ordinal, 0))

    @property
    def __cuda_array_interface__(self):
        if self.job is None or self.job.backend.device.is_host:
            raise AttributeError("__cuda_array_interface__: the memory is not a GPU's")
        self.check()
        return cuda_array_interface(self.ptr, self.element, (self.count,), False, self.job.backend.stream)

    def __repr__(self):
        cdef str name = type(self).__name__
        if self.block is None:
            return f"<{name}, not made>"
        if self.is_freed:
            return f"<{name}({self.count}), freed>"
        return f"<{name}({self.count}){' view' if self.is_view else ''} at {<size_t> self.ptr:#x} on {self.device!r}>"

    def __reduce__(self):
        raise TypeError("a SHMEMBuffer is memory of a job and cannot be pickled or copied; pickle its to_numpy()")

    cdef int check(self) except -1:
        if self.block is None:
            raise FreedBufferError("the buffer was never made: its allocation failed")
        return self.block.check()

    cdef int stream_of(self, object stream, void **ptr) except -1:
        if stream is None:
            ptr[0] = self.job.backend.stream.ptr
            return 0
        return stream_ptr(stream, self.job.backend.device, ptr)

    cdef SHMEMBuffer alias(self, size_t start, size_t count):
        cdef SHMEMBuffer view = _new(type(self))
        view.job, view.block, view.element, view.keep = self.job, self.block, self.element, self.keep
        view.type_id, view.item, view.count = self.type_id, self.item, count
        view.ptr = self.ptr + start * self.item
        view.is_view = True
        return view

    cdef int bind(self, Job job, Allocation block, object element, size_t count) except -1:
        self.job = job
        self.block = block
        self.element = element
        self.type_id = element.id
        self.item = element.itemsize
        self.count = count
        self.ptr = block.ptr
        return 0

    cdef int fill_now(self, object pattern) except -1:
        keeper = self.keeper()
        if self.job.backend.runtime.fill_now(self.job.backend.device.ordinal, self.ptr,
                                             <void *> <size_t> pattern.ctypes.data, self.item, self.count):
            return 0
        cdef size_t step = min(self.count, <size_t> (FILL_STEP // self.item)), done = 0, n
        values = np.repeat(pattern, step)
        cdef size_t source = values.ctypes.data
        while done < self.count:
            n = min(step, self.count - done)
            self.copy_now(self.ptr + done * self.item, <void *> source, n * self.item, keeper)
            done += n
        return 0

    cdef int copy_now(self, void *dst, const void *src, size_t nbytes, object keeper) except -1:
        """Copy from or to this buffer, whose memory `keeper` holds if another thread ends the job meanwhile."""
        return self.job.backend.runtime.copy_now(self.job.backend.device.ordinal, dst, src, nbytes)

    cdef object keeper(self):
        """What keeps the memory mapped, for those that alias it; raises NotInitializedError if it is mapped no more.

        What was checked before Python code ran may be so no longer: take this first, and check then.
        """
        keeper = self.job.backend.memory_keeper()
        return keeper if self.keep is None else (keeper, self.keep)

    cdef int copy_host(self, object other, str name, object stream, bint out) except -1:
        cdef HostArray host
        cdef char *address
        cdef void *ptr = NULL
        cdef object keep = None
        self.check()
        self.stream_of(stream, &ptr)
        if isinstance(other, int) and not isinstance(other, bool):
            address = <char *> as_address(other, name)
        else:
            check_alive(other, name)
            host = HostArray()
            if not self.job.backend.device.is_host and is_gpu_tensor(other):
                self.gpu_array(host, name, other, ptr, out)
            else:
                host_array(host, name, other, self.element, self.count, out, "an address (int), a HostBuffer, or ")
            address, keep = host.ptr, host.keep
        keeper = self.keeper()
        keep = (self, keep, keeper)
        self.check()
        self.job.backend.runtime.copy(self.job.backend.device.ordinal, address if out else self.ptr,
                                      self.ptr if out else address, self.count * self.item, ptr, keep)
        return 0

    cdef int gpu_array(self, HostArray array, str name, object tensor, void *stream, bint writable) except -1:
        """The memory of another library's tensor on this PE's GPU, which `stream` may touch from now on."""
        element = dlpack_memory(array, name, tensor, self.job.backend.device, <size_t> stream, writable)
        if element is not self.element:
            raise TypeError(f"{name}: dtype {element.name} differs from {self.element.name}, and nothing is converted")
        if array.nbytes != self.count * self.item:
            raise ValueError(f"{name}: {array.nbytes // self.item} elements where {self.count} are needed")
        return 0


# (device, bytes, address, ticket of what was enqueued until then) of the memory that nobody has any more. It is never freed:
# to free memory of a GPU waits for all that runs there.
cdef list _spare = []


@cython.no_gc_clear     # the destructor needs the device
cdef class Memory:
    """A little memory of a device that is nobody else's."""

    def __init__(self, Device device not None, size_t nbytes):
        for i, (owner, size, address, ticket) in enumerate(_spare):
            if size == nbytes and owner == device and device.runtime.ticket_done(ticket):
                del _spare[i]
                self.ptr = <void *> <size_t> address
                break
        else:
            self.ptr = device.runtime.alloc(device.ordinal, nbytes)
        self.nbytes = nbytes
        self.device = device

    def __dealloc__(self):
        if self.ptr != NULL:
            try:
                _spare.append((self.device, self.nbytes, <size_t> self.ptr, self.device.runtime.ticket()))
            except Exception:   # no memory for the note: a few bytes are lost
                return


cdef object _element_of(cls):
    element = getattr(cls, "_element", None)
    if element is None:
        raise TypeError("SHMEMBuffer needs an element type: SHMEMBuffer[numpy.float32]")
    return element


cdef SHMEMBuffer _new(cls):
    _element_of(cls)
    return SHMEMBuffer.__new__(cls)


cdef int allocate(SHMEMBuffer buffer, object n, bint filled, object error) except -1:
    """Give a new buffer its memory; collective. With an `error`, all PEs raise. `filled`: they vote over its contents behind this."""
    cdef Job job = current_job()
    cdef int64_t count = 0
    element = _element_of(type(buffer))
    if error is None:
        try:
            job.backend.check_host_call()
            count = as_count(n, element)
        except Exception as e:
            error = e
    return buffer.bind(job, job.heap.allocate(element, count, filled, error), element, count)


cdef SHMEMBuffer no_buffer(object obj, str name):
    if not isinstance(obj, SHMEMBuffer):
        raise TypeError(f"{name}: expected a SHMEMBuffer or a slice of one, not {type(obj).__name__}")
    cdef SHMEMBuffer buffer = <SHMEMBuffer> obj
    check_named(buffer, name)
    return buffer


cdef int check_alive(object value, str name) except -1:
    if isinstance(value, SHMEMBuffer):
        return check_named(<SHMEMBuffer> value, name)
    if isinstance(value, Buffer):
        return (<Buffer> value).check_named(name)
    return 0


cdef int check_named(SHMEMBuffer buffer, str name) except -1:
    """That the buffer of an argument is alive."""
    try:
        return buffer.check()
    except FreedBufferError as error:
        raise FreedBufferError(f"{name}: {error}") from None


cdef SHMEMBuffer create_buffer(object dtype, object n):
    """`SHMEMBuffer[dtype](n)`; of an element type that does not exist the other PEs are told, too."""
    cdef SHMEMBuffer buffer
    try:
        kind = SHMEMBuffer[dtype]
    except Exception as error:
        buffer = _new(SHMEMBuffer[np.uint8])
        allocate(buffer, 0, False, error)
        raise
    return kind(n)


cdef int any_pe(object pe, int n_pes) except -1:
    cdef int overflow = 0
    cdef long number
    try:
        if isinstance(pe, bool):
            raise TypeError
        number = PyLong_AsLongAndOverflow(pe, &overflow)
    except TypeError:
        raise TypeError(f"pe: expected the number of a PE, not {type(pe).__name__}") from None
    if overflow or number < 0 or number >= n_pes:
        raise ValueError(f"pe: {pe} is not in 0..{n_pes - 1}")
    return <int> number


cdef size_t as_address(object address, str name) except 0:
    try:
        if isinstance(address, bool):
            raise TypeError
        number = index(address)
    except TypeError:
        raise TypeError(f"{name}: expected an address, not {type(address).__name__}") from None
    if not 0 < number < 1 << 64:
        raise ValueError(f"{name}: {number} is no address")
    return number


cdef object as_pattern(object value, object element):
    """An array of one element from one number, which the element type can hold as the kind of number that it is."""
    given = np.asarray(value)
    if given.ndim:
        raise ValueError(f"value: expected one number, not an array of shape {given.shape}")
    if np.ma.is_masked(value):
        raise TypeError("value: expected a number, not a masked element")
    kind = "int" if isinstance(value, int) else _kind_of(given.dtype)
    if kind is None:
        raise TypeError(f"value: expected a number, not {type(value).__name__}")
    if KIND_ORDER[kind] == 1:
        value = int(value)      # NumPy's own integers would wrap around
    is_bool = KIND_ORDER[kind] <= 1 and value in (0, 1)
    if KIND_ORDER[kind] > KIND_ORDER[element.kind] and not (element.kind == "bool" and is_bool):
        raise TypeError(f"value: {value!r} is not of {element.name}, and nothing is rounded or cut off")
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            pattern = np.full(1, value, element.numpy)
        # float8_e8m0fnu has no zero: there it is NaN, as everywhere.
        if KIND_ORDER[element.kind] > 1 and not np.isfinite(pattern).all() and value != 0:
            if KIND_ORDER[kind] <= 1 or np.isfinite(given).all():
                raise OverflowError
        return pattern
    except OverflowError:
        raise OverflowError(f"value: {value!r} is not in the range of {element.name}") from None


cdef object _kind_of(object dtype):
    try:
        return as_dtype(dtype).kind
    except TypeError:
        return None
