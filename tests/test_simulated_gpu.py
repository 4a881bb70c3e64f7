# SPDX-License-Identifier: Apache-2.0
"""What the NVSHMEM backend checks on all PEs before NVSHMEM could end the process, with a simulated GPU on each PE."""

import pytest

from nvsym import simulator

PROLOGUE = """
import os, numpy as np
from mpi4py import MPI
me, n = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
last = me == n - 1
import nvsym
def init(**options):
    return nvsym.init(backend="nvshmem", heap_size="4M", **options)
def refused(error, *texts, call=init):
    try:
        call()
    except error as e:
        assert all(text in str(e) for text in texts), e
        print("refused")
    else:
        raise AssertionError("nothing was raised")
"""

# What differs from a working machine, and the exception that every PE gets.
CASES = {
    "the library is missing on one PE": """
        if last: os.environ["NVSYM_LIBNVSHMEM"] = "/nowhere/libnvshmem_host.so.3"
        refused(nvsym.NotAvailableError, "/nowhere", "PE 1")""",
    "another version on one PE": """
        if last: os.environ["NVSYM_SIM_NVSHMEM"] = "30700"
        refused(nvsym.CollectiveError, "3.8.0", "3.7.0")""",
    "a version that is too old": """
        os.environ["NVSYM_SIM_NVSHMEM"] = "30200"
        refused(nvsym.NotAvailableError, "3.2.0")""",
    "no GPU on one PE": """
        if last: os.environ["CUDA_VISIBLE_DEVICES"] = ""
        refused(nvsym.NVSymError, "PE 1", "GPU")""",
    "NVSHMEM fails on one PE": """
        if last: os.environ["NVSYM_SIM_FREE"] = "1000000"
        refused(nvsym.HeapExhaustedError, "PE 1", "free")""",
    "NVSHMEM fails on all PEs": """
        os.environ["NVSYM_SIM_FAIL"] = "nvshmemx_hostlib_init_attr:1:7"
        refused(nvsym.BackendError, "NVSHMEMX_ERROR_INTERNAL")""",
    "somebody else has initialised NVSHMEM": """
        os.environ["NVSYM_SIM_INITIALIZED"] = "2"
        refused(nvsym.BackendError, "another library")""",
    "a size that is none": """
        if last: os.environ["NVSHMEM_SYMMETRIC_SIZE"] = "10X"
        refused(nvsym.SettingError, "NVSHMEM_SYMMETRIC_SIZE", "PE 1")""",
    "the MPI bootstrap with another MPI": """
        refused(nvsym.NotAvailableError, "Open MPI", "uid", call=lambda: init(bootstrap="mpi"))""",
    "PEs share a GPU without MPS": """
        init()
        a = nvsym.SHMEMBuffer["float32"].full(4, me)
        refused(nvsym.NotAvailableError, "nvidia-cuda-mps-control", call=lambda: nvsym.broadcast(a, a, 0))
        nvsym.put(a, np.full(4, 7, np.float32), 1 - me)
        nvsym.barrier_all()
        assert (a.to_numpy() == 7).all()""",
    "PEs share a GPU under MPS with too large shares": """
        os.environ["NVSYM_SIM_MPS"] = "1"
        init()
        a = nvsym.SHMEMBuffer["float32"].full(4, me)
        refused(nvsym.NotAvailableError, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", call=lambda: nvsym.broadcast(a, a, 0))""",
}


@pytest.mark.parametrize("case", CASES)
def test_refusal(mpirun, case):
    if "another MPI" in case:
        from nvsym._launch import find_launcher

        if find_launcher().kind == "openmpi":
            pytest.skip("another MPI than Open MPI: there is none")
    code = PROLOGUE + "\n".join(line.removeprefix("        ") for line in CASES[case].splitlines())
    job = mpirun(2, code + "\n", env=simulator.environment(devices=1 if "share a GPU" in case else 2), timeout=40)
    assert job.pe_stdout == ["refused\n"] * 2
    assert "FATAL" not in job.stderr


