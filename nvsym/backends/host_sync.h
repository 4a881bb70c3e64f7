/* SPDX-License-Identifier: Apache-2.0
 *
 * The shared segment of a node, and the atomics on it.
 *
 * One region per PE of the node, at a fixed stride: its state, one control block per team, then its symmetric heap. Only
 * the PE itself writes its state and control blocks; the others read them. */
#ifndef NVSYM_HOST_SYNC_H
#define NVSYM_HOST_SYNC_H

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "nvsym/types.h"

#define NVSYM_PAIR 128    /* two cache lines: x86 prefetches them together */
#define NVSYM_STAGE 16384 /* bytes of a collective's payload that go through the control block */
#define NVSYM_INLINE 16   /* bytes that go in the line of the flag itself */

enum nvsym_pe_state { NVSYM_PE_ABSENT = 0, NVSYM_PE_RUNNING, NVSYM_PE_DRAINING, NVSYM_PE_EXITING, NVSYM_PE_FAILED };

typedef struct nvsym_pe_ctl {
    _Alignas(NVSYM_PAIR) uint32_t state;
    int32_t pid;
    char reason[NVSYM_PAIR * 4 - 8];
} nvsym_pe_ctl;

/* A collective call as a PE announces it, so that the others can tell whether theirs goes with it. */
typedef struct nvsym_call {
    uint32_t kind;
    int32_t arg; /* root, or reduction operator */
    uint32_t dtype;
    uint32_t failed; /* the PE takes no part: its arguments were bad; the reason is in its stage */
    uint64_t count; /* elements of a reduction; else bytes */
    int64_t src, dst; /* offsets in the region of the PE */
} nvsym_call;

/* Calls and payloads are kept for two epochs: a PE overwrites those of epoch e at e + 2, and to get there it has seen
 * everybody arrive at e + 1, when all were done with e. */
typedef struct nvsym_team_ctl {
    _Alignas(NVSYM_PAIR) uint64_t arrived; /* the last epoch that the PE announced */
    nvsym_call call[2];
    unsigned char small[2][NVSYM_INLINE];
    _Alignas(NVSYM_PAIR) uint64_t departed; /* the last epoch whose peers' memory the PE is done with */
    _Alignas(NVSYM_PAIR) unsigned char stage[2][NVSYM_STAGE];
} nvsym_team_ctl;

_Static_assert(sizeof(nvsym_call) == 40, "nvsym_call travels between processes");
_Static_assert(sizeof(nvsym_team_ctl) == 2 * NVSYM_PAIR + 2 * NVSYM_STAGE, "one pair of lines for each flag");

/* Where a payload of so many bytes goes. */
static inline unsigned char *nvsym_payload(nvsym_team_ctl *ctl, int parity, size_t nbytes)
{
    return nbytes <= NVSYM_INLINE ? ctl->small[parity] : ctl->stage[parity];
}

