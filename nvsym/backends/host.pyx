# SPDX-License-Identifier: Apache-2.0
"""The host backend: symmetric memory in the shared segment of a node, and in MPI windows between nodes.

Inside a node, puts and gets are copies, signals and atomics are processor atomics, and collectives read the memory of the
other PEs straight. PEs meet through flags in the segment: each announces a call with its arguments and a growing epoch
number, so that the others can wait for it and see whether their call goes with it (host_sync.h).
"""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strlen, strncat, strncpy

import os
import socket
import threading

from .._settings import format_size
from ..backend import ALGORITHMS, COLLECTIVE_NAMES
from ..dtypes import DTYPES, OPS, float8_tables
from ..errors import BackendError, NotInitializedError, NVSymError
from .host_mpi import InterNode, TeamComm
from .host_segment import Segment

from ..agreement cimport Agreement
from ..backend cimport (
    ALGO_AUTO, ALGO_MPI, ALGO_MULTIMEM, ALGO_NVSHMEM, ALGO_ONE_SHOT, COLL_ALLTOALL, COLL_BARRIER,
    COLL_BROADCAST, COLL_FCOLLECT, COLL_REDUCE, COLL_REDUCESCATTER, COLL_SYNC, EXIT_DRAINED, EXIT_DRAINING, NVSYM_DIRECT_PES, SIZES,
    Backend, Functions, TeamData, nvsym_team_t)
from ..device cimport host_device
from ..host_runtime cimport HostRuntime, enqueue, get_host_runtime, host_op, inside_operation
from ..status cimport (
    STATUS_BACKEND, STATUS_CLOSED, STATUS_COLLECTIVE, STATUS_EXITED, STATUS_INTERRUPTED, STATUS_TEXT, STATUS_TIMEOUT, Status,
    raise_status, status_interrupted, status_of, status_pe, status_text, text_bytes)
from ..stream cimport borrow_stream
from ..types cimport NVSYM_CMP_GE, NVSYM_DTYPE_COUNT, NVSYM_SIGNAL_ADD

cdef extern from "host_sync.h" nogil:
    enum:
        NVSYM_STAGE
        NVSYM_INLINE
        NVSYM_PE_RUNNING
        NVSYM_PE_DRAINING
        NVSYM_PE_EXITING
        NVSYM_PE_FAILED

    ctypedef struct nvsym_pe_ctl:
        uint32_t state
        int32_t  pid
        char     reason[504]

    ctypedef struct nvsym_call:
        uint32_t kind
        int32_t  arg
        uint32_t dtype
        uint32_t failed
        uint64_t count
        int64_t  src
        int64_t  dst

    ctypedef struct nvsym_team_ctl:
        uint64_t      arrived
        nvsym_call    call[2]
        unsigned char small[2][16]
        uint64_t      departed
        unsigned char stage[2][16384]

    unsigned char *nvsym_payload(nvsym_team_ctl *ctl, int parity, size_t nbytes)
    uint64_t nvsym_load(const uint64_t *p)
    void     nvsym_store(uint64_t *p, uint64_t v)
    uint32_t nvsym_load32(const uint32_t *p)
    void     nvsym_store32(uint32_t *p, uint32_t v)
    void     nvsym_add32(uint32_t *p, int32_t n)
    uint64_t nvsym_next(uint64_t *p)                    # adds one and returns what was there
    uint64_t nvsym_self()                               # which thread this is

    ctypedef struct nvsym_numbers:
        uint64_t first      # all below it are done

    bint     nvsym_count_done(nvsym_numbers *n, uint64_t number)    # whether those before it had to be counted as well
    void     nvsym_fence()
    bint     nvsym_try_lock(uint32_t *p)
    void     nvsym_unlock(uint32_t *p)
    void     nvsym_pause()
    int64_t  nvsym_now()
    void     nvsym_sleep(int64_t ns)
    bint     nvsym_pid_gone(int32_t pid)
    bint     nvsym_compare(uint64_t a, int cmp, uint64_t b)
    void     nvsym_signal(uint64_t *p, uint64_t value, int op)
    int      nvsym_amo(int amo, int dtype, void *p, const void *operand, const void *cond, void *result)

cdef extern from "host_reduce.h" nogil:
    ctypedef void (*nvsym_reduce_fn)(void *const *dst, int ndst, const void *const *src, int nsrc, size_t n)
    nvsym_reduce_fn nvsym_host_reduce(int dtype, int op)
    int nvsym_f8_table(int dtype, const float *decode, const uint32_t *thresholds, const uint8_t *positive,
                       const uint8_t *negative, int n)

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "<stdio.h>" nogil:
    int snprintf(char *text, size_t size, const char *format, ...)

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1

cdef enum:
    PAGE              = 4096
    COMMIT_STEP       = 4 << 20      # bytes that the heap is backed with at a time
    RELEASE_GIL_ABOVE = 65536        # bytes; shorter copies cost less than giving the GIL away and taking it back
    SPIN              = 2000         # polls before yielding, where every PE of the node can have a core
    SPIN_SHORT        = 20           # the same where PEs share cores
    SLEEP_AFTER       = 1_000_000    # nanoseconds of yielding before a waiting PE sleeps between polls
    PATIENCE          = 5000         # milliseconds that the end of a job waits for threads to leave its memory
    WATCH_PERIOD      = 20_000_000   # nanoseconds between two looks at the peers
    SHARE_ALIGN       = 64           # bytes: PEs write different cache lines of a result
    ONE_SHOT          = 2048         # bytes: one meeting and more copying, or two meetings; measured
    ONE_SHOT_SHARED   = 8192         # the same where PEs share cores and a meeting costs more

cdef uint32_t NO_TYPE = NVSYM_DTYPE_COUNT
cdef int64_t EXIT_GRACE = 5_000_000_000     # nanoseconds that a wait on a stream goes on when only this PE is left


# What the functions that run without the GIL need of the backend and of a team.
cdef struct HostState:
    void *    backend       # the HostBackend, for those that take the GIL
    char *    base          # the segment
    char *    region        # this PE's part of it
    size_t    stride
    int       my_pe
    int       n_pes
    int       n_local
    int32_t * local_of      # position in the segment of each PE, -1: on another node
    int32_t * pe_of         # and back
    int64_t * delta         # from this PE's region to that of each PE of the node
    int       spin
    char *    heap          # this PE's
    size_t    heap_bytes
    size_t    one_shot      # bytes up to which an allreduce takes one meeting of the PEs and copies more
    int64_t   limit         # nanoseconds that a wait may last; 0: no limit
    uint32_t  closing       # the memory is about to go
    bint      several_nodes
    bint      see_pids      # the PEs of the node see each other's process numbers

cdef struct TeamState:
    HostState *        host
    void *             team         # the HostTeam
    int                me
    int                n
    int32_t *          pes
    bint               inside       # all members are on this node
    nvsym_team_ctl **  ctl          # of each member, where inside
    uint64_t           epoch
    uint32_t           busy
    uint32_t           queued       # calls on streams that have not run yet
    uint64_t           holder       # the thread that has `busy`
    # Bad calls of this PE, of which the others have to be told: those made, and those told or skipped. They are told in the order in
    # which they were made, and a call that is made behind one waits until it has been, whatever streams they are on; but for calls
    # that a function on a stream makes: what was refused meanwhile may be behind it.
    uint64_t           refused
    nvsym_numbers      told
    bint               broken
    bint               ahead        # the last epoch was announced without waiting for the others
    const void **      src          # scratch, n each
    void **            dst

cdef struct HostOp:
    HostState *  host
    TeamState *  team
    int          kind
    int          pe                 # or root
    int          op                 # signal operation, reduction operator, or comparison
    int          dtype
    int          algorithm
    bint         complete
    bint         blocks             # the caller waits for it
    char *       dest
    const char * src
    size_t       nbytes             # of one block
    size_t       count              # elements of a reduction; else `nbytes`
    uint64_t *   sig
    uint64_t     value              # of a signal; the number of a bad call
    uint64_t     after              # bad calls of this PE on the team that this one waits for: those of lower numbers


cdef list _kept = []   # memory that threads of this process may still look at


cdef class HostTeam(TeamData):
    cdef TeamState state
    cdef int       slot
    cdef object    comm             # TeamComm, or None where this PE is the only member

    def __dealloc__(self):
        free(self.state.ctl)
        free(self.state.src)
        free(self.state.dst)


