# SPDX-License-Identifier: Apache-2.0
"""The data that the cases of all libraries send, and what has to arrive."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["ATOMICS", "Shape", "expected_bytes", "pattern", "reduced", "same"]

ATOMICS = ("fetch", "set", "add", "fetch_add", "inc", "swap", "compare_swap", "and", "or", "xor")

_UFUNCS = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}

_PERIOD = 3  # of the patterns, in elements


@dataclass(frozen=True)
class Shape:
    """One row of a benchmark: how many elements of which type, reduced how."""

    count: int
    dtype: np.dtype
    op: str = "sum"
    algorithm: str = "auto"
    local: str = "buffer"
    signal: bool = False
    in_place: bool = False

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize


def pattern(count, dtype, pe):
    """What PE `pe` sends: small whole numbers, which every element type holds."""
    return ((np.arange(count) + pe) % _PERIOD).astype(dtype)


def reduced(count, dtype, op, n_pes):
    """What a reduction of the patterns of `n_pes` PEs gives, in a type wide enough to compare with."""
    wide = dtype if dtype.kind in "biu" else np.dtype(np.complex128 if dtype.kind == "c" else np.float64)
    total = pattern(count, wide, 0)
    for pe in range(1, n_pes):
        total = _UFUNCS[op](total, pattern(count, wide, pe))
    return total


@lru_cache(maxsize=4)
def expected_bytes(kind, dtype, nbytes, *arguments):
    """The first `nbytes` of ``pattern(..., pe)`` or ``reduced(..., op, n_pes)`` in that element type, as bytes.

    Parameters
    ----------
    kind : {"pattern", "reduced"}
    dtype : numpy.dtype
    nbytes : int
    *arguments
        pe; or op and n_pes.

    Returns
    -------
    numpy.ndarray
        Of uint8, read-only.
    """
    make: Any = {"pattern": pattern, "reduced": reduced}[kind]
    period = make(_PERIOD, dtype, *arguments).astype(dtype).view(np.uint8)
    whole = np.resize(period, nbytes)
    whole.flags.writeable = False
    return whole


def same(found, expected):
    """Whether an array holds the expected numbers, up to the rounding of its element type."""
    if found.dtype.kind in "biu":
        return bool((found == expected).all())
    wide = found.astype(np.complex128 if found.dtype.kind == "c" else np.float64)
    return bool(np.allclose(wide, expected, rtol=0.13 if found.dtype.itemsize == 1 else 0.01))
