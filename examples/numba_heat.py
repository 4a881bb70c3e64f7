# SPDX-License-Identifier: Apache-2.0
"""A Numba kernel that reads its neighbours' memory: the heat equation on a rod that is divided among the PEs.

    mpirun -n 4 python examples/numba_heat.py

`buffer.peer(pe)` is the neighbour's part of the rod as this PE can address it; Numba compiles a kernel that reads the two cells
at its edges where they are, with no message and no copy. On GPUs it is a `numba.cuda` kernel (the CUDA array interface), in
host memory an ordinary compiled function (NumPy's buffer protocol). The result is compared with one process.
"""

import argparse
import sys

import numpy as np

import nvsym


def command_line():
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--cells", type=int, default=10_000, help="of each PE (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="(default: %(default)s)")
    parser.add_argument("--backend", default="auto", choices=("auto", "nvshmem", "host"))
    return parser


try:
    import numba
except ModuleNotFoundError as error:
    command_line().parse_args()  # --help needs none of them
    sys.exit(f"numba_heat.py needs Numba: pip install numba ({error})")

RATE = np.float64(0.25)


@numba.njit
def step_on_host(new, old, left, right):
    """One step of a part; `left` and `right` are the parts beside it, or itself at the end of the rod."""
    n = len(old)
    for i in range(n):
        before = old[i - 1] if i else left[len(left) - 1]
        after = old[i + 1] if i < n - 1 else right[0]
        new[i] = old[i] + RATE * (before - 2 * old[i] + after)


def make_step_on_gpu():
    """The same as a kernel, one thread for each cell."""
    from numba import cuda

    @cuda.jit
    def kernel(new, old, left, right):
        i = cuda.grid(1)
        n = len(old)
        if i < n:
            before = old[i - 1] if i else left[len(left) - 1]
            after = old[i + 1] if i < n - 1 else right[0]
            new[i] = old[i] + RATE * (before - 2 * old[i] + after)

    return cuda, kernel


def rod(cells):
    """The temperatures at the beginning: one hot stretch."""
    return np.where(np.arange(cells) // (cells // 8 + 1) == 2, 100.0, 0.0) + np.arange(cells) % 5


def reference(cells, steps):
    """The steps in one process."""
    t = rod(cells)
    for _ in range(steps):
        padded = np.concatenate([t[-1:], t, t[:1]])
        t = t + RATE * (padded[:-2] - 2 * t + padded[2:])
    return t


def main():
    args = command_line().parse_args()

    with nvsym.SHMEMContext(backend=args.backend, heap_size="64M") as ctx:
        me, n = ctx.my_pe(), ctx.n_pes()
        left, right = (me - 1) % n, (me + 1) % n  # the rod is a ring
        mine = slice(me * args.cells, (me + 1) * args.cells)
        # Two generations: a part is read by the neighbours while the next one is written.
        parts = [nvsym.SHMEMBuffer[np.float64].from_numpy(rod(n * args.cells)[mine]) for _ in range(2)]
        if ctx.device.is_host:
            views = [[np.asarray(part.peer(pe)) for pe in (me, left, right)] for part in parts]
        else:
            cuda, kernel = make_step_on_gpu()
            cuda.select_device(ctx.device.ordinal)
            stream = cuda.external_stream(ctx.stream.handle)
            views = [[cuda.as_cuda_array(part.peer(pe), sync=False) for pe in (me, left, right)] for part in parts]
        for step in range(args.steps):
            old, new = views[step % 2], views[1 - step % 2]
            if ctx.device.is_host:
                step_on_host(new[0], old[0], old[1], old[2])
            else:
                kernel[(args.cells + 255) // 256, 256, stream](new[0], old[0], old[1], old[2])
            # The neighbours' new parts are complete, and nobody reads the old ones any more.
            ctx.barrier_all()
        ctx.synchronize()
        found = parts[args.steps % 2].to_numpy()
        apart = float(np.abs(found - reference(n * args.cells, args.steps)[mine]).max())
        worst = nvsym.SHMEMBuffer[np.float64](n)
        mine_apart = np.array([apart])
        for pe in range(n):
            nvsym.put(worst[me : me + 1], mine_apart, pe)
        ctx.barrier_all()
        apart = float(worst.to_numpy().max())
        good = apart <= 1e-10
        if me == 0:
            print(
                f"{n} PEs, {ctx.backend} backend, {args.steps} steps of {args.cells} cells each, Numba {numba.__version__}"
            )
            print(f"the rod differs from that of one process by {apart:.1e} at most{'' if good else ': FAILED'}")
        del views, old, new
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
