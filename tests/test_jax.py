# SPDX-License-Identifier: Apache-2.0
"""JAX on CPUs: arrays over buffers, and arrays into them."""

import gc
import pathlib
import re

import numpy as np
import pytest

import nvsym
from nvsym import SHMEMBuffer

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / "examples"
PES = pytest.mark.pes(1, 2, 4)


@PES
def test_arrays_in_and_out(ctx):
    me, n = ctx.my_pe(), ctx.n_pes()
    x = jnp.arange(1000, dtype=jnp.float32) + me
    b = SHMEMBuffer["f4"].from_dlpack(x)
    assert np.array_equal(b.to_numpy(), np.asarray(x))
    total = SHMEMBuffer["f4"](1000)
    nvsym.allreduce(total, b)
    out = jnp.from_dlpack(total)
    assert out.unsafe_buffer_pointer() == total.unsafe_ptr()
    assert jnp.array_equal(out, n * jnp.arange(1000, dtype=jnp.float32) + n * (n - 1) / 2)
    b.enqueue_copy_from(jnp.full(1000, 3, jnp.float32))
    assert (b.to_numpy() == 3).all()
    nvsym.barrier_all()
    nvsym.put(b[:10], jnp.full(10, me, jnp.float32), (me + 1) % n)
    nvsym.barrier_all()
    assert (b.to_numpy()[:10] == (me - 1) % n).all()
    peer = jnp.from_dlpack(b.peer((me + 1) % n))
    assert peer[0] == me
    assert peer[10] == 3
    nvsym.barrier_all()


@pytest.mark.pes(1)
def test_what_is_refused(ctx):
    b = SHMEMBuffer["f4"].zeros(6)
    with pytest.raises(TypeError, match=r"^src: "):
        b.enqueue_copy_from(jnp.zeros(6, jnp.int32))
    with pytest.raises(ValueError, match=r"^src: "):
        b.enqueue_copy_from(jnp.zeros(5, jnp.float32))
    with pytest.raises(TypeError, match=r"^tensor: "):
        SHMEMBuffer["f4"].from_dlpack(jnp.zeros(6, jnp.int32))


@pytest.mark.pes(2)
def test_an_array_keeps_freed_memory(ctx):
    live = ctx.heap.live
    b = SHMEMBuffer["i4"].full(8, 5)
    array = jnp.from_dlpack(b)
    b.free()
    others = [SHMEMBuffer["i4"].full(8, 7) for _ in range(4)]
    assert array.tolist() == [5] * 8
    del array, others
    gc.collect()
    nvsym.collect()
    assert ctx.heap.live == live


@pytest.mark.parametrize("n", [1, 4])
def test_the_example(mpirun, n):
    options = ["--samples", 512, "--steps", 30, "--backend", "host"]
    job = mpirun(n, EXAMPLES / "jax_regression.py", *options, timeout=120.0)
    assert job.stdout.startswith(f"{n} PEs, host backend, JAX ")
    assert "weights: the same on all PEs" in job.stdout
    assert re.search(r"differ from NumPy's by \S+ at most$", job.stdout.rstrip())
    assert not any(job.pe_stdout[1:])
