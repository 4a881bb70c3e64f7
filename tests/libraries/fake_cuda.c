/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA driver of a handful of functions, to test the search, the table and the errors. cuInit returns the status that
 * its argument names. VERSION is what cuDriverGetVersion reports, VERSION_STATUS what it returns. */
#include <stddef.h>

#ifndef VERSION_STATUS
#define VERSION_STATUS 0
#endif

#ifdef VERSION
int cuDriverGetVersion(int *version) {
    *version = VERSION;
    return VERSION_STATUS;
}
#endif

int cuInit(unsigned int status) { return (int)status; }

int cuGetErrorName(int status, const char **name) {
    switch (status) {
        case 2: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return 0;
        case 100: *name = "CUDA_ERROR_NO_DEVICE"; return 0;
        case 304: *name = "CUDA_ERROR_OPERATING_SYSTEM"; return 0;
        default: *name = NULL; return 1;
    }
}

int cuGetErrorString(int status, const char **text) {
    switch (status) {
        case 2: *text = "out of memory"; return 0;
        case 100: *text = "no CUDA-capable device is detected"; return 0;
        case 304: *text = "OS call failed"; return 0;
        default: *text = NULL; return 1;
    }
}

/* Only the versioned symbol works: the one without a version is what an old program would get. */
int cuMemAlloc(unsigned int *address, unsigned int size) {
    (void)size;
    *address = 1;
    return 999;
}

int cuMemAlloc_v2(unsigned long long *address, size_t size) {
    *address = 0x700000000000ull + size;
    return 0;
}
