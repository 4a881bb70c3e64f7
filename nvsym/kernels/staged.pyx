# SPDX-License-Identifier: Apache-2.0
"""Allreduce of many bytes of two PEs: copy engines send, kernels reduce what comes. See include/nvsym/staged.cuh.

Round r of an allreduce is a copy of the r-th part of the operand into the peer's stage r % 2, and a kernel that reduces what comes into the
own one. Copies go by a stream of their own, so that the next one is under way while a kernel works; they are enqueued one round ahead of
the kernels, and a copy waits for the own kernel two rounds before. So the copies and kernels of both PEs wait for nothing that
is enqueued behind them, and their streams may share a hardware queue. In a graph the driver decides what comes first in a queue: where
CUDA_DEVICE_MAX_CONNECTIONS leaves few of them, there are no stages.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

import os

from .._settings import parse_size

from .._driver cimport CHECK_CUDA, cuda
from ..cuda_runtime cimport CudaRuntime
from ..libcuda cimport (
    CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING, CUdeviceptr, CUfunction, CUstream)
from .launch cimport launch_own

cdef enum:
    THREADS   = 512             # of a block
    UNIT      = THREADS * STAGED_PACKS * 16     # bytes that a block reduces at a time
    PUSHED    = 3 << 20         # bytes that go over the link while a copy engine begins
    ALIGNMENT = 256             # of the parts
    QUEUES    = 4               # at least; CUDA has 8 where nobody says otherwise


cdef bint enough_queues() except -1:
    text = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "").strip()
    try:
        return not text or int(text) >= QUEUES
    except ValueError:
        return False    # what the driver takes it for is not known


cdef class Lane:

    def __cinit__(self):
        CHECK_CUDA(cuda.cuStreamCreate(&self.stream, CU_STREAM_NON_BLOCKING), b"cuStreamCreate")
        for i in range(STAGES):
            CHECK_CUDA(cuda.cuEventCreate(&self.counted[i], CU_EVENT_DISABLE_TIMING), b"cuEventCreate")

    cdef int close(self) except -1:
        CHECK_CUDA(cuda.cuStreamDestroy(self.stream), b"cuStreamDestroy")
        for i in range(STAGES):
            CHECK_CUDA(cuda.cuEventDestroy(self.counted[i]), b"cuEventDestroy")
        return 0


cdef class StagedCopies:

    def __init__(self, CudaRuntime gpu not None, int ordinal, size_t size):
        self.gpu = gpu
        self.ordinal = ordinal
        self.size = size + -size % (16 * ALIGNMENT)     # so that the marks of a stage are whole lines, too
        self.pushed = parse_size(os.environ.get("NVSYM_TEST_PUSHED", PUSHED))
        self.lanes = []

    cdef size_t memory_bytes(self):
        """Symmetric memory that `open` needs; the caller meets the other PE before the first use."""
        return marks_begin() + STAGES * (self.size // 16 + self.size)

    cdef int open(self, void *memory) except -1:
        cdef CUstream side = self.gpu.side_stream(self.ordinal)
        self.memory = <char *> memory
        self.rounds = <StageRounds *> self.gpu.alloc(self.ordinal, sizeof(StageRounds))
        CHECK_CUDA(cuda.cuMemsetD8Async(<CUdeviceptr> memory, 0, self.stage_of(0) - self.memory, side), b"cuMemsetD8Async")
        CHECK_CUDA(cuda.cuMemsetD32Async(<CUdeviceptr> self.stage_of(0), EMPTY, STAGES * self.size // 4, side), b"cuMemsetD32Async")
        CHECK_CUDA(cuda.cuMemsetD8Async(<CUdeviceptr> self.rounds, 0, sizeof(StageRounds), side), b"cuMemsetD8Async")
        CHECK_CUDA(cuda.cuMemsetD32Async(<CUdeviceptr> self.rounds, 1, STAGES * MAX_BLOCKS, side), b"cuMemsetD32Async")
        with nogil:
            CHECK_CUDA(cuda.cuStreamSynchronize(side), b"cuStreamSynchronize")
        self.lanes = [Lane(), Lane()]
        return 0

    cdef int close(self) except -1:
        for lane in self.lanes:
            (<Lane> lane).close()
        self.lanes = []
        if self.rounds != NULL:
            self.gpu.dealloc(self.ordinal, self.rounds)
            self.rounds = NULL
        return 0

    cdef Lane lane_for(self, CUstream stream):
        """A stream that copies for work on this one: while that is captured, one that is part of no other capture."""
        cdef uint64_t capture = 0, other = 0
        cdef Lane lane
        self.gpu.capture_id(stream, &capture)
        if capture == 0:
            return self.lanes[0]
        for lane in self.lanes[1:]:
            self.gpu.capture_id(lane.stream, &other)
            if other == capture or not self.gpu.capturing(lane.stream):
                return lane
        lane = Lane()
        self.lanes.append(lane)
        return lane

    cdef int enqueue(self, CUfunction kernel, CUfunction count_copy, void *team, int64_t delta, unsigned int blocks, char *dst,
                     const char *src, size_t nbytes, size_t itemsize, CUstream stream) except -1:
        cdef size_t rounds = (nbytes + self.size - 1) // self.size
        cdef size_t part = (nbytes + rounds - 1) // rounds, r, begin, size
        cdef uint64_t count
        cdef void *arguments[5]
        cdef Stage stage
        cdef Lane lane = self.lane_for(stream)
        cdef size_t pushed
        cdef bint runs = lane is self.lanes[0]
        part += -part % ALIGNMENT
        rounds = (nbytes + part - 1) // part
        pushed = min(self.pushed, min(part, nbytes) // 2)
        pushed -= pushed % UNIT
        if dst != src:
            count_copy = NULL
        stage.flags, stage.rounds, stage.in_place = <StageFlags *> self.memory, self.rounds, dst == src
        arguments[0], arguments[1], arguments[2], arguments[3], arguments[4] = &dst, &src, &count, &stage, team
        self.gpu.stream_order(stream, lane.stream)
        self.in_part = runs
        with nogil:
            for r in range(min(rounds, <size_t> STAGES)):
                self.send(lane, count_copy, r, delta, src + r * part, pushed if r == 0 else 0, min(part, nbytes - r * part))
        for r in range(rounds):
            begin = r * part
            size = min(part, nbytes - begin)
            count = size // itemsize
            stage.number = r % STAGES
            stage.packs, stage.marks = self.stage_of(r), <uint8_t *> (self.memory + marks_begin() + r % STAGES * self.size // 16)
            stage.pushed = pushed // 16 if r == 0 else 0
            with nogil:
                launch_own(kernel, blocks, THREADS, arguments, stream, False)
                # Else the next kernel could keep the one that counts from a hardware queue, and with it the copy behind that.
                if count_copy != NULL and r + 1 < rounds:
                    CHECK_CUDA(cuda.cuStreamWaitEvent(stream, lane.counted[r % STAGES], 0), b"cuStreamWaitEvent")
            dst, src = dst + size, src + size
            if r + STAGES < rounds:
                self.gpu.stream_order(stream, lane.stream)
                begin += STAGES * part
                with nogil:
                    self.send(lane, count_copy, r + STAGES, delta, src + part, 0, min(part, nbytes - begin))
        # The kernels do not wait for the own copies: the caller may overwrite the operand, and the next call store to the stages,
        # only behind them.
        self.gpu.stream_order(lane.stream, stream)
        self.in_part = False
        return 0

    cdef char * stage_of(self, size_t number) noexcept nogil:
        return self.memory + marks_begin() + STAGES * self.size // 16 + number % STAGES * self.size

    cdef int send(self, Lane lane, CUfunction count_copy, uint32_t number, int64_t delta, const char *src, size_t skip,
                  size_t nbytes) except -1 nogil:
        """Copy the packs of a part to the peer's stage, but the first `skip` bytes of them; then count, if there is a kernel for that."""
        cdef size_t head = min(-<size_t> src % 16, nbytes)
        cdef void *arguments[2]
        number %= STAGES
        nbytes = (nbytes - head) // 16 * 16
        if nbytes > skip:
            CHECK_CUDA(cuda.cuMemcpyAsync(<CUdeviceptr> (self.stage_of(number) + skip + delta), <CUdeviceptr> (src + head + skip),
                                          nbytes - skip, lane.stream), b"cuMemcpyAsync")
        if count_copy != NULL:
            arguments[0], arguments[1] = &self.rounds, &number
            launch_own(count_copy, 1, 1, arguments, lane.stream, False)
            CHECK_CUDA(cuda.cuEventRecord(lane.counted[number], lane.stream), b"cuEventRecord")
        return 0


cdef size_t marks_begin() noexcept nogil:
    return sizeof(StageFlags) + -sizeof(StageFlags) % ALIGNMENT
