/* SPDX-License-Identifier: Apache-2.0
 *
 * The sum of an array over all PEs by a ring: each PE hands what it received to its right neighbour, n - 1 times, and adds it up.
 * ring.py compiles this with NVRTC and launches it.
 *
 * A block has a part of the array for itself, and a signal on every PE. Each step has its own slot in the mail, so that nothing is
 * overwritten within a launch; a barrier of the host between two launches gives the slots back. */
#include <nvsym/nvsym.cuh>

typedef nvsym::u64 u64;

/* mail: (n - 1) x count elements on each PE; signals: one for each block. `step` 0 of launch `launch` sets launch * n + 1.
 * failed: not zero where a neighbour did not come within the limit. */
extern "C" __global__ void ring_sum(float *sum, const float *mine, u64 count, float *const *mail, u64 *const *signals, u64 launch,
                                    int me, int n, u64 limit_ns, unsigned *failed)
{
    const u64 part = (count + gridDim.x - 1) / gridDim.x;
    const u64 first = part * blockIdx.x < count ? part * blockIdx.x : count;
    const u64 length = count - first < part ? count - first : part;
    const int right = me + 1 < n ? me + 1 : 0;
    const float *source = mine + first;
    for (u64 i = threadIdx.x; i < length; i += blockDim.x)
        sum[first + i] = source[i];
    for (int step = 0; step < n - 1; step++) {
        const u64 slot = (u64)step * count + first, number = launch * n + step + 1;
        nvsym::put_signal_block(mail[right] + slot, source, length, signals[right] + blockIdx.x, number);
        if (!nvsym::signal_wait_block(signals[me] + blockIdx.x, nvsym::GE, number, limit_ns)) {
            if (threadIdx.x == 0)
                *failed = 1;
            return;
        }
        source = mail[me] + slot;
        for (u64 i = threadIdx.x; i < length; i += blockDim.x)
            sum[first + i] += nvsym::load_item(source + i);
    }
}
