/* SPDX-License-Identifier: Apache-2.0
 *
 * Allreduce over peer pointers. Every PE of a team launches the same kernel with the same grid, on one stream.
 *
 * The sum of an element is ((x0 op x1) op x2) ..., PE 0 first, on every PE and in every run: the bits are the same.
 *
 * The memory argument. A block's threads order their accesses by __syncthreads; one thread per peer then stores the epoch to the
 * peer's pad with release, and polls its own pad with acquire, both at system scope. What any thread of the block wrote before
 * is thus visible to the peers' block of the same number after, and to no other: so an element belongs to one block, by its
 * index, in every phase. Flags only grow and are compared by their signed difference, so a PE that is ahead does no harm. */
#ifndef NVSYM_COLLECTIVES_CUH
#define NVSYM_COLLECTIVES_CUH

#include "device.cuh"

namespace nvsym {

constexpr int MAX_BLOCKS = 256;
constexpr int LL_STAGES = 2;
constexpr int LL_BLOCKS = 128;    /* of a low-latency launch, at most */
constexpr int PUSH_THREADS = 512; /* of a pushing block, at most */
constexpr int PUSH_PACKS = 4;     /* of 16 bytes, that a thread pushes in a step, at most */
constexpr int PUSH_STEPS = 4;     /* of a launch, at most */
constexpr int PUSH_STAGES = 2 * PUSH_STEPS;
constexpr u32 EMPTY = 0x9e3779b9u; /* what a word of a stage holds while nothing has come */
constexpr u32 KEYED = 0x85ebca6bu; /* in the first word: the words are those of the operand xor a key */
constexpr u32 KEY_FLAG = 0x7fffffffu; /* the bits of a step's number that are the flag of its key: never EMPTY */

/* The part of a team's memory that its kernels use, on the symmetric heap; zero at first. */
struct Pad {
    u32 flags[2][MAX_BLOCKS][MAX_PES]; /* by phase, block, and the PE that stores it */
    u32 met[MAX_PES];                  /* the same of `barrier`, which may run beside the others */
};

/* What a launch needs besides its operands. Deltas lead from a symmetric address here to the same one of a member. */
struct Team {
    int me, n;
    u32 *epochs;    /* local: [MAX_BLOCKS] of the barriers, [MAX_BLOCKS] of LL, [MAX_BLOCKS] of pushing, [1] of `barrier` */
    Pad *pad;       /* symmetric */
    char *ll;       /* symmetric: [LL_STAGES][LL_BLOCKS][n][ll_bytes] of data and flags */
    u64 ll_bytes;   /* of one block's lines from one PE */
    char *push;     /* symmetric, or null: [PUSH_STAGES][PUSH_PACKS + 1][push_blocks][PUSH_THREADS] packs, words EMPTY */
    u64 push_blocks;
    u32 *failure;   /* host memory: not zero once a wait took too long; then, by member, 1 + the op that waited for it */
    u64 limit_ns;   /* 0: no limit */
    u32 op;         /* what the launch is, for the host's message */
    i64 delta[MAX_PES];
};

template <class P> __device__ __forceinline__ P *at(P *p, const Team &t, int member)
{
    return (P *)((char *)p + t.delta[member]);
}

/* Tell the host that a member is late. */
__device__ __forceinline__ void give_up(const Team &t, int member)
{
    ((volatile u32 *)t.failure)[1 + member] = 1u + t.op;
    __threadfence_system();
    *(volatile u32 *)t.failure = 1u;
    __threadfence_system();
}

/* Wait for a condition; false when it took too long, or a wait elsewhere did. */
struct Patience {
    const Team &t;
    u64 start;
    u32 polls;
    __device__ __forceinline__ Patience(const Team &team) : t(team), start(0), polls(0) {}
    __device__ __forceinline__ bool gone(int member)
    {
        if (t.limit_ns == 0 || (++polls & 1023u))
            return false;
        const u64 now = now_ns();
        if (start == 0)
            start = now;
        if (now - start < t.limit_ns && *(volatile u32 *)t.failure == 0)
            return false;
        /* Who has waited as long as the first one that gave up, names its member as well. */
        if (now - start >= t.limit_ns - t.limit_ns / 16)
            give_up(t, member);
        return true;
    }
};

/* Wait for a member to count up to a number; false when it took too long. */
__device__ __forceinline__ bool await_count(const u32 *count, u32 least, int member, Patience &patience)
{
    while ((int)(load_acquire(count) - least) < 0)
        if (patience.gone(member))
            return false;
    return true;
}

/* Wait for a line whose halves both have this flag; false when it took too long. */
__device__ __forceinline__ bool await_line(Words &w, const void *line, u32 flag, int member, Patience &patience)
{
    w = load_flagged(line);
    while (w.w[1] != flag || w.w[3] != flag) {
        if (patience.gone(member))
            return false;
        w = load_flagged(line);
    }
    return true;
}

/* What it carries. */
__device__ __forceinline__ u64 data_of(Words w) { return (u64)w.w[0] | (u64)w.w[2] << 32; }

/* Meet the blocks of the other PEs that use the same flags. Returns false once a wait took too long. */
__device__ __forceinline__ bool meet_at(u32 *own, const Team &t, u32 epoch)
{
    bool here = true;
    __syncthreads();
    if (threadIdx.x < t.n) {
        int p = threadIdx.x;
        if (p != t.me) {
            store_release(at(own + t.me, t, p), epoch);
            Patience patience(t);
            here = await_count(own + p, epoch, p, patience);
        }
    }
    return __syncthreads_and(here);
}

/* Those of the same number. */
__device__ __forceinline__ bool meet(const Team &t, int phase, u32 epoch)
{
    return meet_at(&t.pad->flags[phase][blockIdx.x][0], t, epoch);
}

/* ---- the parts of a reduction ------------------------------------------------------------------------------------- */

template <class T> union Pack {
    Words words;
    T item[16 / sizeof(T)];
    __device__ __forceinline__ Pack() {}
};

/* A number of the size of T, so that a struct of bits is one access. */
template <int SIZE> struct BitsOf;
template <> struct BitsOf<1> { typedef u8 Type; };
template <> struct BitsOf<2> { typedef u16 Type; };
template <> struct BitsOf<4> { typedef u32 Type; };
template <> struct BitsOf<8> { typedef u64 Type; };

template <class T> __device__ __forceinline__ T load_item(const T *p)
{
    union {
        typename BitsOf<sizeof(T)>::Type bits;
        T item;
    } v;
    v.bits = *(const volatile typename BitsOf<sizeof(T)>::Type *)p;
    return v.item;
}

template <class T> __device__ __forceinline__ void store_item(T *p, T x)
{
    union {
        typename BitsOf<sizeof(T)>::Type bits;
        T item;
    } v;
    v.item = x;
    *(volatile typename BitsOf<sizeof(T)>::Type *)p = v.bits;
}

template <class T, class Op> struct Fold {
    typedef Element<T> E;
    static constexpr int COUNT = 16 / sizeof(T);
    typename E::Sum sum[COUNT];

    __device__ __forceinline__ void begin(Words w)
    {
        Pack<T> in;
        in.words = w;
#pragma unroll
        for (int k = 0; k < COUNT; k++)
            sum[k] = E::load(in.item[k]);
    }
    __device__ __forceinline__ void add(Words w)
    {
        Pack<T> in;
        in.words = w;
#pragma unroll
        for (int k = 0; k < COUNT; k++)
            sum[k] = Op::apply(sum[k], E::load(in.item[k]));
    }
    __device__ __forceinline__ Words end() const
    {
        Pack<T> out;
        if constexpr (E::PAIRS)
#pragma unroll
            for (int k = 0; k < 4; k++)
                out.words.w[k] = E::store_pair(sum[2 * k], sum[2 * k + 1]);
        else
#pragma unroll
            for (int k = 0; k < COUNT; k++)
                out.item[k] = E::store(sum[k]);
        return out.words;
    }
};

template <class T, class Op> __device__ __forceinline__ T fold_item(const T *src, const Team &t)
{
    typedef Element<T> E;
    typename E::Sum sum = E::load(load_item(at(src, t, 0)));
    for (int p = 1; p < t.n; p++)
        sum = Op::apply(sum, E::load(load_item(at(src, t, p))));
    return E::store(sum);
}

/* Where the 16-byte packs of an operand lie: `head` items before the first, then `packs`, then the rest. Without a common
 * alignment of source and destination there are none. */
struct Layout {
    u64 head, packs, items;
    template <class T> __device__ __forceinline__ Layout(const T *dst, const T *src, u64 count) : items(count)
    {
        u64 s = (u64)src & 15u, d = (u64)dst & 15u;
        if (s != d) {
            head = count;
            packs = 0;
            return;
        }
        head = s ? (16u - s) / sizeof(T) : 0;
        if (head > count)
            head = count;
        packs = (count - head) * sizeof(T) / 16;
    }
};

/* Reduce packs [first, last) of all PEs by the whole grid; TO_ALL: store to all PEs, else to this one. */
template <class T, class Op, int N, int UNROLL, bool TO_ALL>
__device__ __forceinline__ void reduce_packs(T *dst, const T *src, u64 first, u64 last, const Team &t)
{
    const u64 stride = (u64)gridDim.x * blockDim.x;
    u64 i = first + (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < last; i += stride * UNROLL) {
        Words in[UNROLL][N];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * stride < last)
#pragma unroll
                for (int p = 0; p < N; p++)
                    if (p < t.n)
                        in[u][p] = load16((const Words *)at(src, t, p) + i + u * stride);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * stride < last) {
                Fold<T, Op> fold;
                fold.begin(in[u][0]);
#pragma unroll
                for (int p = 1; p < N; p++)
                    if (p < t.n)
                        fold.add(in[u][p]);
                Words out = fold.end();
                if (TO_ALL) {
                    /* Begin with the own memory, so that not all PEs store to one. */
                    for (int k = 0; k < t.n; k++) {
                        int p = t.me + k < t.n ? t.me + k : t.me + k - t.n;
                        store16((Words *)at(dst, t, p) + i + u * stride, out);
                    }
                } else {
                    store16((Words *)dst + i + u * stride, out);
                }
            }
    }
}

