/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that move data between pageable host memory and pinned blocks that a stream copies from or to.
 *
 * A ring has a number of pinned blocks. The blocks that pass through it are numbered from 1; block n uses slot n % slots.
 * Two counters of each slot, in pinned memory, hold the number of the last block that
 *
 *   ready   the host has dealt with: filled for the device, or emptied into pageable memory;
 *   done    the stream has copied.
 *
 * A third one, of the ring, is written by the stream alone:
 *
 *   reached the number of the first block of a copy whose host memory an earlier copy fills: workers read it only when the
 *           stream has come to it. All others are read as soon as there is a block for them.
 *
 * The stream waits for `ready` and writes `done`; a worker waits for `done`, and the last of those that share a block
 * writes `ready`. No worker calls CUDA or Python, or waits for anything but these counters, so a stream that is stuck stops
 * only its own ring.
 */
#ifndef NVSYM_STAGING_H
#define NVSYM_STAGING_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum {
    STAGING_STRIDE  = 64,           /* bytes between two counters: a cache line each */
    STAGING_THREADS = 8,            /* at most: more were slower on a machine of 16 processors */
    STAGING_PART    = 256 << 10,    /* bytes of a block that a worker takes at a time */
    STAGING_STREAM  = 1 << 20,      /* bytes from which a copy passes the caches by on its way into pageable memory */
    STAGING_YIELDS  = 500,          /* polls that yield, before those that sleep */
    STAGING_LONGEST = 500,          /* microseconds of a sleep, growing */
    STAGING_POPULATE = 23           /* MADV_POPULATE_WRITE, which older headers lack */
};

enum { STAGING_TO_DEVICE = 1, STAGING_TO_HOST = 2 };

/* One copy: blocks first .. first + count - 1 of a ring. */
typedef struct staging_copy {
    struct staging_copy *next;
    char                *host;
    size_t               nbytes;
    uint64_t             first;
    uint64_t             count;
    size_t               part;      /* bytes that a worker takes at a time */
    int                  to_host;
    int                  in_order;  /* read the host memory only when the stream has come to the copy */
    int                  fresh;     /* the host memory has no pages yet */
} staging_copy;

/* Host memory that a copy is bringing data to: until its blocks up to `last` are over. */
typedef struct staging_range {
    struct staging_range *next;
    const char           *host;
    size_t                nbytes;
    struct staging_ring  *ring;
    uint64_t              first;
    uint64_t              last;
} staging_range;

typedef struct staging_ring {
    struct staging_ring *_Atomic next;
    char                *blocks;    /* pinned: slots blocks, then the counters */
    char                *counters;
    size_t               block;     /* bytes of one */
    uint64_t             slots;
    uint64_t             issued;    /* number of the last block given out */
    _Atomic uint64_t     claimed;   /* number of the last block that workers have taken all of */
    size_t               taken;     /* bytes of the block after it that they have taken */
    _Atomic uint32_t    *unfinished; /* parts of the block in each slot */
    staging_copy        *first;     /* with blocks that nobody has taken */
    staging_copy        *last;
    _Atomic uint64_t     awaited;   /* what `reached` has to be for the first copy; 0: nothing */
    _Atomic int          heading;   /* of the first copy: STAGING_TO_HOST, STAGING_TO_DEVICE, or 0 where there is none */
    void                *stream;    /* that the copies are on */
    int                  enqueuing; /* somebody is putting a copy on the stream just now */
    void                *lane;      /* a second stream, of the device `lane_device`: every other block goes by it */
    void                *fork;      /* an event between the two */
    int                  lane_device;
} staging_ring;

typedef struct staging_pool {
    pthread_mutex_t lock;
    pthread_cond_t  work;
    staging_ring   *_Atomic rings;
    staging_range  *arriving;
    int             threads;
    int             watched;        /* a worker sleeps and looks in turn, for all */
    _Atomic uint64_t unclaimed;     /* blocks of all rings */
} staging_pool;

static inline _Atomic uint64_t *staging_ready(const staging_ring *ring, uint64_t number)
{
    return (_Atomic uint64_t *)(ring->counters + number % ring->slots * 2 * STAGING_STRIDE);
}

static inline _Atomic uint64_t *staging_done(const staging_ring *ring, uint64_t number)
{
    return (_Atomic uint64_t *)(ring->counters + (number % ring->slots * 2 + 1) * STAGING_STRIDE);
}

static inline _Atomic uint64_t *staging_reached(const staging_ring *ring)
{
    return (_Atomic uint64_t *)(ring->counters + ring->slots * 2 * STAGING_STRIDE);
}

