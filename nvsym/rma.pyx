# SPDX-License-Identifier: Apache-2.0
"""One-sided operations (OpenSHMEM 1.5, section 9.5) and their completion: put, get, fence, quiet, barriers.

An operation is enqueued on a stream and is done in its order. All arguments are checked first; a call that raises has
transferred nothing.
"""

from .backend cimport ALGO_AUTO, COLL_BARRIER, COLL_SYNC, TeamData
from .buffer cimport SHMEMBuffer, as_buffer, as_pe, check_named
from .job cimport Job, current_job
from .memory cimport Buffer, HostArray, host_array
from .status cimport error_text
from .stream cimport stream_ptr
from .team cimport Team, as_team, world_team


cdef class Keep:
    """What has to live until an operation is done."""


cdef int bad_count(str name, size_t count, str other, size_t expected) except -1:
    raise ValueError(f"{name}: {count} elements, {other} has {expected}")


cdef int bad_type(str name, str dtype, str other, str expected) except -1:
    raise TypeError(f"{name}: dtype {dtype} differs from that of {other}, {expected}")


cdef void *local_memory(object obj, str name, SHMEMBuffer like, bint writable, Keep keep, bint *host_side) except? NULL:
    """The address of the local side of a put or get: a SHMEMBuffer, a Buffer, or an array in host memory.

    `host_side`: whether it is host memory, which a backend of GPUs treats otherwise.
    """
    cdef SHMEMBuffer buffer
    cdef Buffer plain
    cdef HostArray host
    host_side[0] = False
    if isinstance(obj, SHMEMBuffer):
        buffer = <SHMEMBuffer> obj
        check_named(buffer, name)
        if buffer.type_id != like.type_id:
            bad_type(name, buffer.element.name, "the other side", like.element.name)
        if buffer.count != like.count:
            bad_count(name, buffer.count, "the other side", like.count)
        if keep is not None:
            keep.obj = buffer
        return buffer.ptr
    if isinstance(obj, Buffer):
        plain = <Buffer> obj
        plain.check_named(name)
        plain.check_host_access()
        if plain.dtype != like.element.numpy:
            bad_type(name, str(plain.dtype), "the other side", like.element.name)
        if plain.num_elements != like.count:
            bad_count(name, plain.num_elements, "the other side", like.count)
        if writable and plain.readonly:
            raise ValueError(f"{name}: the buffer is read-only")
        if keep is not None:
            keep.obj = plain
        host_side[0] = plain.device.is_host
        return plain.ptr
    host = HostArray()
    host_array(host, name, obj, like.element, like.count, writable, "a SHMEMBuffer, a Buffer, or ")
    if keep is not None:
        keep.obj = host.keep
    host_side[0] = True
    return host.ptr


def put(dest, source, pe, *, stream=None):
    """Copy `source` to `dest` on PE `pe`.

    Parameters
    ----------
    dest : SHMEMBuffer
        Or a slice of one.
    source : SHMEMBuffer, Buffer or array
        Local; of the element type and length of `dest`. Do not change it before the operation is done.
    pe : int
        The target, in the world.
    stream : stream, optional
        Default: that of the context.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, if element types, lengths or the PE do not fit.
    FreedBufferError
        If one of the two has been freed.
    """
    cdef SHMEMBuffer d = as_buffer(dest, "dest")
    cdef void *ptr = NULL
    cdef void *src
    cdef Keep keep = None
    cdef bint host_side = False
    cdef int number = as_pe(pe, d.job.n_pes)
    if stream is not None:
        stream_ptr(stream, d.job.backend.device, &ptr)
    else:
        ptr = d.job.backend.stream.ptr
    # A GPU's symmetric memory is kept by the tickets of its runtime.
    if ptr != NULL and (d.job.backend.device.is_host or not isinstance(source, SHMEMBuffer)):
        keep = Keep()
    src = local_memory(source, "source", d, False, keep, &host_side)
    if host_side:
        d.job.backend.put_from_host(d.ptr, src, d.count * d.item, number, ptr, None if keep is None else (d, keep.obj))
    else:
        d.job.backend.put(d.ptr, src, d.count * d.item, number, ptr, None if keep is None else (d, keep.obj))


