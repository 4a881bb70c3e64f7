# SPDX-License-Identifier: Apache-2.0
"""The C interface: the table of nvsym/api.h, in a capsule that extensions import (nvsym/nvsym.h).

The functions check what can be checked without an object, and call those that the backend has published for the running job.
They need no GIL, report by return code, and leave the words of a failure to the thread (`last_error`).
"""

from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport uint32_t, uint64_t

from ._version import __version__
from .dtypes import DTYPES

from .backend cimport SIZES, Functions, nvsym_direct, nvsym_team_t
from .buffer cimport SHMEMBuffer
from .device cimport Device
from .job cimport current_job, job_functions
from .memory cimport Buffer
from .pool cimport SymmetricPool
from .rma cimport bad_type, job_stream
from .status cimport (
    STATUS_ARGUMENT, STATUS_BACKEND, STATUS_CLOSED, STATUS_OK, STATUS_TEXT, Status, raise_status, status_of, status_text)
from .stream cimport Stream, borrow_stream
from .team cimport Team, as_team
from .types cimport (
    NVSYM_CMP_EQ, NVSYM_CMP_GE, NVSYM_DTYPE_COUNT, NVSYM_OP_COUNT, NVSYM_SIGNAL_ADD, NVSYM_SIGNAL_SET)

cdef extern from *:
    """
    /* The last failure of each thread. */
    static __thread struct { int code; char room[1020]; } nvsym_last_status;
    #define NVSYM_LAST_STATUS() ((void *)&nvsym_last_status)
    #define NVSYM_LAST_STATUS_BYTES sizeof(nvsym_last_status)
    """
    void * NVSYM_LAST_STATUS() noexcept nogil
    size_t NVSYM_LAST_STATUS_BYTES

cdef extern from "Python.h":
    ctypedef struct PyThreadState:
        pass
    int             PyGILState_Check() noexcept nogil
    PyThreadState * PyEval_SaveThread() noexcept nogil
    void            PyEval_RestoreThread(PyThreadState *state) noexcept nogil

cdef extern from "<stdio.h>" nogil:
    int snprintf(char *text, size_t size, const char *format, ...)

cdef extern from "nvsym/nvsym.h":
    enum:
        NVSYM_ABI_MAJOR
        NVSYM_ABI_MINOR

    ctypedef struct nvsym_api:
        uint32_t             abi_major
        uint32_t             abi_minor
        const char *         version
        const nvsym_direct * direct
        int          (*my_pe)() noexcept nogil
        int          (*n_pes)() noexcept nogil
        void *       (*peer_ptr)(const void *ptr, int pe) noexcept nogil
        int          (*put)(void *dest, const void *source, size_t nbytes, int pe, void *stream) noexcept nogil
        int          (*get)(void *dest, const void *source, size_t nbytes, int pe, void *stream) noexcept nogil
        int          (*put_signal)(void *dest, const void *source, size_t nbytes, uint64_t *signal, uint64_t value, int op,
                                   int pe, void *stream) noexcept nogil
        int          (*signal_op)(uint64_t *signal, uint64_t value, int op, int pe, void *stream) noexcept nogil
        int          (*signal_wait_until)(uint64_t *signal, int cmp, uint64_t value, void *stream) noexcept nogil
        int          (*fence)(void *stream) noexcept nogil
        int          (*quiet)(void *stream) noexcept nogil
        int          (*barrier)(nvsym_team_t team, void *stream) noexcept nogil
        int          (*sync)(nvsym_team_t team, void *stream) noexcept nogil
        int          (*allreduce)(nvsym_team_t team, void *dest, const void *source, size_t count, int dtype, int op,
                                  void *stream) noexcept nogil
        int          (*stream_synchronize)(void *stream) noexcept nogil
        const char * (*last_error)() noexcept nogil
        int          (*raise_ "raise")(int status) except -1
        void *       (*buffer_data)(void *object, int dtype, size_t *count) except NULL
        int          (*stream_of)(void *object, void **stream) except -1
        int          (*team_of)(void *object, nvsym_team_t *team) except -1
        void *       (*pool_unicast)(void *pool, void *device) except NULL
        void *       (*pool_multicast)(void *pool) except NULL

    # What nvsym.h shows of the objects.
    ctypedef struct nvsym_SHMEMBuffer:
        char * ptr
        size_t count
        size_t item
        int    type_id

    ctypedef struct nvsym_Buffer:
        size_t num_elements
        size_t itemsize
        int    readonly
        char * ptr

    ctypedef struct nvsym_Stream:
        void * ptr

    ctypedef struct nvsym_SymmetricPool:
        size_t byte_size


