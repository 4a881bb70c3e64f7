# SPDX-License-Identifier: Apache-2.0
"""Virtual memory and multicast of the CUDA driver: memory, addresses, mappings and multicast objects, one class each.

A mapping keeps its addresses; memory lives while a handle, a mapping or an exported descriptor of it does. Multicast objects
need not: whoever bound memory must unbind it while it lives. The rules of the calls are those of cuda.h and of the section
"Virtual Memory Management" of the CUDA programming guide.
"""

cimport cython
from libc.string cimport memset

import logging
import os
import socket
import threading
import time

from .errors import BackendError

from ._driver cimport CHECK_CUDA, cuda, load_cuda
from .libcuda cimport (
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, CU_MEM_ALLOCATION_TYPE_PINNED,
    CU_MEM_HANDLE_TYPE_FABRIC, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_LOCATION_TYPE_DEVICE,
    CU_MULTICAST_GRANULARITY_MINIMUM, CU_MULTICAST_GRANULARITY_RECOMMENDED, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY,
    CUdevice, CUmemAccessDesc, CUmemAllocationProp, CUmemFabricHandle, CUmulticastObjectProp, CUresult)

cdef enum:
    MAX_LOCAL = 64      # devices of one process

_log = logging.getLogger("nvsym")

cdef dict _calls = {}

# What a status of one call means besides the common hint.
cdef dict _ALSO = {
    ("cuMulticastBindMem", CUDA_ERROR_OUT_OF_MEMORY):
        ". For this call it can also mean that the NVLink switches have no room for another multicast object, which all programs share",
    ("cuMulticastBindMem", CUDA_ERROR_INVALID_VALUE):
        ". The arguments were checked: it is known to come of a fabric manager that was restarted without a reset of the GPUs",
    ("cuMulticastAddDevice", CUDA_ERROR_INVALID_VALUE):
        ". The arguments were checked: it is known to come of a fabric manager that was restarted without a reset of the GPUs",
}


def driver_calls():
    """How often each driver call of this module was made by this process, by name."""
    return dict(_calls)


cdef class Watch:
    """Makes the driver calls of one operation visible: which one runs, for how long, and which one failed.

    A driver call may block without limit (a device that was never added, a stalled fabric manager). It cannot be ended from
    outside, but it is reported, once, after `limit` seconds, with the stage, the host and the device.

    Parameters
    ----------
    what : str
        The operation.
    limit : float
        Seconds; 0: nothing is reported.
    """

    def __init__(self, str what, double limit):
        self.what = what
        self.limit = limit
        self.failures = []

    cdef int enter(self, str call, str place) except -1:
        _calls[call] = _calls.get(call, 0) + 1
        self.current = (call, place, time.monotonic())
        if self.thread is None and self.limit > 0:
            self.ended = threading.Event()
            self.thread = threading.Thread(target=_look, args=(self, self.ended), name="nvsym-watch", daemon=True)
            try:
                self.thread.start()
            except RuntimeError:    # there are no more, or the interpreter is ending (Python 3.12): the call matters more
                self.thread, self.limit = None, 0
        return 0

    cdef int leave(self, CUresult status) except -1:
        call, place, _ = self.current
        self.current = None
        if status == 0:
            return 0
        error = None
        try:
            CHECK_CUDA(status, call.encode())
        except BackendError as e:
            also = _ALSO.get((call, e.status), "")
            error = BackendError(f"{place}: {e}{also}")
            error.status = e.status
        if error is None:
            return 0
        if self.collecting:
            self.failures.append(error)
            return 0
        raise error

    def running(self):
        """The call that runs, where, and since when (`time.monotonic`); None between calls."""
        return self.current

    def collect(self):
        """From now on a call that fails is noted in `failures`, and does not raise: for giving back what there is."""
        self.collecting = True

    def close(self):
        """End the thread that watches."""
        if self.thread is not None:
            self.ended.set()
            self.thread = None


def _look(watch, ended):
    reported = None
    while not ended.wait(min(watch.limit / 4, 1.0)):
        running = watch.running()
        if running is None or running is reported:
            continue
        call, place, began = running
        if time.monotonic() - began < watch.limit:
            continue
        reported = running
        _log.warning(
            "nvsym: %s: %s has been in the driver for %.0f s, on %s, process %d, %s. The call cannot be ended from outside; "
            "if it does not return, end the process, and check the fabric manager (NVSYM_DRIVER_WATCH sets this limit)",
            watch.what, call, time.monotonic() - began, socket.gethostname(), os.getpid(), place)


cdef int device_of(int ordinal) except -1:
    cdef CUdevice device = 0
    CHECK_CUDA(cuda.cuDeviceGet(&device, ordinal), b"cuDeviceGet")
    return device