cdef class HostBackend(Backend):
    """Symmetric memory of host processes."""
    cdef HostState   state
    cdef HostRuntime host
    cdef object      segment
    cdef object      inter          # InterNode, or None in a job of one node
    cdef size_t      control_bytes
    cdef size_t      heap_bytes
    cdef size_t      committed      # of the heap
    cdef object      free_slots     # of team control blocks
    cdef list        leaving        # teams that were destroyed before their last calls have run
    cdef int         running        # threads inside of a call on the default stream
    cdef int         max_teams
    cdef list        _capabilities

    def __dealloc__(self):
        free(self.state.local_of)
        free(self.state.pe_of)
        free(self.state.delta)

    # ---- the job ----------------------------------------------------------------------------------------------------

    cdef int start(self, Agreement agreement, object settings, size_t heap_size, object device) except -1:
        self.name = "host"
        self.my_pe, self.n_pes = agreement.rank, agreement.size
        self.runtime = self.host = get_host_runtime()
        self.max_teams = settings["NVSYM_MAX_TEAMS"]
        self.free_slots = set(range(self.max_teams))
        self.leaving = []
        self.control_bytes = PAGE + <size_t> self.max_teams * sizeof(nvsym_team_ctl)
        self.control_bytes += -self.control_bytes % PAGE
        self.heap_bytes = heap_size + -heap_size % PAGE
        self._find_nodes(agreement, settings)
        try:
            self._map_segment(agreement, settings)
            self._join_nodes(agreement)
        except BaseException:
            self._unmap()
            raise
        return 0

    def _find_nodes(self, agreement, settings):
        """Who shares memory with whom, and how many cores they have between them."""
        ranks = agreement.ranks_here()
        try:
            cores = sorted(os.sched_getaffinity(0))
        except AttributeError:
            cores = list(range(os.cpu_count() or 1))
        rows = agreement.gather((ranks[0], socket.gethostname(), cores), "finding the PEs of each node")
        leaders = sorted({leader for leader, _, _ in rows})
        self.nodes = [leaders.index(leader) for leader, _, _ in rows]
        self.devices = [host_device(pe, name) for pe, (_, name, _) in enumerate(rows)]
        self.device = self.devices[self.my_pe]
        self.stream = borrow_stream(self.device, NULL)

        cdef int pe, i
        cdef HostState *s = &self.state
        local = [pe for pe in range(self.n_pes) if self.nodes[pe] == self.nodes[self.my_pe]]
        s.backend = <void *> self
        s.my_pe, s.n_pes, s.n_local = self.my_pe, self.n_pes, len(local)
        s.several_nodes = len(leaders) > 1
        s.local_of = <int32_t *> calloc(self.n_pes, sizeof(int32_t))
        s.pe_of = <int32_t *> calloc(s.n_local, sizeof(int32_t))
        s.delta = <int64_t *> calloc(self.n_pes, sizeof(int64_t))
        if s.local_of == NULL or s.pe_of == NULL or s.delta == NULL:
            raise MemoryError("no memory for the table of PEs")
        for pe in range(self.n_pes):
            s.local_of[pe] = -1
        for i, pe in enumerate(local):
            s.local_of[pe] = i
            s.pe_of[i] = pe
        shared_cores = len(set().union(*[rows[pe][2] for pe in local]))
        if settings["NVSYM_SPIN"] is not None:
            s.spin = settings["NVSYM_SPIN"]
        else:
            s.spin = SPIN if shared_cores >= s.n_local else SPIN_SHORT
        s.one_shot = ONE_SHOT if shared_cores >= s.n_local else ONE_SHOT_SHARED
        s.limit = <int64_t> (settings["NVSYM_TIMEOUT"] * 1e9)
        self._capabilities = [
            ("peer_memory", s.n_local > 1, f"{s.n_local} PEs share a segment on this node" if s.n_local > 1
             else "no other PE is on this node"),
            ("several_nodes", bool(s.several_nodes), f"{len(leaders)} nodes, by MPI-3 RMA" if s.several_nodes
             else "all PEs are on one node"),
            ("core_for_each_pe", shared_cores >= s.n_local,
             f"{s.n_local} PEs on {shared_cores} cores: a waiting PE polls {s.spin} times before it yields"),
            ("mpi_takes_buffers", True, "buffers are host memory: MPI calls take them as they are"),
            ("multicast", False, "host memory has no multicast"),
            ("symmetric_pool", False, "host memory has no multicast"),
        ]

    def _map_segment(self, agreement, settings):
        cdef HostState *s = &self.state
        cdef int me = s.local_of[self.my_pe]
        cdef int i
        cdef const unsigned char[::1] view
        s.stride = self.control_bytes + self.heap_bytes
        segment = self.segment = Segment(settings["NVSYM_SHM_DIR"], s.stride * <size_t> s.n_local)
        error = None
        try:
            if me == 0:
                segment.create()
        except Exception as e:
            error = e
        agreement.vote("making the shared segment of a node", error)
        paths = agreement.gather(segment.path, "naming the shared segments")
        try:
            if me != 0:
                segment.path = paths[s.pe_of[0]]
                segment.open()
            segment.map()
            segment.commit(me * s.stride, self.control_bytes)
        except Exception as e:
            error = e
        agreement.vote("mapping the shared segment of a node", error)
        if me == 0:
            segment.unlink()
        segment.path = None
        view = segment.memory
        s.base = <char *> &view[0]
        s.region = s.base + me * s.stride
        for i in range(s.n_local):
            s.delta[s.pe_of[i]] = <int64_t> (i - me) * <int64_t> s.stride
        (<nvsym_pe_ctl *> s.region).pid = os.getpid()
        nvsym_store32(&(<nvsym_pe_ctl *> s.region).state, NVSYM_PE_RUNNING)
        agreement.vote("entering the shared segment of a node")
        # In containers with process numbers of their own, a peer's number says nothing.
        sees = True
        for i in range(s.n_local):
            if nvsym_pid_gone((<nvsym_pe_ctl *> (s.base + i * s.stride)).pid):
                sees = False
        s.see_pids = all(agreement.gather(sees, "looking for the processes of a node"))
        self._capabilities.append(("process_watch", bool(s.see_pids), "a killed PE is noticed by the others of its node"
                                   if s.see_pids else "the PEs do not see each other's process numbers"))

    def _join_nodes(self, agreement):
        if not self.state.several_nodes:
            return
        error = None
        comm = agreement.comm.Dup()
        try:
            self.inter = InterNode(comm, <size_t> self.state.region, self.state.stride)
        except Exception as e:
            error = e
        agreement.vote("opening the MPI windows between nodes", error)

    def _unmap(self):
        if self.segment is not None:
            self.segment.unlink()
            self.segment.close()
            self.segment = None

    cdef int stop(self, Agreement agreement) except -1:
        # What other threads have enqueued since the PEs were drained uses the memory, too; what it waits for no longer comes.
        nvsym_store32(&self.state.closing, 1)
        self.host.drain_all(-1)
        alone = self._await_threads()
        if self.inter is not None:
            # All PEs close the window or none: where a thread of any is still inside of MPI, it stays.
            if all(agreement.gather(alone, "closing the MPI windows between nodes")):
                comm = self.inter.comm
                self.inter.close()
                comm.Free()
            else:
                _kept.append(self.inter)
            self.inter = None
        if alone:
            self._unmap()
        else:
            _kept.append(self.segment)
        self._let_leave()
        return 0

    def _await_threads(self):
        """Whether the threads that were in a call on the default stream have left it in time; `closing` ends their waits."""
        cdef int i
        for i in range(PATIENCE):    # no-cython-lint
            if self.running == 0:
                return True
            if self.inter is not None:
                self.inter.progress()   # a thread of another PE may need this one's answer
            with nogil:
                nvsym_sleep(1_000_000)
        return False

    cdef int set_exiting(self, int stage) except -1:
        cdef uint32_t state = NVSYM_PE_RUNNING
        if stage == EXIT_DRAINING:
            state = NVSYM_PE_DRAINING
        elif stage == EXIT_DRAINED:
            state = NVSYM_PE_EXITING
        nvsym_store32(&(<nvsym_pe_ctl *> self.state.region).state, state)
        return 0

    cdef int set_failed(self, str reason) except -1:
        cdef nvsym_pe_ctl *ctl = <nvsym_pe_ctl *> self.state.region
        if self.segment is None:
            return 0
        strncpy(ctl.reason, text_bytes(reason), sizeof(ctl.reason) - 1)
        nvsym_store32(&ctl.state, NVSYM_PE_FAILED)
        return 0

    cdef int check_peers(self) except -1:
        cdef Status status
        if self.segment is None:
            return 0    # the job has ended, and the memory may be gone
        memset(&status, 0, sizeof(status))
        if look_for_gone(&self.state, b"a collective call", &status):
            raise_status(&status)
        if self.inter is not None:
            self.inter.progress()
        return 0

    cdef int check_host_call(self) except -1:
        return 0

    cdef list capabilities(self):
        return self._capabilities

    # ---- the heap ---------------------------------------------------------------------------------------------------

    cdef int arena_count(self) except -1:
        return 1

    cdef char *arena_base(self, int arena) except NULL:
        return self.state.region + self.control_bytes

    cdef size_t arena_size(self, int arena) except 0:
        return self.heap_bytes

    cdef int grow(self, Agreement agreement, size_t nbytes) except -1:
        return 0    # the segment has the size that init gave it

    cdef int commit(self, int arena, size_t end) except -1:
        if end <= self.committed:
            return 0
        cdef size_t target = min(end + COMMIT_STEP - 1 - (end - 1) % COMMIT_STEP, self.heap_bytes)
        cdef size_t start = <size_t> (self.state.region - self.state.base) + self.control_bytes + self.committed
        self.segment.commit(start, target - self.committed)
        self.committed = target
        return 0

    cdef object memory_keeper(self):
        segment = self.segment
        memory = None if segment is None else segment.memory
        if memory is None:
            self.check_open()
            raise NotInitializedError("the memory of the job is mapped no more")
        return memory

    cdef inline int check_open(self) except -1:
        """That the memory and the windows are there: no other thread has ended the job since the arguments were checked.

        Called behind all Python code of a call: from here to the operation this thread keeps the GIL, or is counted in `running`.
        """
        if self.state.closing:
            raise NotInitializedError("the job ended in another thread while this one began a call")
        return 0

    cdef void *peer_ptr(self, const void *ptr, int pe) noexcept nogil:
        if self.state.local_of[pe] < 0:
            return NULL
        return <char *> ptr + self.state.delta[pe]

    cdef void *multicast_ptr(self, TeamData team, const void *ptr) except? NULL:
        return NULL

    # ---- one-sided --------------------------------------------------------------------------------------------------

    cdef int submit(self, host_op run, HostOp *op, void *stream, object keep, host_op skip=NULL) except -1:
        """Run the operation here, on the default stream, or enqueue it."""
        cdef Status status
        cdef int failed
        if stream != NULL:
            self.host.reap()    # runs code of others
            self.check_open()
            return self.host.push(stream, run, skip, op, sizeof(HostOp), keep)
        self.check_open()
        status.code = status.npes = 0
        self.running += 1
        with nogil:
            failed = run(op, &status)
        self.running -= 1
        if failed:
            raise_status(&status)
        return 0

    cdef int put(self, void *dest, const void *src, size_t nbytes, int pe, void *stream, object keep) except -1:
        if stream == NULL and nbytes <= RELEASE_GIL_ABOVE and self.state.local_of[pe] >= 0:
            self.check_open()
            memcpy(<char *> dest + self.state.delta[pe], src, nbytes)
            return 0
        cdef HostOp op
        op.host, op.dest, op.src, op.nbytes, op.pe = &self.state, <char *> dest, <const char *> src, nbytes, pe
        return self.submit(run_put, &op, stream, keep)

    cdef int get(self, void *dest, const void *src, size_t nbytes, int pe, void *stream, object keep) except -1:
        if stream == NULL and nbytes <= RELEASE_GIL_ABOVE and self.state.local_of[pe] >= 0:
            self.check_open()
            memcpy(dest, <const char *> src + self.state.delta[pe], nbytes)
            return 0
        cdef HostOp op
        op.host, op.dest, op.src, op.nbytes, op.pe = &self.state, <char *> dest, <const char *> src, nbytes, pe
        return self.submit(run_get, &op, stream, keep)

    cdef int put_from_host(self, void *dest, const void *src, size_t nbytes, int pe, void *stream, object keep) except -1:
        return self.put(dest, src, nbytes, pe, stream, keep)

    cdef int get_to_host(self, void *dest, const void *src, size_t nbytes, int pe, void *stream, object keep) except -1:
        return self.get(dest, src, nbytes, pe, stream, keep)

    cdef int put_signal(self, void *dest, const void *src, size_t nbytes, uint64_t *sig, uint64_t value, int op, int pe,
                        void *stream, object keep) except -1:
        cdef HostOp o
        o.host, o.dest, o.src, o.nbytes, o.pe = &self.state, <char *> dest, <const char *> src, nbytes, pe
        o.sig, o.value, o.op = sig, value, op
        return self.submit(run_put_signal, &o, stream, keep)

    cdef int signal_op(self, uint64_t *sig, uint64_t value, int op, int pe, void *stream, object keep) except -1:
        if stream == NULL and not self.state.several_nodes:
            self.check_open()
            nvsym_signal(<uint64_t *> (<char *> sig + self.state.delta[pe]), value, op)
            return 0
        cdef HostOp o
        o.host, o.pe, o.sig, o.value, o.op = &self.state, pe, sig, value, op
        return self.submit(run_signal, &o, stream, keep)

    cdef int signal_wait(self, uint64_t *sig, int cmp, uint64_t value, void *stream, object keep) except -1:
        cdef HostOp o
        self.check_open()
        if stream == NULL and nvsym_compare(nvsym_load(sig), cmp, value):
            return 0
        o.host, o.sig, o.op, o.value, o.blocks = &self.state, sig, cmp, value, stream == NULL
        return self.submit(run_signal_wait, &o, stream, keep)

    cdef int launch(self, object kernel, list arguments, const unsigned int *grid, const unsigned int *block, size_t shared,
                    bint cooperative, void *stream, object keep) except -1:
        cdef PyObject *call[2]
        if stream == NULL:
            kernel(*arguments)
            return 0
        keep = (kernel, arguments, keep)
        call[0], call[1] = <PyObject *> kernel, <PyObject *> arguments
        self.host.reap()
        return self.host.push(stream, run_python, NULL, call, sizeof(call), keep)

    cdef int fence(self, void *stream) except -1:
        return self.quiet(stream)   # a copy that is done is ordered

    cdef int quiet(self, void *stream) except -1:
        cdef HostOp op
        if stream == NULL and not self.state.several_nodes:
            nvsym_fence()
            return 0
        op.host = &self.state
        return self.submit(run_quiet, &op, stream, None)

    cdef int atomic(self, int amo, int dtype, void *dest, const void *operand, const void *cond, void *result,
                    int pe) except -1:
        self.check_open()
        if not self.state.several_nodes:
            if nvsym_amo(amo, dtype, <char *> dest + self.state.delta[pe], operand, cond, result):
                raise AssertionError(f"no atomic operation {amo} for dtype {dtype}")
            return 0
        import numpy as np
        element = DTYPES[dtype]
        cdef int n = element.itemsize
        cdef const unsigned char[::1] old
        names = ("fetch", "set", "add", "swap", "compare_swap", "and", "or", "xor")
        value = None if operand == NULL else np.frombuffer((<const char *> operand)[:n], element.numpy)
        expected = None if cond == NULL else np.frombuffer((<const char *> cond)[:n], element.numpy)
        self.check_open()
        self.running += 1
        try:
            old = self.inter.atomic(names[amo], element.numpy, <size_t> dest, value, expected, pe).view(np.uint8)
        finally:
            self.running -= 1
        if result != NULL:
            memcpy(result, &old[0], n)
        return 0

    # ---- teams and collectives --------------------------------------------------------------------------------------

    cdef TeamData create_team(self, Agreement agreement, object pes, int my_pe):
        cdef HostTeam team = HostTeam.__new__(HostTeam)
        cdef TeamState *t = &team.state
        cdef int n = len(pes)
        team.set_members(pes, my_pe)
        t.host, t.team, t.me, t.n, t.pes = &self.state, <void *> team, my_pe, n, team.pes
        team.record.state = t
        self._let_leave()
        free_here = agreement.gather(sorted(self.free_slots), "choosing a team's control block")
        common = sorted(set(free_here[0]).intersection(*free_here[1:]))
        if not common:
            raise BackendError(f"no control block is left for another team: {self.max_teams} exist (NVSYM_MAX_TEAMS)")
        team.slot = common[0]
        self.free_slots.discard(team.slot)
        try:
            self._set_up(team, pes, agreement)
        except BaseException:
            self.free_slots.add(team.slot)
            raise
        return team

    def _set_up(self, HostTeam team, pes, agreement):
        cdef TeamState *t = &team.state
        cdef nvsym_team_ctl *ctl
        cdef int i, n = t.n, my_pe = t.me
        t.ctl = <nvsym_team_ctl **> calloc(n, sizeof(void *))
        t.src = <const void **> calloc(n, sizeof(void *))
        t.dst = <void **> calloc(n, sizeof(void *))
        if t.ctl == NULL or t.src == NULL or t.dst == NULL:
            raise MemoryError("no memory for a team")
        t.inside = True
        for i in range(n):
            if self.state.local_of[pes[i]] < 0:
                t.inside = False
        if t.inside:
            for i in range(n):
                t.ctl[i] = <nvsym_team_ctl *> (self.state.base + self.state.local_of[pes[i]] * self.state.stride
                                               + PAGE + team.slot * sizeof(nvsym_team_ctl))
            # What an earlier team left here; nobody looks before all have done this.
            ctl = t.ctl[my_pe]
            nvsym_store(&ctl.arrived, 0)
            nvsym_store(&ctl.departed, 0)
        if n > 1:
            # Calls on streams are in no order with the host-side ones, which have `agreement`: by MPI they need one of their own.
            own = Agreement(agreement.duplicate(), self.state.limit / 1e9)
            team.comm = TeamComm(own, list(pes), self.my_pe, self._state, NVSYM_PE_EXITING)
            (<Agreement> own).watch = _Watch(self, team.comm)
        agreement.vote("making a team")

    cdef int destroy_team(self, TeamData team) except -1:
        cdef HostTeam t = <HostTeam> team
        if nvsym_load32(&t.state.queued):
            self.leaving.append(t)      # another team must not meet its calls
            return 0
        self.free_slots.add(t.slot)
        if t.comm is not None:
            t.comm.comm.Free()
            t.comm = None
        return 0

    def _let_leave(self):
        """End the teams that were destroyed before their last calls had run, where they have run since."""
        leaving, self.leaving = self.leaving, []
        for team in leaving:
            self.destroy_team(team)

    cdef int collective(self, TeamData team, HostOp *op, void *stream, object keep) except -1:
        op.host = &self.state
        op.team = &(<HostTeam> team).state
        op.after = refusals_before(op.team)
        if stream == NULL:
            return self.submit(run_collective, op, stream, keep)
        nvsym_add32(&op.team.queued, 1)
        try:
            return self.submit(run_queued_collective, op, stream, keep, skip_queued_collective)
        except BaseException:
            nvsym_add32(&op.team.queued, -1)
            raise

    cdef int barrier(self, TeamData team, bint complete, void *stream) except -1:
        cdef HostOp op
        op.kind, op.pe, op.op, op.dtype, op.count = COLL_BARRIER if complete else COLL_SYNC, 0, 0, NO_TYPE, 0
        op.nbytes, op.complete, op.dest, op.src, op.algorithm = 0, complete, NULL, NULL, ALGO_AUTO
        return self.collective(team, &op, stream, None if stream == NULL else team)

    cdef int broadcast(self, TeamData team, int dtype, void *dest, const void *src, size_t nbytes, int root, void *stream,
                       object keep) except -1:
        return self.move(team, COLL_BROADCAST, dtype, dest, src, nbytes, root, stream, keep)

    cdef int fcollect(self, TeamData team, int dtype, void *dest, const void *src, size_t nbytes, void *stream,
                      object keep) except -1:
        return self.move(team, COLL_FCOLLECT, dtype, dest, src, nbytes, 0, stream, keep)

    cdef int alltoall(self, TeamData team, int dtype, void *dest, const void *src, size_t nbytes, void *stream,
                      object keep) except -1:
        return self.move(team, COLL_ALLTOALL, dtype, dest, src, nbytes, 0, stream, keep)

    cdef int move(self, TeamData team, int kind, int dtype, void *dest, const void *src, size_t nbytes, int root, void *stream,
                  object keep) except -1:
        cdef HostOp op
        op.kind, op.pe, op.op, op.dtype, op.count, op.nbytes = kind, root, root, dtype, nbytes, nbytes
        op.dest, op.src, op.complete, op.algorithm = <char *> dest, <const char *> src, False, ALGO_AUTO
        return self.collective(team, &op, stream, keep)

    cdef int reduce(self, TeamData team, int dtype, int op, void *dest, const void *src, size_t count, int algorithm,
                    void *stream, object keep) except -1:
        cdef HostOp o
        o.kind, o.pe, o.op, o.dtype, o.count, o.algorithm = COLL_REDUCE, 0, op, dtype, count, algorithm
        o.nbytes, o.dest, o.src, o.complete = count * SIZES[dtype], <char *> dest, <const char *> src, False
        return self.collective(team, &o, stream, keep)

    cdef int reducescatter(self, TeamData team, int dtype, int op, void *dest, const void *src, size_t count,
                           void *stream, object keep) except -1:
        cdef HostOp o
        o.kind, o.pe, o.op, o.dtype, o.count, o.algorithm = COLL_REDUCESCATTER, 0, op, dtype, count, ALGO_AUTO
        o.nbytes, o.dest, o.src, o.complete = count * SIZES[dtype], <char *> dest, <const char *> src, False
        return self.collective(team, &o, stream, keep)

    cdef object why_no_reduce(self, int dtype, int op, int algorithm):
        if algorithm == ALGO_MULTIMEM:
            return "it needs multicast, which host memory does not have"
        if algorithm == ALGO_NVSHMEM:
            return "it is NVSHMEM's, and this job runs on the host backend"
        return None if reducer(dtype, op) != NULL else f"{OPS[op].name} is not defined for {DTYPES[dtype].name}"

    cdef tuple explain_reduce(self, TeamData team, int dtype, int op, size_t count, int algorithm, bint in_place):
        cdef HostTeam t = <HostTeam> team
        cdef size_t nbytes = count * SIZES[dtype]
        if team.n_pes == 1:
            return "copy", "the team has one PE", {}
        if algorithm == ALGO_MPI:
            return "mpi", "it was asked for", {}
        if not t.state.inside:
            return "mpi", "the members are on several nodes: each reduces a share, which it gets and hands out by MPI", {}
        thresholds = {"one_shot": f"up to {format_size(self.state.one_shot)}", "two_shot": "above that"}
        if algorithm != ALGO_AUTO:
            return ALGORITHMS[algorithm], "it was asked for", thresholds
        if nbytes <= self.state.one_shot:
            return "one_shot", "the PEs meet once, and each reduces everything from copies", thresholds
        return "two_shot", "each PE reduces a share straight from the memory of all and stores it to all", thresholds

    cdef int fail(self, TeamData team, int kind, int algorithm, str reason, void *stream) except -1:
        cdef HostOp op
        cdef bytes text = text_bytes(reason)
        op.host, op.team, op.kind, op.algorithm = &self.state, &(<HostTeam> team).state, kind, algorithm
        op.src, op.nbytes = <const char *> text, len(text)
        keep = (team, text)
        self.check_open()
        number_refusal(&op)     # from here on it has to be told, or later calls wait for ever
        nvsym_add32(&op.team.queued, 1)
        if stream != NULL:
            try:
                return self.submit(run_fail, &op, stream, keep, skip_fail)
            except Exception:
                pass    # no memory, or the stream is no more: tell them here
        return self.submit(run_fail, &op, NULL, keep)

    cdef int functions(self, Functions *f) except -1:
        cdef int pe
        f.ctx = &self.state
        f.direct.n_pes, f.direct.my_pe = self.n_pes, self.my_pe
        for pe in range(min(self.n_pes, <int> NVSYM_DIRECT_PES)):
            if self.state.local_of[pe] >= 0:
                f.direct.reach[pe] = self.state.delta[pe] + 1
                if not self.state.several_nodes:    # else MPI updates the signals of all PEs
                    f.direct.signal_reach[pe] = self.state.delta[pe] + 1
        self.state.heap = self.state.region + self.control_bytes
        self.state.heap_bytes = self.heap_bytes
        f.symmetric, f.peer_ptr = c_symmetric, c_peer_ptr
        f.put, f.get, f.put_signal, f.signal_op, f.signal_wait = c_put, c_get, c_put_signal, c_signal_op, c_signal_wait
        f.quiet, f.barrier, f.reduce, f.fail_reduce = c_quiet, c_barrier, c_reduce, c_fail_reduce
        return 0

    # ---- what the nogil functions ask for with the GIL --------------------------------------------------------------

    def _explain(self, HostTeam team, int parity):
        """Why the calls that the members announced do not go together."""
        cdef TeamState *t = &team.state
        cdef nvsym_call *call
        cdef int i
        failed, calls = [], []
        for i in range(t.n):
            call = &t.ctl[i].call[parity]
            if call.failed:
                reason = (<const char *> <char *> t.ctl[i].stage[parity]).decode("utf-8", "replace")
                failed.append(f"PE {t.pes[i]}: {reason}")
            calls.append(f"PE {t.pes[i]}: {describe(call.kind, call.arg, call.dtype, call.failed, call.count)}")
        if failed:
            mine = COLLECTIVE_NAMES[t.ctl[t.me].call[parity].kind]
            return f"{mine}: the call failed on another PE and was not carried out. {'; '.join(failed[:8])}"
        return f"the PEs of the team made different calls. {'; '.join(calls[:16])}"

    cdef int inter_node(self, HostOp *op, int what) except -1:
        """An operation that needs MPI."""
        cdef HostTeam team
        inter = self.inter
        if what == INTER_PUT:
            inter.put(<size_t> op.dest, <size_t> op.src, op.nbytes, op.pe)
        elif what == INTER_GET:
            inter.get(<size_t> op.dest, <size_t> op.src, op.nbytes, op.pe)
        elif what == INTER_SIGNAL:
            inter.signal(<size_t> op.sig, op.value, "add" if op.op == NVSYM_SIGNAL_ADD else "set", op.pe)
        elif what == INTER_QUIET:
            inter.quiet()
        elif what == INTER_FAIL:
            text = (<const char *> op.src)[:op.nbytes].decode("utf-8", "replace")
            (<HostTeam> op.team.team).comm.announce(op.kind, 0, NO_TYPE, 0, text)
        else:
            team = <HostTeam> op.team.team
            if inter is not None:
                inter.quiet()
            self.collective_by_mpi(team, op)
        return 0

    def _state(self, int pe):
        """The state word of a PE."""
        return self.inter.state(pe) if self.state.local_of[pe] < 0 else state_of(&self.state, pe)

    cdef int collective_by_mpi(self, HostTeam team, HostOp *op) except -1:
        cdef TeamState *t = &team.state
        cdef size_t item
        cdef unsigned char[:, ::1] rows
        cdef int i
        comm = team.comm
        comm.announce(op.kind, op.op, op.dtype, op.count, None, describe)
        if op.count == 0:
            return 0
        if op.kind == COLL_BROADCAST:
            comm.broadcast(<size_t> op.dest, <size_t> op.src, op.nbytes, op.pe, t.me)
        elif op.kind == COLL_FCOLLECT:
            comm.fcollect(<size_t> op.dest, <size_t> op.src, op.nbytes)
        elif op.kind == COLL_ALLTOALL:
            comm.alltoall(<size_t> op.dest, <size_t> op.src, op.nbytes)
        elif op.kind in (COLL_REDUCE, COLL_REDUCESCATTER):
            item = op.nbytes // op.count
            if op.kind == COLL_REDUCESCATTER:
                counts = [op.count] * t.n
            else:
                counts = [share_end(op.count, item, t.n, i) - share_start(op.count, item, t.n, i) for i in range(t.n)]
            received = comm.shares(<size_t> op.src, counts, item, t.me)
            rows = received
            if counts[t.me]:
                for i in range(t.n):
                    t.src[i] = &rows[i, 0]
                t.dst[0] = op.dest if op.kind == COLL_REDUCESCATTER else <void *> &rows[0, 0]
                reducer(op.dtype, op.op)(t.dst, 1, t.src, t.n, counts[t.me])
            if op.kind == COLL_REDUCE:
                comm.gather_shares(received[0], <size_t> op.dest, counts, item)
        return 0


