/* SPDX-License-Identifier: Apache-2.0
 *
 * Allreduce of two PEs whose copy engines send, for many bytes: over a link they store faster than the processors do. A copy brings the
 * operand into a stage of the peer; a kernel there reduces it with its own while it comes (nvsym/kernels/staged.pyx enqueues both).
 *
 * A stage holds EMPTY in every word before and after. A word that holds something else has come, whatever the order in which the copy
 * engine stores words; each is looked at by itself, so nothing is said of the order of two. For words of the operand that are EMPTY
 * themselves the sender's kernel stores a mark, a byte for each pack of 16 bytes: they are there before they have come, and it does no
 * harm that they come later. So what comes is reduced without a word of when the copy is over, and nothing but the operand goes over the
 * link. Items at the ends that fill no pack go as in low latency, with a flag in the same store.
 *
 * In place, a result overwrites what the own copy engine may not have read. So a block tells the peer's block of the same number what
 * it has seen come, and stores its results once it has heard the same: what came there was read here. That says nothing of words with
 * marks, so a block that has such words waits for the end of the own copy as well, which a kernel behind the copy counts.
 *
 * After a wait that took too long the stages are not used again. A copy of a later call may be on its way all the same, so who gave up
 * tells the peer, which looks at that last and fails, too.
 *
 * A copy engine begins some microseconds after a kernel that is enqueued at the same time. Meanwhile the kernel itself stores the first
 * packs to the peer's stage.
 *
 * A stage is used again by what is enqueued behind the kernel. So a block leaves only when the peer's block of the same number has emptied
 * its part of the peer's stage, and nothing has to wait before a copy but for the kernel and the own copy before it: words that look empty
 * may come after all else. */
#ifndef NVSYM_STAGED_CUH
#define NVSYM_STAGED_CUH

#include "collectives.cuh"

namespace nvsym {

constexpr int STAGES = 2;       /* one is filled while the other is reduced */
constexpr int STAGED_PACKS = 2; /* of 16 bytes, that a thread reduces at a time */
constexpr int LOOSE_LINES = 4;  /* of 8 bytes of data: items before the first pack, then those behind the last */

/* On the symmetric heap; zero at first. */
struct StageFlags {
    u32 emptied[STAGES][MAX_BLOCKS];       /* the round of which the peer's block has emptied its part */
    u32 seen[MAX_BLOCKS];                  /* units that the peer's block has seen come, in place; of all rounds */
    Words loose[STAGES][LOOSE_LINES];
    u32 failed;                            /* the peer has given up */
};

/* Local; zero at first, but the rounds 1. */
struct StageRounds {
    u32 round[STAGES][MAX_BLOCKS]; /* the next one */
    u32 seen[MAX_BLOCKS];
    u32 in_place[STAGES][MAX_BLOCKS]; /* rounds so far */
    u32 copied[STAGES];               /* rounds in place of which the own copy is over */
    u32 failed;
};

struct Stage {
    StageFlags *flags;
    StageRounds *rounds;
    char *packs; /* symmetric: EMPTY at first */
    u8 *marks;   /* symmetric: of each pack, 1 << word; zero at first */
    u64 pushed;  /* packs at the beginning that the peer's kernel stores: whole units of a block */
    u32 number;  /* 0 to STAGES - 1 */
    u32 in_place;
};

__device__ __forceinline__ u32 empty_words(Words w)
{
    u32 mark = 0;
#pragma unroll
    for (int k = 0; k < 4; k++)
        mark |= (u32)(w.w[k] == EMPTY) << k;
    return mark;
}

/* C packs of a thread, from pack `first` on, `step` apart, of those below `packs`, once they have come; false when that took too long. */
template <int C>
__device__ __forceinline__ bool take_packs(Words (&in)[C], const Stage &stage, u64 first, u64 step, u64 packs, const Team &t)
{
    Patience patience(t);
    for (u32 polls = 1;; polls++) {
        u32 missing[C], any = 0;
#pragma unroll
        for (int c = 0; c < C; c++)
            if (first + c * step < packs)
                in[c] = load_flagged((const Words *)stage.packs + first + c * step);
#pragma unroll
        for (int c = 0; c < C; c++) {
            missing[c] = first + c * step < packs ? empty_words(in[c]) : 0;
            any |= missing[c];
        }
        if (!any)
            return true;
        if ((polls & 15u) == 0) {
            u32 marks[C];
            any = 0;
#pragma unroll
            for (int c = 0; c < C; c++) {
                marks[c] = missing[c] ? load_byte(stage.marks + first + c * step) : 0;
                any |= missing[c] & ~marks[c];
            }
            if (!any) {
#pragma unroll
                for (int c = 0; c < C; c++)
                    if (marks[c])
                        store_byte(stage.marks + first + c * step, 0);
                return true;
            }
        }
        if (patience.gone(1 - t.me))
            return false;
    }
}

/* In place: all threads of the block have what came; return when the peer's block has, too. `marked`: of what this thread has
 * sent by the copy engine, words had marks. */
__device__ __forceinline__ bool agree_on_seen(const Stage &stage, const Team &t, u32 seen, bool here, bool marked)
{
    const bool any_marked = !__syncthreads_and(!marked);
    here = __syncthreads_and(here);
    if (here && threadIdx.x == 0) {
        const u32 number = stage.number, round = stage.rounds->in_place[number][blockIdx.x] + 1;
        u32 *own = &stage.flags->seen[blockIdx.x];
        *(volatile u32 *)at(own, t, 1 - t.me) = seen; /* no more than that something was seen: nothing to release */
        Patience patience(t);
        here = await_count(own, seen, 1 - t.me, patience);
        if (any_marked)
            here = here && await_count(&stage.rounds->copied[number], round, t.me, patience);
    }
    return __syncthreads_and(here);
}

/* On the stream that copies, behind a copy in place. */
__device__ __forceinline__ void count_copy(StageRounds *rounds, u32 number) { store_release(&rounds->copied[number], rounds->copied[number] + 1); }

/* The items outside of the packs, by the first threads of one block: a line for each. */
template <class T, class Op>
__device__ __forceinline__ bool exchange_loose(T *dst, const T *src, const Layout &layout, const Stage &stage, u32 round, const Team &t)
{
    constexpr int K = 8 / sizeof(T), HALF = 16 / sizeof(T);
    typedef Element<T> E;
    for (int line = threadIdx.x; line < LOOSE_LINES; line += blockDim.x) {
        union {
            T item[K];
            u64 bits;
        } own, in;
        u64 index[K];
        own.bits = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            const u64 i = line * K + k;
            index[k] = i < HALF ? i : i - HALF + layout.head + layout.packs * HALF;
            if (i < HALF && i >= layout.head)
                index[k] = layout.items;
            if (index[k] < layout.items)
                own.item[k] = load_item(src + index[k]);
        }
        Words *place = &stage.flags->loose[stage.number][line];
        store_flagged(at(place, t, 1 - t.me), (u32)own.bits, (u32)(own.bits >> 32), round);
        Patience patience(t);
        Words w;
        if (!await_line(w, place, round, 1 - t.me, patience))
            return false;
        in.bits = data_of(w);
#pragma unroll
        for (int k = 0; k < K; k++)
            if (index[k] < layout.items) {
                const T first = t.me == 0 ? own.item[k] : in.item[k], second = t.me == 0 ? in.item[k] : own.item[k];
                store_item(dst + index[k], E::store(Op::apply(E::load(first), E::load(second))));
            }
    }
    return true;
}

