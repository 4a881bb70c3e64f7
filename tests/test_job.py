# SPDX-License-Identifier: Apache-2.0
"""How a job begins and ends in order: init, finalize, communicators, settings, and beginnings that fail on one PE."""

import re
import subprocess
import sys

import pytest

import nvsym
from nvsym import _launch, testing
from nvsym.errors import NotAvailableError


def lines_of(done):
    return [text.splitlines() for text in done.pe_stdout]


@pytest.mark.pes(1, 2, 4)
@pytest.mark.pes(4, nodes=2)
def test_the_context(ctx, nvsym_backend):
    me, n = nvsym.my_pe(), nvsym.n_pes()
    assert 0 <= me < n
    assert (ctx.my_pe(), ctx.n_pes()) == (me, n)
    assert ctx == nvsym.context()
    assert hash(ctx) == hash(nvsym.context())
    assert nvsym.is_initialized()
    assert ctx.backend == nvsym_backend
    devices = ctx.devices()
    assert len(devices) == n
    assert devices[me] == ctx.device
    assert [device.pe for device in devices] == list(range(n))
    if devices[0].is_host:  # equal by what they are: the memory of one machine, whoever's handle it is
        assert len(set(devices)) == 1
    assert len(ctx.nodes()) == n
    assert ctx.heap.size >= ctx.heap.used + ctx.heap.free - 1
    assert f"PE {me} of {n}" in repr(ctx)
    assert ctx.number_of_devices() >= 0
    for name, supported, reason in ctx.capabilities():
        assert isinstance(name, str)
        assert isinstance(supported, bool)
        assert reason
    buffer = ctx.enqueue_create_buffer("float32", 10)
    assert len(buffer) == 10
    assert len(ctx.enqueue_create_host_buffer("float32", 3)) == 3
    ctx.synchronize()
    with pytest.raises(TypeError, match="pickled"):
        ctx.__reduce__()
    with pytest.raises(TypeError, match="twice"):
        ctx.__init__()
    if nvsym_backend == "host":
        with pytest.raises(nvsym.NotAvailableError, match="host backend"):
            ctx.enqueue_function(None, grid_dim=1, block_dim=1)


