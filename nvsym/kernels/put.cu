/* SPDX-License-Identifier: Apache-2.0
 *
 * Put, get and put with signal between addressable memories. The copy is seen by whoever comes behind the kernel on its stream;
 * by whoever acquires the signal, since a block's threads meet before one of them releases it. */
#include "nvsym/exchange.cuh"

using nvsym::u32;
using nvsym::u64;

extern "C" __global__ void __launch_bounds__(512) nvsym_copy(char *dst, const char *src, u64 nbytes)
{
    nvsym::await_predecessor();
    const nvsym::Part part(nbytes, blockIdx.x, gridDim.x);
    nvsym::copy_bytes(dst + part.first, src + part.first, part.nbytes, nvsym::Here());
}

/* One block. */
extern "C" __global__ void __launch_bounds__(512)
    nvsym_copy_signal(char *dst, const char *src, u64 nbytes, u64 *signal, u64 value, u32 add)
{
    nvsym::await_predecessor();
    nvsym::copy_bytes(dst, src, nbytes, nvsym::Here());
    __syncthreads();
    if (threadIdx.x == 0) {
        if (add)
            nvsym::add_release(signal, value);
        else
            nvsym::store_release(signal, value);
    }
}
