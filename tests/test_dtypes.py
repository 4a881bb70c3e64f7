# SPDX-License-Identifier: Apache-2.0
"""The table of element types and operators, and the conversion tables of the float8 types against ml_dtypes."""

import copy
import ctypes
import dataclasses
import pathlib
import pickle
import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvsym.dtypes import DTYPES, OPS, REDUCIBLE, DType, as_dtype, as_op, dlpack_dtype, float8_tables

TYPES_H = pathlib.Path(__file__).parents[1] / "include" / "nvsym" / "types.h"
FLOAT8 = [d for d in DTYPES if d.name.startswith("float8")]


def enum(name):
    body = re.search(rf"enum {name} \{{(.*?)\}}", TYPES_H.read_text(), re.DOTALL).group(1)
    return [word.split("=")[0].strip() for word in body.split(",")]


def test_numbers_are_those_of_the_header():
    assert enum("nvsym_dtype") == [f"NVSYM_{d.name.upper()}" for d in DTYPES] + ["NVSYM_DTYPE_COUNT"]
    assert enum("nvsym_op") == [f"NVSYM_{op.name.upper()}" for op in OPS] + ["NVSYM_OP_COUNT"]
    assert [d.id for d in DTYPES] == list(range(len(DTYPES)))
    assert [op.id for op in OPS] == list(range(len(OPS)))


def test_every_numpy_number_type_is_there():
    classes = {np.dtype(char).type for char in np.typecodes["All"] if np.dtype(char).kind in "biufc"}
    assert {as_dtype(scalar).numpy for scalar in classes} == {np.dtype(scalar) for scalar in classes}


def test_every_float8_type_of_ml_dtypes_is_there():
    assert {d.name for d in FLOAT8} == {name for name in dir(ml_dtypes) if name.startswith("float8_")}


@pytest.mark.parametrize("d", DTYPES, ids=lambda d: d.name)
def test_row(d):
    assert d.numpy == np.dtype(d.scalar)
    assert d.itemsize == d.numpy.itemsize
    assert d.numpy.isnative
    kinds = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex", "V": "float"}
    assert d.kind == kinds[d.numpy.kind]
    for given_ in (d, d.numpy, d.scalar, d.name, d.numpy.name, np.empty(0, d.numpy).dtype):
        assert as_dtype(given_) is d
    assert pickle.loads(pickle.dumps(d)) is d
    assert copy.deepcopy(d) is d
    assert d.name in repr(d)
    with pytest.raises(dataclasses.FrozenInstanceError):
        d.id = 0
    assert not hasattr(d, "__dict__")


@pytest.mark.parametrize(
    ("given_", "name"),
    [
        (bool, "bool"),
        (int, "int64"),
        (float, "float64"),
        (complex, "complex128"),
        ("float", "float64"),
        ("<f4", "float32"),
        ("f4", "float32"),
        ("half", "float16"),
        ("longlong", "int64"),
        ("ulonglong", "uint64"),
        ("l", "int64"),
        (np.longlong, "int64"),
        (np.ulonglong, "uint64"),
        (np.dtype("longlong"), "int64"),
        (np.intc, "int32"),
        (np.uintc, "uint32"),
        (np.intp, "int64"),
        (np.dtype("f4", metadata={"unit": "m"}), "float32"),
        (ctypes.c_float, "float32"),
        (ctypes.c_uint8, "uint8"),
        (np.dtype(ml_dtypes.float8_e5m2), "float8_e5m2"),
        ("float8_e8m0fnu", "float8_e8m0fnu"),
    ],
    ids=repr,
)
def test_as_dtype(given_, name):
    if name == "int64" and np.dtype(np.intp).itemsize == 4:
        pytest.skip("a machine of 32 bits")
    assert as_dtype(given_).name == name


@pytest.mark.parametrize(
    "given_",
    [
        None, object, str, bytes, "O", "S3", "U", "V4", "M8[ns]", "m8[s]", np.datetime64, np.void, np.generic,
        np.floating, np.integer, np.number, "f4,f4", [("x", "f4")], ("f4", (2,)), "nonsense", "", 3, 2.5, {}, [], DType,
        Ellipsis, ml_dtypes.int4, "int4", "float4_e2m1fn", np.zeros(3), type("Mine", (), {}),
    ],
    ids=repr,
)  # fmt: skip
def test_as_dtype_refuses(given_):
    with pytest.raises(TypeError) as caught:
        as_dtype(given_)
    message = str(caught.value)
    assert repr(given_) in message
    assert all(d.name in message for d in DTYPES)


@pytest.mark.parametrize("given_", [">f4", np.dtype(">i8"), np.dtype(np.complex64).newbyteorder(">")], ids=str)
def test_as_dtype_refuses_the_other_byte_order(given_):
    other = np.dtype(given_)
    if other.isnative:
        other = other.newbyteorder()
    with pytest.raises(TypeError, match=r"byte order.*newbyteorder"):
        as_dtype(other)


