# SPDX-License-Identifier: Apache-2.0
from .agreement cimport Agreement

cdef class PoolAgreement(Agreement):
    cpdef wait(self, object request, str what)
