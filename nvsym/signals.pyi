# SPDX-License-Identifier: Apache-2.0
from typing import Literal, SupportsIndex, TypeVar

import numpy as np

from .buffer import SHMEMBuffer, _Memory
from .stream import StreamLike

_S = TypeVar("_S", bound=np.generic)

def put_signal(
    dest: SHMEMBuffer[_S],
    source: SHMEMBuffer[_S] | _Memory[_S],
    signal: SHMEMBuffer[np.uint64],
    value: SupportsIndex,
    pe: SupportsIndex,
    *,
    op: Literal["set", "add"] = "set",
    stream: StreamLike = None,
) -> None: ...
def signal_op(
    signal: SHMEMBuffer[np.uint64],
    value: SupportsIndex,
    pe: SupportsIndex,
    *,
    op: Literal["set", "add"] = "set",
    stream: StreamLike = None,
) -> None: ...
def signal_wait_until(
    signal: SHMEMBuffer[np.uint64],
    cmp: Literal["eq", "ne", "gt", "le", "lt", "ge"],
    value: SupportsIndex,
    *,
    stream: StreamLike = None,
) -> None: ...
