# SPDX-License-Identifier: Apache-2.0
"""Allreduce over peer pointers: compiles, loads and launches the kernels of include/nvsym/collectives.cuh.

Which kernel runs depends on the number of PEs, the bytes and whether it is in place: on nothing that differs between PEs.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset

import os
import time

from .._settings import format_size, parse_size
from ..dtypes import DTYPES, OPS
from ..errors import BackendError, PeerTimeoutError
from . import compiler

from .._driver cimport CHECK_CUDA, cuda
from ..cuda_runtime cimport CudaRuntime
from .launch cimport arch_of, can_launch_early, launch_own, load_functions
from .staged cimport EMPTY, StagedCopies, enough_queues
from ..libcuda cimport CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, CUdeviceptr, CUfunction, CUmodule, CUstream

cdef enum:
    SLOTS          = 8          # teams that have kernels at a time
    THREADS        = 512        # of a block
    THREADS_MANY   = 256        # of the kernels with barriers, where more than two PEs' loads fill the registers
    FAILURE_BYTES  = (1 + MAX_PES) * 4
    LL_LINES_TWO   = 512        # of 8 bytes of data, of a block of low latency, in jobs of two PEs on one GPU,
    LL_LINES_PAIR  = 256        # on two,
    LL_LINES_FOUR  = 256        # in jobs of up to four that share GPUs,
    LL_LINES_MORE  = 64         # and in others
    LL_THREADS     = 128        # of its blocks, while they are few
    ONE_SHOT_BELOW = 512 << 10  # bytes from which two PEs reduce in shares
    LL_LINKED      = 128 << 10  # bytes above which two PEs on a link push
    PUSH_PES       = 2          # with more, pushing all to all takes more of the link than reading in shares
    PUSH_MOST      = 16 << 20   # bytes above which copy engines are faster
    PUSH_SPREAD    = 128        # threads of its blocks, while they are few
    EPOCHS         = 3 * MAX_BLOCKS + 1
    EARLY_THREADS  = 512        # of low latency per processor, of its 2048


# By enum Launched.
LAUNCHED = ("allreduce", "broadcast", "fcollect", "alltoall", "reducescatter", "barrier")


cdef class AllreduceKernels:
    """The kernels of one GPU, and the memory that they meet in."""

    def __init__(self, CudaRuntime gpu not None, int ordinal, int n_pes, int sharing, double limit):
        cdef int handle = 0, processors = 0
        self.gpu = gpu
        self.ordinal = ordinal
        self.n_pes = n_pes
        self.limit_ns = <uint64_t> (limit * 1e9)
        self.modules = []
        self.free_slots = set(range(SLOTS))
        self.members = {}
        CHECK_CUDA(cuda.cuDeviceGet(&handle, ordinal), b"cuDeviceGet")
        CHECK_CUDA(cuda.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, handle),
                   b"cuDeviceGetAttribute")
        self.arch = arch_of(ordinal)
        self.overlap = can_launch_early(self.arch)
        # Under MPS with an active thread percentage the driver counts the processors of this process already.
        if "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in os.environ:
            processors //= sharing
        # Where the shares of all PEs leave no processor free, blocks of several PEs meet on one, and the kernels take half as long again.
        if sharing > 1:
            processors -= processors // 8
        self.blocks = max(1, min(<int> MAX_BLOCKS, processors))

    cdef int agree(self, int blocks, int sharing):
        """Take what all PEs have agreed on: the fewest blocks that one has, and the most PEs that share a GPU."""
        self.blocks = blocks
        if self.n_pes <= 2:
            self.set_lines(LL_LINES_TWO if sharing > 1 else LL_LINES_PAIR)
        else:
            self.set_lines(LL_LINES_FOUR if sharing > 1 and self.n_pes <= 4 else LL_LINES_MORE)
        # Over a link stores are faster than loads; in one memory, what is pushed is only written and read once more.
        push = os.environ.get("NVSYM_TEST_PUSH", "1" if sharing == 1 else "0") == "1" and self.n_pes == PUSH_PES
        if push:
            self.push_bytes = <size_t> PUSH_STAGES * (PUSH_PACKS + 1) * PUSH_THREADS * 16 * blocks
        return 0

    cdef int set_lines(self, size_t lines) noexcept:
        self.ll_bytes = 16 * lines
        self.slot_bytes = PAD_BYTES + LL_STAGES * LL_BLOCKS * <size_t> self.n_pes * self.ll_bytes
        return 0

    cdef size_t workspace_bytes(self):
        """Symmetric memory that `open` needs, zeroed by it; the caller meets the other PEs before the first launch."""
        return SLOTS * self.slot_bytes + self.push_bytes

    cdef int open(self, void *workspace) except -1:
        cdef CUstream side = self.gpu.side_stream(self.ordinal)
        cdef size_t nbytes = SLOTS * EPOCHS * sizeof(uint32_t)
        self.workspace = <char *> workspace
        self.epochs = <uint32_t *> self.gpu.alloc(self.ordinal, nbytes)
        self.failure = <uint32_t *> self.gpu.alloc_pinned(self.ordinal, FAILURE_BYTES)
        memset(self.failure, 0, FAILURE_BYTES)
        CHECK_CUDA(cuda.cuMemsetD8Async(<CUdeviceptr> workspace, 0, self.workspace_bytes(), side), b"cuMemsetD8Async")
        CHECK_CUDA(cuda.cuMemsetD8Async(<CUdeviceptr> self.epochs, 0, nbytes, side), b"cuMemsetD8Async")
        with nogil:
            CHECK_CUDA(cuda.cuStreamSynchronize(side), b"cuStreamSynchronize")
        return 0

    cdef size_t stage_bytes(self, size_t size):
        """Symmetric memory that `open_stages` needs for stages of `size` bytes; 0: it makes none."""
        if self.push_bytes == 0 or size == 0 or not enough_queues():
            return 0
        return StagedCopies(self.gpu, self.ordinal, size).memory_bytes()

    cdef int open_stages(self, size_t size, void *memory) except -1:
        self.staged = StagedCopies(self.gpu, self.ordinal, size)
        self.staged_from = parse_size(os.environ.get("NVSYM_TEST_STAGED", self.most_pushed() + 1))
        return self.staged.open(memory)

    cdef int close(self) except -1:
        if self.staged is not None:
            self.staged.close()
            self.staged = None
        for module in self.modules:
            CHECK_CUDA(cuda.cuModuleUnload(<CUmodule> <size_t> module), b"cuModuleUnload")
        self.modules = []
        memset(self.functions, 0, sizeof(self.functions))
        if self.epochs != NULL:
            self.gpu.dealloc(self.ordinal, self.epochs)
            self.gpu.dealloc_pinned(self.failure)
            self.epochs = self.failure = NULL
        return 0

    cdef int attach(self, TeamKernels *team, int slot, int me, int n, const int64_t *delta) except -1:
        """Give a team its place. The caller has agreed on the slot with all members, whose memory is all addressable."""
        cdef CUstream side = self.gpu.side_stream(self.ordinal)
        cdef int p
        cdef char *own = self.workspace + slot * self.slot_bytes
        memset(team, 0, sizeof(TeamKernels))
        team.slot = slot
        for p in range(n):
            team.args.delta[p] = delta[p]
        team.args.me, team.args.n = me, n
        team.args.pad, team.args.ll, team.args.ll_bytes = own, own + PAD_BYTES, self.ll_bytes
        team.args.epochs = self.epochs + slot * EPOCHS
        team.args.failure, team.args.limit_ns = self.failure, self.limit_ns
        team.args.op = slot << 8
        if slot == 0 and self.push_bytes:
            team.args.push, team.args.push_blocks = self.workspace + SLOTS * self.slot_bytes, self.blocks
            CHECK_CUDA(cuda.cuMemsetD32Async(<CUdeviceptr> team.args.push, EMPTY, self.push_bytes // 4, side),
                       b"cuMemsetD32Async")
        # What an earlier team left; the caller meets the others once more before the first launch.
        CHECK_CUDA(cuda.cuMemsetD8Async(<CUdeviceptr> own, 0, self.slot_bytes, side), b"cuMemsetD8Async")
        CHECK_CUDA(cuda.cuMemsetD8Async(<CUdeviceptr> team.args.epochs, 0, EPOCHS * sizeof(uint32_t), side), b"cuMemsetD8Async")
        with nogil:
            CHECK_CUDA(cuda.cuStreamSynchronize(side), b"cuStreamSynchronize")
        self.free_slots.discard(slot)
        return 0

    cdef int detach(self, TeamKernels *team) except -1:
        if team.slot >= 0:
            self.free_slots.add(team.slot)
            team.slot = -1
        return 0

    cdef bint loaded(self, int dtype, int op) noexcept:
        return self.functions[dtype][op][0] != NULL

    cdef int prepare(self, int dtype, int op) except -1:
        """Compile (or take from the cache) and load the kernels of an element type and operator."""
        if self.loaded(dtype, op):
            return 0
        start = time.perf_counter()
        cubin, _ = compiler.allreduce_cubin(DTYPES[dtype].name, OPS[op].name, self.arch)
        self.modules.append(load_functions(self.gpu, self.ordinal, cubin, compiler.KERNELS,
                                           &self.functions[dtype][op][0]))
        self.compile_seconds += time.perf_counter() - start
        return 0

    cdef bint failed(self) noexcept:
        return self.failure != NULL and self.failure[0] != 0

    cdef int check(self) except -1:
        """After failed(): raise what a kernel has given up for."""
        if self.broken is not None:
            raise BackendError(self.broken)
        time.sleep(0.002)   # others that wait in the same kernel give up at the same time, and name theirs
        cdef int member
        late = [(member, self.failure[1 + member] - 1) for member in range(<int> MAX_PES) if self.failure[1 + member]]
        what, pes = LAUNCHED[late[0][1] & 0xff], self.members[late[0][1] >> 8]
        late = [pes[member] for member, code in late if code == late[0][1]]
        raise PeerTimeoutError(f"{what}: PE{'s' * (len(late) > 1)} {', '.join(map(str, late))} did not arrive within "
                               f"{self.limit_ns / 1e9:g} s (NVSYM_TIMEOUT); the kernels of this job do no more, finalize() still "
                               "works", late)

    cdef int follow(self, TeamKernels *team, CUstream stream) except -1:
        """The kernels of a team share its pad: those of two streams run one after the other. So do those of one capture."""
        if self.gpu.capturing(stream):
            if team.captured != NULL and team.captured != stream:
                self.gpu.order_behind(team.captured, stream)
            team.captured = stream
            return 0
        if team.last != NULL and team.last != stream:
            self.gpu.order_behind(team.last, stream)
        team.last = stream
        return 0

    cdef Kernel choose(self, const TeamKernels *team, size_t nbytes, bint in_place) noexcept:
        # Low latency sends a flag with each word; pushing sends the operand alone, but looks at it first.
        if nbytes <= self.most_in_lines(LL_RESIDENT) and (team.args.push == NULL or nbytes <= LL_LINKED):
            return KERNEL_LOW_LATENCY
        if self.stages(team, nbytes):
            return KERNEL_STAGED
        if self.pushes(team, nbytes):
            return KERNEL_PUSH
        if not in_place and team.args.n == 2 and nbytes < ONE_SHOT_BELOW:
            return KERNEL_ONE_SHOT
        return KERNEL_TWO_SHOT

    cdef object explain(self, const TeamKernels *team, size_t nbytes, bint in_place):
        """(kernel, reason, thresholds) of what `choose` says of this many bytes."""
        cdef Kernel kernel = self.choose(team, nbytes, in_place)
        cdef bint pushing = team.args.push != NULL
        cdef size_t lines = self.most_in_lines(LL_RESIDENT)
        cdef size_t pushed = self.most_pushed()
        if pushing:
            lines = min(lines, <size_t> LL_LINKED)
        thresholds = {"low_latency": f"up to {format_size(lines)}"}
        if pushing:
            thresholds["push"] = f"above that, up to {format_size(pushed)}"
        elif team.args.n == 2 and lines < ONE_SHOT_BELOW:
            thresholds["one_shot"] = f"above that and below {format_size(ONE_SHOT_BELOW)}, not in place"
        if pushing and self.staged is not None:
            thresholds["staged"] = f"above {format_size(self.staged_from - 1)}"
        else:
            thresholds["two_shot"] = "above that"
        if kernel == KERNEL_LOW_LATENCY:
            return "low_latency", "data and flags travel in the same stores, without a barrier", thresholds
        if kernel == KERNEL_PUSH:
            return "push", "two PEs on a link: stores that tell by themselves that they have come, without a barrier", thresholds
        if kernel == KERNEL_STAGED:
            return "staged", "two PEs on a link: copy engines send, and a kernel reduces what comes", thresholds
        if kernel == KERNEL_ONE_SHOT:
            return "one_shot", "two PEs read each other's operand faster than they could hand shares around", thresholds
        if in_place and team.args.n == 2 and nbytes < ONE_SHOT_BELOW:
            return "two_shot", "in place: each element is read and written by one PE only", thresholds
        return "two_shot", "each PE reduces a share and stores it to all, which moves the fewest bytes", thresholds

    cdef bint early(self, Kernel kernel, unsigned int blocks, unsigned int threads) noexcept nogil:
        """Whether a launch is so small that one more of its kind may wait on the processors.

        Blocks that wait for other PEs must all find their places, whatever waits there for its turn: what waits is of the same PE, and
        beside it there is room for all that a processor of this PE's share takes of low latency (LL_RESIDENT). PEs that share a GPU
        have kernels only where their shares are apart. Those that push are bounded to a block of 128 threads.
        """
        if not self.overlap:
            return False
        if kernel == KERNEL_LOW_LATENCY:
            return blocks * threads <= EARLY_THREADS * <unsigned int> self.blocks
        return kernel == KERNEL_PUSH and threads <= PUSH_SPREAD

    cdef size_t most_in_lines(self, size_t resident) noexcept nogil:
        """Bytes of an operand that low latency takes: with a thread for each line, which all find a place on this PE's processors."""
        return min(LL_BLOCKS * self.ll_bytes // 2, self.blocks * resident * 8)

    cdef unsigned int line_threads(self, size_t lines, unsigned int threads) noexcept nogil:
        """Threads of a block for so many lines: so many, while the blocks suffice, and whole warps."""
        threads = min(threads, <unsigned int> (self.ll_bytes // 16))
        while lines > threads * <size_t> LL_BLOCKS:
            threads *= 2
        return min(threads, <unsigned int> ((lines + 31) // 32 * 32))

    cdef size_t most_pushed(self) noexcept nogil:
        return min(<size_t> PUSH_MOST, self.blocks * <size_t> (16 * PUSH_STEPS * PUSH_PACKS * PUSH_THREADS))

    cdef bint pushes(self, const TeamKernels *team, size_t nbytes) noexcept:
        """Whether there is room to push so much, and it is worth it."""
        return team.args.push != NULL and nbytes <= self.most_pushed()

    cdef bint stages(self, const TeamKernels *team, size_t nbytes) noexcept:
        """Whether copy engines send so much."""
        return self.staged is not None and team.args.push != NULL and nbytes >= self.staged_from

    cdef int launch(self, TeamKernels *team, Kernel kernel, int dtype, int op, void *dst, const void *src, uint64_t count,
                    size_t itemsize, CUstream stream) except -1:
        cdef void *arguments[4]
        cdef uint64_t n = count
        cdef size_t nbytes = count * itemsize, work
        cdef unsigned int blocks, threads = THREADS
        cdef CUfunction function = self.functions[dtype][op][<int> kernel]
        self.follow(team, stream)
        if kernel == KERNEL_STAGED:
            return self.launch_staged(team, self.functions[dtype][op], <char *> dst, <const char *> src, nbytes, itemsize, stream)
        if kernel == KERNEL_LOW_LATENCY:
            work = (nbytes + 7) // 8
            threads = self.line_threads(work, LL_THREADS)
            blocks = <unsigned int> ((work + threads - 1) // threads)
        else:
            work = (nbytes + 15) // 16
            if kernel == KERNEL_PUSH:
                threads = PUSH_SPREAD
                while threads < PUSH_THREADS and work > threads * <size_t> self.blocks:
                    threads *= 2
            elif team.args.n > 2:
                threads = THREADS_MANY
            if kernel == KERNEL_TWO_SHOT:
                work = (work + team.args.n - 1) // team.args.n
            blocks = <unsigned int> max(<size_t> 1, min((work + threads - 1) // threads, <size_t> self.blocks))
        arguments[0], arguments[1], arguments[2], arguments[3] = &dst, &src, &n, &team.args
        with nogil:
            launch_own(function, blocks, threads, arguments, stream, self.early(kernel, blocks, threads))
        return 0

    cdef int launch_staged(self, TeamKernels *team, const CUfunction *functions, char *dst, const char *src, size_t nbytes, size_t itemsize,
                           CUstream stream) except -1:
        try:
            return self.staged.enqueue(functions[<int> KERNEL_STAGED], functions[<int> KERNEL_COUNT_COPY], &team.args,
                                       team.args.delta[1 - team.args.me], self.blocks, dst, src, nbytes, itemsize, stream)
        except Exception as error:
            if self.staged.in_part:
                # The other PE gets some of it, and waits for the rest. Own kernels that wait look at this, but not without a time limit.
                self.broken = f"an allreduce was enqueued in part, the kernels of this job do no more: {error}"
                self.failure[0] = 1
            raise
