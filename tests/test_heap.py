# SPDX-License-Identifier: Apache-2.0
"""The symmetric heap: dropped buffers, what holds a block, and what happens when there is no room."""

import errno
import gc
import os
import random
import threading
import time
import weakref

import numpy as np
import pytest
from jobcheck import assert_usable, right_of

import nvsym
from nvsym import SHMEMBuffer

MIB = 1 << 20


@pytest.fixture
def heap(ctx):
    """The heap, settled, so that its numbers are those of the test alone."""
    gc.collect()
    nvsym.collect()
    return ctx.heap


@pytest.fixture
def small_heap(nvsym_backend):
    """A job with a heap of 8 MiB, for tests in an MPI job of their own."""
    yield nvsym.init(backend=nvsym_backend, heap_size="8M").heap
    gc.collect()
    nvsym.finalize()


def numbers(heap):
    return heap.live, heap.used, heap.free, heap.largest_free, heap.deferred


# ---- its numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.pes(1, 2)
def test_numbers(heap):
    before = numbers(heap)
    a = SHMEMBuffer["u1"](1)
    b = SHMEMBuffer["f8"](1000)
    assert heap.live == before[0] + 2
    assert heap.used >= before[1] + 8001
    assert heap.used + heap.free == heap.size
    assert heap.largest_free <= heap.free
    assert heap.high_water >= heap.used
    high = heap.high_water
    text = repr(heap)
    assert "Heap" in text
    a.free()
    b.free()
    assert numbers(heap) == before
    assert heap.high_water == high


@pytest.mark.pes(1, 2)
def test_freed_neighbours_become_one_block(heap):
    before = numbers(heap)
    blocks = [SHMEMBuffer["u1"](5000) for _ in range(16)]
    for i in (*range(0, 16, 2), *range(1, 16, 2)):
        blocks[i].free()
    assert numbers(heap) == before


@pytest.mark.pes(1, 2)
def test_holes_are_filled(heap):
    blocks = [SHMEMBuffer["u1"](5000) for _ in range(9)]
    used = heap.used
    hole = blocks[4].unsafe_ptr()
    blocks[4].free()
    again = SHMEMBuffer["u1"](5000)
    assert again.unsafe_ptr() == hole
    assert heap.used == used


# ---- dropping -------------------------------------------------------------------------------------------------------


@pytest.mark.pes(1, 2, 4)
def test_dropped_in_another_order_on_each_pe(ctx, heap):
    before = numbers(heap)
    buffers = [SHMEMBuffer["i4"].full(10 + i, i) for i in range(50)]
    order = list(range(50))
    random.Random(ctx.my_pe()).shuffle(order)
    for i in order[:25]:
        buffers[i] = None
    if ctx.n_pes() == 1:
        assert heap.deferred == 25
    nvsym.collect()
    for i, buffer in enumerate(buffers):
        if buffer is not None:
            assert buffer.to_numpy().tolist() == [i] * (10 + i)
    for i in order[25:]:
        buffers[i] = buffer = None
    nvsym.collect()
    assert numbers(heap) == before


@pytest.mark.pes(2, 4)
def test_what_one_pe_keeps_is_kept_on_all(ctx, heap):
    before = numbers(heap)
    b = SHMEMBuffer["i4"].full(100, ctx.my_pe())
    last = ctx.n_pes() - 1
    if ctx.my_pe() != last:
        del b
    nvsym.collect()
    assert heap.live == before[0] + 1
    assert heap.deferred == (ctx.my_pe() != last)
    others = [SHMEMBuffer["i4"].full(100, -1) for _ in range(3)]
    if ctx.my_pe() == last:
        assert b.to_numpy().tolist() == [last] * 100
        # The other PEs' parts of it are still what they were, and can be used.
        out = np.empty(100, "i4")
        nvsym.get(out, b, 0)
        assert not out.any()
        nvsym.put(b, out + 5, 0)
        nvsym.get(out, b, 0)
        assert (out == 5).all()
        del b
    del others
    nvsym.collect()
    assert numbers(heap) == before


@pytest.mark.pes(2, 4)
def test_freed_by_a_pe_that_holds_views(ctx, heap):
    """`free` with views, peers' Buffers and arrays left on one PE: only the arrays hold the memory."""
    before = numbers(heap)
    b = SHMEMBuffer["i4"].full(10, 3)
    view, peer = b[2:4], b.peer(right_of(ctx)) if len(set(ctx.nodes())) == 1 else None
    b.free()
    assert numbers(heap) == before
    assert view.is_freed
    del view, peer, b
    nvsym.collect()
    assert numbers(heap) == before


