# SPDX-License-Identifier: Apache-2.0
"""Streams and events: order, asynchrony, errors, and what has to stay alive until the work is done."""

import gc
import os
import pickle
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from jobcheck import assert_usable, refused, right_of

import nvsym
from nvsym import Event, SHMEMBuffer, Stream


class Gate:
    """A stop that work on a stream waits at until this PE opens it."""

    def __init__(self, ctx):
        self.pe = ctx.my_pe()
        self.signal = SHMEMBuffer["u8"].zeros(1)

    def hold(self, stream):
        nvsym.signal_wait_until(self.signal, "eq", 1, stream=stream)

    def open(self):
        nvsym.signal_op(self.signal, 1, self.pe)


# ---- without a job --------------------------------------------------------------------------------------------------


def test_streams_and_events_need_no_job():
    stream = Stream()
    assert stream.device == nvsym.Device.cpu()
    assert stream.query()
    stream.synchronize()
    event = stream.record_event()
    event.synchronize()
    assert event.query()
    stream.wait_event(event)
    stream.synchronize()
    assert Event().query()  # never recorded: nothing to wait for
    Event().synchronize()


def test_identity():
    a, b = Stream(), Stream()
    assert a == a
    assert a != b
    assert a != 3
    assert hash(a) == hash(a)
    assert len({a, b}) == 2
    assert a.handle not in (0, b.handle)
    assert hex(a.handle) in repr(a)
    for each in (a, Event()):
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(each)
    with pytest.raises(TypeError, match="twice"):
        a.__init__()
    event = Event()
    with pytest.raises(TypeError, match="twice"):
        event.__init__()
    for make in (lambda: Stream("cpu"), lambda: Event("cpu"), lambda: Stream(3)):
        with pytest.raises(TypeError):
            make()
    with pytest.raises(TypeError):
        a.wait_event(None)
    with pytest.raises(TypeError):
        a.record_event("event")


def test_objects_that_were_never_initialised():
    for make in (lambda: Stream.__new__(Stream), lambda: Event.__new__(Event)):
        blank = make()
        for use in (blank.synchronize, blank.query):
            with pytest.raises((TypeError, ValueError)):
                use()
        repr(blank)
        del blank, use
    with pytest.raises((TypeError, ValueError)):
        Stream().wait_event(Event.__new__(Event))
    with pytest.raises((TypeError, ValueError)):
        Event.__new__(Event).record(Stream())
    with pytest.raises((TypeError, ValueError)):
        Event().record(Stream.__new__(Stream))
    device = nvsym.Device.__new__(nvsym.Device)
    repr(device)
    for use in (
        device.synchronize,
        lambda: Stream(device),
        lambda: Event(device),
        lambda: nvsym.HostBuffer("f4", 1, device),
    ):
        with pytest.raises(ValueError, match="Device was never initialised"):
            use()
    with pytest.raises(TypeError, match="bool"):
        nvsym.Device(True)


def test_timing():
    stream = Stream()
    start, end = Event(timing=True), Event(timing=True)
    start.record(stream)
    stream.synchronize()
    time.sleep(0.02)
    stream.record_event(end)
    end.synchronize()
    assert 20 <= start.elapsed_time(end) < 5000
    assert end.elapsed_time(start) == -start.elapsed_time(end)
    with pytest.raises(ValueError, match="timing=True"):
        start.elapsed_time(Event())
    with pytest.raises(ValueError, match="timing=True"):
        Event().elapsed_time(start)
    with pytest.raises(ValueError, match="never recorded"):
        start.elapsed_time(Event(timing=True))
    with pytest.raises(TypeError):
        start.elapsed_time(None)


def test_many_streams_end():
    """A dropped stream ends its thread."""

    def threads():
        with open("/proc/self/status") as file:
            return int(next(line for line in file if line.startswith("Threads:")).split()[1])

    before = threads()
    for _ in range(20):
        streams = [Stream() for _ in range(10)]
        for stream in streams:
            stream.record_event()
        del streams, stream
    deadline = time.monotonic() + 10
    while threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() <= before


# ---- order ----------------------------------------------------------------------------------------------------------


