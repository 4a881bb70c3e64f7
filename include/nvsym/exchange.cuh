/* SPDX-License-Identifier: Apache-2.0
 *
 * Broadcast, fcollect (allgather), alltoall and reduce-scatter over peer pointers. Launched as the kernels of
 * collectives.cuh are, from which they take the barriers, the folding and the memory argument: a part of an operand belongs
 * to one block, by its place, in every phase.
 *
 * Each has a form with barriers, for any size, and one of low latency, where data and flag travel in one store. */
#ifndef NVSYM_EXCHANGE_CUH
#define NVSYM_EXCHANGE_CUH

#include "collectives.cuh"

namespace nvsym {

/* ---- parts of an operand ------------------------------------------------------------------------------------------ */

/* Part `i` of `n` of an operand, in bytes: whole packs but for the last, so that all parts are aligned alike. */
struct Part {
    u64 first, nbytes;
    __device__ __forceinline__ Part(u64 all, u64 i, u64 n)
    {
        const u64 step = ((all + n - 1) / n + 15u) & ~(u64)15u;
        first = i * step < all ? i * step : all;
        nbytes = all - first < step ? all - first : step;
    }
};

__device__ __forceinline__ Words load_word(const Words *p) { return load16(p); }
__device__ __forceinline__ void store_word(Words *p, Words v) { store16(p, v); }
template <class W> __device__ __forceinline__ W load_word(const W *p) { return load_item(p); }
template <class W> __device__ __forceinline__ void store_word(W *p, W v) { store_item(p, v); }

/* Where a copy goes: to this PE, or to the same place on all, the own memory first. */
struct Here {
    template <class W> __device__ __forceinline__ void operator()(W *p, W v) const { store_word(p, v); }
};
struct ToAll {
    const Team &t;
    template <class W> __device__ __forceinline__ void operator()(W *p, W v) const
    {
        for (int k = 0; k < t.n; k++)
            store_word(at(p, t, t.me + k < t.n ? t.me + k : t.me + k - t.n), v);
    }
};

template <class W, class To> __device__ __forceinline__ void copy_words(W *dst, const W *src, u64 count, const To &to)
{
    constexpr int UNROLL = 4;
    for (u64 i = threadIdx.x; i < count; i += (u64)blockDim.x * UNROLL) {
        W v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * blockDim.x < count)
                v[u] = load_word(src + i + u * blockDim.x);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * blockDim.x < count)
                to(dst + i + u * blockDim.x, v[u]);
    }
}

/* Copy by the threads of a block, by the widest access that suits both addresses. */
template <class To> __device__ __forceinline__ void copy_bytes(char *dst, const char *src, u64 nbytes, const To &to)
{
    const u64 differ = ((u64)dst ^ (u64)src) & 15u, any = (u64)dst | (u64)src | nbytes;
    if (differ == 0) {
        u64 head = (16u - ((u64)dst & 15u)) & 15u;
        if (head > nbytes)
            head = nbytes;
        const u64 packs = (nbytes - head) / 16, done = head + packs * 16;
        copy_words((Words *)(dst + head), (const Words *)(src + head), packs, to);
        copy_words((u8 *)dst, (const u8 *)src, head, to);
        copy_words((u8 *)dst + done, (const u8 *)src + done, nbytes - done, to);
    } else if ((any & 7u) == 0) {
        copy_words((u64 *)dst, (const u64 *)src, nbytes / 8, to);
    } else if ((any & 3u) == 0) {
        copy_words((u32 *)dst, (const u32 *)src, nbytes / 4, to);
    } else if ((any & 1u) == 0) {
        copy_words((u16 *)dst, (const u16 *)src, nbytes / 2, to);
    } else {
        copy_words((u8 *)dst, (const u8 *)src, nbytes, to);
    }
}

/* ---- with barriers ------------------------------------------------------------------------------------------------ */

/* Each PE reads from the root. In shares: each reads its share from the root and the others from their PEs, so that no
 * byte leaves the root twice; one barrier more. Also in place. */
