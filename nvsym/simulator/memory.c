/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated driver's memory: allocations, reservations, mappings, access rights, shareable handles; and the older kind,
 * cuMemAlloc and page-locked host memory. Copies are in stream.c.
 */
#define cuMemGetInfo cuMemGetInfo_v2
#define cuMemAlloc cuMemAlloc_v2
#define cuMemFree cuMemFree_v2
#define cuMemHostGetDevicePointer cuMemHostGetDevicePointer_v2
#define cuMemHostRegister cuMemHostRegister_v2
#include "objects.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
object *objects;
mapping *mappings;
static reservation *reservations;
_Atomic int64_t sim_used[MAX_DEVICES];

API void nvsym_sim_account(int device, int64_t bytes);
API void nvsym_sim_account(int device, int64_t bytes) { sim_account(device, bytes); }
void sim_account(int device, int64_t bytes)
{
    if (device >= 0)
        sim_used[device] += bytes;
}

static bool take(int device, size_t bytes)
{
    if ((u64)sim_used[device] + bytes > sim.memory)
        return false;
    sim_account(device, (int64_t)bytes);
    return true;
}

/* New memory holds nothing that a program may count on. A large allocation stays sparse behind its beginning. */
void sim_poison(void *at, size_t size) { memset(at, 0xdb, size < 65536 ? size : 65536); }

/* ---- handles ------------------------------------------------------------------------------------------------------------ */

static CUhandle new_handle(void)
{
    static _Atomic u64 count;
    /* A different value each time, also for the same object: nobody may compare them, or guess one. */
    u64 x = ++count * 0x9e3779b97f4a7c15ull + (u64)getpid();
    x ^= x >> 31;
    return (x * 0xbf58476d1ce4e5b9ull) | 1;
}

object *find_object(CUhandle handle, int kind, const char *what, CUresult *status)
{
    for (object *o = objects; o; o = o->next)
        if (o->handle == handle && o->handles > 0) {
            if (kind && o->kind != kind) {
                *status = broke(INVALID_VALUE, "%s: the handle is of %s", what,
                                o->kind == KIND_MEMORY ? "memory, not of a multicast object" : "a multicast object, not of memory");
                return NULL;
            }
            return o;
        }
    *status = misuse(INVALID_HANDLE, "%s: handle %#llx is none, or was released (the driver leaves this undefined)", what,
                     (unsigned long long)handle);
    return NULL;
}

object *new_object(int kind, int fd, label *tag)
{
    struct stat found;
    object *o = calloc(1, sizeof *o);
    fstat(fd, &found);
    o->kind = kind;
    o->handle = new_handle();
    o->handles = 1;
    o->size = tag->size;
    o->handle_types = tag->handle_types;
    o->device = kind == KIND_MEMORY ? sim_device_of(&tag->device) : -1;
    o->fd = fd;
    o->inode = found.st_ino;
    o->tag = tag;
    tag->objects++;
    o->next = objects;
    objects = o;
    return o;
}

void drop_object(object *o)
{
    if (o->handles > 0 || o->mappings > 0)
        return;
    for (object **at = &objects; *at; at = &(*at)->next)
        if (*at == o) {
            *at = o->next;
            break;
        }
    int left = --o->tag->objects;
    if (o->kind == KIND_MEMORY) {
        if (left == 0)
            forget_binds_of(o);
        if (!o->imported)
            sim_account(o->device, -(int64_t)o->size);
    } else {
        int bound = 0;
        for (int i = 0; i < MAX_BINDS; i++)
            bound += o->team->binds[i].used && o->team->binds[i].pid == getpid();
        /* A leak, which the driver bears. What a process that died had bound is not this one's. */
        if (left == 0 && bound)
            broke(OK, "the last handle of a multicast object goes while memory is bound to it (%d times)", bound);
        free_view(o->view);
        munmap(o->team, sizeof(control));
    }
    munmap(o->tag, PAGE);
    close(o->fd);
    free(o);
}

static label *map_label(int fd, off_t file_size)
{
    if (file_size < PAGE || file_size % PAGE)
        return NULL;
    label *tag = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, file_size - PAGE);
    if (tag == MAP_FAILED)
        return NULL;
    if (tag->magic != LABEL_MAGIC) {
        munmap(tag, PAGE);
        return NULL;
    }
    return tag;
}

/* The file of a new object: `bytes` of contents, then its label. */
int new_file(const char *name, size_t bytes, label **tag)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    if (ftruncate(fd, (off_t)bytes + PAGE) ||
        (*tag = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)bytes)) == MAP_FAILED) {
        close(fd);
        return -1;
    }
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    memset(*tag, 0, PAGE);
    (*tag)->magic = LABEL_MAGIC;
    (*tag)->node = sim.node;
    return fd;
}

void init_shared_lock(pthread_mutex_t *lock)
{
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(lock, &how);
    pthread_mutexattr_destroy(&how);
}