class _Watch:
    """What a PE looks at while it waits for a collective by MPI."""

    def __init__(self, backend, team_comm):
        self.backend = backend
        self.team_comm = team_comm

    def __call__(self):
        (<HostBackend> self.backend).check_open()   # ends the wait of a thread or a stream when the job ends
        (<HostBackend> self.backend).check_peers()
        self.team_comm.watch()


def describe(kind, arg, dtype, failed, count):
    """A collective call in words."""
    name = COLLECTIVE_NAMES[kind]
    if kind in (COLL_REDUCE, COLL_REDUCESCATTER):
        algorithm = f", algorithm {ALGORITHMS[arg >> 8]}" if arg >> 8 else ""
        return f"{name} of {count} {DTYPES[dtype].name} by {OPS[arg & 255].name}{algorithm}"
    if kind in (COLL_BARRIER, COLL_SYNC):
        return name
    moved = f"{name} of {count // DTYPES[dtype].itemsize} {DTYPES[dtype].name}"
    if kind == COLL_BROADCAST:
        return f"{moved} from root {arg}"
    return f"{moved} to each PE" if kind == COLL_ALLTOALL else moved


cdef nvsym_reduce_fn reducer(int dtype, int op) except *:
    """The function that reduces, or NULL; a float8 type gets its tables at its first use."""
    cdef nvsym_reduce_fn function = nvsym_host_reduce(dtype, op)
    cdef const float[::1] decode
    cdef const uint32_t[::1] thresholds
    cdef const uint8_t[::1] positive, negative
    if function == NULL and DTYPES[dtype].name.startswith("float8"):
        tables = float8_tables(DTYPES[dtype])
        decode, thresholds, positive, negative = tables
        if nvsym_f8_table(dtype, &decode[0], &thresholds[0], &positive[0], &negative[0], len(tables.thresholds)):
            raise AssertionError(f"the conversion tables of {DTYPES[dtype].name} do not suit the kernels")
        function = nvsym_host_reduce(dtype, op)
    return function


