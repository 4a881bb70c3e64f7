# SPDX-License-Identifier: Apache-2.0
"""The command line of ``python -m nvsym bench``."""

import argparse
import json
import os
import platform
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _settings
from .._names import choose
from .data import ATOMICS, Shape
from .sampling import METHOD, PeerUnavailableError, Sampler, best

__all__ = ["Bench", "describe_machine", "main"]

PEERS = ("mpi4py", "shmem4py")
OVERHEAD = ("my_pe", "n_pes", "slice", "quiet", "put + quiet", "get", "atomic_fetch_add", "allocate + free")

_COMMANDS = {
    "latency": "one way of a message with notification between two PEs: put_signal and signal_wait_until",
    "put": "put to the next PE, complete there (put and quiet)",
    "get": "get from the next PE",
    "allreduce": "allreduce over all PEs",
    "barrier": "barrier_all",
    "atomics": "atomic operations on an element of the next PE",
    "overhead": "what calls cost that need no other PE",
}

_EPILOG = """\
Start it by mpirun for as many PEs as are wanted: mpirun -n 2 python -m nvsym bench put -b 16 -e 1M --vs mpi4py
"""


def _size(text):
    try:
        return _settings.parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def _count(text):
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _factor(text):
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 1")
    return value


def _element(text):
    from ..dtypes import as_dtype

    try:
        return as_dtype(text).numpy
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _peers(text):
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(PEERS)}")
    return list(dict.fromkeys(names))


