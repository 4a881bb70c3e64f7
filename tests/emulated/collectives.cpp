/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs sequences of the kernels on emulated PEs that get apart from each other, and checks every result. The float8
 * conversions are here, too, for a comparison with ml_dtypes. */
#include "cuda.hpp"

#include "nvsym/exchange.cuh"
#include "nvsym/levels.cuh"
#include "nvsym/multimem_allreduce.cuh"
#include "nvsym/staged.cuh"

#include <cstddef>
#include <cstdio>
#include <sys/mman.h>

using namespace nvsym;
using emulated::random_bits;

namespace {

constexpr u64 HEAP = 1 << 16;
constexpr u64 LL_BYTES = 16 * 64;
constexpr u64 LL_ALL = LL_STAGES * LL_BLOCKS * LL_BYTES; /* of one PE */
constexpr u64 PUSH_BLOCKS = 3;
constexpr u64 PUSH_ALL = PUSH_STAGES * (PUSH_PACKS + 1) * PUSH_BLOCKS * PUSH_THREADS * 16;

struct Pe {
    std::vector<char> memory;
    char *heap;     /* symmetric */
    Pad *pad;
    char *ll;
    char *push;
    std::vector<u32> epochs = std::vector<u32>(3 * MAX_BLOCKS + 1);
    u32 failure[64] = {};
    Team team;
    Distances distances;
};

struct Job {
    std::vector<Pe> pes;
    std::vector<emulated::Queue> queues;
    std::string error;

