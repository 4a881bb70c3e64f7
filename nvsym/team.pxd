# SPDX-License-Identifier: Apache-2.0
from .agreement cimport Agreement
from .backend cimport TeamData
from .job cimport Job

cdef class Team:
    cdef Job           job          # None: not of a running job
    cdef TeamData      data
    cdef Agreement     agreement
    cdef readonly str  name
    cdef bint          predefined
    cdef str           ended        # why it cannot be used

    cdef int check(self) except -1
    cdef object communicator(self, list members)
    cdef Team join(self, object comm, list members, str name)
    cdef int leave(self, str why) except -1

cdef Team as_team(object team, str name)
# An argument that is the number of one of the team's PEs.
cdef int as_member(Team team, object pe, str name) except -1
cdef int attach_predefined(Job job) except -1
cdef int detach_predefined() except -1
cdef Team world_team()
