# SPDX-License-Identifier: Apache-2.0
from typing import Any, Literal, TypeAlias

from .buffer import SHMEMBuffer
from .stream import StreamLike
from .team import Team

_Op: TypeAlias = Literal["sum", "prod", "min", "max", "and", "or", "xor"]
_Algorithm: TypeAlias = Literal["auto", "one_shot", "two_shot", "multimem", "nvshmem", "mpi"]

def broadcast(
    dest: SHMEMBuffer[Any],
    source: SHMEMBuffer[Any],
    root: int,
    *,
    team: Team | None = None,
    stream: StreamLike = None,
) -> None: ...
def fcollect(
    dest: SHMEMBuffer[Any], source: SHMEMBuffer[Any], *, team: Team | None = None, stream: StreamLike = None
) -> None: ...
def alltoall(
    dest: SHMEMBuffer[Any], source: SHMEMBuffer[Any], *, team: Team | None = None, stream: StreamLike = None
) -> None: ...
def reduce(
    dest: SHMEMBuffer[Any],
    source: SHMEMBuffer[Any],
    op: _Op = "sum",
    *,
    team: Team | None = None,
    stream: StreamLike = None,
    algorithm: _Algorithm = "auto",
) -> None: ...
def reducescatter(
    dest: SHMEMBuffer[Any],
    source: SHMEMBuffer[Any],
    op: _Op = "sum",
    *,
    team: Team | None = None,
    stream: StreamLike = None,
) -> None: ...

allreduce = reduce
