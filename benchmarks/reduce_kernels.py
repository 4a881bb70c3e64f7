# SPDX-License-Identifier: Apache-2.0
"""The reduction kernels of the host backend against NumPy: sum of two arrays into a third, on one core.

Compiles nvsym/backends/host_reduce.c by itself, so that nothing but the kernels is measured. The cost of calling NumPy,
as measured with arrays of one element, is taken off its times. GB/s count the bytes of all arrays.

    python benchmarks/reduce_kernels.py [--ops sum,prod] [--sources 2] [--dtypes float32,bfloat16] [--json FILE]
"""

import argparse
import ctypes
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
SIZES = (64 << 10, 1 << 20)
SAMPLE = 1e-3  # seconds
SAMPLES = 60

TIMER = """
#include <time.h>
#include "nvsym/backends/host_reduce.h"

double measure(int dtype, int op, void *dst, const void *const *src, int nsrc, size_t n, int repeats)
{
    struct timespec start, end;
    nvsym_reduce_fn reduce = nvsym_host_reduce(dtype, op);
    if (!reduce)
        return -1;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < repeats; i++)
        reduce(&dst, 1, src, nsrc, n);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
}
"""


def load_dtypes():
    """nvsym/dtypes.py alone: the package need not be built."""
    spec = importlib.util.spec_from_file_location("nvsym_dtypes", ROOT / "nvsym" / "dtypes.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def build(directory, flags):
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("no C compiler: set CC, or install gcc")
    timer, library = directory / "timer.c", directory / "kernels.so"
    timer.write_text(TIMER)
    sources = [str(timer), str(ROOT / "nvsym" / "backends" / "host_reduce.c")]
    includes = [f"-I{ROOT}", f"-I{ROOT / 'include'}"]
    subprocess.run([*compiler.split(), *flags, "-shared", "-fPIC", *includes, *sources, "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.measure.restype = ctypes.c_double
    integer, pointer = ctypes.c_int, ctypes.c_void_p
    loaded.measure.argtypes = [integer, integer, pointer, pointer, integer, ctypes.c_size_t, integer]
    return loaded


def aligned(dtype, n, rng):
    """Small numbers at an address that is a multiple of 256, as in the symmetric heap."""
    raw = np.empty(n * dtype.itemsize + 256, np.uint8)
    start = -raw.ctypes.data % 256
    array = raw[start : start + n * dtype.itemsize].view(dtype)
    array[:] = rng.integers(0, 2, n) if dtype.kind == "b" else rng.integers(1, 4, n).astype(np.float32)
    return array


def fastest(*measures):
    """Seconds of one call for each of `measures`, which take the number of calls.

    The fastest of many short samples, taken in turn, so that another load on the machine hits all of them alike.
    """
    repeats = [1] * len(measures)
    for i, measure in enumerate(measures):
        while measure(repeats[i]) < SAMPLE:
            repeats[i] *= 2
    samples = [[measure(k) / k for measure, k in zip(measures, repeats, strict=True)] for _ in range(SAMPLES)]
    return [min(column) for column in zip(*samples, strict=True)]


def numpy_calls(ufunc, arrays, out):
    def measure(repeats):
        start = time.perf_counter()
        for _ in range(repeats):
            ufunc(arrays[0], arrays[1], out=out)
            for more in arrays[2:]:
                ufunc(out, more, out=out)
        return time.perf_counter() - start

    return measure


def kernel_calls(library, d, op, arrays, out):
    sources = (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays])
    return lambda repeats: library.measure(d.id, op.id, out.ctypes.data, sources, len(arrays), len(out), repeats)


def main():
    dtypes = load_dtypes()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", default="sum")
    parser.add_argument("--sources", type=int, default=2)
    parser.add_argument("--dtypes", default=",".join(d.name for d in dtypes.DTYPES))
    parser.add_argument("--flags", default="-O2", help="of the C compiler (default: -O2)")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    ufuncs = {
        "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }  # fmt: skip
    rng = np.random.default_rng(1)
    results = []
    with tempfile.TemporaryDirectory() as directory:
        library = build(pathlib.Path(directory), options.flags.split())
        if options.sources < 2:
            parser.error("--sources: at least 2")
        print(f"{'dtype':<20}{'op':<5}{'array':>8}{'GB/s':>9}{'Gelem/s':>9}{'numpy GB/s':>12}{'ratio':>8}")
        for op in map(dtypes.as_op, options.ops.split(",")):
            for d in map(dtypes.as_dtype, options.dtypes.split(",")):
                if (d.id, op.id) not in dtypes.REDUCIBLE:
                    continue
                if d.name.startswith("float8"):
                    t = dtypes.float8_tables(d)
                    pointers = [ctypes.c_void_p(a.ctypes.data) for a in t]
                    if library.nvsym_f8_table(d.id, *pointers, len(t.thresholds)):
                        sys.exit(f"the tables of {d.name} were refused")
                small = [aligned(d.numpy, 1, rng) for _ in range(options.sources + 1)]
                (overhead,) = fastest(numpy_calls(ufuncs[op.name], small[1:], small[0]))
                for nbytes in SIZES:
                    n = nbytes // d.itemsize
                    out, *arrays = [aligned(d.numpy, n, rng) for _ in range(options.sources + 1)]
                    ours, theirs = fastest(
                        kernel_calls(library, d, op, arrays, out), numpy_calls(ufuncs[op.name], arrays, out)
                    )
                    theirs -= overhead
                    moved = (options.sources + 1) * nbytes
                    results.append({
                        "dtype": d.name, "op": op.name, "sources": options.sources, "nbytes": nbytes, "seconds": ours,
                        "gbps": moved / ours / 1e9, "gelements": n / ours / 1e9, "numpy_gbps": moved / theirs / 1e9,
                        "ratio": theirs / ours,
                    })  # fmt: skip
                    r = results[-1]
                    print(
                        f"{d.name:<20}{op.name:<5}{nbytes >> 10:>6}KB{r['gbps']:>9.1f}{r['gelements']:>9.2f}"
                        f"{r['numpy_gbps']:>12.1f}{r['ratio']:>8.2f}",
                        flush=True,
                    )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
