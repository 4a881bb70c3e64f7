/* SPDX-License-Identifier: Apache-2.0
 *
 * What nvsym and the extensions built against it share: the codes that its C functions return, and the table of these
 * functions. Extensions include nvsym/nvsym.h, which has the functions themselves.
 *
 * The ABI version has two parts. Another major one means that the table, the codes or the objects in nvsym.h changed, and
 * that an extension has to be built again. A higher minor one means that entries were added at the end of the table. */
#ifndef NVSYM_API_H
#define NVSYM_API_H

#include <stddef.h>
#include <stdint.h>

#include "types.h"

#ifndef NVSYM_ABI_MAJOR
#define NVSYM_ABI_MAJOR 1
#endif
#ifndef NVSYM_ABI_MINOR
#define NVSYM_ABI_MINOR 0
#endif

/* What the functions return. Each is one exception in Python; see nvsym_raise. */
enum nvsym_status {
    NVSYM_OK = 0,
    NVSYM_ERROR_BACKEND,     /* BackendError: CUDA, NVSHMEM or MPI said no */
    NVSYM_ERROR_COLLECTIVE,  /* CollectiveError: the calls of the PEs do not go together */
    NVSYM_ERROR_TIMEOUT,     /* PeerTimeoutError: NVSYM_TIMEOUT is over */
    NVSYM_ERROR_EXITED,      /* PeerExitedError: a PE that is needed is gone */
    NVSYM_ERROR_UNREACHABLE, /* PeerUnreachableError */
    NVSYM_ERROR_MEMORY,      /* MemoryError */
    NVSYM_ERROR_CLOSED,      /* NotInitializedError: there is no job, or nvsym was not imported */
    NVSYM_ERROR_INTERRUPTED, /* KeyboardInterrupt */
    NVSYM_ERROR_ARGUMENT     /* ValueError: the argument is named in nvsym_last_error() */
};

/* Which PEs this process can store to with its own instructions: reach[pe] is the way from a symmetric address here to the same
 * one of the PE, plus one; 0: there is none, so that a table of zeros reaches nobody. Signals have a table of their own: where some PEs
 * are on other nodes, MPI makes all updates of signals, so that those of one signal do not get lost. PEs beyond the tables are
 * reached through the functions. */
#define NVSYM_DIRECT_PES 1024

typedef struct nvsym_direct {
    int32_t n_pes; /* 0 while there is no job */
    int32_t my_pe; /* -1 then */
    int64_t reach[NVSYM_DIRECT_PES];
    int64_t signal_reach[NVSYM_DIRECT_PES];
} nvsym_direct;

/* A team as the functions take it: nvsym_team_of() gives that of a Team. NULL is TEAM_WORLD. */
typedef struct nvsym_team {
    int32_t my_pe; /* this PE's number in the team */
    int32_t n_pes;
    const int32_t *pes; /* the members' numbers in the world */
    void *state;        /* the backend's */
} nvsym_team;
typedef const nvsym_team *nvsym_team_t;

/* A stream as the functions take it: a raw handle, as Stream.handle in Python. NULL is the stream of the context. */
typedef void *nvsym_stream_t;

/* The table. Everything but the last block may be called without the GIL, by any thread. */
typedef struct nvsym_api {
    uint32_t abi_major, abi_minor;
    const char *version; /* of nvsym */
    const nvsym_direct *direct;

    int (*my_pe)(void);
    int (*n_pes)(void);
    void *(*peer_ptr)(const void *ptr, int pe);

    int (*put)(void *dest, const void *source, size_t nbytes, int pe, nvsym_stream_t stream);
    int (*get)(void *dest, const void *source, size_t nbytes, int pe, nvsym_stream_t stream);
    int (*put_signal)(void *dest, const void *source, size_t nbytes, uint64_t *signal, uint64_t value, int op, int pe,
                      nvsym_stream_t stream);
    int (*signal_op)(uint64_t *signal, uint64_t value, int op, int pe, nvsym_stream_t stream);
    int (*signal_wait_until)(uint64_t *signal, int cmp, uint64_t value, nvsym_stream_t stream);
    int (*fence)(nvsym_stream_t stream);
    int (*quiet)(nvsym_stream_t stream);
    int (*barrier)(nvsym_team_t team, nvsym_stream_t stream);
    int (*sync)(nvsym_team_t team, nvsym_stream_t stream);
    int (*allreduce)(nvsym_team_t team, void *dest, const void *source, size_t count, int dtype, int op,
                     nvsym_stream_t stream);
    int (*stream_synchronize)(nvsym_stream_t stream);

    const char *(*last_error)(void);

    /* With the GIL. Objects are PyObject *. On failure an exception is set. */
    int (*raise)(int status);
    void *(*buffer_data)(void *object, int dtype, size_t *count);
    int (*stream_of)(void *object, nvsym_stream_t *stream);
    int (*team_of)(void *object, nvsym_team_t *team);
    void *(*pool_unicast)(void *pool, void *device);
    void *(*pool_multicast)(void *pool);
} nvsym_api;

#endif
