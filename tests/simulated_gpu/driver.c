/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA driver and an NVSHMEM for tests on machines without a GPU: enough of both for nvsym, in one library.
 *
 * The memory of the "GPUs" is a file in /dev/shm that all PEs map, and every operation of a stream is done when the call that
 * enqueues it returns. Where NVSHMEM ends the process, this one does: it prints "FATAL" and exits with status 255.
 *
 * SIM_GPUS (1), SIM_UUID (0), SIM_MPS, SIM_LIMITED, SIM_FREE (bytes), SIM_VERSION (30405), SIM_INIT_STATUS (0) and
 * SIM_INITIALIZED (somebody else has initialised NVSHMEM) say what the machine is like.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

static long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : otherwise;
}

static void fatal(const char *what)
{
    fprintf(stderr, "FATAL: %s\n", what);
    fflush(stderr);
    _exit(255);
}

/* ---- the driver ---------------------------------------------------------------------------------------------------- */

enum { NOT_READY = 600, NO_DEVICE = 100, INVALID = 1, UNSUPPORTED = 801, OOM = 2 };

static __thread void *current;
static char contexts[64];
static struct range { char *at; size_t size; int kind; } ranges[65536];
static int n_ranges;

static void note(void *at, size_t size, int kind)
{
    for (int i = 0; i < n_ranges; i++)
        if (ranges[i].at == NULL) {
            ranges[i] = (struct range){at, size, kind};
            return;
        }
    ranges[n_ranges++] = (struct range){at, size, kind};
}

static void forget(void *at)
{
    for (int i = 0; i < n_ranges; i++)
        if (ranges[i].at == at)
            ranges[i].at = NULL;
}

