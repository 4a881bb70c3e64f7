# SPDX-License-Identifier: Apache-2.0
"""Buffer, a typed view of memory, and HostBuffer, pinned memory as an array."""

import copy
import gc
import pickle
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobcheck import random_array, same_bytes

import nvsym
from nvsym import Buffer, HostBuffer
from nvsym.dtypes import DTYPES

every_dtype = pytest.mark.parametrize("dtype", [d.numpy for d in DTYPES], ids=[d.name for d in DTYPES])

# ---- Buffer ---------------------------------------------------------------------------------------------------------


@every_dtype
def test_buffer_members(dtype):
    array = random_array(dtype, 24, 1).reshape(2, 3, 4)
    b = Buffer.from_numpy(array)
    assert (b.dtype, b.shape, b.num_elements, b.itemsize, b.nbytes) == (
        dtype,
        (2, 3, 4),
        24,
        dtype.itemsize,
        array.nbytes,
    )
    assert len(b) == 2
    assert b.device == nvsym.Device.cpu()
    assert b._data_ptr() == array.ctypes.data
    assert not b.readonly
    assert str(dtype) in repr(b)
    out = b.to_numpy()
    assert same_bytes(out, array)
    assert not np.shares_memory(out, array)
    view = np.asarray(b)
    assert np.shares_memory(view, array)
    assert same_bytes(view, array)
    duplicate = b.copy()
    assert isinstance(duplicate, Buffer)
    assert same_bytes(duplicate.to_numpy(), array)
    assert duplicate._data_ptr() != b._data_ptr()
    other = random_array(dtype, 24, 2).reshape(2, 3, 4)
    b.inplace_copy_from(other)
    assert same_bytes(array, other)
    b.inplace_copy_from(duplicate)
    assert same_bytes(array, out)
    assert same_bytes(b[1:2].to_numpy(), array[1:2])
    raw = b.view(np.uint8)
    assert raw.shape == (array.nbytes,)
    assert same_bytes(raw.view(dtype, (4, 6)).to_numpy(), array.reshape(4, 6))


@given(
    shape=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    cuts=st.lists(st.tuples(*[st.one_of(st.none(), st.integers(-6, 6))] * 2), max_size=3),
)
def test_buffer_slices_are_those_of_numpy(shape, cuts):
    array = np.arange(np.prod(shape), dtype="i4").reshape(shape)
    view, expected = Buffer.from_numpy(array), array
    for start, stop in cuts:
        view, expected = view[start:stop], expected[start:stop]
    assert view.shape == expected.shape
    assert same_bytes(view.to_numpy(), expected)
    if expected.size:
        assert view._data_ptr() == expected.ctypes.data


def test_buffer_slices_and_views_that_are_refused():
    b = Buffer.from_numpy(np.arange(12, dtype="i4").reshape(6, 2))
    for key, error, word in (
        (slice(0, 6, 2), ValueError, "step"),
        (slice(None, None, -1), ValueError, "step"),
        (2, TypeError, "slice"),
        ("a", TypeError, "slice"),
        ((slice(0, 2), slice(0, 1)), TypeError, "slice"),
    ):
        with pytest.raises(error, match=word):
            b[key]
    scalar = Buffer.from_numpy(np.array(3.0))
    assert (scalar.shape, scalar.num_elements, scalar.nbytes) == ((), 1, 8)
    assert scalar.to_numpy() == 3
    with pytest.raises(TypeError, match="dimension"):
        len(scalar)
    with pytest.raises(IndexError, match="dimension"):
        scalar[0:1]
    for shape in ((5,), (13,), (-1, -12), (12, -1), (3, 5), ()):
        with pytest.raises(ValueError, match="shape"):
            b.view("i4", shape)
    with pytest.raises(ValueError, match="below zero"):
        b.view("i4", (-4, -3))
    for shape in ((2.5,), ("x",), (None,)):
        with pytest.raises(TypeError, match="shape"):
            b.view("i4", shape)
    with pytest.raises(TypeError, match="dtype"):
        b.view("O")
    with pytest.raises(ValueError, match="dtype"):
        Buffer.from_numpy(np.zeros(3, "u1")).view("i4")
    with pytest.raises(ValueError, match="multiple"):
        Buffer.from_numpy(np.zeros(16, "u1"))[1:9].view("f8")
    assert b.view("i4", 12).shape == (12,)
    assert b.view("i4", np.int64(12)).shape == (12,)
    assert b.view("i8", (3, 2)).shape == (3, 2)
    assert b.view("i4", np.array([12])).shape == (12,)
    assert b[2:2].view("f8").shape == (0,)


