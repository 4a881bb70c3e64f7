# SPDX-License-Identifier: Apache-2.0
"""The loops of benchmarks/cimport_put: each counts its nanoseconds itself, without the GIL."""

from libc.stdint cimport int64_t, uint64_t

from nvsym cimport (
    NVSYM_SIGNAL_SET, SHMEMBuffer, import_nvsym, nvsym_check, nvsym_data, nvsym_peer_ptr, nvsym_put,
    nvsym_put_signal, nvsym_signal_op)

cdef extern from "by_hand.h" nogil:
    void hand_store(uint64_t *there, uint64_t value, uint64_t *flag, uint64_t number) noexcept
    void hand_wait(const uint64_t *flag, uint64_t number) noexcept

cdef extern from *:
    """
    #include <time.h>
    static inline int64_t now_ns(void)
    {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }
    #define TABLE_PUT_SIGNAL nvsym_api_->put_signal
    """
    int64_t now_ns() noexcept nogil
    int TABLE_PUT_SIGNAL(void *dest, const void *source, size_t nbytes, uint64_t *signal, uint64_t value, int op, int pe,
                         void *stream) noexcept nogil

import_nvsym()

cdef enum:
    SLOTS = 512


def issue(str how, SHMEMBuffer slots not None, SHMEMBuffer flag not None, int pe, int64_t n):
    """Nanoseconds of `n` puts of 8 bytes to the slots of PE `pe`, one after the other, each with its flag."""
    cdef uint64_t *data = nvsym_data[uint64_t](slots)
    cdef uint64_t *signal = nvsym_data[uint64_t](flag)
    cdef uint64_t *there = <uint64_t *> nvsym_peer_ptr(data, pe)
    cdef uint64_t *signal_there = <uint64_t *> nvsym_peer_ptr(signal, pe)
    cdef uint64_t value
    cdef int64_t i, start = 0
    cdef int failed = 0
    if slots.count != SLOTS or there == NULL or signal_there == NULL:
        raise ValueError("the benchmark needs memory that can be addressed")
    if how == "by hand":
        with nogil:
            start = now_ns()
            for i in range(n):
                value = <uint64_t> i
                hand_store(&there[i & (SLOTS - 1)], value, signal_there, value)
    elif how == "put_signal":
        with nogil:
            start = now_ns()
            for i in range(n):
                value = <uint64_t> i
                failed |= nvsym_put_signal(&data[i & (SLOTS - 1)], &value, sizeof(value), signal, value, NVSYM_SIGNAL_SET, pe,
                                           NULL)
    elif how == "put, signal_op":
        with nogil:
            start = now_ns()
            for i in range(n):
                value = <uint64_t> i
                failed |= nvsym_put(&data[i & (SLOTS - 1)], &value, sizeof(value), pe, NULL)
                failed |= nvsym_signal_op(signal, value, NVSYM_SIGNAL_SET, pe, NULL)
    elif how == "through the table":
        with nogil:
            start = now_ns()
            for i in range(n):
                value = <uint64_t> i
                failed |= TABLE_PUT_SIGNAL(&data[i & (SLOTS - 1)], &value, sizeof(value), signal, value, NVSYM_SIGNAL_SET, pe,
                                           NULL)
    else:
        raise ValueError(how)
    cdef int64_t end = now_ns()
    nvsym_check(failed)
    return end - start


def bounce(bint by_hand, SHMEMBuffer slots not None, SHMEMBuffer flag not None, int me, uint64_t first, int64_t n):
    """Nanoseconds of `n` rounds in which 8 bytes and a flag go to the other of two PEs and come back. `first`: of the flag.

    Both ways wait alike, so that they differ in the put alone.
    """
    cdef uint64_t *data = nvsym_data[uint64_t](slots)
    cdef uint64_t *signal = nvsym_data[uint64_t](flag)
    cdef int other = 1 - me
    cdef uint64_t *there = <uint64_t *> nvsym_peer_ptr(data, other)
    cdef uint64_t *signal_there = <uint64_t *> nvsym_peer_ptr(signal, other)
    cdef uint64_t number = first, value = 0
    cdef int64_t i, start
    cdef int failed = 0
    with nogil:
        start = now_ns()
        for i in range(n):    # no-cython-lint
            number += 1
            if me == 0:
                value += 1
            if by_hand:
                if me == 0:
                    hand_store(there, value, signal_there, number)
                    hand_wait(signal, number)
                    value = data[0]
                else:
                    hand_wait(signal, number)
                    value = data[0]
                    hand_store(there, value, signal_there, number)
            elif me == 0:
                failed |= nvsym_put_signal(data, &value, sizeof(value), signal, number, NVSYM_SIGNAL_SET, other, NULL)
                hand_wait(signal, number)
                value = data[0]
            else:
                hand_wait(signal, number)
                value = data[0]
                failed |= nvsym_put_signal(data, &value, sizeof(value), signal, number, NVSYM_SIGNAL_SET, other, NULL)
    cdef int64_t end = now_ns()
    nvsym_check(failed)
    if me == 0 and value != <uint64_t> n:
        raise AssertionError(f"the number that came back is {value}, not {n}")
    return end - start
