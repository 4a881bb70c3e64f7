/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA's threads on a CPU, for the kernels of include/nvsym: each is a fiber, and any may run next at each access to memory
 * that others see. Order is that of the program: this finds wrong barriers, indices and epochs, not missing fences. */
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <ucontext.h>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(n)
#define __grid_constant__
#define NVSYM_EMULATED "primitives.hpp"
#define NVSYM_EMULATED_MULTIMEM "multimem_primitives.hpp"

struct Index {
    unsigned x, y, z;
};

namespace emulated {

constexpr size_t STACK = 64 << 10;

struct Block;
struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    Block *block;
    unsigned thread;
    bool waiting = false, done = false;
};
struct Block {
    unsigned number, left, arrived = 0, threads;
    bool all = true, verdict = true;
    std::vector<Fiber *> fibers;
};
struct Launch {
    unsigned grid, threads;
    std::function<void()> kernel;
};
struct Queue { /* a stream of a PE */
    std::vector<Launch> launches;
    size_t next = 0;
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<std::unique_ptr<Fiber>> fibers;
    size_t left = 0;
};

inline std::mt19937_64 random_bits;
inline ucontext_t scheduler;
inline Fiber *running = nullptr;
inline Index thread_index, block_index, block_size, grid_size;
inline std::function<void()> *entered = nullptr;
inline uint64_t clock_ns = 0;

inline void leave() { swapcontext(&running->context, &scheduler); }

inline void maybe_leave()
{
    if ((random_bits() & 3) == 0)
        leave();
}

inline void body()
{
    (*entered)();
    running->done = true;
    leave();
}

inline bool meet_block(bool here)
{
    Fiber *self = running;
    Block *block = self->block;
    block->all = block->all && here;
    if (++block->arrived == block->left) {
        block->verdict = block->all;
        block->all = true;
        block->arrived = 0;
        for (Fiber *fiber : block->fibers)
            fiber->waiting = false;
    } else {
        self->waiting = true;
        leave();
    }
    return block->verdict;
}

inline void begin(Queue &queue)
{
    const Launch &launch = queue.launches[queue.next];
    queue.blocks.clear();
    queue.fibers.clear();
    for (unsigned b = 0; b < launch.grid; b++) {
        queue.blocks.emplace_back(new Block{b, launch.threads});
        queue.blocks.back()->threads = launch.threads;
        for (unsigned i = 0; i < launch.threads; i++) {
            queue.fibers.emplace_back(new Fiber);
            Fiber *fiber = queue.fibers.back().get();
            fiber->stack.reset(new char[STACK]);
            fiber->block = queue.blocks.back().get();
            fiber->thread = i;
            fiber->block->fibers.push_back(fiber);
            getcontext(&fiber->context);
            fiber->context.uc_stack.ss_sp = fiber->stack.get();
            fiber->context.uc_stack.ss_size = STACK;
            fiber->context.uc_link = &scheduler;
            makecontext(&fiber->context, body, 0);
        }
    }
    queue.left = queue.fibers.size();
}

/* Run all queues to their end; false if nothing moved for `limit` steps. */
inline bool run(std::vector<Queue> &queues, uint64_t limit)
{
    std::vector<std::pair<Queue *, Fiber *>> ready;
    for (uint64_t step = 0; step < limit; step++) {
        bool any = false;
        for (Queue &queue : queues) {
            if (queue.left == 0 && queue.next < queue.launches.size())
                begin(queue);
            any = any || queue.left;
        }
        if (!any)
            return true;
        Queue &queue = queues[random_bits() % queues.size()];
        /* For a while one PE, so that PEs get apart. */
        for (int turns = (int)(random_bits() % 64); turns > 0 && queue.left; turns--) {
            Fiber *fiber = queue.fibers[random_bits() % queue.fibers.size()].get();
            if (fiber->done || fiber->waiting)
                continue;
            Launch &launch = queue.launches[queue.next];
            running = fiber;
            thread_index = {fiber->thread, 0, 0};
            block_index = {fiber->block->number, 0, 0};
            block_size = {launch.threads, 1, 1};
            grid_size = {launch.grid, 1, 1};
            entered = &launch.kernel;
            swapcontext(&scheduler, &fiber->context);
            if (fiber->done && --queue.left == 0) {
                queue.next++;
                break;
            }
        }
    }
    return false;
}

} // namespace emulated

#define threadIdx emulated::thread_index
#define blockIdx emulated::block_index
#define blockDim emulated::block_size
#define gridDim emulated::grid_size

inline void __syncthreads() { emulated::meet_block(true); }
inline bool __syncthreads_and(bool here) { return emulated::meet_block(here); }
inline void __threadfence_system() {}
inline unsigned atomicAdd(unsigned *p, unsigned v)
{
    unsigned old = *p;
    *p += v;
    return old;
}
inline float __uint_as_float(unsigned u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
inline unsigned __float_as_uint(float f)
{
    unsigned u;
    memcpy(&u, &f, 4);
    return u;
}
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