template <class T, class Op, bool TO_ALL>
__device__ __forceinline__ void reduce_any_packs(T *dst, const T *src, u64 first, u64 last, const Team &t)
{
    if (t.n <= 2)
        reduce_packs<T, Op, 2, 4, TO_ALL>(dst, src, first, last, t);
    else if (t.n <= 4)
        reduce_packs<T, Op, 4, 2, TO_ALL>(dst, src, first, last, t);
    else if (t.n <= 8)
        reduce_packs<T, Op, 8, 1, TO_ALL>(dst, src, first, last, t);
    else {
        const u64 stride = (u64)gridDim.x * blockDim.x;
        for (u64 i = first + (u64)blockIdx.x * blockDim.x + threadIdx.x; i < last; i += stride) {
            Fold<T, Op> fold;
            fold.begin(load16((const Words *)at(src, t, 0) + i));
            for (int p = 1; p < t.n; p++)
                fold.add(load16((const Words *)at(src, t, p) + i));
            Words out = fold.end();
            for (int p = 0; p < (TO_ALL ? t.n : 1); p++)
                store16((Words *)(TO_ALL ? at(dst, t, p) : dst) + i, out);
        }
    }
}

/* The items outside of the packs, few unless the operands are not aligned alike; every TURNS-th is this PE's. */
template <class T, class Op, bool TO_ALL>
__device__ __forceinline__ void reduce_items(T *dst, const T *src, const Layout &layout, const Team &t)
{
    const u64 rest = layout.head + layout.packs * (16 / sizeof(T));
    const u64 loose = layout.items - layout.packs * (16 / sizeof(T));
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < loose; k += (u64)gridDim.x * blockDim.x) {
        const u64 i = k < layout.head ? k : rest + (k - layout.head);
        if (TO_ALL && (int)(k % t.n) != t.me)
            continue;
        T out = fold_item<T, Op>(src + i, t);
        if (TO_ALL)
            for (int p = 0; p < t.n; p++)
                store_item(at(dst, t, p) + i, out);
        else
            store_item(dst + i, out);
    }
}

