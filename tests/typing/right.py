# SPDX-License-Identifier: Apache-2.0
# Not run: what a type checker concludes from nvsym's stubs. Nothing here is an error.
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import nvsym
from nvsym import SHMEMBuffer


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


def errors(error: nvsym.PeerError) -> None:
    assert_type(error.pes, tuple[int, ...])


def sources(ctx: nvsym.SHMEMContext, host: nvsym.HostBuffer, peer: nvsym.Buffer) -> None:
    kind = SHMEMBuffer[np.float32]
    for buffer in (kind.from_numpy(np.zeros(3, np.float32)), kind.from_numpy(host), kind.from_numpy(peer)):
        assert_type(buffer, SHMEMBuffer[np.float32])
    kind.from_numpy(memoryview(b"1234"))
    ctx.enqueue_function(print, grid_dim=range(1, 3), block_dim=(1, 2))
