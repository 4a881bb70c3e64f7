# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of one configuration of PEs and GPUs, in one MPI job; started by tools/gpu.sh bench.

Each is a command of ``python -m nvsym bench``; their documents go to the folder ``--work``, where report.py finds them.
"""

import argparse
import pathlib
import sys
import time

from nvsym._bench import data
from nvsym._bench import main as bench

# What the calls of a row may take, in seconds: of tables with many rows, and of those of slow calls.
QUICK = ["--budget", "0.25"]
CALLS = ["overhead", *QUICK, "--batches", "15", "--vs", "nvshmem,nvshmem4py,cuda"]
COPIES = ["copy", "-b", "256M", "-e", "256M", "--batches", "7", "--budget", "0.4"]
SIZES = ["-b", "64", "-f", "64", *QUICK, "--reference", "64M"]  # 64 B, 4 KiB, 256 KiB, 16 MiB, 1 GiB
SIGNALS = ["put", "--signal", "-e", "4K", "--graph", "both", *SIZES]
# The other collectives; NVSHMEM's of many bytes take long where PEs share a GPU.
MOVES = ["-b", "64", "-e", "4M", "-f", "2", "--graph", "--budget", "0.15", "--vs-every", "2"]
COLLECTIVES = {name: [name, *MOVES, "--vs", "nvshmem"] for name in data.COLLECTIVES}
BARRIER = ["barrier", *QUICK, "--graph", "both", "--vs", "nvshmem"]
IN_PLACE = ["allreduce", "--in-place", "-b", "1M", "-e", "64M", "-f", "2", "--graph", *QUICK]
LATENCY = ["latency", "-b", "8", "-e", "32K", "-f", "64", *QUICK, "--vs", "nvshmem"]

# PEs that share a GPU: all sizes of nvsym, and every third, from 8 B to 16 MiB, of NVSHMEM, which takes 50 ms for the last.
ALL_SIZES = ["-b", "8", "-e", "64M", "-f", "2"]
SHARED = ["allreduce", *ALL_SIZES, "--graph", "both", *QUICK, "--vs", "nvshmem", "--vs-every", "3"]

# Name and command line. "init" comes first: only then does it make the GPU's context, and one of the two does; the suite
# "peer-first" is for the other, in a job of its own. What the bars need most comes before the rest.
SUITES = {
    "peer-first": {"init-peer-first": ["init", "--rounds", "1", "--first", "peer"]},
    "1": {"init": ["init", "--rounds", "3"], "overhead": CALLS, "copy": COPIES},
    "2-mps": {
        "init": ["init", "--rounds", "3"],
        "overhead": CALLS,
        "allreduce": SHARED,
        "put_signal": [*SIGNALS, "--vs", "nvshmem"],
        "put": ["put", "-e", "16M", "--graph", "both", *SIZES, "--vs", "nvshmem"],
        "allreduce-in-place": IN_PLACE,
        "allreduce-bf16": ["allreduce", "-b", "8", "-e", "64M", "-f", "8", "--dtype", "bfloat16", "--graph", *QUICK],
        "get": ["get", "-e", "16M", *SIZES, "--vs", "nvshmem"],
        "latency": LATENCY,
        "barrier": BARRIER,
        **COLLECTIVES,
    },
    "4-mps": {"allreduce": SHARED, "allreduce-in-place": IN_PLACE, "barrier": BARRIER, **COLLECTIVES},
    "gpus": {
        "init": ["init", "--rounds", "3"],
        "allreduce": ["allreduce", "-b", "8", "-e", "1G", "-f", "2", "--dtype", "float32,bfloat16", "--graph",
                      "--budget", "0.35", "--vs", "nccl,torch"],
        "allreduce-eager": ["allreduce", "-b", "8", "-e", "1G", "-f", "8", "--dtype", "float32,bfloat16",
                            "--budget", "0.35", "--reference", "64M", "--vs", "nccl,torch"],
        "overhead": CALLS,
        "put": ["put", "-e", "1G", *SIZES, "--vs", "nvshmem,cuda"],
        "get": ["get", "-e", "1G", *SIZES, "--vs", "nvshmem,cuda"],
        "latency": LATENCY,
        "put_signal": [*SIGNALS, "--vs", "nvshmem"],
        "barrier": BARRIER,
        "copy": COPIES,
        "allreduce-in-place": [*IN_PLACE, "--vs", "nccl"],
        "allreduce-nvshmem": ["allreduce", "-e", "16M", *SIZES, "--vs", "nvshmem,nvshmem4py"],
        **{name: [*line[:-1], "nccl,nvshmem"] for name, line in COLLECTIVES.items()},
        "fcollect-eager": ["fcollect", "-b", "64", "-e", "64M", "-f", "16", *QUICK, "--vs", "nccl,torch"],
    },
}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder of the documents")
    parser.add_argument("--label", help="begins the documents' names (default: the suite)")
    parser.add_argument("--only", help="these benchmarks, comma-separated")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no further benchmark is begun")
    options = parser.parse_args()
    from mpi4py import MPI  # not where the tests load this file: a process that starts MPI jobs must not be one

    comm = MPI.COMM_WORLD
    first = comm.Get_rank() == 0
    label = options.label or options.suite
    wanted = options.only.split(",") if options.only else list(SUITES[options.suite])
    unknown = set(wanted) - {name for suite in SUITES.values() for name in suite}
    if unknown:
        parser.error(f"--only: no suite has a benchmark {', '.join(sorted(unknown))}")
    if first:
        options.work.mkdir(parents=True, exist_ok=True)
    comm.Barrier()
    began = time.perf_counter()
    failed, skipped = [], []
    for name, line in SUITES[options.suite].items():
        if name not in wanted:
            continue
        if comm.bcast(time.perf_counter() - began > options.limit):
            skipped.append(name)
            continue
        start = time.perf_counter()
        if first:
            print(f"\n== {label}: python -m nvsym bench {' '.join(line)}", flush=True)
        if bench([*line, "--json", str(options.work / f"{label}-{name}.json")]):
            failed.append(name)
        if first:
            print(f"== {time.perf_counter() - start:.1f} s", flush=True)
    if first:
        words = [f"{time.perf_counter() - began:.1f} s"]
        words += [
            f"{what}: {', '.join(names)}" for what, names in (("failed", failed), ("no time for", skipped)) if names
        ]
        print(f"suite {label}: {'; '.join(words)}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
