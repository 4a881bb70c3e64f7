# SPDX-License-Identifier: Apache-2.0
"""A pool over the GPUs of one process: ``local.py N``. No MPI takes part."""

import collections
import ctypes
import gc
import sys
import threading
import timeit

from common import Pool, check_views, driver_calls, drop, holdings, local_devices, np, nvsym, raises, simulator

n = int(sys.argv[1])
devices = local_devices(n)
SIZE = (1 << 20) + 4096
MULTICAST = (
    "cuMulticastCreate",
    "cuMulticastAddDevice",
    "cuMulticastBindMem",
    "cuMulticastGetGranularity",
    "cuMemCreate",
)


def supported():
    assert Pool.is_supported(devices), Pool.why_unsupported(devices)
    assert Pool.why_unsupported(devices) is None
    assert Pool.lookup(devices) is None
    assert Pool.lookup(devices[:1]) is None
    assert Pool.lookup([]) is None
    assert not any(simulator.calls(name) for name in MULTICAST)


def refused():
    before = holdings()
    small = nvsym.MulticastUnsupportedError
    for error, texts, arguments in (
        (TypeError, ["Device", "int"], ([0, 1], SIZE)),
        (TypeError, ["sequence of Device", "Device"], (devices[0], SIZE)),
        (TypeError, ["byte_size", "float"], (devices, 1e6)),
        (TypeError, ["byte_size", "bool"], (devices, True)),
        (nvsym.NVSymError, ["byte_size", "0"], (devices, 0)),
        (nvsym.NVSymError, ["byte_size", "-1"], (devices, -1)),
        (nvsym.NVSymError, ["byte_size", str(1 << 60)], (devices, 1 << 60)),
        (nvsym.NVSymError, ["do not fit", "are free"], (devices, 1 << 40)),
        (small, ["two GPUs at least", "1"], (devices[:1], SIZE)),
        (small, ["two GPUs at least", "0"], ([], SIZE)),
        (small, ["same GPU"], ([devices[0], nvsym.Device(0)], SIZE)),
        (small, ["no GPU"], ([devices[0], nvsym.Device.cpu()], SIZE)),
    ):
        caught = raises(error, *texts, call=lambda arguments=arguments: Pool.allocate(*arguments))
        assert error is TypeError or isinstance(caught, RuntimeError)
    raises(TypeError, "allocate", call=Pool)
    for arguments in ([0], 7):
        for function in (Pool.lookup, Pool.is_supported, Pool.why_unsupported):
            raises(TypeError, "Device", call=lambda function=function, arguments=arguments: function(arguments))
    for wrong in ([], devices[:1], [devices[0]] * 2, [devices[0], nvsym.Device.cpu()]):
        assert not Pool.is_supported(wrong)
        assert Pool.why_unsupported(wrong)
    assert holdings() == before
    assert simulator.calls("cuMemCreate") == simulator.calls("cuMulticastCreate") == 0


def fewest_calls():
    """What an allocation and its end cost, beside questions that hold nothing."""
    calls = collections.Counter(driver_calls())
    pool = Pool.allocate(devices, SIZE)
    made = collections.Counter(driver_calls())
    made.subtract(calls)
    assert +made == {
        "cuMemGetAllocationGranularity": n,  # of each device: they may differ
        "cuMulticastGetGranularity": 3,  # least and recommended; and whether the least divides the size that came of it
        "cuMemCreate": n,
        "cuMulticastCreate": 1,
        "cuMulticastAddDevice": n,
        "cuMulticastBindMem": n,
        "cuMemAddressReserve": 2,  # for all memory, and for the multicast address
        "cuMemMap": n + 1,  # a mapping begins at the beginning of what is mapped: one for each
        "cuMemSetAccess": 2,  # all memory at once, for all devices
        "cuMemRelease": n,  # the mappings keep the memory; the handle of the object is needed to unbind
    }, made
    print(f"{n} devices of one process: {sum(made.values())} driver calls, {dict(+made)}")
    calls += made
    drop(pool)
    ended = collections.Counter(driver_calls())
    ended.subtract(calls)
    assert +ended == {
        "cuMulticastUnbind": n,
        "cuMemUnmap": n + 1,
        "cuMemAddressFree": 2,
        "cuMemRelease": 1,
    }, ended


