# SPDX-License-Identifier: Apache-2.0
from .memory cimport Buffer
from .team cimport Team

# Allreduce of views of a SymmetricPool, by the NVLink switch.
cdef int reduce_in_pool(Buffer dest, object source, int op, Team team, object stream) except -1