template <class T, class Op> __device__ __forceinline__ void staged(T *dst, const T *src, u64 count, const Stage &stage, const Team &t)
{
    constexpr int C = STAGED_PACKS, K = 16 / sizeof(T);
    const Layout layout(src, src, count);
    const int block = blockIdx.x, peer = 1 - t.me;
    const Words *mine = (const Words *)(src + layout.head);
    Words *theirs = (Words *)stage.packs;
    const bool aligned = ((u64)(dst + layout.head) & 15u) == 0;
    const u64 unit = (u64)blockDim.x * C, stride = gridDim.x * unit;
    const Words empty = {{EMPTY, EMPTY, EMPTY, EMPTY}};
    volatile u32 *next_round = &stage.rounds->round[stage.number][block];
    const u32 round = *next_round;
    u32 seen = stage.rounds->seen[block];
    volatile u32 *failed = &stage.rounds->failed;
    bool here = __syncthreads_and(*failed == 0);
    for (u64 start = block * unit; here && start < stage.pushed; start += stride) {
        const u64 i = start + threadIdx.x;
        Words own[C];
#pragma unroll
        for (int c = 0; c < C; c++)
            own[c] = load16(mine + i + c * blockDim.x);
#pragma unroll
        for (int c = 0; c < C; c++)
            store_words(at(theirs, t, peer) + i + c * blockDim.x, own[c]);
    }
    for (u64 start = block * unit; here && start < layout.packs; start += stride) {
        const u64 i = start + threadIdx.x;
        Words own[C], in[C];
        bool marked = false;
#pragma unroll
        for (int c = 0; c < C; c++)
            if (i + c * blockDim.x < layout.packs)
                own[c] = load16(mine + i + c * blockDim.x);
#pragma unroll
        for (int c = 0; c < C; c++)
            if (i + c * blockDim.x < layout.packs) {
                const u32 mark = empty_words(own[c]);
                if (mark) {
                    store_byte(at(stage.marks, t, peer) + i + c * blockDim.x, mark);
                    marked = marked || start >= stage.pushed;
                }
            }
        here = take_packs<C>(in, stage, i, blockDim.x, layout.packs, t);
        if (stage.in_place)
            here = agree_on_seen(stage, t, ++seen, here, marked);
#pragma unroll
        for (int c = 0; c < C; c++)
            if (here && i + c * blockDim.x < layout.packs) {
                Fold<T, Op> fold;
                fold.begin(t.me == 0 ? own[c] : in[c]);
                fold.add(t.me == 0 ? in[c] : own[c]);
                store_words(theirs + i + c * blockDim.x, empty);
                store_pack(dst + layout.head, i + c * blockDim.x, layout.packs * K, aligned, fold.end());
            }
    }
    if (block == 0 && layout.packs * K < count)
        here = here && exchange_loose<T, Op>(dst, src, layout, stage, round, t);
    here = __syncthreads_and(here);
    if (threadIdx.x > 0)
        return;
    if (here) {
        u32 *emptied = &stage.flags->emptied[stage.number][block];
        store_release(at(emptied, t, peer), round);
        Patience patience(t);
        here = await_count(emptied, round, peer, patience);
        if (here && load_acquire(&stage.flags->failed)) {
            give_up(t, peer);
            here = false;
        }
        stage.rounds->seen[block] = seen;
        stage.rounds->in_place[stage.number][block] += stage.in_place;
        *next_round = round + 1;
    }
    if (!here) {
        *failed = 1;
        store_release(at(&stage.flags->failed, t, peer), 1u);
    }
}

} // namespace nvsym

#endif