API int cuGetErrorString(int error, const char **text) { *text = "simulated"; return 0; }
API int cuGetErrorName(int error, const char **text) { *text = "SIMULATED_ERROR"; return 0; }
API int cuInit(unsigned flags) { return setting("SIM_GPUS", 1) ? 0 : NO_DEVICE; }
API int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
API int cuDeviceGetCount(int *count) { *count = (int)setting("SIM_GPUS", 1); return 0; }
API int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
API int cuDeviceGetName(char *name, int size, int device) { snprintf(name, size, "Simulated GPU"); return 0; }
API int cuDeviceGetUuid_v2(char *uuid, int device)
{
    memset(uuid, 0, 16);
    uuid[0] = (char)setting("SIM_UUID", 0);
    uuid[1] = (char)device;
    return 0;
}
API int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = attribute == 122 ? 1 : attribute == 133 ? (int)setting("SIM_MPS", 0) : attribute == 75 ? 9 : 0;
    return 0;
}
API int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &contexts[device]; return 0; }
API int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
API int cuCtxSetCurrent(void *context) { current = context; return 0; }
API int cuCtxGetCurrent(void **context) { *context = current; return 0; }
API int cuCtxSynchronize(void) { return 0; }
API int cuDeviceCanAccessPeer(int *can, int a, int b) { *can = 1; return 0; }
API int cuMemGetInfo_v2(size_t *room, size_t *total)
{
    *total = 140L << 30;
    *room = setting("SIM_FREE", 139L << 30);
    return 0;
}
static int allocate(void **at, size_t size, int kind)
{
    if (posix_memalign(at, 256, size))
        return OOM;
    note(*at, size, kind);
    return 0;
}
API int cuMemAlloc_v2(void **at, size_t size) { return allocate(at, size, 2); }
API int cuMemFree_v2(void *at) { forget(at); free(at); return 0; }
API int cuMemHostAlloc(void **at, size_t size, unsigned flags) { return allocate(at, size, 1); }
API int cuMemFreeHost(void *at) { forget(at); free(at); return 0; }
API int cuPointerGetAttribute(void *data, int attribute, char *at)
{
    for (int i = 0; i < n_ranges; i++)
        if (ranges[i].at && at >= ranges[i].at && at < ranges[i].at + ranges[i].size) {
            *(unsigned *)data = ranges[i].kind;
            return 0;
        }
    return INVALID;
}
API int cuMemcpyAsync(void *to, const void *from, size_t size, void *stream) { memmove(to, from, size); return 0; }
API int cuMemsetD8Async(char *at, unsigned char value, size_t n, void *stream) { memset(at, value, n); return 0; }
API int cuMemsetD16Async(uint16_t *at, unsigned short value, size_t n, void *stream)
{
    while (n--) *at++ = value;
    return 0;
}
API int cuMemsetD32Async(uint32_t *at, unsigned value, size_t n, void *stream)
{
    while (n--) *at++ = value;
    return 0;
}
API int cuStreamCreate(void **stream, unsigned flags) { *stream = malloc(16); return 0; }
API int cuStreamDestroy_v2(void *stream) { free(stream); return 0; }
API int cuStreamQuery(void *stream) { return 0; }
API int cuStreamSynchronize(void *stream) { return 0; }
API int cuStreamIsCapturing(void *stream, int *status) { *status = 0; return 0; }
API int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return 0; }
API int cuStreamWaitValue64_v2(void *stream, _Atomic uint64_t *at, uint64_t value, unsigned flags)
{
    while ((int64_t)(atomic_load(at) - value) < 0)
        sched_yield();
    return 0;
}
API int cuStreamWriteValue64_v2(void *stream, _Atomic uint64_t *at, uint64_t value, unsigned flags)
{
    atomic_store(at, value);
    return 0;
}
API int cuEventCreate(void **event, unsigned flags) { *event = calloc(1, sizeof(double)); return 0; }
API int cuEventDestroy_v2(void *event) { free(event); return 0; }
API int cuEventRecord(double *event, void *stream)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *event = now.tv_sec * 1e3 + now.tv_nsec * 1e-6;
    return 0;
}
API int cuEventQuery(void *event) { return 0; }
API int cuEventSynchronize(void *event) { return 0; }
API int cuEventElapsedTime(float *ms, double *start, double *end)
{
    if (*start == 0 || *end == 0)
        return 400;
    *ms = (float)(*end - *start);
    return 0;
}
API int cuModuleLoadData(void **module, const char *text)
{
    *module = (void *)text;
    return strstr(text, ".visible .entry") ? 0 : 200;
}
API int cuModuleUnload(void *module) { return 0; }
API int cuModuleGetFunction(char **function, void *module, const char *name) { *function = strdup(name); return 0; }
#define ATOMIC(T, U, name)                                                                                             \
    {                                                                                                                  \
        _Atomic U *at = *(_Atomic U **)arguments[0];                                                                   \
        U value = *(U *)arguments[1], cond = *(U *)arguments[2], old, now;                                             \
        T a, b;                                                                                                        \
        do {                                                                                                           \
            old = now = atomic_load(at);                                                                               \
            memcpy(&a, &old, sizeof a);                                                                                \
            memcpy(&b, &value, sizeof b);                                                                              \
            if (strstr(name, "_add_")) { a += b; memcpy(&now, &a, sizeof a); }                                         \
            else if (strstr(name, "_compare_swap_")) now = old == cond ? value : old;                                  \
            else if (strstr(name, "_set_") || strstr(name, "_swap_")) now = value;                                     \
            else if (strstr(name, "_and_")) now = old & value;                                                         \
            else if (strstr(name, "_xor_")) now = old ^ value;                                                         \
            else if (strstr(name, "_or_")) now = old | value;                                                          \
        } while (!atomic_compare_exchange_weak(at, &old, now));                                                        \
        if (*(U **)arguments[3]) **(U **)arguments[3] = old;                                                           \
        return 0;                                                                                                      \
    }
API int cuLaunchKernel(const char *name, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned shared, void *stream, void **arguments, void **extra)
{
    if (strstr(name, "_float32")) ATOMIC(float, uint32_t, name)
    if (strstr(name, "_float64")) ATOMIC(double, uint64_t, name)
    if (strstr(name, "_int32")) ATOMIC(uint32_t, uint32_t, name)
    if (strstr(name, "_int64")) ATOMIC(uint64_t, uint64_t, name)
    return UNSUPPORTED;
}

/* ---- NVSHMEM ------------------------------------------------------------------------------------------------------- */

enum { MEMBERS = 64, TEAMS = 512 };
static const size_t HEAP = (size_t)4 << 30;

typedef struct { _Atomic int arrived, turn; int pes[MEMBERS]; } meeting;
typedef struct { _Atomic int attached, ids; _Atomic int last; meeting teams[TEAMS]; } header;
typedef struct { int version; char name[124]; } uniqueid;
typedef struct {
    int version; void *mpi_comm;
    struct { int version; struct { int version; uniqueid *id; int rank, n; } uid; int device; char rest[92]; } args;
} attributes;
typedef struct { int version, contexts; uint64_t id; char rest[48]; } configuration;

static int state, me, n_pes, initializations;
static header *head;
static char *heaps, *path;
static size_t used;
static struct { int used, slot, n, index; } teams[TEAMS];

