# SPDX-License-Identifier: Apache-2.0
"""The job of this process: how it begins, and how it ends in every way that a process can end.

Beginning: each step that may fail on one PE ends in a vote, so that all PEs have a job or none has. Ending: at `finalize`, or
at interpreter exit before MPI is finalized; a PE that ends in an unhandled exception aborts the job, so that the others do
not wait for it.
"""

from libc.string cimport memset

import atexit
import os
import socket
import sys
import time
import traceback
import warnings

from . import _settings
from ._version import __version__
from .backend import ALGORITHMS
from .errors import ForkError, NotAvailableError, NotInitializedError, NVSymError, SettingError

from .agreement cimport Agreement
from .backend cimport EXIT_DRAINED, EXIT_DRAINING, EXIT_NONE, Backend, Functions, TeamData
from .device cimport Device, as_ordinal
from .heap cimport CALL_FINALIZE, Heap, meet
from .status cimport error_text

BACKENDS = ("auto", "nvshmem", "host")
BOOTSTRAPS = ("uid", "mpi")
_ARGUMENTS = ("backend", "device", "bootstrap", "heap_size")

# What launchers of the common MPIs and Slurm tell each process of the size of its job.
_LAUNCHER_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "PMIX_SIZE", "SLURM_NTASKS")

cdef Job _job = None
cdef str _ended = "nvsym.init() has not been called"
cdef bint _forked = False
cdef bint _hooked = False
cdef object _hook = None       # sys.excepthook, as _install_hooks has left it
cdef object _program = None    # the file of the main program
cdef Functions _functions
memset(&_functions, 0, sizeof(_functions))
_functions.direct.my_pe = -1


cdef class Job:
    cdef int add_team(self, TeamData data, Agreement agreement) except -1:
        self.teams.append((data, agreement))
        return 0

    cdef int drop_team(self, TeamData data) except -1:
        for i, (other, agreement) in enumerate(self.teams):
            if other is data:
                del self.teams[i]
                self.backend.destroy_team(data)
                (<Agreement> agreement).comm.Free()
                return 0
        return 0

    cdef int close(self) except -1:
        """End the job; collective."""
        self.backend.check_host_call()
        self.backend.set_exiting(EXIT_DRAINING)
        try:
            self.backend.runtime.drain_all(self.backend.device.ordinal)
            self.backend.set_exiting(EXIT_DRAINED)
            meet(self.agreement, CALL_FINALIZE, (), "finalize()", None)
        except BaseException:
            self.backend.set_exiting(EXIT_NONE)
            raise
        # The others end the job now, so it ends here, too: what fails or interrupts a step is raised after the last one.
        withdraw()
        self.take_failures()
        self.heap.close("nvsym.finalize() has been called", NotInitializedError)
        self.call_closers()
        while self.teams:
            # Every member has made its teams in the same order, so this order suits all.
            data, agreement = self.teams.pop(0)
            try:
                self.backend.destroy_team(data)
                if agreement is not self.agreement:
                    (<Agreement> agreement).comm.Free()
            except BaseException as error:
                self.close_failures.append(error)
        try:
            self.backend.stop(self.agreement)
            self.agreement.comm.Free()
        except BaseException as error:
            self.close_failures.append(error)
        return 0

    cdef int take_failures(self) except -1:
        """Note what failed on streams that nobody has synchronized; the first is raised once the job has ended."""
        while True:
            try:
                self.backend.runtime.raise_failure()
                return 0
            except Exception as error:
                self.close_failures.append(error)

    cdef int call_closers(self) except -1:
        """Let the layers above give back what they hold. What fails is raised once the job has ended all the same."""
        while self.closers:
            try:
                self.close_failures += self.closers.pop()() or []
            except BaseException as error:
                self.close_failures.append(error)
        return 0


def check_kernels():
    """Raise what a kernel has given up for, if one has; for layers that wait for streams by themselves."""
    cdef Job job = job_or_none()
    if job is not None:
        job.backend.check_kernels()


cdef Functions *job_functions() noexcept nogil:
    return &_functions