def attributes(int ordinal, numbers):
    """Attributes of a device (CUdevice_attribute); 0 for those that the driver does not know."""
    cdef int value, number, device
    cdef CUresult status
    load_cuda()
    device = device_of(ordinal)
    found = []
    for number in numbers:
        value = 0
        status = cuda.cuDeviceGetAttribute(&value, number, device)
        if status != CUDA_ERROR_INVALID_VALUE:
            CHECK_CUDA(status, b"cuDeviceGetAttribute")
        found.append(value if status == 0 else 0)
    return found


def first_blind_pair(ordinals):
    """Two devices of this process of which the first cannot address the memory of the second; None if all can."""
    cdef int access
    devices = [(ordinal, device_of(ordinal)) for ordinal in ordinals]
    for ordinal, device in devices:
        for other, its in devices:
            access = 1
            if other != ordinal:
                CHECK_CUDA(cuda.cuDeviceCanAccessPeer(&access, device, its), b"cuDeviceCanAccessPeer")
            if not access:
                return ordinal, other
    return None


cdef void fill_memory(CUmemAllocationProp *prop, int ordinal, int types) noexcept nogil:
    memset(prop, 0, sizeof(CUmemAllocationProp))
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED
    prop.requestedHandleTypes = types
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = ordinal


cdef void fill_multicast(CUmulticastObjectProp *prop, unsigned int devices, size_t size, int types) noexcept nogil:
    memset(prop, 0, sizeof(CUmulticastObjectProp))
    prop.numDevices = devices
    prop.size = size
    prop.handleTypes = types


cdef size_t memory_granularity(Watch watch, int ordinal, int types, str place) except 0:
    """Of allocations: the recommended one, which is a multiple of the least."""
    cdef CUmemAllocationProp prop
    cdef size_t granularity = 0
    cdef CUresult status
    fill_memory(&prop, ordinal, types)
    watch.enter("cuMemGetAllocationGranularity", place)
    with nogil:
        status = cuda.cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
    watch.leave(status)
    return as_granularity(granularity, "cuMemGetAllocationGranularity")


cdef size_t multicast_granularity(Watch watch, unsigned int devices, size_t size, int types, bint recommended,
                                  str place) except 0:
    cdef CUmulticastObjectProp prop
    cdef size_t granularity = 0
    cdef CUresult status
    fill_multicast(&prop, devices, size, types)
    watch.enter("cuMulticastGetGranularity", place)
    with nogil:
        status = cuda.cuMulticastGetGranularity(
            &granularity, &prop, CU_MULTICAST_GRANULARITY_RECOMMENDED if recommended else CU_MULTICAST_GRANULARITY_MINIMUM)
    watch.leave(status)
    return as_granularity(granularity, "cuMulticastGetGranularity")


cdef size_t as_granularity(size_t granularity, str call) except 0:
    if granularity == 0 or granularity & (granularity - 1):
        raise BackendError(f"{call} says {granularity}, which is no power of two")
    return granularity


@cython.no_gc
cdef class Handle:
    """One reference of this process to memory of a GPU or to a multicast object."""

    def __dealloc__(self):
        if self.live:
            cuda.cuMemRelease(self.value)

    cdef int create(self, Watch watch, int ordinal, size_t size, int types, str place) except -1:
        cdef CUmemAllocationProp prop
        cdef CUresult status
        fill_memory(&prop, ordinal, types)
        self.place = place
        watch.enter("cuMemCreate", place)
        with nogil:
            status = cuda.cuMemCreate(&self.value, size, &prop, 0)
        self.live = status == 0
        return watch.leave(status)

    cdef int create_multicast(self, Watch watch, unsigned int devices, size_t size, int types, str place) except -1:
        cdef CUmulticastObjectProp prop
        cdef CUresult status
        fill_multicast(&prop, devices, size, types)
        self.place = place
        watch.enter("cuMulticastCreate", place)
        with nogil:
            status = cuda.cuMulticastCreate(&self.value, &prop)
        self.live = status == 0
        return watch.leave(status)

    cdef int export(self, Watch watch, int kind) except -1:
        cdef CUresult status
        cdef int descriptor = -1
        watch.enter("cuMemExportToShareableHandle", self.place)
        with nogil:
            status = cuda.cuMemExportToShareableHandle(&descriptor, self.value, kind, 0)
        watch.leave(status)
        os.set_inheritable(descriptor, False)
        return descriptor

    cdef bytes export_fabric(self, Watch watch):
        cdef CUresult status
        cdef CUmemFabricHandle fabric
        watch.enter("cuMemExportToShareableHandle", self.place)
        with nogil:
            status = cuda.cuMemExportToShareableHandle(&fabric, self.value, CU_MEM_HANDLE_TYPE_FABRIC, 0)
        watch.leave(status)
        return (<char *> fabric.data)[:sizeof(fabric.data)]

    cdef int import_from(self, Watch watch, object item, int kind, str place) except -1:
        """From a file descriptor, which stays the caller's, or from the 64 bytes of a fabric handle."""
        cdef CUresult status
        cdef CUmemFabricHandle fabric
        cdef void *where
        cdef const unsigned char[::1] data
        cdef Py_ssize_t i
        if kind == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR:
            where = <void *> <size_t> <int> item
        else:
            data = item
            if data.shape[0] != sizeof(fabric.data):
                raise BackendError(f"a fabric handle has {sizeof(fabric.data)} bytes, not {data.shape[0]}")
            for i in range(data.shape[0]):
                fabric.data[i] = data[i]
            where = &fabric
        self.place = place
        watch.enter("cuMemImportFromShareableHandle", place)
        with nogil:
            status = cuda.cuMemImportFromShareableHandle(&self.value, where, kind)
        self.live = status == 0
        return watch.leave(status)

    cdef int release(self, Watch watch) except -1:
        cdef CUresult status
        if not self.live:
            return 0
        watch.enter("cuMemRelease", self.place)
        with nogil:
            status = cuda.cuMemRelease(self.value)
        # A call that failed has released nothing. It is tried once more when all is given back, and not after that.
        self.live = status != 0 and not watch.collecting
        return watch.leave(status)


