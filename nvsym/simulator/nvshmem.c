/* SPDX-License-Identifier: Apache-2.0
 *
 * A simulated NVSHMEM host library, over the simulated driver: what nvsym's NVSHMEM backend calls. The PEs are processes of one
 * machine; their heaps are one shared file, and what is on a stream is done by the driver's threads, in order.
 *
 * It is strict where NVSHMEM ends the process or leaves the case open: it prints "FATAL" and ends the process with status 255.
 * All members of a collective must call it with the same size, operation and root, one at a time for each team.
 */
#define _GNU_SOURCE
#include "common.h"
#include "floats.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum { NOT_INITIALIZED, BOOTSTRAPPED, INITIALIZED, LIMITED_MPG, FULL_MPG };
enum { SUCCESS = 0, INVALID = 1, NOT_SUPPORTED = 3, GPU_NOT_SELECTED = 5, INTERNAL = 7 };
enum { MOST_PES = 64, SLOTS = 512, FIRST_FREE_SLOT = 256, MOST_TEAMS = 256, FIRST_TEAM = 7 };

typedef struct { int version; char bytes[124]; } uniqueid;
typedef struct {
    int version;
    void *mpi_comm;
    struct {
        int version;
        struct { int version; uniqueid *id; int rank, n; } uid;
        int device;
        char rest[92];
    } args;
} init_attributes;
typedef struct { int version, contexts; u64 id; char rest[48]; } team_configuration;
_Static_assert(sizeof(init_attributes) == 144 && sizeof(team_configuration) == 64 && sizeof(uniqueid) == 128, "NVSHMEM's structures");

/* Where the members of a team meet. */
typedef struct {
    _Atomic int taken, arrived;
    _Atomic u32 turn;
    int n, pes[MOST_PES];
    u64 calls[MOST_PES];                /* what each member is about to do */
} meeting;
typedef struct { int node, share; bool mps; unsigned char uuid[16]; pid_t pid; } pe_info;
typedef struct { pe_info pes[MOST_PES]; meeting slots[SLOTS]; } header;
typedef struct { u64 magic, inode; pid_t pid; int fd; } identifier;
#define MAGIC 0x4d454d485356534eull

typedef struct block { u64 at, size; bool used; struct block *next; } block;
typedef struct { bool used; int slot, n, index; team_configuration configuration; _Atomic int busy; } team;

static int state, me, n_pes, device, initializations;
static header *shared;
static char *heaps;
static u64 heap_size, heap_grown;
static block *blocks;
static team teams[MOST_TEAMS];
static size_t segment_size;
static int identifier_fd = -1;
static pthread_mutex_t heap_lock = PTHREAD_MUTEX_INITIALIZER, team_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the driver --------------------------------------------------------------------------------------------------------- */

static struct {
    int (*enqueue)(void *, void (*)(void *), const void *, size_t);
    int (*synchronize)(void *);
    int (*get_device)(int *);
    int (*get_uuid)(void *, int);
    int (*get_attribute)(int *, int, int);
    int (*get_info)(size_t *, size_t *);
    int (*context_synchronize)(void);
    void (*note)(void *, size_t, int);
    void (*forget)(void *);
    void (*account)(int, int64_t);
    void (*place)(int *, int *, int *, int *);
    void (*job)(int);
    int (*begin)(const char *);
    void (*end)(const char *, int, const char *);
} driver;

static void fatal(const char *format, ...)
{
    va_list rest;
    va_start(rest, format);
    fprintf(stderr, "FATAL: nvsym simulator: ");
    vfprintf(stderr, format, rest);
    fprintf(stderr, "\n");
    va_end(rest);
    fflush(stderr);
    _exit(255);
}

/* The simulated driver beside this file, whatever driver the process may have loaded before. */
static void load_driver(void)
{
    Dl_info own;
    char path[PATH_MAX];
    const char *names[] = {"nvsym_sim_enqueue", "cuStreamSynchronize", "cuCtxGetDevice",   "cuDeviceGetUuid_v2", "cuDeviceGetAttribute",
                           "cuMemGetInfo_v2",   "cuCtxSynchronize",    "nvsym_sim_note",   "nvsym_sim_forget",   "nvsym_sim_account",
                           "nvsym_sim_place",   "nvsym_sim_job",       "nvsym_sim_begin",  "nvsym_sim_end"};
    _Static_assert(sizeof names == sizeof driver, "a name for each function of the driver");
    void **functions = (void **)&driver;
    dladdr((void *)load_driver, &own);
    snprintf(path, sizeof path, "%s", own.dli_fname);
    char *slash = strrchr(path, '/');
    snprintf(slash ? slash + 1 : path, 16, "libcuda.so.1");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        fatal("the simulated NVSHMEM needs the simulated driver beside it: %s", dlerror());
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((functions[i] = dlsym(library, names[i])) == NULL)
            fatal("%s has no %s: the two libraries of the simulator are of two versions", path, names[i]);
}

static pthread_once_t loaded = PTHREAD_ONCE_INIT;
static int begin(const char *name)
{
    pthread_once(&loaded, load_driver);
    return driver.begin(name);
}

/* An injected failure of a function that returns nothing ends the process, as an error of it does. */
static void begin_void(const char *name)
{
    int status = begin(name);
    if (status)
        fatal("%s failed with status %d", name, status);
}

static void done(const char *name, int status, const char *format, ...)
{
    char text[256];
    va_list rest;
    va_start(rest, format);
    vsnprintf(text, sizeof text, format, rest);
    va_end(rest);
    driver.end(name, status, text);
}

/* ---- waiting ------------------------------------------------------------------------------------------------------------ */

static void futex_wait(_Atomic u32 *at, u32 seen)
{
    struct timespec limit = {1, 0};
    syscall(SYS_futex, at, FUTEX_WAIT, seen, &limit, NULL, 0);
}

static void meet(meeting *where, int n)
{
    u32 turn = atomic_load(&where->turn);
    if (atomic_fetch_add(&where->arrived, 1) == n - 1) {
        atomic_store(&where->arrived, 0);
        atomic_store(&where->turn, turn + 1);
        syscall(SYS_futex, &where->turn, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
        return;
    }
    for (int i = 0; i < 50 && atomic_load(&where->turn) == turn; i++)
        sched_yield();
    while (atomic_load(&where->turn) == turn)
        futex_wait(&where->turn, turn);
}

static u64 mix(u64 hash, u64 value)
{
    hash ^= value + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2);
    return hash * 0xbf58476d1ce4e5b9ull;
}

