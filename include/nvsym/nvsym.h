/* SPDX-License-Identifier: Apache-2.0
 *
 * nvsym for C, C++ and Cython extensions: one-sided operations, signals, barriers and allreduce on symmetric memory, without
 * the GIL and without Python objects. docs/cimport.md explains it; nvsym/__init__.pxd declares it for Cython.
 *
 * Call nvsym_import() once, with the GIL, when the extension is loaded, in every C file that includes this one.
 *
 * Addresses are symmetric ones of this PE (SHMEMBuffer.unsafe_ptr(), nvsym_buffer_data). Functions return NVSYM_OK, or a
 * code of api.h after which nvsym_last_error() has the words. They check the PE, the job and, where they go through the
 * table, that an address is symmetric; types and lengths are the caller's. They keep nothing alive: buffers must live until
 * the operation is done.
 *
 * Order. stream == NULL is the stream of the context. On the host backend an operation on it is done when the function
 * returns; on any other stream it is enqueued. On the NVSHMEM backend every operation is enqueued. */
#ifndef NVSYM_H
#define NVSYM_H

#include <Python.h>
#include <string.h>

#include "api.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__) || defined(__clang__)
#define NVSYM_UNUSED __attribute__((unused))
#define NVSYM_INLINE_API static inline __attribute__((always_inline, unused))
#define NVSYM_LIKELY(x) __builtin_expect(!!(x), 1)
#else
#error "nvsym.h needs a compiler with GCC's builtins"
#endif

/* ---- before nvsym_import() ------------------------------------------------------------------------------------------ */

static nvsym_direct nvsym_no_direct NVSYM_UNUSED = {0, -1, {0}, {0}};
static const nvsym_direct *nvsym_direct_ NVSYM_UNUSED = &nvsym_no_direct;
static const nvsym_api *nvsym_api_ NVSYM_UNUSED = NULL;

/* Get the table of the installed nvsym. Returns 0, or -1 with an ImportError that names both versions. */
NVSYM_UNUSED static int nvsym_import(void)
{
    const nvsym_api *api;
    PyObject *module = PyImport_ImportModule("nvsym.capi"); /* PyCapsule_Import does not import submodules */
    if (!module)
        return -1;
    Py_DECREF(module);
    api = (const nvsym_api *)PyCapsule_Import("nvsym.capi._api", 0);
    if (!api)
        return -1;
    if (api->abi_major != NVSYM_ABI_MAJOR || (int)api->abi_minor < NVSYM_ABI_MINOR) {
        PyErr_Format(PyExc_ImportError,
                     "this extension was built for version %d.%d of nvsym's C interface, and nvsym %s has version %u.%u; "
                     "build the extension again with the nvsym that is installed, or install one that has %d.%d",
                     NVSYM_ABI_MAJOR, NVSYM_ABI_MINOR, api->version, (unsigned)api->abi_major, (unsigned)api->abi_minor,
                     NVSYM_ABI_MAJOR, NVSYM_ABI_MINOR);
        return -1;
    }
    nvsym_direct_ = api->direct;
    nvsym_api_ = api;
    return 0;
}

/* ---- errors --------------------------------------------------------------------------------------------------------- */

/* What the last call of this thread failed with. Valid until its next call, which may take the words away also where it succeeds. */
NVSYM_INLINE_API const char *nvsym_last_error(void)
{
    return nvsym_api_ ? nvsym_api_->last_error() : "nvsym_import() has not been called in this extension";
}

/* Set the exception for a code; needs the GIL. Returns 0 for NVSYM_OK, else -1. */
NVSYM_UNUSED static int nvsym_raise(int status)
{
    if (status == NVSYM_OK)
        return 0;
    if (nvsym_api_)
        return nvsym_api_->raise(status);
    PyErr_SetString(PyExc_ImportError, nvsym_last_error());
    return -1;
}

#define NVSYM_CALL(call) (NVSYM_LIKELY(nvsym_api_ != NULL) ? nvsym_api_->call : NVSYM_ERROR_CLOSED)

/* ---- the job -------------------------------------------------------------------------------------------------------- */

/* This PE's number and the number of PEs; -1 and 0 where there is no job. */
NVSYM_INLINE_API int nvsym_my_pe(void) { return nvsym_direct_->my_pe; }
NVSYM_INLINE_API int nvsym_n_pes(void) { return nvsym_direct_->n_pes; }

/* See api.h. 0 also for a PE that does not exist: the functions of the table say so. */
NVSYM_INLINE_API int64_t nvsym_reach(int pe) { return (uint32_t)pe < NVSYM_DIRECT_PES ? nvsym_direct_->reach[pe] : 0; }

NVSYM_INLINE_API int64_t nvsym_signal_reach(int pe)
{
    return (uint32_t)pe < NVSYM_DIRECT_PES ? nvsym_direct_->signal_reach[pe] : 0;
}

/* A symmetric address as it is on a PE that is in reach. */
NVSYM_INLINE_API char *nvsym_there(const void *ptr, int64_t reach) { return (char *)ptr + reach - 1; }

