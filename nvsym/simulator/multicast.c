/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated driver's multicast objects. Their state is in a control block that all processes of a team share; nothing is
 * guessed where the driver's documentation leaves a case open: it is refused.
 */
#include "objects.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void lock_control(control *team)
{
    if (pthread_mutex_lock(&team->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&team->lock);
}

static CUresult need_multicast(const char *what, CUdevice device)
{
    if (device < 0 || device >= sim.devices)
        return broke(INVALID_DEVICE, "%s: device %d: there are %d", what, device, sim.devices);
    if (!sim_attribute(132, device))
        return broke(NOT_SUPPORTED, "%s: device %d has no multicast", what, device);
    return OK;
}

static CUresult check_mc_prop(const char *what, const multicast_prop *prop)
{
    CUresult status;
    if (prop == NULL || prop->flags)
        return broke(INVALID_VALUE, "%s: flags are %#llx, not 0", what, prop ? (unsigned long long)prop->flags : 0);
    if (prop->devices == 0 || prop->devices > MAX_TEAM)
        return broke(INVALID_VALUE, "%s: %u devices", what, prop->devices);
    for (int i = 0; i < sim.devices; i++)
        if ((status = need_multicast(what, i)) == OK)
            return check_types(what, prop->handle_types, i);
    return broke(NOT_SUPPORTED, "%s: no device of this process has multicast", what);
}

CALL(cuMulticastGetGranularity, AFTER_INIT, (size_t *out, const multicast_prop *prop, int option), (out, prop, option),
     "option=%d", option)
{
    if (out == NULL || option < 0 || option > 1)
        return broke(INVALID_VALUE, "cuMulticastGetGranularity: option %d is neither 0 nor 1", option);
    CUresult status = check_mc_prop("cuMulticastGetGranularity", prop);
    if (status != OK && status != NOT_PERMITTED)
        return status;
    *out = option ? sim.mc_recommended : sim.mc_minimum;
    return OK;
}

CALL(cuMulticastCreate, UNSAFE, (CUhandle * handle, const multicast_prop *prop), (handle, prop),
     "devices=%u size=%zu types=%llu handle=%#llx", prop ? prop->devices : 0, prop ? prop->size : 0,
     prop ? (unsigned long long)prop->handle_types : 0, handle && status == OK ? (unsigned long long)*handle : 0)
{
    label *tag;
    CUresult status = check_mc_prop("cuMulticastCreate", prop);
    if (status != OK)
        return status;
    if (handle == NULL)
        return INVALID_VALUE;
    if (prop->size == 0 || prop->size % sim.mc_minimum)
        return broke(INVALID_VALUE, "cuMulticastCreate: size %zu is not a multiple of the multicast granularity %llu", prop->size,
                     (unsigned long long)sim.mc_minimum);
    int fd = new_file("nvsym-sim-multicast", page_up(sizeof(control)), &tag);
    control *team = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (team == MAP_FAILED) {
        if (fd >= 0) {
            munmap(tag, PAGE);
            close(fd);
        }
        return OUT_OF_MEMORY;
    }
    tag->kind = KIND_MULTICAST;
    tag->size = team->size = prop->size;
    tag->handle_types = team->handle_types = prop->handle_types;
    team->n_devices = prop->devices;
    init_shared_lock(&team->lock);
    pthread_mutex_lock(&memory_lock);
    object *o = new_object(KIND_MULTICAST, fd, tag);
    o->team = team;
    *handle = o->handle;
    pthread_mutex_unlock(&memory_lock);
    return OK;
}

static bool member(const control *team, const uuid_t *device)
{
    for (unsigned i = 0; i < team->added; i++)
        if (same_uuid(&team->devices[i], device))
            return true;
    return false;
}

CALL(cuMulticastAddDevice, UNSAFE, (CUhandle handle, CUdevice device), (handle, device), "handle=%#llx device=%d",
     (unsigned long long)handle, device)
{
    CUresult status = need_multicast("cuMulticastAddDevice", device);
    if (status != OK)
        return status;
    pthread_mutex_lock(&memory_lock);
    object *o = find_object(handle, KIND_MULTICAST, "cuMulticastAddDevice", &status);
    if (o) {
        uuid_t own = sim_uuid(device);
        lock_control(o->team);
        if (member(o->team, &own))
            status = broke(INVALID_VALUE, "cuMulticastAddDevice: device %d is in the team already", device);
        else if (o->team->added == o->team->n_devices)
            status = broke(INVALID_VALUE, "cuMulticastAddDevice: the team has its %u devices already", o->team->n_devices);
        else
            o->team->devices[o->team->added++] = own;
        pthread_mutex_unlock(&o->team->lock);
    }
    pthread_mutex_unlock(&memory_lock);
    return status;
}

/* As the driver: wait until all devices have been added, by whichever process. The caller holds a reference, and no lock. */
CUresult wait_complete(object *o, const char *what)
{
    int tries = 0;
    u64 began = sim_now();
    while (((volatile control *)o->team)->added < o->team->n_devices) {
        unsigned added = o->team->added;
        if (!o->exported && !o->imported)
            return broke(ILLEGAL_STATE, "%s: %u of %u devices were added, and no other process has the object: the driver would wait for ever",
                         what, added, o->team->n_devices);
        if (sim.block_limit > 0 && (double)(sim_now() - began) > sim.block_limit * 1e9)
            return broke(TIMEOUT, "%s: %u of %u devices were added after %g s (NVSYM_SIM_BLOCK_LIMIT); the driver would wait on", what, added,
                         o->team->n_devices, sim.block_limit);
        sim_nap(&tries);
    }
    return OK;
}

static int bound_objects(void)
{
    int n = 0;
    for (object *o = objects; o; o = o->next)
        n += o->kind == KIND_MULTICAST && o->binding;
    return n;
}

/* Under both locks. */
static CUresult place_bind(object *o, object *memory, u64 offset, u64 memory_offset, u64 size, const char *what)
{
    control *team = o->team;
    bind_record *free_one = NULL;
    for (int i = 0; i < MAX_BINDS; i++) {
        bind_record *b = &team->binds[i];
        if (!b->used) {
            if (free_one == NULL)
                free_one = b;
        } else if (same_uuid(&b->device, &memory->tag->device) && b->offset < offset + size && offset < b->offset + b->size)
            return broke(INVALID_VALUE, "%s: memory of this device is bound at %llu already", what, (unsigned long long)b->offset);
    }
    if (free_one == NULL || (!o->binding && bound_objects() >= sim.slots))
        return broke(OUT_OF_MEMORY, "%s: the switch has no room for another multicast object (%d)", what, sim.slots);
    *free_one = (bind_record){1, 0, memory->tag->device, offset, size, memory_offset, getpid(), memory->fd, memory->inode};
    o->binding = true;
    team->generation++;
    return OK;
}

static CUresult bind_memory(object *o, u64 offset, object *memory, u64 memory_offset, u64 size, u64 flags, const char *what)
{
    CUresult status;
    u64 step = sim.mc_minimum;
    if (flags)
        return broke(INVALID_VALUE, "%s: flags are %#llx, not 0", what, (unsigned long long)flags);
    if (size == 0 || size % step || offset % step || memory_offset % step)
        return broke(INVALID_VALUE, "%s: offset %llu, memory offset %llu or size %llu is not a multiple of the multicast granularity %llu", what,
                     (unsigned long long)offset, (unsigned long long)memory_offset, (unsigned long long)size, (unsigned long long)step);
    if (offset > o->size || size > o->size - offset)
        return broke(INVALID_VALUE, "%s: [%llu, %llu) is beyond the object's %zu bytes", what, (unsigned long long)offset,
                     (unsigned long long)(offset + size), o->size);
    if (memory_offset > memory->size || size > memory->size - memory_offset)
        return broke(INVALID_VALUE, "%s: [%llu, %llu) is beyond the allocation's %zu bytes", what, (unsigned long long)memory_offset,
                     (unsigned long long)(memory_offset + size), memory->size);
    if ((o->handle_types || o->imported) && !memory->handle_types)
        return broke(INVALID_VALUE, "%s: the object is shareable, and the memory is not", what);
    lock_control(o->team);
    bool in = member(o->team, &memory->tag->device);
    pthread_mutex_unlock(&o->team->lock);
    if (!in)
        return broke(INVALID_DEVICE, "%s: the memory is of a device that was not added to the team", what);
    o->mappings++, memory->mappings++;      /* neither may go while this call waits */
    pthread_mutex_unlock(&memory_lock);
    status = wait_complete(o, what);
    pthread_mutex_lock(&memory_lock);
    o->mappings--, memory->mappings--;
    if (status == OK) {
        lock_control(o->team);
        status = place_bind(o, memory, offset, memory_offset, size, what);
        pthread_mutex_unlock(&o->team->lock);
    }
    drop_object(memory);
    drop_object(o);
    return status;
}

CALL(cuMulticastBindMem, UNSAFE, (CUhandle handle, size_t offset, CUhandle memory, size_t memory_offset, size_t size, u64 flags),
     (handle, offset, memory, memory_offset, size, flags), "handle=%#llx offset=%zu memory=%#llx memory_offset=%zu size=%zu",
     (unsigned long long)handle, offset, (unsigned long long)memory, memory_offset, size)
{
    CUresult status = OK;
    pthread_mutex_lock(&memory_lock);
    object *o = find_object(handle, KIND_MULTICAST, "cuMulticastBindMem", &status);
    object *m = o ? find_object(memory, KIND_MEMORY, "cuMulticastBindMem", &status) : NULL;
    if (m)
        status = bind_memory(o, offset, m, memory_offset, size, flags, "cuMulticastBindMem");
    pthread_mutex_unlock(&memory_lock);
    return status;
}

CALL(cuMulticastBindAddr, UNSAFE, (CUhandle handle, size_t offset, CUdeviceptr at, size_t size, u64 flags),
     (handle, offset, at, size, flags), "handle=%#llx offset=%zu at=%#llx size=%zu", (unsigned long long)handle, offset,
     (unsigned long long)at, size)
{
    CUresult status = OK;
    pthread_mutex_lock(&memory_lock);
    object *o = find_object(handle, KIND_MULTICAST, "cuMulticastBindAddr", &status);
    mapping *m = o ? mapping_at(at) : NULL;
    if (o && (m == NULL || m->of->kind != KIND_MEMORY))
        status = broke(INVALID_VALUE, "cuMulticastBindAddr: %#llx is not mapped memory of cuMemCreate", (unsigned long long)at);
    else if (o)
        status = bind_memory(o, offset, m->of, at - m->at, size, flags, "cuMulticastBindAddr");
    pthread_mutex_unlock(&memory_lock);
    return status;
}

CALL(cuMulticastUnbind, UNSAFE, (CUhandle handle, CUdevice device, size_t offset, size_t size), (handle, device, offset, size),
     "handle=%#llx device=%d offset=%zu size=%zu", (unsigned long long)handle, device, offset, size)
{
    CUresult status = need_multicast("cuMulticastUnbind", device);
    if (status != OK)
        return status;
    if (size == 0 || offset % sim.mc_minimum || size % sim.mc_minimum)
        return broke(INVALID_VALUE, "cuMulticastUnbind: offset %zu or size %zu is not a multiple of the multicast granularity %llu", offset, size,
                     (unsigned long long)sim.mc_minimum);
    pthread_mutex_lock(&memory_lock);
    object *o = find_object(handle, KIND_MULTICAST, "cuMulticastUnbind", &status);
    if (o) {
        uuid_t own = sim_uuid(device);
        bind_record *found = NULL, *near_one = NULL;
        int left = 0;
        lock_control(o->team);
        for (int i = 0; i < MAX_BINDS; i++) {
            bind_record *b = &o->team->binds[i];
            if (b->used && same_uuid(&b->device, &own)) {
                if (b->offset == offset && b->size == size)
                    found = b;
                else if (b->offset < offset + size && offset < b->offset + b->size)
                    near_one = b;
            }
        }
        if (!member(o->team, &own))
            status = broke(INVALID_DEVICE, "cuMulticastUnbind: device %d is not in the team", device);
        else if (found == NULL && near_one)
            status = misuse(INVALID_VALUE, "cuMulticastUnbind: [%zu, +%zu) is not one earlier bind; the nearest is [%llu, +%llu)", offset, size,
                            (unsigned long long)near_one->offset, (unsigned long long)near_one->size);
        else if (found == NULL)
            status = broke(INVALID_VALUE, "cuMulticastUnbind: nothing of device %d is bound at %zu", device, offset);
        else {
            if (found->stale)
                status = broke(INVALID_VALUE, "cuMulticastUnbind: the memory was given back before it was unbound");
            found->used = 0;
            o->team->generation++;
        }
        for (int i = 0; i < MAX_BINDS; i++)
            left += o->team->binds[i].used && o->team->binds[i].pid == getpid();
        if (left == 0)
            o->binding = false;
        pthread_mutex_unlock(&o->team->lock);
    }
    pthread_mutex_unlock(&memory_lock);
    return status;
}

/* The memory is gone for all: what is bound of it is not there any more. */
void forget_binds_of(object *memory)
{
    for (object *o = objects; o; o = o->next) {
        if (o->kind != KIND_MULTICAST)
            continue;
        lock_control(o->team);
        for (int i = 0; i < MAX_BINDS; i++)
            if (o->team->binds[i].used && o->team->binds[i].inode == memory->inode) {
                o->team->binds[i].stale = 1;
                o->team->generation++;
            }
        pthread_mutex_unlock(&o->team->lock);
    }
}
