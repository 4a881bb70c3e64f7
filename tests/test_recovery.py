# SPDX-License-Identifier: Apache-2.0
"""What a call leaves behind that failed, was given up, or never ran: later calls are right, or are refused."""

import pytest

PROLOGUE = """
import os, signal, threading, time
import numpy as np
import nvsym

ctx = nvsym.init(backend="host", heap_size="4M")
me, n = nvsym.my_pe(), nvsym.n_pes()
F, U = nvsym.SHMEMBuffer["float32"], nvsym.SHMEMBuffer["uint64"]


def outcome(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


def summed(team=None, **options):
    a, b = F.full(8, me + 1), F.full(8, -1)
    nvsym.allreduce(b, a, team=team, **options)
    assert (b.to_numpy() == n * (n + 1) / 2).all(), b.to_numpy()
"""


def run(mpirun, n, text, *, limit=2, **options):
    return mpirun(
        n, PROLOGUE + text, env={"NVSYM_TIMEOUT": str(limit), **options.pop("env", {})}, timeout=60, **options
    )


@pytest.mark.parametrize(("nodes", "way"), [(1, "algorithm='mpi'"), (2, "")])
def test_a_call_by_mpi_that_was_left(mpirun, nodes, way):
    """A late PE, and the one that has given it up, get errors ever after, and no sums of calls that do not belong together."""
    job = run(
        mpirun, 2,
        f"""
team = nvsym.TEAM_WORLD.split_strided(0, 1, 2)
a, b = F.full(8, 1), F.full(8, 0)
if me == 0:
    time.sleep(2.5)
found = []
for k in range(3):
    a.fill(10 * k + 1)
    b.fill(-1)
    found.append(outcome(lambda: nvsym.allreduce(b, a, team=team, {way})))
    assert found[-1] != "ok" or (b.to_numpy() == 20 * k + 2).all(), (k, b.to_numpy())
print(*found, sep="\\n", flush=True)
time.sleep(3 if me == 1 else 0)
os._exit(0)
""",
        nodes=nodes, check=False,
    )  # fmt: skip
    late, other = ([line.split(":")[0] for line in job.pe_stdout[pe].splitlines()] for pe in (0, 1))
    assert other == ["PeerTimeoutError", "CollectiveError", "CollectiveError"], job.describe()
    assert late[0] == "PeerTimeoutError", job.describe()
    assert set(late[1:]) == {"CollectiveError"}, job.describe()
    assert "cannot be used any more" in job.pe_stdout[1]


def test_a_buffer_of_no_type_on_one_pe(mpirun):
    run(
        mpirun, 2,
        """
found = outcome(lambda: ctx.enqueue_create_buffer("flaot32" if me == 0 else "float32", 4))
assert "flaot32" in found, found
x, y = ctx.enqueue_create_buffer("float32", 4), F.full(4, me)
nvsym.put(y, np.full(4, 9, np.float32), 1 - me)
nvsym.barrier_all()
assert (y.to_numpy() == 9).all()
""",
    )  # fmt: skip


def test_split_2d_that_fails_keeps_nothing(mpirun):
    run(
        mpirun, 2,
        """
for _ in range(3):
    assert "no control block" in outcome(lambda: nvsym.TEAM_WORLD.split_2d(1))
    with nvsym.TEAM_WORLD.split_strided(0, 1, 2) as team:
        summed(team)
""",
        env={"NVSYM_MAX_TEAMS": "4"},
    )  # fmt: skip