/* The address of PE's copy, as the processor that has the memory sees it; NULL: it cannot be addressed from here, or there
 * is no such PE. Stays valid as long as the buffer. */
NVSYM_INLINE_API void *nvsym_peer_ptr(const void *ptr, int pe)
{
    const int64_t reach = nvsym_reach(pe);
    if (NVSYM_LIKELY(reach != 0))
        return nvsym_there(ptr, reach);
    return nvsym_api_ ? nvsym_api_->peer_ptr(ptr, pe) : NULL;
}

/* ---- one-sided operations --------------------------------------------------------------------------------------------- */

/* Copy nbytes at source, here, to dest on a PE. */
NVSYM_INLINE_API int nvsym_put(void *dest, const void *source, size_t nbytes, int pe, nvsym_stream_t stream)
{
    const int64_t reach = nvsym_reach(pe);
    if (NVSYM_LIKELY(stream == NULL && reach != 0)) {
        memcpy(nvsym_there(dest, reach), source, nbytes);
        return NVSYM_OK;
    }
    return NVSYM_CALL(put(dest, source, nbytes, pe, stream));
}

/* Copy nbytes at source on a PE to dest, here. */
NVSYM_INLINE_API int nvsym_get(void *dest, const void *source, size_t nbytes, int pe, nvsym_stream_t stream)
{
    const int64_t reach = nvsym_reach(pe);
    if (NVSYM_LIKELY(stream == NULL && reach != 0)) {
        memcpy(dest, nvsym_there(source, reach), nbytes);
        return NVSYM_OK;
    }
    return NVSYM_CALL(get(dest, source, nbytes, pe, stream));
}

/* Set a signal on a PE (NVSYM_SIGNAL_SET), or add to it (NVSYM_SIGNAL_ADD), behind the puts before it. */
NVSYM_INLINE_API int nvsym_signal_update(uint64_t *signal, uint64_t value, int op, int pe, nvsym_stream_t stream)
{
    const int64_t reach = nvsym_signal_reach(pe);
    if (NVSYM_LIKELY(stream == NULL && reach != 0 && (op == NVSYM_SIGNAL_SET || op == NVSYM_SIGNAL_ADD))) {
        uint64_t *there = (uint64_t *)(void *)nvsym_there(signal, reach);
        if (op == NVSYM_SIGNAL_SET)
            __atomic_store_n(there, value, __ATOMIC_RELEASE);
        else
            __atomic_fetch_add(there, value, __ATOMIC_RELEASE);
        return NVSYM_OK;
    }
    return NVSYM_CALL(signal_op(signal, value, op, pe, stream));
}

/* Put, then update the signal: whoever sees the signal sees the data. */
NVSYM_INLINE_API int nvsym_put_signal(void *dest, const void *source, size_t nbytes, uint64_t *signal, uint64_t value, int op,
                                      int pe, nvsym_stream_t stream)
{
    const int64_t reach = nvsym_signal_reach(pe); /* who takes signals so takes data so */
    if (NVSYM_LIKELY(stream == NULL && reach != 0 && (op == NVSYM_SIGNAL_SET || op == NVSYM_SIGNAL_ADD))) {
        uint64_t *there = (uint64_t *)(void *)nvsym_there(signal, reach);
        memcpy(nvsym_there(dest, reach), source, nbytes);
        if (op == NVSYM_SIGNAL_SET)
            __atomic_store_n(there, value, __ATOMIC_RELEASE);
        else
            __atomic_fetch_add(there, value, __ATOMIC_RELEASE);
        return NVSYM_OK;
    }
    return NVSYM_CALL(put_signal(dest, source, nbytes, signal, value, op, pe, stream));
}

/* The value of a signal of this PE, on the host backend: what was put before it was set is visible after. */
NVSYM_INLINE_API uint64_t nvsym_signal_fetch(const uint64_t *signal) { return __atomic_load_n(signal, __ATOMIC_ACQUIRE); }

NVSYM_INLINE_API int nvsym_compare_values(uint64_t a, int cmp, uint64_t b)
{
    return cmp == NVSYM_CMP_EQ   ? a == b
           : cmp == NVSYM_CMP_NE ? a != b
           : cmp == NVSYM_CMP_GT ? a > b
           : cmp == NVSYM_CMP_LE ? a <= b
           : cmp == NVSYM_CMP_LT ? a < b
           : cmp == NVSYM_CMP_GE ? a >= b
                                 : 0;
}

/* Wait until a signal of this PE compares with a value as cmp (enum nvsym_cmp) says. Blocks; gives the GIL away meanwhile if
 * the caller holds it. */
NVSYM_INLINE_API int nvsym_signal_wait_until(uint64_t *signal, int cmp, uint64_t value, nvsym_stream_t stream)
{
    if (stream == NULL && nvsym_reach(nvsym_direct_->my_pe) != 0 && nvsym_compare_values(nvsym_signal_fetch(signal), cmp, value))
        return NVSYM_OK;
    return NVSYM_CALL(signal_wait_until(signal, cmp, value, stream));
}

