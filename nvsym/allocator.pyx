# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
"""The block allocator of the symmetric heap.

Every PE runs it with the same sequence of calls and gets the same offsets: the result of a call depends on the calls
before it and on nothing else, neither addresses, nor time, nor the order of a hash table. It never touches the memory
that it divides.
"""

cimport cython
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from libc.stdint cimport INT64_MAX, UINT32_MAX, UINT64_MAX
from libc.string cimport memset

cdef extern from * nogil:
    int count_leading_zeros "__builtin_clzll"(unsigned long long) noexcept
    int count_trailing_zeros "__builtin_ctzll"(unsigned long long) noexcept

cdef enum:
    NONE = 0
    PEEK = 4                # free blocks of the request's own class that are looked at before a larger class is split
    FIRST_BLOCKS = 64
    FIRST_TABLE_LOG2 = 6


@cython.final
cdef class Allocator:
    """Divides arenas, contiguous ranges of offsets, into blocks.

    TLSF, two-level segregated fit [1]_: free blocks are kept in lists by size class, 32 classes to each power of two,
    with a bitmap that finds the first list that can serve a request. Released blocks merge with their free neighbours
    at once.

    `alloc` and `release` take constant time. One case walks lists: a request that no larger class can serve is looked
    for among all blocks of the classes that may hold one, so `alloc` fails only where no free block fits. Earlier
    arenas are preferred, so that later ones become free as a whole and can be removed; each arena passed over costs one
    look.

    Not thread-safe: the caller holds a lock.

    Parameters
    ----------
    granule : int, default 256
        Size and alignment unit in bytes, a power of two. Every block begins at, and takes, a multiple of it.

    Attributes
    ----------
    granule : int
        Bytes.
    size : int
        Bytes in all arenas.
    used : int
        Bytes in live blocks, each rounded up to granules.
    free : int
        `size - used`.
    high_water : int
        The most that `used` ever was.
    live_blocks : int
        Number of blocks handed out and not released.
    largest_free : int
        Bytes of the largest free block: the largest request that can be served now.
    fragmentation : float
        Share of the free bytes that lie outside the largest free block; 0 when nothing is free. Arenas do not join, so
        two empty ones of equal size count as 0.5.

    Raises
    ------
    ValueError
        If `granule` is not a power of two.
    MemoryError
        From any call that needs memory for bookkeeping and gets none. That call has then changed nothing.

    Notes
    -----
    C callers use `allocate`, which is `alloc` without Python objects. `sys.getsizeof` includes the bookkeeping.

    References
    ----------
    .. [1] M. Masmano, I. Ripoll, A. Crespo, J. Real, "TLSF: A New Dynamic Memory Allocator for Real-Time Systems",
       16th Euromicro Conference on Real-Time Systems, 2004, doi:10.1109/EMRTS.2004.1311009.
    """

    def __cinit__(self, size_t granule=256):
        if granule == 0 or granule & (granule - 1):
            raise ValueError(f"granule is {granule} bytes; it must be a power of two")
        self.granule = granule
        self.shift = count_trailing_zeros(granule)
        self.block_fresh = 1
        self.table_shift = 64 - FIRST_TABLE_LOG2
        self.table_mask = (1 << FIRST_TABLE_LOG2) - 1
        self.table = <uint32_t *>PyMem_RawCalloc(self.table_mask + 1, sizeof(uint32_t))
        self.blocks = <Block *>PyMem_RawMalloc(FIRST_BLOCKS * sizeof(Block))
        self.block_capacity = FIRST_BLOCKS
        if self.table is NULL or self.blocks is NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef int i
        for i in range(self.arena_slots):
            PyMem_RawFree(self.arenas[i])
        PyMem_RawFree(self.arenas)
        PyMem_RawFree(self.blocks)
        PyMem_RawFree(self.table)

    # --- blocks -------------------------------------------------------------------------------------------------------

    def alloc(self, size_t nbytes, size_t align=0):
        """Hand out a block.

        Parameters
        ----------
        nbytes : int
            Rounded up to whole granules; 0 counts as one granule.
        align : int, optional
            Alignment of the offset in bytes, a power of two and at least the granule, which is the default.

        Returns
        -------
        tuple of (int, int), or None
            Arena, and offset in it in bytes. None if no free block can hold the request.

        Raises
        ------
        ValueError
            If `align` is not a power of two, or less than the granule.
        """
        cdef int arena
        cdef int64_t offset = self.allocate(nbytes, &arena, align)
        if offset < 0:
            return None
        try:
            return arena, offset
        except MemoryError:
            self.release(arena, offset)
            raise

    cdef int64_t allocate(self, size_t nbytes, int *arena, size_t align=0) except -2:
        # The offset, or -1 (and *arena = -1) when no free block can hold the request. align 0: the granule.
        cdef uint64_t units = (nbytes >> self.shift) + ((nbytes & (self.granule - 1)) != 0)
        cdef uint64_t align_units = 1, start
        cdef uint32_t index = NONE
        cdef int i
        arena[0] = -1
        if align != 0:
            if align < self.granule or align & (align - 1):
                raise ValueError(f"align is {align} bytes; it must be a power of two and at least the granule, "
                                 f"{self.granule}")
            align_units = align >> self.shift
        if units == 0:
            units = 1
        if units > (self.size - self.used) >> self.shift:
            return -1
        for i in range(self.arena_slots):
            if self.arenas[i] is not NULL:
                index = find_quick(self.blocks, self.arenas[i], units, align_units)
                if index != NONE:
                    break
        else:
            for i in range(self.arena_slots):
                if self.arenas[i] is not NULL:
                    index = find_thorough(self.blocks, self.arenas[i], units, align_units)
                    if index != NONE:
                        break
            else:
                return -1
        self.reserve_blocks(2)
        self.reserve_table()
        start = aligned(self.blocks[index].start, align_units)
        self.occupy(i, index, start, units)
        arena[0] = i
        return <int64_t>(start << self.shift)

    cpdef int release(self, int arena, size_t offset) except -1:
        """Take a block back and merge it with its free neighbours.

        Parameters
        ----------
        arena, offset : int
            As `alloc` returned them.

        Raises
        ------
        ValueError
            If no live block begins there: it was released before, or never handed out. Nothing is changed.
        """
        cdef size_t slot
        cdef uint32_t index = self.locate(arena, offset, &slot)
        cdef Arena *a = self.arenas[arena]
        cdef Block *blocks = self.blocks
        cdef Block *block = &blocks[index]
        cdef uint32_t other
        table_remove(self.table, self.table_mask, self.table_shift, blocks, slot)
        block.live = False
        a.live -= 1
        a.used -= block.units
        self.used -= block.units << self.shift
        self.live_blocks -= 1
        other = block.after
        if other != NONE and not blocks[other].live:
            list_remove(blocks, a, other)
            absorb_after(blocks, index)
            self.drop_block(other)
        other = block.before
        if other != NONE and not blocks[other].live:
            list_remove(blocks, a, other)
            absorb_after(blocks, other)
            self.drop_block(index)
            index = other
        list_insert(blocks, a, index)
        return 0

    cpdef size_t block_size(self, int arena, size_t offset) except 0:
        """Bytes of the live block that begins at `offset`, rounding included.

        Raises
        ------
        ValueError
            If no live block begins there.
        """
        cdef size_t slot
        return self.blocks[self.locate(arena, offset, &slot)].units << self.shift

    # --- arenas -------------------------------------------------------------------------------------------------------

    cpdef int add_arena(self, size_t nbytes) except -1:
        """Add a range of offsets, from 0 to `nbytes` rounded down to whole granules.

        The memory behind offset 0 must have the largest alignment that will ever be asked for.

        Returns
        -------
        int
            Its number: the lowest that no arena has.

        Raises
        ------
        ValueError
            If `nbytes` is less than one granule, or all arenas together would exceed 2**63 - 1 bytes.
        """
        cdef uint64_t units = nbytes >> self.shift
        cdef Arena **arenas
        cdef Arena *a
        cdef uint32_t index
        cdef int i
        if units == 0:
            raise ValueError(f"an arena of {nbytes} bytes was asked for; the least is a granule, {self.granule} bytes")
        if nbytes > <size_t>INT64_MAX - self.size:
            raise ValueError(f"an arena of {nbytes} bytes was asked for beside {self.size} bytes in others; "
                             "together they must stay below 2**63")
        self.reserve_blocks(1)
        for i in range(self.arena_slots):
            if self.arenas[i] is NULL:
                break
        else:
            i = self.arena_slots
            arenas = <Arena **>PyMem_RawRealloc(self.arenas, (i + 1) * sizeof(Arena *))
            if arenas is NULL:
                raise MemoryError
            self.arenas = arenas
            arenas[i] = NULL
            self.arena_slots = i + 1
        a = <Arena *>PyMem_RawCalloc(1, sizeof(Arena))
        if a is NULL:
            raise MemoryError
        index = self.new_block()
        self.blocks[index].units = units
        self.blocks[index].arena = i
        list_insert(self.blocks, a, index)
        a.units = units
        a.first = index
        self.arenas[i] = a
        self.size += units << self.shift
        return i

    cpdef int remove_arena(self, int arena) except -1:
        """Remove an arena in which no block is live. Its number may be given to a later one.

        Raises
        ------
        ValueError
            If there is no such arena, or a block in it is live.
        """
        cdef Arena *a = self.arena_at(arena)
        if a.live:
            raise ValueError(f"cannot remove arena {arena}: it has {a.live} live blocks "
                             f"({a.used << self.shift} bytes); release them first")
        self.size -= a.units << self.shift
        self.drop_block(a.first)
        PyMem_RawFree(a)
        self.arenas[arena] = NULL
        return 0

    cpdef size_t arena_size(self, int arena) except 0:
        """Bytes of one arena.

        Raises
        ------
        ValueError
            If there is no such arena.
        """
        return self.arena_at(arena).units << self.shift

    cpdef int64_t arena_used(self, int arena) except -1:
        """Bytes in live blocks of one arena.

        Raises
        ------
        ValueError
            If there is no such arena.
        """
        return self.arena_at(arena).used << self.shift

    cpdef int64_t high_end(self, int arena) except -1:
        """End, in bytes, of the highest block ever handed out in an arena: what lies beyond was never given to anyone.

        Raises
        ------
        ValueError
            If there is no such arena.
        """
        return self.arena_at(arena).high_end << self.shift

    # --- statistics ---------------------------------------------------------------------------------------------------

    @property
    def free(self):
        return self.size - self.used

    @property
    def largest_free(self):
        cdef uint64_t units = 0
        cdef int i
        for i in range(self.arena_slots):
            if self.arenas[i] is not NULL:
                units = max(units, largest_units(self.blocks, self.arenas[i]))
        return units << self.shift

    @property
    def fragmentation(self):
        if self.size == self.used:
            return 0.0
        return 1.0 - self.largest_free / (self.size - self.used)

    def arenas_in_use(self):
        """Numbers of the arenas, ascending.

        Returns
        -------
        list of int
        """
        return [i for i in range(self.arena_slots) if self.arenas[i] is not NULL]

    def blocks_of(self, int arena):
        """All blocks of an arena, in order of their offsets; they tile it.

        Returns
        -------
        list of tuple of (int, int, bool)
            Offset and size in bytes, and whether the block is live.

        Raises
        ------
        ValueError
            If there is no such arena.
        """
        cdef uint32_t index = self.arena_at(arena).first
        found = []
        while index != NONE:
            found.append((self.blocks[index].start << self.shift, self.blocks[index].units << self.shift,
                          self.blocks[index].live != 0))
            index = self.blocks[index].after
        return found

    def __sizeof__(self):
        cdef size_t nbytes = object.__sizeof__(self)
        nbytes += self.arena_slots * sizeof(Arena *) + self.block_capacity * sizeof(Block)
        nbytes += (self.table_mask + 1) * sizeof(uint32_t)
        return nbytes + len(self.arenas_in_use()) * sizeof(Arena)

    # --- the check ----------------------------------------------------------------------------------------------------

    def check(self):
        """Walk everything and compare it with everything else.

        Raises
        ------
        AssertionError
            Naming the first invariant found broken: blocks tile each arena, no two free blocks are neighbours, free
            lists and bitmaps agree with the blocks and each other, every live block is found by its offset, all counts
            are right.
        """
        cdef size_t walked = 0, live = 0, size = 0, used = 0, filled = 0, unused = 0, slot
        cdef uint32_t index
        cdef int i
        for i in range(self.arena_slots):
            if self.arenas[i] is not NULL:
                walked += self.check_blocks(i)
                self.check_lists(i)
                live += self.arenas[i].live
                size += self.arenas[i].units << self.shift
                used += self.arenas[i].used << self.shift
        if self.size != size or self.used != used or self.live_blocks != live:
            raise AssertionError(f"counted {self.size} bytes, {self.used} used, {self.live_blocks} live blocks; "
                                 f"the arenas have {size}, {used}, {live}")
        if self.high_water < self.used:
            raise AssertionError(f"high_water is {self.high_water}, less than the {self.used} bytes in use")
        for slot in range(self.table_mask + 1):
            filled += self.table[slot] != NONE
        if filled != live or 2 * filled > self.table_mask + 1:
            raise AssertionError(f"{filled} entries in the table of {self.table_mask + 1} slots, {live} live blocks")
        index = self.block_unused
        while index != NONE and unused <= self.block_unused_count:
            if self.blocks[index].arena != -1:
                raise AssertionError(f"entry {index} is in the chain of unused ones, but describes a block")
            unused += 1
            index = self.blocks[index].free_after
        if unused != self.block_unused_count:
            raise AssertionError(f"the chain of unused entries has {unused}, counted {self.block_unused_count}")
        if walked + unused + 1 != self.block_fresh or self.block_fresh > self.block_capacity:
            raise AssertionError(f"{walked} blocks and {unused} unused entries are not the {self.block_fresh - 1} "
                                 f"taken from an array of {self.block_capacity}")

    cdef int64_t check_blocks(self, int arena) except -1:
        # The blocks in order of their offsets; returns their number.
        cdef Arena *a = self.arenas[arena]
        cdef Block *block
        cdef uint32_t index = a.first, before = NONE
        cdef uint64_t end = 0, used = 0, high_end = 0
        cdef size_t slot
        cdef int64_t walked = 0
        cdef uint32_t live = 0
        while index != NONE:
            if index >= self.block_fresh:
                raise AssertionError(f"arena {arena}: block {index} is beyond the entries in use")
            block = &self.blocks[index]
            if block.arena != arena or block.start != end or block.before != before \
                    or not 0 < block.units <= a.units - end:
                raise AssertionError(
                    f"arena {arena}: after block {before}, which ends at {end} of {a.units} granules, comes block "
                    f"{index}: arena {block.arena}, granules {block.start} + {block.units}, after block {block.before}")
            end += block.units
            if block.live:
                live += 1
                used += block.units
                high_end = end
                if self.find_live(arena, block.start, &slot) != index:
                    raise AssertionError(f"arena {arena}: the live block at granule {block.start} is not in the table")
            elif before != NONE and not self.blocks[before].live:
                raise AssertionError(f"arena {arena}: two free neighbours meet at granule {block.start}")
            walked += 1
            before = index
            index = block.after
        if end != a.units:
            raise AssertionError(f"arena {arena}: the blocks end at {end} of {a.units} granules")
        if a.live != live or a.used != used:
            raise AssertionError(f"arena {arena}: counted {a.live} live blocks, {a.used} granules; "
                                 f"found {live}, {used}")
        if not high_end <= a.high_end <= a.units:
            raise AssertionError(f"arena {arena}: high_end is granule {a.high_end}, a live block ends at {high_end}")
        return walked

    cdef int check_lists(self, int arena) except -1:
        # The free lists and bitmaps, against the blocks that check_blocks has found sound.
        cdef Arena *a = self.arenas[arena]
        cdef Block *block
        cdef uint32_t index = a.first, before
        cdef size_t free_blocks = 0, listed = 0
        cdef int fl, sl, own_fl, own_sl
        while index != NONE:
            free_blocks += not self.blocks[index].live
            index = self.blocks[index].after
        if a.fl_bitmap >> FL_COUNT != 0:
            raise AssertionError(f"arena {arena}: first-level bitmap {a.fl_bitmap:#x}")
        for fl in range(FL_COUNT):
            if (a.fl_bitmap >> fl & 1) != (a.sl_bitmap[fl] != 0):
                raise AssertionError(f"arena {arena}: first-level bit {fl}, second-level bitmap {a.sl_bitmap[fl]:#x}")
            for sl in range(SL_COUNT):
                index = a.heads[fl][sl]
                if (a.sl_bitmap[fl] >> sl & 1) != (index != NONE):
                    raise AssertionError(f"arena {arena}: bit and head of list {fl}, {sl} do not agree")
                before = NONE
                while index != NONE:
                    if index >= self.block_fresh:
                        raise AssertionError(f"arena {arena}: list {fl}, {sl} has block {index}, beyond those in use")
                    block = &self.blocks[index]
                    size_class(block.units, &own_fl, &own_sl)
                    if block.arena != arena or block.live or block.free_before != before \
                            or own_fl != fl or own_sl != sl:
                        raise AssertionError(
                            f"arena {arena}: list {fl}, {sl} has, after block {before}, block {index}: arena "
                            f"{block.arena}, live {block.live}, after block {block.free_before}, class {own_fl}, "
                            f"{own_sl}")
                    listed += 1
                    if listed > free_blocks:
                        break
                    before = index
                    index = block.free_after
        if listed != free_blocks:
            raise AssertionError(f"arena {arena}: {listed} or more blocks in the lists, {free_blocks} are free")
        return 0

    # --- inside -------------------------------------------------------------------------------------------------------

    cdef Arena *arena_at(self, int arena) except NULL:
        if not 0 <= arena < self.arena_slots or self.arenas[arena] is NULL:
            raise ValueError(f"there is no arena {arena}; the arenas are {self.arenas_in_use()}")
        return self.arenas[arena]

    cdef uint32_t find_live(self, int arena, uint64_t start, size_t *slot) noexcept nogil:
        # The live block that begins at start, and its slot in the table.
        cdef size_t at = home_slot(arena, start, self.table_shift)
        cdef uint32_t index
        while True:
            index = self.table[at]
            if index == NONE or (self.blocks[index].start == start and self.blocks[index].arena == arena):
                slot[0] = at
                return index
            at = (at + 1) & self.table_mask

    cdef uint32_t locate(self, int arena, size_t offset, size_t *slot) except 0:
        cdef uint32_t index
        if offset & (self.granule - 1) == 0:
            index = self.find_live(arena, offset >> self.shift, slot)
            if index != NONE:
                return index
        self.arena_at(arena)
        raise ValueError(f"no live block begins at offset {offset} of arena {arena}: pass what the allocation "
                         "returned, and nothing that was released")

    cdef int reserve_blocks(self, uint32_t count) except -1:
        # Makes sure that new_block can be called count times.
        cdef uint32_t capacity
        cdef Block *blocks
        if self.block_unused_count + (self.block_capacity - self.block_fresh) >= count:
            return 0
        if self.block_capacity > UINT32_MAX // 2:
            raise MemoryError("the symmetric heap has too many blocks")
        capacity = 2 * self.block_capacity
        blocks = <Block *>PyMem_RawRealloc(self.blocks, capacity * sizeof(Block))
        if blocks is NULL:
            raise MemoryError
        self.blocks = blocks
        self.block_capacity = capacity
        return 0

    cdef int reserve_table(self) except -1:
        # Keeps the table at most half full with one more entry.
        cdef uint32_t *table
        cdef size_t slot, mask
        if 2 * (self.live_blocks + 1) <= self.table_mask + 1:
            return 0
        table = <uint32_t *>PyMem_RawCalloc(2 * (self.table_mask + 1), sizeof(uint32_t))
        if table is NULL:
            raise MemoryError
        mask = 2 * self.table_mask + 1
        for slot in range(self.table_mask + 1):
            if self.table[slot] != NONE:
                table_add(table, mask, self.table_shift - 1, self.blocks, self.table[slot])
        PyMem_RawFree(self.table)
        self.table = table
        self.table_mask = mask
        self.table_shift -= 1
        return 0

    cdef uint32_t new_block(self) noexcept nogil:
        cdef uint32_t index = self.block_unused
        if index != NONE:
            self.block_unused = self.blocks[index].free_after
            self.block_unused_count -= 1
        else:
            index = self.block_fresh
            self.block_fresh += 1
        memset(&self.blocks[index], 0, sizeof(Block))
        return index

    cdef void drop_block(self, uint32_t index) noexcept nogil:
        self.blocks[index].arena = -1
        self.blocks[index].live = False
        self.blocks[index].free_after = self.block_unused
        self.block_unused = index
        self.block_unused_count += 1

    cdef void occupy(self, int arena, uint32_t index, uint64_t start, uint64_t units) noexcept nogil:
        # Makes [start, start + units) of the free block at index live; what is left on either side stays free.
        cdef Arena *a = self.arenas[arena]
        cdef Block *blocks = self.blocks
        cdef uint32_t rest
        list_remove(blocks, a, index)
        if start > blocks[index].start:
            rest = self.new_block()
            split(blocks, index, rest, start - blocks[index].start)
            list_insert(blocks, a, index)
            index = rest
        if units < blocks[index].units:
            rest = self.new_block()
            split(blocks, index, rest, units)
            list_insert(blocks, a, rest)
        blocks[index].live = True
        table_add(self.table, self.table_mask, self.table_shift, blocks, index)
        a.live += 1
        a.used += units
        a.high_end = max(a.high_end, start + units)
        self.live_blocks += 1
        self.used += units << self.shift
        self.high_water = max(self.high_water, self.used)


