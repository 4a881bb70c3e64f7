# SPDX-License-Identifier: Apache-2.0
"""Random sequences of what can be done with pools, the same on all PEs; nothing leaks, and nothing holds what it should not.

``stress.py N``: that many sequences.
"""

import gc
import itertools
import random
import sys
import threading

from common import Pool, begin, everyone, holdings, meet, np, nvsym, pool_module, raises, simulator, time
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from nvsym.pool_memory import sweep

EXAMPLES = int(sys.argv[1])

ctx = begin()
me, n = ctx.my_pe(), ctx.n_pes()
SETS = [pes for k in range(2, n + 1) for pes in itertools.combinations(range(n), k)]
done = {"sequences": 0, "steps": 0, "pools": 0, "jobs": 1}


class State:
    """What there should be: of each set the size, and the byte that each member's memory begins and ends with."""

    def __init__(self):
        self.sizes, self.bytes = {}, {}
        self.handles, self.views, self.capsules = [], [], []

    def devices(self, which):
        return [ctx.devices()[pe] for pe in which]

    def allocate(self, which, size, shuffled):
        if me not in which:
            raises(RuntimeError, "owns none", call=lambda: Pool.allocate(self.devices(which), size))
        else:
            devices = self.devices(which)
            random.Random(shuffled + me).shuffle(devices)
            if which in self.sizes:
                raises(RuntimeError, f"a pool of {self.sizes[which]} bytes", call=lambda: Pool.allocate(devices, size))
            else:
                pool = Pool.allocate(devices, size)
                assert pool.byte_size == size
                self.handles.append(pool)
        if which not in self.sizes:
            self.sizes[which] = size
            self.bytes[which] = {}
            done["pools"] += 1

    def fail(self, which, name, pe):
        """An allocation in which a driver call fails."""
        if which in self.sizes or me not in which:
            return
        held = simulator.counters().memory()
        simulator.fail(f"{name}:1:401@pe{which[pe % len(which)]}")
        raises(
            RuntimeError,
            name,
            "401",
            f"PE {which[pe % len(which)]}",
            call=lambda: Pool.allocate(self.devices(which), 5000),
        )
        simulator.fail()
        sweep()
        assert simulator.counters().memory() <= held

    def lookup(self, which):
        pool = Pool.lookup(self.devices(which)[::-1])
        assert (pool is not None) == (which in self.sizes and me in which)
        return pool

    def write(self, which, value):
        pool = self.lookup(which)
        if pool is not None:
            view = pool.unicast_view(ctx.devices()[me])
            for end in (view[:1], view[pool.byte_size - 1 :]):
                end.inplace_copy_from(np.full(1, (value + me) % 256, np.uint8))
            self.views.append(view)
        if which in self.sizes:
            self.bytes[which] = {pe: (value + pe) % 256 for pe in which}
        meet()

    def read(self, which):
        pool = self.lookup(which)
        if pool is not None:
            for pe, value in self.bytes[which].items():
                view = pool.unicast_view(ctx.devices()[pe])
                assert view[:1].to_numpy()[0] == view[pool.byte_size - 1 :].to_numpy()[0] == value
            raises(nvsym.MulticastUnsupportedError, "multimem", call=pool.multicast_view(ctx.devices()[me]).to_numpy)
        meet()

    def reduce(self, which):
        """The first PE of the set adds the first word of all."""
        pool = self.lookup(which)
        if pool is not None and pool.byte_size >= 4:
            own = ctx.devices()[me]
            pool.unicast_view(own)[:4].view(np.uint32).inplace_copy_from(np.full(1, 10 + me, np.uint32))
        meet()
        if pool is not None and pool.byte_size >= 4 and me == which[0]:
            found = simulator.ld_reduce(own.ordinal, pool.multicast_view(own)._data_ptr(), "u32", "add", 1)
            assert found[0] == sum(10 + pe for pe in which)
        meet()
        if which in self.sizes and self.sizes[which] >= 4:
            self.bytes[which] = {}

    def drop(self):
        self.handles.clear()
        self.views.clear()

    def export(self, which):
        pool = self.lookup(which)
        if pool is not None:
            self.capsules.append(pool.unicast_view(ctx.devices()[me]).__dlpack__())

    def threads(self, which):
        found = []
        workers = [threading.Thread(target=lambda: found.append(self.lookup(which))) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(found) == 3
        assert found[0] is found[1] is found[2]

    def end(self):
        """Finalize, and begin anew."""
        global ctx
        kept, views = bool(self.capsules), list(self.views)
        meet()
        nvsym.finalize()
        for view in views:
            raises(nvsym.NotInitializedError, "finalize", call=view.to_numpy)
        if not kept:
            assert simulator.counters().memory() == (0,) * 8, simulator.counters()
        self.capsules.clear()
        sweep()
        assert simulator.counters().memory() == (0,) * 8, simulator.counters()
        self.__init__()
        ctx = begin()
        done["jobs"] += 1
        meet()

    def clear(self):
        """Back to nothing, without the cost of a new job."""
        meet()
        for which in self.sizes:
            pool = self.lookup(which)
            if pool is not None:
                assert pool_module._drop(pool) == []
        self.drop()
        self.capsules.clear()
        gc.collect()
        sweep()
        meet()


sets = st.sampled_from(SETS)
sizes = st.sampled_from([1, 2, 4, 5, 4096, (1 << 21) - 1, 1 << 21, (1 << 21) + 1, (16 << 20) + 3])
names = st.sampled_from(
    ["cuMemCreate", "cuMulticastAddDevice", "cuMulticastBindMem", "cuMemMap", "cuMemImportFromShareableHandle"]
)
steps = st.one_of(
    st.tuples(st.just("allocate"), sets, sizes, st.integers(0, 9)),
    st.tuples(st.just("allocate"), sets, sizes, st.integers(0, 9)),
    st.tuples(st.just("fail"), sets, names, st.integers(0, 3)),
    st.tuples(st.just("lookup"), sets),
    st.tuples(st.just("write"), sets, st.integers(0, 255)),
    st.tuples(st.just("read"), sets),
    st.tuples(st.just("reduce"), sets),
    st.tuples(st.just("drop")),
    st.tuples(st.just("export"), sets),
    st.tuples(st.just("threads"), sets),
)
base = None


@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(steps, min_size=3, max_size=14))
def sequence(todo):
    global base
    if base is None:
        base = holdings()
    state = State()
    for name, *arguments in todo:
        getattr(state, name)(*arguments)
        done["steps"] += 1
    gc.collect()
    if done["sequences"] % 20 == 19:
        state.end()
    else:
        state.clear()
    assert holdings() == base, (holdings(), base, todo)
    done["sequences"] += 1


gc.collect()
gc.freeze()  # what is there before need not be looked through each time
began = time.monotonic()
sequence()
assert everyone(done) == [done] * n
assert simulator.counters().violations == 0, simulator.last_violation()
assert simulator.counters().misuses == 0, simulator.last_violation()
nvsym.finalize()
if me == 0:
    print(
        ", ".join(f"{count} {name}" for name, count in done.items()), f"on {n} PEs in {time.monotonic() - began:.1f} s"
    )
print("done")