# ---- what every function begins with --------------------------------------------------------------------------------


cdef inline Status *fresh() noexcept nogil:
    cdef Status *status = <Status *> NVSYM_LAST_STATUS()
    status.code = STATUS_OK
    status.npes = 0
    return status


cdef int closed(Status *status) noexcept nogil:
    status_text(status, STATUS_CLOSED, b"there is no job in this process: nvsym.init() has not been called, nvsym.finalize() has, or "
                b"the process was forked after init")
    return status.code


cdef int bad_pe(Status *status, int pe, Functions *f) noexcept nogil:
    status.code = STATUS_ARGUMENT
    snprintf(status.text, STATUS_TEXT, b"pe: %d is not in 0..%d", pe, f.direct.n_pes - 1)
    return status.code


cdef int not_symmetric(Status *status, const char *name, const void *ptr, size_t nbytes) noexcept nogil:
    status.code = STATUS_ARGUMENT
    snprintf(status.text, STATUS_TEXT, b"%s: %zu bytes at %p are not in the symmetric heap of this PE", name, nbytes, ptr)
    return status.code


cdef inline int check_pe(Functions *f, int pe, Status *status) noexcept nogil:
    """That there is a job, and the PE in it."""
    if f.ctx == NULL:
        return closed(status)
    if <uint32_t> pe >= <uint32_t> f.direct.n_pes:
        return bad_pe(status, pe, f)
    return STATUS_OK


cdef inline int check_symmetric(Functions *f, const char *name, const void *ptr, size_t nbytes, Status *status) noexcept nogil:
    if not f.symmetric(f.ctx, ptr, nbytes):
        return not_symmetric(status, name, ptr, nbytes)
    return STATUS_OK


cdef inline int outcome(int failed, Status *status) noexcept nogil:
    if not failed:
        return STATUS_OK
    return status.code if status.code != STATUS_OK else STATUS_BACKEND


cdef inline int check_signal(Functions *f, const uint64_t *signal, Status *status) noexcept nogil:
    if <size_t> signal % sizeof(uint64_t) or not f.symmetric(f.ctx, signal, sizeof(uint64_t)):
        return not_symmetric(status, b"signal", signal, sizeof(uint64_t))
    return STATUS_OK


cdef inline int check_op(int op, Status *status) noexcept nogil:
    if op == NVSYM_SIGNAL_SET or op == NVSYM_SIGNAL_ADD:
        return STATUS_OK
    status.code = STATUS_ARGUMENT
    snprintf(status.text, STATUS_TEXT, b"op: %d is neither NVSYM_SIGNAL_SET nor NVSYM_SIGNAL_ADD", op)
    return status.code


# Who waits for others does not keep the GIL from them: a caller may hold it.
cdef inline PyThreadState *begin_wait() noexcept nogil:
    return PyEval_SaveThread() if PyGILState_Check() else NULL


cdef inline void end_wait(PyThreadState *state) noexcept nogil:
    if state != NULL:
        PyEval_RestoreThread(state)


# ---- the table ------------------------------------------------------------------------------------------------------


cdef int c_my_pe() noexcept nogil:
    return job_functions().direct.my_pe


cdef int c_n_pes() noexcept nogil:
    return job_functions().direct.n_pes


cdef void *c_peer_ptr(const void *ptr, int pe) noexcept nogil:
    cdef Functions *f = job_functions()
    if f.ctx == NULL or <uint32_t> pe >= <uint32_t> f.direct.n_pes:
        return NULL
    return f.peer_ptr(f.ctx, ptr, pe)