/* Whether handles of these types can be had; `what` names the call. */
CUresult check_types(const char *what, u64 types, int device)
{
    if (types & ~(u64)(POSIX_FD | FABRIC))
        return broke(NOT_SUPPORTED, "%s: handle types %#llx: there are 1 (POSIX file descriptor) and 8 (fabric)", what,
                     (unsigned long long)types);
    if (types & POSIX_FD && !sim_attribute(103, device))
        return broke(NOT_SUPPORTED, "%s: device %d has no POSIX file descriptor handles", what, device);
    if (types & FABRIC && !sim_attribute(128, device))
        return broke(NOT_SUPPORTED, "%s: device %d has no fabric handles", what, device);
    if (types & FABRIC && sim.imex < 0)
        return broke(NOT_PERMITTED, "%s: no IMEX channel is accessible, which fabric handles need", what);
    return OK;
}

/* ---- allocations -------------------------------------------------------------------------------------------------------- */

static CUresult check_prop(const char *what, const alloc_prop *prop)
{
    if (prop == NULL || prop->type != 1)
        return broke(INVALID_VALUE, "%s: the allocation type is %d, not 1 (pinned)", what, prop ? prop->type : -1);
    if (prop->location.type != 1)
        return broke(INVALID_VALUE, "%s: the location type is %d, not 1 (device)", what, prop->location.type);
    if (prop->location.id < 0 || prop->location.id >= sim.devices)
        return broke(INVALID_DEVICE, "%s: device %d: there are %d", what, prop->location.id, sim.devices);
    if (prop->win32)
        return broke(INVALID_VALUE, "%s: win32HandleMetaData is not NULL", what);
    return check_types(what, (unsigned)prop->handle_types, prop->location.id);
}

CALL(cuMemGetAllocationGranularity, AFTER_INIT, (size_t *out, const alloc_prop *prop, int option), (out, prop, option),
     "option=%d", option)
{
    if (out == NULL || option < 0 || option > 1)
        return broke(INVALID_VALUE, "cuMemGetAllocationGranularity: option %d is neither 0 nor 1", option);
    /* An answer for memory that could not be made (no IMEX channel) is given all the same. */
    CUresult status = check_prop("cuMemGetAllocationGranularity", prop);
    if (status != OK && status != NOT_PERMITTED)
        return status;
    *out = option ? sim.alloc_recommended : sim.alloc_minimum;
    return OK;
}

CALL(cuMemCreate, UNSAFE, (CUhandle * handle, size_t size, const alloc_prop *prop, u64 flags), (handle, size, prop, flags),
     "size=%zu device=%d types=%d handle=%#llx", size, prop ? prop->location.id : -1, prop ? prop->handle_types : -1,
     handle && status == OK ? (unsigned long long)*handle : 0)
{
    label *tag;
    CUresult status = check_prop("cuMemCreate", prop);
    if (status != OK)
        return status;
    if (handle == NULL || flags)
        return broke(INVALID_VALUE, "cuMemCreate: flags are %#llx, not 0", (unsigned long long)flags);
    if (size == 0 || size % sim.alloc_minimum)
        return broke(INVALID_VALUE, "cuMemCreate: size %zu is not a multiple of the allocation granularity %llu", size,
                     (unsigned long long)sim.alloc_minimum);
    int device = prop->location.id;
    if (!take(device, size))
        return OUT_OF_MEMORY;
    size_t contents = page_up(size) + page_up(sizeof(journal));
    int fd = new_file("nvsym-sim-memory", contents, &tag);
    if (fd < 0) {
        sim_account(device, -(int64_t)size);
        return OUT_OF_MEMORY;
    }
    tag->kind = KIND_MEMORY;
    tag->size = size;
    tag->handle_types = (unsigned)prop->handle_types;
    tag->device = sim_uuid(device);
    tag->journal_at = page_up(size);
    journal *log = mmap(NULL, sizeof(journal), PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)tag->journal_at);
    void *front = mmap(NULL, size < 65536 ? size : 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (log == MAP_FAILED || front == MAP_FAILED) {
        close(fd);
        munmap(tag, PAGE);
        sim_account(device, -(int64_t)size);
        return OUT_OF_MEMORY;
    }
    init_shared_lock(&log->lock);
    munmap(log, sizeof(journal));
    sim_poison(front, size);
    munmap(front, size < 65536 ? size : 65536);
    pthread_mutex_lock(&memory_lock);
    *handle = new_object(KIND_MEMORY, fd, tag)->handle;
    pthread_mutex_unlock(&memory_lock);
    return OK;
}

CALL(cuMemRelease, AFTER_INIT, (CUhandle handle), (handle), "handle=%#llx", (unsigned long long)handle)
{
    CUresult status = OK;
    pthread_mutex_lock(&memory_lock);
    object *o = find_object(handle, 0, "cuMemRelease", &status);
    if (o) {
        o->handles--;
        drop_object(o);
    }
    pthread_mutex_unlock(&memory_lock);
    return status;
}