static void need(const char *what)
{
    if (state < 2) fatal(what);
    if (current == NULL) fatal("no current device");
}
static void full(const char *what)
{
    need(what);
    if (state == 3) fatal("Called NVSHMEM API not supported with limited MPG");
}
static void meet(meeting *where, int n)
{
    int turn = atomic_load(&where->turn);
    if (atomic_fetch_add(&where->arrived, 1) == n - 1) {
        atomic_store(&where->arrived, 0);
        atomic_store(&where->turn, turn + 1);
    } else
        while (atomic_load(&where->turn) == turn)
            sched_yield();
}
static char *there(const void *at, int pe)
{
    char *own = heaps + me * HEAP;
    return (char *)at >= own && (char *)at < own + HEAP && pe >= 0 && pe < n_pes ? heaps + pe * HEAP + ((char *)at - own) : NULL;
}
static char *operand(const void *at, int pe)
{
    char *found = there(at, pe);
    if (!found) fatal("an operand that is not symmetric, or a PE that does not exist");
    return found;
}
static int member(int team, const char *what)
{
    full(what);
    if (team < 0 || team >= TEAMS || !teams[team].used) fatal("a team that does not exist");
    return team;
}
static int pe_of(int team, int index) { return head->teams[teams[team].slot].pes[index]; }
static void team_meet(int team) { meet(&head->teams[teams[team].slot], teams[team].n); }

API void nvshmemx_vendor_get_version_info(int *a, int *b, int *c)
{
    long version = setting("SIM_VERSION", 30405);
    *a = (int)(version / 10000), *b = (int)(version / 100 % 100), *c = (int)(version % 100);
}
API int nvshmemx_init_status(void) { return state ? state : (int)setting("SIM_INITIALIZED", 0); }
API int nvshmemx_get_uniqueid(uniqueid *id)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(id->name, sizeof id->name, "/dev/shm/nvsym-sim-%d-%ld", getpid(), now.tv_nsec);
    return 0;
}
API int nvshmemx_set_attr_uniqueid_args(int rank, int n, uniqueid *id, attributes *a)
{
    a->args.uid.rank = rank, a->args.uid.n = n, a->args.uid.id = id;
    return 0;
}
API int nvshmemx_set_attr_mpi_comm_args(void *comm, attributes *a) { a->mpi_comm = comm; return 0; }
API int nvshmemx_hostlib_init_attr(unsigned flags, attributes *a)
{
    size_t size;
    int fd;
    for (int i = 0; getenv("NVSHMEM_SYMMETRIC_SIZE") && i < 1; i++)
        if (strspn(getenv("NVSHMEM_SYMMETRIC_SIZE"), "0123456789.kKmMgGtTbB") != strlen(getenv("NVSHMEM_SYMMETRIC_SIZE")))
            fatal("a malformed size");
    initializations++;
    if (setting("SIM_INIT_STATUS", 0) || !(flags & 8)) {
        state = 1;
        return (int)setting("SIM_INIT_STATUS", 7);
    }
    if (current == NULL) fatal("no current device at the initialisation");
    me = a->args.uid.rank, n_pes = a->args.uid.n;
    path = strdup(a->args.uid.id->name);
    size = sizeof(header);
    fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, (1 << 20) + n_pes * HEAP)) return 7;
    if (size > 1 << 20) fatal("the header is too large");
    head = mmap(NULL, (1 << 20) + n_pes * HEAP, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
    if (head == MAP_FAILED) return 7;
    heaps = (char *)head + (1 << 20);
    used = 0;
    note(heaps, n_pes * HEAP, 2);
    for (int i = 0; i < n_pes; i++) head->teams[0].pes[i] = i;
    memset(teams, 0, sizeof teams);
    teams[0].used = 1, teams[0].n = n_pes, teams[0].index = me;
    state = setting("SIM_LIMITED", 0) ? 3 : setting("SIM_MPS", 0) ? 4 : 2;
    meet(&head->teams[0], n_pes);
    unlink(path);
    return 0;
}
API void nvshmemx_hostlib_finalize(void)
{
    if (state == 1) fatal("aborting due to error in nvshmem_finalize");
    if (state == 0) return;
    if (--initializations) return;
    meet(&head->teams[0], n_pes);
    forget(heaps);
    munmap(head, (1 << 20) + n_pes * HEAP);
    state = 0;
}
API int nvshmem_my_pe(void) { need("nvshmem_my_pe"); return me; }
API int nvshmem_n_pes(void) { need("nvshmem_n_pes"); return n_pes; }
API void *nvshmem_malloc(size_t size)
{
    need("nvshmem_malloc");
    if (size == 0 || used + size > HEAP || (long)size > setting("SIM_FREE", 139L << 30)) fatal("an allocation that does not fit");
    char *at = heaps + me * HEAP + used;
    used += (size + 511) / 512 * 512;
    meet(&head->teams[0], n_pes);
    return at;
}
API void nvshmem_free(void *at) { need("nvshmem_free"); operand(at, me); meet(&head->teams[0], n_pes); }
API void *nvshmem_ptr(const void *at, int pe) { return state < 2 ? NULL : there(at, pe); }
API void *nvshmemx_mc_ptr(int team, const void *at) { return NULL; }

