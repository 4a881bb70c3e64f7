/* SPDX-License-Identifier: Apache-2.0
 *
 * Of NVML (libnvidia-ml.so.1) what nvsym asks: the state of a GPU's NVLink fabric. The library knows the GPUs of the simulated
 * driver by their UUIDs. Settings: NVSYM_SIM_FABRIC_STATE (default 3, completed), NVSYM_SIM_FABRIC_STATUS (default 0, success),
 * NVSYM_SIM_FABRIC_CLUSTER (default: 1 where there are several nodes or an IMEX channel, else 0, which is no domain beyond the
 * node), NVSYM_SIM_CLIQUE, NVSYM_SIM_NVML=0 (NVML does not work).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, MISMATCH = 25 };
enum { VERSION_2 = 0x02000024, VERSION_3 = 0x03000028 };

typedef struct { unsigned char cluster[16]; int status; unsigned clique; unsigned char state; } fabric_info;
typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health; } fabric_info_v;
typedef struct { char text[64]; } gpu;

static int initialized;
static gpu known[64];

static long number(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : otherwise;
}

static int begin(void)
{
    if (!number("NVSYM_SIM_NVML", 1))
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

static int fill(void *device, unsigned char cluster[16], int *status, unsigned *clique, unsigned char *state)
{
    const char *imex = getenv("NVSYM_SIM_IMEX");
    long several = number("NVSYM_SIM_NODES", number("MPIR_CVAR_NUM_CLIQUES", 1)) > 1 || (imex && *imex && strcmp(imex, "none"));
    if (!initialized)
        return UNINITIALIZED;
    if ((gpu *)device < known || (gpu *)device >= known + 64)
        return INVALID_ARGUMENT;
    memset(cluster, 0, 16);
    cluster[0] = (unsigned char)number("NVSYM_SIM_FABRIC_CLUSTER", several);
    *status = (int)number("NVSYM_SIM_FABRIC_STATUS", SUCCESS);
    *clique = (unsigned)number("NVSYM_SIM_CLIQUE", 0);
    *state = (unsigned char)number("NVSYM_SIM_FABRIC_STATE", 3);
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
