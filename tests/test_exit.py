# SPDX-License-Identifier: Apache-2.0
"""Every way in which a job of several PEs can end: in order, or soon and with the reason; no file is left behind."""

import dataclasses
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nvsym import testing
from nvsym._launch import find_launcher
from nvsym.errors import NotAvailableError

LIMIT = 30  # seconds in which a job must end when one of its PEs is gone
AT_A_TIME = 3  # jobs that run beside each other: most of their time they wait

PROLOGUE = """\
import atexit, builtins, gc, os, signal, sys, threading, time
import numpy as np
import nvsym
ctx = nvsym.init(heap_size="4M")
me, n = ctx.my_pe(), ctx.n_pes()
numbers = nvsym.SHMEMBuffer["int64"].zeros(4)
floats = nvsym.SHMEMBuffer["float32"].zeros(4)
flag = nvsym.SHMEMBuffer["uint64"].zeros(1)
def say(*words):
    print(*words, flush=True)
"""

WAITS = {
    "barrier": "nvsym.barrier_all()",
    "allreduce": "nvsym.allreduce(floats, floats)",
    "signal": "nvsym.signal_wait_until(flag, 'eq', 1)",
    "allocation": "nvsym.SHMEMBuffer['int64'](4)",
    "split": "nvsym.TEAM_WORLD.split_strided(0, 1, n)",
    "finalize": "nvsym.finalize()",
    "exit": "pass",
}
EVERYWHERE = ("mpich", "openmpi", "two nodes")


@dataclasses.dataclass
class Case:
    code: str
    status: int | str = 0  # or "not zero"
    says: tuple = ()  # regular expressions, each of which the output must match
    silent: tuple = ()  # and must not match
    env: dict = dataclasses.field(default_factory=dict)
    n: int = 2
    where: tuple = ("mpich", "openmpi")


