# SPDX-License-Identifier: Apache-2.0
"""SHMEMBuffer[dtype]: its classes, members, slices and copies, and what it refuses."""

import array as stdarray
import copy
import gc
import pickle

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobcheck import assert_usable, random_array, refused, right_of, same_bytes

import nvsym
from nvsym import SHMEMBuffer
from nvsym.dtypes import DTYPES, as_dtype

every_dtype = pytest.mark.parametrize("dtype", [d.numpy for d in DTYPES], ids=[d.name for d in DTYPES])

# ---- the classes; they need no job ----------------------------------------------------------------------------------


@every_dtype
def test_there_is_one_class_for_each_dtype(dtype):
    cls = SHMEMBuffer[dtype]
    name = next(d.name for d in DTYPES if d.numpy == dtype)
    assert cls is SHMEMBuffer[dtype.type] is SHMEMBuffer[name] is cls[dtype]
    assert issubclass(cls, SHMEMBuffer)
    assert cls.dtype == dtype
    assert cls.itemsize == dtype.itemsize
    assert cls.__name__ == cls.get_type_name() == f"SHMEMBuffer[{name}]"
    assert cls.device_type == "symmetric"
    assert len({SHMEMBuffer[d.numpy] for d in DTYPES}) == len(DTYPES)


@pytest.mark.parametrize("dtype", [object, "U3", "M8[s]", ">f4", [("a", "f4")], None, "nonsense", 3.5, np.floating])
def test_no_class_for_what_is_no_number(dtype):
    with pytest.raises(TypeError, match="dtype"):
        SHMEMBuffer[dtype]


def test_a_class_keeps_its_dtype():
    with pytest.raises(TypeError, match="float32"):
        SHMEMBuffer[np.float32][np.float64]
    with pytest.raises(TypeError, match="element type"):
        SHMEMBuffer.get_type_name()


def test_without_a_job():
    with pytest.raises(nvsym.NotInitializedError, match="init"):
        SHMEMBuffer[np.float32](4)
    with pytest.raises(nvsym.NotInitializedError, match="init"):
        SHMEMBuffer[np.float32].zeros(4)
    with pytest.raises(nvsym.NotInitializedError, match="init"):
        SHMEMBuffer[np.float32].adopt(4096, 4)
    never = SHMEMBuffer[np.float32].__new__(SHMEMBuffer[np.float32])
    assert never.is_freed
    assert "not made" in repr(never)
    assert len(never) == 0
    for use in (
        never.to_numpy,
        never.unsafe_ptr,
        lambda: never[:],
        lambda: never.fill(1),
        lambda: never.peer(0),
        lambda: np.asarray(never),
        lambda: memoryview(never),
        never.__dlpack__,
        never.__dlpack_device__,
    ):
        with pytest.raises((nvsym.FreedBufferError, ValueError)):
            use()
    with pytest.raises(nvsym.NotInitializedError):
        never.free()


# ---- members --------------------------------------------------------------------------------------------------------


def ones_of(dtype, n):
    return np.repeat(np.ones(1, dtype), n)


@every_dtype
@pytest.mark.pes(1, 2, 4)
def test_members(ctx, dtype):
    me, n_pes = ctx.my_pe(), ctx.n_pes()
    cls = SHMEMBuffer[dtype]
    n = 67
    b = cls(n)
    assert isinstance(b, cls)
    assert type(b) is cls
    assert (len(b), b.dtype, b.itemsize, b.nbytes) == (n, dtype, dtype.itemsize, n * dtype.itemsize)
    assert b.get_type_name() == cls.__name__
    assert b.device == ctx.device
    assert b.device_type == "symmetric"
    assert b.unsafe_ptr() % 256 == 0
    assert not b.is_freed
    assert f"SHMEMBuffer[{next(d.name for d in DTYPES if d.numpy == dtype)}](67)" in repr(b)

    mine = random_array(dtype, n, (me, n))
    b.enqueue_copy_from(mine)
    assert same_bytes(b.to_numpy(), mine)
    out = np.empty(n, dtype)
    b.enqueue_copy_to(out)
    assert same_bytes(out, mine)

    other = cls.from_numpy(mine)
    assert same_bytes(other.to_numpy(), mine)
    nvsym.put(b, other, right_of(ctx))
    nvsym.barrier_all()
    left = random_array(dtype, n, ((me - 1) % n_pes, n))
    assert same_bytes(b.to_numpy(), left)
    nvsym.get(out, other, right_of(ctx))
    assert same_bytes(out, random_array(dtype, n, (right_of(ctx), n)))
    nvsym.barrier_all()

    one = np.ones(1, dtype)[0]
    zeros, ones = cls.zeros(5), cls.full(5, one)
    # Values, not bytes: a long double has padding.
    wide = dtype if dtype.kind in "fc" else "f8"  # NumPy's comparisons do not know the small floats
    assert np.array_equal(
        zeros.to_numpy().astype(wide), np.full(5, 0, dtype).astype(wide), equal_nan=True
    )  # e8m0: no zero
    assert np.array_equal(ones.to_numpy(), np.ones(5, dtype))
    b.fill(one)
    assert np.array_equal(b.to_numpy(), np.ones(n, dtype))
    b.enqueue_copy_from(ones_of(dtype, n))
    part = b[3:10]
    part.enqueue_copy_from(mine[3:10])
    expected = ones_of(dtype, n)
    expected[3:10] = mine[3:10]
    assert same_bytes(b.to_numpy(), expected)
    for each in (b, other, zeros, ones):
        each.free()
        assert each.is_freed


