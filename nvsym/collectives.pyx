# SPDX-License-Identifier: Apache-2.0
"""Collective operations (OpenSHMEM 1.5, section 9.9) over a team.

Every PE of the team makes the same call, in the same order. A call that is bad on one PE raises on all where the backend can
tell them: on that PE with the reason, on the others as `CollectiveError`. A call whose arguments differ between PEs raises
`CollectiveError` on all.
"""

cimport cython

from .backend import ALGORITHMS
from .choice import AllreduceChoice
from .dtypes import OPS, as_dtype, as_op

from .backend cimport (
    ALGO_AUTO, ALGO_COUNT, ALGO_MULTIMEM, COLL_ALLTOALL, COLL_BARRIER, COLL_BROADCAST, COLL_FCOLLECT, COLL_REDUCE,
    COLL_REDUCESCATTER)
from .buffer cimport SHMEMBuffer, as_buffer
from .job cimport current_job
from .memory cimport Buffer
from .pool_reduce cimport reduce_in_pool
from .rma cimport bad_type, job_stream
from .team cimport Team, as_team, world_team

cdef dict ALGORITHM_IDS = {name: i for i, name in enumerate(ALGORITHMS)}
cdef dict OP_IDS = {op.name: op.id for op in OPS}


cdef int fail(object team, int kind, object error, object stream, int algorithm=ALGO_AUTO) except -1:
    """Tell the other members that this PE takes no part, and raise its own error."""
    cdef Team t = world_team() if team is None or not isinstance(team, Team) else <Team> team
    cdef void *ptr = NULL
    if t.data is not None and t.job.heap.closed is None:
        try:
            job_stream(t.job, stream, &ptr)
        except (TypeError, ValueError):
            ptr = t.job.backend.stream.ptr      # the stream itself was the bad argument
        t.job.backend.fail(t.data, kind, algorithm, f"{type(error).__name__}: {error}", ptr)
    raise error


def refuse(error, *, team=None, stream=None):
    """Take no part in the next call on a team because of `error`: tell the other members, where the backend can, and raise it.

    For calls that are made of these and find a bad argument before the first of them.
    """
    fail(team, COLL_BARRIER, error, stream)


@cython.final
@cython.freelist(4)
cdef class Call:
    """The checked arguments of a collective call."""
    cdef Team team
    cdef SHMEMBuffer dest
    cdef SHMEMBuffer source
    cdef void *stream
    cdef object keep


cdef Call checked(object dest, object source, object team, object stream, size_t dest_blocks, size_t source_blocks):
    """The arguments, where `dest` and `source` hold so many equal blocks; 0: one for each PE of the team."""
    cdef Call call = Call.__new__(Call)
    cdef SHMEMBuffer d, s
    cdef size_t block
    call.team = as_team(team, "team")
    call.team.check()
    call.dest = d = as_buffer(dest, "dest")
    call.source = s = as_buffer(source, "source")
    cdef size_t n = call.team.data.n_pes
    if d.type_id != s.type_id:
        bad_type("dest", d.element.name, "source", s.element.name)
    if d.job is not call.team.job or s.job is not call.team.job:
        raise ValueError("dest: the buffer is of another job than the team")
    if source_blocks == 0 and s.count % n:
        raise ValueError(f"source: {s.count} elements are no whole block for each of the {n} PEs of {call.team!r}")
    block = s.count if source_blocks else s.count // n
    if d.count != block * (dest_blocks if dest_blocks else n):
        raise ValueError(f"dest: {d.count} elements where {block * (dest_blocks if dest_blocks else n)} are needed for a source "
                         f"of {s.count} on {n} PEs")
    if d.ptr != s.ptr and d.ptr < s.ptr + s.count * s.item and s.ptr < d.ptr + d.count * d.item:
        raise ValueError("dest: it overlaps source without being the same memory")
    job_stream(d.job, stream, &call.stream)
    # A GPU's symmetric memory is kept by the tickets of its runtime.
    if call.stream != NULL and d.job.backend.device.is_host:
        call.keep = (d, s, call.team)
    return call


cdef int not_in_place(Call call) except -1:
    if call.dest.ptr == call.source.ptr and call.dest.count:
        raise ValueError("dest: it must not be source")
    return 0