static inline char *staging_block(const staging_ring *ring, uint64_t number)
{
    return ring->blocks + number % ring->slots * ring->block;
}

static inline size_t staging_size(size_t block, uint64_t slots)
{
    return slots * (block + 2 * STAGING_STRIDE) + STAGING_STRIDE;
}

/* Whether the host and the stream are both through with a block; there is none below 1. */
static inline int staging_over(const staging_ring *ring, uint64_t number)
{
    return (int64_t)number <= 0 || (atomic_load_explicit(staging_done(ring, number), memory_order_acquire) >= number &&
                                    atomic_load_explicit(staging_ready(ring, number), memory_order_acquire) >= number);
}

typedef struct staging_task {
    char             *to;
    const char       *from;
    size_t            nbytes;
    int               past_caches;
    int               fresh;
    _Atomic uint32_t *unfinished;
    _Atomic uint64_t *ready;
    uint64_t          number;
} staging_task;

/* Whether workers can deal with the next block of a ring now. Without the lock the answer is a guess, soon right. */
static inline int staging_open(const staging_ring *ring)
{
    int heading = atomic_load_explicit(&ring->heading, memory_order_acquire);
    uint64_t number = atomic_load_explicit(&ring->claimed, memory_order_relaxed) + 1;
    if (heading == STAGING_TO_HOST)
        return atomic_load_explicit(staging_done(ring, number), memory_order_acquire) >= number;
    return heading == STAGING_TO_DEVICE && staging_over(ring, number - ring->slots) &&
           atomic_load_explicit(staging_reached(ring), memory_order_acquire) >=
               atomic_load_explicit(&ring->awaited, memory_order_relaxed);
}

static int staging_any_open(const staging_pool *pool)
{
    const staging_ring *ring = atomic_load_explicit(&pool->rings, memory_order_acquire);
    while (ring != NULL && !staging_open(ring))
        ring = atomic_load_explicit(&ring->next, memory_order_acquire);
    return ring != NULL;
}

static inline void staging_head(staging_ring *ring)
{
    int heading = ring->first == NULL ? 0 : ring->first->to_host ? STAGING_TO_HOST : STAGING_TO_DEVICE;
    uint64_t awaited = heading == STAGING_TO_DEVICE && ring->first->in_order ? ring->first->first : 0;
    atomic_store_explicit(&ring->awaited, awaited, memory_order_relaxed);
    atomic_store_explicit(&ring->heading, heading, memory_order_release);
}

/* Take the next part of a ring's next block if it can be dealt with now; under the lock. */
static int staging_claim(staging_pool *pool, staging_ring *ring, staging_task *task)
{
    staging_copy *copy = ring->first;
    if (!staging_open(ring))
        return 0;
    uint64_t number = ring->claimed + 1;
    size_t before = (number - copy->first) * ring->block, taken = ring->taken;
    size_t size = copy->nbytes - before < ring->block ? copy->nbytes - before : ring->block;
    char *host = copy->host + before + taken, *block = staging_block(ring, number) + taken;
    task->nbytes = size - taken < copy->part ? size - taken : copy->part;
    task->to = copy->to_host ? host : block;
    task->from = copy->to_host ? block : host;
    task->fresh = copy->fresh;
    task->past_caches = copy->to_host && copy->nbytes >= STAGING_STREAM;
    task->unfinished = &ring->unfinished[number % ring->slots];
    task->ready = staging_ready(ring, number);
    task->number = number;
    if (taken == 0)
        atomic_store_explicit(task->unfinished, (size + copy->part - 1) / copy->part, memory_order_relaxed);
    ring->taken = taken + task->nbytes;
    if (ring->taken < size)
        return 1;
    ring->taken = 0;
    atomic_store_explicit(&ring->claimed, number, memory_order_relaxed);
    pool->unclaimed--;
    if (number == copy->first + copy->count - 1) {
        ring->first = copy->next;
        if (ring->first == NULL)
            ring->last = NULL;
        staging_head(ring);
        free(copy);
    }
    return 1;
}

/* memcpy() whose stores pass the caches by: it reads no line before it writes it, and leaves the blocks in the caches. */
static void staging_stream(char *to, const char *from, size_t nbytes)
{
#ifdef __SSE2__
    size_t line = 64, head = -(uintptr_t)to % line;
    if (head > nbytes)
        head = nbytes;
    memcpy(to, from, head);
    to += head, from += head, nbytes -= head;
    for (; nbytes >= line; to += line, from += line, nbytes -= line) {
        const __m128i *source = (const __m128i *)from;
        __m128i *target = (__m128i *)to;
        __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
        __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
        _mm_stream_si128(target, a);
        _mm_stream_si128(target + 1, b);
        _mm_stream_si128(target + 2, c);
        _mm_stream_si128(target + 3, d);
    }
    _mm_sfence(); /* such stores are in no order, not even before a release */
#endif
    memcpy(to, from, nbytes);
}