def test_a_buffer_that_was_never_made():
    blank, b = Buffer.__new__(Buffer), Buffer.from_numpy(np.zeros(0, "f4"))
    assert len({repr(blank), repr(b)}) == 2
    for use in (
        lambda: blank.inplace_copy_from(Buffer.__new__(Buffer)),
        lambda: b.inplace_copy_from(blank),
        lambda: memoryview(blank),
        lambda: np.asarray(blank),
        lambda: np.from_dlpack(blank),
        blank.__dlpack_device__,
        blank.to_numpy,
        blank.unsafe_ptr,
        lambda: blank.view("f4"),
    ):
        with pytest.raises(ValueError, match="never made"):
            use()


def test_buffer_from_numpy_takes_arrays_alone():
    for bad, error in (
        ([1, 2], TypeError),
        (None, TypeError),
        (b"xx", TypeError),
        (np.float32(1), TypeError),
        (np.zeros(3, object), TypeError),
        (np.zeros(3, ">f4"), TypeError),
        (np.zeros(3, "U2"), TypeError),
        (np.zeros(6)[::2], ValueError),
        (np.zeros((3, 2)).T, ValueError),
    ):
        with pytest.raises(error):
            Buffer.from_numpy(bad)
    with pytest.raises(TypeError, match="from_numpy"):
        Buffer()
    b = Buffer.from_numpy(np.zeros(3))
    for copying in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="to_numpy"):
            copying(b)


def test_buffer_keeps_the_array():
    class Marked(np.ndarray):
        pass

    array = np.arange(6.0).view(Marked)
    alive = weakref.ref(array)
    part = Buffer.from_numpy(array)[2:4].view("u1")
    other = np.asarray(part)
    tensor = np.from_dlpack(part)
    del array, part
    gc.collect()
    assert alive() is not None
    assert other.view("f8").tolist() == tensor.view("f8").tolist() == [2, 3]
    del other
    gc.collect()
    assert alive() is not None
    del tensor
    gc.collect()
    assert alive() is None


def test_read_only_buffer():
    array = np.arange(4, dtype="i4")
    array.flags.writeable = False
    b = Buffer.from_numpy(array)
    for each in (b, b[1:3], b.view("u1")):
        assert each.readonly
        with pytest.raises(ValueError, match="read-only"):
            each.inplace_copy_from(np.zeros(each.num_elements, each.dtype))
        assert not np.asarray(each).flags.writeable
        assert memoryview(each).readonly
    with pytest.raises(BufferError):
        b.__dlpack__()  # a consumer from before 1.0 would write
    assert not np.from_dlpack(b).flags.writeable
    assert not b.copy().readonly
    assert array.tolist() == [0, 1, 2, 3]


def test_inplace_copy_from_checks():
    b = Buffer.from_numpy(np.zeros(4, "f4"))
    for bad, error in (
        (np.zeros(4), TypeError),
        (Buffer.from_numpy(np.zeros(4)), TypeError),
        (np.zeros(3, "f4"), ValueError),
        (Buffer.from_numpy(np.zeros(5, "f4")), ValueError),
        (np.zeros(8, "f4")[::2], ValueError),
        (None, TypeError),
        ([0.0] * 4, TypeError),
        (4096, TypeError),
    ):
        with pytest.raises(error, match=r"^src: ") as caught:
            b.inplace_copy_from(bad)
        assert "address" not in str(caught.value)
    b.inplace_copy_from(np.ones((2, 2), "f4"))
    assert b.to_numpy().tolist() == [1] * 4


def test_overlapping_copies_are_those_of_numpy():
    for n, shift in ((10, 1), (100000, 3)):
        for back in (False, True):
            array = np.arange(n)
            model = array.copy()
            low, high = slice(0, n - shift), slice(shift, n)
            to, of = (low, high) if back else (high, low)
            b = Buffer.from_numpy(array)
            b[to].inplace_copy_from(b[of])
            model[to] = model[of].copy()
            assert same_bytes(array, model)


