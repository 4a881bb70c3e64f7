# SPDX-License-Identifier: Apache-2.0
"""Whether MPI calls may be given the memory of a GPU."""

import ctypes

from . import _libfind

__all__ = ["takes_gpu_memory"]

# What Open MPI and MPICH (since 4.0) call the question; both answer it after MPI_Init.
_QUERY = "MPIX_Query_cuda_support"


def takes_gpu_memory():
    """Whether the MPI that mpi4py has loaded is CUDA-aware, and how that is known.

    Returns
    -------
    (bool, str)
        False also where it does not say: such an MPI would read the address of a GPU as one of the host, and crash.
    """
    from mpi4py import MPI

    name = " ".join(MPI.Get_library_version().splitlines()[0].strip("\0 ").split(",")[0].split())
    files = _libfind.loaded_files("libmpi.so") or _libfind.loaded_files("libmpi")
    for path in files:
        try:
            query = getattr(ctypes.CDLL(path), _QUERY)
        except (OSError, AttributeError):
            continue
        if query():
            return True, f"{name} is CUDA-aware ({_QUERY})"
        return (
            False,
            f"{name} was built without CUDA, or has it switched off ({_QUERY}); send buffer.to_numpy(), or use nvsym's calls",
        )
    return (
        False,
        f"{name} does not say that it is CUDA-aware (it has no {_QUERY}); send buffer.to_numpy(), or use nvsym's calls",
    )
