# SPDX-License-Identifier: Apache-2.0
"""What several test files check of a job: that it still works, and that a bad call is refused as promised."""

import contextlib
import time

import numpy as np
import pytest

import nvsym


def right_of(ctx):
    """The next PE of the ring."""
    return (ctx.my_pe() + 1) % ctx.n_pes()


def assert_usable(ctx):
    """A put around the ring, a barrier and an allreduce, in a new buffer."""
    me, n = ctx.my_pe(), ctx.n_pes()
    with nvsym.SHMEMBuffer[np.int64].zeros(2) as buffer:
        nvsym.put(buffer[0:1], np.array([me + 1]), right_of(ctx))
        nvsym.barrier_all()
        assert buffer.to_numpy()[0] == (me - 1) % n + 1
        nvsym.allreduce(buffer[1:2], buffer[0:1], "sum")
        assert buffer.to_numpy()[1] == n * (n + 1) // 2


@contextlib.contextmanager
def refused(ctx, error, *words):
    """What is done inside raises `error` on every PE soon, with these words, and the job works afterwards."""
    began = time.monotonic()
    with pytest.raises(error) as caught:
        yield
    assert time.monotonic() - began < 10
    for word in words:
        assert word in str(caught.value)
    assert_usable(ctx)


def random_array(dtype, n, seed):
    """`n` elements with random bytes, which are what a copy has to keep; valid ones for bool."""
    random = np.random.default_rng(seed)
    if dtype == np.bool_:
        return random.integers(0, 2, n).astype(bool)
    return random.integers(0, 256, n * dtype.itemsize, np.uint8).view(dtype)


def same_bytes(a, b):
    """Whether two arrays have the same type, shape and bytes; NaNs are compared too."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
