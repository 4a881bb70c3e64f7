# SPDX-License-Identifier: Apache-2.0
"""Every misuse for which NVSHMEM ends or crashes the process raises, and the job goes on."""

import numpy as np
import pytest

import nvsym

F32 = nvsym.SHMEMBuffer[np.float32]
U64 = nvsym.SHMEMBuffer[np.uint64]

# What is tried (on every PE), what it raises, what the message says. `s`: what a row needs, see `Things`.
MISUSES = {
    "allocate what does not fit": (lambda s: F32(1 << 40), nvsym.HeapExhaustedError, "asked for"),
    "allocate what no memory holds": (lambda s: F32(1 << 62), ValueError, "more than any memory"),
    "allocate a negative number": (lambda s: F32(-1), ValueError, "-1"),
    "different sizes": (lambda s: F32(10 + s.me), nvsym.CollectiveError, "differs"),
    "free twice": (lambda s: s.freed.free(), nvsym.FreedBufferError, "freed"),
    "free a view": (lambda s: s.b[1:3].free(), ValueError, "view"),
    "use a freed buffer": (lambda s: nvsym.put(s.freed, s.b, 0), nvsym.FreedBufferError, "freed"),
    "put from a freed buffer": (lambda s: nvsym.put(s.b, s.freed, 0), nvsym.FreedBufferError, "freed"),
    "put to a PE that is none": (lambda s: nvsym.put(s.b, s.b2, s.n), ValueError, "pe"),
    "put to PE -1": (lambda s: nvsym.put(s.b, s.b2, -1), ValueError, "pe"),
    "get from a PE that is none": (lambda s: nvsym.get(s.b, s.b2, s.n), ValueError, "pe"),
    "put of another length": (lambda s: nvsym.put(s.b, s.b2[:3], 0), ValueError, "source"),
    "put to memory that is not symmetric": (lambda s: nvsym.put(np.zeros(8, np.float32), s.b, 0), TypeError, "dest"),
    "put to an address": (lambda s: nvsym.put(s.b.unsafe_ptr(), s.b2, 0), TypeError, "dest"),
    "get into a read-only array": (lambda s: nvsym.get(s.readonly, s.b, 0), ValueError, "read-only"),
    "a signal that is no uint64": (lambda s: nvsym.signal_op(s.b[:1], 1, 0), TypeError, "uint64"),
    "a signal of two elements": (lambda s: nvsym.signal_op(s.signals, 1, 0), ValueError, "one element"),
    "a signal to a PE that is none": (lambda s: nvsym.signal_op(s.signals[:1], 1, s.n), ValueError, "pe"),
    "a wait with an unknown comparison": (lambda s: nvsym.signal_wait_until(s.signals[:1], "is", 1), ValueError, "cmp"),
    "adopt memory outside the heap": (lambda s: F32.adopt(4096, 4), ValueError, "symmetric heap"),
    "adopt across the end of the heap": (lambda s: F32.adopt(s.b.unsafe_ptr(), 1 << 40), ValueError, "symmetric heap"),
    "adopt NULL": (lambda s: F32.adopt(0, 4), ValueError, "no address"),
    "broadcast from a root that is none": (lambda s: nvsym.broadcast(s.b, s.b2, s.n), ValueError, "root"),
    "reduce of other lengths": (lambda s: nvsym.reduce(s.b, s.b2[:4]), ValueError, "dest"),
    "reduce by no operator": (lambda s: nvsym.reduce(s.b, s.b2, "mean"), ValueError, "mean"),
    "reduce that NVSHMEM lacks": (lambda s: nvsym.reduce(s.z, s.z), TypeError, "complex64"),
    "an algorithm that is not here": (lambda s: nvsym.reduce(s.b, s.b2, algorithm="mpi"), ValueError, "algorithm"),
    "overlapping dest and source": (lambda s: nvsym.reduce(s.b[0:4], s.b[2:6]), ValueError, "overlaps"),
    "a destroyed team": (lambda s: nvsym.barrier(s.gone), nvsym.NVSymError, "destroyed"),
    "destroy a predefined team": (lambda s: nvsym.TEAM_WORLD.destroy(), ValueError, "predefined"),
    "a team of PEs that are none": (lambda s: nvsym.TEAM_WORLD.split_strided(0, 1, s.n + 1), ValueError, "size"),
    "no stream": (lambda s: nvsym.barrier_all(stream="0"), TypeError, "stream"),
    "init with other arguments": (lambda s: nvsym.init(backend="host"), nvsym.NVSymError, "other arguments"),
    "a peer that is none": (lambda s: s.b.peer(s.n), ValueError, "pe"),
    "a multicast address": (lambda s: s.b.multicast(), nvsym.MulticastUnsupportedError, "disabled"),
}  # fmt: skip
ALONE = {"different sizes"}  # needs another PE


class Things:
    def __init__(self, ctx):
        self.me, self.n = ctx.my_pe(), ctx.n_pes()
        self.b, self.b2 = F32.full(8, 3), F32.full(8, 4)
        self.readonly = np.frombuffer(bytes(32), np.float32)
        self.z = nvsym.SHMEMBuffer[np.complex64].zeros(4)
        self.signals = U64.zeros(2)
        self.freed = F32(8)
        self.freed.free()
        self.gone = nvsym.TEAM_WORLD.split_strided(0, 1, self.n)
        self.gone.destroy()


