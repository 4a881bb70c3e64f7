# SPDX-License-Identifier: Apache-2.0
"""Allreduce in place over a pool: each PE reduces its part by multimem.ld_reduce and stores it to all by multimem.st.

The instructions are emulated from the host. Integers must be exact, floats within the tolerance of their type of a sum in
float64. ``allreduce.py deferred``: the barriers between the phases are those of a kernel, by multimem.red and ordered loads, and
every PE sees memory as weakly as a GPU may show it.
"""

import sys

import ml_dtypes
from common import Pool, begin, drop, everyone, meet, np, nvsym, simulator, time

PAD = 256  # bytes for the barrier, in front
MIB = 1 << 20
PERIOD = 8191  # of the data: prime, so that it lines up with nothing

ctx = begin()
me, n = ctx.my_pe(), ctx.n_pes()
own = ctx.devices()[me]
gpu = own.ordinal

# Type: NumPy's, that of the instruction, elements of a vector, relative tolerance (None: exact).
TYPES = {
    "int32": (np.dtype("i4"), "s32", 1, None),
    "uint64": (np.dtype("u8"), "u64", 1, None),
    "float32": (np.dtype("f4"), "f32", 4, 1.3e-6),
    "float64": (np.dtype("f8"), "f64", 1, 1e-15),
    "float16": (np.dtype("f2"), "f16x2", 4, 1e-3),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), "bf16x2", 4, 1.6e-2),
}


def pattern(dtype, pe):
    random = np.random.default_rng([pe, dtype.num])
    if dtype.kind in "iu":
        return random.integers(0, 1 << 63, PERIOD, np.uint64).astype(dtype)  # sums wrap around
    return (random.random(PERIOD) * 2 + 0.5).astype(dtype)


def reference(dtype):
    parts = [pattern(dtype, pe) for pe in range(n)]
    if dtype.kind in "iu":
        return sum(parts[1:], parts[0])
    return sum(part.astype(np.float64) for part in parts)


class Barrier:
    """As a kernel makes it: every PE adds one to a counter of all, and waits for its own to reach what all add."""

    def __init__(self, pool):
        self.multicast = pool.multicast_view(own)._data_ptr()
        self.counter = pool.unicast_view(own)._data_ptr()
        self.epoch = 0

    def __call__(self):
        self.epoch += n
        simulator.fence_alias()
        simulator.multimem_red(gpu, self.multicast, "u32", "add", [1], order="release")
        while int(simulator.load(gpu, self.counter, np.int32, order="acquire")[0]) - self.epoch < 0:
            time.sleep(0)
        simulator.fence_alias()


def allreduce(pool, count, name, barrier):
    dtype, type_, vector, _ = TYPES[name]
    each = vector * (2 if type_.endswith("x2") else 1)
    share = -(-count // n)  # of a PE, in whole vectors
    share += -share % each
    first, last = min(me * share, count), min((me + 1) * share, count)
    padded = last - first + -(last - first) % each  # what lies behind the end belongs to the pool, too
    barrier()
    if last > first:
        address = pool.multicast_view(own)._data_ptr() + PAD + first * dtype.itemsize
        for start in range(0, padded, 4 * MIB):
            length = min(4 * MIB, padded - start)
            at = address + start * dtype.itemsize
            simulator.multimem_st(
                gpu, at, type_, simulator.ld_reduce(gpu, at, type_, "add", length, vector=vector), vector=vector
            )
    barrier()


def check(pool, count, name, barrier):
    dtype, _, _, tolerance = TYPES[name]
    view = pool.unicast_view(own)[PAD : PAD + count * dtype.itemsize].view(dtype)
    view.inplace_copy_from(np.resize(pattern(dtype, me), count))
    meet()
    allreduce(pool, count, name, barrier)
    meet()
    result, expected = view.to_numpy(), reference(dtype)
    assert len(result) == count
    for part in np.split(result, range(PERIOD, count, PERIOD)):
        if tolerance is None:
            assert (part == expected[: len(part)]).all(), (name, count)
        else:
            # Half a unit in the last place of the type, in the worst case, is what one rounding costs.
            error = np.abs(part.astype(np.float64) - expected[: len(part)]) / expected[: len(part)]
            assert error.max(initial=0) <= tolerance, (name, count, error.max())
    checksum = result.view(np.uint8).sum(dtype=np.uint64)
    assert everyone(int(checksum)) == [int(checksum)] * n  # the same bits everywhere


def weak(release, acquire):
    """How many results are wrong where the barrier lacks a release or an acquire."""

    class Weak(Barrier):
        def __call__(self):
            self.epoch += n
            simulator.multimem_red(gpu, self.multicast, "u32", "add", [1], order=release)
            while int(simulator.load(gpu, self.counter, np.int32, order=acquire)[0]) - self.epoch < 0:
                time.sleep(0)

    pool = Pool.allocate(ctx.devices(), PAD + 4096)
    view = pool.unicast_view(own)
    view.inplace_copy_from(np.zeros(PAD + 4096, np.uint8))
    meet()
    barrier = Weak(pool)
    wrong = 0
    for i in range(10):
        with simulator.deferred():
            data = np.full(64, 1 + me + i, np.uint32)
            simulator.store(gpu, barrier.counter + PAD, data)
            barrier()
            found = simulator.ld_reduce(gpu, barrier.multicast + PAD, "u32", "add", 64)
            wrong += int((found != sum(1 + pe + i for pe in range(n))).any())
        meet()
    meet()
    drop(pool)
    return sum(everyone(wrong))


if sys.argv[1:] == ["deferred"]:
    pool = Pool.allocate(ctx.devices(), PAD + MIB)
    pool.unicast_view(own).inplace_copy_from(np.zeros(PAD + MIB, np.uint8))
    meet()
    barrier = Barrier(pool)

    def check_deferred(count, name):
        dtype = TYPES[name][0]
        address = pool.unicast_view(own)._data_ptr() + PAD
        with simulator.deferred():
            if count:
                simulator.store(gpu, address, np.resize(pattern(dtype, me), count).view(f"u{dtype.itemsize}"))
            allreduce(pool, count, name, barrier)
            found = (
                simulator.load(gpu, address, f"u{dtype.itemsize}", count).view(dtype) if count else np.empty(0, dtype)
            )
        expected = reference(dtype)[:count]
        if TYPES[name][3] is None:
            assert (found == expected).all(), (name, count)
        else:
            assert np.allclose(found.astype(np.float64), expected, rtol=TYPES[name][3], atol=0), (name, count)
        meet()

    for name in TYPES:
        for count in (0, 1, 7, 1000):
            check_deferred(count, name)
    drop(pool)
    meet()
    assert weak("release", "acquire") == 0
    assert weak("relaxed", "acquire") > 0
    assert weak("release", "relaxed") > 0
else:
    pool = Pool.allocate(ctx.devices(), PAD + 64 * MIB + 16)
    pool.unicast_view(own)[:PAD].inplace_copy_from(np.zeros(PAD, np.uint8))
    meet()
    granularity = 2 * MIB
    barrier = Barrier(pool)
    began = time.monotonic()
    for name, (dtype, *_) in TYPES.items():
        step = granularity // dtype.itemsize
        for count in (0, 1, 7, step - 1, step, step + 1, 64 * MIB // dtype.itemsize):
            check(pool, count, name, barrier)
    meet()
    if me == 0:
        print(f"{n} PEs: {len(TYPES)} types, 0 to 64 MiB, in {time.monotonic() - began:.1f} s")
    drop(pool)
assert simulator.counters().misuses == 0, simulator.last_violation()
nvsym.finalize()
print("done")