@pytest.mark.pes(1, 2)
@pytest.mark.parametrize("again", ["default stream", "own stream", "twice"])
def test_a_wait_is_for_the_last_record_at_the_time_of_the_call(ctx, again):
    """Another stream that reaches a later record of the event before does not end it."""
    gate, a, b, c = Gate(ctx), Stream(), Stream(), Stream()
    event, buffer, out = Event(), SHMEMBuffer["i4"].zeros(1), np.zeros(1, "i4")
    gate.hold(a)
    buffer.fill(5, stream=a)
    event.record(a)
    b.wait_event(event)
    buffer.enqueue_copy_to(out, stream=b)
    for _ in range(2 if again == "twice" else 1):
        event.record(None if again == "default stream" else c)
    event.synchronize()
    assert event.query()
    c.wait_event(event)
    c.synchronize()
    time.sleep(0.02)
    assert not b.query()
    assert out[0] == 0
    gate.open()
    b.synchronize()
    assert out[0] == 5
    a.synchronize()


@pytest.mark.pes(1, 2)
def test_a_stream_runs_behind_the_caller_and_in_order(ctx):
    gate, stream = Gate(ctx), Stream()
    b = SHMEMBuffer["i4"].zeros(4)
    first, second = np.full(4, 1, "i4"), np.full(4, 2, "i4")
    seen = [np.zeros(4, "i4") for _ in range(3)]
    gate.hold(stream)
    b.enqueue_copy_to(seen[0], stream=stream)
    b.enqueue_copy_from(first, stream=stream)
    b.enqueue_copy_to(seen[1], stream=stream)
    b.enqueue_copy_from(second, stream=stream)
    b[1:2].fill(7, stream=stream)
    b.enqueue_copy_to(seen[2], stream=stream)
    assert not stream.query()
    assert b.to_numpy().tolist() == [0] * 4  # the default stream waits for no other
    b.fill(9)
    assert all(not each.any() for each in seen)
    gate.open()
    stream.synchronize()
    assert stream.query()
    assert [each.tolist() for each in seen] == [[9] * 4, [1] * 4, [2, 7, 2, 2]]


@pytest.mark.pes(1, 2)
def test_events_order_streams(ctx):
    gate, a, b = Gate(ctx), Stream(), Stream()
    buffer, out = SHMEMBuffer["i4"].zeros(1), np.zeros(1, "i4")
    event = Event()
    gate.hold(a)
    buffer.fill(5, stream=a)
    a.record_event(event)
    b.wait_event(event)
    buffer.enqueue_copy_to(out, stream=b)
    after = b.record_event()
    time.sleep(0.02)
    assert not event.query()
    assert not after.query()
    assert not b.query()
    with pytest.raises(ValueError, match="timing"):
        event.elapsed_time(after)
    gate.open()
    after.synchronize()
    assert event.query()
    assert out[0] == 5
    a.synchronize()
    b.synchronize()


@pytest.mark.pes(1)
def test_an_event_may_be_recorded_again(ctx):
    """A wait is for the last record before it; query and synchronize are about the last of all."""
    gate, late, stream, other = Gate(ctx), Gate(ctx), Stream(), Stream()
    event = Event(timing=True)
    event.record(stream)
    stream.synchronize()
    assert event.query()
    gate.hold(stream)
    event.record(stream)
    other.wait_event(event)
    late.hold(stream)
    event.record(stream)
    assert not event.query()
    with pytest.raises(ValueError, match="not reached"):
        event.elapsed_time(event)
    gate.open()
    other.synchronize()
    assert not event.query()
    late.open()
    event.synchronize()
    assert event.query()


@pytest.mark.pes(1)
def test_the_default_stream_can_wait_for_an_event(ctx):
    gate, stream = Gate(ctx), Stream()
    buffer = SHMEMBuffer["i4"].zeros(1)
    gate.hold(stream)
    buffer.fill(3, stream=stream)
    event = stream.record_event()
    timer = threading.Timer(0.02, gate.open)
    timer.start()
    ctx.stream.wait_event(event)
    assert buffer.to_numpy()[0] == 3
    timer.join()
    stream.synchronize()
    default = Event(ctx.device)
    default.record()
    assert default.query()
    ctx.stream.record_event(default)
    assert ctx.stream.query()
    assert ctx.stream.handle == 0