# ---- without the GIL ------------------------------------------------------------------------------------------------

cdef enum:
    INTER_PUT
    INTER_GET
    INTER_SIGNAL
    INTER_QUIET
    INTER_FAIL
    INTER_COLLECTIVE


cdef int by_mpi(HostOp *op, int what, Status *status) noexcept with gil:
    try:
        (<HostBackend> op.host.backend).inter_node(op, what)
        return 0
    except BaseException as error:
        caught(status, error)
        return -1


cdef void caught(Status *status, object error) noexcept:
    """Note what Python code raised in a wait: an error of its own, or what a signal handler raised, which the caller gets as it is."""
    status_text(status, STATUS_BACKEND, b"it failed, and what it failed with cannot be said")    # if even that fails
    own = isinstance(error, (NVSymError, MemoryError)) or str(type(error).__module__).startswith("mpi4py")
    if own or threading.get_ident() != threading.main_thread().ident:
        status_of(status, error)
    else:
        status_interrupted(status, error, b"interrupted while waiting for another PE")


cdef int run_python(void *payload, Status *status) noexcept with gil:
    cdef PyObject **call = <PyObject **> payload
    try:
        (<object> call[0])(*(<list> call[1]))
        return 0
    except BaseException as error:
        status_of(status, error)
        strncat(status.text, text_bytes(place_of(error)), STATUS_TEXT - 1 - strlen(status.text))
        return -1


