# SPDX-License-Identifier: Apache-2.0
"""Allreduce of many bytes of two PEs: copy engines send, kernels reduce. See include/nvsym/staged.cuh.

Over a link a copy engine stores faster than kernels load or store, and it leaves the processors to others.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

import os

from .._settings import parse_size

from .._driver cimport CHECK_CUDA, cuda
from ..cuda_runtime cimport CudaRuntime
from ..libcuda cimport CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING, CUdeviceptr, CUfunction, CUstream

cdef enum:
    CHUNK   = 32 << 20      # bytes: between two copies of a stream a flag has to be told and awaited
    LEAST   = 1 << 30       # bytes from which that was faster than two shot, over 18 links of the fourth generation of NVLink
    SLOTS   = 4             # chunks on their way, or waiting to be reduced
    THREADS = 512           # of a block that reduces
    # Flags of nvsym::Pad::staged: chunks that came by lane 0, by lane 1; chunks that the peer has taken.
    TAKEN   = 2
    NO_FLAG = 3

# nvsym::Turn
cdef struct Turn:
    uint32_t told, tell, awaited, chunks, done


cdef class StagedCopies:

    def __init__(self, CudaRuntime gpu not None, int ordinal):
        self.gpu = gpu
        self.ordinal = ordinal
        self.chunk = parse_size(os.environ.get("NVSYM_TEST_CHUNK", CHUNK))
        self.least = parse_size(os.environ.get("NVSYM_TEST_STAGED", LEAST))
        self.stride = self.chunk + 256      # the operands may begin anywhere in a pack

    cdef size_t slot_bytes(self):
        return SLOTS * self.stride

    cdef int open(self, char *slots) except -1:
        self.slots = slots
        self.gpu.use(self.ordinal)
        for i in range(2):
            CHECK_CUDA(cuda.cuStreamCreate(&self.lanes[i], CU_STREAM_NON_BLOCKING), b"cuStreamCreate")
            CHECK_CUDA(cuda.cuEventCreate(&self.events[i], CU_EVENT_DISABLE_TIMING), b"cuEventCreate")
        return 0

    cdef int close(self) except -1:
        for i in range(2):
            if self.lanes[i] != NULL:
                CHECK_CUDA(cuda.cuStreamDestroy(self.lanes[i]), b"cuStreamDestroy")
                self.lanes[i] = NULL
            if self.events[i] != NULL:
                CHECK_CUDA(cuda.cuEventDestroy(self.events[i]), b"cuEventDestroy")
                self.events[i] = NULL
        return 0

    cdef int enqueue(self, CUfunction turn, CUfunction fold, void *team, int64_t delta, unsigned int blocks, char *dst,
                     const char *src, size_t nbytes, size_t itemsize, CUstream stream) except -1:
        cdef uint32_t i, n = <uint32_t> ((nbytes + self.chunk - 1) // self.chunk)
        cdef size_t first = <size_t> src & 15
        cdef int lane
        with nogil:
            self.fork(stream)
            for i in range(n):
                lane = i % 2
                # The slot is free when the peer has taken what was in it: in this call, or in all calls before.
                take_turn(turn, team, lane if i >= 2 else NO_FLAG, i - 1, TAKEN, i - SLOTS + 1 if i >= SLOTS else 0, 0,
                          self.lanes[lane])
                CHECK_CUDA(cuda.cuMemcpyAsync(<CUdeviceptr> (self.slots + i % SLOTS * self.stride + first + delta),
                                              <CUdeviceptr> (src + i * self.chunk), min(self.chunk, nbytes - i * self.chunk),
                                              self.lanes[lane]), b"cuMemcpyAsync")
                # In place, what is reduced overwrites what was sent.
                CHECK_CUDA(cuda.cuEventRecord(self.events[lane], self.lanes[lane]), b"cuEventRecord")
                CHECK_CUDA(cuda.cuStreamWaitEvent(stream, self.events[lane], 0), b"cuStreamWaitEvent")
                if i + 2 >= n:
                    take_turn(turn, team, lane, i + 1, NO_FLAG, 0, 0, self.lanes[lane])
                take_turn(turn, team, TAKEN if i > 0 else NO_FLAG, i, lane, i + 1, 0, stream)
                self.fold_chunk(fold, team, blocks, dst + i * self.chunk, src + i * self.chunk,
                                self.slots + i % SLOTS * self.stride + first, min(self.chunk, nbytes - i * self.chunk) // itemsize,
                                itemsize, stream)
            self.join(stream)
            take_turn(turn, team, TAKEN, n, NO_FLAG, 0, n, stream)
        return 0

    cdef int fork(self, CUstream stream) except -1 nogil:
        CHECK_CUDA(cuda.cuEventRecord(self.events[0], stream), b"cuEventRecord")
        for lane in range(2):
            CHECK_CUDA(cuda.cuStreamWaitEvent(self.lanes[lane], self.events[0], 0), b"cuStreamWaitEvent")
        return 0

    cdef int join(self, CUstream stream) except -1 nogil:
        for lane in range(2):
            CHECK_CUDA(cuda.cuEventRecord(self.events[lane], self.lanes[lane]), b"cuEventRecord")
            CHECK_CUDA(cuda.cuStreamWaitEvent(stream, self.events[lane], 0), b"cuStreamWaitEvent")
        return 0

    cdef int fold_chunk(self, CUfunction fold, void *team, unsigned int blocks, char *dst, const char *src, const char *slot,
                        uint64_t count, size_t itemsize, CUstream stream) except -1 nogil:
        cdef void *arguments[5]
        cdef size_t work = (count * itemsize + 16 * THREADS - 1) // (16 * THREADS)
        arguments[0], arguments[1], arguments[2], arguments[3], arguments[4] = &dst, &src, &slot, &count, team
        return CHECK_CUDA(cuda.cuLaunchKernel(fold, min(blocks, <unsigned int> work), 1, 1, THREADS, 1, 1, 0, stream, arguments,
                                              NULL), b"cuLaunchKernel")


cdef int take_turn(CUfunction turn, void *team, uint32_t told, uint32_t tell, uint32_t awaited, uint32_t chunks, uint32_t done,
                   CUstream stream) except -1 nogil:
    cdef Turn what
    cdef void *arguments[2]
    what.told, what.tell, what.awaited, what.chunks, what.done = told, tell, awaited, chunks, done
    arguments[0], arguments[1] = &what, team
    return CHECK_CUDA(cuda.cuLaunchKernel(turn, 1, 1, 1, 32, 1, 1, 0, stream, arguments, NULL), b"cuLaunchKernel")
