# SPDX-License-Identifier: Apache-2.0
from .runtime cimport Runtime

cdef class Device:
    cdef Runtime         runtime
    cdef readonly int    ordinal    # the GPU's number in the process of its PE, or in this one; -1 for host memory
    cdef readonly int    pe         # the PE that owns it, or -1
    cdef readonly bint   is_host
    cdef readonly str    name
    cdef readonly str    uuid
    cdef readonly int    dlpack_type
    cdef bint            foreign    # another PE's, whose process counts its GPUs by itself

    cdef int check(self) except -1
    # What this process knows the device by: -1 for host memory, and for a GPU that it does not see.
    cdef int number(self) except -2
    # The same; raises where it does not see it.
    cdef int here(self) except -2

    # Whether the memory of `other` can be addressed and takes atomic operations of this GPU. False if it is not seen here.
    cdef bint takes_atomics(self, Device other) except -1
    # Whether this process sees both GPUs, and the driver's handles of them.
    cdef bint sees(self, Device other, int *own, int *its) except -1

cdef Device host_device(int pe, str node)
cdef Device cuda_device(int ordinal, int pe)
# An argument that is the number of a GPU; `expected`: what else it could be, in words.
cdef int as_ordinal(object value, str name, str expected) except -1
