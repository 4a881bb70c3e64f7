# SPDX-License-Identifier: Apache-2.0
"""The host backend beside mpi4py, and shmem4py where it is: what each operation costs, and whether the bars are met.

::

    python benchmarks/host.py                 # 2 PEs, then 4
    python benchmarks/host.py --save          # and the tables to benchmarks/results/host-DATE.md

It starts the MPI jobs itself, with the launcher that goes with mpi4py. How it measures is said in benchmarks/README.md.
"""

import argparse
import dataclasses
import datetime
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"

OWN_CORES, SHARED_CORES = "a core for each PE", "PEs share cores"

# What is compared: a method of the cases, its arguments (sizes in bytes), and the bar with two PEs (None: no bar).
# With more PEs than cores the bar is 1 everywhere: none slower than mpi4py.
ROWS = (
    ("put 16 B + quiet", "put", 16, 0.5),
    ("put 16 B + quiet, from a NumPy array", "put array", 16, None),
    ("put 64 KB + quiet", "put", 65536, None),
    ("get 16 B", "get", 16, None),
    ("atomic_fetch_add int64", "atomic", "fetch_add", 0.5),
    ("atomic_compare_swap int64", "atomic", "compare_swap", None),
    ("put_signal 16 B + wait, one way", "latency", 16, None),
    ("barrier_all", "barrier", 0, 0.8),
    ("allreduce 16 B", "allreduce", 16, 0.8),
    ("allreduce 1 KB", "allreduce", 1024, None),
    ("allreduce 8 KB", "allreduce", 8192, 0.5),
    ("allreduce 64 KB", "allreduce", 65536, 0.5),
    ("allreduce 1 MB", "allreduce", 1 << 20, 0.5),
    ("allreduce 8 MB", "allreduce", 8 << 20, 0.5),
    ("allreduce 64 MB", "allreduce", 64 << 20, 0.5),
    ("broadcast 64 KB", "broadcast", 65536, None),
    ("fcollect 64 KB", "fcollect", 65536, None),
    ("alltoall 64 KB", "alltoall", 65536, None),
    ("reducescatter 64 KB", "reducescatter", 65536, None),
)

LIMIT = 900.0  # seconds that a job may take
MY_PE_NS = 50.0
MEMORY_MB = 30.0

# Both programs print what this process takes, in KiB. The heap of the second is as small as one can be.
_MEMORY = """
import json, os, sys
import numpy
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
if sys.argv[1] == "nvsym":
    import nvsym
    nvsym.init(backend="host", heap_size="4M")
    nvsym.barrier_all()
    nvsym.SHMEMBuffer[numpy.float32].zeros(16).free()
found = {}
with open("/proc/self/smaps_rollup") as file:
    for line in file:
        name, _, rest = line.partition(":")
        if name in ("Rss", "Pss", "Private_Dirty"):
            found[name] = int(rest.split()[0])
rows = MPI.COMM_WORLD.gather(found)
if rows:
    print(json.dumps(rows))
"""


@dataclasses.dataclass
class Line:
    """One line of the result."""

    what: str
    own: str
    peer: str
    ratio: str
    bar: str
    ok: bool | None


# ---- on every PE ----------------------------------------------------------------------------------------------------


