# SPDX-License-Identifier: Apache-2.0
# Copies between a GPU and pageable host memory, in the order of a stream.

# Enqueue one; the memory must live until the stream is past it. 0: this device cannot do it so, nothing was enqueued. The
# device's context is current, and the stream is not being captured.
cdef int staged_copy(int device, void *dst, const void *src, size_t nbytes, bint to_host, void *stream) except -1