CALL(cuMemGetAllocationPropertiesFromHandle, AFTER_INIT, (alloc_prop * prop, CUhandle handle), (prop, handle), "handle=%#llx",
     (unsigned long long)handle)
{
    CUresult status = OK;
    if (prop == NULL)
        return INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    object *o = find_object(handle, KIND_MEMORY, "cuMemGetAllocationPropertiesFromHandle", &status);
    if (o) {
        memset(prop, 0, sizeof *prop);
        prop->type = 1;
        prop->handle_types = (int)o->handle_types;
        prop->location.type = 1;
        prop->location.id = o->device;
    }
    pthread_mutex_unlock(&memory_lock);
    return status;
}

/* ---- shareable handles -------------------------------------------------------------------------------------------------- */

typedef struct { u64 magic; pid_t pid; int fd, kind, node, imex, clique; u64 inode; unsigned char rest[24]; } fabric_blob;
_Static_assert(sizeof(fabric_blob) == 64, "CUmemFabricHandle");

CALL(cuMemExportToShareableHandle, AFTER_INIT, (void *out, CUhandle handle, int type, u64 flags), (out, handle, type, flags),
     "handle=%#llx type=%d", (unsigned long long)handle, type)
{
    CUresult status = OK;
    if (out == NULL || flags)
        return broke(INVALID_VALUE, "cuMemExportToShareableHandle: flags are %#llx, not 0", (unsigned long long)flags);
    if (type != POSIX_FD && type != FABRIC)
        return broke(INVALID_VALUE, "cuMemExportToShareableHandle: type %d: one of 1 and 8 at a time", type);
    pthread_mutex_lock(&memory_lock);
    object *o = find_object(handle, 0, "cuMemExportToShareableHandle", &status);
    if (o && !(o->handle_types & (unsigned)type))
        status = broke(INVALID_VALUE, "cuMemExportToShareableHandle: type %d is not among the handle types %llu that it was made with",
                       type, (unsigned long long)o->handle_types);
    else if (o && type == POSIX_FD) {
        int fd = fcntl(o->fd, F_DUPFD_CLOEXEC, 3);
        if (fd < 0)
            status = OUT_OF_MEMORY;
        else
            *(int *)out = fd, o->exported = true;
    } else if (o) {
        fabric_blob blob = {LABEL_MAGIC, getpid(), o->fd, o->kind, sim.node, sim.imex, sim.clique, o->inode, {0}};
        memcpy(out, &blob, sizeof blob);
        o->exported = true;
    }
    pthread_mutex_unlock(&memory_lock);
    return status;
}

int open_elsewhere(pid_t pid, int fd, ino_t inode)
{
    char path[64];
    struct stat found;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    int own = open(path, O_RDWR | O_CLOEXEC);
    if (own >= 0 && (fstat(own, &found) || found.st_ino != inode)) {
        close(own);
        return -1;
    }
    return own;
}

static CUresult adopt(int fd, bool fabric, CUhandle *handle);

/* What a driver was seen to do with the fabric handle of an object that is gone: a new one, which nobody will join. */
static CUresult empty_object(CUhandle *handle)
{
    label *tag;
    int fd = new_file("nvsym-sim-dead", page_up(sizeof(control)), &tag);
    control *team = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (team == MAP_FAILED)
        return OUT_OF_MEMORY;
    init_shared_lock(&team->lock);
    team->size = tag->size = sim.mc_minimum;
    team->handle_types = tag->handle_types = FABRIC;
    team->n_devices = MAX_TEAM;
    tag->kind = KIND_MULTICAST;
    tag->objects = 1;                   /* the other end, which is not there */
    munmap(team, sizeof(control));
    munmap(tag, PAGE);
    return adopt(fd, true, handle);
}