LIFE = """
    import sys
    import numpy as np
    import nvsym

    def refused(error, call, *words):
        try:
            call()
        except error as e:
            assert all(word in str(e) for word in words), (words, e)
            return
        raise AssertionError(f"no {error.__name__}: {words}")

    assert not nvsym.is_initialized()
    refused(nvsym.NotInitializedError, nvsym.my_pe, "init")
    refused(nvsym.NotInitializedError, nvsym.finalize, "init")

    # Counts; other arguments raise and leave the job as it is.
    ctx = nvsym.init(heap_size="1M")
    n, me = ctx.n_pes(), ctx.my_pe()
    assert nvsym.init(heap_size="1M") == ctx
    from mpi4py import MPI
    assert nvsym.init(MPI.COMM_WORLD, heap_size="1M") == ctx
    refused(nvsym.NVSymError, lambda: nvsym.init(), "other arguments", "1M")
    refused(nvsym.NVSymError, lambda: nvsym.init(heap_size="2M"), "2M", "finalize")
    refused(nvsym.NVSymError, lambda: nvsym.init(backend="nvshmem", heap_size="1M"), "nvshmem")
    refused(nvsym.NVSymError, lambda: nvsym.init(bootstrap="mpi", heap_size="1M"), "mpi")
    other = MPI.COMM_WORLD.Dup()
    refused(nvsym.NVSymError, lambda: nvsym.init(other, heap_size="1M"), "other arguments")
    refused(TypeError, lambda: nvsym.init(heap_size=np.zeros(3)), "heap_size", "ndarray")
    other.Free()
    old = nvsym.SHMEMBuffer["int32"].zeros(3)
    old_view = old[1:]
    nvsym.finalize()
    nvsym.finalize()
    assert nvsym.is_initialized()
    nvsym.barrier_all()
    nvsym.finalize()
    assert not nvsym.is_initialized()
    assert repr(ctx) == "<SHMEMContext of a job that has ended>"
    for call in (nvsym.finalize, nvsym.my_pe, nvsym.barrier_all, ctx.my_pe, ctx.synchronize, ctx.finalize,
                 old.to_numpy, old.free,
                 lambda: old_view[0:1], lambda: np.asarray(old), nvsym.TEAM_WORLD.n_pes, nvsym.TEAM_NODE.my_pe,
                 lambda: nvsym.SHMEMBuffer["int8"](1), lambda: nvsym.put(old, np.zeros(3, np.int32), 0),
                 lambda: nvsym.allreduce(old, old)):
        refused(nvsym.NotInitializedError, call, "finalize() has been called")

    # The communicator is copied, and may be freed.
    comm = MPI.COMM_WORLD.Dup()
    comm.Set_name("the program's")
    nvsym.init(comm, heap_size="1M")
    comm.Free()
    refused(nvsym.NVSymError, lambda: nvsym.init(heap_size="1M"), "the program's, which has been freed")
    other = MPI.COMM_WORLD.Dup()
    refused(nvsym.NVSymError, lambda: nvsym.init(other, heap_size="1M"), "other arguments")
    other.Free()
    nvsym.barrier_all()
    nvsym.finalize()

    # Again and again. What the last job left means nothing in the next.
    for i in range(20):
        with nvsym.SHMEMContext(heap_size=1 << (14 + i % 3)) as ctx:
            assert ctx.heap.size == 1 << (14 + i % 3)
            assert ctx.heap.live == 0
            a = nvsym.SHMEMBuffer["int64"].full(2, me + i)
            nvsym.allreduce(a, a)
            assert a.to_numpy()[0] == n * i + n * (n - 1) // 2
            refused(nvsym.NVSymError, old.to_numpy, "finalize")
            refused((nvsym.NVSymError, ValueError), lambda: nvsym.allreduce(old, old))
            assert nvsym.TEAM_WORLD.n_pes() == n
        assert not nvsym.is_initialized()
    del old, old_view, a

    # Sizes of the heap; NVSYM_HEAP_SIZE is 3 MiB here.
    for size, expected in ((None, 3 << 20), ("64K", 1 << 16), ("0.5 MiB", 1 << 19), ("8192", 8192), (1, 4096),
                           (5000, 8192), (np.int64(8192), 8192)):
        with nvsym.SHMEMContext(heap_size=size) as ctx:
            assert ctx.heap.size == expected, (size, ctx.heap.size)
    for bad in (0, -1, "0", "-5M", "5 apples", "", "1.0001K", 2.5, True, [], 1 << 70):
        refused((nvsym.SettingError, nvsym.BackendError), lambda: nvsym.init(heap_size=bad), "init()" if n > 1 else "")
        assert not nvsym.is_initialized()
    refused(ValueError, lambda: nvsym.init(backend="cuda"), "backend", "cuda", "host")
    refused(ValueError, lambda: nvsym.init(bootstrap="tcp"), "bootstrap", "tcp", "uid")
    for bad, kind in (("0", TypeError), (0.0, TypeError), (True, TypeError), (-1, ValueError), (1 << 40, ValueError)):
        refused(kind, lambda: nvsym.init(device=bad), "device")
    with nvsym.SHMEMContext(device=np.int64(0), heap_size="1M"):    # on the host there is nothing to choose
        pass
    refused(TypeError, lambda: nvsym.init(3), "comm", "int")
    refused(TypeError, lambda: nvsym.init(MPI.COMM_WORLD.Get_group()), "comm", "Group")
    refused(ValueError, lambda: nvsym.init(MPI.COMM_NULL), "COMM_NULL")
    refused(TypeError, lambda: nvsym.init(heap="1M"))

    # An exception leaves the block: the job stays for the handler.
    try:
        with nvsym.SHMEMContext(heap_size="1M") as ctx:
            raise KeyError("x")
    except KeyError:
        assert nvsym.is_initialized()
        nvsym.finalize()
    # finalize inside the block.
    with nvsym.SHMEMContext(heap_size="1M") as ctx:
        nvsym.finalize()
    assert not nvsym.is_initialized()
    print("end")
"""


@pytest.mark.parametrize(("n", "nodes"), [(1, 1), (2, 1), (2, 2)])
def test_the_life_of_jobs(mpirun, n, nodes):
    done = mpirun(n, LIFE, nodes=nodes, env={"NVSYM_HEAP_SIZE": "3M"})
    assert done.pe_stdout == ["end\n"] * n


def test_mpi_that_is_not_initialised(mpirun):
    """MPI itself would end the process without a word of nvsym's."""
    code = """
import mpi4py
mpi4py.rc.initialize = False
import nvsym
try:
    nvsym.init()
except nvsym.NotInitializedError as error:
    print(error)
from mpi4py import MPI
MPI.Init_thread()
print(nvsym.init().n_pes())
nvsym.finalize()
MPI.Finalize()
"""
    done = mpirun(2, code)
    words = "MPI has not been initialised: mpi4py.rc.initialize is off; call mpi4py.MPI.Init_thread() before"
    assert done.pe_stdout == [f"{words}\n2\n"] * 2