def broadcast(dest, source, int root, *, team=None, stream=None):
    """Copy `source` of the team's PE `root` to `dest` on every PE of the team.

    Parameters
    ----------
    dest, source : SHMEMBuffer
        Or slices; of one element type and length. They may be the same.
    root : int
        A PE's number in the team.
    team : Team, optional
        Default: TEAM_WORLD.
    stream : stream, optional
        Default: that of the context.
    """
    cdef Call call
    try:
        call = checked(dest, source, team, stream, 1, 1)
        if not 0 <= root < call.team.data.n_pes:
            raise ValueError(f"root: {root} is not in 0..{call.team.data.n_pes - 1} of {call.team!r}")
    except Exception as error:
        fail(team, COLL_BROADCAST, error, stream)
    call.dest.job.backend.broadcast(call.team.data, call.dest.ptr, call.source.ptr, call.source.count * call.source.item,
                                    root, call.stream, call.keep)


def fcollect(dest, source, *, team=None, stream=None):
    """Concatenate the `source` of all PEs of the team, in their order, in `dest` on every one (allgather).

    Parameters
    ----------
    dest : SHMEMBuffer
        ``n_pes * len(source)`` elements.
    source : SHMEMBuffer
    team, stream
        As for `broadcast`.
    """
    cdef Call call
    try:
        call = checked(dest, source, team, stream, 0, 1)
        if call.team.data.n_pes > 1:
            not_in_place(call)
    except Exception as error:
        fail(team, COLL_FCOLLECT, error, stream)
    call.dest.job.backend.fcollect(call.team.data, call.dest.ptr, call.source.ptr, call.source.count * call.source.item,
                                   call.stream, call.keep)


