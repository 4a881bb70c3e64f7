# SPDX-License-Identifier: Apache-2.0
"""The launch of a kernel that somebody else compiled: its handle, and its arguments as the bytes that its parameters take.

The driver knows the size of each parameter (cuFuncGetParamInfo, of the drivers for CUDA 12.4 and later), so a wrong number of
arguments or a number that does not fit is an error here and not a wrong value there.
"""

from libc.stdlib cimport free, malloc
from libc.string cimport memset

import ctypes
import os
import struct
from operator import index

import numpy as np

from .._driver cimport CHECK_CUDA, cuda, cuda_has, cuda_version
from ..libcuda cimport (
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_NUM_REGS,
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, CUDA_SUCCESS, CUfunction, CUkernel, CUlaunchAttribute, CUlaunchConfig,
    CUmodule, CUstream)

cdef enum:
    MAX_PARAMETERS = 4096   # more than the bytes of parameters allow
    SHARED_AT_ONCE = 48 << 10   # bytes of dynamic shared memory that need no permission
    MOST_KNOWN     = 256
    EARLY_ARCH     = 90     # the GPU that launches a kernel while the one before it runs
    EARLY_SINCE    = 12030  # the driver that captures such launches into graphs

cdef dict FLOATS = {8: "d", 4: "f", 2: "e"}

# id -> (kernel, handle, sizes of its parameters) of kernels that are objects. The object is held, so that its handle stays that of
# its function.
cdef dict _known = {}


cdef int arch_of(int ordinal) except -1:
    cdef int handle = 0, major = 0, minor = 0
    CHECK_CUDA(cuda.cuDeviceGet(&handle, ordinal), b"cuDeviceGet")
    CHECK_CUDA(cuda.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle), b"cuDeviceGetAttribute")
    CHECK_CUDA(cuda.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle), b"cuDeviceGetAttribute")
    return 10 * major + minor


cdef bint can_launch_early(int arch) except -1:
    return arch >= EARLY_ARCH and cuda_version() >= EARLY_SINCE and os.environ.get("NVSYM_TEST_OVERLAP", "1") == "1"


cdef size_t load_functions(CudaRuntime gpu, int ordinal, bytes cubin, object names, CUfunction *functions) except 0:
    cdef CUmodule module = NULL
    cdef CUfunction function
    cdef int i, registers
    gpu.use(ordinal)
    cdef const char *image = cubin
    with nogil:     # the driver may wait for all that runs on the GPU
        CHECK_CUDA(cuda.cuModuleLoadData(&module, image), b"cuModuleLoadData")
    try:
        for i in range(len(names) - 1, -1, -1):
            name = names[i].encode()
            CHECK_CUDA(cuda.cuModuleGetFunction(&function, module, <const char *> name), b"cuModuleGetFunction")
            # Asking makes a lazy driver load the function now, not at its first launch.
            CHECK_CUDA(cuda.cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function), b"cuFuncGetAttribute")
            functions[i] = function
    except BaseException:
        memset(functions, 0, len(names) * sizeof(CUfunction))
        cuda.cuModuleUnload(module)
        raise
    return <size_t> module


cdef int launch_own(CUfunction function, unsigned int blocks, unsigned int threads, void **arguments, CUstream stream,
                    bint early) except -1 nogil:
    cdef CUlaunchAttribute attribute
    cdef CUlaunchConfig config
    if not early:
        return CHECK_CUDA(cuda.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, NULL), b"cuLaunchKernel")
    memset(&attribute, 0, sizeof(attribute))
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = 0
    config.hStream = stream
    config.attrs, config.numAttrs = &attribute, 1
    return CHECK_CUDA(cuda.cuLaunchKernelEx(&config, function, arguments, NULL), b"cuLaunchKernelEx")


cdef CUfunction function_of(object kernel) except NULL:
    """The driver's handle of a kernel of cuda-core or CuPy, or of an int."""
    cdef CUfunction function = NULL
    cdef size_t handle
    cdef object found = kernel
    if isinstance(kernel, int) and not isinstance(kernel, bool):
        handle = kernel
        if handle == 0:
            raise ValueError("kernel: 0 is no function handle")
        return <CUfunction> handle
    inner = getattr(kernel, "kernel", None)     # CuPy's RawKernel holds a Function
    if inner is not None and hasattr(inner, "ptr"):
        found = inner.ptr
    elif hasattr(kernel, "ptr"):                # CuPy's Function
        found = kernel.ptr
    elif getattr(kernel, "handle", None) is not None:   # cuda-core's Kernel
        found = kernel.handle
    elif getattr(kernel, "_handle", None) is not None:
        found = kernel._handle
    try:
        handle = int(found)
    except (TypeError, ValueError):
        raise TypeError("kernel: expected a Kernel of cuda-core, a RawKernel or function of CuPy, or a CUfunction as an int, not "
                        f"{type(kernel).__name__}") from None
    if handle == 0:
        raise ValueError(f"kernel: {kernel!r} has no function handle")
    # cuda-core has handles that belong to no context; CuPy and the rest have functions of one.
    if found is not kernel and not hasattr(kernel, "ptr") and inner is None and cuda_has(<void *> cuda.cuKernelGetFunction):
        if "CUfunction" not in type(found).__name__ and cuda.cuKernelGetFunction(&function, <CUkernel> handle) == CUDA_SUCCESS:
            return function
    return <CUfunction> handle


