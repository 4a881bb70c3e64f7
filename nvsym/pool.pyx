# SPDX-License-Identifier: Apache-2.0
"""`SymmetricPool`: memory of one size on each of several GPUs, which the NVLink switch can reduce over and broadcast to.

Named after `max.driver.SymmetricPool` of Modular's MAX.
"""

from libc.stdint cimport uint64_t

import atexit
import os
import threading
import warnings
import zlib
from operator import index

from . import _facts, _settings
from ._group import Group
from ._pool_protocol import Allocation
from .dtypes import as_dtype
from .errors import ForkError, MulticastUnsupportedError, NotInitializedError, NVSymError, PeerExitedError
from .multicast import first_blind_pair
from .pool_agreement import Alone, PoolAgreement

from .device cimport Device
from .job cimport Job, job_or_none
from .memory cimport Buffer, make_buffer
from .multicast cimport Watch
from .pool_memory cimport PoolMemory
from .pool_memory import sweep

_LARGEST = 1 << 46      # bytes; more than any GPU has
_FIRST_TAG = 1 << 13    # of messages on the job's communicator; other layers have those below

cdef object _lock = threading.Lock()
cdef list _pools = []           # the registered ones; looked through without the lock
cdef dict _busy = {}            # a lock for each set of devices that is being allocated, by its UUIDs
cdef dict _broken = {}          # why a set can no longer be agreed about, by the job and its UUIDs
cdef object _hooked = None      # the process that has the hooks
cdef object _uint8 = as_dtype("uint8")


