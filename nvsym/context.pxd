# SPDX-License-Identifier: Apache-2.0
from .job cimport Job

cdef class SHMEMContext:
    cdef Job job

    cdef Job alive(self)