def _parser(command):
    from ..backend import ALGORITHMS

    parser = argparse.ArgumentParser(
        prog=f"python -m nvsym bench {command}",
        description=_COMMANDS[command] + ".",
        epilog=_EPILOG + METHOD,
        allow_abbrev=False,
    )
    sized = command in ("latency", "put", "get", "allreduce")
    if sized:
        parser.add_argument("-b", type=_size, default=16, metavar="SIZE", help="smallest size in bytes (default: 16)")
        parser.add_argument(
            "-e", type=_size, metavar="SIZE", help="largest size (default: 1M; with -b above it, that of -b)"
        )
        parser.add_argument(
            "-f", type=_factor, default=4.0, metavar="FACTOR", help="from one size to the next (default: 4)"
        )
    if command != "barrier":
        default = {"atomics": "int64", "overhead": "int64"}.get(command, "float32")
        parser.add_argument("--dtype", type=_element, default=default, help=f"element type (default: {default})")
    if command == "allreduce":
        parser.add_argument("--op", choices=("sum", "prod", "min", "max", "and", "or", "xor"), default="sum")
        parser.add_argument("--algorithm", choices=ALGORITHMS, default="auto", help="of nvsym (default: auto)")
    if command in ("put", "get"):
        parser.add_argument(
            "--local", choices=("buffer", "array"), default="buffer",
            help="nvsym's local side: a SHMEMBuffer or a NumPy array (default: buffer)",
        )  # fmt: skip
    if command == "atomics":
        parser.add_argument("--op", choices=ATOMICS, action="append", help="only this one; may be repeated")
    parser.add_argument(
        "-n", type=_positive, metavar="CALLS", help="counted calls of a batch (default: some milliseconds' worth)"
    )
    parser.add_argument(
        "-w", type=_count, metavar="CALLS", help="calls of a batch that are not counted (default: 10; slow calls 1)"
    )
    parser.add_argument("--batches", type=_positive, default=21, help="batches of each library (default: 21)")
    parser.add_argument(
        "--vs",
        type=_peers,
        default=[],
        metavar="PEERS",
        help=f"compare with these, comma-separated: {', '.join(PEERS)}",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document in place of the table")
    return parser


def main(argv=None):
    """Run a subcommand; returns the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    command, status = choose("python -m nvsym bench", argv, _COMMANDS, _EPILOG)
    if command is None:
        return status
    parser = _parser(command)
    options = parser.parse_args(argv[1:])
    if command in ("latency", "put", "get", "allreduce"):
        if options.e is None:
            options.e = max(1 << 20, options.b)
        if options.e < options.b:
            parser.error(f"-e {options.e} is below -b {options.b}")
    return _run(command, options)


@dataclass
class _Row:
    """One line of the output: its own columns, how its cases are made, and the bytes that one call moves (or None)."""

    columns: dict
    method: str
    arguments: tuple
    nbytes: int | None = None


def _rows(command, options):
    if command == "barrier":
        return [_Row({"operation": "barrier_all"}, "barrier", (Shape(1, np.dtype(np.int64)),))]
    dtype = options.dtype
    if command == "atomics":
        names = options.op or [
            name for name in ATOMICS if dtype.kind != "f" or name in ("fetch", "set", "add", "fetch_add", "swap")
        ]
        return [_Row({"operation": f"atomic_{name}"}, "atomic", (name, Shape(1, dtype))) for name in names]
    if command == "overhead":
        return [_Row({"call": name}, "overhead", (name, Shape(1, dtype))) for name in OVERHEAD]
    rows, size = [], float(options.b)
    while round(size) <= options.e:
        count = max(1, round(size) // dtype.itemsize)
        shape = Shape(
            count,
            dtype,
            getattr(options, "op", "sum"),
            getattr(options, "algorithm", "auto"),
            getattr(options, "local", "buffer"),
        )
        if not rows or rows[-1].nbytes != shape.nbytes:
            rows.append(_Row({"bytes": shape.nbytes, "count": count}, command, (shape,), shape.nbytes))
        size *= options.f
    return rows


class Bench:
    """A job, its sampler, and the libraries that are compared; collective.

    Parameters
    ----------
    peers : list of str
        Of `PEERS`.
    heap_size : int
        Bytes of the symmetric heap of each PE.
    **sampling
        For `Sampler`.
    """

    def __init__(self, peers, heap_size, **sampling):
        from mpi4py import MPI

        import nvsym

        from .mpi4py_cases import Mpi4pyCases
        from .nvsym_cases import NvsymCases
        from .shmem4py_cases import Shmem4pyCases

        self.comm = MPI.COMM_WORLD
        self.context = nvsym.init(backend="host", heap_size=heap_size)
        self.n_pes = nvsym.n_pes()
        self.is_first = nvsym.my_pe() == 0
        self.nodes = len(set(self.context.nodes()))
        self.libraries: list[Any] = [NvsymCases()]
        self.unavailable: dict[str, str] = {}
        for name in peers:
            try:
                self.libraries.append(
                    Mpi4pyCases(self.comm, self.nodes > 1) if name == "mpi4py" else Shmem4pyCases(self.comm)
                )
            except PeerUnavailableError as error:
                self.unavailable[name] = str(error)
        self.sampler = Sampler(self.comm, nvsym.sync_all, **sampling)

    def measure(self, method, *arguments):
        """The fastest `Series` of each library for an operation, by name, and the reasons of those that have none."""
        cases, reasons = [], {}
        for library in self.libraries:
            try:
                cases += getattr(library, method)(*arguments)
            except PeerUnavailableError as error:
                reasons[library.name] = str(error)
        return best(self.sampler.measure(cases)), reasons

    def describe(self):
        """What was compared, in one line each."""
        return [library.describe() for library in self.libraries]

    def close(self):
        """End the job."""
        self.context.finalize()


def describe_machine():
    """The machine in words: processor, cores that may be used, memory, kernel, load."""
    model = platform.machine()
    with open("/proc/cpuinfo") as file:
        lines = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    if lines:
        model = lines[0]
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    load = os.getloadavg()[0]
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {gib:.0f} GiB, Linux {platform.release()}, load {load:.1f}"


def _run(command, options):
    largest = getattr(options, "e", 1)
    bench = Bench(options.vs, 4 * largest + (64 << 20), calls=options.n, warmup=options.w, batches=options.batches)
    try:
        return _measure(bench, command, options)
    finally:
        bench.close()


def _measure(bench, command, options):
    if command == "latency" and bench.n_pes < 2:
        print("python -m nvsym bench latency: needs 2 PEs; start it by mpirun -n 2", file=sys.stderr)
        return 1
    rows = _rows(command, options)
    peers = [library.name for library in bench.libraries[1:]]
    report: dict[str, Any] = {
        "bench": command,
        "pes": bench.n_pes,
        "nodes": bench.nodes,
        "machine": describe_machine(),
        "libraries": bench.describe(),
        "unavailable": bench.unavailable,
        "options": {
            key: value.name if isinstance(value, np.dtype) else value
            for key, value in vars(options).items()
            if key != "json"
        },
        "method": METHOD,
        "rows": [],
    }
    printer = _Printer(command, rows[0], peers, options.json) if bench.is_first else None
    if printer:
        printer.begin(report)
    wrong = 0
    for row in rows:
        if printer:
            printer.announce(row)
        try:
            series, reasons = bench.measure(row.method, *row.arguments)
        except (TypeError, ValueError) as error:
            # nvsym's answer to arguments that are the same on every PE, so it is raised on every PE.
            if bench.is_first:
                print(f"python -m nvsym bench {command}: error: {error}", file=sys.stderr)
            return 2
        result = _result(command, row, series, reasons, bench.n_pes)
        wrong += sum(not one["correct"] for one in [result["nvsym"], *result["peers"].values()])
        report["rows"].append(result)
        if printer:
            printer.row(result)
    if printer:
        printer.end(report, wrong)
    return 1 if wrong else 0


def _result(command, row, series, reasons, n_pes):
    own = series["nvsym"]
    result = {**row.columns, "nvsym": own.as_dict(), "peers": {}, "unavailable": reasons}
    if row.nbytes is not None and command != "latency":
        result["nvsym"]["GB_per_s"] = row.nbytes / own.median / 1e9
        if command == "allreduce":
            # The bus bandwidth of nccl-tests: what each PE has to send at least, whatever the algorithm.
            result["nvsym"]["bus_GB_per_s"] = result["nvsym"]["GB_per_s"] * 2 * (n_pes - 1) / n_pes
    for name, one in series.items():
        if name != "nvsym":
            result["peers"][name] = {**one.as_dict(), "ratio": own.median / one.median}
    return result


class _Printer:
    """Writes the rows as they come, on PE 0."""

    def __init__(self, command, first, peers, as_json):
        self.as_json = as_json
        self.peers = peers
        self.own = list(first.columns)
        self.rates = []
        if first.nbytes is not None and command != "latency":
            self.rates = ["GB_per_s", "bus_GB_per_s"] if command == "allreduce" else ["GB_per_s"]

    def begin(self, report):
        if self.as_json:
            return
        print(f"# nvsym bench {report['bench']}: {report['pes']} PEs on {report['nodes']} node(s); {report['machine']}")
        for line in [*report["libraries"], *report["unavailable"].values()]:
            print(f"# {line}")
        words, line = METHOD.split(), "#"
        for word in words:
            if len(line) + len(word) > 118:
                print(line)
                line = "#"
            line += f" {word}"
        print(line)
        titles = [f"{name:>10}" if name in ("bytes", "count") else f"{name:<22}" for name in self.own]
        titles.append(f"{'nvsym us':>11}")
        titles += [f"{'bus GB/s' if rate.startswith('bus') else 'GB/s':>9}" for rate in self.rates]
        titles += [f"{name + ' us':>12} {'ratio':>7}" for name in self.peers]
        print("  ".join(titles), flush=True)

    def announce(self, row):
        if self.as_json:
            print(f"nvsym bench: {' '.join(map(str, row.columns.values()))} ...", file=sys.stderr, flush=True)

    def row(self, result):
        if self.as_json:
            return
        cells = [f"{result[name]:>10}" if name in ("bytes", "count") else f"{result[name]:<22}" for name in self.own]
        cells.append(f"{result['nvsym']['median_us']:>11.3f}")
        cells += [f"{result['nvsym'][rate]:>9.3f}" for rate in self.rates]
        remarks = []
        for name in self.peers:
            peer = result["peers"].get(name)
            if peer is None:
                cells.append(f"{'-':>12} {'-':>7}")
                remarks.append(result["unavailable"].get(name, ""))
                continue
            cells.append(f"{peer['median_us']:>12.3f} {peer['ratio']:>7.3f}")
            if peer["variant"]:
                remarks.append(peer["variant"])
        remarks += [
            f"WRONG RESULT of {name}"
            for name, one in [("nvsym", result["nvsym"]), *result["peers"].items()]
            if not one["correct"]
        ]
        print("  ".join([*cells, *filter(None, remarks)]), flush=True)

    def end(self, report, wrong):
        if self.as_json:
            print(json.dumps(report, indent=1), flush=True)
        elif wrong:
            print(f"# {wrong} wrong results", flush=True)