__device__ __forceinline__ u32 next_epoch(const Team &t) { return *(volatile u32 *)(t.epochs + blockIdx.x) + 1u; }

__device__ __forceinline__ void end_epoch(const Team &t, u32 epoch)
{
    if (threadIdx.x == 0)
        *(volatile u32 *)(t.epochs + blockIdx.x) = epoch;
}

/* All have come here, and what each has stored before, in the order of its stream, can be seen by all. One block. */
__device__ __forceinline__ void barrier(const Team &t)
{
    volatile u32 *last = t.epochs + 3 * MAX_BLOCKS;
    const u32 epoch = *last + 1u;
    meet_at(t.pad->met, t, epoch);
    if (threadIdx.x == 0)
        *last = epoch;
}

/* ---- one shot: each PE reads the operands of all, and keeps the result; not in place ------------------------------ */

template <class T, class Op> __device__ __forceinline__ void one_shot(T *dst, const T *src, u64 count, const Team &t)
{
    const u32 epoch = next_epoch(t);
    if (meet(t, 0, epoch)) { /* the operands of all are there */
        const Layout layout(dst, src, count);
        reduce_any_packs<T, Op, false>(dst + layout.head, src + layout.head, 0, layout.packs, t);
        reduce_items<T, Op, false>(dst, src, layout, t);
        meet(t, 1, epoch); /* all are done with the operands */
    }
    end_epoch(t, epoch);
}

