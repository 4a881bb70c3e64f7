# SPDX-License-Identifier: Apache-2.0
"""A Triton kernel that sums over all GPUs: a one-shot allreduce over a table of peer pointers.

    mpirun -n 2 python examples/triton_allreduce.py --count 100000

Each program of the kernel loads its elements from the buffers of all PEs, PE 0 first, and stores the sum: the same bits on
every PE. Barriers on PyTorch's stream say that the inputs are written before it, and read after it. It is compared, bit for
bit, with `nvsym.allreduce`. It needs a GPU, and PEs that can address each other's memory (one node).
"""

import argparse
import sys

import numpy as np


def command_line():
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--count", type=int, default=1 << 18, help="float32 elements (default: %(default)s)")
    parser.add_argument("--block", type=int, default=1024, help="elements of a program (default: %(default)s)")
    parser.add_argument(
        "--backend", default="nvshmem", choices=("nvshmem", "host"), help="host: with TRITON_INTERPRET=1"
    )
    return parser


try:
    import torch
    import triton
    import triton.language as tl

    import nvsym.torch
except ModuleNotFoundError as error:
    command_line().parse_args()  # --help needs none of them
    sys.exit(f"triton_allreduce.py needs PyTorch and Triton: pip install torch triton ({error})")


@triton.jit
def sum_over_pes(table, out, count, N: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for pe in tl.static_range(N):
        source = tl.load(table + pe).to(tl.pointer_type(tl.float32))
        total += tl.load(source + offsets, mask=inside, other=0.0)
    tl.store(out + offsets, total, mask=inside)


def main():
    args = command_line().parse_args()

    with nvsym.SHMEMContext(backend=args.backend, heap_size="256M") as ctx:
        me, n = ctx.my_pe(), ctx.n_pes()
        on_gpu = not ctx.device.is_host
        device = torch.device("cuda", ctx.device.ordinal) if on_gpu else torch.device("cpu")
        stream = torch.cuda.Stream(device) if on_gpu else None
        source = nvsym.SHMEMBuffer[np.float32](args.count)
        table = nvsym.torch.tensor(source.peer_pointers()).view(torch.int64)
        torch.manual_seed(me)
        with torch.cuda.device(device) if on_gpu else torch.no_grad(), torch.cuda.stream(stream):
            nvsym.torch.tensor(source).normal_()
            out = torch.empty(args.count, device=device)
            ctx.barrier_all(stream=stream)  # all inputs are written
            sum_over_pes[(triton.cdiv(args.count, args.block),)](table, out, args.count, N=n, BLOCK=args.block)
            ctx.barrier_all(stream=stream)  # and read: they may be overwritten now
            total = nvsym.SHMEMBuffer[np.float32](args.count)
            nvsym.allreduce(total, source, stream=stream)
            wrong = int((out.view(torch.int32) != nvsym.torch.tensor(total).view(torch.int32)).sum())
        everywhere = nvsym.SHMEMBuffer[np.int64].zeros(n)
        for pe in range(n):
            nvsym.put(everywhere[me : me + 1], np.array([wrong]), pe)
        ctx.barrier_all()
        wrong = int(everywhere.to_numpy().sum())
        if me == 0:
            print(f"{n} PEs, {ctx.backend} backend, {args.count} elements, Triton {triton.__version__}")
            print(
                f"FAILED: {wrong} elements differ from nvsym.allreduce" if wrong else "the same bits as nvsym.allreduce"
            )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