def semantics():
    pool = Pool.allocate(devices, SIZE)
    assert pool.byte_size == SIZE
    assert list(pool.devices) == devices
    assert Pool.lookup(devices) is Pool.lookup(devices[::-1]) is Pool.lookup(tuple(devices)) is pool
    assert Pool.lookup([nvsym.Device(i) for i in range(n)]) is pool
    assert Pool.lookup([devices[0]] * n) is None
    assert Pool.lookup([*devices, devices[0]]) is None
    for size in (SIZE, 1, 2 * SIZE):
        raises(RuntimeError, f"a pool of {SIZE} bytes", call=lambda size=size: Pool.allocate(devices[::-1], size))
    check_views(pool, devices, lambda: None)
    for device in devices:
        view = pool.unicast_view(device)
        assert (view.shape, view.dtype, view.device) == ((SIZE,), np.uint8, device)
        floats = view[:400].view(np.float32, [10, 10])
        data = np.random.default_rng(1).random((10, 10), np.float32)
        floats.inplace_copy_from(nvsym.Buffer.from_numpy(data))
        device.synchronize()
        assert (floats.to_numpy() == data).all()
        assert (view[200:400].view(np.float32).to_numpy() == data.ravel()[50:]).all()
        assert view.__dlpack_device__() == (2, device.ordinal)
        assert floats.__cuda_array_interface__["data"][0] == view._data_ptr()
        # The last bytes are there, too.
        view[SIZE - 8 :].inplace_copy_from(np.arange(8, dtype=np.uint8))
        assert (view[SIZE - 8 :].to_numpy() == np.arange(8)).all()
        overlay = pool.multicast_view(device)
        assert (overlay.shape, overlay.dtype) == ((SIZE,), np.uint8)
        for part in (overlay, overlay[8:16], overlay.view(np.uint32), overlay[:64].view(np.float32, [4, 4])):
            for touch in (
                part.to_numpy,
                part.copy,
                part.__dlpack__,
                lambda part=part: np.asarray(part),
                lambda part=part: memoryview(part),
                lambda part=part: part.__cuda_array_interface__,
                lambda part=part: part.inplace_copy_from(np.zeros(part.shape, part.dtype)),
                lambda part=part: nvsym.Buffer.from_numpy(np.zeros(part.shape, part.dtype)).inplace_copy_from(part),
            ):
                raises(nvsym.MulticastUnsupportedError, "multimem", call=touch)
            assert part._data_ptr() >= overlay._data_ptr()
    for foreign in (nvsym.Device.cpu(), *([nvsym.Device(n)] if n < 8 else [])):
        for function in (pool.unicast_view, pool.multicast_view):
            raises(RuntimeError, "does not span", call=lambda function=function, foreign=foreign: function(foreign))
    # Dropping every handle frees nothing.
    kept, address = pool.unicast_view(devices[0])[:4], pool.unicast_view(devices[1])._data_ptr()
    kept.inplace_copy_from(np.arange(4, dtype=np.uint8))
    before = holdings()
    del pool
    gc.collect()
    assert holdings() == before
    assert (kept.to_numpy() == np.arange(4)).all()
    pool = Pool.lookup(devices)
    assert pool.unicast_view(devices[1])._data_ptr() == address
    return pool


def lookup_time(pool):
    for _ in range(3):
        runs = timeit.repeat(lambda: Pool.lookup(devices), number=20000, repeat=7)
        empty = timeit.repeat(lambda: None, number=20000, repeat=7)
        each = (min(runs) - min(empty)) / 20000  # what others do on the machine only adds
        if each <= 1e-6:
            break
    print(f"lookup of {n} devices: {each * 1e9:.0f} ns")
    assert each <= 1e-6


def overlapping(pool):
    """Another set of some of the devices has memory of its own."""
    if n < 3:
        return
    other = Pool.allocate(devices[1:3], 4096)
    assert Pool.lookup(devices[2:0:-1]) is other
    assert Pool.lookup(devices) is pool
    for device in devices[1:3]:
        pool.unicast_view(device)[:8].inplace_copy_from(np.full(8, 7, np.uint8))
        other.unicast_view(device)[:8].inplace_copy_from(np.full(8, 9, np.uint8))
        assert (pool.unicast_view(device)[:8].to_numpy() == 7).all()
    raises(RuntimeError, "does not span", call=lambda: other.unicast_view(devices[0]))
    drop(other)
    assert Pool.lookup(devices[1:3]) is None
    assert (pool.unicast_view(devices[1])[:8].to_numpy() == 7).all()


