# SPDX-License-Identifier: Apache-2.0
"""`Team`: a set of PEs that make collective calls together, as in OpenSHMEM 1.5, section 9.4."""

from cpython.number cimport PyNumber_Index
from libc.stdint cimport int64_t

import zlib

import numpy as np

from .agreement import no_communicator
from .errors import CollectiveError, NotInitializedError, NVSymError

from .agreement cimport Agreement
from .backend cimport TeamData
from .heap cimport CALL_DESTROY, CALL_SPLIT, meet
from .job cimport Job, current_job


cdef enum:
    TAG_ARRIVAL = 4711  # of the messages by which the members of a new team meet
    TAG_VERDICT = 4712
    TAG_GOING   = 4713


cdef class Team:
    """A set of PEs. Made by `split_strided`, `split_2d` and `create_group`.

    In every job there are `TEAM_WORLD` (all PEs), `TEAM_NODE` (those on the node of this one) and `TEAM_SHARED` (those of them whose
    memory this PE can address).

    A team that was made is destroyed by `destroy`, at the end of its `with` block, or by `finalize`.
    """

    def __init__(self):
        raise TypeError("a Team is made by split_strided(), split_2d() or create_group() of another one")

    def my_pe(self):
        """This PE's number in the team."""
        self.check()
        return self.data.my_pe

    def n_pes(self):
        """The number of PEs in the team."""
        self.check()
        return self.data.n_pes

    @property
    def pes(self):
        """The members' numbers in the world, in the order of the team."""
        self.check()
        return [self.data.pes[i] for i in range(self.data.n_pes)]

    def translate_pe(self, pe, Team dest not None):
        """The number in `dest` of this team's PE `pe`, or -1 if it is not a member.

        Raises
        ------
        ValueError
            If `pe` is not a PE of this team.
        """
        self.check()
        dest.check()
        cdef int i, member = as_member(self, pe, "pe")
        for i in range(dest.data.n_pes):
            if dest.data.pes[i] == self.data.pes[member]:
                return i
        return -1

    def split_strided(self, start, stride, size):
        """A team of the PEs `start`, `start` + `stride`, ... of this one; collective over this team.

        Parameters
        ----------
        start : int
            The first member's number in this team.
        stride : int
            Not zero; may be negative.
        size : int
            The number of members, at least one.

        Returns
        -------
        Team or None
            None on the PEs that are not members. Those make no call on the team: ``if evens is not None: allreduce(..., team=evens)``.
            A `team` of None is no empty team, but stands for TEAM_WORLD, as where none is given.

        Raises
        ------
        ValueError
            If a member would not exist or would be there twice.
        CollectiveError
            If PEs gave different arguments.
        """
        self.check()
        error = None
        cdef str what = "split_strided()"
        try:
            start, stride, size = _number(start, "start"), _number(stride, "stride"), _number(size, "size")
            what = f"split_strided(start={start}, stride={stride}, size={size})"
            last = start + (size - 1) * stride
            if size < 1:
                raise ValueError(f"size: {size} is below one")
            if stride == 0 and size > 1:
                raise ValueError("stride: 0 names the same PE again")
            if not (0 <= start < self.data.n_pes and 0 <= last < self.data.n_pes):
                raise ValueError(f"start={start}, stride={stride}, size={size}: PE {last} is not in "
                                 f"0..{self.data.n_pes - 1} of {self!r}")
        except Exception as e:
            error = e
            start = stride = size = 0
        meet(self.agreement, CALL_SPLIT, (_fold(start, stride, size), 0), what, error)
        members = [start + i * stride for i in range(size)]
        return self.subset(members, f"{self.name}[{start}:{stride}x{size}]", what)

    def split_2d(self, xrange):
        """Teams of the rows and columns of this team's PEs laid out in rows of `xrange`; collective over this team.

        Parameters
        ----------
        xrange : int
            The length of a row. The last one may be shorter.

        Returns
        -------
        x, y : Team
            The row and the column of this PE; every PE is in one of each, so neither is None, as a team of `split_strided` may be.
        """
        self.check()
        error = None
        cdef str what = "split_2d()"
        try:
            xrange = _number(xrange, "xrange")
            what = f"split_2d(xrange={xrange})"
            if xrange < 1:
                raise ValueError(f"xrange: {xrange} is below one")
        except Exception as e:
            error = e
            xrange = 0
        meet(self.agreement, CALL_SPLIT, (_fold(xrange, 0, -1), 0), what, error)
        cdef int n = self.data.n_pes, me = self.data.my_pe
        cdef Team x, y
        row, column = me // xrange, me % xrange
        x = self.subset([pe for pe in range(n) if pe // xrange == row], f"{self.name}.x{row}", what)
        try:
            y = self.subset([pe for pe in range(n) if pe % xrange == column], f"{self.name}.y{column}", what)
        except Exception:
            x.leave("split_2d() failed")    # on every PE
            raise
        return x, y

    def create_group(self, pes):
        """A team of any PEs of this one, in the order given; collective over those PEs alone, as MPI_Comm_create_group is.

        Parameters
        ----------
        pes : sequence of int
            The members' numbers in this team, this PE's among them; the same on every member.

        Raises
        ------
        TypeError, ValueError
            If `pes` is no such sequence, a member does not exist or is there twice, or this PE is none. The others are not told:
            they find out by the time limit.
        CollectiveError
            If members gave different lists.
        PeerTimeoutError
            If a member does not come.
        """
        self.check()
        try:
            pes = list(pes)
        except TypeError:
            raise TypeError(f"pes: expected a sequence of numbers of PEs, not {type(pes).__name__}") from None
        members = [_number(pe, "pes") for pe in pes]
        cdef int me = self.data.my_pe
        for pe in members:
            if not 0 <= pe < self.data.n_pes:
                raise ValueError(f"pes: PE {pe} is not in 0..{self.data.n_pes - 1} of {self!r}")
        if len(set(members)) != len(members):
            raise ValueError(f"pes: {members} names a PE twice")
        if me not in members:
            raise ValueError(f"pes: PE {me} makes the call and is not in {members}; only members call create_group()")
        # What waits here is not the agreement of this team, which others may use meanwhile, and which a failure would end.
        cdef Agreement waiting = Agreement(self.agreement.comm, self.agreement.limit, self.agreement.names)
        waiting.watch = self.agreement.watch
        _meet_members(waiting, members)
        comm = self.communicator(members)
        cdef Team team
        try:
            team = self.join(comm, members, f"{self.name}{members}")
        except BaseException:
            comm.Free()
            raise
        self.job.add_team(team.data, team.agreement)
        return team

    def subset(self, list members, str name, str what):
        """The team of some of this team's PEs, each of which gives the same list; all PEs of this team call it."""
        cdef Team team = None
        comm = None

        def divide():
            nonlocal comm
            if self.data.my_pe in members:
                comm = self.communicator(members)    # no-cython-lint

        def join():
            nonlocal team
            if comm is not None:
                team = self.join(comm, members, name)    # no-cython-lint

        try:
            self.agreement.attempt(what, divide)
            self.agreement.attempt(what, join)
        except Exception:
            if team is not None:
                self.job.backend.destroy_team(team.data)
            if comm is not None:
                comm.Free()
            raise
        if team is not None:
            self.job.add_team(team.data, team.agreement)
        return team

    cdef object communicator(self, list members):
        """MPI's communicator of a new team; its members call this."""
        from mpi4py import MPI
        group = self.agreement.comm.Get_group()
        part = group.Incl(members)
        try:
            return self.agreement.comm.Create_group(part, tag=min(members))
        except MPI.Exception as error:
            raise no_communicator(error) from error
        finally:
            part.Free()
            group.Free()

    cdef Team join(self, object comm, list members, str name):
        """This PE's part of a new team, on each of its members."""
        pes = [self.data.pes[i] for i in members]
        agreement = Agreement(comm, self.agreement.limit, [self.job.agreement.names[pe] for pe in pes])
        agreement.watch = self.agreement.watch
        cdef TeamData data = self.job.backend.create_team(agreement, pes, members.index(self.data.my_pe))
        cdef Team team = Team.__new__(Team)
        team.job, team.data, team.agreement, team.name = self.job, data, agreement, name
        return team

    def destroy(self):
        """End the team; collective over it. Predefined teams cannot be destroyed.

        Raises
        ------
        ValueError
            For a predefined team.
        NVSymError
            If it was destroyed before.
        """
        self.check()
        if self.predefined:
            raise ValueError(f"{self!r} is predefined and cannot be destroyed")
        meet(self.agreement, CALL_DESTROY, (0, 0), "destroying a team", None)
        self.leave("it has been destroyed")

    cdef int leave(self, str why) except -1:
        self.job.drop_team(self.data)
        self.data, self.agreement, self.job = None, None, None
        self.ended = why
        return 0

    def __enter__(self):
        self.check()
        return self

    def __exit__(self, cls, value, trace):
        # After an exception the other members may be elsewhere: leave the team to finalize().
        if cls is None and self.data is not None and self.job.heap.closed is None and not self.predefined:
            self.destroy()

    def __repr__(self):
        if self.data is None or self.job.heap.closed is not None:
            return f"<Team {self.name}, not usable: {self.why_not()}>"
        return f"<Team {self.name}: PE {self.data.my_pe} of {self.data.n_pes}>"

    def __reduce__(self):
        raise TypeError("a Team belongs to its process and cannot be pickled")

    def why_not(self):
        if self.ended is not None:
            return self.ended
        return "there is no job" if self.job is None else self.job.heap.closed

    cdef int check(self) except -1:
        if self.data is None:
            if self.ended is None:
                current_job()
            raise NVSymError(f"the team {self.name} cannot be used: {self.why_not()}")
        if self.job.heap.closed is not None:
            current_job()
            raise NotInitializedError(f"the team {self.name} belongs to a job that cannot be used: {self.job.heap.closed}")
        return 0


cdef int64_t _attempts = 0     # calls of create_group that this PE has made
cdef list _withdrawals = []     # messages that are on their way: (request, data)


cdef int _meet_members(Agreement waiting, list members) except -1:
    """Wait until all members of a new team are here with the same list. MPI would wait for ever, and not notice the rest.

    A member tells the first one of its arrival, and waits for its verdict; then that one waits until all are on their way to MPI. A member
    that gives up says so, so that a first one that comes later does not take the old message for an arrival; and a verdict names the
    attempt that it answers.
    """
    global _attempts
    what = f"create_group({members})"
    if len(members) == 1:
        return 0
    _attempts += 1
    arrival = np.array([len(members), zlib.crc32(repr(members).encode()), _attempts], np.int64)
    if waiting.rank != members[0]:
        good = _follow(waiting, members[0], arrival, what)
    else:
        good = _lead(waiting, members, arrival, what)
    if not good:
        raise CollectiveError(f"{what}: the members gave different lists; each must give the same, in the same order")
    return 0


cdef int _send(Agreement waiting, object data, int pe, int tag, str what) except -1:
    request = waiting.comm.Isend(data, pe, tag)
    return _finish(waiting, request, what)


cdef int _finish(Agreement waiting, object request, str what) except -1:
    try:
        waiting.wait(request, what)
    except BaseException:
        if request:
            request.Cancel()
            request.Free()
        raise
    return 0


cdef object _receive(Agreement waiting, int n, int pe, int tag, str what):
    data = np.empty(n, np.int64)
    _finish(waiting, waiting.comm.Irecv(data, pe, tag), what)
    return data


cdef bint _follow(Agreement waiting, int leader, object arrival, str what) except -1:
    global _withdrawals
    _withdrawals = [(request, data) for request, data in _withdrawals if not request.Test()]
    try:
        _send(waiting, arrival, leader, TAG_ARRIVAL, what)
        while True:
            good, attempt = _receive(waiting, 2, leader, TAG_VERDICT, what)
            if attempt == arrival[2]:
                break
            if good:    # of an attempt that was given up: the leader waits for an answer
                _send(waiting, np.array([0, 0, attempt], np.int64), leader, TAG_GOING, what)
    except BaseException:
        withdrawal = np.array([0, 0, arrival[2]], np.int64)
        _withdrawals.append((waiting.comm.Isend(withdrawal, leader, TAG_ARRIVAL), withdrawal))
        raise
    if good:
        _send(waiting, arrival, leader, TAG_GOING, what)
    return good


cdef object _arrival(Agreement waiting, int pe, str what):
    """The last arrival of a member that it has not withdrawn."""
    while True:
        arrived = _receive(waiting, 3, pe, TAG_ARRIVAL, what)
        if arrived[0] and not waiting.comm.Iprobe(pe, TAG_ARRIVAL):
            return arrived


cdef bint _lead(Agreement waiting, list members, object arrival, str what) except -1:
    cdef dict arrivals = {pe: _arrival(waiting, pe, what) for pe in members[1:]}
    for pe in members[1:]:      # while others were waited for
        if waiting.comm.Iprobe(pe, TAG_ARRIVAL):
            arrivals[pe] = _arrival(waiting, pe, what)
    good = all((arrived[:2] == arrival[:2]).all() for arrived in arrivals.values())
    for pe, arrived in arrivals.items():
        _send(waiting, np.array([good, arrived[2]], np.int64), pe, TAG_VERDICT, what)
    while good and arrivals:
        for pe, arrived in list(arrivals.items()):
            answer = _receive(waiting, 3, pe, TAG_GOING, what)
            if answer[2] == arrived[2] and answer[0]:
                del arrivals[pe]
            elif answer[2] == arrived[2]:   # it had given up, and is here again
                arrivals[pe] = _arrival(waiting, pe, what)
                good = (arrivals[pe][:2] == arrival[:2]).all()
                _send(waiting, np.array([good, arrivals[pe][2]], np.int64), pe, TAG_VERDICT, what)
    return good


cdef int as_member(Team team, object pe, str name) except -1:
    try:
        if isinstance(pe, bool):
            raise TypeError
        number = PyNumber_Index(pe)
    except TypeError:
        raise TypeError(f"{name}: expected the number of a PE, not {type(pe).__name__}") from None
    if not 0 <= number < team.data.n_pes:
        raise ValueError(f"{name}: {number} is not in 0..{team.data.n_pes - 1} of {team!r}")
    return number


cdef object _number(object value, str name):
    """An argument that is a whole number, within what is sent of it to the other PEs."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = PyNumber_Index(value)
    except TypeError:
        raise TypeError(f"{name}: expected a whole number, not {type(value).__name__}") from None
    if not -(1 << 20) <= number < 1 << 20:
        raise ValueError(f"{name}: {number} is out of range")
    return number


cdef object _fold(int64_t a, int64_t b, int64_t c):
    """Three arguments in one number that differs where they do."""
    return ((a & 0x1fffff) << 42) | ((b & 0x1fffff) << 21) | (c & 0x1fffff)


cdef Team _predefined(str name):
    cdef Team team = Team.__new__(Team)
    team.name = name
    team.predefined = True
    return team

cdef Team TEAM_WORLD = _predefined("TEAM_WORLD")
cdef Team TEAM_NODE = _predefined("TEAM_NODE")
cdef Team TEAM_SHARED = _predefined("TEAM_SHARED")

PREDEFINED = {team.name: team for team in (TEAM_WORLD, TEAM_NODE, TEAM_SHARED)}


cdef Team world_team():
    return TEAM_WORLD


cdef int attach_predefined(Job job) except -1:
    """Make the predefined teams those of a new job; collective."""
    cdef TeamData world = job.backend.create_team(job.agreement, list(range(job.n_pes)), job.my_pe)
    job.add_team(world, job.agreement)
    TEAM_WORLD.job, TEAM_WORLD.data, TEAM_WORLD.agreement = job, world, job.agreement
    node = [pe for pe in range(job.n_pes) if job.backend.nodes[pe] == job.backend.nodes[job.my_pe]]
    shared = [pe for pe in node if job.backend.peer_ptr(job.backend.arena_base(0), pe) != NULL]
    cdef Team team, made
    for team, members in ((TEAM_NODE, node), (TEAM_SHARED, shared)):
        made = TEAM_WORLD.subset(members, team.name, f"making {team.name}")
        team.job, team.data, team.agreement = job, made.data, made.agreement
    return 0


cdef int detach_predefined() except -1:
    cdef Team team
    for team in (TEAM_WORLD, TEAM_NODE, TEAM_SHARED):
        team.job, team.data, team.agreement = None, None, None
    return 0


cdef Team as_team(object team, str name):
    if team is None:
        return TEAM_WORLD
    if not isinstance(team, Team):
        raise TypeError(f"{name}: expected a Team, not {type(team).__name__}")
    return <Team> team
