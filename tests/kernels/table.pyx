# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
"""What the dispatch of the GPU's collectives says of a size, as a program can ask it that has no GPU."""

from libc.string cimport memset

from nvsym.kernels.allreduce cimport KERNEL_LOW_LATENCY, LL_BLOCKS, LL_RESIDENT, AllreduceKernels, Kernel, TeamKernels
from nvsym.kernels.exchange cimport LL_SCATTER, ExchangeKernels

NAMES = ("one_shot", "two_shot", "low_latency", "push", "staged")

LINE_BLOCKS = LL_BLOCKS     # of a kernel of low latency, at most


cdef class Table:
    """Kernels of a team of `n_pes` PEs, of which `sharing` have one GPU and `blocks` of its processors each."""
    cdef AllreduceKernels kernels
    cdef TeamKernels team

    def __init__(self, AllreduceKernels kernels, int n_pes, int blocks, int sharing, members=None):
        self.kernels = kernels
        memset(&self.team, 0, sizeof(self.team))
        self.team.args.n = members or n_pes
        kernels.agree(blocks, sharing)
        if kernels.push_bytes and self.team.args.n == n_pes:
            self.team.args.push = <char *> 16

    @property
    def line_bytes(self):
        """Of data and flags, of a block of low latency."""
        return self.kernels.ll_bytes

    def allreduce(self, size_t nbytes, bint in_place=False):
        cdef Kernel kernel = self.kernels.choose(&self.team, nbytes, in_place)
        return NAMES[<int> kernel]

    def in_lines(self, str what, size_t nbytes):
        """Whether another collective sends blocks of so many bytes with low latency."""
        cdef ExchangeKernels exchange = <ExchangeKernels?> self.kernels
        return exchange.few(&self.team, nbytes, LL_SCATTER if what == "reduce-scatter" else LL_RESIDENT)

    def line_grid(self, size_t nbytes, unsigned int fewest):
        """(blocks, threads) of a kernel of low latency."""
        cdef size_t lines = (nbytes + 7) // 8
        cdef unsigned int threads = self.kernels.line_threads(lines, fewest)
        return (lines + threads - 1) // threads, threads

    def early(self, unsigned int blocks, unsigned int threads):
        return self.kernels.early(KERNEL_LOW_LATENCY, blocks, threads)