def work(options):
    """Measure all rows, as one PE of the job; PE 0 writes the results to a file."""
    import numpy as np

    from nvsym._bench.commands import Bench, describe_machine
    from nvsym._bench.data import COLLECTIVES, Shape

    bench = Bench(options.vs, 4 * options.largest + (64 << 20), batches=options.batches, budget=options.budget)
    rows = []
    for name, method, size, bar in ROWS:
        if isinstance(size, int) and size > options.largest:
            continue
        integer = np.dtype(np.int64)
        if method == "atomic":
            arguments = (size, Shape(1, integer))
        elif method == "barrier":
            arguments = (Shape(1, integer),)
        else:
            local = "array" if method == "put array" else "buffer"
            arguments = (Shape(size // 4, np.dtype(np.float32), local=local),)
        if method in COLLECTIVES:
            method, arguments = "collective", (method, *arguments)
        series, reasons = bench.measure(method.split()[0], *arguments)
        row = {
            "name": name,
            "bar": bar,
            "reasons": reasons,
            "series": {key: one.as_dict() for key, one in series.items()},
        }
        rows.append(row)
        if bench.is_first:
            print(f"  {name:<40} {_in_words(row)}", file=sys.stderr, flush=True)
    series, _ = bench.measure("overhead", "my_pe", Shape(1, np.dtype(np.int64)))
    result = {
        "n_pes": bench.n_pes,
        "machine": describe_machine(),
        "libraries": bench.describe(),
        "unavailable": bench.unavailable,
        "rows": rows,
        "my_pe": series["nvsym"].as_dict(),
    }
    if bench.is_first:
        pathlib.Path(options.work).write_text(json.dumps(result))
    bench.close()


def _in_words(row):
    own = row["series"]["nvsym"]["median_us"]
    peers = [
        f"{name} {one['median_us']:.3f} us, ratio {own / one['median_us']:.3f}"
        for name, one in row["series"].items() if name != "nvsym"
    ]  # fmt: skip
    return "; ".join([f"nvsym {own:.3f} us", *peers])


# ---- the jobs -------------------------------------------------------------------------------------------------------


def run(launcher, n, program, *, command=None):
    """Run a Python program as a job of `n` PEs; its stderr goes to the terminal. Returns (status, output)."""
    environ = launcher.environ()
    environ.setdefault("OMP_NUM_THREADS", "1")
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_package_root(), environ.get("PYTHONPATH")]))
    job = subprocess.Popen(
        [*(command or launcher.command), "-n", str(n), sys.executable, *map(str, program)],
        stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environ, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = job.communicate(timeout=LIMIT)
    except BaseException:
        # Neither the time limit nor Ctrl-C leaves processes behind: the launcher ends them when it is asked to.
        os.killpg(job.pid, signal.SIGTERM)
        try:
            job.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
        raise
    return job.returncode, output


def _package_root():
    """The folder that holds the nvsym that this process has found, for the jobs to take the same."""
    return str(pathlib.Path(importlib.util.find_spec("nvsym").origin).parents[1])


def measure(launcher, n, options, peers, command=None):
    """The result of one job, or None if it did not get that far."""
    with tempfile.TemporaryDirectory(prefix="nvsym-bench-") as folder:
        file = pathlib.Path(folder, "result.json")
        status, output = run(
            launcher, n,
            [__file__, "--work", file, "--vs", ",".join(peers), "--largest", options.largest,
             "--batches", options.batches, "--budget", options.budget],
            command=command,
        )  # fmt: skip
        # Open MPI's OpenSHMEM crashes when a program ends, after its work is done: the file says whether it was.
        if file.is_file():
            return json.loads(file.read_text())
        print(f"the job of {n} PEs failed with status {status}\n{output}", file=sys.stderr)
        return None


def memory(launcher, n, repeats):
    """MB that importing nvsym and beginning a job adds to a process (the largest of the PEs; median of the repeats)."""
    added = {"Rss": [], "Pss": []}
    for _ in range(repeats):
        found = {}
        for which in ("mpi4py", "nvsym"):
            status, output = run(launcher, n, ["-c", _MEMORY, which])
            if status != 0:
                raise SystemExit(f"the job that measures memory failed with status {status}\n{output}")
            found[which] = json.loads(output.strip().splitlines()[-1])
        for kind, values in added.items():
            values.append(max(b[kind] - a[kind] for a, b in zip(found["mpi4py"], found["nvsym"], strict=True)) / 1000)
    return {kind: statistics.median(values) for kind, values in added.items()}


# ---- the tables -----------------------------------------------------------------------------------------------------


def lines_of(result, bars):
    """The comparison of a job with mpi4py. `bars`: `OWN_CORES`, `SHARED_CORES`, or None for no bars."""
    lines = []
    for row in result["rows"]:
        own, peer = row["series"]["nvsym"], row["series"].get("mpi4py")
        bar = {OWN_CORES: row["bar"], SHARED_CORES: 1.0}.get(bars)
        if peer is None:
            lines.append(Line(row["name"], _time(own), "-", "-", "-", None))
            continue
        ratio = own["median_us"] / peer["median_us"]
        wrong = "" if own["correct"] and peer["correct"] else " WRONG RESULT"
        lines.append(
            Line(
                row["name"] + wrong,
                _time(own),
                f"{_time(peer)} {peer['variant']}".rstrip(),
                f"{ratio:.3f}",
                "-" if bar is None else f"{bar:g}",
                None if bar is None else (ratio <= bar and not wrong),
            )
        )
    return lines


def shmem_lines_of(result):
    """The comparison of a job with shmem4py; it has no bars."""
    lines = []
    for row in result["rows"]:
        own, peer = row["series"]["nvsym"], row["series"].get("shmem4py")
        if peer is not None:
            ratio = own["median_us"] / peer["median_us"]
            lines.append(
                Line(row["name"], _time(own), f"{_time(peer)} {peer['variant']}".rstrip(), f"{ratio:.3f}", "-", None)
            )
    return lines


def _time(one):
    value = one["median_us"]
    return f"{value:.3f}" if value < 100 else f"{value:.0f}"


def markdown(title, peer, lines):
    """A table in Markdown, columns aligned, so that it also reads well on a terminal."""
    rows = [("what", "nvsym us", f"{peer} us", "ratio", "bar", "ok"), ("---", "---:", "---:", "---:", "---:", "---")]
    rows += [
        (x.what, x.own, x.peer, x.ratio, x.bar, "" if x.ok is None else ("yes" if x.ok else "**no**")) for x in lines
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    body = []
    for i, row in enumerate(rows):
        if i == 1:
            body.append(
                "| " + " | ".join("-" * (w - 1) + ("-" if j in (0, 5) else ":") for j, w in enumerate(widths)) + " |"
            )
        else:
            body.append(
                "| "
                + " | ".join(
                    c.ljust(w) if j in (0, 5) else c.rjust(w) for j, (c, w) in enumerate(zip(row, widths, strict=True))
                )
                + " |"
            )
    return "\n".join([f"## {title}", "", *body, ""])


def fixed_lines(title, result, added):
    """What is measured against a number and not against a peer."""
    ns = result["my_pe"]["median_us"] * 1000
    return "\n".join(
        [
            f"## {title}",
            "",
            "| what | measured | bar | ok |",
            "| --- | ---: | ---: | --- |",
            f"| my_pe(), the loop included | {ns:.1f} ns | {MY_PE_NS:.0f} ns | {_yes(ns < MY_PE_NS)} |",
            *(
                f"| added to each process beyond numpy + mpi4py + the heap, {kind.upper()} | {value:.1f} MB "
                f"| {MEMORY_MB:.0f} MB | {_yes(value <= MEMORY_MB)} |"
                for kind, value in added.items()
            ),
            "",
        ]
    )


def _yes(ok):
    return "yes" if ok else "**no**"


def _report(options):
    """All tables as Markdown, and whether every bar is met."""
    from nvsym._bench.sampling import METHOD
    from nvsym._launch import find_launcher

    cores = len(os.sched_getaffinity(0))
    parts, libraries, machine, met = [], [], None, []
    for kind in options.mpi or [None]:
        launcher = find_launcher(kind)
        name = " ".join(launcher.library_version.replace("Version:", "").split(",")[0].split())
        first = None
        for n in options.pes:
            print(f"{n} PEs, {name}", file=sys.stderr, flush=True)
            result = measure(launcher, n, options, ["mpi4py"])
            if result is None:
                return None, False
            first, machine = first or result, machine or result["machine"]
            libraries += [line for line in result["libraries"] if line not in libraries]
            bars = OWN_CORES if n == 2 and cores >= 2 else (SHARED_CORES if n > cores else None)
            lines = lines_of(result, bars)
            met += [line.ok for line in lines if line.ok is not None]
            parts.append(markdown(f"{n} PEs on {cores} cores, beside mpi4py on {name}", "mpi4py", lines))
        print("memory of a process", file=sys.stderr, flush=True)
        added = memory(launcher, 2, options.repeats)
        met += [first["my_pe"]["median_us"] * 1000 < MY_PE_NS, *(value <= MEMORY_MB for value in added.values())]
        parts.append(fixed_lines(f"Fixed bars, on {name}", first, added))
    reason = _why_no_shmem()
    if reason is None:
        print("2 PEs beside shmem4py", file=sys.stderr, flush=True)
        openmpi = find_launcher("openmpi")
        command = [shutil.which("oshrun"), *openmpi.command[1:]]
        smaller = argparse.Namespace(**{**vars(options), "largest": min(options.largest, 8 << 20)})
        result = measure(openmpi, 2, smaller, ["shmem4py", "mpi4py"], command)
        if result is None:
            reason = "its job failed"
        else:
            libraries += [line for line in result["libraries"] if line not in libraries]
            reason = result["unavailable"].get("shmem4py")
        if reason is None:
            parts.append(markdown("2 PEs, beside shmem4py", "shmem4py", shmem_lines_of(result)))
            parts.append(markdown("2 PEs, beside mpi4py, in the job with shmem4py", "mpi4py", lines_of(result, None)))
    if reason is not None:
        parts.append(f"shmem4py is not compared: {reason}.\n")
    today = datetime.date.today().isoformat()
    head = [f"# Host backend, {today}", "", f"{machine}.", "", *(f"- {line}" for line in libraries), "", METHOD, ""]
    return "\n".join([*head, *parts]), all(met)


def _why_no_shmem():
    if shutil.which("oshrun") is None:
        return "there is no oshrun here (apt-get install libopenmpi-dev openmpi-bin)"
    if importlib.util.find_spec("shmem4py") is None:
        return "the package shmem4py is not installed (pip install shmem4py)"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--pes", type=int, nargs="+", default=[2, 4], help="numbers of PEs (default: 2 4)")
    parser.add_argument(
        "--mpi", choices=("mpich", "openmpi"), nargs="+", help="which MPIs (default: the first that works)"
    )
    parser.add_argument("--batches", type=int, default=31, help="batches of each library for each row (default: 31)")
    parser.add_argument("--budget", type=float, default=6.0, help="seconds for each row, roughly (default: 6)")
    parser.add_argument(
        "--largest", type=int, default=64 << 20, help="leave out rows above so many bytes (default: 64 MB)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="jobs that measure memory (default: 3)")
    parser.add_argument(
        "--save", action="store_true", help=f"write the tables to {RESULTS.relative_to(ROOT)}/host-DATE.md"
    )
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--vs", type=lambda text: text.split(","), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options)
        return 0
    text, met = _report(options)
    if text is None:
        return 1
    print(text)
    if options.save:
        RESULTS.mkdir(exist_ok=True)
        file = RESULTS / f"host-{datetime.date.today().isoformat()}.md"
        file.write_text(text)
        print(f"written to {file}", file=sys.stderr)
    print("every bar is met" if met else "not every bar is met: see the lines that say no")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
