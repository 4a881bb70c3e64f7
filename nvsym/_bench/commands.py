# SPDX-License-Identifier: Apache-2.0
"""The command line of ``python -m nvsym bench``."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .. import _settings
from .._names import choose
from .bench import Bench, describe_machine, forbid_multicast
from .data import ATOMICS, COLLECTIVES, Shape
from .gpu_sampling import GPU_METHOD
from .init import INIT_METHOD, measure_init
from .options import COMMANDS, EPILOG, SIZED, make_parser
from .sampling import METHOD
from .table import Printer

__all__ = ["Bench", "describe_machine", "main"]

OVERHEAD = ("my_pe", "n_pes", "slice", "quiet", "put + quiet", "get", "atomic_fetch_add", "allocate + free")
GPU_OVERHEAD = (
    "my_pe", "n_pes", "slice", "put", "get", "put_signal", "signal_op", "quiet", "barrier_all", "reduce by NVSHMEM",
    "allreduce", "allocate + free",
)  # fmt: skip

_OVERHEAD_BYTES = 4096  # on GPUs


def main(argv=None):
    """Run a subcommand; returns the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    command, status = choose("python -m nvsym bench", argv, COMMANDS, EPILOG)
    if command is None:
        return status
    parser = make_parser(command)
    options = parser.parse_args(argv[1:])
    if command in SIZED:
        if options.e is None:
            options.e = max(_settings.parse_size(options.largest), options.b)
        if options.e < options.b:
            parser.error(f"-e {options.e} is below -b {options.b}")
    try:
        return _init(options) if command == "init" else _run(command, options)
    except _UsageError as error:
        return _complain(command, error)


class _UsageError(Exception):
    """Options that do not go with the job; the same on every PE."""


def _complain(command, error):
    from mpi4py import MPI

    if MPI.COMM_WORLD.Get_rank() == 0:
        print(f"python -m nvsym bench {command}: error: {error}", file=sys.stderr)
    return 2


@dataclass
class _Row:
    """One line of the output: its own columns, how its cases are made, and the bytes that one call moves (or None)."""

    columns: dict
    method: str
    arguments: tuple
    nbytes: int | None = None
    dtype: Any = None
    how: dict = field(default_factory=dict)  # on GPUs, for the sampler
    alone: bool = False  # of nvsym only


