# SPDX-License-Identifier: Apache-2.0
"""A CUDA graph with communication in it: PyTorch's kernels and nvsym's allreduce are captured once and replayed.

    mpirun -n 2 python examples/torch_graph.py --replays 20

The graph is a power iteration for the largest eigenvalue of a matrix whose columns are divided among the PEs: each multiplies
its own columns, and an allreduce in symmetric memory sums the parts. The captured step is run twice more in other ways: through
`torch.distributed` (the backend "nvsym"), captured too, and without a graph. All three must give the same bits, and the
eigenvalue must be that of `torch.linalg`. It needs a GPU.
"""

import argparse
import sys


def command_line():
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--size", type=int, default=256, help="rows of the matrix (default: %(default)s)")
    parser.add_argument("--replays", type=int, default=30, help="steps (default: %(default)s)")
    return parser


try:
    import torch
    import torch.distributed as dist

    import nvsym.torch
except ModuleNotFoundError as error:
    command_line().parse_args()  # --help needs none of them
    sys.exit(f"torch_graph.py needs PyTorch: pip install torch ({error})")


def main():
    args = command_line().parse_args()

    dist.init_process_group("nvsym", init_method="nvsym://?backend=nvshmem&heap_size=256M")
    ctx = nvsym.context()
    me, n = ctx.my_pe(), ctx.n_pes()
    device = torch.device("cuda", ctx.device.ordinal)
    torch.cuda.set_device(device)
    generator = torch.Generator().manual_seed(0)
    full = torch.rand(args.size, args.size, generator=generator, dtype=torch.float64)
    full = (full + full.t()).to(device)
    columns = full[:, me::n].contiguous()

    vector = torch.empty(args.size, dtype=torch.float64, device=device)
    product = nvsym.torch.empty(args.size, dtype=torch.float64)  # in symmetric memory
    below = nvsym.torch.buffer(product)

    def by_nvsym():
        torch.mv(columns, vector[me::n].contiguous(), out=product)
        nvsym.allreduce(below, below, stream=torch.cuda.current_stream())
        vector.copy_(product / product.norm())

    def by_distributed():
        torch.mv(columns, vector[me::n].contiguous(), out=product)
        dist.all_reduce(product)
        vector.copy_(product / product.norm())

    def run(step, captured):
        """The vector and the norm after all steps."""
        vector.fill_(1)
        # What is compiled or loaded at first use is so before the capture.
        step()
        vector.fill_(1)
        if captured:
            torch.cuda.synchronize()
            nvsym.barrier_all()
            ctx.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            step = graph.replay
        for _ in range(args.replays):
            step()
        torch.cuda.synchronize()
        return vector.clone(), float(product.norm())

    found = {
        "in a graph": run(by_nvsym, True),
        "torch.distributed in a graph": run(by_distributed, True),
        "without a graph": run(by_nvsym, False),
    }
    expected = float(torch.linalg.eigvalsh(full.cpu())[-1])
    first = found["in a graph"]
    good = (
        all(torch.equal(first[0], other[0]) for other in found.values()) and abs(first[1] - expected) < 1e-8 * expected
    )
    everywhere = [None] * n
    dist.all_gather_object(everywhere, good)
    if me == 0:
        for name, (_, norm) in found.items():
            print(f"{n} PEs, {args.replays} steps {name}: eigenvalue {norm:.12g}")
        print(f"torch.linalg: {expected:.12g}")
        print(
            "the same bits in all ways"
            if all(everywhere)
            else f"FAILED: on PEs {[pe for pe in range(n) if not everywhere[pe]]}"
        )
    dist.destroy_process_group()
    return 0 if all(everywhere) else 1


if __name__ == "__main__":
    sys.exit(main())
