# SPDX-License-Identifier: Apache-2.0
# Copies between a GPU and pageable host memory, in the order of a stream.

# Enqueue one; the memory must live until the stream is past it. 0: this device cannot do it so, nothing was enqueued. The
# device's context is current, and the stream is not being captured. `may_allocate`: whether pinned memory may be had for it, where there is
# none that is idle; not while any stream is captured.
cdef int staged_copy(int device, void *dst, const void *src, size_t nbytes, bint to_host, void *stream, bint may_allocate) except -1

# Whether a staged copy to this host memory is still under way. One from it has to be staged as well, then in the order of its stream.
cdef bint follows_staged(const void *host, size_t nbytes) noexcept
