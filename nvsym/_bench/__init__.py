# SPDX-License-Identifier: Apache-2.0
"""``python -m nvsym bench``: what an operation costs, beside the same operation of mpi4py and shmem4py.

`sampling` measures calls of several libraries in turn, `nvsym_cases`, `mpi4py_cases` and `shmem4py_cases` say what is
called, and `commands` is the command line.
"""

from .commands import main
from .sampling import Case, PeerUnavailableError, Sampler, Series, best

__all__ = ["Case", "PeerUnavailableError", "Sampler", "Series", "best", "main"]