cdef int publish(Job job, TeamData world) except -1:
    """Give the C interface the functions of a job that has begun."""
    job.backend.functions(&_functions)
    _functions.world = &world.record
    _functions.algorithm = job.default_algorithm
    return 0


cdef void withdraw() noexcept:
    memset(&_functions, 0, sizeof(_functions))
    _functions.direct.my_pe = -1


cdef Job job_or_none():
    return None if _forked else _job


cdef Job current_job():
    if _job is None:
        raise NotInitializedError(f"there is no job: {_ended}")
    if _forked:
        raise ForkError("this process was forked after nvsym.init(); the job belongs to the parent. Start processes before "
                        "init, or by exec (subprocess, multiprocessing's 'spawn')")
    return _job


cdef int close_job() except -1:
    """One `finalize`; the last one ends the job."""
    global _job, _ended
    cdef Job job = current_job()
    if job.count > 1:
        job.count -= 1
        return 0
    job.close()
    _job = None
    _ended = "nvsym.finalize() has been called"
    for failure in job.close_failures:
        if not isinstance(failure, Exception):
            raise failure
    if job.close_failures:
        raise job.close_failures[0]
    return 0


cdef int abandon_job() except -1:
    global _job, _ended
    cdef Job job = _job
    _job = None
    _ended = "nvsym.init() failed"
    if (<Agreement> job.agreement).broken is None:
        job.close()
    return 0


cdef Job open_job(object comm, object backend, object device, object bootstrap, object heap_size):
    global _job
    if _forked:
        current_job()
    MPI = _mpi()
    if comm is None:
        comm = MPI.COMM_WORLD
    elif isinstance(comm, MPI.Comm) and comm == MPI.COMM_NULL:
        raise ValueError("comm: MPI.COMM_NULL; only members of the communicator may call init")
    elif not isinstance(comm, MPI.Intracomm):
        raise TypeError(f"comm: expected an mpi4py intracommunicator or None, not {type(comm).__name__}")
    arguments = (backend, device, bootstrap, heap_size)
    if _job is not None:
        # What was given to init may have been freed since: its handle is compared, and not used.
        if not _same(arguments, _job.arguments) or comm != _job.comm:
            freed = ", which has been freed" if _job.comm == MPI.COMM_NULL else ""
            raise NVSymError(f"init() with other arguments than the running job: {_describe(arguments)} on "
                             f"{comm.Get_name() or 'another communicator'}, "
                             f"not {_describe(_job.arguments)} on {_job.comm_name}{freed}; finalize() it first")
        _job.count += 1
        return _job
    _warn_of_wrong_launcher(MPI.COMM_WORLD.Get_size())
    job = _start(comm, arguments)
    _install_hooks()
    _job = job
    return job


cdef bint _same(tuple arguments, tuple others) except -1:
    for name, value, other in zip(_ARGUMENTS, arguments, others):
        try:
            if value is not other and not value == other:
                return False
        except (TypeError, ValueError):     # the truth of an array
            raise TypeError(f"{name}: {type(value).__name__} cannot be compared with {other!r} of the running job") from None
    return True


cdef str _describe(tuple arguments):
    return ", ".join([f"{name}={value!r}" for name, value in zip(_ARGUMENTS, arguments)])


def _mpi():
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise NotAvailableError(f"nvsym needs an MPI that mpi4py can load, and there is none: {error}. "
                                'pip install "nvsym[mpich]" brings one, or install Open MPI or MPICH') from error
    if MPI.Is_finalized():
        raise NotInitializedError("MPI has been finalized; a job cannot begin any more")
    if not MPI.Is_initialized():    # a call of it would end the process
        raise NotInitializedError("MPI has not been initialised: mpi4py.rc.initialize is off; call mpi4py.MPI.Init_thread() before")
    return MPI


def _warn_of_wrong_launcher(int size):
    if size > 1:
        return
    for name in _LAUNCHER_SIZES:
        text = os.environ.get(name, "")
        if text.isdigit() and int(text) > 1:
            from mpi4py import MPI
            library = MPI.Get_library_version().split("\n")[0].strip("\0 ")
            warnings.warn(
                f"the launcher says that the job has {text} processes ({name}), but this MPI ({library}) sees one: each "
                "process will be a job of its own. The launcher belongs to another MPI than the one that mpi4py loads; "
                "`python -m nvsym info` shows both", RuntimeWarning, stacklevel=1)     # compiled code has no frames to skip
            return


