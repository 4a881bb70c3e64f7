# SPDX-License-Identifier: Apache-2.0
"""The symmetric heap: the same blocks at the same offsets on every PE, whatever order the PEs drop them in.

Every PE runs the same allocator through the same sequence of calls, so the offsets agree without being exchanged. What is
exchanged is whether the calls agree, and which blocks every PE is done with.

A buffer that is dropped without `free` is noted on its PE's deferred list by the destructor, which does nothing else.
*Settling* compares the lists: a block that all PEs have dropped, and on which no PE has work left that was enqueued before it
dropped it, is released on all of them, in the order of allocation. Allocation settles when the lists have grown or the memory
is needed; `free`, `collect` and `finalize` settle too.
"""

cimport cython
from libc.stdint cimport int64_t, uint64_t

import time

import numpy as np

from ._settings import format_size
from .errors import CollectiveError, FreedBufferError, HeapExhaustedError

from .agreement cimport Agreement
from .allocator cimport Allocator
from .backend cimport Backend
from .memory cimport MemoryOwner

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1

cdef enum:
    SETTLE_AT = 32      # blocks that every PE has dropped, at which an allocation settles though it need not

cdef dict CALL_NAMES = {
    CALL_ALLOCATE: "an allocation", CALL_FREE: "a free", CALL_COLLECT: "collect()", CALL_SPLIT: "a team's split",
    CALL_DESTROY: "a team's destroy", CALL_FINALIZE: "finalize() or its exit",
}


@cython.no_gc_clear     # the destructor needs the heap
cdef class Allocation(MemoryOwner):
    """A block of the symmetric heap. Buffers, their views and arrays over them share it; it is dropped with the last."""

    def __dealloc__(self):
        if self.heap is not None and not self.noted:
            self.heap.note(self)

    cdef int check(self) except -1:
        if self.freed or self.heap.closed is not None:
            return self.fail()
        return 0

    cdef int fail(self) except -1:
        if self.heap.closed is not None:
            raise self.heap.closed_with(f"the buffer belongs to a job that cannot be used: {self.heap.closed}")
        raise FreedBufferError("the buffer has been freed (and so have all views of it)")

    cdef void export_ended(self) noexcept:
        # The destructor notes a block that was not freed.
        if self.freed and self.exports == 0 and not self.noted:
            self.heap.note(self)