/* A member begins a collective: all have come, and to the same one. */
static meeting *come(int number, const char *what, u64 call)
{
    team *t = &teams[number];
    meeting *where = &shared->slots[t->slot];
    if (atomic_exchange(&t->busy, 1))
        fatal("%s: another collective of team %d is going on in this PE", what, number);
    for (const char *c = what; *c; c++)
        call = mix(call, (unsigned char)*c);
    where->calls[t->index] = call;
    meet(where, t->n);
    for (int i = 0; i < t->n; i++)
        if (where->calls[i] != call)
            fatal("%s: member %d of team %d called another collective, or this one with another size, operation or root", what, i, number);
    return where;
}

static void go(int number)
{
    team *t = &teams[number];
    meet(&shared->slots[t->slot], t->n);
    atomic_store(&t->busy, 0);
}

/* ---- what must be so ---------------------------------------------------------------------------------------------------- */

static void need(const char *what)
{
    int current;
    if (state < INITIALIZED)
        fatal("%s: NVSHMEM is not initialised", what);
    if (driver.get_device(&current) != 0)
        fatal("%s: no GPU is current in this thread", what);
    if (current != device)
        fatal("%s: GPU %d is current in this thread, NVSHMEM was initialised on %d", what, current, device);
}

static int member(int number, const char *what)
{
    need(what);
    if (state == LIMITED_MPG)
        fatal("%s: called NVSHMEM API not supported with limited MPG: PEs share a GPU without MPS", what);
    if (number < 0 || number >= MOST_TEAMS || !teams[number].used)
        fatal("%s: team %d does not exist", what, number);
    return number;
}

static int node_of(int pe) { return shared->pes[pe].node; }

static char *there(const void *at, int pe)
{
    char *own = heaps + (u64)me * heap_size;
    if (pe < 0 || pe >= n_pes || (const char *)at < own || (const char *)at >= own + heap_size)
        return NULL;
    return heaps + (u64)pe * heap_size + ((const char *)at - own);
}

/* [at, at + size) of this PE's heap, within one allocation, as it is on `pe`. */
static char *operand(const void *at, u64 size, int pe, const char *what)
{
    char *found = there(at, pe);
    if (pe < 0 || pe >= n_pes)
        fatal("%s: there is no PE %d", what, pe);
    if (found == NULL)
        fatal("%s: %p is not an address of the symmetric heap", what, at);
    u64 offset = (u64)((const char *)at - (heaps + (u64)me * heap_size));
    bool in = false;
    pthread_mutex_lock(&heap_lock);
    for (block *b = blocks; b && !in; b = b->next)
        in = b->used && offset >= b->at && offset + size <= b->at + b->size;
    pthread_mutex_unlock(&heap_lock);
    if (!in)
        fatal("%s: %llu bytes at %p are not within one allocation of the symmetric heap", what, (unsigned long long)size, at);
    return found;
}

static int pe_of(int number, int index) { return shared->slots[teams[number].slot].pes[index]; }

static int enqueue(const char *what, void *stream, void (*run)(void *), const void *argument, size_t size)
{
    int status = driver.enqueue(stream, run, argument, size);
    if (status)
        fprintf(stderr, "nvsym simulator: %s: the driver refuses the stream: status %d\n", what, status);
    return status ? INTERNAL : SUCCESS;
}

static void enqueue_void(const char *what, void *stream, void (*run)(void *), const void *argument, size_t size)
{
    if (enqueue(what, stream, run, argument, size))
        fatal("%s: the stream refuses the operation", what);
}

/* ---- the job ------------------------------------------------------------------------------------------------------------ */

/* The functions that a plan of failures can name: those that have a frame. */
API const char *const *nvsym_sim_functions(size_t *n);
API const char *const *nvsym_sim_functions(size_t *n)
{
    *n = (size_t)(__stop_sim_calls - __start_sim_calls);
    return __start_sim_calls;
}

API void nvshmemx_vendor_get_version_info(int *major, int *minor, int *patch);
API void nvshmemx_vendor_get_version_info(int *major, int *minor, int *patch)
{
    long version = env_number("NVSYM_SIM_NVSHMEM", 0, 999999, 30800);
    *major = (int)(version / 10000), *minor = (int)(version / 100 % 100), *patch = (int)(version % 100);
}
API void nvshmem_info_get_version(int *major, int *minor);
API void nvshmem_info_get_version(int *major, int *minor) { *major = 1, *minor = 3; }
API void nvshmem_query_thread(int *provided);
API void nvshmem_query_thread(int *provided) { *provided = 2; }

/* NVSYM_SIM_INITIALIZED: as if another library had initialised NVSHMEM before. */
API int nvshmemx_init_status(void);
API int nvshmemx_init_status(void) { return state ? state : (int)env_number("NVSYM_SIM_INITIALIZED", NOT_INITIALIZED, FULL_MPG, NOT_INITIALIZED); }

API int nvshmemx_get_uniqueid(uniqueid *id);
API int nvshmemx_get_uniqueid(uniqueid *id)
{
    struct stat found;
    identifier own = {MAGIC, 0, getpid(), -1};
    int status = begin(LISTED("nvshmemx_get_uniqueid"));
    if (status == 0) {
        if (identifier_fd >= 0)
            close(identifier_fd);
        own.fd = identifier_fd = memfd_create("nvsym-sim-nvshmem", MFD_CLOEXEC);
        if (own.fd < 0 || fstat(own.fd, &found))
            status = INTERNAL;
        else {
            own.inode = found.st_ino;
            memcpy(id->bytes, &own, sizeof own);
        }
    }
    done("nvshmemx_get_uniqueid", status, "");
    return status;
}

API int nvshmemx_set_attr_uniqueid_args(int rank, int n, uniqueid *id, init_attributes *a);
API int nvshmemx_set_attr_uniqueid_args(int rank, int n, uniqueid *id, init_attributes *a)
{
    if (id == NULL || a == NULL)
        return INVALID;
    a->args.uid.rank = rank, a->args.uid.n = n, a->args.uid.id = id;
    return SUCCESS;
}
API int nvshmemx_set_attr_mpi_comm_args(void *comm, init_attributes *a);
API int nvshmemx_set_attr_mpi_comm_args(void *comm, init_attributes *a)
{
    a->mpi_comm = comm;
    return SUCCESS;
}

