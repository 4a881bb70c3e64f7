# SPDX-License-Identifier: Apache-2.0
"""Users' own kernels in the order of a stream: what SHMEMContext.enqueue_function does."""

import ctypes
from collections.abc import Sequence
from operator import index

import numpy as np

from .errors import NotAvailableError

from .buffer cimport SHMEMBuffer, check_alive
from .job cimport Job
from .memory cimport Buffer
from .rma cimport job_stream


cdef int dimensions(object given, str name, unsigned int *out) except -1:
    """One to three numbers above zero; the rest is 1."""
    cdef int i
    try:
        several = isinstance(given, (Sequence, np.ndarray)) and not isinstance(given, (str, bytes, bytearray, memoryview))
        sizes = [index(size) for size in (given if several else (given,))]
    except TypeError:
        raise TypeError(f"{name}: expected one to three whole numbers, not {given!r}") from None
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1 or max(sizes) >= 1 << 31:
        raise ValueError(f"{name}: expected one to three numbers above zero, not {given!r}")
    for i in range(3):
        out[i] = sizes[i] if i < len(sizes) else 1
    return 0


cdef object on_gpu(object value, list keep):
    """An argument of a GPU kernel: the address of what lives in memory, else the value."""
    if isinstance(value, SHMEMBuffer):      # kept by the tickets of the runtime
        return np.uint64((<SHMEMBuffer> value).unsafe_ptr())
    if isinstance(value, Buffer):
        keep.append(value)
        return np.uint64(value._data_ptr())
    if isinstance(value, np.ndarray) and value.ndim:
        raise TypeError("an array in host memory cannot be an argument of a GPU kernel; copy it to a buffer")
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        keep.append(value)
        return np.uint64(interface["data"][0])
    return value


cdef object in_memory(object value, bint native):
    """An argument of a callable: the array over a buffer, or for C code its address."""
    if not isinstance(value, (SHMEMBuffer, Buffer)):
        return value
    if not native:
        return np.asarray(value)
    return ctypes.c_void_p(value.unsafe_ptr() if isinstance(value, SHMEMBuffer) else value._data_ptr())


cdef int enqueue(Job job, object kernel, tuple args, object grid_dim, object block_dim, object shared_mem_bytes, object stream,
                 bint cooperative) except -1:
    cdef unsigned int grid[3]
    cdef unsigned int block[3]
    cdef void *ptr = NULL
    cdef list keep = []
    dimensions(grid_dim, "grid_dim", grid)
    dimensions(block_dim, "block_dim", block)
    try:
        shared = index(shared_mem_bytes)
    except TypeError:
        raise TypeError(f"shared_mem_bytes: expected a number of bytes, not {shared_mem_bytes!r}") from None
    if not 0 <= shared < 1 << 31:
        raise ValueError(f"shared_mem_bytes: {shared} bytes")
    job_stream(job, stream, &ptr)
    for i, value in enumerate(args):
        check_alive(value, f"argument {i}")
    if job.backend.device.is_host:
        if not callable(kernel):
            raise NotAvailableError(f"enqueue_function: the host backend has no GPU to launch {type(kernel).__name__} on; it takes a "
                                    "Python callable or a function of ctypes, which it calls once")
        native = isinstance(kernel, ctypes._CFuncPtr)
        if native:  # has addresses only
            keep.extend([(<SHMEMBuffer> value).keeper() for value in args if isinstance(value, SHMEMBuffer)])
        arguments = [in_memory(value, native) for value in args]
        keep.append(args)
    else:
        arguments = [on_gpu(value, keep) for value in args]
        if not isinstance(kernel, int) and keep:
            keep.append(kernel)
    return job.backend.launch(kernel, arguments, grid, block, shared, cooperative, ptr, keep if keep else None)
