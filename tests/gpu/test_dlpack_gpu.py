# SPDX-License-Identifier: Apache-2.0
"""DLPack between memory of one GPU, both sides nvsym's own: it needs no other library."""

import numpy as np
import pytest

import nvsym
from nvsym import SHMEMBuffer
from nvsym.dtypes import DTYPES

pytestmark = pytest.mark.pes(1, 2, backends=("simulator", "nvshmem"))
F32 = SHMEMBuffer[np.float32]


def test_every_type_is_copied(ctx):
    for element in DTYPES:
        if element.dlpack is None:
            continue
        random = np.random.default_rng(element.id)
        values = random.integers(0, 2 if element.name == "bool" else 256, 40 * element.itemsize, np.uint8).view(
            element.numpy
        )
        b = SHMEMBuffer[element.numpy].from_numpy(values)
        assert b.__dlpack_device__() == (2, ctx.device.ordinal)
        copied = SHMEMBuffer.from_dlpack(b)
        assert type(copied) is type(b)
        assert copied.to_numpy().tobytes() == values.tobytes()
        part = SHMEMBuffer[element.numpy].from_dlpack(b.peer(ctx.my_pe())[4:9])
        assert part.to_numpy().tobytes() == values[4:9].tobytes()
        copied.enqueue_copy_from(b[0:40])
        b[10:20].enqueue_copy_to(copied[30:40])
        values[30:40] = values[10:20]
        assert copied.to_numpy().tobytes() == values.tobytes()
    # Memory of the host goes as before.
    assert (SHMEMBuffer.from_dlpack(np.arange(5)).to_numpy() == np.arange(5)).all()


def test_what_is_refused(ctx):
    b, whole = F32.full(6, 1), F32.full(12, 2)
    for bad, error in (
        (SHMEMBuffer["i4"].zeros(6), TypeError),
        (whole, ValueError),
        (whole[0:5], ValueError),
    ):
        for call, name in ((b.enqueue_copy_from, "src"), (b.enqueue_copy_to, "dst")):
            with pytest.raises(error, match=rf"^{name}: "):
                call(bad)
        if error is TypeError:
            with pytest.raises(error, match="tensor: dtype int32"):
                F32.from_dlpack(bad)
    with pytest.raises(BufferError, match="device"):
        b.__dlpack__(dl_device=(1, 0))
    with pytest.raises(BufferError, match="copy"):
        b.__dlpack__(copy=True)
    for stream in (0, True, "x"):
        with pytest.raises(ValueError, match="stream"):
            b.__dlpack__(stream=stream)
    freed = F32.full(3, 1)
    freed.free()
    with pytest.raises(nvsym.FreedBufferError):
        b[:3].enqueue_copy_from(freed)
    assert b.to_numpy().tolist() == [1] * 6


def test_exports_hold_the_memory(ctx):
    ctx.synchronize()
    nvsym.collect()
    live = ctx.heap.live
    b = F32.full(10, 3)
    address = b.unsafe_ptr()
    capsule = b.__dlpack__(stream=-1)
    b.free()
    others = [F32.full(10, 9) for _ in range(4)]
    assert all(other.unsafe_ptr() != address for other in others)
    del capsule, others
    ctx.synchronize()
    nvsym.collect()
    assert ctx.heap.live == live


def test_the_order_of_streams(ctx):
    """A copy comes behind what the context's stream does with the source, and an export's consumer too."""
    mine = nvsym.Stream()
    source, dest = F32.zeros(1 << 20), F32.zeros(1 << 20)
    for i in range(1, 6):
        source.fill(i)  # on the context's stream
        dest.enqueue_copy_from(source, stream=mine)  # DLPack lets `mine` wait for it
        mine.synchronize()
        assert (dest.to_numpy() == i).all()