cdef int c_put(void *dest, const void *source, size_t nbytes, int pe, void *stream) noexcept nogil:
    cdef Functions *f = job_functions()
    cdef Status *status = fresh()
    if check_pe(f, pe, status) or check_symmetric(f, b"dest", dest, nbytes, status):
        return status.code
    return outcome(f.put(f.ctx, dest, source, nbytes, pe, stream, status), status)


cdef int c_get(void *dest, const void *source, size_t nbytes, int pe, void *stream) noexcept nogil:
    cdef Functions *f = job_functions()
    cdef Status *status = fresh()
    if check_pe(f, pe, status) or check_symmetric(f, b"source", source, nbytes, status):
        return status.code
    return outcome(f.get(f.ctx, dest, source, nbytes, pe, stream, status), status)


cdef int c_put_signal(void *dest, const void *source, size_t nbytes, uint64_t *signal, uint64_t value, int op, int pe,
                      void *stream) noexcept nogil:
    cdef Functions *f = job_functions()
    cdef Status *status = fresh()
    if check_pe(f, pe, status) or check_symmetric(f, b"dest", dest, nbytes, status):
        return status.code
    if check_signal(f, signal, status) or check_op(op, status):
        return status.code
    return outcome(f.put_signal(f.ctx, dest, source, nbytes, signal, value, op, pe, stream, status), status)


cdef int c_signal_op(uint64_t *signal, uint64_t value, int op, int pe, void *stream) noexcept nogil:
    cdef Functions *f = job_functions()
    cdef Status *status = fresh()
    if check_pe(f, pe, status) or check_signal(f, signal, status) or check_op(op, status):
        return status.code
    return outcome(f.signal_op(f.ctx, signal, value, op, pe, stream, status), status)


cdef int c_signal_wait_until(uint64_t *signal, int cmp, uint64_t value, void *stream) noexcept nogil:
    cdef Functions *f = job_functions()
    cdef Status *status = fresh()
    cdef PyThreadState *state
    cdef int failed
    if f.ctx == NULL:
        return closed(status)
    if check_signal(f, signal, status):
        return status.code
    if cmp < NVSYM_CMP_EQ or cmp > NVSYM_CMP_GE:
        status.code = STATUS_ARGUMENT
        snprintf(status.text, STATUS_TEXT, b"cmp: %d is no comparison of enum nvsym_cmp", cmp)
        return status.code
    state = begin_wait()
    failed = f.signal_wait(f.ctx, signal, cmp, value, stream, status)
    end_wait(state)
    return outcome(failed, status)


cdef int c_quiet(void *stream) noexcept nogil:
    cdef Functions *f = job_functions()
    cdef Status *status = fresh()
    if f.ctx == NULL:
        return closed(status)
    return outcome(f.quiet(f.ctx, stream, status), status)


cdef int meet(nvsym_team_t team, bint complete, void *stream) noexcept nogil:
    cdef Functions *f = job_functions()
    cdef Status *status = fresh()
    cdef PyThreadState *state
    cdef int failed
    if f.ctx == NULL:
        return closed(status)
    state = begin_wait()
    failed = f.barrier(f.ctx, <nvsym_team_t> f.world if team == NULL else team, complete, stream, status)
    end_wait(state)
    return outcome(failed, status)


cdef int c_barrier(nvsym_team_t team, void *stream) noexcept nogil:
    return meet(team, True, stream)


cdef int c_sync(nvsym_team_t team, void *stream) noexcept nogil:
    return meet(team, False, stream)


