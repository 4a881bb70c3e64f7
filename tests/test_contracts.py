# SPDX-License-Identifier: Apache-2.0
"""What docs/contracts.md promises and no other test file is about."""

import gc
import time

import numpy as np
import pytest

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
