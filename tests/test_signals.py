# SPDX-License-Identifier: Apache-2.0
"""Signals: updates, comparisons, the order of data and signal, waits that fail."""

import operator
import time

import numpy as np
import pytest

import nvsym

PES = pytest.mark.pes(1, 2, 4)
NODES = pytest.mark.pes(4, nodes=2)
LARGEST = 2**64 - 1
COMPARISONS = {
    "eq": operator.eq, "ne": operator.ne, "gt": operator.gt, "le": operator.le, "lt": operator.lt, "ge": operator.ge,
}  # fmt: skip


@PES
@NODES
def test_set_and_add_reach_every_pe(ctx):
    me, n = ctx.my_pe(), ctx.n_pes()
    signals = nvsym.SHMEMBuffer[np.uint64].zeros(n + 1)
    for pe in range(n):
        nvsym.signal_op(signals[me : me + 1], LARGEST - me, pe)
        nvsym.signal_op(signals[n:], me + 1, pe, op="add")
    nvsym.signal_wait_until(signals[n:], "eq", n * (n + 1) // 2)
    nvsym.barrier_all()
    assert signals.to_numpy()[:n].tolist() == [LARGEST - pe for pe in range(n)]
    # The sum wraps around, as that of a uint64 does.
    nvsym.signal_op(signals[me : me + 1], LARGEST, me, op="add")
    nvsym.signal_wait_until(signals[me : me + 1], "eq", LARGEST - me - 1)
    nvsym.barrier_all()


@pytest.mark.pes(1)
@pytest.mark.pes(2, nodes=2)
def test_comparisons(ctx):
    me = ctx.my_pe()
    signal = nvsym.SHMEMBuffer[np.uint64].zeros(1)
    stream = nvsym.Stream()
    for value in (0, 1, 5, 2**63, LARGEST):
        nvsym.signal_op(signal, value, me)
        for other in (0, 1, 5, 2**63 - 1, 2**63, LARGEST):
            for name, holds in COMPARISONS.items():
                if holds(value, other):
                    nvsym.signal_wait_until(signal, name, other)
                    nvsym.signal_wait_until(signal, name, other, stream=stream)
        stream.synchronize()


@PES
@NODES
@pytest.mark.parametrize("count", [1, 300, 40_000])
def test_whoever_sees_the_signal_sees_the_data(ctx, count):
    """A ring in which each round's data must be whole when its signal is."""
    me, n = ctx.my_pe(), ctx.n_pes()
    right, left = (me + 1) % n, (me - 1) % n
    rounds = 400 if count < 1000 else 60
    data = nvsym.SHMEMBuffer[np.int64].zeros(count)
    signals = nvsym.SHMEMBuffer[np.uint64].zeros(2)
    arrived, taken = signals[:1], signals[1:]
    view = np.asarray(data)
    for i in range(1, rounds + 1):
        values = np.full(count, i * n + me)
        if i % 3 == 0:
            nvsym.put_signal(data, values, arrived, i, right)
        elif i % 3 == 1:
            nvsym.put_signal(data, values, arrived, 1, right, op="add")
        else:
            nvsym.put(data, values, right)
            nvsym.fence()
            nvsym.signal_op(arrived, i, right)
        nvsym.signal_wait_until(arrived, "ge", i)
        assert (view == i * n + left).all(), i
        nvsym.signal_op(taken, i, left)
        nvsym.signal_wait_until(taken, "ge", i)
    del view
    nvsym.barrier_all()


@PES
@NODES
def test_on_streams(ctx):
    """A wait may be enqueued long before the put that ends it; what is behind it in its stream runs after it."""
    me, n = ctx.my_pe(), ctx.n_pes()
    right = (me + 1) % n
    waits, puts = nvsym.Stream(), nvsym.Stream()
    data = nvsym.SHMEMBuffer[np.int32].zeros(100)
    signal = nvsym.SHMEMBuffer[np.uint64].zeros(1)
    copies = [np.zeros(100, np.int32) for _ in range(20)]
    acknowledged = nvsym.SHMEMBuffer[np.uint64].zeros(1)
    for i, copy in enumerate(copies, 1):
        nvsym.signal_wait_until(signal, "ge", i, stream=waits)
        data.enqueue_copy_to(copy, stream=waits)
        nvsym.signal_op(acknowledged, i, (me - 1) % n, stream=waits)
    time.sleep(0.05)
    assert not waits.query()
    nvsym.barrier_all()  # nobody puts before all have looked
    for i in range(1, 21):
        nvsym.put_signal(data, np.full(100, i * 10 + me, np.int32), signal, i, right, stream=puts)
        nvsym.signal_wait_until(acknowledged, "ge", i, stream=puts)
    waits.synchronize()
    puts.synchronize()
    for i, copy in enumerate(copies, 1):
        assert (copy == i * 10 + (me - 1) % n).all()
    nvsym.barrier_all()


@pytest.mark.pes(1, 2)
@pytest.mark.pes(2, nodes=2)
def test_a_wait_on_a_stream_is_ended_by_the_own_pe(ctx):
    """Also when a good while has gone by, so that the waiting thread has looked whether anybody is left to set it."""
    signal = nvsym.SHMEMBuffer[np.uint64].zeros(1)
    stream = nvsym.Stream()
    nvsym.signal_wait_until(signal, "eq", 1, stream=stream)
    time.sleep(0.1)
    assert not stream.query()
    nvsym.signal_op(signal, 1, ctx.my_pe())
    stream.synchronize()
    # And the other way round: this thread waits for a stream of its own.
    later = nvsym.Stream()
    gate = nvsym.SHMEMBuffer[np.uint64].zeros(1)
    nvsym.signal_wait_until(gate, "eq", 1, stream=stream)
    nvsym.signal_op(signal, 2, ctx.my_pe(), stream=stream)
    nvsym.signal_op(gate, 1, ctx.my_pe(), stream=later)
    nvsym.signal_wait_until(signal, "eq", 2)
    nvsym.barrier_all()


BAD = [
    (lambda s, d, x: nvsym.signal_op(d[:1], 1, 0), TypeError, "signal.*uint64.*float32"),
    (lambda s, d, x: nvsym.signal_op(s, 1, 0), ValueError, r"signal.*one element.*3.*\[3:4\]"),
    (lambda s, d, x: nvsym.signal_op(s[:0], 1, 0), ValueError, "signal.*one element"),
    (lambda s, d, x: nvsym.signal_op(np.zeros(1, np.uint64), 1, 0), TypeError, "signal.*SHMEMBuffer"),
    (lambda s, d, x: nvsym.signal_op(s[:1], -1, 0), ValueError, "value: -1"),
    (lambda s, d, x: nvsym.signal_op(s[:1], 2**64, 0), ValueError, "value: 18446744073709551616"),
    (lambda s, d, x: nvsym.signal_op(s[:1], "1", 0), TypeError, "value: '1'"),
    (lambda s, d, x: nvsym.signal_op(s[:1], 1.5, 0), TypeError, "value: 1.5"),
    (lambda s, d, x: nvsym.signal_wait_until(s[:1], "eq", None), TypeError, "value: None"),
    (lambda s, d, x: nvsym.signal_op(s[:1], 1, 2), ValueError, "pe: 2"),
    (lambda s, d, x: nvsym.signal_op(s[:1], 1, -1), ValueError, "pe: -1"),
    (lambda s, d, x: nvsym.signal_op(s[:1], 1, True), TypeError, "pe: .*bool"),
    (lambda s, d, x: nvsym.signal_op(s[:1], 1, 0, op="or"), ValueError, "op: 'or'.*set.*add"),
    (lambda s, d, x: nvsym.signal_op(s[:1], 1, 0, op=[]), ValueError, "op"),
    (lambda s, d, x: nvsym.signal_op(s[:1], 1, 0, stream="x"), TypeError, "stream"),
    (lambda s, d, x: nvsym.signal_wait_until(s[:1], "=", 1), ValueError, "cmp: '='.*'eq'"),
    (lambda s, d, x: nvsym.signal_wait_until(s[:1], None, 1), ValueError, "cmp: None"),
    (lambda s, d, x: nvsym.signal_wait_until(s, "eq", 1), ValueError, "signal"),
    (lambda s, d, x: nvsym.signal_wait_until(s[:1], "eq", -1), ValueError, "value: -1"),
    (lambda s, d, x: nvsym.signal_wait_until(d[:1], "eq", 1), TypeError, "signal"),
    (lambda s, d, x: nvsym.put_signal(d, x[1:], s[:1], 1, 0), ValueError, "source.*4.*5"),
    (lambda s, d, x: nvsym.put_signal(d, x.astype(int), s[:1], 1, 0), TypeError, "source.*int64"),
    (lambda s, d, x: nvsym.put_signal(x, x, s[:1], 1, 0), TypeError, "dest"),
    (lambda s, d, x: nvsym.put_signal(d, x, s, 1, 0), ValueError, "signal"),
    (lambda s, d, x: nvsym.put_signal(d, x, s[:1], -1, 0), ValueError, "value"),
    (lambda s, d, x: nvsym.put_signal(d, x, s[:1], 1, 7), ValueError, "pe: 7"),
    (lambda s, d, x: nvsym.put_signal(d, x, s[:1], 1, 0, op="max"), ValueError, "op"),
]


@pytest.mark.pes(2)
def test_bad_arguments_change_nothing(ctx):
    signals = nvsym.SHMEMBuffer[np.uint64].zeros(3)
    data = nvsym.SHMEMBuffer[np.float32].zeros(5)
    for call, error, text in BAD:
        with pytest.raises(error, match=text):
            call(signals, data, np.ones(5, np.float32))
    freed = nvsym.SHMEMBuffer[np.uint64].zeros(1)
    freed.free()
    for call in (
        lambda: nvsym.signal_op(freed, 1, 0),
        lambda: nvsym.signal_wait_until(freed, "eq", 1),
        lambda: nvsym.put_signal(data, np.ones(5, np.float32), freed, 1, 0),
    ):
        with pytest.raises(nvsym.FreedBufferError):
            call()
    nvsym.barrier_all()
    assert not signals.to_numpy().any()
    assert not data.to_numpy().any()


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_wait_has_a_limit(mpirun, nodes):
    """The waits end with an error, and the job and the stream can be used afterwards."""
    done = mpirun(
        2,
        """
        import time
        import nvsym
        ctx = nvsym.init(heap_size="1M")
        me = ctx.my_pe()
        signals = nvsym.SHMEMBuffer["uint64"].zeros(2)
        stream = nvsym.Stream()
        nvsym.signal_wait_until(signals[:1], "gt", 5, stream=stream)
        nvsym.signal_op(signals[1:], 9, me, stream=stream)
        start = time.monotonic()
        try:
            nvsym.signal_wait_until(signals[:1], "gt", 5)
        except nvsym.PeerTimeoutError as error:
            print("timeout", error)
        try:
            stream.synchronize()
        except nvsym.PeerTimeoutError as error:
            print("timeout", error)
        assert 1 < time.monotonic() - start < 4, time.monotonic() - start
        assert signals.to_numpy()[1] == 0     # behind the failed wait nothing ran
        nvsym.barrier_all()
        nvsym.signal_op(signals[:1], 6, 1 - me, stream=stream)
        nvsym.signal_wait_until(signals[:1], "gt", 5, stream=stream)
        stream.synchronize()
        print("end")
        """,
        nodes=nodes,
        env={"NVSYM_TIMEOUT": "1.5"},
    )
    for text in done.pe_stdout:
        assert text.count("timeout signal_wait_until: no PE set the signal within 1.5 s (NVSYM_TIMEOUT)") == 2, (
            done.describe()
        )
        assert text.endswith("end\n"), done.describe()
