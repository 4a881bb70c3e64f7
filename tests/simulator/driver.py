# SPDX-License-Identifier: Apache-2.0
"""The simulated driver by its C interface, for the tests of the simulator itself. Every call returns the driver's status."""

import ctypes
import os

from nvsym import simulator

u64, size_t, number, pointer = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
MIB = 1 << 20
STEP = 2 * MIB  # the multicast granularity
POSIX, FABRIC = 1, 8


class Location(ctypes.Structure):
    _fields_ = (("type", number), ("id", number))


class AllocationProp(ctypes.Structure):
    _fields_ = (("type", number), ("types", number), ("location", Location), ("win32", pointer), ("flags", u64))


class MulticastProp(ctypes.Structure):
    _fields_ = (("devices", ctypes.c_uint), ("size", size_t), ("types", u64), ("flags", u64))


class Access(ctypes.Structure):
    _fields_ = (("location", Location), ("flags", number))


cuda = ctypes.CDLL(os.environ.get("NVSYM_LIBCUDA") or simulator.library_path())


def ok(status):
    assert status == 0, (status, simulator.last_violation())


def properties(device=0, types=0, kind=1, location=1):
    return AllocationProp(kind, types, Location(location, device))


def create(size=STEP, device=0, types=0, flags=0, prop=None):
    """(status, handle)"""
    handle = u64()
    prop = properties(device, types) if prop is None else prop
    return cuda.cuMemCreate(ctypes.byref(handle), size_t(size), ctypes.byref(prop), u64(flags)), handle


def reserve(size=STEP, alignment=STEP, hint=0, flags=0):
    """(status, address)"""
    at = u64()
    return cuda.cuMemAddressReserve(ctypes.byref(at), size_t(size), size_t(alignment), u64(hint), u64(flags)), at.value


def map_(at, handle, size=STEP, offset=0, flags=0):
    return cuda.cuMemMap(u64(at), size_t(size), size_t(offset), handle, u64(flags))


def access(at, size=STEP, devices=(0,), flags=3, location=1):
    rows = (Access * len(devices))(*[Access(Location(location, device), flags) for device in devices])
    return cuda.cuMemSetAccess(u64(at), size_t(size), rows, size_t(len(devices)))


def unmap(at, size=STEP):
    return cuda.cuMemUnmap(u64(at), size_t(size))


def free_address(at, size=STEP):
    return cuda.cuMemAddressFree(u64(at), size_t(size))


def release(handle):
    return cuda.cuMemRelease(handle)


def export(handle, type_=POSIX, flags=0):
    """(status, a descriptor or the 64 bytes)"""
    if type_ == FABRIC:
        blob = ctypes.create_string_buffer(64)
        return cuda.cuMemExportToShareableHandle(blob, handle, type_, u64(flags)), blob.raw
    fd = number(-1)
    return cuda.cuMemExportToShareableHandle(ctypes.byref(fd), handle, type_, u64(flags)), fd.value


def import_(shared, type_=POSIX):
    """(status, handle)"""
    handle = u64()
    what = ctypes.create_string_buffer(shared, 64) if isinstance(shared, bytes) else pointer(shared)
    return cuda.cuMemImportFromShareableHandle(ctypes.byref(handle), what, type_), handle


def multicast(devices=2, size=STEP, types=0, flags=0):
    """(status, handle)"""
    handle = u64()
    prop = MulticastProp(devices, size, types, flags)
    return cuda.cuMulticastCreate(ctypes.byref(handle), ctypes.byref(prop)), handle


def add(team, device):
    return cuda.cuMulticastAddDevice(team, device)


def bind(team, memory, size=STEP, offset=0, memory_offset=0, flags=0):
    return cuda.cuMulticastBindMem(team, size_t(offset), memory, size_t(memory_offset), size_t(size), u64(flags))


def unbind(team, device, size=STEP, offset=0):
    return cuda.cuMulticastUnbind(team, device, size_t(offset), size_t(size))


def have(result):
    """The value of a call that must succeed."""
    ok(result[0])
    return result[1]


def mapped(handle, size=STEP, devices=(0,)):
    """A new address at which the object is mapped, and accessible to these devices."""
    at = have(reserve(size))
    ok(map_(at, handle, size))
    ok(access(at, size, devices))
    return at


class Team:
    """A multicast object over the first `n` devices of this process, with memory of each bound and all of it mapped."""

    def __init__(self, n, size=STEP):
        self.n, self.size = n, size
        everyone = tuple(range(n))
        self.handle = have(multicast(n, size))
        for device in everyone:
            ok(add(self.handle, device))
        self.memory = [have(create(size, device)) for device in everyone]
        self.unicast = [mapped(memory, size, everyone) for memory in self.memory]
        for memory in self.memory:
            ok(bind(self.handle, memory, size))
        self.multicast = mapped(self.handle, size, everyone)

    def close(self):
        for device in range(self.n):
            ok(unbind(self.handle, device, self.size))
        for at in (self.multicast, *self.unicast):
            ok(unmap(at, self.size))
            ok(free_address(at, self.size))
        for handle in (self.handle, *self.memory):
            ok(release(handle))


def use(device=0):
    """Make the context of a device current in this thread."""
    context = pointer()
    ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    ok(cuda.cuCtxSetCurrent(context))


def stream(flags=1):
    handle = pointer()
    ok(cuda.cuStreamCreate(ctypes.byref(handle), flags))
    return handle


def event(flags=0):
    handle = pointer()
    ok(cuda.cuEventCreate(ctypes.byref(handle), flags))
    return handle


def allocate(size=4096):
    at = u64()
    ok(cuda.cuMemAlloc_v2(ctypes.byref(at), size_t(size)))
    return at.value