cdef int check_operands(Functions *f, const char *dest, const char *source, size_t count, int dtype, int op,
                        Status *status) noexcept nogil:
    cdef size_t nbytes
    if dtype < 0 or dtype >= NVSYM_DTYPE_COUNT or op < 0 or op >= NVSYM_OP_COUNT:
        status.code = STATUS_ARGUMENT
        snprintf(status.text, STATUS_TEXT, b"dtype, op: %d and %d are not both of enum nvsym_dtype and enum nvsym_op", dtype, op)
        return status.code
    if count > (<size_t> -1) // SIZES[dtype]:
        status_text(status, STATUS_ARGUMENT, b"count: more elements than an address space has")
        return status.code
    nbytes = count * SIZES[dtype]
    if check_symmetric(f, b"dest", dest, nbytes, status) or check_symmetric(f, b"source", source, nbytes, status):
        return status.code
    if dest != source and dest < source + nbytes and source < dest + nbytes:
        status_text(status, STATUS_ARGUMENT, b"dest: it overlaps source without being the same memory")
        return status.code
    return STATUS_OK


cdef int c_allreduce(nvsym_team_t team, void *dest, const void *source, size_t count, int dtype, int op,
                     void *stream) noexcept nogil:
    cdef Functions *f = job_functions()
    cdef Status *status = fresh()
    cdef PyThreadState *state
    cdef int failed
    if f.ctx == NULL:
        return closed(status)
    if team == NULL:
        team = <nvsym_team_t> f.world
    state = begin_wait()
    failed = check_operands(f, <const char *> dest, <const char *> source, count, dtype, op, status)
    if failed:
        f.fail_reduce(f.ctx, team, f.algorithm, stream, status)
    else:
        failed = f.reduce(f.ctx, team, dtype, op, dest, source, count, f.algorithm, stream, status)
    end_wait(state)
    return outcome(failed, status)


cdef int c_stream_synchronize(void *stream) noexcept nogil:
    cdef Functions *f = job_functions()
    cdef Status *status = fresh()
    if f.ctx == NULL:
        return closed(status)
    return outcome(synchronize(stream, status), status)


cdef int synchronize(void *stream, Status *status) noexcept with gil:
    cdef Stream own
    try:
        job = current_job()
        own = job.backend.stream
        if stream != NULL:
            own = borrow_stream(job.backend.device, job.backend.runtime.stream_check(<size_t> stream))
        own.synchronize()
        return 0
    except BaseException as error:
        status_of(status, error)
        return -1


cdef const char *c_last_error() noexcept nogil:
    cdef Status *status = <Status *> NVSYM_LAST_STATUS()
    if status.code == STATUS_OK:
        status_text(status, STATUS_OK, b"the last call of this thread did not fail")
    return status.text


# ---- with the GIL ---------------------------------------------------------------------------------------------------


cdef int c_raise(int code) except -1:
    """The exception of a code, with the words of the last failure where it is that one."""
    cdef Status *last = <Status *> NVSYM_LAST_STATUS()
    cdef Status other
    if code == STATUS_OK:
        return 0
    if code == last.code:
        return raise_status(last)
    other.npes = 0
    status_text(&other, code if STATUS_OK < code <= STATUS_ARGUMENT else STATUS_BACKEND,
                b"a call of nvsym's C interface failed, and its words are gone: another call of this thread came after it, or it was "
                b"made by another thread")
    return raise_status(&other)


cdef object as_object(void *obj, str expected):
    if obj == NULL:
        raise TypeError(f"{expected}, not NULL")
    return <object> obj


cdef void *c_buffer_data(void *obj, int dtype, size_t *count) except NULL:
    cdef SHMEMBuffer buffer
    cdef Buffer plain
    cdef object given
    cdef object element
    cdef void *ptr
    cdef size_t n
    given = as_object(obj, "buffer: expected a SHMEMBuffer or a Buffer")
    if isinstance(given, SHMEMBuffer):
        buffer = <SHMEMBuffer> given
        buffer.check()
        element, ptr, n = buffer.element, buffer.ptr, buffer.count
    elif isinstance(given, Buffer):
        plain = <Buffer> given
        plain.check()
        element, ptr, n = plain.element, plain.ptr, plain.num_elements
    else:
        raise TypeError(f"buffer: expected a SHMEMBuffer or a Buffer, not {type(given).__name__}")
    if dtype >= 0 and dtype != element.id:
        wanted = DTYPES[dtype].name if dtype < NVSYM_DTYPE_COUNT else str(dtype)
        bad_type("buffer", element.name, "the type asked for", wanted)
    if count != NULL:
        count[0] = n
    return ptr if ptr != NULL else <void *> 1   # empty, and not an error


