# SPDX-License-Identifier: Apache-2.0
from .backend cimport ALGO_AUTO
from .buffer cimport SHMEMBuffer
from .job cimport Job

# What has to live until an operation is done.
cdef class Keep:
    cdef object obj

# What the operations have in common: their arguments. Each raises, naming the argument.
cdef int bad_count(str name, size_t count, str other, size_t expected) except -1
cdef int bad_type(str name, str dtype, str other, str expected) except -1
cdef int job_stream(Job job, object stream, void **ptr) except -1
cdef void *local_memory(object obj, str name, SHMEMBuffer like, bint writable, Keep keep, bint *host_side) except? NULL
cdef int meet_on_stream(object team, bint complete, object stream) except -1
# Tell the other members of the team that this PE takes no part in a collective call, and raise its own error.
cdef int fail(object team, int kind, object error, object stream, int algorithm=*) except -1
