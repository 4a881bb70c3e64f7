/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the simulated CUDA driver share: the types of cuda.h that it uses, the settings, the frame around each
 * call (counter, log, injected failures), and the two engines, memory and streams.
 */
#ifndef NVSYM_SIMULATOR_SIM_H
#define NVSYM_SIMULATOR_SIM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common.h"

#define API __attribute__((visibility("default")))
#define PRINTF(text, first) __attribute__((format(printf, text, first)))

typedef uint64_t u64;
typedef uint32_t u32;
typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef uint64_t CUhandle;

enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEINITIALIZED = 4,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    CONTEXT_IS_DESTROYED = 709,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    MISALIGNED_ADDRESS = 716,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    SYSTEM_NOT_READY = 802,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_MERGE = 902,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908,
    TIMEOUT = 909,
    UNKNOWN = 999
};

enum { POSIX_FD = 1, FABRIC = 8 };      /* CUmemAllocationHandleType */
enum { MAX_DEVICES = 64, MAX_TEAM = 64, MAX_BINDS = 512 };
enum { PAGE = 4096 };

typedef struct { unsigned char bytes[16]; } uuid_t;
typedef struct { int type, id; } location_t;
typedef struct {
    int type, handle_types;
    location_t location;
    void *win32;
    struct { unsigned char compression, rdma; unsigned short usage; unsigned char reserved[4]; } flags;
} alloc_prop;
typedef struct { unsigned devices; size_t size; u64 handle_types, flags; } multicast_prop;
typedef struct { location_t location; int flags; } access_desc;

/* ---- settings ----------------------------------------------------------------------------------------------------------- */

typedef struct {
    int pe, n_pes, node, nodes;
    int physical;                       /* GPUs of the node */
    int devices;                        /* those that this process sees */
    int ordinal[MAX_DEVICES];           /* their numbers on the node */
    bool mps;
    u64 memory;                         /* bytes of a GPU */
    u64 alloc_minimum, alloc_recommended, mc_minimum, mc_recommended;
    int imex, clique;                   /* imex < 0: no channel */
    int slots;                          /* multicast objects that a process may bind */
    u64 late_ns;                        /* how long a stream may leave its work undone */
    double block_limit;                 /* seconds that a call waits for devices to be added; 0: for ever */
    bool late_import_empty, abort_on_misuse, peers;
    int driver_version;
} sim_settings;
extern sim_settings sim;

void sim_setup(void);                   /* reads the environment once */
u64 sim_now(void);                      /* ns, the same clock in all processes */
void sim_nap(int *tries);               /* between two looks at what another thread or process changes */

/* ---- the frame of a call ------------------------------------------------------------------------------------------------ */

typedef struct sim_site { const char *name; int kind; _Atomic u64 calls; struct sim_site *next; _Atomic int known; } sim_site;
enum { ANYTIME = 0, AFTER_INIT = 1, UNSAFE = 3 };   /* UNSAFE: also not while a stream is captured in global mode */

CUresult sim_enter(sim_site *site);
CUresult sim_leave(sim_site *site, CUresult result, const char *format, ...) PRINTF(3, 4);
/* A broken rule: its text is kept for the log and for nvsym_sim_last_violation; returns the status. */
CUresult broke(CUresult status, const char *format, ...) PRINTF(2, 3);
/* What the driver leaves undefined. */
CUresult misuse(CUresult status, const char *format, ...) PRINTF(2, 3);

#define CALL(name, kind, parameters, arguments, ...)                                                                     \
    static CUresult sim_##name parameters;                                                                               \
    API CUresult name parameters;                                                                                        \
    API CUresult name parameters                                                                                         \
    {                                                                                                                    \
        static sim_site site = {#name, kind, 0, NULL, 0};                                                                \
        (void)LISTED(#name);                                                                                             \
        CUresult status = sim_enter(&site);                                                                              \
        if (status == OK)                                                                                                \
            status = sim_##name arguments;                                                                               \
        return sim_leave(&site, status, __VA_ARGS__);                                                                    \
    }                                                                                                                    \
    static CUresult sim_##name parameters

/* ---- devices and contexts ----------------------------------------------------------------------------------------------- */

typedef struct context { u64 magic; int device, retained; struct stream *legacy; } context;
bool sim_initialized(void);
uuid_t sim_uuid(int device);
int sim_device_of(const uuid_t *uuid);              /* its number in this process, or -1 */
int sim_attribute(int attribute, int device);
bool sim_attributes_readable(void);                 /* those of NVSYM_SIM_ATTR */
context *sim_current(void);
void sim_account(int device, int64_t bytes);        /* memory taken and given back, for cuMemGetInfo */
extern _Atomic int64_t sim_used[MAX_DEVICES];

/* ---- memory ------------------------------------------------------------------------------------------------------------- */

enum { PAGEABLE = 0, HOST = 1, DEVICE = 2, MULTICAST = 3, NO_ACCESS = 4 };

typedef struct {
    int kind;
    CUdeviceptr base;
    size_t size;
    int device;                         /* -1: of another process */
} memory_info;
memory_info sim_lookup(CUdeviceptr at);
/* Whether the current device may use [at, at + size): OK, or the status to return. `*kind` is what it is. */
CUresult sim_check_range(const char *what, CUdeviceptr at, size_t size, bool write, int *kind);
void sim_note(void *at, size_t size, int kind, int device);
bool sim_forget(void *at, int kind);    /* false: was not noted as such */
void sim_poison(void *at, size_t size);

/* ---- streams ------------------------------------------------------------------------------------------------------------ */

typedef void (*op_run)(void *argument);
struct stream;
/* Put an operation on a stream; its argument is copied. In a capture it goes into the graph. */
CUresult sim_enqueue(void *stream, op_run run, const void *argument, size_t size);
CUresult sim_wait_stream(void *stream);
void sim_drain(void);                   /* wait for all streams */
bool sim_is_capturing(void *stream);
bool sim_unsafe_now(void);
void sim_invalidate_captures(void);

/* ---- counters ----------------------------------------------------------------------------------------------------------- */

typedef struct {
    u64 memory_handles, multicast_handles, memory_objects, multicast_objects, reservations, mappings, binds, descriptors;
    u64 contexts, device_allocations, host_allocations, registrations, streams, events, graphs, modules;
    u64 violations, misuses, injected;
} sim_counters;
extern _Atomic u64 count_violations, count_misuses, count_injected;
extern _Atomic u64 count_streams, count_events, count_graphs, count_modules, count_contexts;
void sim_count_memory(sim_counters *out);

#endif
