# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t

cdef enum:
    FIELDS = 12     # int64 fields of a record

cdef class Agreement:
    cdef readonly object comm
    cdef readonly int    rank
    cdef readonly int    size
    cdef readonly list   names      # what messages call each member: "PE 3 (node n2)"
    cdef double          limit      # seconds a wait may last; 0: no limit
    cdef object          watch      # called now and then while waiting; raises if a peer is gone
    cdef str             broken     # why there is no agreement any more
    cdef str             waiting    # the call that waits for the others
    cdef object          out_array
    cdef object          in_array
    cdef int64_t[::1]    out        # the record this PE sends
    cdef int64_t[:, ::1] all        # the records of all, after exchange()

    cdef int exchange(self, str what) except -1
    cdef int left(self, str what, object error) except -1
    cpdef wait(self, object request, str what)
