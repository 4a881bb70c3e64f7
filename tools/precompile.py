# SPDX-License-Identifier: Apache-2.0
"""Fill the cache of GPU kernels (NVSYM_CACHE_DIR) for one architecture, with as many processes as there are cores.

    python tools/precompile.py 90 [TYPE,TYPE,...]

The compiler does one thing at a time in a process, so a test suite that meets all element types and operators would spend minutes
in it. Needs no GPU.
"""

import concurrent.futures
import multiprocessing
import os
import sys
import time

from nvsym.dtypes import DTYPES, OPS, REDUCIBLE
from nvsym.kernels import compiler


def main():
    if len(sys.argv) not in (2, 3) or not sys.argv[1].isdigit():
        sys.exit(__doc__.split("\n\n")[1].strip())
    arch = int(sys.argv[1])
    types = sys.argv[2].split(",") if len(sys.argv) == 3 else list(compiler.TYPES)
    pairs = [(DTYPES[dtype].name, OPS[op].name, arch) for dtype, op in REDUCIBLE if DTYPES[dtype].name in types]
    pairs.sort(key=lambda pair: not pair[0].startswith("float8"))  # these take longest
    calls = [
        (function, pair) for function in (compiler.allreduce_cubin, compiler.reduce_scatter_cubin) for pair in pairs
    ]
    calls += [(compiler.moves_cubin, (arch,)), (compiler.put_cubin, (arch,)), (compiler.order_cubin, (arch,))]
    start = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(len(os.sched_getaffinity(0)), context) as pool:
        fresh = sum(future.result()[1] for future in [pool.submit(function, *args) for function, args in calls])
    print(f"{fresh} of {len(calls)} modules compiled for sm_{arch} in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
