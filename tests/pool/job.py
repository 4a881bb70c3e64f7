# SPDX-License-Identifier: Apache-2.0
"""A pool over the GPUs of several PEs: ``job.py KIND``, the kind of handles that is expected."""

import gc
import itertools
import sys
import threading

from common import Pool, begin, check_views, drop, everyone, holdings, meet, np, nvsym, raises, simulator, time

from nvsym import _pool_protocol as protocol

KIND = sys.argv[1]
SIZE = (1 << 20) + 4096

ctx = begin()
me, n = ctx.my_pe(), ctx.n_pes()
devices = ctx.devices()
own = devices[me]


def calls():
    return simulator.call_counts()


def whole_job():
    assert Pool.is_supported(devices), Pool.why_unsupported(devices)
    assert Pool.lookup(devices) is None
    meet()
    before = holdings()
    began = time.monotonic()
    pool = Pool.allocate(devices if me % 2 else devices[::-1], SIZE)
    took = time.monotonic() - began
    assert pool.byte_size == SIZE
    assert Pool.lookup(devices) is Pool.lookup(devices[::-1]) is pool
    check_views(pool, [own], meet)
    view = pool.unicast_view(own)
    assert (view.shape, view.dtype) == ((SIZE,), np.uint8)
    raises(nvsym.MulticastUnsupportedError, "multimem", call=pool.multicast_view(own).to_numpy)
    raises(RuntimeError, "does not span", call=lambda: pool.unicast_view(nvsym.Device.cpu()))
    for size in (SIZE, 2 * SIZE):
        error = raises(RuntimeError, f"a pool of {SIZE} bytes", call=lambda size=size: Pool.allocate(devices, size))
        assert everyone(str(error)) == [str(error)] * n
    # Ends of the memory of all, through every PE's mappings.
    view[SIZE - 8 :].inplace_copy_from(np.full(8, 100 + me, np.uint8))
    meet()
    for pe, device in enumerate(devices):
        assert (pool.unicast_view(device)[SIZE - 8 :].to_numpy() == 100 + pe).all()
    meet()
    drop(pool)
    assert holdings() == before
    meet()
    if me == 0:
        print(f"{n} PEs, {KIND}: allocated in {1e3 * took:.1f} ms")


def kind_of_handles():
    """All take the same kind, and the one that was expected."""
    pool = Pool.allocate(devices, 64)
    assert everyone(pool.handles) == [KIND] * n
    drop(pool)


def different_arguments():
    before = holdings()
    wrong = raises(nvsym.CollectiveError, "byte_size", "PE 0", call=lambda: Pool.allocate(devices, 100 if me else 101))
    assert everyone(str(wrong)) == [str(wrong)] * n
    wrong = raises(RuntimeError, "PE 0", "byte_size", call=lambda: Pool.allocate(devices, 100 if me else 0))
    assert everyone(str(wrong)) == [str(wrong)] * n
    wrong = raises(
        (TypeError, RuntimeError), "PE 0", "byte_size", "float", call=lambda: Pool.allocate(devices, 100 if me else 1.5)
    )
    assert everyone(str(wrong)) == [str(wrong)] * n
    wrong = raises(RuntimeError, f"PE {n - 1}", "do not fit", call=lambda: Pool.allocate(devices, 1 << 40))
    assert everyone(str(wrong)) == [str(wrong)] * n
    assert holdings() == before


