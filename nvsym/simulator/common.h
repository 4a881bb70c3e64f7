/* SPDX-License-Identifier: Apache-2.0
 *
 * What the simulated libraries have in common: how they read numbers from the environment, and the list of the functions that a plan
 * of failures can name.
 */
#ifndef NVSYM_SIMULATOR_COMMON_H
#define NVSYM_SIMULATOR_COMMON_H

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A setting that cannot be taken ends the process: a test must not go on with another machine than it asked for. */
static inline void refuse_setting(const char *name, const char *text, const char *wanted)
{
    fprintf(stderr, "nvsym simulator: %s=%s cannot be read: %s\n", name, text, wanted);
    fflush(stderr);
    _exit(2);
}

/* A whole number from `least` to `most`; LONG_MAX: without a limit. */
static inline long env_number(const char *name, long least, long most, long otherwise)
{
    const char *text = getenv(name);
    char *end, wanted[80];
    if (text == NULL || *text == 0)
        return otherwise;
    errno = 0;
    long value = strtol(text, &end, 0);
    if (errno || *end || value < least || value > most) {
        if (most == LONG_MAX)
            snprintf(wanted, sizeof wanted, "a number from %ld on is needed", least);
        else
            snprintf(wanted, sizeof wanted, "a number from %ld to %ld is needed", least, most);
        refuse_setting(name, text, wanted);
    }
    return value;
}

/* The name of a function in the list of its library, between __start_sim_calls and __stop_sim_calls; has the value of the name. */
#define LISTED(text)                                                                                                     \
    ({                                                                                                                   \
        static const char *const listed __attribute__((section("sim_calls"), used)) = text;                              \
        listed;                                                                                                          \
    })
extern const char *const __start_sim_calls[] __attribute__((visibility("hidden")));
extern const char *const __stop_sim_calls[] __attribute__((visibility("hidden")));

#endif
