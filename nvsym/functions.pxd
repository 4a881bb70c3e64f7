# SPDX-License-Identifier: Apache-2.0
from .job cimport Job

cdef int enqueue(Job job, object kernel, tuple args, object grid_dim, object block_dim, object shared_mem_bytes, object stream,
                 bint cooperative) except -1