/* ---- two shot: each PE reduces its share of the packs and stores it to all; also in place ------------------------- */

template <class T, class Op> __device__ __forceinline__ void two_shot(T *dst, const T *src, u64 count, const Team &t)
{
    const u32 epoch = next_epoch(t);
    if (meet(t, 0, epoch)) {
        const Layout layout(dst, src, count);
        const u64 first = layout.packs * t.me / t.n, last = layout.packs * (t.me + 1) / t.n;
        reduce_any_packs<T, Op, true>(dst + layout.head, src + layout.head, first, last, t);
        reduce_items<T, Op, true>(dst, src, layout, t);
        meet(t, 1, epoch);
    }
    end_epoch(t, epoch);
}

/* ---- low latency: data and flags in one store, pushed to every peer; no barrier; also in place -------------------- */

/* 8 bytes of the operand from any address; past its end, zeros. */
template <class T> __device__ __forceinline__ u64 load_eight(const T *src, u64 i, u64 count)
{
    constexpr int K = 8 / sizeof(T);
    union {
        T item[K];
        u64 bits;
    } v;
    v.bits = 0;
    if (((u64)src & 7u) == 0 && (i + 1) * K <= count)
        v.bits = *((const volatile u64 *)src + i);
    else
#pragma unroll
        for (int k = 0; k < K; k++)
            if (i * K + k < count)
                v.item[k] = load_item(src + i * K + k);
    return v.bits;
}

/* Each thread has one line, 8 bytes of the operand; each block its own lines, flags and epoch. */
template <class T, class Op> __device__ __forceinline__ void low_latency(T *dst, const T *src, u64 count, const Team &t)
{
    constexpr int K = 8 / sizeof(T);
    typedef Element<T> E;
    volatile u32 *last = t.epochs + MAX_BLOCKS + blockIdx.x;
    const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const bool has = i * K < count;
    const u64 mine = has ? load_eight(src, i, count) : 0;
    u32 epoch = *last + 1u;
    if (epoch == 0)
        epoch = 2; /* not what untouched memory holds, and still the other stage */
    /* A stage is used again two calls later: the block has then received, in the call between, what all sent after they were
     * done with this one. */
    char *stage = t.ll + (((u64)(epoch % LL_STAGES) * LL_BLOCKS + blockIdx.x) * t.n) * t.ll_bytes + threadIdx.x * 16;
    bool here = has;
    if (has) {
        for (int k = 1; k < t.n; k++) {
            const int p = t.me + k < t.n ? t.me + k : t.me + k - t.n;
            store_flagged(at(stage, t, p) + (u64)t.me * t.ll_bytes, (u32)mine, (u32)(mine >> 32), epoch);
        }
        typename E::Sum sum[K];
        Patience patience(t);
        for (int p = 0; p < t.n && here; p++) {
            union {
                T item[K];
                u64 bits;
            } in;
            in.bits = mine;
            if (p != t.me) {
                Words w;
                here = await_line(w, stage + (u64)p * t.ll_bytes, epoch, p, patience);
                in.bits = data_of(w);
            }
#pragma unroll
            for (int k = 0; k < K; k++)
                sum[k] = p == 0 ? E::load(in.item[k]) : Op::apply(sum[k], E::load(in.item[k]));
        }
        if (here) {
            union {
                T item[K];
                u64 bits;
            } out;
#pragma unroll
            for (int k = 0; k < K; k++)
                out.item[k] = E::store(sum[k]);
            if (((u64)dst & 7u) == 0 && (i + 1) * K <= count)
                *((volatile u64 *)dst + i) = out.bits;
            else
#pragma unroll
                for (int k = 0; k < K; k++)
                    if (i * K + k < count)
                        store_item(dst + i * K + k, out.item[k]);
        }
    }
    __syncthreads(); /* all threads have read the epoch */
    if (threadIdx.x == 0)
        *last = epoch;
}

