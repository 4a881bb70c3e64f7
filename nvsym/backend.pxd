# SPDX-License-Identifier: Apache-2.0
# What a backend must offer. Everything above calls these methods and nothing else of a backend.
#
# Symmetric addresses are the local PE's, as in OpenSHMEM. `stream` is a raw stream of the backend's runtime; NULL is the
# default one. `keep` lives until the operation is done with it. Arguments have been checked by the caller: types, sizes, that
# the PE exists, that the memory is live.
from libc.stdint cimport int32_t, int64_t, uint64_t

from .agreement cimport Agreement
from .device cimport Device
from .runtime cimport Runtime
from .status cimport Status
from .stream cimport Stream

cdef extern from "nvsym/api.h" nogil:
    enum:
        NVSYM_DIRECT_PES

    ctypedef struct nvsym_direct:
        int32_t n_pes
        int32_t my_pe
        int64_t reach[NVSYM_DIRECT_PES]
        int64_t signal_reach[NVSYM_DIRECT_PES]

    ctypedef struct nvsym_team:
        int32_t         my_pe
        int32_t         n_pes
        const int32_t * pes
        void *          state

    ctypedef const nvsym_team *nvsym_team_t

# What the C interface calls of a backend, without the GIL and from any thread. `ctx` is the backend's. A function returns 0, or
# -1 after it has filled the status. Checked by the caller: that there is a job, the PE, operators and comparisons, that
# symmetric addresses are some (by `symmetric`), that operands do not overlap. A stream of NULL is the job's default one.
cdef struct Functions:
    void *       ctx            # NULL: there is no job
    void *       world          # nvsym_team of TEAM_WORLD
    int          algorithm      # of an allreduce that names none
    nvsym_direct direct         # zeros at first: nobody is in reach
    bint   (*symmetric)(void *ctx, const void *ptr, size_t nbytes) noexcept nogil
    void * (*peer_ptr)(void *ctx, const void *ptr, int pe) noexcept nogil
    int    (*put)(void *ctx, void *dest, const void *src, size_t nbytes, int pe, void *stream, Status *status) noexcept nogil
    int    (*get)(void *ctx, void *dest, const void *src, size_t nbytes, int pe, void *stream, Status *status) noexcept nogil
    int    (*put_signal)(void *ctx, void *dest, const void *src, size_t nbytes, uint64_t *sig, uint64_t value, int op, int pe,
                         void *stream, Status *status) noexcept nogil
    int    (*signal_op)(void *ctx, uint64_t *sig, uint64_t value, int op, int pe, void *stream, Status *status) noexcept nogil
    int    (*signal_wait)(void *ctx, uint64_t *sig, int cmp, uint64_t value, void *stream, Status *status) noexcept nogil
    int    (*quiet)(void *ctx, void *stream, Status *status) noexcept nogil
    int    (*barrier)(void *ctx, nvsym_team_t team, bint complete, void *stream, Status *status) noexcept nogil
    int    (*reduce)(void *ctx, nvsym_team_t team, int dtype, int op, void *dest, const void *src, size_t count,
                     int algorithm, void *stream, Status *status) noexcept nogil
    # This PE's part of a reduction failed before it began, for the reason in the status: tell the others.
    void   (*fail_reduce)(void *ctx, nvsym_team_t team, int algorithm, void *stream, const Status *status) noexcept nogil

cdef size_t *SIZES      # bytes of an element, by enum nvsym_dtype

# Kinds of collective calls, as they are announced and named in messages.
cdef enum Collective:
    COLL_BARRIER = 1
    COLL_SYNC
    COLL_BROADCAST
    COLL_FCOLLECT
    COLL_ALLTOALL
    COLL_REDUCE
    COLL_REDUCESCATTER
    COLL_COUNT

cdef enum Algorithm:
    ALGO_AUTO = 0
    ALGO_ONE_SHOT
    ALGO_TWO_SHOT
    ALGO_MULTIMEM
    ALGO_NVSHMEM
    ALGO_MPI
    ALGO_COUNT

# How far a PE is with ending the job.
cdef enum ExitStage:
    EXIT_NONE = 0
    EXIT_DRAINING       # what it enqueued still runs
    EXIT_DRAINED        # nothing can come from it any more

# The backend's part of a team. Subclassed by each backend.
cdef class TeamData:
    cdef int           my_pe        # this PE's number in the team
    cdef int           n_pes
    cdef int32_t *     pes          # world numbers of the members
    cdef nvsym_team    record       # the same for the C interface; `state` is set by the backend

    cdef int set_members(self, object pes, int my_pe) except -1


