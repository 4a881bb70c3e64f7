# SPDX-License-Identifier: Apache-2.0
"""`init`, `finalize`, and `SHMEMContext`: a PE's handle on its job."""

from .device import number_of_gpus
from .errors import NotInitializedError

from .buffer cimport create_buffer
from .functions cimport enqueue
from .job cimport Job, abandon_job, close_job, current_job, job_or_none, open_job, publish
from .rma cimport meet_on_stream
from .team cimport attach_predefined, detach_predefined, world_team


cdef class SHMEMContext:
    """A job of PEs, each with its part of the symmetric heap. ``with SHMEMContext() as ctx:`` is `init` and `finalize`.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        The PEs. Default: MPI.COMM_WORLD.
    backend : {"auto", "nvshmem", "host"}
        "auto": NVSHMEM where every PE has a usable GPU and library, else host memory; the same one on all PEs.
    device : Device or int, optional
        The GPU of this PE. Default: the PE's rank on its node, modulo the node's GPUs.
    bootstrap : {"uid", "mpi"}
        How NVSHMEM's PEs find each other: a unique id sent over mpi4py, with any MPI, or NVSHMEM's own MPI plugin.
    heap_size : int or str, optional
        Bytes of the symmetric heap of each PE, such as ``1 << 30`` or ``"512M"``; the same on all. Default:
        NVSYM_HEAP_SIZE.

    Attributes
    ----------
    backend : str
    device : Device
        Of this PE.
    stream : Stream
        The one that operations use where none is given.
    heap : Heap
    """

    def __init__(self, comm=None, *, backend="auto", device=None, bootstrap="uid", heap_size=None):
        if self.job is not None:
            raise TypeError("a SHMEMContext cannot be initialised twice")
        cdef bint fresh = job_or_none() is None
        cdef Job job = open_job(comm, backend, device, bootstrap, heap_size)
        if fresh:
            try:
                attach_predefined(job)
                publish(job, world_team().data)
            except BaseException as error:
                detach_predefined()
                try:
                    abandon_job()
                except Exception as more:
                    error.add_note(f"ending the job that had begun failed, too: {more}")
                raise
        self.job = job

    def my_pe(self):
        """This PE's number."""
        return self.alive().my_pe

    def n_pes(self):
        """The number of PEs of the job."""
        return self.alive().n_pes

    @property
    def backend(self):
        return self.alive().backend.name

    @property
    def device(self):
        return self.alive().backend.device

    @property
    def stream(self):
        return self.alive().backend.stream

    @property
    def heap(self):
        return self.alive().heap

    def devices(self):
        """One `Device` for each PE, in their order; the same on all PEs."""
        return list(self.alive().backend.devices)

    def nodes(self):
        """The number of each PE's node, in the order of the PEs."""
        return list(self.alive().backend.nodes)

    def capabilities(self):
        """What this job can do and why: a list of (name, bool, reason)."""
        return list(self.alive().backend.capabilities())

    def barrier_all(self, stream=None):
        """See `nvsym.barrier_all`."""
        self.alive()
        meet_on_stream(None, True, stream)

    def synchronize(self):
        """Wait until everything that this PE enqueued on its device is done, and raise what failed on `stream`."""
        cdef Job job = self.alive()
        job.backend.runtime.stream_drain(job.backend.stream.ptr)
        job.backend.device.synchronize()

    def enqueue_create_buffer(self, dtype, n):
        """A `SHMEMBuffer[dtype]` of `n` elements; collective."""
        self.alive()
        return create_buffer(dtype, n)

    def enqueue_create_host_buffer(self, dtype, n):
        """A `HostBuffer`: pinned host memory of `n` elements, on this PE only."""
        from .memory import HostBuffer
        return HostBuffer(dtype, n, self.alive().backend.device)

    def enqueue_function(self, kernel, *args, grid_dim, block_dim, shared_mem_bytes=0, stream=None, cooperative=False):
        """Launch a kernel of yours, in the order of `stream`.

        Parameters
        ----------
        kernel : object
            On GPUs: a ``Kernel`` of cuda-core, a ``RawKernel`` or a function of a ``RawModule`` of CuPy, or a ``CUfunction``
            as an int. On the host backend: a Python callable, or a function of ctypes, which is called once.
        *args
            In the order of the parameters. A `SHMEMBuffer`, a `Buffer` (`SHMEMBuffer.peer`, `SHMEMBuffer.peer_pointers`) or
            an object with ``__cuda_array_interface__`` is passed as its address. NumPy scalars, bytes and ctypes objects are
            passed as they are, and have to have the size of the parameter; ints, floats and bools become the size that the
            parameter has (8 bytes, and 1 for a bool, where the driver is older than that for CUDA 12.4 and cannot tell).
            On the host backend a callable gets NumPy arrays over the buffers, a function of ctypes their addresses, and
            everything else as it is. A callable on a stream runs in that stream's thread. It must not wait for the stream, which would wait
            for the callable: ``stream.synchronize()``, ``ctx.synchronize()``, `Buffer.to_numpy` and `finalize` raise `NVSymError` there.
        grid_dim, block_dim : int or sequence of up to three ints
            Checked, but not used, on the host backend.
        shared_mem_bytes : int
            Dynamic shared memory of a block.
        stream : stream, optional
            Default: that of the context.
        cooperative : bool
            All blocks are to run at the same time, so that the grid can synchronise.

        Raises
        ------
        TypeError, OverflowError, ValueError
            If the arguments do not go with the parameters, or a dimension is none. Nothing is launched.
        BackendError
            What the driver says of the launch.
        NotAvailableError
            On the host backend, for what is not callable.

        Notes
        -----
        A kernel that is enqueued by all PEs is no collective call: nothing is compared, and nobody waits.
        """
        enqueue(self.alive(), kernel, args, grid_dim, block_dim, shared_mem_bytes, stream, cooperative)

    @staticmethod
    def number_of_devices():
        """The number of GPUs that this process can use."""
        return number_of_gpus()

    def finalize(self):
        """See `nvsym.finalize`."""
        self.alive()
        finalize()

    def __enter__(self):
        self.alive()
        return self

    def __exit__(self, cls, value, trace):
        # After an exception the other PEs may be elsewhere: the job ends at exit, or is aborted there.
        if cls is None and self.job is job_or_none() and self.job is not None:
            finalize()

    def __eq__(self, other):
        if not isinstance(other, SHMEMContext):
            return NotImplemented
        return self.job is (<SHMEMContext> other).job

    def __hash__(self):
        return id(self.job)

    def __repr__(self):
        if self.job is None or self.job is not job_or_none():
            return "<SHMEMContext of a job that has ended>"
        return f"<SHMEMContext PE {self.job.my_pe} of {self.job.n_pes}, {self.job.backend.name} backend, {self.job.heap!r}>"

    def __reduce__(self):
        raise TypeError("a SHMEMContext belongs to its process and cannot be pickled")

    cdef Job alive(self):
        cdef Job job = current_job()
        if job is not self.job:
            raise NotInitializedError("the job of this context has ended")
        return job