/* Whether memory has no pages yet, by the one in its middle. */
static int staging_fresh(const char *memory, size_t nbytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), middle = (uintptr_t)(memory + nbytes / 2) & -page;
    unsigned char resident = 1;
    return mincore((void *)middle, page, &resident) == 0 && !(resident & 1);
}

/* Get all pages of memory that is about to be written by one call. Where the kernel cannot, the writes get them. */
static void staging_populate(char *memory, size_t nbytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)memory & -page;
    (void)madvise((void *)start, (uintptr_t)memory + nbytes - start, STAGING_POPULATE);
}

static void staging_do(const staging_task *task)
{
    if (task->fresh)
        staging_populate(task->to, task->nbytes);
    if (task->past_caches)
        staging_stream(task->to, task->from, task->nbytes);
    else
        memcpy(task->to, task->from, task->nbytes);
    if (atomic_fetch_sub_explicit(task->unfinished, 1, memory_order_acq_rel) > 1)
        return;
    /* An abandoned ring's counters are beyond every number, and stay so. */
    uint64_t seen = atomic_load_explicit(task->ready, memory_order_relaxed);
    while (seen < task->number && !atomic_compare_exchange_weak_explicit(task->ready, &seen, task->number,
                                                                         memory_order_release, memory_order_relaxed))
        ;
}

static void *staging_worker(void *argument)
{
    staging_pool *pool = argument;
    staging_task task;
    staging_ring *ring;
    unsigned polls = 0, pause;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        for (ring = pool->rings; ring != NULL && !staging_claim(pool, ring, &task); ring = ring->next)
            ;
        if (ring == NULL && (pool->unclaimed == 0 || (polls > STAGING_YIELDS && pool->watched))) {
            pthread_cond_wait(&pool->work, &pool->lock);
            polls = 0;
            continue;
        }
        int watch = ring == NULL && polls > STAGING_YIELDS;
        pool->watched |= watch;
        pthread_mutex_unlock(&pool->lock);
        if (ring != NULL) {
            staging_do(&task);
            polls = 0;
        } else if (watch) {
            for (pause = 20; !staging_any_open(pool) && pool->unclaimed > 0;) {
                usleep(pause);
                pause = pause + pause / 2 < STAGING_LONGEST ? pause + pause / 2 : STAGING_LONGEST;
            }
        } else {
            do
                sched_yield();
            while (++polls <= STAGING_YIELDS && !staging_any_open(pool) && pool->unclaimed > 0);
        }
        pthread_mutex_lock(&pool->lock);
        if (watch) {
            pool->watched = 0;
            polls = 0;
            pthread_cond_broadcast(&pool->work);
        }
    }
    return NULL;
}

static staging_pool *staging_pool_new(void)
{
    staging_pool *pool = calloc(1, sizeof(staging_pool));
    pthread_mutexattr_t attributes;
    if (pool != NULL) {
        pthread_mutexattr_init(&attributes);
#if defined(__GLIBC__) && defined(_GNU_SOURCE)
        /* It is held for less time than a sleep takes. */
        pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
        pthread_mutex_init(&pool->lock, &attributes);
        pthread_mutexattr_destroy(&attributes);
        pthread_cond_init(&pool->work, NULL);
    }
    return pool;
}

/* Start the threads, once; they live as long as the process. The number that run. */
static int staging_start(staging_pool *pool, int threads)
{
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    while (pool->threads < threads && pthread_create(&thread, &attributes, staging_worker, pool) == 0)
        pool->threads++;
    pthread_attr_destroy(&attributes);
    return pool->threads;
}

/* A ring over pinned memory of staging_size(block, slots) bytes, whose counters are set to zero. */
static staging_ring *staging_ring_new(staging_pool *pool, void *pinned, size_t block, uint64_t slots)
{
    staging_ring *ring = calloc(1, sizeof(staging_ring));
    if (ring == NULL)
        return NULL;
    ring->unfinished = calloc(slots, sizeof(*ring->unfinished));
    if (ring->unfinished == NULL) {
        free(ring);
        return NULL;
    }
    ring->blocks = pinned;
    ring->counters = ring->blocks + slots * block;
    ring->block = block;
    ring->slots = slots;
    memset(ring->counters, 0, slots * 2 * STAGING_STRIDE + STAGING_STRIDE);
    ring->enqueuing = 1;
    pthread_mutex_lock(&pool->lock);
    ring->next = pool->rings;
    pool->rings = ring;
    pthread_mutex_unlock(&pool->lock);
    return ring;
}

