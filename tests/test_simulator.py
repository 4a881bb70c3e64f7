# SPDX-License-Identifier: Apache-2.0
"""The simulated driver and NVSHMEM themselves: every rule broken once, addresses that fault, processes that share, failures."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from nvsym import simulator
from nvsym.simulator import command

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(__file__).parent / "simulator"


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


rules = load(FOLDER / "rules.py", "simulator_rules")

PROLOGUE = """
import ctypes, json, os, socket, sys, threading, time
import numpy as np
import driver as d
from nvsym import simulator
from nvsym.errors import BackendError
"""


def environment(**settings):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NVSYM_SIM_", "CUDA_VISIBLE"))}
    return clean | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(FOLDER)])} | settings


def run(code, *, check=True, env=None, timeout=60):
    """A program of its own: no simulator is loaded into pytest's process, where other tests look for a driver."""
    text = PROLOGUE + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", text], env=environment(**(env or {})), capture_output=True, text=True,
                          timeout=timeout, check=False)  # fmt: skip
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


# ---- the rules ------------------------------------------------------------------------------------------------------


def outcomes(**settings):
    """What each case of rules.py came to: (state of the process, status, text)."""
    done = subprocess.run([sys.executable, FOLDER / "rules.py", *rules.CASES], env=environment(**settings),
                          capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {name: (state, text, done.stderr) for name, state, text in map(json.loads, done.stdout.splitlines())}


@pytest.fixture(scope="module")
def found():
    return outcomes()


def check_rule(name, outcome):
    _, status, words, _ = rules.CASES[name]
    state, text, errors = outcome
    assert state == 0, f"the process ended with {state}: {errors}"
    got, said = json.loads(text)
    assert got == status, said
    assert re.search(words, said), said


@pytest.mark.parametrize("name", rules.CASES)
def test_rule(found, name):
    check_rule(name, found[name])


@pytest.mark.parametrize(
    "what",
    ["team.multicast", "d.have(d.reserve())", "unreadable", "after_unmap"],
)
def test_address_faults(what):
    """An ordinary access of the host to what it may not access ends the process."""
    done = run(
        f"""
        d.ok(d.cuda.cuInit(0))
        team = d.Team(2)
        unreadable = d.have(d.reserve())
        d.ok(d.map_(unreadable, d.have(d.create())))
        after_unmap = d.mapped(d.have(d.create()))
        ctypes.c_int.from_address(after_unmap).value = 1
        d.ok(d.unmap(after_unmap))
        print("before", flush=True)
        ctypes.c_int.from_address({what}).value
        print("after")
        """,
        check=False,
    )
    assert done.returncode == -signal.SIGSEGV, done.stdout + done.stderr
    assert done.stdout == "before\n"


def test_read_only_memory_faults_on_a_write():
    done = run(
        """
        d.ok(d.cuda.cuInit(0))
        at = d.mapped(d.have(d.create()))
        d.ok(d.access(at, flags=1))
        ctypes.c_int.from_address(at).value
        print("before", flush=True)
        ctypes.c_int.from_address(at).value = 1
        """,
        check=False,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "before\n")


def test_nothing_is_left():
    """What a whole life of a team holds, and that all of it is given back, descriptors too."""
    run(
        """
        d.ok(d.cuda.cuInit(0))
        empty, files = simulator.counters().memory(), len(os.listdir("/proc/self/fd"))
        assert empty == (0,) * 8
        for n in (2, 4, 8):
            team = d.Team(n, 2 * d.STEP)
            c = simulator.counters()
            assert (c.memory_handles, c.multicast_handles, c.reservations, c.mappings, c.binds) == (n, 1, n + 1, n + 1, n)
            team.close()
            assert simulator.counters().memory() == empty
            assert len(os.listdir("/proc/self/fd")) == files
        # A handle goes, what is mapped stays; another handle for it is the same one.
        memory = d.have(d.create())
        at = d.mapped(memory)
        d.ok(d.release(memory))
        ctypes.c_int.from_address(at).value = 5
        again = d.u64()
        d.ok(d.cuda.cuMemRetainAllocationHandle(ctypes.byref(again), d.pointer(at)))
        assert again.value == memory.value
        other = d.mapped(again)
        assert ctypes.c_int.from_address(other).value == 5
        for address in (at, other):
            d.ok(d.unmap(address)); d.ok(d.free_address(address))
        d.ok(d.release(again))
        assert simulator.counters().memory() == empty
        assert simulator.counters().violations == simulator.counters().misuses == 0
        """
    )


# ---- several processes ----------------------------------------------------------------------------------------------

TWO = """
        ends = socket.socketpair()
        me = 0 if os.fork() else 1
        os.environ["NVSYM_SIM_PE"] = str(me)
        end = ends[me]
        end.settimeout(20)
        def meet():
            end.send(b"x")
            assert end.recv(1) == b"x"
        def give(fd):
            socket.send_fds(end, [b"f"], [fd])
            os.close(fd)
        def take():
            return socket.recv_fds(end, 1, 1)[1][0]
        d.ok(d.cuda.cuInit(0))
"""
END = """
        if me == 0:
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
"""


@pytest.mark.parametrize("by", ["descriptor", "fabric handle"])
def test_a_team_of_two_processes(by):
    """Unicast aliases are the same bytes, and a team that one process makes is bound and used by both."""
    run(
        textwrap.dedent(TWO)
        + textwrap.dedent(
            f"""
        kind = {8 if by == "fabric handle" else 1}
        def share(handle):
            if kind == 1:
                give(d.have(d.export(handle, kind)))
            else:
                end.send(d.have(d.export(handle, kind)))
        def adopt():
            if kind == 8:
                return d.have(d.import_(end.recv(64), kind))
            fd = take()
            handle = d.have(d.import_(fd, kind))
            os.close(fd)
            return handle
        memory = d.have(d.create(device=me, types=kind))
        own = d.mapped(memory, devices=(me,))
        np.ctypeslib.as_array((ctypes.c_float * 8).from_address(own))[:] = me + 1
        if me == 0:
            share(memory); theirs = adopt()
            team = d.have(d.multicast(types=kind)); share(team)
        else:
            theirs = adopt(); share(memory)
            team = adopt()
        peer = d.mapped(theirs, devices=(me,))
        d.ok(d.release(theirs))
        d.ok(d.add(team, me))
        d.ok(d.bind(team, memory))
        at = d.mapped(team, devices=(me,))
        meet()
        assert ctypes.c_float.from_address(peer).value == 2 - me
        assert simulator.ld_reduce(me, at, "f32", "add", 8, vector=4).tolist() == [3] * 8
        meet()
        if me == 0:
            simulator.multimem_st(0, at, "f32", [7] * 4, vector=4)
            simulator.multimem_red(0, at, "u32", "add", [1], order="release")
        meet()
        assert ctypes.c_float.from_address(own + 4).value == 7
        assert ctypes.c_int.from_address(own).value == ctypes.c_int.from_address(peer).value
        d.ok(d.unbind(team, me))
        for address in (at, own, peer):
            d.ok(d.unmap(address)); d.ok(d.free_address(address))
        d.ok(d.release(team)); d.ok(d.release(memory))
        assert simulator.counters().memory() == (0,) * 8
        """
        )
        + textwrap.dedent(END),
        env={"NVSYM_SIM_IMEX": "0"},
    )


def test_bind_waits_for_the_other_device():
    run(
        textwrap.dedent(TWO)
        + textwrap.dedent(
            """
        if me == 0:
            team = d.have(d.multicast(types=1))
            give(d.have(d.export(team)))
        else:
            fd = take()
            team = d.have(d.import_(fd))
        memory = d.have(d.create(device=me, types=1))
        began = time.monotonic()
        if me == 1:
            time.sleep(0.5)
        d.ok(d.add(team, me))
        d.ok(d.bind(team, memory))
        if me == 0:
            assert time.monotonic() - began > 0.4
        meet()
        d.ok(d.unbind(team, me))
        """
        )
        + textwrap.dedent(END)
    )


def test_the_memory_of_a_process_that_died():
    run(
        textwrap.dedent(TWO)
        + textwrap.dedent(
            """
        if me == 0:
            team = d.have(d.multicast(types=1))
            give(d.have(d.export(team)))
        else:
            team = d.have(d.import_(take()))
        memory = d.have(d.create(device=me, types=1))
        d.ok(d.add(team, me))
        d.ok(d.bind(team, memory))
        meet()
        if me == 1:
            os._exit(0)
        os.wait()
        at = d.mapped(team)
        try:
            simulator.ld_reduce(0, at, "f32", "add", 4)
        except BackendError as error:
            assert "is gone" in str(error), error
        else:
            raise AssertionError("nothing was raised")
        """
        )
    )


# ---- plans, logs, settings ------------------------------------------------------------------------------------------


def test_injected_failures(tmp_path):
    run(
        """
        d.ok(d.cuda.cuInit(0))
        simulator.fail("cuMemCreate:2:802;cuMemAddressReserve:1-2:2;cuMemRelease:*:4@pe1")
        before = simulator.counters().memory()
        assert [d.create()[0] for _ in range(3)] == [0, 802, 0]
        assert [d.reserve()[0] for _ in range(3)] == [2, 2, 0]
        simulator.fail("cuMemMap:1:delay=0.3")
        at, handle = d.have(d.reserve()), d.have(d.create())
        began = time.monotonic()
        d.ok(d.map_(at, handle))
        assert time.monotonic() - began > 0.29
        simulator.fail()
        assert d.create()[0] == 0
        assert simulator.counters().injected == 4
        assert simulator.calls("cuMemCreate") == 5 == simulator.call_counts()["cuMemCreate"]
        for bad in ("cuMemCreate", "cuMemCreate:0:1", "cuMemCreate:1:0", "cuMemCreate:1:x", "cuMemCreate:3-2:1", "a:1:1@1",
                    "cuMemCreate:2-:1", "cuMemCreate:2x:1", "cuMemCreate:-1:1", "cuMemCreate:1:1@pe-1",
                    "cuMemCreate:1:delay=-1", "cuMemCreate:1:delay=nan"):
            try:
                simulator.fail(bad)
            except ValueError:
                continue
            raise AssertionError(bad)
        """
    )


def test_a_plan_names_functions_that_can_fail():
    run(
        """
        for right in ("*", "cuMemAlloc", "cuMemcpyHtoDAsync", "cuMemsetD8Async", "cuStreamWriteValue64", "cuModuleLoadData",
                      "nvshmem_malloc", "nvshmemx_float_sum_reduce_on_stream", "nvshmemx_putmem_nbi_on_stream",
                      "nvshmemx_barrier_on_stream", "nvshmemx_barrier_all_on_stream", "nvshmem_team_split_2d",
                      "nvshmemx_alltoallmem_on_stream", "nvshmemx_bfloat16_max_reducescatter_on_stream"):
            simulator.fail(f"{right}:1:7")
        for bad in ("cuBogus", "cuMemAlloc_v2", "nvshmem_bogus", "nvshmem_my_pe", "", "nvmlInit_v2", "sim_cuInit"):
            try:
                simulator.fail(f"cuMemAlloc:1:7;{bad}:1:7")
            except ValueError as error:
                assert f"{bad} is no function of the simulated libraries" in str(error), error
            else:
                raise AssertionError(bad)
        simulator.fail()
        """
    )
    done = run("d.cuda.cuInit(0)", check=False, env={"NVSYM_SIM_FAIL": "cuBogus:1:999"})
    assert done.returncode == 2
    assert "NVSYM_SIM_FAIL=cuBogus:1:999 cannot be read: cuBogus is no function" in done.stderr


def test_a_plan_names_pes_of_the_job():
    plan = "cuMemCreate:1:999@pe2"
    for sizes, status in (({"NVSYM_SIM_PES": "2"}, 2), ({"PMI_SIZE": "2"}, 2), ({"PMI_SIZE": "3"}, 0), ({}, 0)):
        done = run("d.cuda.cuInit(0)", check=False, env={"NVSYM_SIM_FAIL": plan} | sizes)
        assert done.returncode == status, (sizes, done.stderr)
        assert ("the job has 2 PEs, there is no PE 2" in done.stderr) == (status == 2)
    # Without a launcher it is known when NVSHMEM begins.
    code = "import nvsym; nvsym.init(backend='nvshmem', heap_size='4M')"
    alone = {name: value for name, value in environment().items() if not name.startswith(("PMI", "OMPI_", "SLURM_"))}
    alone |= simulator.environment(devices=2)
    alone["NVSYM_SIM_FAIL"] = "cuMemCreate:1:999@pe1"
    done = subprocess.run(
        [sys.executable, "-c", code], env=alone, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "the plan of failures names PE 1; the job has 1 PEs" in done.stderr


@pytest.mark.parametrize(
    "setting",
    ["DEVICES=abc", "DEVICES=-1", "DEVICES=4x", "SLOTS=abc", "SLOTS=-1", "PEERS=maybe", "PEERS=2", "LATE=-1", "LATE=soon",
     "LATE=nan", "BLOCK_LIMIT=-0.5", "MEMORY=much", "MEMORY=-4M", "MEMORY=4X", "NODES=0", "NODES=two", "NODE=-1", "PE=x", "PES=0",
     "IMEX=x", "IMEX=-2", "CLIQUE=x", "MPS=yes", "ABORT=x", "DRIVER=new", "LATE_IMPORT=never", "ATTR=132", "ATTR=132=0@dev",
     "ATTR=132=0,133=1", "GRANULARITY=4K", "FREE=1G", "LOG=/nowhere/at/all"],
)  # fmt: skip
def test_settings_that_cannot_be_read_end_the_process(setting):
    name, _, value = setting.partition("=")
    code = "d.ok(d.cuda.cuInit(0)); d.use(); d.cuda.cuMemGetInfo_v2(None, None)"
    assert run(code).returncode == 0
    done = run(code, check=False, env={f"NVSYM_SIM_{name}": value})
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"nvsym simulator: NVSYM_SIM_{setting} cannot be read: " in done.stderr


@pytest.mark.parametrize("setting", ["NVSHMEM=new", "INITIALIZED=x", "HEAP_GRANULE=0"])
def test_settings_of_nvshmem_that_cannot_be_read_end_the_process(setting):
    name, _, value = setting.partition("=")
    env = environment(**simulator.environment(devices=1)) | {f"NVSYM_SIM_{name}": value}
    code = "import nvsym, numpy as np; nvsym.init(backend='nvshmem', heap_size='4M'); nvsym.SHMEMBuffer[np.int8](1)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert f"nvsym simulator: NVSYM_SIM_{setting} cannot be read: " in done.stderr


@pytest.mark.parametrize(
    "setting", ["NVML=maybe", "NVLINKS=-1", "FABRIC_STATE=ready", "FABRIC_STATUS=-1", "FABRIC_CLUSTER=x"]
)
def test_settings_of_nvml_that_cannot_be_read_end_the_process(setting):
    name, _, value = setting.partition("=")
    code = """
        nvml = ctypes.CDLL(simulator.library_path("nvml/libnvidia-ml.so.1"))
        nvml.nvmlInit_v2()
        device, out = ctypes.c_void_p(), (ctypes.c_char * 64)()
        nvml.nvmlDeviceGetHandleByUUID(b"GPU-4e565359-4d53-494d-0000-000000000000", ctypes.byref(device))
        nvml.nvmlDeviceGetNvLinkState(device, 0, out)
        nvml.nvmlDeviceGetGpuFabricInfo(device, out)
        """
    assert run(code).returncode == 0
    done = run(code, check=False, env={f"NVSYM_SIM_{name}": value})
    assert done.returncode == 2, done.stderr
    assert f"nvsym simulator: NVSYM_SIM_{setting} cannot be read: " in done.stderr


def test_settings_of_a_running_process():
    run(
        """
        simulator.configure(late=0.5, slots=3, imex=-1)
        for name, value in (("late", -1), ("slots", -1), ("clique", float("nan")), ("shoe", 1)):
            try:
                simulator.configure(**{name: value})
            except ValueError as error:
                assert name in str(error), error
            else:
                raise AssertionError(name)
        """
    )


@pytest.mark.parametrize(("action", "status"), [("exit", 97), ("kill", -signal.SIGKILL)])
def test_a_process_that_ends_in_a_call(action, status):
    plan = f"cuMemCreate:2:{action}@pe3"
    code = "d.ok(d.cuda.cuInit(0)); d.have(d.create()); d.have(d.create()); print('alive')"
    assert run(code, check=False, env={"NVSYM_SIM_FAIL": plan, "NVSYM_SIM_PE": "3"}).returncode == status
    assert run(code, env={"NVSYM_SIM_FAIL": plan, "NVSYM_SIM_PE": "2"}).stdout == "alive\n"


def test_the_call_log(tmp_path):
    run(
        """
        d.ok(d.cuda.cuInit(0))
        team = d.Team(2)
        simulator.fail("cuMemCreate:1:802")
        d.create()
        d.create(size=5)
        """,
        env={"NVSYM_SIM_LOG": str(tmp_path), "NVSYM_SIM_PE": "4"},
    )
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("pe4-")
    calls = simulator.read_log(path)
    names = [call.name for call in calls if call.name.startswith("cuMulticast")]
    assert names == ["cuMulticastCreate", *["cuMulticastAddDevice"] * 2, *["cuMulticastBindMem"] * 2]
    assert [call.began for call in calls] == sorted(call.began for call in calls)
    assert [(call.status, call.note) for call in calls[-2:]] == [
        (802, "injected"),
        (1, "cuMemCreate: size 5 is not a multiple of the allocation granularity 65536"),
    ]


def test_devices_and_nodes():
    code = """
        d.ok(d.cuda.cuInit(0))
        n = d.number(); d.ok(d.cuda.cuDeviceGetCount(ctypes.byref(n)))
        uuids = []
        for i in range(n.value):
            uuid = ctypes.create_string_buffer(16); d.ok(d.cuda.cuDeviceGetUuid_v2(uuid, i)); uuids.append(uuid.raw[13:].hex())
        print(json.dumps([simulator.place(), uuids]))
        """

    def ask(**env):
        return json.loads(run(code, env=env).stdout)

    assert ask(NVSYM_SIM_DEVICES="2") == [[0, 1, 0, 1], ["000000", "000001"]]
    assert ask(NVSYM_SIM_DEVICES="4", CUDA_VISIBLE_DEVICES="3,1") == [[0, 1, 0, 1], ["000003", "000001"]]
    assert ask(NVSYM_SIM_DEVICES="4", CUDA_VISIBLE_DEVICES="2,9,1") == [[0, 1, 0, 1], ["000002"]]
    assert ask(NVSYM_SIM_DEVICES="1", NVSYM_SIM_NODES="2", PMI_RANK="3", PMI_SIZE="4") == [[3, 4, 1, 2], ["010000"]]
    assert ask(NVSYM_SIM_DEVICES="1", NVSYM_SIM_NODE="1", OMPI_COMM_WORLD_RANK="5")[0][:3] == [5, 1, 1]
    bad = run("d.cuda.cuInit(0)", check=False, env={"NVSYM_SIM_DEVICES": "65"})
    assert bad.returncode == 2
    assert "NVSYM_SIM_DEVICES=65" in bad.stderr


# ---- streams --------------------------------------------------------------------------------------------------------


def test_late_streams_show_a_missing_wait():
    """A result that is read without having waited is the old one; waiting for any of stream, event or context brings it."""
    run(
        """
        d.ok(d.cuda.cuInit(0)); d.use()
        simulator.configure(late=5)
        stream, event = d.stream(), d.event(2)
        at = d.allocate(4)
        word = ctypes.c_uint32.from_address(at)
        def fill(value):
            d.ok(d.cuda.cuMemsetD32Async(d.u64(at), value, d.size_t(1), stream))
        began = time.monotonic()
        word.value = 0
        fill(1)
        time.sleep(0.05)
        assert word.value == 0
        assert d.cuda.cuStreamQuery(stream) == 600
        d.ok(d.cuda.cuStreamSynchronize(stream))
        assert word.value == 1
        fill(2); d.ok(d.cuda.cuEventRecord(event, stream)); fill(3)
        assert d.cuda.cuEventQuery(event) == 600
        d.ok(d.cuda.cuEventSynchronize(event))
        assert word.value == 2
        other = d.stream()
        d.ok(d.cuda.cuEventRecord(event, stream))
        d.ok(d.cuda.cuStreamWaitEvent(other, event, 0))
        d.ok(d.cuda.cuStreamSynchronize(other))
        assert word.value == 3
        fill(4)
        d.ok(d.cuda.cuCtxSynchronize())
        assert word.value == 4
        fill(5)
        d.ok(d.cuda.cuMemcpyDtoH_v2(ctypes.create_string_buffer(4), d.u64(at), d.size_t(4)))
        assert word.value == 4, "a non-blocking stream does not wait for the default one"
        blocking = d.stream(flags=0)
        d.ok(d.cuda.cuMemsetD32Async(d.u64(at), 6, d.size_t(1), blocking))
        out = d.u64()
        d.ok(d.cuda.cuMemcpyDtoH_v2(ctypes.byref(out), d.u64(at), d.size_t(4)))
        assert out.value == 6, "the default stream comes behind the blocking ones"
        d.ok(d.cuda.cuStreamDestroy_v2(stream))
        d.ok(d.cuda.cuCtxSynchronize())
        assert word.value == 5, "what is on a destroyed stream runs on"
        assert time.monotonic() - began < 4
        """
    )


def test_host_functions_words_and_graphs():
    run(
        """
        d.ok(d.cuda.cuInit(0)); d.use()
        first, second = d.stream(), d.stream()
        words = d.pointer(); d.ok(d.cuda.cuMemHostAlloc(ctypes.byref(words), d.size_t(64), 0))
        words = words.value
        ctypes.memset(words, 0, 64)
        seen = []
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: seen.append(data))
        value = ctypes.c_uint64.from_address
        d.ok(d.cuda.cuStreamWaitValue64_v2(first, d.u64(words), d.u64(3), 0))
        d.ok(d.cuda.cuLaunchHostFunc(first, function, d.pointer(7)))
        d.ok(d.cuda.cuStreamWriteValue64_v2(first, d.u64(words + 8), d.u64(9), 0))
        time.sleep(0.05)
        assert not seen and value(words + 8).value == 0
        d.ok(d.cuda.cuStreamWriteValue32_v2(second, d.u64(words), 3, 0))
        d.ok(d.cuda.cuStreamSynchronize(first))
        assert seen == [7] and value(words + 8).value == 9
        # A fork and a join in a capture; each launch runs all of it, on the values of the time.
        event, back = d.event(2), d.event(2)
        d.ok(d.cuda.cuStreamBeginCapture_v2(first, 1))
        d.ok(d.cuda.cuEventRecord(event, first))
        d.ok(d.cuda.cuStreamWaitEvent(second, event, 0))
        d.ok(d.cuda.cuMemcpyAsync(d.u64(words + 16), d.u64(words + 24), d.size_t(8), second))
        d.ok(d.cuda.cuEventRecord(back, second))
        d.ok(d.cuda.cuStreamWaitEvent(first, back, 0))
        d.ok(d.cuda.cuMemcpyAsync(d.u64(words + 32), d.u64(words + 16), d.size_t(8), first))
        graph, executable = d.pointer(), d.pointer()
        d.ok(d.cuda.cuStreamEndCapture(first, ctypes.byref(graph)))
        d.ok(d.cuda.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, d.u64(0)))
        assert value(words + 32).value == 0
        for i in (5, 6):
            value(words + 24).value = i
            d.ok(d.cuda.cuGraphLaunch(executable, first))
            d.ok(d.cuda.cuStreamSynchronize(first))
            assert value(words + 32).value == i
        d.ok(d.cuda.cuGraphExecDestroy(executable)); d.ok(d.cuda.cuGraphDestroy(graph))
        assert simulator.counters().graphs == 0
        """
    )


# ---- multimem -------------------------------------------------------------------------------------------------------


def test_reductions_against_numpy():
    """Each type and operator on random values; float sums are the exact sum, rounded once."""
    run(
        """
        import ml_dtypes
        d.ok(d.cuda.cuInit(0))
        n, size = 4, 1024
        team = d.Team(n)
        rng = np.random.default_rng(3)
        fold = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
                "xor": np.bitwise_xor}
        done = 0
        for type_, ops, vectors in (
            ("f32", ["add"], [1, 2, 4]), ("f64", ["add"], [1]), ("f16", ["add", "min", "max"], [2, 4, 8]),
            ("bf16", ["add", "min", "max"], [2, 4, 8]), ("f16x2", ["add", "min", "max"], [1, 2, 4]),
            ("bf16x2", ["add", "min", "max"], [1, 2, 4]), ("u32", ["add", "min", "max"], [1]),
            ("s32", ["add", "min", "max"], [1]), ("u64", ["add", "min", "max"], [1]), ("s64", ["min", "max"], [1]),
            ("b32", ["and", "or", "xor"], [1]), ("b64", ["and", "or", "xor"], [1]),
            ("e4m3x4", ["add", "min", "max"], [1, 2, 4]), ("e5m2x4", ["add", "min", "max"], [1, 2, 4]),
        ):
            element = simulator._element(type_)
            integer = element.kind in "iu"
            if integer:
                data = rng.integers(0, 256, (n, size * element.itemsize), np.uint8).view(element)
            elif type_[:3] in ("f32", "f64", "f16"):
                data = (rng.standard_normal((n, size)) * rng.choice([1e-3, 1, 30], (n, size))).astype(element)
            else:
                # ml_dtypes rounds a float64 twice, by way of float32: sums that float32 holds.
                data = (rng.integers(-255, 256, (n, size)) / 8).astype(element)
            for device in range(n):
                ctypes.memmove(team.unicast[device], data[device].ctypes.data, data[device].nbytes)
            for op in ops:
                if integer:
                    expected = fold[op].reduce(data, dtype=element)
                elif op == "add":
                    wide = np.longdouble if type_ == "f64" else np.float64
                    expected = data.astype(wide).sum(0).astype(element)
                else:
                    expected = fold[op].reduce(data.astype(np.float32)).astype(element)
                for vector in vectors:
                    found = simulator.ld_reduce(n - 1, team.multicast, type_, op, size, vector=vector)
                    assert found.dtype == element and found.tobytes() == expected.tobytes(), (type_, op, vector)
                    done += 1
        for device in range(n):
            ctypes.memset(team.unicast[device], 0, 64)
        simulator.multimem_red(1, team.multicast, "u64", "add", [5, 6])
        simulator.multimem_red(2, team.multicast, "u64", "add", [5, 6])
        simulator.multimem_st(0, team.multicast + 16, "bf16x2", np.arange(8), vector=4)
        for device in range(n):
            assert simulator.load(device, team.unicast[device], np.uint64, 2).tolist() == [10, 12]
            assert simulator.load(0, team.unicast[device] + 16, ml_dtypes.bfloat16, 8).tolist() == list(range(8))
        print(done)
        """,
        env={"NVSYM_SIM_ATTR": "75=10"},
    )


ALLREDUCE = """
d.ok(d.cuda.cuInit(0))
N, ROUNDS = 4, 30
team = d.Team(N)
pad = d.STEP - 4096
for at in team.unicast:
    ctypes.memset(at + pad, 0, 64)
wrong = [0] * N

def meet(me, epoch, release, acquire):
    simulator.multimem_red(me, team.multicast + pad, "u32", "add", [1], order="release" if release else "relaxed")
    order = "acquire" if acquire else "relaxed"
    while simulator.load(me, team.unicast[me] + pad, np.uint32, order=order)[0] < epoch * N:
        time.sleep(0)

def kernel(me):
    epoch = 0
    for r in range(ROUNDS):
        with simulator.deferred():
            simulator.store(me, team.unicast[me], np.full(4 * N, me + r, np.float32))
            epoch += 1; meet(me, epoch, RELEASE, ACQUIRE)
            part = simulator.ld_reduce(me, team.multicast + 16 * me, "f32", "add", 4, vector=4)
            simulator.multimem_st(me, team.multicast + 16 * me, "f32", part, vector=4)
            epoch += 1; meet(me, epoch, RELEASE, ACQUIRE)
            found = simulator.load(me, team.unicast[me], np.float32, 4 * N)
        wrong[me] += int((found != N * r + N * (N - 1) // 2).sum())
        epoch += 1; meet(me, epoch, True, True)

threads = [threading.Thread(target=kernel, args=(device,)) for device in range(N)]
[t.start() for t in threads]; [t.join() for t in threads]
print(sum(wrong))
"""


@pytest.mark.parametrize(("release", "acquire"), [(True, True), (False, True), (True, False)])
def test_a_missing_release_or_acquire_shows(release, acquire):
    done = run(ALLREDUCE.replace("RELEASE", str(release)).replace("ACQUIRE", str(acquire)))
    wrong = int(done.stdout)
    if release and acquire:
        assert wrong == 0
    else:
        assert wrong > 100


# ---- NVSHMEM --------------------------------------------------------------------------------------------------------

FATAL = {
    "another size": "nvsym_broadcast(0, 8 + 8 * me)",
    "another root": "nvsym_broadcast(me, 8)",
    "an operand that is not symmetric": "library.nvshmemx_putmem_on_stream(outside, heap, size(8), 0, None)",
    "beyond an allocation": "library.nvshmemx_putmem_on_stream(heap, heap, size(2048), 0, None)",
    "a PE that does not exist": "library.nvshmemx_putmem_on_stream(heap, heap, size(8), 2, None)",
    "a team that does not exist": "library.nvshmemx_barrier_on_stream(9, None)",
    "an allocation of another size": "library.nvshmem_malloc(size(512 + 512 * me))",
    "a comparison that is none": "library.nvshmemx_signal_wait_until_on_stream(heap, 6, size(0), None)",
    "a signal operation that is none": "library.nvshmemx_signal_op_on_stream(heap, size(0), 0, 0, None)",
}


@pytest.mark.parametrize("misuse", FATAL)
def test_misuse_of_nvshmem_ends_the_process(mpirun, misuse):
    """As NVSHMEM does; nvsym checks before."""
    job = mpirun(
        2,
        f"""
        import ctypes
        import nvsym
        from nvsym import _nvshmem
        ctx = nvsym.init(backend="nvshmem", heap_size="4M")
        me = ctx.my_pe()
        library = ctypes.CDLL(_nvshmem.library_info().path)
        size, address = ctypes.c_size_t, ctypes.c_void_p
        library.nvshmem_malloc.restype = address
        library.nvshmemx_putmem_on_stream.argtypes = (address, address, size, ctypes.c_int, address)
        heap, outside = address(library.nvshmem_malloc(size(1024))), ctypes.create_string_buffer(64)
        def nvsym_broadcast(root, nbytes):
            library.nvshmemx_broadcastmem_on_stream(0, heap, heap, size(nbytes), root, None)
        {FATAL[misuse]}
        ctx.device.synchronize()
        """,
        check=False,
        env=simulator.environment(devices=2),
    )
    assert job.returncode != 0
    assert "FATAL: nvsym simulator:" in job.stderr, job.describe()


def test_two_nodes_have_no_common_memory(mpirun):
    job = mpirun(
        4,
        """
        import numpy as np, nvsym
        ctx = nvsym.init(backend="nvshmem", heap_size="4M")
        me, n = ctx.my_pe(), ctx.n_pes()
        b = nvsym.SHMEMBuffer[np.int64].full(4, me)
        dest = nvsym.SHMEMBuffer[np.int64](4)
        reachable = []
        for pe in range(n):
            try:
                b.peer(pe)
                reachable.append(pe)
            except nvsym.PeerUnreachableError:
                pass
        nvsym.put(dest, b, (me + 1) % n)
        nvsym.barrier_all()
        nvsym.allreduce(b, b)
        ctx.synchronize()
        assert dest.to_numpy()[0] == (me - 1) % n and b.to_numpy()[0] == 6
        print(reachable)
        """,
        nodes=2,
        env=simulator.environment(devices=2),
    )
    assert job.pe_stdout == ["[0, 2]\n", "[1, 3]\n"] * 2


LATE = """
import numpy as np, nvsym, time
from mpi4py import MPI
ctx = nvsym.init(backend="nvshmem", heap_size="4M")
me, n = ctx.my_pe(), ctx.n_pes()
stream = nvsym.Stream()
a, b, total = (nvsym.SHMEMBuffer[np.int64].zeros(1000) for _ in range(3))
a.fill(me + 1, stream=stream)
nvsym.put(b, a, (me + 1) % n, stream=stream)
nvsym.allreduce(total, a, stream=stream)
if WAIT:
    stream.synchronize()
MPI.COMM_WORLD.Barrier()
found = (int(a.to_numpy()[0]), int(b.to_numpy()[999]), int(total.to_numpy()[5]))
MPI.COMM_WORLD.Barrier()
print(found == (me + 1, (me - 1) % n + 1, n * (n + 1) // 2), found)
ctx.device.synchronize()
"""


@pytest.mark.parametrize("waits", [True, False])
def test_a_job_that_forgets_to_wait(mpirun, waits):
    """On late streams the mistake shows on every PE, every time."""
    job = mpirun(3, LATE.replace("WAIT", str(waits)), env=simulator.environment(devices=3, late=0.5))
    if waits:
        assert job.pe_stdout == [f"True ({pe + 1}, {(pe - 1) % 3 + 1}, 6)\n" for pe in range(3)]
    else:
        assert job.pe_stdout == ["False (0, 0, 0)\n"] * 3


def test_parity_on_late_streams():
    """What waits in nvsym, and what its documentation tells programs to wait for, is enough where all work comes late."""
    env = environment(NVSYM_SIM_LATE="0.01")
    env.pop("NVSYM_TEST_BACKENDS", None)
    what = "simulator-n2 and (stream or signals or teams or capture or deferred or events or slices)"
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", what, ROOT / "tests/gpu/test_parity.py"],
                          env=env, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 8, done.stdout


def test_what_needs_compiled_kernels_says_why_not(mpirun):
    """Allreduce is NVSHMEM's on simulated GPUs; asked for a kernel it is refused on all PEs, and nothing is compiled."""
    job = mpirun(
        2,
        """
        import sys, numpy as np, nvsym
        ctx = nvsym.init(backend="nvshmem", heap_size="4M")
        a = nvsym.SHMEMBuffer[np.float32].full(8, 1)
        for algorithm in ("one_shot", "two_shot"):
            try:
                nvsym.allreduce(a, a, algorithm=algorithm)
            except ValueError as error:
                assert "simulated CUDA driver runs no compiled kernels" in str(error), error
            else:
                raise AssertionError(algorithm)
        nvsym.allreduce(a, a, algorithm="nvshmem")
        nvsym.allreduce(a, a)
        ctx.synchronize()
        assert (a.to_numpy() == 4).all()
        assert "cuda.bindings.nvrtc" not in sys.modules
        """,
        env=simulator.environment(devices=2),
    )
    assert job.stderr == "", job.describe()


# ---- the command ----------------------------------------------------------------------------------------------------


def test_simulate():
    words, found = command.settings(
        [
            "--devices",
            "4",
            "--nodes",
            "2",
            "--late",
            "0.5",
            "--set",
            "attr=132=0",
            "--",
            "mpirun",
            "-n",
            "4",
            "x.py",
            "--log",
            "y",
        ]
    )
    assert words == ["mpirun", "-n", "4", "x.py", "--log", "y"]
    assert found["NVSYM_LIBCUDA"] == simulator.library_path()
    wanted = {"NVSYM_SIM_DEVICES": "4", "NVSYM_SIM_NODES": "2", "NVSYM_SIM_LATE": "0.5", "NVSYM_SIM_ATTR": "132=0"}
    assert wanted.items() <= found.items()
    assert found["MPIR_CVAR_NUM_CLIQUES"] == "2"
    code = "import nvsym; from nvsym.device import number_of_gpus; print(number_of_gpus(), nvsym.Device(2).name)"
    done = subprocess.run([sys.executable, "-m", "nvsym", "simulate", "--devices", "3", "--", sys.executable, "-c", code],
                          env=environment(), capture_output=True, text=True, timeout=60, check=True)  # fmt: skip
    assert done.stdout == "3 nvsym simulated GPU\n"


def test_any_setting_can_be_set():
    _, found = command.settings(["--set", "devices=4", "--set", "LATE=0.5", "--set", "late=0.25", "--", "true"])
    assert (found["NVSYM_SIM_DEVICES"], found["NVSYM_SIM_LATE"]) == ("4", "0.25")
    _, found = command.settings(["--devices", "2", "--set", "DEVICES=4", "--", "true"])
    assert found["NVSYM_SIM_DEVICES"] == "2"
    done = subprocess.run([sys.executable, "-m", "nvsym", "simulate", "--set", "devices=4", "--", "true"],
                          env=environment(), capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        simulator.environment(peers=False, mps=True).items() >= {"NVSYM_SIM_PEERS": "0", "NVSYM_SIM_MPS": "1"}.items()
    )


def test_cuda_bindings_find_it_by_name():
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    code = """
from cuda.bindings import driver as d
ok = d.CUresult.CUDA_SUCCESS
assert d.cuInit(0) == (ok,) and d.cuDeviceGetCount() == (ok, 3)
team = d.CUmulticastObjectProp()
team.numDevices, team.size = 2, 2 << 20
status, handle = d.cuMulticastCreate(team)
assert status == ok
assert [d.cuMulticastAddDevice(handle, i)[0] for i in (0, 1)] == [ok, ok]
assert d.cuMulticastAddDevice(handle, 1)[0] == d.CUresult.CUDA_ERROR_INVALID_VALUE
memory = d.CUmemAllocationProp()
memory.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
memory.location.type, memory.location.id = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 1
status, own = d.cuMemCreate(2 << 20, memory, 0)
assert d.cuMulticastBindMem(handle, 0, own, 0, 2 << 20, 0)[0] == ok
assert d.cuMulticastBindMem(handle, 0, own, 0, 4 << 20, 0)[0] == d.CUresult.CUDA_ERROR_INVALID_VALUE
"""
    words = [sys.executable, "-m", "nvsym", "simulate", "--devices", "3", "--by-name", "--", sys.executable, "-c", code]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [([], "no command"), (["--devices", "65", "--", "true"], "65"), (["--log", "/nowhere", "--", "true"], "/nowhere"),
     (["--set", "x", "--", "true"], "NAME=VALUE"), (["--set", "by_name=1", "--", "true"], "--by-name"),
     (["--late", "-1", "--", "true"], "--late -1"), (["--late", "nan", "--", "true"], "--late nan"),
      (["--set", "NVLINK=0", "--", "true"], "no setting NVLINK; did you mean NVLINKS"), (["--nodes", "0", "--", "true"], "from 1"), (["--device", "1", "--", "true"], "--device")],
)  # fmt: skip
def test_simulate_refuses(capsys, arguments, says):
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_the_settings_are_those_that_the_libraries_read():
    sources = "".join(path.read_text() for path in (ROOT / "nvsym" / "simulator").glob("*.[ch]"))
    assert set(re.findall(r'"NVSYM_SIM_(\w+)"', sources)) == simulator.SETTINGS
    documented = (ROOT / "docs" / "simulator.md").read_text()
    assert set(re.findall(r"`NVSYM_SIM_(\w+)", documented)) == simulator.SETTINGS
    with pytest.raises(ValueError, match="no setting DEVICE; did you mean DEVICES"):
        simulator.environment(device=3)


def test_simulate_of_nothing():
    done = subprocess.run([sys.executable, "-m", "nvsym", "simulate", "--", "no-such-program"], env=environment(),
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 127
    assert "no-such-program cannot be run" in done.stderr


# ---- AddressSanitizer -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    """Both libraries built with AddressSanitizer, and the environment of a process that uses them."""
    setup = load(ROOT / "setup.py", "nvsym_setup")
    folder = tmp_path_factory.mktemp("sanitized")
    for name, sources in setup.SIMULATED.items():
        target = folder / name
        target.parent.mkdir(exist_ok=True)
        files = [setup.SIMULATOR / source for source in sources]
        options = [*setup.simulator_options(name), "-O1", "-g", "-fsanitize=address", "-fno-omit-frame-pointer"]
        built = subprocess.run(
            ["gcc", *options, *files, "-o", target, "-lm"], capture_output=True, text=True, check=False
        )
        if "cannot find" in built.stderr and "asan" in built.stderr:
            pytest.skip("AddressSanitizer: gcc has no libasan here")
        assert built.returncode == 0, built.stderr
    runtime = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return {
        "LD_PRELOAD": os.path.realpath(runtime),
        # Python itself keeps memory to its end.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "NVSYM_LIBCUDA": str(folder / "libcuda.so.1"),
        "NVSYM_LIBNVSHMEM": str(folder / "libnvshmem_host.so.3"),
    }


def test_rules_with_address_sanitizer(sanitized):
    for name, outcome in outcomes(**sanitized).items():
        assert "AddressSanitizer" not in outcome[2], outcome[2]
        check_rule(name, outcome)


def test_streams_with_address_sanitizer(sanitized):
    done = run(ALLREDUCE.replace("RELEASE", "True").replace("ACQUIRE", "True"), env=sanitized)
    assert int(done.stdout) == 0
    assert "AddressSanitizer" not in done.stderr


def test_a_job_with_address_sanitizer(mpirun, sanitized):
    job = mpirun(
        2,
        """
        import numpy as np, nvsym
        for again in range(2):
            ctx = nvsym.init(backend="nvshmem", heap_size="4M")
            me, n = ctx.my_pe(), ctx.n_pes()
            F = nvsym.SHMEMBuffer[np.float32]
            a, b = F.full(10_000, me + 1), F(10_000)
            for stream in (None, nvsym.Stream()):
                nvsym.put(b, a, 1 - me, stream=stream)
                nvsym.barrier_all(stream=stream)
                nvsym.get(b, a, 1 - me, stream=stream)
                nvsym.allreduce(b, a, stream=stream)
                nvsym.fcollect(b, a[:5000], stream=stream)
                nvsym.alltoall(b, a, stream=stream)
                nvsym.broadcast(b, a, 1, stream=stream)
                nvsym.reducescatter(b[:5000], a, stream=stream)
                ctx.device.synchronize()
            assert (b.to_numpy()[:5000] == 3).all()
            team = nvsym.TEAM_WORLD.split_strided(0, 1, 1)
            if team is not None:
                nvsym.allreduce(b, a, team=team)
                team.destroy()
            counter = nvsym.SHMEMBuffer[np.int64].zeros(1)
            nvsym.atomic_add(counter, 1, 0)
            nvsym.barrier_all()
            ctx.device.synchronize()
            assert me or counter.to_numpy()[0] == n
            nvsym.finalize()
        """,
        env=sanitized | {"NVSYM_SIM_DEVICES": "2"},
        timeout=90,
    )
    assert "AddressSanitizer" not in job.stderr, job.describe()