static int attach(const init_attributes *a)
{
    identifier id;
    char path[64];
    struct stat found;
    size_t free_bytes, total;
    memcpy(&id, a->args.uid.id->bytes, sizeof id);
    if (id.magic != MAGIC) {
        fprintf(stderr, "nvsym simulator: the unique id was not made by nvshmemx_get_uniqueid\n");
        return INTERNAL;
    }
    snprintf(path, sizeof path, "/proc/%d/fd/%d", id.pid, id.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &found) || found.st_ino != id.inode) {
        fprintf(stderr, "nvsym simulator: the process that made the unique id does not answer\n");
        return INTERNAL;
    }
    if (driver.get_info(&free_bytes, &total))
        return INTERNAL;
    u64 head = (sizeof(header) + 65535) / 65536 * 65536;
    heap_size = total / (2 << 20) * (2 << 20);
    segment_size = head + (u64)n_pes * heap_size;
    if (ftruncate(fd, (off_t)segment_size))
        return INTERNAL;
    char *at = mmap(NULL, segment_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
    if (at == MAP_FAILED)
        return INTERNAL;
    shared = (header *)at;
    heaps = at + head;
    return SUCCESS;
}

static void set_team(int number, int slot, const int *pes, int n, bool writes)
{
    team *t = &teams[number];
    memset(t, 0, sizeof *t);
    t->used = true;
    t->slot = slot;
    t->n = n;
    for (int i = 0; i < n; i++) {
        if (pes[i] == me)
            t->index = i;
        if (writes)
            shared->slots[slot].pes[i] = pes[i];
    }
    if (writes)
        shared->slots[slot].n = n;
}

static void predefined_teams(void)
{
    int world[MOST_PES], node[MOST_PES], across[MOST_PES], n_node = 0, n_across = 0, my_place = 0;
    for (int i = 0; i < n_pes; i++) {
        world[i] = i;
        if (node_of(i) == node_of(me)) {
            if (i == me)
                my_place = n_node;
            node[n_node++] = i;
        }
    }
    for (int i = 0; i < n_pes; i++) {
        int its = 0;
        for (int k = 0; k < i; k++)
            its += node_of(k) == node_of(i);
        if (its == my_place)
            across[n_across++] = i;
    }
    set_team(0, 0, world, n_pes, true);
    set_team(1, 1 + node_of(me), node, n_node, true);
    set_team(2, 65 + node_of(me), node, n_node, true);
    set_team(3, 129 + my_place, across, n_across, true);
}

/* PEs that share a GPU have all of NVSHMEM only under MPS, with shares that add up to no more than the GPU. */
static int find_state(void)
{
    bool sharing = false, full = true;
    for (int i = 0; i < n_pes; i++) {
        int sum = 0, n = 0;
        for (int k = 0; k < n_pes; k++)
            if (!memcmp(shared->pes[i].uuid, shared->pes[k].uuid, 16)) {
                n++;
                sum += shared->pes[k].share > 0 ? shared->pes[k].share : 101;
                full &= n_pes == 1 || shared->pes[k].mps || n < 2;
            }
        sharing |= n > 1;
        full &= n < 2 || (sum <= 100 && shared->pes[i].mps);
    }
    return !sharing ? INITIALIZED : full ? FULL_MPG : LIMITED_MPG;
}

static void fresh_blocks(void)
{
    while (blocks) {
        block *next = blocks->next;
        free(blocks);
        blocks = next;
    }
    blocks = calloc(1, sizeof *blocks);
    blocks->size = heap_size;
    heap_grown = 0;
}

static int initialize(unsigned flags, init_attributes *a)
{
    int mps = 0, unused, node;
    const char *size = getenv("NVSHMEM_SYMMETRIC_SIZE"), *share = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    if (size && strspn(size, "0123456789.kKmMgGtTbB") != strlen(size))
        fatal("NVSHMEM_SYMMETRIC_SIZE=%s: NVSHMEM crashes on a malformed size", size);
    if (state >= INITIALIZED)
        return SUCCESS;
    if (!(flags & 8)) {
        fprintf(stderr, "nvsym simulator: the simulated NVSHMEM starts by unique id only\n");
        state = BOOTSTRAPPED;
        return INTERNAL;
    }
    if (a == NULL || a->args.uid.id == NULL || (a->version & 0xffff) != sizeof *a || a->args.uid.n < 1 || a->args.uid.n > MOST_PES ||
        a->args.uid.rank < 0 || a->args.uid.rank >= a->args.uid.n) {
        fprintf(stderr, "nvsym simulator: nvshmemx_hostlib_init_attr: the attributes are not what nvshmemx_set_attr_uniqueid_args made\n");
        state = BOOTSTRAPPED;
        return INTERNAL;
    }
    me = a->args.uid.rank, n_pes = a->args.uid.n;
    driver.job(n_pes);
    if (driver.get_device(&device)) {
        fprintf(stderr, "nvsym simulator: nvshmemx_hostlib_init_attr: no GPU is current in this thread\n");
        state = BOOTSTRAPPED;
        return INTERNAL;
    }
    if (attach(a)) {
        state = BOOTSTRAPPED;
        return INTERNAL;
    }
    pe_info *own = &shared->pes[me];
    driver.place(&unused, &unused, &node, &unused);
    driver.get_attribute(&mps, 133, device);
    driver.get_uuid(own->uuid, device);
    own->node = node;
    own->mps = mps != 0;
    own->share = share ? atoi(share) : 0;
    own->pid = getpid();
    meet(&shared->slots[0], n_pes);
    for (int i = 0; i < n_pes; i++)
        if (node_of(i) < 0 || node_of(i) >= MOST_PES)
            fatal("node %d of PE %d", node_of(i), i);
    predefined_teams();
    fresh_blocks();
    for (int i = 0; i < n_pes; i++)
        driver.note(heaps + (u64)i * heap_size, heap_size, i == me ? device : -1);
    state = find_state();
    meet(&shared->slots[0], n_pes);
    if (identifier_fd >= 0) {
        close(identifier_fd);
        identifier_fd = -1;
    }
    return SUCCESS;
}

API int nvshmemx_hostlib_init_attr(unsigned flags, init_attributes *a);
API int nvshmemx_hostlib_init_attr(unsigned flags, init_attributes *a)
{
    int status = begin(LISTED("nvshmemx_hostlib_init_attr"));
    initializations++;
    if (status)
        state = state ? state : BOOTSTRAPPED;
    else
        status = initialize(flags, a);
    done("nvshmemx_hostlib_init_attr", status, "pe=%d n=%d state=%d", me, n_pes, state);
    return status;
}

API void nvshmemx_hostlib_finalize(void);
API void nvshmemx_hostlib_finalize(void)
{
    begin_void(LISTED("nvshmemx_hostlib_finalize"));
    if (state == BOOTSTRAPPED)
        fatal("nvshmemx_hostlib_finalize after an initialisation that failed");
    if (state >= INITIALIZED && --initializations == 0) {
        need("nvshmemx_hostlib_finalize");
        if (driver.context_synchronize())
            fatal("nvshmemx_hostlib_finalize: the GPU does not come to an end");
        meet(&shared->slots[0], n_pes);
        for (int i = 0; i < n_pes; i++)
            driver.forget(heaps + (u64)i * heap_size);
        driver.account(device, -(int64_t)heap_grown);
        munmap(shared, segment_size);
        memset(teams, 0, sizeof teams);
        shared = NULL;
        state = NOT_INITIALIZED;
    }
    done("nvshmemx_hostlib_finalize", 0, "");
}

