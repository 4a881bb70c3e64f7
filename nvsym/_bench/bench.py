# SPDX-License-Identifier: Apache-2.0
"""`Bench`: a job with the libraries that are measured in it."""

import os
import platform
import subprocess
from typing import Any

import numpy as np

from .. import _settings
from .data import Shape
from .sampling import PeerUnavailableError, Sampler, agree, best

__all__ = ["Bench", "describe_machine", "forbid_multicast"]

ON_HOST = ("mpi4py", "shmem4py", "numpy")
ON_GPUS = ("nccl", "nvshmem", "nvshmem4py", "torch", "cuda")

_SPARE = 64 << 20


class Bench:
    """A job, its sampler, and the libraries that are compared; collective.

    Parameters
    ----------
    peers : list of str
        Of `options.PEERS`.
    heap_size : int
        Bytes of the symmetric heap of each PE, on the host backend.
    backend : {"host", "auto", "nvshmem"}
    largest : int
        Bytes of the largest row, on GPUs.
    reference : int
        Bytes of the copies of `references`, on GPUs.
    algorithms : sequence of str
        Of allreduce, compared with the first that is asked for; on GPUs and host.
    **sampling
        For `Sampler` or `GpuSampler`.
    """

    def __init__(self, peers, heap_size, *, backend="host", largest=0, reference=0, algorithms=(), **sampling):
        from mpi4py import MPI

        import nvsym

        self.comm = MPI.COMM_WORLD
        forbid_multicast(self.comm)
        if backend != "host" and {"nccl", "torch"} & set(peers):
            from .nccl_cases import open_nccl

            agree(self.comm, open_nccl)  # before NVSHMEM finds another one; where there is none, NcclCases says so
        # Every library that works on the symmetric heap has a source and a destination of its own there.
        users = 2 + len(algorithms) + ("cuda" in peers) + 2 * ("nvshmem4py" in peers)
        on_gpus = users * 2 * largest + 2 * reference + _SPARE
        self.reference = reference
        self.context = nvsym.init(backend=backend, heap_size=_heap_for(self.comm, backend, heap_size, on_gpus))
        self.n_pes = nvsym.n_pes()
        self.is_first = nvsym.my_pe() == 0
        self.nodes = len(set(self.context.nodes()))
        self.on_gpus = self.context.backend == "nvshmem"
        self.libraries: list[Any] = []
        self.unavailable: dict[str, str] = {}
        self.series: list[Any] = []
        if self.on_gpus:
            self._open_gpus(peers, algorithms, sampling)
        else:
            self._open_host(peers, algorithms, sampling)

    def _open_host(self, peers, algorithms, sampling):
        import nvsym

        from .mpi4py_cases import Mpi4pyCases
        from .numpy_cases import NumpyCases
        from .nvsym_cases import NvsymCases
        from .shmem4py_cases import Shmem4pyCases

        self.libraries.append(NvsymCases())
        for algorithm in algorithms:
            self.libraries.append(NvsymCases(f"nvsym {algorithm}", algorithm))
        makers = {
            "mpi4py": lambda: Mpi4pyCases(self.comm, self.nodes > 1),
            "shmem4py": lambda: Shmem4pyCases(self.comm),
            "numpy": NumpyCases,
        }
        for name in peers:
            if name not in makers:
                self.unavailable[name] = f"{name}: it needs GPUs, and this job is on the host backend"
                continue
            try:
                self.libraries.append(makers[name]())
            except PeerUnavailableError as error:
                self.unavailable[name] = str(error)
        self.sampler: Any = Sampler(self.comm, nvsym.sync_all, **sampling)

    def _open_gpus(self, peers, algorithms, sampling):
        from .gpu import Gpu
        from .gpu_sampling import GpuSampler
        from .nvsym_gpu_cases import NvsymGpuCases

        self.gpu = Gpu(self.context)
        self.libraries.append(NvsymGpuCases(self.gpu))
        for algorithm in algorithms:
            self.libraries.append(NvsymGpuCases(self.gpu, f"nvsym {algorithm}", algorithm))
        for name in peers:
            if name in ON_HOST:
                self.unavailable[name] = f"{name}: it is compared in host memory; --backend host"
                continue
            # A library may communicate while it begins, so it votes itself; this vote is for what it did not foresee.
            library, reason = agree(self.comm, lambda name=name: self._gpu_library(name))
            if reason is None:
                self.libraries.append(library)
            else:
                self.unavailable[name] = reason if reason.startswith(name) else f"{name}: {reason}"
        self.sampler = GpuSampler(self.comm, self.gpu, **sampling)

    def _gpu_library(self, name):
        if name == "nccl":
            from .nccl_cases import NcclCases

            return NcclCases(self.gpu, self.comm)
        if name == "torch":
            from .torch_cases import TorchCases

            return TorchCases(self.gpu, self.comm, self.nodes == 1)
        if name == "nvshmem4py":
            from .nvshmem4py_cases import Nvshmem4pyCases

            return Nvshmem4pyCases(self.gpu)
        if name == "nvshmem":
            from .nvshmem_cases import NvshmemCases

            return NvshmemCases(self.gpu)
        from .cuda_cases import CudaCases

        return CudaCases(self.gpu)

    def _others(self, action, reasons):
        """Do something with each library but nvsym's own; those that fail are left out from then on."""
        for library in list(self.libraries[1:]):
            _, reason = agree(self.comm, lambda library=library: action(library))
            if reason is not None:
                reasons[library.name] = f"{library.name}: {reason}"
                self.libraries.remove(library)

    def prepare(self, nbytes, dtype):
        """Make the memory of rows of up to so many bytes of an element type; on GPUs."""
        if self.on_gpus:
            self.libraries[0].prepare(nbytes, dtype)
            self._others(lambda library: library.prepare(nbytes, dtype), self.unavailable)
            self.comm.Barrier()

    def release(self):
        """Give it back."""
        if self.on_gpus:
            self.gpu.synchronize()
            self.comm.Barrier()
            self.libraries[0].release()
            self._others(lambda library: library.release(), self.unavailable)

    def measure(self, method, *arguments, alone=False, **how):
        """The fastest `Series` of each library for an operation, by name, and the reasons of those that have none.

        All of them are in `series` afterwards. `alone`: of nvsym's first way only.
        """
        cases, reasons = [], {}
        for library in self.libraries[: 1 if alone else None]:
            if self.on_gpus and library is not self.libraries[0]:
                made, reason = agree(self.comm, lambda library=library: getattr(library, method)(*arguments))
                ways = self.comm.allgather(None if made is None else [case.variant for case in made])
                if reason is None and any(way != ways[0] for way in ways):
                    reason = f"the PEs have different ways: {ways}"
                if reason is not None:
                    reasons[library.name] = reason if reason.startswith(library.name) else f"{library.name}: {reason}"
                else:
                    cases += made
                continue
            try:
                cases += getattr(library, method)(*arguments)
            except PeerUnavailableError as error:
                reasons[library.name] = str(error)
        if self.on_gpus:
            self.series, failed = self.sampler.measure(cases, **how)
            reasons.update({name: f"{name}: {reason}" for name, reason in failed.items()})
        else:
            self.series = self.sampler.measure(cases)
        return best(self.series), reasons

    def references(self):
        """What the machine reaches by itself, in this run; on GPUs.

        Returns
        -------
        dict
            ``memory_GB_per_s``: bytes read and written by copies within one GPU, made by all PEs on it at once;
            ``link_GB_per_s``: the best copy to the next PE, of each PE, made by all PEs at once (more than one GPU);
            ``barrier_us`` and ``barrier_graph_us``: NVSHMEM's barrier of all PEs.
        """
        from .cuda_cases import CudaCases
        from .nvshmem_cases import NvshmemCases

        if not self.on_gpus:
            return {}
        float32, found = np.dtype(np.float32), {}
        shape = Shape(max(1, self.reference // 4), float32)

        def fastest(cases, **how):
            series, _ = self.sampler.measure(cases, **how)
            return min((one.median for one in series), default=None)

        copies, reason = agree(self.comm, lambda: CudaCases(self.gpu))
        if reason is None:
            _, reason = agree(self.comm, lambda: copies.prepare(shape.nbytes, float32))
        if reason is None:
            cases, reason = agree(self.comm, lambda: copies.device_copy(shape))
            seconds = fastest(cases) if reason is None else None
            if seconds is not None:
                found["memory_GB_per_s"] = len(self.gpu.sharing) * 2 * shape.nbytes / seconds / 1e9
            if self.gpu.gpus > 1:
                cases, reason = agree(self.comm, lambda: copies.put(shape))
                seconds = fastest(cases) if reason is None else None
                if seconds is not None:
                    found["link_GB_per_s"] = shape.nbytes / seconds / 1e9
            self.gpu.synchronize()
            self.comm.Barrier()
            copies.release()
        nvshmem, reason = agree(self.comm, lambda: NvshmemCases(self.gpu))
        if reason is None and self.n_pes > 1:
            for name, graph in (("barrier_us", False), ("barrier_graph_us", True)):
                seconds = fastest(nvshmem.barrier(shape), graph=graph)
                if seconds is not None:
                    found[name] = seconds * 1e6
        return found

    def floor(self, references, nbytes):
        """Seconds that an allreduce of so many bytes takes at least, by the references; None where nothing is known.

        Each PE reads and writes a buffer's worth of its GPU's memory, and receives 2 (n - 1) / n of one over its link.
        """
        floors = []
        if "memory_GB_per_s" in references:
            floors.append(2 * len(self.gpu.sharing) * nbytes / references["memory_GB_per_s"] / 1e9)
        if "link_GB_per_s" in references:
            floors.append(2 * (self.n_pes - 1) / self.n_pes * nbytes / references["link_GB_per_s"] / 1e9)
        return max(floors, default=None)

    def describe(self):
        """What was compared, in one line each."""
        return [library.describe() for library in self.libraries]

    def close(self):
        """End the job."""
        if self.on_gpus:
            self._others(lambda library: library.close(), {})
            self.gpu.close()
        self.context.finalize()


def forbid_multicast(comm):
    """Where a switch of one library forbids multicast on one PE, set those of all libraries on all PEs; collective.

    Each library obeys its own switch only, and a multicast object of any of them can put shared GPUs out of service.
    """
    if any(comm.allgather(_settings.multicast_switch())):
        os.environ["NVSHMEM_DISABLE_NVLS"] = os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
        os.environ["NCCL_NVLS_ENABLE"] = "0"


def _heap_for(comm, backend, on_host, on_gpus):
    """The size of the heap: which backend "auto" chooses is known after init, so the PEs ask for what either needs."""
    import nvsym

    if backend == "auto":
        backend = os.environ.get("NVSYM_BACKEND") or "auto"
    if backend == "host":
        return on_host
    if backend == "nvshmem":
        return on_gpus
    gpus = comm.allreduce(int(nvsym.SHMEMContext.number_of_devices() > 0))
    return on_gpus if gpus == comm.Get_size() else on_host


def describe_machine(gpu=None):
    """The machine in words: processor, cores that may be used, memory, kernel, load; the GPU and its driver if one is given."""
    model = platform.machine()
    with open("/proc/cpuinfo") as file:
        lines = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    if lines:
        model = lines[0]
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    load = os.getloadavg()[0]
    text = f"{model}, {len(os.sched_getaffinity(0))} cores, {gib:.0f} GiB, Linux {platform.release()}, load {load:.1f}"
    if gpu is None:
        return text
    shared = len(gpu.sharing)
    how = f", {shared} PEs on each" if shared > 1 else ""
    return f"{gpu.gpus} {gpu.context.device.name}{how}, driver {_driver_version()}; {text}"


def _driver_version():
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=20, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return (done.stdout.splitlines() or ["unknown"])[0].strip()
