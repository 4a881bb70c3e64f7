# SPDX-License-Identifier: Apache-2.0
"""Exchange of memory through DLPack, without a copy: https://dmlc.github.io/dlpack/latest/

Both forms of the capsule are spoken: ``dltensor`` and, where the consumer says that it knows version 1,
``dltensor_versioned``.
"""

from cpython.pycapsule cimport (
    PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New, PyCapsule_SetName)
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

cdef extern from "Python.h":
    int Py_IsInitialized() nogil

cdef enum:
    MAJOR         = 1
    MINOR         = 0
    FLAG_READONLY = 1
    FLAG_COPIED   = 2
    MAX_NDIM      = 32

cdef struct DLManagedTensor:
    DLTensor dl_tensor
    void *   manager_ctx
    void     (*deleter)(DLManagedTensor *self) noexcept nogil

cdef struct DLPackVersion:
    uint32_t major
    uint32_t minor

cdef struct DLManagedTensorVersioned:
    DLPackVersion version
    void *        manager_ctx
    void          (*deleter)(DLManagedTensorVersioned *self) noexcept nogil
    uint64_t      flags
    DLTensor      dl_tensor


cdef void release(void *owner) noexcept with gil:
    Py_DECREF(<object> owner)


# A consumer may hold a tensor until after the interpreter's end, where there is nothing left to release.
cdef void delete_plain(DLManagedTensor *tensor) noexcept nogil:
    if Py_IsInitialized():
        release(tensor.manager_ctx)
    free(tensor.dl_tensor.shape)
    free(tensor)


cdef void delete_versioned(DLManagedTensorVersioned *tensor) noexcept nogil:
    if Py_IsInitialized():
        release(tensor.manager_ctx)
    free(tensor.dl_tensor.shape)
    free(tensor)


cdef void drop_capsule(object capsule) noexcept:
    # A capsule that was consumed has been renamed; only one that nobody took still owns the tensor.
    if PyCapsule_IsValid(capsule, "dltensor"):
        delete_plain(<DLManagedTensor *> PyCapsule_GetPointer(capsule, "dltensor"))
    elif PyCapsule_IsValid(capsule, "dltensor_versioned"):
        delete_versioned(<DLManagedTensorVersioned *> PyCapsule_GetPointer(capsule, "dltensor_versioned"))


cdef int fill_tensor(DLTensor *tensor, void *data, object dtype, tuple shape, int device_type,
                     int device_id) except -1:
    cdef int ndim = len(shape), i
    cdef int64_t stride = 1
    # Shape and strides in one block; the deleter frees it through `shape`.
    tensor.shape = <int64_t *> calloc(2 * max(ndim, 1), sizeof(int64_t))
    if tensor.shape == NULL:
        raise MemoryError("no memory for a DLPack tensor")
    tensor.strides = tensor.shape + max(ndim, 1)
    for i in range(ndim - 1, -1, -1):
        tensor.shape[i] = shape[i]
        tensor.strides[i] = stride
        stride *= shape[i]
    tensor.data = data
    tensor.device.device_type = device_type
    tensor.device.device_id = device_id
    tensor.ndim = ndim
    code, bits = dtype.dlpack
    tensor.dtype.code = code
    tensor.dtype.bits = bits
    tensor.dtype.lanes = 1
    tensor.byte_offset = 0
    return 0


cdef object export_tensor(object owner, void *data, object dtype, tuple shape, int device_type, int device_id,
                          object max_version, bint readonly, bint copied):
    cdef DLManagedTensor *plain
    cdef DLManagedTensorVersioned *versioned
    if dtype.dlpack is None:
        raise BufferError(f"DLPack has no element type for {dtype.name}")
    if max_version is not None and max_version[0] >= MAJOR:
        versioned = <DLManagedTensorVersioned *> calloc(1, sizeof(DLManagedTensorVersioned))
        if versioned == NULL:
            raise MemoryError("no memory for a DLPack tensor")
        try:
            fill_tensor(&versioned.dl_tensor, data, dtype, shape, device_type, device_id)
        except BaseException:
            free(versioned)
            raise
        versioned.version.major = MAJOR
        versioned.version.minor = MINOR
        versioned.flags = (FLAG_READONLY if readonly else 0) | (FLAG_COPIED if copied else 0)
        versioned.manager_ctx = <void *> owner
        versioned.deleter = delete_versioned
        Py_INCREF(owner)
        return PyCapsule_New(versioned, "dltensor_versioned", drop_capsule)
    if readonly:
        raise BufferError("read-only memory needs a consumer that knows DLPack 1.0")
    plain = <DLManagedTensor *> calloc(1, sizeof(DLManagedTensor))
    if plain == NULL:
        raise MemoryError("no memory for a DLPack tensor")
    try:
        fill_tensor(&plain.dl_tensor, data, dtype, shape, device_type, device_id)
    except BaseException:
        free(plain)
        raise
    plain.manager_ctx = <void *> owner
    plain.deleter = delete_plain
    Py_INCREF(owner)
    return PyCapsule_New(plain, "dltensor", drop_capsule)


cdef class _Imported:
    """Holds a tensor of another library and gives it back when dropped."""
    cdef DLManagedTensor *plain
    cdef DLManagedTensorVersioned *versioned

    def __dealloc__(self):
        if self.plain != NULL and self.plain.deleter != NULL:
            self.plain.deleter(self.plain)
        if self.versioned != NULL and self.versioned.deleter != NULL:
            self.versioned.deleter(self.versioned)


cdef object import_tensor(object producer, DLTensor *tensor, bint *readonly, object stream=None):
    cdef _Imported held = _Imported()
    cdef dict options = {} if stream is None else {"stream": stream}
    try:
        capsule = producer.__dlpack__(max_version=(MAJOR, MINOR), **options)
    except TypeError:
        capsule = producer.__dlpack__(**options)    # a producer from before version 1
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        held.versioned = <DLManagedTensorVersioned *> PyCapsule_GetPointer(capsule, "dltensor_versioned")
        PyCapsule_SetName(capsule, "used_dltensor_versioned")
        if held.versioned.version.major != MAJOR:
            raise BufferError(f"the tensor speaks DLPack {held.versioned.version.major}, nvsym speaks {MAJOR}")
        tensor[0] = held.versioned.dl_tensor
        readonly[0] = held.versioned.flags & FLAG_READONLY
    elif PyCapsule_IsValid(capsule, "dltensor"):
        held.plain = <DLManagedTensor *> PyCapsule_GetPointer(capsule, "dltensor")
        PyCapsule_SetName(capsule, "used_dltensor")
        tensor[0] = held.plain.dl_tensor
        readonly[0] = False
    else:
        raise BufferError(f"{type(producer).__name__}.__dlpack__() returned no DLPack capsule")
    return held