@pytest.mark.pes(2, 4)
def test_a_barrier_on_a_stream_does_not_block_the_caller(ctx):
    stream, b = Stream(), SHMEMBuffer["i4"].zeros(1)
    flag = SHMEMBuffer["u8"].zeros(1)
    if ctx.my_pe() > 0:
        nvsym.signal_wait_until(flag, "eq", 1)
    nvsym.barrier_all(stream=stream)
    b.fill(1, stream=stream)
    if ctx.my_pe() == 0:
        time.sleep(0.02)
        assert not stream.query()
        assert b.to_numpy()[0] == 0
        for pe in range(1, ctx.n_pes()):
            nvsym.signal_op(flag, 1, pe)
    stream.synchronize()
    assert b.to_numpy()[0] == 1
    assert_usable(ctx)


@pytest.mark.pes(1, 2)
def test_puts_and_gets_on_streams(ctx):
    streams = [Stream() for _ in range(4)]
    b, c = SHMEMBuffer["i8"].zeros(4000), SHMEMBuffer["i8"].zeros(4000)
    for i, stream in enumerate(streams):
        part = slice(1000 * i, 1000 * (i + 1))
        for turn in range(5):
            nvsym.put(b[part], np.full(1000, 10 * i + turn, "i8"), right_of(ctx), stream=stream)
        nvsym.get(c[part], b[part], right_of(ctx), stream=stream)
    ctx.synchronize()
    nvsym.barrier_all()
    for each in (b, c):
        assert each.to_numpy().reshape(4, 1000).tolist() == [[10 * i + 4] * 1000 for i in range(4)]
    nvsym.barrier_all()


# ---- what streams may be --------------------------------------------------------------------------------------------


class WithProtocol:
    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return (0, self.handle)


class Named:
    def __init__(self, name, handle):
        setattr(self, name, handle)


@pytest.mark.pes(1, 2)
def test_stream_objects_of_others(ctx):
    own, gate = Stream(), Gate(ctx)
    b = SHMEMBuffer["i4"].zeros(1)
    for value, stream in enumerate(
        (own, own.handle, WithProtocol(own.handle), Named("cuda_stream", own.handle), Named("ptr", own.handle)), 1
    ):
        gate.hold(own)
        b.fill(value, stream=stream)
        assert b.to_numpy()[0] == value - 1
        gate.open()
        own.synchronize()
        assert b.to_numpy()[0] == value
        nvsym.signal_op(gate.signal, 0, ctx.my_pe())
    for stream in (None, 0, 1, 2, WithProtocol(0), Named("ptr", 0), ctx.stream):
        b.fill(11, stream=stream)
        assert b.to_numpy()[0] == 11
        b.fill(0)


def every_call_with_a_stream(ctx, b, stream):
    other = np.zeros(1, "u8")
    yield lambda: b.fill(1, stream=stream)
    yield lambda: b.enqueue_copy_to(other, stream=stream)
    yield lambda: b.enqueue_copy_from(other, stream=stream)
    yield lambda: nvsym.put(b, other, 0, stream=stream)
    yield lambda: nvsym.get(other, b, 0, stream=stream)
    yield lambda: nvsym.put_signal(b, other, b, 1, 0, stream=stream)
    yield lambda: nvsym.signal_op(b, 1, 0, stream=stream)
    yield lambda: nvsym.signal_wait_until(b, "eq", 0, stream=stream)
    yield lambda: nvsym.quiet(stream=stream)
    yield lambda: nvsym.fence(stream=stream)
    yield lambda: nvsym.Buffer.from_numpy(other).inplace_copy_from(np.ones(1, "u8"), stream=stream)


@pytest.mark.pes(1, 2)
def test_wrong_streams(ctx):
    b = SHMEMBuffer["u8"].full(1, 5)
    gone = Stream()
    handle = gone.handle
    del gone
    for stream, error in (
        ("0", TypeError),
        (1.5, TypeError),
        (True, TypeError),
        (object(), TypeError),
        (12345, ValueError),
        (-1, ValueError),
        (1 << 64, ValueError),
        (Named("ptr", "x"), ValueError),
        (handle, ValueError),
        (Named("cuda_stream", None), ValueError),
        (WithProtocol(7777), ValueError),
    ):
        for call in every_call_with_a_stream(ctx, b, stream):
            with pytest.raises(error, match=r"^stream: "):
                call()
    nvsym.barrier_all()
    assert b.to_numpy()[0] == 5
    ctx.synchronize()
    assert_usable(ctx)


