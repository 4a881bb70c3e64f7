# SPDX-License-Identifier: Apache-2.0
"""NVSHMEM's host library: found and opened at first use, its functions, and from its statuses to exceptions."""

import threading

from libc.string cimport memset
from posix.dlfcn cimport dlsym

from . import _libfind
from .errors import BackendError, NotAvailableError

from .libnvshmem cimport *

__all__ = ["OLDEST", "functions", "is_loaded", "library_info", "why_missing"]

# The oldest version that nvsym works with. Functions that it has are listed with this version, however old they are.
OLDEST = 30300

cdef NVSHMEM _functions
cdef int _version = 0
cdef object _library = None            # _libfind.Library once open
cdef dict _missing = {}                # name -> since
cdef object _lock = threading.Lock()

nvshmem = NULL

# What a function returns, and so what stands in for it where a library lacks it.
cdef enum:
    STATUS      # a function that returns NVSHMEM_NO_FUNCTION
    OTHER       # NULL, if it came after OLDEST; else the library is not usable


cdef extern from "nvsym/types.h":
    enum:
        NVSYM_INT8, NVSYM_UINT8, NVSYM_INT16, NVSYM_UINT16, NVSYM_INT32, NVSYM_UINT32, NVSYM_INT64, NVSYM_UINT64
        NVSYM_FLOAT16, NVSYM_BFLOAT16, NVSYM_FLOAT32, NVSYM_FLOAT64
        NVSYM_SUM, NVSYM_PROD, NVSYM_MIN, NVSYM_MAX, NVSYM_AND, NVSYM_OR, NVSYM_XOR


# Stands in for a function. The caller passes arguments that it ignores: the caller cleans them up in the C calling
# conventions of the machines that CUDA runs on.
cdef int _no_function() noexcept nogil:
    return NVSHMEM_NO_FUNCTION


cdef tuple _row(str name, int returns, int since, void *slot):
    return name, returns, since, <size_t> slot


