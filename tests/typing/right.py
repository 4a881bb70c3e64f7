# SPDX-License-Identifier: Apache-2.0
# Not run: what a type checker concludes from nvsym's stubs. Nothing here is an error.
import array
import ctypes
from collections.abc import Sequence
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import nvsym
from nvsym import SHMEMBuffer, simulator
from nvsym.testing import CompletedJob, mpirun


def buffers(ctx: nvsym.SHMEMContext) -> None:
    buf = SHMEMBuffer[np.float32](10)
    assert_type(buf, SHMEMBuffer[np.float32])
    assert_type(buf.dtype, np.dtype[np.float32])
    assert_type(buf[2:4], SHMEMBuffer[np.float32])
    assert_type(buf.to_numpy(), npt.NDArray[np.float32])
    assert_type(SHMEMBuffer[np.int64].zeros(3), SHMEMBuffer[np.int64])
    assert_type(SHMEMBuffer[np.int64].full(3, 7), SHMEMBuffer[np.int64])
    assert_type(SHMEMBuffer[np.int64].from_numpy(np.arange(3)), SHMEMBuffer[np.int64])
    assert_type(SHMEMBuffer[np.int64].adopt(0x1000, 3), SHMEMBuffer[np.int64])
    assert_type(ctx.enqueue_create_buffer(np.float64, 3), SHMEMBuffer[np.float64])
    assert_type(ctx.enqueue_create_buffer(np.dtype(np.int8), 3), SHMEMBuffer[np.int8])
    assert_type(ctx.enqueue_create_buffer("bfloat16", 3), SHMEMBuffer[Any])
    assert_type(buf.nbytes, int)
    assert_type(buf.peer(1), nvsym.Buffer)
    assert_type(buf.device, nvsym.Device)
    assert_type(len(buf), int)
    with buf as entered:
        assert_type(entered, SHMEMBuffer[np.float32])
    anything: SHMEMBuffer[Any] = buf
    anything.free()


def operations(a: SHMEMBuffer[np.float32], b: SHMEMBuffer[np.float32], s: SHMEMBuffer[np.uint64]) -> None:
    stream = nvsym.Stream()
    nvsym.put(a, b, 1, stream=stream)
    nvsym.put(a, np.zeros(3, np.float32), np.int64(1))
    nvsym.get(np.zeros(3, np.float32), a, 0)
    nvsym.put_signal(a, b, s[0:1], 1, 0, op="add")
    nvsym.signal_wait_until(s[0:1], "ge", 1, stream=stream.handle)
    nvsym.allreduce(a, b, "max", team=nvsym.TEAM_NODE, algorithm="two_shot")
    assert_type(nvsym.atomic_fetch_add(s, 1, 0), np.uint64)
    assert_type(nvsym.TEAM_WORLD.split_2d(2), tuple[nvsym.Team, nvsym.Team])
    assert_type(nvsym.get_include(), str)
    assert_type(nvsym.get_cmake_dir(), str)


class Tensor:
    @property
    def shape(self) -> Sequence[int]:
        return (3,)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {}


def memory(a: SHMEMBuffer[np.float32], tensor: Tensor, unknown: Any, some: npt.NDArray[Any]) -> None:
    host = nvsym.HostBuffer(np.float32, 3)
    nvsym.put(a, host, 0)
    nvsym.put(a, a.peer(0), 0)
    nvsym.put(a[1:2], np.ones((2, 3)).astype(np.float32)[0], 0)
    nvsym.put(a, tensor, 0)
    nvsym.put(a, unknown, 0)
    nvsym.put(a, some, 0)
    nvsym.get(host, a, 0)
    nvsym.get(memoryview(bytearray(12)), a, 0)
    nvsym.get(array.array("f", [0.0]), a, 0)
    nvsym.put_signal(a, np.full(3, 1, np.float32), SHMEMBuffer[np.uint64](1), 1, 0)
    anything: SHMEMBuffer[Any] = a
    nvsym.put(anything, a, 0)
    nvsym.put(a, anything, 0)
    nvsym.put(anything, some, 0)
    a.enqueue_copy_from(host)
    a.enqueue_copy_from(np.arange(3).astype(np.float32))
    a.enqueue_copy_from(0x1000)
    a.enqueue_copy_from(tensor)
    a.enqueue_copy_to((ctypes.c_float * 3)())
    SHMEMBuffer[np.uint8](4).enqueue_copy_from(b"1234")
    anything.enqueue_copy_to(some)
    anything.enqueue_copy_from(unknown)


def of_any_type(a: SHMEMBuffer[Any], b: SHMEMBuffer[Any], some: npt.NDArray[np.float64]) -> None:
    nvsym.put(a, b, 0)
    nvsym.get(some, b, 0)
    nvsym.allreduce(a, b)


class OfTorch:
    @property
    def cuda_stream(self) -> int:
        return 0


class OfCuda:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 0


def streams() -> None:
    nvsym.quiet(stream=OfTorch())
    nvsym.quiet(stream=OfCuda())
    assert_type(nvsym.Stream().record_event(), nvsym.Event)


def errors(error: nvsym.PeerError, failed: nvsym.BackendError) -> None:
    assert_type(error.pes, tuple[int, ...])
    assert_type(failed.status, int | None)


def on_simulated_gpus() -> None:
    env = simulator.environment(devices=4, late=0.01, fail="cuMemCreate:1:999")
    assert_type(env, dict[str, str])
    done = mpirun(2, "import nvsym", "argument", 3, env={**env, "PATH": None}, timeout=60, check=False)
    assert_type(done, CompletedJob)
    assert_type(done.pe_stdout[0], str)
    assert_type(done.describe(), str)
    simulator.fail()
    simulator.configure(late=0.5, slots=3)
    assert_type(simulator.is_active(), bool)
    assert_type(simulator.counters().memory(), tuple[int, ...])
    assert_type(simulator.calls("cuMemCreate"), int)
    assert_type(simulator.call_counts(), dict[str, int])
    assert_type(simulator.last_violation(), str)
    assert_type(simulator.place(), tuple[int, int, int, int])
    assert_type(simulator.read_log("pe0-1.log")[0].note, str)
    assert_type(simulator.library_path(), str)
    with simulator.deferred():
        simulator.multimem_st(0, 0x1000, "f32", simulator.ld_reduce(0, 0x1000, "f32", "add", 4))
        simulator.multimem_red(0, 0x1000, "u32", "add", [1], order="release")
        simulator.store(0, 0x1000, simulator.load(0, 0x1000, np.uint32))
        simulator.fence()
        simulator.fence_alias()


def sources(ctx: nvsym.SHMEMContext, host: nvsym.HostBuffer, peer: nvsym.Buffer) -> None:
    kind = SHMEMBuffer[np.float32]
    for buffer in (kind.from_numpy(np.zeros(3, np.float32)), kind.from_numpy(host), kind.from_numpy(peer)):
        assert_type(buffer, SHMEMBuffer[np.float32])
    kind.from_numpy(memoryview(b"1234"))
    ctx.enqueue_function(print, grid_dim=range(1, 3), block_dim=(1, 2))
