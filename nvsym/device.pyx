# SPDX-License-Identifier: Apache-2.0
"""`Device`: the GPU, or the host memory, that a buffer lives in."""

cimport cython
from libc.limits cimport INT_MAX

import os
import platform
from operator import index
from uuid import UUID

from .errors import BackendError, NotAvailableError

from ._driver cimport CHECK_CUDA, cuda
from .cuda_runtime cimport CudaRuntime, get_cuda_runtime
from .dlpack cimport DLPACK_CPU, DLPACK_CUDA
from .host_runtime cimport get_host_runtime
from .libcuda cimport CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, CUDA_SUCCESS, CUuuid


@cython.no_gc    # refers to nothing that refers back; and streams need it in their destructors
cdef class Device:
    """A place where memory lives: a GPU of this process, or host memory (`Device.cpu()`).

    Two devices are equal when they are the same GPU, or the memory of the same node, whatever handle names them.

    Parameters
    ----------
    ordinal : int
        The number of the GPU in this process, as CUDA counts.

    Attributes
    ----------
    ordinal : int
        The number of the GPU in the process of its PE, or in this one where it belongs to no job; -1 for host memory.
    pe : int
        The PE that owns the device; -1 where it belongs to no job.
    is_host : bool
    name : str
    uuid : str
        Unlike `ordinal`, the same in every process.

    Raises
    ------
    TypeError, ValueError
        If `ordinal` is no number of a GPU.
    NotAvailableError
        If the GPU does not exist or its driver cannot be used.
    """

    def __cinit__(self, *args, **kwargs):
        self.ordinal = -1
        self.pe = -1

    def __init__(self, ordinal):
        fill_cuda(self, as_ordinal(ordinal, "ordinal", "the number of a GPU"))

    @staticmethod
    def cpu():
        """The host memory of this node."""
        return host_device(-1, platform.node())

    def synchronize(self):
        """Wait until all work that this process has enqueued on the device is done."""
        self.check()
        cdef int number = self.number()
        if number >= 0 or self.is_host:
            self.runtime.drain_all(number)
        if not self.is_host:    # there a failure is its stream's
            self.runtime.raise_failure()

    def can_access(self, Device other not None):
        """Whether code on this device can address memory of `other` by plain loads and stores.

        A GPU that this process does not see counts as one that it cannot address.
        """
        cdef int access = 0, own = 0, its = 0
        if self == other:
            return True
        if not self.sees(other, &own, &its):
            return False
        CHECK_CUDA(cuda.cuDeviceCanAccessPeer(&access, own, its), b"cuDeviceCanAccessPeer")
        return access != 0

    cdef bint takes_atomics(self, Device other) except -1:
        cdef int takes = 0, own = 0, its = 0
        if self == other:
            return True
        if not self.sees(other, &own, &its):
            return False
        return cuda.cuDeviceGetP2PAttribute(&takes, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, own, its) == CUDA_SUCCESS and takes

    cdef int check(self) except -1:
        if self.runtime is None:
            raise ValueError("the Device was never initialised")
        return 0

    cdef int number(self) except -2:
        return ordinal_of(self.uuid) if self.foreign else self.ordinal

    cdef int here(self) except -2:
        self.check()
        cdef int number = self.number()
        if number < 0 and not self.is_host:
            raise ValueError(f"device: this process does not see {self!r}")
        return number

    cdef bint sees(self, Device other, int *own, int *its) except -1:
        cdef int ordinal = -1 if self.is_host or other.is_host else ordinal_of(other.uuid)
        if ordinal < 0:
            return False
        CHECK_CUDA(cuda.cuDeviceGet(own, self.ordinal), b"cuDeviceGet")
        CHECK_CUDA(cuda.cuDeviceGet(its, ordinal), b"cuDeviceGet")
        return True

    def __eq__(self, other):
        if not isinstance(other, Device):
            return NotImplemented
        cdef Device that = <Device> other
        return self.is_host == that.is_host and self.uuid == that.uuid

    def __hash__(self):
        return hash((self.is_host, self.uuid))

    def __repr__(self):
        of = "" if self.pe < 0 else f" of PE {self.pe}"
        what = "host memory" if self.is_host else f"GPU {self.ordinal}"
        return f"<Device {what}{of}: {self.name}>"


cdef str _boot_id():
    """What tells two machines of the same name apart."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return f"uid{os.getuid()}"

cdef str _BOOT = _boot_id()


cdef Device host_device(int pe, str node):
    cdef Device device = Device.__new__(Device)
    device.runtime = get_host_runtime()
    device.is_host = True
    device.pe = pe
    device.name = node
    device.uuid = f"host-{node}-{_BOOT}"
    device.dlpack_type = DLPACK_CPU
    return device


cdef Device cuda_device(int ordinal, int pe):
    cdef Device device = Device.__new__(Device)
    fill_cuda(device, ordinal)
    device.pe = pe
    return device


cdef int as_ordinal(object value, str name, str expected) except -1:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = index(value)
    except TypeError:
        raise TypeError(f"{name}: expected {expected}, not {type(value).__name__}") from None
    if not 0 <= number <= INT_MAX:
        raise ValueError(f"{name}: {number} is no number of a GPU")
    return number


cdef int fill_cuda(Device device, int ordinal) except -1:
    cdef CudaRuntime runtime = get_cuda_runtime()
    cdef char name[256]
    cdef int handle = 0
    if ordinal < 0 or ordinal >= runtime.n_devices:
        raise NotAvailableError(f"Device({ordinal}): the CUDA driver shows {runtime.n_devices} GPUs to this process "
                                "(CUDA_VISIBLE_DEVICES may hide others)")
    CHECK_CUDA(cuda.cuDeviceGet(&handle, ordinal), b"cuDeviceGet")
    CHECK_CUDA(cuda.cuDeviceGetName(name, sizeof(name), handle), b"cuDeviceGetName")
    device.runtime = runtime
    device.ordinal = ordinal
    device.is_host = False
    device.name = (<bytes> name).decode("utf-8", "replace")
    device.uuid = uuid_of(handle)
    device.dlpack_type = DLPACK_CUDA
    return 0


cdef str uuid_of(int handle):
    """The UUID of a GPU in the form of nvidia-smi."""
    cdef CUuuid uuid
    CHECK_CUDA(cuda.cuDeviceGetUuid(&uuid, handle), b"cuDeviceGetUuid")
    return f"GPU-{UUID(bytes=(<char *> uuid.bytes)[:16])}"


cdef int ordinal_of(str uuid) except -2:
    """The number that this process knows a GPU by, or -1."""
    cdef int ordinal, handle
    for ordinal in range(get_cuda_runtime().n_devices):
        CHECK_CUDA(cuda.cuDeviceGet(&handle, ordinal), b"cuDeviceGet")
        if uuid_of(handle) == uuid:
            return ordinal
    return -1


def number_of_gpus():
    """The GPUs that this process can use; 0 where there is no driver or none works."""
    try:
        return get_cuda_runtime().n_devices
    except (NotAvailableError, BackendError):
        return 0