cdef list _table():
    """The functions that nvsym uses: name (and symbol), what it returns, the version that it came with, its place."""
    cdef NVSHMEM *f = &_functions
    cdef int dtype, op
    cdef list rows = [
        _row("nvshmem_barrier_all", OTHER, OLDEST, &f.nvshmem_barrier_all),
        _row("nvshmemx_init_status", OTHER, OLDEST, &f.nvshmemx_init_status),
        _row("nvshmem_query_thread", OTHER, OLDEST, &f.nvshmem_query_thread),
        _row("nvshmem_my_pe", OTHER, OLDEST, &f.nvshmem_my_pe),
        _row("nvshmem_n_pes", OTHER, OLDEST, &f.nvshmem_n_pes),
        _row("nvshmem_info_get_version", OTHER, OLDEST, &f.nvshmem_info_get_version),
        _row("nvshmemx_vendor_get_version_info", OTHER, OLDEST, &f.nvshmemx_vendor_get_version_info),
        _row("nvshmem_malloc", OTHER, OLDEST, &f.nvshmem_malloc),
        _row("nvshmem_calloc", OTHER, OLDEST, &f.nvshmem_calloc),
        _row("nvshmem_align", OTHER, OLDEST, &f.nvshmem_align),
        _row("nvshmem_free", OTHER, OLDEST, &f.nvshmem_free),
        _row("nvshmem_ptr", OTHER, OLDEST, &f.nvshmem_ptr),
        _row("nvshmemx_mc_ptr", OTHER, OLDEST, &f.nvshmemx_mc_ptr),
        _row("nvshmem_quiet", OTHER, OLDEST, &f.nvshmem_quiet),
        _row("nvshmem_fence", OTHER, OLDEST, &f.nvshmem_fence),
        _row("nvshmem_team_my_pe", OTHER, OLDEST, &f.nvshmem_team_my_pe),
        _row("nvshmem_team_n_pes", OTHER, OLDEST, &f.nvshmem_team_n_pes),
        _row("nvshmem_team_get_config", OTHER, OLDEST, &f.nvshmem_team_get_config),
        _row("nvshmem_team_translate_pe", OTHER, OLDEST, &f.nvshmem_team_translate_pe),
        _row("nvshmem_team_split_strided", STATUS, OLDEST, &f.nvshmem_team_split_strided),
        _row("nvshmemx_team_get_uniqueid", STATUS, OLDEST, &f.nvshmemx_team_get_uniqueid),
        _row("nvshmemx_team_init", STATUS, OLDEST, &f.nvshmemx_team_init),
        _row("nvshmem_team_split_2d", STATUS, OLDEST, &f.nvshmem_team_split_2d),
        _row("nvshmem_team_destroy", OTHER, OLDEST, &f.nvshmem_team_destroy),
        _row("nvshmemx_alltoallmem_on_stream", STATUS, OLDEST, &f.nvshmemx_alltoallmem_on_stream),
        _row("nvshmemx_barrier_on_stream", STATUS, OLDEST, &f.nvshmemx_barrier_on_stream),
        _row("nvshmemx_barrier_all_on_stream", OTHER, OLDEST, &f.nvshmemx_barrier_all_on_stream),
        _row("nvshmemx_team_sync_on_stream", STATUS, OLDEST, &f.nvshmemx_team_sync_on_stream),
        _row("nvshmemx_sync_all_on_stream", OTHER, OLDEST, &f.nvshmemx_sync_all_on_stream),
        _row("nvshmemx_broadcastmem_on_stream", STATUS, OLDEST, &f.nvshmemx_broadcastmem_on_stream),
        _row("nvshmemx_fcollectmem_on_stream", STATUS, OLDEST, &f.nvshmemx_fcollectmem_on_stream),
        _row("nvshmemx_buffer_register", STATUS, OLDEST, &f.nvshmemx_buffer_register),
        _row("nvshmemx_buffer_unregister", STATUS, OLDEST, &f.nvshmemx_buffer_unregister),
        _row("nvshmemx_hostlib_init_attr", STATUS, OLDEST, &f.nvshmemx_hostlib_init_attr),
        _row("nvshmemx_hostlib_finalize", OTHER, OLDEST, &f.nvshmemx_hostlib_finalize),
        _row("nvshmemx_set_attr_uniqueid_args", STATUS, OLDEST, &f.nvshmemx_set_attr_uniqueid_args),
        _row("nvshmemx_set_attr_mpi_comm_args", STATUS, OLDEST, &f.nvshmemx_set_attr_mpi_comm_args),
        _row("nvshmemx_get_uniqueid", STATUS, OLDEST, &f.nvshmemx_get_uniqueid),
        _row("nvshmemx_cumodule_init", STATUS, OLDEST, &f.nvshmemx_cumodule_init),
        _row("nvshmemx_cumodule_finalize", STATUS, OLDEST, &f.nvshmemx_cumodule_finalize),
        _row("nvshmemx_buffer_register_symmetric", OTHER, OLDEST, &f.nvshmemx_buffer_register_symmetric),
        _row("nvshmemx_buffer_register_symmetric_at_preferred_address", OTHER, 30605,
             &f.nvshmemx_buffer_register_symmetric_at_preferred_address),
        _row("nvshmemx_buffer_unregister_symmetric", STATUS, OLDEST, &f.nvshmemx_buffer_unregister_symmetric),
        _row("nvshmemx_culibrary_init", STATUS, OLDEST, &f.nvshmemx_culibrary_init),
        _row("nvshmemx_culibrary_finalize", STATUS, OLDEST, &f.nvshmemx_culibrary_finalize),
        _row("nvshmemx_putmem_on_stream", OTHER, OLDEST, &f.nvshmemx_putmem_on_stream),
        _row("nvshmemx_putmem_signal_on_stream", OTHER, OLDEST, &f.nvshmemx_putmem_signal_on_stream),
        _row("nvshmemx_putmem_signal_nbi_on_stream", OTHER, OLDEST, &f.nvshmemx_putmem_signal_nbi_on_stream),
        _row("nvshmemx_putmem_nbi_on_stream", OTHER, OLDEST, &f.nvshmemx_putmem_nbi_on_stream),
        _row("nvshmemx_getmem_on_stream", OTHER, OLDEST, &f.nvshmemx_getmem_on_stream),
        _row("nvshmemx_getmem_nbi_on_stream", OTHER, OLDEST, &f.nvshmemx_getmem_nbi_on_stream),
        _row("nvshmemx_quiet_on_stream", OTHER, OLDEST, &f.nvshmemx_quiet_on_stream),
        _row("nvshmemx_flush_on_stream", OTHER, 30700, &f.nvshmemx_flush_on_stream),
        _row("nvshmemx_signal_op_on_stream", OTHER, OLDEST, &f.nvshmemx_signal_op_on_stream),
        _row("nvshmemx_signal_wait_until_on_stream", OTHER, OLDEST, &f.nvshmemx_signal_wait_until_on_stream),
    ]
    # The reductions: NVSHMEM's name of each element type and operator that it has.
    cdef dict integers = {
        NVSYM_INT8: "int8", NVSYM_INT16: "int16", NVSYM_INT32: "int32", NVSYM_INT64: "int64",
        NVSYM_UINT8: "uint8", NVSYM_UINT16: "uint16", NVSYM_UINT32: "uint32", NVSYM_UINT64: "uint64",
    }
    cdef dict floats = {
        NVSYM_FLOAT16: "half", NVSYM_BFLOAT16: "bfloat16", NVSYM_FLOAT32: "float", NVSYM_FLOAT64: "double",
    }
    cdef dict arithmetic = {NVSYM_SUM: "sum", NVSYM_PROD: "prod", NVSYM_MIN: "min", NVSYM_MAX: "max"}
    cdef dict bitwise = {NVSYM_AND: "and", NVSYM_OR: "or", NVSYM_XOR: "xor"}
    for types, ops in ((integers | floats, arithmetic), (integers, bitwise)):
        for dtype, type_name in types.items():
            for op, op_name in ops.items():
                rows.append(_row(f"nvshmemx_{type_name}_{op_name}_reduce_on_stream", STATUS, OLDEST,
                                 &f.reduce_on_stream[dtype][op]))
                rows.append(_row(f"nvshmemx_{type_name}_{op_name}_reducescatter_on_stream", STATUS, OLDEST,
                                 &f.reducescatter_on_stream[dtype][op]))
    return rows


