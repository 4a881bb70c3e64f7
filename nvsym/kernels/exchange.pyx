# SPDX-License-Identifier: Apache-2.0
"""Broadcast, fcollect, alltoall, reduce-scatter and barrier over peer pointers: the kernels of include/nvsym/exchange.cuh.

The form and the grid of a kernel depend on the bytes and the number of PEs: on nothing that differs between PEs.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

import time

from ..dtypes import DTYPES, OPS
from . import compiler

from .._driver cimport CHECK_CUDA, cuda
from ..libcuda cimport CUfunction, CUstream
from .allreduce cimport (
    KERNEL_LOW_LATENCY, LAUNCHED_ALLREDUCE, LAUNCHED_BARRIER, LAUNCHED_BROADCAST, LAUNCHED_REDUCESCATTER, LL_RESIDENT, MAX_PES,
    AllreduceKernels, TeamKernels)
from .launch cimport launch_own, load_functions

cdef enum:
    SLOTS        = 8            # as in allreduce.pyx: a team has the same one there and here
    THREADS      = 512          # of a block
    THREADS_MANY = 256          # of the reduction, where more than two PEs' loads fill the registers
    LL_LINES_FOUR = 256         # of 8 bytes, of a block of low latency, in jobs of up to four PEs that share GPUs
    LL_LINES_MORE = 64          # and in others
    LL_THREADS   = 64           # of its blocks, while they are few
    LINES_FOUR   = 32 << 10     # bytes of one PE's block that low latency moves at most, in teams of three and four with a GPU each,
    LINES_MORE   = 8 << 10      # and of more
    IN_SHARES    = 512 << 10    # bytes from which more than two PEs hand a broadcast around in shares


cdef class ExchangeKernels(AllreduceKernels):
    """The kernels of one GPU, and the memory that they meet in."""

    cdef int agree(self, int blocks, int sharing):
        self.blocks, self.apart = blocks, sharing == 1
        self.set_lines(LL_LINES_FOUR if not self.apart and self.n_pes <= 4 else LL_LINES_MORE)
        return 0

    cdef bint few(self, const TeamKernels *team, size_t nbytes, size_t resident) noexcept:
        """Whether a block of so many bytes goes by low latency."""
        cdef size_t most = self.most_in_lines(resident)
        if team.args.n > 4:
            most = min(most, <size_t> LINES_MORE)
        elif team.args.n > 2 and self.apart:
            most = min(most, <size_t> LINES_FOUR)
        return nbytes <= most

    cdef int close(self) except -1:
        AllreduceKernels.close(self)
        memset(self.orders, 0, sizeof(self.orders))
        memset(self.moves, 0, sizeof(self.moves))
        memset(self.scatters, 0, sizeof(self.scatters))
        memset(self.levels, 0, sizeof(self.levels))
        memset(self.switched, 0, sizeof(self.switched))
        return 0

    cdef bint can_move(self) noexcept:
        return self.moves[0] != NULL

    cdef bint can_scatter(self, int dtype, int op) noexcept:
        return self.scatters[dtype][op][0] != NULL

    cdef int prepare_orders(self, object made) except -1:
        self.load(lambda: made, (), compiler.ORDERS, <size_t> &self.orders[0])
        return 0

    cdef int prepare_moves(self) except -1:
        if not self.can_move():
            self.load(compiler.moves_cubin, (self.arch,), compiler.MOVES, <size_t> &self.moves[0])
        return 0

    cdef int prepare_scatter(self, int dtype, int op) except -1:
        if not self.can_scatter(dtype, op):
            self.load(compiler.reduce_scatter_cubin, (DTYPES[dtype].name, OPS[op].name, self.arch), compiler.SCATTERS,
                      <size_t> &self.scatters[dtype][op][0])
        return 0

    cdef object why_no_multimem(self, int dtype, int op):
        if self.arch < 90:
            return f"multimem instructions need compute capability 9.0, this GPU has {self.arch // 10}.{self.arch % 10}"
        if OPS[op].name not in compiler.MULTIMEM.get(DTYPES[dtype].name, ()):
            return f"the NVLink switch has no {OPS[op].name} of {DTYPES[dtype].name}"
        return None

    cdef int prepare_multimem(self, int dtype, int op) except -1:
        if self.switched[dtype][op] == NULL:
            self.load(compiler.multimem_cubin, (DTYPES[dtype].name, OPS[op].name, self.arch), ("nvsym_multimem",),
                      <size_t> &self.switched[dtype][op])
        return 0

    cdef int multimem(self, TeamKernels *team, TeamKernels *order, int dtype, int op, void *dst, const void *src, size_t count,
                      size_t itemsize, Distances *distances, CUstream stream) except -1:
        cdef void *arguments[5]
        cdef uint64_t n = count
        cdef size_t work = (count * itemsize // <size_t> team.args.n + 63) // 64
        cdef unsigned int blocks = <unsigned int> max(<size_t> 1, min((work + THREADS - 1) // THREADS, <size_t> self.blocks))
        cdef CUfunction function = self.switched[dtype][op]
        team.args.op = LAUNCHED_ALLREDUCE | team.slot << 8
        self.follow(order, stream)
        arguments[0], arguments[1], arguments[2], arguments[3], arguments[4] = &dst, &src, &n, distances, &team.args
        with nogil:
            CHECK_CUDA(cuda.cuLaunchKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, arguments, NULL), b"cuLaunchKernel")
        return 0

    cdef int prepare_levels(self, int dtype, int op) except -1:
        if self.levels[dtype][op][0] == NULL:
            self.load(compiler.levels_cubin, (DTYPES[dtype].name, OPS[op].name, self.arch), compiler.LEVELS,
                      <size_t> &self.levels[dtype][op][0])
        return 0

    cdef int level_in(self, TeamKernels *team, int dtype, int op, void *sums, const void *src, size_t count,
                      CUstream stream) except -1:
        team.args.op = LAUNCHED_ALLREDUCE | team.slot << 8
        return launch(self, team, team, self.levels[dtype][op][0], False, THREADS, 16 * (count // team.args.n), sums, src, count,
                      0, 0, stream)

    cdef int level_out(self, TeamKernels *team, int dtype, int op, void *dst, const void *rows, size_t count, int nodes,
                       CUstream stream) except -1:
        return launch(self, team, team, self.levels[dtype][op][1], False, THREADS, 16 * (count // team.args.n), dst, rows, count,
                      nodes, 0, stream)

    def load(self, cubin_of, arguments, names, size_t table):
        """Compile (or take from the cache) a module, and put its functions into a table."""
        start = time.perf_counter()
        cubin, _ = cubin_of(*arguments)
        self.modules.append(load_functions(self.gpu, self.ordinal, cubin, names, <CUfunction *> table))
        self.compile_seconds += time.perf_counter() - start

    cdef int barrier(self, TeamKernels *team, CUstream stream) except -1:
        cdef void *arguments[1]
        team.args.op = LAUNCHED_BARRIER | team.slot << 8
        self.follow(team, stream)
        arguments[0] = &team.args
        with nogil:
            launch_own(self.orders[0], 1, MAX_PES, arguments, stream, self.early(KERNEL_LOW_LATENCY, 1, MAX_PES))
        return 0

    cdef int fence(self, CUstream stream) except -1:
        with nogil:
            launch_own(self.orders[1], 1, 1, NULL, stream, self.early(KERNEL_LOW_LATENCY, 1, 1))
        return 0

    cdef int move(self, TeamKernels *team, TeamKernels *order, Move kind, void *dst, const void *src, size_t nbytes, int root,
                  CUstream stream) except -1:
        cdef uint32_t first = root, second = team.args.n > 2 and nbytes >= IN_SHARES
        cdef size_t work = nbytes
        cdef bint lines = self.few(team, nbytes, LL_RESIDENT)
        if not lines and kind == MOVE_BROADCAST and second:
            work = nbytes // <size_t> team.args.n
        team.args.op = LAUNCHED_BROADCAST + <int> kind | team.slot << 8
        return launch(self, team, order, self.moves[<int> kind + (MOVE_COUNT if lines else 0)], lines, THREADS, work, dst, src,
                      nbytes, first, second, stream)

    cdef int scatter(self, TeamKernels *team, TeamKernels *order, int dtype, int op, void *dst, const void *src, size_t count,
                     size_t itemsize, CUstream stream) except -1:
        cdef size_t nbytes = count * itemsize
        cdef bint lines = self.few(team, nbytes, LL_SCATTER)
        team.args.op = LAUNCHED_REDUCESCATTER | team.slot << 8
        return launch(self, team, order, self.scatters[dtype][op][1 if lines else 0], lines,
                      THREADS if lines or team.args.n <= 2 else THREADS_MANY, nbytes, dst, src, count, 0, 0, stream)


cdef int launch(ExchangeKernels self, TeamKernels *team, TeamKernels *order, CUfunction function, bint lines,
                unsigned int threads, size_t nbytes, void *dst, const void *src, uint64_t count, uint32_t first,
                uint32_t second, CUstream stream) except -1:
    """Launch a kernel with a thread for each line of 8 bytes, or for each pack of 16."""
    cdef void *arguments[6]
    cdef size_t work = (nbytes + 7) // 8 if lines else (nbytes + 15) // 16
    cdef unsigned int blocks
    if lines:
        # A thread has one line. The barriers need a thread for each PE, the lines do not.
        threads = self.line_threads(work, LL_THREADS)
        blocks = <unsigned int> ((work + threads - 1) // threads)
    else:
        blocks = <unsigned int> max(<size_t> 1, min((work + threads - 1) // threads, <size_t> self.blocks))
    self.follow(order, stream)
    arguments[0], arguments[1], arguments[2], arguments[3], arguments[4] = &dst, &src, &count, &first, &second
    arguments[5] = &team.args
    with nogil:
        launch_own(function, blocks, threads, arguments, stream, lines and self.early(KERNEL_LOW_LATENCY, blocks, threads))
    return 0