def get(dest, source, pe, *, stream=None):
    """Copy `source` of PE `pe` to `dest`.

    Parameters
    ----------
    dest : SHMEMBuffer, Buffer or array
        Local and writable; of the element type and length of `source`.
    source : SHMEMBuffer
        Or a slice of one.
    pe : int
        Whose copy of `source` is read, in the world.
    stream : stream, optional
        Default: that of the context.

    Raises
    ------
    TypeError, ValueError, FreedBufferError
        As `put`.
    """
    cdef SHMEMBuffer s = as_buffer(source, "source")
    cdef void *ptr = NULL
    cdef void *dst
    cdef Keep keep = None
    cdef bint host_side = False
    cdef int number = as_pe(pe, s.job.n_pes)
    if stream is not None:
        stream_ptr(stream, s.job.backend.device, &ptr)
    else:
        ptr = s.job.backend.stream.ptr
    # A GPU's symmetric memory is kept by the tickets of its runtime.
    if ptr != NULL and (s.job.backend.device.is_host or not isinstance(dest, SHMEMBuffer)):
        keep = Keep()
    dst = local_memory(dest, "dest", s, True, keep, &host_side)
    if host_side:
        s.job.backend.get_to_host(dst, s.ptr, s.count * s.item, number, ptr, None if keep is None else (s, keep.obj))
    else:
        s.job.backend.get(dst, s.ptr, s.count * s.item, number, ptr, None if keep is None else (s, keep.obj))


cdef int job_stream(Job job, object stream, void **ptr) except -1:
    if stream is None:
        ptr[0] = job.backend.stream.ptr
        return 0
    return stream_ptr(stream, job.backend.device, ptr)


def fence(*, stream=None):
    """Order this PE's puts, signals and atomics on `stream`: those before arrive at each PE before those after."""
    cdef Job job = current_job()
    cdef void *ptr = NULL
    job_stream(job, stream, &ptr)
    job.backend.fence(ptr)


def quiet(*, stream=None):
    """Complete this PE's puts, signals and atomics on `stream`: when it is done, they have arrived at their targets."""
    cdef Job job = current_job()
    cdef void *ptr = NULL
    job_stream(job, stream, &ptr)
    job.backend.quiet(ptr)


cdef int fail(object team, int kind, object error, object stream, int algorithm=ALGO_AUTO) except -1:
    """Tell the other members that this PE takes no part in a collective call, and raise its own error."""
    cdef Team t = world_team() if team is None or not isinstance(team, Team) else <Team> team
    cdef TeamData data = t.data
    cdef Job job = t.job
    cdef void *ptr = NULL
    cdef str reason
    if data is not None and job.heap.closed is None:
        reason = f"{type(error).__name__}: {error_text(error)}"
        try:
            job_stream(job, stream, &ptr)
        except Exception:
            ptr = job.backend.stream.ptr    # the stream itself was the bad argument
        if job.heap.closed is None:
            job.backend.fail(data, kind, algorithm, reason, ptr)
    raise error


cdef int meet_on_stream(object team, bint complete, object stream) except -1:
    """A barrier of the team, which completes puts and atomics, or not."""
    cdef Team t
    cdef void *ptr = NULL
    try:
        t = as_team(team, "team")
        t.check()
        job_stream(t.job, stream, &ptr)
    except Exception as error:
        fail(team, COLL_BARRIER if complete else COLL_SYNC, error, stream)
    t.check()   # the stream may have run Python code
    return t.job.backend.barrier(t.data, complete, ptr)


def barrier_all(*, stream=None):
    """Wait, in the order of `stream`, until all PEs have come here and their puts and atomics have arrived."""
    meet_on_stream(None, True, stream)


def sync_all(*, stream=None):
    """Wait until all PEs have come here. Unlike `barrier_all`, it completes no put or atomic."""
    meet_on_stream(None, False, stream)


def barrier(team=None, *, stream=None):
    """`barrier_all` over the PEs of a team (TEAM_WORLD if None)."""
    meet_on_stream(team, True, stream)


def sync(team=None, *, stream=None):
    """`sync_all` over the PEs of a team (TEAM_WORLD if None)."""
    meet_on_stream(team, False, stream)
