# SPDX-License-Identifier: Apache-2.0
"""Atomic memory operations (OpenSHMEM 1.5, section 9.7) on one element of a symmetric buffer of any PE.

They act on the one element of `dest`, a buffer or slice of length 1: 32- and 64-bit integers; float32 and float64 for fetch,
set, swap and add. They are atomic with respect to each other. Each is done when the call returns.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from .buffer cimport SHMEMBuffer, as_buffer
from .rma cimport bad_pe
from .types cimport (
    NVSYM_AMO_ADD, NVSYM_AMO_AND, NVSYM_AMO_COMPARE_SWAP, NVSYM_AMO_FETCH, NVSYM_AMO_OR, NVSYM_AMO_SET, NVSYM_AMO_SWAP,
    NVSYM_AMO_XOR, NVSYM_FLOAT32, NVSYM_FLOAT64, NVSYM_INT32, NVSYM_INT64, NVSYM_UINT32, NVSYM_UINT64)

cdef union Element:
    int32_t  i32
    uint32_t u32
    int64_t  i64
    uint64_t u64
    float    f32
    double   f64


cdef SHMEMBuffer as_target(object dest, int pe, bint floats):
    cdef SHMEMBuffer d = as_buffer(dest, "dest")
    cdef int t = d.type_id
    if t != NVSYM_INT64 and t != NVSYM_UINT64 and t != NVSYM_INT32 and t != NVSYM_UINT32 and not (
            floats and (t == NVSYM_FLOAT32 or t == NVSYM_FLOAT64)):
        raise TypeError(f"dest: no such atomic operation on {d.element.name}; int32, uint32, int64 and uint64 have all, float32 "
                        "and float64 have fetch, set, swap and add")
    if d.count != 1:
        raise ValueError(f"dest: an atomic operation acts on one element, not {d.count}; take a slice such as dest[3:4]")
    if pe < 0 or pe >= d.job.n_pes:
        bad_pe(pe, d.job.n_pes)
    return d


cdef int to_element(SHMEMBuffer d, object value, str name, Element *e) except -1:
    """The value as the element type of `d`; what does not fit raises."""
    cdef int t = d.type_id
    try:
        if t == NVSYM_INT64:
            e.i64 = value
        elif t == NVSYM_UINT64:
            e.u64 = value
        elif t == NVSYM_INT32:
            e.i32 = value
        elif t == NVSYM_UINT32:
            e.u32 = value
        elif t == NVSYM_FLOAT32:
            e.f32 = value
        else:
            e.f64 = value
    except OverflowError:
        raise ValueError(f"{name}: {value!r} is not in the range of {d.element.name}") from None
    except TypeError:
        raise TypeError(f"{name}: expected a number of {d.element.name}, not {type(value).__name__}") from None
    return 0


cdef object from_element(SHMEMBuffer d, const Element *e):
    """The element as a NumPy scalar."""
    cdef int t = d.type_id
    if t == NVSYM_INT64:
        return d.element.scalar(e.i64)
    if t == NVSYM_UINT64:
        return d.element.scalar(e.u64)
    if t == NVSYM_INT32:
        return d.element.scalar(e.i32)
    if t == NVSYM_UINT32:
        return d.element.scalar(e.u32)
    if t == NVSYM_FLOAT32:
        return d.element.scalar(e.f32)
    return d.element.scalar(e.f64)


cdef object fetch_with(SHMEMBuffer d, int amo, object value, int pe):
    cdef Element operand, old
    to_element(d, value, "value", &operand)
    d.job.backend.atomic(amo, d.type_id, d.ptr, &operand, NULL, &old, pe)
    return from_element(d, &old)


cdef int apply(SHMEMBuffer d, int amo, object value, int pe) except -1:
    cdef Element operand
    to_element(d, value, "value", &operand)
    d.job.backend.atomic(amo, d.type_id, d.ptr, &operand, NULL, NULL, pe)
    return 0


def atomic_fetch(dest, int pe):
    """The value of `dest` on PE `pe`, as a NumPy scalar."""
    cdef SHMEMBuffer d = as_target(dest, pe, True)
    cdef Element old
    d.job.backend.atomic(NVSYM_AMO_FETCH, d.type_id, d.ptr, NULL, NULL, &old, pe)
    return from_element(d, &old)


def atomic_set(dest, value, int pe):
    """Set `dest` on PE `pe` to `value`."""
    apply(as_target(dest, pe, True), NVSYM_AMO_SET, value, pe)


def atomic_add(dest, value, int pe):
    """Add `value` to `dest` on PE `pe`."""
    apply(as_target(dest, pe, True), NVSYM_AMO_ADD, value, pe)


def atomic_fetch_add(dest, value, int pe):
    """Add `value` to `dest` on PE `pe`; the value before, as a NumPy scalar."""
    return fetch_with(as_target(dest, pe, True), NVSYM_AMO_ADD, value, pe)


def atomic_inc(dest, int pe):
    """Add one to `dest` on PE `pe`."""
    apply(as_target(dest, pe, False), NVSYM_AMO_ADD, 1, pe)


def atomic_swap(dest, value, int pe):
    """Set `dest` on PE `pe` to `value`; the value before, as a NumPy scalar."""
    return fetch_with(as_target(dest, pe, True), NVSYM_AMO_SWAP, value, pe)


def atomic_compare_swap(dest, cond, value, int pe):
    """Set `dest` on PE `pe` to `value` if it equals `cond`; the value before, as a NumPy scalar."""
    cdef SHMEMBuffer d = as_target(dest, pe, False)
    cdef Element operand, expected, old
    to_element(d, cond, "cond", &expected)
    to_element(d, value, "value", &operand)
    d.job.backend.atomic(NVSYM_AMO_COMPARE_SWAP, d.type_id, d.ptr, &operand, &expected, &old, pe)
    return from_element(d, &old)


def atomic_and(dest, value, int pe):
    """Combine `dest` on PE `pe` with `value` by bitwise and."""
    apply(as_target(dest, pe, False), NVSYM_AMO_AND, value, pe)


def atomic_or(dest, value, int pe):
    """Combine `dest` on PE `pe` with `value` by bitwise or."""
    apply(as_target(dest, pe, False), NVSYM_AMO_OR, value, pe)


def atomic_xor(dest, value, int pe):
    """Combine `dest` on PE `pe` with `value` by bitwise exclusive or."""
    apply(as_target(dest, pe, False), NVSYM_AMO_XOR, value, pe)
