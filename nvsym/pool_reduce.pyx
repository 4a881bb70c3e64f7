# SPDX-License-Identifier: Apache-2.0
"""Allreduce in a `SymmetricPool`: the arguments are views of the pool's memory on this PE's device."""

from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from .memory cimport Buffer
from .pool cimport SymmetricPool
from .rma cimport job_stream
from .team cimport Team


cdef SymmetricPool pool_of(Buffer buffer, str name, Team team):
    """The pool of the team's devices, where the buffer is a view of it."""
    cdef SymmetricPool pool
    buffer.check()
    devices = [team.job.backend.devices[team.data.pes[i]] for i in range(team.data.n_pes)]
    pool = SymmetricPool.lookup(devices)
    if pool is None or buffer.owner is not <object> pool.memory:
        raise ValueError(f"{name}: it is no view of a SymmetricPool of the {team.data.n_pes} devices of {team!r}; make one with "
                         "SymmetricPool.allocate(devices, byte_size), or give SHMEMBuffers")
    return pool


cdef int check_place(Buffer buffer, str name, SymmetricPool pool, Team team) except -1:
    cdef char *own = <char *> pool.unicast_ptr(team.job.backend.device)
    if buffer.ptr < own or buffer.ptr + buffer.num_elements * buffer.itemsize > own + pool.byte_size:
        raise ValueError(f"{name}: it is not a view of the memory of this PE's own device; pool.unicast_view(ctx.device) is")
    return 0


cdef int reduce_in_pool(Buffer dest, object source, int op, Team team, object stream) except -1:
    cdef Buffer src
    cdef SymmetricPool pool
    cdef int64_t *delta
    cdef char *own
    cdef void *ptr = NULL
    cdef int i, dtype
    team.check()
    if not isinstance(source, Buffer):
        raise TypeError(f"source: expected a view of the pool, as dest is, not {type(source).__name__}")
    src = <Buffer> source
    pool = pool_of(dest, "dest", team)
    pool_of(src, "source", team)
    check_place(dest, "dest", pool, team)
    check_place(src, "source", pool, team)
    if dest.dtype != src.dtype:
        raise TypeError(f"dest: dtype {dest.dtype} differs from that of source, {src.dtype}")
    if dest.num_elements != src.num_elements:
        raise ValueError(f"dest: {dest.num_elements} elements, source has {src.num_elements}")
    if dest.ptr != src.ptr and abs(dest.ptr - src.ptr) < dest.num_elements * dest.itemsize:
        raise ValueError("dest: it overlaps source without being the same memory")
    dtype = dest.element.id
    reason = team.job.backend.why_no_multimem(team.data, dtype, op)
    if reason is not None:
        raise ValueError(f"dest: a view of a SymmetricPool is reduced by 'multimem', which cannot be used here: {reason}")
    job_stream(team.job, stream, &ptr)
    own = <char *> pool.unicast_ptr(team.job.backend.device)
    delta = <int64_t *> malloc(team.data.n_pes * sizeof(int64_t))
    if delta == NULL:
        raise MemoryError("no memory for the table of PEs")
    try:
        for i in range(team.data.n_pes):
            delta[i] = <char *> pool.unicast_ptr(team.job.backend.devices[team.data.pes[i]]) - own
        team.job.backend.reduce_multicast(team.data, dtype, op, dest.ptr, src.ptr, dest.num_elements, delta,
                                          <char *> pool.multicast_ptr() - own, ptr, (dest, src))
    finally:
        free(delta)
    return 0
