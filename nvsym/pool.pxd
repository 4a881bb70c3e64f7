# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t

from .device cimport Device
from .pool_memory cimport PoolMemory

cdef class SymmetricPool:
    cdef readonly size_t byte_size
    cdef readonly tuple  devices        # as they were named to allocate()
    cdef readonly str    handles        # how they travelled: "none", "posix", "fabric"
    cdef PoolMemory      memory
    cdef dict            slots          # the number of each device, by UUID
    cdef Device          own            # a device of this process, which copies for the others
    cdef uint64_t        key            # a sum over the devices, whatever their order
    cdef bint            of_job
    cdef object          __weakref__

    cdef int slot(self, Device device) except -1
    # For nogil code: the addresses of a device's memory, and of the multicast object.
    cdef void *unicast_ptr(self, Device device) except NULL
    cdef void *multicast_ptr(self) except NULL
