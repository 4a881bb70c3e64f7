/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of include/nvsym/nvsym.cuh and the kernel of examples/cuda_cpp/ring.cu on emulated PEs. */
#include "cuda.hpp"

#include "ring.cu"

#include <cstdio>

using emulated::random_bits;
using nvsym::MAX_PES;

namespace {

std::string message;

int fail(const char *what, int n, u64 seed)
{
    char text[200];
    snprintf(text, sizeof text, "%s: %d PEs, seed %llu", what, n, seed);
    message = text;
    return 1;
}

template <class T> struct Buffer { /* one for each PE, and their addresses; not aligned to 16 bytes where that can be */
    std::vector<std::vector<T>> memory;
    T *peers[MAX_PES];
    Buffer(int n, u64 count) : memory(n, std::vector<T>(count + 8))
    {
        for (int p = 0; p < n; p++)
            peers[p] = memory[p].data() + random_bits() % 4;
    }
};

} // namespace

extern "C" const char *last_message() { return message.c_str(); }

/* Sums by the ring of several sizes and grids; then with a PE that does not come. */
extern "C" int run_ring(u64 seed, int n, bool missing)
{
    random_bits.seed(seed);
    const u64 most = 700;
    const unsigned most_blocks = 3;
    Buffer<float> mail(n, most * (n > 1 ? n - 1 : 1)), mine(n, most), sum(n, most);
    Buffer<u64> signals(n, most_blocks);
    std::vector<unsigned> failed(n, 0);
    for (u64 launch = 0; launch < 4; launch++) {
        const u64 count = random_bits() % most;
        const unsigned grid = most_blocks, threads = 1 + random_bits() % 70;
        std::vector<emulated::Queue> queues(n);
        for (int me = 0; me < n; me++) {
            for (u64 i = 0; i < count; i++) {
                mine.peers[me][i] = (float)((i * 3 + me * 5 + launch) % 19);
                sum.peers[me][i] = -1;
            }
            if (missing && me == n - 1)
                continue;
            queues[me].launches.push_back({grid, threads, [=, &mail, &mine, &sum, &signals, &failed] {
                ring_sum(sum.peers[me], mine.peers[me], count, mail.peers, signals.peers, launch, me, n,
                         missing ? 1000000 : 0, &failed[me]);
            }});
        }
        if (!emulated::run(queues, 20000000))
            return fail("the ring stands still", n, seed);
        if (missing) {
            for (int me = 0; me + 1 < n; me++)
                if (!failed[me])
                    return fail("a PE did not notice that another one is missing", n, seed);
            return 0;
        }
        for (int me = 0; me < n; me++)
            for (u64 i = 0; i < count; i++) {
                float expected = 0;
                for (int p = 0; p < n; p++)
                    expected += (float)((i * 3 + p * 5 + launch) % 19);
                if (sum.peers[me][i] != expected || failed[me])
                    return fail("a sum is wrong", n, seed);
            }
    }
    return 0;
}

/* Each PE adds to the signals of all and to plain memory that only meetings order. */
extern "C" int run_meet(u64 seed, int n)
{
    random_bits.seed(seed);
    Buffer<u64> pads(n, n), counts(n, 1);
    Buffer<int> data(n, n);
    int wrong = 0;
    const int rounds = 20;
    std::vector<emulated::Queue> queues(n);
    for (int me = 0; me < n; me++)
        queues[me].launches.push_back({1, 16, [=, &pads, &counts, &data, &wrong] {
            for (int round = 1; round <= rounds; round++) {
                if ((int)threadIdx.x < n) {
                    nvsym::store_item(&data.peers[threadIdx.x][me], round * 100 + me);
                    nvsym::signal_add(counts.peers[threadIdx.x], 1);
                }
                wrong += !nvsym::meet_block(pads.peers, me, n, 2 * round - 1);
                if ((int)threadIdx.x < n)
                    wrong += data.peers[me][threadIdx.x] != round * 100 + (int)threadIdx.x;
                wrong += !nvsym::signal_wait_block(counts.peers[me], nvsym::EQ, (u64)round * n);
                wrong += !nvsym::meet_block(pads.peers, me, n, 2 * round); /* all have read */
            }
        }});
    if (!emulated::run(queues, 1000000))
        return fail("the PEs do not meet", n, seed);
    return wrong ? fail("a meeting did not hold", n, seed) : 0;
}
