# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable
from typing import Any, Literal, SupportsIndex, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from .buffer import SHMEMBuffer
from .choice import AllreduceChoice
from .memory import Buffer
from .stream import StreamLike
from .team import Team

_S = TypeVar("_S", bound=np.generic)
_Op: TypeAlias = Literal["sum", "prod", "min", "max", "and", "or", "xor"]
_Algorithm: TypeAlias = Literal["auto", "one_shot", "two_shot", "multimem", "nvshmem", "mpi"]

def refuse(error: Exception, *, team: Team | None = None, stream: StreamLike = None) -> None: ...
def broadcast(
    dest: SHMEMBuffer[_S],
    source: SHMEMBuffer[_S],
    root: SupportsIndex,
    *,
    team: Team | None = None,
    stream: StreamLike = None,
) -> None: ...
def fcollect(
    dest: SHMEMBuffer[_S], source: SHMEMBuffer[_S], *, team: Team | None = None, stream: StreamLike = None
) -> None: ...
def alltoall(
    dest: SHMEMBuffer[_S], source: SHMEMBuffer[_S], *, team: Team | None = None, stream: StreamLike = None
) -> None: ...
def reduce(
    dest: SHMEMBuffer[_S] | Buffer,
    source: SHMEMBuffer[_S] | Buffer,
    op: _Op = "sum",
    *,
    team: Team | None = None,
    stream: StreamLike = None,
    algorithm: _Algorithm = "auto",
) -> None: ...
def reducescatter(
    dest: SHMEMBuffer[_S],
    source: SHMEMBuffer[_S],
    op: _Op = "sum",
    *,
    team: Team | None = None,
    stream: StreamLike = None,
) -> None: ...
def explain_allreduce(
    dest: SHMEMBuffer[Any],
    source: SHMEMBuffer[Any] | None = None,
    op: _Op = "sum",
    *,
    team: Team | None = None,
    algorithm: _Algorithm = "auto",
) -> AllreduceChoice: ...
def warmup(
    dtypes: npt.DTypeLike | Iterable[npt.DTypeLike] = ("float32",), ops: _Op | Iterable[_Op] = ("sum",)
) -> float: ...

allreduce = reduce
