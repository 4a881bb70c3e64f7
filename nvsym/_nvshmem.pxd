# SPDX-License-Identifier: Apache-2.0
# NVSHMEM's host library, opened at first use. A module that calls it does, once, where it can raise:
#
#     load_nvshmem()
#
# and then, with or without the GIL:
#
#     CHECK_NVSHMEM(nvshmem.nvshmemx_barrier_on_stream(team, stream), b"nvshmemx_barrier_on_stream")
#     nvshmem.nvshmemx_putmem_on_stream(dest, source, nbytes, pe, stream)     # void: NVSHMEM reports no failure of it
#
# A function that only later versions have and that returns no status is NULL in a library without it. Before its call:
#
#     NEED_NVSHMEM(<void *> nvshmem.nvshmemx_flush_on_stream, b"nvshmemx_flush_on_stream")
#
# A missing function that returns a status needs no such line: its member returns one that CHECK_NVSHMEM turns into
# NotAvailableError. Nothing may be called before load_nvshmem(); `nvshmem` is NULL until then.
#
# After nvshmemx_hostlib_init_attr, read nvshmemx_init_status, too: before 3.5 a call that found no GPU reports success.
from .libnvshmem cimport NVSHMEM, NVSHMEMX_SUCCESS, nvshmem_team_config_t, nvshmemx_init_attr_t, nvshmemx_uniqueid_t

cdef NVSHMEM *nvshmem

cdef enum:
    NVSHMEM_NO_FUNCTION = -2147483002

# Opens the library, or says why it cannot. Cheap when it is open.
cdef int load_nvshmem() except -1 nogil

# As NVSHMEM_VENDOR_VERSION: 30405 is 3.4.5; 0 while the library is not open.
cdef int nvshmem_version() noexcept nogil

# Whether the library has the function behind a member.
cdef bint nvshmem_has(void *function) noexcept nogil

cdef int NEED_NVSHMEM(void *function, const char *name) except -1 nogil

# The structures as the headers' own initialisers set them, for the version that is open. `device` is the CUDA device
# that this PE uses (-1: the current one); NVSHMEM before 3.5 always takes the current one.
cdef void init_attr_initializer(nvshmemx_init_attr_t *attr, int device) noexcept nogil
cdef void uniqueid_initializer(nvshmemx_uniqueid_t *uniqueid) noexcept nogil
cdef void team_config_initializer(nvshmem_team_config_t *config) noexcept nogil

cdef int raise_nvshmem(int status, const char *call) except -1 nogil

cdef inline int CHECK_NVSHMEM(int status, const char *call) except -1 nogil:
    if status == NVSHMEMX_SUCCESS:
        return 0
    return raise_nvshmem(status, call)