CASES = {
    # In order
    "the program ends": Case(
        # Handlers run in reverse: this one before nvsym's, so that the job is still there.
        "atexit.register(lambda: (nvsym.barrier_all(), numbers.to_numpy(), say('handler', nvsym.my_pe())))\n"
        "time.sleep(0.3 * me); say('end', me)",
        says=("end 0", "end 1", "handler 0", "handler 1"),
        silent=("nvsym:", "Traceback"),
        where=EVERYWHERE,
    ),
    "sys.exit(0) on all": Case("sys.exit(0)", silent=("nvsym:",), where=("mpich",)),
    "sys.exit(3) on all": Case("sys.exit(3)", status=3, silent=("nvsym:",)),
    "finalize, then an exception on one": Case(
        "nvsym.finalize()\nif me == 1: raise ValueError('late')\nsay('end', me)",
        "not zero",
        ("end 0", "ValueError: late"),
        ("aborts the job",),
    ),
    "exceptions in a thread, and one that is caught": Case(
        "def work(): raise ValueError('in a thread')\n"
        "if me == 1:\n    thread = threading.Thread(target=work)\n    thread.start()\n    thread.join()\n"
        "try:\n    raise ValueError('boom')\nexcept ValueError:\n    nvsym.barrier_all()\n"
        "say('end', me)",
        says=("end 0", "end 1", "ValueError: in a thread"),
        silent=("boom",),
        where=("mpich",),
    ),
    "the program finalizes MPI": Case(
        "from mpi4py import MPI\nnvsym.barrier_all(); MPI.Finalize()\n"
        "for call in (numbers.to_numpy, nvsym.my_pe, nvsym.barrier_all, nvsym.init, nvsym.finalize):\n"
        "    try: call()\n    except nvsym.NotInitializedError as error: say(me, 'refused')\n"
        "say('end', me, nvsym.is_initialized())",
        says=("end 0 False", "end 1 False", "(0 refused.*){5}", "(1 refused.*){5}"),
        silent=("nvsym:", "Traceback"),
        where=EVERYWHERE,
    ),
    "the program finalizes nvsym and MPI": Case(
        "from mpi4py import MPI\nnvsym.finalize(); MPI.Finalize(); say('end', me)",
        says=("end 0", "end 1"),
        where=("mpich",),
    ),
    "work enqueued and left": Case(
        # What PE 1 leaves waits for what PE 0 does later, while PE 1 is ending.
        "streams = [nvsym.Stream() for _ in range(3)]\n"
        "for i in range(300): nvsym.put(numbers, np.arange(4), (me + i) % n, stream=streams[i % 3])\n"
        "if me == 0:\n    time.sleep(0.3)\n    nvsym.signal_op(flag, 1, 1)\n"
        "else:\n    nvsym.signal_wait_until(flag, 'eq', 1, stream=streams[0])\n"
        "nvsym.allreduce(floats, floats, stream=streams[0])\n"
        "if me == 0: streams[0].synchronize(); say('reduced')",
        says=("reduced",),
        silent=("nvsym:", "Traceback"),
        where=EVERYWHERE,
    ),
    "a failure that nobody has waited for": Case(
        "def bad(): raise ValueError('on a stream')\n"
        "stream = nvsym.Stream()\n"
        "if me == 1: ctx.enqueue_function(bad, grid_dim=1, block_dim=1, stream=stream)\n"
        "say('end', me)",
        says=("end 0", "end 1", "ValueError: on a stream"),
        silent=("aborts the job",),
    ),
    "objects alive at exit": Case(
        "class Node:\n"
        "    def __del__(self):\n"
        "        try: self.buffer.to_numpy()\n        except RuntimeError: pass\n"
        "node = Node(); node.self = node; node.buffer = numbers; node.view = np.asarray(floats)\n"
        "node.slice = flag[0:1]\n"
        "builtins.kept = node, np.asarray(numbers), nvsym.Stream(), nvsym.Event(), ctx, nvsym.TEAM_WORLD.split_2d(1)\n"
        "say('end', me)",
        says=("end 0", "end 1"),
        silent=("nvsym:", "Traceback", "Exception ignored"),
    ),
    "views outlive the job": Case(
        "view = np.asarray(numbers); view[:] = me + 1; peer = numbers.peer(1 - me)\n"
        "nvsym.barrier_all(); nvsym.finalize()\n"
        "del numbers; gc.collect(); say('sum', view.sum()); view[:] = 5",
        says=("sum 4", "sum 8"),
        where=("mpich",),
    ),
    "a forked child ends": Case(
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    world = nvsym.TEAM_WORLD\n"
        "    for call in (nvsym.my_pe, nvsym.barrier_all, numbers.to_numpy, nvsym.finalize, nvsym.init, world.my_pe):\n"
        "        try: call()\n        except nvsym.ForkError: say(me, 'refused')\n"
        "    del numbers, floats, flag; gc.collect(); os._exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "nvsym.barrier_all(); say('end', me)",
        says=("end 0", "end 1", "(0 refused.*){6}", "(1 refused.*){6}"),
        silent=("Traceback",),
        where=("mpich",),
    ),
    # Not in order
    "an exception on all": Case(
        "raise ValueError('boom')", "not zero", ("ValueError: boom", "aborts the job: ValueError: boom")
    ),
    "an exception on one, and init's communicator was freed": Case(
        "nvsym.finalize()\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD.Dup(); nvsym.init(comm, heap_size='4M'); comm.Free()\n"
        "if me == 1: raise ValueError('boom')\nMPI.COMM_WORLD.recv(source=1)",
        "not zero",
        ("PE 1 of 2 aborts the job: ValueError: boom",),
        ("MPI_ERR",),
        where=EVERYWHERE,
    ),
    "an exception whose words raise, on one": Case(
        "class Bad(Exception):\n    def __str__(self): raise RuntimeError\n"
        "if me == 1: raise Bad\nfrom mpi4py import MPI; MPI.COMM_WORLD.recv(source=1)",
        "not zero",
        ("PE 1 of 2 aborts the job: Bad: ",),
        where=("mpich",),
    ),
    "an exception on one, and standard output is closed": Case(
        "os.close(1); sys.stdout.write('more')\n"
        "if me == 1: raise ValueError('boom')\nfrom mpi4py import MPI; MPI.COMM_WORLD.recv(source=1)",
        "not zero",
        where=("mpich",),
    ),
    "KeyboardInterrupt on one": Case(
        "if me == 1: raise KeyboardInterrupt\nnvsym.barrier_all()",
        "not zero",
        ("PE 1 of 2 aborts the job: KeyboardInterrupt",),
        where=("mpich",),
    ),
    "sys.exit with a text on one": Case(
        "if me == 1: sys.exit('no input file')\nnvsym.barrier_all()",
        "not zero",
        ("no input file", "PE 1 is finalizing"),
        where=("mpich",),
    ),
    # Where the launcher ends the others before they can say anything, it says nothing either.
    "os._exit on one": Case("if me == 1: os._exit(5)\nnvsym.barrier_all()", "not zero"),
    "the exception leaves with blocks": Case(
        "buffer, team = nvsym.SHMEMBuffer['int8'], nvsym.TEAM_WORLD\n"
        "with nvsym.SHMEMContext(heap_size='4M'), buffer(1), team.split_strided(0, 1, 2):\n"
        "    if me == 1: raise ValueError('boom')\n    nvsym.barrier_all()",
        "not zero",
        ("aborts the job: ValueError: boom",),
        where=("mpich",),
    ),
    "an excepthook of the program that calls no other": Case(
        "sys.excepthook = lambda *_: say('mine')\nif me == 1: raise ValueError('boom')\n"
        "from mpi4py import MPI; MPI.COMM_WORLD.recv(source=1)",
        "not zero",
        ("mine", "PE 1 of 2 aborts the job: ValueError: boom"),
        where=("mpich",),
    ),
    "an excepthook of the program, and an exception that a shell or test runner has caught and noted": Case(
        "sys.excepthook = lambda *_: say('mine')\n"
        "def caught():\n    try: raise ValueError('boom')\n    except ValueError as error: return error\n"
        "sys.last_exc = sys.last_value = caught(); nvsym.barrier_all(); say('end', me)",
        says=("end 0", "end 1"),
        silent=("nvsym:", "mine"),
        where=("mpich",),
    ),
    "an exception, and NVSYM_ABORT_ON_EXCEPTION=0": Case(
        "if me == 1: raise ValueError('boom')\nnvsym.barrier_all()",
        "not zero",
        ("ValueError: boom", "PE 1 is finalizing"),
        ("aborts the job",),
        env={"NVSYM_ABORT_ON_EXCEPTION": "0"},
    ),
    "one PE finalizes MPI": Case(
        "from mpi4py import MPI\nif me == 1: MPI.Finalize()\nelse: nvsym.barrier_all()",
        "not zero",
        ("PE 1 is finalizing",),
        where=("mpich",),
    ),
    "one of four PEs raises": Case(
        "if me == 2: raise ValueError('boom')\nnvsym.barrier_all()",
        "not zero",
        ("PE 2 of 4 aborts the job: ValueError: boom",),
        n=4,
        where=("mpich", "two nodes"),
    ),
}