@pytest.mark.pes(1, 2, 4)
def test_addresses_are_symmetric(ctx):
    """Blocks lie equally far apart on every PE."""
    a, b = SHMEMBuffer["u1"](1000), SHMEMBuffer["f8"](3)
    with SHMEMBuffer["i8"].full(1, b.unsafe_ptr() - a.unsafe_ptr()) as low, SHMEMBuffer["i8"](1) as result:
        nvsym.allreduce(result, low, "min")
        assert result.to_numpy()[0] == b.unsafe_ptr() - a.unsafe_ptr()
        nvsym.allreduce(result, low, "max")
        assert result.to_numpy()[0] == b.unsafe_ptr() - a.unsafe_ptr()


@pytest.mark.pes(2)
def test_pes_may_fill_with_different_values(ctx):
    b = SHMEMBuffer["i4"].full(3, 10 + ctx.my_pe())
    assert b.to_numpy().tolist() == [10 + ctx.my_pe()] * 3
    nvsym.barrier_all()
    c = SHMEMBuffer["i4"].from_numpy(np.arange(3, dtype="i4") + ctx.my_pe())
    assert nvsym.get(c, b, right_of(ctx)) is None
    assert c.to_numpy().tolist() == [10 + right_of(ctx)] * 3
    nvsym.barrier_all()


@pytest.mark.pes(2)
def test_full_is_complete_everywhere_when_it_returns(ctx):
    out = np.empty(5000, "i8")
    for i in range(20):
        b = SHMEMBuffer["i8"].full(5000, i)
        nvsym.get(out, b, right_of(ctx))
        assert (out == i).all()


@pytest.mark.pes(1, 2)
def test_large_full(ctx):
    """Larger than what is filled in one step."""
    n = (5 << 20) // 8 + 3
    b = SHMEMBuffer["i8"].full(n, -7)
    assert (b.to_numpy() == -7).all()
    b.fill(8)
    assert (b.to_numpy() == 8).all()
    z = SHMEMBuffer["i8"].zeros(n)
    assert not z.to_numpy().any()


@pytest.mark.pes(1, 2)
def test_zero_elements(ctx):
    b = SHMEMBuffer["f4"](0)
    assert (len(b), b.nbytes) == (0, 0)
    assert b.to_numpy().shape == (0,)
    assert np.asarray(b).shape == (0,)
    assert memoryview(b).nbytes == 0
    b.fill(3)
    b.enqueue_copy_from(np.empty(0, "f4"))
    b.enqueue_copy_to(np.empty(0, "f4"))
    nvsym.put(b, np.empty(0, "f4"), right_of(ctx))
    nvsym.get(b, b, right_of(ctx))
    nvsym.allreduce(b, b, "sum")
    assert len(b[:]) == len(b[5:9]) == len(b.peer(ctx.my_pe())) == 0
    assert len(SHMEMBuffer["f4"].zeros(0)) == len(SHMEMBuffer["f4"].full(0, 2)) == 0
    assert len(SHMEMBuffer["f4"].from_numpy(np.empty(0, "f4"))) == 0
    b.free()
    with refused(ctx, nvsym.FreedBufferError):
        b.to_numpy()


@pytest.mark.pes(1)
def test_it_cannot_be_pickled_copied_or_made_twice(ctx):
    b = SHMEMBuffer["f4"].zeros(2)
    for copying in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="to_numpy"):
            copying(b)
    with pytest.raises(TypeError, match="twice"):
        b.__init__(3)
    with pytest.raises(TypeError, match="element type"):
        SHMEMBuffer(3)
    assert_usable(ctx)


# ---- slices ---------------------------------------------------------------------------------------------------------

bounds = st.one_of(st.none(), st.integers(-40, 40))


@pytest.mark.pes(1, 2, 4)
@settings(max_examples=40)
@given(n=st.integers(0, 30), cuts=st.lists(st.tuples(bounds, bounds), min_size=1, max_size=4))
def test_slices_are_those_of_numpy(ctx, n, cuts):
    """A slice of slices has the bytes that NumPy's has, on this PE and, in put and get, on the next one."""
    me, n_pes = ctx.my_pe(), ctx.n_pes()
    whole = SHMEMBuffer["i4"].from_numpy(np.arange(n, dtype="i4") + 1000 * me)
    model = whole.to_numpy()
    view, expected = whole, model
    for start, stop in cuts:
        view, expected = view[start:stop], expected[start:stop]
    assert isinstance(view, SHMEMBuffer["i4"])
    assert len(view) == len(expected)
    if len(expected):
        assert view.unsafe_ptr() - whole.unsafe_ptr() == expected.ctypes.data - model.ctypes.data
    assert same_bytes(view.to_numpy(), expected)
    fetched = np.empty(len(view), "i4")
    nvsym.get(fetched, view, right_of(ctx))
    assert same_bytes(fetched, expected - 1000 * me + 1000 * right_of(ctx))
    nvsym.barrier_all()
    nvsym.put(view, np.full(len(view), -1 - me, "i4"), right_of(ctx))
    nvsym.barrier_all()
    expected[:] = -1 - (me - 1) % n_pes
    assert same_bytes(whole.to_numpy(), model)
    nvsym.barrier_all()


