# SPDX-License-Identifier: Apache-2.0
# The driver's objects of virtual memory and multicast. Each call of the driver is made without the GIL and under a Watch.
# An object that is dropped gives back what it holds; release() and the like do it in order, and say what failed.
from .libcuda cimport CUdevice, CUdeviceptr, CUmemGenericAllocationHandle, CUresult

cdef class Watch:
    cdef readonly str    what       # what is being done, for messages
    cdef readonly double limit      # seconds until a call is reported; 0: never
    cdef bint            collecting     # failures are kept in `failures`, not raised
    cdef readonly list   failures
    cdef object          current    # (call, place, began), or None
    cdef object          thread
    cdef object          ended

    cdef int enter(self, str call, str place) except -1
    cdef int leave(self, CUresult status) except -1


# One reference to memory or to a multicast object.
cdef class Handle:
    cdef CUmemGenericAllocationHandle value
    cdef bint                         live
    cdef readonly str                 place     # the device, for messages

    cdef int create(self, Watch watch, int ordinal, size_t size, int types, str place) except -1
    cdef int create_multicast(self, Watch watch, unsigned int devices, size_t size, int types, str place) except -1
    cdef int export(self, Watch watch, int kind) except -1          # a new file descriptor
    cdef bytes export_fabric(self, Watch watch)
    cdef int import_from(self, Watch watch, object item, int kind, str place) except -1
    cdef int release(self, Watch watch) except -1


cdef class Reservation:
    cdef CUdeviceptr     start
    cdef readonly size_t size
    cdef readonly str    place

    cdef int reserve(self, Watch watch, size_t size, size_t alignment, str place) except -1
    cdef int allow(self, Watch watch, list ordinals, size_t offset, size_t size) except -1
    cdef int free(self, Watch watch) except -1


cdef class Mapping:
    cdef Reservation     within
    cdef CUdeviceptr     start
    cdef readonly size_t size
    cdef bint            live

    cdef int map(self, Watch watch, Reservation within, size_t offset, size_t size, Handle handle) except -1
    cdef int unmap(self, Watch watch) except -1


# A multicast object, with the devices that this process has added to it and the memory that it has bound.
cdef class Multicast:
    cdef readonly size_t size
    cdef Handle          created    # of the process that made the object
    cdef Handle          handle     # the one that is used
    cdef list            bound      # (CUdevice, place)

    cdef int add(self, Watch watch, CUdevice device, str place) except -1
    cdef int bind(self, Watch watch, CUdevice device, Handle memory, str place) except -1
    cdef int unbind(self, Watch watch) except -1
    cdef int release(self, Watch watch) except -1


cdef int device_of(int ordinal) except -1
cdef size_t memory_granularity(Watch watch, int ordinal, int types, str place) except 0
cdef size_t multicast_granularity(Watch watch, unsigned int devices, size_t size, int types, bint recommended, str place) except 0