cdef str place_of(object error):
    """Where in the user's function it was raised: the words travel, and its traceback stays behind."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.endswith(".pyx"):
            place = f" ({code.co_filename}, line {trace.tb_lineno}, in {code.co_name})"
        trace = trace.tb_next
    return place


cdef int run_put(void *payload, Status *status) noexcept nogil:
    cdef HostOp *op = <HostOp *> payload
    if op.host.local_of[op.pe] < 0:
        return by_mpi(op, INTER_PUT, status)
    memcpy(op.dest + op.host.delta[op.pe], op.src, op.nbytes)
    return 0


cdef int run_get(void *payload, Status *status) noexcept nogil:
    cdef HostOp *op = <HostOp *> payload
    if op.host.local_of[op.pe] < 0:
        return by_mpi(op, INTER_GET, status)
    memcpy(op.dest, op.src + op.host.delta[op.pe], op.nbytes)
    return 0


cdef int run_signal(void *payload, Status *status) noexcept nogil:
    cdef HostOp *op = <HostOp *> payload
    if op.host.several_nodes:
        nvsym_fence()
        return by_mpi(op, INTER_SIGNAL, status)
    nvsym_signal(<uint64_t *> (<char *> op.sig + op.host.delta[op.pe]), op.value, op.op)
    return 0


cdef int run_put_signal(void *payload, Status *status) noexcept nogil:
    if run_put(payload, status):
        return -1
    return run_signal(payload, status)


cdef int run_quiet(void *payload, Status *status) noexcept nogil:
    cdef HostOp *op = <HostOp *> payload
    nvsym_fence()
    if op.host.several_nodes:
        return by_mpi(op, INTER_QUIET, status)
    return 0


cdef int run_signal_wait(void *payload, Status *status) noexcept nogil:
    cdef HostOp *op = <HostOp *> payload
    return wait_until(op.host, op.sig, op.op, op.value, -1, op.blocks, b"signal_wait_until", status)


cdef int look_for_gone(HostState *h, const char *what, Status *status) noexcept nogil:
    """Whether a PE of this node has failed or been killed."""
    cdef int i
    cdef nvsym_pe_ctl *ctl
    for i in range(h.n_local):
        ctl = <nvsym_pe_ctl *> (h.base + i * h.stride)
        if h.pe_of[i] == h.my_pe:
            continue
        if nvsym_load32(&ctl.state) == NVSYM_PE_FAILED:
            return gone(h.pe_of[i], what, b"failed: ", ctl.reason, status)
        if h.see_pids and nvsym_pid_gone(ctl.pid):
            return gone(h.pe_of[i], what, b"is gone: its process has ended", b"", status)
    return 0


cdef int gone(int pe, const char *what, const char *how, const char *why, Status *status) noexcept nogil:
    status.code = STATUS_EXITED
    snprintf(status.text, STATUS_TEXT, b"%s: PE %d %s%s", what, pe, how, why)
    status_pe(status, pe)
    return -1


cdef inline uint32_t state_of(HostState *h, int pe) noexcept nogil:
    return nvsym_load32(&(<nvsym_pe_ctl *> (h.base + h.local_of[pe] * h.stride)).state)


cdef int nobody_left(HostState *h, bint blocks, int64_t waited, Status *status) noexcept nogil:
    """Whether no PE is left that could set a signal here: 1 or 0, or -1 where that could not be found out.

    All others are finalizing, and this PE's program is too, or waits itself (`blocks`).
    """
    cdef int i
    if state_of(h, h.my_pe) == NVSYM_PE_RUNNING and (not blocks or h.n_pes == 1):
        return 0
    if not blocks and waited < EXIT_GRACE:
        return 0    # another stream of this PE may set it
    for i in range(h.n_local):
        if h.pe_of[i] != h.my_pe and state_of(h, h.pe_of[i]) != NVSYM_PE_EXITING:
            return 0
    return nothing_runs(h, blocks, status)


cdef int nothing_runs(HostState *h, bint blocks, Status *status) noexcept with gil:
    """The same for this PE's streams, if it `blocks`, and for the PEs of other nodes."""
    cdef HostBackend backend = <HostBackend> h.backend
    cdef int pe
    try:
        if blocks and not backend.runtime.ticket_done(backend.runtime.ticket()):
            return 0
        if h.closing:
            return 0    # the wait ends for that reason
        for pe in range(h.n_pes):
            if h.local_of[pe] < 0 and backend.inter.state(pe) != NVSYM_PE_EXITING:
                return 0
        return 1
    except BaseException as error:
        caught(status, error)
        return -1


