# SPDX-License-Identifier: Apache-2.0
"""A kernel of your own over symmetric memory, compiled at run time: the sum over all PEs by a ring (ring.cu).

Needs GPUs, and NVRTC through cuda-bindings (``pip install "nvsym[cu13]"``)::

    mpirun -n 2 python examples/cuda_cpp/ring.py --count 1000000
"""

import argparse
import pathlib
import sys

import numpy as np

import nvsym


def command_line():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=100_000, help="elements (default: 100000)")
    parser.add_argument("--launches", type=int, default=3, help="how often (default: 3)")
    return parser


try:
    from cuda.bindings import driver, nvrtc
except ModuleNotFoundError as error:
    command_line().parse_args()  # --help needs none of them
    sys.exit(f"ring.py needs cuda-bindings with NVRTC: pip install 'nvsym[cu13]', or 'nvsym[cu12]' ({error})")

SOURCE = pathlib.Path(__file__).with_name("ring.cu")
BLOCKS, THREADS = 16, 256
LIMIT_NS = 20_000_000_000


def check(result):
    """The values of a call of cuda-bindings, whose first is its status."""
    status, *values = result
    if status.value:
        raise RuntimeError(f"{status!r}")
    return values[0] if len(values) == 1 else values


def compile_cubin(source, arch):
    """CUDA C++ to machine code of compute capability `arch` (90 for 9.0), with nvsym's headers."""
    program = check(nvrtc.nvrtcCreateProgram(source.read_bytes(), source.name.encode(), 0, [], []))
    options = [f"--gpu-architecture=sm_{arch}".encode(), b"--std=c++17", f"-I{nvsym.get_include()}".encode()]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status.value:
        log = bytearray(check(nvrtc.nvrtcGetProgramLogSize(program)))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"{source.name} does not compile:\n{log.decode().rstrip(chr(0))}")
    cubin = bytearray(check(nvrtc.nvrtcGetCUBINSize(program)))
    check(nvrtc.nvrtcGetCUBIN(program, cubin))
    return bytes(cubin)


def load(name, ctx):
    """The kernel of that name, on the GPU of this PE."""
    attribute = driver.CUdevice_attribute
    major, minor = (
        check(driver.cuDeviceGetAttribute(which, ctx.device.ordinal))
        for which in (
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )
    module = check(driver.cuModuleLoadData(compile_cubin(SOURCE, 10 * major + minor)))
    return int(check(driver.cuModuleGetFunction(module, name)))


def main():
    options = command_line().parse_args()
    with nvsym.SHMEMContext(backend="nvshmem") as ctx:
        me, n, count = ctx.my_pe(), ctx.n_pes(), options.count
        kernel = load(b"ring_sum", ctx)
        float32, uint64 = nvsym.SHMEMBuffer[np.float32], nvsym.SHMEMBuffer[np.uint64]
        mine, total = float32(count), float32.zeros(count)
        mail, signals = float32.zeros(max(n - 1, 1) * count), uint64.zeros(BLOCKS)
        failed = nvsym.SHMEMBuffer[np.uint32].zeros(1)
        wrong = 0
        for launch in range(options.launches):
            mine.enqueue_copy_from(((np.arange(count) + 3 * me + launch) % 97).astype(np.float32))
            ctx.barrier_all()
            ctx.enqueue_function(
                kernel,
                *(total, mine, np.uint64(count), mail.peer_pointers(), signals.peer_pointers(), np.uint64(launch)),
                *(np.int32(me), np.int32(n), np.uint64(LIMIT_NS), failed),
                grid_dim=BLOCKS,
                block_dim=THREADS,
            )
            ctx.barrier_all()
            expected = sum((np.arange(count) + 3 * pe + launch) % 97 for pe in range(n))
            wrong += int(np.count_nonzero(total.to_numpy() != expected))
        wrong += int(failed.to_numpy()[0])
        all_wrong = nvsym.SHMEMBuffer[np.int64].full(1, wrong)
        if n > 1:
            nvsym.allreduce(all_wrong, all_wrong)
        bad = int(all_wrong.to_numpy()[0])
        if me == 0:
            print(f"{options.launches} sums of {count} elements over {n} PEs by a ring")
            print(f"FAILED: {bad} elements are wrong" if bad else "all elements are right")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