cdef class SymmetricPool:
    """One allocation of the same size on each of several GPUs, with a multicast address over all of them.

    A store to the multicast address goes to every GPU, and a reducing load combines what all of them hold; the NVLink switch
    does it (the ``multimem`` instructions; ``nvsym/multimem.cuh`` has them). Made once for a set of devices by `allocate`; it
    lives until the job is finalized, or, where all the devices belong to this process, until the process ends.

    Attributes
    ----------
    byte_size : int
        What was asked for: bytes of each device.
    devices : tuple of Device
    handles : {"none", "posix", "fabric"}
        How the driver's handles travelled between the processes: not at all (one process), as file descriptors inside a node, as
        fabric handles between nodes.
    """

    def __init__(self, *args, **kwargs):
        raise TypeError("a SymmetricPool is made by SymmetricPool.allocate(devices, byte_size), and found by lookup(devices)")

    @staticmethod
    def allocate(devices, byte_size):
        """Make and register the pool of a set of devices.

        Local where all the devices belong to this process (`Device`); collective over exactly the PEs that own them where they
        belong to several (`SHMEMContext.devices`). Then it succeeds on all of these PEs or raises the same error on all.

        Parameters
        ----------
        devices : sequence of Device
            At least two different GPUs; their order does not matter.
        byte_size : int
            Of each device. The reservation is rounded up to the driver's granularity, the views are not.

        Returns
        -------
        SymmetricPool
            Not initialised.

        Raises
        ------
        MulticastUnsupportedError
            Multicast is disabled by a setting, on any PE, or not supported; see `why_unsupported`.
        NVSymError
            There is a pool for these devices; or one device is named twice, there are fewer than two, one is host memory, or
            `byte_size` is not positive or does not fit.
        BackendError
            A driver call failed. The message names the PE, the device, the call and its status. Nothing is left behind.
        PeerTimeoutError, PeerExitedError
            Another PE did not make the call, or died in it.
        TypeError
            An item of `devices` is no `Device`, or `byte_size` no integer.

        All of them but the last are `RuntimeError`.
        """
        cdef list members = as_devices(devices)
        error = None
        size = 0
        try:
            if isinstance(byte_size, bool):
                raise TypeError
            size = index(byte_size)
        except TypeError:
            error = TypeError(f"byte_size: expected a number of bytes, not {type(byte_size).__name__}")
        return _allocate(members, size, error)

    @staticmethod
    def lookup(devices):
        """The pool of a set of devices, or None. It allocates nothing and asks nobody.

        Raises
        ------
        TypeError
            An item of `devices` is no `Device`.
        """
        cdef Py_ssize_t n = 0
        cdef uint64_t key = 0
        cdef SymmetricPool pool
        if type(devices) is not list and type(devices) is not tuple:
            devices = as_devices(devices)
        for device in devices:
            if not isinstance(device, Device):
                as_devices(devices)
            key += mixed(hash((<Device> device).uuid))
            n += 1
        for pool in _pools:
            if pool.key == key and len(pool.slots) == n:
                for device in devices:
                    if (<Device> device).uuid not in pool.slots:
                        break
                else:
                    return pool
        return None

    @staticmethod
    def is_supported(devices):
        """Whether `allocate` could succeed for these devices, as far as is known before any memory is committed.

        Local. What is unknown counts as unsupported. Of other PEs it is known what they had at `init`; `allocate` asks them anew.
        """
        return SymmetricPool.why_unsupported(devices) is None

    @staticmethod
    def why_unsupported(devices):
        """Why `is_supported` is False, in words; None where it is True.

        Raises
        ------
        TypeError
            An item of `devices` is no `Device`.
        """
        cdef list members = as_devices(devices)
        cdef Job job = job_or_none()
        try:
            switch = _settings.multicast_switch()
            if switch is None and job is not None and job.backend.facts is not None:
                for device, owner in zip(members, owners_of(members, job)):
                    fact = job.backend.facts[owner] if owner != job.my_pe and is_of(device, owner, job) else None
                    if fact is not None and fact.switch is not None:
                        switch = f"{fact.switch} on {job.agreement.names[owner]}"
                        break
            problem = problem_with(members)
            if switch is not None:
                return f"{_facts.DISABLED}{switch}" + (f"; and {problem}" if problem is not None else "")
            if problem is not None:
                return problem
            return _why(members, job)
        except Exception as error:
            return f"it is unknown: {type(error).__name__}: {error}"

    def unicast_view(self, Device device not None):
        """The memory of one device, as a flat `Buffer` of `byte_size` uint8. That of another PE's device is mapped here.

        Raises
        ------
        RuntimeError
            The pool does not span the device.
        """
        cdef int slot = self.slot(device)
        self.memory.check()
        cdef Buffer buffer = make_buffer(device, _uint8, (self.byte_size,), self.memory.unicast_ptr(slot), self.memory, self.memory)
        if self.of_job:
            buffer.via = self.own
        return buffer

    def multicast_view(self, Device device not None):
        """The multicast address over all devices, as a flat `Buffer` of `byte_size` uint8, for kernels on a device of this process.

        Only ``multimem`` instructions may touch it. Whatever else would, raises: `to_numpy`, copies, DLPack. Kernels take
        ``_data_ptr()``.

        Raises
        ------
        RuntimeError
            The pool does not span the device.
        """
        self.slot(device)
        self.memory.check()
        cdef Buffer buffer = make_buffer(device, _uint8, (self.byte_size,), self.memory.multicast_ptr(), self.memory, self.memory)
        if self.of_job:
            buffer.via = self.own
        buffer.no_host_access = "a multicast address is for the multimem instructions of kernels: the host and copies must not touch it"
        return buffer

    cdef int slot(self, Device device) except -1:
        found = self.slots.get(device.uuid)
        if found is None:
            raise NVSymError(f"the pool does not span {device!r}; it has {', '.join([repr(other) for other in self.devices])}")
        return found

    cdef void *unicast_ptr(self, Device device) except NULL:
        cdef int slot = self.slot(device)
        self.memory.check()
        return self.memory.unicast_ptr(slot)

    cdef void *multicast_ptr(self) except NULL:
        self.memory.check()
        return self.memory.multicast_ptr()

    def __repr__(self):
        if self.memory.freed:
            return "<SymmetricPool of a job that has ended>"
        return f"<SymmetricPool {_settings.format_size(self.byte_size)} on each of {len(self.devices)} GPUs>"

    def __reduce__(self):
        raise TypeError("a SymmetricPool belongs to its process and cannot be pickled")


cdef uint64_t mixed(Py_hash_t value) noexcept:
    """Spreads a hash, so that sums of several differ."""
    cdef uint64_t x = <uint64_t> value
    x = (x ^ (x >> 31)) * <uint64_t> 0x9e3779b97f4a7c15
    return x ^ (x >> 29)