@pytest.mark.pes(1, 2, 4, backends=("simulator", "nvshmem"))
def test_the_table(ctx, limited):
    things = Things(ctx)
    for name, (call, error, text) in MISUSES.items():
        if name in ALONE and things.n == 1:
            continue
        with pytest.raises(error) as caught:
            call(things)
        assert text in str(caught.value), f"{name}: {caught.value}"
        # The job goes on.
        nvsym.put(things.b, things.b2, (things.me + 1) % things.n)
        nvsym.barrier_all()
        ctx.synchronize()
        assert (things.b.to_numpy() == 4).all(), name
    if not limited:
        nvsym.allreduce(things.b, things.b2)
        assert (things.b.to_numpy() == 4 * things.n).all()


LIMITED = {
    "broadcast": lambda s: nvsym.broadcast(s.b, s.b2, 0),
    "reduce": lambda s: nvsym.reduce(s.b, s.b2),
    "reducescatter": lambda s: nvsym.reducescatter(s.b[: 8 // s.n], s.b2),
    "fcollect": lambda s: nvsym.fcollect(s.b, s.b2[: 8 // s.n]),
    "alltoall": lambda s: nvsym.alltoall(s.b, s.b2),
    "signal_wait_until": lambda s: nvsym.signal_wait_until(s.signals[:1], "eq", 0),
}


@pytest.mark.pes(2, backends=("simulator", "nvshmem"))
def test_without_mps(ctx, limited):
    """Where PEs share a GPU without MPS, what NVSHMEM cannot do raises on all PEs; what it can do works."""
    things = Things(ctx)
    if not limited:
        pytest.skip("limited sharing of a GPU: this job has MPS, or a GPU for each PE")
    for name, call in LIMITED.items():
        with pytest.raises(nvsym.NotAvailableError, match="nvidia-cuda-mps-control") as caught:
            call(things)
        assert name in str(caught.value)
    team = nvsym.TEAM_WORLD.split_strided(0, 1, 1)
    if team is not None:
        for call in (lambda: nvsym.barrier(team), lambda: nvsym.sync(team)):
            with pytest.raises(nvsym.NotAvailableError, match="MPS"):
                call()
        team.destroy()
    nvsym.sync_all()
    nvsym.put(things.b, things.b2, 1 - things.me)
    nvsym.put_signal(things.b, things.b2, things.signals[:1], 7, 1 - things.me)
    nvsym.barrier_all()
    ctx.synchronize()
    assert (things.b.to_numpy() == 4).all()
    assert things.signals.to_numpy()[0] == 7
    assert nvsym.atomic_fetch(things.signals[:1], 1 - things.me) == 7
    nvsym.barrier_all()
    ctx.synchronize()


BEFORE_INIT = [
    nvsym.my_pe, nvsym.n_pes, nvsym.quiet, nvsym.fence, nvsym.barrier_all, nvsym.sync_all, nvsym.collect,
    nvsym.finalize, nvsym.context, lambda: F32(4), lambda: F32.zeros(4), lambda: F32.adopt(4096, 1),
    lambda: nvsym.TEAM_WORLD.n_pes(),
    lambda: nvsym.TEAM_WORLD.split_strided(0, 1, 1), lambda: nvsym.barrier(nvsym.TEAM_NODE),
]  # fmt: skip


@pytest.mark.pes(1, 2, own_job=True, backends=("simulator", "nvshmem"))
def test_before_init_and_after_finalize(monkeypatch):
    def none_works():
        for call in BEFORE_INIT:
            with pytest.raises(nvsym.NotInitializedError):
                call()

    none_works()
    for name, text in (
        ("NVSHMEM_SYMMETRIC_SIZE", "abc"), ("NVSHMEM_SYMMETRIC_SIZE", "10X"), ("NVSHMEM_MAX_MEMORY_PER_GPU", "much"),
    ):  # fmt: skip
        monkeypatch.setenv(name, text)
        with pytest.raises(nvsym.SettingError, match=name):
            nvsym.init(backend="nvshmem")
        monkeypatch.delenv(name)
    for size in ("10T", 1 << 45, "300G"):
        with pytest.raises(nvsym.HeapExhaustedError, match="free"):
            nvsym.init(backend="nvshmem", heap_size=size)
    for device, error in ((99, nvsym.NotAvailableError), ("0", TypeError), (nvsym.Device.cpu(), ValueError)):
        with pytest.raises(error):
            nvsym.init(backend="nvshmem", device=device)
    none_works()
    ctx = nvsym.init(backend="nvshmem")
    b, team = F32.full(4, 2), nvsym.TEAM_WORLD.split_strided(0, 1, nvsym.n_pes())
    stream, event = nvsym.Stream(), nvsym.Event()
    nvsym.finalize()
    none_works()
    for call in (
        b.to_numpy, b.free, ctx.my_pe, lambda: nvsym.put(b, b, 0), lambda: nvsym.reduce(b, b),
        lambda: nvsym.barrier(team),
    ):  # fmt: skip
        with pytest.raises(nvsym.NotInitializedError):
            call()
    event.record(stream)
    stream.synchronize()


@pytest.mark.pes(1, 2, 4, own_job=True, timeout=180, backends=("simulator", "nvshmem"))
def test_init_and_finalize_20_times():
    for i in range(20):
        ctx = nvsym.init(backend="nvshmem", heap_size="64M")
        me, n = ctx.my_pe(), ctx.n_pes()
        b, landed = F32.full(10, me + i), F32.zeros(10)
        nvsym.put(landed, b, (me + 1) % n)
        nvsym.barrier_all()
        ctx.synchronize()
        assert (landed.to_numpy() == (me - 1) % n + i).all()
        nvsym.atomic_add(U64.zeros(1), 1, me)
        nvsym.finalize()
        assert not nvsym.is_initialized()