cdef int wait_until(HostState *h, const uint64_t *flag, int cmp, uint64_t value, int pe, bint blocks, const char *what,
                    Status *status) noexcept nogil:
    """Poll `flag`, then yield, then sleep between polls; look at the peers meanwhile.

    `pe`: the one whose flag it is, which cannot come any more once it is finalizing; -1: any PE may set the flag.
    """
    cdef int64_t start, now, watched
    cdef int i, exiting
    for i in range(h.spin):    # no-cython-lint
        if nvsym_compare(nvsym_load(flag), cmp, value):
            return 0
        nvsym_pause()
    start = watched = nvsym_now()
    while True:
        for i in range(16):    # no-cython-lint
            if nvsym_compare(nvsym_load(flag), cmp, value):
                return 0
            sched_yield()
        if h.several_nodes and not nvsym_load32(&h.closing) and progress(h, status):
            return -1
        now = nvsym_now()
        if now - start > SLEEP_AFTER:
            nvsym_sleep(max(20_000, min((now - start) >> 4, 1_000_000)))
        if now - watched < WATCH_PERIOD:
            continue
        watched = now
        if nvsym_load32(&h.closing):
            status_text(status, STATUS_CLOSED, b"the job ended while this thread waited")
            return -1
        # What a PE wrote before it said that it is finalizing is visible now: look at the flag once more.
        if pe >= 0:
            exiting = state_of(h, pe) == NVSYM_PE_EXITING
        else:
            exiting = nobody_left(h, blocks, now - start, status)
            if exiting < 0:
                return -1
        if nvsym_compare(nvsym_load(flag), cmp, value):
            return 0
        if exiting and pe >= 0:
            return gone(pe, what, b"is finalizing and will not come", b"", status)
        if exiting:
            status.code = STATUS_EXITED
            snprintf(status.text, STATUS_TEXT, b"%s: the signal is not set, and every PE that could set it is finalizing", what)
            for i in range(h.n_pes):
                if i != h.my_pe:
                    status_pe(status, i)
            return -1
        if look_for_gone(h, what, status):
            return -1
        if h.limit > 0 and now - start > h.limit:
            status.code = STATUS_TIMEOUT
            if pe >= 0:
                snprintf(status.text, STATUS_TEXT, b"%s: PE %d did not arrive within %g s (NVSYM_TIMEOUT)", what, pe,
                         h.limit / 1e9)
                status_pe(status, pe)
            else:
                snprintf(status.text, STATUS_TEXT, b"%s: no PE set the signal within %g s (NVSYM_TIMEOUT)", what,
                         h.limit / 1e9)
            return -1
        if check_signals(status):
            return -1


cdef int check_signals(Status *status) noexcept with gil:
    try:
        PyErr_CheckSignals()
        return 0
    except BaseException as error:
        status_interrupted(status, error, b"interrupted while waiting for another PE")
        return -1


cdef int progress(HostState *h, Status *status) noexcept with gil:
    try:
        if not h.closing:   # else the windows may be closed
            (<HostBackend> h.backend).inter.progress()
        return 0
    except BaseException as error:
        caught(status, error)
        return -1


cdef inline int wait_for(TeamState *t, const uint64_t *flag, uint64_t epoch, int member, int kind,
                         Status *status) noexcept nogil:
    if nvsym_load(flag) >= epoch:
        return 0
    return wait_until(t.host, flag, NVSYM_CMP_GE, epoch, t.pes[member], False, NAMES[kind], status)


cdef const char *NAMES[8]
NAMES[:] = [b"", b"barrier", b"sync", b"broadcast", b"fcollect", b"alltoall", b"reduce", b"reducescatter"]


cdef int next_epoch(TeamState *t, int kind, Status *status) noexcept nogil:
    """Begin an epoch; returns its parity, that of the announcement that it replaces, or -1.

    Who has not waited for the others in the last epoch does so now: they may still read what was announced before it.
    """
    cdef int i
    if t.ahead:
        for i in range(t.n):
            if wait_for(t, &t.ctl[i].arrived, t.epoch, i, kind, status):
                t.broken = True
                return -1
        t.ahead = False
    t.epoch += 1
    return t.epoch & 1


cdef int arrive(TeamState *t, const nvsym_call *call, const void *payload, size_t nbytes, Status *status) noexcept nogil:
    """Announce a call with its payload, wait for the others, and compare. Returns the parity of the epoch, or -1."""
    cdef nvsym_team_ctl *mine = t.ctl[t.me]
    cdef nvsym_call *other
    cdef int i, j
    cdef bint same = True
    cdef int parity = next_epoch(t, call.kind, status)
    if parity < 0:
        return -1
    mine.call[parity] = call[0]
    if nbytes:
        memcpy(nvsym_payload(mine, parity, nbytes), payload, nbytes)
    nvsym_store(&mine.arrived, t.epoch)
    for i in range(1, t.n):
        j = t.me + i
        if j >= t.n:
            j -= t.n
        if wait_for(t, &t.ctl[j].arrived, t.epoch, j, call.kind, status):
            t.broken = True     # who arrived and who did not is no longer known to all
            return -1
        other = &t.ctl[j].call[parity]
        if (other.kind != call.kind or other.arg != call.arg or other.dtype != call.dtype or other.count != call.count
                or other.failed):
            same = False
    if not same:
        explain(t, parity, status)
        return -1
    return parity


cdef void explain(TeamState *t, int parity, Status *status) noexcept with gil:
    cdef object text
    try:
        text = (<HostBackend> t.host.backend)._explain(<HostTeam> t.team, parity)
        status_text(status, STATUS_COLLECTIVE, text_bytes(text))
    except BaseException as error:
        status_of(status, error)


cdef int depart(TeamState *t, int kind, Status *status) noexcept nogil:
    """Say that this PE is done with the memory of the others, and wait until they are done with its own."""
    cdef int i, j
    nvsym_store(&t.ctl[t.me].departed, t.epoch)
    for i in range(1, t.n):
        j = t.me + i
        if j >= t.n:
            j -= t.n
        if wait_for(t, &t.ctl[j].departed, t.epoch, j, kind, status):
            t.broken = True
            return -1
    return 0


cdef inline const char *source_of(TeamState *t, int member, int parity) noexcept nogil:
    return t.host.base + t.host.local_of[t.pes[member]] * t.host.stride + t.ctl[member].call[parity].src


cdef inline char *dest_of(TeamState *t, int member, int parity) noexcept nogil:
    return t.host.base + t.host.local_of[t.pes[member]] * t.host.stride + t.ctl[member].call[parity].dst