cdef list as_devices(object devices):
    try:
        result = list(devices)
    except TypeError:
        raise TypeError(f"devices: expected a sequence of Device, not {type(devices).__name__}") from None
    for device in result:
        if not isinstance(device, Device):
            raise TypeError(f"devices: expected Device, found {type(device).__name__}")
    return result


cdef str problem_with(list devices):
    """What is wrong with a list of devices, whatever they can do."""
    for device in devices:
        if (<Device> device).is_host:
            return f"{device!r} is no GPU"
    uuids = [(<Device> device).uuid for device in devices]
    for device in devices:
        if uuids.count((<Device> device).uuid) > 1:
            again = [other for other in devices if (<Device> other).uuid == (<Device> device).uuid]
            return f"{' and '.join([repr(other) for other in again])} are the same GPU, and a pool has each once"
    if len(devices) < 2:
        return f"multicast takes two GPUs at least, not {len(devices)}"
    return None


cdef list owners_of(list devices, Job job):
    """The PE that owns each device; -1 for this process, where all of them are its own."""
    cdef Device device, other
    my_pe = -1 if job is None else job.my_pe
    if all([(<Device> d).pe in (-1, my_pe) for d in devices]):
        return [-1] * len(devices)
    owners = []
    for device in devices:
        pe = device.pe
        if pe < 0:
            for other in job.backend.devices if job is not None else []:
                if other.uuid == device.uuid:
                    pe = other.pe
                    break
        owners.append(pe)
    return owners


cdef bint is_of(Device device, int owner, Job job):
    """Whether it is the device of this PE in the job; one of a job that has ended may not be."""
    return 0 <= owner < job.n_pes and (<Device> job.backend.devices[owner]).uuid == device.uuid


cdef str name_of(Device device, str owner):
    return f"{owner}GPU {device.ordinal} ({device.name})"


cdef object _why(list devices, Job job):
    """Why GPUs that were named correctly cannot share multicast memory."""
    owners = owners_of(devices, job)
    if owners[0] == -1 == max(owners):
        facts = [_facts.facts_of(device, name_of(device, "")) for device in devices]
        return _facts.why_unsupported(facts, False) or why_no_peers(devices)
    if job is None:
        return "the devices belong to a job that has ended"
    for device, owner in zip(devices, owners):
        if not is_of(device, owner, job):
            return f"{device!r} belongs to no PE of the job"
    if job.backend.facts is None:
        return f"the {job.backend.name} backend has no GPUs"
    facts = [own_facts(device, job) if owner == job.my_pe else job.backend.facts[owner] for device, owner in zip(devices, owners)]
    return _facts.why_unsupported(facts, True)


cdef object own_facts(Device device, Job job):
    return _facts.facts_of(device, name_of(device, job.agreement.names[job.my_pe] + ", "), job.backend.nodes[job.my_pe])


cdef object why_no_peers(list devices):
    """Why the GPUs of this process cannot address each other's memory."""
    cdef Device device
    pair = first_blind_pair([(<Device> d).ordinal for d in devices])
    if pair is None:
        return None
    names = {device.ordinal: name_of(device, "") for device in devices}
    return f"{names[pair[0]]} cannot address the memory of {names[pair[1]]}"


class _Members:
    """Looks whether the processes of the other PEs still run."""

    def __init__(self, facts, own, owners):
        self.others = [(owner, fact) for owner, fact in zip(owners, facts) if owner != own]
        self.own = next(fact for owner, fact in zip(owners, facts) if owner == own)

    def __call__(self):
        for owner, fact in self.others:
            if _facts.has_ended(fact, self.own):
                raise PeerExitedError(f"the process of {fact.name} has ended", [owner])


cdef class _Call:
    """One call of `allocate`: its arguments, and who takes part in it."""
    cdef Job    job         # None where all devices belong to this process
    cdef list   devices     # in the same order on all PEs: by owner and UUID
    cdef list   owners      # the member that owns each
    cdef list   members     # the PEs, of which this one is number `me`
    cdef list   names       # what messages call them
    cdef int    me
    cdef object size
    cdef str    problem     # with the devices
    cdef object error       # what is wrong with the call, as far as this process sees