def test_a_team_that_is_destroyed_before_its_last_call_has_run(mpirun):
    """The next team does not meet what the first one has on a stream."""
    run(
        mpirun, 2,
        """
for turn in range(3):
    signal_ = U.full(1, 0)
    a, b, c, d = F.full(100, 1), F.full(100, 0), F.full(100, 10), F.full(100, 0)
    team, stream = nvsym.TEAM_WORLD.split_strided(0, 1, 2), nvsym.Stream()
    nvsym.signal_wait_until(signal_, "eq", 1, stream=stream)
    nvsym.allreduce(b, a, team=team, stream=stream)
    team.destroy()
    other = nvsym.TEAM_WORLD.split_strided(0, 1, 2)
    if me == 0:
        nvsym.signal_op(signal_, 1, 0)
        time.sleep(0.2)
    nvsym.allreduce(d, c, team=other)
    if me == 1:
        nvsym.signal_op(signal_, 1, 1)
    stream.synchronize()
    assert (b.to_numpy() == 2).all() and (d.to_numpy() == 20).all(), (b.to_numpy(), d.to_numpy())
    other.destroy()
    nvsym.barrier_all()
""",
        limit=20, env={"NVSYM_MAX_TEAMS": "6"},
    )  # fmt: skip


@pytest.mark.parametrize("late", [0, 1])
def test_create_group_with_a_late_member(mpirun, late):
    """Who comes when the other has given up waits as long itself, and no longer; then the two can meet."""
    run(
        mpirun, 2,
        f"""
nvsym.barrier_all()
if me == {late}:
    time.sleep(1.5)
start = time.monotonic()
found = outcome(lambda: nvsym.TEAM_WORLD.create_group([0, 1]))
assert found.startswith("PeerTimeoutError"), found
assert time.monotonic() - start < 4
if me != {late}:
    time.sleep(2)   # the late one has given up in the middle of this, and is half a second into its next call
with nvsym.TEAM_WORLD.create_group([0, 1]) as team:
    summed(team)
""",
        limit=1,
    )  # fmt: skip


def test_create_group_after_one_that_failed(mpirun):
    run(
        mpirun, 3,
        """
if me == 0:
    assert outcome(lambda: nvsym.TEAM_WORLD.create_group([0, 9])).startswith("ValueError")
if me == 1:
    assert outcome(lambda: nvsym.TEAM_WORLD.create_group([0, 1])).startswith("PeerTimeoutError")
if me != 1:
    time.sleep(1.2)
for members in ([0, 1, 2], [0, 2, 1]):
    with nvsym.TEAM_WORLD.create_group(members) as team:
        summed(team)
found = outcome(lambda: nvsym.TEAM_WORLD.create_group([0, 1, 2] if me else [0, 2, 1]))
assert found.startswith("CollectiveError"), found
with nvsym.TEAM_WORLD.create_group([2, 1, 0]) as team:
    summed(team)
""",
        limit=1,
    )  # fmt: skip


@pytest.mark.parametrize(("n", "nodes"), [(1, 1), (2, 1), (2, 2), (4, 2)])
def test_a_thread_that_waits_when_the_job_ends(mpirun, n, nodes):
    job = run(
        mpirun, n,
        """
for turn in range(5):
    found = []
    if turn:
        nvsym.init(backend="host", heap_size="4M")
    flag = U.full(1, 0)
    thread = threading.Thread(target=lambda: found.append(outcome(lambda: nvsym.signal_wait_until(flag, "ge", 1))))
    thread.start()
    time.sleep(0.05)
    nvsym.finalize()
    thread.join()
    print(found[0].split(":")[0])
""",
        limit=30, nodes=nodes,
    )  # fmt: skip
    assert set("".join(job.pe_stdout).split()) <= {"NotInitializedError", "PeerExitedError"}