def test_buffer_as_array():
    array = np.arange(4, dtype="f4")
    b = Buffer.from_numpy(array)
    assert np.array(b, dtype="f8").tolist() == [0, 1, 2, 3]
    assert not np.shares_memory(np.array(b, copy=True), array)
    for dtype in ("f4", ml_dtypes.bfloat16):
        small = array.astype(dtype)
        wrapped = Buffer.from_numpy(small)
        assert np.shares_memory(np.array(wrapped, copy=False), small)
        assert np.shares_memory(wrapped.__array__(), small)
        assert not np.shares_memory(wrapped.__array__(copy=True), small)
        assert wrapped.__array__(np.float64).dtype == np.float64
        with pytest.raises(ValueError, match="copy"):
            wrapped.__array__(np.float64, copy=False)


# ---- HostBuffer -----------------------------------------------------------------------------------------------------


@every_dtype
def test_host_buffer(dtype):
    h = HostBuffer(dtype, 33)
    assert isinstance(h, np.ndarray)
    assert (h.dtype, h.shape, h.nbytes) == (dtype, (33,), 33 * dtype.itemsize)
    assert h.flags.writeable
    assert h.flags.c_contiguous
    assert h.unsafe_ptr() == h.ctypes.data
    assert h.unsafe_ptr() % 256 == 0
    values = random_array(dtype, 33, 3)
    h[:] = values
    assert same_bytes(h, values)
    part = h[3:9]
    assert isinstance(part, HostBuffer)
    assert part.unsafe_ptr() == h.unsafe_ptr() + 3 * dtype.itemsize
    assert len(HostBuffer(dtype, 0)) == 0


def test_host_buffer_is_an_array():
    h = HostBuffer("f4", 4)
    h[:] = [1, 2, 3, 4]
    assert type(h + 1) is np.ndarray
    assert type(np.sqrt(h)) is np.ndarray
    assert h.sum() == 10
    assert isinstance(h.sum(), np.float32)
    h += 1
    assert isinstance(h, HostBuffer)
    assert h.tolist() == [2, 3, 4, 5]
    again = pickle.loads(pickle.dumps(h))
    assert type(again) is np.ndarray
    assert again.tolist() == h.tolist()
    assert copy.deepcopy(h).tolist() == h.tolist()
    assert h.reshape(2, 2).tolist() == [[2, 3], [4, 5]]


def test_host_buffer_memory_outlives_its_name():
    h = HostBuffer("i8", 1000)
    h[:] = np.arange(1000)
    part = h[500:]
    other = np.asarray(part)[100:]
    del h, part
    gc.collect()
    more = [HostBuffer("i8", 1000) for _ in range(50)]
    for each in more:
        each[:] = -1
    assert other.tolist() == list(range(600, 1000))


def test_host_buffer_refuses():
    for n, error in (
        (-1, ValueError),
        (1 << 61, ValueError),
        (1 << 62, ValueError),
        (1 << 63, ValueError),
        (1 << 80, ValueError),
        (-(1 << 80), ValueError),
        (2.0, TypeError),
        ("3", TypeError),
        (None, TypeError),
        (True, TypeError),
        (np.int64(1 << 61), ValueError),
    ):
        with pytest.raises(error, match="n: "):
            HostBuffer("f8", n)
    with pytest.raises(MemoryError):
        HostBuffer("u1", 1 << 50)
    for dtype in ("O", "U2", ">f4", None):
        with pytest.raises(TypeError, match="dtype"):
            HostBuffer(dtype, 3)
    for device in ("cpu", 0):
        with pytest.raises(TypeError, match=f"^device: expected a Device, not {type(device).__name__}$"):
            HostBuffer("f4", 3, device=device)
    assert len(HostBuffer("f4", 3, nvsym.Device.cpu())) == 3
    assert len(HostBuffer("f4", np.int16(3))) == 3


@pytest.mark.pes(1, 2)
def test_made_by_the_context(ctx):
    h = ctx.enqueue_create_host_buffer(np.int32, 5)
    assert isinstance(h, HostBuffer)
    b = ctx.enqueue_create_buffer(np.int32, 5)
    assert isinstance(b, nvsym.SHMEMBuffer["i4"])
    h[:] = range(5)
    b.enqueue_copy_from(h)
    assert b.to_numpy().tolist() == list(range(5))
    with pytest.raises(TypeError, match="dtype"):
        ctx.enqueue_create_buffer(object, 5)
    with pytest.raises(ValueError, match="n: "):
        ctx.enqueue_create_buffer("f4", -5)
