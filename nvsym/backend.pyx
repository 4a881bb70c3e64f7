# SPDX-License-Identifier: Apache-2.0
"""`Backend`: what nvsym needs of a way to move data between PEs (see backend.pxd)."""

from libc.stdint cimport int32_t, uint64_t
from libc.stdlib cimport calloc, free

from .dtypes import DTYPES

from .agreement cimport Agreement
from .types cimport NVSYM_DTYPE_COUNT

COLLECTIVE_NAMES = (None, "barrier", "sync", "broadcast", "fcollect", "alltoall", "reduce", "reducescatter")
ALGORITHMS = ("auto", "one_shot", "two_shot", "multimem", "nvshmem", "mpi")

cdef size_t _sizes[NVSYM_DTYPE_COUNT]
for _element in DTYPES:
    _sizes[<int> _element.id] = _element.itemsize
SIZES = _sizes


cdef class TeamData:
    """A backend's part of a team: its members, and what its collectives need."""

    cdef int set_members(self, object pes, int my_pe) except -1:
        cdef int i
        self.pes = <int32_t *> calloc(len(pes), sizeof(int32_t))
        if self.pes == NULL:
            raise MemoryError("no memory for a team")
        self.n_pes = len(pes)
        self.my_pe = my_pe
        for i in range(self.n_pes):
            self.pes[i] = pes[i]
        self.record.my_pe, self.record.n_pes, self.record.pes = self.my_pe, self.n_pes, self.pes
        return 0

    def __dealloc__(self):
        free(self.pes)


cdef class Backend:
    """The operations of a backend. Abstract: a subclass implements every method of backend.pxd."""

    cdef int start(self, Agreement agreement, object settings, size_t heap_size, object device) except -1:
        raise NotImplementedError

    cdef int stop(self, Agreement agreement) except -1:
        raise NotImplementedError

    cdef int set_exiting(self, int stage) except -1:
        raise NotImplementedError

    cdef int set_failed(self, str reason) except -1:
        raise NotImplementedError

    cdef int check_host_call(self) except -1:
        raise NotImplementedError

    cdef int check_peers(self) except -1:
        raise NotImplementedError

    cdef int check_kernels(self) except -1:
        return 0

    cdef list capabilities(self):
        raise NotImplementedError

    cdef int arena_count(self) except -1:
        raise NotImplementedError

    cdef char *arena_base(self, int arena) except NULL:
        raise NotImplementedError

    cdef size_t arena_size(self, int arena) except 0:
        raise NotImplementedError

    cdef int grow(self, Agreement agreement, size_t nbytes) except -1:
        raise NotImplementedError

    cdef int commit(self, int arena, size_t end) except -1:
        raise NotImplementedError

    cdef object memory_keeper(self):
        raise NotImplementedError

    cdef void *peer_ptr(self, const void *ptr, int pe) noexcept nogil:
        return NULL

    cdef void *multicast_ptr(self, TeamData team, const void *ptr) except? NULL:
        raise NotImplementedError

    cdef int put(self, void *dest, const void *src, size_t nbytes, int pe, void *stream, object keep) except -1:
        raise NotImplementedError

    cdef int get(self, void *dest, const void *src, size_t nbytes, int pe, void *stream, object keep) except -1:
        raise NotImplementedError

    cdef int put_from_host(self, void *dest, const void *src, size_t nbytes, int pe, void *stream, object keep) except -1:
        raise NotImplementedError

    cdef int get_to_host(self, void *dest, const void *src, size_t nbytes, int pe, void *stream, object keep) except -1:
        raise NotImplementedError

    cdef int put_signal(self, void *dest, const void *src, size_t nbytes, uint64_t *sig, uint64_t value, int op,
                        int pe, void *stream, object keep) except -1:
        raise NotImplementedError

    cdef int signal_op(self, uint64_t *sig, uint64_t value, int op, int pe, void *stream, object keep) except -1:
        raise NotImplementedError

    cdef int signal_wait(self, uint64_t *sig, int cmp, uint64_t value, void *stream, object keep) except -1:
        raise NotImplementedError

    cdef int fence(self, void *stream) except -1:
        raise NotImplementedError

    cdef int quiet(self, void *stream) except -1:
        raise NotImplementedError

    cdef int atomic(self, int amo, int dtype, void *dest, const void *operand, const void *cond, void *result,
                    int pe) except -1:
        raise NotImplementedError

    cdef int launch(self, object kernel, list arguments, const unsigned int *grid, const unsigned int *block, size_t shared,
                    bint cooperative, void *stream, object keep) except -1:
        raise NotImplementedError

    cdef TeamData create_team(self, Agreement agreement, object pes, int my_pe):
        raise NotImplementedError

    cdef int destroy_team(self, TeamData team) except -1:
        raise NotImplementedError

    cdef int barrier(self, TeamData team, bint complete, void *stream) except -1:
        raise NotImplementedError

    cdef int broadcast(self, TeamData team, int dtype, void *dest, const void *src, size_t nbytes, int root, void *stream,
                       object keep) except -1:
        raise NotImplementedError

    cdef int fcollect(self, TeamData team, int dtype, void *dest, const void *src, size_t nbytes, void *stream,
                      object keep) except -1:
        raise NotImplementedError

    cdef int alltoall(self, TeamData team, int dtype, void *dest, const void *src, size_t nbytes, void *stream,
                      object keep) except -1:
        raise NotImplementedError

    cdef int reduce(self, TeamData team, int dtype, int op, void *dest, const void *src, size_t count, int algorithm,
                    void *stream, object keep) except -1:
        raise NotImplementedError

    cdef int reducescatter(self, TeamData team, int dtype, int op, void *dest, const void *src, size_t count,
                           void *stream, object keep) except -1:
        raise NotImplementedError

    cdef object why_no_reduce(self, int dtype, int op, int algorithm):
        raise NotImplementedError

    cdef int functions(self, Functions *functions) except -1:
        raise NotImplementedError

    cdef object why_no_multimem(self, TeamData team, int dtype, int op):
        return f"the {self.name} backend has no multicast"

    cdef int reduce_multicast(self, TeamData team, int dtype, int op, void *dest, const void *src, size_t count,
                              const int64_t *delta, int64_t multicast, void *stream, object keep) except -1:
        raise NotImplementedError

    cdef object why_no_reducescatter(self, int dtype, int op):
        return self.why_no_reduce(dtype, op, ALGO_AUTO)

    cdef tuple explain_reduce(self, TeamData team, int dtype, int op, size_t count, int algorithm, bint in_place):
        raise NotImplementedError

    cdef double warm_up(self, object dtypes, object ops) except -1.0:
        return 0.0      # nothing is compiled at run time

    cdef int fail(self, TeamData team, int kind, int algorithm, str reason, void *stream) except -1:
        raise NotImplementedError
