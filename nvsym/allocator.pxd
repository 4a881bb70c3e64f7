# SPDX-License-Identifier: Apache-2.0
# The block allocator of the symmetric heap. Sizes and offsets are bytes at the interface, granules inside.
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    SL_LOG2 = 5                 # every power of two is divided into 32 size classes
    SL_COUNT = 1 << SL_LOG2
    FL_COUNT = 64 - SL_LOG2     # sizes have up to 63 bits

# Blocks are named by their index in one array, so that growing the array moves nothing that matters. Index 0 is "none".
cdef struct Block:
    uint64_t start              # from the beginning of the arena
    uint64_t units
    uint32_t before             # neighbours in the arena, in order of offsets
    uint32_t after
    uint32_t free_before        # neighbours in the free list of the size class; free_after also chains unused entries
    uint32_t free_after
    int      arena              # -1: this entry describes no block
    bint     live

cdef struct Arena:
    uint64_t units
    uint64_t used
    uint64_t high_end           # end of the highest block ever handed out
    uint64_t fl_bitmap          # powers of two that have a free block
    uint32_t sl_bitmap[FL_COUNT]
    uint32_t heads[FL_COUNT][SL_COUNT]
    uint32_t live
    uint32_t first              # the block at offset 0: the same entry for as long as the arena exists


@cython.final
cdef class Allocator:
    cdef:
        readonly size_t granule
        readonly size_t size            # bytes in all arenas
        readonly size_t used            # bytes in live blocks, each rounded up to granules
        readonly size_t high_water      # the most that `used` ever was
        readonly size_t live_blocks

        int shift                       # log2(granule)
        Arena **arenas                  # NULL where an arena was removed
        int arena_slots
        Block *blocks
        uint32_t block_capacity
        uint32_t block_fresh            # entries from here on were never used
        uint32_t block_unused           # chain of entries to use again
        uint32_t block_unused_count
        uint32_t *table                 # live blocks by (arena, start): linear probing, 0 is an empty slot
        size_t table_mask
        int table_shift

    # Not thread-safe: the caller holds a lock (and the GIL).
    cdef int64_t allocate(self, size_t nbytes, int *arena, size_t align=*) except -2
    cpdef int add_arena(self, size_t nbytes) except -1
    cpdef int remove_arena(self, int arena) except -1
    cpdef int release(self, int arena, size_t offset) except -1
    cpdef size_t block_size(self, int arena, size_t offset) except 0
    cpdef size_t arena_size(self, int arena) except 0
    cpdef int64_t arena_used(self, int arena) except -1
    cpdef int64_t high_end(self, int arena) except -1

    cdef Arena *arena_at(self, int arena) except NULL
    cdef uint32_t find_live(self, int arena, uint64_t start, size_t *slot) noexcept nogil
    cdef uint32_t locate(self, int arena, size_t offset, size_t *slot) except 0
    cdef int reserve_blocks(self, uint32_t count) except -1
    cdef int reserve_table(self) except -1
    cdef uint32_t new_block(self) noexcept nogil
    cdef void drop_block(self, uint32_t index) noexcept nogil
    cdef void occupy(self, int arena, uint32_t index, uint64_t start, uint64_t units) noexcept nogil
    cdef int64_t check_blocks(self, int arena) except -1
    cdef int check_lists(self, int arena) except -1