@cython.no_gc_clear     # the destructors of allocations need it
cdef class Heap:
    """The symmetric heap of a job. Its numbers are the same on every PE, but for `deferred`.

    Attributes
    ----------
    size, used, free, largest_free : int
        Bytes.
    high_water : int
        The most bytes that were in use at a time.
    live : int
        Blocks that are in use, those included that were dropped here and are not settled yet.
    deferred : int
        Blocks that were dropped on this PE and wait for the others.
    """

    def __init__(self, Backend backend not None, Agreement agreement not None):
        cdef int arena
        self.backend = backend
        self.agreement = agreement
        self.allocator = Allocator()
        self.blocks = {}
        self.dropped = {}
        self.next_id = 1
        self.committed = []
        for arena in range(backend.arena_count()):
            self.allocator.add_arena(backend.arena_size(arena))
            self.committed.append(0)

    @property
    def size(self):
        return self.allocator.size

    @property
    def used(self):
        return self.allocator.used

    @property
    def free(self):
        return self.allocator.free

    @property
    def largest_free(self):
        return self.allocator.largest_free

    @property
    def high_water(self):
        return self.allocator.high_water

    @property
    def live(self):
        return len(self.blocks)

    @property
    def deferred(self):
        return len(self.dropped)

    def __repr__(self):
        return (f"<Heap {format_size(self.size)}: {format_size(self.used)} in {self.live} buffers, "
                f"{self.deferred} dropped, high water {format_size(self.high_water)}>")

    cdef Allocation allocate(self, object element, int64_t count, bint filled, object error):
        """A new block; `filled`: the PEs will vote over its first contents, so that all of them have to know."""
        cdef int64_t offset
        cdef int arena = 0
        cdef size_t nbytes = 0 if error is not None else <size_t> count * <size_t> element.itemsize
        cdef str step = "allocating and filling" if filled else "allocating"
        cdef str what = f"{step} a buffer" if error is not None else f"{step} SHMEMBuffer[{element.name}]({count})"
        cdef Allocation block
        meet(self.agreement, CALL_ALLOCATE, (0 if error is not None else 2 * element.id + filled, count, len(self.dropped)), what, error)
        try:
            if self.all_have_dropped() >= SETTLE_AT:
                self.settle()
            offset = self.find(nbytes, &arena, what)
        except BaseException as e:
            self.agreement.left(what, e)
            raise
        if offset < 0:
            raise HeapExhaustedError(self.exhausted(what, nbytes))
        block = Allocation.__new__(Allocation)
        block.id = self.next_id
        block.nbytes = nbytes
        block.arena = arena
        block.offset = offset
        block.ptr = self.backend.arena_base(arena) + offset
        self.next_id += 1
        self.blocks[block.id] = (arena, offset, nbytes)
        block.heap = self
        return block

    cdef int64_t find(self, size_t nbytes, int *arena, str what) except -2:
        """A place for a block, with memory behind it, the same on every PE; -1 if the heap has none."""
        cdef int64_t offset = self.allocator.allocate(nbytes, arena)
        if offset < 0:
            self.settle()
            offset = self.allocator.allocate(nbytes, arena)
        if offset < 0 and nbytes <= self.allocator.size and self.settle_work():
            offset = self.allocator.allocate(nbytes, arena)
        if offset < 0 and self.backend.grow(self.agreement, nbytes):
            self.allocator.add_arena(self.backend.arena_size(self.backend.arena_count() - 1))
            self.committed.append(0)
            offset = self.allocator.allocate(nbytes, arena)
        if offset < 0:
            return -1
        try:
            self.back(arena[0], offset, what, nbytes)
        except HeapExhaustedError:
            # The machine has no more memory for the heap: what was dropped may do.
            if not self.settle_work():
                raise
            offset = self.allocator.allocate(nbytes, arena)
            if offset < 0:
                raise
            self.back(arena[0], offset, what, nbytes)
        return offset

    def back(self, int arena, int64_t offset, what, size_t nbytes):
        """Back a block that was placed with memory, on all PEs; or on none, and give its place back."""
        cdef size_t end = offset + self.allocator.block_size(arena, offset)
        if end <= <size_t> self.committed[arena]:
            return

        def commit():
            try:
                self.backend.commit(arena, end)
            except HeapExhaustedError as e:
                raise HeapExhaustedError(f"{e}. {self.exhausted(what, nbytes)}") from e

        try:
            self.agreement.attempt(what, commit)
        except BaseException:
            self.allocator.release(arena, offset)
            raise
        self.committed[arena] = end

    def exhausted(self, what, size_t nbytes):
        waiting = f", {len(self.dropped)} of them dropped on this PE but not on all, or in use" if self.dropped else ""
        return (f"{what}: {format_size(nbytes)} asked for; of the {format_size(self.size)} heap {format_size(self.free)} "
                f"are free, the largest block {format_size(self.largest_free)}; {self.live} buffers are live{waiting}. "
                "NVSYM_HEAP_SIZE or init(heap_size=) makes the heap larger")

    cdef int free_block(self, Allocation block, object error) except -1:
        cdef int64_t id = -1 if block is None else block.id
        cdef bint ready = False
        cdef int pe
        cdef bint all_ready = True
        if error is None:
            self.backend.runtime.reap()
            ready = block.exports == 0 and self.backend.runtime.ticket_done(self.backend.runtime.ticket())
        meet(self.agreement, CALL_FREE, (id, 0, len(self.dropped), ready), "freeing a buffer", error)
        for pe in range(self.agreement.size):
            if not self.agreement.all[pe, 6]:
                all_ready = False
        block.freed = True
        if all_ready:
            block.noted = True
            self.release(id)
        elif block.exports == 0:
            self.note(block)
        return 0

    cdef int collect(self) except -1:
        meet(self.agreement, CALL_COLLECT, (0, 0, len(self.dropped)), "collect()", None)
        try:
            self.settle()
        except BaseException as error:
            self.agreement.left("collect()", error)
            raise
        return 0

    cdef int close(self, str why, type cls) except -1:
        self.closed = why
        self.closed_with = cls
        self.blocks.clear()
        self.dropped.clear()
        return 0

    cdef int note(self, Allocation block) except -1:
        """Put a block on this PE's deferred list. Called from destructors."""
        if self.closed is None:
            block.noted = True
            self.dropped[block.id] = self.backend.runtime.ticket()
        return 0

    def all_have_dropped(self):
        """The fewest blocks that any PE had on its list in the meeting just held."""
        cdef int pe
        cdef int64_t fewest = self.agreement.all[0, 5]
        for pe in range(1, self.agreement.size):
            fewest = min(fewest, self.agreement.all[pe, 5])
        return fewest

    cdef bint settle_work(self) except -1:
        """Settle once the work of all PEs is done, which dropped memory may wait for; False if no PE has any, nor dropped blocks."""
        pending = not self.backend.runtime.ticket_done(self.backend.runtime.ticket())
        if not any(self.agreement.gather(pending or bool(self.dropped), "looking for dropped buffers")):
            return False
        self.await_work()
        self.settle()
        return True

    cdef int await_work(self) except -1:
        """Wait for what this PE has enqueued, but not for ever: that may be waiting for what comes after the allocation."""
        cdef uint64_t ticket = self.backend.runtime.ticket()
        # The others wait in an agreement meanwhile, which has this limit.
        limit = self.agreement.limit / 2 if self.agreement.limit > 0 else float("inf")
        began = time.monotonic()
        while not self.backend.runtime.ticket_done(ticket) and time.monotonic() - began < limit:
            time.sleep(1e-4)
            PyErr_CheckSignals()
        self.backend.runtime.reap()
        return 0

    cdef int settle(self) except -1:
        """Release what all PEs have dropped and are done with."""
        cdef int64_t id
        cdef Py_ssize_t i
        cdef unsigned char[::1] bits
        if not self.blocks:
            return 0
        self.backend.runtime.reap()
        ids = list(self.blocks)
        done = np.zeros(len(ids), np.uint8)
        bits = done
        for i in range(len(ids)):
            id = ids[i]
            ticket = self.dropped.get(id)
            if ticket is not None and self.backend.runtime.ticket_done(ticket):
                bits[i] = 1
        if self.agreement.size > 1:
            packed = np.packbits(done)
            agreed = np.empty_like(packed)
            from mpi4py import MPI
            self.agreement.wait(self.agreement.comm.Iallreduce(packed, agreed, MPI.BAND), "settling dropped buffers")
            done = np.unpackbits(agreed, count=len(ids))
            bits = done
        for i in range(len(ids)):
            if bits[i]:
                self.release(ids[i])
        return 0

    cdef int release(self, int64_t id) except -1:
        arena, offset, _ = self.blocks.pop(id)
        self.dropped.pop(id, None)
        self.allocator.release(arena, offset)
        return 0