static CUresult adopt(int fd, bool fabric, CUhandle *handle)
{
    struct stat found;
    label *tag = fstat(fd, &found) || !S_ISREG(found.st_mode) ? NULL : map_label(fd, found.st_size);
    control *team = NULL;
    CUresult status = OK;
    if (tag == NULL)
        status = broke(INVALID_VALUE, "cuMemImportFromShareableHandle: the descriptor is not one that cuMemExportToShareableHandle made");
    else if (!fabric && tag->node != sim.node)
        status = broke(INVALID_VALUE, "cuMemImportFromShareableHandle: the descriptor is of node %d, this is node %d", tag->node, sim.node);
    else if (!(tag->handle_types & (fabric ? FABRIC : POSIX_FD)))
        status = broke(INVALID_VALUE, "cuMemImportFromShareableHandle: the object was not made with this handle type");
    else if (tag->kind == KIND_MULTICAST &&
             (team = mmap(NULL, sizeof(control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        status = OUT_OF_MEMORY;
    if (status != OK) {
        if (tag)
            munmap(tag, PAGE);
        close(fd);
        return status;
    }
    pthread_mutex_lock(&memory_lock);
    object *o = new_object(tag->kind, fd, tag);
    o->imported = true;
    o->team = team;
    *handle = o->handle;
    pthread_mutex_unlock(&memory_lock);
    return OK;
}

CALL(cuMemImportFromShareableHandle, AFTER_INIT, (CUhandle * handle, void *os_handle, int type), (handle, os_handle, type),
     "type=%d handle=%#llx", type, handle && status == OK ? (unsigned long long)*handle : 0)
{
    if (handle == NULL)
        return INVALID_VALUE;
    if (type == POSIX_FD) {
        if ((uintptr_t)os_handle > 1 << 24)
            return broke(INVALID_VALUE, "cuMemImportFromShareableHandle: a pointer in place of the descriptor's value");
        int fd = fcntl((int)(uintptr_t)os_handle, F_DUPFD_CLOEXEC, 3);
        if (fd < 0)
            return errno == EMFILE ? OUT_OF_MEMORY
                                   : broke(INVALID_VALUE, "cuMemImportFromShareableHandle: descriptor %d is not open", (int)(uintptr_t)os_handle);
        return adopt(fd, false, handle);
    }
    if (type != FABRIC)
        return broke(INVALID_VALUE, "cuMemImportFromShareableHandle: type %d is neither 1 nor 8", type);
    fabric_blob blob;
    if (os_handle == NULL)
        return INVALID_VALUE;
    memcpy(&blob, os_handle, sizeof blob);
    if (blob.magic != LABEL_MAGIC)
        return broke(INVALID_VALUE, "cuMemImportFromShareableHandle: not a fabric handle");
    if (sim.imex < 0 || blob.imex != sim.imex)
        return broke(NOT_PERMITTED, "cuMemImportFromShareableHandle: the exporter is on IMEX channel %d, this process on %d", blob.imex, sim.imex);
    if (blob.clique != sim.clique)
        return broke(NOT_SUPPORTED, "cuMemImportFromShareableHandle: the exporter is in NVLink clique %d, this process in %d", blob.clique,
                     sim.clique);
    int fd = open_elsewhere(blob.pid, blob.fd, (ino_t)blob.inode);
    if (fd < 0 && sim.late_import_empty && blob.kind == KIND_MULTICAST)
        return empty_object(handle);
    if (fd < 0)
        return misuse(INVALID_VALUE, "cuMemImportFromShareableHandle: the object of the fabric handle is gone; its creator must keep it until all have "
                                     "imported it");
    return adopt(fd, true, handle);
}

/* ---- reservations ------------------------------------------------------------------------------------------------------- */

CALL(cuMemAddressReserve, UNSAFE, (CUdeviceptr * out, size_t size, size_t alignment, CUdeviceptr hint, u64 flags),
     (out, size, alignment, hint, flags), "size=%zu alignment=%zu at=%#llx", size, alignment,
     out && status == OK ? (unsigned long long)*out : 0)
{
    if (out == NULL || flags)
        return broke(INVALID_VALUE, "cuMemAddressReserve: flags are %#llx, not 0", (unsigned long long)flags);
    if (size == 0 || size % PAGE || hint % PAGE)
        return broke(INVALID_VALUE, "cuMemAddressReserve: size %zu or address %#llx is not a multiple of the page size", size,
                     (unsigned long long)hint);
    if (alignment & (alignment - 1))
        return broke(INVALID_VALUE, "cuMemAddressReserve: alignment %zu is not a power of two", alignment);
    /* Without an alignment an address that only the granularity of allocations aligns: who needs more has to ask. */
    size_t to = alignment > sim.alloc_minimum ? alignment : sim.alloc_minimum, extra = alignment ? 0 : sim.alloc_minimum;
    size_t whole = size + 2 * (to > 2 * sim.alloc_minimum ? to : 2 * sim.alloc_minimum);
    reservation *r = malloc(sizeof *r);
    char *raw = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED || r == NULL) {
        free(r);
        return OUT_OF_MEMORY;
    }
    if (extra)
        to = 2 * sim.alloc_minimum;
    char *at = (char *)(((uintptr_t)raw + to - 1) / to * to) + extra;
    if (at > raw)
        munmap(raw, (size_t)(at - raw));
    munmap(at + size, (size_t)(raw + whole - at) - size);
    r->at = *out = (CUdeviceptr)at;
    r->size = size;
    pthread_mutex_lock(&memory_lock);
    r->next = reservations;
    reservations = r;
    pthread_mutex_unlock(&memory_lock);
    return OK;
}

CALL(cuMemAddressFree, AFTER_INIT, (CUdeviceptr at, size_t size), (at, size), "at=%#llx size=%zu", (unsigned long long)at, size)
{
    CUresult status = INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    reservation **r = &reservations;
    while (*r && (*r)->at != at)
        r = &(*r)->next;
    if (*r == NULL)
        broke(status, "cuMemAddressFree: nothing was reserved at %#llx", (unsigned long long)at);
    else if ((*r)->size != size)
        broke(status, "cuMemAddressFree: %zu bytes were reserved, not %zu", (*r)->size, size);
    else {
        status = OK;
        for (mapping *m = mappings; m; m = m->next)
            if (m->at >= at && m->at < at + size)
                status = INVALID_VALUE;
        if (status != OK)
            broke(status, "cuMemAddressFree: there still is a mapping in the reservation");
        else {
            reservation *gone = *r;
            *r = gone->next;
            munmap((void *)at, size);
            free(gone);
        }
    }
    pthread_mutex_unlock(&memory_lock);
    return status;
}

/* ---- mappings ----------------------------------------------------------------------------------------------------------- */

mapping *mapping_at(CUdeviceptr at)
{
    for (mapping *m = mappings; m; m = m->next)
        if (at >= m->at && at < m->at + m->size)
            return m;
    return NULL;
}

CALL(cuMemMap, UNSAFE, (CUdeviceptr at, size_t size, size_t offset, CUhandle handle, u64 flags), (at, size, offset, handle, flags),
     "at=%#llx size=%zu offset=%zu handle=%#llx", (unsigned long long)at, size, offset, (unsigned long long)handle)
{
    CUresult status = OK;
    pthread_mutex_lock(&memory_lock);
    object *o = find_object(handle, 0, "cuMemMap", &status);
    if (o == NULL) {
        pthread_mutex_unlock(&memory_lock);
        return status;
    }
    u64 step = o->kind == KIND_MEMORY ? sim.alloc_minimum : sim.mc_minimum;
    const char *of = o->kind == KIND_MEMORY ? "allocation" : "multicast";
    reservation *r = reservations;
    while (r && !(at >= r->at && at - r->at < r->size))
        r = r->next;
    if (flags)
        status = broke(INVALID_VALUE, "cuMemMap: flags are %#llx, not 0", (unsigned long long)flags);
    else if (offset)
        status = broke(INVALID_VALUE, "cuMemMap: offset %zu: it must be 0", offset);
    else if (size == 0 || size % step || at % step)
        status = broke(INVALID_VALUE, "cuMemMap: address %#llx or size %zu is not a multiple of the %s granularity %llu",
                       (unsigned long long)at, size, of, (unsigned long long)step);
    else if (size > o->size)
        status = broke(INVALID_VALUE, "cuMemMap: size %zu is beyond the object's %zu", size, o->size);
    else if (r == NULL || at - r->at + size > r->size)
        status = broke(INVALID_VALUE, "cuMemMap: [%#llx, %#llx) is not within one reservation", (unsigned long long)at,
                       (unsigned long long)(at + size));
    else
        for (mapping *m = mappings; m && status == OK; m = m->next)
            if (m->at < at + size && at < m->at + m->size)
                status = broke(INVALID_VALUE, "cuMemMap: part of the range is mapped already");
    if (status == OK && o->kind == KIND_MULTICAST) {
        o->mappings++;                  /* it may not go while this call waits */
        pthread_mutex_unlock(&memory_lock);
        status = wait_complete(o, "cuMemMap");
        pthread_mutex_lock(&memory_lock);
        o->mappings--;
    }
    if (status == OK && o->kind == KIND_MEMORY &&
        mmap((void *)at, size, PROT_NONE, MAP_SHARED | MAP_FIXED, o->fd, 0) == MAP_FAILED)
        status = OUT_OF_MEMORY;
    if (status == OK) {
        mapping *m = calloc(1, sizeof *m);
        m->at = at;
        m->size = size;
        m->of = o;
        o->mappings++;
        m->next = mappings;
        mappings = m;
    }
    drop_object(o);
    pthread_mutex_unlock(&memory_lock);
    return status;
}

CALL(cuMemUnmap, UNSAFE, (CUdeviceptr at, size_t size), (at, size), "at=%#llx size=%zu", (unsigned long long)at, size)
{
    CUresult status = OK;
    pthread_mutex_lock(&memory_lock);
    mapping **m = &mappings;
    while (*m && (*m)->at != at)
        m = &(*m)->next;
    if (*m == NULL)
        status = broke(INVALID_VALUE, "cuMemUnmap: no mapping begins at %#llx", (unsigned long long)at);
    else if ((*m)->size != size)
        status = broke(INVALID_VALUE, "cuMemUnmap: the mapping has %zu bytes, not %zu; a mapping goes as a whole", (*m)->size, size);
    else {
        mapping *gone = *m;
        *m = gone->next;
        mmap((void *)at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        gone->of->mappings--;
        drop_object(gone->of);
        free(gone);
    }
    pthread_mutex_unlock(&memory_lock);
    return status;
}

CALL(cuMemSetAccess, UNSAFE, (CUdeviceptr at, size_t size, const access_desc *desc, size_t count), (at, size, desc, count),
     "at=%#llx size=%zu devices=%zu", (unsigned long long)at, size, count)
{
    CUresult status = OK;
    if (desc == NULL || count == 0 || size == 0)
        return broke(INVALID_VALUE, "cuMemSetAccess: %zu bytes for %zu devices", size, count);
    for (size_t i = 0; i < count; i++) {
        if (desc[i].location.type != 1)
            return broke(INVALID_VALUE, "cuMemSetAccess: the location type is %d, not 1 (device)", desc[i].location.type);
        if (desc[i].location.id < 0 || desc[i].location.id >= sim.devices)
            return broke(INVALID_DEVICE, "cuMemSetAccess: device %d: there are %d", desc[i].location.id, sim.devices);
        if (desc[i].flags != 0 && desc[i].flags != 1 && desc[i].flags != 3)
            return broke(INVALID_VALUE, "cuMemSetAccess: flags %d are none of 0, 1, 3", desc[i].flags);
    }
    pthread_mutex_lock(&memory_lock);
    for (CUdeviceptr to = at; to < at + size && status == OK;) {
        mapping *m = mapping_at(to);
        if (m == NULL)
            status = broke(INVALID_VALUE, "cuMemSetAccess: nothing is mapped at %#llx", (unsigned long long)to);
        else if (m->at != to || m->at + m->size > at + size)
            status = broke(INVALID_VALUE, "cuMemSetAccess: the range has a part of the mapping of %zu bytes at %#llx; a mapping is covered as a "
                           "whole", m->size, (unsigned long long)m->at);
        else
            to += m->size;
        for (size_t i = 0; m && i < count && status == OK; i++)
            if (!sim.peers && m->of->kind == KIND_MEMORY && m->of->device != desc[i].location.id && desc[i].flags)
                status = broke(INVALID_DEVICE, "cuMemSetAccess: device %d cannot access the memory of device %d", desc[i].location.id,
                               m->of->device);
    }
    for (CUdeviceptr to = at; to < at + size && status == OK;) {
        mapping *m = mapping_at(to);
        int all = 0;
        for (size_t i = 0; i < count; i++)
            m->access[desc[i].location.id] = (unsigned char)desc[i].flags;
        for (int i = 0; i < sim.devices; i++)
            all |= m->access[i];
        /* A multicast address is for multimem instructions only: ordinary access faults. */
        if (m->of->kind == KIND_MEMORY)
            mprotect((void *)m->at, m->size, all == 3 ? PROT_READ | PROT_WRITE : all ? PROT_READ : PROT_NONE);
        to += m->size;
    }
    pthread_mutex_unlock(&memory_lock);
    return status;
}

CALL(cuMemGetAccess, AFTER_INIT, (u64 * flags, const location_t *location, CUdeviceptr at), (flags, location, at), "at=%#llx",
     (unsigned long long)at)
{
    CUresult status = OK;
    if (flags == NULL || location == NULL || location->type != 1 || location->id < 0 || location->id >= sim.devices)
        return INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    mapping *m = mapping_at(at);
    if (m)
        *flags = m->access[location->id];
    else
        status = broke(INVALID_VALUE, "cuMemGetAccess: nothing is mapped at %#llx", (unsigned long long)at);
    pthread_mutex_unlock(&memory_lock);
    return status;
}

CALL(cuMemRetainAllocationHandle, AFTER_INIT, (CUhandle * handle, void *at), (handle, at), "at=%p", at)
{
    CUresult status = OK;
    if (handle == NULL)
        return INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    mapping *m = mapping_at((CUdeviceptr)at);
    if (m) {
        m->of->handles++;
        *handle = m->of->handle;
    } else
        status = broke(INVALID_VALUE, "cuMemRetainAllocationHandle: nothing is mapped at %p", at);
    pthread_mutex_unlock(&memory_lock);
    return status;
}

/* ---- the older kind ----------------------------------------------------------------------------------------------------- */

typedef struct range { void *at; size_t size; int kind, device; bool registered; struct range *next; } range;
static range *ranges;

static void add_range(void *at, size_t size, int kind, int device, bool registered)
{
    range *r = malloc(sizeof *r);
    *r = (range){at, size, kind, device, registered, NULL};
    pthread_mutex_lock(&memory_lock);
    r->next = ranges;
    ranges = r;
    pthread_mutex_unlock(&memory_lock);
}

static range *take_range(void *at, int kind, bool registered)
{
    range *gone = NULL;
    pthread_mutex_lock(&memory_lock);
    for (range **r = &ranges; *r; r = &(*r)->next)
        if ((*r)->at == at && (*r)->kind == kind && (*r)->registered == registered) {
            gone = *r;
            *r = gone->next;
            break;
        }
    pthread_mutex_unlock(&memory_lock);
    return gone;
}

void sim_note(void *at, size_t size, int kind, int device) { add_range(at, size, kind, device, false); }

bool sim_forget(void *at, int kind)
{
    range *r = take_range(at, kind, false);
    free(r);
    return r != NULL;
}

/* Memory of the simulated NVSHMEM's heap. */
API void nvsym_sim_note(void *at, size_t size, int device);
API void nvsym_sim_forget(void *at);
API void nvsym_sim_note(void *at, size_t size, int device) { add_range(at, size, DEVICE, device, false); }
API void nvsym_sim_forget(void *at) { sim_forget(at, DEVICE); }

static CUresult need_context(const char *what, context **c)
{
    *c = sim_current();
    return *c ? OK : broke(INVALID_CONTEXT, "%s: no context is current in this thread", what);
}

CALL(cuMemGetInfo, AFTER_INIT, (size_t *room, size_t *total), (room, total), "free=%zu", room ? *room : 0)
{
    context *c;
    CUresult status = need_context("cuMemGetInfo", &c);
    if (status != OK)
        return status;
    u64 most = (u64)env_number("NVSYM_SIM_FREE", 0, LONG_MAX, (long)sim.memory), used = (u64)sim_used[c->device];
    if (total)
        *total = sim.memory;
    if (room)
        *room = used < most ? most - used : 0;
    return OK;
}

CALL(cuMemAlloc, UNSAFE, (CUdeviceptr * out, size_t size), (out, size), "size=%zu at=%#llx", size,
     out && status == OK ? (unsigned long long)*out : 0)
{
    context *c;
    void *at;
    CUresult status = need_context("cuMemAlloc", &c);
    if (status != OK)
        return status;
    if (out == NULL || size == 0)
        return broke(INVALID_VALUE, "cuMemAlloc: size %zu", size);
    if (!take(c->device, size))
        return OUT_OF_MEMORY;
    if (posix_memalign(&at, 256, size)) {
        sim_account(c->device, -(int64_t)size);
        return OUT_OF_MEMORY;
    }
    sim_poison(at, size);
    add_range(at, size, DEVICE, c->device, false);
    *out = (CUdeviceptr)at;
    return OK;
}

CALL(cuMemFree, UNSAFE, (CUdeviceptr at), (at), "at=%#llx", (unsigned long long)at)
{
    if (at == 0)
        return OK;
    range *r = take_range((void *)at, DEVICE, false);
    if (r == NULL)
        return broke(INVALID_VALUE, "cuMemFree: %#llx is not what cuMemAlloc returned", (unsigned long long)at);
    /* As the driver: what is freed may still be in use by work that was enqueued. */
    sim_drain();
    sim_account(r->device, -(int64_t)r->size);
    free(r->at);
    free(r);
    return OK;
}

CALL(cuMemHostAlloc, UNSAFE, (void **out, size_t size, unsigned flags), (out, size, flags), "size=%zu flags=%u", size, flags)
{
    context *c;
    CUresult status = need_context("cuMemHostAlloc", &c);
    if (status != OK)
        return status;
    if (out == NULL || size == 0 || flags & ~7u)
        return broke(INVALID_VALUE, "cuMemHostAlloc: size %zu, flags %u", size, flags);
    if (posix_memalign(out, PAGE, size))
        return OUT_OF_MEMORY;
    add_range(*out, size, HOST, c->device, false);
    return OK;
}

CALL(cuMemFreeHost, AFTER_INIT, (void *at), (at), "at=%p", at)
{
    range *r = take_range(at, HOST, false);
    if (r == NULL)
        return broke(INVALID_VALUE, "cuMemFreeHost: %p is not what cuMemHostAlloc returned", at);
    sim_drain();
    free(r->at);
    free(r);
    return OK;
}

CALL(cuMemHostGetDevicePointer, AFTER_INIT, (CUdeviceptr * out, void *at, unsigned flags), (out, at, flags), "at=%p", at)
{
    if (out == NULL || flags)
        return INVALID_VALUE;
    if (sim_lookup((CUdeviceptr)at).kind != HOST)
        return broke(INVALID_VALUE, "cuMemHostGetDevicePointer: %p is not page-locked", at);
    *out = (CUdeviceptr)at;
    return OK;
}

CALL(cuMemHostRegister, AFTER_INIT, (void *at, size_t size, unsigned flags), (at, size, flags), "at=%p size=%zu", at, size)
{
    context *c;
    CUresult status = need_context("cuMemHostRegister", &c);
    if (status != OK)
        return status;
    if (at == NULL || size == 0 || flags & ~15u)
        return INVALID_VALUE;
    if (sim_lookup((CUdeviceptr)at).kind == HOST || sim_lookup((CUdeviceptr)at + size - 1).kind == HOST)
        return HOST_MEMORY_ALREADY_REGISTERED;
    add_range(at, size, HOST, c->device, true);
    return OK;
}

CALL(cuMemHostUnregister, AFTER_INIT, (void *at), (at), "at=%p", at)
{
    range *r = take_range(at, HOST, true);
    free(r);
    return r ? OK : HOST_MEMORY_NOT_REGISTERED;
}

/* ---- what is where ------------------------------------------------------------------------------------------------------ */

static memory_info lookup(CUdeviceptr at)
{
    for (range *r = ranges; r; r = r->next)
        if (at >= (CUdeviceptr)r->at && at - (CUdeviceptr)r->at < r->size)
            return (memory_info){r->kind, (CUdeviceptr)r->at, r->size, r->device};
    mapping *m = mapping_at(at);
    if (m)
        return (memory_info){m->of->kind == KIND_MEMORY ? DEVICE : MULTICAST, m->at, m->size, m->of->device};
    for (reservation *r = reservations; r; r = r->next)
        if (at >= r->at && at - r->at < r->size)
            return (memory_info){NO_ACCESS, r->at, r->size, -1};
    return (memory_info){PAGEABLE, at, 0, -1};
}

memory_info sim_lookup(CUdeviceptr at)
{
    pthread_mutex_lock(&memory_lock);
    memory_info found = lookup(at);
    pthread_mutex_unlock(&memory_lock);
    return found;
}

CUresult sim_check_range(const char *what, CUdeviceptr at, size_t size, bool write, int *kind)
{
    CUresult status = OK;
    context *c = sim_current();
    *kind = PAGEABLE;
    if (size == 0)
        return OK;
    pthread_mutex_lock(&memory_lock);
    memory_info found = lookup(at);
    *kind = found.kind;
    if (found.kind == MULTICAST)
        status = misuse(INVALID_VALUE, "%s: %#llx is a multicast address, for multimem instructions only", what, (unsigned long long)at);
    else if (found.kind == NO_ACCESS)
        status = broke(INVALID_VALUE, "%s: nothing is mapped at %#llx", what, (unsigned long long)at);
    else if (found.kind != PAGEABLE) {
        mapping *m = mapping_at(at);
        if (m == NULL && at - found.base + size > found.size)
            status = broke(INVALID_VALUE, "%s: %zu bytes at %#llx go beyond the allocation of %zu", what, size, (unsigned long long)at,
                           found.size);
        for (CUdeviceptr to = at; m && to < at + size && status == OK; to = m->at + m->size) {
            m = mapping_at(to);
            if (m == NULL || m->of->kind != KIND_MEMORY)
                status = broke(INVALID_VALUE, "%s: %zu bytes at %#llx go beyond what is mapped", what, size, (unsigned long long)at);
            else if (c == NULL || !(m->access[c->device] & (write ? 2 : 1)))
                status = broke(ILLEGAL_ADDRESS, "%s: device %d has no right to %s %#llx (cuMemSetAccess)", what, c ? c->device : -1,
                               write ? "write" : "read", (unsigned long long)to);
            if (m == NULL)
                break;
        }
    }
    pthread_mutex_unlock(&memory_lock);
    return status;
}

CALL(cuPointerGetAttribute, AFTER_INIT, (void *out, int attribute, CUdeviceptr at), (out, attribute, at), "attribute=%d at=%#llx",
     attribute, (unsigned long long)at)
{
    if (out == NULL)
        return INVALID_VALUE;
    memory_info found = sim_lookup(at);
    if (found.kind == PAGEABLE || found.kind == NO_ACCESS)
        return INVALID_VALUE;
    switch (attribute) {
    case 2: *(unsigned *)out = found.kind == HOST ? 1 : 2; return OK;
    case 3: *(CUdeviceptr *)out = at; return OK;
    case 4:
        if (found.kind != HOST)
            return INVALID_VALUE;
        *(CUdeviceptr *)out = at;
        return OK;
    case 8: *(unsigned *)out = 0; return OK;
    /* As the driver: a multicast address counts as device 0's, whosever it is. */
    case 9: *(int *)out = found.kind == MULTICAST ? 0 : found.device; return OK;
    case 11: *(CUdeviceptr *)out = found.base; return OK;
    case 12: *(size_t *)out = found.size; return OK;
    }
    return INVALID_VALUE;
}

/* ---- counters ----------------------------------------------------------------------------------------------------------- */

void sim_count_memory(sim_counters *out)
{
    pthread_mutex_lock(&memory_lock);
    for (object *o = objects; o; o = o->next) {
        bool memory = o->kind == KIND_MEMORY;
        *(memory ? &out->memory_handles : &out->multicast_handles) += (u64)o->handles;
        ++*(memory ? &out->memory_objects : &out->multicast_objects);
        out->descriptors++;
        if (memory)
            continue;
        lock_control(o->team);
        for (int i = 0; i < MAX_BINDS; i++)
            out->binds += o->team->binds[i].used && o->team->binds[i].pid == getpid();
        pthread_mutex_unlock(&o->team->lock);
    }
    for (mapping *m = mappings; m; m = m->next)
        out->mappings++;
    for (reservation *r = reservations; r; r = r->next)
        out->reservations++;
    for (range *r = ranges; r; r = r->next)
        ++*(r->registered ? &out->registrations : r->kind == HOST ? &out->host_allocations : &out->device_allocations);
    pthread_mutex_unlock(&memory_lock);
}
