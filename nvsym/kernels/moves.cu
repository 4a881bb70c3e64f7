/* SPDX-License-Identifier: Apache-2.0
 *
 * The collectives that move bytes, whatever their type. `nbytes`: of one PE's block. */
#include "nvsym/exchange.cuh"

using nvsym::Team;
using nvsym::u32;
using nvsym::u64;

extern "C" __global__ void __launch_bounds__(512)
    nvsym_broadcast(char *dst, const char *src, u64 nbytes, u32 root, u32 in_shares, const __grid_constant__ Team team)
{
    nvsym::await_predecessor();
    nvsym::broadcast(dst, src, nbytes, (int)root, in_shares != 0, team);
}

extern "C" __global__ void __launch_bounds__(512)
    nvsym_fcollect(char *dst, const char *src, u64 nbytes, u32, u32, const __grid_constant__ Team team)
{
    nvsym::await_predecessor();
    nvsym::fcollect(dst, src, nbytes, team);
}

extern "C" __global__ void __launch_bounds__(512)
    nvsym_alltoall(char *dst, const char *src, u64 nbytes, u32, u32, const __grid_constant__ Team team)
{
    nvsym::await_predecessor();
    nvsym::alltoall(dst, src, nbytes, team);
}

extern "C" __global__ void __launch_bounds__(512)
    nvsym_broadcast_lines(char *dst, const char *src, u64 nbytes, u32 root, u32, const __grid_constant__ Team team)
{
    nvsym::await_predecessor();
    nvsym::broadcast_lines(dst, src, nbytes, (int)root, team);
}

extern "C" __global__ void __launch_bounds__(512)
    nvsym_fcollect_lines(char *dst, const char *src, u64 nbytes, u32, u32, const __grid_constant__ Team team)
{
    nvsym::await_predecessor();
    nvsym::fcollect_lines(dst, src, nbytes, team);
}

extern "C" __global__ void __launch_bounds__(512)
    nvsym_alltoall_lines(char *dst, const char *src, u64 nbytes, u32, u32, const __grid_constant__ Team team)
{
    nvsym::await_predecessor();
    nvsym::alltoall_lines(dst, src, nbytes, team);
}