__device__ __forceinline__ void broadcast(char *dst, const char *src, u64 nbytes, int root, bool in_shares, const Team &t)
{
    u32 epoch = next_epoch(t);
    bool here = meet(t, 0, epoch);
    if (here && !in_shares) {
        const Part part(nbytes, blockIdx.x, gridDim.x);
        if (t.me != root || dst != src)
            copy_bytes(dst + part.first, at(src, t, root) + part.first, part.nbytes, Here());
        meet(t, 1, epoch);
    } else if (here) {
        for (int k = 0; k < t.n; k++) {
            const int p = t.me + k < t.n ? t.me + k : t.me + k - t.n;
            const Part share(nbytes, p, t.n), part(share.nbytes, blockIdx.x, gridDim.x);
            const u64 first = share.first + part.first;
            if (t.me == root) { /* it has them all */
                if (dst != src)
                    copy_bytes(dst + first, src + first, part.nbytes, Here());
                /* The others read its share once it is there. */
            } else {
                copy_bytes(dst + first, (p == t.me ? at(src, t, root) : at((const char *)dst, t, p)) + first, part.nbytes, Here());
            }
            if (k == 0 && !meet(t, 1, epoch))
                break;
        }
        epoch += 1;
        meet(t, 0, epoch);
    } else if (in_shares) {
        epoch += 1; /* as the others count */
    }
    end_epoch(t, epoch);
}

__device__ __forceinline__ void fcollect(char *dst, const char *src, u64 nbytes, const Team &t)
{
    const u32 epoch = next_epoch(t);
    if (meet(t, 0, epoch)) { /* all are done with what was in dst */
        const Part part(nbytes, blockIdx.x, gridDim.x);
        copy_bytes(dst + t.me * nbytes + part.first, src + part.first, part.nbytes, ToAll{t});
        meet(t, 1, epoch);
    }
    end_epoch(t, epoch);
}

__device__ __forceinline__ void alltoall(char *dst, const char *src, u64 nbytes, const Team &t)
{
    const u32 epoch = next_epoch(t);
    if (meet(t, 0, epoch)) {
        const Part part(nbytes, blockIdx.x, gridDim.x);
        for (int k = 0; k < t.n; k++) {
            const int p = t.me + k < t.n ? t.me + k : t.me + k - t.n;
            copy_bytes(at(dst, t, p) + t.me * nbytes + part.first, src + p * nbytes + part.first, part.nbytes, Here());
        }
        meet(t, 1, epoch);
    }
    end_epoch(t, epoch);
}

/* `count`: elements of dst. */
template <class T, class Op> __device__ __forceinline__ void reduce_scatter(T *dst, const T *src, u64 count, const Team &t)
{
    const u32 epoch = next_epoch(t);
    if (meet(t, 0, epoch)) {
        const T *own = src + t.me * count;
        const Layout layout(dst, own, count);
        reduce_any_packs<T, Op, false>(dst + layout.head, own + layout.head, 0, layout.packs, t);
        reduce_items<T, Op, false>(dst, own, layout, t);
        meet(t, 1, epoch); /* all are done with the operands */
    }
    end_epoch(t, epoch);
}

/* ---- low latency -------------------------------------------------------------------------------------------------- */

/* One line for each thread: 8 bytes of data with their flags, as low_latency() sends them. A block hears from each other PE in
 * every one of its epochs: that is what lets a stage be used again two calls later. */
struct Lines {
    const Team &t;
    u32 epoch;
    char *stage;
    Patience patience;

    __device__ __forceinline__ Lines(const Team &team) : t(team), patience(team)
    {
        epoch = *(volatile u32 *)(t.epochs + MAX_BLOCKS + blockIdx.x) + 1u;
        if (epoch == 0)
            epoch = 2; /* not what untouched memory holds, and still the other stage */
        stage = t.ll + (((u64)(epoch % LL_STAGES) * LL_BLOCKS + blockIdx.x) * t.n) * t.ll_bytes + threadIdx.x * 16;
    }
    __device__ __forceinline__ void send(int p, u64 bits) const
    {
        store_flagged(at(stage, t, p) + (u64)t.me * t.ll_bytes, (u32)bits, (u32)(bits >> 32), epoch);
    }
    /* False when it took too long. */
    __device__ __forceinline__ bool receive(int p, u64 *bits)
    {
        Words w;
        const bool here = await_line(w, stage + (u64)p * t.ll_bytes, epoch, p, patience);
        *bits = data_of(w);
        return here;
    }
    __device__ __forceinline__ void end() const
    {
        __syncthreads(); /* all threads have read the epoch */
        if (threadIdx.x == 0)
            *(volatile u32 *)(t.epochs + MAX_BLOCKS + blockIdx.x) = epoch;
    }
};

/* Eight bytes of an operand at any address; past its end, zeros. */
__device__ __forceinline__ u64 load_eight_bytes(const char *src, u64 i, u64 nbytes)
{
    const u64 left = nbytes - i * 8;
    const char *p = src + i * 8;
    u64 bits = 0;
    if (left >= 8 && ((u64)p & 7u) == 0)
        return load_item((const u64 *)p);
    if (left >= 8 && ((u64)p & 3u) == 0)
        return (u64)load_item((const u32 *)p) | (u64)load_item((const u32 *)p + 1) << 32;
    for (int k = 0; k < 8 && k < left; k++)
        bits |= (u64)load_item((const u8 *)p + k) << (8 * k);
    return bits;
}