API void nvshmemx_putmem_on_stream(void *to, const void *from, size_t size, int pe, void *stream)
{
    need("put");
    memmove(operand(to, pe), from, size);
}
API void nvshmemx_getmem_on_stream(void *to, const void *from, size_t size, int pe, void *stream)
{
    need("get");
    memmove(to, operand(from, pe), size);
}
API void nvshmemx_signal_op_on_stream(uint64_t *at, uint64_t value, int op, int pe, void *stream)
{
    need("signal_op");
    _Atomic uint64_t *signal = (_Atomic uint64_t *)operand(at, pe);
    if (op == 9) atomic_store(signal, value);
    else if (op == 10) atomic_fetch_add(signal, value);
    else fatal("no signal operation");
}
API void nvshmemx_putmem_signal_on_stream(void *to, const void *from, size_t size, uint64_t *at, uint64_t value, int op, int pe,
                                          void *stream)
{
    nvshmemx_putmem_on_stream(to, from, size, pe, stream);
    nvshmemx_signal_op_on_stream(at, value, op, pe, stream);
}
API void nvshmemx_signal_wait_until_on_stream(uint64_t *at, int cmp, uint64_t value, void *stream)
{
    full("signal_wait_until");
    _Atomic uint64_t *signal = (_Atomic uint64_t *)operand(at, me);
    for (;;) {
        uint64_t now = atomic_load(signal);
        int is[] = {now == value, now != value, now > value, now <= value, now < value, now >= value};
        if (cmp < 0 || cmp > 5) fatal("no comparison");
        if (is[cmp]) return;
        sched_yield();
    }
}
API void nvshmemx_quiet_on_stream(void *stream) { need("quiet"); }
API void nvshmemx_barrier_all_on_stream(void *stream) { need("barrier_all"); meet(&head->teams[0], n_pes); }
API void nvshmemx_sync_all_on_stream(void *stream) { need("sync_all"); meet(&head->teams[0], n_pes); }
API int nvshmemx_barrier_on_stream(int team, void *stream) { team_meet(member(team, "barrier")); return 0; }
API int nvshmemx_team_sync_on_stream(int team, void *stream) { team_meet(member(team, "team_sync")); return 0; }

API int nvshmemx_team_get_uniqueid(uint64_t *id)
{
    full("team_get_uniqueid");
    *id = 1 + atomic_fetch_add(&head->ids, 1);
    if (*id >= TEAMS) return 7;
    return 0;
}
API int nvshmemx_team_init(int *team, configuration *config, long mask, int n, int index)
{
    full("team_init");
    for (*team = 7; teams[*team].used; ++*team)
        ;
    teams[*team].used = 1, teams[*team].slot = (int)config->id, teams[*team].n = n, teams[*team].index = index;
    head->teams[config->id].pes[index] = me;
    team_meet(*team);
    return 0;
}
API void nvshmem_team_destroy(int team)
{
    team_meet(member(team, "team_destroy"));
    teams[team].used = 0;
}

API int nvshmemx_broadcastmem_on_stream(int team, void *to, const void *from, size_t size, int root, void *stream)
{
    member(team, "broadcast");
    if (root < 0 || root >= teams[team].n) fatal("a root that does not exist");
    team_meet(team);
    memmove(operand(to, me), operand(from, pe_of(team, root)), size);
    team_meet(team);
    return 0;
}
API int nvshmemx_fcollectmem_on_stream(int team, void *to, const void *from, size_t size, void *stream)
{
    member(team, "fcollect");
    team_meet(team);
    for (int i = 0; i < teams[team].n; i++)
        memmove(operand(to, me) + i * size, operand(from, pe_of(team, i)), size);
    team_meet(team);
    return 0;
}
API int nvshmemx_alltoallmem_on_stream(int team, void *to, const void *from, size_t size, void *stream)
{
    member(team, "alltoall");
    team_meet(team);
    for (int i = 0; i < teams[team].n; i++)
        memmove(operand(to, me) + i * size, operand(from, pe_of(team, i)) + teams[team].index * size, size);
    team_meet(team);
    return 0;
}