# One PE raises, exits or is killed while the other waits: in which ways, and where that is tried.
WAITING = {
    ("raises", "barrier"): EVERYWHERE,
    ("raises", "allreduce"): ("mpich",),
    ("raises", "signal"): ("openmpi", "two nodes"),
    ("raises", "allocation"): ("mpich", "openmpi"),
    ("raises", "finalize"): ("mpich",),
    ("raises", "exit"): ("openmpi",),
    ("exits", "barrier"): ("mpich", "two nodes"),
    ("exits", "allreduce"): ("openmpi",),
    ("exits", "signal"): EVERYWHERE,
    ("exits", "allocation"): ("mpich",),
    ("exits", "split"): ("openmpi",),
    ("is killed", "barrier"): ("mpich", "openmpi"),
    ("is killed", "allreduce"): ("two nodes",),
    ("is killed", "signal"): ("mpich",),
    ("is killed", "allocation"): ("openmpi",),
}
EVENTS = {
    "raises": ("raise ValueError('boom')", ("ValueError: boom", "PE 1 of 2 aborts the job: ValueError: boom")),
    "exits": ("sys.exit(7)", (r"PE 0 of 2 aborts the job: \w+: .*finaliz",)),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", ("PE 1 is gone|signal 9",)),
}
for (_event, _wait), _where in WAITING.items():
    _how, _says = EVENTS[_event]
    CASES[f"one PE {_event}, the other waits in {_wait}"] = Case(
        f"if me == 1:\n    time.sleep(0.1)\n    {_how}\nelse:\n    {WAITS[_wait]}", "not zero", _says, where=_where
    )


