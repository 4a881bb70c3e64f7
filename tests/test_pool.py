# SPDX-License-Identifier: Apache-2.0
"""`SymmetricPool`, on the simulated driver: the programs in tests/pool, each of which is one job."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import nvsym
from nvsym import simulator

FOLDER = Path(__file__).parent / "pool"

# Where programs that are no files of that folder find its `common`, and nvsym where it is not installed.
SEARCHED = os.pathsep.join(
    filter(None, [str(FOLDER), str(Path(nvsym.__file__).parents[1]), os.environ.get("PYTHONPATH")])
)

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")


@pytest.fixture
def run(mpirun, capsys):
    """Run a program of tests/pool on `n` PEs, each with a simulated GPU (or one PE with several)."""

    def run(n, program, *args, devices=8, nodes=1, env=None, timeout=120, **settings):
        env = simulator.environment(devices=devices, **settings) | (env or {})
        job = mpirun(n, FOLDER / program, *map(str, args), nodes=nodes, env=env, timeout=timeout)
        assert job.pe_stdout[0].splitlines()[-1:] == ["done"] or program == "faults.py", job.describe()
        with capsys.disabled():
            for line in job.stdout.splitlines():
                if line != "done" and not line.startswith("allowed"):
                    print(f"\n    {line}", end="")
        return job

    return run


@pytest.mark.parametrize("n", [2, 4, 8])
def test_one_process(run, n):
    run(1, "local.py", n)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_one_device_for_each_pe(run, n):
    run(n, "job.py", "posix")


@pytest.mark.parametrize("n", [2, 4])
def test_two_nodes(run, n):
    run(n, "job.py", "fabric", nodes=2)


def test_allreduce_in_a_pool(run):
    run(2, "reduce.py")


# 401: what a broken fabric says; 800: what a missing IMEX channel says.
@pytest.mark.parametrize(("nodes", "status"), [(1, 401), (2, 800)])
def test_every_call_fails_on_every_pe(run, nodes, status):
    job = run(4, "faults.py", status, nodes=nodes)
    assert int(re.match(r"(\d+) cases", job.pe_stdout[0])[1]) > 100


@pytest.mark.parametrize(
    "call",
    [
        "cuMemCreate",
        "cuMemImportFromShareableHandle",
        "cuMulticastAddDevice",
        "cuMulticastBindMem",
        "cuMemMap",
        "cuMemRelease",
    ],
)
def test_pe_that_dies(call, tmp_path):
    from nvsym._launch import find_launcher

    launcher = find_launcher()
    if launcher.kind != "mpich":
        pytest.skip("a launcher that leaves the others alive: only MPICH's is known to")
    program = [sys.executable, str(FOLDER / "death.py"), call, str(tmp_path)]
    command = [*launcher.command, "-disable-auto-cleanup", "-n", "4", *program]
    with tempfile.TemporaryDirectory(prefix="nvsym-test-", dir="/dev/shm") as sockets:
        env = launcher.environ() | simulator.environment(devices=8) | {"NVSYM_SHM_DIR": sockets}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert os.listdir(sockets) == []
    raised = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert sorted(raised) == ["0", "1", "3"], (shlex.join(command), done.stdout, done.stderr)
    assert all(text.startswith("PeerExitedError") for text in raised.values()), raised


def test_allreduce(run):
    run(2, "allreduce.py")


def test_allreduce_by_weak_memory(run):
    run(3, "allreduce.py", "deferred")


def test_random_sequences(run):
    job = run(3, "stress.py", 200, timeout=170)
    assert job.pe_stdout[0].startswith("200 sequences")


def test_late_call_and_late_pe(run):
    run(3, "late.py", env={"NVSYM_TIMEOUT": "3", "NVSYM_DRIVER_WATCH": "0.3"})


def test_switch_on_one_pe(run, tmp_path):
    job = run(3, "switches.py", log=tmp_path)
    logs = sorted(tmp_path.iterdir())
    assert len(logs) == 3
    calls = [call for log in logs for call in simulator.read_log(log)]
    assert len(calls) > 100
    allowed = min(float(text) for text in re.findall(r"allowed from (\S+)", job.stdout))
    multicast = [call for call in calls if call.name.startswith("cuMulticast")]
    assert [call for call in multicast if call.began < allowed] == []
    assert len([call for call in calls if call.began < allowed]) > 1000
    # Where nothing forbids it, the log does show such calls.
    assert sum(call.name == "cuMulticastCreate" for call in multicast) == 1


CODE = """
import os
from common import *
ctx = begin()
devices = ctx.devices()
text = {text!r}
assert not Pool.is_supported(devices)
why = Pool.why_unsupported(devices)
for part in text:
    assert part in why, why
