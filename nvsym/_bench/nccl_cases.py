# SPDX-License-Identifier: Apache-2.0
"""NCCL's collectives, called from C on plain memory of the GPUs."""

import ctypes
import importlib.util
from pathlib import Path

from ..dtypes import as_dtype
from .data import Shape
from .gpu import address_of
from .gpu_cases import GpuCases
from .loops import NativeCalls
from .sampling import PeerUnavailableError, agree

__all__ = ["NcclCases", "open_nccl"]

# ncclDataType_t and ncclRedOp_t of nccl.h.
_TYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7, "float64": 8,
    "bfloat16": 9, "float8_e4m3fn": 10, "float8_e5m2": 11,
}  # fmt: skip
_OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3}


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


def open_nccl():
    """NCCL's library: that of the wheel, which is PyTorch's, else the one that is loaded or the system's.

    NVSHMEM and PyTorch take the one that is loaded. Opened before both, it is the same for all.
    """
    spec = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    errors = []
    for path in [*[str(Path(folder, "lib", "libnccl.so.2")) for folder in folders], "libnccl.so.2"]:
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            errors.append(str(error))
    raise PeerUnavailableError(f"nccl: no libnccl.so.2 ({errors[-1]}); pip install nvidia-nccl-cu13")


class NcclCases(GpuCases):
    """Makes the cases of NCCL; collective.

    Parameters
    ----------
    gpu : Gpu
    comm : mpi4py.MPI.Comm
        The PEs, to bring NCCL's unique id to all.
    """

    name = "nccl"

    def __init__(self, gpu, comm):
        super().__init__(gpu)
        self.comm = ctypes.c_void_p()
        self.dest = self.source = 0
        if gpu.gpus < gpu.n:
            raise PeerUnavailableError(
                f"nccl: it refuses communicators in which PEs share a GPU, and here {gpu.n} PEs are on {gpu.gpus}"
            )
        self.library, reason = agree(comm, open_nccl)
        if reason is not None:
            raise PeerUnavailableError(reason)
        uid = _UniqueId()
        _, reason = agree(comm, lambda: gpu.me or self._check("ncclGetUniqueId", ctypes.byref(uid)))
        if reason is not None:
            raise PeerUnavailableError(f"nccl: {reason}")
        ctypes.memmove(ctypes.byref(uid), comm.bcast(bytes(uid) if gpu.me == 0 else None), ctypes.sizeof(uid))
        self._check("ncclCommInitRank", ctypes.byref(self.comm), gpu.n, uid, gpu.me)

    def _check(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status:
            self.library.ncclGetLastError.restype = ctypes.c_char_p
            text = (self.library.ncclGetLastError(None) or b"").decode(errors="replace").strip()
            raise PeerUnavailableError(f"nccl: {name} returned {status}: {text}")

    def describe(self):
        version = ctypes.c_int()
        self._check("ncclGetVersion", ctypes.byref(version))
        number = version.value
        return f"nccl: NCCL {number // 10000}.{number // 100 % 100}.{number % 100}, from C, on plain memory"

    def prepare(self, nbytes, dtype):
        count = max(1, -(-nbytes // dtype.itemsize))
        self.dest, self.source = self.gpu.alloc(count * dtype.itemsize), self.gpu.alloc(count * dtype.itemsize)
        self.gpu.fill(self.source, count, dtype, self.me)

    def release(self):
        for at in (self.dest, self.source):
            if at:
                self.gpu.free(at)
        self.dest = self.source = 0

    def close(self):
        if self.comm:
            self.gpu.synchronize()
            self._check("ncclCommDestroy", self.comm)
            self.comm = ctypes.c_void_p()

    def _call(self, function, *arguments):
        address = address_of(self.library, function)
        if address == 0:
            self._missing(f"this version has no {function}")
        return NativeCalls().add(function, address, *arguments, self.comm.value or 0, self.gpu.stream, status=True)

    def _type(self, shape, reduces):
        name = as_dtype(shape.dtype).name
        if name not in _TYPES or (reduces and shape.op not in _OPS):
            self._missing(f"no {shape.op} of {name}" if reduces else f"no element type {name}")
        return _TYPES[name]

    def allreduce(self, shape: Shape):
        source = self.dest if shape.in_place else self.source
        calls = self._call(
            "ncclAllReduce", source, self.dest, shape.count, self._type(shape, True), _OPS[shape.op]
        )  # fmt: skip
        return [self._allreduce_case(calls, shape, self.dest, self.source, variant="ncclAllReduce")]

    def collective(self, name, shape: Shape):
        block, kind = shape.count // self.n, self._type(shape, name == "reducescatter")
        function, *arguments = {
            "broadcast": ("ncclBroadcast", shape.count, kind, 0),
            "fcollect": ("ncclAllGather", block, kind),
            "alltoall": ("ncclAlltoAll", block, kind),  # since NCCL 2.28
            "reducescatter": ("ncclReduceScatter", block, kind, _OPS[shape.op]),
        }[name]
        calls = self._call(function, self.source, self.dest, *arguments)
        return [self._collective_case(calls, name, shape, self.dest, variant=function)]