@pytest.mark.pes(1, 2)
def test_cycles_are_dropped_by_the_collector(heap):
    before = numbers(heap)

    class Node:
        pass

    gc.disable()
    try:
        for _ in range(10):
            node = Node()
            node.me = node
            node.buffer = SHMEMBuffer["i4"].zeros(10)
            node.view = node.buffer[2:5]
            node.array = np.asarray(node.view)
            node.adopted = SHMEMBuffer["i4"].adopt(node.buffer.unsafe_ptr(), 10, owner=node)
            node.stream = nvsym.Stream()
            node.buffer.fill(4, stream=node.stream)
            node.event = node.stream.record_event()
        del node
        nvsym.collect()
        assert heap.live == before[0] + 10
        gc.collect()
        nvsym.Device.cpu().synchronize()
        gc.collect()
        nvsym.collect()
    finally:
        gc.enable()
    assert numbers(heap) == before


@pytest.mark.pes(1, 2)
def test_dropped_by_other_threads(heap):
    before = numbers(heap)
    boxes = [[SHMEMBuffer["i4"].zeros(10) for _ in range(50)] for _ in range(4)]

    def empty(box):
        while box:
            box.pop()

    threads = [threading.Thread(target=empty, args=(box,)) for box in boxes]
    for thread in threads:
        thread.start()
    more = [SHMEMBuffer["i4"].full(10, 6) for _ in range(50)]  # meanwhile
    for thread in threads:
        thread.join()
    assert all((each.to_numpy() == 6).all() for each in more)
    del more
    nvsym.collect()
    assert numbers(heap) == before


@pytest.mark.pes(1, 2)
def test_dropped_while_it_is_settled(heap):
    """What reaping finished work drops, and what destructors that it runs drop, is settled too."""
    before = numbers(heap)

    class Dropper:
        def __init__(self, *held):
            self.held = held

        def __del__(self):
            self.held = ()
            SHMEMBuffer["u1"].adopt(address, 1)

    class Held(np.ndarray):
        pass

    keep = SHMEMBuffer["u1"].zeros(8)
    address = keep.unsafe_ptr()
    stream = nvsym.Stream()
    for _ in range(5):
        b = SHMEMBuffer["i4"].zeros(10)
        source = np.ones(10, "i4").view(Held)
        source.dropper = Dropper(SHMEMBuffer["i4"].zeros(7), SHMEMBuffer["i4"].zeros(3))
        b.enqueue_copy_from(source, stream=stream)
        del b, source
    nvsym.Device.cpu().synchronize()
    nvsym.collect()
    del keep
    nvsym.collect()
    assert numbers(heap) == before


@pytest.mark.pes(1, 2)
def test_many_drops_are_settled_by_allocations(heap):
    """Nobody has to call collect(): the list stays short."""
    before = heap.live
    for i in range(500):
        SHMEMBuffer["i4"](10)
        assert heap.live <= before + 100, i
    nvsym.collect()
    assert heap.live == before


# ---- work that is still enqueued ------------------------------------------------------------------------------------


@pytest.mark.pes(1, 2, 4)
@pytest.mark.parametrize("use", ["copy_from", "copy_to", "fill", "put", "put from", "get", "get into", "allreduce"])
def test_a_block_with_work_is_not_reused(ctx, heap, use):
    before = numbers(heap)
    stream, gate = nvsym.Stream(), SHMEMBuffer["u8"].zeros(1)
    b = SHMEMBuffer["i4"].full(100, 1)
    address = b.unsafe_ptr()
    out = np.zeros(100, "i4")
    nvsym.signal_wait_until(gate, "eq", 1, stream=stream)
    if use == "copy_from":
        b.enqueue_copy_from(np.full(100, 2, "i4"), stream=stream)
    elif use == "copy_to":
        b.enqueue_copy_to(out, stream=stream)
    elif use == "fill":
        b[0:50].fill(2, stream=stream)
    elif use == "put":
        nvsym.put(b, np.full(100, 2, "i4"), right_of(ctx), stream=stream)
    elif use == "put from":
        target = SHMEMBuffer["i4"].full(100, 0)
        nvsym.put(target, b, right_of(ctx), stream=stream)
    elif use == "get":
        nvsym.get(out, b, right_of(ctx), stream=stream)
    elif use == "get into":
        target = SHMEMBuffer["i4"].full(100, 1)
        nvsym.get(b, target, right_of(ctx), stream=stream)
    else:
        nvsym.allreduce(b, b, "max", stream=stream)
    del b
    gc.collect()
    nvsym.collect()
    others = [SHMEMBuffer["i4"].full(100, 9) for _ in range(4)]
    assert all(other.unsafe_ptr() != address for other in others)
    nvsym.barrier_all()
    nvsym.signal_op(gate, 1, ctx.my_pe())
    stream.synchronize()
    nvsym.barrier_all()
    assert all((other.to_numpy() == 9).all() for other in others)
    if use in ("copy_to", "get"):
        assert (out == 1).all()
    if use == "put from":
        assert (target.to_numpy() == 1).all()
    target = None
    del others, gate
    nvsym.collect()
    assert numbers(heap) == before


