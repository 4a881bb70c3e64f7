/* SPDX-License-Identifier: Apache-2.0
 *
 * An NVSHMEM whose functions do nothing, to test the search, the table and the errors. The test writes the list
 * names.h: FAKE(name) for each function that the library is to have beside these. nvshmemx_buffer_register returns its
 * length as its status. */
#include <stddef.h>

#define FAKE(name) \
    int name(void) { return 0; }
#include "names.h"

#ifdef MAJOR
void nvshmemx_vendor_get_version_info(int *major, int *minor, int *patch) {
    *major = MAJOR;
    *minor = MINOR;
    *patch = PATCH;
}
#endif

static int status_of_the_library = 0;

/* Not part of NVSHMEM: what a test calls in place of an initialisation. */
void fake_initialize(void) { status_of_the_library = 2; }

int nvshmemx_init_status(void) { return status_of_the_library; }

int nvshmemx_buffer_register(void *address, size_t length) {
    (void)address;
    return (int)length;
}

int nvshmem_my_pe(void) { return 4; }

int nvshmemx_float_sum_reduce_on_stream(int team, void *dest, const void *src, size_t count, void *stream) {
    (void)team, (void)dest, (void)src, (void)stream;
    return count == 77 ? 0 : 1;
}
