# SPDX-License-Identifier: Apache-2.0
"""What docs/contracts.md promises and no other test file is about."""

import gc
import threading
import time

import numpy as np
import pytest
from jobcheck import assert_usable

import nvsym

FLOATS = nvsym.SHMEMBuffer[np.float32]


@pytest.fixture
def told(nvsym_backend):
    """For tests in which one PE's bad call has to reach the others."""
    if nvsym_backend != "host":
        pytest.skip(f"the {nvsym_backend} backend does not tell the other PEs of a call that was bad on one")


def outcome(call):
    """What a call raises, or None."""
    try:
        call()
    except (nvsym.NVSymError, TypeError, ValueError) as error:
        return error
    return None


@pytest.mark.pes(2, 3)
@pytest.mark.pes(2, nodes=2)
def test_calls_by_mpi_on_a_stream_beside_host_side_ones(told, ctx):
    """They are in no order with each other: neither meets the other's messages."""
    me, n = ctx.my_pe(), ctx.n_pes()
    backwards = nvsym.TEAM_WORLD.split_strided(n - 1, -1, n)
    for team in (nvsym.TEAM_WORLD, backwards):
        stream, source, dest = nvsym.Stream(), FLOATS.full(50_000, me), FLOATS.zeros(50_000)
        for turn in range(30):
            nvsym.allreduce(dest, source, team=team, stream=stream, algorithm="mpi")
            if turn % n == me:
                time.sleep(0.002)
            FLOATS(10).free()
            for part in team.split_2d(1):
                part.destroy()
            nvsym.collect()
        stream.synchronize()
        assert (dest.to_numpy() == n * (n - 1) // 2).all()
    backwards.destroy()


def test_a_call_by_mpi_that_a_pe_does_not_come_to(mpirun):
    """It takes nothing with it but its team."""
    job = mpirun(
        2,
        """
        import nvsym
        from mpi4py import MPI

        nvsym.init(heap_size="1M")
        a = nvsym.SHMEMBuffer["f4"].full(4, 1)
        team = nvsym.TEAM_WORLD.split_strided(0, 1, 2)
        if nvsym.my_pe() == 0:
            try:
                nvsym.allreduce(a, a, team=team, algorithm="mpi")
            except nvsym.PeerTimeoutError:
                print("late", flush=True)
        MPI.COMM_WORLD.Barrier()
        nvsym.collect()
        nvsym.allreduce(a, a, algorithm="mpi")
        print(a.to_numpy()[0], flush=True)
        """,
        env={"NVSYM_TIMEOUT": "1"},
    )  # fmt: skip
    assert job.pe_stdout == ["late\n2.0\n", "2.0\n"], job.describe()


@pytest.mark.pes(2, 3)
@pytest.mark.parametrize("algorithm", ["auto", "mpi"])
def test_bad_calls_in_a_row_meet_the_good_ones_one_by_one(told, ctx, algorithm):
    """PE 0 makes two bad calls before the others come: each of theirs has to meet its own."""
    me, n = ctx.my_pe(), ctx.n_pes()
    dest, source, bad = FLOATS.zeros(8), FLOATS.full(8, 1), nvsym.SHMEMBuffer[np.float64].zeros(8)
    if me:
        time.sleep(0.3)
    errors = [outcome(lambda: nvsym.allreduce(dest, source if me else bad, algorithm=algorithm)) for _ in range(2)]
    assert [type(error) for error in errors] == [nvsym.CollectiveError if me else TypeError] * 2
    if me:
        assert all("PE 0: TypeError: " in str(error) for error in errors)
    assert not dest.to_numpy().any()
    source.fill(5)
    nvsym.allreduce(dest, source, algorithm=algorithm)
    assert (dest.to_numpy() == 5 * n).all()


@pytest.mark.pes(2)
@pytest.mark.parametrize("algorithm", ["auto", "mpi"])
def test_a_bad_call_is_told_in_the_order_of_its_stream(told, ctx, algorithm):
    """A call that PE 0 has enqueued and not begun is before the bad one behind it, for the other PE too."""
    me = ctx.my_pe()
    ones, tens, bad = FLOATS.full(8, 1), FLOATS.full(8, 10), nvsym.SHMEMBuffer[np.float64].zeros(8)
    first, second = FLOATS.zeros(8), FLOATS.zeros(8)
    go = nvsym.SHMEMBuffer[np.uint64].zeros(1)
    if me == 0:
        stream = nvsym.Stream()
        nvsym.signal_wait_until(go, "eq", 1, stream=stream)
        nvsym.allreduce(first, ones, stream=stream, algorithm=algorithm)
        with pytest.raises(TypeError):
            nvsym.allreduce(second, bad, stream=stream, algorithm=algorithm)
        nvsym.signal_op(go, 1, 0)
        stream.synchronize()
    else:
        nvsym.allreduce(first, ones, algorithm=algorithm)
        with pytest.raises(nvsym.CollectiveError, match="PE 0: TypeError"):
            nvsym.allreduce(second, tens, algorithm=algorithm)
    assert (first.to_numpy() == 2).all()
    assert not second.to_numpy().any()
    nvsym.allreduce(second, tens, algorithm=algorithm)
    assert (second.to_numpy() == 20).all()


@pytest.mark.pes(2, 3)
@pytest.mark.pes(2, nodes=2)
@pytest.mark.parametrize("then", ["default", "another stream", "bad on another stream"])
@pytest.mark.parametrize("algorithm", ["auto", "mpi"])
def test_a_call_behind_a_bad_one_of_another_stream(told, ctx, algorithm, then):
    """It waits until the others have been told of the bad one, and does not meet their part of that."""
    me, n = ctx.my_pe(), ctx.n_pes()
    first, second, bad = FLOATS.full(8, 1), FLOATS.full(8, 10), nvsym.SHMEMBuffer[np.float64].zeros(8)
    dest, gate = FLOATS.zeros(8), nvsym.SHMEMBuffer[np.uint64].zeros(1)
    for turn in range(10):
        dest.fill(-1)
        gate.fill(0)
        stream, other = nvsym.Stream(), None if then == "default" else nvsym.Stream()
        if me == 1:
            nvsym.signal_wait_until(gate, "eq", 1, stream=stream)  # so that the bad call is told late
            with pytest.raises(TypeError, match="dest: dtype"):
                nvsym.allreduce(dest, bad, stream=stream, algorithm=algorithm)
            opener = threading.Timer(0.01 * (turn % 3), lambda: nvsym.signal_op(gate, 1, 1))
            opener.start()
        else:
            nvsym.allreduce(dest, first, stream=stream, algorithm=algorithm)
            with pytest.raises(nvsym.CollectiveError, match="PE 1: TypeError: dest: dtype"):
                stream.synchronize()
        if then == "bad on another stream":
            error = outcome(
                lambda on=other: nvsym.allreduce(bad if me == 1 else dest, second, stream=on, algorithm=algorithm)
            )
            error = error or outcome(other.synchronize)
            assert type(error) is (TypeError if me == 1 else nvsym.CollectiveError)
        nvsym.allreduce(dest, second, stream=other, algorithm=algorithm)
        if other is not None:
            other.synchronize()
        assert (dest.to_numpy() == 10 * n).all()
        if me == 1:
            opener.join()
            stream.synchronize()
    assert_usable(ctx)


@pytest.mark.pes(2)
def test_a_bad_call_on_a_stream_that_has_failed(told, ctx):
    """It is not told, since a good one is not made there either; and nobody waits for it."""
    me = ctx.my_pe()
    source, dest, bad = FLOATS.full(8, 1), FLOATS.zeros(8), nvsym.SHMEMBuffer[np.float64].zeros(8)
    stream, gate = nvsym.Stream(), nvsym.SHMEMBuffer[np.uint64].zeros(1)
    nvsym.signal_wait_until(gate, "eq", 1, stream=stream)
    nvsym.allreduce(dest, source, "sum" if me else "max", stream=stream)
    if me:
        nvsym.allreduce(dest, source, stream=stream)
    else:
        with pytest.raises(TypeError):
            nvsym.allreduce(dest, bad, stream=stream)
    nvsym.signal_op(gate, 1, me)
    with pytest.raises(nvsym.CollectiveError, match="different calls"):
        stream.synchronize()
    nvsym.allreduce(dest, source)
    assert (dest.to_numpy() == 2).all()


def test_a_bad_call_that_cannot_be_told(mpirun):
    """A call behind it raises after the time limit. The others make that call, so the team refuses to work, and nothing is moved."""
    mpirun(
        2,
        """
        import threading
        import numpy as np, nvsym
        from mpi4py import MPI

        ctx = nvsym.init(backend="host", heap_size="4M")
        source, dest = nvsym.SHMEMBuffer["f4"].full(4, 1), nvsym.SHMEMBuffer["f4"].zeros(4)
        stream, held = nvsym.Stream(), threading.Event()

        def refused(error, words, *arguments, **options):
            try:
                nvsym.allreduce(*arguments, **options)
            except error as caught:
                assert words in str(caught), caught
            else:
                raise AssertionError("nothing was raised")

        if ctx.my_pe() == 0:
            ctx.enqueue_function(held.wait, grid_dim=1, block_dim=1, stream=stream)
            refused(TypeError, "dest", None, source, stream=stream)
            refused(nvsym.CollectiveError, "was refused", dest, source)
            held.set()
            stream.synchronize()
        else:
            refused(nvsym.PeerTimeoutError, "PE 0", dest, source)
        MPI.COMM_WORLD.Barrier()
        for _ in range(3):
            refused(nvsym.CollectiveError, "cannot be used any more", dest, source)
        assert not dest.to_numpy().any()
        with nvsym.TEAM_WORLD.split_strided(0, 1, 2) as team:
            nvsym.allreduce(dest, source, team=team)
        assert (dest.to_numpy() == 2).all()
        """,
        env={"NVSYM_TIMEOUT": "1"},
        timeout=30,
    )


@pytest.mark.pes(2)
def test_a_bad_call_on_a_stream_that_has_failed_holds_up_nobody(told, ctx, nvsym_backend):
    """It is not told, and earlier ones of other streams still are, each to the call that it belongs to."""
    if nvsym_backend != "host":
        pytest.skip("functions in the order of a stream are the host backend's")
    source, dest = FLOATS.full(8, 1), FLOATS.zeros(8)
    slow, failed, gate = nvsym.Stream(), nvsym.Stream(), nvsym.SHMEMBuffer[np.uint64].zeros(1)
    if ctx.my_pe() == 0:
        ctx.enqueue_function(lambda: 1 / 0, grid_dim=1, block_dim=1, stream=failed)
        nvsym.signal_wait_until(gate, "eq", 1, stream=slow)
        for stream in (slow, failed):
            with pytest.raises(TypeError):
                nvsym.allreduce(dest, None, stream=stream)
        started = time.monotonic()
        with pytest.raises(nvsym.BackendError, match="ZeroDivisionError"):
            failed.synchronize()
        assert time.monotonic() - started < 1
        nvsym.signal_op(gate, 1, 0)
        slow.synchronize()
    else:
        with pytest.raises(nvsym.CollectiveError, match="PE 0: TypeError"):
            nvsym.allreduce(dest, source)
    nvsym.allreduce(dest, source)
    assert (dest.to_numpy() == 2).all()


@pytest.mark.pes(2)
def test_a_function_on_a_stream_makes_calls_with_a_bad_one_behind_it(told, ctx, nvsym_backend):
    if nvsym_backend != "host":
        pytest.skip("functions in the order of a stream are the host backend's")
    me = ctx.my_pe()
    source, inner, outer = FLOATS.full(8, me + 1), FLOATS.zeros(8), FLOATS.zeros(8)
    stream = nvsym.Stream()

    def call():
        time.sleep(0.1)
        nvsym.allreduce(inner, source)
        if me:
            with pytest.raises(TypeError):
                nvsym.allreduce(inner, None)
        else:
            with pytest.raises(nvsym.CollectiveError, match="PE 1: TypeError"):
                nvsym.allreduce(inner, source)

    ctx.enqueue_function(call, grid_dim=1, block_dim=1, stream=stream)
    if me == 0:
        with pytest.raises(TypeError):
            nvsym.allreduce(outer, None, stream=stream)
        stream.synchronize()
    else:
        nvsym.allreduce(outer, source, stream=stream)
        with pytest.raises(nvsym.CollectiveError, match="PE 0: TypeError"):
            stream.synchronize()
    assert (inner.to_numpy() == 3).all()
    assert not outer.to_numpy().any()
    nvsym.allreduce(outer, source)
    assert (outer.to_numpy() == 3).all()


def test_signals_are_seen_while_a_bad_call_waits_for_a_good_one(mpirun):
    mpirun(
        2,
        """
        import os, signal, threading, time, nvsym
        ctx = nvsym.init(backend="host", heap_size="4M")
        if ctx.my_pe() == 0:
            stream, seen = nvsym.Stream(), []
            nvsym.barrier_all(stream=stream)
            time.sleep(0.2)
            signal.signal(signal.SIGINT, lambda *_: seen.append(time.monotonic()))
            sent = time.monotonic() + 0.3
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            try:
                nvsym.allreduce(None, None)
            except TypeError:
                pass
            assert 0 <= seen[0] - sent + 0.1 < 1, seen[0] - sent
        else:
            time.sleep(3)
            nvsym.barrier_all()
            try:
                nvsym.barrier_all()
            except nvsym.CollectiveError:
                pass
        """,
        timeout=30,
    )


@pytest.mark.pes(2)
def test_an_error_of_a_stream_is_raised_once_and_holds_up_what_is_behind(told, ctx):
    me = ctx.my_pe()
    buffer, other = FLOATS.zeros(8), FLOATS.zeros(8)
    stream = nvsym.Stream()
    nvsym.allreduce(other, buffer, "sum" if me else "max", stream=stream)
    buffer.fill(3, stream=stream)
    event = stream.record_event()
    event.synchronize()  # is reached although the fill in front of it was not run
    with pytest.raises(
        nvsym.CollectiveError, match="PE 0: reduce of 8 float32 by max; PE 1: reduce of 8 float32 by sum"
    ):
        stream.synchronize()
    stream.synchronize()
    assert not buffer.to_numpy().any()
    buffer.fill(4, stream=stream)
    stream.synchronize()
    assert (buffer.to_numpy() == 4).all()


@pytest.mark.pes(2)
def test_an_array_over_a_freed_buffer_keeps_its_memory(ctx, nvsym_backend):
    if nvsym_backend != "host":
        pytest.skip("arrays over buffers are of host memory")
    me = ctx.my_pe()
    used = ctx.heap.used
    buffer = FLOATS.zeros(1000)
    array = np.asarray(buffer) if me == 0 else None  # on one PE only
    address = buffer.unsafe_ptr()
    buffer.free()
    with pytest.raises(nvsym.FreedBufferError):
        buffer.fill(1)
    if me == 0:
        array[:] = 7
    following = FLOATS.full(1000, 1)
    assert following.unsafe_ptr() != address
    if me == 0:
        assert (array == 7).all()
    del array, following
    gc.collect()
    nvsym.collect()
    assert ctx.heap.used == used


@pytest.mark.pes(2)
def test_different_host_side_calls_raise_on_all_and_do_nothing(ctx):
    used = ctx.heap.used
    with pytest.raises(nvsym.CollectiveError, match="different collective calls"):
        nvsym.collect() if ctx.my_pe() else FLOATS(3)
    one, two = FLOATS(3), FLOATS(3)
    with pytest.raises(nvsym.CollectiveError, match="a free differs between PEs"):
        (one if ctx.my_pe() else two).free()
    assert not one.is_freed
    assert not two.is_freed
    one.free()
    two.free()
    assert ctx.heap.used == used


def test_arrays_outlive_the_job_and_a_job_may_follow(mpirun):
    job = mpirun(
        2,
        """
        import numpy as np
        import nvsym

        nvsym.init(backend="host", heap_size="8M")
        pe = nvsym.my_pe()
        buffer = nvsym.SHMEMBuffer[np.float32].full(8, pe)
        array = np.asarray(buffer)
        nvsym.finalize()
        assert (array == pe).all()
        array[:] = 5
        for call in (nvsym.barrier_all, lambda: buffer.fill(1), buffer.free):
            try:
                call()
            except nvsym.NotInitializedError:
                continue
            raise SystemExit("a call after finalize did not raise")
        nvsym.init(backend="host", heap_size="16M")
        fresh = nvsym.SHMEMBuffer[np.float32].zeros(8)
        assert buffer.is_freed and (array == 5).all()
        try:
            buffer.fill(1)
        except nvsym.NotInitializedError:
            print("fine")
        """,
    )
    assert job.pe_stdout == ["fine\n"] * 2


def test_two_threads_in_host_side_collective_calls_are_told_so(mpirun):
    job = mpirun(
        2,
        """
        import threading, time
        import numpy as np, nvsym

        ctx = nvsym.init(backend="host")
        if ctx.my_pe() == 0:
            told = []

            def call(delay):
                time.sleep(delay)
                try:
                    nvsym.collect()
                except nvsym.NVSymError as error:
                    told.append(str(error))

            threads = [threading.Thread(target=call, args=(delay,)) for delay in (0, 0.5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            print(len(told), all("one thread at a time" in text for text in told), flush=True)
            raise SystemExit(3)
        time.sleep(2)
        nvsym.collect()
        """,
        check=False,
        timeout=60,
    )
    assert job.pe_stdout[0].split() == ["2", "True"], job.describe()


def test_whatever_is_in_a_cycle_is_collected_after_the_job(mpirun):
    mpirun(
        1,
        """
        import gc
        import numpy as np, nvsym

        ctx = nvsym.init(backend="host")
        buffer, stream = nvsym.SHMEMBuffer["i4"].zeros(2), nvsym.Stream()
        cycle = [ctx, ctx.device, ctx.heap, buffer, buffer[1:], buffer.peer(0), np.asarray(buffer), stream, nvsym.Event(),
                 stream.record_event(), nvsym.HostBuffer("i4", 3), nvsym.TEAM_WORLD.split_strided(0, 1, 1)]
        cycle.append(cycle)
        nvsym.finalize()
        del ctx, buffer, stream, cycle
        assert gc.collect() > 0
        """,
    )
