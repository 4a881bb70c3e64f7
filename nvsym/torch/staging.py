# SPDX-License-Identifier: Apache-2.0
"""The symmetric memory through which tensors go that are not in symmetric memory themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import nvsym
from nvsym._settings import parse_size

from .options import Options
from .tensors import buffer_class, numpy_dtype, tensor

if TYPE_CHECKING:
    import torch

_HOST_BYTES = 16 << 20
_GPU_BYTES = 64 << 20
ALIGN = 256
_SCRATCH = 256


class Place:
    """One group's part of the staging memory: typed tensors, and the symmetric buffers under them."""

    def __init__(self, memory: nvsym.SHMEMBuffer[Any], slot: int):
        self.memory = memory
        self.slot = slot
        self.nbytes = memory.nbytes
        self._typed: dict[Any, Any] = {}

    def get(self, dtype: torch.dtype, start: int, count: int) -> tuple[Any, torch.Tensor]:
        """`count` elements from byte `start` on, as a buffer and as a tensor over it."""
        found = self._typed.get(dtype)
        if found is None:
            kind = numpy_dtype(dtype)
            n = self.nbytes // kind.itemsize
            whole = buffer_class[kind].adopt(self.memory.unsafe_ptr(), n, owner=self.memory)
            found = self._typed[dtype] = (whole, tensor(whole), kind.itemsize)
        whole, over, item = found
        first = start // item
        return whole[first : first + count], over[first : first + count]


class Staging:
    """The staging memory of a job, divided among the groups that this PE belongs to.

    It is allocated once, by all PEs, since a group is made by its members alone. Its first slot is the largest.
    """

    def __init__(self, options: Options, ctx: nvsym.SHMEMContext):
        if options.staging is not None:
            try:
                first = parse_size(options.staging)
            except ValueError as error:
                raise ValueError(f"staging: {error}") from None
        else:
            first = min(_HOST_BYTES if ctx.device.is_host else _GPU_BYTES, ctx.heap.largest_free // 8)
        if options.groups not in range(63) or isinstance(options.groups, bool):
            raise ValueError(f"groups: {options.groups!r} is not in 0..62")
        # The smallest part holds a piece for each PE, in and out.
        self._first = max(first // (4 * ALIGN), 4 * ctx.n_pes(), 64) * (4 * ALIGN)
        self._other = self._first // 4
        self._groups = int(options.groups)
        self._free = (1 << self._groups) - 1
        self._memory = nvsym.SHMEMBuffer[np.uint8](_SCRATCH + self._first + self._groups * self._other)

    def first(self) -> Place:
        """The default group's part."""
        return Place(self._memory[_SCRATCH : _SCRATCH + self._first], -1)

    def take(self, team: nvsym.Team) -> Place:
        """A part that is free on all members of a new group; collective over them."""
        word = nvsym.SHMEMBuffer[np.int64].adopt(self._memory.unsafe_ptr(), 1, owner=self._memory)
        word.fill(self._free)
        nvsym.allreduce(word, word, "and", team=team)
        common = int(word.to_numpy()[0])
        if common == 0:
            raise ValueError(
                f"no staging memory is left for another process group on all its ranks: {self._groups} may exist; use "
                "init_process_group(pg_options=nvsym.torch.Options(groups=)), or destroy groups that are done with"
            )
        slot = (common & -common).bit_length() - 1
        self._free &= ~(1 << slot)
        start = _SCRATCH + self._first + slot * self._other
        return Place(self._memory[start : start + self._other], slot)

    def give_back(self, place: Place) -> None:
        """Let another group have it."""
        if place.slot >= 0:
            self._free |= 1 << place.slot

    def free(self) -> None:
        """Collective over the job."""
        self._memory.free()
