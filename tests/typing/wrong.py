# SPDX-License-Identifier: Apache-2.0
# Not run: each marked line is an error to a type checker, and no other line is.
import numpy as np

import nvsym
from nvsym import SHMEMBuffer

a = SHMEMBuffer[np.float32](10)
b = SHMEMBuffer[np.float64](10)
i = np.zeros(10, np.int64)
c: SHMEMBuffer[np.int32] = SHMEMBuffer[np.float32](10)  # error
SHMEMBuffer[np.float32]("ten")  # error
SHMEMBuffer[int](10)  # error
a[3]  # error
SHMEMBuffer[np.float32].from_numpy([1.0, 2.0])  # error
nvsym.allreduce(a, b)  # error
nvsym.allreduce(a, a, "mean")  # error
nvsym.put(np.zeros(10), a, 1)  # error
nvsym.put(a, a, "one")  # error
nvsym.put(a, b, 1)  # error
nvsym.put(a, np.zeros(10), 1)  # error
nvsym.put(a, [1.0] * 10, 1)  # error
nvsym.get(a, b, 1)  # error
nvsym.get(np.zeros(10), a, 1)  # error
nvsym.put_signal(a, b, SHMEMBuffer[np.uint64](1), 1, 0)  # error
a.enqueue_copy_from(b)  # error
a.enqueue_copy_from(np.zeros(10))  # error
a.enqueue_copy_to(i)  # error
a.enqueue_copy_to("a name")  # error
nvsym.put_signal(a, a, a, 1, 0)  # error
nvsym.signal_wait_until(SHMEMBuffer[np.uint64](1), "above", 1)  # error
nvsym.barrier_all(stream="stream")  # error
nvsym.init(backend="cuda")  # error
nvsym.Stream().handle = 3  # error