@pytest.mark.pes(1, 2)
def test_slices_that_are_refused(ctx):
    b = SHMEMBuffer["f4"].zeros(8)
    for key, error, word in (
        (slice(0, 8, 2), ValueError, "step"),
        (slice(None, None, -1), ValueError, "step"),
        (slice(0, 8, 0), ValueError, "step"),
        (3, TypeError, "slice"),
        ((slice(0, 2), slice(0, 2)), TypeError, "slice"),
        ("a", TypeError, "slice"),
        (slice(0.5, 3), TypeError, "slice"),
        (None, TypeError, "slice"),
        (..., TypeError, "slice"),
    ):
        with refused(ctx, error, word):
            b[key]
    with pytest.raises(TypeError):
        b[0:2] = 1
    assert len(b[::1]) == 8
    assert len(b[-(1 << 80) : 1 << 80]) == 8


@pytest.mark.pes(1, 2)
def test_a_view_keeps_its_parent(ctx):
    parent = SHMEMBuffer["i4"].from_numpy(np.arange(9, dtype="i4"))
    view = parent[2:8][1:3]
    live = ctx.heap.live
    del parent
    nvsym.collect()
    assert ctx.heap.live == live
    more = [SHMEMBuffer["i4"].zeros(9) for _ in range(5)]
    assert view.to_numpy().tolist() == [3, 4]
    del view
    nvsym.collect()
    assert ctx.heap.live == live - 1 + len(more)


@pytest.mark.pes(2)
def test_a_view_of_a_view_cannot_be_freed(ctx):
    b = SHMEMBuffer["i4"].zeros(9)
    with refused(ctx, ValueError, "view"):
        b[1:3].free()
    with refused(ctx, ValueError, "view"):
        (b[1:3] if ctx.my_pe() == 0 else b).free()  # on one PE only
    assert b.to_numpy().tolist() == [0] * 9


# ---- copies ---------------------------------------------------------------------------------------------------------


class Producer:
    """A DLPack producer that is nothing else: no buffer protocol, no array interface."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OldProducer(Producer):
    """One from before DLPack 1.0."""

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()


class Interface:
    """An object with NumPy's array interface alone."""

    def __init__(self, array):
        self.array = array
        self.__array_interface__ = array.__array_interface__


