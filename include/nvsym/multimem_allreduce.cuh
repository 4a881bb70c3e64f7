/* SPDX-License-Identifier: Apache-2.0
 *
 * Allreduce through a multicast address: each PE lets the switch reduce its share of all operands (multimem.ld_reduce) and store it
 * to all (multimem.st). The two barriers are those of two_shot(), between the PEs' own addresses.
 *
 * In which order the switch adds is its own: the bits are the same on all PEs, since one PE reduces an element for all, but they
 * may differ from the other algorithms'. */
#ifndef NVSYM_MULTIMEM_ALLREDUCE_CUH
#define NVSYM_MULTIMEM_ALLREDUCE_CUH

#include "collectives.cuh"
#ifdef NVSYM_EMULATED
#include NVSYM_EMULATED_MULTIMEM
#else
#include "multimem.cuh"
#endif

namespace nvsym {

/* What the switch combines at a time, for the element types that it knows. */
template <class T> struct Switched {
    typedef multimem::Vec<T, 1> Vec;
};
template <> struct Switched<float> {
    typedef multimem::Vec<float, 4> Vec;
};
#ifndef NVSYM_EMULATED
template <> struct Switched<f16> {
    typedef multimem::Vec<multimem::f16x2, 4> Vec;
};
template <> struct Switched<bf16> {
    typedef multimem::Vec<multimem::bf16x2, 4> Vec;
};
#endif
template <class Op> struct SwitchedOp;
template <> struct SwitchedOp<Sum> { typedef multimem::Add Op; };
template <> struct SwitchedOp<Min> { typedef multimem::Min Op; };
template <> struct SwitchedOp<Max> { typedef multimem::Max Op; };
template <> struct SwitchedOp<And> { typedef multimem::And Op; };
template <> struct SwitchedOp<Or> { typedef multimem::Or Op; };
template <> struct SwitchedOp<Xor> { typedef multimem::Xor Op; };

/* Where the memory of the operands is: not the symmetric heap, so its distances are others than a team's. */
struct Distances {
    i64 delta[MAX_PES]; /* from the own memory to that of each member */
    i64 multicast;      /* and to the multicast address */
};

/* `dst` and `src` are aligned alike to 16 bytes, or nothing goes through the switch. Also in place. */
template <class T, class Op>
__device__ __forceinline__ void multimem_allreduce(T *dst, const T *src, u64 count, const Distances &d, const Team &t)
{
    typedef typename Switched<T>::Vec Vec;
    typedef typename SwitchedOp<Op>::Op By;
    constexpr int PER = sizeof(Vec) / sizeof(T), UNROLL = 4;
    const u32 epoch = next_epoch(t);
    if (meet(t, 0, epoch)) {
        /* What was stored to the own addresses of all PEs is now loaded through another one. */
        multimem::fence_alias();
        const bool alike = (((u64)dst ^ (u64)src) & 15u) == 0;
        u64 head = alike ? ((16u - ((u64)src & 15u)) & 15u) / sizeof(T) : count;
        if (head > count)
            head = count;
        const u64 packs = (count - head) / PER, rest = head + packs * PER, loose = count - packs * PER;
        const u64 first = packs * t.me / t.n, last = packs * (t.me + 1) / t.n, stride = (u64)gridDim.x * blockDim.x;
        const Vec *from = (const Vec *)((const char *)(src + head) + d.multicast);
        Vec *to = (Vec *)((char *)(dst + head) + d.multicast);
        for (u64 i = first + (u64)blockIdx.x * blockDim.x + threadIdx.x; i < last; i += stride * UNROLL) {
            Vec v[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (i + u * stride < last)
                    v[u] = multimem::ld_reduce<By>(from + i + u * stride);
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (i + u * stride < last)
                    multimem::store(to + i + u * stride, v[u]);
        }
        /* The few elements around the packs, through the PEs' own addresses, in their order. */
        for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < loose; k += stride) {
            if ((int)(k % t.n) != t.me)
                continue;
            const u64 i = k < head ? k : rest + (k - head);
            typedef Element<T> E;
            typename E::Sum sum = E::load(load_item((const T *)((const char *)(src + i) + d.delta[0])));
            for (int p = 1; p < t.n; p++)
                sum = Op::apply(sum, E::load(load_item((const T *)((const char *)(src + i) + d.delta[p]))));
            const T out = E::store(sum);
            for (int p = 0; p < t.n; p++)
                store_item((T *)((char *)(dst + i) + d.delta[p]), out);
        }
        multimem::fence_alias();
        meet(t, 1, epoch);
    }
    end_epoch(t, epoch);
}

} // namespace nvsym

#endif