cdef int c_stream_of(void *obj, void **stream) except -1:
    return job_stream(current_job(), None if obj == NULL else <object> obj, stream)


cdef int c_team_of(void *obj, nvsym_team_t *team) except -1:
    cdef Team found = as_team(None if obj == NULL else <object> obj, "team")
    found.check()
    team[0] = &found.data.record
    return 0


cdef SymmetricPool as_pool(void *obj):
    cdef object given = as_object(obj, "pool: expected a SymmetricPool")
    if not isinstance(given, SymmetricPool):
        raise TypeError(f"pool: expected a SymmetricPool, not {type(given).__name__}")
    return <SymmetricPool> given


cdef void *c_pool_unicast(void *pool, void *device) except NULL:
    cdef object given = as_object(device, "device: expected a Device")
    if not isinstance(given, Device):
        raise TypeError(f"device: expected a Device, not {type(given).__name__}")
    return as_pool(pool).unicast_ptr(<Device> given)


cdef void *c_pool_multicast(void *pool) except NULL:
    return as_pool(pool).multicast_ptr()


cdef nvsym_api _table
cdef bytes _version = __version__.encode()
_table.abi_major, _table.abi_minor, _table.version = NVSYM_ABI_MAJOR, NVSYM_ABI_MINOR, _version
_table.direct = &job_functions().direct
_table.my_pe, _table.n_pes, _table.peer_ptr = c_my_pe, c_n_pes, c_peer_ptr
_table.put, _table.get, _table.put_signal, _table.signal_op = c_put, c_get, c_put_signal, c_signal_op
_table.signal_wait_until, _table.fence, _table.quiet = c_signal_wait_until, c_quiet, c_quiet    # a copy that is done is ordered
_table.barrier, _table.sync, _table.allreduce = c_barrier, c_sync, c_allreduce
_table.stream_synchronize, _table.last_error = c_stream_synchronize, c_last_error
_table.raise_, _table.buffer_data, _table.stream_of, _table.team_of = c_raise, c_buffer_data, c_stream_of, c_team_of
_table.pool_unicast, _table.pool_multicast = c_pool_unicast, c_pool_multicast

_api = PyCapsule_New(&_table, b"nvsym.capi._api", NULL)


# ---- what nvsym.h says of the objects is so -------------------------------------------------------------------------


def _check_layouts():
    """That the members that nvsym.h shows of the objects are where they are."""
    cdef SHMEMBuffer buffer = SHMEMBuffer.__new__(SHMEMBuffer)
    cdef Buffer plain = Buffer.__new__(Buffer)
    cdef Stream stream = Stream.__new__(Stream)
    cdef SymmetricPool pool = SymmetricPool.__new__(SymmetricPool)
    cdef nvsym_SHMEMBuffer *b = <nvsym_SHMEMBuffer *> <void *> buffer
    cdef nvsym_Buffer *p = <nvsym_Buffer *> <void *> plain
    cdef nvsym_Stream *s = <nvsym_Stream *> <void *> stream
    cdef nvsym_SymmetricPool *q = <nvsym_SymmetricPool *> <void *> pool
    if not (&b.ptr == &buffer.ptr and &b.count == &buffer.count and &b.item == &buffer.item
            and &b.type_id == &buffer.type_id and &p.num_elements == &plain.num_elements
            and &p.itemsize == &plain.itemsize and &p.readonly == <int *> &plain.readonly and &p.ptr == &plain.ptr
            and &s.ptr == &stream.ptr and &q.byte_size == &pool.byte_size):
        raise ImportError("nvsym/nvsym.h describes other objects than this nvsym has: it is damaged, install it again")
    if sizeof(Status) > NVSYM_LAST_STATUS_BYTES:
        raise ImportError("nvsym/capi.pyx has no room for a Status")


_check_layouts()
