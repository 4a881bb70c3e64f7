# SPDX-License-Identifier: Apache-2.0
"""PE 2 ends in the middle of a driver call of an allocation, without a word: the others end with an error.

``death.py FUNCTION FOLDER``: each writes what it raised to a file there.
"""

import os
import sys
from pathlib import Path

from common import Pool, begin, nvsym, raises, simulator, time

ctx = begin()
simulator.fail(f"{sys.argv[1]}:1:exit@pe2")
before = simulator.counters().memory()
began = time.monotonic()
error = raises(nvsym.PeerExitedError, "PE 2 on ", call=lambda: Pool.allocate(ctx.devices(), 1 << 20))
took = time.monotonic() - began
assert took < 5, took
assert simulator.counters().memory() == before
raises(nvsym.NVSymError, "can no longer agree", call=lambda: Pool.allocate(ctx.devices(), 1 << 20))
(Path(sys.argv[2]) / str(ctx.my_pe())).write_text(f"{type(error).__name__} after {took:.2f} s: {error}")
while len(list(Path(sys.argv[2]).iterdir())) < 3:
    time.sleep(0.01)
os._exit(0)  # the job is not whole any more, and cannot be finalized
