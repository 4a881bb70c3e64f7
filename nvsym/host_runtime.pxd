# SPDX-License-Identifier: Apache-2.0
from .runtime cimport Runtime
from .status cimport Status

# An operation on a stream in host memory. Returns non-zero after filling the status.
ctypedef int (*host_op)(void *payload, Status *status) noexcept nogil

cdef class HostRuntime(Runtime):
    # Enqueue `op` with a copy of its payload on a stream other than the default one, which has no queue. Runs no Python code, so
    # what the caller has checked is so still; call reap() before. `skip` runs in the place of `op` if an operation before it on the
    # stream has failed; NULL: nothing does.
    cdef int push(self, void *stream, host_op op, host_op skip, const void *payload, size_t nbytes, object keep) except -1

cdef HostRuntime get_host_runtime()

# Whether this thread runs an operation of a stream, such as a function that was enqueued there.
cdef bint inside_operation() noexcept nogil

# The same without the GIL, where nothing has to be kept alive. Returns 0, or -1 with the reason in `status`. `run_now`: the
# stream is the default one, and nothing was enqueued.
cdef int enqueue(void *stream, host_op op, host_op skip, const void *payload, size_t nbytes, bint *run_now,
                 Status *status) noexcept nogil