/* ---- push: each of two PEs stores its operand to the other, and reduces what came; no barrier; also in place ------- */

/* What is stored tells by itself that it has come: the stages hold EMPTY in every word before and after. A thread whose own words
 * include EMPTY (or begin with KEYED) chooses a key so that none does, stores the words xor the key with KEYED first, and the
 * first word and the key in a line with flags. So nothing but the operand goes over the link, and words of 32 bits, which are
 * stored whole, need no order among each other.
 *
 * The stages are used in turn, by each thread its own packs, and there are enough for two calls. So a stage was last used before the
 * call before this one; and in that call the block took what the other had pushed, after it was done with all before. */

/* 16 bytes of the operand from any address; past its end, zeros. */
template <class T> __device__ __forceinline__ Words load_pack(const T *src, u64 i, u64 count, bool aligned)
{
    constexpr int K = 16 / sizeof(T);
    if (aligned && (i + 1) * K <= count)
        return load16((const Words *)src + i);
    Pack<T> v;
    v.words = Words{{0, 0, 0, 0}};
#pragma unroll
    for (int k = 0; k < K; k++)
        if (i * K + k < count)
            v.item[k] = load_item(src + i * K + k);
    return v.words;
}

template <class T> __device__ __forceinline__ void store_pack(T *dst, u64 i, u64 count, bool aligned, Words words)
{
    constexpr int K = 16 / sizeof(T);
    if (aligned && (i + 1) * K <= count) {
        store16((Words *)dst + i, words);
        return;
    }
    Pack<T> v;
    v.words = words;
#pragma unroll
    for (int k = 0; k < K; k++)
        if (i * K + k < count)
            store_item(dst + i * K + k, v.item[k]);
}

/* A thread's packs i, i + stride, ... (C of them) to the same thread of the other PE: to a stage there, a layer for each. */
template <int C>
__device__ __forceinline__ void push_step(const Words (&own)[C], u64 i, u64 stride, u64 packs, char *to, u64 layer, u32 turn)
{
    if (i >= packs)
        return;
    bool plain = own[0].w[0] != KEYED;
#pragma unroll
    for (int c = 0; c < C; c++)
        if (i + c * stride < packs)
#pragma unroll
            for (int k = 0; k < 4; k++)
                plain = plain && own[c].w[k] != EMPTY;
    if (plain) {
#pragma unroll
        for (int c = 0; c < C; c++)
            if (i + c * stride < packs)
                store_words(to + c * layer, own[c]);
        return;
    }
    u32 key = 0;
    while (!plain) {
        key++; /* each word forbids one key */
        plain = true;
#pragma unroll
        for (int c = 0; c < C; c++)
            if (i + c * stride < packs)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    plain = plain && (own[c].w[k] ^ key) != EMPTY;
    }
#pragma unroll
    for (int c = 0; c < C; c++)
        if (i + c * stride < packs) {
            Words out;
#pragma unroll
            for (int k = 0; k < 4; k++)
                out.w[k] = c == 0 && k == 0 ? KEYED : own[c].w[k] ^ key;
            store_words(to + c * layer, out);
        }
    store_flagged(to + PUSH_PACKS * layer, own[0].w[0], key, turn & KEY_FLAG);
}

