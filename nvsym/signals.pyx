# SPDX-License-Identifier: Apache-2.0
"""Point-to-point signals (OpenSHMEM 1.5, sections 9.8 and 9.10): a put that announces itself, and the wait for it.

A signal is the one element of a `SHMEMBuffer[uint64]`, or of a slice of one.
"""

from cpython.long cimport PyLong_CheckExact
from cpython.number cimport PyNumber_Index
from libc.stdint cimport uint64_t

from .buffer cimport SHMEMBuffer, as_buffer, as_pe, int_value
from .rma cimport Keep, job_stream, local_memory
from .types cimport (
    NVSYM_CMP_EQ, NVSYM_CMP_GE, NVSYM_CMP_GT, NVSYM_CMP_LE, NVSYM_CMP_LT, NVSYM_CMP_NE, NVSYM_SIGNAL_ADD,
    NVSYM_SIGNAL_SET, NVSYM_UINT64)

cdef str SET = "set"
cdef dict OPS = {"set": NVSYM_SIGNAL_SET, "add": NVSYM_SIGNAL_ADD}
cdef dict COMPARISONS = {
    "eq": NVSYM_CMP_EQ, "ne": NVSYM_CMP_NE, "gt": NVSYM_CMP_GT, "le": NVSYM_CMP_LE, "lt": NVSYM_CMP_LT, "ge": NVSYM_CMP_GE,
}


cdef SHMEMBuffer as_signal(object obj):
    cdef SHMEMBuffer signal = as_buffer(obj, "signal")
    if signal.type_id != NVSYM_UINT64:
        raise TypeError(f"signal: a signal is a uint64, not {signal.element.name}")
    if signal.count != 1:
        raise ValueError(f"signal: a signal is one element, not {signal.count}; take a slice such as signals[3:4]")
    return signal


cdef int as_signal_op(object op) except -1:
    if op is SET:
        return NVSYM_SIGNAL_SET
    try:
        return OPS[op]
    except (KeyError, TypeError):
        raise ValueError(f"op: {op!r} is none of 'set', 'add'") from None


cdef uint64_t as_value(object value) except? 0xdeadbeef:
    cdef int overflow = 0
    cdef long number
    if PyLong_CheckExact(value):
        number = int_value(value, &overflow)
        if not overflow and number >= 0:
            return <uint64_t> number
    try:
        return <uint64_t> PyNumber_Index(value)     # a float would be cut off
    except TypeError:
        raise TypeError(f"value: {value!r} is no whole number") from None
    except OverflowError:
        raise ValueError(f"value: {value!r} is not in 0..2**64-1") from None


def put_signal(dest, source, signal, value, pe, *, op="set", stream=None):
    """Copy `source` to `dest` on PE `pe`, then update `signal` there: whoever sees the signal sees the data.

    Parameters
    ----------
    dest, source : SHMEMBuffer, array
        As for `put`.
    signal : SHMEMBuffer[uint64]
        Of length 1.
    value : int
        0..2**64-1.
    pe : int
        The target, in the world.
    op : {"set", "add"}
        What happens to the signal.
    stream : stream, optional
        Default: that of the context.

    Raises
    ------
    TypeError, ValueError, FreedBufferError
        Naming the argument. Nothing is transferred.
    """
    cdef SHMEMBuffer d = as_buffer(dest, "dest")
    cdef SHMEMBuffer s = as_signal(signal)
    cdef int operation = as_signal_op(op)
    cdef uint64_t v = as_value(value)
    cdef void *ptr = NULL
    cdef void *src
    cdef Keep keep = None
    cdef bint host_side = False
    cdef int number = as_pe(pe, d.job.n_pes)
    job_stream(d.job, stream, &ptr)
    if ptr != NULL and (d.job.backend.device.is_host or not isinstance(source, SHMEMBuffer)):
        keep = Keep()
    src = local_memory(source, "source", d, False, keep, &host_side)
    if host_side and not d.job.backend.device.is_host:
        d.job.backend.put_from_host(d.ptr, src, d.count * d.item, number, ptr, None if keep is None else (d, keep.obj))
        d.job.backend.signal_op(<uint64_t *> s.ptr, v, operation, number, ptr, None)
        return
    d.job.backend.put_signal(d.ptr, src, d.count * d.item, <uint64_t *> s.ptr, v, operation, number, ptr,
                             None if keep is None else (d, s, keep.obj))


def signal_op(signal, value, pe, *, op="set", stream=None):
    """Update `signal` on PE `pe`, behind all puts to that PE that `stream` has before it in order (see `fence`).

    Parameters
    ----------
    signal : SHMEMBuffer[uint64]
        Of length 1.
    value : int
        0..2**64-1.
    pe : int
        The target, in the world.
    op : {"set", "add"}
    stream : stream, optional
        Default: that of the context.
    """
    cdef SHMEMBuffer s = as_signal(signal)
    cdef int operation = as_signal_op(op)
    cdef void *ptr = NULL
    cdef int number = as_pe(pe, s.job.n_pes)
    job_stream(s.job, stream, &ptr)
    s.job.backend.signal_op(<uint64_t *> s.ptr, as_value(value), operation, number, ptr, None if ptr == NULL else s)


def signal_wait_until(signal, cmp, value, *, stream=None):
    """Wait, in the order of `stream`, until this PE's `signal` compares with `value` as `cmp` says.

    Parameters
    ----------
    signal : SHMEMBuffer[uint64]
        Of length 1.
    cmp : {"eq", "ne", "gt", "le", "lt", "ge"}
    value : int
        0..2**64-1.
    stream : stream, optional
        Default: that of the context.

    Raises
    ------
    PeerExitedError
        If no PE is left that could set it.
    PeerTimeoutError
        After the time limit (NVSYM_TIMEOUT).
    """
    cdef SHMEMBuffer s = as_signal(signal)
    cdef void *ptr = NULL
    cdef int comparison
    try:
        comparison = COMPARISONS[cmp]
    except (KeyError, TypeError):
        raise ValueError(f"cmp: {cmp!r} is none of {', '.join(map(repr, COMPARISONS))}") from None
    job_stream(s.job, stream, &ptr)
    s.job.backend.signal_wait(<uint64_t *> s.ptr, comparison, as_value(value), ptr, None if ptr == NULL else s)
