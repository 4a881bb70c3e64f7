# SPDX-License-Identifier: Apache-2.0
from .libcuda cimport CUcontext
from .memory cimport MemoryOwner
from .multicast cimport Handle, Mapping, Multicast, Reservation, Watch

# What this process holds of one pool.
cdef class PoolMemory(MemoryOwner):
    cdef readonly Watch  watch
    cdef readonly size_t byte_size  # what was asked for
    cdef readonly size_t size       # what is reserved of each device
    cdef size_t          granule    # what `size` is a multiple of, and addresses are
    cdef readonly int    n_devices
    cdef readonly int    types      # of handles: CUmemAllocationHandleType
    cdef list            places     # of each device, for messages
    cdef list            local      # (slot, ordinal, CUdevice) of the devices of this process
    cdef list            own        # Handle of each of them
    cdef dict            imported   # Handle, by slot
    cdef list            mappings   # by slot
    cdef Reservation     unicast
    cdef Reservation     multicast
    cdef Mapping         overlay    # the multicast object at `multicast`
    cdef Multicast       object
    cdef CUcontext       context    # what was current in the calling thread before
    cdef bint            changed
    cdef str             ended      # why it can no longer be used
    cdef object          ended_as

    cdef void *unicast_ptr(self, int slot) noexcept
    cdef void *multicast_ptr(self) noexcept
    cdef int unmap_unicast(self) except -1
    cdef object export_of(self, Handle handle)