@pytest.mark.parametrize(
    "call", ["signal_op(flag, 1, 1 - me)", "atomic_inc(flag, 1 - me)", "put(flag, flag, 1 - me)", "barrier(alone)"]
)
def test_a_thread_that_calls_mpi_when_the_job_ends(mpirun, call):
    """The windows between nodes stay until it has left them."""
    run(
        mpirun, 2,
        f"""
def beat():
    try:
        while True:
            nvsym.{call}
    except Exception as error:
        found.append(error)

for turn in range(4):
    found = []
    if turn:
        nvsym.init(backend="host", heap_size="4M")
    flag, alone = U.full(1, 0), nvsym.TEAM_WORLD.split_2d(1)[0]
    thread = threading.Thread(target=beat)
    thread.start()
    time.sleep(0.05)
    nvsym.finalize()
    thread.join()
    assert type(found[0]) is nvsym.NotInitializedError, repr(found[0])
""",
        limit=30, nodes=2,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("n", "nodes", "call"),
    [
        (1, 1, "nvsym.signal_wait_until(flag, 'eq', 1)"),
        (2, 2, "nvsym.signal_wait_until(flag, 'eq', 1)"),
        (2, 1, "nvsym.barrier(team)"),
        (2, 2, "nvsym.barrier(team)"),
        (2, 1, "nvsym.allreduce(a, a, team=team, algorithm='mpi')"),
    ],
)
def test_what_a_signal_handler_raises(mpirun, n, nodes, call):
    run(
        mpirun, n,
        f"""
from mpi4py import MPI

class Alarm(Exception):
    __module__ = None

def handler(*_):
    raise Alarm("rings")

flag, a = U.full(1, 0), F.full(8, 1)
teams = [nvsym.TEAM_WORLD.split_strided(0, 1, n) for _ in range(2)]
if me == 0:
    signal.signal(signal.SIGALRM, handler)
    team = teams.pop()
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    found = outcome(lambda: {call})
    assert found == "Alarm: rings", found
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    team = teams.pop()
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        {call}
    except KeyboardInterrupt as error:
        assert "interrupted" in str(error)
    else:
        raise AssertionError("nothing was raised")
MPI.COMM_WORLD.Barrier()
summed()
""",
        limit=30, nodes=nodes,
    )  # fmt: skip


@pytest.mark.parametrize(
    "copy",
    [
        "b.to_numpy()",
        "b.enqueue_copy_to(out)",
        "b.enqueue_copy_from(out)",
        "b.fill(1)",
        "b.enqueue_copy_to(out, stream=own); own.synchronize()",
        "b.enqueue_copy_from(out, stream=own); own.synchronize()",
        "nvsym.put(b, out, me, stream=own); own.synchronize()",
    ],
)
def test_copies_of_a_thread_while_the_job_ends(mpirun, copy):
    """Long copies give up the GIL: the memory stays until they are done."""
    run(
        mpirun, 2,
        f"""
b, out, own = F.full(1 << 19, me), np.empty(1 << 19, np.float32), nvsym.Stream()
began = threading.Event()

def copies():
    try:
        while True:
            {copy}
            began.set()
    except nvsym.NotInitializedError:
        pass

threads = [threading.Thread(target=copies) for _ in range(2)]
for thread in threads:
    thread.start()
began.wait()
time.sleep(0.05)
nvsym.finalize()
for thread in threads:
    thread.join()
""",
        limit=20,
    )  # fmt: skip


INTERRUPTED = """
def interrupted(call, seconds=0.3):
    # Whether a Ctrl-C that comes during the call gets through, and how long it took.
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    began = time.monotonic()
    try:
        call()
    except KeyboardInterrupt:
        return time.monotonic() - began
    raise AssertionError("no KeyboardInterrupt")

stream, gate = nvsym.Stream(), U.zeros(1)

def held():
    nvsym.signal_wait_until(gate, "ge", 1, stream=stream)

"""


