# SPDX-License-Identifier: Apache-2.0
"""Copies of pageable host memory through pinned blocks, asynchronous and at nearly the speed of pinned memory.

The driver copies pageable memory itself at about a tenth of that speed, and a copy to the host blocks the caller until it is
done. Here threads copy between the pageable memory and a ring of pinned blocks (staging.h), while the stream copies the
blocks and waits for each by its own memory operations. Everything that the stream does is enqueued at once, so what is
enqueued behind the copy is behind all of it.
"""

import os

from libc.stdint cimport uint64_t

from ._driver cimport CHECK_CUDA, cuda
from .libcuda cimport (
    CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, CU_EVENT_DISABLE_TIMING, CU_MEMHOSTALLOC_PORTABLE,
    CU_STREAM_NON_BLOCKING, CU_STREAM_WAIT_VALUE_GEQ, CU_STREAM_WRITE_VALUE_DEFAULT, CUdeviceptr)

cdef extern from "staging.h" nogil:
    ctypedef struct staging_ring:
        size_t   block
        uint64_t slots
        void *   stream
        void *   lane
        void *   fork
        int      lane_device
    ctypedef struct staging_pool:
        pass
    enum:
        STAGING_THREADS
    void *staging_ready(const staging_ring *ring, uint64_t number)
    void *staging_done(const staging_ring *ring, uint64_t number)
    void *staging_reached(const staging_ring *ring)
    int staging_arriving(staging_pool *pool, const void *host, size_t nbytes)
    char *staging_block(const staging_ring *ring, uint64_t number)
    size_t staging_size(size_t block, uint64_t slots)
    staging_pool *staging_pool_new()
    int staging_start(staging_pool *pool, int threads)
    staging_ring *staging_ring_new(staging_pool *pool, void *pinned, size_t block, uint64_t slots)
    staging_ring *staging_take(staging_pool *pool, void *stream, size_t block)
    uint64_t staging_submit(staging_pool *pool, staging_ring *ring, void *host, size_t nbytes, int to_host,
                            int in_order)
    void staging_release(staging_pool *pool, staging_ring *ring)
    void staging_abandon(staging_pool *pool, staging_ring *ring)

cdef enum:
    MAX_DEVICES  = 64
    SLOTS        = 16           # blocks of a ring,
    SLOTS_LARGE  = 8            # of blocks above BLOCK
    SMALL_BLOCK  = 256 << 10
    BLOCK        = 2 << 20
    LARGEST      = 32 << 20
    MOST_BLOCKS  = 64           # of a copy, up to the largest block: what a stream holds without making its caller wait
    LANES_FROM   = 4            # blocks of a copy that goes by two streams

cdef staging_pool *_pool = NULL
cdef signed char _able[MAX_DEVICES]     # 0: not asked yet


cdef size_t block_for(size_t nbytes) noexcept:
    """The bytes of a block: small copies take little pinned memory, and very large ones fit into a stream's queue."""
    if nbytes <= 4 * SMALL_BLOCK:
        return SMALL_BLOCK
    cdef size_t block = BLOCK
    while block < LARGEST and nbytes > block * MOST_BLOCKS:
        block *= 2
    return block


cdef bint able(int device) except -1:
    cdef int value = 0, handle = 0
    if _able[device] == 0:
        CHECK_CUDA(cuda.cuDeviceGet(&handle, device), b"cuDeviceGet")
        # A driver that does not know the attribute has no such operations.
        if cuda.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, handle) != 0:
            value = 0
        _able[device] = 1 if value else -1
    return _able[device] > 0


cdef staging_ring *take_ring(size_t nbytes, void *stream, bint may_allocate) except? NULL:
    global _pool
    cdef void *pinned = NULL
    cdef size_t block = block_for(nbytes)
    cdef uint64_t slots = SLOTS if block <= BLOCK else SLOTS_LARGE
    cdef staging_ring *ring
    if _pool == NULL:
        _pool = staging_pool_new()
        if _pool == NULL:
            raise MemoryError("no memory for the threads that copy pageable memory")
    if staging_start(_pool, max(1, min(<int> STAGING_THREADS, len(os.sched_getaffinity(0)) - 1))) == 0:
        raise MemoryError("no thread could be started to copy pageable memory")
    ring = staging_take(_pool, stream, block)
    if ring == NULL and may_allocate:
        with nogil:
            CHECK_CUDA(cuda.cuMemHostAlloc(&pinned, staging_size(block, slots), CU_MEMHOSTALLOC_PORTABLE),
                       b"cuMemHostAlloc")
        ring = staging_ring_new(_pool, pinned, block, slots)
        if ring == NULL:
            raise MemoryError("no memory for a ring of pinned blocks")
        ring.stream = stream
    return ring