def exports_outlive_it(pool):
    """What another library got stays mapped until it is gone."""
    view = pool.unicast_view(devices[0])
    view[:4].inplace_copy_from(np.arange(4, dtype=np.uint8))
    capsule = view.__dlpack__()
    drop(pool)
    raises(nvsym.NotInitializedError, "gone", call=view.to_numpy)
    raises(nvsym.NotInitializedError, "gone", call=lambda: pool.multicast_view(devices[0]))
    assert simulator.counters().mappings == n  # the memory, not the multicast object
    assert simulator.counters().binds == simulator.counters().multicast_objects == 0
    del capsule
    again = Pool.allocate(devices, 64)  # where what was kept is given back
    assert simulator.counters().mappings == n + 1
    drop(again)
    assert simulator.counters().memory() == (0,) * 8


def faults():
    counts = collections.Counter(simulator.call_counts())
    drop(Pool.allocate(devices, 100))
    made = collections.Counter(simulator.call_counts())
    made.subtract(counts)
    before = holdings()
    cases = 0
    used_to_end = {"cuMulticastUnbind", "cuMemUnmap", "cuMemAddressFree"}
    for name in sorted(+made):
        for k in range(1, made[name] + 1 - (name == "cuMemRelease")):
            if name in used_to_end:
                continue
            simulator.fail(f"{name}:{k}:401")
            raises(RuntimeError, name.removesuffix("_v2"), call=lambda: Pool.allocate(devices, 100))
            simulator.fail()
            assert holdings() == before, (name, k)
            cases += 1
    drop(Pool.allocate(devices, 100))
    print(f"{n} devices of one process: {cases} call sites failed, one by one")


def end_that_fails():
    """Whatever fails on the way, the rest is given back, and the failure is told."""
    from nvsym import pool as pool_module

    before = holdings()
    pool = Pool.allocate(devices, 100)
    simulator.fail("cuMulticastUnbind:1:401")
    failures = pool_module._drop(pool)
    simulator.fail()
    assert len(failures) == 1
    assert "cuMulticastUnbind" in str(failures[0])
    assert "401" in str(failures[0])
    # The binding that the driver refused to end goes with its object; nothing else is left.
    assert holdings() == before, (holdings(), before)


def out_of_slots():
    before = holdings()
    simulator.configure(slots=0)
    error = raises(nvsym.BackendError, "cuMulticastBindMem", "OUT_OF_MEMORY", call=lambda: Pool.allocate(devices, 100))
    assert error.status == 2
    assert nvsym.MulticastPool.allocate_or_none(devices, 100) is None
    simulator.configure(slots=128)
    assert holdings() == before


def not_ready_for_a_while():
    """Only CUDA_ERROR_SYSTEM_NOT_READY is tried again, with a new object."""
    before = holdings()
    for name, k in (("cuMulticastCreate", 1), ("cuMulticastAddDevice", 2), ("cuMulticastBindMem", n)):
        calls = simulator.calls("cuMulticastCreate")
        simulator.fail(f"{name}:{k}:802")
        drop(Pool.allocate(devices, 100))
        simulator.fail()
        assert simulator.calls("cuMulticastCreate") == calls + 2
        assert holdings() == before


def threads():
    """Several threads allocate the same set, and others look it up: one succeeds, the others hear of it."""
    made, refusals = [], []

    def work():
        try:
            made.append(Pool.allocate(devices, 128))
        except nvsym.NVSymError as error:
            refusals.append(str(error))
        assert Pool.lookup(devices) is not None

    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(made) == 1
    assert len(refusals) == 5
    assert all("a pool of 128 bytes" in text for text in refusals)
    drop(made[0])


def context_stays():
    """The context of the thread is the one that it came with, also after a failure, and also none."""
    library = ctypes.CDLL(simulator.library_path())

    def current():
        context = ctypes.c_void_p()
        assert library.cuCtxGetCurrent(ctypes.byref(context)) == 0
        return context.value

    def look(context):
        assert library.cuCtxSetCurrent(ctypes.c_void_p(context)) == 0
        drop(Pool.allocate(devices, 64))
        assert current() == context
        simulator.fail("cuMulticastBindMem:1:401")
        raises(RuntimeError, "401", call=lambda: Pool.allocate(devices, 100))
        simulator.fail()
        assert current() == context

    devices[n - 1].synchronize()
    context = current()
    assert context
    look(context)
    look(None)


supported()
refused()
fewest_calls()
pool = semantics()
if n == 8:
    lookup_time(pool)
overlapping(pool)
exports_outlive_it(pool)
faults()
end_that_fails()
out_of_slots()
not_ready_for_a_while()
threads()
context_stays()
assert simulator.counters().misuses == 0, simulator.last_violation()
Pool.allocate(devices, 1000)  # given back at exit
print("done")
