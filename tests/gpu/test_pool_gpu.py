# SPDX-License-Identifier: Apache-2.0
"""A pool where there can be none: one GPU, and multicast that is switched off. Nothing is made, and the reasons are told."""

import logging

import pytest

import nvsym
from nvsym.multicast import driver_calls

pytestmark = pytest.mark.pes(1, 2, backends=("simulator", "nvshmem"))
Pool = nvsym.SymmetricPool


@pytest.fixture(autouse=True)
def no_call():
    """No driver call of a pool is made."""
    before = driver_calls()
    yield
    assert driver_calls() == before
    assert not any(name.startswith("cuMulticast") for name in driver_calls())


def reasons(devices):
    """What `why_unsupported` says, and that is_supported, allocate and lookup agree with it."""
    why = Pool.why_unsupported(devices)
    assert Pool.is_supported(devices) is False
    assert Pool.lookup(devices) is None
    with pytest.raises(RuntimeError) as caught:
        Pool.allocate(devices, 1 << 20)
    assert isinstance(caught.value, nvsym.MulticastUnsupportedError)
    for part in why.split("; and "):
        assert part in str(caught.value)
    return why


def test_one_gpu_of_this_process(ctx):
    gpu = nvsym.Device(0)
    why = reasons([gpu])
    assert why.startswith("disabled by NVSHMEM_DISABLE_NVLS=1")
    assert why.endswith("; and multicast takes two GPUs at least, not 1")


def test_one_gpu_named_twice(ctx):
    why = reasons([nvsym.Device(0), nvsym.Device(0)])
    assert why.startswith("disabled by NVSHMEM_DISABLE_NVLS=1")
    assert "are the same GPU, and a pool has each once" in why


def test_gpus_of_the_job(ctx):
    """Of one PE; of two PEs, on a GPU each or on the same one."""
    why = reasons(ctx.devices())
    assert why.startswith("disabled by NVSHMEM_DISABLE_NVLS=1")
    if ctx.n_pes() == 1:
        assert "two GPUs" in why
    elif len({device.uuid for device in ctx.devices()}) == 1:
        assert "same GPU" in why
    capability = {name: (has, why) for name, has, why in ctx.capabilities()}["symmetric_pool"]
    assert capability[0] is False
    assert capability[1].startswith("disabled by NVSHMEM_DISABLE_NVLS=1")


def test_host_memory_is_no_gpu(ctx):
    assert "no GPU" in reasons([nvsym.Device(0), nvsym.Device.cpu()])


def test_caller_goes_on_without(ctx, caplog):
    with caplog.at_level(logging.WARNING, logger="nvsym"):
        assert nvsym.MulticastPool.allocate_or_none(ctx.devices(), 1 << 20) is None
    assert "NVSHMEM_DISABLE_NVLS" in caplog.text
    assert "peer pointers" in caplog.text
