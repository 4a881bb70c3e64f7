/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated driver: errors, versions, devices, contexts.
 */
#define cuDeviceGetUuid cuDeviceGetUuid_v2
#define cuDeviceTotalMem cuDeviceTotalMem_v2
#define cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2
#define cuCtxPushCurrent cuCtxPushCurrent_v2
#define cuCtxPopCurrent cuCtxPopCurrent_v2
#define cuGetProcAddress cuGetProcAddress_v2
#include "sim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct { int code; const char *name, *text; } errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread"},
    {909, "CUDA_ERROR_TIMEOUT", "wait operation timed out"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult error_text(int error, const char **out, bool name)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error) {
            *out = name ? errors[i].name : errors[i].text;
            return OK;
        }
    *out = NULL;
    return INVALID_VALUE;
}

API CUresult cuGetErrorString(int error, const char **out);
API CUresult cuGetErrorName(int error, const char **out);
API CUresult cuGetErrorString(int error, const char **out) { return error_text(error, out, false); }
API CUresult cuGetErrorName(int error, const char **out) { return error_text(error, out, true); }

/* ---- initialisation ----------------------------------------------------------------------------------------------------- */

static _Atomic int initialized;
bool sim_initialized(void) { return initialized; }

CALL(cuInit, ANYTIME, (unsigned flags), (flags), "flags=%u", flags)
{
    if (flags)
        return broke(INVALID_VALUE, "cuInit: flags are %u, not 0", flags);
    if (sim.devices == 0)
        return NO_DEVICE;
    initialized = 1;
    return OK;
}

CALL(cuDriverGetVersion, ANYTIME, (int *version), (version), "%d", version ? *version : 0)
{
    if (version == NULL)
        return INVALID_VALUE;
    *version = sim.driver_version;
    return OK;
}

/* ---- devices ------------------------------------------------------------------------------------------------------------ */

#define NEED_DEVICE(dev)                                                                                                 \
    if ((dev) < 0 || (dev) >= sim.devices)                                                                               \
    return broke(INVALID_DEVICE, "device %d: there are %d", (int)(dev), sim.devices)

uuid_t sim_uuid(int device)
{
    uuid_t uuid = {{'N', 'V', 'S', 'Y', 'M', 'S', 'I', 'M'}};
    uuid.bytes[13] = (unsigned char)sim.node;
    uuid.bytes[14] = (unsigned char)(sim.node >> 8);
    uuid.bytes[15] = (unsigned char)sim.ordinal[device];
    return uuid;
}

int sim_device_of(const uuid_t *uuid)
{
    for (int i = 0; i < sim.devices; i++) {
        uuid_t own = sim_uuid(i);
        if (!memcmp(&own, uuid, sizeof own))
            return i;
    }
    return -1;
}

static const struct { int attribute, value; } attributes[] = {
    {1, 1024},      /* MAX_THREADS_PER_BLOCK */
    {2, 1024},      /* MAX_BLOCK_DIM_X */
    {3, 1024},      /* MAX_BLOCK_DIM_Y */
    {4, 64},        /* MAX_BLOCK_DIM_Z */
    {5, 2147483647},
    {6, 65535},
    {7, 65535},
    {8, 49152},     /* MAX_SHARED_MEMORY_PER_BLOCK */
    {10, 32},       /* WARP_SIZE */
    {16, 132},      /* MULTIPROCESSOR_COUNT */
    {31, 1},        /* CONCURRENT_KERNELS */
    {34, 0},        /* PCI_DEVICE_ID */
    {39, 2048},     /* MAX_THREADS_PER_MULTIPROCESSOR */
    {40, 3},        /* ASYNC_ENGINE_COUNT */
    {41, 1},        /* UNIFIED_ADDRESSING */
    {75, 9},        /* COMPUTE_CAPABILITY_MAJOR */
    {76, 0},        /* COMPUTE_CAPABILITY_MINOR */
    {78, 1},        /* STREAM_PRIORITIES_SUPPORTED */
    {83, 1},        /* MANAGED_MEMORY */
    {95, 1},        /* COOPERATIVE_LAUNCH */
    {97, 232448},   /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
    {99, 1},        /* HOST_REGISTER_SUPPORTED */
    {102, 1},       /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
    {103, 1},       /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
    {110, 1},       /* GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED */
    {115, 1},       /* MEMORY_POOLS_SUPPORTED */
    {122, 1},       /* CAN_USE_64_BIT_STREAM_MEM_OPS */
    {123, 1},       /* CAN_USE_STREAM_WAIT_VALUE_NOR */
    {128, 1},       /* HANDLE_TYPE_FABRIC_SUPPORTED: says nothing of whether there is an IMEX channel */
    {132, 1},       /* MULTICAST_SUPPORTED */
};

