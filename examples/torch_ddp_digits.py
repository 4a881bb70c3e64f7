# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DistributedDataParallel over nvsym: the same training as over gloo, and the same losses.

    mpirun -n 4 python examples/torch_ddp_digits.py --epochs 5

A small network learns scikit-learn's handwritten digits (the UCI data, 1797 images of 8 x 8 pixels), each rank on its share
of every batch. It is trained twice from the same weights, with the batches in the same order: over the process group
"nvsym", and over PyTorch's own gloo, which takes CUDA tensors too. The losses of all steps must agree to the rounding of the
sums, and the weights must be the same bits on all ranks.
"""

import os

# One thread for each rank: the ranks are the parallelism. To be said before PyTorch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import sys
import zlib


def command_line():
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--epochs", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument(
        "--batch",
        type=int,
        help="samples of a step, a multiple of the ranks (default: 64, or the next such number below)",
    )
    parser.add_argument("--hidden", type=int, default=64, help="units of the hidden layer (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--backend", default="auto", choices=("auto", "nvshmem", "host"))
    return parser


try:
    import torch
    import torch.distributed as dist
    from sklearn.datasets import load_digits
    from torch.nn.parallel import DistributedDataParallel

    import nvsym.torch
except ModuleNotFoundError as error:
    command_line().parse_args()  # --help needs none of them
    sys.exit(f"torch_ddp_digits.py needs PyTorch and scikit-learn: pip install torch scikit-learn ({error})")

TRAIN = 1440


def load():
    """Pixels in 0..1, and the digits that they show."""
    data = load_digits()
    return torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)


def train(group, images, digits, args):
    """Train over a group; the loss of each step over the whole batch, the accuracy on the test images, and the weights."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    torch.manual_seed(args.seed)
    network = torch.nn.Sequential(torch.nn.Linear(64, args.hidden), torch.nn.ReLU(), torch.nn.Linear(args.hidden, 10))
    # The ranks' weights differ before DistributedDataParallel broadcasts those of rank 0.
    if rank:
        for weight in network.parameters():
            weight.data.zero_()
    model = DistributedDataParallel(network.to(images.device), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.rate, momentum=0.9)
    generator = torch.Generator().manual_seed(args.seed)
    losses = []
    for _ in range(args.epochs):
        order = torch.randperm(TRAIN, generator=generator)
        for first in range(0, TRAIN - args.batch + 1, args.batch):
            mine = order[first + rank : first + args.batch : n]
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[mine]), digits[mine])
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean, group=group)
            losses.append(mean / n)
    with torch.no_grad():
        right = (model(images[TRAIN:]).argmax(1) == digits[TRAIN:]).double().mean()
    weights = torch.cat([weight.detach().reshape(-1) for weight in network.parameters()])
    return torch.stack(losses).cpu(), float(right), weights.cpu()


def main():
    args = command_line().parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("nvsym", init_method=f"nvsym://?backend={args.backend}&heap_size=512M")
    ctx = nvsym.context()
    rank, n = dist.get_rank(), dist.get_world_size()
    if args.batch is None:
        args.batch = max(64 // n, 1) * n
    if args.batch % n or not 0 < args.batch <= TRAIN:
        command_line().error(f"--batch must be a multiple of the {n} ranks, up to {TRAIN}")
    device = torch.device("cpu") if ctx.device.is_host else torch.device("cuda", ctx.device.ordinal)
    images, digits = (t.to(device) for t in load())
    results = {}
    for name, group in (("gloo", dist.new_group(backend="gloo")), ("nvsym", dist.group.WORLD)):
        dist.barrier()
        results[name] = train(group, images, digits, args)
        if rank == 0:
            losses, right, _ = results[name]
            print(
                f"{name:6}: {n} ranks, {len(losses)} steps, loss {losses[0]:.4f} -> {losses[-1]:.4f}, "
                f"test accuracy {right:.4f}",
                flush=True,
            )
    apart = (results["nvsym"][0] - results["gloo"][0]).abs().max().item()
    tolerance = 1e-4 * results["gloo"][0].abs().max().item()
    # One pair of numbers that is the same on all ranks only if the weights are.
    sums = [None] * n
    dist.all_gather_object(sums, zlib.crc32(results["nvsym"][2].numpy().tobytes()))
    good = apart <= tolerance and len(set(sums)) == 1
    if rank == 0:
        print(f"losses differ by {apart:.2e} at most (tolerance {tolerance:.2e})")
        print(f"weights over nvsym: checksum {sums[0]:08x}, {'the same on all ranks' if len(set(sums)) == 1 else sums}")
        print("the losses agree" if good else "FAILED")
    dist.barrier()
    dist.destroy_process_group()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
