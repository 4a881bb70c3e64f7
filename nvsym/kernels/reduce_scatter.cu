/* SPDX-License-Identifier: Apache-2.0
 *
 * The reduce-scatter kernels of one element type and operator, given as NVSYM_T and NVSYM_OP. `count`: elements of dst. */
#include "nvsym/exchange.cuh"

typedef NVSYM_T T;
typedef nvsym::NVSYM_OP Op;

extern "C" __global__ void __launch_bounds__(512) nvsym_reduce_scatter(
    T *dst, const T *src, nvsym::u64 count, nvsym::u32, nvsym::u32, const __grid_constant__ nvsym::Team team)
{
    nvsym::await_predecessor();
    nvsym::reduce_scatter<T, Op>(dst, src, count, team);
}

extern "C" __global__ void __launch_bounds__(512) nvsym_reduce_scatter_lines(
    T *dst, const T *src, nvsym::u64 count, nvsym::u32, nvsym::u32, const __grid_constant__ nvsym::Team team)
{
    nvsym::await_predecessor();
    nvsym::reduce_scatter_lines<T, Op>(dst, src, count, team);
}