def _start(comm, tuple arguments):
    """Make the job, on all PEs or on none."""
    cdef Job job = Job.__new__(Job)
    cdef Agreement agreement
    backend, device, bootstrap, heap_size = arguments
    error = None
    try:
        settings = _settings.load()
        if backend not in BACKENDS:
            raise ValueError(f"backend: {backend!r} is none of {', '.join(BACKENDS)}")
        if bootstrap not in BOOTSTRAPS:
            raise ValueError(f"bootstrap: {bootstrap!r} is none of {', '.join(BOOTSTRAPS)}")
        device = _device(device)
        size = settings["NVSYM_HEAP_SIZE"] if heap_size is None else _heap_size(heap_size)
        chosen = settings["NVSYM_BACKEND"] if backend == "auto" else backend
    except Exception as e:
        error = e
        settings, size, chosen = _settings.load({}), 0, None
    limit = settings["NVSYM_INIT_TIMEOUT"]
    # Idup and not Dup: a PE that never comes is an error after the time limit, not a hang.
    own, request = comm.Idup()
    Agreement(comm, limit).wait(request, "init()")
    agreement = Agreement(own, limit)
    try:
        agreement.vote("init()", error)
        rows = agreement.gather((socket.gethostname(), __version__, size, chosen, settings["NVSYM_MAX_TEAMS"],
                                 settings["NVSYM_ALLREDUCE_ALGORITHM"]), "init()")
        agreement.names = [f"PE {pe} on {row[0]}" for pe, row in enumerate(rows)]
        for i, (what, advice) in enumerate((
                ("the version of nvsym", "Install the same one on every node"),
                ("the heap size in bytes", "Set NVSYM_HEAP_SIZE or init(heap_size=) alike on every PE"),
                ("the backend", "Ask for the same one on every PE"),
                ("NVSYM_MAX_TEAMS", "Set it alike on every PE"),
                ("NVSYM_ALLREDUCE_ALGORITHM", "Set it alike on every PE")), 1):
            if any(row[i] != rows[0][i] for row in rows):
                agreement.same(what, rows[agreement.rank][i], advice)
        job.backend = _choose(chosen, agreement)
        job.backend.bootstrap = bootstrap
        job.backend.start(agreement, settings, size, device)
        job.heap = Heap(job.backend, agreement)
    except BaseException:
        if agreement.broken is None:
            own.Free()
        raise
    agreement.limit = settings["NVSYM_TIMEOUT"]
    agreement.watch = _Watch(job)
    job.agreement = agreement
    job.my_pe = agreement.rank
    job.n_pes = agreement.size
    job.settings = settings
    job.comm = comm
    job.comm_name = comm.Get_name() or "a communicator"
    job.arguments = arguments
    job.count = 1
    job.pid = os.getpid()
    job.teams = []
    job.closers = []
    job.close_failures = []
    job.default_algorithm = ALGORITHMS.index(settings["NVSYM_ALLREDUCE_ALGORITHM"])
    return job


def _device(value):
    """The argument `device`: None, a Device or a number. Whether there is such a GPU matters to backends that use GPUs."""
    if isinstance(value, Device):
        (<Device> value).check()
    if value is None or isinstance(value, Device):
        return value
    return as_ordinal(value, "device", "a Device or a GPU's number")


def _heap_size(value):
    try:
        return _settings.parse_size(value)
    except (ValueError, TypeError) as error:
        raise SettingError(f"heap_size: {error}") from None


cdef Backend _choose(str name, Agreement agreement):
    """The backend of the job: the one asked for, or for "auto" NVSHMEM where every PE can use it."""
    if name == "auto":
        reasons = agreement.gather(_why_no_nvshmem(), "choosing the backend")
        name = "nvshmem" if all(reason is None for reason in reasons) else "host"
    error = None
    backend = None
    try:
        if name == "nvshmem":
            from .backends.nvshmem import NvshmemBackend as cls
        else:
            from .backends.host import HostBackend as cls
        backend = cls()
    except Exception as e:
        error = e
    agreement.vote(f"loading the {name} backend", error)
    return backend


