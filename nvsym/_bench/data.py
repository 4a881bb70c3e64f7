# SPDX-License-Identifier: Apache-2.0
"""The data that the cases of all libraries send, and what has to arrive."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

__all__ = [
    "ATOMICS",
    "COLLECTIVES",
    "Shape",
    "arrived",
    "arriving",
    "expected_bytes",
    "operands",
    "pattern",
    "reduced",
    "same",
]  # fmt: skip

ATOMICS = ("fetch", "set", "add", "fetch_add", "inc", "swap", "compare_swap", "and", "or", "xor")

# Whose operands are of one block for each PE; and the broadcast.
COLLECTIVES = ("broadcast", "fcollect", "alltoall", "reducescatter")

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


def reduced(count, dtype, op, n_pes, first=0):
    """What a reduction of the patterns of `n_pes` PEs gives from element `first` on, in a type wide enough to compare with."""
    wide = dtype if dtype.kind in "biu" else np.dtype(np.complex128 if dtype.kind == "c" else np.float64)
    total = pattern(count, wide, first)
    for pe in range(1, n_pes):
        total = _UFUNCS[op](total, pattern(count, wide, first + pe))
    return total


_MAKERS: dict[str, Any] = {"pattern": pattern, "reduced": reduced}


def operands(name, count, n_pes):
    """The elements of dest and of source of one of `COLLECTIVES`, where the larger has `count`."""
    block = count // n_pes
    return {"fcollect": (count, block), "reducescatter": (block, count)}.get(name, (count, count))


def arriving(name, shape, me, n_pes):
    """What one of `COLLECTIVES` (the broadcast from PE 0) leaves in dest of PE `me`, where PE i has sent its pattern.

    Returns
    -------
    list of (int, int, tuple)
        The first element, how many, and what they are for `expected_bytes`.
    """
    block = shape.count // n_pes
    if name == "broadcast":
        return [(0, shape.count, ("pattern", 0))]
    if name == "reducescatter":
        return [(0, block, ("reduced", shape.op, n_pes, me * block % _PERIOD))]
    first = me * block if name == "alltoall" else 0  # of the block that the others have for this PE
    return [(pe * block, block, ("pattern", (first + pe) % _PERIOD)) for pe in range(n_pes)]


def arrived(name, shape, me, n_pes, found):
    """Whether an array holds what `arriving` says."""
    return all(
        same(found[first : first + count], _MAKERS[kind](count, shape.dtype, *arguments))
        for first, count, (kind, *arguments) in arriving(name, shape, me, n_pes)
    )


@lru_cache(maxsize=4)
def expected_bytes(kind, dtype, nbytes, *arguments):
    """The first `nbytes` of ``pattern(..., pe)`` or ``reduced(..., op, n_pes)`` in that element type, as bytes.

    Parameters
    ----------
    kind : {"pattern", "reduced"}
    dtype : numpy.dtype
    nbytes : int
    *arguments
        pe; or op, n_pes and the first element.

    Returns
    -------
    numpy.ndarray
        Of uint8, read-only.
    """
    period = _MAKERS[kind](_PERIOD, dtype, *arguments).astype(dtype).view(np.uint8)
    whole = np.resize(period, nbytes)
    whole.flags.writeable = False
    return whole


def same(found, expected):
    """Whether an array holds the expected numbers, up to the rounding of its element type."""
    if found.dtype.kind in "biu":
        return bool((found == expected).all())
    wide = found.astype(np.complex128 if found.dtype.kind == "c" else np.float64)
    return bool(np.allclose(wide, expected, rtol=0.13 if found.dtype.itemsize == 1 else 0.01))
