# SPDX-License-Identifier: Apache-2.0
"""`Buffer`: a typed view of memory that somebody else owns. `HostBuffer`: pinned host memory as a NumPy array."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer

from libc.stdint cimport int64_t

import math
from operator import index

import numpy as np

from .dtypes import as_dtype, dlpack_dtype
from .errors import FreedBufferError, MulticastUnsupportedError

from .device cimport Device
from .dlpack cimport DLPACK_CPU, DLPACK_CUDA, DLPACK_CUDA_HOST, DLTensor, export_tensor, import_tensor
from .stream cimport Stream, default_device, stream_ptr

cdef object ndarray = np.ndarray


cdef class MemoryOwner:
    """Says whether memory may still be used. A subclass knows whose it is."""

    cdef int check(self) except -1:
        if self.freed:
            raise FreedBufferError("the memory has been freed")
        return 0

    cdef void export_ended(self) noexcept:
        pass


@cython.no_gc_clear     # the destructor needs the owner
cdef class Export:
    def __dealloc__(self):
        if self.owner is not None:
            self.owner.exports -= 1
            self.owner.export_ended()

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.ptr, self.nbytes, self.readonly, flags)


cdef Export export_of(MemoryOwner owner, object keep, void *ptr, size_t nbytes, bint readonly):
    cdef Export export = Export.__new__(Export)
    export.keep = keep
    export.ptr = ptr
    export.nbytes = nbytes
    export.readonly = readonly
    if owner is not None:
        owner.check()
        export.owner = owner
        owner.exports += 1
    return export


cdef object array_over(MemoryOwner owner, object keep, void *ptr, object element, tuple shape, bint readonly):
    cdef size_t nbytes = math.prod(shape) * element.itemsize
    if nbytes == 0:
        return np.empty(shape, element.numpy)
    export = export_of(owner, keep, ptr, nbytes, readonly)
    return np.frombuffer(export, np.uint8).view(element.numpy).reshape(shape)


cdef object as_requested(object array, object dtype, object copy):
    """What `__array__` returns for an array over the memory."""
    if dtype is not None and array.dtype != dtype:
        if copy is False:
            raise ValueError(f"copy: {array.dtype} cannot be seen as {np.dtype(dtype)} without a copy")
        return array.astype(dtype)
    return array.copy() if copy else array


cdef int fill_view(object array, object element, Py_buffer *view, int flags) except -1:
    """What `__getbuffer__` does, with an array over the memory."""
    try:
        PyObject_GetBuffer(array, view, flags)
    except ValueError:
        raise BufferError(f"Python's buffer protocol has no element type {element.name}; use numpy.asarray, or "
                          "DLPack") from None
    return 0


cdef Py_ssize_t as_count(object n, object element) except -1:
    """A number of elements that an address space can hold."""
    try:
        if isinstance(n, (bool, np.bool_)):
            raise TypeError
        count = index(n)
    except TypeError:
        raise TypeError(f"n: expected a number of elements, not {type(n).__name__}") from None
    if count < 0:
        raise ValueError(f"n: {count} elements")
    if count * element.itemsize >= 1 << 62:
        raise ValueError(f"n: {count} elements of {element.name} are more than any memory holds")
    return count


cdef class Buffer:
    """A typed, C-contiguous view of memory on a device. It owns nothing; it keeps alive what does.

    Made by `SHMEMBuffer.peer`, `peer_pointers` and `multicast`, the views of a `SymmetricPool`, and `Buffer.from_numpy`.

    Attributes
    ----------
    dtype : numpy.dtype
    shape : tuple of int
    device : Device
    num_elements : int
        1 for a shape without dimensions.
    itemsize, nbytes : int
        Bytes of one element, and of all.
    """

    def __init__(self):
        raise TypeError("a Buffer is a view: use Buffer.from_numpy(array), SHMEMBuffer.peer(pe) or a SymmetricPool's views")

    @staticmethod
    def from_numpy(array):
        """A Buffer over the memory of a C-contiguous NumPy array, without a copy.

        Raises
        ------
        TypeError
            If it is no NumPy array, or of an element type that nvsym does not have.
        ValueError
            If it is not C-contiguous.
        """
        if not isinstance(array, np.ndarray):
            raise TypeError(f"array: expected a NumPy array, not {type(array).__name__}")
        if not array.flags.c_contiguous:
            raise ValueError(f"array: strides {array.strides} are not C-contiguous; use numpy.ascontiguousarray")
        cdef Buffer buffer = make_buffer(Device.cpu(), as_dtype(array.dtype), array.shape,
                                         <void *> <size_t> array.ctypes.data, None, array)
        buffer.readonly = not array.flags.writeable
        return buffer

    @property
    def nbytes(self):
        return self.num_elements * self.itemsize

    def unsafe_ptr(self):
        """The address of the first element, as an int, for kernels and other libraries; it keeps nothing alive."""
        self.check()
        return <size_t> self.ptr

    def _data_ptr(self):
        return self.unsafe_ptr()

    def view(self, dtype, shape=None):
        """The same bytes as another element type and shape.

        Parameters
        ----------
        dtype : dtype
        shape : sequence of int, optional
            Its bytes must be exactly those of the buffer. Default: one dimension.

        Raises
        ------
        ValueError
            If the bytes do not come out even, or the address is not a multiple of the new item size.
        """
        self.check()
        element = as_dtype(dtype)
        cdef size_t nbytes = self.num_elements * self.itemsize
        if shape is None:
            if nbytes % <size_t> element.itemsize:
                raise ValueError(f"dtype: {nbytes} bytes are no whole number of {element.name} ({element.itemsize} bytes each)")
            shape = (nbytes // <size_t> element.itemsize,)
        try:
            shape = (index(shape),) if hasattr(shape, "__index__") and not np.ndim(shape) else tuple([index(n) for n in shape])
        except TypeError:
            raise TypeError(f"shape: expected whole numbers, not {shape!r}") from None
        if min(shape, default=0) < 0:
            raise ValueError(f"shape: {shape} has a length below zero")
        if math.prod(shape) * element.itemsize != nbytes:
            raise ValueError(f"shape: {shape} of {element.name} is {math.prod(shape) * element.itemsize} bytes, "
                             f"the buffer has {nbytes}")
        if <size_t> self.ptr % <size_t> element.numpy.alignment:
            raise ValueError(f"dtype: the buffer's address is not a multiple of {element.numpy.alignment}, which "
                             f"{element.name} needs")
        return self.alias(0, element, shape)

    def __len__(self):
        if not self.shape:
            raise TypeError("len() of a Buffer without dimensions")
        return self.shape[0]

    def __getitem__(self, key):
        cdef Py_ssize_t start, stop, step
        if not self.shape:
            raise IndexError("a Buffer without dimensions cannot be sliced")
        if not isinstance(key, slice):
            raise TypeError(f"a Buffer takes a slice along its first axis, not {key!r}; to_numpy() gives the elements")
        self.check()
        start, stop, step = key.indices(self.shape[0])
        if step != 1:
            raise ValueError(f"step: a slice of a Buffer has step 1, not {step}")
        stop = max(start, stop)
        cdef size_t row = math.prod(self.shape[1:]) * self.itemsize
        return self.alias(start * row, self.element, (stop - start, *self.shape[1:]))

    def copy(self):
        """A new Buffer in host memory with the same contents."""
        return Buffer.from_numpy(self.to_numpy())

    def to_numpy(self):
        """A new NumPy array with the contents, after all that was enqueued on the device is done."""
        self.check()
        self.check_host_access()
        cdef object array = np.empty(self.shape, self.dtype)
        cdef void *address = <void *> <size_t> array.ctypes.data
        self.via.synchronize()
        self.check()
        self.via.runtime.copy_now(self.via.ordinal, address, self.ptr, self.nbytes)
        return array

    def inplace_copy_from(self, src, *, stream=None):
        """Overwrite the contents with those of `src`.

        Parameters
        ----------
        src : Buffer or array
            Of the same element type and number of elements; an array in host memory must be C-contiguous.
        stream : stream, optional
            Copy in the order of this stream, asynchronously. Default: the copy is done when the call returns.

        Raises
        ------
        TypeError, ValueError
            If type, size or layout differ, or the buffer is read-only.
        """
        cdef HostArray host
        cdef Buffer other
        cdef const void *address
        cdef void *ptr = NULL
        self.check()
        self.check_host_access()
        if self.readonly:
            raise ValueError("the buffer is read-only")
        if isinstance(src, Buffer):
            other = <Buffer> src
            other.check_named("src")
            other.check_host_access()
            if other.dtype != self.dtype:
                raise TypeError(f"src: {other.dtype} cannot be copied to {self.dtype} without a conversion")
            if other.num_elements != self.num_elements:
                raise ValueError(f"src: {other.num_elements} elements do not fit {self.num_elements}")
            address, keep = other.ptr, other
        else:
            host = HostArray()
            host_array(host, "src", src, self.element, self.num_elements, False, "a Buffer, or ")
            address, keep = host.ptr, host.keep
        if stream is None:
            self.via.runtime.copy_now(self.via.ordinal, self.ptr, address, self.nbytes)
        else:
            stream_ptr(stream, self.via, &ptr)
            self.via.runtime.copy(self.via.ordinal, self.ptr, address, self.nbytes, ptr, (self, keep))

    def __getbuffer__(self, Py_buffer *view, int flags):
        self.check()
        self.check_host_access()
        if not self.device.is_host:
            raise BufferError("memory of a GPU has no buffer protocol; use to_numpy(), DLPack or __cuda_array_interface__")
        fill_view(array_over(self.owner, self, self.ptr, self.element, self.shape, self.readonly), self.element, view,
                  flags)

    def __array__(self, dtype=None, copy=None):
        self.check()
        self.check_host_access()
        if not self.device.is_host:
            if copy is False:
                raise ValueError("memory of a GPU cannot be seen as a NumPy array without a copy")
            array = self.to_numpy()
        else:
            array = array_over(self.owner, self, self.ptr, self.element, self.shape, self.readonly)
        return as_requested(array, dtype, copy)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.check()
        self.check_host_access()
        hand_over(self.device, _default_stream(self.device), stream)
        return export_array(self.owner, self, self.ptr, self.element, self.shape, self.device, self.readonly,
                            max_version, dl_device, copy)

    def __dlpack_device__(self):
        self.check()
        return (self.device.dlpack_type, max(self.device.ordinal, 0))

    @property
    def __cuda_array_interface__(self):
        if self.device is None or self.device.is_host:
            raise AttributeError("__cuda_array_interface__: the memory is not a GPU's")
        self.check()
        self.check_host_access()
        return cuda_array_interface(self.ptr, self.element, self.shape, self.readonly, _default_stream(self.device))

    def __repr__(self):
        return f"<Buffer {self.dtype} {self.shape} on {self.device!r}>"

    def __reduce__(self):
        raise TypeError("a Buffer is a view of memory of this process and cannot be pickled; pickle its to_numpy()")

    cdef int check(self) except -1:
        if self.owner is not None:
            self.owner.check()
        elif self.element is None:
            raise ValueError("the Buffer was never made")
        return 0

    cdef int check_named(self, str name) except -1:
        try:
            return self.check()
        except FreedBufferError as error:
            raise FreedBufferError(f"{name}: {error}") from None

    cdef int check_host_access(self) except -1:
        if self.no_host_access is not None:
            raise MulticastUnsupportedError(self.no_host_access)
        return 0

    cdef Buffer alias(self, size_t offset, object element, tuple shape):
        cdef Buffer buffer = make_buffer(self.device, element, shape, self.ptr + offset, self.owner, self.keep)
        buffer.via = self.via
        buffer.readonly = self.readonly
        buffer.no_host_access = self.no_host_access
        return buffer


cdef Buffer make_buffer(Device device, object element, tuple shape, void *ptr, MemoryOwner owner, object keep):
    cdef Buffer buffer = Buffer.__new__(Buffer)
    buffer.device = buffer.via = device
    buffer.element = element
    buffer.dtype = element.numpy
    buffer.itemsize = element.itemsize
    buffer.shape = shape
    buffer.num_elements = math.prod(shape)
    buffer.ptr = <char *> ptr
    buffer.owner = owner
    buffer.keep = keep
    return buffer


cdef Stream _default_stream(Device device):
    """The stream that nvsym's own work on a device is on, or None: the job's."""
    if device.is_host:
        return None
    from .context import context, is_initialized    # a Buffer outlives the job, and may be made without one
    if not is_initialized():
        return None
    stream = context().stream
    return None if (<Stream> stream).device.is_host else stream


cdef int hand_over(Device device, Stream own, object stream) except -1:
    """Let a consumer's stream (DLPack's `stream`) wait for what nvsym has enqueued on its own."""
    cdef size_t handle
    if device.is_host or own is None or (isinstance(stream, int) and stream == -1):
        return 0
    if stream is not None and (isinstance(stream, bool) or not isinstance(stream, int) or stream == 0):
        raise ValueError(f"stream: {stream!r} is none of DLPack's streams: an address, 1 (legacy default), 2 (per-thread default), "
                         "-1 (no wait) or None")
    handle = 1 if stream is None else stream
    return device.runtime.stream_order(own.ptr, <void *> handle)


cdef object cuda_array_interface(void *ptr, object element, tuple shape, bint readonly, Stream stream):
    """The CUDA array interface, version 3 (Numba's documentation, "CUDA Array Interface")."""
    if element.numpy.kind not in "biufc":
        raise AttributeError(f"__cuda_array_interface__: it has no element type for {element.name}; use DLPack")
    return {
        "shape": shape,
        "typestr": element.numpy.str,
        "data": (0 if 0 in shape else <size_t> ptr, readonly),
        "version": 3,
        "strides": None,
        # What is enqueued here may still be writing the memory; None: nothing is. 1 is its name of the default stream.
        "stream": None if stream is None else stream.handle or 1,
    }


cdef object export_array(MemoryOwner owner, object keep, void *ptr, object element, tuple shape, Device device,
                         bint readonly, object max_version, object dl_device, object copy):
    """A DLPack capsule over memory, or over a copy of it where the consumer asks for one."""
    cdef tuple here = (device.dlpack_type, max(device.ordinal, 0))
    if dl_device is not None and tuple(dl_device) != here:
        raise BufferError(f"dl_device: the memory is on DLPack device {here}, not {tuple(dl_device)}")
    cdef size_t nbytes = math.prod(shape) * element.itemsize
    if copy:
        if not device.is_host:
            raise BufferError("copy: a copy of GPU memory is the consumer's to make")
        array = array_over(None, keep, ptr, element, shape, readonly).copy()
        return export_tensor(array, <void *> <size_t> array.ctypes.data, element, shape, here[0], here[1],
                             max_version, False, True)
    export = export_of(owner, keep, ptr, nbytes, readonly)
    return export_tensor(export, ptr, element, shape, here[0], here[1], max_version, readonly, False)


cdef class HostArray:
    """The memory of an array that a caller passed; `keep` keeps it alive."""


cdef int host_array(HostArray array, str name, object obj, object element, size_t count, bint writable, str others="") except -1:
    """Fill `array` from an object with host memory: the buffer protocol, a NumPy array, or DLPack.

    `others`: what else the caller takes, for the message.

    Raises TypeError for a wrong object or element type, ValueError for a wrong length, layout or a read-only destination.
    """
    cdef Py_buffer view
    cdef Buffer buffer
    cdef int flags = PyBUF_WRITABLE if writable else PyBUF_SIMPLE
    # What is right needs two looks: without strides, NumPy exports C-contiguous arrays only. What is not falls through to
    # the checks below, which say what is wrong.
    if type(obj) is ndarray and obj.dtype is element.numpy:
        try:
            PyObject_GetBuffer(obj, &view, flags)
        except (BufferError, ValueError):
            view.len = -1
        else:
            array.ptr = <char *> view.buf
            PyBuffer_Release(&view)
        if view.len == <Py_ssize_t> (count * <size_t> element.itemsize):
            array.nbytes = view.len
            array.keep = obj
            array.pinned = is_pinned(obj)
            return 0
    if isinstance(obj, Buffer):
        buffer = <Buffer> obj
        buffer.check_named(name)
        buffer.check_host_access()
        if not buffer.device.is_host:
            raise TypeError(f"{name}: expected host memory, not a Buffer on {buffer.device!r}")
        obj = np.asarray(buffer)
    if not isinstance(obj, np.ndarray):
        try:
            obj = np.asarray(memoryview(obj))
        except FreedBufferError as error:
            raise FreedBufferError(f"{name}: {error}") from None
        except (TypeError, ValueError, BufferError):    # the last one: of element types that the buffer protocol does not have
            if hasattr(obj, "__dlpack__"):
                if obj.__dlpack_device__()[0] not in (DLPACK_CPU, DLPACK_CUDA_HOST):
                    raise TypeError(f"{name}: {type(obj).__name__} is not in host memory") from None
                try:
                    obj = _array_from_dlpack(obj)
                except (TypeError, ValueError, BufferError) as error:
                    raise type(error)(f"{name}: {error}") from error
            elif hasattr(obj, "__array_interface__"):
                obj = np.asarray(obj)
            else:
                raise TypeError(f"{name}: expected {others}a C-contiguous array in host memory, not {type(obj).__name__}") from None
    if isinstance(obj, np.ma.MaskedArray) and np.ma.is_masked(obj):
        raise TypeError(f"{name}: a MaskedArray with masked elements, and a buffer has no mask; use .filled(value)")
    if obj.dtype is not element.numpy and obj.dtype != element.numpy:
        raise TypeError(f"{name}: dtype {obj.dtype} differs from {element.name}, and nothing is converted; "
                        f"use .astype({element.name!r})")
    if <size_t> obj.size != count:
        raise ValueError(f"{name}: {obj.size} elements (shape {obj.shape}) where {count} are needed")
    if not obj.flags.c_contiguous:
        raise ValueError(f"{name}: strides {obj.strides} of shape {obj.shape} are not C-contiguous; "
                         "use numpy.ascontiguousarray")
    if writable and not obj.flags.writeable:
        raise ValueError(f"{name}: the array is read-only")
    PyObject_GetBuffer(obj, &view, PyBUF_SIMPLE)    # twenty times faster than obj.ctypes.data
    array.ptr = <char *> view.buf
    PyBuffer_Release(&view)
    array.nbytes = obj.nbytes
    array.keep = obj
    array.pinned = is_pinned(obj)
    return 0


cdef class _Tensor:
    """Memory of a DLPack tensor as bytes, for NumPy."""
    cdef void *ptr
    cdef Py_ssize_t nbytes
    cdef bint readonly
    cdef object keep

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.ptr, self.nbytes, self.readonly, flags)


