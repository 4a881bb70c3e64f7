# SPDX-License-Identifier: Apache-2.0
"""Who is here: every PE of the job, its node and device, and a greeting that it puts into its neighbour's memory.

    mpirun -n 4 python examples/hello.py

A PE, processing element, is one process of the job.
"""

import argparse
import os
import sys

import numpy as np

import nvsym


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--backend", default="auto", choices=("auto", "nvshmem", "host"))
    args = parser.parse_args()

    with nvsym.SHMEMContext(backend=args.backend, heap_size="16M") as ctx:
        me, n = ctx.my_pe(), ctx.n_pes()

        # Collective: every PE makes the same buffer, and each holds a copy at the same place of its heap.
        inbox = nvsym.SHMEMBuffer[np.int64].full(1, -1)
        greeting = nvsym.SHMEMBuffer[np.int64].full(1, me)

        # One-sided: the neighbour takes no part. barrier_all() makes the puts of all PEs visible to all.
        nvsym.put(inbox, greeting, (me + 1) % n)
        ctx.barrier_all()

        # For the table, PE 0 learns what each PE has got, and its process.
        mine = nvsym.SHMEMBuffer[np.int64].from_numpy(np.array([os.getpid(), inbox.to_numpy()[0]]))
        everyone = nvsym.SHMEMBuffer[np.int64](2 * n)
        nvsym.fcollect(everyone, mine)
        table = everyone.to_numpy().reshape(n, 2)

        if me == 0:
            heap = ctx.heap.size >> 20
            print(f"nvsym {nvsym.__version__}, {ctx.backend} backend, PEs: {n}, symmetric heap of each: {heap} MiB")
            for pe, (device, node) in enumerate(zip(ctx.devices(), ctx.nodes(), strict=True)):
                print(f"PE {pe} of {n}: node {node}, {device!r}, process {table[pe, 0]}, greeted by PE {table[pe, 1]}")
            for name, supported, reason in ctx.capabilities():
                print(f"  {name}: {'yes' if supported else 'no'} ({reason})")

        # Every PE has the whole table, so every PE comes to the same verdict.
        right = table[:, 1].tolist() == [(pe - 1) % n for pe in range(n)]
        if me == 0:
            print("all greetings arrived" if right else "FAILED: a greeting did not arrive")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
