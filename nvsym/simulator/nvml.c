/* SPDX-License-Identifier: Apache-2.0
 *
 * Of NVML (libnvidia-ml.so.1) what nvsym asks: a GPU's NVLinks, the way to another GPU, and the state of the NVLink fabric. The library
 * knows the GPUs of the simulated driver by their UUIDs. Settings: NVSYM_SIM_NVLINKS (links of a GPU that are up; default 18; 0: PCIe), NVSYM_SIM_FABRIC_STATE (default 3, completed), NVSYM_SIM_FABRIC_STATUS (default 0, success),
 * NVSYM_SIM_FABRIC_CLUSTER (default: 1 where there are several nodes or an IMEX channel, else 0, which is no domain beyond the
 * node), NVSYM_SIM_CLIQUE, NVSYM_SIM_NVML=0 (NVML does not work).
 */
#include "common.h"

#include <string.h>

#define API __attribute__((visibility("default")))

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, MISMATCH = 25 };
enum { MOST_LINKS = 36 };
enum { VERSION_2 = 0x02000024, VERSION_3 = 0x03000028 };

typedef struct { unsigned char cluster[16]; int status; unsigned clique; unsigned char state; } fabric_info;
typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health; } fabric_info_v;
typedef struct { char text[64]; } gpu;

static int initialized;
static gpu known[64];

static long links_up(void) { return env_number("NVSYM_SIM_NVLINKS", 0, MOST_LINKS, 18); }

static int begin(void)
{
    if (!env_number("NVSYM_SIM_NVML", 0, 1, 1))
        return DRIVER_NOT_LOADED;
    initialized++;
    return SUCCESS;
}

API int nvmlInit_v2(void) { return begin(); }
API int nvmlInitWithFlags(unsigned flags) { return flags ? INVALID_ARGUMENT : begin(); }
API int nvmlShutdown(void) { return initialized ? (initialized--, SUCCESS) : UNINITIALIZED; }

API const char *nvmlErrorString(int status)
{
    switch (status) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    if (!initialized)
        return UNINITIALIZED;
    /* As device.c makes them: "NVSYMSIM" and zeros, then node and number. */
    if (uuid == NULL || device == NULL || strncmp(uuid, "GPU-4e565359-4d53-494d-", 23) || strlen(uuid) != 40)
        return uuid && device ? NOT_FOUND : INVALID_ARGUMENT;
    for (int i = 0; i < 64; i++)
        if (known[i].text[0] == 0 || !strcmp(known[i].text, uuid)) {
            strcpy(known[i].text, uuid);
            *device = &known[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

static int is_gpu(const void *device) { return (const gpu *)device >= known && (const gpu *)device < known + 64; }

/* ---- links ---------------------------------------------------------------------------------------------------------- */

enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5, P2P_NVLINK = 2, BETWEEN_NUMA_NODES = 50, SPEED_OF_ALL = 90, SPEED = 26562 };

typedef struct { unsigned field, scope; long long timestamp, latency; unsigned type; int status; unsigned long long value; } field_value;

static int check(const void *device, const void *out)
{
    return !initialized ? UNINITIALIZED : is_gpu(device) && out ? SUCCESS : INVALID_ARGUMENT;
}

API int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active)
{
    const long links = links_up();
    int status = check(device, active);
    if (status == SUCCESS && (link >= MOST_LINKS || (long)link >= links))
        status = links ? INVALID_ARGUMENT : NOT_SUPPORTED;
    if (status == SUCCESS)
        *active = 1;
    return status;
}

API int nvmlDeviceGetP2PStatus(void *device, void *other, int index, int *out)
{
    const int status = is_gpu(other) && device != other ? check(device, out) : INVALID_ARGUMENT;
    if (status == SUCCESS)
        *out = index == P2P_NVLINK && links_up() > 0 ? P2P_OK : P2P_NOT_SUPPORTED;
    return status;
}

API int nvmlDeviceGetTopologyCommonAncestor(void *device, void *other, unsigned *level)
{
    const int status = is_gpu(other) ? check(device, level) : INVALID_ARGUMENT;
    if (status == SUCCESS)
        *level = BETWEEN_NUMA_NODES;
    return status;
}

API int nvmlDeviceGetFieldValues(void *device, int count, field_value *values)
{
    const int status = check(device, values);
    for (int i = 0; status == SUCCESS && i < count; i++) {
        values[i].status = values[i].field == SPEED_OF_ALL && links_up() > 0 ? SUCCESS : NOT_SUPPORTED;
        values[i].type = 1; /* unsigned */
        values[i].value = values[i].status == SUCCESS ? SPEED : 0;
    }
    return status;
}

/* ---- the fabric ----------------------------------------------------------------------------------------------------- */

static int fill(void *device, unsigned char cluster[16], int *status, unsigned *clique, unsigned char *state)
{
    const char *imex = getenv("NVSYM_SIM_IMEX"), *cliques = getenv("MPIR_CVAR_NUM_CLIQUES");
    long nodes = env_number("NVSYM_SIM_NODES", 1, 64, cliques ? atoi(cliques) : 1);
    long several = nodes > 1 || (imex && *imex && strcmp(imex, "none"));
    if (!initialized)
        return UNINITIALIZED;
    if (!is_gpu(device))
        return INVALID_ARGUMENT;
    memset(cluster, 0, 16);
    cluster[0] = (unsigned char)env_number("NVSYM_SIM_FABRIC_CLUSTER", 0, 255, several);
    *status = (int)env_number("NVSYM_SIM_FABRIC_STATUS", 0, INT_MAX, SUCCESS);
    *clique = (unsigned)env_number("NVSYM_SIM_CLIQUE", 0, INT_MAX, 0);
    *state = (unsigned char)env_number("NVSYM_SIM_FABRIC_STATE", 0, 255, 3);
    return SUCCESS;
}

API int nvmlDeviceGetGpuFabricInfo(void *device, fabric_info *info)
{
    return info ? fill(device, info->cluster, &info->status, &info->clique, &info->state) : INVALID_ARGUMENT;
}

API int nvmlDeviceGetGpuFabricInfoV(void *device, fabric_info_v *info)
{
    if (info == NULL)
        return INVALID_ARGUMENT;
    if (info->version != VERSION_2 && info->version != VERSION_3)
        return MISMATCH;
    info->health = 0;
    return fill(device, info->cluster, &info->status, &info->clique, &info->state);
}
