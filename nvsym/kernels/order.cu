/* SPDX-License-Identifier: Apache-2.0
 *
 * What orders the work of PEs: a barrier, and a fence for what the kernels before it on the stream have stored. One block each. */
#include "nvsym/collectives.cuh"

using nvsym::Team;

extern "C" __global__ void __launch_bounds__(32) nvsym_barrier(const __grid_constant__ Team team)
{
    nvsym::await_predecessor();
    nvsym::barrier(team);
}

/* In a CUDA graph the end of a kernel alone does not make its stores visible to other GPUs. */
extern "C" __global__ void nvsym_fence()
{
    nvsym::await_predecessor();
    __threadfence_system();
}
