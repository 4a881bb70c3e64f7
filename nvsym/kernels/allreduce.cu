/* SPDX-License-Identifier: Apache-2.0
 *
 * The allreduce kernels of one element type and operator, given as NVSYM_T and NVSYM_OP. */
#include "nvsym/staged.cuh"

typedef NVSYM_T T;
typedef nvsym::NVSYM_OP Op;

extern "C" __global__ void __launch_bounds__(512)
    nvsym_one_shot(T *dst, const T *src, nvsym::u64 count, const __grid_constant__ nvsym::Team team)
{
    nvsym::await_predecessor();
    nvsym::one_shot<T, Op>(dst, src, count, team);
}

extern "C" __global__ void __launch_bounds__(512)
    nvsym_two_shot(T *dst, const T *src, nvsym::u64 count, const __grid_constant__ nvsym::Team team)
{
    nvsym::await_predecessor();
    nvsym::two_shot<T, Op>(dst, src, count, team);
}

extern "C" __global__ void __launch_bounds__(512)
    nvsym_low_latency(T *dst, const T *src, nvsym::u64 count, const __grid_constant__ nvsym::Team team)
{
    nvsym::await_predecessor();
    nvsym::low_latency<T, Op>(dst, src, count, team);
}

extern "C" __global__ void __launch_bounds__(512)
    nvsym_push(T *dst, const T *src, nvsym::u64 count, const __grid_constant__ nvsym::Team team)
{
    nvsym::await_predecessor();
    nvsym::push<T, Op>(dst, src, count, team);
}

/* Two blocks fit on a processor, of which it has one: so copies that are kernels of the driver find a place, too. */
extern "C" __global__ void __launch_bounds__(512, 2)
    nvsym_staged(T *dst, const T *src, nvsym::u64 count, const nvsym::Stage stage, const __grid_constant__ nvsym::Team team)
{
    nvsym::await_predecessor();
    nvsym::staged<T, Op>(dst, src, count, stage, team);
}

extern "C" __global__ void nvsym_count_copy(nvsym::StageRounds *rounds, nvsym::u32 number) { nvsym::count_copy(rounds, number); }
