# SPDX-License-Identifier: Apache-2.0
"""A driver call that takes long on one PE is reported, keeps no other thread waiting, and does not fail; a PE that never comes is named."""

import io
import itertools
import logging
import threading

from common import Pool, begin, drop, meet, nvsym, raises, simulator, time

text = io.StringIO()
logging.getLogger("nvsym").addHandler(logging.StreamHandler(text))

ctx = begin()
me, n = ctx.my_pe(), ctx.n_pes()
for call in ("cuMulticastBindMem", "cuMulticastAddDevice", "cuMemMap", "cuMulticastUnbind"):
    simulator.fail(f"{call}:1:delay=1.0@pe1")
    ticks, ended = [], threading.Event()

    def tick(ticks=ticks, ended=ended):
        while not ended.wait(0.01):
            ticks.append(time.monotonic())

    ticker = threading.Thread(target=tick)
    ticker.start()
    began = time.monotonic()
    pool = Pool.allocate(ctx.devices(), 100)
    allocated = time.monotonic() - began
    drop(pool)
    ended.set()
    ticker.join()
    longest = max((b - a for a, b in itertools.pairwise(ticks)), default=0.0)
    assert longest < 0.7, (call, longest)  # the interpreter's lock was free
    assert me != 1 or len(ticks) > 10, (call, len(ticks))
    if call != "cuMulticastUnbind":
        assert allocated > 0.9  # all wait for the late one
    simulator.fail()
    meet()
    said = text.getvalue()
    assert (call in said) == (me == 1), (call, said)
    if me == 1:
        for word in (
            "SymmetricPool.allocate of 100 bytes",
            "has been in the driver for",
            "PE 1 on",
            "GPU 1",
            "NVSYM_DRIVER_WATCH",
        ):
            assert word in said, said
        assert said.count(call) == 1, said

# PE 0 and PE 1 allocate, and the last PE does not come.
if me < n - 1:
    began = time.monotonic()
    error = raises(
        nvsym.PeerTimeoutError, f"PE {n - 1} on ", "NVSYM_TIMEOUT", call=lambda: Pool.allocate(ctx.devices(), 100)
    )
    assert error.pes == (n - 1,) or list(error.pes) == [n - 1], error.pes
    assert time.monotonic() - began < 10
    raises(nvsym.NVSymError, "can no longer agree", "nothing came from", call=lambda: Pool.allocate(ctx.devices(), 100))
    # Other sets are as they were.
    pool = Pool.allocate(ctx.devices()[: n - 1], 100)
meet()
nvsym.finalize()
assert simulator.counters().memory() == (0,) * 8
print("done")
