/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels inside a node of an allreduce over several nodes, of one element type and operator, given as NVSYM_T and NVSYM_OP. */
#include "nvsym/levels.cuh"

typedef NVSYM_T T;
typedef nvsym::NVSYM_OP Op;
typedef nvsym::Element<T>::Sum S;

extern "C" __global__ void __launch_bounds__(512)
    nvsym_level_in(S *sums, const T *src, nvsym::u64 count, nvsym::u32, nvsym::u32, const __grid_constant__ nvsym::Team team)
{
    nvsym::await_predecessor();
    nvsym::level_in<T, Op>(sums, src, count, team);
}

extern "C" __global__ void __launch_bounds__(512) nvsym_level_out(
    T *dst, const S *rows, nvsym::u64 count, nvsym::u32 nodes, nvsym::u32, const __grid_constant__ nvsym::Team team)
{
    nvsym::await_predecessor();
    nvsym::level_out<T, Op>(dst, rows, count, (int)nodes, team);
}
