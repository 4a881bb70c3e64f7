/* SPDX-License-Identifier: Apache-2.0
 *
 * A store of 8 bytes and a flag to memory that another process has mapped, and the wait for it, as one writes them in C who
 * has the two addresses. */
#ifndef BY_HAND_H
#define BY_HAND_H

#include <sched.h>
#include <stdint.h>

static inline void hand_store(uint64_t *there, uint64_t value, uint64_t *flag, uint64_t number)
{
    *there = value;
    __atomic_store_n(flag, number, __ATOMIC_RELEASE);
}

static inline void hand_wait(const uint64_t *flag, uint64_t number)
{
    int polls = 0;
    while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) < number)
        if (++polls >= 2000) {
            polls = 0;
            sched_yield(); /* the other process may need this core */
        }
}

#endif