cdef object _allocate(list devices, object size, object error):
    cdef Job job = job_or_none()
    cdef _Call call = _Call()
    cdef Device device
    _check_fork()
    _install_hooks()
    call.size = size
    call.problem = problem_with(devices)
    call.error = error      # for the other PEs to hear
    if error is not None:
        call.problem = None
    elif call.problem is not None:
        call.error = MulticastUnsupportedError(f"SymmetricPool.allocate: {call.problem}")
    elif not 0 < size <= _LARGEST:
        call.error = NVSymError(f"SymmetricPool.allocate: byte_size: {size} is not in 1..{_LARGEST}")
    owners = owners_of(devices, job)
    if max(owners, default=-1) < 0:
        if call.error is not None:
            switch = _settings.multicast_switch()
            if switch is None or error is not None:
                raise call.error
            raise MulticastUnsupportedError(f"SymmetricPool.allocate: multicast is {_facts.DISABLED}{switch}, and no multicast call "
                                            f"is made" + (f"; and {call.problem}" if call.problem is not None else ""))
        call.members, call.names = [-1], ["this process"]
    else:
        check_owners(devices, owners, job)
        call.job = job
        call.members = sorted(set(owners))
        call.names = [job.agreement.names[pe] for pe in call.members]
        call.me = call.members.index(job.my_pe)
    order = sorted(range(len(devices)), key=lambda i: (owners[i], (<Device> devices[i]).uuid))
    call.devices = [devices[i] for i in order]
    call.owners = [call.members.index(owners[i]) for i in order]
    uuids = frozenset([device.uuid for device in devices])
    with _OneAtATime(uuids):
        sweep()
        return _make(call, uuids, tuple(devices))


cdef int check_owners(list devices, list owners, Job job) except -1:
    cdef Device device
    if job is None:
        raise NotInitializedError("SymmetricPool.allocate: the devices belong to PEs, and there is no job")
    for device, owner in zip(devices, owners):
        if not is_of(device, owner, job):
            raise NVSymError(f"SymmetricPool.allocate: {device!r} belongs to no PE of the job")
    if job.my_pe not in owners:
        raise NVSymError(f"SymmetricPool.allocate: PE {job.my_pe} owns none of these devices; the call is made by the PEs that do")
    if job.backend.facts is None:
        raise MulticastUnsupportedError(f"SymmetricPool.allocate: the {job.backend.name} backend has no GPUs")
    return 0


cdef object _group_of(Job job, list members, uuids):
    from mpi4py import MPI
    largest = job.agreement.comm.Get_attr(MPI.TAG_UB) or 32767
    # Calls about different sets do not mix, should threads make several at a time; nor do those of other layers with theirs. MPI
    # may keep what was sent to a PE that did not come for a later job, whose communicator has the number of this one's.
    marks = [str(job.backend.facts[pe].mark) for pe in members]
    tag = _FIRST_TAG + zlib.crc32(" ".join(sorted(uuids) + marks).encode()) % (min(largest, 1 << 30) - _FIRST_TAG)
    return Group(job.agreement.comm, members, tag)


cdef object agreement_of(_Call call, uuids):
    cdef Job job = call.job
    if job is None:
        return PoolAgreement(Alone(), 0.0, call.names, None)
    why = _broken.get((id(job), uuids))
    if why is not None:
        raise NVSymError(f"SymmetricPool.allocate: the PEs can no longer agree about these devices, since {why}")
    watch = _Members([job.backend.facts[pe] for pe in call.members], job.my_pe, call.members)
    return PoolAgreement(_group_of(job, call.members, uuids), job.settings["NVSYM_TIMEOUT"], call.names, watch)


cdef list facts_of_call(_Call call):
    """Of the devices of this process."""
    cdef Device device
    if call.job is not None:
        return [own_facts(device, call.job) for device, owner in zip(call.devices, call.owners) if owner == call.me]
    facts = [_facts.facts_of(device, name_of(device, "")) for device in call.devices]
    if _facts.why_unsupported(facts, False) is None:
        reason = why_no_peers(call.devices)
        if reason is not None:
            call.error = MulticastUnsupportedError(f"SymmetricPool.allocate: {reason}")
    return facts


