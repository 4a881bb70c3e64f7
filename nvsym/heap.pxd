# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint64_t

from .agreement cimport Agreement
from .allocator cimport Allocator
from .backend cimport Backend
from .memory cimport MemoryOwner

# What a host-side collective call announces itself as; apart from the small numbers of votes.
cdef enum Call:
    CALL_ALLOCATE = 1001
    CALL_FREE
    CALL_COLLECT
    CALL_SPLIT
    CALL_DESTROY
    CALL_FINALIZE

cdef class Allocation(MemoryOwner):
    cdef Heap             heap
    cdef readonly int64_t id        # the same on every PE
    cdef readonly size_t  nbytes
    cdef int              arena
    cdef size_t           offset
    cdef bint             noted     # on the deferred list
    cdef char *           ptr
    cdef object           __weakref__

    cdef int fail(self) except -1


cdef class Heap:
    cdef Backend     backend
    cdef Agreement   agreement
    cdef Allocator   allocator
    cdef str         closed         # why nothing can be done with it any more, or None
    cdef type        closed_with
    cdef dict        blocks         # id -> (arena, offset, nbytes), in the order of allocation
    cdef dict        dropped        # id -> ticket of the work that was enqueued when it was dropped here
    cdef int64_t     next_id
    cdef object      committed      # bytes of each arena that are backed with memory

    cdef Allocation allocate(self, object element, int64_t count, bint filled, object error)
    cdef int free_block(self, Allocation block, object error) except -1
    cdef int collect(self) except -1
    cdef int close(self, str why, type cls) except -1
    cdef int note(self, Allocation block) except -1
    cdef int await_work(self) except -1
    cdef int settle(self) except -1
    cdef int release(self, int64_t id) except -1
    cdef int64_t find(self, size_t nbytes, int *arena, str what) except -2
    cdef bint settle_work(self) except -1

# Meet the other PEs of `agreement` in a call: raises CollectiveError on all unless all make the same call with the same
# arguments, and what `error` says on all if it is not None on any.
cdef int meet(Agreement agreement, int call, object arguments, str what, object error) except -1
