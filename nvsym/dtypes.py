# SPDX-License-Identifier: Apache-2.0
"""The element types and the reduction operators of nvsym, each in one table.

Their numbers are those of include/nvsym/types.h.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "DTYPES",
    "OPS",
    "REDUCIBLE",
    "DType",
    "Float8Tables",
    "Op",
    "as_dtype",
    "as_op",
    "dlpack_dtype",
    "float8_tables",
]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DType:
    """An element type; there is one object for each.

    Attributes
    ----------
    id : int
        Its number in C, of ``enum nvsym_dtype``.
    name : str
        Its name in NumPy or ml_dtypes. The x87 or quad types are called longdouble and clongdouble on every machine.
    numpy : numpy.dtype
    scalar : type
        The class of its NumPy scalars.
    itemsize : int
        Bytes of an element.
    kind : str
        "bool", "int", "uint", "float" or "complex".
    nvshmem : str or None
        Its name in NVSHMEM's typed functions, None if there are none for it.
    dlpack : tuple of (int, int) or None
        DLPack's type code and bits, None if it has no such type.
    """

    id: int
    name: str
    numpy: np.dtype[Any]
    scalar: type
    itemsize: int
    kind: str
    nvshmem: str | None
    dlpack: tuple[int, int] | None

    def __repr__(self) -> str:
        return f"<nvsym.dtypes.DType {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return as_dtype, (self.name,)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Op:
    """A reduction operator; there is one object for each.

    Attributes
    ----------
    id : int
        Its number in C, of ``enum nvsym_op``.
    name : str
    """

    id: int
    name: str

    def __repr__(self) -> str:
        return f"<nvsym.dtypes.Op {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return as_op, (self.name,)


# DLPack's type codes, of enum DLDataTypeCode in dlpack.h.
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_FLOAT8 = {
    "float8_e3m4": 7,
    "float8_e4m3": 8,
    "float8_e4m3b11fnuz": 9,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
}


def _table() -> tuple[DType, ...]:
    rows: list[tuple[str, type, str, str | None, tuple[int, int] | None]] = [
        ("bool", np.bool_, "bool", None, (_BOOL, 8)),
        ("int8", np.int8, "int", "int8", (_INT, 8)),
        ("uint8", np.uint8, "uint", "uint8", (_UINT, 8)),
        ("int16", np.int16, "int", "int16", (_INT, 16)),
        ("uint16", np.uint16, "uint", "uint16", (_UINT, 16)),
        ("int32", np.int32, "int", "int32", (_INT, 32)),
        ("uint32", np.uint32, "uint", "uint32", (_UINT, 32)),
        ("int64", np.int64, "int", "int64", (_INT, 64)),
        ("uint64", np.uint64, "uint", "uint64", (_UINT, 64)),
        ("float16", np.float16, "float", "half", (_FLOAT, 16)),
        ("float32", np.float32, "float", "float", (_FLOAT, 32)),
        ("float64", np.float64, "float", "double", (_FLOAT, 64)),
        # DLPack's floats are the IEEE ones, without padding, which a long double is not everywhere.
        ("longdouble", np.longdouble, "float", None, None),
        ("complex64", np.complex64, "complex", None, (_COMPLEX, 64)),
        ("complex128", np.complex128, "complex", None, (_COMPLEX, 128)),
        ("clongdouble", np.clongdouble, "complex", None, None),
        ("bfloat16", ml_dtypes.bfloat16, "float", "bfloat16", (_BFLOAT, 16)),
    ]
    rows += [(name, getattr(ml_dtypes, name), "float", None, (code, 8)) for name, code in _FLOAT8.items()]
    made = []
    for i, (name, scalar, kind, nvshmem, dlpack) in enumerate(rows):
        numpy = np.dtype(scalar)
        made.append(DType(i, name, numpy, scalar, numpy.itemsize, kind, nvshmem, dlpack))
    return tuple(made)


DTYPES: tuple[DType, ...] = _table()
"""The element types; ``DTYPES[d.id] is d``."""

OPS: tuple[Op, ...] = tuple(Op(i, name) for i, name in enumerate(("sum", "prod", "min", "max", "and", "or", "xor")))
"""The reduction operators; ``OPS[op.id] is op``."""


def _reduces(dtype: DType, op: Op) -> bool:
    if op.name in ("and", "or", "xor"):
        return dtype.kind in ("bool", "int", "uint")
    return op.name in ("sum", "prod") or dtype.kind != "complex"


REDUCIBLE: frozenset[tuple[int, int]] = frozenset((d.id, op.id) for d in DTYPES for op in OPS if _reduces(d, op))
"""The pairs of an element type's and an operator's number that a reduction takes.

