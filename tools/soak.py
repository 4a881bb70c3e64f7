# SPDX-License-Identifier: Apache-2.0
"""A million small allreduces in replayed CUDA graphs on PEs that get apart, each of which depends on all before it.

    mpirun -n 2 python tools/soak.py [--replays 1000000] [--per-graph 500]

Each step multiplies the values of a PE by its own number and adds another, by two kernels of PyTorch, and sums over the PEs, all
modulo 2**64. The numbers add up to an odd one, so that a step is a bijection of the values: one wrong sum makes all later ones
wrong, and the last values, which the host computes as well, say whether all were right. Between the launches of graphs, single PEs wait at random, on the GPU and on the host. Needs GPUs, and PyTorch;
prints the replays, the seconds and the verdict, and ends with status 1 after a wrong value.
"""

import argparse
import random
import sys
import time

import numpy as np
import torch

import nvsym

SIZE = 16


def factor(pe):
    return 2 * pe if pe else 3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replays", type=int, default=1_000_000, help="allreduces in all")
    parser.add_argument("--per-graph", type=int, default=500)
    options = parser.parse_args()
    ctx = nvsym.init(backend="nvshmem", heap_size="64M")
    me, n = ctx.my_pe(), ctx.n_pes()
    values = nvsym.SHMEMBuffer["int64"].from_numpy(np.arange(SIZE) + 1)
    nvsym.warmup(["int64"])
    choice = nvsym.explain_allreduce(values)
    tensor = torch.from_dlpack(values)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(2):  # PyTorch loads its kernels
            torch.ones_like(tensor).mul_(3).add_(1)
        graph.capture_begin(capture_error_mode="thread_local")
        for _ in range(options.per_graph):
            tensor.mul_(factor(me)).add_(7 * me + 1)
            nvsym.allreduce(values, values, stream=stream)
        graph.capture_end()
    values.enqueue_copy_from(np.arange(SIZE) + 1)
    nvsym.barrier_all()
    ctx.synchronize()
    launches = -(-options.replays // options.per_graph)
    rng = random.Random(me)
    began = time.perf_counter()
    with torch.cuda.stream(stream):
        for i in range(launches):
            if rng.random() < 0.2:
                torch.cuda._sleep(rng.randrange(2_000_000))
            if rng.random() < 0.05:
                time.sleep(rng.random() / 50)
            graph.replay()
            if i % 64 == 63:
                stream.synchronize()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    found = values.to_numpy().view(np.uint64)
    expected = np.arange(SIZE, dtype=np.uint64) + np.uint64(1)
    multiply, add = np.uint64(sum(factor(pe) for pe in range(n))), np.uint64(sum(7 * pe + 1 for pe in range(n)))
    for _ in range(launches * options.per_graph):
        expected = expected * multiply + add
    right = bool((found == expected).all())
    print(
        f"PE {me} of {n}: {launches * options.per_graph} allreduces ({choice.algorithm}) in {launches} replays, "
        f"{seconds:.1f} s, {'right' if right else f'WRONG: {found} instead of {expected}'}",
        flush=True,
    )
    nvsym.barrier_all()
    ctx.synchronize()
    nvsym.finalize()
    sys.exit(not right)


if __name__ == "__main__":
    main()
