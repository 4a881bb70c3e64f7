# SPDX-License-Identifier: Apache-2.0
"""Symmetric memory of many GPUs, or of many host processes, for Python and Cython."""

from . import _built as _built
from ._version import __version__
from .atomics import (
    atomic_add,
    atomic_and,
    atomic_compare_swap,
    atomic_fetch,
    atomic_fetch_add,
    atomic_inc,
    atomic_or,
    atomic_set,
    atomic_swap,
    atomic_xor,
)
from .buffer import SHMEMBuffer
from .choice import AllreduceChoice
from .collectives import allreduce, alltoall, broadcast, explain_allreduce, fcollect, reduce, reducescatter, warmup
from .context import SHMEMContext, collect, context, finalize, init, is_initialized, my_pe, n_pes
from .device import Device
from .errors import (
    BackendError,
    CollectiveError,
    ForkError,
    FreedBufferError,
    HeapExhaustedError,
    MulticastUnsupportedError,
    NotAvailableError,
    NotInitializedError,
    NVSymError,
    PeerError,
    PeerExitedError,
    PeerTimeoutError,
    PeerUnreachableError,
    SettingError,
)
from .memory import Buffer, HostBuffer
from .multicast_pool import MulticastPool
from .pool import SymmetricPool
from .rma import barrier, barrier_all, fence, get, put, quiet, sync, sync_all
from .signals import put_signal, signal_op, signal_wait_until
from .stream import Event, Stream
from .team import PREDEFINED as _PREDEFINED
from .team import Team

TEAM_WORLD = _PREDEFINED["TEAM_WORLD"]
TEAM_NODE = _PREDEFINED["TEAM_NODE"]
TEAM_SHARED = _PREDEFINED["TEAM_SHARED"]


def get_include() -> str:
    """The directory of nvsym's C and CUDA headers, for the include path of a compiler."""
    from pathlib import Path

    package = Path(__file__).resolve().parent
    installed = package / "include"
    return str(installed if installed.is_dir() else package.parent / "include")


def get_cmake_dir() -> str:
    """The directory of nvsymConfig.cmake, for ``nvsym_DIR``: CMake then finds the target nvsym::headers."""
    from pathlib import Path

    return str(Path(__file__).resolve().parent / "cmake")


__all__ = [
    "TEAM_NODE",
    "TEAM_SHARED",
    "TEAM_WORLD",
    "AllreduceChoice",
    "BackendError",
    "Buffer",
    "CollectiveError",
    "Device",
    "Event",
    "ForkError",
    "FreedBufferError",
    "HeapExhaustedError",
    "HostBuffer",
    "MulticastPool",
    "MulticastUnsupportedError",
    "NVSymError",
    "NotAvailableError",
    "NotInitializedError",
    "PeerError",
    "PeerExitedError",
    "PeerTimeoutError",
    "PeerUnreachableError",
    "SHMEMBuffer",
    "SHMEMContext",
    "SettingError",
    "Stream",
    "SymmetricPool",
    "Team",
    "__version__",
    "allreduce",
    "alltoall",
    "atomic_add",
    "atomic_and",
    "atomic_compare_swap",
    "atomic_fetch",
    "atomic_fetch_add",
    "atomic_inc",
    "atomic_or",
    "atomic_set",
    "atomic_swap",
    "atomic_xor",
    "barrier",
    "barrier_all",
    "broadcast",
    "collect",
    "context",
    "explain_allreduce",
    "fcollect",
    "fence",
    "finalize",
    "get",
    "get_cmake_dir",
    "get_include",
    "init",
    "is_initialized",
    "my_pe",
    "n_pes",
    "put",
    "put_signal",
    "quiet",
    "reduce",
    "reducescatter",
    "signal_op",
    "signal_wait_until",
    "sync",
    "sync_all",
    "warmup",
]
