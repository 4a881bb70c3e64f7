# SPDX-License-Identifier: Apache-2.0
"""JAX arrays in and out of symmetric memory: logistic regression with the samples divided among the PEs.

    mpirun -n 4 python examples/jax_regression.py

Each PE takes the gradient of its own samples with `jax.grad`; `enqueue_copy_from` takes the JAX array as it is (DLPack), one
allreduce sums over the PEs, and `jax.numpy.from_dlpack` is the sum as a JAX array again, without a copy. JAX holds arrays for
constant, so an array over a buffer is for use before the buffer changes: here it is used up in the step. The result is
compared with the same steps over all samples in NumPy.
"""

import argparse
import os
import sys

import numpy as np

import nvsym


def command_line():
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--samples", type=int, default=4096, help="over all PEs (default: %(default)s)")
    parser.add_argument("--features", type=int, default=32, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="(default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.5, help="learning rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--backend", default="auto", choices=("auto", "nvshmem", "host"))
    return parser


# JAX would take most of a GPU's memory at once, and other PEs or NVSHMEM need theirs.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

try:
    import jax
    import jax.numpy as jnp
except ModuleNotFoundError as error:
    command_line().parse_args()  # --help needs none of them
    sys.exit(f"jax_regression.py needs JAX: pip install jax ({error})")


def samples(n, features, seed):
    """Points of two classes that a plane nearly divides."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, features)).astype(np.float32)
    plane = random.normal(size=features).astype(np.float32)
    y = (x @ plane + random.normal(scale=0.5, size=n) > 0).astype(np.float32)
    return x, y


def loss(weights, x, y):
    """The sum over the samples, not the mean: sums of the PEs add up."""
    scores = x @ weights
    return jnp.sum(jnp.logaddexp(0, scores) - y * scores)


def main():
    args = command_line().parse_args()

    with nvsym.SHMEMContext(backend=args.backend, heap_size="32M") as ctx:
        me, n = ctx.my_pe(), ctx.n_pes()
        device = jax.devices("cpu")[0] if ctx.device.is_host else jax.devices("cuda")[ctx.device.ordinal]
        x, y = samples(args.samples, args.features, args.seed)
        gradient = nvsym.SHMEMBuffer[np.float32](args.features)
        total = nvsym.SHMEMBuffer[np.float32](args.features)
        with jax.default_device(device):
            mine_x, mine_y = jnp.asarray(x[me::n]), jnp.asarray(y[me::n])
            weights = jnp.zeros(args.features, jnp.float32)
            gradient_of = jax.jit(jax.grad(loss))
            for _ in range(args.steps):
                gradient.enqueue_copy_from(gradient_of(weights, mine_x, mine_y))
                nvsym.allreduce(total, gradient)
                summed = jnp.from_dlpack(total)  # the memory of `total`; JAX's stream waits for nvsym's
                weights = (weights - args.rate / args.samples * summed).block_until_ready()
            weights = np.asarray(weights)

        expected = np.zeros(args.features, np.float32)
        for _ in range(args.steps):
            error = 1 / (1 + np.exp(-(x @ expected))) - y
            expected = expected - args.rate / args.samples * (x.T @ error).astype(np.float32)
        apart = float(np.abs(weights - expected).max())
        right = float(((x @ weights > 0) == (y > 0)).mean())
        good = apart < 1e-4 and right > 0.8
        # The allreduce gave every PE the same bits, so the weights are the same as well.
        words = nvsym.SHMEMBuffer[np.uint32].from_numpy(weights.view(np.uint32))
        low, high = (nvsym.SHMEMBuffer[np.uint32](args.features) for _ in range(2))
        nvsym.allreduce(low, words, "min")
        nvsym.allreduce(high, words, "max")
        same = bool((low.to_numpy() == high.to_numpy()).all())
        if me == 0:
            print(f"{n} PEs, {ctx.backend} backend, JAX {jax.__version__} on {device.platform}")
            print(f"after {args.steps} steps: {right:.4f} of the samples are right")
            print(f"weights: {'the same on all PEs' if same else 'FAILED: they differ between PEs'}")
            print(f"they differ from NumPy's by {apart:.1e} at most{'' if good else ': FAILED'}")
        del summed
    return 0 if good and same else 1


if __name__ == "__main__":
    sys.exit(main())