@pytest.mark.parametrize("call", ["nvshmemx_hostlib_init_attr", "cuStreamCreate"])
def test_a_failure_of_one_pe_does_not_leave_the_others(mpirun, call):
    """Inside NVSHMEM's initialisation a PE waits for the others without end; the one that failed ends all of them."""
    job = mpirun(
        2,
        """
        import nvsym
        nvsym.init(backend="nvshmem", heap_size="4M")
        """,
        env=simulator.environment(devices=2, fail=f"{call}:1:7@pe1")
        | {"NVSYM_INIT_TIMEOUT": "4"},  # longer than imports from a cold disk
        timeout=25,
        check=False,
    )
    assert job.returncode != 0
    assert f"{call} failed" in job.pe_stderr[1], job.describe()
    if call == "cuStreamCreate":
        assert "PE 1" in job.pe_stderr[0], job.describe()
    else:
        assert "still inside NVSHMEM's initialisation" in job.pe_stderr[1], job.describe()


# One process that sees two GPUs. Each prints "right".
TWO_GPUS = {
    "waiting for one GPU does not end work on the other": """
        init(device=0)
        stream = nvsym.Stream()
        dropped = nvsym.SHMEMBuffer["uint8"](1 << 20)
        place = dropped.unsafe_ptr()
        dropped.fill(7, stream=stream)
        del dropped
        nvsym.Device(1).synchronize()
        nvsym.collect()
        assert not stream.query(), "the fill is to be late"
        next_one = nvsym.SHMEMBuffer["uint8"].full(1 << 20, 1)
        assert next_one.unsafe_ptr() != place
        stream.synchronize()
        assert (next_one.to_numpy() == 1).all()""",
    "work on any number of streams is known": """
        init(device=0)
        dropped = nvsym.SHMEMBuffer["uint8"](1 << 20)
        place = dropped.unsafe_ptr()
        stream = nvsym.Stream()
        dropped.fill(7, stream=stream)
        del dropped
        device = nvsym.Device(1)
        other = nvsym.HostBuffer("uint8", 16, device)
        pool = nvsym.SymmetricPool.allocate([device, nvsym.Device(0)], 4096)
        view = pool.unicast_view(device)
        streams = [nvsym.Stream(device) for _ in range(200)]
        for one in streams:
            view[:16].inplace_copy_from(other, stream=one)
        assert not stream.query(), "the fill is to be late, and nobody waits for it"
        nvsym.Device(1).synchronize()
        nvsym.collect()
        next_one = nvsym.SHMEMBuffer["uint8"].full(1 << 20, 1)
        assert stream.query() or next_one.unsafe_ptr() != place
        stream.synchronize()
        assert (next_one.to_numpy() == 1).all()""",
    "events stay on their GPU": """
        devices = [nvsym.Device(0), nvsym.Device(1)]
        pool = nvsym.SymmetricPool.allocate(devices, 1 << 20)
        data = nvsym.HostBuffer("uint8", 1 << 20, devices[0])
        data[:] = 3
        for device in devices * 3:
            stream = nvsym.Stream(device)
            view = pool.unicast_view(device)
            view.inplace_copy_from(data, stream=stream)
            stream.synchronize()
            assert (view.to_numpy() == 3).all()""",
    "the default streams of two GPUs have one handle": """
        devices = [nvsym.Device(0), nvsym.Device(1)]
        pool = nvsym.SymmetricPool.allocate(devices, 1 << 20)
        data = nvsym.HostBuffer("uint8", 1 << 20, devices[0])
        data[:] = 5
        for handle in (0, 2):
            for device in devices * 2:
                pool.unicast_view(device).inplace_copy_from(data, stream=handle)
        for device in devices:
            device.synchronize()
            assert (pool.unicast_view(device).to_numpy() == 5).all()""",
    "a job on one GPU after a job on the other": """
        data = nvsym.HostBuffer("uint8", 1 << 20)
        for device in (0, 1, 0):
            ctx = init(device=device)
            buffer = nvsym.SHMEMBuffer["uint8"](1 << 20)
            for _ in range(3):
                buffer.enqueue_copy_from(data)
            ctx.synchronize()
            del buffer
            nvsym.collect()
            nvsym.finalize()""",
    "an event is recorded in a thread that has used no GPU": """
        import threading
        event, found = nvsym.Event(nvsym.Device(1)), []
        nvsym.Device(0).synchronize()
        thread = threading.Thread(target=lambda: found.append(event.record()))
        thread.start()
        thread.join()
        event.synchronize()
        assert found == [None]""",
    "the stream of a context that has ended is a stream": """
        stream = init(device=0).stream
        nvsym.finalize()
        stream.synchronize()
        assert stream.query()
        del stream
        streams = simulator.counters().streams
        assert streams <= 1, streams     # the side stream of the GPU""",
    "a compiler that is older than the GPU": """
        from nvsym import _driver
        from nvsym.kernels import compiler
        init(device=0)
        a, b = nvsym.SHMEMBuffer["uint8"].full(64, 1), nvsym.SHMEMBuffer["uint8"].zeros(64)
        def fail(arch):
            raise nvsym.BackendError("invalid value for --gpu-architecture")
        _driver.is_simulated, compiler.put_cubin = lambda: False, fail
        nvsym.put(b, a, 0)
        nvsym.quiet()
        assert (b.to_numpy() == 1).all()""",
}


