# SPDX-License-Identifier: Apache-2.0
from typing import Any, Literal, SupportsIndex

import numpy as np

from .buffer import SHMEMBuffer
from .stream import StreamLike

def put_signal(
    dest: SHMEMBuffer[Any],
    source: Any,
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
