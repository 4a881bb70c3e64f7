# SPDX-License-Identifier: Apache-2.0
"""Each PE drops, frees and allocates in an order of its own: nothing overlaps, nothing leaks, nothing hangs."""

import gc
import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from jobcheck import assert_usable, right_of

import nvsym
from nvsym import SHMEMBuffer

DTYPES = ("u1", "i2", "f4", "f8", "c16")


def pattern(dtype, n, number, writer):
    """What PE `writer` puts into buffer `number`: unlike that of any other buffer or PE."""
    return (np.arange(n) * 7 + number * 31 + writer * 101 & 0x7F).astype(dtype)


class Stamped:
    """A buffer whose first half this PE has filled and whose second half is the left neighbour's to put."""

    def __init__(self, ctx, number, dtype, n):
        self.number, self.n = number, n
        self.me, self.left = ctx.my_pe(), (ctx.my_pe() - 1) % ctx.n_pes()
        self.buffer = SHMEMBuffer[dtype](2 * n)
        self.buffer[:n].enqueue_copy_from(pattern(dtype, n, number, self.me))
        nvsym.put(self.buffer[n:], pattern(dtype, n, number, self.me), right_of(ctx))
        self.arrived = False
        self.aliases = []

    def check(self):
        got, dtype = self.buffer.to_numpy(), self.buffer.dtype
        assert (got[: self.n] == pattern(dtype, self.n, self.number, self.me)).all(), self.number
        if self.arrived:
            assert (got[self.n :] == pattern(dtype, self.n, self.number, self.left)).all(), self.number
        for alias in self.aliases:
            assert (np.asarray(alias)[: self.n] == got[: self.n]).all()

    def span(self):
        return self.buffer.unsafe_ptr(), self.buffer.unsafe_ptr() + max(self.buffer.nbytes, 1)


def assert_apart(held):
    spans = sorted(each.span() for each in held.values())
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))


@pytest.mark.pes(1, 2, 4)
@pytest.mark.pes(2, 4, nodes=2)
@pytest.mark.parametrize("seed", range(2))
def test_chaos(ctx, seed):
    """What happens is agreed where it must be (allocation, free, barrier) and each PE's own where it may be."""
    gc.collect()
    nvsym.collect()
    before = ctx.heap.live, ctx.heap.used, ctx.heap.largest_free
    agreed, own = random.Random(seed), random.Random(1000 * seed + ctx.my_pe())
    held: dict[int, Stamped] = {}
    alive: list[int] = []  # numbers that no PE has freed; on each PE some of them are dropped
    streams = [nvsym.Stream() for _ in range(2)]
    numbers = 0
    for step in range(1500 if ctx.n_pes() <= 2 else 600):  # four PEs may have fewer cores than that
        what = agreed.random()
        if what < 0.5:
            dtype, n = agreed.choice(DTYPES), agreed.choice((0, 1, 3, 50, 700, 9000))
            numbers += 1
            held[numbers] = Stamped(ctx, numbers, dtype, n)
            alive.append(numbers)
        elif what < 0.6 and alive:
            # A collective free of one that this PE has, if all have it.
            number = agreed.choice(alive)
            if all_hold(ctx, number in held):
                held[number].check()
                held.pop(number).buffer.free()
                alive.remove(number)
        elif what < 0.62:
            nvsym.collect()
        elif what < 0.66:
            nvsym.barrier_all()
            for each in held.values():
                each.arrived = True
        while len(held) > 40 or (held and own.random() < 0.45):
            number = own.choice(list(held))
            held[number].check()
            del held[number]
        if held and own.random() < 0.2:
            each = held[own.choice(list(held))]
            way = own.randrange(4)
            if way == 0:
                each.aliases.append(np.asarray(each.buffer))
            elif way == 1:
                each.aliases.append(each.buffer[: each.n])
                each.aliases.append(np.from_dlpack(each.buffer))
            else:
                # A copy on a stream, of a buffer that may be dropped before the copy is done.
                each.buffer.enqueue_copy_to(np.empty(2 * each.n, each.buffer.dtype), stream=streams[way - 2])
        if step % 100 == 0:
            assert_apart(held)
            for each in held.values():
                each.check()
    nvsym.barrier_all()
    for each in held.values():
        each.arrived = True
        each.check()
    each = None
    assert_apart(held)
    nvsym.barrier_all()
    order = list(held)
    own.shuffle(order)
    for number in order:
        del held[number]
    for stream in streams:
        stream.synchronize()
    gc.collect()
    nvsym.collect()
    assert (ctx.heap.live, ctx.heap.used, ctx.heap.largest_free) == before
    assert ctx.heap.deferred == 0
    assert_usable(ctx)


