/* SPDX-License-Identifier: Apache-2.0
 *
 * The threads of nvsym/staging.h, with a caller that does what a stream would: by functions, and as a program that copies at
 * random on several streams at once, for a compiler's thread sanitizer.
 */
#include <stdio.h>

#include "staging.h"

unsigned probe_pause; /* microseconds that the stream takes over a block */

/* One side of a copy that the stream sees, and what `enqueue` of staging.pyx would have put on it. */
static void run_stream(staging_ring *ring, char *device, uint64_t first, size_t nbytes, int to_host)
{
    uint64_t number = first;
    for (; nbytes > 0; number++) {
        size_t now = nbytes < ring->block ? nbytes : ring->block;
        uint64_t wanted = !to_host ? number : number > ring->slots ? number - ring->slots : 0;
        while (atomic_load_explicit(staging_ready(ring, number), memory_order_acquire) < wanted)
            sched_yield();
        if (probe_pause > 0)
            usleep(probe_pause);
        if (to_host)
            memcpy(staging_block(ring, number), device, now);
        else
            memcpy(device, staging_block(ring, number), now);
        atomic_store_explicit(staging_done(ring, number), number, memory_order_release);
        device += now;
        nbytes -= now;
    }
    for (uint64_t last = number; to_host && number > first && last - number < ring->slots;) {
        number--;
        while (atomic_load_explicit(staging_ready(ring, number), memory_order_acquire) < number)
            sched_yield();
    }
}

staging_pool *probe_pool(int threads)
{
    staging_pool *pool = staging_pool_new();
    return pool != NULL && staging_start(pool, threads) == threads ? pool : NULL;
}

/* Copy by a ring of so many blocks: one that is idle, or a new one. 0, or -1 where there is no memory. */
int probe_copy(staging_pool *pool, size_t block, uint64_t slots, char *host, char *device, size_t nbytes, int to_host)
{
    void *stream = &stream;
    staging_ring *ring = staging_take(pool, stream, block);
    if (ring == NULL) {
        void *memory = aligned_alloc(64, (staging_size(block, slots) + 63) / 64 * 64);
        if (memory == NULL || (ring = staging_ring_new(pool, memory, block, slots)) == NULL)
            return -1;
        ring->stream = stream;
    }
    uint64_t first = staging_submit(pool, ring, host, nbytes, to_host, 0);
    if (first != 0)
        run_stream(ring, device, first, nbytes, to_host);
    staging_release(pool, ring);
    return first != 0 ? 0 : -1;
}

/* A ring with a copy that its stream never comes to. */
staging_ring *probe_stuck(staging_pool *pool, size_t block, uint64_t slots, char *host, size_t nbytes)
{
    void *memory = aligned_alloc(64, (staging_size(block, slots) + 63) / 64 * 64);
    staging_ring *ring = memory == NULL ? NULL : staging_ring_new(pool, memory, block, slots);
    return ring != NULL && staging_submit(pool, ring, host, nbytes, 1, 0) != 0 ? ring : NULL;
}

/* Give a ring up: 1 if nothing waits for it any more, nor for any other ring. */
int probe_abandon(staging_pool *pool, staging_ring *ring)
{
    staging_abandon(pool, ring);
    int over = atomic_load(&pool->unclaimed) == 0;
    for (uint64_t number = 1; number <= 3 * ring->slots; number++)
        over &= atomic_load(staging_ready(ring, number)) >= number;
    return over;
}

void probe_stream(char *to, const char *from, size_t nbytes)
{
    staging_stream(to, from, nbytes);
}

int probe_fresh(const char *memory, size_t nbytes)
{
    return staging_fresh(memory, nbytes);
}

enum { STREAMS = 3, COPIES = 40, MOST = 3 << 20 };

static staging_pool *shared;

static void *random_copies(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    char *source = malloc(MOST), *device = malloc(MOST), *out = malloc(MOST);
    for (size_t i = 0; i < MOST; i++)
        source[i] = (char)rand_r(&seed);
    for (int i = 0; i < COPIES; i++) {
        size_t nbytes = 1 + (size_t)rand_r(&seed) % (i % 2 ? MOST - 64 : 5000), at = (size_t)rand_r(&seed) % 64;
        size_t block = i % 4 < 2 ? 65536 : 600000;
        if (probe_copy(shared, block, 5, source + at, device, nbytes, 0) != 0 ||
            probe_copy(shared, block, 5, out + at, device, nbytes, 1) != 0 || memcmp(source + at, out + at, nbytes) != 0) {
            printf("copy %d of %zu bytes is wrong\n", i, nbytes);
            exit(1);
        }
    }
    free(source), free(device), free(out);
    return NULL;
}

int main(void)
{
    pthread_t streams[STREAMS];
    shared = probe_pool(6);
    for (uintptr_t i = 0; i < STREAMS; i++)
        pthread_create(&streams[i], NULL, random_copies, (void *)(i + 1));
    for (int i = 0; i < STREAMS; i++)
        pthread_join(streams[i], NULL);
    return 0;
}