cdef int open_lane(staging_ring *ring, int device) except -1:
    """The second stream of a ring, on the current context, that of `device`."""
    if ring.lane != NULL and ring.lane_device == device:
        return 0
    if ring.lane != NULL:       # the ring was idle, or it would not have come to another device's stream
        CHECK_CUDA(cuda.cuStreamDestroy(ring.lane), b"cuStreamDestroy")
        ring.lane = NULL
        CHECK_CUDA(cuda.cuEventDestroy(ring.fork), b"cuEventDestroy")
        ring.fork = NULL
    if ring.fork == NULL:
        CHECK_CUDA(cuda.cuEventCreate(&ring.fork, CU_EVENT_DISABLE_TIMING), b"cuEventCreate")
    CHECK_CUDA(cuda.cuStreamCreate(&ring.lane, CU_STREAM_NON_BLOCKING), b"cuStreamCreate")
    ring.lane_device = device
    return 0


cdef int join(void *behind, void *before, void *event) except -1 nogil:
    """Let the stream `behind` go on when what is on `before` is done."""
    CHECK_CUDA(cuda.cuEventRecord(event, before), b"cuEventRecord")
    CHECK_CUDA(cuda.cuStreamWaitEvent(behind, event, 0), b"cuStreamWaitEvent")
    return 0


cdef int enqueue(staging_ring *ring, char *device, uint64_t first, size_t nbytes, bint to_host, bint in_order, void *main) except -1 nogil:
    """Put the copies of the blocks on the stream, each between a wait for the host and the word to it.

    Between two copies on one stream the link idles for the wait and the word. So a large copy goes by two streams in turn.
    """
    cdef uint64_t number = first, slots = ring.slots, last
    cdef size_t left = nbytes, now
    cdef bint two = nbytes > LANES_FROM * ring.block
    cdef void *stream
    if in_order:        # only now may the host memory be read
        CHECK_CUDA(cuda.cuStreamWriteValue64(main, <CUdeviceptr> staging_reached(ring), first, CU_STREAM_WRITE_VALUE_DEFAULT),
                   b"cuStreamWriteValue64")
    if two:
        join(ring.lane, main, ring.fork)
    while left > 0:
        now = min(left, ring.block)
        stream = ring.lane if two and (number - first) % 2 else main
        # To the device a block must have been filled; to the host, have been emptied of what it held before.
        if not to_host:
            CHECK_CUDA(cuda.cuStreamWaitValue64(stream, <CUdeviceptr> staging_ready(ring, number), number,
                                                CU_STREAM_WAIT_VALUE_GEQ), b"cuStreamWaitValue64")
            CHECK_CUDA(cuda.cuMemcpyAsync(<CUdeviceptr> device, <CUdeviceptr> staging_block(ring, number), now, stream),
                       b"cuMemcpyAsync")
        else:
            if number > slots:
                CHECK_CUDA(cuda.cuStreamWaitValue64(stream, <CUdeviceptr> staging_ready(ring, number), number - slots,
                                                    CU_STREAM_WAIT_VALUE_GEQ), b"cuStreamWaitValue64")
            CHECK_CUDA(cuda.cuMemcpyAsync(<CUdeviceptr> staging_block(ring, number), <CUdeviceptr> device, now, stream),
                       b"cuMemcpyAsync")
        CHECK_CUDA(cuda.cuStreamWriteValue64(stream, <CUdeviceptr> staging_done(ring, number), number,
                                             CU_STREAM_WRITE_VALUE_DEFAULT), b"cuStreamWriteValue64")
        device += now
        left -= now
        number += 1
    if two:
        join(main, ring.lane, ring.fork)
    if to_host:
        # The stream is past the copy when the last block has left its slot, in every slot.
        last = number - 1
        number = first if last - first < slots else last - slots + 1
        while number <= last:
            CHECK_CUDA(cuda.cuStreamWaitValue64(main, <CUdeviceptr> staging_ready(ring, number), number,
                                                CU_STREAM_WAIT_VALUE_GEQ), b"cuStreamWaitValue64")
            number += 1
    return 0


cdef bint follows_staged(const void *host, size_t nbytes) noexcept:
    return _pool != NULL and staging_arriving(_pool, host, nbytes) != 0


cdef int staged_copy(int device, void *dst, const void *src, size_t nbytes, bint to_host, void *stream, bint may_allocate) except -1:
    cdef staging_ring *ring
    cdef uint64_t first
    cdef bint in_order = not to_host and follows_staged(src, nbytes)
    if not able(device):
        return 0
    ring = take_ring(nbytes, stream, may_allocate)
    if ring == NULL:
        return 0
    try:
        open_lane(ring, device)
    except BaseException:
        staging_release(_pool, ring)
        raise
    first = staging_submit(_pool, ring, dst if to_host else <void *> src, nbytes, to_host, in_order)
    if first == 0:
        staging_release(_pool, ring)
        raise MemoryError("no memory for a copy of pageable memory")
    try:
        with nogil:
            enqueue(ring, <char *> src if to_host else <char *> dst, first, nbytes, to_host, in_order, stream)
    except BaseException:
        staging_abandon(_pool, ring)
        raise
    staging_release(_pool, ring)
    return 1
