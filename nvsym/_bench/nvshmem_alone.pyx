# SPDX-License-Identifier: Apache-2.0
"""A job of NVSHMEM without nvsym, as a C++ program begins and ends one: what `nvsym.init` is compared with."""

from libc.string cimport memcpy

import os

from ..errors import BackendError

from .._nvshmem cimport CHECK_NVSHMEM, init_attr_initializer, load_nvshmem, nvshmem, uniqueid_initializer
from ..cuda_runtime cimport get_cuda_runtime
from ..libnvshmem cimport (
    NVSHMEM_STATUS_IS_INITIALIZED, NVSHMEMX_INIT_WITH_UNIQUEID, nvshmemx_init_attr_t, nvshmemx_uniqueid_t)

cdef nvshmemx_uniqueid_t uid    # NVSHMEM keeps a pointer to it


def begin(comm, int ordinal, size_t heap_size):
    """Initialise NVSHMEM by a unique id that travels over MPI, and allocate `heap_size` bytes; collective.

    Returns
    -------
    int
        The address, for `end`.

    Raises
    ------
    BackendError
        On this PE only.
    """
    cdef nvshmemx_init_attr_t attr
    cdef int status, me = comm.Get_rank(), n = comm.Get_size()
    cdef void *heap = NULL
    get_cuda_runtime().use(ordinal)
    load_nvshmem()
    uniqueid_initializer(&uid)
    if me == 0:
        CHECK_NVSHMEM(nvshmem.nvshmemx_get_uniqueid(&uid), b"nvshmemx_get_uniqueid")
    identifier = comm.bcast((<char *> &uid)[:sizeof(uid)] if me == 0 else None)
    memcpy(&uid, <const char *> identifier, sizeof(uid))
    init_attr_initializer(&attr, ordinal)
    CHECK_NVSHMEM(nvshmem.nvshmemx_set_attr_uniqueid_args(me, n, &uid, &attr), b"nvshmemx_set_attr_uniqueid_args")
    cores = os.sched_getaffinity(0)     # NVSHMEM 3.8 narrows it
    with nogil:
        status = nvshmem.nvshmemx_hostlib_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attr)
    os.sched_setaffinity(0, cores)
    CHECK_NVSHMEM(status, b"nvshmemx_hostlib_init_attr")
    if nvshmem.nvshmemx_init_status() < NVSHMEM_STATUS_IS_INITIALIZED:
        raise BackendError(f"NVSHMEM is in state {nvshmem.nvshmemx_init_status()} after its initialisation")
    with nogil:
        heap = nvshmem.nvshmem_malloc(heap_size)
    if heap == NULL:
        raise BackendError(f"nvshmem_malloc({heap_size}) returned NULL")
    return <size_t> heap


def end(size_t heap):
    """Free what `begin` allocated, and end NVSHMEM; collective."""
    with nogil:
        nvshmem.nvshmem_free(<void *> heap)
        nvshmem.nvshmemx_hostlib_finalize()
