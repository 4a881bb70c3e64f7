# SPDX-License-Identifier: Apache-2.0
"""Collective operations (OpenSHMEM 1.5, section 9.9) over a team.

Every PE of the team makes the same call, in the same order. A call that is bad on one PE raises on all where the backend can
tell them: on that PE with the reason, on the others as `CollectiveError`. A call whose arguments differ between PEs raises
`CollectiveError` on all.
"""

import numpy as np

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
from .rma cimport bad_type, fail, job_stream
from .team cimport Team, as_member, as_team, world_team

cdef tuple ALGORITHM_NAMES = ALGORITHMS
cdef tuple OP_NAMES = tuple([op.name for op in OPS])


def refuse(error, *, team=None, stream=None):
    """Take no part in the next call on a team because of `error`: tell the other members, where the backend can, and raise it.

    For calls that are made of these and find a bad argument before the first of them.
    """
    fail(team, COLL_BARRIER, error, stream)


cdef inline Team live_team(object team):
    cdef Team t = as_team(team, "team")
    t.check()
    return t


cdef int check_operands(Team team, SHMEMBuffer d, SHMEMBuffer s, size_t dest_blocks, size_t source_blocks,
                        object stream, void **ptr) except -1:
    """That `d` and `s` hold so many equal blocks (0: one for each PE of the team); and the raw stream."""
    cdef size_t n = team.data.n_pes, block, needed
    if d.type_id != s.type_id:
        bad_type("dest", d.element.name, "source", s.element.name)
    if d.job is not team.job or s.job is not team.job:
        raise ValueError("dest: the buffer is of another job than the team")
    if source_blocks == 0 and s.count % n:
        raise ValueError(f"source: {s.count} elements are no whole block for each of the {n} PEs of {team!r}")
    block = s.count if source_blocks else s.count // n
    needed = block * (dest_blocks if dest_blocks else n)
    if d.count != needed:
        raise ValueError(f"dest: {d.count} elements where {needed} are needed for a source of {s.count} on {n} PEs")
    if d.ptr != s.ptr and d.ptr < s.ptr + s.count * s.item and s.ptr < d.ptr + d.count * d.item:
        raise ValueError("dest: it overlaps source without being the same memory")
    return job_stream(d.job, stream, ptr)


cdef inline object keep(SHMEMBuffer d, SHMEMBuffer s, Team team, void *stream):
    """What has to live until the operation is done. A GPU's symmetric memory is kept by the tickets of its runtime.

    The last thing before the operation: it looks at the team again, since the arguments may have run Python code.
    """
    held = (d, s, team.data) if stream != NULL and d.job.backend.device.is_host else None
    team.check()
    return held


cdef int not_in_place(Team team, SHMEMBuffer d, SHMEMBuffer s) except -1:
    if d.ptr == s.ptr and d.count and team.data.n_pes > 1:
        raise ValueError("dest: it must not be source")
    return 0


def broadcast(dest, source, root, *, team=None, stream=None):
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
    cdef Team t
    cdef SHMEMBuffer d, s
    cdef int member = 0
    cdef void *ptr = NULL
    try:
        t = live_team(team)
        d, s = as_buffer(dest, "dest"), as_buffer(source, "source")
        check_operands(t, d, s, 1, 1, stream, &ptr)
        member = as_member(t, root, "root")
    except Exception as error:
        fail(team, COLL_BROADCAST, error, stream)
    held = keep(d, s, t, ptr)
    d.job.backend.broadcast(t.data, d.type_id, d.ptr, s.ptr, s.count * s.item, member, ptr, held)


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
    cdef Team t
    cdef SHMEMBuffer d, s
    cdef void *ptr = NULL
    try:
        t = live_team(team)
        d, s = as_buffer(dest, "dest"), as_buffer(source, "source")
        check_operands(t, d, s, 0, 1, stream, &ptr)
        not_in_place(t, d, s)
    except Exception as error:
        fail(team, COLL_FCOLLECT, error, stream)
    held = keep(d, s, t, ptr)
    d.job.backend.fcollect(t.data, d.type_id, d.ptr, s.ptr, s.count * s.item, ptr, held)


