# SPDX-License-Identifier: Apache-2.0
"""Each driver call of a collective allocation fails in turn, on each PE in turn: every call site times every PE.

In each case all PEs raise the same error soon, which names PE and call; everything is given back; and the next allocation
succeeds. One job runs all cases. Prints their number.
"""

import collections
import sys

from common import Pool, begin, drop, everyone, holdings, meet, simulator, time

STATUS = int(sys.argv[1]) if len(sys.argv) > 1 else 999

ctx = begin()
me, n = ctx.my_pe(), ctx.n_pes()
devices = ctx.devices()
drop(Pool.allocate(devices, 100))  # what is made once for a process is made
meet()
before = holdings()

# Which calls an allocation makes, on each PE.
counts = collections.Counter(simulator.call_counts())
pool = Pool.allocate(devices, 100)
made = collections.Counter(simulator.call_counts())
made.subtract(counts)
drop(pool)
sites = [
    (pe, name, k)
    for pe, calls in enumerate(everyone(+made))
    for name in sorted(calls)
    for k in range(1, calls[name] + 1)
]
assert sites == everyone(sites)[0]

slowest = 0.0
for pe, name, k in sites:
    meet()
    simulator.fail(f"{name}:{k}:{STATUS}@pe{pe}")
    injected = simulator.counters().injected
    began = time.monotonic()
    try:
        pool = Pool.allocate(devices, 100)
    except RuntimeError as error:
        text = str(error)
    else:
        raise AssertionError(f"{name}:{k} failed on PE {pe}, and allocate did not raise")
    slowest = max(slowest, time.monotonic() - began)
    simulator.fail()
    case = (pe, name, k, text)
    assert f"PE {pe} on " in text, case
    # A library call by another name in C: cuCtxGetCurrent is what the message says, too.
    assert name.removesuffix("_v2") in text, case
    assert simulator.counters().injected == injected + (me == pe), case
    texts = everyone(text)
    assert texts == texts[:1] * n, texts
    assert holdings() == before, (case, holdings(), before)
    assert Pool.lookup(devices) is None
    pool = Pool.allocate(devices, 100)
    meet()
    drop(pool)
    assert holdings() == before, case
assert simulator.counters().violations == 0, simulator.last_violation()
assert simulator.counters().misuses == 0, simulator.last_violation()
if me == 0:
    kinds = sorted({name for _, name, _ in sites})
    print(
        f"{len(sites)} cases: every call site ({len(sites) / n:.1f} calls per PE, {len(kinds)} functions) on each of {n} PEs, "
        f"status {STATUS}; the slowest failed after {slowest:.2f} s"
    )