# --- size classes -----------------------------------------------------------------------------------------------------

cdef inline void size_class(uint64_t units, int *fl, int *sl) noexcept nogil:
    # Sizes below SL_COUNT have a class each; above, every power of two has SL_COUNT classes of equal width.
    cdef int log2
    if units < SL_COUNT:
        fl[0] = 0
        sl[0] = <int>units
    else:
        log2 = 63 - count_leading_zeros(units)
        fl[0] = log2 - SL_LOG2 + 1
        sl[0] = <int>(units >> (log2 - SL_LOG2)) - SL_COUNT


cdef inline uint64_t aligned(uint64_t start, uint64_t align) noexcept nogil:
    return (start + align - 1) & ~(align - 1)


cdef inline bint holds(const Block *block, uint64_t units, uint64_t align) noexcept nogil:
    # start and end are below 2**63 and align at most 2**63, so nothing wraps.
    return aligned(block.start, align) + units <= block.start + block.units


cdef inline uint32_t next_class(const Arena *a, int *fl, int *sl) noexcept nogil:
    # The head of the first list that is not empty, from class (fl, sl) on, which is set to that list's.
    cdef uint32_t bits
    cdef uint64_t high
    if fl[0] >= FL_COUNT:
        return NONE
    bits = a.sl_bitmap[fl[0]] & (<uint32_t>UINT32_MAX << sl[0])
    if bits == 0:
        high = a.fl_bitmap & (<uint64_t>UINT64_MAX << (fl[0] + 1))
        if high == 0:
            return NONE
        fl[0] = count_trailing_zeros(high)
        bits = a.sl_bitmap[fl[0]]
    sl[0] = count_trailing_zeros(bits)
    return a.heads[fl[0]][sl[0]]