def _rows(command, options, on_gpus, n_pes):
    """The rows of a benchmark, those of an element type together."""
    modes = {"no": (False,), "only": (True,), "both": (False, True)}[getattr(options, "graph", "no")]
    if any(modes) and not on_gpus:
        raise _UsageError("--graph: a job on the host backend has no CUDA graphs")
    if getattr(options, "in_place", False) and not on_gpus:
        raise _UsageError("--in-place: it is measured on GPUs, and this job is on the host backend")
    if command == "barrier":
        shape = Shape(1, np.dtype(np.int64))
        return [
            _Row({"operation": "barrier_all", "mode": _mode(graph)}, "barrier", (shape,), how={"graph": graph})
            for graph in modes
        ]  # fmt: skip
    rows: list[_Row] = []
    for dtype in options.dtype:
        if command == "atomics":
            rows += _atomics(options, dtype)
        elif command == "overhead":
            shape = Shape(_OVERHEAD_BYTES // dtype.itemsize if on_gpus else 1, dtype)
            rows += [
                _Row({"call": name, "dtype": dtype.name}, "overhead", (name, shape), how={"clock": "enqueue"})
                for name in (GPU_OVERHEAD if on_gpus else OVERHEAD)
            ]  # fmt: skip
        elif command == "copy":
            kinds = ("pinned", "pageable") if on_gpus else ("array", "HostBuffer")
            directions = ("to GPU", "from GPU") if on_gpus else ("to buffer", "from buffer")
            for kind in kinds:
                for direction in directions:
                    rows += _sizes(
                        "copy",
                        options,
                        dtype,
                        {"copy": f"{kind} {direction}"},
                        (kind, direction),
                        {"clock": "complete"},
                    )
        else:
            blocks = command in COLLECTIVES
            method, arguments = ("collective", (command,)) if blocks else (command, ())
            for graph in modes:
                columns, how = {"mode": _mode(graph)}, {"graph": graph}
                rows += _sizes(method, options, dtype, columns, arguments, how, n_pes if blocks else 1)
    for row in rows:
        row.dtype = row.arguments[-1].dtype
    return rows


def _mode(graph):
    return "graph" if graph else "eager"


def _atomics(options, dtype):
    names = options.op or [
        name for name in ATOMICS if dtype.kind != "f" or name in ("fetch", "set", "add", "fetch_add", "swap")
    ]
    return [
        _Row({"operation": f"atomic_{name}", "dtype": dtype.name}, "atomic", (name, Shape(1, dtype)), how={"clock": "enqueue"})
        for name in names
    ]  # fmt: skip


def _sizes(method, options, dtype, columns, arguments, how, blocks=1):
    """A row for each size, in so many equal blocks; where two come to the same number of elements, one."""
    rows: list[_Row] = []
    size = float(options.b)
    algorithms = getattr(options, "algorithm", ["auto"])
    while round(size) <= options.e:
        shape = Shape(
            max(1, round(size) // dtype.itemsize // blocks) * blocks,
            dtype,
            getattr(options, "op", "sum"),
            algorithms[0],
            getattr(options, "local", "buffer"),
            getattr(options, "signal", False),
            getattr(options, "in_place", False),
        )
        if not rows or rows[-1].nbytes != shape.nbytes:
            own = {**columns, "dtype": dtype.name, "bytes": shape.nbytes, "count": shape.count}
            alone = len(rows) % options.vs_every != 0
            rows.append(_Row(own, method, (*arguments, shape), shape.nbytes, how=how, alone=alone))
        size *= options.f
    return rows


def _check_files(comm, options):
    """That the files can be written, as PE 0 sees it, before anything is measured."""
    reason = None
    if comm.Get_rank() == 0:
        for option, name in (("--json", options.json), ("--plot", options.plot)):
            if name not in (None, "-") and not Path(name).resolve().parent.is_dir():
                reason = f"{option}: there is no folder {Path(name).resolve().parent}"
    reason = comm.bcast(reason)
    if reason is not None:
        raise _UsageError(reason)


def _run(command, options):
    from mpi4py import MPI

    _check_files(MPI.COMM_WORLD, options)
    largest = getattr(options, "e", 1)
    algorithms = getattr(options, "algorithm", ["auto"])[1:]
    sampling = {"calls": options.n, "warmup": options.w, "batches": options.batches}
    if options.budget is not None:
        sampling["budget"] = options.budget
    peers = options.vs
    if peers is None:  # what a row means little without, wherever it is
        peers = {"copy": ["cuda", "numpy"], "overhead": ["nvshmem", "cuda"]}.get(command, [])
    bench = Bench(
        peers, 4 * largest + (64 << 20), backend=options.backend, largest=max(largest, _OVERHEAD_BYTES),
        reference=getattr(options, "reference", 0), algorithms=algorithms, **sampling,
    )  # fmt: skip
    try:
        if options.vs is None:
            bench.unavailable.clear()
        if command == "overhead" and options.dtype is None:
            options.dtype = [np.dtype(np.float32 if bench.on_gpus else np.int64)]
        return _measure(bench, command, options)
    finally:
        bench.close()


def _report(bench, command, options):
    report: dict[str, Any] = {
        "bench": command,
        "pes": bench.n_pes,
        "nodes": bench.nodes,
        "machine": describe_machine(bench.gpu if bench.on_gpus else None),
        "libraries": bench.describe(),
        "unavailable": bench.unavailable,
        "options": _plain(options),
        "method": GPU_METHOD if bench.on_gpus else METHOD,
        "rows": [],
    }
    if bench.on_gpus and command in ("allreduce", "put", "get"):
        report["references"] = bench.references()
    return report


def _plain(options):
    values = {}
    for key, value in vars(options).items():
        if key in ("json", "plot", "largest"):
            continue
        if key == "dtype":
            value = [one.name for one in value]
            value = value[0] if len(value) == 1 else value
        if key == "algorithm" and len(value) == 1:
            value = value[0]
        values[key] = value
    return values


def _measure(bench, command, options):
    if command == "latency" and bench.n_pes < 2:
        if bench.is_first:
            print("python -m nvsym bench latency: needs 2 PEs; start it by mpirun -n 2", file=sys.stderr)
        return 1
    rows = _rows(command, options, bench.on_gpus, bench.n_pes)
    report = _report(bench, command, options)
    peers = [library.name for library in bench.libraries[1:]]
    printer = None
    if bench.is_first:
        printer = Printer(command, _shown(rows), peers, _rates(command, rows[0], report), options.json)
        printer.begin(report)
    wrong, dtype = 0, None
    for number, row in enumerate(rows, 1):
        if printer:
            printer.announce(row, number, len(rows))
        if row.dtype is not dtype:
            if dtype is not None:
                bench.release()
            dtype = row.dtype
            largest = max([one.nbytes or _OVERHEAD_BYTES for one in rows if one.dtype is dtype])
            bench.prepare(largest, dtype)
        how = row.how if bench.on_gpus else {}
        try:
            series, reasons = bench.measure(row.method, *row.arguments, alone=row.alone, **how)
        except (TypeError, ValueError) as error:
            # nvsym's answer to arguments that are the same on every PE, so it is raised on every PE.
            raise _UsageError(error) from None
        result = _result(command, row, bench, series, reasons, report)
        wrong += sum(not one["correct"] for one in [result["nvsym"], *result["peers"].values()])
        report["rows"].append(result)
        if printer:
            printer.row(result)
    bench.release()
    return _finish(bench.comm, options, report, printer, wrong)


def _finish(comm, options, report, printer, wrong):
    """Write what was asked for, on PE 0; the exit status is that of all PEs."""
    status = 1 if wrong else 0
    if printer:
        try:
            printer.end(report, wrong)
            if options.plot is not None:
                from .plot import plot

                plot(report, options.plot)
        except OSError as error:
            print(f"python -m nvsym bench {report['bench']}: error: {error}", file=sys.stderr)
            status = 1
    return comm.bcast(status)


def _shown(rows):
    """The columns that differ between rows, and those that say what a row is."""
    return [
        name
        for name in rows[0].columns
        if name not in ("dtype", "mode") or len({row.columns[name] for row in rows}) > 1
    ]


def _rates(command, first, report):
    if first.nbytes is None or command == "latency":
        return []
    rates = ["GB_per_s", "bus_GB_per_s"] if command in ("allreduce", *COLLECTIVES) else ["GB_per_s"]
    return [*rates, "floor_us"] if command == "allreduce" and report.get("references") else rates


def _bus_factor(command, n_pes):
    """Bytes over bus bandwidth as nccl-tests has it: what each PE has to send or receive at least, whatever the algorithm."""
    if command == "broadcast":
        return 1.0
    if command in COLLECTIVES:
        return (n_pes - 1) / n_pes
    return 2 * (n_pes - 1) / n_pes if command == "allreduce" else None


def _result(command, row, bench, series, reasons, report):
    own = series["nvsym"]
    result = {**row.columns, "nvsym": own.as_dict(), "peers": {}, "unavailable": reasons}
    if row.nbytes is not None and command != "latency":
        result["nvsym"]["GB_per_s"] = row.nbytes / own.median / 1e9
        factor = _bus_factor(command, bench.n_pes)
        if factor is not None:
            result["nvsym"]["bus_GB_per_s"] = result["nvsym"]["GB_per_s"] * factor
        if command == "allreduce" and report.get("references"):
            floor = bench.floor(report["references"], row.nbytes)
            result["nvsym"]["floor_us"] = None if floor is None else floor * 1e6
    for name, one in series.items():
        if name != "nvsym":
            result["peers"][name] = {**one.as_dict(), "ratio": own.median / one.median}
    # Every way that was measured, where a library has several.
    names = [one.case.library for one in bench.series]
    result["variants"] = [
        {"library": one.case.library, **one.as_dict()} for one in bench.series if names.count(one.case.library) > 1
    ]
    return result


def _init(options):
    from mpi4py import MPI

    import nvsym

    comm = MPI.COMM_WORLD
    _check_files(comm, options)
    forbid_multicast(comm)
    gpus = options.backend != "host" and nvsym.SHMEMContext.number_of_devices() > 0
    peers = options.vs if options.vs is not None else (["nvshmem"] if gpus else [])
    found, unavailable = measure_init(comm, options.backend, peers, options.heap, options.rounds, options.first)
    report: dict[str, Any] = {
        "bench": "init",
        "pes": comm.Get_size(),
        "nodes": len(set(comm.allgather(MPI.Get_processor_name()))),
        "machine": describe_machine(),
        "libraries": [f"nvsym {nvsym.__version__}"],
        "unavailable": unavailable,
        "options": _plain(options),
        "method": INIT_METHOD,
        "rows": [],
    }
    names = [name for name in peers if name not in unavailable]
    printer = Printer("init", ["operation"], names, [], options.json, digits=0) if comm.Get_rank() == 0 else None
    if printer:
        printer.begin(report)
    for row in found:
        # The first beginning of a process is one library's alone.
        times = {
            name: {"median_us": seconds * 1e6, "variant": "", "correct": True}
            for name, seconds in row["seconds"].items()
        }
        own = times.pop("nvsym", None)
        result = {"operation": row["what"], "nvsym": own, "peers": times, "unavailable": {}}
        if own is None:
            result["nvsym"] = {"median_us": None, "variant": "", "correct": True}
        for peer in times.values():
            peer["ratio"] = None if own is None else own["median_us"] / peer["median_us"]
        report["rows"].append(result)
        if printer:
            printer.row(result)
    return _finish(comm, options, report, printer, 0)