The bitwise operators are for bool and integers, min and max for what has an order. On bool, sum and max mean or, prod
and min mean and.
"""


def _aliases() -> dict[Any, DType]:
    found: dict[Any, DType] = {}
    for dtype in DTYPES:
        for key in (dtype, dtype.numpy, dtype.scalar, dtype.name):
            # Where a long double is a double, NumPy holds the two dtypes for equal: the earlier row has it.
            found.setdefault(key, dtype)
    for python in (bool, int, float, complex):
        found[python] = found[np.dtype(python)]
    for char in "bBhHiIlLqQ":  # C's integer types; where two have one size, NumPy has a class for each
        found.setdefault(np.dtype(char).type, found[np.dtype(char)])
    return found


_ALIASES = _aliases()
_DLPACK = {dtype.dlpack: dtype for dtype in DTYPES if dtype.dlpack is not None}
_OP_ALIASES: dict[Any, Op] = {key: op for op in OPS for key in (op, op.name)}


def _unsupported(given: str, hint: str = "") -> TypeError:
    names = ", ".join(dtype.name for dtype in DTYPES)
    return TypeError(f"dtype: {given} is no element type of nvsym; {hint}the types are {names}")


def as_dtype(dtype: npt.DTypeLike | DType) -> DType:
    """The element type that `dtype` names.

    Parameters
    ----------
    dtype
        A `DType`, a NumPy or ml_dtypes dtype, scalar class or name, or Python's bool, int, float or complex, which mean
        what they mean to NumPy. C's integer types, such as ``numpy.longlong``, become the type of their size.

    Raises
    ------
    TypeError
        For anything else: objects, strings, dates, structured types, and numbers in the other byte order.
    """
    try:
        return _ALIASES[dtype]
    except (KeyError, TypeError):  # a TypeError if it has no hash
        pass
    # np.dtype would take None and NumPy's abstract classes for float64, and any class of Python for object.
    if dtype is None or (isinstance(dtype, type) and issubclass(dtype, np.generic)):
        raise _unsupported(repr(dtype))
    try:
        meant: np.dtype[Any] = np.dtype(dtype)  # type: ignore[arg-type]
    except Exception as error:
        raise _unsupported(repr(dtype)) from error
    found = _ALIASES.get(meant)
    if found is not None:
        return found
    given = str(meant) if dtype is meant else f"{dtype!r} ({meant})"
    if _ALIASES.get(meant.newbyteorder("=")) is not None:
        raise _unsupported(given, "this machine has the other byte order, .astype(dtype.newbyteorder('=')) swaps it; ")
    raise _unsupported(given)


def dlpack_dtype(code: int, bits: int, lanes: int = 1) -> DType:
    """The element type of a DLPack tensor.

    Parameters
    ----------
    code, bits, lanes : int
        As in a DLDataType.

    Raises
    ------
    TypeError
        If nvsym has no such type. Elements of several lanes are none.
    """
    found = _DLPACK.get((code, bits)) if lanes == 1 else None
    if found is None:
        raise _unsupported(f"a DLPack type of code {code}, {bits} bits and {lanes} lanes")
    return found


def as_op(op: str | Op) -> Op:
    """The reduction operator of that name.

    Raises
    ------
    ValueError
        If there is none.
    """
    try:
        return _OP_ALIASES[op]
    except (KeyError, TypeError):
        raise ValueError(f"op: {op!r} is none of {', '.join(known.name for known in OPS)}") from None


class Float8Tables(NamedTuple):
    """How a float8 type converts from and to float32, for ``nvsym_f8_table`` in C.

    Attributes
    ----------
    decode : numpy.ndarray
        256 float32: the values of the codes.
    thresholds : numpy.ndarray
        n ascending uint32. The bits of a float32, its sign cleared, have one of n + 1 codes: that at the number of
        thresholds that are not greater.
    positive, negative : numpy.ndarray
        n + 1 uint8: the codes where the sign was clear, and where it was set.
    """

    decode: npt.NDArray[np.float32]
    thresholds: npt.NDArray[np.uint32]
    positive: npt.NDArray[np.uint8]
    negative: npt.NDArray[np.uint8]


_BUCKET = 1 << 19  # float32 of the same 4 leading bits of mantissa: there is at most one rounding point among them


@functools.cache
def float8_tables(dtype: npt.DTypeLike | DType) -> Float8Tables:
    """The tables that convert a float8 type as ml_dtypes does, found by asking it.

    Raises
    ------
    TypeError
        If `dtype` is no float8 type.
    """
    element = as_dtype(dtype)
    if element.name not in _FLOAT8:
        raise TypeError(f"dtype: {element.name} is no float8 type; they are {', '.join(_FLOAT8)}")

    def encode(magnitude: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
        """The codes for both signs, as one number."""
        with np.errstate(invalid="ignore", over="ignore"):
            positive, negative = (
                (magnitude | np.uint32(sign)).view(np.float32).astype(element.numpy).view(np.uint8).astype(np.uint16)
                for sign in (0, 1 << 31)
            )
        return positive | negative << np.uint16(8)

    # Bisect in all buckets at once for the first pattern that has not the code of the bucket's start.
    low = np.arange(0, 1 << 31, _BUCKET, dtype=np.uint32)
    high = low + np.uint32(_BUCKET)
    high[-1] -= np.uint32(1)  # the last pattern of all
    start = encode(low)
    changes = start != encode(high)
    low, high, start = low[changes], high[changes], start[changes]
    while np.any(high - low > 1):
        middle = low + (high - low) // np.uint32(2)
        same = encode(middle) == start
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    codes = encode(np.concatenate([np.zeros(1, np.uint32), high]))
    tables = Float8Tables(
        np.arange(256, dtype=np.uint8).view(element.numpy).astype(np.float32),
        high,
        (codes & np.uint16(0xFF)).astype(np.uint8),
        (codes >> np.uint16(8)).astype(np.uint8),
    )
    for array in tables:
        array.flags.writeable = False
    return tables
