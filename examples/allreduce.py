# SPDX-License-Identifier: Apache-2.0
"""Typed allreduce: checked and timed for each size.

    mpirun -n 4 python examples/allreduce.py --dtype float32 --op sum -b 8 -e 4M -f 4

The time of an iteration is that of its slowest PE; the time of a size is the median over the iterations. `algbw` is the
size over the time. `busbw` is algbw * 2 * (n - 1) / n for n PEs: what each PE's link has to carry at least, so that it
compares with the speed of the link whatever the number of PEs (the definitions of nccl-tests, doc/PERFORMANCE.md).
"""

import argparse
import functools
import json
import re
import sys
import time

import numpy as np

import nvsym

OPS = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def size(text):
    """Bytes, from a number with K, M or G behind it."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if not match or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 8, 64K, 4M or 1G")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def contribution(pe, count, op, dtype):
    """What a PE brings. Small whole numbers, so that the result of most types is exact."""
    return (1 + (np.arange(count) + pe) % (2 if op == "prod" else 5)).astype(dtype)


def expected(n_pes, count, op, dtype):
    """The result by NumPy: PE 0 first, floats of 16 and 8 bits in float32 and rounded once, as nvsym defines it."""
    small_float = dtype.itemsize <= 2 and not np.issubdtype(dtype, np.integer) and dtype != np.bool_
    wide = np.dtype(np.float32) if small_float else dtype
    rows = (contribution(pe, count, op, dtype).astype(wide) for pe in range(n_pes))
    return functools.reduce(functools.partial(OPS[op], dtype=wide), rows).astype(dtype)


def median_of_slowest(seconds):
    """The median over the iterations of the maximum over the PEs. Collective."""
    with nvsym.SHMEMBuffer[np.float64].from_numpy(np.array(seconds)) as times:
        nvsym.allreduce(times, times, "max")
        return float(np.median(times.to_numpy()))


def total(number):
    """The sum of a number over the PEs. Collective."""
    with nvsym.SHMEMBuffer[np.int64].full(1, number) as count:
        nvsym.allreduce(count, count)
        return int(count.to_numpy()[0])


def measure(ctx, source, dest, args):
    """Check one size, then time it."""
    dtype = source.dtype
    source.enqueue_copy_from(contribution(ctx.my_pe(), len(source), args.op, dtype))
    dest.fill(0)  # no result is zero
    nvsym.allreduce(dest, source, args.op, algorithm=args.algorithm)
    result, wanted = dest.to_numpy(), expected(ctx.n_pes(), len(source), args.op, dtype)
    both_nan = (result != result) & (wanted != wanted)  # an overflow, in types without infinity
    wrong = int(((result != wanted) & ~both_nan).sum())

    for _ in range(args.warmup):
        nvsym.allreduce(dest, source, args.op, algorithm=args.algorithm)
    seconds = []
    for _ in range(args.iterations):
        ctx.barrier_all()
        ctx.stream.synchronize()
        start = time.perf_counter()
        nvsym.allreduce(dest, source, args.op, algorithm=args.algorithm)
        ctx.stream.synchronize()
        seconds.append(time.perf_counter() - start)
    return median_of_slowest(seconds), total(wrong)


COLUMNS = (  # key of the result, heading, unit, width
    ("bytes", "size", "(B)", 12),
    ("count", "count", "(elements)", 12),
    ("dtype", "type", "", 13),
    ("op", "redop", "", 6),
    ("algorithm", "algorithm", "", 10),
    ("microseconds", "time", "(us)", 10),
    ("algbw", "algbw", "(GB/s)", 8),
    ("busbw", "busbw", "(GB/s)", 8),
    ("wrong", "wrong", "", 6),
)


def line(values):
    """A line of the table."""
    texts = (f"{value:.3f}" if isinstance(value, float) else value for value in values)
    return " ".join(f"{text:>{column[3]}}" for text, column in zip(texts, COLUMNS, strict=True))


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("-d", "--dtype", default="float32", help="element type, such as int64 or bfloat16")
    add("-o", "--op", default="sum", choices=OPS, help="how the elements are combined")
    add("-b", "--min-bytes", type=size, default="8", help="smallest size")
    add("-e", "--max-bytes", type=size, default="4M", help="largest size")
    add("-f", "--step-factor", type=int, default=4, help="from size to size")
    add("-n", "--iterations", type=int, default=20, help="that are timed, for each size")
    add("-w", "--warmup", type=int, default=5, help="iterations before them")
    add("--algorithm", default="auto", help="auto, one_shot, two_shot, mpi, multimem or nvshmem")
    add("--backend", default="auto", choices=("auto", "nvshmem", "host"), help="of nvsym.init()")
    add("--json", action="store_true", help="print one JSON document; the table goes to stderr")
    args = parser.parse_args()
    if args.iterations < 1 or args.warmup < 0 or args.step_factor < 2 or args.max_bytes < args.min_bytes:
        parser.error("at least 1 iteration, 0 warm-ups, a factor of 2, and a largest size not below the smallest")
    try:
        args.buffers = nvsym.SHMEMBuffer[args.dtype]
    except (TypeError, ValueError) as error:
        parser.error(f"--dtype: {error}")
    return args


def main():
    args = parse_arguments()
    with nvsym.SHMEMContext(backend=args.backend, heap_size=2 * args.max_bytes + (16 << 20)) as ctx:
        me, n = ctx.my_pe(), ctx.n_pes()

        def say(text):
            if me == 0:
                print(text, file=sys.stderr if args.json else sys.stdout, flush=True)

        buffers = args.buffers
        most = max(args.max_bytes // buffers.itemsize, 1)
        source, dest = buffers(most), buffers(most)
        try:
            nvsym.allreduce(dest[:1], source[:1], args.op, algorithm=args.algorithm)
        except (TypeError, ValueError) as error:  # the same on every PE, and the job goes on
            say(f"FAILED: {error}")
            return 2
        job = {"pes": n, "backend": ctx.backend, "iterations": args.iterations, "warmup": args.warmup}
        say(
            f"allreduce, PEs: {n}, {ctx.backend} backend; iterations: {args.iterations}, after {args.warmup} to warm up"
        )
        say(line(column[1] for column in COLUMNS))
        say(line(column[2] for column in COLUMNS))
        rows = []
        nbytes = args.min_bytes
        while nbytes <= args.max_bytes:
            count = max(nbytes // buffers.itemsize, 1)
            seconds, wrong = measure(ctx, source[:count], dest[:count], args)
            row = {"bytes": count * buffers.itemsize, "count": count, "dtype": buffers.dtype.name}
            row |= {"op": args.op, "algorithm": args.algorithm, "microseconds": seconds * 1e6}
            row["algbw"] = row["bytes"] / seconds / 1e9
            row["busbw"] = row["algbw"] * 2 * (n - 1) / n
            row["wrong"] = wrong
            say(line(row[column[0]] for column in COLUMNS))
            rows.append(row)
            nbytes *= args.step_factor
        failed = sum(row["wrong"] > 0 for row in rows)
        say(f"FAILED: {failed} of {len(rows)} sizes are wrong" if failed else f"all {len(rows)} sizes are right")
        if args.json and me == 0:
            print(json.dumps(job | {"results": rows}, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
