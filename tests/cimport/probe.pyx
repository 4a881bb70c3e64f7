# SPDX-License-Identifier: Apache-2.0
"""The C interface as Python functions, for check.py."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cimport nvsym
from nvsym cimport *

import_nvsym()

cdef extern from *:
    """
    #include <pthread.h>
    /* A thread that Python does not know, while the caller keeps the GIL: what needed the GIL would never return. */
    typedef struct { uint64_t *data, *signal; int pe, n, failed; } foreign_args;
    static void *foreign_main(void *p)
    {
        foreign_args *a = (foreign_args *)p;
        for (int i = 1; i <= a->n; i++) {
            uint64_t value = (uint64_t)i, back = 0;
            a->failed |= nvsym_put(a->data, &value, sizeof value, a->pe, NULL);
            a->failed |= nvsym_get(&back, a->data, sizeof back, a->pe, NULL);
            a->failed |= back != value;
            a->failed |= nvsym_api_->put(a->data + 1, &value, sizeof value, a->pe, NULL);
            a->failed |= nvsym_api_->get(&back, a->data + 1, sizeof back, a->pe, NULL);
            a->failed |= back != value;
            a->failed |= nvsym_put_signal(a->data + 2, &value, sizeof value, a->signal, 1, NVSYM_SIGNAL_ADD, a->pe, NULL);
            a->failed |= nvsym_api_->put_signal(a->data + 3, &value, sizeof value, a->signal, 1, NVSYM_SIGNAL_ADD, a->pe, NULL);
            a->failed |= nvsym_signal_update(a->signal, 1, NVSYM_SIGNAL_ADD, a->pe, NULL);
            a->failed |= nvsym_api_->signal_op(a->signal, 1, NVSYM_SIGNAL_ADD, a->pe, NULL);
            a->failed |= nvsym_signal_wait_until(a->signal, NVSYM_CMP_GE, 0, NULL);
            a->failed |= nvsym_api_->signal_wait_until(a->signal, NVSYM_CMP_GE, 0, NULL);
            a->failed |= nvsym_fence(NULL) | nvsym_quiet(NULL);
            a->failed |= nvsym_peer_ptr(a->data, a->pe) == NULL || nvsym_api_->peer_ptr(a->data, a->pe) == NULL;
            a->failed |= nvsym_put(a->data, &value, sizeof value, -1, NULL) != NVSYM_ERROR_ARGUMENT;
        }
        return NULL;
    }
    static int stream_of_null(nvsym_stream_t *stream) { return nvsym_stream_of(NULL, stream); }
    static int team_of_null(nvsym_team_t *team) { return nvsym_team_of(NULL, team); }
    static void *data_of_null(void) { return nvsym_buffer_data(NULL, -1, NULL); }
    static void *unicast_of_null(PyObject *device) { return nvsym_pool_unicast(NULL, device); }
    static void *unicast_for_null(void) { return nvsym_pool_unicast(NULL, NULL); }
    static void *multicast_of_null(void) { return nvsym_pool_multicast(NULL); }
    static int in_foreign_thread(foreign_args *args)
    {
        pthread_t thread;
        return pthread_create(&thread, NULL, foreign_main, args) || pthread_join(thread, NULL);
    }
    """
    ctypedef struct foreign_args:
        uint64_t * data
        uint64_t * signal
        int        pe
        int        n
        int        failed
    int in_foreign_thread(foreign_args *args)
    int stream_of_null(nvsym_stream_t *stream) except -1
    int team_of_null(nvsym_team_t *team) except -1
    void *data_of_null() except NULL
    void *unicast_of_null(object device) except NULL
    void *unicast_for_null() except NULL
    void *multicast_of_null() except NULL


def without_gil(SHMEMBuffer data not None, SHMEMBuffer signal not None, int pe, int n):
    """Everything that does not wait, by a thread that has no GIL and could not get it. Returns what failed."""
    cdef foreign_args args
    args.data, args.signal, args.pe, args.n, args.failed = nvsym_data[uint64_t](data), nvsym_data[uint64_t](signal), pe, n, 0
    if in_foreign_thread(&args):
        raise OSError("no thread")
    return args.failed


def null_arguments():
    """What takes None takes NULL, too: an argument of C that was not given."""
    cdef nvsym_stream_t stream = NULL
    cdef nvsym_team_t team = NULL
    stream_of_null(&stream)
    team_of_null(&team)
    return <size_t> stream, team.n_pes


NO_OBJECTS = {
    "buffer": lambda device: <size_t> data_of_null(),
    "pool": lambda device: <size_t> unicast_of_null(device),
    "device": lambda device: <size_t> unicast_for_null(),
    "pool: ": lambda device: <size_t> multicast_of_null(),
}


ACCESSORS = {
    "int8": lambda SHMEMBuffer b: <size_t> nvsym_data[int8_t](b),
    "uint8": lambda SHMEMBuffer b: <size_t> nvsym_data[uint8_t](b),
    "int16": lambda SHMEMBuffer b: <size_t> nvsym_data[int16_t](b),
    "uint16": lambda SHMEMBuffer b: <size_t> nvsym_data[uint16_t](b),
    "int32": lambda SHMEMBuffer b: <size_t> nvsym_data[int32_t](b),
    "uint32": lambda SHMEMBuffer b: <size_t> nvsym_data[uint32_t](b),
    "int64": lambda SHMEMBuffer b: <size_t> nvsym_data[int64_t](b),
    "uint64": lambda SHMEMBuffer b: <size_t> nvsym_data[uint64_t](b),
    "float32": lambda SHMEMBuffer b: <size_t> nvsym_data[float](b),
    "float64": lambda SHMEMBuffer b: <size_t> nvsym_data[double](b),
    "longdouble": lambda SHMEMBuffer b: <size_t> nvsym_data[longdouble](b),
    "complex64": lambda SHMEMBuffer b: <size_t> nvsym_data[floatcomplex](b),
    "complex128": lambda SHMEMBuffer b: <size_t> nvsym_data[doublecomplex](b),
}
OTHER_NAMES = {
    "int16": lambda SHMEMBuffer b: <size_t> nvsym.nvsym_data[short](b),
    "int32": lambda SHMEMBuffer b: <size_t> nvsym.nvsym_data[int](b),
    "int64": lambda SHMEMBuffer b: <size_t> nvsym.nvsym_data[long](b),
}


def raw_data(buffer, int dtype):
    cdef size_t count = 0
    cdef void *ptr = nvsym_buffer_data(buffer, dtype, &count)
    return <size_t> ptr, count


def fields(SHMEMBuffer b not None):
    return <size_t> b.ptr, b.count, b.item, b.type_id


def buffer_fields(Buffer b not None):
    return <size_t> b.ptr, b.num_elements, b.itemsize


def pool_field(SymmetricPool p not None):
    return p.byte_size


def pool_addresses(pool, device):
    return <size_t> nvsym_pool_unicast(pool, device), <size_t> nvsym_pool_multicast(pool)


def stream_field(Stream s not None):
    return <size_t> s.ptr


def team_fields(team):
    cdef nvsym_team_t raw = NULL
    nvsym_team_of(team, &raw)
    return raw.my_pe, raw.n_pes, [raw.pes[i] for i in range(raw.n_pes)]


cdef nvsym_stream_t stream_of(object stream) except? NULL:
    cdef nvsym_stream_t raw = NULL
    nvsym_stream_of(stream, &raw)
    return raw


def numbers():
    return nvsym_my_pe(), nvsym_n_pes()


def last_error():
    return nvsym_last_error().decode()


def check(int status):
    with nogil:
        nvsym_check(status)


# Each returns the status. `dest` and the like are addresses. Without the GIL, but for those that say so.

def put(size_t dest, size_t source, size_t nbytes, int pe, stream=None):
    cdef nvsym_stream_t raw = stream_of(stream)
    cdef int status
    with nogil:
        status = nvsym_put(<void *> dest, <void *> source, nbytes, pe, raw)
    return status


def get(size_t dest, size_t source, size_t nbytes, int pe, stream=None):
    cdef nvsym_stream_t raw = stream_of(stream)
    cdef int status
    with nogil:
        status = nvsym_get(<void *> dest, <void *> source, nbytes, pe, raw)
    return status


def put_signal(size_t dest, size_t source, size_t nbytes, size_t signal, uint64_t value, int op, int pe, stream=None):
    cdef nvsym_stream_t raw = stream_of(stream)
    cdef int status
    with nogil:
        status = nvsym_put_signal(<void *> dest, <void *> source, nbytes, <uint64_t *> signal, value, op, pe, raw)
    return status


def signal_op(size_t signal, uint64_t value, int op, int pe, stream=None):
    cdef nvsym_stream_t raw = stream_of(stream)
    cdef int status
    with nogil:
        status = nvsym_signal_op(<uint64_t *> signal, value, op, pe, raw)
    return status


def signal_fetch(size_t signal):
    return nvsym_signal_fetch(<uint64_t *> signal)


def signal_wait_until(size_t signal, int cmp, uint64_t value, stream=None):
    cdef nvsym_stream_t raw = stream_of(stream)
    cdef int status
    with nogil:
        status = nvsym_signal_wait_until(<uint64_t *> signal, cmp, value, raw)
    return status


def signal_wait_until_with_gil(size_t signal, int cmp, uint64_t value):
    return nvsym_signal_wait_until(<uint64_t *> signal, cmp, value, NULL)


def raw_stream_put(size_t dest, size_t source, size_t nbytes, int pe, size_t stream):
    return nvsym_put(<void *> dest, <void *> source, nbytes, pe, <void *> stream)


def stream_handle(stream=None):
    return <size_t> stream_of(stream)


def fence(stream=None):
    return nvsym_fence(stream_of(stream))


def quiet(stream=None):
    return nvsym_quiet(stream_of(stream))


def barrier_with_gil(team=None, stream=None):
    cdef nvsym_team_t raw = NULL
    nvsym_team_of(team, &raw)
    return nvsym_barrier(raw, stream_of(stream))


def sync(team=None, stream=None):
    cdef nvsym_team_t raw = NULL
    nvsym_team_of(team, &raw)
    return nvsym_sync(raw, stream_of(stream))


def barrier_all(stream=None):
    cdef nvsym_stream_t raw = stream_of(stream)
    cdef int status
    with nogil:
        status = nvsym_barrier_all(raw)
    return status


def allreduce(size_t dest, size_t source, size_t count, int dtype, int op, team=None, stream=None):
    cdef nvsym_team_t t = NULL
    cdef nvsym_stream_t raw = stream_of(stream)
    cdef int status
    if team is not None:
        nvsym_team_of(team, &t)
    with nogil:
        status = nvsym_allreduce(t, <void *> dest, <void *> source, count, dtype, op, raw)
    return status


def peer_ptr(size_t ptr, int pe):
    return <size_t> nvsym_peer_ptr(<void *> ptr, pe)


def synchronize(stream=None):
    return nvsym_stream_synchronize(stream_of(stream))


OK = NVSYM_OK
CODES = {
    "backend": NVSYM_ERROR_BACKEND, "collective": NVSYM_ERROR_COLLECTIVE, "timeout": NVSYM_ERROR_TIMEOUT,
    "exited": NVSYM_ERROR_EXITED, "unreachable": NVSYM_ERROR_UNREACHABLE, "memory": NVSYM_ERROR_MEMORY,
    "closed": NVSYM_ERROR_CLOSED, "interrupted": NVSYM_ERROR_INTERRUPTED, "argument": NVSYM_ERROR_ARGUMENT,
}
OPS = {"sum": NVSYM_SUM, "max": NVSYM_MAX, "and": NVSYM_AND}
CMPS = {"eq": NVSYM_CMP_EQ, "ne": NVSYM_CMP_NE, "gt": NVSYM_CMP_GT, "le": NVSYM_CMP_LE, "lt": NVSYM_CMP_LT, "ge": NVSYM_CMP_GE}
SET, ADD = NVSYM_SIGNAL_SET, NVSYM_SIGNAL_ADD
DTYPES = {
    "bool": NVSYM_BOOL, "int8": NVSYM_INT8, "uint8": NVSYM_UINT8, "int16": NVSYM_INT16, "uint16": NVSYM_UINT16,
    "int32": NVSYM_INT32, "uint32": NVSYM_UINT32, "int64": NVSYM_INT64, "uint64": NVSYM_UINT64, "float16": NVSYM_FLOAT16,
    "float32": NVSYM_FLOAT32, "float64": NVSYM_FLOAT64, "longdouble": NVSYM_LONGDOUBLE, "complex64": NVSYM_COMPLEX64,
    "complex128": NVSYM_COMPLEX128, "clongdouble": NVSYM_CLONGDOUBLE, "bfloat16": NVSYM_BFLOAT16,
    "float8_e3m4": NVSYM_FLOAT8_E3M4, "float8_e4m3": NVSYM_FLOAT8_E4M3, "float8_e4m3b11fnuz": NVSYM_FLOAT8_E4M3B11FNUZ,
    "float8_e4m3fn": NVSYM_FLOAT8_E4M3FN, "float8_e4m3fnuz": NVSYM_FLOAT8_E4M3FNUZ, "float8_e5m2": NVSYM_FLOAT8_E5M2,
    "float8_e5m2fnuz": NVSYM_FLOAT8_E5M2FNUZ, "float8_e8m0fnu": NVSYM_FLOAT8_E8M0FNU,
}