@pytest.mark.pes(1)
def test_the_handle_of_a_dropped_stream(ctx):
    """It is refused at once, also while its thread still has work."""
    gate, stream = Gate(ctx), Stream()
    handle = stream.handle
    b = SHMEMBuffer["i4"].zeros(1)
    gate.hold(stream)
    b.fill(3, stream=stream)
    del stream
    for _ in range(3):
        with pytest.raises(ValueError, match=r"^stream: "):
            b.fill(4, stream=handle)
    gate.open()
    ctx.synchronize()
    assert b.to_numpy()[0] == 3  # what was enqueued still ran
    with pytest.raises(ValueError, match=r"^stream: "):
        b.fill(4, stream=handle)


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.pes(2, 4)
def test_an_error_on_a_stream_is_raised_once_where_one_waits(ctx):
    stream = Stream()
    b, out = SHMEMBuffer["i4"].zeros(2), np.zeros(2, "i4")
    if ctx.my_pe() == 0:
        nvsym.broadcast(b, b, 0, stream=stream)
    else:
        nvsym.barrier_all(stream=stream)
    b.fill(1, stream=stream)  # behind the failure: not run
    event = stream.record_event()
    event.synchronize()  # an event is reached all the same: others wait for it
    with pytest.raises(nvsym.CollectiveError, match="PE 0"):
        stream.synchronize()
    assert b.to_numpy().tolist() == [0, 0]
    stream.synchronize()
    b.fill(2, stream=stream)
    b.enqueue_copy_to(out, stream=stream)
    stream.synchronize()
    assert out.tolist() == [2, 2]
    assert_usable(ctx)
    nvsym.barrier_all(stream=stream)
    stream.synchronize()


@pytest.mark.pes(2)
def test_what_waits_behind_a_failure_is_let_go(ctx):
    """The objects of skipped work are released, and the heap is whole again."""
    live = ctx.heap.live
    stream = Stream()
    b = SHMEMBuffer["i4"].zeros(2)
    nvsym.broadcast(b, b, 0, stream=stream) if ctx.my_pe() == 0 else nvsym.barrier_all(stream=stream)
    host = nvsym.HostBuffer("i4", 2)
    alive = weakref.ref(host)
    b.enqueue_copy_from(host, stream=stream)
    del host, b
    with pytest.raises(nvsym.CollectiveError):
        stream.synchronize()
    gc.collect()
    nvsym.collect()
    assert alive() is None
    assert ctx.heap.live == live


@pytest.mark.pes(2)
def test_a_stream_dropped_with_its_failure(ctx):
    stream = Stream()
    b = SHMEMBuffer["i4"].zeros(2)
    nvsym.broadcast(b, b, 0, stream=stream) if ctx.my_pe() == 0 else nvsym.barrier_all(stream=stream)
    del stream
    ctx.synchronize()
    assert_usable(ctx)


@pytest.mark.pes(2, own_job=True)
def test_finalize_raises_what_nobody_has_seen(nvsym_backend):
    ctx = nvsym.init(backend=nvsym_backend)
    stream = Stream()
    b = SHMEMBuffer["i4"].zeros(2)
    nvsym.broadcast(b, b, 0, stream=stream) if ctx.my_pe() == 0 else nvsym.barrier_all(stream=stream)
    with pytest.raises(nvsym.CollectiveError, match="PE 0"):
        nvsym.finalize()
    assert not nvsym.is_initialized()
    with nvsym.SHMEMContext(backend=nvsym_backend) as ctx:
        assert_usable(ctx)


def test_a_device_is_a_number():
    """Whatever else is given is told of before a driver is looked for."""
    for bad in (0.0, "0", None):
        with pytest.raises(TypeError, match=f"ordinal: .*{type(bad).__name__}"):
            nvsym.Device(bad)
    for bad in (-1, 1 << 40):
        with pytest.raises(ValueError, match=f"ordinal: {bad} "):
            nvsym.Device(bad)