def test_without_mpirun():
    """A job of one PE."""
    code = "import nvsym; nvsym.init(heap_size='1M'); print(nvsym.my_pe(), nvsym.n_pes()); nvsym.barrier_all()"
    environ = _launch.find_launcher(prefer="mpich").environ()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env=environ,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 1\n", "")


def test_sub_communicators(mpirun):
    """Jobs of some of the processes, beside each other and one after the other; the others go on."""
    done = mpirun(
        4,
        """
        import warnings
        from mpi4py import MPI
        import nvsym
        world = MPI.COMM_WORLD
        rank = world.rank

        # Half of them make a job, the others do not.
        half = world.Split(0 if rank % 2 else MPI.UNDEFINED)
        if half != MPI.COMM_NULL:
            ctx = nvsym.init(half, heap_size="1M")
            assert (ctx.my_pe(), ctx.n_pes()) == (rank // 2, 2)
            a = nvsym.SHMEMBuffer["int64"].full(1, rank)
            nvsym.allreduce(a, a)
            assert a.to_numpy()[0] == 4
            nvsym.finalize()
        else:
            try:
                nvsym.init(half)
            except ValueError as error:
                assert "COMM_NULL" in str(error)
        world.Barrier()

        # A job of one process: no sign of a launcher that belongs to another MPI.
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            nvsym.init(MPI.COMM_SELF, heap_size="1M")
        nvsym.finalize()

        # Two jobs at once, ranks the other way round; one goes on to the exit.
        pair = world.Split(rank // 2, key=-rank)
        ctx = nvsym.init(pair, heap_size="2M")
        assert (ctx.my_pe(), ctx.n_pes()) == (1 - rank % 2, 2)
        a = nvsym.SHMEMBuffer["int64"].full(1000, rank)
        nvsym.allreduce(a, a)
        assert a.to_numpy()[0] == (1 if rank < 2 else 5)
        if rank < 2:
            nvsym.finalize()
            pair.Free()
        world.Barrier()
        if rank < 2:
            # All: in another job than the two before. Only these two take part.
            both = pair = world.Create_group(world.Get_group().Incl([0, 1]))
            nvsym.init(both, heap_size="1M")
            nvsym.barrier_all()
        print("end")
        """,
    )
    assert done.pe_stdout == ["end\n"] * 4


# Each fails on PE 1 alone, in a step of its own. All PEs raise the same kind of error, which names PE 1 and the reason;
# then a job begins.
ONE_FAILS = {
    "a malformed setting": (
        "os.environ['NVSYM_TIMEOUT'] = 'soon'",
        "del os.environ['NVSYM_TIMEOUT']",
        "SettingError",
        "PE 1.*NVSYM_TIMEOUT='soon'",
    ),
    "an unknown setting": (
        "os.environ['NVSYM_HEAPSIZE'] = '1M'",
        "del os.environ['NVSYM_HEAPSIZE']",
        "SettingError",
        "PE 1.*NVSYM_HEAPSIZE.*NVSYM_HEAP_SIZE",
    ),
    "a malformed heap size": ("arguments['heap_size'] = 'big'", "", "SettingError", "PE 1.*heap_size.*big"),
    "another heap size": (
        "arguments['heap_size'] = '2M'",
        "",
        "CollectiveError",
        "heap size.*PE 0.*1048576.*PE 1.*2097152",
    ),
    "another backend": (
        "arguments['backend'] = 'auto'; os.environ['NVSYM_BACKEND'] = 'nvshmem'",
        "del os.environ['NVSYM_BACKEND']",
        "CollectiveError",
        "backend.*PE 0.*host.*PE 1.*nvshmem",
    ),
    "no such backend": ("arguments['backend'] = 'cuda'", "", "ValueError", "PE 1.*backend.*cuda"),
    "other teams": (
        "os.environ['NVSYM_MAX_TEAMS'] = '9'",
        "del os.environ['NVSYM_MAX_TEAMS']",
        "CollectiveError",
        "NVSYM_MAX_TEAMS.*32.*9",
    ),
    "another version": (
        "patch_version('9.9')",
        "patch_version(version)",
        "CollectiveError",
        "version.*PE 0.*PE 1.*9.9",
    ),
    "a segment that cannot be made": (
        "os.environ['NVSYM_SHM_DIR'] = '/nonexistent'",
        "del os.environ['NVSYM_SHM_DIR']",
        "BackendError",
        "PE 0.*/nonexistent",
    ),
    "a segment that cannot be opened": (
        "Segment.open = failing",
        "Segment.open = opens",
        "OSError|RuntimeError",
        "PE 1.*no luck",
    ),
    "a segment that cannot be mapped": (
        "Segment.map = failing",
        "Segment.map = maps",
        "OSError|RuntimeError",
        "PE 1.*no luck",
    ),
    "no memory": ("Segment.commit = failing", "Segment.commit = commits", "OSError|RuntimeError", "PE 1.*no luck"),
}
BEGINNINGS = """
    import os, sys, time
    import nvsym, nvsym.job
    from mpi4py import MPI
    from nvsym.backends.host_segment import Segment

    rank = MPI.COMM_WORLD.rank
    opens, maps, commits, version = Segment.open, Segment.map, Segment.commit, nvsym.__version__

    def failing(*_):
        raise OSError("no luck")

    def patch_version(text):
        nvsym.job.__version__ = text

    for name, (patch, undo) in CASES.items():
        arguments = {"heap_size": "1M", "backend": "host"}
        # The one that makes the segment of its node is its first PE: there is where it can fail to be made.
        fails = rank == (0 if "be made" in name else 1)
        if fails:
            exec(patch)
        start = time.monotonic()
        try:
            nvsym.init(**arguments)
        except Exception as error:
            print(f"{name}|{'|'.join(cls.__name__ for cls in type(error).__mro__)}|{error}".replace(chr(10), " "))
        else:
            print(f"{name}|nothing|")
        assert time.monotonic() - start < 10
        assert not nvsym.is_initialized()
        if fails:
            exec(undo)
        nvsym.init(heap_size="1M", backend="host")
        nvsym.barrier_all()
        nvsym.finalize()
    print("end")
"""