error = raises(nvsym.MulticastUnsupportedError, *text, call=lambda: Pool.allocate(devices, 100))
assert everyone(str(error)) == [str(error)] * ctx.n_pes()
assert simulator.calls("cuMulticastCreate") == simulator.calls("cuMemCreate") == 0
capability = dict((row[0], row[1:]) for row in ctx.capabilities())["symmetric_pool"]
assert capability[0] is False
for part in text:
    assert part in capability[1], capability
print("done")
"""

# What is missing, as settings of the simulator; what the reason says.
UNSUPPORTED = {
    "no multicast on one GPU": (
        {"attr": "132=0@dev1"},
        ["PE 1 on", "GPU 1", "CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED"],
        1,
    ),
    "no virtual memory": ({"attr": "102=0"}, ["PE 0 on", "VIRTUAL_MEMORY_MANAGEMENT"], 1),
    "no way to share memory": ({"attr": "103=0;128=0"}, ["file descriptors"], 1),
    "a fabric that is not there": ({"fabric_state": 0}, ["PE 0 on", "not supported", "fabric manager"], 1),
    "a fabric that is not ready": ({"fabric_state": 2}, ["PE 0 on", "in progress", "fabric manager"], 1),
    "a fabric that failed": ({"fabric_status": 999}, ["PE 0 on", "status 999"], 1),
    "NVML does not work": ({"nvml": 0}, ["PE 0 on", "unknown", "Driver Not Loaded"], 1),
    "two nodes without a common domain": ({"fabric_cluster": 0}, ["share no NVLink domain", "none"], 2),
    "two nodes without fabric handles": ({"attr": "128=0"}, ["several hosts", "IMEX"], 2),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported(mpirun, case):
    settings, text, nodes = UNSUPPORTED[case]
    env = simulator.environment(devices=4, **settings) | {"PYTHONPATH": SEARCHED}
    job = mpirun(2, CODE.format(text=text), nodes=nodes, env=env)
    assert job.pe_stdout == ["done\n"] * 2


def test_no_channel_is_found_out_before_memory_is_made(mpirun):
    """The attribute says that fabric handles are supported, and the process has no IMEX channel: only trying shows it."""
    code = """
        from common import *
        ctx = begin()
        assert Pool.is_supported(ctx.devices()), Pool.why_unsupported(ctx.devices())
        error = raises(RuntimeError, "cuMemCreate", "800", "IMEX", "PE 0", call=lambda: Pool.allocate(ctx.devices(), 100))
        assert everyone(str(error)) == [str(error)] * ctx.n_pes()
        assert simulator.calls("cuMulticastCreate") == 0
        assert simulator.counters().memory() == (0,) * 8
        print("done")
    """
    env = simulator.environment(devices=4, imex="none", fabric_cluster=1) | {"PYTHONPATH": SEARCHED}
    assert mpirun(2, code, nodes=2, env=env).pe_stdout == ["done\n"] * 2


def test_two_pes_on_one_gpu(mpirun):
    code = """
        from common import *
        ctx = nvsym.init(backend="nvshmem", heap_size="4M", device=0)
        assert "same GPU" in Pool.why_unsupported(ctx.devices())
        error = raises(nvsym.MulticastUnsupportedError, "same GPU", call=lambda: Pool.allocate(ctx.devices(), 100))
        assert everyone(str(error)) == [str(error)] * 2
        assert simulator.calls("cuMulticastCreate") == simulator.calls("cuMemCreate") == 0
        print("done")
    """
    env = simulator.environment(devices=4, mps=1) | {"PYTHONPATH": SEARCHED}
    assert mpirun(2, code, env=env).pe_stdout == ["done\n"] * 2


def run_alone(code, **settings):
    """A program without MPI."""
    env = os.environ | simulator.environment(devices=4, **settings)
    env["PYTHONPATH"] = SEARCHED
    done = subprocess.run(
        [sys.executable, "-c", "from common import *\n" + code],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_nvidia_ml_py_it_is_unknown():
    run_alone(
        "import sys; sys.modules['pynvml'] = None\n"
        "why = Pool.why_unsupported(local_devices(2))\n"
        "assert 'unknown' in why and 'nvidia-ml-py' in why, why\n"
        "raises(nvsym.MulticastUnsupportedError, 'nvidia-ml-py', call=lambda: Pool.allocate(local_devices(2), 100))\n"
        "assert simulator.calls('cuMulticastCreate') == simulator.calls('cuMemCreate') == 0\n"
    )


def test_what_a_process_leaves_is_given_back_at_its_end(tmp_path):
    run_alone(
        "pool = Pool.allocate(local_devices(3), 100)\nview = pool.unicast_view(local_devices(1)[0])\n", log=tmp_path
    )
    (log,) = tmp_path.iterdir()
    names = [call.name for call in simulator.read_log(log) if call.status == 0]
    count = names.count
    assert count("cuMulticastUnbind") == count("cuMulticastBindMem") == 3
    assert count("cuMemUnmap") == count("cuMemMap") == 4
    assert count("cuMemAddressFree") == count("cuMemAddressReserve") == 2
    assert count("cuMemRelease") == count("cuMemCreate") + count("cuMulticastCreate") == 4
    # The multicast object goes before the memory that is bound to it.
    assert names.index("cuMulticastUnbind") < names.index("cuMemUnmap")


@pytest.mark.parametrize("end", ["finalize", "exit"])
def test_no_thread_is_needed_to_give_it_back(mpirun, end):
    """Python 3.12 begins no thread at its end, and there may be no more before: nobody watches the calls then."""
    code = """
        import atexit, sys, threading
        atexit.register(lambda: print(simulator.counters().memory(), flush=True))
        from common import *
        def refuse(thread):
            raise RuntimeError("can't create new thread at interpreter shutdown")
        ctx = begin()
        Pool.allocate(ctx.devices(), 100)
        Pool.allocate([nvsym.Device(2), nvsym.Device(3)], 100)
        meet()
        threading.Thread.start = refuse
        if sys.argv[1] == "finalize":
            nvsym.finalize()
            Pool.allocate([nvsym.Device(4), nvsym.Device(5)], 100)
    """
    env = simulator.environment(devices=6) | {"PYTHONPATH": SEARCHED}
    job = mpirun(2, code, end, env=env)
    assert job.pe_stdout == [f"{(0,) * 8}\n"] * 2, job.describe()
    assert "giving back" not in job.stderr


def test_threads_that_sweep_together():
    """Mappings that arrays used are unmapped by the next allocation, whichever thread makes it."""
    run_alone(
        "import threading\n"
        "devices, capsules, errors = local_devices(4), [], []\n"
        "pairs = [devices[:2], devices[2:], devices[1:3]]\n"
        "for pair in pairs:\n"
        "    pool = Pool.allocate(pair, 100)\n"
        "    capsules.append(pool.unicast_view(pair[0]).__dlpack__())\n"
        "    drop(pool)\n"
        "capsules.clear()\n"
        "simulator.fail('cuMemUnmap:*:delay=0.05')\n"
        "def allocate(pair):\n"
        "    try:\n"
        "        drop(Pool.allocate(pair, 100))\n"
        "    except Exception as error:\n"
        "        errors.append(error)\n"
        "threads = [threading.Thread(target=allocate, args=(pair,)) for pair in pairs]\n"
        "for thread in threads:\n"
        "    thread.start()\n"
        "for thread in threads:\n"
        "    thread.join()\n"
        "assert errors == [], errors\n"
        "assert simulator.counters().memory() == (0,) * 8, simulator.counters()\n"
    )


def test_interrupt_between_two_tries(mpirun):
    """Ctrl-C on one PE while all wait for the fabric manager: it is raised there, the others hear of it, nothing is left."""
    code = """
        import os, signal, threading
        from common import *
        ctx = begin()
        simulator.fail("cuMulticastCreate:1-6:802@pe0")
        before = holdings()
        began = time.monotonic()
        if ctx.my_pe() == 1:
            threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            raises(KeyboardInterrupt, call=lambda: Pool.allocate(ctx.devices(), 100))
        else:
            raises(nvsym.NVSymError, "PE 1 on ", "KeyboardInterrupt", call=lambda: Pool.allocate(ctx.devices(), 100))
        assert time.monotonic() - began < 5
        simulator.fail()
        assert holdings() == before
        Pool.allocate(ctx.devices(), 100)
        meet()
        print("done")
    """
    env = simulator.environment(devices=4) | {"PYTHONPATH": SEARCHED}
    job = mpirun(2, code, env=env)
    assert job.pe_stdout == ["done\n"] * 2, job.describe()


def test_messages_of_a_job_do_not_reach_the_next(mpirun):
    """What was sent to a PE that did not come to an allocation stays with MPI, and the next job has the same communicator."""
    code = """
        from common import *
        for _ in range(2):
            ctx = begin()
            me, n = ctx.my_pe(), ctx.n_pes()
            if me < n - 1:
                raises(nvsym.PeerTimeoutError, f"PE {n - 1} on ", call=lambda: Pool.allocate(ctx.devices(), 100))
            meet()
            nvsym.finalize()
        ctx = begin()
        check_views(Pool.allocate(ctx.devices(), 100), [ctx.device], meet)
        meet()
        print("done")
    """
    env = simulator.environment(devices=4) | {"PYTHONPATH": SEARCHED, "NVSYM_TIMEOUT": "2"}
    job = mpirun(3, code, env=env)
    assert job.pe_stdout == ["done\n"] * 3, job.describe()


def test_devices_of_a_job_that_has_ended(mpirun):
    """Their PEs may have other GPUs now, or may not be in the job at all."""
    code = """
        from common import *
        from mpi4py import MPI
        me = MPI.COMM_WORLD.Get_rank()
        old = begin(device=nvsym.Device(me)).devices()
        nvsym.finalize()
        def refused(devices):
            assert "belongs to no PE of the job" in Pool.why_unsupported(devices), Pool.why_unsupported(devices)
            raises(nvsym.NVSymError, "belongs to no PE of the job", call=lambda: Pool.allocate(devices, 100))
        ctx = begin(device=nvsym.Device(3 + me))
        refused(old)
        Pool.allocate(ctx.devices(), 100)
        meet()
        nvsym.finalize()
        if me > 0:
            ctx = begin(comm=MPI.COMM_WORLD.Split(0, me))
            refused(old[1:])
            Pool.allocate(ctx.devices(), 100)
            nvsym.finalize()
        else:
            MPI.COMM_WORLD.Split(MPI.UNDEFINED, me)
        print("done")
    """
    env = simulator.environment(devices=6) | {"PYTHONPATH": SEARCHED, "NVSYM_TIMEOUT": "10"}
    job = mpirun(3, code, env=env)
    assert job.pe_stdout == ["done\n"] * 3, job.describe()


def test_gpus_that_cannot_address_each_other():
    run_alone(
        "assert 'cannot address' in Pool.why_unsupported(local_devices(2))\n"
        "raises(nvsym.MulticastUnsupportedError, 'cannot address', call=lambda: Pool.allocate(local_devices(2), 100))\n"
        "assert simulator.calls('cuMulticastCreate') == simulator.calls('cuMemCreate') == 0\n",
        peers=0,
    )


def test_forked_child():
    run_alone(
        "import os\n"
        "pool = Pool.allocate(local_devices(2), 100)\n"
        "view = pool.unicast_view(local_devices(2)[0])\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    raises(nvsym.ForkError, 'forked', call=view.to_numpy)\n"
        "    raises(nvsym.ForkError, 'forked', call=lambda: Pool.allocate(pool.devices, 100))\n"
        "    assert Pool.lookup(pool.devices) is None\n"
        "    del pool, view\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert len(view.to_numpy()) == 100\n"
        "assert Pool.lookup(pool.devices) is pool\n"
    )


def test_capture_refuses_an_allocation(mpirun):
    code = """
        import ctypes
        from common import *
        ctx = begin()
        library = ctypes.CDLL(simulator.library_path())
        stream, graph = ctypes.c_void_p(ctx.stream.handle), ctypes.c_void_p()
        if ctx.my_pe() == 1:
            assert library.cuStreamBeginCapture_v2(stream, 1) == 0
        raises(RuntimeError, "PE 1", "captured", call=lambda: Pool.allocate(ctx.devices(), 100))
        if ctx.my_pe() == 1:
            assert library.cuStreamEndCapture(stream, ctypes.byref(graph)) == 0
        Pool.allocate(ctx.devices(), 100)
        meet()
        print("done")
    """
    env = simulator.environment(devices=4) | {"PYTHONPATH": SEARCHED}
    assert mpirun(2, code, env=env).pe_stdout == ["done\n"] * 2


def test_end_of_job_that_fails_is_told(mpirun):
    code = """
        from common import *
        ctx = begin()
        Pool.allocate(ctx.devices(), 100)
        simulator.fail("cuMulticastUnbind:1:401@pe1")
        try:
            nvsym.finalize()
            assert ctx is not None and simulator.place()[0] == 0
        except nvsym.BackendError as error:
            assert simulator.place()[0] == 1 and "cuMulticastUnbind" in str(error) and "GPU 1" in str(error)
        assert not nvsym.is_initialized()
        simulator.fail()
        begin()
        print("done")
    """
    env = simulator.environment(devices=4) | {"PYTHONPATH": SEARCHED}
    assert mpirun(2, code, env=env).pe_stdout == ["done\n"] * 2


def test_policy():
    """`MulticastPool`: how large a pool should be."""
    capacity = nvsym.MulticastPool.capacity_bytes
    assert capacity(8, 1024, 8192) == 1024 * 8192 * 2
    assert capacity(4, 1024, 8192, itemsize=4) == 1024 * 8192 * 4
    assert capacity(3, 1024, 8192) == capacity(8, 0, 8192) == capacity(8, 5, -1) == 0
    assert capacity(8, 1 << 15, 8192) == 512 << 20
    assert capacity(8, (1 << 15) + 1, 8192) == 0
    for arguments, name in (
        (("a", 1, 2), "num_devices"),
        ((8, 1.5, 2), "num_tokens"),
        ((8, 1, "2"), "hidden_size"),
        ((8, 1, 2, None), "itemsize"),
    ):
        with pytest.raises(TypeError, match=f"^{name}: expected a whole number, not "):
            capacity(*arguments)
    assert nvsym.MulticastPool.allocate_or_none([nvsym.Device.cpu()] * 2, 0) is None
    with pytest.raises(TypeError):
        nvsym.MulticastPool()


def test_policy_takes_what_is_there():
    run_alone(
        "devices = local_devices(4)\n"
        "pool = nvsym.MulticastPool.allocate_or_none(devices, 1000)\n"
        "assert pool.byte_size == 1000\n"
        "assert nvsym.MulticastPool.allocate_or_none(devices, 2000) is pool\n"
        "assert nvsym.MulticastPool.allocate_or_none([devices[0], nvsym.Device.cpu()], 2000) is None\n"
    )