__device__ __forceinline__ void store_eight_bytes(char *dst, u64 i, u64 nbytes, u64 bits)
{
    const u64 left = nbytes - i * 8;
    char *p = dst + i * 8;
    if (left >= 8 && ((u64)p & 7u) == 0) {
        store_item((u64 *)p, bits);
    } else if (left >= 8 && ((u64)p & 3u) == 0) {
        store_item((u32 *)p, (u32)bits);
        store_item((u32 *)p + 1, (u32)(bits >> 32));
    } else {
        for (int k = 0; k < 8 && k < left; k++)
            store_item((u8 *)p + k, (u8)(bits >> (8 * k)));
    }
}

/* The root sends; each block of another PE sends one empty line, so that all hear from all. */
__device__ __forceinline__ void broadcast_lines(char *dst, const char *src, u64 nbytes, int root, const Team &t)
{
    Lines lines(t);
    const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i * 8 < nbytes) {
        const bool first = threadIdx.x == 0;
        u64 bits = t.me == root ? load_eight_bytes(src, i, nbytes) : 0;
        bool here = true;
        for (int p = 0; p < t.n; p++)
            if (p != t.me && (t.me == root || first))
                lines.send(p, bits);
        if (t.me != root)
            here = lines.receive(root, &bits);
        if (here && (t.me != root || dst != src))
            store_eight_bytes(dst, i, nbytes, bits);
        for (int p = 0; p < t.n && here && first; p++)
            if (p != t.me && p != root)
                here = lines.receive(p, &bits);
    }
    lines.end();
}

__device__ __forceinline__ void fcollect_lines(char *dst, const char *src, u64 nbytes, const Team &t)
{
    Lines lines(t);
    const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i * 8 < nbytes) {
        u64 bits = load_eight_bytes(src, i, nbytes);
        bool here = true;
        for (int k = 1; k < t.n; k++)
            lines.send(t.me + k < t.n ? t.me + k : t.me + k - t.n, bits);
        store_eight_bytes(dst + t.me * nbytes, i, nbytes, bits);
        for (int p = 0; p < t.n && here; p++)
            if (p != t.me) {
                here = lines.receive(p, &bits);
                if (here)
                    store_eight_bytes(dst + p * nbytes, i, nbytes, bits);
            }
    }
    lines.end();
}

__device__ __forceinline__ void alltoall_lines(char *dst, const char *src, u64 nbytes, const Team &t)
{
    Lines lines(t);
    const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i * 8 < nbytes) {
        bool here = true;
        for (int k = 1; k < t.n; k++) {
            const int p = t.me + k < t.n ? t.me + k : t.me + k - t.n;
            lines.send(p, load_eight_bytes(src + p * nbytes, i, nbytes));
        }
        store_eight_bytes(dst + t.me * nbytes, i, nbytes, load_eight_bytes(src + t.me * nbytes, i, nbytes));
        for (int p = 0; p < t.n && here; p++)
            if (p != t.me) {
                u64 bits;
                here = lines.receive(p, &bits);
                if (here)
                    store_eight_bytes(dst + p * nbytes, i, nbytes, bits);
            }
    }
    lines.end();
}

template <class T, class Op>
__device__ __forceinline__ void reduce_scatter_lines(T *dst, const T *src, u64 count, const Team &t)
{
    constexpr int K = 8 / sizeof(T);
    typedef Element<T> E;
    union Eight {
        T item[K];
        u64 bits;
        __device__ __forceinline__ Eight() {}
    };
    Lines lines(t);
    const u64 nbytes = count * sizeof(T), i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i * 8 < nbytes) {
        bool here = true;
        for (int k = 1; k < t.n; k++) {
            const int p = t.me + k < t.n ? t.me + k : t.me + k - t.n;
            lines.send(p, load_eight_bytes((const char *)(src + p * count), i, nbytes));
        }
        typename E::Sum sum[K];
        Eight in;
        for (int p = 0; p < t.n && here; p++) {
            if (p == t.me)
                in.bits = load_eight_bytes((const char *)(src + p * count), i, nbytes);
            else
                here = lines.receive(p, &in.bits);
#pragma unroll
            for (int k = 0; k < K; k++)
                sum[k] = p == 0 ? E::load(in.item[k]) : Op::apply(sum[k], E::load(in.item[k]));
        }
        if (here) {
#pragma unroll
            for (int k = 0; k < K; k++)
                in.item[k] = E::store(sum[k]);
            store_eight_bytes((char *)dst, i, nbytes, in.bits);
        }
    }
    lines.end();
}

} // namespace nvsym

#endif