cdef list parameter_sizes(CUfunction function):
    """The bytes of each parameter, or None where the driver cannot say."""
    cdef size_t offset = 0, size = 0, i
    cdef list sizes = []
    if not cuda_has(<void *> cuda.cuFuncGetParamInfo):
        return None
    for i in range(MAX_PARAMETERS):
        if cuda.cuFuncGetParamInfo(function, i, &offset, &size) != CUDA_SUCCESS:
            break
        sizes.append(size)
    return sizes


cdef bytes argument_bytes(object value, int position, object size):
    """An argument as the bytes of its parameter; `size`: of the parameter, or None if it is not known."""
    cdef bytes data
    if isinstance(value, (np.generic, np.ndarray)):
        data = value.tobytes()
    elif isinstance(value, (bytes, bytearray)):
        data = bytes(value)
    elif isinstance(value, (ctypes._SimpleCData, ctypes.Structure, ctypes.Union, ctypes.Array)):
        data = bytes(value)
    elif isinstance(value, bool):
        data = int(value).to_bytes(size or 1, "little")
    elif isinstance(value, float):
        if (size or 8) not in FLOATS:
            raise TypeError(f"argument {position}: a float does not fit a parameter of {size} bytes")
        data = struct.pack(FLOATS[size or 8], value)
    elif isinstance(value, complex):
        data = np.complex64(value).tobytes() if size == 8 else np.complex128(value).tobytes()
    else:
        try:
            number = index(value)
        except TypeError:
            raise TypeError(f"argument {position}: expected a buffer, a number or bytes, not {type(value).__name__}") from None
        try:
            data = number.to_bytes(size or 8, "little", signed=number < 0)
        except OverflowError:
            raise OverflowError(f"argument {position}: {number} does not fit a parameter of {size or 8} bytes") from None
    if size is not None and len(data) != size:
        raise TypeError(f"argument {position}: {len(data)} bytes ({type(value).__name__}) for a parameter of {size} bytes")
    return data


cdef int forget_kernels() except -1:
    _known.clear()
    return 0


cdef int launch_kernel(object kernel, list arguments, const unsigned int *grid, const unsigned int *block, size_t shared,
                       bint cooperative, CUstream stream) except -1:
    cdef CUfunction function
    cdef list sizes, packed
    cdef void **pointers
    cdef bytes data
    cdef Py_ssize_t i, n = len(arguments)
    cdef unsigned int shared_bytes = shared
    cdef tuple known = _known.get(id(kernel))
    if known is not None:
        function, sizes = <CUfunction> <size_t> known[1], known[2]
    else:
        function = function_of(kernel)
        sizes = parameter_sizes(function)
        if not isinstance(kernel, int):     # whose function may be gone
            if len(_known) == MOST_KNOWN:
                _known.clear()
            _known[id(kernel)] = (kernel, <size_t> function, sizes)
    if sizes is not None and len(sizes) != n:
        raise TypeError(f"the kernel has {len(sizes)} parameters, {n} arguments were given")
    packed = [argument_bytes(value, i, None if sizes is None else sizes[i]) for i, value in enumerate(arguments)]
    if shared > SHARED_AT_ONCE:
        CHECK_CUDA(cuda.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, <int> shared),
                   b"cuFuncSetAttribute")
    pointers = <void **> malloc((n + 1) * sizeof(void *))
    if pointers == NULL:
        raise MemoryError("no memory for the arguments of a kernel")
    try:
        for i in range(n):
            data = packed[i]
            pointers[i] = <void *> <const char *> data
        with nogil:
            if cooperative:
                CHECK_CUDA(cuda.cuLaunchCooperativeKernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                                                          shared_bytes, stream, pointers), b"cuLaunchCooperativeKernel")
            else:
                CHECK_CUDA(cuda.cuLaunchKernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared_bytes,
                                               stream, pointers, NULL), b"cuLaunchKernel")
    finally:
        free(pointers)
    return 0
