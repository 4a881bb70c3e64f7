# SPDX-License-Identifier: Apache-2.0
"""Atomic memory operations (OpenSHMEM 1.5, section 9.7) on one element of a symmetric buffer of any PE.

They act on the one element of `dest`, a buffer or slice of length 1: 32- and 64-bit integers; float32 and float64 for fetch,
set, swap and add. They are atomic with respect to each other. Each is done when the call returns.
"""

from cpython.float cimport PyFloat_Check
from cpython.long cimport PyLong_Check
from cpython.number cimport PyNumber_Index
from libc.math cimport isinf
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

import numpy as np

from .buffer cimport SHMEMBuffer, as_buffer, as_pe
from .types cimport (
    NVSYM_AMO_ADD, NVSYM_AMO_AND, NVSYM_AMO_COMPARE_SWAP, NVSYM_AMO_FETCH, NVSYM_AMO_OR, NVSYM_AMO_SET, NVSYM_AMO_SWAP,
    NVSYM_AMO_XOR, NVSYM_DTYPE_COUNT, NVSYM_FLOAT32, NVSYM_FLOAT64, NVSYM_INT32, NVSYM_INT64, NVSYM_UINT32,
    NVSYM_UINT64)

cdef union Element:
    int32_t  i32
    uint32_t u32
    int64_t  i64
    uint64_t u64
    float    f32
    double   f64


cdef SHMEMBuffer as_target(object dest, object pe, bint floats, int *number):
    cdef SHMEMBuffer d = as_buffer(dest, "dest")
    cdef int t = d.type_id
    if t != NVSYM_INT64 and t != NVSYM_UINT64 and t != NVSYM_INT32 and t != NVSYM_UINT32 and not (
            floats and (t == NVSYM_FLOAT32 or t == NVSYM_FLOAT64)):
        raise TypeError(f"dest: no such atomic operation on {d.element.name}; int32, uint32, int64 and uint64 have all, float32 "
                        "and float64 have fetch, set, swap and add")
    if d.count != 1:
        raise ValueError(f"dest: an atomic operation acts on one element, not {d.count}; take a slice such as dest[3:4]")
    number[0] = as_pe(pe, d.job.n_pes)
    return d


cdef int to_element(SHMEMBuffer d, object value, str name, Element *e) except -1:
    """The value as the element type of `d`; what does not fit raises."""
    cdef int t = d.type_id
    try:
        if not PyLong_Check(value):
            if t != NVSYM_FLOAT32 and t != NVSYM_FLOAT64:
                value = PyNumber_Index(value)   # a float would be cut off
            elif not PyFloat_Check(value) and (np.iscomplexobj(value) or np.ma.is_masked(value)):
                raise TypeError     # NumPy would drop the imaginary part, and make NaN of what is masked
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
            if isinf(e.f32) and not isinf(<double> value):
                raise OverflowError
        else:
            e.f64 = value
    except OverflowError:
        raise ValueError(f"{name}: {value!r} is not in the range of {d.element.name}") from None
    except TypeError:
        raise TypeError(f"{name}: expected a number of {d.element.name}, not {type(value).__name__}") from None
    return 0


# A scalar is read from an array in a third of the time that it takes to make one from a number. Under the GIL all calls
# share one array of each type.
cdef list SCALARS = [None] * NVSYM_DTYPE_COUNT
cdef Element *SCALAR_MEMORY[NVSYM_DTYPE_COUNT]


cdef int make_scalars() except -1:
    for t, name in ((NVSYM_INT32, "int32"), (NVSYM_UINT32, "uint32"), (NVSYM_INT64, "int64"), (NVSYM_UINT64, "uint64"),
                    (NVSYM_FLOAT32, "float32"), (NVSYM_FLOAT64, "float64")):
        memory = np.zeros(1, np.uint64)
        SCALARS[t] = memory.view(name)
        SCALAR_MEMORY[<int> t] = <Element *> <size_t> memory.ctypes.data
    return 0


make_scalars()


cdef object from_element(SHMEMBuffer d, const Element *e):
    """The element as a NumPy scalar."""
    SCALAR_MEMORY[d.type_id][0] = e[0]
    return SCALARS[d.type_id][0]


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


def atomic_fetch(dest, pe):
    """The value of `dest` on PE `pe`, as a NumPy scalar."""
    cdef int number = 0
    cdef SHMEMBuffer d = as_target(dest, pe, True, &number)
    cdef Element old
    d.job.backend.atomic(NVSYM_AMO_FETCH, d.type_id, d.ptr, NULL, NULL, &old, number)
    return from_element(d, &old)


def atomic_set(dest, value, pe):
    """Set `dest` on PE `pe` to `value`."""
    cdef int number = 0
    apply(as_target(dest, pe, True, &number), NVSYM_AMO_SET, value, number)


def atomic_add(dest, value, pe):
    """Add `value` to `dest` on PE `pe`."""
    cdef int number = 0
    apply(as_target(dest, pe, True, &number), NVSYM_AMO_ADD, value, number)


def atomic_fetch_add(dest, value, pe):
    """Add `value` to `dest` on PE `pe`; the value before, as a NumPy scalar."""
    cdef int number = 0
    return fetch_with(as_target(dest, pe, True, &number), NVSYM_AMO_ADD, value, number)


def atomic_inc(dest, pe):
    """Add one to `dest` on PE `pe`."""
    cdef int number = 0
    apply(as_target(dest, pe, False, &number), NVSYM_AMO_ADD, 1, number)


def atomic_swap(dest, value, pe):
    """Set `dest` on PE `pe` to `value`; the value before, as a NumPy scalar."""
    cdef int number = 0
    return fetch_with(as_target(dest, pe, True, &number), NVSYM_AMO_SWAP, value, number)


def atomic_compare_swap(dest, cond, value, pe):
    """Set `dest` on PE `pe` to `value` if it equals `cond`; the value before, as a NumPy scalar."""
    cdef int number = 0
    cdef SHMEMBuffer d = as_target(dest, pe, False, &number)
    cdef Element operand, expected, old
    to_element(d, cond, "cond", &expected)
    to_element(d, value, "value", &operand)
    d.job.backend.atomic(NVSYM_AMO_COMPARE_SWAP, d.type_id, d.ptr, &operand, &expected, &old, number)
    return from_element(d, &old)


def atomic_and(dest, value, pe):
    """Combine `dest` on PE `pe` with `value` by bitwise and."""
    cdef int number = 0
    apply(as_target(dest, pe, False, &number), NVSYM_AMO_AND, value, number)


def atomic_or(dest, value, pe):
    """Combine `dest` on PE `pe` with `value` by bitwise or."""
    cdef int number = 0
    apply(as_target(dest, pe, False, &number), NVSYM_AMO_OR, value, number)


def atomic_xor(dest, value, pe):
    """Combine `dest` on PE `pe` with `value` by bitwise exclusive or."""
    cdef int number = 0
    apply(as_target(dest, pe, False, &number), NVSYM_AMO_XOR, value, number)
