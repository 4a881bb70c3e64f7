# SPDX-License-Identifier: Apache-2.0
"""A Python extension in CUDA C++ over symmetric memory: a histogram whose bins are spread over the GPUs (histogram.cu).

Needs GPUs, and nvcc to build the extension, which each run does in a temporary folder::

    mpirun -n 2 python examples/cuda_cpp/histogram.py --samples 1000000
"""

import argparse
import importlib.util
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import numpy as np

import nvsym

SOURCE = pathlib.Path(__file__).with_name("histogram.cu")


def build(folder, arch="native"):
    """Compile the extension with nvcc, for compute capability `arch` (90 for 9.0), into `folder`. Returns the module's file."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise SystemExit("histogram.py: nvcc is not on PATH; it comes with the CUDA toolkit")
    target = pathlib.Path(folder) / f"histogram_cuda{sysconfig.get_config_var('EXT_SUFFIX')}"
    includes = [f"-I{nvsym.get_include()}", f"-I{sysconfig.get_paths()['include']}"]
    flags = [
        "-O2",
        "-std=c++17",
        f"-arch={arch if arch == 'native' else f'sm_{arch}'}",
        "-shared",
        "-Xcompiler",
        "-fPIC",
    ]
    subprocess.run([nvcc, *flags, *includes, str(SOURCE), "-o", str(target)], check=True)
    return target


def load(file):
    spec = importlib.util.spec_from_file_location("histogram_cuda", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=200_000, help="on each PE (default: 200000)")
    parser.add_argument("--bins", type=int, default=1000, help="of all PEs together (default: 1000)")
    options = parser.parse_args()
    with nvsym.SHMEMContext(backend="nvshmem") as ctx, tempfile.TemporaryDirectory() as folder:
        me, n = ctx.my_pe(), ctx.n_pes()
        histogram = load(build(folder))
        per_pe = -(-options.bins // n)
        bins = nvsym.SHMEMBuffer[np.uint64].zeros(per_pe)

        def samples_of(pe):
            return np.random.default_rng(pe).integers(0, 2**31, options.samples, np.uint32) // 3

        samples = nvsym.SHMEMBuffer[np.uint32].from_numpy(samples_of(me))
        ctx.barrier_all()
        histogram.count(bins, samples, options.bins, ctx.stream)
        ctx.barrier_all()  # the counts of all PEs have arrived
        everything = np.concatenate([samples_of(pe) for pe in range(n)])
        expected = np.bincount(everything % options.bins, minlength=per_pe * n).reshape(n, per_pe)[me]
        wrong = nvsym.SHMEMBuffer[np.int64].full(1, np.count_nonzero(bins.to_numpy() != expected))
        if n > 1:
            nvsym.allreduce(wrong, wrong)
        bad = int(wrong.to_numpy()[0])
        if me == 0:
            print(f"{n * options.samples} samples in {options.bins} bins on {n} PEs")
            print(f"FAILED: {bad} bins are wrong" if bad else "all bins are right")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
