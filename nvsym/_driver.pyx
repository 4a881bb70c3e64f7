# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver: found and opened at first use, one table of its functions, one way from a status to an exception."""

import threading

from posix.dlfcn cimport dlsym

from . import _libfind
from .errors import BackendError, NotAvailableError

from .libcuda cimport *

__all__ = ["functions", "is_loaded", "is_simulated", "library_info", "why_missing"]

cdef CUDADriver _functions
cdef int _version = 0
cdef object _library = None            # _libfind.Library once open
cdef dict _missing = {}                # name -> since
cdef object _lock = threading.Lock()

cuda = &_functions


# Stand in for a function. The caller passes arguments that they ignore: the caller cleans them up in the C calling
# conventions of the machines that CUDA runs on.
cdef CUresult _not_loaded() noexcept nogil:
    return CUDA_NOT_LOADED


cdef CUresult _no_function() noexcept nogil:
    return CUDA_NO_FUNCTION


cdef tuple _row(str name, str symbol, int since, void *slot):
    return name, symbol, since, <size_t> slot


cdef list _table():
    """The functions that nvsym uses: name in C, symbol in the library, the driver version that it came with, its place.

    Where a function has several symbols it is the latest that every driver for CUDA 12 has: an older one may mean
    another function, and a later one (cuStreamGetCaptureInfo_v3) be missing. A driver keeps every symbol it ever had.
    """
    return [
        _row("cuGetErrorString", "cuGetErrorString", 6000, &_functions.cuGetErrorString),
        _row("cuGetErrorName", "cuGetErrorName", 6000, &_functions.cuGetErrorName),
        _row("cuInit", "cuInit", 2000, &_functions.cuInit),
        _row("cuDriverGetVersion", "cuDriverGetVersion", 2020, &_functions.cuDriverGetVersion),
        _row("cuDeviceGet", "cuDeviceGet", 2000, &_functions.cuDeviceGet),
        _row("cuDeviceGetCount", "cuDeviceGetCount", 2000, &_functions.cuDeviceGetCount),
        _row("cuDeviceGetName", "cuDeviceGetName", 2000, &_functions.cuDeviceGetName),
        _row("cuDeviceGetUuid", "cuDeviceGetUuid_v2", 11040, &_functions.cuDeviceGetUuid),
        _row("cuDeviceGetAttribute", "cuDeviceGetAttribute", 2000, &_functions.cuDeviceGetAttribute),
        _row("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 7000, &_functions.cuDevicePrimaryCtxRetain),
        _row("cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", 11000, &_functions.cuDevicePrimaryCtxRelease),
        _row("cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxGetState", 7000, &_functions.cuDevicePrimaryCtxGetState),
        _row("cuCtxPushCurrent", "cuCtxPushCurrent_v2", 4000, &_functions.cuCtxPushCurrent),
        _row("cuCtxPopCurrent", "cuCtxPopCurrent_v2", 4000, &_functions.cuCtxPopCurrent),
        _row("cuCtxSetCurrent", "cuCtxSetCurrent", 4000, &_functions.cuCtxSetCurrent),
        _row("cuCtxGetCurrent", "cuCtxGetCurrent", 4000, &_functions.cuCtxGetCurrent),
        _row("cuCtxGetDevice", "cuCtxGetDevice", 2000, &_functions.cuCtxGetDevice),
        _row("cuCtxSynchronize", "cuCtxSynchronize", 2000, &_functions.cuCtxSynchronize),
        _row("cuModuleLoadData", "cuModuleLoadData", 2000, &_functions.cuModuleLoadData),
        _row("cuModuleUnload", "cuModuleUnload", 2000, &_functions.cuModuleUnload),
        _row("cuModuleGetFunction", "cuModuleGetFunction", 2000, &_functions.cuModuleGetFunction),
        _row("cuModuleGetGlobal", "cuModuleGetGlobal_v2", 3020, &_functions.cuModuleGetGlobal),
        _row("cuLibraryLoadData", "cuLibraryLoadData", 12000, &_functions.cuLibraryLoadData),
        _row("cuLibraryUnload", "cuLibraryUnload", 12000, &_functions.cuLibraryUnload),
        _row("cuLibraryGetModule", "cuLibraryGetModule", 12000, &_functions.cuLibraryGetModule),
        _row("cuKernelGetFunction", "cuKernelGetFunction", 12000, &_functions.cuKernelGetFunction),
        _row("cuMemGetInfo", "cuMemGetInfo_v2", 3020, &_functions.cuMemGetInfo),
        _row("cuMemAlloc", "cuMemAlloc_v2", 3020, &_functions.cuMemAlloc),
        _row("cuMemFree", "cuMemFree_v2", 3020, &_functions.cuMemFree),
        _row("cuMemFreeHost", "cuMemFreeHost", 2000, &_functions.cuMemFreeHost),
        _row("cuMemHostAlloc", "cuMemHostAlloc", 2020, &_functions.cuMemHostAlloc),
        _row("cuMemHostGetDevicePointer", "cuMemHostGetDevicePointer_v2", 3020, &_functions.cuMemHostGetDevicePointer),
        _row("cuMemHostRegister", "cuMemHostRegister_v2", 6050, &_functions.cuMemHostRegister),
        _row("cuMemHostUnregister", "cuMemHostUnregister", 4000, &_functions.cuMemHostUnregister),
        _row("cuMemcpyAsync", "cuMemcpyAsync", 4000, &_functions.cuMemcpyAsync),
        _row("cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2", 3020, &_functions.cuMemcpyHtoDAsync),
        _row("cuMemcpyDtoHAsync", "cuMemcpyDtoHAsync_v2", 3020, &_functions.cuMemcpyDtoHAsync),
        _row("cuMemcpyDtoDAsync", "cuMemcpyDtoDAsync_v2", 3020, &_functions.cuMemcpyDtoDAsync),
        _row("cuMemsetD8Async", "cuMemsetD8Async", 3020, &_functions.cuMemsetD8Async),
        _row("cuMemsetD16Async", "cuMemsetD16Async", 3020, &_functions.cuMemsetD16Async),
        _row("cuMemsetD32Async", "cuMemsetD32Async", 3020, &_functions.cuMemsetD32Async),
        _row("cuMemAddressReserve", "cuMemAddressReserve", 10020, &_functions.cuMemAddressReserve),
        _row("cuMemAddressFree", "cuMemAddressFree", 10020, &_functions.cuMemAddressFree),
        _row("cuMemCreate", "cuMemCreate", 10020, &_functions.cuMemCreate),
        _row("cuMemRelease", "cuMemRelease", 10020, &_functions.cuMemRelease),
        _row("cuMemMap", "cuMemMap", 10020, &_functions.cuMemMap),
        _row("cuMemUnmap", "cuMemUnmap", 10020, &_functions.cuMemUnmap),
        _row("cuMemSetAccess", "cuMemSetAccess", 10020, &_functions.cuMemSetAccess),
        _row("cuMemExportToShareableHandle", "cuMemExportToShareableHandle", 10020,
             &_functions.cuMemExportToShareableHandle),
        _row("cuMemImportFromShareableHandle", "cuMemImportFromShareableHandle", 10020,
             &_functions.cuMemImportFromShareableHandle),
        _row("cuMemGetAllocationGranularity", "cuMemGetAllocationGranularity", 10020,
             &_functions.cuMemGetAllocationGranularity),
        _row("cuMemRetainAllocationHandle", "cuMemRetainAllocationHandle", 11000,
             &_functions.cuMemRetainAllocationHandle),
        _row("cuMulticastCreate", "cuMulticastCreate", 12010, &_functions.cuMulticastCreate),
        _row("cuMulticastAddDevice", "cuMulticastAddDevice", 12010, &_functions.cuMulticastAddDevice),
        _row("cuMulticastBindMem", "cuMulticastBindMem", 12010, &_functions.cuMulticastBindMem),
        _row("cuMulticastUnbind", "cuMulticastUnbind", 12010, &_functions.cuMulticastUnbind),
        _row("cuMulticastGetGranularity", "cuMulticastGetGranularity", 12010, &_functions.cuMulticastGetGranularity),
        _row("cuPointerGetAttribute", "cuPointerGetAttribute", 4000, &_functions.cuPointerGetAttribute),
        _row("cuStreamCreate", "cuStreamCreate", 2000, &_functions.cuStreamCreate),
        _row("cuStreamCreateWithPriority", "cuStreamCreateWithPriority", 5050, &_functions.cuStreamCreateWithPriority),
        _row("cuStreamGetCtx", "cuStreamGetCtx", 9020, &_functions.cuStreamGetCtx),
        _row("cuStreamWaitEvent", "cuStreamWaitEvent", 3020, &_functions.cuStreamWaitEvent),
        _row("cuStreamBeginCapture", "cuStreamBeginCapture_v2", 10010, &_functions.cuStreamBeginCapture),
        _row("cuStreamEndCapture", "cuStreamEndCapture", 10000, &_functions.cuStreamEndCapture),
        _row("cuStreamIsCapturing", "cuStreamIsCapturing", 10000, &_functions.cuStreamIsCapturing),
        _row("cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_v2", 11030, &_functions.cuStreamGetCaptureInfo),
        _row("cuStreamQuery", "cuStreamQuery", 2000, &_functions.cuStreamQuery),
        _row("cuStreamSynchronize", "cuStreamSynchronize", 2000, &_functions.cuStreamSynchronize),
        _row("cuStreamDestroy", "cuStreamDestroy_v2", 4000, &_functions.cuStreamDestroy),
        _row("cuEventCreate", "cuEventCreate", 2000, &_functions.cuEventCreate),
        _row("cuEventRecord", "cuEventRecord", 2000, &_functions.cuEventRecord),
        _row("cuEventRecordWithFlags", "cuEventRecordWithFlags", 11010, &_functions.cuEventRecordWithFlags),
        _row("cuEventQuery", "cuEventQuery", 2000, &_functions.cuEventQuery),
        _row("cuEventSynchronize", "cuEventSynchronize", 2000, &_functions.cuEventSynchronize),
        _row("cuEventDestroy", "cuEventDestroy_v2", 4000, &_functions.cuEventDestroy),
        _row("cuEventElapsedTime", "cuEventElapsedTime", 2000, &_functions.cuEventElapsedTime),
        _row("cuStreamWaitValue64", "cuStreamWaitValue64_v2", 11070, &_functions.cuStreamWaitValue64),
        _row("cuStreamWriteValue32", "cuStreamWriteValue32_v2", 11070, &_functions.cuStreamWriteValue32),
        _row("cuStreamWriteValue64", "cuStreamWriteValue64_v2", 11070, &_functions.cuStreamWriteValue64),
        _row("cuFuncGetAttribute", "cuFuncGetAttribute", 2020, &_functions.cuFuncGetAttribute),
        _row("cuFuncSetAttribute", "cuFuncSetAttribute", 9000, &_functions.cuFuncSetAttribute),
        _row("cuFuncGetParamInfo", "cuFuncGetParamInfo", 12040, &_functions.cuFuncGetParamInfo),
        _row("cuLaunchKernel", "cuLaunchKernel", 4000, &_functions.cuLaunchKernel),
        _row("cuLaunchKernelEx", "cuLaunchKernelEx", 11060, &_functions.cuLaunchKernelEx),
        _row("cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel", 9000, &_functions.cuLaunchCooperativeKernel),
        _row("cuLaunchHostFunc", "cuLaunchHostFunc", 10000, &_functions.cuLaunchHostFunc),
        _row("cuGraphInstantiateWithFlags", "cuGraphInstantiateWithFlags", 11040,
             &_functions.cuGraphInstantiateWithFlags),
        _row("cuGraphLaunch", "cuGraphLaunch", 10000, &_functions.cuGraphLaunch),
        _row("cuGraphExecDestroy", "cuGraphExecDestroy", 10000, &_functions.cuGraphExecDestroy),
        _row("cuGraphDestroy", "cuGraphDestroy", 10000, &_functions.cuGraphDestroy),
        _row("cuOccupancyMaxActiveBlocksPerMultiprocessor", "cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050,
             &_functions.cuOccupancyMaxActiveBlocksPerMultiprocessor),
        _row("cuDeviceCanAccessPeer", "cuDeviceCanAccessPeer", 4000, &_functions.cuDeviceCanAccessPeer),
        _row("cuDeviceGetP2PAttribute", "cuDeviceGetP2PAttribute", 8000, &_functions.cuDeviceGetP2PAttribute),
        _row("cuGetProcAddress", "cuGetProcAddress_v2", 12000, &_functions.cuGetProcAddress),
    ]


# What usually helps against a status, beyond the driver's own text.
cdef dict _HINTS = {
    CUDA_ERROR_OUT_OF_MEMORY:
        "other processes may hold memory of the GPU: see nvidia-smi",
    CUDA_ERROR_NOT_INITIALIZED:
        "a driver call was made before cuInit",
    CUDA_ERROR_DEINITIALIZED:
        "the driver is shutting down: make no CUDA call from an exit handler",
    CUDA_ERROR_STUB_LIBRARY:
        "the loader found the CUDA toolkit's stub in place of the driver: take .../stubs out of LD_LIBRARY_PATH",
    CUDA_ERROR_DEVICE_UNAVAILABLE:
        "another process holds the GPU in exclusive mode (nvidia-smi -q -d COMPUTE)",
    CUDA_ERROR_NO_DEVICE:
        "no GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES; a container needs to be started with GPU access",
    CUDA_ERROR_INVALID_DEVICE:
        "device numbers count the GPUs that CUDA_VISIBLE_DEVICES leaves visible, from 0",
    CUDA_ERROR_INVALID_CONTEXT:
        "no context is current in this thread, or the one that is has been destroyed",
    CUDA_ERROR_NO_BINARY_FOR_GPU:
        "the code was compiled for another GPU architecture",
    CUDA_ERROR_ECC_UNCORRECTABLE:
        "a memory error of the GPU: see nvidia-smi -q and reset the GPU",
    CUDA_ERROR_NVLINK_UNCORRECTABLE:
        "an error of an NVLink: see nvidia-smi nvlink -e",
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
        "the PTX is newer than the driver: use an older NVRTC, or a newer driver",
    CUDA_ERROR_ILLEGAL_STATE:
        "for a multicast call this is a fault of the NVLink fabric: check the fabric manager",
    CUDA_ERROR_ILLEGAL_ADDRESS:
        "a kernel used a bad address; the context is lost, so end the process. compute-sanitizer finds the kernel",
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
        "too many threads per block for the registers or the shared memory that the kernel uses",
    CUDA_ERROR_ASSERT:
        "an assert of a kernel failed; the context is lost, so end the process",
    CUDA_ERROR_MISALIGNED_ADDRESS:
        "a kernel used a misaligned address; the context is lost, so end the process",
    CUDA_ERROR_LAUNCH_FAILED:
        "a kernel ended with an exception; the context is lost, so end the process. compute-sanitizer finds the kernel",
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE:
        "all blocks of a cooperative launch must fit on the GPU at once",
    CUDA_ERROR_NOT_PERMITTED:
        "for a fabric handle this means that no IMEX channel is accessible",
    CUDA_ERROR_SYSTEM_NOT_READY:
        "start the fabric manager (systemctl status nvidia-fabricmanager), or wait until it is up",
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
        "kernel module and libcuda are of different versions: reboot after a driver update, or correct the container",
    CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
        "the forward-compatibility libcuda does not work with this GPU: take it out of LD_LIBRARY_PATH",
    CUDA_ERROR_MPS_CONNECTION_FAILED:
        "the MPS daemon does not answer: check CUDA_MPS_PIPE_DIRECTORY and nvidia-cuda-mps-control",
    CUDA_ERROR_MPS_RPC_FAILURE:
        "the MPS server ended: see its log in CUDA_MPS_LOG_DIRECTORY",
    CUDA_ERROR_MPS_SERVER_NOT_READY:
        "the MPS server is starting or recovering: try again",
    CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:
        "the MPS server takes no more processes",
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
        "the call cannot be part of a CUDA graph: make it before or after the capture",
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
        "an earlier call broke the capture: end it and capture again",
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
        "the legacy default stream cannot be used while another stream is being captured",
    CUDA_ERROR_CAPTURED_EVENT:
        "the event was recorded in a capture: it can be waited for in that capture only",
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:
        "a capture ends in the thread that began it",
}


#  Loading  ----------------------------------------------------------------------------------------------------------

cdef str _version_text(int version):
    return f"{version // 1000}.{version % 1000 // 10}"


cdef int _set_all(void *function) except -1:
    for _, _, _, slot in _table():
        (<void **> <size_t> slot)[0] = function
    return 0


cdef int _open() except -1:
    """Open the library and fill the table; on failure the table stays as it was, and the next call tries again."""
    global _library, _version
    cdef int version = 0
    cdef CUresult status
    cdef void *address
    library = _libfind.find(
        "The CUDA driver",
        soname="libcuda.so.1",
        variable="NVSYM_LIBCUDA",
        pathfinder_name="cuda",
        install="libcuda.so.1 is part of the NVIDIA driver: install it (or start the container with GPU access)",
    )
    cdef void *handle = <void *> <size_t> library.handle
    address = dlsym(handle, b"cuDriverGetVersion")
    if address == NULL:
        raise NotAvailableError(f"{library.path} is not a CUDA driver: it has no function cuDriverGetVersion")
    status = (<CUresult (*)(int *) noexcept nogil> address)(&version)
    if status != CUDA_SUCCESS:
        raise NotAvailableError(
            f"{library.path} does not work as a CUDA driver: cuDriverGetVersion returned {status}"
            + (f" ({_HINTS[status]})" if status in _HINTS else ""))
    _missing.clear()
    for name, symbol, since, slot in _table():
        address = dlsym(handle, symbol.encode())
        if address == NULL:
            _missing[name] = since
            address = <void *> &_no_function
        (<void **> <size_t> slot)[0] = address
    _version = version
    _library = library
    return 0


cdef int _load() except -1 with gil:
    with _lock:
        return 0 if _version else _open()


cdef int load_cuda() except -1 nogil:
    return 0 if _version else _load()


cdef int cuda_version() noexcept nogil:
    return _version


cdef bint cuda_has(void *function) noexcept nogil:
    return function != <void *> &_not_loaded and function != <void *> &_no_function


#  Errors  -----------------------------------------------------------------------------------------------------------

cdef str _text_of(CUresult (*describe)(CUresult, const char **) noexcept nogil, CUresult status):
    cdef const char *text = NULL
    if describe(status, &text) != CUDA_SUCCESS or text == NULL:
        return ""
    return text.decode("utf-8", "replace")


cdef int raise_cuda(CUresult status, const char *call) except -1 with gil:
    """Raise for a status other than CUDA_SUCCESS, naming the call, the status and what helps."""
    cdef str name = call.decode()
    if status == CUDA_NOT_LOADED:
        raise NotAvailableError(f"{name} was called before the CUDA driver was loaded")
    if status == CUDA_NO_FUNCTION:
        raise NotAvailableError(why_missing(name) or f"{name} is not in the CUDA driver at {_library.path}")
    cdef str text = f"{name} failed: {_text_of(cuda.cuGetErrorName, status) or 'unknown status'} ({status})"
    cdef str meaning = _text_of(cuda.cuGetErrorString, status)
    if meaning:
        text += f", {meaning}"
    if status in _HINTS:
        text += f"; {_HINTS[status]}"
    error = BackendError(text)
    error.status = status
    raise error


#  For Python  -------------------------------------------------------------------------------------------------------

def is_loaded():
    """Whether the driver is open."""
    return _version != 0


def is_simulated():
    """Whether the driver is nvsym's own, which runs on the CPU and knows no machine code of GPUs; opens it."""
    load_cuda()
    return dlsym(<void *> <size_t> _library.handle, b"nvsym_sim_version") != NULL


def library_info():
    """What is known of the CUDA driver; opens it.

    Returns
    -------
    LibraryInfo

    Raises
    ------
    NotAvailableError
        If there is no driver, naming every place tried.
    """
    load_cuda()
    return _libfind.LibraryInfo(
        _library.path, _version_text(_version), _library.found_by, tuple(_missing), _library.also_loaded)


def functions():
    """The driver functions that nvsym uses.

    Returns
    -------
    list of tuple
        (name, symbol in the library, driver version that it came with, as `cuDriverGetVersion` counts).
    """
    return [row[:3] for row in _table()]


def why_missing(name):
    """Why the open driver does not have a function.

    Parameters
    ----------
    name : str
        As in C: ``"cuMulticastCreate"``.

    Returns
    -------
    str or None
        None where it has it.
    """
    load_cuda()
    since = _missing.get(name)
    if since is None:
        return None
    found = f"{_version_text(_version)} at {_library.path}"
    if since > _version:
        return f"{name} needs a driver for CUDA {_version_text(since)} or later, found {found}"
    return f"{name} is missing from the driver for CUDA {found}, which should have it: the file is not a whole driver"


_set_all(<void *> &_not_loaded)