@pytest.mark.pes(2)
def test_free_with_work_on_one_pe(ctx, heap):
    """It returns at once; the block comes back when the work is done."""
    before = numbers(heap)
    stream, gate = nvsym.Stream(), SHMEMBuffer["u8"].zeros(1)
    b = SHMEMBuffer["i4"].full(100, 1)
    address = b.unsafe_ptr()
    if ctx.my_pe() == 1:
        nvsym.signal_wait_until(gate, "eq", 1, stream=stream)
        nvsym.put(b, np.full(100, 2, "i4"), 0, stream=stream)
    b.free()
    assert heap.live == before[0] + 2
    nvsym.collect()
    assert heap.live == before[0] + 2
    other = SHMEMBuffer["i4"].full(100, 9)
    assert other.unsafe_ptr() != address
    nvsym.signal_op(gate, 1, ctx.my_pe())
    stream.synchronize()
    nvsym.barrier_all()
    assert (other.to_numpy() == 9).all()
    nvsym.collect()
    assert heap.live == before[0] + 2
    del other, gate
    nvsym.collect()
    assert numbers(heap) == before


@pytest.mark.pes(1, 2)
def test_hot_calls_settle_nothing(ctx, heap):
    b = SHMEMBuffer["i4"].zeros(4)
    for _ in range(40):
        SHMEMBuffer["i4"](4)
    nvsym.collect()
    live = heap.live
    dropped = [SHMEMBuffer["i4"](4) for _ in range(5)]
    del dropped
    for _ in range(100):
        nvsym.put(b, b, right_of(ctx))
        nvsym.barrier_all()
        nvsym.allreduce(b, b, "max")
    assert heap.live == live + 5
    assert heap.deferred == 5


# ---- no room --------------------------------------------------------------------------------------------------------


@pytest.mark.pes(1, 2, 4, own_job=True)
def test_a_full_heap_settles_and_tries_again(small_heap):
    """Dropped memory is found, also where work has to end first, before there is no room."""
    ctx = nvsym.context()
    for _ in range(10):
        big = SHMEMBuffer["u1"].full(5 * MIB, 1)
        del big
    stream, gate = nvsym.Stream(), SHMEMBuffer["u8"].zeros(1)
    big = SHMEMBuffer["u1"].full(5 * MIB, 1)
    if ctx.my_pe() == 0:
        nvsym.signal_wait_until(gate, "eq", 1, stream=stream)
        big.fill(2, stream=stream)
        timer = threading.Timer(0.05, lambda: nvsym.signal_op(gate, 1, 0))
        timer.start()
    del big
    big = SHMEMBuffer["u1"].full(5 * MIB, 3)
    stream.synchronize()
    assert (big.to_numpy() == 3).all()
    keep = SHMEMBuffer["i4"].full(5, 8)
    with pytest.raises(nvsym.HeapExhaustedError) as caught:
        SHMEMBuffer["u1"](4 * MIB)
    text = str(caught.value)
    for word in (
        "SHMEMBuffer[uint8](4194304)",
        "4 MiB asked for",
        "8 MiB",
        "free",
        "3 buffers are live",
        "NVSYM_HEAP_SIZE",
    ):
        assert word in text, text
    assert isinstance(caught.value, MemoryError)
    assert keep.to_numpy().tolist() == [8] * 5
    assert_usable(ctx)
    big.free()
    SHMEMBuffer["u1"](4 * MIB).free()
    if ctx.my_pe() == 0:
        timer.join()