/* Before the initialisation NVSHMEM answers 0, and says nothing. */
API int nvshmem_my_pe(void);
API int nvshmem_my_pe(void) { return state ? me : 0; }
API int nvshmem_n_pes(void);
API int nvshmem_n_pes(void) { return state ? n_pes : 0; }

/* ---- the symmetric heap ------------------------------------------------------------------------------------------------- */

static void *allocate(const char *what, u64 alignment, u64 size, bool zero)
{
    u64 granule = (u64)env_number("NVSYM_SIM_HEAP_GRANULE", 1, LONG_MAX, 512 << 20), end = 0;
    size_t room, total;
    block *found = NULL;
    need(what);
    if (size == 0)
        return NULL;
    come(0, what, mix(size, alignment));
    if (alignment < 512)
        alignment = 512;
    pthread_mutex_lock(&heap_lock);
    for (block *b = blocks; b && found == NULL; b = b->next) {
        u64 at = (b->at + alignment - 1) / alignment * alignment, skip = at - b->at, taken = (size + 511) / 512 * 512;
        if (b->used || b->size < taken + skip)
            continue;
        if (skip) {
            block *rest = calloc(1, sizeof *rest);
            *rest = (block){at, b->size - skip, false, b->next};
            b->size = skip;
            b->next = rest;
            b = rest;
        }
        if (b->size > taken) {
            block *rest = calloc(1, sizeof *rest);
            *rest = (block){b->at + taken, b->size - taken, false, b->next};
            b->size = taken;
            b->next = rest;
        }
        b->used = true;
        found = b;
    }
    for (block *b = blocks; b; b = b->next)
        if (b->used)
            end = b->at + b->size;
    pthread_mutex_unlock(&heap_lock);
    if (found == NULL)
        fatal("%s(%llu): the heap's addresses are used up", what, (unsigned long long)size);
    if (end > heap_grown) {
        u64 more = (end - heap_grown + granule - 1) / granule * granule;
        driver.get_info(&room, &total);
        /* NVSHMEM tears its heap down, and ends in an illegal access of it. */
        if (more > room)
            fatal("%s(%llu): an allocation that does not fit: %zu bytes are free", what, (unsigned long long)size, room);
        driver.account(device, (int64_t)more);
        heap_grown += more;
    }
    char *at = heaps + (u64)me * heap_size + found->at;
    memset(at, zero ? 0 : 0xdb, zero ? size : size < 65536 ? size : 65536);
    go(0);
    return at;
}

API void *nvshmem_malloc(size_t size);
API void *nvshmem_malloc(size_t size)
{
    void *at = state < INITIALIZED || begin(LISTED("nvshmem_malloc")) ? NULL : allocate("nvshmem_malloc", 512, size, false);
    if (state >= INITIALIZED)
        done("nvshmem_malloc", 0, "size=%zu at=%p", size, at);
    return at;
}
API void *nvshmem_calloc(size_t count, size_t size);
API void *nvshmem_calloc(size_t count, size_t size)
{
    void *at = state < INITIALIZED || begin(LISTED("nvshmem_calloc")) ? NULL : allocate("nvshmem_calloc", 512, count * size, true);
    if (state >= INITIALIZED)
        done("nvshmem_calloc", 0, "size=%zu at=%p", count * size, at);
    return at;
}
API void *nvshmem_align(size_t alignment, size_t size);
API void *nvshmem_align(size_t alignment, size_t size)
{
    if (alignment & (alignment - 1))
        return NULL;
    void *at = state < INITIALIZED || begin(LISTED("nvshmem_align")) ? NULL : allocate("nvshmem_align", alignment, size, false);
    if (state >= INITIALIZED)
        done("nvshmem_align", 0, "size=%zu at=%p", size, at);
    return at;
}

API void nvshmem_free(void *at);
API void nvshmem_free(void *at)
{
    begin_void(LISTED("nvshmem_free"));
    need("nvshmem_free");
    u64 offset = at ? (u64)((char *)at - (heaps + (u64)me * heap_size)) : 0;
    block *b = blocks;
    come(0, "nvshmem_free", offset);
    pthread_mutex_lock(&heap_lock);
    while (b && !(b->used && b->at == offset))
        b = b->next;
    if (b == NULL || at == NULL)
        fatal("nvshmem_free: %p is not what nvshmem_malloc returned", at);
    b->used = false;
    madvise((char *)at, b->size / 4096 * 4096, MADV_REMOVE);
    for (b = blocks; b && b->next;)
        if (!b->used && !b->next->used) {
            block *gone = b->next;
            b->size += gone->size;
            b->next = gone->next;
            free(gone);
        } else
            b = b->next;
    pthread_mutex_unlock(&heap_lock);
    go(0);
    done("nvshmem_free", 0, "at=%p", at);
}

API void *nvshmem_ptr(const void *at, int pe);
API void *nvshmem_ptr(const void *at, int pe)
{
    return state < INITIALIZED || pe < 0 || pe >= n_pes || node_of(pe) != node_of(me) ? NULL : there(at, pe);
}
API void *nvshmemx_mc_ptr(int number, const void *at);
API void *nvshmemx_mc_ptr(int number, const void *at) { return (void)number, (void)at, NULL; }

API int nvshmemx_buffer_register(void *at, size_t size);
API int nvshmemx_buffer_register(void *at, size_t size) { return at && size ? SUCCESS : INVALID; }
API int nvshmemx_buffer_unregister(void *at);
API int nvshmemx_buffer_unregister(void *at) { return at ? SUCCESS : INVALID; }
API void *nvshmemx_buffer_register_symmetric(void *at, size_t size, int flags);
API void *nvshmemx_buffer_register_symmetric(void *at, size_t size, int flags) { return (void)at, (void)size, (void)flags, NULL; }
API void *nvshmemx_buffer_register_symmetric_at_preferred_address(void *at, size_t size, void *wish, int flags);
API void *nvshmemx_buffer_register_symmetric_at_preferred_address(void *at, size_t size, void *wish, int flags)
{
    return (void)at, (void)size, (void)wish, (void)flags, NULL;
}
API int nvshmemx_buffer_unregister_symmetric(void *at, size_t size);
API int nvshmemx_buffer_unregister_symmetric(void *at, size_t size) { return (void)at, (void)size, NOT_SUPPORTED; }
API int nvshmemx_cumodule_init(void *module);
API int nvshmemx_cumodule_init(void *module) { return (void)module, NOT_SUPPORTED; }
API int nvshmemx_cumodule_finalize(void *module);
API int nvshmemx_cumodule_finalize(void *module) { return (void)module, NOT_SUPPORTED; }
API int nvshmemx_culibrary_init(void *library);
API int nvshmemx_culibrary_init(void *library) { return (void)library, NOT_SUPPORTED; }
API int nvshmemx_culibrary_finalize(void *library);
API int nvshmemx_culibrary_finalize(void *library) { return (void)library, NOT_SUPPORTED; }