cdef inline uint32_t find_quick(const Block *blocks, const Arena *a, uint64_t units, uint64_t align) noexcept nogil:
    # A few blocks of the request's own class, so that a size released and asked for again finds its old place; then the
    # good fit of TLSF: the head of the first class in which every block is large enough, alignment included.
    cdef uint64_t need = units + align - 1
    cdef uint32_t index
    cdef int fl, sl, _look
    if units > a.units - a.used:
        return NONE
    size_class(units, &fl, &sl)
    index = a.heads[fl][sl]
    for _look in range(PEEK):
        if index == NONE:
            break
        if holds(&blocks[index], units, align):
            return index
        index = blocks[index].free_after
    if need > a.units:
        return NONE
    if need >= SL_COUNT:
        need += (<uint64_t>1 << (63 - count_leading_zeros(need) - SL_LOG2)) - 1
    size_class(need, &fl, &sl)
    return next_class(a, &fl, &sl)


cdef uint32_t find_thorough(const Block *blocks, const Arena *a, uint64_t units, uint64_t align) noexcept nogil:
    # Every block that may hold the request though find_quick passed it by: those from the class of units on.
    cdef uint32_t index
    cdef int fl, sl
    if units > a.units - a.used:
        return NONE
    size_class(units, &fl, &sl)
    index = next_class(a, &fl, &sl)
    while index != NONE:
        while index != NONE:
            if holds(&blocks[index], units, align):
                return index
            index = blocks[index].free_after
        sl += 1
        if sl == SL_COUNT:
            fl += 1
            sl = 0
        index = next_class(a, &fl, &sl)
    return NONE


