/* SPDX-License-Identifier: Apache-2.0
 *
 * The allreduce through a multicast address of one element type and operator, given as NVSYM_T and NVSYM_OP. */
#include "nvsym/multimem_allreduce.cuh"

typedef NVSYM_T T;
typedef nvsym::NVSYM_OP Op;

extern "C" __global__ void __launch_bounds__(512)
    nvsym_multimem(T *dst, const T *src, nvsym::u64 count, const __grid_constant__ nvsym::Distances distances,
                   const __grid_constant__ nvsym::Team team)
{
    nvsym::multimem_allreduce<T, Op>(dst, src, count, distances, team);
}