def test_an_interrupt_within_an_allocation(mpirun):
    """Whoever leaves it takes part in no further one, and no message of one step is taken for that of another."""
    job = run(
        mpirun, 2,
        INTERRUPTED + """
big = nvsym.SHMEMBuffer["uint8"](3 << 20)
if me == 1:
    held()
    del big
    # There is no room before the block is free, for which the stream is waited for.
    assert interrupted(lambda: nvsym.SHMEMBuffer["uint8"](3 << 20)) < 1
else:
    del big
    print(outcome(lambda: nvsym.SHMEMBuffer["uint8"](3 << 20)))
for _ in range(2):
    print(outcome(lambda: nvsym.SHMEMBuffer["uint8"](10)))
time.sleep(2 if me == 1 else 0)
print(outcome(nvsym.barrier_all), flush=True)
outcome(stream.synchronize)     # whose wait may have lasted for its limit
time.sleep(0.5)
os._exit(0)
""",
        limit=3, check=False,
    )  # fmt: skip
    lines = [job.pe_stdout[pe].splitlines() for pe in range(2)]
    assert lines[0][0].startswith("PeerTimeoutError"), job.describe()
    for found in (lines[0][1:3], lines[1][:2]):
        assert all("the PEs can no longer agree" in line for line in found), job.describe()
    assert "was left with KeyboardInterrupt" in lines[1][0], job.describe()
    assert lines[0][-1] == lines[1][-1] == "ok", job.describe()


def test_an_interrupt_in_finalize_leaves_the_job_there(mpirun):
    job = run(
        mpirun, 2,
        INTERRUPTED + """
if me == 1:
    held()
    assert interrupted(nvsym.finalize) < 2
    assert nvsym.is_initialized()
    nvsym.signal_op(gate, 1, 1)
nvsym.finalize()
assert not nvsym.is_initialized()
print("ended")
""",
        limit=20,
    )  # fmt: skip
    assert job.pe_stdout == ["ended\n"] * 2


@pytest.mark.parametrize("wait", ["ctx.synchronize", "gate.peer(0).to_numpy", "stream.synchronize"])
def test_an_interrupt_in_a_wait_for_streams(mpirun, wait):
    run(
        mpirun, 1,
        INTERRUPTED + f"""
held()
assert interrupted({wait}) < 2
nvsym.signal_op(gate, 1, 0)
{wait}()
""",
        limit=20,
    )  # fmt: skip


def test_threads_in_short_calls_when_the_job_ends(mpirun):
    """Each call does its work or raises NotInitializedError, whatever Python code it runs between its checks and the memory."""
    run(
        mpirun, 2,
        """
import faulthandler, sys
faulthandler.enable()
sys.setswitchinterval(2e-5)

class Pe:
    def __index__(self):
        return me

def calls():
    b, g, out, own = F.full(4, me), U.full(1, 0), memoryview(np.zeros(4, np.float32)), nvsym.Stream()
    peer = b.peer(me)
    return [
        lambda: b[1:3].to_numpy(),
        lambda: b.fill(1),
        lambda: b.fill(1, stream=own),
        lambda: b.enqueue_copy_to(out),
        lambda: b.enqueue_copy_from(out, stream=own),
        lambda: nvsym.put(b, out, Pe()),
        lambda: nvsym.put(b, b, Pe(), stream=own),
        lambda: nvsym.signal_op(g, 1, Pe()),
        lambda: nvsym.atomic_add(g, Pe(), Pe()),
        lambda: nvsym.put_signal(b, out, g, 1, Pe(), stream=own),
        lambda: peer.to_numpy(),
        lambda: np.asarray(b).sum(),
        lambda: b.peer_pointers().to_numpy(),
        lambda: nvsym.allreduce(b[:1], b[:1], team=alone),
    ]

def use(call):
    try:
        while True:
            call()
    except nvsym.NotInitializedError:
        pass
    except BaseException as error:
        found.append(repr(error))

found = []
for turn in range(8):
    if turn:
        nvsym.init(backend="host", heap_size="4M")
    alone = nvsym.TEAM_WORLD.split_2d(1)[0]
    threads = [threading.Thread(target=use, args=[call]) for call in calls()[turn % 2 :: 2]]
    for thread in threads:
        thread.start()
    time.sleep(0.02)
    nvsym.finalize()
    for thread in threads:
        thread.join()
assert not found, found
""",
        limit=20,
    )  # fmt: skip