def init(comm=None, *, backend="auto", device=None, bootstrap="uid", heap_size=None):
    """Begin a job; collective over `comm`. Returns the `SHMEMContext`; its parameters are the same.

    Again with the same arguments it returns the same job and counts: the job ends with as many `finalize`.

    Raises
    ------
    TypeError, ValueError
        An argument is not what it has to be, on any PE.
    SettingError
        A malformed setting (see `python -m nvsym info`) or heap size, on any PE.
    CollectiveError
        Versions, heap sizes or backends differ between PEs.
    NotAvailableError
        No MPI, or not the backend that was asked for.
    NVSymError
        The running job was begun with other arguments; or another step failed. On every PE, with the PE and the reason.
    """
    return SHMEMContext(comm, backend=backend, device=device, bootstrap=bootstrap, heap_size=heap_size)


def finalize():
    """End one `init`. The last one is collective: it waits for all PEs and for all that was enqueued, and frees everything.

    At interpreter exit it is called for whoever did not, before MPI is finalized.

    Raises
    ------
    NotInitializedError
        If there is no job.
    """
    try:
        close_job()
    finally:
        if job_or_none() is None:
            detach_predefined()


def is_initialized():
    """Whether there is a job in this process."""
    return job_or_none() is not None


def context():
    """The `SHMEMContext` of the running job."""
    cdef SHMEMContext ctx = SHMEMContext.__new__(SHMEMContext)
    ctx.job = current_job()
    return ctx


def my_pe():
    """This PE's number in the job."""
    return current_job().my_pe


def n_pes():
    """The number of PEs of the job."""
    return current_job().n_pes


def collect():
    """Settle the buffers that were dropped without `free`; collective.

    What all PEs have dropped, and are done with, is given back on all of them.
    """
    cdef Job job = current_job()
    job.backend.check_host_call()
    job.heap.collect()


def _job_device():
    """The device of the running job, or None."""
    job = job_or_none()
    return None if job is None else (<Job> job).backend.device