cdef dict _NAMES = {
    NVSHMEMX_ERROR_INVALID_VALUE: "NVSHMEMX_ERROR_INVALID_VALUE",
    NVSHMEMX_ERROR_OUT_OF_MEMORY: "NVSHMEMX_ERROR_OUT_OF_MEMORY",
    NVSHMEMX_ERROR_NOT_SUPPORTED: "NVSHMEMX_ERROR_NOT_SUPPORTED",
    NVSHMEMX_ERROR_SYMMETRY: "NVSHMEMX_ERROR_SYMMETRY",
    NVSHMEMX_ERROR_GPU_NOT_SELECTED: "NVSHMEMX_ERROR_GPU_NOT_SELECTED",
    NVSHMEMX_ERROR_COLLECTIVE_LAUNCH_FAILED: "NVSHMEMX_ERROR_COLLECTIVE_LAUNCH_FAILED",
    NVSHMEMX_ERROR_INTERNAL: "NVSHMEMX_ERROR_INTERNAL",
}

# What usually helps against a status.
cdef dict _HINTS = {
    NVSHMEMX_ERROR_OUT_OF_MEMORY:
        "the GPU has too little free memory: see nvidia-smi",
    NVSHMEMX_ERROR_NOT_SUPPORTED:
        "the GPU, the driver or the settings of NVSHMEM (NVSHMEM_*) do not allow it",
    NVSHMEMX_ERROR_SYMMETRY:
        "the PEs made different calls",
    NVSHMEMX_ERROR_GPU_NOT_SELECTED:
        "no GPU was current in this thread",
    NVSHMEMX_ERROR_INTERNAL:
        "NVSHMEM wrote the cause to stderr; NVSHMEM_DEBUG=INFO makes it say more",
}