def alltoall(dest, source, *, team=None, stream=None):
    """Send block i of `source` to PE i of the team; what PE j sends here becomes block j of `dest`.

    Parameters
    ----------
    dest, source : SHMEMBuffer
        Of one length, a multiple of the number of PEs.
    team, stream
        As for `broadcast`.
    """
    cdef Call call
    try:
        call = checked(dest, source, team, stream, 0, 0)
        if call.team.data.n_pes > 1:
            not_in_place(call)
    except Exception as error:
        fail(team, COLL_ALLTOALL, error, stream)
    call.dest.job.backend.alltoall(call.team.data, call.dest.ptr, call.source.ptr,
                                   call.source.count // call.team.data.n_pes * call.source.item, call.stream, call.keep)


cdef int op_id(object op) except -1:
    found = OP_IDS.get(op)
    return as_op(op).id if found is None else found


cdef int algorithm_id(object algorithm) except -1:
    try:
        return ALGORITHM_IDS[algorithm]
    except (KeyError, TypeError):
        raise ValueError(f"algorithm: {algorithm!r} is none of {', '.join(ALGORITHMS)}") from None


cdef enum:
    REDUCESCATTER = ALGO_COUNT      # in the place of an algorithm of allreduce


cdef int check_reduce(Call call, int op, int algorithm) except -1:
    """That the backend can reduce this element type by this code in this way; looked up once for each."""
    cdef SHMEMBuffer d = call.dest
    if d.job.reduces[d.type_id][op][algorithm]:
        return 0
    if algorithm == REDUCESCATTER:
        reason = d.job.backend.why_no_reducescatter(d.type_id, op)
    else:
        reason = d.job.backend.why_no_reduce(d.type_id, op, algorithm)
    if reason is not None:
        if algorithm == ALGO_AUTO or algorithm == REDUCESCATTER or d.job.backend.why_no_reduce(d.type_id, op, ALGO_AUTO) is not None:
            raise TypeError(f"op: {reason}")
        raise ValueError(f"algorithm: {ALGORITHMS[algorithm]!r} cannot be used here: {reason}")
    d.job.reduces[d.type_id][op][algorithm] = True
    return 0


def reduce(dest, source, op="sum", *, team=None, stream=None, algorithm="auto"):
    """Combine the `source` of all PEs of the team by `op`, element by element, into `dest` on every one (allreduce).

    Parameters
    ----------
    dest, source : SHMEMBuffer
        Or slices; of one element type and length. They may be the same.
    op : {"sum", "prod", "min", "max", "and", "or", "xor"}
        The bitwise ones for integers and bool; no min and max for complex numbers.
    team : Team, optional
        Default: TEAM_WORLD.
    stream : stream, optional
        Default: that of the context.
    algorithm : str
        "auto" chooses by size. "one_shot": every PE reduces everything. "two_shot": every PE reduces a share and
        hands it to all. "mpi": through MPI. "nvshmem" needs GPUs; "multimem", the NVLink switch, a multicast address as well:
        that of the symmetric heap, or `dest` and `source` are views of a `SymmetricPool` (``pool.unicast_view(ctx.device)``) of
        the devices of the team.

    Raises
    ------
    TypeError
        If `op` is not defined for the element type.
    ValueError
        If `op` or `algorithm` does not exist, or the algorithm cannot be used here.

    Notes
    -----
    PE 0's element is taken first, then PE 1's and so on, so the result is the same on every PE and in every run, bit for
    bit. Floats of 16 and 8 bits are summed in float32 and rounded once.
    """
    cdef Call call
    cdef int code = 0, way = 0
    if isinstance(dest, Buffer):
        if algorithm_id(algorithm) not in (ALGO_AUTO, ALGO_MULTIMEM):
            raise ValueError(f"algorithm: {algorithm!r} is for SHMEMBuffers; views of a SymmetricPool are reduced by 'multimem'")
        reduce_in_pool(<Buffer> dest, source, op_id(op), as_team(team, "team"), stream)
        return
    try:
        way = algorithm_id(algorithm)
        if way == ALGO_AUTO and world_team().job is not None:
            way = world_team().job.default_algorithm
        call = checked(dest, source, team, stream, 1, 1)
        code = op_id(op)
        check_reduce(call, code, way)
    except Exception as error:
        fail(team, COLL_REDUCE, error, stream, way)
    call.dest.job.backend.reduce(call.team.data, call.dest.type_id, code, call.dest.ptr, call.source.ptr,
                                 call.source.count, way, call.stream, call.keep)


allreduce = reduce


def explain_allreduce(dest, source=None, op="sum", *, team=None, algorithm="auto"):
    """Which algorithm `allreduce` uses for these arguments, and why. Moves nothing; not collective.

    The choice depends on the team, the element type, the operator, the bytes, and whether it is in place: on nothing that
    differs between the PEs of a call, so it is the same on all.

    Parameters
    ----------
    dest, source : SHMEMBuffer
        As for `allreduce`. `source` of None: in place.
    op, team, algorithm
        As for `allreduce`.

    Returns
    -------
    AllreduceChoice
        ``print(nvsym.explain_allreduce(dest, source))`` shows it in words, with the thresholds of "auto".

    Raises
    ------
    TypeError, ValueError
        As `allreduce` would.
    """
    cdef Call call = checked(dest, dest if source is None else source, team, None, 1, 1)
    cdef SHMEMBuffer d = call.dest
    cdef int way = algorithm_id(algorithm), code = op_id(op)
    asked_by = "call"
    if way == ALGO_AUTO:
        way = d.job.default_algorithm
        asked_by = d.job.settings.source["NVSYM_ALLREDUCE_ALGORITHM"]
    check_reduce(call, code, way)
    name, reason, thresholds = d.job.backend.explain_reduce(call.team.data, d.type_id, code, d.count, way,
                                                            d.ptr == call.source.ptr)
    return AllreduceChoice(name, reason, thresholds, ALGORITHMS[way], asked_by, d.job.backend.name, d.element.name,
                           OPS[code].name, call.team.data.n_pes, d.count * d.item)


def warmup(dtypes=("float32",), ops=("sum",)):
    """Pay for the first calls now: compile, or take from the cache, and load what the operations need. Not collective.

    On GPUs the kernels of an element type and operator are compiled at their first use, which takes about a second, once for
    each GPU architecture: the machine code stays in a cache (NVSYM_CACHE_DIR). `python -m nvsym info` shows what it holds and
    cost. In host memory nothing is compiled at run time.

    Parameters
    ----------
    dtypes : sequence of dtypes
    ops : sequence of str
        For each element type, those that are defined for it.

    Returns
    -------
    float
        The seconds that it took.

    Raises
    ------
    TypeError, ValueError
        For an element type or operator that does not exist.
    BackendError
        If the compiler fails, or during the capture of a CUDA graph.
    """
    job = current_job()
    types = [as_dtype(dtype) for dtype in dtypes]
    operators = [as_op(op) for op in ops]
    job.backend.check_host_call()
    return job.backend.warm_up(types, operators)


def reducescatter(dest, source, op="sum", *, team=None, stream=None):
    """Combine the `source` of all PEs of the team by `op`; `dest` of PE i becomes block i of the result.

    Parameters
    ----------
    dest : SHMEMBuffer
    source : SHMEMBuffer
        ``n_pes * len(dest)`` elements.
    op, team, stream
        As for `reduce`.
    """
    cdef Call call
    cdef int code = 0
    try:
        call = checked(dest, source, team, stream, 1, 0)
        if call.team.data.n_pes > 1:
            not_in_place(call)
        code = op_id(op)
        check_reduce(call, code, REDUCESCATTER)
    except Exception as error:
        fail(team, COLL_REDUCESCATTER, error, stream)
    call.dest.job.backend.reducescatter(call.team.data, call.dest.type_id, code, call.dest.ptr, call.source.ptr,
                                        call.dest.count, call.stream, call.keep)
