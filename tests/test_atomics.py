# SPDX-License-Identifier: Apache-2.0
"""Atomic operations: each with each type against NumPy, their ranges, and that they are atomic."""

import numpy as np
import pytest

import nvsym

PES = pytest.mark.pes(1, 2, 4)
NODES = pytest.mark.pes(4, nodes=2)
INTEGERS = ("int32", "uint32", "int64", "uint64")
FLOATS = ("float32", "float64")


def samples(dtype):
    if dtype in FLOATS:
        limits = np.finfo(dtype)
        return [0.0, -0.0, 1.5, -2.25, 1e30, float(limits.tiny), float(limits.max)]
    limits = np.iinfo(dtype)
    return [0, 1, 5, limits.max // 3, limits.max, limits.min, limits.min + 1]


def same(a, b):
    """Equal to the bit, and of one type."""
    return type(a) is type(b) and a.tobytes() == b.tobytes()


@PES
@NODES
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_each_operation_against_numpy(ctx, dtype):
    me, n = ctx.my_pe(), ctx.n_pes()
    scalar = np.dtype(dtype).type
    cells = nvsym.SHMEMBuffer[dtype].zeros(n)
    mine = cells[me : me + 1]  # each PE works in a cell of its own on each PE
    operations = {
        nvsym.atomic_set: (False, lambda old, value: value),
        nvsym.atomic_swap: (True, lambda old, value: value),
        nvsym.atomic_add: (False, lambda old, value: old + value),
        nvsym.atomic_fetch_add: (True, lambda old, value: old + value),
    }
    if dtype in INTEGERS:
        operations |= {
            nvsym.atomic_and: (False, lambda old, value: old & value),
            nvsym.atomic_or: (False, lambda old, value: old | value),
            nvsym.atomic_xor: (False, lambda old, value: old ^ value),
        }
    with np.errstate(over="ignore"):
        for pe in range(n):
            for function, (fetches, expected) in operations.items():
                for old in map(scalar, samples(dtype)):
                    for value in map(scalar, samples(dtype)):
                        nvsym.atomic_set(mine, old, pe)
                        result = function(mine, value, pe)
                        assert same(result, old) if fetches else result is None
                        assert same(nvsym.atomic_fetch(mine, pe), scalar(expected(old, value))), (function, old, value)
    nvsym.barrier_all()


@PES
@NODES
@pytest.mark.parametrize("dtype", INTEGERS)
def test_compare_swap_and_inc(ctx, dtype):
    me, n = ctx.my_pe(), ctx.n_pes()
    scalar = np.dtype(dtype).type
    cells = nvsym.SHMEMBuffer[dtype].zeros(n)
    mine = cells[me : me + 1]
    for pe in range(n):
        for old in map(scalar, samples(dtype)):
            for cond in map(scalar, samples(dtype)):
                nvsym.atomic_set(mine, old, pe)
                assert same(nvsym.atomic_compare_swap(mine, cond, 77, pe), old)
                assert same(nvsym.atomic_fetch(mine, pe), scalar(77) if old == cond else old)
        nvsym.atomic_set(mine, np.iinfo(dtype).max, pe)
        assert nvsym.atomic_inc(mine, pe) is None
        assert nvsym.atomic_fetch(mine, pe) == np.iinfo(dtype).min  # it wraps around
    nvsym.barrier_all()


@PES
@NODES
def test_values_of_python_and_numpy(ctx):
    cell = nvsym.SHMEMBuffer["int32"].zeros(1)
    me = ctx.my_pe()
    for value in (7, np.int32(7), np.int64(7), np.uint8(7), np.array(7), True + 6):
        nvsym.atomic_set(cell, value, me)
        assert nvsym.atomic_fetch(cell, me) == 7
    real = nvsym.SHMEMBuffer["float32"].zeros(1)
    for value in (0.1, np.float32(0.1), np.float64(0.1)):
        nvsym.atomic_set(real, value, me)
        assert nvsym.atomic_fetch(real, me) == np.float32(0.1)
    nvsym.atomic_set(real, 3, me)
    assert nvsym.atomic_swap(real, float("nan"), me) == 3
    assert np.isnan(nvsym.atomic_fetch(real, me))


@PES
@NODES
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_concurrent_adds_are_all_counted(ctx, dtype):
    me, n, rounds = ctx.my_pe(), ctx.n_pes(), 300
    counters = nvsym.SHMEMBuffer[dtype].zeros(2)
    total, tickets = counters[:1], counters[1:]
    nvsym.barrier_all()
    mine = []
    for i in range(rounds):
        nvsym.atomic_add(total, me + 1, i % n)
        mine.append(int(nvsym.atomic_fetch_add(tickets, 1, 0)))
    nvsym.barrier_all()
    here = [sum(1 for i in range(rounds) if i % n == pe) for pe in range(n)][me]
    assert nvsym.atomic_fetch(total, me) == here * n * (n + 1) // 2
    # Every ticket was handed out once, and each PE's grow.
    assert mine == sorted(set(mine))
    everyone = nvsym.SHMEMBuffer["int64"].zeros(n * rounds)
    nvsym.fcollect(everyone, nvsym.SHMEMBuffer["int64"].from_numpy(np.array(mine)))
    assert sorted(everyone.to_numpy().tolist()) == list(range(n * rounds))
    nvsym.barrier_all()


@PES
@NODES
def test_a_lock_by_compare_swap(ctx):
    """A critical section around reads and writes that are not atomic."""
    me, n, rounds = ctx.my_pe(), ctx.n_pes(), 40
    lock = nvsym.SHMEMBuffer["int64"].zeros(1)
    value = nvsym.SHMEMBuffer["int64"].zeros(1)
    got = np.zeros(1, np.int64)
    nvsym.barrier_all()
    for _ in range(rounds):
        while nvsym.atomic_compare_swap(lock, 0, me + 1, 0) != 0:
            pass
        nvsym.get(got, value, 0)
        ctx.stream.synchronize()
        nvsym.put(value, got + 1, 0)
        nvsym.quiet()
        assert nvsym.atomic_swap(lock, 0, 0) == me + 1
    nvsym.barrier_all()
    nvsym.get(got, value, 0)
    ctx.stream.synchronize()
    assert got[0] == n * rounds
    nvsym.barrier_all()


@PES
@NODES
def test_signals_and_atomics_meet(ctx):
    """A signal is a uint64 like another: atomics see it, and a wait sees atomics."""
    me, n = ctx.my_pe(), ctx.n_pes()
    signal = nvsym.SHMEMBuffer["uint64"].zeros(1)
    nvsym.barrier_all()
    for pe in range(n):
        if me % 2:
            nvsym.signal_op(signal, 3, pe, op="add")
        else:
            nvsym.atomic_add(signal, 3, pe)
    nvsym.signal_wait_until(signal, "eq", 3 * n)
    nvsym.barrier_all()
    nvsym.atomic_set(signal, 2**64 - 1, (me + 1) % n)
    nvsym.signal_wait_until(signal, "eq", 2**64 - 1)
    nvsym.barrier_all()


@pytest.mark.pes(2)
@pytest.mark.pes(2, nodes=2)
def test_bad_arguments_change_nothing(ctx):
    cells = {
        dtype: nvsym.SHMEMBuffer[dtype].full(2, 1)
        for dtype in ("int8", "int32", "uint64", "float32", "float64", "bool", "float16")
    }
    c = cells["int32"]
    one, real, unsigned = c[:1], cells["float32"][:1], cells["uint64"][:1]
    bad = [
        (lambda: nvsym.atomic_add(c, 1, 0), ValueError, r"dest.*one element, not 2.*\[3:4\]"),
        (lambda: nvsym.atomic_fetch(c[:0], 0), ValueError, "dest.*one element"),
        (lambda: nvsym.atomic_add(cells["int8"][:1], 1, 0), TypeError, "dest.*int8"),
        (lambda: nvsym.atomic_fetch(cells["bool"][:1], 0), TypeError, "dest.*bool"),
        (lambda: nvsym.atomic_fetch(cells["float16"][:1], 0), TypeError, "dest.*float16"),
        (lambda: nvsym.atomic_and(real, 1, 0), TypeError, "dest.*float32.*fetch, set, swap and add"),
        (lambda: nvsym.atomic_compare_swap(cells["float64"][:1], 1, 2, 0), TypeError, "dest.*float64"),
        (lambda: nvsym.atomic_inc(real, 0), TypeError, "dest.*float32"),
        (lambda: nvsym.atomic_set(one, 2**31, 0), ValueError, "value: 2147483648 .*int32"),
        (lambda: nvsym.atomic_set(one, -(2**31) - 1, 0), ValueError, "value: -2147483649 .*int32"),
        (lambda: nvsym.atomic_set(unsigned, -1, 0), ValueError, "value: -1 .*uint64"),
        (lambda: nvsym.atomic_add(unsigned, 2**64, 0), ValueError, "value.*uint64"),
        (lambda: nvsym.atomic_compare_swap(one, 2**40, 1, 0), ValueError, "cond.*int32"),
        (lambda: nvsym.atomic_compare_swap(one, 1, 2**40, 0), ValueError, "value.*int32"),
        (lambda: nvsym.atomic_set(one, 1.5, 0), TypeError, "value.*float"),
        (lambda: nvsym.atomic_set(one, "1", 0), TypeError, "value.*str"),
        (lambda: nvsym.atomic_set(real, "1", 0), TypeError, "value.*str"),
        (lambda: nvsym.atomic_set(one, None, 0), TypeError, "value.*NoneType"),
        (lambda: nvsym.atomic_set(one, np.array([1, 2]), 0), TypeError, "value"),
        (lambda: nvsym.atomic_set(real, 1e39, 0), ValueError, "value: 1e.39 .*float32"),
        (lambda: nvsym.atomic_set(real, 1j, 0), TypeError, "value.*complex"),
        (lambda: nvsym.atomic_set(real, np.complex64(1j), 0), TypeError, "value.*complex64"),
        (lambda: nvsym.atomic_add(real, np.array(1j), 0), TypeError, "value.*ndarray"),
        (lambda: nvsym.atomic_add(real, np.ma.masked, 0), TypeError, "value.*MaskedConstant"),
        (lambda: nvsym.atomic_set(np.zeros(1, np.int32), 1, 0), TypeError, "dest.*SHMEMBuffer"),
        (lambda: nvsym.atomic_set(one, 1, 2), ValueError, "pe: 2"),
        (lambda: nvsym.atomic_set(one, 1, -1), ValueError, "pe: -1"),
        (lambda: nvsym.atomic_fetch(one, "0"), TypeError, "pe: .*str"),
    ]
    for call, error, text in bad:
        with pytest.raises(error, match=text):
            call()
    freed = nvsym.SHMEMBuffer["int32"].zeros(1)
    freed.free()
    with pytest.raises(nvsym.FreedBufferError):
        nvsym.atomic_fetch(freed, 0)
    nvsym.barrier_all()
    for dtype, buffer in cells.items():
        assert (buffer.to_numpy() == np.ones(2, buffer.dtype)).all(), dtype