def float_sources(values):
    """The same float32 values in everything that a copy takes, and a way to read them back."""
    values = np.asarray(values, "f4")
    pinned = nvsym.HostBuffer("f4", len(values))
    pinned[:] = values
    raw = bytearray(values.tobytes())
    std = stdarray.array("f", values.tolist())
    own, own2, own3 = values.copy(), values.copy(), values.copy()
    buffer = nvsym.Buffer.from_numpy(values.copy())
    shaped = values.copy().reshape(len(values) // 2, 2)
    yield "array", own, lambda: own
    yield "HostBuffer", pinned, lambda: np.asarray(pinned)
    yield "memoryview", memoryview(raw).cast("f"), lambda: np.frombuffer(raw, "f4")
    yield "array.array", std, lambda: np.asarray(std)
    yield "DLPack", Producer(own2), lambda: own2
    yield "old DLPack", OldProducer(own3), lambda: own3
    yield "Buffer", buffer, buffer.to_numpy
    yield "two dimensions", shaped, shaped.ravel
    address = values.copy()
    yield "address", address.ctypes.data, lambda: address
    interface = values.copy()
    yield "array interface", Interface(interface), lambda: interface


@every_dtype
@pytest.mark.pes(2)
def test_copies_between_symmetric_buffers(ctx, dtype):
    """Also of element types that Python's buffer protocol does not have."""
    array = random_array(np.dtype(dtype), 5, ctx.my_pe())
    a, b = SHMEMBuffer[dtype].from_numpy(array), SHMEMBuffer[dtype].zeros(5)
    if not ctx.device.is_host and as_dtype(dtype).dlpack is None:
        pytest.skip("on GPUs such copies go by DLPack, which has no such type")
    b.enqueue_copy_from(a)
    assert same_bytes(b.to_numpy(), a.to_numpy())
    b.fill(0)
    a.enqueue_copy_to(b)
    assert same_bytes(b.to_numpy(), a.to_numpy())
    if ctx.device.is_host:
        b.fill(0)
        b.peer(ctx.my_pe()).inplace_copy_from(a)
        assert same_bytes(b.to_numpy(), a.to_numpy())
        assert same_bytes(SHMEMBuffer[dtype].from_numpy(a).to_numpy(), a.to_numpy())
    with pytest.raises(ValueError, match="src: 4 elements"):
        b.enqueue_copy_from(a[:4])


@pytest.mark.pes(2)
def test_an_error_that_no_message_makes(ctx):
    """Of a class that cannot be made from words alone: the words come all the same."""

    class Bad:
        def __array__(self, dtype=None, copy=None):
            raise ExceptionGroup("two things at once", [ValueError("a"), TypeError("b")])

    with refused(ctx, Exception, "two things at once", "PE 1"):
        SHMEMBuffer["i4"].from_numpy(Bad() if ctx.my_pe() else np.zeros(3, "i4"))


@pytest.mark.pes(1, 2)
@pytest.mark.parametrize("own_stream", [False, True], ids=["default stream", "own stream"])
def test_copies_from_and_to_everything(ctx, own_stream):
    stream = nvsym.Stream() if own_stream else None
    b = SHMEMBuffer["f4"](6)
    values = np.arange(6, dtype="f4") + ctx.my_pe()
    for name, source, _ in float_sources(values):
        b.fill(-1, stream=stream)
        b.enqueue_copy_from(source, stream=stream)
        (stream or ctx.stream).synchronize()
        assert same_bytes(b.to_numpy(), values), name
    for name, dest, read in float_sources(np.zeros(6, "f4")):
        b.enqueue_copy_to(dest, stream=stream)
        (stream or ctx.stream).synchronize()
        assert same_bytes(np.asarray(read(), "f4"), values), name
    u = SHMEMBuffer["u1"].full(4, 7)
    u.enqueue_copy_from(b"\1\2\3\4", stream=stream)
    raw = bytearray(4)
    u.enqueue_copy_to(raw, stream=stream)
    (stream or ctx.stream).synchronize()
    assert raw == b"\1\2\3\4"
    other = SHMEMBuffer["f4"].zeros(6)
    b.enqueue_copy_to(other, stream=stream)
    (stream or ctx.stream).synchronize()
    assert same_bytes(other.to_numpy(), values)


@pytest.mark.pes(1, 2)
def test_puts_and_gets_with_every_local_side(ctx):
    target = SHMEMBuffer["f4"].zeros(6)
    for name, source, _ in float_sources(np.arange(6, dtype="f4")):
        if name == "address":
            continue
        target.fill(-1)
        nvsym.barrier_all()
        nvsym.put(target, source, right_of(ctx))
        nvsym.barrier_all()
        assert target.to_numpy().tolist() == list(range(6)), name
        nvsym.barrier_all()
    for name, dest, read in float_sources(np.zeros(6, "f4")):
        if name == "address":
            continue
        nvsym.get(dest, target, right_of(ctx))
        assert np.asarray(read()).tolist() == list(range(6)), name
    with refused(ctx, TypeError, "source"):
        nvsym.put(target, 4096, right_of(ctx))
    with refused(ctx, TypeError, "dest"):
        nvsym.get(4096, target, right_of(ctx))


def bad_arrays(writable):
    """(error, object) of what cannot be one side of a copy of six float32."""
    yield TypeError, np.zeros(6, "f8")
    yield TypeError, np.zeros(6, "i4")
    yield TypeError, np.zeros(6, ">f4")
    yield TypeError, np.zeros(6, ml_dtypes.bfloat16)
    yield TypeError, bytearray(24)
    yield TypeError, [0.0] * 6
    yield TypeError, "string"
    yield TypeError, None
    yield TypeError, True
    yield TypeError, 3.5
    yield TypeError, object()
    yield TypeError, np.zeros(6, object)
    yield ValueError, np.zeros(5, "f4")
    yield ValueError, np.zeros(7, "f4")
    yield ValueError, np.zeros((), "f4")
    yield ValueError, np.zeros((6, 2), "f4")
    yield ValueError, np.zeros(12, "f4")[::2]
    yield ValueError, np.zeros(6, "f4")[::-1]
    yield ValueError, np.zeros((2, 3), "f4").T
    yield ValueError, np.broadcast_to(np.float32(0), 6)
    yield ValueError, memoryview(np.zeros(12, "f4"))[::2]
    yield ValueError, Producer(np.zeros(12, "f4")[::2])
    yield ValueError, Producer(np.zeros(5, "f4"))
    yield TypeError, Producer(np.zeros(6, "f8"))
    yield ValueError, nvsym.HostBuffer("f4", 12)[::2]
    if writable:
        frozen = np.zeros(6, "f4")
        frozen.flags.writeable = False
        yield ValueError, frozen
        yield ValueError, memoryview(frozen)
        yield ValueError, nvsym.Buffer.from_numpy(frozen)


@pytest.mark.pes(1, 2)
def test_bad_arrays_are_refused_before_anything_moves(ctx):
    b = SHMEMBuffer["f4"].full(6, 5)
    stream = nvsym.Stream()
    for error, bad in bad_arrays(False):
        for use_stream in (None, stream):
            with pytest.raises(error, match=r"^src: "):
                b.enqueue_copy_from(bad, stream=use_stream)
            with pytest.raises(error, match=r"^source: "):
                nvsym.put(b, bad, right_of(ctx), stream=use_stream)
    for error, bad in bad_arrays(True):
        before = np.array(bad, copy=True) if isinstance(bad, np.ndarray) else None
        with pytest.raises(error, match=r"^dst: "):
            b.enqueue_copy_to(bad)
        with pytest.raises(error, match=r"^dest: "):
            nvsym.get(bad, b, right_of(ctx))
        if before is not None and before.dtype != object:
            assert same_bytes(before, bad)
    stream.synchronize()
    nvsym.barrier_all()
    assert b.to_numpy().tolist() == [5] * 6
    # An address is named where it is taken.
    with pytest.raises(TypeError, match=r"^src: expected an address \(int\), .*, not list$"):
        b.enqueue_copy_from([0.0] * 6)
    with pytest.raises(TypeError, match=r"^dst: expected an address \(int\), .*, not list$"):
        b.enqueue_copy_to([0.0] * 6)
    for address in (0, -1, 1 << 64, 1 << 200):
        with pytest.raises(ValueError, match=r"^(src|dst): "):
            b.enqueue_copy_from(address)
        with pytest.raises(ValueError, match=r"^(src|dst): "):
            b.enqueue_copy_to(address)
    assert_usable(ctx)


@pytest.mark.pes(2, 4)
def test_from_numpy_refuses_on_every_pe(ctx):
    cls = SHMEMBuffer["f4"]
    good = np.zeros(6, "f4")
    me = ctx.my_pe()
    for error, bad, word in (
        (TypeError, np.zeros(6, "f8"), "array"),
        (ValueError, np.zeros(12, "f4")[::2], "array"),
        (TypeError, None, "array"),
        (TypeError, [1.0] * 6, "array: expected a C-contiguous array in host memory, not list"),
        (TypeError, np.zeros(6, object), "array"),
        (
            TypeError,
            np.ma.array(np.zeros(6, "f4"), mask=[0, 1, 0, 0, 0, 0]),
            "array: a MaskedArray with masked elements",
        ),
    ):
        with refused(ctx, error, word, "PE 1"):
            cls.from_numpy(bad if me == 1 else good)
        with refused(ctx, error, word):
            cls.from_numpy(bad)
    with refused(ctx, nvsym.CollectiveError, "PE 0", "PE 1"):
        cls.from_numpy(np.zeros(6 + (me == 0), "f4"))
    flat = cls.from_numpy(np.arange(6, dtype="f4").reshape(2, 3))
    assert flat.to_numpy().tolist() == list(range(6))
    assert len(cls.from_numpy(np.ma.array(good, mask=False))) == 6


@pytest.mark.pes(1, 2)
def test_a_freed_buffer_is_named_as_an_argument(ctx):
    b, freed = SHMEMBuffer["f4"].full(6, 1), SHMEMBuffer["f4"].full(6, 2)
    peer, me = freed.peer(ctx.my_pe()), ctx.my_pe()
    mine = b.peer(me)
    signal = SHMEMBuffer["u8"].zeros(1)
    freed.free()
    for use in (freed, peer):
        for name, call in (
            ("dst", lambda x: b.enqueue_copy_to(x)),
            ("src", lambda x: b.enqueue_copy_from(x)),
            ("src", lambda x: mine.inplace_copy_from(x)),
            ("source", lambda x: nvsym.put(b, x, me)),
            ("dest", lambda x: nvsym.get(x, b, me)),
            ("source", lambda x: nvsym.put_signal(b, x, signal, 1, me)),
            ("argument 1", lambda x: ctx.enqueue_function(print, b, x, grid_dim=1, block_dim=1)),
        ):
            if ctx.device.is_host or not name.startswith("argument"):
                with pytest.raises(nvsym.FreedBufferError, match=f"^{name}: "):
                    call(use)
    nvsym.barrier_all()


@pytest.mark.pes(1, 2)
def test_dtypes_and_lengths_of_two_buffers_must_agree(ctx):
    a, b, c = SHMEMBuffer["f4"].full(6, 1), SHMEMBuffer["f8"].full(6, 2), SHMEMBuffer["f4"].full(5, 3)
    for call in (nvsym.put, nvsym.get):
        with refused(ctx, TypeError, "float64", "float32"):
            call(a, b, right_of(ctx))
        with refused(ctx, ValueError, "5", "6"):
            call(a, c, right_of(ctx))
        with refused(ctx, TypeError, "SHMEMBuffer"):
            call(np.zeros(6, "f4"), np.zeros(6, "f4"), right_of(ctx))
    for pe in (-1, ctx.n_pes(), 1 << 20, -(1 << 31), 1 << 31, 1 << 40, -(1 << 70)):
        for call in (nvsym.put, nvsym.get):
            with refused(ctx, ValueError, "pe: ", f"0..{ctx.n_pes() - 1}"):
                call(a, a, pe)
        with refused(ctx, ValueError, "pe: "):
            a.peer(pe)
    for pe in (0.0, "0", None, [0]):
        for call in (nvsym.put, nvsym.get):
            with refused(ctx, TypeError, "pe: "):
                call(a, a, pe)
        with refused(ctx, TypeError, "pe: "):
            a.peer(pe)
    assert a.to_numpy().tolist() == [1] * 6
    nvsym.barrier_all()
    nvsym.put(a[0:2], c[0:2], np.int32(0))  # an integer of NumPy is an integer
    nvsym.barrier_all()


# ---- making one: n, values, differences ----------------------------------------------------------------------------


@pytest.mark.pes(1, 2, 4)
def test_n_must_be_a_number_of_elements(ctx):
    cls = SHMEMBuffer["f8"]
    for n, error in (
        (-1, ValueError),
        (-(1 << 70), ValueError),
        (True, TypeError),
        (False, TypeError),
        (2.0, TypeError),
        ("3", TypeError),
        (None, TypeError),
        ([3], TypeError),
        (np.True_, TypeError),
        (np.float64(3), TypeError),
        (np.array([3]), TypeError),
        (1 << 61, ValueError),
        (1 << 62, ValueError),
        (1 << 63, ValueError),
        (1 << 200, ValueError),
        # Times the item size these wrap around in 64 bits.
        (np.int64(1 << 61), ValueError),
        (np.int64(1 << 62), ValueError),
        (np.uint64(1 << 61), ValueError),
        (np.int64(-1), ValueError),
    ):
        for make in (cls, cls.zeros, lambda n: cls.full(n, 1)):
            with pytest.raises(error, match="n: "):
                make(n)
        if ctx.n_pes() > 1:
            with pytest.raises(error, match=r"n: .*"):
                cls(n if ctx.my_pe() == 1 else 4)
    assert_usable(ctx)
    assert len(cls(np.int16(3))) == len(cls(np.uint8(3))) == 3


@pytest.mark.pes(1, 2)
def test_more_than_the_heap(ctx):
    live, used = ctx.heap.live, ctx.heap.used
    for n in (ctx.heap.size // 8 + 1, 1 << 50, (1 << 59) - 1):
        with refused(ctx, nvsym.HeapExhaustedError, "NVSYM_HEAP_SIZE", "heap_size", "free", "live", str(n)):
            SHMEMBuffer["f8"](n)
        with refused(ctx, MemoryError):
            SHMEMBuffer["f8"].zeros(n)
    assert (ctx.heap.live, ctx.heap.used) == (live, used)


@pytest.mark.pes(2, 4)
def test_pes_that_ask_for_different_buffers(ctx):
    me = ctx.my_pe()
    odd = me == ctx.n_pes() - 1
    with refused(ctx, nvsym.CollectiveError, "PE 0", f"PE {ctx.n_pes() - 1}", "SHMEMBuffer[float32](10)", "(11)"):
        SHMEMBuffer["f4"](11 if odd else 10)
    with refused(ctx, nvsym.CollectiveError, "float32", "int32"):
        SHMEMBuffer["i4" if odd else "f4"](10)
    with refused(ctx, nvsym.CollectiveError):
        SHMEMBuffer["i4"].zeros(5) if odd else SHMEMBuffer["i4"].full(6, 1)
    for fill in (SHMEMBuffer["i4"].zeros, lambda n: SHMEMBuffer["i4"].from_numpy(np.zeros(n, "i4"))):
        with refused(ctx, nvsym.CollectiveError, "allocating and filling SHMEMBuffer[int32](5)"):
            fill(5) if odd else SHMEMBuffer["i4"](5)  # the PEs do not vote over the contents of both
    keep = SHMEMBuffer["i4"].zeros(5)
    with refused(ctx, nvsym.CollectiveError, "allocation", "free"):
        keep.free() if odd else SHMEMBuffer["i4"](5)
    with refused(ctx, nvsym.CollectiveError, "collect", "allocation"):
        nvsym.collect() if odd else SHMEMBuffer["i4"](5)
    assert not keep.is_freed
    assert keep.to_numpy().tolist() == [0] * 5
    keep.free()


@pytest.mark.pes(1, 2)
def test_values(ctx):
    """A value is one number that the element type can hold without losing what it is."""
    for dtype, value, error in (
        ("u1", 256, OverflowError),
        ("u1", -1, OverflowError),
        ("i4", 1 << 31, OverflowError),
        ("i4", 1.5, TypeError),
        ("i4", "3", TypeError),
        ("f4", "3", TypeError),
        ("f4", None, TypeError),
        ("f4", 1j, TypeError),
        ("f4", object(), TypeError),
        ("f4", np.ma.masked, TypeError),
        ("i4", np.float32(2), TypeError),
        ("f4", [1, 2], ValueError),
        ("f4", [], ValueError),
        ("f4", [1.0], ValueError),
        (bool, 2, TypeError),
        ("f4", 1e300, OverflowError),
        ("f4", np.float64(-1e39), OverflowError),
        ("f2", 70000, OverflowError),
        ("c8", 1e300j, OverflowError),
        (ml_dtypes.float8_e4m3fn, 1000.0, OverflowError),
    ):
        with refused(ctx, error, "value: "):
            SHMEMBuffer[dtype].full(3, value)
        b = SHMEMBuffer[dtype].full(3, 1)
        with refused(ctx, error, "value: "):
            b.fill(value)
        assert b.to_numpy().tolist() == [1] * 3
    for dtype, value in (
        ("f4", 1),
        ("f4", True),
        ("f4", np.float64(0.5)),
        ("c8", 1j),
        ("c8", 2),
        (bool, True),
        (bool, 0),
        ("i4", True),
        ("u1", 255),
        ("f4", np.inf),
        ("f4", -np.inf),
        ("f4", np.nan),
        ("f2", 65504),
        (ml_dtypes.bfloat16, 1.5),
        ("f2", np.array(3.0)),
        ("i8", np.uint8(3)),
        ("longdouble", np.longdouble(1) / 3),
        ("u8", (1 << 64) - 1),
        (ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16(2)),
    ):
        b = SHMEMBuffer[dtype].full(3, value)
        assert same_bytes(b.to_numpy(), np.full(3, value, b.dtype))
        b.fill(value)
        assert same_bytes(b.to_numpy(), np.full(3, value, b.dtype))


@pytest.mark.pes(2)
def test_a_bad_value_on_one_pe(ctx):
    live = ctx.heap.live
    with refused(ctx, TypeError, "value: ", "PE 1"):
        SHMEMBuffer["i4"].full(3, "x" if ctx.my_pe() == 1 else 1)
    assert ctx.heap.live == live


@pytest.mark.pes(2, 4)
def test_no_memory_for_the_contents_on_one_pe(ctx, monkeypatch):
    """What fails on one PE after the allocation is an error of all, too."""
    if ctx.my_pe() == 1:

        def repeat(*args, **options):
            raise MemoryError("no memory to repeat the value")

        monkeypatch.setattr(np, "repeat", repeat)
    with pytest.raises(MemoryError, match=r"PE 1.*no memory to repeat"):
        SHMEMBuffer["i4"].full(3, 1)
    monkeypatch.undo()
    assert_usable(ctx)


# ---- free -----------------------------------------------------------------------------------------------------------


def uses_of(b):
    """Every use of a buffer that needs its memory."""
    other = np.zeros(len(b), b.dtype)
    signal = SHMEMBuffer["u8"].zeros(1)
    yield "to_numpy", b.to_numpy
    yield "unsafe_ptr", b.unsafe_ptr
    yield "slice", lambda: b[0:1]
    yield "fill", lambda: b.fill(1)
    yield "peer", lambda: b.peer(0)
    yield "multicast", b.multicast
    yield "copy_to", lambda: b.enqueue_copy_to(other)
    yield "copy_from", lambda: b.enqueue_copy_from(other)
    yield "put to", lambda: nvsym.put(b, other, 0)
    yield "get from", lambda: nvsym.get(other, b, 0)
    yield "put_signal", lambda: nvsym.put_signal(b, other, signal, 1, 0)
    yield "allreduce", lambda: nvsym.allreduce(b, b, "sum")
    yield "broadcast", lambda: nvsym.broadcast(b, b, 0)
    yield "enter", b.__enter__
    yield "buffer protocol", lambda: memoryview(b)
    yield "array", lambda: np.asarray(b)
    yield "dlpack", b.__dlpack__
    yield "dlpack device", b.__dlpack_device__


@pytest.mark.pes(1, 2)
def test_use_after_free(ctx):
    b = SHMEMBuffer["f4"].full(6, 1)
    view = b[1:4]
    peer = b.peer(ctx.my_pe())
    live = SHMEMBuffer["f4"].full(6, 9)
    b.free()
    assert b.is_freed
    assert view.is_freed
    assert "freed" in repr(b)
    assert "freed" in repr(view)
    assert (len(b), b.nbytes, b.dtype) == (6, 24, np.float32)
    for each in (b, view):
        for name, use in uses_of(each):
            print(name)  # for the report of a failure
            with pytest.raises(nvsym.FreedBufferError, match="freed"):
                use()
    for use in (
        peer.to_numpy,
        peer._data_ptr,
        lambda: peer[0:1],
        lambda: np.asarray(peer),
        peer.__dlpack__,
        lambda: peer.inplace_copy_from(np.zeros(6, "f4")),
        lambda: peer.view("i4"),
        peer.copy,
    ):
        with pytest.raises(nvsym.FreedBufferError, match="freed"):
            use()
    for call in (
        lambda: nvsym.put(live, b, 0),
        lambda: nvsym.get(b, live, 0),
        lambda: nvsym.put(live, peer, 0),
        lambda: live.enqueue_copy_from(peer),
        lambda: live.enqueue_copy_to(peer),
        lambda: live.enqueue_copy_to(b),
    ):
        with pytest.raises(nvsym.FreedBufferError, match="freed"):
            call()
    with refused(ctx, nvsym.FreedBufferError, "freed"):
        b.free()
    with refused(ctx, (nvsym.FreedBufferError, ValueError)):
        view.free()
    assert live.to_numpy().tolist() == [9] * 6
    with pytest.raises(nvsym.FreedBufferError), b:
        pass


@pytest.mark.pes(2, 4)
def test_free_must_be_of_one_buffer(ctx):
    a, b = SHMEMBuffer["f4"].full(6, 1), SHMEMBuffer["f4"].full(6, 2)
    with refused(ctx, nvsym.CollectiveError, "PE 0", "PE 1"):
        (a if ctx.my_pe() == 0 else b).free()
    assert not a.is_freed
    assert not b.is_freed
    assert (a.to_numpy().tolist(), b.to_numpy().tolist()) == ([1] * 6, [2] * 6)
    a.free()
    with refused(ctx, nvsym.FreedBufferError):
        (a if ctx.my_pe() == 0 else b).free()  # freed already on one PE
    assert not b.is_freed
    b.free()


@pytest.mark.pes(1, 2)
def test_with_blocks(ctx):
    live = ctx.heap.live
    with SHMEMBuffer["f4"](6) as b:
        assert ctx.heap.live == live + 1
    assert b.is_freed
    assert ctx.heap.live == live
    with SHMEMBuffer["f4"](6) as b:
        b.free()
    assert ctx.heap.live == live
    with pytest.raises(KeyError), SHMEMBuffer["f4"].full(6, 4) as b:
        raise KeyError
    assert not b.is_freed  # the other PEs may not have come here
    assert b.to_numpy().tolist() == [4] * 6
    del b
    gc.collect()
    nvsym.collect()
    assert ctx.heap.live == live


@pytest.mark.pes(2, 4)
def test_an_exception_in_one_pes_with_block(ctx):
    live = ctx.heap.live
    try:
        with SHMEMBuffer["f4"](6) as b:
            if ctx.my_pe() == 1:
                raise KeyError
            nvsym.signal_op
            raise ValueError
    except (KeyError, ValueError):
        pass
    del b
    gc.collect()
    nvsym.collect()
    assert ctx.heap.live == live
    assert_usable(ctx)


# ---- peer, adopt ----------------------------------------------------------------------------------------------------


@pytest.mark.pes(1, 2, 4)
def test_peer(ctx):
    me = ctx.my_pe()
    b = SHMEMBuffer["f4"].full(6, me)
    for pe in range(ctx.n_pes()):
        peer = b.peer(pe)
        assert isinstance(peer, nvsym.Buffer)
        assert (peer.dtype, peer.shape, peer.device.pe) == (np.float32, (6,), pe)
        assert peer.to_numpy().tolist() == [pe] * 6
        assert b[2:4].peer(pe)._data_ptr() == peer._data_ptr() + 8
    assert b.peer(me)._data_ptr() == b.unsafe_ptr()
    nvsym.barrier_all()
    b[me : me + 1].peer(right_of(ctx)).inplace_copy_from(np.full(1, 100 + me, "f4"))
    nvsym.barrier_all()
    left = (me - 1) % ctx.n_pes()
    assert b.to_numpy()[left] == 100 + left
    nvsym.barrier_all()
    np.asarray(b.peer(right_of(ctx)))[5] = -me
    nvsym.barrier_all()
    assert b.to_numpy()[5] == -left


@pytest.mark.pes(2, 4, nodes=2)
def test_peer_on_another_node(ctx):
    b = SHMEMBuffer["f4"].full(6, ctx.my_pe())
    nodes = ctx.nodes()
    unreachable = [pe for pe in range(ctx.n_pes()) if nodes[pe] != nodes[ctx.my_pe()]]
    assert unreachable
    for pe in range(ctx.n_pes()):
        if pe in unreachable:
            with pytest.raises(nvsym.PeerUnreachableError, match=f"PE {pe}.*put and get") as caught:
                b.peer(pe)
            assert caught.value.pes == (pe,)
        else:
            assert b.peer(pe).to_numpy().tolist() == [pe] * 6
    out = np.empty(3, "f4")
    for pe in range(ctx.n_pes()):
        nvsym.get(out, b[1:4], pe)
        assert out.tolist() == [pe] * 3
    nvsym.barrier_all()


@pytest.mark.pes(1, 2)
def test_no_multicast_on_host(ctx, nvsym_backend):
    if nvsym_backend != "host":
        pytest.skip("multicast: this backend may have it")
    with refused(ctx, nvsym.MulticastUnsupportedError, "host memory has no multicast"):
        SHMEMBuffer["f4"](6).multicast()


@pytest.mark.pes(1, 2)
def test_adopt(ctx):
    me = ctx.my_pe()
    base = SHMEMBuffer["u1"].zeros(64)
    live = ctx.heap.live
    adopted = SHMEMBuffer["f4"].adopt(base.unsafe_ptr() + 8, 4, owner=base)
    assert ctx.heap.live == live
    assert isinstance(adopted, SHMEMBuffer["f4"])
    assert (len(adopted), adopted.unsafe_ptr()) == (4, base.unsafe_ptr() + 8)
    nvsym.barrier_all()
    nvsym.put(adopted[1:3], np.full(2, 5 + me, "f4"), right_of(ctx))
    nvsym.barrier_all()
    left = (me - 1) % ctx.n_pes()
    assert base.to_numpy()[8:24].view("f4").tolist() == [0, 5 + left, 5 + left, 0]
    assert adopted.peer(me).to_numpy().tolist() == [0, 5 + left, 5 + left, 0]
    nvsym.barrier_all()
    view = adopted[1:2]
    if me == 0:  # it is no part of the heap: freeing it is nobody else's matter
        with pytest.raises(ValueError, match="view"):
            view.free()
        assert not adopted.is_freed
        adopted.free()
        assert adopted.is_freed
        assert view.is_freed
        for use in (adopted.to_numpy, view.to_numpy, adopted.free):
            with pytest.raises(nvsym.FreedBufferError, match="freed"):
                use()
    assert not base.is_freed
    assert_usable(ctx)


@pytest.mark.pes(1, 2)
def test_what_is_adopted_keeps_its_owner(ctx):
    """Also where only an array, a peer's Buffer or a view is left."""
    for holder in (
        lambda a: a,
        lambda a: a[1:2],
        np.asarray,
        lambda a: a.peer(ctx.my_pe()),
        lambda a: np.asarray(a.peer(ctx.my_pe())),
        np.from_dlpack,
    ):
        base = SHMEMBuffer["f4"].full(4, 6)
        live = ctx.heap.live
        held = holder(SHMEMBuffer["f4"].adopt(base.unsafe_ptr(), 4, owner=base))
        del base
        gc.collect()
        nvsym.collect()
        assert ctx.heap.live == live
        more = SHMEMBuffer["f4"].full(4, 1)
        assert (np.asarray(held) == 6).all()
        del held, more
        gc.collect()
        nvsym.collect()
        assert ctx.heap.live == live - 1


@pytest.mark.pes(1)
def test_adopt_checks_the_range(ctx):
    b = SHMEMBuffer["f4"].zeros(4)
    ptr = b.unsafe_ptr()
    cls = SHMEMBuffer["f4"]
    for bad in (0, ptr + 1, ptr + 2, ptr + (1 << 40), 4096, -ptr, 1 << 70):
        with refused(ctx, ValueError, "ptr: "):
            cls.adopt(bad, 4)
    for n in (-1, 1 << 30, 1 << 61, 1 << 62, 1 << 63, 1 << 80):
        with refused(ctx, ValueError):
            cls.adopt(ptr, n)
    for bad in ("x", None, 1.5):
        with refused(ctx, TypeError, "ptr: "):
            cls.adopt(bad, 4)
        with refused(ctx, TypeError, "n: "):
            cls.adopt(ptr, bad)
    assert len(cls.adopt(ptr, 0)) == 0
    assert len(SHMEMBuffer["u1"].adopt(ptr, 16)) == 16