@pytest.mark.pes(2, 4, own_job=True)
def test_a_full_heap_says_what_another_pe_still_holds(small_heap):
    ctx = nvsym.context()
    big = SHMEMBuffer["u1"].full(5 * MIB, 1)
    if ctx.my_pe() > 0:
        del big
    with pytest.raises(nvsym.HeapExhaustedError, match="1 buffers are live"):
        SHMEMBuffer["u1"](5 * MIB)
    assert_usable(ctx)
    if ctx.my_pe() == 0:
        assert (big.to_numpy() == 1).all()
        del big
    SHMEMBuffer["u1"](5 * MIB).free()


@pytest.mark.pes(1, 2, own_job=True)
def test_the_whole_heap_can_be_used(small_heap):
    ctx = nvsym.context()
    for n in (small_heap.largest_free, small_heap.largest_free - 1, small_heap.largest_free // 2):
        b = SHMEMBuffer["u1"].full(n, 5)
        nvsym.barrier_all()
        nvsym.put(b[-4:], np.full(4, 6, "u1"), right_of(ctx))
        nvsym.barrier_all()
        assert b.to_numpy()[-4:].tolist() == [6] * 4
        b.free()
    with pytest.raises(nvsym.HeapExhaustedError):
        SHMEMBuffer["u1"](small_heap.size + 1)
    blocks = []
    with pytest.raises(nvsym.HeapExhaustedError):
        blocks.extend(SHMEMBuffer["u1"](100000) for _ in range(1000))
    assert len(blocks) > 80
    assert small_heap.free < 150000
    # Every second one free: much room, but in no piece larger than it was.
    del blocks[::2]
    nvsym.collect()
    assert small_heap.free > 4 * MIB
    with pytest.raises(nvsym.HeapExhaustedError, match="largest block"):
        SHMEMBuffer["u1"](MIB)
    SHMEMBuffer["u1"](90000).free()
    del blocks[:]
    nvsym.collect()
    assert (small_heap.live, small_heap.free) == (0, small_heap.size)
    SHMEMBuffer["u1"](small_heap.size).free()


@pytest.mark.pes(2, 4, own_job=True)
@pytest.mark.parametrize("failure", [errno.ENOSPC, errno.ENOMEM, errno.EIO], ids=errno.errorcode.get)
def test_no_memory_on_one_pe_alone(small_heap, nvsym_backend, monkeypatch, failure):
    """The system has none left for one PE: all PEs raise, and nothing is allocated."""
    if nvsym_backend != "host":
        pytest.skip("committing memory step by step: this backend commits its heap at the start")
    ctx = nvsym.context()
    me, odd = ctx.my_pe(), ctx.n_pes() - 1
    keep = SHMEMBuffer["i4"].full(5, 8)
    before = numbers(small_heap)
    real = os.posix_fallocate

    def full(*args):
        raise OSError(failure, os.strerror(failure))

    with monkeypatch.context() as patch:
        if me == odd:
            patch.setattr(os, "posix_fallocate", full)
        error = nvsym.BackendError if failure == errno.EIO else nvsym.HeapExhaustedError
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(error, match=f"PE {odd} ") as caught:
                SHMEMBuffer["u1"](6 * MIB)
            assert time.monotonic() - began < 10
            if failure != errno.EIO:
                assert "NVSYM_SHM_DIR" in str(caught.value)
                assert isinstance(caught.value, MemoryError)
            assert numbers(small_heap) == before
            assert_usable(ctx)
    assert os.posix_fallocate is real
    assert keep.to_numpy().tolist() == [8] * 5
    SHMEMBuffer["u1"].full(6 * MIB, 1).free()  # now it has


@pytest.mark.pes(1, 2, own_job=True)
def test_a_machine_without_memory_settles_and_tries_again(small_heap, nvsym_backend, monkeypatch):
    """The heap has room, but the system has no memory for it on one PE: what was dropped is used."""
    if nvsym_backend != "host":
        pytest.skip("committing memory step by step: this backend commits its heap at the start")
    ctx = nvsym.context()
    odd = ctx.n_pes() - 1
    block = SHMEMBuffer["u1"].full(3 * MIB, 1)

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        if ctx.my_pe() == odd:
            patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(nvsym.HeapExhaustedError, match="NVSYM_SHM_DIR"):
            SHMEMBuffer["u1"](3 * MIB)
        for k in range(5):
            del block
            block = SHMEMBuffer["u1"].full(3 * MIB, k)
            assert (block.to_numpy() == k).all()
        # One PE that keeps it is enough to be without.
        held = block if ctx.my_pe() == odd else None
        del block
        with pytest.raises(nvsym.HeapExhaustedError, match="NVSYM_SHM_DIR"):
            SHMEMBuffer["u1"](3 * MIB)
        assert_usable(ctx)
        del held
        SHMEMBuffer["u1"](3 * MIB).free()


@pytest.mark.pes(2, own_job=True)
def test_what_is_enqueued_survives_an_exhausted_heap(small_heap):
    ctx = nvsym.context()
    stream, gate = nvsym.Stream(), SHMEMBuffer["u8"].zeros(1)
    b = SHMEMBuffer["i4"].zeros(3)
    nvsym.signal_wait_until(gate, "eq", 1, stream=stream)
    nvsym.put(b, np.full(3, 4, "i4"), right_of(ctx), stream=stream)
    # More than the whole heap: there is no reason to wait for the stream, which waits for this PE.
    with pytest.raises(nvsym.HeapExhaustedError):
        SHMEMBuffer["u1"](9 * MIB)
    assert not stream.query()
    nvsym.signal_op(gate, 1, ctx.my_pe())
    stream.synchronize()
    nvsym.barrier_all()
    assert b.to_numpy().tolist() == [4] * 3


@pytest.mark.pes(2, own_job=True)
def test_a_dropped_block_waits_for_its_own_work_alone(small_heap):
    """A stream that waits for something else, enqueued after the drop, is not waited for."""
    ctx = nvsym.context()
    gate = SHMEMBuffer["u8"].zeros(1)
    big = SHMEMBuffer["u1"].full(5 * MIB, 1)
    del big
    stream = nvsym.Stream()
    if ctx.my_pe() == 0:
        nvsym.signal_wait_until(gate, "eq", 1, stream=stream)
    began = time.monotonic()
    assert len(SHMEMBuffer["u1"].full(5 * MIB, 2)) == 5 * MIB
    assert time.monotonic() - began < 10
    assert stream.query() == (ctx.my_pe() != 0)
    if ctx.my_pe() == 0:
        nvsym.signal_op(gate, 1, 0)
    stream.synchronize()


def test_work_that_waits_for_the_allocation_is_not_waited_for_for_ever(mpirun):
    """Half of the time limit; then there is no room, and the job goes on."""
    result = mpirun(
        2,
        """
        import time
        import nvsym
        ctx = nvsym.init(heap_size="8M")
        gate, keep = nvsym.SHMEMBuffer["u8"].zeros(1), nvsym.SHMEMBuffer["u1"](5 << 20)
        stream = nvsym.Stream()
        if ctx.my_pe() == 0:
            nvsym.signal_wait_until(gate, "eq", 1, stream=stream)
        began = time.monotonic()
        try:
            nvsym.SHMEMBuffer["u1"](5 << 20)
        except nvsym.HeapExhaustedError:
            assert 1 < time.monotonic() - began < 4
        else:
            raise AssertionError("there was room")
        if ctx.my_pe() == 0:
            nvsym.signal_op(gate, 1, 0)
        stream.synchronize()
        keep.free()
        nvsym.SHMEMBuffer["u1"](5 << 20).free()
        print("fine")
    """,
        env={"NVSYM_TIMEOUT": "4"},
    )
    assert result.stdout.count("fine") == 2


# ---- fork -----------------------------------------------------------------------------------------------------------


def test_use_in_a_forked_child(mpirun):
    result = mpirun(
        2,
        """
        import os, sys, traceback
        import numpy as np, nvsym
        ctx = nvsym.init(heap_size="8M")
        me = ctx.my_pe()
        b = nvsym.SHMEMBuffer["i4"].full(100, 3)
        view, host = b[2:4], nvsym.HostBuffer("i4", 4)
        busy, gate = nvsym.Stream(), nvsym.SHMEMBuffer["u8"].zeros(1)
        event = nvsym.Event()
        nvsym.signal_wait_until(gate, "eq", 1, stream=busy)
        b.fill(4, stream=busy)
        busy.record_event(event)
        array = np.asarray(b)
        child = os.fork()
        if child == 0:
            try:
                for use in (b.to_numpy, lambda: b[0:1], view.unsafe_ptr, lambda: nvsym.put(b, b, 0), nvsym.barrier_all,
                            lambda: nvsym.SHMEMBuffer["i4"](4), b.free, nvsym.collect, ctx.my_pe, nvsym.n_pes,
                            nvsym.init,
                            nvsym.finalize, lambda: ctx.heap, lambda: nvsym.allreduce(b, b, "sum"), nvsym.quiet,
                            lambda: b.peer(0), ctx.barrier_all, lambda: nvsym.atomic_add(b[0:1], 1, 0), nvsym.context,
                            lambda: nvsym.SHMEMBuffer["i4"].adopt(4096, 1), busy.synchronize, busy.query,
                            event.synchronize,
                            event.query, lambda: event.record(nvsym.Stream()), lambda: nvsym.Stream().wait_event(event),
                            lambda: nvsym.Buffer.from_numpy(host).inplace_copy_from(host, stream=busy)):
                    try:
                        use()
                    except nvsym.ForkError as error:
                        assert "fork" in str(error), error
                    else:
                        raise AssertionError(f"{use} worked in the child")
                assert not nvsym.is_initialized()
                assert array[0] == 3    # memory is memory
                host[:] = 1
                mine = nvsym.Stream()   # one of the child's own works
                other = nvsym.Buffer.from_numpy(np.zeros(4, "i4"))
                other.inplace_copy_from(host, stream=mine)
                mine.record_event().synchronize()
                mine.synchronize()
                assert other.to_numpy().tolist() == [1] * 4
                nvsym.Device.cpu().synchronize()
                del mine, busy, event, b, view, array, gate, ctx, other, host
            except BaseException:
                traceback.print_exc()
                os._exit(3)
            if sys.argv[1] == "exit":
                sys.exit(7)
            os._exit(7)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == 7, status
        nvsym.signal_op(gate, 1, me)
        busy.synchronize()
        event.synchronize()
        assert (b.to_numpy() == 4).all()
        nvsym.barrier_all()
        nvsym.put(b[0:1], np.full(1, me, "i4"), 1 - me)
        nvsym.barrier_all()
        assert b.to_numpy()[0] == 1 - me
        nvsym.SHMEMBuffer["i4"](4).free()
        print("fine")
    """,
        "_exit",
    )
    assert result.stdout.count("fine") == 2


def test_weak_references(mpirun):
    """The objects can be watched, and a callback that uses nvsym hurts nothing."""
    result = mpirun(
        1,
        """
        import weakref, nvsym
        nvsym.init(heap_size="8M")
        seen = []
        b = nvsym.SHMEMBuffer["i4"].zeros(4)
        def note(ref):
            seen.append(nvsym.context().heap.live)
        refs = [weakref.ref(each, note) for each in (b, b.peer(0), b[0:1])]
        stream = nvsym.Stream()
        refs.append(weakref.ref(stream, seen.append))
        del b, stream
        assert all(ref() is None for ref in refs)
        assert len(seen) == 4
        print("fine")
    """,
    )
    assert "fine" in result.stdout


def test_exit_with_everything_pending(mpirun):
    """Buffers, views, arrays, streams with work and cycles are left to the interpreter's end."""
    result = mpirun(
        2,
        """
        import gc, numpy as np, nvsym
        gc.disable()
        ctx = nvsym.init(heap_size="8M")
        class Node: pass
        keep = []
        for i in range(20):
            node = Node()
            node.me, node.buffer = node, nvsym.SHMEMBuffer["i4"].full(1000, i)
            node.view, node.array = node.buffer[10:20], np.asarray(node.buffer)
            node.stream = nvsym.Stream()
            node.event = nvsym.Event()
            for _ in range(10):
                nvsym.put(node.buffer, np.full(1000, i, "i4"), 1 - ctx.my_pe(), stream=node.stream)
            node.stream.record_event(node.event)
            keep.append(node) if i % 2 else None
        if ctx.my_pe():
            del keep
        print("fine")
    """,
    )
    assert result.stdout.count("fine") == 2
    assert "Traceback" not in result.stderr


@pytest.mark.pes(1)
def test_blocks_are_counted_by_their_references(heap):
    b = SHMEMBuffer["i4"].zeros(4)
    watch = weakref.ref(b)
    peer = b.peer(0)
    live = heap.live
    del b
    assert watch() is None
    nvsym.collect()
    assert heap.live == live  # the peer's Buffer holds the block
    assert peer.to_numpy().tolist() == [0] * 4
    del peer
    nvsym.collect()
    assert heap.live == live - 1