def _why_no_nvshmem():
    """None where this PE has a usable GPU and NVSHMEM, else the reason."""
    from . import _nvshmem
    from .device import number_of_gpus
    if number_of_gpus() == 0:
        return "no usable GPU"
    try:
        _nvshmem.library_info()
    except NVSymError as error:
        return str(error)
    return None


class _Watch:
    """What a PE looks at while it waits in a host-side collective call."""

    def __init__(self, job):
        self.job = job

    def __call__(self):
        (<Job> self.job).backend.check_peers()


# ---- the ways in which a process ends -------------------------------------------------------------------------------


def _install_hooks():
    global _hooked
    if _hooked:
        return
    _hooked = True
    previous = sys.excepthook

    def excepthook(cls, value, trace):
        previous(cls, value, trace)
        # In an interactive session an exception ends nothing.
        if _job is not None and not hasattr(sys, "ps1") and not sys.flags.interactive:
            _job.failure = value

    global _hook, _program
    _program = getattr(sys.modules.get("__main__"), "__file__", "<string>")  # at exit it is gone
    sys.excepthook = _hook = excepthook
    # Registered after mpi4py's own handler, so it runs before MPI is finalized.
    atexit.register(_at_exit)
    # A program may call MPI.Finalize() itself: MPI first deletes the attributes of COMM_SELF, and can still be called then.
    MPI = _mpi()
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=_at_mpi_finalize), None)
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork():
    global _forked
    if _job is not None:
        _forked = True
        withdraw()
        _job.heap.close("this process was forked after nvsym.init()", ForkError)


def _at_mpi_finalize(comm, keyval, value):
    _end("MPI has been finalized")


def _at_exit():
    if _job is not None and _job.failure is None:
        _job.failure = _unhandled()
    _end("the interpreter is ending")


def _unhandled():
    """The exception that ended the program, where the program has replaced nvsym's excepthook by one that does not call it.

    Shells and test runners note what they have caught in the same place: an exception of theirs does not begin in the main program.
    """
    if sys.excepthook is _hook or hasattr(sys, "ps1") or sys.flags.interactive:
        return None
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    trace = getattr(error, "__traceback__", None)
    while trace is not None and trace.tb_frame.f_globals.get("__name__") == "runpy":     # python -m
        trace = trace.tb_next
    main = sys.modules.get("__main__")
    if trace is None or main is None or trace.tb_frame.f_globals is not main.__dict__:
        return None
    code = trace.tb_frame.f_code
    return error if code.co_name == "<module>" and code.co_filename == _program else None


def _end(str why):
    global _job, _ended
    cdef Job job = _job
    if job is None or _forked or job.pid != os.getpid():
        return
    if job.failure is not None and job.n_pes > 1 and job.settings["NVSYM_ABORT_ON_EXCEPTION"]:
        _abort(job, f"{type(job.failure).__name__}: {error_text(job.failure)}")
    try:
        job.count = 1
        job.close()
    except BaseException as error:
        if job.n_pes == 1:
            raise
        traceback.print_exc()
        _abort(job, f"{type(error).__name__}: {error_text(error)}")
    _job = None
    _ended = why
    for failure in job.close_failures:      # it is too late to raise it
        traceback.print_exception(failure)


def _abort(Job job, reason):
    """End all processes of the job: this one cannot go on, and the others would wait for it."""
    try:
        sys.stdout.flush()
        print(f"nvsym: PE {job.my_pe} of {job.n_pes} aborts the job: {reason} "
              "(NVSYM_ABORT_ON_EXCEPTION=0 turns this off)", file=sys.stderr, flush=True)
        job.backend.set_failed(reason[:400])
        time.sleep(0.05)    # the launcher forwards what was printed before it ends the others
    finally:
        try:
            job.agreement.comm.Abort(1)     # the program may have freed the communicator that it gave to init
        finally:
            os._exit(1)
