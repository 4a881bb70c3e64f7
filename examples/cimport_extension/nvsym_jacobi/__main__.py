# SPDX-License-Identifier: Apache-2.0
"""The temperature of a plate that is held at 100 degrees at one edge and at 0 at the others, against one process with NumPy.

::

    mpirun -n 4 python -m nvsym_jacobi --rows 200 --columns 120
"""

import argparse
import sys
import time

import numpy as np

import nvsym

from . import Laplace


def alone(grid, steps):
    """The same by NumPy, in the same order of operations."""
    grid = grid.copy()
    for _ in range(steps):
        above, below, left, right = grid[:-2, 1:-1], grid[2:, 1:-1], grid[1:-1, :-2], grid[1:-1, 2:]
        grid[1:-1, 1:-1] = 0.25 * ((above + below) + (left + right))
    return grid


def main():
    parser = argparse.ArgumentParser(prog="python -m nvsym_jacobi", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=200, help="of the grid with its border (default: 200)")
    parser.add_argument("--columns", type=int, default=120, help="the same (default: 120)")
    parser.add_argument("--steps", type=int, default=5000, help="at most (default: 5000)")
    parser.add_argument(
        "--tolerance", type=float, default=1e-3, help="degrees that a step may still change (default: 1e-3)"
    )
    options = parser.parse_args()
    plate = np.zeros((options.rows, options.columns))
    plate[0] = 100
    with nvsym.SHMEMContext(backend="host") as ctx:
        me, n = ctx.my_pe(), ctx.n_pes()
        if options.rows - 2 < n or options.columns < 3:
            if me == 0:
                print(f"{options.rows} x {options.columns} is too small for {n} PEs", file=sys.stderr)
            return 2
        laplace = Laplace(plate)
        ctx.barrier_all()
        start = time.perf_counter()
        change = laplace.run(options.steps, options.tolerance)
        ctx.barrier_all()
        seconds = time.perf_counter() - start
        expected = alone(plate, laplace.steps)[laplace.start + 1 : laplace.start + 1 + laplace.rows]
        wrong = nvsym.SHMEMBuffer[np.int64].full(1, np.count_nonzero(laplace.to_numpy() != expected))
        nvsym.allreduce(wrong, wrong)
        if me == 0:
            micro = seconds / max(laplace.steps, 1) * 1e6
            print(f"{n} PEs, nvsym from {nvsym.__file__}")
            print(f"{laplace.steps} steps of {micro:.1f} µs, the last one changed {change:.2e} degrees at most")
            print(
                "the result is that of one process, bit for bit"
                if not wrong.to_numpy()[0]
                else f"FAILED: {wrong.to_numpy()[0]} values differ from those of one process"
            )
        failed = bool(wrong.to_numpy()[0])
        laplace.free()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
