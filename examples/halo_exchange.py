# SPDX-License-Identifier: Apache-2.0
"""The heat equation on a plate whose rows are split over the PEs, which put their edge rows into each other's memory.

    mpirun -n 4 python examples/halo_exchange.py --rows 256 --columns 256 --steps 200

Explicit Euler steps of du/dt = laplacian(u) on a grid of spacing 1: u += k * (north + south + west + east - 4 u), which
is stable for k <= 1/4. The border of the plate stays at its temperature. A step needs the row above and the row below
the own block (the halo); both come with a signal that counts the steps. PE 0 checks the end against the same steps on
the whole plate.
"""

import argparse
import itertools
import sys
import time

import numpy as np

import nvsym

ABOVE, BELOW = 0, 1


def plate(rows, columns):
    """The plate at the beginning: a hot top edge and a hot square on cold metal, in degrees."""
    u = np.zeros((rows, columns))
    u[0] = 100
    u[rows // 3 : rows // 2, columns // 3 : columns // 2] = 50
    return u


def advance(u, k):
    """One step for all but the outermost rows and columns."""
    new = u.copy()
    new[1:-1, 1:-1] += k * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1])
    return new


class Halo:
    """The rows that the neighbours put here.

    For each side two rows, used in turn: a neighbour may be one step ahead, and never more, since it waits for the row
    of this PE. So what is put in a step never meets a row that is still to be read.
    """

    def __init__(self, ctx, columns):
        self.columns = columns
        self.neighbour = [ctx.my_pe() - 1, ctx.my_pe() + 1]  # in the order ABOVE, BELOW
        self.there = [0 <= pe < ctx.n_pes() for pe in self.neighbour]
        self.rows = nvsym.SHMEMBuffer[np.float64].zeros(4 * columns)
        self.edges = nvsym.SHMEMBuffer[np.float64].zeros(2 * columns)
        self.signals = nvsym.SHMEMBuffer[np.uint64].zeros(2)
        self.stream = ctx.stream

    def row(self, side, step):
        """Where the neighbour of a side puts its row in a step."""
        start = (2 * side + step % 2) * self.columns
        return self.rows[start : start + self.columns]

    def edge(self, side):
        """Where the own row that goes to a side is sent from."""
        return self.edges[side * self.columns : (side + 1) * self.columns]

    def exchange(self, u, step):
        """Send the first and last own row of `u`, and fill its outermost rows with those of the neighbours."""
        for side, own, other in ((ABOVE, u[1], BELOW), (BELOW, u[-2], ABOVE)):
            if self.there[side]:
                self.edge(side).enqueue_copy_from(own)
                # Our first row is what the PE above has below its block, and the other way round.
                there, signal = self.row(other, step), self.signals[other : other + 1]
                nvsym.put_signal(there, self.edge(side), signal, step + 1, self.neighbour[side])
        for side, outermost in ((ABOVE, u[0]), (BELOW, u[-1])):
            if self.there[side]:
                nvsym.signal_wait_until(self.signals[side : side + 1], "ge", step + 1)
                self.row(side, step).enqueue_copy_to(outermost)
        self.stream.synchronize()


def main():
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--rows", type=int, default=256, help="(default: %(default)s)")
    parser.add_argument("--columns", type=int, default=256, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="(default: %(default)s)")
    parser.add_argument("--k", type=float, default=0.2, help="factor of a step (default: %(default)s)")
    parser.add_argument("--backend", default="auto", choices=("auto", "nvshmem", "host"))
    args = parser.parse_args()
    if min(args.rows, args.columns) < 3 or args.steps < 1 or not 0 < args.k <= 0.25:
        parser.error("the plate needs 3 rows and columns, at least 1 step, and 0 < k <= 0.25")

    with nvsym.SHMEMContext(backend=args.backend, heap_size=16 * args.rows * args.columns + (64 << 20)) as ctx:
        me, n = ctx.my_pe(), ctx.n_pes()
        inner = args.rows - 2  # rows that change
        if inner < n:
            parser.error(f"{args.rows} rows are too few for {n} PEs: each needs one that is not the border")
        starts = [inner * pe // n for pe in range(n + 1)]

        # Own rows, with one more above and below: of a neighbour, or the border of the plate.
        u = plate(args.rows, args.columns)[starts[me] : starts[me + 1] + 2].copy()
        halo = Halo(ctx, args.columns)
        if me == 0:
            print(
                f"PEs: {n}, {ctx.backend} backend; {args.rows} x {args.columns} points, {args.steps} steps", flush=True
            )
        waiting = 0.0
        began = time.perf_counter()
        for step in range(args.steps):
            start = time.perf_counter()
            halo.exchange(u, step)
            waiting += time.perf_counter() - start
            u = advance(u, args.k)
            if me == 0 and (step + 1) % max(args.steps // 5, 1) == 0:
                print(f"step {step + 1:5}: mean {u[1:-1].mean():8.4f} degrees in the rows of PE 0", flush=True)
        seconds = time.perf_counter() - began

        # All blocks to all PEs. fcollect takes blocks of one length, so each is as long as the longest.
        longest = max(b - a for a, b in itertools.pairwise(starts)) * args.columns
        own = np.zeros(longest)
        own[: u[1:-1].size] = u[1:-1].reshape(-1)
        block = nvsym.SHMEMBuffer[np.float64].from_numpy(own)
        blocks = nvsym.SHMEMBuffer[np.float64](n * longest)
        nvsym.fcollect(blocks, block)

        reference = plate(args.rows, args.columns)
        result = reference.copy()
        gathered = blocks.to_numpy().reshape(n, longest)
        for pe in range(n):
            rows = result[1 + starts[pe] : 1 + starts[pe + 1]]
            rows[...] = gathered[pe, : rows.size].reshape(rows.shape)
        worst = nvsym.SHMEMBuffer[np.float64].zeros(1)
        if me == 0:
            for _ in range(args.steps):
                reference = advance(reference, args.k)
            worst.fill(np.abs(result - reference).max())
        nvsym.broadcast(worst, worst, root=0)
        difference = float(worst.to_numpy()[0])
        if me == 0:
            print(f"{seconds:.3f} s, of which PE 0 spent {waiting:.3f} s in the exchange of rows")
            print(f"mean {result.mean():.6f} degrees; largest difference from one process: {difference:g}")
            print("FAILED: the result is another" if difference else "the result is that of one process, bit for bit")
    return 0 if difference == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
