# SPDX-License-Identifier: Apache-2.0
from .device cimport Device
from .stream cimport Stream

# Who says whether memory may still be used, and counts those outside nvsym who can see it.
cdef class MemoryOwner:
    cdef Py_ssize_t exports         # arrays and tensors of other libraries that alias the memory
    cdef bint       freed

    cdef int check(self) except -1  # raises if the memory may not be used any more
    cdef void export_ended(self) noexcept


# One alias held by another library; counted in its owner from creation to destruction.
cdef class Export:
    cdef MemoryOwner owner
    cdef object      keep
    cdef void *      ptr
    cdef Py_ssize_t  nbytes
    cdef bint        readonly


cdef class Buffer:
    cdef readonly Device device
    cdef Device          via            # the device of this process that copies: `device`, or one that can address it
    cdef readonly object dtype          # numpy.dtype
    cdef readonly tuple  shape
    cdef readonly size_t num_elements
    cdef readonly size_t itemsize
    cdef readonly bint   readonly
    cdef object          element        # nvsym.dtypes.DType
    cdef char *          ptr
    cdef MemoryOwner     owner          # None: nobody can free the memory while `keep` lives
    cdef object          keep
    cdef str             no_host_access     # why the host may not touch the memory, or None
    cdef object          __weakref__

    cdef int check(self) except -1
    cdef int check_named(self, str name) except -1      # the same of an argument
    cdef int check_host_access(self) except -1
    cdef Buffer alias(self, size_t offset, object element, tuple shape)


cdef Buffer make_buffer(Device device, object element, tuple shape, void *ptr, MemoryOwner owner, object keep)

# A NumPy array over host memory, counted as an export of `owner` for as long as it or a view of it lives.
cdef object array_over(MemoryOwner owner, object keep, void *ptr, object element, tuple shape, bint readonly)

# What `__array__` and `__getbuffer__` make of that array.
cdef object as_requested(object array, object dtype, object copy)
cdef int fill_view(object array, object element, Py_buffer *view, int flags) except -1

# A number of elements; raises what names `n`.
cdef Py_ssize_t as_count(object n, object element) except -1

# Host memory of a caller: address and length of a C-contiguous array, after checking it against what is expected.
cdef class HostArray:
    cdef char * ptr
    cdef size_t nbytes
    cdef object keep
    cdef bint   pinned

cdef int host_array(HostArray array, str name, object obj, object element, size_t count, bint writable, str others=*) except -1

# The same from a DLPack tensor, which may be on `device`, and whose producer `stream` then waits for; returns its element type.
cdef object dlpack_memory(HostArray array, str name, object producer, Device device, size_t stream, bint writable)
cdef bint is_gpu_tensor(object obj) except -1

# Let the stream that a DLPack consumer names wait for nvsym's own.
cdef int hand_over(Device device, Stream own, object stream) except -1

cdef object cuda_array_interface(void *ptr, object element, tuple shape, bint readonly, Stream stream)

# A DLPack capsule over memory.
cdef object export_array(MemoryOwner owner, object keep, void *ptr, object element, tuple shape, Device device,
                         bint readonly, object max_version, object dl_device, object copy)