cdef object _make(_Call call, object uuids, tuple as_named):
    cdef Device device
    cdef SymmetricPool pool, present = SymmetricPool.lookup(as_named)
    agreement = agreement_of(call, uuids)
    facts = facts_of_call(call)
    what = f"SymmetricPool.allocate of {call.size} bytes on each of {len(call.devices)} GPUs"
    places = [name_of(device, "" if call.job is None else f"{call.names[owner]}, ") for device, owner in zip(call.devices, call.owners)]
    local = [(slot, (<Device> call.devices[slot]).ordinal) for slot, owner in enumerate(call.owners) if owner == call.me]
    allocation = Allocation(
        agreement, call.owners,
        lambda kind: PoolMemory(Watch(what, _settings.load_one("NVSYM_DRIVER_WATCH")), call.size, places, local, kind),
        facts, call.size, call.error, call.problem, None if present is None else present.byte_size)
    try:
        memory = allocation.run()
    except BaseException as failure:
        if agreement.is_broken():
            _broken[(id(call.job), uuids)] = f"an allocation was left with {type(failure).__name__}: {failure}"
            call.job.closers.append(_Closer(None, id(call.job)))
        raise
    pool = SymmetricPool.__new__(SymmetricPool)
    pool.byte_size = call.size
    pool.devices = as_named
    pool.memory = memory
    pool.handles = allocation.transport.kind
    pool.slots = {(<Device> device).uuid: slot for slot, device in enumerate(call.devices)}
    pool.own = call.devices[local[0][0]]
    pool.of_job = call.job is not None
    for device in call.devices:
        pool.key += mixed(hash(device.uuid))
    with _lock:
        _pools.append(pool)
        if call.job is not None:
            call.job.closers.append(_Closer(pool, id(call.job)))
    return pool


class _OneAtATime:
    """One allocation of a set of devices at a time; others of the same set wait for it."""

    def __init__(self, uuids):
        self.uuids = uuids

    def __enter__(self):
        with _lock:
            entry = _busy.setdefault(self.uuids, [threading.Lock(), 0])
            entry[1] += 1
        entry[0].acquire()

    def __exit__(self, *_):
        with _lock:
            entry = _busy[self.uuids]
            entry[1] -= 1
            if entry[1] == 0:
                del _busy[self.uuids]
        entry[0].release()


class _Closer:
    """Gives a pool of a job back, and forgets what the PEs could not agree about, when the job ends."""

    def __init__(self, pool, job):
        self.pool = pool
        self.job = job

    def __call__(self):
        self.pool, pool = None, self.pool
        for key in [key for key in _broken if key[0] == self.job]:
            del _broken[key]
        return [] if pool is None else _release(pool, "nvsym.finalize() has been called")


def _drop(SymmetricPool pool not None):
    """Give a pool back before the job ends, for tests: on every PE, with nothing under way. There is no public way to."""
    return _release(pool, "it was dropped by a test")


cdef object _release(SymmetricPool pool, str why):
    with _lock:
        if pool in _pools:
            _pools.remove(pool)
    return pool.memory.release(why)


# ---- the ways in which a process ends -------------------------------------------------------------------------------

cdef int _forked_from = 0


cdef int _check_fork() except -1:
    if _forked_from:
        raise ForkError("SymmetricPool.allocate: this process was forked from one that has used the GPU; the driver does not work in "
                        "it. Start processes by exec (subprocess, multiprocessing's 'spawn')")
    return 0


def _install_hooks():
    global _hooked
    if _hooked is not None:
        return
    _hooked = os.getpid()
    atexit.register(_at_exit)
    os.register_at_fork(after_in_child=_after_fork)


def _at_exit():
    # Pools of jobs have gone with their job. What arrays still use stays until the process is gone.
    if _forked_from:
        return
    for pool in reversed(list(_pools)):
        if (<SymmetricPool> pool).of_job:
            continue
        try:
            for device in pool.devices:
                (<Device> device).runtime.drain_all((<Device> device).ordinal)
            for failure in _release(pool, "the interpreter is ending"):
                warnings.warn(f"giving back a SymmetricPool: {failure}", RuntimeWarning, stacklevel=1)
        except Exception as error:
            warnings.warn(f"giving back a SymmetricPool: {error}", RuntimeWarning, stacklevel=1)


def _after_fork():
    global _forked_from, _lock
    _forked_from = os.getppid()
    _lock = threading.Lock()
    _busy.clear()
    for pool in list(_pools):
        (<SymmetricPool> pool).memory.forget("this process was forked", ForkError)
    _pools.clear()