@pytest.mark.parametrize("case", TWO_GPUS)
def test_a_process_with_two_gpus(mpirun, case):
    code = PROLOGUE + "from nvsym import simulator\n"
    code += "\n".join(line.removeprefix("        ") for line in TWO_GPUS[case].splitlines())
    job = mpirun(1, code + '\nprint("right")\n', env=simulator.environment(devices=2, late=0.5), timeout=60)
    assert job.pe_stdout == ["right\n"]
    assert "FATAL" not in job.stderr


def test_the_gpu_of_another_pe(mpirun):
    """It has the number that its own process knows it by: here it is the same GPU under another number, or none."""
    job = mpirun(
        2,
        """
        import os
        from mpi4py import MPI
        from nvsym import simulator
        me = MPI.COMM_WORLD.rank
        os.environ["CUDA_VISIBLE_DEVICES"] = "0" if me == 0 else "1,0"
        import nvsym
        ctx = nvsym.init(backend="nvshmem", heap_size="4M", device=0)
        before, its = simulator.counters().contexts, ctx.devices()[1 - me]
        its.synchronize()   # nothing was enqueued on it
        assert simulator.counters().contexts == before
        try:
            stream = nvsym.Stream(its)
        except ValueError as error:
            assert me == 0 and "does not see" in str(error), error
        else:
            assert me == 1 and nvsym.HostBuffer("uint8", 4, its).nbytes == 4
            assert stream.record_event().query() in (True, False)
            stream.synchronize()
            assert simulator.counters().contexts == before + 1
        nvsym.barrier_all()
        print("right")
        """,
        env=simulator.environment(devices=2),
        timeout=60,
    )
    assert job.pe_stdout == ["right\n"] * 2
    assert "FATAL" not in job.stderr


def test_teams_that_cannot_be_made_leave_no_job(mpirun):
    """The last steps of init, which have a job already: it ends on all PEs, and another one can begin."""
    job = mpirun(
        4,
        """
        import nvsym
        try:
            nvsym.init(backend="nvshmem", heap_size="4M")
        except nvsym.BackendError as error:
            assert "nvshmemx_team_init" in str(error), error
        else:
            raise AssertionError("nothing was raised")
        assert not nvsym.is_initialized()
        try:
            nvsym.my_pe()
        except nvsym.NotInitializedError as error:
            assert "nvsym.init() failed" in str(error), error
        nvsym.init(backend="nvshmem", heap_size="4M")
        nvsym.barrier(nvsym.TEAM_NODE)
        print(nvsym.TEAM_NODE.n_pes())
        """,
        env=simulator.environment(devices=4, nodes=2, fail="nvshmemx_team_init:1:1"),
        timeout=60,
    )
    assert job.pe_stdout == ["4\n"] * 4
    assert "FATAL" not in job.stderr