/* ---- put, get, signals -------------------------------------------------------------------------------------------------- */

typedef struct { char *to; const char *from; u64 size; _Atomic u64 *signal; u64 value; int op; } transfer;

static void run_transfer(void *argument)
{
    transfer *t = argument;
    if (t->size)
        memmove(t->to, t->from, t->size);
    if (t->signal == NULL)
        return;
    if (t->op == 9)
        atomic_store(t->signal, t->value);
    else
        atomic_fetch_add(t->signal, t->value);
}

static _Atomic u64 *signal_at(u64 *at, int op, int pe, const char *what)
{
    if (op != 9 && op != 10)
        fatal("%s: signal operation %d is neither NVSHMEM_SIGNAL_SET (9) nor _ADD (10)", what, op);
    if ((uintptr_t)at % 8)
        fatal("%s: the signal is not aligned to 8 bytes", what);
    return (_Atomic u64 *)operand(at, 8, pe, what);
}

#define PUT(name)                                                                                                        \
    API void name(void *to, const void *from, size_t size, int pe, void *stream);                                        \
    API void name(void *to, const void *from, size_t size, int pe, void *stream)                                         \
    {                                                                                                                    \
        begin_void(LISTED(#name));                                                                                       \
        need(#name);                                                                                                     \
        enqueue_void(#name, stream, run_transfer, &(transfer){operand(to, size, pe, #name), from, size, NULL, 0, 0},     \
                     sizeof(transfer));                                                                                  \
        done(#name, 0, "pe=%d size=%zu", pe, size);                                                                      \
    }
#define GET(name)                                                                                                        \
    API void name(void *to, const void *from, size_t size, int pe, void *stream);                                        \
    API void name(void *to, const void *from, size_t size, int pe, void *stream)                                         \
    {                                                                                                                    \
        begin_void(LISTED(#name));                                                                                       \
        need(#name);                                                                                                     \
        enqueue_void(#name, stream, run_transfer, &(transfer){to, operand(from, size, pe, #name), size, NULL, 0, 0},     \
                     sizeof(transfer));                                                                                  \
        done(#name, 0, "pe=%d size=%zu", pe, size);                                                                      \
    }
#define PUT_SIGNAL(name)                                                                                                 \
    API void name(void *to, const void *from, size_t size, u64 *at, u64 value, int op, int pe, void *stream);            \
    API void name(void *to, const void *from, size_t size, u64 *at, u64 value, int op, int pe, void *stream)             \
    {                                                                                                                    \
        begin_void(LISTED(#name));                                                                                       \
        need(#name);                                                                                                     \
        _Atomic u64 *signal = signal_at(at, op, pe, #name);                                                              \
        char *there_ = size ? operand(to, size, pe, #name) : NULL;                                                       \
        enqueue_void(#name, stream, run_transfer, &(transfer){there_, from, size, signal, value, op}, sizeof(transfer)); \
        done(#name, 0, "pe=%d size=%zu", pe, size);                                                                      \
    }
PUT(nvshmemx_putmem_on_stream)
PUT(nvshmemx_putmem_nbi_on_stream)
GET(nvshmemx_getmem_on_stream)
GET(nvshmemx_getmem_nbi_on_stream)
PUT_SIGNAL(nvshmemx_putmem_signal_on_stream)
PUT_SIGNAL(nvshmemx_putmem_signal_nbi_on_stream)

API void nvshmemx_signal_op_on_stream(u64 *at, u64 value, int op, int pe, void *stream);
API void nvshmemx_signal_op_on_stream(u64 *at, u64 value, int op, int pe, void *stream)
{
    const char *const name = LISTED("nvshmemx_signal_op_on_stream");
    begin_void(name);
    need(name);
    enqueue_void(name, stream, run_transfer, &(transfer){NULL, NULL, 0, signal_at(at, op, pe, name), value, op}, sizeof(transfer));
    done(name, 0, "pe=%d op=%d", pe, op);
}

typedef struct { _Atomic u64 *at; int cmp; u64 value; } waiting;
static void run_waiting(void *argument)
{
    waiting *w = argument;
    for (int tries = 0;; tries++) {
        u64 now = atomic_load(w->at), v = w->value;
        const bool is[] = {now == v, now != v, now > v, now <= v, now < v, now >= v};
        if (is[w->cmp])
            return;
        if (tries < 100)
            sched_yield();
        else
            nanosleep(&(struct timespec){0, tries < 1000 ? 50000 : 500000}, NULL);
    }
}
API void nvshmemx_signal_wait_until_on_stream(u64 *at, int cmp, u64 value, void *stream);
API void nvshmemx_signal_wait_until_on_stream(u64 *at, int cmp, u64 value, void *stream)
{
    const char *const name = LISTED("nvshmemx_signal_wait_until_on_stream");
    begin_void(name);
    member(0, name);
    if (cmp < 0 || cmp > 5)
        fatal("%s: comparison %d is none of 0..5", name, cmp);
    enqueue_void(name, stream, run_waiting, &(waiting){(_Atomic u64 *)operand(at, 8, me, name), cmp, value}, sizeof(waiting));
    done(name, 0, "cmp=%d value=%llu", cmp, (unsigned long long)value);
}

static void run_nothing(void *argument) { (void)argument; }
#define ORDER(name)                                                                                                      \
    API void name(void *stream);                                                                                         \
    API void name(void *stream)                                                                                          \
    {                                                                                                                    \
        begin_void(LISTED(#name));                                                                                       \
        need(#name);                                                                                                     \
        enqueue_void(#name, stream, run_nothing, "", 1);                                                                 \
        done(#name, 0, "");                                                                                              \
    }
ORDER(nvshmemx_quiet_on_stream)
ORDER(nvshmemx_flush_on_stream)
API void nvshmem_quiet(void);
API void nvshmem_quiet(void) { need("nvshmem_quiet"); }
API void nvshmem_fence(void);
API void nvshmem_fence(void) { need("nvshmem_fence"); }

/* ---- barriers ----------------------------------------------------------------------------------------------------------- */

enum { BARRIER, BROADCAST, FCOLLECT, ALLTOALL, REDUCE, REDUCESCATTER };
typedef struct { int kind, team, root, type, op, width; char *to; const char *from; u64 size; } collective;

static void run_barrier(void *argument)
{
    collective *c = argument;
    come(c->team, "barrier", 0);
    go(c->team);
}

static int barrier_on_stream(int number, void *stream, const char *name)
{
    int status = begin(name);
    if (status == 0)
        status = enqueue(name, stream, run_barrier, &(collective){.kind = BARRIER, .team = number}, sizeof(collective));
    done(name, status, "team=%d", number);
    return status;
}

API void nvshmem_barrier_all(void);
API void nvshmem_barrier_all(void)
{
    begin_void(LISTED("nvshmem_barrier_all"));
    need("nvshmem_barrier_all");
    run_barrier(&(collective){.kind = BARRIER});
    done("nvshmem_barrier_all", 0, "");
}
#define BARRIER_ALL(name)                                                                                                \
    API void name(void *stream);                                                                                         \
    API void name(void *stream)                                                                                          \
    {                                                                                                                    \
        need(#name);                                                                                                     \
        if (barrier_on_stream(0, stream, LISTED(#name)))                                                                 \
            fatal("%s failed", #name);                                                                                   \
    }
BARRIER_ALL(nvshmemx_barrier_all_on_stream)
BARRIER_ALL(nvshmemx_sync_all_on_stream)
#define BARRIER_OF_TEAM(name)                                                                                            \
    API int name(int number, void *stream);                                                                              \
    API int name(int number, void *stream) { return barrier_on_stream(member(number, #name), stream, LISTED(#name)); }
BARRIER_OF_TEAM(nvshmemx_barrier_on_stream)
BARRIER_OF_TEAM(nvshmemx_team_sync_on_stream)

/* ---- teams -------------------------------------------------------------------------------------------------------------- */

API int nvshmem_team_my_pe(int number);
API int nvshmem_team_my_pe(int number)
{
    return state >= INITIALIZED && number >= 0 && number < MOST_TEAMS && teams[number].used ? teams[number].index : -1;
}
API int nvshmem_team_n_pes(int number);
API int nvshmem_team_n_pes(int number)
{
    return state >= INITIALIZED && number >= 0 && number < MOST_TEAMS && teams[number].used ? teams[number].n : -1;
}
API void nvshmem_team_get_config(int number, team_configuration *out);
API void nvshmem_team_get_config(int number, team_configuration *out) { *out = teams[member(number, "nvshmem_team_get_config")].configuration; }

API int nvshmem_team_translate_pe(int from, int pe, int to);
API int nvshmem_team_translate_pe(int from, int pe, int to)
{
    if (nvshmem_team_n_pes(from) < 0 || nvshmem_team_n_pes(to) < 0 || pe < 0 || pe >= teams[from].n)
        return -1;
    for (int i = 0; i < teams[to].n; i++)
        if (pe_of(to, i) == pe_of(from, pe))
            return i;
    return -1;
}

static int free_slot(void)
{
    for (int i = FIRST_FREE_SLOT; i < SLOTS; i++) {
        int free_one = 0;
        if (atomic_compare_exchange_strong(&shared->slots[i].taken, &free_one, 1))
            return i;
    }
    return -1;
}

API int nvshmemx_team_get_uniqueid(u64 *id);
API int nvshmemx_team_get_uniqueid(u64 *id)
{
    int status = begin(LISTED("nvshmemx_team_get_uniqueid"));
    if (status == 0) {
        member(0, "nvshmemx_team_get_uniqueid");
        int slot = free_slot();
        if (slot < 0)
            status = INTERNAL;
        else
            *id = mix(MAGIC, (u64)slot) << 16 | (u64)slot;
    }
    done("nvshmemx_team_get_uniqueid", status, "");
    return status;
}

static int enter_team(int *out, int slot, int n, int index, const team_configuration *configuration)
{
    int number = -1;
    pthread_mutex_lock(&team_lock);
    for (int i = FIRST_TEAM; i < MOST_TEAMS && number < 0; i++)
        if (!teams[i].used)
            number = i;
    if (number >= 0) {
        memset(&teams[number], 0, sizeof(team));
        teams[number].used = true;
        teams[number].slot = slot;
        teams[number].n = n;
        teams[number].index = index;
        if (configuration)
            teams[number].configuration = *configuration;
    }
    pthread_mutex_unlock(&team_lock);
    *out = number;
    if (number < 0)
        return SUCCESS;                 /* as NVSHMEM: no error, and no team */
    shared->slots[slot].pes[index] = me;
    shared->slots[slot].n = n;
    come(number, "team", (u64)n);
    go(number);
    return SUCCESS;
}

API int nvshmemx_team_init(int *out, team_configuration *configuration, long mask, int n, int index);
API int nvshmemx_team_init(int *out, team_configuration *configuration, long mask, int n, int index)
{
    int status = begin(LISTED("nvshmemx_team_init"));
    if (status == 0) {
        member(0, "nvshmemx_team_init");
        int slot = configuration ? (int)(configuration->id & 0xffff) : -1;
        if (!(mask & 2) || slot < FIRST_FREE_SLOT || slot >= SLOTS || configuration->id != (mix(MAGIC, (u64)slot) << 16 | (u64)slot) ||
            n < 1 || n > n_pes || index < 0 || index >= n)
            status = INVALID;
        else
            status = enter_team(out, slot, n, index, configuration);
    }
    done("nvshmemx_team_init", status, "n=%d index=%d team=%d", n, index, status ? -1 : *out);
    return status;
}

/* Collective over the parent; the PEs left out get NVSHMEM_TEAM_INVALID. */
static int split(int parent, const int *members, int n, const team_configuration *configuration, int *out)
{
    team *p = &teams[parent];
    meeting *where = come(parent, "team split", 0);
    int index = -1;
    u64 call = (u64)n;
    for (int i = 0; i < n; i++) {
        call = mix(call, (u64)members[i]);
        if (members[i] == p->index)
            index = i;
    }
    /* The first member of each new team finds a place for it, and says so where the parent meets. */
    meet(where, p->n);
    where->calls[p->index] = index == 0 ? (u64)free_slot() : 0;
    meet(where, p->n);
    int slot = n ? (int)where->calls[members[0]] : -1;
    go(parent);
    *out = -1;
    if (index < 0)
        return SUCCESS;
    return slot < 0 ? INTERNAL : enter_team(out, slot, n, index, configuration);
}

API int nvshmem_team_split_strided(int parent, int start, int stride, int n, const team_configuration *configuration, long mask, int *out);
API int nvshmem_team_split_strided(int parent, int start, int stride, int n, const team_configuration *configuration, long mask, int *out)
{
    int members[MOST_PES];
    const char *const name = LISTED("nvshmem_team_split_strided");
    int status = begin(name);
    if (status == 0) {
        member(parent, name);
        int last = start + (n - 1) * stride;
        if (out == NULL || n < 1 || n > teams[parent].n || start < 0 || last < 0 || start >= teams[parent].n || last >= teams[parent].n ||
            (stride == 0 && n > 1))
            status = INVALID;
        else {
            for (int i = 0; i < n; i++)
                members[i] = start + i * stride;
            status = split(parent, members, n, mask ? configuration : NULL, out);
        }
    }
    done(name, status, "parent=%d start=%d stride=%d n=%d", parent, start, stride, n);
    return status;
}

API int nvshmem_team_split_2d(int parent, int range, const team_configuration *x_configuration, long x_mask, int *x,
                              const team_configuration *y_configuration, long y_mask, int *y);
API int nvshmem_team_split_2d(int parent, int range, const team_configuration *x_configuration, long x_mask, int *x,
                              const team_configuration *y_configuration, long y_mask, int *y)
{
    int members[MOST_PES], n = 0;
    const char *const name = LISTED("nvshmem_team_split_2d");
    int status = begin(name);
    if (status == 0) {
        member(parent, name);
        if (range < 1 || x == NULL || y == NULL)
            status = INVALID;
        else {
            int own = teams[parent].index;
            for (int i = own / range * range; i < teams[parent].n && i < (own / range + 1) * range; i++)
                members[n++] = i;
            status = split(parent, members, n, x_mask ? x_configuration : NULL, x);
            n = 0;
            for (int i = own % range; i < teams[parent].n; i += range)
                members[n++] = i;
            if (status == SUCCESS)
                status = split(parent, members, n, y_mask ? y_configuration : NULL, y);
        }
    }
    done(name, status, "parent=%d range=%d", parent, range);
    return status;
}

API void nvshmem_team_destroy(int number);
API void nvshmem_team_destroy(int number)
{
    begin_void(LISTED("nvshmem_team_destroy"));
    member(number, "nvshmem_team_destroy");
    if (number < FIRST_TEAM)
        fatal("nvshmem_team_destroy: team %d is predefined", number);
    come(number, "nvshmem_team_destroy", 0);
    int slot = teams[number].slot, last = teams[number].index == 0;
    go(number);
    pthread_mutex_lock(&team_lock);
    teams[number].used = false;
    pthread_mutex_unlock(&team_lock);
    if (last)
        atomic_store(&shared->slots[slot].taken, 0);
    done("nvshmem_team_destroy", 0, "team=%d", number);
}

/* ---- collectives -------------------------------------------------------------------------------------------------------- */

enum { SUM, PROD, MIN, MAX, AND, OR, XOR };
enum { I8, I16, I32, I64, U8, U16, U32, U64, HALF, BFLOAT16, FLOAT, DOUBLE };

/* By PE, PE 0 first; floats of 16 bits are widened, and rounded once. */
#define REDUCE_AS(T, W, IN, OUT, EXPRESSION)                                                                             \
    for (u64 i = 0; i < n; i++) {                                                                                        \
        W a = IN(((const T *)from[0])[i]);                                                                               \
        for (int p = 1; p < members; p++) {                                                                              \
            W b = IN(((const T *)from[p])[i]);                                                                           \
            a = (W)(EXPRESSION);                                                                                         \
        }                                                                                                                \
        ((T *)out)[i] = (T)OUT(a);                                                                                       \
    }                                                                                                                    \
    return;
#define SAME(x) (x)
#define FROM_HALF(x) ((float)decode(x, layouts[F16]))
#define TO_HALF(x) encode((double)(x), layouts[F16])
#define FROM_BFLOAT16(x) ((float)decode(x, layouts[BF16]))
#define TO_BFLOAT16(x) encode((double)(x), layouts[BF16])
#define ARITHMETIC(T, W, IN, OUT)                                                                                        \
    case SUM: REDUCE_AS(T, W, IN, OUT, a + b)                                                                            \
    case PROD: REDUCE_AS(T, W, IN, OUT, a *b)                                                                            \
    case MIN: REDUCE_AS(T, W, IN, OUT, a < b ? a : b)                                                                    \
    case MAX: REDUCE_AS(T, W, IN, OUT, a > b ? a : b)
#define BITWISE(T)                                                                                                       \
    case AND: REDUCE_AS(T, T, SAME, SAME, a &b)                                                                          \
    case OR: REDUCE_AS(T, T, SAME, SAME, a | b)                                                                          \
    case XOR: REDUCE_AS(T, T, SAME, SAME, a ^ b)
#define INTEGER(name, T, U)                                                                                              \
    static void reduce_##name(int op, char *const *from, int members, u64 n, char *out)                                  \
    {                                                                                                                    \
        switch (op) {                                                                                                    \
        case SUM: REDUCE_AS(T, T, SAME, SAME, (U)a + (U)b)                                                               \
        case PROD: REDUCE_AS(T, T, SAME, SAME, (u64)a * (u64)b)                                                          \
        case MIN: REDUCE_AS(T, T, SAME, SAME, a < b ? a : b)                                                             \
        case MAX: REDUCE_AS(T, T, SAME, SAME, a > b ? a : b)                                                             \
        BITWISE(T)                                                                                                       \
        }                                                                                                                \
    }
#define FLOATING(name, T, W, IN, OUT)                                                                                    \
    static void reduce_##name(int op, char *const *from, int members, u64 n, char *out)                                  \
    {                                                                                                                    \
        switch (op) { ARITHMETIC(T, W, IN, OUT) }                                                                        \
    }
INTEGER(int8, int8_t, uint8_t)
INTEGER(int16, int16_t, uint16_t)
INTEGER(int32, int32_t, uint32_t)
INTEGER(int64, int64_t, uint64_t)
INTEGER(uint8, uint8_t, uint8_t)
INTEGER(uint16, uint16_t, uint16_t)
INTEGER(uint32, uint32_t, uint32_t)
INTEGER(uint64, uint64_t, uint64_t)
FLOATING(half, uint16_t, float, FROM_HALF, TO_HALF)
FLOATING(bfloat16, uint16_t, float, FROM_BFLOAT16, TO_BFLOAT16)
FLOATING(float, float, float, SAME, SAME)
FLOATING(double, double, double, SAME, SAME)

static const struct { int width; void (*run)(int, char *const *, int, u64, char *); } reducers[] = {
    [I8] = {1, reduce_int8},       [I16] = {2, reduce_int16},       [I32] = {4, reduce_int32},     [I64] = {8, reduce_int64},
    [U8] = {1, reduce_uint8},      [U16] = {2, reduce_uint16},      [U32] = {4, reduce_uint32},    [U64] = {8, reduce_uint64},
    [HALF] = {2, reduce_half},     [BFLOAT16] = {2, reduce_bfloat16}, [FLOAT] = {4, reduce_float}, [DOUBLE] = {8, reduce_double},
};

static void run_collective(void *argument)
{
    static const char *const names[] = {"barrier", "broadcast", "fcollect", "alltoall", "reduce", "reducescatter"};
    collective *c = argument;
    team *t = &teams[c->team];
    char *from[MOST_PES], *result = NULL;
    come(c->team, names[c->kind], mix(mix(mix(c->size, (u64)c->root), (u64)c->type), (u64)c->op));
    for (int i = 0; i < t->n; i++)
        from[i] = there(c->from, pe_of(c->team, i));
    switch (c->kind) {
    case BROADCAST:
        memmove(c->to, from[c->root], c->size);
        break;
    case FCOLLECT:
        for (int i = 0; i < t->n; i++)
            memmove(c->to + (u64)i * c->size, from[i], c->size);
        break;
    case ALLTOALL:
        for (int i = 0; i < t->n; i++)
            memmove(c->to + (u64)i * c->size, from[i] + (u64)t->index * c->size, c->size);
        break;
    case REDUCE:
    case REDUCESCATTER:
        /* The result may lie over the operand: written when all have read. */
        if ((result = malloc(c->size + 1)) == NULL)
            fatal("no memory for a reduction of %llu bytes", (unsigned long long)c->size);
        for (int i = 0; i < t->n && c->kind == REDUCESCATTER; i++)
            from[i] += (u64)t->index * c->size;
        reducers[c->type].run(c->op, from, t->n, c->size / (u64)reducers[c->type].width, result);
        meet(&shared->slots[t->slot], t->n);
        memcpy(c->to, result, c->size);
        free(result);
        break;
    }
    go(c->team);
}

static int collect(const char *name, collective c, u64 to_size, u64 from_size, void *stream)
{
    int status = begin(name);
    if (status == 0) {
        member(c.team, name);
        if (c.root < 0 || c.root >= teams[c.team].n)
            fatal("%s: the team has no PE %d", name, c.root);
        if (c.size) {
            operand(c.to, to_size, me, name);
            operand(c.from, from_size, me, name);
            status = enqueue(name, stream, run_collective, &c, sizeof c);
        } else
            status = enqueue(name, stream, run_barrier, &c, sizeof c);
    }
    done(name, status, "team=%d size=%llu", c.team, (unsigned long long)c.size);
    return status;
}

API int nvshmemx_broadcastmem_on_stream(int number, void *to, const void *from, size_t size, int root, void *stream);
API int nvshmemx_broadcastmem_on_stream(int number, void *to, const void *from, size_t size, int root, void *stream)
{
    collective c = {.kind = BROADCAST, .team = number, .root = root, .to = to, .from = from, .size = size};
    return collect(LISTED("nvshmemx_broadcastmem_on_stream"), c, size, size, stream);
}
API int nvshmemx_fcollectmem_on_stream(int number, void *to, const void *from, size_t size, void *stream);
API int nvshmemx_fcollectmem_on_stream(int number, void *to, const void *from, size_t size, void *stream)
{
    collective c = {.kind = FCOLLECT, .team = number, .to = to, .from = from, .size = size};
    return collect(LISTED("nvshmemx_fcollectmem_on_stream"), c, size * (u64)teams[member(number, "fcollect")].n, size, stream);
}
API int nvshmemx_alltoallmem_on_stream(int number, void *to, const void *from, size_t size, void *stream);
API int nvshmemx_alltoallmem_on_stream(int number, void *to, const void *from, size_t size, void *stream)
{
    collective c = {.kind = ALLTOALL, .team = number, .to = to, .from = from, .size = size};
    u64 whole = size * (u64)teams[member(number, "alltoall")].n;
    return collect(LISTED("nvshmemx_alltoallmem_on_stream"), c, whole, whole, stream);
}

#define REDUCTION(name, type_, op_name, op_)                                                                             \
    API int nvshmemx_##name##_##op_name##_reduce_on_stream(int number, void *to, const void *from, size_t n, void *s);   \
    API int nvshmemx_##name##_##op_name##_reduce_on_stream(int number, void *to, const void *from, size_t n, void *s)    \
    {                                                                                                                    \
        u64 size = (u64)n * (u64)reducers[type_].width;                                                                  \
        collective c = {.kind = REDUCE, .team = number, .type = type_, .op = op_, .to = to, .from = from, .size = size}; \
        return collect(LISTED("nvshmemx_" #name "_" #op_name "_reduce_on_stream"), c, size, size, s);                            \
    }                                                                                                                    \
    API int nvshmemx_##name##_##op_name##_reducescatter_on_stream(int number, void *to, const void *from, size_t n, void *s); \
    API int nvshmemx_##name##_##op_name##_reducescatter_on_stream(int number, void *to, const void *from, size_t n, void *s)  \
    {                                                                                                                    \
        u64 size = (u64)n * (u64)reducers[type_].width;                                                                  \
        collective c = {.kind = REDUCESCATTER, .team = number, .type = type_, .op = op_, .to = to, .from = from, .size = size}; \
        u64 whole = size * (u64)teams[member(number, "reducescatter")].n;                                                \
        return collect(LISTED("nvshmemx_" #name "_" #op_name "_reducescatter_on_stream"), c, size, whole, s);                    \
    }
#define FLOATING_REDUCTIONS(name, type)                                                                                  \
    REDUCTION(name, type, sum, SUM) REDUCTION(name, type, prod, PROD) REDUCTION(name, type, min, MIN) REDUCTION(name, type, max, MAX)
#define INTEGER_REDUCTIONS(name, type)                                                                                   \
    FLOATING_REDUCTIONS(name, type)                                                                                      \
    REDUCTION(name, type, and, AND) REDUCTION(name, type, or, OR) REDUCTION(name, type, xor, XOR)
INTEGER_REDUCTIONS(int8, I8)
INTEGER_REDUCTIONS(int16, I16)
INTEGER_REDUCTIONS(int32, I32)
INTEGER_REDUCTIONS(int64, I64)
INTEGER_REDUCTIONS(uint8, U8)
INTEGER_REDUCTIONS(uint16, U16)
INTEGER_REDUCTIONS(uint32, U32)
INTEGER_REDUCTIONS(uint64, U64)
FLOATING_REDUCTIONS(half, HALF)
FLOATING_REDUCTIONS(bfloat16, BFLOAT16)
FLOATING_REDUCTIONS(float, FLOAT)
FLOATING_REDUCTIONS(double, DOUBLE)
