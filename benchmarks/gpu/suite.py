# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of one configuration of PEs and GPUs, in one MPI job; started by tools/gpu.sh bench.

Each is a command of ``python -m nvsym bench``; their documents go to the folder ``--work``, where report.py finds them.
"""

import argparse
import pathlib
import sys
import time

from nvsym._bench import main as bench

FLOAT = ["--vs", "nvshmem,nccl,torch,nvshmem4py"]
MOVES = ["--vs", "nvshmem,nvshmem4py,cuda"]

# Name and command line. "init" comes first: only then does it make the GPU's context, and one of the two does; the suite
# "peer-first" is for the other, in a job of its own.
SUITES = {
    "peer-first": {"init-peer-first": ["init", "--rounds", "2", "--first", "peer"]},
    "1": {
        "init": ["init", "--rounds", "4"],
        "overhead": ["overhead", "--vs", "nvshmem,nvshmem4py,cuda"],
        "copy": ["copy", "-b", "256M", "-e", "256M", "--batches", "9"],
    },
    "2-mps": {
        "init": ["init", "--rounds", "4"],
        "overhead": ["overhead", "--vs", "nvshmem,nvshmem4py,cuda"],
        "allreduce": ["allreduce", "-b", "8", "-e", "64M", "-f", "2", "--graph", "both", *FLOAT],
        "allreduce-bf16": ["allreduce", "-b", "8", "-e", "64M", "-f", "8", "--dtype", "bfloat16", "--graph", *FLOAT],
        "put": ["put", "-b", "8", "-e", "64M", "-f", "8", "--graph", "both", *MOVES],
        "put_signal": ["put", "--signal", "-b", "8", "-e", "64K", "-f", "8", "--graph", "both", *MOVES],
        "get": ["get", "-b", "8", "-e", "64M", "-f", "8", *MOVES],
        "latency": ["latency", "-b", "8", "-e", "1M", "-f", "8", "--vs", "nvshmem"],
    },
    "4-mps": {
        "allreduce": ["allreduce", "-b", "8", "-e", "64M", "-f", "2", "--graph", "--vs", "nvshmem,torch"],
        "allreduce-eager": ["allreduce", "-b", "8", "-e", "64M", "-f", "8", *FLOAT],
    },
    "gpus": {
        "init": ["init", "--rounds", "3"],
        "allreduce": ["allreduce", "-b", "8", "-e", "1G", "-f", "2", "--dtype", "float32,bfloat16", "--graph", "both",
                      "--vs", "nccl,torch,nvshmem"],
        "allreduce-nvshmem4py": ["allreduce", "-b", "8", "-e", "16M", "-f", "8", "--vs", "nvshmem4py"],
        "put": ["put", "-b", "8", "-e", "1G", "-f", "8", *MOVES],
        "put_signal": ["put", "--signal", "-b", "8", "-e", "64K", "-f", "8", "--graph", "both", *MOVES],
        "get": ["get", "-b", "8", "-e", "1G", "-f", "8", *MOVES],
        "latency": ["latency", "-b", "8", "-e", "1M", "-f", "8", "--vs", "nvshmem"],
        "copy": ["copy", "-b", "256M", "-e", "256M", "--batches", "7"],
        "overhead": ["overhead", "--vs", "nvshmem,nvshmem4py,cuda"],
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