/* Reduce them with those of the other PE, once these have come to the own stage; false when that took too long. */
template <class T, class Op, int C>
__device__ __forceinline__ bool take_step(T *dst, const Words (&own)[C], u64 i, u64 stride, u64 packs, u64 count, bool aligned, char *from,
                                          u64 layer, u32 turn, const Team &t, Patience &patience)
{
    if (i >= packs)
        return true;
    const Words empty = {{EMPTY, EMPTY, EMPTY, EMPTY}};
    const int peer = 1 - t.me;
    Words in[C];
    for (;;) {
        bool came = true;
#pragma unroll
        for (int c = 0; c < C; c++)
            if (i + c * stride < packs)
                in[c] = load_flagged(from + c * layer);
#pragma unroll
        for (int c = 0; c < C; c++)
            if (i + c * stride < packs)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    came = came && in[c].w[k] != EMPTY;
        if (came)
            break;
        if (patience.gone(peer))
            return false;
    }
    if (in[0].w[0] == KEYED) {
        Words line;
        if (!await_line(line, from + PUSH_PACKS * layer, turn & KEY_FLAG, peer, patience))
            return false;
        const u32 key = line.w[2];
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                in[c].w[k] ^= key;
        in[0].w[0] = line.w[0];
    }
#pragma unroll
    for (int c = 0; c < C; c++)
        if (i + c * stride < packs) {
            Fold<T, Op> fold;
            store_words(from + c * layer, empty);
            fold.begin(t.me == 0 ? own[c] : in[c]);
            fold.add(t.me == 0 ? in[c] : own[c]);
            store_pack(dst, i + c * stride, count, aligned, fold.end());
        }
    return true;
}

template <class T, class Op, int C> __device__ __forceinline__ void push_steps(T *dst, const T *src, u64 count, u64 packs, const Team &t)
{
    const u64 thread = (u64)blockIdx.x * PUSH_THREADS + threadIdx.x, stride = (u64)gridDim.x * blockDim.x;
    const u64 layer = t.push_blocks * PUSH_THREADS * 16, first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const bool aligned = ((u64)src & 15u) == 0, to_aligned = ((u64)dst & 15u) == 0;
    const u32 steps = (u32)((packs + stride * C - 1) / (stride * C));
    volatile u32 *last = t.epochs + 2 * MAX_BLOCKS + blockIdx.x;
    const u32 turn = *last;
    char *stages = t.push + thread * 16;
    Patience patience(t);
    bool here = true;
    Words own[C], before[C]; /* of this step, and of the one before */
    /* What is pushed in a step is on its way while the step before is taken. */
    for (u32 s = 1; s <= steps + 1; s++) {
        const u64 i = first + (s - 1) * stride * C;
        if (s <= steps) {
#pragma unroll
            for (int c = 0; c < C; c++)
                if (i + c * stride < packs)
                    own[c] = load_pack(src, i + c * stride, count, aligned);
            push_step<C>(own, i, stride, packs, at(stages, t, 1 - t.me) + (turn + s) % PUSH_STAGES * (PUSH_PACKS + 1) * layer, layer, turn + s);
        }
        if (s > 1 && here)
            here = take_step<T, Op, C>(dst, before, i - stride * C, stride, packs, count, to_aligned,
                                       stages + (turn + s - 1) % PUSH_STAGES * (PUSH_PACKS + 1) * layer, layer, turn + s - 1, t, patience);
#pragma unroll
        for (int c = 0; c < C; c++)
            before[c] = own[c];
    }
    __syncthreads();
    if (threadIdx.x == 0)
        *last = turn + steps;
}

template <class T, class Op> __device__ __forceinline__ void push(T *dst, const T *src, u64 count, const Team &t)
{
    const u64 packs = (count * sizeof(T) + 15) / 16, threads = (u64)gridDim.x * blockDim.x;
    if (packs <= threads)
        push_steps<T, Op, 1>(dst, src, count, packs, t);
    else if (packs <= 2 * threads)
        push_steps<T, Op, 2>(dst, src, count, packs, t);
    else
        push_steps<T, Op, 4>(dst, src, count, packs, t);
}

} // namespace nvsym

#endif