cdef int meet(Agreement agreement, int call, object arguments, str what, object error) except -1:
    cdef int64_t[::1] out = agreement.out
    cdef int i, pe
    cdef bint failed = False, same = True
    out[:] = 0
    out[0] = call
    out[1] = error is not None
    # Fields 2..4 must agree; 5 and above are each PE's own. `arguments`: two that must agree, then own ones.
    for i in range(len(arguments)):
        out[3 + i] = arguments[i]
    agreement.exchange(what)
    for pe in range(agreement.size):
        if agreement.all[pe, 0] != agreement.all[0, 0]:
            same = False
        if agreement.all[pe, 1]:
            failed = True
    if not same:
        calls = {}
        for pe in range(agreement.size):
            calls.setdefault(CALL_NAMES.get(agreement.all[pe, 0], "another step"), []).append(pe)
        parts = "; ".join([f"{agreement.list_names(pes)}: {name}" for name, pes in calls.items()])
        raise CollectiveError(f"{what}: the PEs are in different collective calls. {parts}")
    if failed:
        agreement.raise_for_all(what, error)
    for pe in range(agreement.size):
        for i in range(3, 5):
            if agreement.all[pe, i] != agreement.all[0, i]:
                same = False
    if not same:
        agreement.same(CALL_NAMES[call], what if call in (CALL_ALLOCATE, CALL_SPLIT) else f"number {agreement.out[3]}",
                       "Collective calls must be made with the same arguments on every PE")
    return 0