cdef uint64_t largest_units(const Block *blocks, const Arena *a) noexcept nogil:
    cdef uint64_t units = 0
    cdef uint32_t index
    cdef int fl
    if a.fl_bitmap == 0:
        return 0
    fl = 63 - count_leading_zeros(a.fl_bitmap)
    index = a.heads[fl][63 - count_leading_zeros(a.sl_bitmap[fl])]
    while index != NONE:
        units = max(units, blocks[index].units)
        index = blocks[index].free_after
    return units


# --- free lists and neighbours ----------------------------------------------------------------------------------------

cdef inline void list_insert(Block *blocks, Arena *a, uint32_t index) noexcept nogil:
    cdef uint32_t head
    cdef int fl, sl
    size_class(blocks[index].units, &fl, &sl)
    head = a.heads[fl][sl]
    blocks[index].free_before = NONE
    blocks[index].free_after = head
    if head != NONE:
        blocks[head].free_before = index
    a.heads[fl][sl] = index
    a.sl_bitmap[fl] |= <uint32_t>1 << sl
    a.fl_bitmap |= <uint64_t>1 << fl


cdef inline void list_remove(Block *blocks, Arena *a, uint32_t index) noexcept nogil:
    cdef uint32_t before = blocks[index].free_before, after = blocks[index].free_after
    cdef int fl, sl
    if after != NONE:
        blocks[after].free_before = before
    if before != NONE:
        blocks[before].free_after = after
        return
    size_class(blocks[index].units, &fl, &sl)
    a.heads[fl][sl] = after
    if after == NONE:
        a.sl_bitmap[fl] &= ~(<uint32_t>1 << sl)
        if a.sl_bitmap[fl] == 0:
            a.fl_bitmap &= ~(<uint64_t>1 << fl)


