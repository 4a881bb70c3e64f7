# SPDX-License-Identifier: Apache-2.0
"""Ask the dispatch table, built as `table`; prints what it says as JSON."""

import json
import sys

from nvsym.cuda_runtime import CudaRuntime
from nvsym.kernels.allreduce import AllreduceKernels
from nvsym.kernels.exchange import ExchangeKernels

sys.path.insert(0, sys.argv[1])
from table import LINE_BLOCKS, Table

KIB = 1024
SIZES = sorted({max(8, size + more) for k in range(3, 25) for size in (1 << k, 3 << k) for more in (-8, 0, 1)})
OTHERS = ("moves", "reduce-scatter")

gpu = CudaRuntime()


def of(kernels, n_pes, blocks, sharing, members=None):
    return Table(kernels(gpu, 0, n_pes, sharing, 60.0), n_pes, blocks, sharing, members)


def grids(n_pes, blocks, sharing):
    """(what, bytes, blocks, threads, bytes of a block's lines, early) of every launch of low latency."""
    table = of(AllreduceKernels, n_pes, blocks, sharing)
    for nbytes in SIZES:
        if table.allreduce(nbytes) == "low_latency":
            grid = table.line_grid(nbytes, 128)
            yield "allreduce", nbytes, *grid, table.line_bytes, table.early(*grid)
    table = of(ExchangeKernels, n_pes, blocks, sharing)
    for what in OTHERS:
        for nbytes in SIZES:
            if table.in_lines(what, nbytes):
                grid = table.line_grid(nbytes, 64)
                yield what, nbytes, *grid, table.line_bytes, table.early(*grid)


def dispatch(n_pes, blocks, sharing, members=None, in_place=False):
    """The forms of an allreduce and the bytes from which each is taken; the most bytes that go in lines of the others."""
    table = of(AllreduceKernels, n_pes, blocks, sharing, members)
    forms: list = []
    for nbytes in SIZES:
        form = table.allreduce(nbytes, in_place)
        if not forms or forms[-1][0] != form:
            forms.append((form, nbytes))
    table = of(ExchangeKernels, n_pes, blocks, sharing, members)
    most = {what: max(nbytes for nbytes in SIZES if table.in_lines(what, nbytes)) for what in OTHERS}
    return {"allreduce": forms, **most}


result = {"line_blocks": LINE_BLOCKS, "grids": [], "dispatch": []}
for job in json.loads(sys.argv[2])["grids"]:
    result["grids"].append(list(grids(*job)))
for job in json.loads(sys.argv[2])["dispatch"]:
    result["dispatch"].append(dispatch(*job))
print(json.dumps(result))