def _pairs():
    return [
        pytest.param(where, name, id=f"{name}-{where}")
        for where in EVERYWHERE
        for name in CASES
        if where in CASES[name].where
    ]


class Place:
    """The jobs of all selected cases at one place, some at a time."""

    def __init__(self, where, cases):
        self.where, self.mpi = where, "openmpi" if where == "openmpi" else "mpich"
        find_launcher(prefer=self.mpi)
        self.pool = ThreadPoolExecutor(AT_A_TIME)
        self.patch = pytest.MonkeyPatch()
        self.patch.setenv("NVSYM_TEST_MPI", self.mpi)  # for the whole process: one place after the other
        self.futures = {case: self.pool.submit(self.run, CASES[case]) for case in cases}

    def run(self, case):
        with tempfile.TemporaryDirectory(prefix="nvsym-test-", dir="/dev/shm") as segments:
            done = testing.mpirun(
                case.n, PROLOGUE + case.code, nodes=2 if self.where == "two nodes" else 1, timeout=LIMIT, check=False,
                env={"NVSYM_SHM_DIR": segments, **case.env},
            )  # fmt: skip
            return done, [path.name for path in Path(segments).iterdir()]

    def close(self, **options):
        self.pool.shutdown(**options)
        self.patch.undo()


@pytest.fixture(scope="module")
def jobs(request):
    """The result of a case at a place; each job runs once.

    A parametrised fixture would not do: pytest makes it anew for each set of parameters that a test has.
    """
    selected: dict = {}
    for item in request.session.items:
        if getattr(item, "originalname", "") == "test_ends":
            selected.setdefault(item.callspec.params["where"], []).append(item.callspec.params["case"])
    places: dict = {}

    def result(where, case):
        if where not in places:
            for place in places.values():
                place.close()
            try:
                places[where] = Place(where, selected[where])
            except NotAvailableError as error:
                pytest.skip(f"no {where}: {error}")
        return places[where].futures[case].result()

    yield result
    for place in places.values():
        place.close(cancel_futures=True)


@pytest.mark.parametrize(("where", "case"), _pairs())
def test_ends(jobs, where, case):
    done, left = jobs(where, case)
    expected = CASES[case]
    if expected.status == "not zero":
        assert done.returncode != 0, done.describe()
    else:
        assert done.returncode == expected.status, done.describe()
    output = done.stdout + done.stderr
    for pattern in expected.says:
        assert re.search(pattern, output, re.DOTALL), f"{pattern!r} is not in the output\n{done.describe()}"
    for pattern in expected.silent:
        assert not re.search(pattern, output), f"{pattern!r} is in the output\n{done.describe()}"
    assert left == [], f"files were left\n{done.describe()}"