cdef inline void split(Block *blocks, uint32_t index, uint32_t rest, uint64_t units) noexcept nogil:
    # The block keeps its first `units`; the entry rest becomes the block after it.
    cdef uint32_t after = blocks[index].after
    blocks[rest].start = blocks[index].start + units
    blocks[rest].units = blocks[index].units - units
    blocks[rest].arena = blocks[index].arena
    blocks[rest].before = index
    blocks[rest].after = after
    if after != NONE:
        blocks[after].before = rest
    blocks[index].units = units
    blocks[index].after = rest


cdef inline void absorb_after(Block *blocks, uint32_t index) noexcept nogil:
    cdef uint32_t other = blocks[index].after
    cdef uint32_t after = blocks[other].after
    blocks[index].units += blocks[other].units
    blocks[index].after = after
    if after != NONE:
        blocks[after].before = index


# --- the table of live blocks -----------------------------------------------------------------------------------------

cdef inline size_t home_slot(int arena, uint64_t start, int shift) noexcept nogil:
    # Fibonacci hashing: the upper bits of a product with 2**64 divided by the golden ratio.
    return ((start + (<uint64_t><uint32_t>arena << 48)) * <uint64_t>0x9E3779B97F4A7C15) >> shift


cdef inline void table_add(uint32_t *table, size_t mask, int shift, const Block *blocks, uint32_t index) noexcept nogil:
    cdef size_t slot = home_slot(blocks[index].arena, blocks[index].start, shift)
    while table[slot] != NONE:
        slot = (slot + 1) & mask
    table[slot] = index


cdef inline void table_remove(uint32_t *table, size_t mask, int shift, const Block *blocks, size_t slot) noexcept nogil:
    # Entries that follow move up, so that no marks of removed ones remain (Knuth, The Art of Computer Programming,
    # volume 3, section 6.4, algorithm R).
    cdef size_t hole = slot, home
    cdef uint32_t index
    while True:
        slot = (slot + 1) & mask
        index = table[slot]
        if index == NONE:
            break
        home = home_slot(blocks[index].arena, blocks[index].start, shift)
        if ((slot - home) & mask) >= ((slot - hole) & mask):
            table[hole] = index
            hole = slot
    table[hole] = NONE
