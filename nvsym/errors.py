# SPDX-License-Identifier: Apache-2.0
"""The exceptions of nvsym.

Where Python has an exception for a mistake (`TypeError`, `ValueError`, `BufferError`, `MemoryError`), nvsym raises that one or
a subclass of it; everything else descends from `NVSymError`.
"""

from collections.abc import Iterable
from typing import Any

__all__ = [
    "BackendError",
    "CollectiveError",
    "ForkError",
    "FreedBufferError",
    "HeapExhaustedError",
    "MulticastUnsupportedError",
    "NVSymError",
    "NotAvailableError",
    "NotInitializedError",
    "PeerError",
    "PeerExitedError",
    "PeerTimeoutError",
    "PeerUnreachableError",
    "SettingError",
]


class NVSymError(RuntimeError):
    """Base of nvsym's own exceptions."""


class NotInitializedError(NVSymError):
    """A call that needs a job was made before `nvsym.init()` or after the last `nvsym.finalize()`."""


class ForkError(NotInitializedError):
    """A call was made in a process forked after `nvsym.init()`: the job belongs to the parent alone."""


class NotAvailableError(NVSymError):
    """A library, a function of it, or a device that the call needs is not there; the message names it and how to get it."""


class BackendError(NVSymError):
    """A call into the backend's library (MPI, NVSHMEM, CUDA) failed; the message names the call and its status.

    `status` is that status where the call was one of the CUDA driver, made by this PE; else None.
    """

    status: int | None = None


class CollectiveError(NVSymError):
    """The PEs of a team made collective calls that do not go together, or one of them failed in its part of the call.

    Raised on every PE of the team; the message names the PEs and what differs.
    """


class PeerError(NVSymError):
    """Base of the errors that another PE causes. `pes` lists the world numbers of those PEs where they are known."""

    pes: tuple[int, ...]

    def __init__(self, message: str, pes: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.pes = tuple(pes)

    def __reduce__(self) -> tuple[type["PeerError"], tuple[Any, ...]]:
        return (type(self), (self.args[0], self.pes))


class PeerUnreachableError(PeerError):
    """The memory of that PE cannot be addressed from here by plain loads and stores."""


class PeerTimeoutError(PeerError):
    """A PE did not arrive within the time limit (`NVSYM_TIMEOUT`)."""


class PeerExitedError(PeerError):
    """A PE ended, or is finalizing, while this one waits for it."""


class HeapExhaustedError(NVSymError, MemoryError):
    """The symmetric heap of at least one PE has no room for an allocation. Raised on every PE."""


class FreedBufferError(NVSymError, ValueError):
    """A freed buffer, or a view of one, was used."""


class MulticastUnsupportedError(NVSymError):
    """Multicast is not usable here; the message says why."""


class SettingError(NVSymError, ValueError):
    """An environment setting or an option of nvsym has a value that it cannot take, or a name that does not exist."""
