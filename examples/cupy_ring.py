# SPDX-License-Identifier: Apache-2.0
"""A CuPy kernel that writes into the next GPU's memory: an allgather round the ring of PEs, over peer pointers.

    mpirun -n 4 python examples/cupy_ring.py --count 1000000

Every PE begins with its own block. In each of n - 1 steps a `cupy.RawKernel` copies the block that came last into the same place
of the right neighbour's buffer, whose address is one of a table of peer pointers in GPU memory; a barrier on CuPy's stream
lets the next step see it. It needs a GPU, and PEs that can address each other's memory (one node).
"""

import argparse
import sys

import numpy as np

import nvsym


def command_line():
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--count", type=int, default=1 << 20, help="float32 elements of a block (default: %(default)s)")
    return parser


try:
    import cupy
except ModuleNotFoundError as error:
    command_line().parse_args()  # --help needs none of them
    sys.exit(f"cupy_ring.py needs CuPy: pip install cupy-cuda13x, or cupy-cuda12x ({error})")

PASS_ON = cupy.RawKernel(
    r"""
extern "C" __global__ void pass_on(float *const *peers, int me, int right, int block, long long count)
{
    const float *from = peers[me] + block * count;
    float *to = peers[right] + block * count;
    for (long long i = blockIdx.x * (long long) blockDim.x + threadIdx.x; i < count; i += gridDim.x * (long long) blockDim.x)
        to[i] = from[i];
}
""",
    "pass_on",
)


def block_of(pe, count):
    """The block that begins on a PE."""
    return cupy.arange(count, dtype=cupy.float32) % 1000 + 1000 * pe


def main():
    args = command_line().parse_args()

    # CuPy's current stream, and so its arrays, are on the GPU of this PE.
    with nvsym.SHMEMContext(backend="nvshmem", heap_size="256M") as ctx, cupy.cuda.Device(ctx.device.ordinal):
        me, n = ctx.my_pe(), ctx.n_pes()
        right = (me + 1) % n
        stream = cupy.cuda.Stream(non_blocking=True)
        blocks = nvsym.SHMEMBuffer[np.float32].zeros(n * args.count)
        table = blocks.peer_pointers()
        with stream:
            mine = cupy.from_dlpack(blocks)  # the memory itself
            mine[me * args.count : (me + 1) * args.count] = block_of(me, args.count)
            ctx.barrier_all(stream=stream)
            for step in range(n - 1):
                block = (me - step) % n
                arguments = (table.unsafe_ptr(), np.int32(me), np.int32(right), np.int32(block), np.int64(args.count))
                PASS_ON((64,), (256,), arguments)
                ctx.barrier_all(stream=stream)
            wrong = sum(
                int((mine[pe * args.count : (pe + 1) * args.count] != block_of(pe, args.count)).sum())
                for pe in range(n)
            )
        everywhere = nvsym.SHMEMBuffer[np.int64].zeros(n)
        for pe in range(n):
            nvsym.put(everywhere[me : me + 1], np.array([wrong]), pe)
        ctx.barrier_all()
        wrong = int(everywhere.to_numpy().sum())
        if me == 0:
            print(f"{n} PEs, {args.count} elements of each, CuPy {cupy.__version__}")
            print(f"FAILED: {wrong} wrong elements" if wrong else "every PE has every block")
        del mine
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