# The same, for calls that fail in ways of their own.
cdef dict _CALL_HINTS = {
    "nvshmemx_hostlib_init_attr":
        "NVSHMEM wrote the cause to stderr. Usual causes: no usable GPU or driver on this PE, or no network interface "
        "for the bootstrap (set NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME). NVSHMEM_DEBUG=INFO makes it say more",
    "nvshmemx_get_uniqueid":
        "NVSHMEM found no network interface to listen on: name one in NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME",
}


#  Loading  ----------------------------------------------------------------------------------------------------------

cdef str _version_text(int version):
    """3.4.5 of 30405; a version that ends in 0 (a since) without that part: 3.7 of 30700."""
    text = f"{version // 10000}.{version // 100 % 100}"
    return f"{text}.{version % 100}" if version % 100 else text


cdef str _exact_version_text(int version):
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def _initialized(size_t handle):
    """Whether an open NVSHMEM has been initialised, by whomever."""
    cdef void *status = dlsym(<void *> handle, b"nvshmemx_init_status")
    return status != NULL and (<int (*)() noexcept nogil> status)() >= NVSHMEM_STATUS_IS_INITIALIZED


cdef int _open() except -1:
    """Open the library and fill the table; on failure nothing is published, and the next call tries again."""
    global _library, _version, nvshmem
    cdef int major = 0, minor = 0, patch = 0
    cdef void *address
    library = _libfind.find(
        "NVSHMEM",
        soname="libnvshmem_host.so.3",
        variable="NVSYM_LIBNVSHMEM",
        pathfinder_name="nvshmem_host",
        install='Install it with: pip install "nvsym[cu12]" or "nvsym[cu13]", after the CUDA version of the driver',
        prefer=_initialized,
    )
    cdef void *handle = <void *> <size_t> library.handle
    address = dlsym(handle, b"nvshmemx_vendor_get_version_info")
    if address == NULL:
        raise NotAvailableError(
            f"{library.path} is not NVSHMEM's host library: it has no function nvshmemx_vendor_get_version_info")
    (<void (*)(int *, int *, int *) noexcept nogil> address)(&major, &minor, &patch)
    cdef int version = major * 10000 + minor * 100 + patch
    cdef str found = f"{_exact_version_text(version)} at {library.path} ({library.found_by})"
    if version < OLDEST:
        raise NotAvailableError(
            f"nvsym needs NVSHMEM {_version_text(OLDEST)} or later, found {found}; "
            "upgrade it: pip install -U nvidia-nvshmem-cu12 (or -cu13)")
    if major != OLDEST // 10000:
        raise NotAvailableError(
            f"nvsym knows NVSHMEM {OLDEST // 10000}, found {found}; use a later nvsym, or NVSHMEM {OLDEST // 10000}")
    rows = _table()
    memset(&_functions, 0, sizeof(NVSHMEM))
    _missing.clear()
    for name, returns, since, slot in rows:
        address = dlsym(handle, name.encode())
        if address == NULL:
            _missing[name] = since
            if returns == STATUS:
                address = <void *> &_no_function
            elif since <= OLDEST:
                raise NotAvailableError(
                    f"NVSHMEM {found} has no function {name}, which every version has: "
                    "the file is not a whole NVSHMEM host library")
        (<void **> <size_t> slot)[0] = address
    _library = library
    _version = version
    nvshmem = &_functions
    return 0


cdef int _load() except -1 with gil:
    with _lock:
        return 0 if nvshmem != NULL else _open()


cdef int load_nvshmem() except -1 nogil:
    return 0 if nvshmem != NULL else _load()


cdef int nvshmem_version() noexcept nogil:
    return _version