/* Order the puts and signals before it before those after it, to each PE. */
NVSYM_INLINE_API int nvsym_fence(nvsym_stream_t stream) { return NVSYM_CALL(fence(stream)); }

/* Complete the puts and signals before it: they have arrived. */
NVSYM_INLINE_API int nvsym_quiet(nvsym_stream_t stream) { return NVSYM_CALL(quiet(stream)); }

/* ---- collective operations: every PE of the team makes the same call, in the same order; they block as the wait above --- */

NVSYM_INLINE_API int nvsym_barrier_all(nvsym_stream_t stream) { return NVSYM_CALL(barrier(NULL, stream)); }
NVSYM_INLINE_API int nvsym_barrier(nvsym_team_t team, nvsym_stream_t stream) { return NVSYM_CALL(barrier(team, stream)); }
NVSYM_INLINE_API int nvsym_sync(nvsym_team_t team, nvsym_stream_t stream) { return NVSYM_CALL(sync(team, stream)); }

/* Combine count elements of all PEs by op (enum nvsym_op, dtype of enum nvsym_dtype) into dest on every one. Both symmetric;
 * they may be the same. */
NVSYM_INLINE_API int nvsym_allreduce(nvsym_team_t team, void *dest, const void *source, size_t count, int dtype, int op,
                                     nvsym_stream_t stream)
{
    return NVSYM_CALL(allreduce(team, dest, source, count, dtype, op, stream));
}

/* Wait for what is enqueued on a stream; returns what an operation on it failed with. */
NVSYM_INLINE_API int nvsym_stream_synchronize(nvsym_stream_t stream) { return NVSYM_CALL(stream_synchronize(stream)); }

/* ---- from Python objects; with the GIL ---------------------------------------------------------------------------------- */

NVSYM_UNUSED static int nvsym_imported(void)
{
    if (!nvsym_api_)
        PyErr_SetString(PyExc_ImportError, nvsym_last_error());
    return nvsym_api_ != NULL;
}

/* The address of a live SHMEMBuffer or Buffer, whose element type is dtype (-1: any), and its number of elements (count may
 * be NULL). NULL with an exception: TypeError, FreedBufferError, NotInitializedError. For an empty buffer it is not NULL. */
NVSYM_UNUSED static void *nvsym_buffer_data(PyObject *buffer, int dtype, size_t *count)
{
    return nvsym_imported() ? nvsym_api_->buffer_data(buffer, dtype, count) : NULL;
}

/* The stream of a `stream=` argument of Python: None or NULL (that of the context), an int, a Stream, a stream of another
 * library. It can be given to CUDA, too: on the NVSHMEM backend it is not NULL. 0, or -1 with an exception. */
NVSYM_UNUSED static int nvsym_stream_of(PyObject *object, nvsym_stream_t *stream)
{
    return nvsym_imported() ? nvsym_api_->stream_of(object, stream) : -1;
}

/* The handle of a Team, or of None or NULL for TEAM_WORLD. 0, or -1 with an exception. It is valid as long as the team. */
NVSYM_UNUSED static int nvsym_team_of(PyObject *object, nvsym_team_t *team)
{
    return nvsym_imported() ? nvsym_api_->team_of(object, team) : -1;
}

/* The address of a Device's memory in a SymmetricPool, and that of the multicast object: for kernels. NULL with an exception. */
NVSYM_UNUSED static void *nvsym_pool_unicast(PyObject *pool, PyObject *device)
{
    return nvsym_imported() ? nvsym_api_->pool_unicast(pool, device) : NULL;
}

NVSYM_UNUSED static void *nvsym_pool_multicast(PyObject *pool)
{
    return nvsym_imported() ? nvsym_api_->pool_multicast(pool) : NULL;
}

/* ---- the objects: what may be read of them, by offset. Anything else of them is nvsym's own. ------------------------------ */

typedef struct nvsym_SHMEMBuffer {
    PyObject_HEAD void *vtab;
    PyObject *job, *block;
    char *ptr;    /* symmetric address: this PE's copy */
    size_t count; /* elements */
    size_t item;  /* bytes of one */
    int type_id;  /* enum nvsym_dtype */
} nvsym_SHMEMBuffer;

typedef struct nvsym_Buffer {
    PyObject_HEAD void *vtab;
    PyObject *device, *via, *dtype, *shape;
    size_t num_elements;
    size_t itemsize;
    int readonly;
    PyObject *element;
    char *ptr;
} nvsym_Buffer;

typedef struct nvsym_Stream {
    PyObject_HEAD void *vtab;
    PyObject *device;
    void *ptr; /* the raw stream */
} nvsym_Stream;

typedef struct nvsym_SymmetricPool {
    PyObject_HEAD void *vtab;
    size_t byte_size; /* on each device */
} nvsym_SymmetricPool;

typedef struct nvsym_Team {
    PyObject_HEAD void *vtab;
    PyObject *job, *data, *agreement;
    PyObject *name; /* numbers and members: nvsym_team_of */
} nvsym_Team;

#ifdef __cplusplus
}
#endif

#endif
