# SPDX-License-Identifier: Apache-2.0
# What a function that runs without the GIL says of its failure: filled in C, raised once the GIL is held.
from libc.stdint cimport int32_t

# The codes are those that the C interface returns.
cdef extern from "nvsym/api.h" nogil:
    enum:
        STATUS_OK          "NVSYM_OK"
        STATUS_BACKEND     "NVSYM_ERROR_BACKEND"      # BackendError
        STATUS_COLLECTIVE  "NVSYM_ERROR_COLLECTIVE"   # CollectiveError
        STATUS_TIMEOUT     "NVSYM_ERROR_TIMEOUT"      # PeerTimeoutError
        STATUS_EXITED      "NVSYM_ERROR_EXITED"       # PeerExitedError
        STATUS_UNREACHABLE "NVSYM_ERROR_UNREACHABLE"  # PeerUnreachableError
        STATUS_MEMORY      "NVSYM_ERROR_MEMORY"       # MemoryError
        STATUS_CLOSED      "NVSYM_ERROR_CLOSED"       # NotInitializedError
        STATUS_INTERRUPTED "NVSYM_ERROR_INTERRUPTED"  # KeyboardInterrupt
        STATUS_ARGUMENT    "NVSYM_ERROR_ARGUMENT"     # ValueError

cdef enum:
    STATUS_PES = 16
    STATUS_TEXT = 640

cdef struct Status:
    int     code
    int     npes            # the number of entries in pes
    int32_t pes[STATUS_PES]
    char    text[STATUS_TEXT]

cdef int raise_status(const Status *status) except -1
cdef void status_text(Status *status, int code, const char *text) noexcept nogil
# In the thread in which raise_status will raise it.
cdef void status_interrupted(Status *status, object error, const char *text) noexcept
# What `error` says, for raise_status in another thread.
cdef void status_of(Status *status, object error) noexcept
# The words of an error of any class, which may raise themselves; and such in UTF-8, as many as a status has room for.
cdef str error_text(object error)
cdef bytes text_bytes(str text)
cdef void status_pe(Status *status, int pe) noexcept nogil