def alltoall(dest, source, *, team=None, stream=None):
    """Send block i of `source` to PE i of the team; what PE j sends here becomes block j of `dest`.

    Parameters
    ----------
    dest, source : SHMEMBuffer
        Of one length, a multiple of the number of PEs.
    team, stream
        As for `broadcast`.
    """
    cdef Team t
    cdef SHMEMBuffer d, s
    cdef void *ptr = NULL
    try:
        t = live_team(team)
        d, s = as_buffer(dest, "dest"), as_buffer(source, "source")
        check_operands(t, d, s, 0, 0, stream, &ptr)
        not_in_place(t, d, s)
    except Exception as error:
        fail(team, COLL_ALLTOALL, error, stream)
    held = keep(d, s, t, ptr)
    d.job.backend.alltoall(t.data, d.type_id, d.ptr, s.ptr, s.count // t.data.n_pes * s.item, ptr, held)


cdef inline int place_of(object name, tuple names) noexcept:
    """The place of a name that is one of these objects, as a literal of a program is; else -1."""
    cdef Py_ssize_t i
    for i in range(len(names)):
        if name is names[i]:
            return <int> i
    return -1


cdef int op_id(object op) except -1:
    cdef int place = place_of(op, OP_NAMES)
    return place if place >= 0 else as_op(op).id


cdef int algorithm_id(object algorithm) except -1:
    cdef int place = place_of(algorithm, ALGORITHM_NAMES)
    if place >= 0:
        return place
    try:
        return ALGORITHM_NAMES.index(algorithm)
    except ValueError:
        raise ValueError(f"algorithm: {algorithm!r} is none of {', '.join(ALGORITHMS)}") from None


cdef enum:
    REDUCESCATTER = ALGO_COUNT      # in the place of an algorithm of allreduce


cdef int check_reduce(SHMEMBuffer d, int op, int algorithm, bint by_setting) except -1:
    """That the backend can reduce this element type by this code in this way; looked up once for each.

    `by_setting`: the algorithm is not the caller's, but that of the environment.
    """
    if d.job.reduces[d.type_id][op][algorithm]:
        return 0
    if algorithm == REDUCESCATTER:
        reason = d.job.backend.why_no_reducescatter(d.type_id, op)
    else:
        reason = d.job.backend.why_no_reduce(d.type_id, op, algorithm)
    if reason is not None:
        if algorithm == ALGO_AUTO or algorithm == REDUCESCATTER or d.job.backend.why_no_reduce(d.type_id, op, ALGO_AUTO) is not None:
            raise TypeError(f"op: {reason}")
        asked = "the setting NVSYM_ALLREDUCE_ALGORITHM" if by_setting else "algorithm"
        raise ValueError(f"{asked}: {ALGORITHMS[algorithm]!r} cannot be used here: {reason}")
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
    bit; but by "nvshmem" and "multimem", and over several nodes of GPUs the nodes are combined one after another. Floats of 16 and 8
    bits are summed in float32 and rounded once.
    """
    cdef Team t
    cdef SHMEMBuffer d, s
    cdef void *ptr = NULL
    cdef int code = 0, way = 0
    cdef bint by_setting = False
    if isinstance(dest, Buffer):
        try:
            if algorithm_id(algorithm) not in (ALGO_AUTO, ALGO_MULTIMEM):
                raise ValueError(f"algorithm: {algorithm!r} is for SHMEMBuffers; views of a SymmetricPool are reduced by 'multimem'")
            reduce_in_pool(<Buffer> dest, source, op_id(op), as_team(team, "team"), stream)
        except (TypeError, ValueError) as error:
            fail(team, COLL_REDUCE, error, stream)
        return
    try:
        way = algorithm_id(algorithm)
        t = world_team()
        if way == ALGO_AUTO and t.job is not None:
            way = t.job.default_algorithm
            by_setting = True
        t = live_team(team)
        d, s = as_buffer(dest, "dest"), as_buffer(source, "source")
        check_operands(t, d, s, 1, 1, stream, &ptr)
        code = op_id(op)
        check_reduce(d, code, way, by_setting)
    except Exception as error:
        fail(team, COLL_REDUCE, error, stream, way)
    held = keep(d, s, t, ptr)
    d.job.backend.reduce(t.data, d.type_id, code, d.ptr, s.ptr, s.count, way, ptr, held)


allreduce = reduce


def explain_allreduce(dest, source=None, op="sum", *, team=None, algorithm="auto"):
    """Which algorithm `allreduce` uses for these arguments, and why. Moves nothing; not collective.

    The choice depends on the team, the element type, the operator, the bytes, and whether it is in place: on nothing that
    differs between the PEs of a call, so it is the same on all.

    Parameters
    ----------
    dest, source : SHMEMBuffer
        As for `allreduce`, but no views of a `SymmetricPool`: those are always reduced by "multimem". `source` of None: in place.
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
    cdef Team t = live_team(team)
    cdef SHMEMBuffer d = as_buffer(dest, "dest")
    cdef SHMEMBuffer s = d if source is None else as_buffer(source, "source")
    cdef void *ptr = NULL
    check_operands(t, d, s, 1, 1, None, &ptr)
    cdef int way = algorithm_id(algorithm), code = op_id(op)
    cdef bint by_setting = way == ALGO_AUTO
    asked_by = "call"
    if by_setting:
        way = d.job.default_algorithm
        asked_by = d.job.settings.source["NVSYM_ALLREDUCE_ALGORITHM"]
    check_reduce(d, code, way, by_setting)
    name, reason, thresholds = d.job.backend.explain_reduce(t.data, d.type_id, code, d.count, way, d.ptr == s.ptr)
    return AllreduceChoice(name, reason, thresholds, ALGORITHMS[way], asked_by, d.job.backend.name, d.element.name,
                           OPS[code].name, t.data.n_pes, d.count * d.item)


cdef list several(object value, str name, object one):
    """An argument that is one thing, of a type of `one`, or a sequence of such."""
    if isinstance(value, one):
        return [value]
    try:
        return list(value)
    except TypeError:
        raise TypeError(f"{name}: expected one, or a sequence, not {type(value).__name__}") from None


def warmup(dtypes=("float32",), ops=("sum",)):
    """Pay for the first calls now: compile, or take from the cache, and load what the operations need. Not collective.

    On GPUs the kernels of an element type and operator are compiled at their first use, which takes about a second, once for
    each GPU architecture: the machine code stays in a cache (NVSYM_CACHE_DIR). `python -m nvsym info` shows what it holds and
    cost. In host memory nothing is compiled at run time.

    Parameters
    ----------
    dtypes : dtype or sequence of dtypes
    ops : str or sequence of str
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
    types = [as_dtype(dtype) for dtype in several(dtypes, "dtypes", (str, type, np.dtype))]
    operators = [as_op(op) for op in several(ops, "ops", str)]
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
    cdef Team t
    cdef SHMEMBuffer d, s
    cdef void *ptr = NULL
    cdef int code = 0
    try:
        t = live_team(team)
        d, s = as_buffer(dest, "dest"), as_buffer(source, "source")
        check_operands(t, d, s, 1, 0, stream, &ptr)
        not_in_place(t, d, s)
        code = op_id(op)
        check_reduce(d, code, REDUCESCATTER, False)
    except Exception as error:
        fail(team, COLL_REDUCESCATTER, error, stream)
    held = keep(d, s, t, ptr)
    d.job.backend.reducescatter(t.data, d.type_id, code, d.ptr, s.ptr, d.count, ptr, held)