    explicit Job(int n, u64 limit_ns) : pes(n), queues(n)
    {
        const u64 size = HEAP + sizeof(Pad) + LL_ALL * n + PUSH_ALL;
        for (Pe &pe : pes) {
            pe.memory.resize(size + 64);
            pe.heap = pe.memory.data() + (64 - (u64)pe.memory.data() % 64);
            pe.pad = (Pad *)(pe.heap + HEAP);
            pe.ll = (char *)(pe.pad + 1);
            pe.push = pe.ll + LL_ALL * n;
            for (u64 i = 0; i < PUSH_ALL / 4; i++)
                ((u32 *)pe.push)[i] = EMPTY;
        }
        if (emulated::multicast == nullptr)
            emulated::multicast = (char *)mmap(nullptr, HEAP, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        emulated::members.clear();
        for (Pe &pe : pes)
            emulated::members.push_back(pe.heap);
        for (int me = 0; me < n; me++) {
            for (int p = 0; p < n; p++)
                pes[me].distances.delta[p] = pes[p].heap - pes[me].heap;
            pes[me].distances.multicast = emulated::multicast - pes[me].heap;
            Team &t = pes[me].team;
            memset(&t, 0, sizeof(t));
            for (int p = 0; p < n; p++)
                t.delta[p] = pes[p].heap - pes[me].heap;
            t.me = me, t.n = n, t.pad = pes[me].pad, t.ll = pes[me].ll, t.ll_bytes = LL_BYTES, t.push = pes[me].push, t.push_blocks = PUSH_BLOCKS;
            t.epochs = pes[me].epochs.data(), t.failure = pes[me].failure, t.limit_ns = limit_ns;
        }
    }
    void launch(int pe, unsigned grid, unsigned threads, std::function<void()> kernel)
    {
        queues[pe].launches.push_back({grid, threads, std::move(kernel)});
    }
};

/* What an operation reads and writes, on the PE's heap. */
struct Operation {
    int kind, root;
    bool in_shares;
    unsigned grid, threads;
    u64 dst, src, count; /* elements of T from the heap's start */
};

typedef float T;

T value(u64 seed, int pe, u64 i)
{
    /* What means that nothing has come, and what a push begins with that had to choose a key. */
    if ((seed * 31 + pe * 7 + i * 3) % 101 == 5)
        return __uint_as_float(seed & 1 ? EMPTY : KEYED);
    return (T)(int)((seed * 31 + pe * 7 + i * 3) % 17);
}

enum Kind { ONE_SHOT, TWO_SHOT, MULTIMEM, PUSH, LOW_LATENCY, BROADCAST, BROADCAST_LINES, FCOLLECT, FCOLLECT_LINES, ALLTOALL, ALLTOALL_LINES,
            SCATTER, SCATTER_LINES, BARRIER, KINDS };
const char *const NAMES[] = {"one_shot", "two_shot", "multimem", "push", "low_latency", "broadcast", "broadcast_lines", "fcollect",
                             "fcollect_lines", "alltoall", "alltoall_lines", "reduce_scatter", "reduce_scatter_lines", "barrier"};

void run_kernel(const Operation &o, Pe &pe)
{
    T *dst = (T *)pe.heap + o.dst;
    const T *src = (const T *)pe.heap + o.src;
    const u64 nbytes = o.count * sizeof(T);
    switch (o.kind) {
    case ONE_SHOT: return one_shot<T, Sum>(dst, src, o.count, pe.team);
    case TWO_SHOT: return two_shot<T, Sum>(dst, src, o.count, pe.team);
    case MULTIMEM: return multimem_allreduce<T, Sum>(dst, src, o.count, pe.distances, pe.team);
    case PUSH: return push<T, Sum>(dst, src, o.count, pe.team);
    case LOW_LATENCY: return low_latency<T, Sum>(dst, src, o.count, pe.team);
    case BROADCAST: return broadcast((char *)dst, (const char *)src, nbytes, o.root, o.in_shares, pe.team);
    case BROADCAST_LINES: return broadcast_lines((char *)dst, (const char *)src, nbytes, o.root, pe.team);
    case FCOLLECT: return fcollect((char *)dst, (const char *)src, nbytes, pe.team);
    case FCOLLECT_LINES: return fcollect_lines((char *)dst, (const char *)src, nbytes, pe.team);
    case ALLTOALL: return alltoall((char *)dst, (const char *)src, nbytes, pe.team);
    case ALLTOALL_LINES: return alltoall_lines((char *)dst, (const char *)src, nbytes, pe.team);
    case SCATTER: return reduce_scatter<T, Sum>(dst, src, o.count, pe.team);
    case SCATTER_LINES: return reduce_scatter_lines<T, Sum>(dst, src, o.count, pe.team);
    case BARRIER: return barrier(pe.team);
    }
}

T expected(const Operation &o, u64 seed, int me, int n, u64 i)
{
    T sum = 0;
    switch (o.kind) {
    case ONE_SHOT: case TWO_SHOT: case MULTIMEM: case PUSH: case LOW_LATENCY:
        sum = value(seed, 0, i);
        for (int p = 1; p < n; p++)
            sum += value(seed, p, i);
        return sum;
    case BROADCAST: case BROADCAST_LINES: return value(seed, o.root, i);
    case BARRIER: return value(seed, (me + 1) % n, i);
    case FCOLLECT: case FCOLLECT_LINES: return value(seed, (int)(i / o.count), i % o.count);
    case ALLTOALL: case ALLTOALL_LINES: return value(seed, (int)(i / o.count), me * o.count + i % o.count);
    default:
        sum = value(seed, 0, me * o.count + i);
        for (int p = 1; p < n; p++)
            sum += value(seed, p, me * o.count + i);
        return sum;
    }
}

u64 source_elements(const Operation &o, int n)
{
    return o.kind == ALLTOALL || o.kind == ALLTOALL_LINES || o.kind == SCATTER || o.kind == SCATTER_LINES ? o.count * n : o.count;
}

u64 dest_elements(const Operation &o, int n)
{
    return o.kind >= FCOLLECT && o.kind <= ALLTOALL_LINES ? o.count * n : o.count;
}

char message[256];

} // namespace

/* 0, or 1 and a message: `operations` random ones, one after the other on every PE without a wait between them. */
extern "C" int run_random(uint64_t seed, int n, int operations)
{
    random_bits.seed(seed);
    Job job(n, 0);
    if (seed % 2) /* so that the number of a step comes to EMPTY */
        for (Pe &pe : job.pes)
            for (int b = 0; b < MAX_BLOCKS; b++)
                pe.epochs[2 * MAX_BLOCKS + b] = EMPTY - 6;
    for (int k = 0; k < operations; k++) {
        Operation o;
        o.kind = (int)(random_bits() % KINDS);
        if (o.kind == PUSH && n != 2)
            o.kind = TWO_SHOT;
        o.root = (int)(random_bits() % n);
        o.in_shares = random_bits() & 1;
        const bool lines = o.kind == LOW_LATENCY || (o.kind >= BROADCAST && o.kind < BARRIER && (o.kind - BROADCAST) % 2 == 1);
        const u64 most = lines ? 150 : HEAP / 4 / sizeof(T) / n;
        o.count = random_bits() % 4 ? 1 + random_bits() % 40 : 1 + random_bits() % (most < 700 ? most : 700);
        o.grid = 1 + (unsigned)(random_bits() % 3);
        o.threads = n <= 4 ? 4 + (unsigned)(random_bits() % 6) : (unsigned)n;
        if (lines) /* a line for each thread, and no block without one */
            o.grid = (unsigned)((o.count * sizeof(T) + 8 * o.threads - 1) / (8 * o.threads));
        else if (o.kind == BARRIER)
            o.grid = 1;
        else if (o.kind == PUSH && o.count > 4 * 4 * 4 * o.grid * o.threads)
            o.count = 4 * 4 * 4 * o.grid * o.threads; /* what fits into the steps of a launch */
        o.src = random_bits() % 8;
        o.dst = HEAP / 2 / sizeof(T) + random_bits() % 8;
        if ((o.kind == TWO_SHOT || o.kind == MULTIMEM || o.kind == PUSH || o.kind == LOW_LATENCY || o.kind == BROADCAST || o.kind == BROADCAST_LINES) && random_bits() % 3 == 0)
            o.dst = o.src;
        const u64 data = random_bits() >> 20;
        for (int me = 0; me < n; me++) {
            Pe &pe = job.pes[me];
            job.launch(me, 1, 1, [&pe, o, data, me, n] {
                for (u64 i = 0; i < source_elements(o, n); i++)
                    ((T *)pe.heap)[o.src + i] = value(data, me, i);
                /* Of the last operation, when there is a barrier between: a peer may store to dst as soon as this one begins. */
            });
            job.launch(me, o.grid, o.threads, [&pe, o] { run_kernel(o, pe); });
            if (o.kind == BARRIER) { /* what the next PE had before it is read, and overwritten behind another one */
                job.launch(me, 1, 1, [&pe, &job, o, me, n] {
                    memcpy((T *)pe.heap + o.dst, (T *)job.pes[(me + 1) % n].heap + o.src, o.count * sizeof(T));
                });
                job.launch(me, o.grid, o.threads, [&pe, o] { run_kernel(o, pe); });
            }
            job.launch(me, 1, 1, [&pe, &job, o, data, me, n, k] {
                for (u64 i = 0; i < dest_elements(o, n) && job.error.empty(); i++)
                    if (memcmp((T *)pe.heap + o.dst + i, std::vector<T>{expected(o, data, me, n, i)}.data(), sizeof(T))) {
                        snprintf(message, sizeof(message), "operation %d, %s of %llu on PE %d of %d: element %llu is %g, not %g", k,
                                 NAMES[o.kind], o.count, me, n, i, (double)((T *)pe.heap)[o.dst + i],
                                 (double)expected(o, data, me, n, i));
                        job.error = message;
                    }
            });
        }
    }
    if (!emulated::run(job.queues, 1ull << 18)) { /* of up to 64 turns; sound ones of 20 PEs need less than half of that */
        snprintf(message, sizeof(message), "the kernels wait for each other");
        return 1;
    }
    return job.error.empty() ? 0 : 1;
}

/* Allreduces over `nodes` nodes of `local` PEs each, in two levels: by the kernels inside a node, and between them by a gathering that
 * is not that of NVSHMEM. */
extern "C" int run_levels(uint64_t seed, int nodes, int local, int operations)
{
    random_bits.seed(seed);
    const int n = nodes * local;
    Job job(n, 0);
    std::vector<int> ready(n), taken(n);
    for (int pe = 0; pe < n; pe++) {
        Team &t = job.pes[pe].team;
        t.n = local, t.me = pe % local;
        for (int p = 0; p < local; p++)
            t.delta[p] = job.pes[pe / local * local + p].heap - job.pes[pe].heap;
    }
    for (int k = 1; k <= operations; k++) {
        Operation o{TWO_SHOT, 0, false, 1 + (unsigned)(random_bits() % 3), 8, HEAP / 2 / sizeof(T), random_bits() % 8, 1};
        o.count = 1 + random_bits() % 300;
        if (random_bits() % 3 == 0)
            o.dst = o.src;
        const u64 data = random_bits() >> 20, sums = HEAP / 4 / sizeof(T), rows = HEAP * 3 / 4 / sizeof(T);
        const u64 size = ((o.count + local - 1) / local + 15) / 16 * 16;
        for (int me = 0; me < n; me++) {
            Pe &pe = job.pes[me];
            job.launch(me, 1, 1, [&pe, o, data, me] {
                for (u64 i = 0; i < o.count; i++)
                    ((T *)pe.heap)[o.src + i] = value(data, me, i);
            });
            job.launch(me, o.grid, o.threads, [&pe, o, sums] {
                level_in<T, Sum>((T *)pe.heap + sums, (const T *)pe.heap + o.src, o.count, pe.team);
            });
            job.launch(me, 1, 1, [&, me, k, sums, rows, size, local, nodes] {
                ready[me] = k;
                for (int node = 0; node < nodes; node++) {
                    const int q = node * local + me % local;
                    while (ready[q] < k)
                        emulated::leave();
                    memcpy((T *)job.pes[me].heap + rows + node * size, (T *)job.pes[q].heap + sums, size * sizeof(T));
                }
                taken[me] = k;
                for (int node = 0; node < nodes; node++)
                    while (taken[node * local + me % local] < k)
                        emulated::leave();
            });
            job.launch(me, o.grid, o.threads, [&pe, o, rows, nodes] {
                level_out<T, Sum>((T *)pe.heap + o.dst, (const T *)pe.heap + rows, o.count, nodes, pe.team);
            });
            job.launch(me, 1, 1, [&pe, &job, o, data, me, nodes, local, k] {
                for (u64 i = 0; i < o.count && job.error.empty(); i++) {
                    T total = 0;
                    for (int node = 0; node < nodes; node++) {
                        T sum = value(data, node * local, i);
                        for (int p = 1; p < local; p++)
                            sum += value(data, node * local + p, i);
                        total = node == 0 ? sum : total + sum;
                    }
                    if (memcmp((T *)pe.heap + o.dst + i, &total, sizeof(T))) {
                        snprintf(message, sizeof(message), "operation %d of %llu elements on PE %d: element %llu is %g, not %g", k, o.count,
                                 me, i, (double)((T *)pe.heap)[o.dst + i], (double)total);
                        job.error = message;
                    }
                }
            });
        }
    }
    if (!emulated::run(job.queues, 1ull << 32)) {
        snprintf(message, sizeof(message), "the kernels wait for each other");
        return 1;
    }
    return job.error.empty() ? 0 : 1;
}

/* Allreduces of two PEs by copies and kernels, enqueued as nvsym/kernels/staged.pyx does it. `behind`: a PE whose kernels begin when the
 * other one has given up, or -1. Of every four seeds two have slow copies, and one of these an operand that looks empty. */
extern "C" int run_staged(uint64_t seed, int operations, int behind)
{
    random_bits.seed(seed);
    const bool slow = seed % 2, dense = seed % 4 == 1;
    /* The late PE finds what the last of many calls has sent, as if it were of the first: whole packs of numbers. */
    const bool overtaken = behind >= 0 && seed % 3 == 2;
    auto element = [dense, overtaken](u64 data, int pe, u64 i) {
        if (overtaken)
            return (T)(int)(data % 1000 + i + pe);
        return dense && pe == 0 ? __uint_as_float(EMPTY) : value(data, pe, i);
    };
    Job job(2, behind < 0 ? 0 : 5000);
    job.queues.resize(4); /* of PE p: p, and 2 + p, which copies */
    std::vector<std::unique_ptr<bool>> events;
    std::vector<StageRounds> rounds(2);
    int over[2] = {};
    static constexpr u64 CHUNK = 512, FLAGS = HEAP / 2, MARKS = FLAGS + (sizeof(StageFlags) + 15) / 16 * 16,
                         SLOTS = MARKS + STAGES * CHUNK / 16;
    auto order = [&](int before, int after) { /* an event: recorded on a queue, waited for on another */
        events.emplace_back(new bool(false));
        bool *event = events.back().get();
        job.launch(before, 1, 1, [event] { *event = true; });
        job.launch(after, 1, 1, [event] {
            while (!*event)
                emulated::leave();
        });
    };
    for (Pe &pe : job.pes)
        for (u64 b = SLOTS; b < HEAP; b += 4)
            *(u32 *)(pe.heap + b) = EMPTY;
    for (int me = 0; me < 2; me++) {
        for (u32 &round : rounds[me].round[0])
            round = 1;
        for (u32 &round : rounds[me].round[1])
            round = 1;
    }
    const unsigned grid = 1 + (unsigned)(random_bits() % 3);
    for (int k = 0; k < operations; k++) {
        const u64 src = overtaken ? 0 : random_bits() % 8;
        const u64 count = overtaken ? 64 : 1 + random_bits() % (random_bits() % 3 ? 60 : 1200), nbytes = count * sizeof(T);
        const u64 dst = !overtaken && random_bits() % 3 == 0 ? src : 2000 + (random_bits() % 2 ? src : 1);
        const u64 data = random_bits() >> 20;
        const unsigned threads = 4 + (unsigned)(random_bits() % 6);
        const u32 n = (u32)((nbytes + CHUNK - 1) / CHUNK);
        const u64 head = 16 - src % 4 * 4 & 15, first = nbytes < CHUNK ? nbytes : CHUNK;
        u64 pushed = random_bits() % 4 * threads * STAGED_PACKS * 16;
        if (head + pushed > first || overtaken)
            pushed = 0;
        for (int me = 0; me < 2; me++) {
            Pe &pe = job.pes[me];
            const int lane = 2 + me;
            auto flags = (StageFlags *)(pe.heap + FLAGS);
            const char *from = (char *)((T *)pe.heap + src);
            char *to = (char *)((T *)pe.heap + dst);
            job.launch(me, 1, 1, [&pe, element, src, count, data, me] {
                for (u64 i = 0; i < count; i++)
                    ((T *)pe.heap)[src + i] = element(data, me, i);
            });
            auto send = [&, me](u32 r) {
                if (r >= n)
                    return;
                const u64 size = nbytes - r * CHUNK < CHUNK ? nbytes - r * CHUNK : CHUNK;
                char *slot = pe.heap + SLOTS + r % STAGES * CHUNK;
                if (size >= head + 16)
                    job.launch(lane, 1, 1, [&pe, slot, from, size, r, pushed, head, slow, me] {
                    for (u64 wait = slow ? random_bits() % 2000 : 0; wait > 0; wait--)
                        emulated::leave();
                    const u64 skip = r ? 0 : pushed, packed = (size - head) / 16 * 16, start = random_bits() % packed / 4 * 4;
                    for (u64 b = 0; b < packed; b += 4) { /* not from the beginning, and words whole */
                        const u64 i = (start + b) % packed;
                        if (i < skip)
                            continue;
                        memcpy(at(slot + i, pe.team, 1 - me), from + r * CHUNK + head + i, 4);
                        emulated::maybe_leave();
                    }
                });
                if (src == dst)
                    job.launch(lane, 1, 1, [&rounds, r, me] { count_copy(&rounds[me], r % STAGES); });
            };
            auto be_late = [&job, &over, overtaken, me] {
                while (overtaken ? !over[1 - me] : job.pes[1 - me].failure[0] == 0)
                    emulated::leave();
            };
            if (me == behind && k == 0 && seed % 3 == 0)
                job.launch(me, 1, 1, be_late);
            order(me, lane);
            for (u32 r = 0; r < STAGES; r++)
                send(r);
            if (me == behind && k == 0 && seed % 3) /* what it copies is in time */
                job.launch(me, 1, 1, be_late);
            for (u32 r = 0; r < n; r++) {
                const u64 size = nbytes - r * CHUNK < CHUNK ? nbytes - r * CHUNK : CHUNK;
                const Stage stage{flags, &rounds[me], pe.heap + SLOTS + r % STAGES * CHUNK, (u8 *)pe.heap + MARKS + r % STAGES * CHUNK / 16,
                                  r ? 0 : pushed / 16, r % STAGES, src == dst};
                job.launch(me, grid, threads, [&pe, to, from, size, r, stage] {
                    staged<T, Sum>((T *)(to + r * CHUNK), (const T *)(from + r * CHUNK), size / sizeof(T), stage, pe.team);
                });
                if (r + STAGES < n) {
                    order(me, lane);
                    send(r + STAGES);
                }
            }
            order(lane, me);
            job.launch(me, 1, 1, [&job, &pe, element, src, dst, count, data, me, k] {
                for (u64 i = 0; i < count && job.error.empty() && pe.failure[0] == 0; i++) {
                    const T sum = element(data, 0, i) + element(data, 1, i);
                    if (memcmp((T *)pe.heap + dst + i, &sum, sizeof(T))) {
                        snprintf(message, sizeof(message), "operation %d, staged, of %llu on PE %d: element %llu is %g, not %g", k, count, me, i,
                                 (double)((T *)pe.heap)[dst + i], (double)sum);
                        job.error = message;
                    }
                }
            });
        }
    }
    for (int me = 0; me < 2; me++)
        job.launch(me, 1, 1, [&over, me] { over[me] = 1; });
    if (!emulated::run(job.queues, 1ull << 18)) { /* of up to 64 turns; the sound ones need an eighth of that */
        snprintf(message, sizeof(message), "the kernels wait for each other");
        return 1;
    }
    for (int me = 0; me < 2 && job.error.empty(); me++) {
        const Pe &pe = job.pes[me];
        const bool failed = pe.failure[0] == 1 && pe.failure[1 + 1 - me] == 1;
        if (failed != (behind >= 0)) {
            snprintf(message, sizeof(message), "PE %d %s PE %d, while PE %d is late", me, failed ? "names" : "does not name", 1 - me, behind);
            return 1;
        }
        for (u64 b = MARKS; behind < 0 && b < HEAP; b += 4)
            if (*(u32 *)(pe.heap + b) != (b < SLOTS ? 0 : EMPTY)) {
                snprintf(message, sizeof(message), "PE %d: the stages are not empty in the end", me);
                return 1;
            }
    }
    return job.error.empty() ? 0 : 1;
}

/* One PE never launches its kernel of this kind: all others have to stop, and to name it. */
extern "C" int run_missing(uint64_t seed, int n, int kind, int missing)
{
    random_bits.seed(seed);
    Job job(n, 5000);
    Operation o{kind, 0, (seed & 1) != 0, 2, 8, HEAP / 2 / sizeof(T), 0, 50};
    o.grid = kind == PUSH ? 2 : 4; /* 25 lines of 8 threads */
    for (int me = 0; me < n; me++)
        if (me != missing) {
            Pe &pe = job.pes[me];
            job.launch(me, o.grid, o.threads, [&pe, o] { run_kernel(o, pe); });
        }
    if (!emulated::run(job.queues, 1ull << 26)) {
        snprintf(message, sizeof(message), "%s: a kernel waits for ever", NAMES[kind]);
        return 1;
    }
    for (int me = 0; me < n; me++)
        for (int p = 0; me != missing && p < n; p++)
            if (job.pes[me].failure[0] != 1 || job.pes[me].failure[1 + p] != (p == missing)) {
                snprintf(message, sizeof(message), "%s: PE %d says %u of PE %d, while PE %d is missing", NAMES[kind], me,
                         job.pes[me].failure[1 + p], p, missing);
                return 1;
            }
    return 0;
}

/* What nvsym/kernels declares in Cython has to be the same. */
extern "C" unsigned long layout(int i)
{
    const unsigned long numbers[] = {
        sizeof(Team), offsetof(Team, delta), sizeof(StageFlags), offsetof(StageFlags, loose), sizeof(StageRounds),
        offsetof(StageRounds, copied), sizeof(Stage), offsetof(Stage, number), sizeof(Pad),
    };
    return numbers[i];
}

extern "C" int kinds() { return KINDS; }
extern "C" int most_pes(int kind) { return kind == PUSH ? 2 : (int)MAX_PES; }
extern "C" const char *last_message() { return message; }

#define CONVERSIONS(TYPE)                                                                                                     \
    extern "C" void decode_##TYPE(const unsigned char *in, float *out, long n)                                               \
    {                                                                                                                         \
        for (long i = 0; i < n; i++)                                                                                          \
            out[i] = Element<TYPE>::load(TYPE{in[i]});                                                                        \
    }                                                                                                                         \
    extern "C" void encode_##TYPE(const float *in, unsigned char *out, long n)                                               \
    {                                                                                                                         \
        for (long i = 0; i < n; i++)                                                                                          \
            out[i] = Element<TYPE>::store(in[i]).bits;                                                                        \
    }
CONVERSIONS(e3m4)
CONVERSIONS(e4m3)
CONVERSIONS(e4m3fn)
CONVERSIONS(e4m3fnuz)
CONVERSIONS(e4m3b11fnuz)
CONVERSIONS(e5m2)
CONVERSIONS(e5m2fnuz)