cdef inline size_t share_start(size_t count, size_t itemsize, int n, int i) noexcept nogil:
    """The first element that PE i of n reduces: shares are whole cache lines."""
    cdef size_t line = max(SHARE_ALIGN // itemsize, <size_t> 1)
    cdef size_t lines = (count + line - 1) // line
    return min((lines * <size_t> i // <size_t> n) * line, count)


cdef inline size_t share_end(size_t count, size_t itemsize, int n, int i) noexcept nogil:
    return share_start(count, itemsize, n, i + 1)


cdef int await_refusals(TeamState *t, uint64_t after, const char *what, Status *status) noexcept nogil:
    """Wait until the others have been told of the first `after` bad calls of this PE, which are on streams of their own."""
    cdef int64_t start, now, looked
    if nvsym_load(&t.told.first) >= after:
        return 0
    start = looked = nvsym_now()
    while nvsym_load(&t.told.first) < after:
        now = nvsym_now()
        if now - start < SLEEP_AFTER:
            sched_yield()
            continue
        nvsym_sleep(max(20_000, min((now - start) >> 4, 1_000_000)))
        if now - looked < WATCH_PERIOD:
            continue
        looked = now
        if nvsym_load32(&t.host.closing):
            status_text(status, STATUS_CLOSED, b"the job ended while this thread waited")
            return -1
        if t.host.several_nodes and progress(t.host, status):
            return -1
        if t.host.limit > 0 and now - start > t.host.limit:
            status.code = STATUS_COLLECTIVE
            snprintf(status.text, STATUS_TEXT, b"%s: an earlier call of this PE on the team was refused, and its stream has not come so "
                     b"far that the other PEs could be told of it within %g s (NVSYM_TIMEOUT)", what, t.host.limit / 1e9)
            return -1
        if check_signals(status):
            return -1
    return 0


cdef int run_collective(void *payload, Status *status) noexcept nogil:
    cdef HostOp *op = <HostOp *> payload
    cdef TeamState *t = op.team
    cdef int failed
    if t.n > 1 and await_refusals(t, op.after, NAMES[op.kind], status):
        t.broken = True     # the others make this call, and would meet the next one
        return -1
    if not nvsym_try_lock(&t.busy):
        status_text(status, STATUS_COLLECTIVE, b"the team is in the middle of another collective call of this PE: calls on one "
                    b"team must be ordered, on one stream or by events")
        return -1
    t.holder = nvsym_self()
    if t.broken:
        status_text(status, STATUS_COLLECTIVE, b"the team cannot be used any more, since an earlier collective call on it was "
                    b"left by some of its PEs")
        failed = -1
    elif t.n == 1:
        failed = alone(op)
    elif t.inside and op.algorithm != ALGO_MPI:
        failed = inside_node(op, status)
    else:
        failed = by_mpi(op, INTER_COLLECTIVE, status)
        if failed and status.code != STATUS_COLLECTIVE:
            t.broken = True     # what was left of the call would meet the next one
    t.holder = 0
    nvsym_unlock(&t.busy)
    return failed


cdef int run_queued_collective(void *payload, Status *status) noexcept nogil:
    cdef int failed = run_collective(payload, status)
    nvsym_add32(&(<HostOp *> payload).team.queued, -1)
    return failed


cdef int skip_queued_collective(void *payload, Status *status) noexcept nogil:
    nvsym_add32(&(<HostOp *> payload).team.queued, -1)
    return 0


cdef int await_idle(TeamState *t, Status *status) noexcept nogil:
    """Take the team for this thread, once the call that this PE is in the middle of is over."""
    cdef int64_t start = nvsym_now(), looked = start, now
    while not nvsym_try_lock(&t.busy):
        now = nvsym_now()
        # That call has the same limit, and began before. One of this very thread, which a signal interrupted, is not over before this.
        if nvsym_load32(&t.host.closing) or nvsym_load(&t.holder) == nvsym_self() or (
                t.host.limit > 0 and now - start > t.host.limit + WATCH_PERIOD):
            return -1
        if now - looked >= WATCH_PERIOD:
            looked = now
            if (t.host.several_nodes and progress(t.host, status)) or check_signals(status):
                return -1
        nvsym_sleep(50_000)
    t.holder = nvsym_self()
    return 0


cdef int tell(HostOp *op, Status *status) noexcept nogil:
    """Announce that this PE takes no part in a call. It has raised its own error: nothing more is raised here."""
    cdef TeamState *t = op.team
    cdef nvsym_team_ctl *mine
    cdef size_t n = min(op.nbytes, <size_t> (STATUS_TEXT - 1))
    cdef int parity
    if t.n == 1 or t.broken:
        return 0
    if await_refusals(t, op.after, NAMES[op.kind], status) or await_idle(t, status):
        t.broken = True     # the others have not been told: what they do next would meet another call
        return 0
    if not t.inside or op.algorithm == ALGO_MPI:
        if by_mpi(op, INTER_FAIL, status) and status.code != STATUS_COLLECTIVE:
            t.broken = True
    else:
        parity = next_epoch(t, op.kind, status)
        if parity >= 0:     # else the others are told by their own wait
            t.ahead = True
            mine = t.ctl[t.me]
            memset(&mine.call[parity], 0, sizeof(nvsym_call))
            mine.call[parity].kind, mine.call[parity].failed = op.kind, 1
            memcpy(mine.stage[parity], op.src, n)
            mine.stage[parity][n] = 0
            nvsym_store(&mine.arrived, t.epoch)
    t.holder = 0
    nvsym_unlock(&t.busy)
    return 0


cdef uint64_t refusals_before(TeamState *t) noexcept nogil:
    """The bad calls of this PE that a call waits for."""
    return 0 if inside_operation() else nvsym_load(&t.refused)


cdef void number_refusal(HostOp *op) noexcept nogil:
    op.value = nvsym_next(&op.team.refused)
    op.after = 0 if inside_operation() else op.value


cdef int run_fail(void *payload, Status *status) noexcept nogil:
    tell(<HostOp *> payload, status)
    let_go(<HostOp *> payload)
    return -1 if status.code == STATUS_INTERRUPTED else 0


cdef int skip_fail(void *payload, Status *status) noexcept nogil:
    """On a stream that has failed, a good call would not have been made either: there is nothing to tell."""
    let_go(<HostOp *> payload)
    return 0


cdef void let_go(HostOp *op) noexcept nogil:
    """Let the calls behind a refusal go on."""
    if nvsym_count_done(&op.team.told, op.value):
        op.team.broken = True
    nvsym_add32(&op.team.queued, -1)


cdef int alone(HostOp *op) noexcept nogil:
    nvsym_fence()
    if op.dest != op.src and op.nbytes:
        memcpy(op.dest, op.src, op.nbytes)
    return 0


cdef int inside_node(HostOp *op, Status *status) noexcept nogil:
    cdef TeamState *t = op.team
    cdef nvsym_call call
    cdef int parity, i, j
    cdef size_t staged_bytes
    cdef size_t nbytes = op.nbytes
    cdef bint stage
    if op.complete and op.host.several_nodes and by_mpi(op, INTER_QUIET, status):
        return -1
    call.kind, call.arg, call.dtype, call.failed, call.count = op.kind, op.op, op.dtype, 0, op.count
    if op.kind == COLL_REDUCE:
        call.arg |= op.algorithm << 8   # the algorithms do not meet alike
    call.src, call.dst = op.src - op.host.region, op.dest - op.host.region

    if op.kind == COLL_BARRIER or op.kind == COLL_SYNC:
        return 0 if arrive(t, &call, NULL, 0, status) >= 0 else -1
    if op.kind == COLL_REDUCE:
        if op.algorithm == ALGO_ONE_SHOT or (op.algorithm == ALGO_AUTO and nbytes <= op.host.one_shot):
            return one_shot(op, &call, status)
        return two_shot(op, &call, status)

    # What fits goes through the control block: one meeting of the PEs instead of two.
    staged_bytes = nbytes * <size_t> t.n if op.kind == COLL_ALLTOALL or op.kind == COLL_REDUCESCATTER else nbytes
    stage = staged_bytes <= NVSYM_STAGE
    if not stage or (op.kind == COLL_BROADCAST and op.pe != t.me):
        parity = arrive(t, &call, NULL, 0, status)
    else:
        parity = arrive(t, &call, op.src, staged_bytes, status)
    if parity < 0:
        return -1
    for i in range(t.n):
        t.src[i] = <const char *> nvsym_payload(t.ctl[i], parity, staged_bytes) if stage else source_of(t, i, parity)
    if op.kind == COLL_BROADCAST:
        if op.pe != t.me:
            memcpy(op.dest, t.src[op.pe], nbytes)
        elif op.dest != op.src:
            memcpy(op.dest, op.src, nbytes)
    elif op.kind == COLL_REDUCESCATTER:
        for i in range(t.n):
            t.src[i] = <const char *> t.src[i] + <size_t> t.me * nbytes
        t.dst[0] = op.dest
        nvsym_host_reduce(op.dtype, op.op)(t.dst, 1, t.src, t.n, op.count)
    else:
        for i in range(t.n):
            j = (t.me + i) % t.n    # start with the own block, so that not all PEs read from one
            memcpy(op.dest + <size_t> j * nbytes,
                   <const char *> t.src[j] + (<size_t> t.me * nbytes if op.kind == COLL_ALLTOALL else 0), nbytes)
    return 0 if stage else depart(t, op.kind, status)


cdef int one_shot(HostOp *op, nvsym_call *call, Status *status) noexcept nogil:
    """Every PE reduces everything, from copies in the control blocks: one meeting for each block of data."""
    cdef TeamState *t = op.team
    cdef size_t item = op.nbytes // op.count if op.count else 1
    cdef size_t step = NVSYM_STAGE // item
    cdef size_t done = 0, n
    cdef int i, parity
    cdef nvsym_reduce_fn function = nvsym_host_reduce(op.dtype, op.op)
    while True:
        n = min(step, op.count - done)
        parity = arrive(t, call, op.src + done * item, n * item, status)
        if parity < 0:
            return -1
        for i in range(t.n):
            t.src[i] = nvsym_payload(t.ctl[i], parity, n * item)
        t.dst[0] = op.dest + done * item
        function(t.dst, 1, t.src, t.n, n)
        done += n
        if done >= op.count:
            return 0


cdef int two_shot(HostOp *op, nvsym_call *call, Status *status) noexcept nogil:
    """Each PE reduces its share straight from the memory of all, and stores it to all.

    An element is read and written by one PE only, so `dest` may be `source`.
    """
    cdef TeamState *t = op.team
    cdef size_t item = op.nbytes // op.count if op.count else 1
    cdef size_t start = share_start(op.count, item, t.n, t.me)
    cdef size_t end = share_end(op.count, item, t.n, t.me)
    cdef int i, j
    cdef int parity = arrive(t, call, NULL, 0, status)
    if parity < 0:
        return -1
    if end > start:
        for i in range(t.n):
            t.src[i] = source_of(t, i, parity) + start * item
            j = (t.me + i) % t.n
            t.dst[i] = dest_of(t, j, parity) + start * item
        nvsym_host_reduce(op.dtype, op.op)(t.dst, t.n, t.src, t.n, end - start)
    return depart(t, op.kind, status)


# ---- the C interface: Functions of backend.pxd ----------------------------------------------------------------------


cdef int start(host_op run, HostOp *op, void *stream, Status *status) noexcept nogil:
    cdef bint run_now = False
    op.blocks = False
    if enqueue(stream, run, NULL, op, sizeof(HostOp), &run_now, status):
        return -1
    op.blocks = True
    return run(op, status) if run_now else 0


cdef int start_collective(HostOp *op, void *stream, Status *status) noexcept nogil:
    cdef bint run_now = False
    op.after = refusals_before(op.team)
    nvsym_add32(&op.team.queued, 1)
    if enqueue(stream, run_queued_collective, skip_queued_collective, op, sizeof(HostOp), &run_now, status):
        nvsym_add32(&op.team.queued, -1)
        refuse(op.team, op.kind, op.algorithm, NULL, status)
        return -1
    return run_queued_collective(op, status) if run_now else 0


cdef bint c_symmetric(void *ctx, const void *ptr, size_t nbytes) noexcept nogil:
    cdef HostState *h = <HostState *> ctx
    cdef size_t offset = <size_t> ptr - <size_t> h.heap     # of an address below the heap: a large one
    return offset <= h.heap_bytes and nbytes <= h.heap_bytes - offset


cdef void *c_peer_ptr(void *ctx, const void *ptr, int pe) noexcept nogil:
    cdef HostState *h = <HostState *> ctx
    return NULL if h.local_of[pe] < 0 else <char *> ptr + h.delta[pe]


cdef int c_put(void *ctx, void *dest, const void *src, size_t nbytes, int pe, void *stream, Status *status) noexcept nogil:
    cdef HostOp op
    op.host, op.dest, op.src, op.nbytes, op.pe = <HostState *> ctx, <char *> dest, <const char *> src, nbytes, pe
    return start(run_put, &op, stream, status)


cdef int c_get(void *ctx, void *dest, const void *src, size_t nbytes, int pe, void *stream, Status *status) noexcept nogil:
    cdef HostOp op
    op.host, op.dest, op.src, op.nbytes, op.pe = <HostState *> ctx, <char *> dest, <const char *> src, nbytes, pe
    return start(run_get, &op, stream, status)


cdef int c_put_signal(void *ctx, void *dest, const void *src, size_t nbytes, uint64_t *sig, uint64_t value, int op, int pe,
                      void *stream, Status *status) noexcept nogil:
    cdef HostOp o
    o.host, o.dest, o.src, o.nbytes, o.pe = <HostState *> ctx, <char *> dest, <const char *> src, nbytes, pe
    o.sig, o.value, o.op = sig, value, op
    return start(run_put_signal, &o, stream, status)


cdef int c_signal_op(void *ctx, uint64_t *sig, uint64_t value, int op, int pe, void *stream, Status *status) noexcept nogil:
    cdef HostOp o
    o.host, o.pe, o.sig, o.value, o.op = <HostState *> ctx, pe, sig, value, op
    return start(run_signal, &o, stream, status)


cdef int c_signal_wait(void *ctx, uint64_t *sig, int cmp, uint64_t value, void *stream, Status *status) noexcept nogil:
    cdef HostOp o
    o.host, o.sig, o.op, o.value = <HostState *> ctx, sig, cmp, value
    return start(run_signal_wait, &o, stream, status)


cdef int c_quiet(void *ctx, void *stream, Status *status) noexcept nogil:
    cdef HostOp op
    op.host = <HostState *> ctx
    return start(run_quiet, &op, stream, status)


cdef int c_barrier(void *ctx, nvsym_team_t team, bint complete, void *stream, Status *status) noexcept nogil:
    cdef HostOp op
    op.host, op.team = <HostState *> ctx, <TeamState *> team.state
    op.kind, op.pe, op.op, op.dtype, op.count = COLL_BARRIER if complete else COLL_SYNC, 0, 0, NO_TYPE, 0
    op.nbytes, op.complete, op.dest, op.src, op.algorithm = 0, complete, NULL, NULL, ALGO_AUTO
    return start_collective(&op, stream, status)


cdef int c_reduce(void *ctx, nvsym_team_t team, int dtype, int op, void *dest, const void *src, size_t count, int algorithm,
                  void *stream, Status *status) noexcept nogil:
    cdef HostOp o
    o.host, o.team = <HostState *> ctx, <TeamState *> team.state
    o.kind, o.pe, o.op, o.dtype, o.count, o.algorithm = COLL_REDUCE, 0, op, dtype, count, algorithm
    o.nbytes, o.dest, o.src, o.complete = count * SIZES[dtype], <char *> dest, <const char *> src, False
    if nvsym_host_reduce(dtype, op) == NULL or o.algorithm == ALGO_MULTIMEM or o.algorithm == ALGO_NVSHMEM:
        if no_reducer(&o, status):
            c_fail_reduce(ctx, team, algorithm, stream, status)
            return -1
    return start_collective(&o, stream, status)


cdef int no_reducer(HostOp *op, Status *status) noexcept with gil:
    try:
        reason = (<HostBackend> op.host.backend).why_no_reduce(op.dtype, op.op, op.algorithm)
        if reason is None:
            return 0
        raise ValueError(reason)
    except BaseException as error:
        status_of(status, error)
        return -1


# The words travel with the operation: nobody keeps them until a stream gets there.
cdef struct FailOp:
    HostOp op
    char   reason[144]


cdef void c_fail_reduce(void *ctx, nvsym_team_t team, int algorithm, void *stream, const Status *status) noexcept nogil:
    refuse(<TeamState *> team.state, COLL_REDUCE, algorithm, stream, status)


cdef void refuse(TeamState *t, int kind, int algorithm, void *stream, const Status *status) noexcept nogil:
    cdef FailOp fail
    cdef Status unused
    cdef bint run_now = False
    fail.op.host, fail.op.team, fail.op.kind, fail.op.algorithm = t.host, t, kind, algorithm
    snprintf(fail.reason, sizeof(fail.reason), b"%.143s", status.text)
    number_refusal(&fail.op)
    nvsym_add32(&t.queued, 1)
    if enqueue(stream, run_fail_words, skip_fail, &fail, sizeof(FailOp), &run_now, &unused) or run_now:
        unused.code = unused.npes = 0
        run_fail_words(&fail, &unused)


cdef int run_fail_words(void *payload, Status *status) noexcept nogil:
    cdef FailOp *fail = <FailOp *> payload
    fail.op.src, fail.op.nbytes = fail.reason, strlen(fail.reason)
    return run_fail(&fail.op, status)