static inline uint64_t nvsym_load(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void nvsym_store(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline uint32_t nvsym_load32(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void nvsym_store32(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline void nvsym_add32(uint32_t *p, int32_t n) { __atomic_add_fetch(p, (uint32_t)n, __ATOMIC_ACQ_REL); }
static inline uint64_t nvsym_next(uint64_t *p) { return __atomic_fetch_add(p, 1, __ATOMIC_ACQ_REL); }

static inline void nvsym_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

static inline int nvsym_try_lock(uint32_t *p)
{
    uint32_t free = 0;
    return __atomic_compare_exchange_n(p, &free, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline void nvsym_unlock(uint32_t *p) { __atomic_store_n(p, 0, __ATOMIC_RELEASE); }

/* Which thread this is. */
static __thread char nvsym_here;
static inline uint64_t nvsym_self(void) { return (uint64_t)(uintptr_t)&nvsym_here; }

/* Numbers from 0 on that are done, in any order: all below `first` are, and `first` + i where bit i of `more` is set. */
typedef struct {
    uint64_t first, more;
    uint32_t busy;
} nvsym_numbers;

/* Count one as done; returns whether it is too far ahead of the first one that is not: then those before it count as done as well. */
static inline int nvsym_count_done(nvsym_numbers *n, uint64_t number)
{
    int far = 0;
    while (!nvsym_try_lock(&n->busy))
        sched_yield();
    uint64_t first = n->first;
    if (number >= first + 64) {
        far = 1;
        first = number + 1;
        n->more = 0;
    } else if (number >= first) {
        n->more |= (uint64_t)1 << (number - first);
        for (; n->more & 1; n->more >>= 1)
            first++;
    }
    nvsym_store(&n->first, first);
    nvsym_unlock(&n->busy);
    return far;
}

static inline void nvsym_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline int64_t nvsym_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void nvsym_sleep(int64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    nanosleep(&t, NULL);
}

static inline int nvsym_pid_gone(int32_t pid) { return kill(pid, 0) == -1 && errno == ESRCH; }

static inline int nvsym_compare(uint64_t a, int cmp, uint64_t b)
{
    switch (cmp) {
    case NVSYM_CMP_EQ: return a == b;
    case NVSYM_CMP_NE: return a != b;
    case NVSYM_CMP_GT: return a > b;
    case NVSYM_CMP_LE: return a <= b;
    case NVSYM_CMP_LT: return a < b;
    default: return a >= b;
    }
}

static inline void nvsym_signal(uint64_t *p, uint64_t value, int op)
{
    if (op == NVSYM_SIGNAL_ADD)
        __atomic_fetch_add(p, value, __ATOMIC_RELEASE);
    else
        __atomic_store_n(p, value, __ATOMIC_RELEASE);
}

#define NVSYM_AMO_BITS(T)                                                                                             \
    {                                                                                                                 \
        T *at = (T *)p, value = operand ? *(const T *)operand : 0, old = 0;                                           \
        switch (amo) {                                                                                                \
        case NVSYM_AMO_FETCH: old = __atomic_load_n(at, __ATOMIC_SEQ_CST); break;                                     \
        case NVSYM_AMO_SET: __atomic_store_n(at, value, __ATOMIC_SEQ_CST); break;                                     \
        case NVSYM_AMO_ADD: old = __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST); break;                             \
        case NVSYM_AMO_SWAP: old = __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST); break;                           \
        case NVSYM_AMO_AND: old = __atomic_fetch_and(at, value, __ATOMIC_SEQ_CST); break;                             \
        case NVSYM_AMO_OR: old = __atomic_fetch_or(at, value, __ATOMIC_SEQ_CST); break;                               \
        case NVSYM_AMO_XOR: old = __atomic_fetch_xor(at, value, __ATOMIC_SEQ_CST); break;                             \
        case NVSYM_AMO_COMPARE_SWAP:                                                                                  \
            old = *(const T *)cond;                                                                                   \
            __atomic_compare_exchange_n(at, &old, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                      \
            break;                                                                                                    \
        default: return -1;                                                                                           \
        }                                                                                                             \
        if (result)                                                                                                   \
            *(T *)result = old;                                                                                       \
        return 0;                                                                                                     \
    }

/* A float sum by compare and swap of the bits. */
#define NVSYM_AMO_FLOAT_ADD(F, U)                                                                                     \
    {                                                                                                                 \
        union {                                                                                                       \
            F f;                                                                                                      \
            U u;                                                                                                      \
        } old, sum;                                                                                                   \
        old.u = __atomic_load_n((U *)p, __ATOMIC_RELAXED);                                                            \
        do                                                                                                            \
            sum.f = old.f + *(const F *)operand;                                                                      \
        while (!__atomic_compare_exchange_n((U *)p, &old.u, sum.u, 1, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));           \
        if (result)                                                                                                   \
            *(F *)result = old.f;                                                                                     \
        return 0;                                                                                                     \
    }

/* Signed integers add, compare and swap as unsigned ones do; floats are swapped as bits. */
static inline int nvsym_amo(int amo, int dtype, void *p, const void *operand, const void *cond, void *result)
{
    switch (dtype) {
    case NVSYM_FLOAT32:
        if (amo == NVSYM_AMO_ADD)
            NVSYM_AMO_FLOAT_ADD(float, uint32_t)
        /* fall through */
    case NVSYM_INT32:
    case NVSYM_UINT32: NVSYM_AMO_BITS(uint32_t)
    case NVSYM_FLOAT64:
        if (amo == NVSYM_AMO_ADD)
            NVSYM_AMO_FLOAT_ADD(double, uint64_t)
        /* fall through */
    case NVSYM_INT64:
    case NVSYM_UINT64: NVSYM_AMO_BITS(uint64_t)
    default: return -1;
    }
}

#endif