/* Reductions. The two floats of 16 bits are widened and, of values that they hold, narrowed without rounding. */
typedef struct { uint16_t bits; } bfloat16;
static float from_bfloat16(bfloat16 x) { uint32_t bits = (uint32_t)x.bits << 16; float f; memcpy(&f, &bits, 4); return f; }
static bfloat16 to_bfloat16(float f) { uint32_t bits; memcpy(&bits, &f, 4); return (bfloat16){(uint16_t)(bits >> 16)}; }
typedef struct { uint16_t bits; } half;
static float from_half(half x)
{
    uint32_t exponent = x.bits >> 10 & 31, bits = (uint32_t)(x.bits & 0x8000) << 16;
    float f;
    if (exponent) bits |= (exponent + 112) << 23 | (uint32_t)(x.bits & 1023) << 13;
    memcpy(&f, &bits, 4);
    return f;
}
static half to_half(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if (f == 0) return (half){0};
    return (half){(uint16_t)(bits >> 16 & 0x8000) | (uint16_t)(((bits >> 23 & 255) - 112) << 10) | (uint16_t)(bits >> 13 & 1023)};
}
#define PLAIN(x) (x)
#define REDUCE_BLOCK(T, W, IN, OUT, EXPR, to, first, count)                                                            \
    T *result = malloc(count * sizeof(T) + 1);                                                                         \
    team_meet(team);                                                                                                   \
    for (size_t i = 0; i < count; i++) {                                                                               \
        W a = IN(((T *)operand(from, pe_of(team, 0)))[first + i]);                                                     \
        for (int p = 1; p < teams[team].n; p++) {                                                                      \
            W b = IN(((T *)operand(from, pe_of(team, p)))[first + i]);                                                 \
            a = EXPR;                                                                                                  \
        }                                                                                                              \
        result[i] = OUT(a);                                                                                            \
    }                                                                                                                  \
    team_meet(team);                                                                                                   \
    memcpy(operand(to, me), result, count * sizeof(T));                                                                \
    team_meet(team);                                                                                                   \
    free(result);                                                                                                      \
    return 0;
#define REDUCTION(name, T, W, IN, OUT, op, EXPR)                                                                       \
    API int nvshmemx_##name##_##op##_reduce_on_stream(int team, void *to, const void *from, size_t n, void *stream)    \
    {                                                                                                                  \
        member(team, "reduce");                                                                                        \
        REDUCE_BLOCK(T, W, IN, OUT, EXPR, to, 0, n)                                                                    \
    }                                                                                                                  \
    API int nvshmemx_##name##_##op##_reducescatter_on_stream(int team, void *to, const void *from, size_t n, void *s)  \
    {                                                                                                                  \
        member(team, "reducescatter");                                                                                 \
        REDUCE_BLOCK(T, W, IN, OUT, EXPR, to, teams[team].index * n, n)                                                \
    }
#define ARITHMETIC(name, T, W, IN, OUT)                                                                                \
    REDUCTION(name, T, W, IN, OUT, sum, a + b)                                                                         \
    REDUCTION(name, T, W, IN, OUT, prod, a *b)                                                                         \
    REDUCTION(name, T, W, IN, OUT, min, a < b ? a : b)                                                                 \
    REDUCTION(name, T, W, IN, OUT, max, a > b ? a : b)
#define INTEGER(name, T)                                                                                               \
    ARITHMETIC(name, T, T, PLAIN, PLAIN)                                                                               \
    REDUCTION(name, T, T, PLAIN, PLAIN, and, a &b)                                                                     \
    REDUCTION(name, T, T, PLAIN, PLAIN, or, a | b)                                                                     \
    REDUCTION(name, T, T, PLAIN, PLAIN, xor, a ^ b)
INTEGER(int8, int8_t)
INTEGER(int16, int16_t)
INTEGER(int32, int32_t)
INTEGER(int64, int64_t)
INTEGER(uint8, uint8_t)
INTEGER(uint16, uint16_t)
INTEGER(uint32, uint32_t)
INTEGER(uint64, uint64_t)
ARITHMETIC(float, float, float, PLAIN, PLAIN)
ARITHMETIC(double, double, double, PLAIN, PLAIN)
ARITHMETIC(half, half, float, from_half, to_half)
ARITHMETIC(bfloat16, bfloat16, float, from_bfloat16, to_bfloat16)
