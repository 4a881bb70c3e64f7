# SPDX-License-Identifier: Apache-2.0
"""The backend "nvsym" of ``torch.distributed``."""

from __future__ import annotations

import atexit
import functools
import os
import weakref
from typing import Any

import torch
import torch.distributed as dist

import nvsym
from nvsym._settings import format_size, parse_size
from nvsym.collectives import refuse
from nvsym.errors import NotAvailableError, NVSymError, PeerError, SettingError
from nvsym.job import check_kernels

from .lines import GpuLine, HostLine
from .options import Options
from .staging import ALIGN as _ALIGN
from .staging import Place, Staging
from .tensors import buffer

_OPS = {
    "SUM": "sum",
    "AVG": "sum",
    "PRODUCT": "prod",
    "MIN": "min",
    "MAX": "max",
    "BAND": "and",
    "BOR": "or",
    "BXOR": "xor",
}


class _Shared:
    """What the groups of this process share."""

    job_is_ours = False  # begun for them, and ended with the first of them
    staging: Staging | None = None


_shared = _Shared()
_alive: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


def create(given: Any, options: Any) -> ProcessGroup:
    """Make a process group; called by PyTorch on each of its ranks."""
    if options is None:
        options = Options()
    if not isinstance(options, Options):
        raise TypeError(f"pg_options: expected nvsym.torch.Options, not {type(options).__name__}")
    rank, size = given.group_rank, given.group_size
    ranks = list(given.global_ranks_in_group) or list(range(size))
    if _shared.staging is None:
        _begin(options, ranks, rank, size)
    ctx = nvsym.context()
    team = nvsym.TEAM_WORLD.create_group(ranks)
    assert _shared.staging is not None
    try:
        place = _shared.staging.first() if not given.global_ranks_in_group else _shared.staging.take(team)
    except ValueError:
        team.destroy()  # all its ranks are here
        raise
    return ProcessGroup(rank, size, ctx, team, place)


def job_begun() -> None:
    """The init method has begun a job: it ends with the first group."""
    _shared.job_is_ours = True


def check_job(where: str, backend: str, heap_size: int | str | None) -> None:
    """The job that runs already is what the options ask for, or a ValueError says what it is."""
    ctx = nvsym.context()
    if backend not in ("auto", ctx.backend):
        raise ValueError(
            f"{where}: backend {backend!r} is asked for, and the job that runs is on {ctx.backend!r}; choose it where the job "
            "begins: nvsym://?backend=, or nvsym.init(backend=)"
        )
    try:
        asked = 0 if heap_size is None else parse_size(heap_size)
    except ValueError as error:
        raise SettingError(f"heap_size: {error}") from None
    if asked > ctx.heap.size:
        raise ValueError(
            f"{where}: a heap of {format_size(asked)} is asked for, and that of the job that runs has {format_size(ctx.heap.size)}; "
            "choose it where the job begins: nvsym://?heap_size=, nvsym.init(heap_size=) or NVSYM_HEAP_SIZE"
        )


def _begin(options, ranks, rank, size):
    """The job, if there is none yet, and the staging memory; by all PEs."""
    fresh = not nvsym.is_initialized()
    ctx = nvsym.init(backend=options.backend, heap_size=options.heap_size) if fresh else nvsym.context()
    if not fresh:
        check_job("pg_options", options.backend, options.heap_size)
    me, n = ctx.my_pe(), ctx.n_pes()
    if ranks != list(range(n)) or rank != me:
        if fresh:
            nvsym.finalize()
        raise ValueError(
            f"nvsym: rank {rank} of {size} (ranks {ranks[:8]}) is PE {me} of {n}; the first group of the backend must be all "
            "PEs in their order. Start the program by mpirun, and let RANK and WORLD_SIZE be those of MPI, or use "
            'init_method="nvsym://"'
        )
    _shared.staging = Staging(options, ctx)
    _shared.job_is_ours |= fresh


