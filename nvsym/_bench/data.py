# SPDX-License-Identifier: Apache-2.0
"""The data that the cases of all libraries send, and what has to arrive."""

from dataclasses import dataclass

import numpy as np

__all__ = ["ATOMICS", "Shape", "pattern", "reduced", "same"]

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


@dataclass(frozen=True)
class Shape:
    """One row of a benchmark: how many elements of which type, reduced how."""

    count: int
    dtype: np.dtype
    op: str = "sum"
    algorithm: str = "auto"
    local: str = "buffer"

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize


def pattern(count, dtype, pe):
    """What PE `pe` sends: small whole numbers, which every element type holds."""
    return ((np.arange(count) + pe) % 3).astype(dtype)


def reduced(count, dtype, op, n_pes):
    """What a reduction of the patterns of `n_pes` PEs gives, in a type wide enough to compare with."""
    wide = dtype if dtype.kind in "biu" else np.dtype(np.complex128 if dtype.kind == "c" else np.float64)
    total = pattern(count, wide, 0)
    for pe in range(1, n_pes):
        total = _UFUNCS[op](total, pattern(count, wide, pe))
    return total


def same(found, expected):
    """Whether an array holds the expected numbers, up to the rounding of its element type."""
    if found.dtype.kind in "biu":
        return bool((found == expected).all())
    wide = found.astype(np.complex128 if found.dtype.kind == "c" else np.float64)
    return bool(np.allclose(wide, expected, rtol=0.13 if found.dtype.itemsize == 1 else 0.01))