def all_hold(ctx, mine):
    """Whether all PEs say yes."""
    with SHMEMBuffer["i4"].full(2, int(mine)) as flags:
        nvsym.allreduce(flags[1:2], flags[0:1], "min")
        return bool(flags.to_numpy()[1])


@pytest.mark.pes(1, 2, 4)
def test_ten_thousand_cycles(ctx):
    """10,000 buffers, dropped in random order, end with the heap as it was."""
    gc.collect()
    nvsym.collect()
    before = ctx.heap.live, ctx.heap.used, ctx.heap.largest_free
    agreed, own = random.Random(1), random.Random(ctx.my_pe())
    classes = [SHMEMBuffer[dtype] for dtype in DTYPES]
    held = []
    for i in range(10000):
        held.append(classes[i % 5](agreed.randrange(3000)))
        if len(held) == 30:
            own.shuffle(held)
            del held[own.randrange(5) :]
    assert ctx.heap.live <= before[0] + 250
    held.clear()
    nvsym.collect()
    assert (ctx.heap.live, ctx.heap.used, ctx.heap.largest_free) == before


@pytest.mark.pes(2, own_job=True)
def test_chaos_at_the_edge_of_the_heap(nvsym_backend):
    """In a heap that is too small, what does not fit raises on all PEs, and the rest goes on."""
    ctx = nvsym.init(backend=nvsym_backend, heap_size="1M")
    agreed, own = random.Random(3), random.Random(ctx.my_pe())
    held: dict[int, Stamped] = {}
    refusals = 0
    for number in range(1500):
        try:
            held[number] = Stamped(ctx, number, "u1", agreed.choice((100, 5000, 40000)))
        except nvsym.HeapExhaustedError:
            refusals += 1
        while held and own.random() < 0.4 + 0.4 * (len(held) > 12):
            victim = own.choice(list(held))
            held[victim].check()
            del held[victim]
    assert 0 < refusals < 1400
    assert_apart(held)
    for each in held.values():
        each.check()
    held.clear()
    each = None
    gc.collect()
    nvsym.collect()
    assert (ctx.heap.live, ctx.heap.used) == (0, 0)
    with SHMEMBuffer["i4"].full(2, refusals) as same:
        nvsym.allreduce(same[1:2], same[0:1], "max")
        assert same.to_numpy()[1] == refusals
        nvsym.allreduce(same[1:2], same[0:1], "min")
        assert same.to_numpy()[1] == refusals
    nvsym.finalize()


@pytest.mark.pes(2)
def test_threads_drop_while_the_main_thread_allocates(ctx):
    gc.collect()
    nvsym.collect()
    before = ctx.heap.live
    lock, box, done = threading.Lock(), [], threading.Event()

    def drop(seed):
        own = random.Random(seed)
        while not done.is_set() or box:
            with lock:
                victim = box.pop(own.randrange(len(box))) if box else None
            if victim is None:
                done.wait(0.001)
                continue
            victim.check()
            nvsym.get(np.empty(1, "u1"), victim.buffer[:1], right_of(ctx))
            victim = None

    with ThreadPoolExecutor(3) as pool:
        drops = [pool.submit(drop, 7 * ctx.my_pe() + i) for i in range(3)]
        for number in range(600):
            stamped = Stamped(ctx, number, "u1", 1 + number % 300)
            with lock:
                box.append(stamped)
            stamped = None
        done.set()
        for each in drops:
            each.result()
    nvsym.collect()
    assert ctx.heap.live == before
