# SPDX-License-Identifier: Apache-2.0
"""What the programs of tests/test_pool.py share. They run on the simulated driver, one PE for each GPU or one for all."""

import os
import time

import numpy as np
import pytest

import nvsym
from nvsym import pool as pool_module
from nvsym import simulator
from nvsym.multicast import driver_calls

Pool = nvsym.SymmetricPool


def begin(**options):
    """A job on the simulated GPUs."""
    return nvsym.init(backend="nvshmem", heap_size="4M", **options)


def local_devices(n):
    return [nvsym.Device(i) for i in range(n)]


def descriptors():
    """The open files of this process, by what they are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # that of the listing itself
            continue
    return found


def holdings():
    """What must be as before once an allocation has failed, or a pool is gone."""
    return simulator.counters().memory(), len(descriptors())


def drop(pool):
    """Give a pool back, and hear that nothing failed."""
    assert pool_module._drop(pool) == []


def meet():
    """A barrier that leaves the cores to those that are late."""
    from mpi4py import MPI

    request = MPI.COMM_WORLD.Ibarrier()
    while not request.Test():
        time.sleep(1e-4)


def everyone(value):
    """The values of all PEs."""
    from mpi4py import MPI

    meet()
    return MPI.COMM_WORLD.allgather(value)


def raises(error, *texts, call):
    """What `call` raises, which is an `error` with these texts in it."""
    with pytest.raises(error) as caught:
        call()
    for text in texts:
        assert text in str(caught.value), (text, str(caught.value))
    return caught.value


def fill(pool, device, value, n=64):
    pool.unicast_view(device)[:n].inplace_copy_from(np.full(n, value, np.uint8))


def first_bytes(pool, device, n=64):
    return pool.unicast_view(device)[:n].to_numpy()


def check_views(pool, mine, wait):
    """Each PE (or device) writes its memory, and sees what the others wrote to theirs."""

    def number(device):
        return 1 + (device.ordinal if device.pe < 0 else device.pe)

    for device in mine:
        fill(pool, device, number(device))
    wait()
    for device in pool.devices:
        assert (first_bytes(pool, device) == number(device)).all(), device
    wait()
    views = [pool.unicast_view(device)._data_ptr() for device in pool.devices]
    assert len(set(views)) == len(views)
    for device in pool.devices:
        overlay = pool.multicast_view(device)
        assert overlay._data_ptr() not in views
        assert overlay.nbytes == pool.unicast_view(device).nbytes == pool.byte_size


__all__ = [
    "Pool",
    "begin",
    "check_views",
    "descriptors",
    "driver_calls",
    "drop",
    "everyone",
    "fill",
    "first_bytes",
    "holdings",
    "local_devices",
    "meet",
    "np",
    "nvsym",
    "pool_module",
    "raises",
    "simulator",
    "time",
]
