/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of an allreduce over several nodes that run inside a node. Each PE folds its share of the operands of its node; the PEs
 * with the same share on all nodes gather what each has (by NVSHMEM); each then folds these, node 0 first, and stores the share to
 * its node. Between the levels the sums stay in the type that is summed in: a result is rounded once. */
#ifndef NVSYM_LEVELS_CUH
#define NVSYM_LEVELS_CUH

#include "exchange.cuh"

namespace nvsym {

/* The elements of share `i` of `n`. The shares of all PEs have one size, so that all nodes send alike; the last may go past the end. */
struct Share {
    u64 first, size, count; /* from `first`: `count` elements, in a place for `size` */
    __device__ __forceinline__ Share(u64 all, int i, int n)
    {
        size = ((all + n - 1) / n + 15u) & ~(u64)15u;
        first = i * size < all ? i * size : all;
        count = all - first < size ? all - first : size;
    }
};

/* No barrier at the end: what level_out() overwrites on another PE are elements of this PE's share, which no other PE reads. */
template <class T, class Op>
__device__ __forceinline__ void level_in(typename Element<T>::Sum *sums, const T *src, u64 count, const Team &t)
{
    typedef Element<T> E;
    const u32 epoch = next_epoch(t);
    if (meet(t, 0, epoch)) {
        const Share share(count, t.me, t.n);
        const u64 stride = (u64)gridDim.x * blockDim.x;
        for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < share.count; i += stride) {
            typename E::Sum sum = E::load(load_item(at(src, t, 0) + share.first + i));
            for (int p = 1; p < t.n; p++)
                sum = Op::apply(sum, E::load(load_item(at(src, t, p) + share.first + i)));
            sums[i] = sum;
        }
    }
    end_epoch(t, epoch);
}

/* All PEs of the node have begun level_in() of this call, and are done with what was in dst. `rows`: the sums of this share of each node, one behind the other. */
template <class T, class Op>
__device__ __forceinline__ void level_out(T *dst, const typename Element<T>::Sum *rows, u64 count, int nodes, const Team &t)
{
    typedef Element<T> E;
    const u32 epoch = next_epoch(t);
    const Share share(count, t.me, t.n);
    const u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < share.count; i += stride) {
        typename E::Sum sum = rows[i];
        for (int node = 1; node < nodes; node++)
            sum = Op::apply(sum, rows[node * share.size + i]);
        const T out = E::store(sum);
        for (int k = 0; k < t.n; k++)
            store_item(at(dst, t, t.me + k < t.n ? t.me + k : t.me + k - t.n) + share.first + i, out);
    }
    meet(t, 1, epoch); /* what the others stored is there */
    end_epoch(t, epoch);
}

} // namespace nvsym

#endif
