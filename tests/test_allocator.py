# SPDX-License-Identifier: Apache-2.0
"""The block allocator of the symmetric heap, against hand-made cases and a naive model that keeps sorted lists."""

import bisect
import hashlib
import itertools
import os
import pathlib
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

import nvsym
from nvsym.allocator import Allocator

try:
    import _testcapi
except ImportError:  # a Python that was built without its test modules
    _testcapi = None

GRANULE = 256


def heap_of(*granules, granule=GRANULE):
    """An allocator with one arena for each number of granules."""
    a = Allocator(granule)
    for n in granules:
        a.add_arena(n * granule)
    return a


def state_of(a):
    """All that can be seen of an allocator."""
    arenas = a.arenas_in_use()
    return (
        a.size, a.used, a.free, a.high_water, a.live_blocks, a.largest_free, a.fragmentation,
        [(i, a.arena_size(i), a.arena_used(i), a.high_end(i), a.blocks_of(i)) for i in arenas],
    )  # fmt: skip


class Model:
    """The blocks as sorted lists of (start, end). It has no policy: it judges the places that the allocator chooses."""

    def __init__(self, granule):
        self.granule = granule
        self.sizes = {}
        self.blocks = {}
        self.high_ends = {}
        self.high_water = 0

    def add_arena(self, arena, nbytes):
        assert arena == next(i for i in itertools.count() if i not in self.sizes)
        self.sizes[arena] = nbytes // self.granule * self.granule
        self.blocks[arena] = []
        self.high_ends[arena] = 0

    def remove_arena(self, arena):
        assert not self.blocks[arena]
        del self.sizes[arena], self.blocks[arena], self.high_ends[arena]

    def rounded(self, nbytes):
        return max(-(-nbytes // self.granule), 1) * self.granule

    def gaps(self, arena):
        begin = 0
        for start, end in self.blocks[arena]:
            if begin < start:
                yield begin, start
            begin = end
        if begin < self.sizes[arena]:
            yield begin, self.sizes[arena]

    def can_hold(self, nbytes, align):
        need = self.rounded(nbytes)
        return any(-(-start // align) * align + need <= end for i in self.sizes for start, end in self.gaps(i))

    def place(self, nbytes, align, place):
        """Judge the answer to an allocation, and take it over."""
        align = align or self.granule
        if place is None:
            assert not self.can_hold(nbytes, align), (
                f"{nbytes} bytes, align {align}: refused, but a free block holds them"
            )
            return
        arena, start = place
        end = start + self.rounded(nbytes)
        assert start % align == 0
        assert 0 <= start < end <= self.sizes[arena]
        blocks = self.blocks[arena]
        at = bisect.bisect(blocks, (start, end))
        assert at == 0 or blocks[at - 1][1] <= start, "overlaps the block before"
        assert at == len(blocks) or end <= blocks[at][0], "overlaps the block after"
        blocks.insert(at, (start, end))
        self.high_ends[arena] = max(self.high_ends[arena], end)
        self.high_water = max(self.high_water, self.used())

    def release(self, arena, start):
        blocks = self.blocks[arena]
        at = bisect.bisect_left(blocks, (start, 0))
        assert blocks[at][0] == start
        del blocks[at]

    def size_of(self, arena, start):
        blocks = self.blocks[arena]
        found = blocks[bisect.bisect_left(blocks, (start, 0))]
        assert found[0] == start
        return found[1] - start

    def used(self):
        return sum(end - start for blocks in self.blocks.values() for start, end in blocks)

    def compare(self, a):
        """Everything that the allocator says of itself."""
        a.check()
        size, used = sum(self.sizes.values()), self.used()
        largest = max((end - start for i in self.sizes for start, end in self.gaps(i)), default=0)
        assert (a.size, a.used, a.free, a.largest_free) == (size, used, size - used, largest)
        assert a.live_blocks == sum(map(len, self.blocks.values()))
        assert a.high_water == self.high_water
        assert a.fragmentation == (1 - largest / (size - used) if size > used else 0.0)
        assert a.arenas_in_use() == sorted(self.sizes)
        for i, blocks in self.blocks.items():
            assert a.arena_size(i) == self.sizes[i]
            assert a.arena_used(i) == sum(end - start for start, end in blocks)
            assert a.high_end(i) == self.high_ends[i]
            tiles = [(start, end - start, True) for start, end in blocks]
            tiles += [(start, end - start, False) for start, end in self.gaps(i)]
            assert a.blocks_of(i) == sorted(tiles)


# --- hand-made cases --------------------------------------------------------------------------------------------------


def test_an_allocator_without_arenas_holds_nothing():
    a = Allocator()
    assert a.granule == 256
    assert a.alloc(1) is None
    assert state_of(a) == (0, 0, 0, 0, 0, 0, 0.0, [])
    a.check()


@pytest.mark.parametrize("granule", [0, 3, 100, 257, 2**63 + 1])
def test_a_granule_that_is_no_power_of_two_is_refused(granule):
    with pytest.raises(ValueError, match=f"granule is {granule} bytes"):
        Allocator(granule)


@pytest.mark.parametrize("granule", [1, 16, 256, 4096, 2**21])
@pytest.mark.parametrize(("granules", "plus"), [(0, 0), (0, 1), (1, 0), (1, 1), (31, 1), (32, 1), (33, 0), (1000, 1)])
def test_sizes_are_rounded_up_to_granules(granule, granules, plus):
    a = heap_of(2000, granule=granule)
    nbytes = granules * granule + plus
    expected = max(-(-nbytes // granule), 1) * granule
    arena, offset = a.alloc(nbytes)
    assert a.block_size(arena, offset) == a.used == a.high_end(0) == a.high_water == expected
    a.check()


@pytest.mark.parametrize("granules", [1, 2, 31, 32, 33, 63, 65, 1000, 4097, 123457])
def test_one_block_can_take_a_whole_arena_of_any_size(granules):
    a = heap_of(granules)
    for _ in range(3):
        assert a.largest_free == granules * GRANULE
        assert a.alloc(granules * GRANULE) == (0, 0)
        assert (a.free, a.largest_free, a.fragmentation) == (0, 0, 0.0)
        assert a.alloc(1) is None
        a.check()
        a.release(0, 0)
        assert a.alloc(granules * GRANULE + 1) is None
        a.check()


@pytest.mark.parametrize("order", list(itertools.permutations(range(5))))
def test_released_neighbours_merge_in_every_order(order):
    a = heap_of(5 * 3)
    places = [a.alloc(3 * GRANULE) for _ in range(5)]
    assert places == [(0, 3 * GRANULE * i) for i in range(5)]
    free = set()
    for i in order:
        a.release(*places[i])
        a.check()
        free.add(i)
        runs = sum(1 for j in free if j - 1 not in free)
        assert sum(not live for _, _, live in a.blocks_of(0)) == runs
    assert a.blocks_of(0) == [(0, 15 * GRANULE, False)]


def test_a_released_place_is_used_again():
    a = heap_of(100_000)
    places = [a.alloc(n * GRANULE) for n in (1000, 1, 777, 1, 5000, 1)]
    end = a.high_end(0)
    for _ in range(10):
        for i, n in ((0, 1000), (2, 777), (4, 5000)):
            a.release(*places[i])
            assert a.alloc(n * GRANULE) == places[i]
    assert a.high_end(0) == end


def test_the_one_hole_that_fits_is_found_behind_many_that_do_not():
    # 1024 to 1055 granules are one size class. The fitting hole is released first, so it is the last of the list.
    a = heap_of(1055 + 20 * 1024 + 21)
    fits = a.alloc(1055 * GRANULE)
    a.alloc(1)
    smaller = []
    for _ in range(20):
        smaller.append(a.alloc(1024 * GRANULE))
        a.alloc(1)
    assert a.free == 0
    a.release(*fits)
    for place in smaller:
        a.release(*place)
    a.check()
    assert a.largest_free == 1055 * GRANULE
    assert a.alloc(1056 * GRANULE) is None
    assert a.alloc(1055 * GRANULE) == fits
    a.check()


def test_statistics_of_a_comb():
    a = heap_of(8)
    places = [a.alloc(2 * GRANULE) for _ in range(4)]
    assert (a.used, a.high_water, a.fragmentation) == (2048, 2048, 0.0)
    a.release(*places[0])
    assert (a.free, a.largest_free, a.fragmentation) == (512, 512, 0.0)
    a.release(*places[2])
    assert (a.free, a.largest_free, a.fragmentation) == (1024, 512, 0.5)
    assert a.alloc(3 * GRANULE) is None
    a.release(*places[1])
    assert (a.free, a.largest_free, a.fragmentation) == (1536, 1536, 0.0)
    a.release(*places[3])
    assert (a.used, a.live_blocks, a.high_water, a.high_end(0)) == (0, 0, 2048, 2048)


# --- alignment --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("align", [256, 512, 4096, 2**16, 2**21])
def test_offsets_are_aligned(align):
    a = heap_of(2**16)
    a.alloc(1)
    taken = []
    while place := a.alloc(300, align):
        assert place[1] % align == 0
        taken.append(place)
    # One granule lies at offset 0, so every later multiple of align has its block; two granules each.
    assert len(taken) == (2**16 * GRANULE - GRANULE) // max(align, 512)
    a.check()
    for place in taken:
        a.release(*place)
    assert a.blocks_of(0) == [(0, GRANULE, True), (GRANULE, (2**16 - 1) * GRANULE, False)]
    a.check()


def test_an_aligned_request_finds_a_block_without_room_for_padding():
    a = heap_of(16)
    head, middle, tail = a.alloc(8 * GRANULE), a.alloc(4 * GRANULE), a.alloc(4 * GRANULE)
    a.release(*middle)
    assert a.alloc(5 * GRANULE, 1024) is None
    assert a.alloc(4 * GRANULE, 4096) is None
    assert a.alloc(4 * GRANULE, 2048) == (0, 2048)
    for place in (head, middle, tail):
        a.release(*place)
    a.check()


def test_an_alignment_beyond_the_arena_leaves_offset_0():
    a = heap_of(16)
    assert a.alloc(4096, 2**63) == (0, 0)
    assert a.alloc(1, 2**63) is None
    a.release(0, 0)
    assert a.alloc(1, 2**63) == (0, 0)
    assert a.alloc(1, 2**63) is None
    a.check()


@pytest.mark.parametrize("align", [1, 128, 255, 257, 384, 2**64 - 1])
def test_an_alignment_that_cannot_be_kept_is_refused(align):
    a = heap_of(16)
    before = state_of(a)
    with pytest.raises(ValueError, match=f"align is {align} bytes"):
        a.alloc(1, align)
    assert state_of(a) == before


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arena", "offset", "text"),
    [
        (0, 0, "no live block begins at offset 0 of arena 0"),  # released
        (0, 512, "no live block"),  # inside a live block
        (0, 257, "no live block"),  # not on a granule
        (0, 1024, "no live block"),  # free
        (0, 16 * GRANULE, "no live block"),  # the end of the arena
        (0, 2**64 - 256, "no live block"),
        (1, 256, "no live block"),  # live in another arena
        (2, 0, r"no arena 2; the arenas are \[0, 1\]"),
        (-1, 0, "no arena -1"),
    ],
)
def test_a_place_where_no_live_block_begins_is_refused(arena, offset, text):
    a = heap_of(16, 16)
    a.alloc(1)
    a.alloc(512)
    a.release(0, 0)
    before = state_of(a)
    for call in (a.release, a.block_size):
        with pytest.raises(ValueError, match=text):
            call(arena, offset)
    assert state_of(a) == before
    a.check()


def test_a_second_release_is_refused_also_after_merging():
    a = heap_of(16)
    places = [a.alloc(GRANULE) for _ in range(16)]
    for place in places:
        a.release(*place)
        with pytest.raises(ValueError, match="no live block"):
            a.release(*place)
    a.check()


@pytest.mark.parametrize("call", [lambda a: a.alloc(-1), lambda a: a.add_arena(-1), lambda a: a.alloc(2**64)])
def test_sizes_outside_of_size_t_are_refused(call):
    with pytest.raises(OverflowError):
        call(heap_of(16))


@pytest.mark.parametrize("granule", [1, 256, 2**62])
@pytest.mark.parametrize("nbytes", [2**64 - 1, 2**64 - 256, 2**63, 2**63 - 1, 2**62 + 1])
@pytest.mark.parametrize("align", [0, 2**63])
def test_sizes_near_the_end_of_size_t_do_not_wrap(granule, nbytes, align):
    a = Allocator(granule)
    a.add_arena(2**62)
    assert a.alloc(nbytes, align) is None
    a.check()
    assert a.alloc(2**62, align) == (0, 0)
    a.check()


def test_the_largest_arena_there_can_be():
    a = Allocator(1)
    a.add_arena(2**63 - 1)
    assert a.alloc(2**62, 2**62) == (0, 0)
    assert a.alloc(1) == (0, 2**62)
    assert a.alloc(2**62 - 2) == (0, 2**62 + 1)
    assert a.alloc(1) is None
    assert a.high_end(0) == a.used == 2**63 - 1
    a.check()
    with pytest.raises(ValueError, match=r"below 2\*\*63"):
        a.add_arena(1)


def test_size_and_alignment_together_do_not_wrap():
    a = Allocator(1)
    a.add_arena(2**63 - 1)
    assert a.alloc(1) == (0, 0)
    assert a.alloc(2**63 - 2**57, 2**63) is None
    a.release(0, 0)
    assert a.alloc(2**63 - 2**57, 2**63) == (0, 0)
    a.check()


# --- arenas -----------------------------------------------------------------------------------------------------------


def test_the_part_of_an_arena_that_is_no_granule_is_left_out():
    a = Allocator()
    assert a.add_arena(3 * GRANULE + 255) == 0
    assert a.arena_size(0) == a.size == 3 * GRANULE
    with pytest.raises(ValueError, match="arena of 255 bytes"):
        a.add_arena(255)
    assert a.arenas_in_use() == [0]


def test_earlier_arenas_are_filled_first():
    a = heap_of(4, 4, 8)
    assert [a.alloc(2 * GRANULE) for _ in range(5)] == [(0, 0), (0, 512), (1, 0), (1, 512), (2, 0)]
    a.release(0, 512)
    assert a.alloc(GRANULE) == (0, 512)
    assert a.alloc(3 * GRANULE) == (2, 512)
    assert [a.arena_used(i) for i in range(3)] == [3 * GRANULE, 4 * GRANULE, 5 * GRANULE]
    a.check()


def test_blocks_at_the_same_offset_of_different_arenas_are_different():
    a = heap_of(*[1] * 50)
    places = [a.alloc(1) for _ in range(50)]
    assert places == [(i, 0) for i in range(50)]
    for i in range(0, 50, 2):
        a.release(i, 0)
        with pytest.raises(ValueError, match="no live block"):
            a.block_size(i, 0)
    assert all(a.block_size(i, 0) == GRANULE for i in range(1, 50, 2))
    a.check()


def test_an_arena_with_a_live_block_is_not_removed():
    a = heap_of(4, 4)
    for _ in range(8):
        a.alloc(1)
    before = state_of(a)
    with pytest.raises(ValueError, match=r"arena 1: it has 4 live blocks \(1024 bytes\)"):
        a.remove_arena(1)
    assert state_of(a) == before


def test_a_removed_arena_is_gone_and_its_number_is_given_again():
    a = heap_of(4, 6, 8)
    place = a.alloc(6 * GRANULE)
    assert place == (1, 0)
    a.release(*place)
    a.remove_arena(1)
    a.check()
    assert (a.size, a.largest_free, a.arenas_in_use()) == (12 * GRANULE, 8 * GRANULE, [0, 2])
    for call in (a.remove_arena, a.arena_size, a.arena_used, a.high_end, a.blocks_of):
        with pytest.raises(ValueError, match=r"no arena 1; the arenas are \[0, 2\]"):
            call(1)
    with pytest.raises(ValueError, match="no arena 1"):
        a.release(1, 0)
    assert a.alloc(6 * GRANULE) == (2, 0)
    assert a.add_arena(5 * GRANULE) == 1
    assert a.high_end(1) == 0
    assert a.add_arena(7 * GRANULE) == 3
    a.check()


# --- bookkeeping ------------------------------------------------------------------------------------------------------


def test_bookkeeping_is_used_again():
    a = heap_of(4096)

    def cycle():
        places = [a.alloc(1) for _ in range(1000)]
        for place in places[::2] + places[1::2]:
            a.release(*place)
        index = a.add_arena(GRANULE)
        a.remove_arena(index)

    cycle()
    before = sys.getsizeof(a)
    for _ in range(50):
        cycle()
    assert sys.getsizeof(a) == before
    assert a.blocks_of(0) == [(0, 4096 * GRANULE, False)]
    a.check()


def test_bookkeeping_stays_below_128_bytes_a_block():
    a = heap_of(2**17)
    base = sys.getsizeof(a)
    for _ in range(2**16):
        assert a.alloc(1) is not None
    assert sys.getsizeof(a) - base < 128 * 2**16
    a.check()


needs_failing_malloc = pytest.mark.skipif(_testcapi is None, reason="needs _testcapi, to let malloc fail")


def fails_at(n, call):
    """Run call with its n-th allocation failing; return whether it raised MemoryError."""
    _testcapi.set_nomemory(n, n + 1)
    try:
        call()
    except MemoryError:
        return True
    finally:
        _testcapi.remove_mem_hooks()
    return False


@needs_failing_malloc
def test_an_allocation_without_memory_for_bookkeeping_changes_nothing():
    failures = 0
    for live in range(200):
        for n in range(4):
            a = heap_of(1000)
            # Lifts the marks to their highest, where an allocation whose result cannot be built would lift them too.
            a.release(*a.alloc(1000 * GRANULE))
            for _ in range(live):
                a.alloc(1)
            before = state_of(a)
            if fails_at(n, lambda a=a: a.alloc(1, 1024)):
                failures += 1
                assert state_of(a) == before
                a.check()
                assert a.alloc(1, 1024) == (0, -(-live // 4) * 1024)
            a.check()
    # The array and the table of 64 entries grow twice each on the way.
    assert failures >= 4


@needs_failing_malloc
def test_an_arena_without_memory_for_bookkeeping_is_not_added():
    failures = 0
    for n in range(4):
        a = heap_of(4, 4)
        before = state_of(a)
        if fails_at(n, lambda a=a: a.add_arena(1024)):
            failures += 1
            assert state_of(a) == before
            a.check()
            assert a.add_arena(1024) == 2
        a.check()
    assert failures >= 2
    # The array is full after 63 arenas.
    a = heap_of(*[1] * 63)
    before = state_of(a)
    assert fails_at(0, lambda: a.add_arena(1024))
    assert state_of(a) == before
    a.check()


@needs_failing_malloc
def test_an_allocator_without_memory_is_not_made():
    assert sum(fails_at(n, Allocator) for n in range(6)) >= 2


# --- determinism ------------------------------------------------------------------------------------------------------

SEQUENCE = """
import hashlib, random
from nvsym.allocator import Allocator
draw, live, a, digest = random.Random(7), [], Allocator(), hashlib.sha256()
for n in (1 << 22, 1 << 20, 1 << 24):
    a.add_arena(n)
for _ in range(5000):
    if live and draw.random() < 0.48:
        a.release(*live.pop(draw.randrange(len(live))))
    else:
        place = a.alloc(int(2 ** draw.uniform(0, 18)), 1 << draw.choice((8, 8, 8, 9, 12, 16)))
        digest.update(repr(place).encode())
        if place:
            live.append(place)
print(digest.hexdigest())
"""


def test_processes_agree_on_all_offsets():
    root = str(pathlib.Path(nvsym.__file__).parent.parent)
    digests = set()
    for seed in ("0", "1", "12345"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        done = subprocess.run(
            [sys.executable, "-c", SEQUENCE], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout)
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 2 * hashlib.sha256().digest_size


@given(st.data())
@settings(deadline=None)
def test_a_used_and_emptied_allocator_gives_a_new_ones_offsets(data):
    """What was released leaves no trace in an arena that is wholly free."""
    sizes = st.lists(st.integers(0, 40_000), max_size=40)
    used, new = heap_of(2000), heap_of(2000)
    places = [place for n in data.draw(sizes) if (place := used.alloc(n))]
    for place in data.draw(st.permutations(places)):
        used.release(*place)
    used.check()
    for n in data.draw(sizes):
        assert used.alloc(n) == new.alloc(n)


# --- against the model ------------------------------------------------------------------------------------------------


class AllocatorMachine(RuleBasedStateMachine):
    """Two allocators given the same calls, and the model."""

    places = Bundle("places")
    dead = Bundle("dead")

    def __init__(self):
        super().__init__()
        self.first, self.second = Allocator(GRANULE), Allocator(GRANULE)
        self.model = Model(GRANULE)

    @precondition(lambda self: len(self.model.sizes) < 4)
    @rule(nbytes=st.one_of(st.integers(GRANULE, 64 * GRANULE), st.integers(GRANULE, 5000 * GRANULE)))
    def add_arena(self, nbytes):
        arena = self.first.add_arena(nbytes)
        assert self.second.add_arena(nbytes) == arena
        self.model.add_arena(arena, nbytes)

    @precondition(lambda self: self.model.sizes)
    @rule(data=st.data())
    def remove_arena(self, data):
        arena = data.draw(st.sampled_from(sorted(self.model.sizes)))
        if self.model.blocks[arena]:
            with pytest.raises(ValueError, match="live blocks"):
                self.first.remove_arena(arena)
        else:
            self.first.remove_arena(arena)
            self.second.remove_arena(arena)
            self.model.remove_arena(arena)

    def allocated(self, nbytes, align):
        place = self.first.alloc(nbytes, align)
        assert self.second.alloc(nbytes, align) == place
        self.model.place(nbytes, align, place)
        return multiple() if place is None else place

    @rule(
        target=places,
        nbytes=st.one_of(st.integers(0, 8 * GRANULE), st.integers(0, 1200 * GRANULE)),
        align=st.sampled_from([0, 0, 0, 256, 512, 1024, 4096, 2**16]),
    )
    def alloc(self, nbytes, align):
        return self.allocated(nbytes, align)

    @rule(target=places, slack=st.integers(-2, 2), align=st.sampled_from([0, 512, 2048]))
    def alloc_about_the_largest(self, slack, align):
        return self.allocated(max(self.first.largest_free + slack * GRANULE, 0), align)

    @rule(target=dead, place=consumes(places))
    def release(self, place):
        assert self.first.block_size(*place) == self.model.size_of(*place)
        self.first.release(*place)
        self.second.release(*place)
        self.model.release(*place)
        return place

    @rule(place=dead)
    def release_again(self, place):
        arena, offset = place
        if arena not in self.model.sizes or offset not in [start for start, _ in self.model.blocks[arena]]:
            with pytest.raises(ValueError, match=r"no live block|no arena"):
                self.first.release(arena, offset)

    @invariant()
    def agrees_with_the_model(self):
        self.model.compare(self.first)
        assert state_of(self.first) == state_of(self.second)

    def teardown(self):
        for arena, blocks in self.model.blocks.items():
            for start, _ in blocks:
                self.first.release(arena, start)
            assert self.first.blocks_of(arena) == [(0, self.model.sizes[arena], False)]
        self.first.check()


TestAllocatorMachine = AllocatorMachine.TestCase
TestAllocatorMachine.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@pytest.mark.parametrize("seed", [1, 2])
def test_100_000_random_steps(seed):
    """Load swings between empty and refusing, sizes from one granule to a twentieth of the heap."""
    draw = random.Random(seed)
    a, model = Allocator(), Model(GRANULE)
    for n in (6000, 1500, 3000):
        model.add_arena(a.add_arena(n * GRANULE), n * GRANULE)
    live, refused, target = [], 0, 0.9
    for step in range(100_000):
        if step % 2000 == 0:
            model.compare(a)
            target = draw.choice((0.1, 0.5, 0.9, 1.0))
        if live and draw.random() > (0.7 if a.used < target * a.size else 0.3):
            at = draw.randrange(len(live))
            live[at], live[-1] = live[-1], live[at]
            place = live.pop()
            a.release(*place)
            model.release(*place)
        else:
            nbytes = int(GRANULE * 2 ** draw.uniform(-1, 9))
            align = GRANULE << draw.choice((0, 0, 0, 0, 1, 4, 8))
            place = a.alloc(nbytes, align)
            model.place(nbytes, align, place)
            if place is None:
                refused += 1
            else:
                live.append(place)
    assert refused > 100
    model.compare(a)
    draw.shuffle(live)
    for place in live:
        a.release(*place)
    a.check()
    assert [a.blocks_of(i) for i in range(3)] == [[(0, n * GRANULE, False)] for n in (6000, 1500, 3000)]
    assert (a.used, a.live_blocks) == (0, 0)