cdef class Backend:
    cdef readonly str    name
    cdef readonly int    my_pe
    cdef readonly int    n_pes
    cdef readonly Device device
    cdef readonly Stream stream     # the default one of the job
    cdef readonly list   devices    # one Device per PE
    cdef readonly list   nodes      # the number of each PE's node
    cdef readonly list   facts      # of the GPU of each PE, for multicast (DeviceFacts); None in host memory
    cdef Runtime         runtime
    cdef str             bootstrap  # how NVSHMEM's PEs find each other; set before `start`

    # The job. `start` is collective and votes over each step; `stop` is collective and called once all PEs have agreed.
    cdef int    start(self, Agreement agreement, object settings, size_t heap_size, object device) except -1
    cdef int    stop(self, Agreement agreement) except -1
    cdef int    set_exiting(self, int stage) except -1              # what the PEs that wait for this one are told (ExitStage)
    cdef int    set_failed(self, str reason) except -1              # the same for a PE that is about to abort the job
    cdef int    check_host_call(self) except -1                     # raises where memory and teams cannot be made now
    cdef int    check_peers(self) except -1                         # raises PeerExitedError if a PE is gone
    cdef int    check_kernels(self) except -1                       # raises what a kernel has given up for, each time
    cdef list   capabilities(self)                                  # (name, bool, why or how)

    # The symmetric heap: arenas of the same size on every PE. `commit` backs the first `end` bytes with memory; local.
    cdef int    arena_count(self) except -1
    cdef char * arena_base(self, int arena) except NULL
    cdef size_t arena_size(self, int arena) except 0
    cdef int    grow(self, Agreement agreement, size_t nbytes) except -1    # 1: another arena that holds nbytes; 0: no
    cdef int    commit(self, int arena, size_t end) except -1
    cdef object memory_keeper(self)                                 # what keeps the heap mapped for arrays over it

    cdef void * peer_ptr(self, const void *ptr, int pe) noexcept nogil      # NULL: not addressable
    cdef void * multicast_ptr(self, TeamData team, const void *ptr) except? NULL    # NULL: capabilities() says why

    # One-sided
    cdef int put(self, void *dest, const void *src, size_t nbytes, int pe, void *stream, object keep) except -1
    cdef int get(self, void *dest, const void *src, size_t nbytes, int pe, void *stream, object keep) except -1
    # The same where the local side is host memory that is not symmetric.
    cdef int put_from_host(self, void *dest, const void *src, size_t nbytes, int pe, void *stream, object keep) except -1
    cdef int get_to_host(self, void *dest, const void *src, size_t nbytes, int pe, void *stream, object keep) except -1
    cdef int put_signal(self, void *dest, const void *src, size_t nbytes, uint64_t *sig, uint64_t value, int op, int pe,
                        void *stream, object keep) except -1
    cdef int signal_op(self, uint64_t *sig, uint64_t value, int op, int pe, void *stream, object keep) except -1
    cdef int signal_wait(self, uint64_t *sig, int cmp, uint64_t value, void *stream, object keep) except -1
    cdef int fence(self, void *stream) except -1
    cdef int quiet(self, void *stream) except -1
    # In the order of the default stream; done, with the old value in `result` (may be NULL), when the call returns.
    cdef int atomic(self, int amo, int dtype, void *dest, const void *operand, const void *cond, void *result,
                    int pe) except -1

    # A kernel of the user's. On a GPU `arguments` are NumPy scalars, bytes and Python numbers, buffers as their addresses; in
    # host memory what the callable takes.
    cdef int launch(self, object kernel, list arguments, const unsigned int *grid, const unsigned int *block, size_t shared,
                    bint cooperative, void *stream, object keep) except -1

    # Teams and collectives. What is only moved is counted in bytes; its type is for the PEs to compare.
    cdef TeamData create_team(self, Agreement agreement, object pes, int my_pe)
    cdef int destroy_team(self, TeamData team) except -1
    cdef int barrier(self, TeamData team, bint complete, void *stream) except -1
    cdef int broadcast(self, TeamData team, int dtype, void *dest, const void *src, size_t nbytes, int root, void *stream,
                       object keep) except -1
    cdef int fcollect(self, TeamData team, int dtype, void *dest, const void *src, size_t nbytes, void *stream,
                      object keep) except -1
    cdef int alltoall(self, TeamData team, int dtype, void *dest, const void *src, size_t nbytes, void *stream,
                      object keep) except -1
    cdef int reduce(self, TeamData team, int dtype, int op, void *dest, const void *src, size_t count, int algorithm,
                    void *stream, object keep) except -1
    cdef int reducescatter(self, TeamData team, int dtype, int op, void *dest, const void *src, size_t count,
                           void *stream, object keep) except -1
    cdef object why_no_reduce(self, int dtype, int op, int algorithm)       # None, or why it cannot be done
    cdef int functions(self, Functions *functions) except -1        # all but `world` and `algorithm`; valid until `stop`
    # Allreduce through a multicast address of memory that is not on the symmetric heap: `delta` leads from this PE's memory to that
    # of each member, `multicast` to the multicast address.
    cdef object why_no_multimem(self, TeamData team, int dtype, int op)
    cdef int reduce_multicast(self, TeamData team, int dtype, int op, void *dest, const void *src, size_t count,
                              const int64_t *delta, int64_t multicast, void *stream, object keep) except -1
    cdef object why_no_reducescatter(self, int dtype, int op)
    # (algorithm, why, {algorithm: when}) of what `reduce` does with an algorithm that can be used; moves nothing.
    cdef tuple explain_reduce(self, TeamData team, int dtype, int op, size_t count, int algorithm, bint in_place)
    # Compile and load what the collectives of these types and operators (DType, Op) need; the seconds that it took. Local.
    cdef double warm_up(self, object dtypes, object ops) except -1.0
    # This PE's part of a collective call failed before it began: tell the others, where they can be told, in the call's place in
    # the order of the stream.
    cdef int fail(self, TeamData team, int kind, int algorithm, str reason, void *stream) except -1