/* NVSYM_SIM_ATTR: 132=0 or 132=0@dev1, by semicolons. Whether it has this one; -1 where it cannot be read. */
static int overridden(int attribute, int device, int *value)
{
    const char *text = getenv("NVSYM_SIM_ATTR");
    int found = 0;
    while (text && *text) {
        char *end, *start;
        long number = strtol(text, &end, 10), wanted = -1, its;
        if (end == text || *end != '=')
            return -1;
        its = strtol(start = end + 1, &end, 10);
        if (end == start)
            return -1;
        if (!strncmp(end, "@dev", 4)) {
            wanted = strtol(start = end + 4, &end, 10);
            if (end == start || wanted < 0)
                return -1;
        }
        if (number == attribute && (wanted < 0 || wanted == device)) {
            *value = (int)its;
            found = 1;
        }
        text = end + strspn(end, "; ");
        if (text == end && *text)
            return -1;
    }
    return found;
}

bool sim_attributes_readable(void)
{
    int unused;
    return overridden(0, 0, &unused) >= 0;
}

int sim_attribute(int attribute, int device)
{
    int value;
    if (overridden(attribute, device, &value) > 0)
        return value;
    switch (attribute) {
    case 20: return 0;                              /* COMPUTE_MODE */
    case 33: return sim.ordinal[device] + 1;        /* PCI_BUS_ID */
    case 50: return sim.node;                       /* PCI_DOMAIN_ID */
    case 133: return sim.mps;                       /* MPS_ENABLED */
    }
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i].attribute == attribute)
            return attributes[i].value;
    return 0;
}

CALL(cuDeviceGetCount, AFTER_INIT, (int *count), (count), "%d", count ? *count : 0)
{
    if (count == NULL)
        return INVALID_VALUE;
    *count = sim.devices;
    return OK;
}

CALL(cuDeviceGet, AFTER_INIT, (CUdevice *device, int ordinal), (device, ordinal), "ordinal=%d", ordinal)
{
    if (device == NULL)
        return INVALID_VALUE;
    NEED_DEVICE(ordinal);
    *device = ordinal;
    return OK;
}

CALL(cuDeviceGetName, AFTER_INIT, (char *name, int size, CUdevice device), (name, size, device), "device=%d", device)
{
    NEED_DEVICE(device);
    if (name == NULL || size < 1)
        return INVALID_VALUE;
    snprintf(name, (size_t)size, "nvsym simulated GPU");
    return OK;
}

CALL(cuDeviceGetUuid, AFTER_INIT, (uuid_t * uuid, CUdevice device), (uuid, device), "device=%d", device)
{
    NEED_DEVICE(device);
    if (uuid == NULL)
        return INVALID_VALUE;
    *uuid = sim_uuid(device);
    return OK;
}

CALL(cuDeviceGetAttribute, AFTER_INIT, (int *value, int attribute, CUdevice device), (value, attribute, device),
     "attribute=%d device=%d value=%d", attribute, device, value ? *value : 0)
{
    NEED_DEVICE(device);
    if (value == NULL || attribute < 1 || attribute > 150)
        return INVALID_VALUE;
    *value = sim_attribute(attribute, device);
    return OK;
}

CALL(cuDeviceTotalMem, AFTER_INIT, (size_t *bytes, CUdevice device), (bytes, device), "device=%d", device)
{
    NEED_DEVICE(device);
    if (bytes == NULL)
        return INVALID_VALUE;
    *bytes = sim.memory;
    return OK;
}

CALL(cuDeviceCanAccessPeer, AFTER_INIT, (int *can, CUdevice device, CUdevice peer), (can, device, peer), "device=%d peer=%d",
     device, peer)
{
    NEED_DEVICE(device);
    NEED_DEVICE(peer);
    if (can == NULL)
        return INVALID_VALUE;
    *can = device != peer && sim.peers;
    return OK;
}

CALL(cuDeviceGetP2PAttribute, AFTER_INIT, (int *value, int attribute, CUdevice device, CUdevice peer), (value, attribute, device, peer),
     "attribute=%d device=%d peer=%d", attribute, device, peer)
{
    NEED_DEVICE(device);
    NEED_DEVICE(peer);
    if (value == NULL || attribute < 1 || attribute > 4)
        return INVALID_VALUE;
    if (device == peer)
        return INVALID_DEVICE; /* no peer of itself */
    *value = attribute == 1 ? 0 : sim.peers; /* 1: a rank, of which 0 is the best */
    return OK;
}

/* ---- contexts ----------------------------------------------------------------------------------------------------------- */

#define CONTEXT_MAGIC 0x78746e6f634d4953ull

static context contexts[MAX_DEVICES];
static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread context *stack[32];
static __thread int height;
_Atomic u64 count_contexts;

context *sim_current(void)
{
    context *top = height ? stack[height - 1] : NULL;
    return top && top->retained ? top : NULL;
}