cdef tuple tensor_shape(DLTensor *tensor, object element):
    """The shape of a tensor, which has to be C-contiguous."""
    cdef int64_t stride = 1
    cdef int i
    shape = tuple([tensor.shape[i] for i in range(tensor.ndim)])
    if min(shape, default=0) < 0 or math.prod(shape) * element.itemsize >= 1 << 62:
        raise ValueError(f"no tensor has the shape {shape}")
    if tensor.strides != NULL:
        for i in range(tensor.ndim - 1, -1, -1):
            if tensor.shape[i] != 1 and tensor.strides[i] != stride and 0 not in shape:
                raise ValueError(f"the tensor of shape {shape} is not C-contiguous")
            stride *= tensor.shape[i]
    return shape


cdef object _array_from_dlpack(object producer):
    """A NumPy array over a tensor in host memory, of any element type that nvsym has."""
    cdef DLTensor tensor
    cdef bint readonly = False
    cdef _Tensor bytes_of = _Tensor()
    keep = import_tensor(producer, &tensor, &readonly)
    element = dlpack_dtype(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
    shape = tensor_shape(&tensor, element)
    bytes_of.ptr = <char *> tensor.data + tensor.byte_offset
    bytes_of.nbytes = math.prod(shape) * element.itemsize
    bytes_of.readonly = readonly
    bytes_of.keep = keep
    if bytes_of.nbytes == 0:
        return np.empty(shape, element.numpy)
    return np.frombuffer(bytes_of, np.uint8).view(element.numpy).reshape(shape)


cdef bint is_gpu_tensor(object obj) except -1:
    """Whether an object is another library's memory on a GPU."""
    if isinstance(obj, np.ndarray) or not hasattr(obj, "__dlpack_device__"):
        return False
    return obj.__dlpack_device__()[0] == DLPACK_CUDA


cdef object dlpack_memory(HostArray array, str name, object producer, Device device, size_t stream, bint writable):
    """Fill `array` from a DLPack tensor in host memory or on `device`, and return its element type.

    What is enqueued on `stream` of `device` from now on comes behind what its producer has enqueued.
    """
    cdef DLTensor tensor
    cdef bint readonly = False
    cdef object wait = None
    if not (hasattr(producer, "__dlpack__") and hasattr(producer, "__dlpack_device__")):
        raise TypeError(f"{name}: {type(producer).__name__} does not export DLPack (__dlpack__, __dlpack_device__)")
    kind, number = producer.__dlpack_device__()
    if kind == DLPACK_CUDA and not device.is_host:
        if number != device.ordinal:
            raise ValueError(f"{name}: the tensor is on GPU {number}, and this PE's is {device.ordinal}")
        wait = stream or 1      # 1: the legacy default stream
    elif kind not in (DLPACK_CPU, DLPACK_CUDA_HOST):
        raise TypeError(f"{name}: {type(producer).__name__} is not in host memory (DLPack device ({int(kind)}, {number})), and this "
                        f"PE's memory is on {device!r}")
    array.keep = import_tensor(producer, &tensor, &readonly, wait)
    try:
        element = dlpack_dtype(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
        shape = tensor_shape(&tensor, element)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None
    if writable and readonly:
        raise ValueError(f"{name}: the tensor is read-only")
    array.ptr = <char *> tensor.data + tensor.byte_offset
    array.nbytes = math.prod(shape) * element.itemsize
    return element


@cython.no_gc_clear
cdef class PinnedBlock:
    """Page-locked host memory, freed with the last array over it."""
    cdef Device device
    cdef void *ptr
    cdef Py_ssize_t nbytes

    def __dealloc__(self):
        if self.ptr != NULL:
            self.device.runtime.dealloc_pinned(self.ptr)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.ptr, self.nbytes, False, flags)


class HostBuffer(np.ndarray):
    """Pinned (page-locked) host memory as a NumPy array of one dimension.

    A GPU copies from and to it at full speed and asynchronously. In host memory it is ordinary aligned memory. Slices
    are HostBuffers too; the result of a computation is an ordinary array.

    Parameters
    ----------
    dtype : dtype
    n : int
        Elements. Not initialised.
    device : Device, optional
        The device that will use it. Default: that of the job, or the host.

    Raises
    ------
    TypeError, ValueError
        If `n` is no number of elements.
    MemoryError
        If the memory cannot be had.
    """

    def __new__(cls, dtype, n, device=None):
        cdef PinnedBlock block = PinnedBlock()
        element = as_dtype(dtype)
        cdef Py_ssize_t count = as_count(n, element)
        if device is not None and not isinstance(device, Device):
            raise TypeError(f"device: expected a Device, not {type(device).__name__}")
        block.device = default_device() if device is None else device
        block.device.check()
        block.nbytes = max(count * <Py_ssize_t> element.itemsize, 1)
        block.ptr = block.device.runtime.alloc_pinned(block.device.here(), block.nbytes)
        raw = np.frombuffer(block, np.uint8)[:count * <Py_ssize_t> element.itemsize]
        return raw.view(element.numpy).view(cls)

    def __array_wrap__(self, array, context=None, return_scalar=False):
        if return_scalar:
            return array[()]
        # An array that the result was written to stays what it is.
        return array if isinstance(array, HostBuffer) else np.asarray(array)

    def unsafe_ptr(self):
        """The address of the first element."""
        return self.ctypes.data

    def __reduce__(self):
        return np.asarray(self).__reduce__()


cdef bint is_pinned(object array):
    """Whether the memory under a NumPy array is page-locked by nvsym."""
    array = array.base
    if array is None:
        return False
    while isinstance(array, ndarray):
        array = array.base
    if isinstance(array, memoryview):
        array = array.obj
    return isinstance(array, PinnedBlock)