/* A ring for a copy on a stream: the one whose copies are on that stream already, else one that is idle with blocks of at
 * least that size, else NULL. It is marked as enqueuing. */
static staging_ring *staging_take(staging_pool *pool, void *stream, size_t block)
{
    staging_ring *ring, *found = NULL;
    uint64_t slot;
    pthread_mutex_lock(&pool->lock);
    for (ring = pool->rings; ring != NULL; ring = ring->next) {
        if (ring->enqueuing || ring->block < block)
            continue;
        if (ring->stream != stream) {
            for (slot = 0; slot < ring->slots && staging_over(ring, ring->issued - slot); slot++)
                ;
            if (slot < ring->slots)
                continue;
        }
        if (found == NULL || ring->stream == stream || (found->stream != stream && ring->block < found->block))
            found = ring;
    }
    if (found != NULL) {
        found->enqueuing = 1;
        found->stream = stream;
    }
    pthread_mutex_unlock(&pool->lock);
    return found;
}

/* Whether the host is through with blocks first .. last of a ring. A slot is used again only when it was over. */
static int staging_through(const staging_ring *ring, uint64_t first, uint64_t last)
{
    uint64_t number = last - first < ring->slots ? first : last - ring->slots + 1;
    for (; number <= last; number++)
        if (atomic_load_explicit(staging_ready(ring, number), memory_order_acquire) < number)
            return 0;
    return 1;
}

/* Whether a copy is under way to host memory that has bytes in common with these. */
static int staging_arriving(staging_pool *pool, const void *host, size_t nbytes)
{
    staging_range **link, *range;
    const char *start = host;
    int found = 0;
    pthread_mutex_lock(&pool->lock);
    for (link = &pool->arriving; (range = *link) != NULL;) {
        if (staging_through(range->ring, range->first, range->last)) {
            *link = range->next;
            free(range);
            continue;
        }
        found |= start < range->host + range->nbytes && range->host < start + nbytes;
        link = &range->next;
    }
    pthread_mutex_unlock(&pool->lock);
    return found;
}

/* Hand a copy to the workers; its blocks get the next numbers. 0 where there is no memory. */
static uint64_t staging_submit(staging_pool *pool, staging_ring *ring, void *host, size_t nbytes, int to_host, int in_order)
{
    staging_copy *copy = malloc(sizeof(staging_copy));
    staging_range *range = to_host ? malloc(sizeof(staging_range)) : NULL;
    if (copy == NULL || (to_host && range == NULL)) {
        free(copy);
        free(range);
        return 0;
    }
    if (to_host)
        staging_arriving(pool, NULL, 0); /* forget those that are over */
    copy->fresh = to_host && staging_fresh(host, nbytes);
    /* Workers that are given the same huge page at once would each clear one, of which one is taken. */
    copy->part = copy->fresh ? ring->block : STAGING_PART;
    pthread_mutex_lock(&pool->lock);
    copy->next = NULL;
    copy->host = host;
    copy->nbytes = nbytes;
    copy->first = ring->issued + 1;
    copy->count = (nbytes + ring->block - 1) / ring->block;
    copy->to_host = to_host;
    copy->in_order = in_order;
    ring->issued += copy->count;
    pool->unclaimed += copy->count;
    if (ring->last != NULL)
        ring->last->next = copy;
    else
        ring->first = copy;
    ring->last = copy;
    staging_head(ring);
    uint64_t first = copy->first;
    if (range != NULL) {
        *range = (staging_range){pool->arriving, host, nbytes, ring, first, first + copy->count - 1};
        pool->arriving = range;
    }
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    return first;
}

static void staging_release(staging_pool *pool, staging_ring *ring)
{
    pthread_mutex_lock(&pool->lock);
    ring->enqueuing = 0;
    pthread_mutex_unlock(&pool->lock);
}

/* Give a ring up whose stream failed while a copy was put on it: nothing waits for it any more, and its memory stays. */
static void staging_abandon(staging_pool *pool, staging_ring *ring)
{
    staging_ring *_Atomic *link;
    uint64_t slot;
    pthread_mutex_lock(&pool->lock);
    for (link = &pool->rings; *link != ring; link = &(*link)->next)
        ;
    *link = ring->next;
    pool->unclaimed -= ring->issued - ring->claimed;
    for (slot = 0; slot < ring->slots; slot++)
        atomic_store_explicit(staging_ready(ring, slot), UINT64_MAX / 4, memory_order_release);
    pthread_mutex_unlock(&pool->lock);
}

#endif