cdef bint nvshmem_has(void *function) noexcept nogil:
    return function != NULL and function != <void *> &_no_function


cdef int NEED_NVSHMEM(void *function, const char *name) except -1 nogil:
    return 0 if nvshmem_has(function) else raise_nvshmem(NVSHMEM_NO_FUNCTION, name)


#  Structures  -------------------------------------------------------------------------------------------------------

cdef void init_attr_initializer(nvshmemx_init_attr_t *attr, int device) noexcept nogil:
    # Second versions of the attributes and their arguments, with cuda_device_id, came with 3.5.
    cdef int layout = 2 if _version >= 30500 else 1
    memset(attr, 0, sizeof(nvshmemx_init_attr_t))
    attr.version = (layout << 16) + <int> sizeof(nvshmemx_init_attr_t)
    attr.args.version = (layout << 16) + <int> sizeof(nvshmemx_init_args_t)
    attr.args.uid_args.version = (1 << 16) + <int> sizeof(nvshmemx_uniqueid_args_t)
    attr.args.uid_args.myrank = -1
    attr.args.uid_args.nranks = -1
    if layout == 2:
        attr.args.cuda_device_id = device


cdef void uniqueid_initializer(nvshmemx_uniqueid_t *uniqueid) noexcept nogil:
    memset(uniqueid, 0, sizeof(nvshmemx_uniqueid_t))
    uniqueid.version = (1 << 16) + <int> sizeof(nvshmemx_uniqueid_t)


cdef void team_config_initializer(nvshmem_team_config_t *config) noexcept nogil:
    memset(config, 0, sizeof(nvshmem_team_config_t))
    config.version = (2 << 16) + <int> sizeof(nvshmem_team_config_t)
    config.num_contexts = -1
    config.uniqueid = <nvshmemx_team_uniqueid_t> -1


#  Errors  -----------------------------------------------------------------------------------------------------------

cdef int raise_nvshmem(int status, const char *call) except -1 with gil:
    """Raise for a status other than NVSHMEMX_SUCCESS, naming the call, the status and what helps."""
    cdef str name = call.decode()
    if status == NVSHMEM_NO_FUNCTION:
        raise NotAvailableError(why_missing(name) or f"{name} is not in NVSHMEM at {_library.path}")
    cdef str text = f"{name} failed: {_NAMES.get(status, 'unknown status')} ({status})"
    hint = _CALL_HINTS.get(name) or _HINTS.get(status)
    if hint:
        text += f"; {hint}"
    raise BackendError(text)


#  For Python  -------------------------------------------------------------------------------------------------------

def is_loaded():
    """Whether the library is open."""
    return _version != 0


def library_info():
    """What is known of the NVSHMEM library; opens it.

    Returns
    -------
    LibraryInfo

    Raises
    ------
    NotAvailableError
        If there is none that can be used, naming every place tried.
    """
    load_nvshmem()
    return _libfind.LibraryInfo(
        _library.path, _exact_version_text(_version), _library.found_by, tuple(_missing), _library.also_loaded)


def functions():
    """The NVSHMEM functions that nvsym uses.

    Returns
    -------
    list of tuple
        (name, which is the symbol in the library; version that it came with, as major * 10000 + minor * 100 + patch,
        not below `OLDEST`; whether it returns a status).
    """
    return [(name, since, returns == STATUS) for name, returns, since, _ in _table()]


def why_missing(name):
    """Why the open library does not have a function.

    Parameters
    ----------
    name : str
        As in C: ``"nvshmemx_flush_on_stream"``.

    Returns
    -------
    str or None
        None where it has it.
    """
    load_nvshmem()
    since = _missing.get(name)
    if since is None:
        return None
    found = f"{_exact_version_text(_version)} at {_library.path}"
    if since > _version:
        return f"{name} needs NVSHMEM {_version_text(since)} or later, found {found}"
    return f"{name} is missing from NVSHMEM {found}, which should have it: the file is not a whole host library"
