# SPDX-License-Identifier: Apache-2.0
"""Memory that others alias: NumPy, memoryview and DLPack, in both directions."""

import ctypes
import gc

import ml_dtypes
import numpy as np
import pytest
from jobcheck import assert_usable, random_array, same_bytes

import nvsym
from nvsym import SHMEMBuffer
from nvsym.dtypes import DTYPES

CPU = (1, 0)
PES = pytest.mark.pes(1, 2)
pythonapi = ctypes.pythonapi
pythonapi.PyCapsule_GetName.restype = ctypes.c_char_p
pythonapi.PyCapsule_GetName.argtypes = [ctypes.py_object]
pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
pythonapi.PyCapsule_New.restype = ctypes.py_object
pythonapi.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Tensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Plain(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


class Producer:
    """A tensor made by hand, field by field, that counts how often it is given back."""

    def __init__(self, array, *, version=(1, 0), strides=None, offset=0, flags=0, device=CPU, dtype=None, shape=None):
        self.array = array
        self.device = device
        self.returned = 0
        shape = array.shape if shape is None else shape
        self.managed = Plain() if version is None else Versioned(*version)
        self.name = b"dltensor" if version is None else b"dltensor_versioned"
        if version is not None:
            self.managed.flags = flags
        element = next(d for d in DTYPES if d.numpy == array.dtype)
        code, bits, lanes = (*element.dlpack, 1) if dtype is None else dtype
        self.shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        self.strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        tensor = self.managed.tensor
        tensor.data, tensor.byte_offset = array.ctypes.data, offset
        tensor.device_type, tensor.device_id = device
        tensor.ndim, tensor.code, tensor.bits, tensor.lanes = len(shape), code, bits, lanes
        tensor.shape = self.shape
        if strides is not None:
            tensor.strides = self.strides
        self.managed.deleter = self.deleter = DELETER(self.give_back)

    def give_back(self, _):
        self.returned += 1

    def __dlpack__(self, *, max_version=None, stream=None, dl_device=None, copy=None):
        return pythonapi.PyCapsule_New(ctypes.addressof(self.managed), self.name, None)

    def __dlpack_device__(self):
        return self.device


def fields_of(capsule):
    """The tensor of a capsule that nobody has taken yet."""
    name = pythonapi.PyCapsule_GetName(capsule)
    kind = {b"dltensor": Plain, b"dltensor_versioned": Versioned}[name]
    return name, kind.from_address(pythonapi.PyCapsule_GetPointer(capsule, name))


# ---- ours, for others -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [d.numpy for d in DTYPES], ids=[d.name for d in DTYPES])
@pytest.mark.pes(1)
def test_every_dtype_is_aliased(ctx, dtype):
    values = random_array(dtype, 10, 4)
    b = SHMEMBuffer[dtype].from_numpy(values)
    element = next(d for d in DTYPES if d.numpy == dtype)
    array = np.asarray(b)
    assert same_bytes(array, values)
    assert array.ctypes.data == b.unsafe_ptr()
    assert array.flags.writeable
    array[2:4] = random_array(dtype, 2, 5)
    values[2:4] = random_array(dtype, 2, 5)
    assert same_bytes(b.to_numpy(), values)
    assert same_bytes(np.asarray(b[3:7]), values[3:7])
    assert b.__dlpack_device__() == CPU
    if element.dlpack is None:
        with pytest.raises(BufferError, match=element.name):
            b.__dlpack__()
    else:
        for options, name in (
            ({}, b"dltensor"),
            ({"max_version": (0, 8)}, b"dltensor"),
            ({"max_version": (1, 0)}, b"dltensor_versioned"),
            ({"max_version": (2, 3)}, b"dltensor_versioned"),
        ):
            capsule = b[3:7].__dlpack__(**options)
            found, managed = fields_of(capsule)
            assert found == name
            tensor = managed.tensor
            assert (tensor.code, tensor.bits, tensor.lanes) == (*element.dlpack, 1)
            assert (tensor.ndim, tensor.shape[0], tensor.strides[0]) == (1, 4, 1)
            assert tensor.data + tensor.byte_offset == b.unsafe_ptr() + 3 * dtype.itemsize
            assert (tensor.device_type, tensor.device_id) == CPU
            if name == b"dltensor_versioned":
                assert (managed.major, managed.flags) == (1, 0)
            del capsule  # nobody took it: it is given back
    if element.kind != "float" or element.name in ("float16", "float32", "float64"):
        if element.dlpack is not None:
            assert np.from_dlpack(b).ctypes.data == b.unsafe_ptr()
        view = memoryview(b)
        assert (view.nbytes, view.shape, view.readonly) == (b.nbytes, (10,), False)
        view.release()
    elif dtype != np.longdouble:
        with pytest.raises(BufferError, match=element.name):  # Python's buffers have no such type
            memoryview(b)
    assert np.asarray(b.peer(0)).ctypes.data == b.unsafe_ptr()
    # The counts of aliases are right: this is freed at once.
    del array
    b.free()
    assert ctx.heap.deferred == 0


@pytest.mark.pes(1)
def test_dlpack_options(ctx):
    b = SHMEMBuffer["f4"].from_numpy(np.arange(4, dtype="f4"))
    assert np.from_dlpack(b, device="cpu").ctypes.data == b.unsafe_ptr()
    duplicate = np.from_dlpack(b, copy=True)
    assert duplicate.ctypes.data != b.unsafe_ptr()
    assert duplicate.tolist() == [0, 1, 2, 3]
    assert np.from_dlpack(b, copy=False).ctypes.data == b.unsafe_ptr()
    _, managed = fields_of(capsule := b.__dlpack__(max_version=(1, 0), copy=True))
    assert managed.flags & 2  # DLPACK_FLAG_BITMASK_IS_COPIED
    del capsule
    with pytest.raises(BufferError, match="device"):
        b.__dlpack__(dl_device=(2, 0))
    two = nvsym.Buffer.from_numpy(np.arange(6, dtype="f4").reshape(2, 3))
    assert np.from_dlpack(two).tolist() == [[0, 1, 2], [3, 4, 5]]
    scalar = nvsym.Buffer.from_numpy(np.array(5.0))
    assert np.from_dlpack(scalar) == 5
    assert np.from_dlpack(SHMEMBuffer["f4"](0)).shape == (0,)


def aliases(b):
    """Each way to hold the memory of a buffer."""
    return {
        "array": np.asarray(b),
        "part": np.asarray(b)[1:],
        "view": np.asarray(b[0:2]),
        "memoryview": memoryview(b),
        "tensor": np.from_dlpack(b),
        "capsule": b.__dlpack__(),
        "peer": np.asarray(b.peer(b.device.pe)),
        "buffer": np.asarray(memoryview(b.peer(b.device.pe))),
    }


ALIASES = ("array", "part", "view", "memoryview", "tensor", "capsule", "peer", "buffer")


@pytest.mark.pes(1, 2)
@pytest.mark.parametrize("which", ALIASES)
def test_a_block_is_not_reused_while_an_alias_lives(ctx, which):
    """After free, and after a drop, on whichever PE the alias is."""
    me = ctx.my_pe()
    for holder in range(ctx.n_pes()):
        for drop in (False, True):
            live = ctx.heap.live
            b = SHMEMBuffer["i4"].full(3, 42)
            address = b.unsafe_ptr()
            held = aliases(b)[which] if me == holder else None
            if not drop:
                b.free()
                with pytest.raises(nvsym.FreedBufferError):
                    np.asarray(b)
            del b
            gc.collect()
            nvsym.collect()
            assert ctx.heap.live == live + 1
            others = [SHMEMBuffer["i4"].full(3, 7) for _ in range(4)]
            assert all(other.unsafe_ptr() != address for other in others)
            if held is not None and which != "capsule":
                assert np.asarray(held).tolist() == [42] * len(held)
                if which != "memoryview":
                    held[:] = 43
                assert all(other.to_numpy().tolist() == [7] * 3 for other in others)
            del held, others
            gc.collect()
            nvsym.collect()
            assert ctx.heap.live == live


@pytest.mark.pes(1)
def test_small_floats_without_a_copy(ctx):
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        b = SHMEMBuffer[dtype].zeros(4)
        array = np.asarray(b)
        assert array.dtype == dtype
        array[:] = [0, 1, 2, -0.5]
        assert b.to_numpy().astype("f4").tolist() == [0, 1, 2, -0.5]
        assert np.array(b, dtype="f4").tolist() == [0, 1, 2, -0.5]
        with pytest.raises(ValueError, match="copy"):
            np.array(b, dtype="f4", copy=False)
        part = b[1:3].__array__()
        assert part.ctypes.data == b.unsafe_ptr() + b.itemsize
        del array, part
        b.free()


def test_aliases_survive_finalize(mpirun):
    """The job ends, and what others hold of its memory stays."""
    result = mpirun(
        2,
        """
        import gc
        import numpy as np, nvsym
        ctx = nvsym.init(heap_size="8M")
        me = ctx.my_pe()
        b = nvsym.SHMEMBuffer["i4"].full(1000, 5 + me)
        small = nvsym.SHMEMBuffer["bfloat16"].full(3, 2)
        held = [np.asarray(b), np.from_dlpack(b), memoryview(b), np.asarray(b.peer(1 - me)), b.__dlpack__()]
        held.append(np.asarray(small))
        freed = nvsym.SHMEMBuffer["i4"].full(10, 9)
        late = np.asarray(freed)
        freed.free()
        view, peer = b[2:5], b.peer(1 - me)
        nvsym.barrier_all()
        nvsym.finalize()
        gc.collect()
        for use in (b.to_numpy, lambda: b[0:1], view.to_numpy, peer.to_numpy, b.free, freed.to_numpy,
                    lambda: np.asarray(b),
                    lambda: nvsym.put(b, b, 0), lambda: nvsym.SHMEMBuffer["i4"](3), nvsym.collect, nvsym.barrier_all,
                    lambda: ctx.heap, ctx.my_pe):
            try:
                use()
            except nvsym.NotInitializedError as error:
                assert "finalize" in str(error) or "ended" in str(error), error
            else:
                raise AssertionError("used after finalize")
        assert b.is_freed and view.is_freed
        del b, small, view, peer, freed
        gc.collect()
        assert (held[0] == 5 + me).all() and (held[1] == 5 + me).all() and held[2][999] == 5 + me
        assert (held[3] == 6 - me).all() and held[5].astype("f4").tolist() == [2, 2, 2]
        assert (late == 9).all()
        # A second job has memory of its own, and the aliases of the first one are nothing to it.
        nvsym.init(heap_size="8M")
        held[0][:] = 1  # the other PE has looked by now
        c = nvsym.SHMEMBuffer["i4"].full(1000, 3)
        held.pop(0)
        del late
        gc.collect()
        assert nvsym.context().heap.live == 1
        nvsym.barrier_all()
        held[0][:] = 8
        assert (c.to_numpy() == 3).all()
        nvsym.finalize()
        print("fine")
    """,
    )
    assert result.stdout.count("fine") == 2


# ---- others', for us ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, (1, 0), (1, 7)], ids=["plain", "1.0", "1.7"])
@pytest.mark.pes(1)
def test_tensors_of_others(ctx, version):
    for element in DTYPES:
        if element.dlpack is None:
            continue
        values = random_array(element.numpy, 6, 7)
        b = SHMEMBuffer[element.numpy](6)
        for strides, shape in (
            (None, (6,)),
            ((1,), (6,)),
            ((3, 1), (2, 3)),
            ((6, 77, 1), (1, 1, 6)),
            (None, (1, 2, 3)),
        ):
            producer = Producer(values, version=version, strides=strides, shape=shape)
            b.enqueue_copy_from(producer)
            gc.collect()
            assert producer.returned == 1
            assert same_bytes(b.to_numpy(), values)
        out = np.zeros(8, element.numpy)
        producer = Producer(out, version=version, offset=2 * element.itemsize, shape=(6,))
        b.enqueue_copy_to(producer)
        assert producer.returned == 1
        assert same_bytes(out[2:], values)


@pytest.mark.pes(1)
def test_tensors_that_are_refused_are_given_back(ctx):
    b = SHMEMBuffer["f4"].full(6, 3)
    six = np.zeros(6, "f4")
    for producer, error in (
        (Producer(six, strides=(2,), shape=(3,)), ValueError),
        (Producer(six, strides=(1, 3), shape=(3, 2)), ValueError),
        (Producer(six, strides=(0,)), ValueError),
        (Producer(six, strides=(-1,)), ValueError),
        (Producer(six, shape=(5,)), ValueError),
        (Producer(six, shape=()), ValueError),
        (Producer(np.zeros(6)), TypeError),
        (Producer(six, dtype=(2, 32, 2)), TypeError),
        (Producer(six, dtype=(2, 24, 1)), TypeError),
        (Producer(six, dtype=(9, 32, 1)), TypeError),
        (Producer(six, version=(2, 0)), (BufferError, TypeError)),
        (Producer(six, shape=(1 << 62, 4)), ValueError),
        (Producer(six, shape=(-6,)), ValueError),
    ):
        for call, name in ((b.enqueue_copy_from, "src"), (lambda p: nvsym.put(b, p, 0), "source")):
            producer.returned = 0
            with pytest.raises(error, match=f"^{name}: "):
                call(producer)
            gc.collect()
            assert producer.returned == 1
    frozen = Producer(six, flags=1)
    b.enqueue_copy_from(frozen)
    with pytest.raises(ValueError, match=r"^dst: .*read-only"):
        b.enqueue_copy_to(frozen)
    elsewhere = Producer(six, device=(2, 0))
    with pytest.raises(TypeError, match=r"^src: .*host memory"):
        b.enqueue_copy_from(elsewhere)
    assert elsewhere.returned == 0
    assert b.to_numpy().tolist() == [0] * 6
    pinned = Producer(np.ones(6, "f4"), device=(3, 0))  # memory that CUDA has pinned is the host's
    b.enqueue_copy_from(pinned)
    assert b.to_numpy().tolist() == [1] * 6
    assert_usable(ctx)


class Broken:
    """A producer with an error of its own."""

    def __init__(self, answer):
        self.answer = answer

    def __dlpack__(self, **options):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def __dlpack_device__(self):
        return CPU


@pytest.mark.pes(1)
def test_broken_producers(ctx):
    b = SHMEMBuffer["f4"].full(6, 3)
    for answer in (None, 3, "capsule", pythonapi.PyCapsule_New(1, b"another", None)):
        with pytest.raises((BufferError, TypeError), match=r"src: .*capsule"):
            b.enqueue_copy_from(Broken(answer))
    with pytest.raises(RuntimeError, match="out of tensors"):
        b.enqueue_copy_from(Broken(RuntimeError("out of tensors")))
    used = np.zeros(6, "f4").__dlpack__()
    np.from_dlpack(type("Once", (), {"__dlpack__": lambda self, **_: used, "__dlpack_device__": lambda self: CPU})())
    with pytest.raises((BufferError, TypeError), match=r"src: .*capsule"):
        b.enqueue_copy_from(Broken(used))
    assert b.to_numpy().tolist() == [3] * 6


@pytest.mark.pes(1)
def test_a_tensor_lives_until_the_copy_is_done(ctx):
    stream, gate = nvsym.Stream(), SHMEMBuffer["u8"].zeros(1)
    b = SHMEMBuffer["f4"].zeros(6)
    producer = Producer(np.ones(6, "f4"))
    nvsym.signal_wait_until(gate, "eq", 1, stream=stream)
    b.enqueue_copy_from(producer, stream=stream)
    gc.collect()
    assert producer.returned == 0
    nvsym.signal_op(gate, 1, 0)
    stream.synchronize()
    assert producer.returned == 1
    assert b.to_numpy().tolist() == [1] * 6


@PES
def test_from_dlpack(ctx):
    """A collective copy of a tensor, of the element type of the tensor or of the class."""
    me = ctx.my_pe()
    for element in DTYPES:
        if element.dlpack is None:
            continue
        values = random_array(element.numpy, 6, me)
        for version, shape in ((None, (6,)), ((1, 0), (2, 3)), ((1, 7), (1, 1, 6))):
            for cls in (SHMEMBuffer, SHMEMBuffer[element.numpy]):
                producer = Producer(values, version=version, shape=shape)
                b = cls.from_dlpack(producer)
                gc.collect()
                assert producer.returned == 1
                assert type(b) is SHMEMBuffer[element.numpy]
                assert same_bytes(b.to_numpy(), values)
                b.free()
    frozen = np.arange(5, dtype="f4")
    frozen.flags.writeable = False
    assert SHMEMBuffer.from_dlpack(frozen).to_numpy().tolist() == [0, 1, 2, 3, 4]
    other = SHMEMBuffer.from_dlpack(SHMEMBuffer["i8"].full(3, 7)[1:])
    assert other.to_numpy().tolist() == [7, 7]
    assert len(SHMEMBuffer.from_dlpack(np.zeros(0, "f4"))) == 0


@pytest.mark.pes(1, 2)
def test_from_dlpack_refuses_on_every_pe(ctx):
    six = np.zeros(6, "f4")
    last = ctx.n_pes() - 1
    for bad, error, words in (
        (Producer(six, strides=(2,), shape=(3,)), ValueError, "C-contiguous"),
        (Producer(six.astype("f8")), TypeError, "float64 differs from float32"),
        (Producer(six, dtype=(2, 24, 1)), TypeError, "24 bits"),
        (Producer(six, device=(2, 0)), TypeError, "host memory"),
        (Producer(six, version=(2, 0)), BufferError, "DLPack 2"),
        (Broken(None), BufferError, "no DLPack capsule"),
        (3, TypeError, "does not export DLPack"),
    ):
        with pytest.raises(error, match=words):
            SHMEMBuffer["f4"].from_dlpack(bad if ctx.my_pe() == last else Producer(six))
        if isinstance(bad, Producer) and ctx.my_pe() == last and error is not TypeError:
            gc.collect()
            assert bad.returned == 1
    if last:
        with pytest.raises(nvsym.CollectiveError):
            SHMEMBuffer.from_dlpack(six if ctx.my_pe() else six.astype("i8"))
        with pytest.raises(nvsym.CollectiveError):
            SHMEMBuffer.from_dlpack(six[ctx.my_pe() :])
    assert_usable(ctx)


def test_a_tensor_that_outlives_the_interpreter(mpirun):
    """The deleter of a capsule does nothing to an interpreter that has ended."""
    result = mpirun(
        1,
        """
        import atexit, ctypes
        import nvsym
        ctx = nvsym.init(heap_size="8M")
        b = nvsym.SHMEMBuffer["i4"].full(10, 5)
        capsule = b.__dlpack__()
        api = ctypes.pythonapi
        api.PyCapsule_GetPointer.restype = ctypes.c_void_p
        api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
        tensor = api.PyCapsule_GetPointer(capsule, b"dltensor")
        used = ctypes.create_string_buffer(b"used_dltensor")
        api.PyCapsule_SetName(capsule, ctypes.cast(used, ctypes.c_char_p))
        # The C library calls the deleter when the interpreter is gone. The field is the last of a DLManagedTensor.
        deleter = ctypes.c_void_p.from_address(tensor + 56).value
        libc = ctypes.CDLL(None)
        register = getattr(libc, "__cxa_atexit")
        register.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        assert register(deleter, tensor, None) == 0
        print("registered")
    """,
    )
    assert "registered" in result.stdout
