/* SPDX-License-Identifier: Apache-2.0
 *
 * nvsym for CUDA C++: the memory of all PEs from inside a kernel. Compiles with nvcc and with NVRTC, which needs no header but
 * those of this folder. docs/cuda-cpp.md explains it, and examples/cuda_cpp uses it.
 *
 * What a kernel is given, by the host:
 *
 *   addresses    SHMEMBuffer.peer_pointers() in Python, nvsym::peer_table() below in C++: one address of a buffer for each PE,
 *                in memory of the device; `T *const *peers` in a kernel.
 *   signals      a SHMEMBuffer[uint64] and its addresses; `nvsym::u64 *const *`.
 *   me, n        this PE's number, and the number of PEs.
 *
 * The memory model. A store to a peer's memory is visible there to whoever sees a signal that was set behind it, in this order:
 * stores of the block, __syncthreads(), a release at system scope by one thread; on the other side an acquire at system scope by
 * one thread, __syncthreads(), loads of the block. The functions called *_block do this; all threads of a block call them. Loads
 * of memory that peers change while the kernel runs must not go through the read-only path (const __restrict__, __ldg).
 *
 * A kernel that waits for other PEs needs that their kernels run at the same time: a grid no larger than the GPU holds, and not
 * two such kernels behind one another on different streams. Waits take a limit in nanoseconds, so that a PE that died is no hang. */
#ifndef NVSYM_CUH
#define NVSYM_CUH

#include "collectives.cuh"
#include "device.cuh"

/* The instructions that reduce and broadcast in the NVLink switch, on addresses of SymmetricPool or SHMEMBuffer.multicast(). */
#if defined(__has_include)
#if __has_include("multimem.cuh")
#include "multimem.cuh"
#define NVSYM_HAS_MULTIMEM 1
#endif
#endif

namespace nvsym {

/* ---- signals: 64 bits on the symmetric heap ---------------------------------------------------------------------------- */

/* The numbers of enum nvsym_cmp in types.h. */
enum Compare { EQ = 0, NE, GT, LE, LT, GE };

/* Set a signal, here or on a peer; what this thread stored before is visible to whoever sees it. */
__device__ __forceinline__ void signal_set(u64 *signal, u64 value) { store_release(signal, value); }

/* Add to it; adds of several PEs are all counted. */
__device__ __forceinline__ void signal_add(u64 *signal, u64 value) { add_release(signal, value); }

/* Its value; what was stored before it was set is visible to this thread after. */
__device__ __forceinline__ u64 signal_fetch(const u64 *signal) { return load_acquire(signal); }

__device__ __forceinline__ bool compare(u64 a, Compare cmp, u64 b)
{
    switch (cmp) {
    case EQ: return a == b;
    case NE: return a != b;
    case GT: return a > b;
    case LE: return a <= b;
    case LT: return a < b;
    default: return a >= b;
    }
}

/* Poll until a signal of this PE compares with a value. False: limit_ns nanoseconds are over (0: no limit). */
__device__ __forceinline__ bool signal_wait(const u64 *signal, Compare cmp, u64 value, u64 limit_ns = 0)
{
    u64 start = 0;
    u32 polls = 0;
    while (!compare(signal_fetch(signal), cmp, value)) {
        if (limit_ns == 0 || (++polls & 255u))
            continue;
        const u64 now = now_ns();
        if (start == 0)
            start = now;
        else if (now - start > limit_ns)
            return false;
    }
    return true;
}

/* ---- by all threads of a block ------------------------------------------------------------------------------------------ */

/* Copy count elements; dest is usually a peer's, by 16 bytes where both addresses allow it. Complete only behind a signal. */
template <class T> __device__ __forceinline__ void put_block(T *dest, const T *source, u64 count)
{
    const Layout layout(dest, source, count);
    const u64 tail = layout.head + layout.packs * 16 / sizeof(T);
    for (u64 i = threadIdx.x; i < layout.head; i += blockDim.x)
        store_item(dest + i, load_item(source + i));
    Words *to = (Words *)(dest + layout.head);
    const Words *from = (const Words *)(source + layout.head);
    for (u64 i = threadIdx.x; i < layout.packs; i += blockDim.x)
        store16(to + i, load16(from + i));
    for (u64 i = tail + threadIdx.x; i < count; i += blockDim.x)
        store_item(dest + i, load_item(source + i));
}

/* Set, or add to, a signal behind all that the block stored. */
__device__ __forceinline__ void signal_set_block(u64 *signal, u64 value)
{
    __syncthreads();
    if (threadIdx.x == 0)
        signal_set(signal, value);
}

__device__ __forceinline__ void signal_add_block(u64 *signal, u64 value)
{
    __syncthreads();
    if (threadIdx.x == 0)
        signal_add(signal, value);
}

/* put_block, then set the signal: whoever sees it sees the data. */
template <class T>
__device__ __forceinline__ void put_signal_block(T *dest, const T *source, u64 count, u64 *signal, u64 value)
{
    put_block(dest, source, count);
    signal_set_block(signal, value);
}

/* The block waits for a signal of this PE. The same answer for all threads, as of signal_wait. */
__device__ __forceinline__ bool signal_wait_block(const u64 *signal, Compare cmp, u64 value, u64 limit_ns = 0)
{
    bool here = true;
    if (threadIdx.x == 0)
        here = signal_wait(signal, cmp, value, limit_ns);
    return __syncthreads_and(here);
}

/* Meet the blocks that call this on the other PEs with the same pads: one signal for each PE, on each PE, zero at first; pads[p] is
 * the address of those of PE p. `epoch` is 1 in the first meeting, and one more in each. At least n threads; at most MAX_PES PEs. */
__device__ __forceinline__ bool meet_block(u64 *const *pads, int me, int n, u64 epoch, u64 limit_ns = 0)
{
    bool here = true;
    __syncthreads();
    if ((int)threadIdx.x < n && (int)threadIdx.x != me) {
        const int p = threadIdx.x;
        signal_set(pads[p] + me, epoch);
        here = signal_wait(pads[me] + p, GE, epoch, limit_ns);
    }
    return __syncthreads_and(here);
}

} // namespace nvsym

/* ---- for the host code of a file that also includes nvsym/nvsym.h ----------------------------------------------------- */

#if defined(NVSYM_H) && !defined(__CUDACC_RTC__)
namespace nvsym {

/* The addresses of a symmetric address on all PEs, in host memory: the caller copies them to the device. Returns the number of
 * PEs that can be addressed from here; the entries of the others are null. `table` has nvsym_n_pes() entries. */
template <class T> inline int peer_table(T *ptr, T **table)
{
    int found = 0;
    for (int pe = 0; pe < nvsym_n_pes(); pe++) {
        table[pe] = (T *)nvsym_peer_ptr(ptr, pe);
        found += table[pe] != nullptr;
    }
    return found;
}

} // namespace nvsym
#endif

#endif
