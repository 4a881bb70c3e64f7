# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training on handwritten digits: every PE takes its share of each batch, and the gradients are summed
through one symmetric buffer.

    mpirun -n 4 python examples/data_parallel_digits.py --epochs 20

The data is scikit-learn's bundled copy of the UCI handwritten digits (1797 images of 8 x 8 pixels). PE 0 reads it and
broadcasts it. The network has one hidden layer and is written out in NumPy: softmax cross-entropy, gradient descent
with momentum. The sequence of the batches and the first weights follow from the seed alone, so the number of PEs
changes nothing but the rounding of the sums.
"""

import os

# One thread of linear algebra for each PE: the PEs are the parallelism. To be said before NumPy is imported.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import importlib.util  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
import zlib  # noqa: E402

import numpy as np  # noqa: E402

import nvsym  # noqa: E402

IMAGES, PIXELS, CLASSES, TRAIN = 1797, 64, 10, 1440


def load(me):
    """Images of pixels in 0..1, and the digits that they show: read on PE 0, the same on all."""
    images = nvsym.SHMEMBuffer[np.float32](IMAGES * PIXELS)
    digits = nvsym.SHMEMBuffer[np.int64](IMAGES)
    if me == 0:
        from sklearn.datasets import load_digits

        data = load_digits()
        images.enqueue_copy_from((data.data / 16).astype(np.float32).reshape(-1))
        digits.enqueue_copy_from(data.target.astype(np.int64))
    for buffer in (images, digits):
        nvsym.broadcast(buffer, buffer, root=0)
    return images.to_numpy().reshape(IMAGES, PIXELS), digits.to_numpy()


class Network:
    """PIXELS inputs, one hidden layer of rectified linear units, CLASSES outputs.

    The weights are views of one flat array, and so are their gradients: one reduction serves all of them. `gradients`
    is pinned host memory, from which a GPU copies at full speed.
    """

    def __init__(self, ctx, hidden, rng):
        shapes = {"w1": (PIXELS, hidden), "b1": (hidden,), "w2": (hidden, CLASSES), "b2": (CLASSES,)}
        size = sum(np.prod(shape) for shape in shapes.values())
        self.weights = np.zeros(size, np.float32)
        self.gradients = ctx.enqueue_create_host_buffer(np.float32, size)
        start = 0
        for name, shape in shapes.items():
            stop = start + np.prod(shape)
            setattr(self, name, self.weights[start:stop].reshape(shape))
            setattr(self, "d" + name, self.gradients[start:stop].reshape(shape))
            start = stop
        # He et al. 2015, "Delving deep into rectifiers": variance 2 / inputs.
        self.w1[...] = rng.normal(0, np.sqrt(2 / PIXELS), self.w1.shape)
        self.w2[...] = rng.normal(0, np.sqrt(2 / hidden), self.w2.shape)

    def forward(self, x):
        """The hidden layer and the logarithms of the probabilities of the classes."""
        hidden = np.maximum(x @ self.w1 + self.b1, 0)
        scores = hidden @ self.w2 + self.b2
        scores -= scores.max(axis=1, keepdims=True)
        return hidden, scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))

    def backward(self, x, y):
        """Set `gradients` to the sum over the samples, and return the sum of their losses."""
        hidden, log_p = self.forward(x)
        rows = np.arange(len(y))
        error = np.exp(log_p)
        error[rows, y] -= 1
        np.matmul(hidden.T, error, out=self.dw2)
        np.sum(error, axis=0, out=self.db2)
        error = (error @ self.w2.T) * (hidden > 0)
        np.matmul(x.T, error, out=self.dw1)
        np.sum(error, axis=0, out=self.db1)
        return -float(log_p[rows, y].sum())


def writable(file):
    """The type of --save: a mistake is said before the training, not after it."""
    place = file if os.path.exists(file) else os.path.dirname(file) or "."
    if os.path.isdir(file) or not os.access(place, os.W_OK):
        raise argparse.ArgumentTypeError(f"{file} cannot be written")
    return file


def main():
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--epochs", type=int, default=20, help="(default: %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="samples of a step, over all PEs (default: %(default)s)")
    parser.add_argument("--hidden", type=int, default=64, help="units of the hidden layer (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate (default: %(default)s)")
    parser.add_argument("--momentum", type=float, default=0.9, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--save", type=writable, metavar="FILE", help="PE 0 writes the weights to this .npz file")
    parser.add_argument("--backend", default="auto", choices=("auto", "nvshmem", "host"))
    args = parser.parse_args()
    if args.epochs < 1 or args.batch < 1 or args.hidden < 1:
        parser.error("--epochs, --batch and --hidden must be above zero")
    if importlib.util.find_spec("sklearn") is None:
        sys.exit("data_parallel_digits.py needs scikit-learn: pip install scikit-learn")

    with nvsym.SHMEMContext(backend=args.backend, heap_size="64M") as ctx:
        me, n = ctx.my_pe(), ctx.n_pes()
        images, digits = load(me)
        rng = np.random.default_rng(args.seed)
        order = rng.permutation(IMAGES)
        train, test = order[:TRAIN], order[TRAIN:]
        network = Network(ctx, args.hidden, rng)
        velocity = np.zeros_like(network.weights)

        gradients = nvsym.SHMEMBuffer[np.float32](len(network.gradients))
        totals = nvsym.SHMEMBuffer[np.float64](2)  # loss, right answers
        if me == 0:
            print(
                f"PEs: {n}, {ctx.backend} backend; {TRAIN} images to train, {IMAGES - TRAIN} to test; "
                f"{len(gradients)} weights; batches of {args.batch}",
                flush=True,
            )
        in_reductions, accuracy = 0.0, 0.0
        began = time.perf_counter()
        for epoch in range(1, args.epochs + 1):
            start = time.perf_counter()
            shuffled = rng.permutation(train)  # the same on every PE
            loss = 0.0
            for first in range(0, TRAIN, args.batch):
                batch = shuffled[first : first + args.batch]
                mine = batch[me::n]
                loss += network.backward(images[mine], digits[mine])

                clock = time.perf_counter()
                gradients.enqueue_copy_from(network.gradients)
                nvsym.allreduce(gradients, gradients)
                gradients.enqueue_copy_to(network.gradients)
                ctx.stream.synchronize()
                in_reductions += time.perf_counter() - clock

                velocity *= args.momentum
                velocity -= args.rate / len(batch) * network.gradients
                network.weights += velocity
            mine = test[me::n]
            right = int((network.forward(images[mine])[1].argmax(axis=1) == digits[mine]).sum())
            totals.enqueue_copy_from(np.array([loss, right], np.float64))
            nvsym.allreduce(totals, totals)
            loss, right = totals.to_numpy()
            accuracy = right / len(test)
            if me == 0:
                took = 1e3 * (time.perf_counter() - start)
                print(
                    f"epoch {epoch:3}: loss {loss / TRAIN:.4f}, test accuracy {accuracy:.4f}, {took:.0f} ms", flush=True
                )

        # The PEs never exchange weights: that they agree to the last bit is what the reductions promise.
        checksum = zlib.crc32(network.weights)
        ends = nvsym.SHMEMBuffer[np.int64].from_numpy(np.array([checksum, -checksum]))
        nvsym.allreduce(ends, ends, "max")
        highest, lowest = ends.to_numpy() * (1, -1)
        slowest = nvsym.SHMEMBuffer[np.float64].full(1, in_reductions)
        nvsym.allreduce(slowest, slowest, "max")
        if me == 0:
            print(
                f"test accuracy {accuracy:.4f} after {args.epochs} epochs in {time.perf_counter() - began:.2f} s, "
                f"of which up to {slowest.to_numpy()[0]:.2f} s on a PE in reductions and in waiting for the others"
            )
            same = "the same on all PEs" if highest == lowest else "FAILED: they differ between PEs"
            print(f"weights: checksum {checksum:08x}, {same}")
            if args.save:
                np.savez(args.save, w1=network.w1, b1=network.b1, w2=network.w2, b2=network.b2, accuracy=accuracy)
                print(f"weights written to {args.save}")
    return 0 if highest == lowest else 1


if __name__ == "__main__":
    sys.exit(main())