@settings(deadline=None)
@given(st.one_of(st.text(max_size=8), st.integers(), st.binary(max_size=4), st.lists(st.text(max_size=3), max_size=2)))
def test_as_dtype_gives_a_type_or_a_type_error(given_):
    try:
        found = as_dtype(given_)
    except TypeError as error:
        found = error
    if isinstance(found, DType):
        assert found.numpy == np.dtype(given_)
    else:
        assert repr(given_) in str(found)


def test_dlpack_types_agree_with_numpy():
    # What NumPy itself says of its types, read from the tensor in the capsule.
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    asked = 0
    for d in DTYPES:
        if d.numpy.isbuiltin != 1 or d.dlpack is None:
            continue
        capsule = np.zeros(1, d.numpy).__dlpack__()
        # DLTensor: data, device (two int32), ndim, then the type.
        address = get(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p) + 12
        code, bits = ctypes.c_uint8.from_address(address).value, ctypes.c_uint8.from_address(address + 1).value
        assert (code, bits) == d.dlpack, d.name
        asked += 1
    assert asked == 14


@pytest.mark.parametrize("d", DTYPES, ids=lambda d: d.name)
def test_dlpack_dtype(d):
    if d.dlpack is None:
        assert d.name in ("longdouble", "clongdouble")
    else:
        assert d.dlpack[1] == 8 * d.itemsize
        assert dlpack_dtype(*d.dlpack, 1) is d


@pytest.mark.parametrize("given_", [(0, 4, 1), (2, 80, 1), (2, 32, 4), (3, 64, 1), (99, 8, 1)])
def test_dlpack_dtype_refuses(given_):
    code, bits, lanes = given_
    with pytest.raises(TypeError, match=f"code {code}, {bits} bits and {lanes} lanes"):
        dlpack_dtype(code, bits, lanes)


def test_nvshmem_names():
    names = {d.name: d.nvshmem for d in DTYPES if d.nvshmem is not None}
    integers = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
    floats = {"float16": "half", "float32": "float", "float64": "double", "bfloat16": "bfloat16"}
    assert names == {name: name for name in integers} | floats


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_as_op(op):
    assert as_op(op.name) is op
    assert as_op(op) is op
    assert pickle.loads(pickle.dumps(op)) is op
    assert op.name in repr(op)


@pytest.mark.parametrize("given_", ["add", "SUM", "", None, 0, [], np.add], ids=repr)
def test_as_op_refuses(given_):
    with pytest.raises(ValueError, match="sum, prod, min, max, and, or, xor") as caught:
        as_op(given_)
    assert repr(given_) in str(caught.value)


def test_reducible():
    for d in DTYPES:
        ops = {op.name for op in OPS if (d.id, op.id) in REDUCIBLE}
        if d.kind == "complex":
            assert ops == {"sum", "prod"}
        elif d.kind == "float":
            assert ops == {"sum", "prod", "min", "max"}
        else:
            assert ops == {op.name for op in OPS}


def through_tables(tables, x):
    """float32 as codes, by the rule that Float8Tables states."""
    bits = x.view(np.uint32)
    index = np.searchsorted(tables.thresholds, bits & np.uint32(0x7FFFFFFF), side="right")
    return np.where(bits >> np.uint32(31), tables.negative[index], tables.positive[index])


def float8_samples(tables):
    """All float32 of 16 leading bits, random ones, and the neighbours of the thresholds, of both signs."""
    rng = np.random.default_rng(8)
    near = np.concatenate([tables.thresholds + np.uint32(d) for d in (0, 1, 0xFFFFFFFF, 2, 0xFFFFFFFE)])
    magnitude = near & np.uint32(0x7FFFFFFF)
    return np.concatenate([
        np.arange(1 << 16, dtype=np.uint32) << np.uint32(16),
        rng.integers(0, 1 << 32, 1 << 18, dtype=np.uint32),
        magnitude,
        magnitude | np.uint32(1 << 31),
    ]).view(np.float32)  # fmt: skip


@pytest.mark.parametrize("d", FLOAT8, ids=lambda d: d.name)
def test_float8_tables(d):
    tables = float8_tables(d.name)
    assert float8_tables(d.name) is tables
    assert len(tables.positive) == len(tables.negative) == len(tables.thresholds) + 1
    assert tables.decode.dtype == np.float32
    assert tables.decode.shape == (256,)
    assert np.all(np.diff(tables.thresholds.astype(np.int64)) > 0)
    assert len(set((tables.thresholds >> 19).tolist())) == len(tables.thresholds)
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(tables.decode, codes.view(d.numpy).astype(np.float32))
    x = float8_samples(tables)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = x.astype(d.numpy).view(np.uint8)
    np.testing.assert_array_equal(through_tables(tables, x), expected)
    with pytest.raises(ValueError, match="read-only"):
        tables.decode[0] = 1


@pytest.mark.parametrize("name", ["float16", "bfloat16", "uint8"])
def test_float8_tables_refuses(name):
    with pytest.raises(TypeError, match=f"{name} is no float8 type"):
        float8_tables(name)