@pytest.mark.pes(1, 2)
@pytest.mark.parametrize("what", ["stream", "event"])
def test_interrupt_of_a_wait(ctx, what):
    gate, stream = Gate(ctx), Stream()
    gate.hold(stream)
    waited = stream if what == "stream" else stream.record_event()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            waited.synchronize()
        assert time.monotonic() - began < 10
    finally:
        signal.signal(signal.SIGINT, before)
    gate.open()
    stream.synchronize()
    assert_usable(ctx)


# ---- lifetimes ------------------------------------------------------------------------------------------------------


@pytest.mark.pes(1, 2)
def test_host_memory_lives_until_the_copy_is_done(ctx):
    """Pageable, pinned, foreign: whatever the caller drops."""
    gate, stream = Gate(ctx), Stream()
    b = SHMEMBuffer["i4"].zeros(100)
    refs = []

    class Marked(np.ndarray):
        pass

    gate.hold(stream)
    for make in (lambda: np.arange(100, dtype="i4").view(Marked), lambda: nvsym.HostBuffer("i4", 100)):
        source = make()
        source[:] = np.arange(100)
        refs.append(weakref.ref(source))
        b.enqueue_copy_from(source, stream=stream)
        source = make()
        refs.append(weakref.ref(source))
        nvsym.put(b, source, ctx.my_pe(), stream=stream)
        b.enqueue_copy_to(source, stream=stream)
        refs.append(weakref.ref(source))
    del source
    gc.collect()
    assert all(ref() is not None for ref in refs)
    gate.open()
    stream.synchronize()
    gc.collect()
    assert all(ref() is None for ref in refs)


@pytest.mark.pes(1, 2)
def test_a_stream_dropped_with_work(ctx):
    gate, b = Gate(ctx), SHMEMBuffer["i4"].zeros(3)
    stream = Stream()
    gate.hold(stream)
    event = Event()
    b.enqueue_copy_from(np.arange(3, dtype="i4"), stream=stream)
    event.record(stream)
    other = Stream()
    other.wait_event(event)
    del event, stream
    gc.collect()
    assert b.to_numpy().tolist() == [0, 0, 0]
    assert not other.query()
    gate.open()
    other.synchronize()
    assert b.to_numpy().tolist() == [0, 1, 2]


@pytest.mark.pes(1, 2)
def test_synchronize_of_context_and_device_waits_for_all_streams(ctx):
    for wait in (ctx.synchronize, ctx.device.synchronize, nvsym.Device.cpu().synchronize):
        gate, streams = Gate(ctx), [Stream() for _ in range(3)]
        b = SHMEMBuffer["i4"].zeros(3)
        for i, stream in enumerate(streams):
            gate.hold(stream)
            b[i : i + 1].fill(i + 1, stream=stream)
        del streams[1:]
        timer = threading.Timer(0.02, gate.open)
        timer.start()
        wait()
        assert b.to_numpy().tolist() == [1, 2, 3]
        timer.join()


@pytest.mark.pes(1, 2)
def test_threads_share_a_stream(ctx):
    """Several threads enqueue on one stream and put on the default one."""
    stream, n = Stream(), 6
    b, c = SHMEMBuffer["i8"].zeros(n * 64), SHMEMBuffer["i8"].zeros(n * 20000)

    def work(i):
        for k in range(60):
            nvsym.put(b[64 * i : 64 * (i + 1)], np.full(64, k), right_of(ctx), stream=stream)
            nvsym.put(c[20000 * i : 20000 * (i + 1)], np.full(20000, k), right_of(ctx))  # longer: without the GIL
            if k % 20 == 0:
                stream.synchronize()
                own = Stream()
                nvsym.get(np.empty(64, "i8"), b[0:64], right_of(ctx), stream=own)
                own.record_event().synchronize()

    with ThreadPoolExecutor(n) as pool:
        list(pool.map(work, range(n)))
    stream.synchronize()
    nvsym.barrier_all()
    assert (b.to_numpy() == 59).all()
    assert (c.to_numpy() == 59).all()
    nvsym.barrier_all()


@pytest.mark.pes(1)
def test_refused_calls_enqueue_nothing(ctx):
    stream = Stream()
    b = SHMEMBuffer["i4"].zeros(3)
    with refused(ctx, ValueError, "src"):
        b.enqueue_copy_from(np.zeros(4, "i4"), stream=stream)
    assert stream.query()
    stream.synchronize()