@cython.no_gc
cdef class Reservation:
    """A range of addresses."""

    def __dealloc__(self):
        if self.size:
            cuda.cuMemAddressFree(self.start, self.size)

    cdef int reserve(self, Watch watch, size_t size, size_t alignment, str place) except -1:
        cdef CUresult status
        self.place = place
        watch.enter("cuMemAddressReserve", place)
        with nogil:
            status = cuda.cuMemAddressReserve(&self.start, size, alignment, 0, 0)
        if status == 0:
            self.size = size
        return watch.leave(status)

    cdef int allow(self, Watch watch, list ordinals, size_t offset, size_t size) except -1:
        """Let devices read and write a part of the range that is mapped."""
        cdef CUmemAccessDesc rights[MAX_LOCAL]
        cdef size_t count = len(ordinals), i
        cdef CUresult status
        for i in range(count):
            rights[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE
            rights[i].location.id = ordinals[i]
            rights[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        watch.enter("cuMemSetAccess", self.place)
        with nogil:
            status = cuda.cuMemSetAccess(self.start + offset, size, rights, count)
        return watch.leave(status)

    cdef int free(self, Watch watch) except -1:
        cdef CUresult status
        cdef size_t size = self.size
        if size == 0:
            return 0
        self.size = 0
        watch.enter("cuMemAddressFree", self.place)
        with nogil:
            status = cuda.cuMemAddressFree(self.start, size)
        return watch.leave(status)


@cython.no_gc
cdef class Mapping:
    """Memory, or a multicast object, at a part of a range of addresses."""

    def __dealloc__(self):
        if self.live:
            cuda.cuMemUnmap(self.start, self.size)

    cdef int map(self, Watch watch, Reservation within, size_t offset, size_t size, Handle handle) except -1:
        cdef CUresult status
        self.within = within
        self.start = within.start + offset
        self.size = size
        watch.enter("cuMemMap", handle.place)
        with nogil:
            status = cuda.cuMemMap(self.start, size, 0, handle.value, 0)
        self.live = status == 0
        return watch.leave(status)

    cdef int unmap(self, Watch watch) except -1:
        cdef CUresult status
        if not self.live:
            return 0
        self.live = False
        watch.enter("cuMemUnmap", self.within.place)
        with nogil:
            status = cuda.cuMemUnmap(self.start, self.size)
        return watch.leave(status)


@cython.no_gc
cdef class Multicast:
    """A multicast object. A device that was added stays in it for good: what failed half way is released and made anew."""

    def __cinit__(self):
        self.bound = []

    def __dealloc__(self):
        # The handles go by themselves, after this.
        for device, _ in self.bound:
            cuda.cuMulticastUnbind(self.handle.value, device, 0, self.size)

    cdef int add(self, Watch watch, CUdevice device, str place) except -1:
        cdef CUresult status
        watch.enter("cuMulticastAddDevice", place)
        with nogil:
            status = cuda.cuMulticastAddDevice(self.handle.value, device)
        return watch.leave(status)

    cdef int bind(self, Watch watch, CUdevice device, Handle memory, str place) except -1:
        """Blocks until all devices of the object have been added, by all processes."""
        cdef CUresult status
        watch.enter("cuMulticastBindMem", place)
        with nogil:
            status = cuda.cuMulticastBindMem(self.handle.value, 0, memory.value, 0, self.size, 0)
        if status == 0:
            self.bound.append((device, place))
        return watch.leave(status)

    cdef int unbind(self, Watch watch) except -1:
        cdef CUresult status
        cdef CUdevice device
        while self.bound:
            device, place = self.bound.pop()
            watch.enter("cuMulticastUnbind", place)
            with nogil:
                status = cuda.cuMulticastUnbind(self.handle.value, device, 0, self.size)
            watch.leave(status)
        return 0

    cdef int release(self, Watch watch) except -1:
        self.unbind(watch)
        if self.handle is not None:
            self.handle.release(watch)
        if self.created is not None and self.created is not self.handle:
            self.created.release(watch)
        return 0
