# SPDX-License-Identifier: Apache-2.0
"""``python -m nvsym bench``: what an operation costs, beside the same operation of other libraries.

`sampling` and `gpu_sampling` measure calls of several libraries in turn, the ``*_cases`` say what is called, `bench` holds
a job with its libraries, `options` and `commands` are the command line, `table` and `plot` show what was found.
"""

from .commands import main
from .sampling import Case, PeerUnavailableError, Sampler, Series, best

__all__ = ["Case", "PeerUnavailableError", "Sampler", "Series", "best", "main"]