static context *valid(void *c)
{
    return (context *)c >= contexts && (context *)c < contexts + MAX_DEVICES && ((context *)c)->magic == CONTEXT_MAGIC &&
                   ((context *)c)->retained
               ? c
               : NULL;
}

CALL(cuDevicePrimaryCtxRetain, AFTER_INIT, (void **out, CUdevice device), (out, device), "device=%d", device)
{
    NEED_DEVICE(device);
    if (out == NULL)
        return INVALID_VALUE;
    pthread_mutex_lock(&context_lock);
    contexts[device].magic = CONTEXT_MAGIC;
    contexts[device].device = device;
    if (contexts[device].retained++ == 0)
        count_contexts++;
    pthread_mutex_unlock(&context_lock);
    *out = &contexts[device];
    return OK;
}

CALL(cuDevicePrimaryCtxRelease, AFTER_INIT, (CUdevice device), (device), "device=%d", device)
{
    CUresult status = OK;
    NEED_DEVICE(device);
    pthread_mutex_lock(&context_lock);
    if (contexts[device].retained == 0)
        status = broke(INVALID_CONTEXT, "cuDevicePrimaryCtxRelease: the context of device %d is not retained", device);
    else if (--contexts[device].retained == 0)
        count_contexts--;
    pthread_mutex_unlock(&context_lock);
    return status;
}

CALL(cuDevicePrimaryCtxGetState, AFTER_INIT, (CUdevice device, unsigned *flags, int *active), (device, flags, active),
     "device=%d", device)
{
    NEED_DEVICE(device);
    if (flags == NULL || active == NULL)
        return INVALID_VALUE;
    *flags = 0;
    *active = contexts[device].retained > 0;
    return OK;
}

CALL(cuCtxPushCurrent, AFTER_INIT, (void *c), (c), "%p", c)
{
    if (!valid(c))
        return broke(INVALID_CONTEXT, "cuCtxPushCurrent: not a context, or one that was released");
    if (height == 32)
        return INVALID_VALUE;
    stack[height++] = c;
    return OK;
}

CALL(cuCtxPopCurrent, AFTER_INIT, (void **out), (out), "%p", out ? *out : NULL)
{
    if (height == 0)
        return broke(INVALID_CONTEXT, "cuCtxPopCurrent: no context is current");
    height--;
    if (out)
        *out = stack[height];
    return OK;
}

CALL(cuCtxSetCurrent, AFTER_INIT, (void *c), (c), "%p", c)
{
    if (c == NULL) {
        if (height)
            height--;
        return OK;
    }
    if (!valid(c))
        return broke(INVALID_CONTEXT, "cuCtxSetCurrent: not a context, or one that was released");
    if (height == 0)
        height = 1;
    stack[height - 1] = c;
    return OK;
}

CALL(cuCtxGetCurrent, AFTER_INIT, (void **out), (out), "%p", out ? *out : NULL)
{
    if (out == NULL)
        return INVALID_VALUE;
    *out = height ? stack[height - 1] : NULL;
    return OK;
}

CALL(cuCtxGetDevice, AFTER_INIT, (CUdevice *device), (device), "%d", device ? *device : -1)
{
    context *c = sim_current();
    if (c == NULL)
        return broke(INVALID_CONTEXT, "cuCtxGetDevice: no context is current");
    if (device == NULL)
        return INVALID_VALUE;
    *device = c->device;
    return OK;
}

/* ---- entry points ------------------------------------------------------------------------------------------------------- */

/* NVRTC asks a driver that it finds in the process for private tables, and crashes where there is no such function: with this
 * answer it does without them. */
API CUresult cuGetExportTable(const void **table, const void *identifier);
API CUresult cuGetExportTable(const void **table, const void *identifier)
{
    (void)identifier;
    *table = NULL;
    return NOT_FOUND;
}

API CUresult cuGetProcAddress(const char *symbol, void **function, int version, u64 flags, int *found);
API CUresult cuGetProcAddress(const char *symbol, void **function, int version, u64 flags, int *found)
{
    static const char *const suffixes[] = {"_v3", "_v2", ""};
    char name[128];
    Dl_info own;
    if (symbol == NULL || function == NULL || flags > 2)
        return INVALID_VALUE;
    *function = NULL;
    /* The symbols of this library, not those of a driver that the process may also have. */
    void *library = dladdr((void *)cuGetErrorName, &own) ? dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    for (int i = 0; library && i < 3 && *function == NULL; i++) {
        snprintf(name, sizeof name, "%s%s", symbol, suffixes[i]);
        *function = dlsym(library, name);
    }
    if (library)
        dlclose(library);
    (void)version;
    if (found)
        *found = *function ? 0 : 1;
    return *function || found ? OK : NOT_FOUND;
}