def _collective(method):
    """A call that is bad on this rank is so for the others too, where they can be told (in host memory)."""

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        try:
            return method(self, *args, **kwargs)
        except (TypeError, ValueError, NotAvailableError) as error:
            if not getattr(error, "nvsym_told", False):
                bad = error  # outlives the clause
                self._line.submit(lambda: refuse(bad, **self._options), [], False).wait()
            raise

    return call


def _is_plain(t):
    """Whether the memory of a tensor is its elements in their order; it is not where PyTorch conjugates or negates later."""
    return t.is_contiguous() and not t.is_conj() and not t.is_neg()


class ProcessGroup(dist.ProcessGroup):
    """A group of ranks that make collective calls over nvsym.

    In a job on the host backend it takes CPU tensors; on the NVSHMEM backend CUDA tensors of this PE's GPU, and CPU tensors,
    which are copied to the GPU and back. Tensors in symmetric memory (`nvsym.torch.empty`) are used where they are, if they
    are contiguous; others go through staging memory, in pieces where they are long.

    Sums are by rank, rank 0 first, so results are the same on every rank and in every run, bit for bit; 16-bit and 8-bit
    floats are summed in float32.
    """

    def __init__(self, rank: int, size: int, ctx: nvsym.SHMEMContext, team: nvsym.Team, place: Place):
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._name, self._description = "", "undefined"
        self._team, self._place = team, place
        self._broken = self._told = False
        self._on_host = ctx.device.is_host
        self._ordinal = ctx.device.ordinal
        self._line: Any
        if self._on_host:
            self._line = HostLine(f"nvsym {team.name}")
        else:
            self._line = GpuLine(torch.device("cuda", self._ordinal))
        _alive.add(self)

    def getBackendName(self) -> str:
        """The name that PyTorch knows it by."""
        return "nvsym"

    # PyTorch keeps a group's name in its C++ backends, and this group has none.

    def getGroupName(self) -> str:
        """The name that PyTorch has given it."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Called by PyTorch."""
        self._name = name

    def getGroupDesc(self) -> str:
        """What its maker says that it is for."""
        return self._description

    def setGroupDesc(self, text: str) -> None:
        """Called by PyTorch."""
        self._description = text

    # ---- how calls are made -----------------------------------------------------------------------------------------

    def _submit(self, run, tensors, opts, result, blocks=False, written=None):
        """Check the tensors, and carry out `run()` in its place in the order of the group; `written`: if not all of `result`."""
        cuda = False
        for t in tensors:
            if t.layout is not torch.strided:
                raise TypeError(f"nvsym: a tensor of layout {t.layout}; only dense (strided) tensors can be sent")
            if t.is_cuda:
                cuda = True
                if self._on_host:
                    raise ValueError(
                        f"nvsym: a tensor on {t.device}, and the job runs on the host backend; use the NVSHMEM backend "
                        '(nvsym.torch.Options(backend="nvshmem")), or tensor.cpu()'
                    )
                if t.device.index != self._ordinal:
                    raise ValueError(f"nvsym: a tensor on {t.device}, and this PE's device is cuda:{self._ordinal}")
                t.record_stream(self._line.stream)
            elif t.device.type != "cpu":
                raise ValueError(f"nvsym: a tensor on {t.device}; there are CPU and CUDA tensors")
        for t in result if written is None else written:
            if t.numel() and any(step == 0 and size > 1 for step, size in zip(t.stride(), t.shape, strict=True)):
                raise ValueError("nvsym: a tensor whose elements share memory cannot be written; clone() it")
        later = getattr(opts, "asyncOp", True)

        def guarded():
            self._told = False
            with torch.no_grad():
                try:
                    run()
                except Exception as error:
                    error.nvsym_told = True  # type: ignore[attr-defined]
                    if isinstance(error, PeerError):
                        self._broken = True
                    elif not self._told:
                        refuse(error, **self._options)
                    raise

        work = self._line.submit(guarded, result, later, blocks)
        if not self._on_host and not cuda and tensors:
            work.wait_on_host()  # a CPU tensor's owner looks at it without a stream
        return work

    def _do(self, operation, *args):
        """One operation of nvsym, which tells the other ranks of its own failures."""
        try:
            operation(*args, **self._options)
        except BaseException:
            self._told = True
            raise

    @property
    def _options(self):
        return {"team": self._team, "stream": self._line.stream}

    def _direct(self, t):
        """The symmetric buffer that a tensor is, or None."""
        if not _is_plain(t) or (t.is_cuda == self._on_host and t.numel()):
            return None
        try:
            return buffer(t)
        except (TypeError, ValueError):
            return None

    @staticmethod
    def _op(opts):
        for name, op in _OPS.items():
            if opts.reduceOp == getattr(dist.ReduceOp, name):
                return op, name == "AVG"
        members = dist.ReduceOp.RedOpType.__members__.items()
        name = next((name for name, value in members if opts.reduceOp == value), repr(opts.reduceOp))
        raise NotAvailableError(f"op: nvsym has no reduction by {name}; there are {', '.join(_OPS)}")

    @staticmethod
    def _check_avg(t, avg):
        if avg and not (t.is_floating_point() or t.is_complex()):
            raise TypeError(f"op: no AVG of {t.dtype}, whose quotients are no whole numbers")

    def _divide(self, t):
        if t.element_size() == 1:  # PyTorch does not calculate in 8-bit floats
            t.copy_(t.float().div_(self._size))
        else:
            t.div_(self._size)

    def _step(self, blocks, item):
        """The elements of a piece of which `blocks` fit into the staging memory."""
        return max(self._place.nbytes // blocks // _ALIGN * _ALIGN, item * (_ALIGN // item)) // item

    # ---- reductions -------------------------------------------------------------------------------------------------

    def _reduce(self, source, dest, op, avg):
        """`source` of all ranks combined, in `dest` (None: not wanted here)."""
        found = self._direct(source) if dest is source else None
        if found is not None:
            self._do(nvsym.allreduce, found, found, op)
        else:
            flat = source.reshape(-1)
            out: Any = None if dest is None else dest.view(-1) if dest.is_contiguous() else torch.empty_like(flat)
            n = flat.numel()
            step = self._step(1, flat.element_size())
            for first in range(0, max(n, 1), step):
                count = min(step, n - first)
                place, staged = self._place.get(flat.dtype, 0, count)
                staged.copy_(flat[first : first + count])
                self._do(nvsym.allreduce, place, place, op)
                if out is not None:
                    out[first : first + count].copy_(staged)
            if dest is not None and not dest.is_contiguous():
                dest.copy_(out.view(dest.shape))
        if avg and dest is not None:
            self._divide(dest)

    @_collective
    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Combine the tensors of all ranks, element by element, in place."""
        op, avg = self._op(dist.AllreduceOptions() if opts is None else opts)
        for t in tensors:
            self._check_avg(t, avg)

        def run():
            for t in tensors:
                self._reduce(t, t, op, avg)

        return self._submit(run, tensors, opts, tensors)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """The same, of several tensors."""
        return self.allreduce(tensors, dist.AllreduceCoalescedOptions() if opts is None else opts)

    @_collective
    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        """Combine the tensors of all ranks in that of the root; the others' stay as they are."""
        opts = dist.ReduceOptions() if opts is None else opts
        op, avg = self._op(opts)
        for t in tensors:
            self._check_avg(t, avg)

        def run():
            for t in tensors:
                if opts.rootRank == self._rank:
                    self._reduce(
                        t, t.view(t.shape), op, avg
                    )  # not in place: the others' must stay, so all go by staging
                else:
                    self._reduce(t, None, op, avg)

        return self._submit(run, tensors, opts, tensors, written=tensors if opts.rootRank == self._rank else [])

    def _reduce_scatter(self, dest, source, op, avg):
        n, count, item = self._size, dest.numel(), dest.element_size()
        flat = source.reshape(n, count)
        out = dest.view(-1) if dest.is_contiguous() else torch.empty(count, dtype=dest.dtype, device=dest.device)
        step = self._step(n + 1, item)
        for first in range(0, max(count, 1), step):
            k = min(step, count - first)
            sources, staged = self._place.get(dest.dtype, 0, n * k)
            place, result = self._place.get(dest.dtype, -(-n * k * item // _ALIGN) * _ALIGN, k)
            staged.view(n, k).copy_(flat[:, first : first + k])
            self._do(nvsym.reducescatter, place, sources, op)
            out[first : first + k].copy_(result)
        if not dest.is_contiguous():
            dest.copy_(out.view(dest.shape))
        if avg:
            self._divide(dest)

    def _check_blocks(self, one, many, one_name, many_name):
        if one.dtype != many.dtype:
            raise TypeError(f"{many_name}: dtype {many.dtype} differs from that of {one_name}, {one.dtype}")
        if one.numel() * self._size != many.numel():
            raise ValueError(
                f"{many_name}: {many.numel()} elements where {self._size} ranks times the {one.numel()} of {one_name} are needed"
            )

    @_collective
    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:  # noqa: A002
        """Combine the inputs of all ranks; each gets its block of the result."""
        op, avg = self._op(dist.ReduceScatterOptions() if opts is None else opts)
        self._check_avg(output, avg)
        self._check_blocks(output, input, "output", "input")
        return self._submit(
            lambda: self._reduce_scatter(output, input, op, avg), (output, input), opts, [output]
        )  # fmt: skip

    _reduce_scatter_base = reduce_scatter_single  # PyTorch's earlier name

    @_collective
    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """The same, of several pairs of tensors."""
        op, avg = self._op(dist.ReduceScatterOptions() if opts is None else opts)
        for output, source in zip(outputs, inputs, strict=True):
            self._check_avg(output, avg)
            self._check_blocks(output, source, "output", "input")

        def run():
            for output, source in zip(outputs, inputs, strict=True):
                self._reduce_scatter(output, source, op, avg)

        return self._submit(run, [*outputs, *inputs], opts, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @_collective
    def reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any = None) -> Any:
        """Combine the lists of all ranks; each gets the tensor of its number."""
        op, avg = self._op(dist.ReduceScatterOptions() if opts is None else opts)
        for output, inputs in zip(outputs, input_lists, strict=True):
            self._check_avg(output, avg)
            self._check_list(output, inputs, "input_list")

        def run():
            for output, inputs in zip(outputs, input_lists, strict=True):
                self._reduce_scatter(output, torch.cat([t.reshape(-1) for t in inputs]), op, avg)

        return self._submit(run, [*outputs, *[t for inputs in input_lists for t in inputs]], opts, outputs)

    # ---- movement, as bytes -----------------------------------------------------------------------------------------

    @staticmethod
    def _bytes(t):
        """A tensor's elements as bytes: its own memory where it is plain, else a copy."""
        flat = (t if _is_plain(t) else t.resolve_conj().resolve_neg()).contiguous()
        # PyTorch calls every stride of a single element contiguous.
        return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)

    def _padded(self, length):
        """Bytes of a block in the staging memory. On the host as they are, so that lengths that differ are found."""
        return length if self._on_host else -(-length // 16) * 16

    def _check_list(self, one, many, name):
        if len(many) != self._size:
            raise ValueError(f"{name}: {len(many)} tensors for {self._size} ranks")
        for t in many:
            if t.dtype != one.dtype or t.numel() != one.numel():
                raise ValueError(
                    f"{name}: a tensor of {t.numel()} {t.dtype} where {one.numel()} {one.dtype} are needed; the tensors of all "
                    "ranks have one size"
                )

    def _gather(self, parts, source):
        """The bytes of all ranks; `parts`: where they go, tensors of bytes, or None where they are not wanted."""
        data, n = self._bytes(source), self._size
        step = self._step(n + 1, 1)
        for first in range(0, max(data.numel(), 1), step):
            k = min(step, data.numel() - first)
            padded = self._padded(k)
            place, staged = self._place.get(torch.uint8, 0, padded)
            everyone, result = self._place.get(torch.uint8, -(-padded // _ALIGN) * _ALIGN, n * padded)
            staged[:k].copy_(data[first : first + k])
            self._do(nvsym.fcollect, everyone, place)
            if parts is not None:
                for i, part in enumerate(parts):
                    part[first : first + k].copy_(result[i * padded : i * padded + k])

    def _gather_into(self, outputs, source):
        """The same into tensors of any layout."""
        parts = [self._bytes(t) if _is_plain(t) else self._bytes(torch.empty_like(source)) for t in outputs]
        self._gather(parts, source)
        for t, part in zip(outputs, parts, strict=True):
            if not _is_plain(t):
                t.copy_(part.view(t.dtype).view(t.shape))

    def _gather_single(self, output, source):
        out = output if _is_plain(output) else torch.empty_like(output, memory_format=torch.contiguous_format)
        self._gather(list(self._bytes(out).view(self._size, -1)), source)
        if out is not output:
            output.copy_(out)

    @_collective
    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:  # noqa: A002
        """Concatenate the inputs of all ranks, by rank."""
        self._check_blocks(input, output, "input", "output")
        return self._submit(lambda: self._gather_single(output, input), (output, input), opts, [output])

    _allgather_base = all_gather_single  # PyTorch's earlier name

    @_collective
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """The same, of several pairs of tensors."""
        for output, source in zip(outputs, inputs, strict=True):
            self._check_blocks(source, output, "input", "output")

        def run():
            for output, source in zip(outputs, inputs, strict=True):
                self._gather_single(output, source)

        return self._submit(run, [*outputs, *inputs], opts, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @_collective
    def allgather(self, output_lists: Any, inputs: Any, opts: Any = None) -> Any:
        """Gather the tensors of all ranks in a list."""
        for outputs, source in zip(output_lists, inputs, strict=True):
            self._check_list(source, outputs, "tensor_list")

        def run():
            for outputs, source in zip(output_lists, inputs, strict=True):
                self._gather_into(outputs, source)

        written = [t for outputs in output_lists for t in outputs]
        return self._submit(run, [*inputs, *written], opts, output_lists, written=written)

    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any = None) -> Any:
        """Gather several tensors of all ranks; a list of each rank's."""
        return self.allgather([list(column) for column in zip(*output_lists, strict=True)], inputs, opts)

    @_collective
    def gather(self, output_lists: Any, inputs: Any, opts: Any = None) -> Any:
        """Gather the tensors of all ranks in a list, on the root."""
        opts = dist.GatherOptions() if opts is None else opts
        root = opts.rootRank == self._rank
        if root:
            self._check_list(inputs[0], output_lists[0], "gather_list")

        def run():
            if root:
                self._gather_into(output_lists[0], inputs[0])
            else:
                self._gather(None, inputs[0])

        written = output_lists[0] if root else []
        return self._submit(run, [*inputs, *written], opts, output_lists, written=written)

    @_collective
    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        """Copy the tensor of the root to all ranks."""
        opts = dist.BroadcastOptions() if opts is None else opts
        root = opts.rootRank

        def run():
            for t in tensors:
                self._broadcast(t, root)

        return self._submit(run, tensors, opts, tensors, written=[] if root == self._rank else tensors)

    def _broadcast(self, t, root):
        # As bytes where it is, too: on another rank a short one may go through staging memory.
        data = self._bytes(t)
        found = self._direct(data)
        if found is not None:
            self._do(nvsym.broadcast, found, found, root)
            return
        step = self._step(1, 1)
        for first in range(0, max(data.numel(), 1), step):
            k = min(step, data.numel() - first)
            place, staged = self._place.get(torch.uint8, 0, k)
            if root == self._rank:
                staged.copy_(data[first : first + k])
            self._do(nvsym.broadcast, place, place, root)
            if root != self._rank:
                data[first : first + k].copy_(staged)
        if not _is_plain(t) and root != self._rank:
            t.copy_(data.view(t.dtype).view(t.shape))

    @_collective
    def scatter(self, outputs: Any, input_lists: Any, opts: Any = None) -> Any:
        """Give each rank its tensor of the root's list."""
        opts = dist.ScatterOptions() if opts is None else opts
        root, output = opts.rootRank, outputs[0]
        inputs = input_lists[0] if root == self._rank else []
        if root == self._rank:
            self._check_list(output, inputs, "scatter_list")

        def run():
            # The root's list goes to all of them, a piece at a time.
            n, out = self._size, torch.empty_like(output, memory_format=torch.contiguous_format)
            mine = self._bytes(out)
            data = [self._bytes(t) for t in inputs]
            step = self._step(n, 1)
            for first in range(0, max(mine.numel(), 1), step):
                k = min(step, mine.numel() - first)
                place, staged = self._place.get(torch.uint8, 0, n * k)
                for i, part in enumerate(data):
                    staged[i * k : (i + 1) * k].copy_(part[first : first + k])
                self._do(nvsym.broadcast, place, place, root)
                mine[first : first + k].copy_(staged[self._rank * k : (self._rank + 1) * k])
            output.copy_(out)

        return self._submit(run, [output, *inputs], opts, outputs)

    def _exchange(self, outputs, inputs, longest):
        """Block j of the inputs to rank j, as bytes; no block of any rank is longer than `longest`."""
        n = self._size
        step = self._step(2 * n, 1)
        for first in range(0, max(longest, 1), step):
            k = self._padded(min(step, longest - first))
            source, packed = self._place.get(torch.uint8, 0, n * k)
            dest, arrived = self._place.get(torch.uint8, self._place.nbytes // 2 // _ALIGN * _ALIGN, n * k)
            for j, block in enumerate(inputs):
                part = block[first : first + k]
                packed[j * k : j * k + part.numel()].copy_(part)
            self._do(nvsym.alltoall, dest, source)
            for j, block in enumerate(outputs):
                part = block[first : first + k]
                part.copy_(arrived[j * k : j * k + part.numel()])

    def _longest(self, outputs, inputs):
        """The longest block of any rank, after a look at whether what is sent is what is expected."""
        n = self._size
        source, sizes = self._place.get(torch.int64, 0, n)
        dest, arriving = self._place.get(torch.int64, self._place.nbytes // 2 // _ALIGN * _ALIGN, n)
        sizes.copy_(torch.tensor([block.numel() for block in inputs]))
        self._do(nvsym.alltoall, dest, source)
        arriving = arriving.tolist()
        bad = [j for j, block in enumerate(outputs) if block.numel() != arriving[j]]
        word, values = self._place.get(torch.int64, 0, 2)
        values.copy_(torch.tensor([max([0, *arriving, *[block.numel() for block in inputs]]), len(bad)]))
        self._do(nvsym.allreduce, word, word, "max")
        longest, anywhere = values.tolist()
        if anywhere:
            what = "; ".join(f"rank {j} sends {arriving[j]} bytes where {outputs[j].numel()} are expected" for j in bad)
            raise ValueError(f"all_to_all: the sizes do not go together: {what or 'on another rank'}")
        return longest

    @_collective
    def all_to_all_single(
        self, output: Any, input: Any, output_split_sizes: Any, input_split_sizes: Any, opts: Any = None  # noqa: A002
    ) -> Any:  # fmt: skip
        """Send block j of the input to rank j. Blocks that differ in length cost a wait of the host."""
        if output.dtype != input.dtype:
            raise TypeError(f"output: dtype {output.dtype} differs from that of the input, {input.dtype}")
        even = not output_split_sizes and not input_split_sizes
        blocks = []
        for t, splits, name in ((output, output_split_sizes, "output"), (input, input_split_sizes, "input")):
            rows = t.shape[0] if t.dim() else 1
            if not splits:
                if rows % self._size or (even and output.numel() != input.numel()):
                    raise ValueError(
                        f"{name}: shape {tuple(t.shape)} cannot be split alike over {self._size} ranks, or differs in size "
                        "between output and input"
                    )
                splits = [rows // self._size] * self._size
            if len(splits) != self._size or sum(splits) != rows or min(splits) < 0:
                raise ValueError(
                    f"{name}_split_sizes: {list(splits)} do not add up to the {rows} rows for {self._size} ranks"
                )
            blocks.append((splits, t.numel() // rows * t.element_size() if rows else 0))

        def run():
            out = output if _is_plain(output) else torch.empty_like(output, memory_format=torch.contiguous_format)
            (out_splits, out_row), (in_splits, in_row) = blocks
            outputs = list(self._bytes(out).split([s * out_row for s in out_splits]))
            inputs = list(self._bytes(input).split([s * in_row for s in in_splits]))
            self._exchange(outputs, inputs, inputs[0].numel() if even else self._longest(outputs, inputs))
            if out is not output:
                output.copy_(out)

        return self._submit(run, (output, input), opts, [output])

    alltoall_base = all_to_all_single  # PyTorch's earlier name

    @_collective
    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Send tensor j of the inputs to rank j; they may differ in size, which costs a wait of the host."""
        for many, name in ((outputs, "output_tensor_list"), (inputs, "input_tensor_list")):
            if len(many) != self._size:
                raise ValueError(f"{name}: {len(many)} tensors for {self._size} ranks")

        def run():
            outs = [t if _is_plain(t) else torch.empty_like(t, memory_format=torch.contiguous_format) for t in outputs]
            to, of = [self._bytes(t) for t in outs], [self._bytes(t) for t in inputs]
            self._exchange(to, of, self._longest(to, of))
            for t, out in zip(outputs, outs, strict=True):
                if out is not t:
                    t.copy_(out)

        return self._submit(run, [*outputs, *inputs], opts, outputs)

    def barrier(self, opts: Any = None) -> Any:
        """Wait until all ranks are here, and what each enqueued on this group before is done."""
        return self._submit(lambda: self._do(nvsym.barrier), (), opts, [], blocks=True)

    # ---- what there is not ------------------------------------------------------------------------------------------

    def _no_point_to_point(self, *args: Any, **kwargs: Any) -> Any:
        raise NotAvailableError(
            "the nvsym backend has no send and recv between two ranks; use nvsym.put_signal and nvsym.signal_wait_until on "
            "symmetric tensors (nvsym.torch.buffer), dist.all_to_all, or a gloo or nccl group beside this one"
        )

    send = recv = recv_anysource = _no_point_to_point

    # ---- the end ----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Wait until all calls made so far are carried out."""
        self._line.drain()

    def shutdown(self) -> None:
        """End the group; collective over it. Ending the first one also ends the job if it began it."""
        if self not in _alive:
            return
        _alive.discard(self)
        self._line.drain()
        self._line.close()
        first = self._place.slot < 0
        staging = _shared.staging
        if first:
            _shared.staging = None
        # In host memory some ranks are in the middle of a call then; on GPUs only their kernels were.
        if (self._broken and self._on_host) or staging is None or not nvsym.is_initialized():
            return  # what is left is for the end of the job
        try:
            self._team.destroy()
        except PeerError:
            try:
                check_kernels()
            except NVSymError:
                return  # the rank that the kernels have given up is not here either, and that was told
            raise
        if not first:
            staging.give_back(self._place)
            return
        del self._place
        staging.free()
        if _shared.job_is_ours:
            _shared.job_is_ours = False
            nvsym.finalize()

    def abort(self) -> None:
        """End the group without the others."""
        _alive.discard(self)
        self._line.close()


# A forked child, such as a loader of data, has no part in the groups.
os.register_at_fork(after_in_child=_alive.clear)


@atexit.register
def _drain_all():
    # Before the job ends: a thread must not be in the middle of a call then.
    for group in list(_alive):
        group.drain()
