/* SPDX-License-Identifier: Apache-2.0
 *
 * Allreduce of two PEs by their copy engines, for many bytes: they store to a peer faster than the processors do. An operand goes
 * over the link in chunks, each into one of the peer's slots; the peer reduces a slot with its own operand. Copies and kernels are
 * launched apart (nvsym/kernels/staged.pyx): two streams send, the caller's stream reduces.
 *
 * The memory argument. A copy engine is done with a chunk before the next kernel of its stream begins, and that one releases the
 * flag; the peer's kernel acquires it, and the next one of its stream reads the slot. The way back of a slot is alike. Flags hold
 * the number of the last chunk, counted from the first call on, since what a graph replays must find other values each time. */
#ifndef NVSYM_STAGED_CUH
#define NVSYM_STAGED_CUH

#include "collectives.cuh"

namespace nvsym {

/* A turn of one stream: tell the peer by one flag, then wait for another. Flags: Pad::staged. Chunks are numbered in the call. */
struct Turn {
    u32 told, tell;       /* flag, NO_FLAG for none, and chunks that are there, or are taken */
    u32 awaited, chunks;  /* flag, NO_FLAG for none, and chunks to wait for */
    u32 done;             /* chunks of the call, in its last turn; else 0 */
};

__device__ __forceinline__ void staged_turn(const Turn &turn, const Team &t)
{
    volatile u32 *count = t.epochs + STAGED_EPOCH;
    if (threadIdx.x == 0) {
        const u32 base = *count;
        if (turn.told != NO_FLAG)
            store_release(at(&t.pad->staged[turn.told][0], t, 1 - t.me), base + turn.tell);
        if (turn.awaited != NO_FLAG) {
            Patience patience(t);
            while ((int)(load_acquire(&t.pad->staged[turn.awaited][0]) - (base + turn.chunks)) < 0)
                if (patience.gone(1 - t.me))
                    break;
        }
        if (turn.done)
            *count = base + turn.done;
    }
}

/* Reduce `count` items of this PE with those of the other that are in `slot`, which is aligned as src is. */
template <class T, class Op>
__device__ __forceinline__ void staged_fold(T *dst, const T *src, const T *slot, u64 count, const Team &t)
{
    constexpr int UNROLL = 4;
    typedef Element<T> E;
    const Layout layout(dst, src, count);
    const T *first = t.me == 0 ? src : slot, *second = t.me == 0 ? slot : src;
    const u64 stride = (u64)gridDim.x * blockDim.x, start = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    Words *to = (Words *)(dst + layout.head);
    const Words *a = (const Words *)(first + layout.head), *b = (const Words *)(second + layout.head);
    for (u64 i = start; i < layout.packs; i += stride * UNROLL) {
        Words x[UNROLL], y[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * stride < layout.packs) {
                x[u] = load16(a + i + u * stride);
                y[u] = load16(b + i + u * stride);
            }
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * stride < layout.packs) {
                Fold<T, Op> fold;
                fold.begin(x[u]);
                fold.add(y[u]);
                store16(to + i + u * stride, fold.end());
            }
    }
    const u64 rest = layout.head + layout.packs * (16 / sizeof(T)), loose = count - layout.packs * (16 / sizeof(T));
    for (u64 k = start; k < loose; k += stride) {
        const u64 i = k < layout.head ? k : rest + (k - layout.head);
        store_item(dst + i, E::store(Op::apply(E::load(load_item(first + i)), E::load(load_item(second + i)))));
    }
}

} // namespace nvsym

#endif
