# SPDX-License-Identifier: Apache-2.0
"""PyTorch's collectives: torch.distributed over NCCL, and for allreduce the kernels of its symmetric memory."""

import atexit
import datetime
import os
import socket
from typing import Any

from ..dtypes import as_dtype
from .data import Shape, operands
from .gpu_cases import GpuCases
from .sampling import PeerUnavailableError, PlainLoop, agree

__all__ = ["TorchCases"]

_TYPES = {
    "float32": "float32", "float16": "float16", "bfloat16": "bfloat16", "float64": "float64", "int32": "int32",
    "int64": "int64", "int8": "int8", "uint8": "uint8", "int16": "int16",
}  # fmt: skip

_group: list[Any] = []  # the process group of this process: made once, ended with it


def _environment(comm, one_node):
    """What ``init_method="env://"`` reads, from the job; what is set already stays."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        offer = (socket.gethostname(), listener.getsockname()[1])
    host, port = comm.bcast(offer if comm.Get_rank() == 0 else None)
    values = {
        "MASTER_ADDR": "127.0.0.1" if one_node else host,
        "MASTER_PORT": str(port),
        "RANK": str(comm.Get_rank()),
        "WORLD_SIZE": str(comm.Get_size()),
    }
    if one_node:
        values["GLOO_SOCKET_IFNAME"] = "lo"
    for name, value in values.items():
        os.environ.setdefault(name, value)


class TorchCases(GpuCases):
    """Makes the cases of PyTorch; collective.

    Where PEs share a GPU there is no NCCL, and the group meets over Gloo; symmetric memory then is made with the setting
    that PyTorch has for its own tests of that.

    Parameters
    ----------
    gpu : Gpu
    comm : mpi4py.MPI.Comm
    one_node : bool
    """

    name = "torch"

    def __init__(self, gpu, comm, one_node):
        super().__init__(gpu)
        self.comm = comm
        self.shared = gpu.gpus < gpu.n
        if self.shared:
            os.environ.setdefault("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")
        self.torch, reason = agree(comm, self._import)
        if reason is not None:
            raise PeerUnavailableError(f"torch: {reason}")
        self.tensor: Any = None
        self.out: Any = None
        self.master: Any = None
        self.why_no_symmetric: str | None = None
        if not _group:
            _environment(comm, one_node)
            _, reason = agree(comm, self._start)
            if reason is not None:
                raise PeerUnavailableError(f"torch: {reason}")
        self.group = _group[0].group_name
        self.stream = self.torch.cuda.ExternalStream(gpu.stream, device=gpu.ordinal)

    def _import(self):
        import torch
        import torch.distributed
        import torch.distributed._symmetric_memory

        if not torch.cuda.is_available():
            raise PeerUnavailableError("this build of PyTorch has no CUDA")
        torch.cuda.set_device(self.gpu.ordinal)
        return torch

    def _start(self):
        limit = datetime.timedelta(seconds=60)
        if self.shared:
            self.torch.distributed.init_process_group("gloo", timeout=limit)
        else:
            device = self.torch.device("cuda", self.gpu.ordinal)
            self.torch.distributed.init_process_group("nccl", timeout=limit, device_id=device)
        _group.append(self.torch.distributed.group.WORLD)
        atexit.register(self.torch.distributed.destroy_process_group)

    def describe(self):
        symmetric = f"; no symmetric memory: {self.why_no_symmetric}" if self.why_no_symmetric else ""
        nccl = "" if self.shared else ".".join(map(str, self.torch.cuda.nccl.version()))
        how = f", torch.distributed over NCCL {nccl}" if nccl else ""
        return f"torch: PyTorch {self.torch.__version__}{how}, symmetric memory{symmetric}"

    def _type(self, dtype):
        name = as_dtype(dtype).name
        if name not in _TYPES:
            self._missing(f"no allreduce of {name}")
        return getattr(self.torch, _TYPES[name])

    def prepare(self, nbytes, dtype):
        name = as_dtype(dtype).name
        if name not in _TYPES:
            return
        count = max(8, -(-nbytes // dtype.itemsize))
        _, reason = agree(self.comm, lambda: self._plain_memory(count, dtype))
        if reason is None:
            _, self.why_no_symmetric = agree(self.comm, lambda: self._symmetric_memory(count, dtype))
        if self.why_no_symmetric is not None:
            self.tensor = None
        if reason is not None:
            raise PeerUnavailableError(reason)

    def _plain_memory(self, count, dtype):
        device = self.torch.device("cuda", self.gpu.ordinal)
        self.out = self.torch.empty(count, dtype=self._type(dtype), device=device)
        self.master = self.torch.empty(count, dtype=self._type(dtype), device=device)
        self.gpu.fill(self.master.data_ptr(), count, dtype, self.me)

    def _symmetric_memory(self, count, dtype):
        symmetric = self.torch.distributed._symmetric_memory
        device = self.torch.device("cuda", self.gpu.ordinal)
        self.tensor = symmetric.empty(count, dtype=self._type(dtype), device=device)
        symmetric.rendezvous(self.tensor, self.group)
        self.torch.cuda.synchronize()

    def release(self):
        self.gpu.synchronize()
        self.tensor = self.out = self.master = None
        self.torch.cuda.empty_cache()

    def allreduce(self, shape: Shape):
        if shape.op != "sum":
            self._missing("its symmetric memory only sums")
        self._type(shape.dtype)
        cases = []
        if not self.shared:
            cases.append(self._distributed(shape))
        if self.tensor is not None:
            cases += self._symmetric(shape)
        if not cases:
            self._missing(self.why_no_symmetric or "PEs share a GPU")
        return cases

    def collective(self, name, shape: Shape):
        if self.shared:
            self._missing("PEs share a GPU, so there is no NCCL")
        if name == "reducescatter" and shape.op != "sum":
            self._missing("compared for sums")
        self._type(shape.dtype)
        dest_count, source_count = operands(name, shape.count, self.n)
        out, part = self.out[:dest_count], self.master[:source_count]
        if name == "broadcast" and self.me == 0:
            out = part  # in place: the root sends it, the others write theirs
        function, text = {
            "broadcast": ("broadcast", "function(out, 0)"),
            "fcollect": ("all_gather_into_tensor", "function(out, part)"),
            "alltoall": ("all_to_all_single", "function(out, part)"),
            "reducescatter": ("reduce_scatter_tensor", "function(out, part)"),
        }[name]
        call = PlainLoop(text, function=getattr(self.torch.distributed, function), out=out, part=part)
        more = {"reset": lambda: None} if out is part else {}
        # Not inside graphs, for the reason that _distributed has.
        return [
            self._collective_case(
                self._on_stream(call), name, shape, out.data_ptr(), variant=f"torch.distributed.{function}", graphs=False,
                **more,
            )
        ]  # fmt: skip

    def close(self):
        self.gpu.synchronize()
        self.torch.cuda.set_stream(self.torch.cuda.default_stream())  # the job's goes with the job

    def _on_stream(self, call):
        """The call, with the benchmark's stream as PyTorch's current one."""
        self.torch.cuda.set_stream(self.stream)
        return call

    def _copied(self, tensor, shape):
        return lambda: self.gpu.copy(tensor.data_ptr(), self.master.data_ptr(), shape.nbytes)

    def _distributed(self, shape):
        # Not inside graphs: where a capture fails, the thread that watches the group ends the process.
        part = self.out[: shape.count]
        reduce = self.torch.distributed.all_reduce

        return self._case(
            self._on_stream(PlainLoop("reduce(part)", reduce=reduce, part=part)), variant="torch.distributed", at=part.data_ptr(), shape=shape,
            expected=self._reduced(shape), reset=self._copied(part, shape), in_place=True, graphs=False,
        )  # fmt: skip

    def _symmetric(self, shape):
        ops, group = self.torch.ops.symm_mem, self.group
        part, out = self.tensor[: shape.count], self.out[: shape.count]
        one_shot, two_shot = ops.one_shot_all_reduce_out, ops.two_shot_all_reduce_

        call_one_shot = PlainLoop(
            "one_shot(part, 'sum', group, out)", one_shot=one_shot, part=part, group=group, out=out
        )
        call_two_shot = PlainLoop("two_shot(part, 'sum', group)", two_shot=two_shot, part=part, group=group)

        def reset():
            self.gpu.copy(part.data_ptr(), self.master.data_ptr(), shape.nbytes)
            self.gpu.wipe(out.data_ptr(), shape.nbytes)

        self._on_stream(None)
        cases = [
            self._case(
                call_one_shot, variant="one_shot_all_reduce_out", at=out.data_ptr(), shape=shape,
                expected=self._reduced(shape), reset=reset,
            ),
            self._case(
                call_two_shot, variant="two_shot_all_reduce_", at=part.data_ptr(), shape=shape,
                expected=self._reduced(shape), reset=self._copied(part, shape), in_place=True,
            ),
        ]  # fmt: skip
        return cases[1:] if shape.in_place else cases