def parts_of_the_job():
    """Every pair in turn, the others taking no part; then overlapping sets at the same time."""
    for a, b in itertools.combinations(range(n), 2):
        if me in (a, b):
            pool = Pool.allocate([devices[a], devices[b]], 256)
            assert [device.pe for device in pool.devices] == [a, b]
            drop(pool)
        elif me == 0:
            raises(RuntimeError, "owns none", call=lambda a=a, b=b: Pool.allocate([devices[a], devices[b]], 256))
    meet()
    if n < 4:
        return
    before = holdings()
    left, right = devices[: n // 2 + 1], devices[n // 2 - 1 :]
    pools = [(k, Pool.allocate(part, 4096)) for k, part in enumerate((left, right)) if own in part]
    meet()
    for k, pool in pools:
        pool.unicast_view(own)[:16].inplace_copy_from(np.full(16, 10 * me + k, np.uint8))
    meet()
    for k, pool in pools:
        for device in pool.devices:
            assert (pool.unicast_view(device)[:16].to_numpy() == 10 * device.pe + k).all(), (me, device, k)
    meet()
    for _, pool in pools[::-1]:
        drop(pool)
    meet()
    assert holdings() == before


def threads():
    """The same set from two threads of every PE: one succeeds, the other hears that there is one. And two sets at once."""
    before = holdings()
    made, refusals = [], []

    def work(part):
        try:
            made.append(Pool.allocate(part, 512))
        except nvsym.NVSymError as error:
            refusals.append(str(error))

    def run(*parts):
        workers = [threading.Thread(target=work, args=(part,)) for part in parts]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    run(devices, devices)
    assert (len(made), len(refusals)) == (1, 1), refusals
    assert "a pool of 512 bytes" in refusals[0]
    drop(made.pop())
    meet()
    if n >= 3:
        parts = [part for part in (devices, devices[:2], devices[1:]) if own in part]
        run(*(parts if me % 2 else parts[::-1]))
        assert len(made) == len(parts), refusals
        meet()
        for pool in made:
            drop(pool)
    meet()
    assert holdings() == before


def not_ready_for_a_while():
    """CUDA_ERROR_SYSTEM_NOT_READY on one PE: all try again, with a new object."""
    before = holdings()
    for name in ("cuMulticastCreate", "cuMulticastAddDevice", "cuMulticastBindMem"):
        pe = 0 if name == "cuMulticastCreate" else n - 1
        binds, tries = simulator.calls("cuMulticastBindMem"), simulator.calls("cuMulticastAddDevice")
        simulator.fail(f"{name}:1-2:802@pe{pe}")
        drop(Pool.allocate(devices, 100))
        simulator.fail()
        made = (simulator.calls("cuMulticastAddDevice") - tries, simulator.calls("cuMulticastBindMem") - binds)
        assert (
            made == {"cuMulticastCreate": (1, 1), "cuMulticastAddDevice": (3, 1), "cuMulticastBindMem": (3, 3)}[name]
        ), (name, made)
        meet()
        assert holdings() == before


def never_ready():
    """A bounded number of times; then all raise, and nothing is left."""
    before, usual = holdings(), protocol.RETRIES
    protocol.RETRIES = 3
    tries = simulator.calls("cuMulticastAddDevice")
    simulator.fail(f"cuMulticastBindMem:*:802@pe{n - 1}")
    error = raises(
        nvsym.BackendError, "cuMulticastBindMem", "802", f"PE {n - 1}", call=lambda: Pool.allocate(devices, 100)
    )
    simulator.fail()
    assert simulator.calls("cuMulticastAddDevice") == tries + 4
    assert everyone(str(error)) == [str(error)] * n
    # Worse than not ready, on another PE: no more tries.
    simulator.fail(f"cuMulticastBindMem:*:802@pe{n - 1};cuMulticastBindMem:*:401@pe0")
    raises(nvsym.BackendError, "802", "401", call=lambda: Pool.allocate(devices, 100))
    simulator.fail()
    assert simulator.calls("cuMulticastAddDevice") == tries + 5
    protocol.RETRIES = usual
    assert holdings() == before


def drop_handles():
    """Handles are cheap: the memory stays until the end of the job."""
    pool = Pool.allocate(devices, 777)
    view = pool.unicast_view(own)
    view.inplace_copy_from(np.full(777, me, np.uint8))
    address = view._data_ptr()
    del pool, view
    gc.collect()
    meet()
    pool = Pool.lookup(devices)
    assert pool.unicast_view(own)._data_ptr() == address
    assert [pool.unicast_view(device)[:1].to_numpy()[0] for device in devices] == list(range(n))
    return pool


whole_job()
kind_of_handles()
different_arguments()
parts_of_the_job()
threads()
not_ready_for_a_while()
never_ready()
pool = drop_handles()
assert simulator.counters().violations == 0, simulator.last_violation()
assert simulator.counters().misuses == 0, simulator.last_violation()
views = [pool.unicast_view(own), pool.multicast_view(own)]
meet()
nvsym.finalize()
assert simulator.counters().memory() == (0,) * 8
for touch in (views[0].to_numpy, views[1]._data_ptr, lambda: pool.unicast_view(own), lambda: pool.multicast_view(own)):
    raises(nvsym.NotInitializedError, "finalize", call=touch)
assert Pool.lookup(devices) is None
raises(nvsym.NotInitializedError, "no job", call=lambda: Pool.allocate(devices, 10))
assert not Pool.is_supported(devices)

# And a new job.
ctx = begin()
pool = Pool.allocate(ctx.devices(), 10)
pool.unicast_view(ctx.devices()[me]).inplace_copy_from(np.full(10, me, np.uint8))
meet()
assert [pool.unicast_view(device).to_numpy()[0] for device in ctx.devices()] == list(range(n))
meet()
nvsym.finalize()
assert simulator.counters().memory() == (0,) * 8
assert simulator.counters().misuses == 0, simulator.last_violation()
print("done")