# One process, and one stream that waits for a signal which the process sets only at the end. Nothing before may wait for it. Each
# prints "right".
NOTHING_WAITS = {
    "pinned memory is dropped": """
        memory = nvsym.HostBuffer("uint8", 1 << 20)
        begin_wait()
        del memory
        more = nvsym.HostBuffer("uint8", 1 << 20)""",
    "a first atomic operation": """
        counter = nvsym.SHMEMBuffer["int64"].zeros(1)
        begin_wait()
        assert nvsym.atomic_fetch_add(counter, 3, 0) == 0
        assert nvsym.atomic_fetch(counter, 0) == 3""",
    "many streams come and go": """
        data = nvsym.SHMEMBuffer["uint8"](16)
        begin_wait()
        for i in range(200):
            stream = nvsym.Stream()
            data.fill(i % 7, stream=stream)
            stream.synchronize()
            del stream""",
    "many streams stay": """
        data = nvsym.SHMEMBuffer["uint8"](16)
        begin_wait()
        streams = [nvsym.Stream() for _ in range(200)]
        for stream in streams:
            data.fill(1, stream=stream)""",
}


@pytest.mark.parametrize("case", NOTHING_WAITS)
def test_nothing_waits_for_a_stream_that_waits(mpirun, case):
    code = (
        PROLOGUE
        + """
from nvsym import simulator
init(device=0)
signal, waiting = nvsym.SHMEMBuffer["uint64"].zeros(1), nvsym.Stream()
def begin_wait():
    nvsym.signal_wait_until(signal, "ge", 1, stream=waiting)
"""
        + "\n".join(line.removeprefix("        ") for line in NOTHING_WAITS[case].splitlines())
        + """
assert not waiting.query()
nvsym.signal_op(signal, 1, 0)
waiting.synchronize()
print("right")
"""
    )
    job = mpirun(1, code, env=simulator.environment(devices=1), timeout=30)
    assert job.pe_stdout == ["right\n"], job.describe()


def test_pinned_memory_that_was_dropped_is_freed(mpirun):
    code = (
        PROLOGUE
        + """
from nvsym import simulator
ctx = init(device=0)
before = simulator.counters().host_allocations
for _ in range(20):     # at the next allocation, as nothing runs
    nvsym.HostBuffer("uint8", 1 << 20)
assert simulator.counters().host_allocations <= before + 1
for call in (ctx.stream.synchronize, ctx.device.synchronize):
    nvsym.HostBuffer("uint8", 1 << 20)
    call()
    assert simulator.counters().host_allocations == before
print("right")
"""
    )
    job = mpirun(1, code, env=simulator.environment(devices=1), timeout=30)
    assert job.pe_stdout == ["right\n"], job.describe()


@pytest.mark.parametrize("nbytes", [1000, 60_000, 100_000, 1_000_000, 9_000_000])
@pytest.mark.parametrize("way", ["default", "own", "events", "slice"])
def test_what_a_copy_brings_is_what_the_next_one_takes(mpirun, nbytes, way):
    """Through one array of pageable memory, in the order of a stream, or of two with an event between."""
    code = (
        PROLOGUE
        + f"nbytes, way = {nbytes}, {way!r}"
        + """
os.sched_getaffinity = lambda pid: set(range(9))    # so that eight threads copy, however many cores there are
ctx = init(device=0) if nbytes < 1 << 20 else nvsym.init(backend="nvshmem", heap_size="64M", device=0)
source, dest = nvsym.SHMEMBuffer["uint8"](nbytes), nvsym.SHMEMBuffer["uint8"].zeros(nbytes)
through = np.zeros(nbytes, np.uint8)
first = None if way == "default" else nvsym.Stream()
second = nvsym.Stream() if way == "events" else first
for value in range(1, 256 if nbytes < 1 << 20 else 40):
    source.fill(value, stream=first)
    nvsym.get(through, source, 0, stream=first)
    if way == "events":
        second.wait_event(first.record_event())
    if way == "slice":
        nvsym.put(dest[nbytes // 3 :], through[nbytes // 3 :], 0, stream=second)
        nvsym.put(dest[: nbytes // 3], through[: nbytes // 3], 0, stream=second)
    else:
        nvsym.put(dest, through, 0, stream=second)
    (ctx.stream if second is None else second).synchronize()
    assert (dest.to_numpy() == value).all(), value
print("right")
"""
    )
    job = mpirun(1, code, env=simulator.environment(devices=1, late=0.001), timeout=60)
    assert job.pe_stdout == ["right\n"], job.describe()


