# SPDX-License-Identifier: Apache-2.0
"""Pass a block of data round the ring of PEs, each step by one put that announces itself with a signal.

    mpirun -n 4 python examples/ring_shift.py --count 100000

There is no barrier: a PE goes on as soon as its own neighbours let it. Two signals do that: `arrived` says to the right
neighbour that a block is there; `taken` says to the left one that a slot may be written again. There are two slots, so
that a block can come in while the one before is passed on.
"""

import argparse
import sys
import time

import numpy as np

import nvsym


def block_of(pe, count):
    """The block that begins on a PE."""
    return (np.arange(count) % 1000 + 1000 * pe).astype(np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=1 << 16, help="float32 elements of a block (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=None, help="default: as many as PEs: each block comes home")
    parser.add_argument("--backend", default="auto", choices=("auto", "nvshmem", "host"))
    args = parser.parse_args()
    if args.count < 1 or (args.steps is not None and args.steps < 1):
        parser.error("--count and --steps must be above zero")

    with nvsym.SHMEMContext(backend=args.backend, heap_size=12 * args.count + (16 << 20)) as ctx:
        me, n = ctx.my_pe(), ctx.n_pes()
        left, right = (me - 1) % n, (me + 1) % n
        steps = n if args.steps is None else args.steps

        slots = nvsym.SHMEMBuffer[np.float32].zeros(2 * args.count)
        slot = [slots[: args.count], slots[args.count :]]
        current = nvsym.SHMEMBuffer[np.float32].from_numpy(block_of(me, args.count))
        signals = nvsym.SHMEMBuffer[np.uint64].zeros(2)
        arrived, taken = signals[0:1], signals[1:2]
        wrong = nvsym.SHMEMBuffer[np.int64].zeros(1)

        if me == 0:
            print(f"PEs: {n}, {ctx.backend} backend; steps: {steps}, of {4 * args.count} bytes each")
        mistakes = 0
        ctx.barrier_all()
        ctx.synchronize()
        start = time.perf_counter()
        for step in range(steps):
            if step >= 2:
                # The neighbour must have passed on what arrived there two steps ago, in the slot that is used now.
                nvsym.signal_wait_until(taken, "ge", step - 1)
            nvsym.put_signal(slot[step % 2], current, arrived, step + 1, right)
            if step >= 1:
                nvsym.signal_op(taken, step, left)  # `current` is sent: the left neighbour may overwrite it
            nvsym.signal_wait_until(arrived, "ge", step + 1)
            current = slot[step % 2]
            origin = (me - step - 1) % n
            mistakes += int((current.to_numpy() != block_of(origin, args.count)).sum())
            if me == 0:
                print(f"step {step + 1}: PE 0 holds the block of PE {origin}", flush=True)
        seconds = time.perf_counter() - start

        wrong.fill(mistakes)
        nvsym.allreduce(wrong, wrong)
        mistakes = int(wrong.to_numpy()[0])
        if me == 0:
            print(f"{seconds * 1e3:.2f} ms, checks included")
            print(f"FAILED: {mistakes} wrong elements" if mistakes else "all blocks are right")
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
