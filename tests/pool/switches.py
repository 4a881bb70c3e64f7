# SPDX-License-Identifier: Apache-2.0
"""A setting that forbids multicast, on any one PE, keeps all PEs from every multicast call."""

import logging
import os

from common import Pool, begin, everyone, holdings, local_devices, meet, nvsym, raises, simulator, time

SWITCHES = {
    "NVSYM_DISABLE_MULTICAST": ("1", "0"),
    "NVSHMEM_DISABLE_NVLS": ("1", "0"),
    "NCCL_NVLS_ENABLE": ("0", "1"),
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": ("1", "0"),
}

for name in SWITCHES:
    os.environ.pop(name, None)

ctx = begin()
me, n = ctx.my_pe(), ctx.n_pes()
meet()
before = holdings()
for name, (forbids, _) in SWITCHES.items():
    # Set in the middle of a job.
    for pe in range(n):
        if me == pe:
            os.environ[name] = forbids
            assert not Pool.is_supported(ctx.devices())
            assert Pool.why_unsupported(ctx.devices()) == f"disabled by {name}={forbids}"
            text = Pool.why_unsupported(ctx.devices()[:1])
            assert text.startswith(f"disabled by {name}={forbids}; and")
            assert "two GPUs" in text
            # Of this process alone, without and with a mistake in the call.
            for devices in (local_devices(2), local_devices(1), [nvsym.Device(0)] * 2):
                raises(
                    nvsym.MulticastUnsupportedError,
                    f"disabled by {name}={forbids}",
                    call=lambda d=devices: Pool.allocate(d, 100),
                )
            # A wrong argument does not hide it.
            raises(
                nvsym.MulticastUnsupportedError,
                f"disabled by {name}={forbids}",
                call=lambda: Pool.allocate(local_devices(2), 0),
            )
        error = raises(
            nvsym.MulticastUnsupportedError,
            f"disabled by {name}={forbids} on PE {pe}",
            call=lambda: Pool.allocate(ctx.devices(), 100),
        )
        assert everyone(str(error)) == [str(error)] * n
        raises(
            nvsym.MulticastUnsupportedError,
            f"disabled by {name}",
            call=lambda: Pool.allocate(ctx.devices(), 100 if me else -1),
        )
        logging.getLogger("nvsym").setLevel(logging.ERROR)
        assert nvsym.MulticastPool.allocate_or_none(ctx.devices(), 100) is None
        os.environ.pop(name, None)
        assert holdings() == before
nvsym.finalize()

# Set at the beginning of a job, on one PE: all know.
for i, (name, (forbids, _)) in enumerate(SWITCHES.items()):
    pe = i % n
    if me == pe:
        os.environ[name] = forbids
    ctx = begin()
    devices = ctx.devices()
    assert not Pool.is_supported(devices)
    assert f"disabled by {name}={forbids}" in Pool.why_unsupported(ctx.devices())
    multicast = {row[0]: row[1:] for row in ctx.capabilities()}["multicast"]
    assert multicast == (False, f"disabled by {name}={forbids} on PE {pe}")
    raises(
        nvsym.MulticastUnsupportedError,
        f"disabled by {name}={forbids} on PE {pe}",
        call=lambda devices=devices: Pool.allocate(devices, 100),
    )
    nvsym.finalize()
    os.environ.pop(name, None)

made = [name for name in simulator.call_counts() if name.startswith("cuMulticast")]
assert made == [], made
assert simulator.calls("cuMemCreate") == 0

# The harmless values forbid nothing.
meet()
print(f"allowed from {time.monotonic()}")
os.environ.update({name: harmless for name, (_, harmless) in SWITCHES.items()})
ctx = begin()
assert Pool.is_supported(ctx.devices()), Pool.why_unsupported(ctx.devices())
Pool.allocate(ctx.devices(), 100)
meet()
nvsym.finalize()
assert simulator.calls("cuMulticastCreate") == (me == 0)
print("done")