@pytest.mark.parametrize("used_before", [False, True])
def test_a_capture_of_a_stream_of_others_is_seen(mpirun, used_before):
    code = (
        PROLOGUE
        + f"used_before = {used_before}"
        + """
import ctypes
from nvsym import simulator
ctx = init(device=0)
library = ctypes.CDLL(simulator.library_path())
stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
assert library.cuStreamCreate(ctypes.byref(stream), 1) == 0
data = nvsym.SHMEMBuffer["uint8"].zeros(16)
for _ in range(2):
    if used_before:
        data.fill(1, stream=stream.value)
    assert library.cuStreamBeginCapture_v2(stream, 0) == 0
    data.fill(2, stream=stream.value)
    for call in (lambda: nvsym.SHMEMBuffer["uint8"](16), nvsym.collect, data.free):
        refused(nvsym.NVSymError, "captured", call=call)
    assert library.cuStreamEndCapture(stream, ctypes.byref(graph)) == 0
    other = nvsym.SHMEMBuffer["uint8"](16)
    other.free()
    if used_before:
        data.fill(3, stream=stream.value)
        ctx.device.synchronize()
        assert (data.to_numpy() == 3).all()
print("right")
"""
    )
    job = mpirun(1, code, env=simulator.environment(devices=1), timeout=30)
    assert job.pe_stdout == ["refused\n" * 6 + "right\n"], job.describe()


def test_what_needs_pinned_memory_does_not_end_a_capture(mpirun):
    code = (
        PROLOGUE
        + """
import ctypes
from nvsym import simulator
ctx = init(device=0)
library = ctypes.CDLL(simulator.library_path())
graph = ctypes.c_void_p()
data = nvsym.SHMEMBuffer["uint8"].zeros(100_000)
captured, other = nvsym.Stream(), nvsym.Stream()
assert library.cuStreamBeginCapture_v2(ctypes.c_void_p(captured.handle), 0) == 0
data.fill(2, stream=captured)
refused(nvsym.BackendError, "pinned memory", "captured", call=lambda: nvsym.HostBuffer("uint8", 10))
nvsym.put(data, np.full(100_000, 7, np.uint8), 0, stream=other)
found = np.zeros(100_000, np.uint8)
nvsym.get(found, data, 0, stream=other)
other.synchronize()
assert (found == 7).all()
assert library.cuStreamEndCapture(ctypes.c_void_p(captured.handle), ctypes.byref(graph)) == 0
nvsym.HostBuffer("uint8", 10)
print("right")
"""
    )
    job = mpirun(1, code, env=simulator.environment(devices=1), timeout=30)
    assert job.pe_stdout == ["refused\nright\n"], job.describe()


def test_a_stream_of_others_is_not_asked_once_its_capture_has_ended(mpirun, tmp_path):
    """It may be gone then, and the driver ends the process that asks about a stream that is gone."""
    code = (
        PROLOGUE
        + """
import ctypes
from nvsym import simulator
ctx = init(device=0)
library = ctypes.CDLL(simulator.library_path())
data = nvsym.SHMEMBuffer["uint8"].zeros(16)
for _ in range(3):
    for used_before in (False, True):
        stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
        assert library.cuStreamCreate(ctypes.byref(stream), 1) == 0
        if used_before:
            data.fill(1, stream=stream.value)
        assert library.cuStreamBeginCapture_v2(stream, 0) == 0
        data.fill(2, stream=stream.value)
        assert library.cuStreamEndCapture(stream, ctypes.byref(graph)) == 0
        assert library.cuStreamDestroy_v2(stream) == 0
        nvsym.SHMEMBuffer["uint8"](16).free()
print("right")
"""
    )
    job = mpirun(1, code, env=simulator.environment(devices=1, log=tmp_path), timeout=30)
    assert job.pe_stdout == ["right\n"], job.describe()
    logs = [call for file in tmp_path.iterdir() for call in simulator.read_log(file)]
    asked = [call for call in logs if call.name == "cuStreamIsCapturing"]
    assert asked
    assert all(call.status == 0 for call in asked)