@pytest.mark.parametrize("nodes", [1, 2])
def test_beginnings_that_fail_on_one_pe(mpirun, nodes):
    cases = {name: case[:2] for name, case in ONE_FAILS.items() if nodes == 1 or "be opened" not in name}
    code = BEGINNINGS.replace("CASES", repr(cases))
    done = mpirun(2, code, nodes=nodes, timeout=60)
    for lines in lines_of(done):
        assert lines[-1] == "end", done.describe()
        for line, name in zip(lines, cases, strict=False):
            found, classes, text = line.split("|", 1)[0], line.split("|")[1:-1], line.split("|")[-1]
            _, _, error, pattern = ONE_FAILS[name]
            assert found == name
            assert set(error.split("|")) & set(classes), line
            assert re.search(pattern, text), line


def test_a_pe_that_never_calls_init(mpirun):
    done = mpirun(
        2,
        """
        import os, time
        import nvsym
        from mpi4py import MPI
        if MPI.COMM_WORLD.rank == 1:
            time.sleep(2.5)
            os._exit(0)
        start = time.monotonic()
        try:
            nvsym.init(heap_size="1M")
        except nvsym.PeerTimeoutError as error:
            print(error, flush=True)
            print(0.9 < time.monotonic() - start < 2.4, nvsym.is_initialized(), flush=True)
        os._exit(0)
        """,
        env={"NVSYM_INIT_TIMEOUT": "1"},
        check=False,
    )
    text, verdict = done.pe_stdout[0].splitlines()
    assert "init()" in text
    assert "1 s" in text
    assert "NVSYM_INIT_TIMEOUT" in text
    assert verdict == "True False"


def test_the_wrong_launcher(monkeypatch):
    """MPICH's mpiexec, Open MPI's library: each process is a job of its own, and is told so."""
    try:
        openmpi = _launch.find_launcher(prefer="openmpi")
        _launch.find_launcher(prefer="mpich")
    except NotAvailableError as error:
        pytest.skip(f"two MPIs are needed: {error}")
    monkeypatch.setenv("NVSYM_TEST_MPI", "mpich")
    code = """
        import warnings
        import nvsym
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            nvsym.init(heap_size="1M")
        # mpi4py may warn too.
        mine = [w for w in caught if "job has 2 processes" in str(w.message)]
        print(nvsym.n_pes(), [(w.category.__name__, w.filename == __file__) for w in mine])
        """
    done = testing.mpirun(2, code, env={"MPI4PY_LIBMPI": openmpi.library, "MPI4PY_MPIABI": None, **openmpi.env})
    assert done.pe_stdout == ["1 [('RuntimeWarning', True)]\n"] * 2


def test_settings_reach_the_job(mpirun):
    done = mpirun(
        2,
        """
        import nvsym
        ctx = nvsym.init()
        print(ctx.heap.size, ctx.backend, dict((name, why) for name, _, why in ctx.capabilities())["core_for_each_pe"])
        """,
        env={"NVSYM_HEAP_SIZE": "128K", "NVSYM_BACKEND": "host", "NVSYM_SPIN": "3"},
    )
    for text in done.pe_stdout:
        assert text.startswith("131072 host")
        assert "polls 3 times" in text
