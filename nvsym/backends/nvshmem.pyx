# SPDX-License-Identifier: Apache-2.0
"""The NVSHMEM backend: symmetric memory of GPUs, one PE per process.

NVSHMEM ends or crashes the process on many misuses: collectives while PEs share a GPU without MPS, an allocation that does
not fit, a malformed size setting, a call before the initialisation. Each is checked here first, on all PEs, and raised.
Nothing is called through NVSHMEM's inline initialisation, only ``nvshmemx_hostlib_init_attr`` and ``_finalize``.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

import atexit
import os
import re
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait

from .. import _driver, _nvshmem
from .._facts import facts_of, pool_capability
from .._mpi_gpu import takes_gpu_memory
from .._settings import format_size, parse_size
from ..backend import ALGORITHMS
from ..dtypes import DTYPES, OPS, REDUCIBLE
from ..errors import (
    BackendError, HeapExhaustedError, NotAvailableError, PeerTimeoutError, PeerUnreachableError, SettingError)
from ..kernels import atomics as amo_kernels
from ..kernels import compiler as kernel_compiler

from .._driver cimport CHECK_CUDA, cuda
from .._nvshmem cimport (
    CHECK_NVSHMEM, init_attr_initializer, load_nvshmem, nvshmem, nvshmem_version, team_config_initializer,
    uniqueid_initializer)
from ..agreement cimport Agreement
from ..backend cimport (
    ALGO_AUTO, ALGO_MPI, ALGO_MULTIMEM, ALGO_NVSHMEM, ALGO_ONE_SHOT, ALGO_TWO_SHOT, SIZES, Backend, Functions,
    TeamData, nvsym_team_t)
from ..cuda_runtime cimport CudaRuntime, get_cuda_runtime
from ..device cimport Device, cuda_device
from ..kernels.allreduce cimport (
    KERNEL_LOW_LATENCY, KERNEL_ONE_SHOT, KERNEL_PUSH, KERNEL_TWO_SHOT, MAX_PES, AllreduceKernels, Kernel, TeamKernels)
from ..kernels.exchange cimport MOVE_ALLTOALL, MOVE_BROADCAST, MOVE_FCOLLECT, Distances, ExchangeKernels, Move
from ..kernels.launch cimport arch_of, forget_kernels, launch_kernel
from ..kernels.put cimport PutKernels
from ..libcuda cimport (
    CU_DEVICE_ATTRIBUTE_MPS_ENABLED, CU_FUNC_ATTRIBUTE_NUM_REGS, CU_STREAM_CAPTURE_STATUS_NONE, CUdeviceptr, CUfunction, CUmodule,
    CUstream, CUstreamCaptureStatus)
from ..libnvshmem cimport (
    NVSHMEM_STATUS_IS_INITIALIZED, NVSHMEM_STATUS_LIMITED_MPG,
    NVSHMEM_TEAM_CONFIG_MASK_UNIQUEID, NVSHMEM_TEAM_INVALID, NVSHMEM_TEAM_WORLD, NVSHMEMX_INIT_WITH_MPI_COMM,
    NVSHMEMX_INIT_WITH_UNIQUEID,
    nvshmem_team_config_t, nvshmem_team_t, nvshmemx_init_attr_t, nvshmemx_team_uniqueid_t, nvshmemx_uniqueid_t)
from ..status cimport Status, status_of
from ..stream cimport borrow_stream
from ..types cimport NVSYM_SIGNAL_ADD

# NVSHMEM reads these as sizes, and crashes on a text that is none.
_SIZE_SETTINGS = (
    "NVSHMEM_SYMMETRIC_SIZE", "NVSHMEM_MAX_MEMORY_PER_GPU", "NVSHMEM_CUMEM_GRANULARITY", "NVSHMEM_MAX_P2P_GPUS",
)
_SIZE = re.compile(r"\d+(\.\d+)?[kKmMgGtT]?[bB]?")

cdef enum:
    GRANULE    = 512 << 20      # what NVSHMEM's heap grows by, unless NVSHMEM_CUMEM_GRANULARITY says otherwise
    HEADROOM   = 256 << 20      # left to NVSHMEM's own buffers and to the context
    AMO_COUNT  = 8
    AMO_PAGE   = 4096           # bytes of pinned memory, 8 for each atomic operation under way
    MAX_SPANS  = 256            # arenas that the C interface knows
    LEVEL_TEAMS = 4             # teams over several nodes that reduce in two levels at a time
    LEVEL_BYTES = 1 << 20       # of the sums of one PE's share at a time

_AMO_NAMES = ("fetch", "set", "add", "swap", "compare_swap", "and", "or", "xor")


# Addresses that NVSHMEM reserves for the heap of a GPU where NVSHMEM_MAX_MEMORY_PER_GPU does not say otherwise.
cdef size_t LARGEST_HEAP            = <size_t> 256 << 30
cdef size_t LARGEST_HEAP_BEFORE_3_5 = <size_t> 128 << 30

cdef int64_t FAR = -<int64_t> 0x7fffffffffffffff

cdef bint _failed = False   # an initialisation of this process


cdef struct Span:
    size_t start
    size_t nbytes


cdef class NvshmemTeam(TeamData):
    cdef nvshmem_team_t handle      # NVSHMEM_TEAM_INVALID where NVSHMEM cannot make it (PEs share a GPU without MPS)
    cdef TeamKernels    kernels     # slot -1: the team's collectives are NVSHMEM's
    cdef TeamKernels    exchange    # the same of those that do not reduce to all
    cdef list           members     # world numbers
    # Where members are on several nodes, as many on each: those of this node, and those in the same place on all nodes.
    cdef TeamKernels    level       # slot -1: there are none
    cdef nvshmem_team_t rail
    cdef int            level_nodes
    cdef char *         sums        # symmetric: of this PE's share, and behind it of all nodes

    def __cinit__(self):
        self.kernels.slot = self.exchange.slot = self.level.slot = -1
        self.handle = self.rail = NVSHMEM_TEAM_INVALID


cdef class NvshmemBackend(Backend):
    """Symmetric memory of GPUs over NVSHMEM."""
    cdef CudaRuntime gpu
    cdef int         ordinal
    cdef CUstream    main               # the context's stream
    cdef list        arenas             # (address, bytes)
    cdef Span        spans[MAX_SPANS]   # the same without the GIL; n_spans is written last
    cdef int         n_spans
    cdef bint        mps
    cdef bint        limited            # PEs share a GPU without MPS: no collectives but the barriers of all PEs
    cdef str         why_limited
    cdef bint        started
    cdef AllreduceKernels kernels       # None: the collectives are NVSHMEM's
    cdef ExchangeKernels exchange
    cdef void *      stages             # of allreduces by copy engines; NULL: there are none
    cdef size_t      stage_bytes
    cdef PutKernels  puts
    cdef list        level_of           # the number of each PE's node, or what tests take for it
    cdef char *      level_sums         # symmetric: what the teams over several nodes have for their sums, or NULL
    cdef int64_t *   near               # from this PE's heap to that of each PE; FAR: it cannot be addressed
    cdef bint        all_near           # nobody is FAR
    cdef bint        no_network         # GPUs reach each other's memory by all means; there are kernels
    cdef str         why_no_kernels
    cdef str         no_multicast
    cdef list        _capabilities
    cdef int         sharing            # PEs on this GPU
    cdef nvshmemx_uniqueid_t uid        # NVSHMEM keeps a pointer to it
    cdef CUmodule    amo_module
    cdef CUfunction  amo[2][AMO_COUNT][2]   # by int or float, operation, 4 or 8 bytes
    cdef list        amo_pages          # pinned memory for what atomic operations return,
    cdef list        amo_spare          # and the places in it that no call uses

    def __dealloc__(self):
        free(self.near)

    # ---- the job ----------------------------------------------------------------------------------------------------

    cdef int start(self, Agreement agreement, object settings, size_t heap_size, object device) except -1:
        self.name = "nvshmem"
        self.my_pe, self.n_pes = agreement.rank, agreement.size
        self.arenas = []
        self._check_bootstrap(agreement)
        self._open(agreement)
        self._choose_device(agreement, device)
        self._check_settings(agreement)
        self._check_room(agreement, heap_size)
        load_compiler = None if _driver.is_simulated() else kernel_compiler.begin_loading(arch_of(self.ordinal))    # while NVSHMEM is busy
        atomics = self._begin_atomics()
        try:
            self._initialize(agreement)
        except BaseException:
            wait([atomics])
            self.unload_atomics()
            if self.main != NULL and not self.started:
                self.gpu.stream_destroy(self.main)
                self.main = NULL
            raise
        wait([atomics])     # where it failed, the first atomic operation tries again, and says why
        try:
            self._add_arena(agreement, heap_size)
            self.puts = PutKernels(self.gpu, self.ordinal, self.sharing == 1 and self.n_pes > 1,
                                   settings["NVSYM_COPY_KERNEL"])
            self._open_kernels(agreement, load_compiler, settings["NVSYM_TIMEOUT"], settings["NVSYM_STAGE_SIZE"])
            if self.puts.put_up_to or self.puts.get_up_to or self.puts.signal_up_to:
                # The driver loads a module when all that runs on the GPU is done. So a first put, behind a signal_wait_until on another
                # stream, would wait for a signal that a PE may only send when it has seen the put. The same goes for atomic operations.
                self.puts.ready()
        except BaseException:
            self.stop(agreement)
            raise
        self._describe(agreement)
        return 0

    def _check_bootstrap(self, agreement):
        from mpi4py import MPI
        error = None
        library = MPI.Get_library_version().splitlines()[0].strip("\0 ")
        if self.bootstrap == "mpi" and not library.startswith("Open MPI"):
            error = NotAvailableError(f'bootstrap="mpi": NVSHMEM\'s plugin is made for Open MPI, and this job runs on {library}; it '
                                      'would load a second MPI into the process. bootstrap="uid" works with every MPI')
        agreement.vote("choosing the bootstrap of NVSHMEM", error)

    def _open(self, agreement):
        """Both libraries, the same NVSHMEM on every PE, and nobody else's initialisation in the way."""
        error = None
        try:
            self.runtime = self.gpu = get_cuda_runtime()
            load_nvshmem()
            if nvshmem.nvshmemx_init_status() != 0 and _failed:
                raise BackendError("an initialisation of NVSHMEM failed in this process before, and leaves it half made; start the "
                                   "program anew")
            if nvshmem.nvshmemx_init_status() != 0:
                raise BackendError("NVSHMEM has been initialised in this process by another library (PyTorch's symmetric memory, "
                                   "nvshmem4py): there can be one initialisation; begin the nvsym job first")
        except Exception as e:
            error = e
        agreement.vote("opening CUDA and NVSHMEM", error)
        agreement.same("the version of NVSHMEM", _nvshmem.library_info().version, "Install one version on every node")

    def _choose_device(self, agreement, device):
        ranks = agreement.ranks_here()
        rank, size = ranks.index(agreement.rank), len(ranks)
        error = None
        cdef Device chosen = None
        try:
            ordinal = rank % self.gpu.n_devices if device is None else device
            if isinstance(ordinal, Device):
                if ordinal.is_host:
                    raise ValueError("device: the NVSHMEM backend needs a GPU, not host memory")
                ordinal = ordinal.ordinal
            self.ordinal = ordinal
            chosen = cuda_device(ordinal, self.my_pe)
            self.gpu.use(ordinal)
            self.mps = self._attribute(CU_DEVICE_ATTRIBUTE_MPS_ENABLED)
        except Exception as e:
            error = e
        agreement.vote("choosing a GPU", error)
        facts = facts_of(chosen, f"{agreement.names[self.my_pe]}, GPU {ordinal} ({chosen.name})", ranks[0])
        rows = agreement.gather((ranks[0], size, socket.gethostname(), chosen.uuid, chosen.name, ordinal, facts),
                                "comparing the GPUs of the PEs")
        leaders = sorted({row[0] for row in rows})
        self.nodes = [leaders.index(row[0]) for row in rows]
        if len({row[1] for row in rows}) > 1:
            raise NotAvailableError("NVSHMEM needs the same number of PEs on every node, found " + ", ".join(
                f"{rows[leader][1]} on {rows[leader][2]}" for leader in leaders))
        self.devices = [cuda_device(ordinal, pe) if pe == self.my_pe else _remote_device(row, pe)
                        for pe, row in enumerate(rows)]
        self.device = self.devices[self.my_pe]
        self.sharing = sum(1 for row in rows if row[3] == chosen.uuid)
        self.facts = [row[6] for row in rows]
        disabled = [f"{fact.switch} on PE {pe}" for pe, fact in enumerate(self.facts) if fact.switch is not None]
        self.no_multicast = f"disabled by {disabled[0]}" if disabled else None

    cdef int _attribute(self, int attribute) except -1:
        cdef int value = 0, handle = 0
        CHECK_CUDA(cuda.cuDeviceGet(&handle, self.ordinal), b"cuDeviceGet")
        # An attribute that the driver does not know counts as absent.
        if cuda.cuDeviceGetAttribute(&value, attribute, handle) != 0:
            return 0
        return value

    def _check_settings(self, agreement):
        error = None
        for name in _SIZE_SETTINGS:
            text = os.environ.get(name)
            if text is not None and _SIZE.fullmatch(text.strip()) is None:
                error = SettingError(f"{name}={text!r} is not a size (NVSHMEM crashes on it); write such as 512M")
        agreement.vote("reading NVSHMEM's settings", error)

    cdef size_t room_for(self, size_t nbytes) except? 0:
        """The free memory of the GPU if another `nbytes` of heap fit into it on each PE that shares it, else 0."""
        cdef size_t room = 0, total = 0, most = LARGEST_HEAP if nvshmem_version() >= 30500 else LARGEST_HEAP_BEFORE_3_5
        cdef size_t held = GRANULE
        self.gpu.use(self.ordinal)
        CHECK_CUDA(cuda.cuMemGetInfo(&room, &total), b"cuMemGetInfo")
        text = os.environ.get("NVSHMEM_MAX_MEMORY_PER_GPU")
        if text is not None:
            most = parse_size(text)
        held += self.stage_bytes
        for _, size in self.arenas:
            held += size
        # No sum: what is asked for may be any number.
        if nbytes > most or held > most - nbytes or nbytes > room // self.sharing or (
                room // self.sharing - nbytes < 2 * <size_t> GRANULE + HEADROOM):
            return 0
        return room

    def _check_room(self, agreement, size_t heap_size):
        """That the heap fits into the free memory of every GPU: NVSHMEM would end the process where it does not."""
        cdef size_t room = 0, total = 0
        error = None
        try:
            if self.room_for(heap_size) == 0:
                CHECK_CUDA(cuda.cuMemGetInfo(&room, &total), b"cuMemGetInfo")
                raise HeapExhaustedError(
                    f"no room for {format_size(heap_size)} of symmetric heap for each of {self.sharing} PEs on {self.device.name}, "
                    f"with {format_size(2 * GRANULE + HEADROOM)} beside it: {format_size(room)} of {format_size(total)} are free. "
                    "NVSYM_HEAP_SIZE or init(heap_size=) asks for less (NVSHMEM_MAX_MEMORY_PER_GPU bounds it, too)")
        except Exception as e:
            error = e
        agreement.vote("looking for room for the symmetric heap", error)

    def _set_uniqueid(self, agreement, size_t attr):
        error = None
        uniqueid_initializer(&self.uid)
        try:
            if self.my_pe == 0:
                CHECK_NVSHMEM(nvshmem.nvshmemx_get_uniqueid(&self.uid), b"nvshmemx_get_uniqueid")
        except Exception as e:
            error = e
        agreement.vote("making NVSHMEM's unique id", error)
        identifier = agreement.gather((<char *> &self.uid)[:sizeof(self.uid)] if self.my_pe == 0 else b"",
                                      "sending NVSHMEM's unique id")[0]
        memcpy(&self.uid, <const char *> identifier, sizeof(self.uid))
        CHECK_NVSHMEM(nvshmem.nvshmemx_set_attr_uniqueid_args(self.my_pe, self.n_pes, &self.uid, <nvshmemx_init_attr_t *> attr),
                      b"nvshmemx_set_attr_uniqueid_args")

    def _initialize(self, agreement):
        cdef nvshmemx_init_attr_t attr
        cdef int status = 0
        cdef unsigned int flags = NVSHMEMX_INIT_WITH_UNIQUEID
        cdef size_t communicator
        global _failed
        error = None
        init_attr_initializer(&attr, self.ordinal)
        try:
            if self.bootstrap == "mpi":
                from mpi4py import MPI
                flags = NVSHMEMX_INIT_WITH_MPI_COMM
                communicator = MPI._addressof(agreement.comm)
                CHECK_NVSHMEM(nvshmem.nvshmemx_set_attr_mpi_comm_args(<void *> communicator, &attr),
                              b"nvshmemx_set_attr_mpi_comm_args")
            else:
                self._set_uniqueid(agreement, <size_t> &attr)    # votes
            self.main = self.gpu.stream_create(self.ordinal)
        except Exception as e:
            error = e
        agreement.vote("preparing NVSHMEM", error)
        # Since 3.8 NVSHMEM narrows the CPU mask of the process; whoever wants that says so.
        cores = os.sched_getaffinity(0) if "NVSHMEM_CPU_AFFINITY" not in os.environ else None
        try:
            self.gpu.use(self.ordinal)
            with nogil:
                status = nvshmem.nvshmemx_hostlib_init_attr(flags, &attr)
            _failed = status != 0
            CHECK_NVSHMEM(status, b"nvshmemx_hostlib_init_attr")
            status = nvshmem.nvshmemx_init_status()
            if status < NVSHMEM_STATUS_IS_INITIALIZED:
                raise BackendError(f"NVSHMEM said that it was initialised, and is in state {status}")
            if nvshmem.nvshmem_my_pe() != self.my_pe or nvshmem.nvshmem_n_pes() != self.n_pes:
                raise BackendError(f"NVSHMEM calls this PE {nvshmem.nvshmem_my_pe()} of {nvshmem.nvshmem_n_pes()}, "
                                   f"MPI {self.my_pe} of {self.n_pes}")
        except Exception as e:
            nodes = len(set(self.nodes))
            error = e if nodes == 1 else BackendError(
                f"{e}. The PEs are on {nodes} nodes, between which NVSHMEM needs a transport (InfiniBand or RoCE, or multi-node "
                "NVLink): NVSHMEM_REMOTE_TRANSPORT names it")
        finally:
            if cores is not None:
                os.sched_setaffinity(0, cores)
        try:
            agreement.vote("initialising NVSHMEM", error)
        except PeerTimeoutError as e:
            # The others are inside NVSHMEM, which waits for ever and cannot be called back: MPI could not end either.
            atexit.register(_abort, agreement, str(e if error is None else error))
            raise
        self.started = True
        states = agreement.gather((status == NVSHMEM_STATUS_LIMITED_MPG, self.mps), "comparing the state of NVSHMEM")
        self.limited = any(state[0] for state in states)
        self.why_limited = _MPS_SHARES if any(all(state) for state in states) else _NO_MPS
        self.stream = borrow_stream(self.device, self.main)
        self.stream.owned = True    # who holds it after the job has a stream of the GPU

    def _describe(self, agreement):
        cdef int pe
        reachable = [pe for pe in range(self.n_pes) if self.peer_ptr(self.arena_base(0), pe) != NULL]
        nodes = len(set(self.nodes))
        shared = self.sharing > 1
        why_multicast = self.no_multicast
        if why_multicast is None and shared:
            why_multicast = "PEs share a GPU"
        if why_multicast is None and nvshmem.nvshmemx_mc_ptr(NVSHMEM_TEAM_WORLD, self.arena_base(0)) == NULL:
            why_multicast = "NVSHMEM has no multicast address for the heap (GPUs, driver or fabric do not support it)"
            self.no_multicast = why_multicast
        takes, why_takes = takes_gpu_memory()
        self._capabilities = [
            ("peer_memory", len(reachable) == self.n_pes, f"{len(reachable)} of {self.n_pes} PEs are addressable by load and store"),
            ("several_nodes", nodes > 1, f"{nodes} nodes" if nodes > 1 else "all PEs are on one node"),
            ("gpu_of_its_own", not shared, f"{self.sharing} PEs share this GPU" if shared else "no other PE uses this GPU"),
            ("collectives", not self.limited, self.why_limited if self.limited else
             "PEs share GPUs under MPS" if shared else "every PE has a GPU"),
            ("kernels", self.kernels is not None, self.why_no_kernels or "collectives of teams whose members can address each other"),
            ("mpi_takes_buffers", takes, why_takes),
            ("multicast", why_multicast is None, why_multicast or "the heap has a multicast address"),
            ("symmetric_pool", *pool_capability(self.facts)),
        ]

    cdef int stop(self, Agreement agreement) except -1:
        if not self.started:
            return 0
        self.gpu.use(self.ordinal)
        self.gpu.drain_all(self.ordinal)
        for address, _ in self.arenas:
            self._free(address)
        self.arenas = []
        self.gpu.after_drain = None
        forget_kernels()
        self.n_spans = 0
        self.no_network = False
        if self.kernels is not None:
            for kernels in (self.kernels, self.exchange):
                self._free(<size_t> (<AllreduceKernels> kernels).workspace)
                (<AllreduceKernels> kernels).close()
            self.kernels = self.exchange = None
        if self.stages != NULL:
            self._free(<size_t> self.stages)
            self.stages, self.stage_bytes = NULL, 0
        if self.level_sums != NULL:
            self._free(<size_t> self.level_sums)
            self.level_sums = NULL
        if self.puts is not None:
            self.puts.close()
        self.unload_atomics()
        self.gpu.free_parked()
        self.started = False
        with nogil:
            nvshmem.nvshmemx_hostlib_finalize()
        self.main = NULL
        self.stream = borrow_stream(self.device, NULL)
        return 0

    def _open_kernels(self, agreement, load_compiler, limit, stage_size):
        """nvsym's own allreduce, where every PE has a compiler for it; else NVSHMEM reduces."""
        self.why_no_kernels = None
        cdef AllreduceKernels kernels
        reason, opened, no_network = None, [], False
        try:
            if load_compiler is None:
                reason = "the simulated CUDA driver runs no compiled kernels"
            else:
                orders = load_compiler()
                opened = [cls(self.gpu, self.ordinal, self.n_pes, self.sharing, limit) for cls in (AllreduceKernels, ExchangeKernels)]
                (<ExchangeKernels> opened[1]).prepare_orders(orders)
                no_network = all([self.device.takes_atomics(device) for device in self.devices])
        except Exception as e:
            reason = str(e) or repr(e)
        reasons = agreement.gather(reason, "looking for NVRTC")
        if self.limited:
            self.why_no_kernels = self.why_limited
        elif any(reasons):
            pe = next(pe for pe in range(self.n_pes) if reasons[pe] is not None)
            self.why_no_kernels = f"PE {pe}: {reasons[pe]}"
        if self.why_no_kernels is not None:
            for kernels in opened:
                kernels.close()
            return
        try:
            for kernels in opened:
                self._open_workspace(agreement, kernels)
        except BaseException:
            for kernels in opened:
                kernels.close()
            raise
        self.kernels, self.exchange = opened
        self.no_network = no_network
        self.gpu.after_drain = self._raise_failure
        self._open_stages(agreement, stage_size)
        self._open_levels(agreement)

    def _raise_failure(self):
        """What a kernel failed with is raised by the first call that waits, too."""
        if (self.kernels.failed() and not self.kernels.told) or (self.exchange.failed() and not self.exchange.told):
            self.check_kernels()

    cdef int check_kernels(self) except -1:
        cdef AllreduceKernels kernels, first = None
        if self.kernels is None or not (self.kernels.failed() or self.exchange.failed()):
            return 0
        for kernels in (self.exchange, self.kernels):
            if kernels.failed():
                if first is None or not kernels.told:
                    first = kernels
                kernels.told = True
        return first.check()

    def _open_workspace(self, agreement, AllreduceKernels kernels):
        cdef size_t nbytes
        cdef void *workspace
        rows = agreement.gather((kernels.blocks, self.sharing), "planning the kernels of collectives")
        kernels.agree(min(row[0] for row in rows), max(row[1] for row in rows))
        nbytes = kernels.workspace_bytes()
        with nogil:
            workspace = nvshmem.nvshmem_malloc(nbytes)
        error = None
        try:
            if workspace == NULL:
                raise HeapExhaustedError(f"nvshmem_malloc({nbytes}) for the kernels of collectives returned NULL")
            kernels.open(workspace)
        except Exception as e:
            error = e
        agreement.vote("opening the kernels of collectives", error)

    def _open_stages(self, agreement, size):
        """Memory for what copy engines send, where all have room for it; without it large allreduces take another way."""
        cdef size_t nbytes
        error = None
        try:
            nbytes = self.kernels.stage_bytes(size)
            if nbytes == 0 or not (self._can_reach(list(range(self.n_pes))) and self.room_for(nbytes)):
                size = 0
        except Exception as e:
            error = e
        agreement.vote("planning the stages of allreduces", error)
        size = min(agreement.gather(size, "planning the stages of allreduces"))
        if size == 0:
            return
        nbytes = self.kernels.stage_bytes(size)
        with nogil:
            self.stages = nvshmem.nvshmem_malloc(nbytes)
        made = agreement.gather(self.stages != NULL, "allocating the stages of allreduces")
        if not any(made):
            return      # a heap that does not grow (NVSHMEM_DISABLE_CUDA_VMM)
        if not all(made):
            raise HeapExhaustedError(f"nvshmem_malloc({nbytes}) for the stages of allreduces returned NULL on some PEs alone")
        self.stage_bytes = nbytes
        try:
            self.kernels.open_stages(size, self.stages)
        except Exception as e:
            error = e
        agreement.vote("opening the stages of allreduces", error)

    def _attach_kernels(self, agreement, NvshmemTeam team):
        """Give a team its part of the kernels' workspace, if its members can address each other and there is one left."""
        cdef int64_t delta[MAX_PES]
        cdef int i, n = team.n_pes
        team.members = [team.pes[i] for i in range(n)]
        if self.kernels is None or n < 2:
            return
        here = [pe for pe in team.members if self.level_of[pe] == self.level_of[self.my_pe]]
        # Nodes may share an NVLink fabric.
        reachable = n <= MAX_PES and self._can_reach(team.members) and (self.level_of is self.nodes or len(here) == n)
        rows = agreement.gather((reachable, self._can_reach(here), len(here), sorted(self.kernels.free_slots)),
                                "choosing a team's place for kernels")
        common = sorted(set(rows[0][3]).intersection(*[row[3] for row in rows[1:]]))
        if not common:
            return
        if not all(row[0] for row in rows):
            if all(row[1] and row[2] == len(here) <= MAX_PES for row in rows):
                self._attach_levels(agreement, team, here, common[0])
            return
        error = None
        try:
            self._deltas(team.members, self.kernels.workspace, delta)
            self.kernels.attach(&team.kernels, common[0], team.my_pe, n, delta)
            self._deltas(team.members, self.exchange.workspace, delta)
            self.exchange.attach(&team.exchange, common[0], team.my_pe, n, delta)
            self.kernels.members[common[0]] = self.exchange.members[common[0]] = team.members
        except Exception as e:
            error = e
        agreement.vote("preparing a team's kernels", error)

    cdef bint _can_reach(self, list pes) except -1:
        return all([nvshmem.nvshmem_ptr(self.kernels.workspace, pe) != NULL for pe in pes])

    cdef int _deltas(self, list pes, char *own, int64_t *delta) except -1:
        """How far it is from this PE's symmetric memory to that of each of them."""
        cdef int i, pe
        for i, pe in enumerate(pes):
            delta[i] = <int64_t> (<char *> nvshmem.nvshmem_ptr(own, pe) - own)
        return 0

    def _open_levels(self, agreement):
        """Memory for the sums of teams over several nodes."""
        size = os.environ.get("NVSYM_TEST_NODE_SIZE")
        self.level_of = self.nodes if size is None else [pe // int(size) for pe in range(self.n_pes)]
        cdef size_t nbytes = LEVEL_TEAMS * (1 + len(set(self.level_of))) * <size_t> LEVEL_BYTES
        if len(set(self.level_of)) == 1:
            return
        with nogil:
            self.level_sums = <char *> nvshmem.nvshmem_malloc(nbytes)
        error = None
        if self.level_sums == NULL:
            error = HeapExhaustedError(f"nvshmem_malloc({nbytes}) for allreduce over several nodes returned NULL")
        agreement.vote("allocating memory for allreduce over several nodes", error)

    def _attach_levels(self, agreement, NvshmemTeam team, here, int slot):
        """Two levels: the members of this node, by kernels, and those in the same place of each node, by NVSHMEM."""
        cdef int64_t delta[MAX_PES]
        cdef int place = here.index(self.my_pe), number, nodes
        order = []
        for pe in team.members:
            if self.level_of[pe] not in order:
                order.append(self.level_of[pe])
        number, nodes = order.index(self.level_of[self.my_pe]), len(order)
        if slot >= LEVEL_TEAMS:
            return
        team.rail = self._make_team(agreement, "a team between nodes", place, nodes, number)
        error = None
        try:
            self._deltas(here, self.exchange.workspace, delta)
            self.exchange.attach(&team.level, slot, place, len(here), delta)
            self.exchange.members[slot] = here
            self.kernels.free_slots.discard(slot)
            team.level_nodes = nodes
            team.sums = self.level_sums + slot * (1 + len(set(self.level_of))) * <size_t> LEVEL_BYTES
        except Exception as e:
            error = e
        agreement.vote("preparing a team's kernels between nodes", error)

    cdef int reduce_by_levels(self, NvshmemTeam team, int dtype, int op, char *dest, const char *src, size_t count,
                              void *stream) except -1:
        """In pieces whose shares fit into the memory for sums; each PE has one share of a piece, of one size everywhere."""
        cdef size_t item = SIZES[dtype], wide = max(item, <size_t> 4) if DTYPES[dtype].kind == "float" else item
        cdef size_t n = team.level.args.n, piece, share, done = 0
        cdef size_t most = (LEVEL_BYTES // wide - 16) * n
        cdef char *rows = team.sums + <size_t> LEVEL_BYTES
        cdef int status
        self.check_kernels()
        if self.exchange.levels[dtype][op][0] == NULL:
            self.not_capturing()
            self.exchange.prepare_levels(dtype, op)
        while done < count:
            piece = min(count - done, most)
            share = ((piece + n - 1) // n + 15) // 16 * 16 * wide
            self.exchange.level_in(&team.level, dtype, op, team.sums, src + done * item, piece, stream)
            # A PE of another node may be ahead: it must not send before this one is done with the rows of the piece before.
            with nogil:
                status = nvshmem.nvshmemx_team_sync_on_stream(team.rail, stream)
            CHECK_NVSHMEM(status, b"nvshmemx_team_sync_on_stream")
            with nogil:
                status = nvshmem.nvshmemx_fcollectmem_on_stream(team.rail, rows, team.sums, share, stream)
            CHECK_NVSHMEM(status, b"nvshmemx_fcollectmem_on_stream")
            self.exchange.level_out(&team.level, dtype, op, dest + done * item, rows, piece, team.level_nodes, stream)
            done += piece
        return self.gpu.mark(stream)

    def _free(self, size_t address):
        with nogil:
            nvshmem.nvshmem_free(<void *> address)

    cdef int set_exiting(self, int stage) except -1:
        return 0

    cdef int set_failed(self, str reason) except -1:
        return 0

    cdef int check_peers(self) except -1:
        return 0    # a PE that dies takes its launcher's job with it

    cdef list capabilities(self):
        return self._capabilities

    cdef int check_host_call(self) except -1:
        if self.gpu.any_capturing():
            raise BackendError("a stream is being captured into a CUDA graph: allocation, free, collect, team calls and finalize "
                               "cannot be captured; make them before or after the capture")
        return 0

    # ---- the heap ---------------------------------------------------------------------------------------------------

    cdef int arena_count(self) except -1:
        return len(self.arenas)

    cdef char *arena_base(self, int arena) except NULL:
        return <char *> <size_t> self.arenas[arena][0]

    cdef size_t arena_size(self, int arena) except 0:
        return self.arenas[arena][1]

    def _add_arena(self, agreement, size_t nbytes):
        """An arena of the same size on every PE; the caller has made sure that it fits."""
        cdef void *address
        self.gpu.use(self.ordinal)
        with nogil:
            address = nvshmem.nvshmem_malloc(nbytes)
        error = None
        if address == NULL:
            error = HeapExhaustedError(f"nvshmem_malloc({nbytes}) returned NULL; with NVSHMEM_DISABLE_CUDA_VMM=1 "
                                       "NVSHMEM_SYMMETRIC_SIZE bounds the heap")
        agreement.vote("allocating an arena of the symmetric heap", error)
        self.arenas.append((<size_t> address, nbytes))
        if self.n_spans < MAX_SPANS:
            self.spans[self.n_spans].start, self.spans[self.n_spans].nbytes = <size_t> address, nbytes
            self.n_spans += 1
        self._find_near(<size_t> address)

    cdef int _find_near(self, size_t address) except -1:
        """How far the heaps of the others are, if all arenas are equally far, as in NVSHMEM's one range of addresses."""
        cdef int pe
        cdef int64_t delta
        cdef char *there
        cdef bint first = self.near == NULL
        if first:
            self.near = <int64_t *> calloc(self.n_pes, sizeof(int64_t))
            if self.near == NULL:
                raise MemoryError("no memory for the table of PEs")
        for pe in range(self.n_pes):
            there = <char *> nvshmem.nvshmem_ptr(<void *> address, pe)
            delta = FAR if there == NULL else <int64_t> (there - <char *> address)
            if first or self.near[pe] == delta:
                self.near[pe] = delta
            else:
                self.near[pe] = FAR     # its small copies are NVSHMEM's
        self.all_near = all([self.near[pe] != FAR for pe in range(self.n_pes)])
        return 0

    cdef int grow(self, Agreement agreement, size_t nbytes) except -1:
        error = None
        fits = False
        try:
            fits = self.room_for(nbytes) != 0
        except Exception as e:
            error = e
        agreement.vote("looking for room for another arena", error)
        if not all(agreement.gather(fits, "looking for room for another arena")):
            return 0
        self._add_arena(agreement, nbytes + -nbytes % GRANULE)
        return 1

    cdef int commit(self, int arena, size_t end) except -1:
        return 0    # an arena is memory from the beginning

    cdef object memory_keeper(self):
        return None

    cdef void *peer_ptr(self, const void *ptr, int pe) noexcept nogil:
        return nvshmem.nvshmem_ptr(ptr, pe)

    cdef void *multicast_ptr(self, TeamData team, const void *ptr) except? NULL:
        if self.no_multicast is not None or (<NvshmemTeam> team).handle == NVSHMEM_TEAM_INVALID:
            return NULL
        return nvshmem.nvshmemx_mc_ptr((<NvshmemTeam> team).handle, ptr)

    # ---- one-sided --------------------------------------------------------------------------------------------------

    cdef int put(self, void *dest, const void *src, size_t nbytes, int pe, void *stream, object keep) except -1:
        self.gpu.use(self.ordinal)
        if nbytes <= self.puts.put_up_to and self.near[pe] != FAR and self.puts.ready():
            self.puts.put(<char *> dest + self.near[pe], src, nbytes, stream)
            return self.gpu.mark(stream)
        with nogil:
            nvshmem.nvshmemx_putmem_on_stream(dest, src, nbytes, pe, stream)
        return self.gpu.mark(stream)

    cdef int get(self, void *dest, const void *src, size_t nbytes, int pe, void *stream, object keep) except -1:
        self.gpu.use(self.ordinal)
        if self.puts.get_above < nbytes <= self.puts.get_up_to and self.near[pe] != FAR and self.puts.ready():
            self.puts.put(dest, <const char *> src + self.near[pe], nbytes, stream)
            return self.gpu.mark(stream)
        with nogil:
            nvshmem.nvshmemx_getmem_on_stream(dest, src, nbytes, pe, stream)
        return self.gpu.mark(stream)

    cdef void *reachable(self, const void *ptr, int pe, str name) except NULL:
        cdef void *there = nvshmem.nvshmem_ptr(ptr, pe)
        if there == NULL:
            raise PeerUnreachableError(f"{name}: the memory of PE {pe} cannot be addressed from PE {self.my_pe}, so the other side "
                                       "must be a SHMEMBuffer, not host memory", [pe])
        return there

    cdef int put_from_host(self, void *dest, const void *src, size_t nbytes, int pe, void *stream, object keep) except -1:
        return self.gpu.copy(self.ordinal, self.reachable(dest, pe, "source"), src, nbytes, stream, keep)

    cdef int get_to_host(self, void *dest, const void *src, size_t nbytes, int pe, void *stream, object keep) except -1:
        return self.gpu.copy(self.ordinal, dest, self.reachable(src, pe, "dest"), nbytes, stream, keep)

    cdef int put_signal(self, void *dest, const void *src, size_t nbytes, uint64_t *sig, uint64_t value, int op, int pe,
                        void *stream, object keep) except -1:
        self.gpu.use(self.ordinal)
        if nbytes <= self.puts.signal_up_to and self.near[pe] != FAR and self.puts.ready():
            self.puts.put_signal(<char *> dest + self.near[pe], src, nbytes, <uint64_t *> (<char *> sig + self.near[pe]), value,
                                 op == NVSYM_SIGNAL_ADD, stream)
            return self.gpu.mark(stream)
        if self.fences(stream):
            self.exchange.fence(stream)
        with nogil:
            nvshmem.nvshmemx_putmem_signal_on_stream(dest, src, nbytes, sig, value, op, pe, stream)
        return self.gpu.mark(stream)

    cdef int signal_op(self, uint64_t *sig, uint64_t value, int op, int pe, void *stream, object keep) except -1:
        self.gpu.use(self.ordinal)
        if self.fences(stream):
            # In a graph NVSHMEM's may come before what kernels have stored; nvsym's own releases it.
            if self.puts.signal_up_to and self.puts.ready():
                self.puts.put_signal(<char *> sig, <const char *> sig, 0, <uint64_t *> (<char *> sig + self.near[pe]), value,
                                     op == NVSYM_SIGNAL_ADD, stream)
                return self.gpu.mark(stream)
            self.exchange.fence(stream)
        with nogil:
            nvshmem.nvshmemx_signal_op_on_stream(sig, value, op, pe, stream)
        return self.gpu.mark(stream)

    cdef int signal_wait(self, uint64_t *sig, int cmp, uint64_t value, void *stream, object keep) except -1:
        self.not_limited("signal_wait_until")
        self.gpu.use(self.ordinal)
        with nogil:
            nvshmem.nvshmemx_signal_wait_until_on_stream(sig, cmp, value, stream)
        return self.gpu.mark(stream)

    cdef int launch(self, object kernel, list arguments, const unsigned int *grid, const unsigned int *block, size_t shared,
                    bint cooperative, void *stream, object keep) except -1:
        self.gpu.use(self.ordinal)
        launch_kernel(kernel, arguments, grid, block, shared, cooperative, stream)
        self.gpu.mark(stream)
        return self.gpu.keep_until(stream, keep)

    cdef int fence(self, void *stream) except -1:
        return self.quiet(stream)   # NVSHMEM has no fence on a stream

    cdef int quiet(self, void *stream) except -1:
        self.gpu.use(self.ordinal)
        if self.fences(stream):
            self.exchange.fence(stream)
        else:
            with nogil:
                nvshmem.nvshmemx_quiet_on_stream(stream)
        return self.gpu.mark(stream)

    cdef bint fences(self, void *stream) noexcept nogil:
        """Whether a quiet is nvsym's kernel: in a graph of a job without a network, where NVSHMEM would put a slower one."""
        cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
        return self.no_network and self.all_near and cuda.cuStreamIsCapturing(stream, &status) == 0 and (
            status != CU_STREAM_CAPTURE_STATUS_NONE)

    cdef int atomic(self, int amo, int dtype, void *dest, const void *operand, const void *cond, void *result,
                    int pe) except -1:
        cdef uint64_t value = 0, expected = 0
        cdef void *there = nvshmem.nvshmem_ptr(dest, pe)
        cdef void *out = NULL
        cdef CUstream stream = self.main
        element = DTYPES[dtype]
        cdef int size = element.itemsize
        cdef void *arguments[4]
        if there == NULL:
            raise PeerUnreachableError(f"atomic operations need memory that can be addressed, and that of PE {pe} cannot be from PE "
                                       f"{self.my_pe}", [pe])
        self.gpu.use(self.ordinal)
        if self.gpu.capturing(stream):
            raise BackendError("an atomic operation is done when the call returns, so it cannot be captured into a CUDA graph")
        if self.amo_module == NULL:
            self.not_capturing()
            self.load_atomics()
        if operand != NULL:
            memcpy(&value, operand, size)
        if cond != NULL:
            memcpy(&expected, cond, size)
        if result != NULL:      # by calls of several threads at a time
            if not self.amo_spare:
                self.add_amo_page()
            out = <void *> <size_t> self.amo_spare.pop()
        arguments[0], arguments[1], arguments[2], arguments[3] = &there, &value, &expected, &out
        cdef CUfunction function = self.amo[element.kind == "float"][amo][size == 8]
        with nogil:
            CHECK_CUDA(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL), b"cuLaunchKernel")
        self.gpu.mark(stream)
        with nogil:
            CHECK_CUDA(cuda.cuStreamSynchronize(stream), b"cuStreamSynchronize")
        if result != NULL:
            memcpy(result, out, size)
            self.amo_spare.append(<size_t> out)
        return 0

    cdef int unload_atomics(self) except -1:
        cdef CUmodule module = self.amo_module
        self.amo_module = NULL
        if module != NULL:
            CHECK_CUDA(cuda.cuModuleUnload(module), b"cuModuleUnload")
            for page in self.amo_pages:
                self.gpu.dealloc_pinned(<void *> <size_t> page)
        return 0

    cdef int add_amo_page(self) except -1:
        cdef char *page = <char *> self.gpu.alloc_pinned(self.ordinal, AMO_PAGE)
        cdef int i
        self.amo_pages.append(<size_t> page)
        self.amo_spare.extend([<size_t> (page + 8 * i) for i in range(AMO_PAGE // 8)])
        return 0

    def _begin_atomics(self):
        """Begin to load the atomic operations in a thread: a driver that has them yet to assemble takes a quarter of a second."""
        executor = ThreadPoolExecutor(1, "nvsym-atomics")
        loading = executor.submit(lambda: self.load_atomics())
        executor.shutdown(wait=False)
        return loading

    cdef int load_atomics(self) except -1:
        cdef CUmodule module = NULL
        cdef int registers = 0
        text = amo_kernels.ptx()
        cdef const char *image = text
        self.gpu.use(self.ordinal)
        with nogil:
            CHECK_CUDA(cuda.cuModuleLoadData(&module, image), b"cuModuleLoadData")
        for op, kind, size in amo_kernels.ENTRIES:
            name = amo_kernels.entry_name(op, kind, size).encode()
            CHECK_CUDA(cuda.cuModuleGetFunction(&self.amo[kind == "float"][<int> _AMO_NAMES.index(op)][size == 8], module,
                                                <const char *> name), b"cuModuleGetFunction")
            # As in load_functions: a lazy driver loads it now.
            CHECK_CUDA(cuda.cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS,
                                               self.amo[kind == "float"][<int> _AMO_NAMES.index(op)][size == 8]), b"cuFuncGetAttribute")
        self.amo_pages, self.amo_spare = [], []
        self.add_amo_page()
        self.amo_module = module
        return 0

    # ---- teams and collectives --------------------------------------------------------------------------------------

    cdef int not_limited(self, str what) except -1:
        if self.limited:
            raise NotAvailableError(f"{what}: {self.why_limited}")
        return 0

    cdef TeamData create_team(self, Agreement agreement, object pes, int my_pe):
        cdef NvshmemTeam team = NvshmemTeam.__new__(NvshmemTeam)
        cdef int n = len(pes)
        team.set_members(pes, my_pe)
        team.record.state = <void *> team
        if n == self.n_pes and list(pes) == list(range(n)):
            team.handle = NVSHMEM_TEAM_WORLD
        elif self.limited:
            team.handle = NVSHMEM_TEAM_INVALID      # a set of PEs all the same; its collectives raise
            return team
        else:
            team.handle = self._make_team(agreement, "a team", 0, n, my_pe)
        try:
            self._attach_kernels(agreement, team)
        except Exception:
            if agreement.broken is None:    # it failed for all members
                self.destroy_team(team)
            raise
        return team

    cdef nvshmem_team_t _make_team(self, Agreement agreement, str what, int group, int n, int index) except? -2:
        """NVSHMEM's team of those `n` PEs of the agreement that give the same group, of which this is number `index`."""
        cdef nvshmem_team_config_t config
        cdef nvshmemx_team_uniqueid_t identifier = 0
        cdef nvshmem_team_t handle = NVSHMEM_TEAM_INVALID
        cdef int status
        error = None
        try:
            if index == 0:
                CHECK_NVSHMEM(nvshmem.nvshmemx_team_get_uniqueid(&identifier), b"nvshmemx_team_get_uniqueid")
        except Exception as e:
            error = e
        agreement.vote(f"making the unique id of {what}", error)
        rows = agreement.gather((group, index, int(identifier)), f"sending the unique id of {what}")
        team_config_initializer(&config)
        config.uniqueid = next(row[2] for row in rows if row[:2] == (group, 0))
        try:
            self.gpu.use(self.ordinal)
            with nogil:
                status = nvshmem.nvshmemx_team_init(&handle, &config, NVSHMEM_TEAM_CONFIG_MASK_UNIQUEID, n, index)
            CHECK_NVSHMEM(status, b"nvshmemx_team_init")
            if handle == NVSHMEM_TEAM_INVALID:
                raise BackendError(f"NVSHMEM did not make {what} (NVSHMEM_MAX_TEAMS bounds their number)")
        except Exception as e:
            error = e
        agreement.vote(f"making {what}", error)
        return handle

    cdef int destroy_team(self, TeamData data) except -1:
        cdef NvshmemTeam team = <NvshmemTeam> data
        cdef nvshmem_team_t handle = NVSHMEM_TEAM_INVALID if team.handle == NVSHMEM_TEAM_WORLD else team.handle
        cdef nvshmem_team_t rail = team.rail
        team.handle = team.rail = NVSHMEM_TEAM_INVALID
        if not self.started or (team.kernels.slot < 0 and team.level.slot < 0 and rail == NVSHMEM_TEAM_INVALID
                                and handle == NVSHMEM_TEAM_INVALID):
            return 0
        self.gpu.drain_all(self.ordinal)    # the team's kernels use slots and memory that go with it
        if team.kernels.slot >= 0:
            self.kernels.detach(&team.kernels)
            self.exchange.detach(&team.exchange)
        if team.level.slot >= 0:
            self.kernels.free_slots.add(team.level.slot)
            self.exchange.detach(&team.level)
        with nogil:
            if rail != NVSHMEM_TEAM_INVALID:
                nvshmem.nvshmem_team_destroy(rail)
            if handle != NVSHMEM_TEAM_INVALID:
                nvshmem.nvshmem_team_destroy(handle)
        return 0

    cdef nvshmem_team_t handle_of(self, TeamData team, str what) except? -2:
        self.not_limited(what)
        self.gpu.use(self.ordinal)
        return (<NvshmemTeam> team).handle

    cdef int barrier(self, TeamData team, bint complete, void *stream) except -1:
        cdef nvshmem_team_t handle = (<NvshmemTeam> team).handle
        cdef int status = 0
        self.gpu.use(self.ordinal)
        if self.by_kernel(<NvshmemTeam> team):
            if complete and not (self.no_network and self.all_near):
                with nogil:
                    nvshmem.nvshmemx_quiet_on_stream(stream)
            self.exchange.barrier(&(<NvshmemTeam> team).exchange, stream)
            return self.gpu.mark(stream)
        if self.limited and self.gpu.capturing(stream):
            self.not_limited("a barrier in a CUDA graph")
        if handle == NVSHMEM_TEAM_WORLD:
            with nogil:
                if complete:
                    nvshmem.nvshmemx_barrier_all_on_stream(stream)
                else:
                    nvshmem.nvshmemx_sync_all_on_stream(stream)
        else:
            self.not_limited("barrier of a team" if complete else "sync of a team")
            with nogil:
                if complete:
                    status = nvshmem.nvshmemx_barrier_on_stream(handle, stream)
                else:
                    status = nvshmem.nvshmemx_team_sync_on_stream(handle, stream)
            CHECK_NVSHMEM(status, b"nvshmemx_barrier_on_stream" if complete else b"nvshmemx_team_sync_on_stream")
        return self.gpu.mark(stream)

    cdef bint by_kernel(self, NvshmemTeam team) except -1:
        """Whether the kernels of this team are to be used; raises where they have failed or cannot be loaded."""
        if team.exchange.slot < 0:
            return False
        self.check_kernels()
        return True

    cdef int move(self, NvshmemTeam team, Move kind, void *dest, const void *src, size_t nbytes, int root, void *stream) except -1:
        if nbytes == 0:
            return 0
        if not self.exchange.can_move():
            self.not_capturing()
            self.exchange.prepare_moves()
        self.gpu.use(self.ordinal)
        self.exchange.move(&team.exchange, &team.kernels, kind, dest, src, nbytes, root, stream)
        return self.gpu.mark(stream)

    cdef int not_capturing(self) except -1:
        if self.gpu.any_capturing():
            raise BackendError("the kernels of this call are not loaded yet, and cannot be during the capture of a CUDA graph; "
                               "make the call, or nvsym.warmup(), once before")
        return 0

    cdef int broadcast(self, TeamData team, int dtype, void *dest, const void *src, size_t nbytes, int root, void *stream,
                       object keep) except -1:
        cdef nvshmem_team_t handle
        cdef int status
        if self.by_kernel(<NvshmemTeam> team):
            return self.move(<NvshmemTeam> team, MOVE_BROADCAST, dest, src, nbytes, root, stream)
        handle = self.handle_of(team, "broadcast")
        with nogil:
            status = nvshmem.nvshmemx_broadcastmem_on_stream(handle, dest, src, nbytes, root, stream)
        CHECK_NVSHMEM(status, b"nvshmemx_broadcastmem_on_stream")
        return self.gpu.mark(stream)

    cdef int fcollect(self, TeamData team, int dtype, void *dest, const void *src, size_t nbytes, void *stream,
                      object keep) except -1:
        cdef nvshmem_team_t handle
        cdef int status
        if self.by_kernel(<NvshmemTeam> team):
            return self.move(<NvshmemTeam> team, MOVE_FCOLLECT, dest, src, nbytes, 0, stream)
        handle = self.handle_of(team, "fcollect")
        with nogil:
            status = nvshmem.nvshmemx_fcollectmem_on_stream(handle, dest, src, nbytes, stream)
        CHECK_NVSHMEM(status, b"nvshmemx_fcollectmem_on_stream")
        return self.gpu.mark(stream)

    cdef int alltoall(self, TeamData team, int dtype, void *dest, const void *src, size_t nbytes, void *stream,
                      object keep) except -1:
        cdef nvshmem_team_t handle
        cdef int status
        if self.by_kernel(<NvshmemTeam> team):
            return self.move(<NvshmemTeam> team, MOVE_ALLTOALL, dest, src, nbytes, 0, stream)
        handle = self.handle_of(team, "alltoall")
        with nogil:
            status = nvshmem.nvshmemx_alltoallmem_on_stream(handle, dest, src, nbytes, stream)
        CHECK_NVSHMEM(status, b"nvshmemx_alltoallmem_on_stream")
        return self.gpu.mark(stream)

    cdef int reduce(self, TeamData team, int dtype, int op, void *dest, const void *src, size_t count, int algorithm,
                    void *stream, object keep) except -1:
        cdef NvshmemTeam t = <NvshmemTeam> team
        cdef nvshmem_team_t handle = self.handle_of(team, "reduce")
        cdef int status
        cdef Kernel kernel
        cdef size_t nbytes
        if count == 0:
            return 0
        if algorithm == ALGO_MULTIMEM and t.n_pes > 1:
            return self.reduce_by_switch(t, dtype, op, <char *> dest, <char *> src, count, stream)
        if t.kernels.slot >= 0 and algorithm != ALGO_NVSHMEM and self.kernels.loaded(dtype, op):
            self.check_kernels()
            nbytes = count * SIZES[dtype]
            kernel = self.kernels.choose(&t.kernels, nbytes, dest == src)
            if algorithm == ALGO_TWO_SHOT:
                kernel = KERNEL_TWO_SHOT
            elif algorithm == ALGO_ONE_SHOT and kernel != KERNEL_LOW_LATENCY:
                kernel = KERNEL_PUSH if self.kernels.pushes(&t.kernels, nbytes) else KERNEL_ONE_SHOT
                if dest == src and kernel == KERNEL_ONE_SHOT:
                    raise ValueError(f"algorithm: 'one_shot' of {nbytes} bytes cannot be done in place; use 'two_shot' or 'auto'")
            self.kernels.launch(&t.kernels, kernel, dtype, op, dest, src, count, SIZES[dtype], stream)
            return self.gpu.mark(stream)
        if t.level.slot >= 0 and algorithm == ALGO_AUTO and self.has_kernel(dtype, op):
            return self.reduce_by_levels(t, dtype, op, <char *> dest, <const char *> src, count, stream)
        self.check_without_kernels(team, dtype, op, algorithm)
        if nvshmem.reduce_on_stream[dtype][op] == NULL or (t.n_pes == 1 and algorithm == ALGO_AUTO):
            return self.copy_own(dest, src, count * SIZES[dtype], stream)
        with nogil:
            status = nvshmem.reduce_on_stream[dtype][op](handle, dest, src, count, stream)
        CHECK_NVSHMEM(status, b"nvshmemx_reduce_on_stream")
        return self.gpu.mark(stream)

    cdef int copy_own(self, void *dest, const void *src, size_t nbytes, void *stream) except -1:
        """What a collective of one PE does."""
        if dest != src:
            if nbytes <= self.puts.put_up_to and self.puts.ready():
                self.puts.put(dest, src, nbytes, stream)
            else:
                CHECK_CUDA(cuda.cuMemcpyAsync(<CUdeviceptr> dest, <CUdeviceptr> src, nbytes, stream), b"cuMemcpyAsync")
        return self.gpu.mark(stream)

    cdef int check_without_kernels(self, TeamData team, int dtype, int op, int algorithm) except -1:
        """That NVSHMEM can do what a team without kernels for it is asked for; one PE alone needs neither."""
        if team.n_pes == 1:
            return 0
        if algorithm == ALGO_ONE_SHOT or algorithm == ALGO_TWO_SHOT:
            raise ValueError(f"algorithm: {ALGORITHMS[algorithm]!r} needs members that address each other's memory, and a place "
                             "for the team's kernels; use 'auto'")
        if nvshmem.reduce_on_stream[dtype][op] == NULL:
            raise TypeError(f"op: NVSHMEM has no {OPS[op].name} reduction of {DTYPES[dtype].name}, and the team has no kernels")
        return 0

    cdef int reducescatter(self, TeamData team, int dtype, int op, void *dest, const void *src, size_t count,
                           void *stream, object keep) except -1:
        cdef NvshmemTeam t = <NvshmemTeam> team
        cdef nvshmem_team_t handle
        cdef int status
        if count == 0:
            return 0
        if self.exchange is not None and self.exchange.can_scatter(dtype, op) and self.by_kernel(t):
            self.gpu.use(self.ordinal)
            self.exchange.scatter(&t.exchange, &t.kernels, dtype, op, dest, src, count, SIZES[dtype], stream)
            return self.gpu.mark(stream)
        handle = self.handle_of(team, "reducescatter")
        if nvshmem.reducescatter_on_stream[dtype][op] == NULL:
            if team.n_pes > 1:
                raise TypeError(f"op: NVSHMEM has no {OPS[op].name} reducescatter of {DTYPES[dtype].name}, and the team has no "
                                "kernels")
            return self.copy_own(dest, src, count * SIZES[dtype], stream)
        with nogil:
            status = nvshmem.reducescatter_on_stream[dtype][op](handle, dest, src, count, stream)
        CHECK_NVSHMEM(status, b"nvshmemx_reducescatter_on_stream")
        return self.gpu.mark(stream)

    cdef object why_no_multimem(self, TeamData team, int dtype, int op):
        if self.kernels is None:
            return self.why_no_kernels
        if (<NvshmemTeam> team).exchange.slot < 0:
            return "the members of the team cannot all address each other's memory, or no place is left for the team's kernels"
        reason = self.exchange.why_no_multimem(dtype, op)
        if reason is None and self.exchange.switched[dtype][op] == NULL:
            self.not_capturing()
            self.exchange.prepare_multimem(dtype, op)
        return reason

    cdef int reduce_multicast(self, TeamData team, int dtype, int op, void *dest, const void *src, size_t count,
                              const int64_t *delta, int64_t multicast, void *stream, object keep) except -1:
        cdef NvshmemTeam t = <NvshmemTeam> team
        cdef Distances distances
        cdef int i
        if count == 0 or not self.by_kernel(t):
            return 0
        for i in range(t.n_pes):
            distances.delta[i] = delta[i]
        distances.multicast = multicast
        self.gpu.use(self.ordinal)
        self.exchange.multimem(&t.exchange, &t.kernels, dtype, op, dest, src, count, SIZES[dtype], &distances, stream)
        self.gpu.mark(stream)
        return self.gpu.keep_until(stream, keep)

    cdef int reduce_by_switch(self, NvshmemTeam team, int dtype, int op, char *dest, char *src, size_t count, void *stream) except -1:
        """By the multicast address that NVSHMEM has for the symmetric heap."""
        cdef char *to = <char *> self.multicast_ptr(team, dest)
        cdef char *source = <char *> self.multicast_ptr(team, src)
        if to == NULL or source == NULL or to - dest != source - src or team.exchange.slot < 0:
            raise ValueError("algorithm: 'multimem' needs a team that has a multicast address and a place for its kernels; use 'auto'")
        return self.reduce_multicast(team, dtype, op, dest, src, count, team.kernels.args.delta, to - dest, stream, None)

    cdef bint has_kernel(self, int dtype, int op) except -1:
        return self.kernels is not None and DTYPES[dtype].name in kernel_compiler.TYPES and (dtype, op) in REDUCIBLE

    cdef object why_no_reducescatter(self, int dtype, int op):
        if self.has_kernel(dtype, op):
            if not self.exchange.can_scatter(dtype, op):
                self.not_capturing()
                self.exchange.prepare_scatter(dtype, op)
            return None
        if nvshmem.reducescatter_on_stream[dtype][op] == NULL:
            return f"NVSHMEM has no {OPS[op].name} reducescatter of {DTYPES[dtype].name}"
        return None

    cdef object why_no_reduce(self, int dtype, int op, int algorithm):
        if algorithm == ALGO_MPI:
            return "the data is in GPU memory"
        if algorithm == ALGO_MULTIMEM:
            if self.no_multicast is not None:
                return f"the symmetric heap has no multicast address: {self.no_multicast}; a SymmetricPool may have one"
            if self.kernels is None:
                return self.why_no_kernels
            reason = self.exchange.why_no_multimem(dtype, op)
            if reason is None and self.exchange.switched[dtype][op] == NULL:
                self.not_capturing()
                self.exchange.prepare_multimem(dtype, op)
            return reason
        if algorithm != ALGO_NVSHMEM and self.has_kernel(dtype, op):
            if not self.kernels.loaded(dtype, op):
                self.not_capturing()
                self.kernels.prepare(dtype, op)
            return None
        if algorithm == ALGO_ONE_SHOT or algorithm == ALGO_TWO_SHOT:
            return self.why_no_kernels or f"there is no kernel for {OPS[op].name} of {DTYPES[dtype].name}"
        if nvshmem.reduce_on_stream[dtype][op] == NULL:
            return f"NVSHMEM has no {OPS[op].name} reduction of {DTYPES[dtype].name}"
        return None

    cdef int functions(self, Functions *f) except -1:
        f.ctx = <void *> self
        f.direct.n_pes, f.direct.my_pe = self.n_pes, self.my_pe     # in reach of the host's instructions is nobody: it is GPU memory
        f.symmetric, f.peer_ptr = c_symmetric, c_peer_ptr
        f.put, f.get, f.put_signal, f.signal_op, f.signal_wait = c_put, c_get, c_put_signal, c_signal_op, c_signal_wait
        f.quiet, f.barrier, f.reduce, f.fail_reduce = c_quiet, c_barrier, c_reduce, c_fail_reduce
        return 0

    cdef tuple explain_reduce(self, TeamData team, int dtype, int op, size_t count, int algorithm, bint in_place):
        cdef NvshmemTeam t = <NvshmemTeam> team
        cdef size_t nbytes = count * SIZES[dtype]
        thresholds = {}
        if count == 0:
            return "none", "there is nothing to reduce", thresholds
        if team.n_pes == 1:
            return "copy", "the team has one PE", thresholds
        if algorithm == ALGO_NVSHMEM or algorithm == ALGO_MULTIMEM:
            return ALGORITHMS[algorithm], "it was asked for", thresholds
        if t.level.slot >= 0 and algorithm == ALGO_AUTO and self.has_kernel(dtype, op):
            reason = f"the members are on {t.level_nodes} nodes: by kernels inside a node, and by NVSHMEM between them"
            return "two_level", reason, {"two_level": "always"}
        if t.kernels.slot < 0 or not self.has_kernel(dtype, op):
            if not self.has_kernel(dtype, op):
                reason = self.why_no_kernels or f"there is no kernel for {OPS[op].name} of {DTYPES[dtype].name}"
            elif self._can_reach(t.members):
                reason = "no place is left for another team's kernels"
            else:
                reason = "not all members can address each other's memory"
            self.check_without_kernels(team, dtype, op, algorithm)
            return "nvshmem", reason, thresholds
        name, reason, thresholds = self.kernels.explain(&t.kernels, nbytes, in_place)
        if algorithm == ALGO_TWO_SHOT:
            return "two_shot", "it was asked for", thresholds
        if algorithm == ALGO_ONE_SHOT:
            if name == "low_latency" or self.kernels.pushes(&t.kernels, nbytes):
                reason = "one_shot was asked for, and this is a form of it without barriers"
                return "low_latency" if name == "low_latency" else "push", reason, thresholds
            if in_place:
                raise ValueError(f"algorithm: 'one_shot' of {nbytes} bytes cannot be done in place; use 'two_shot' or 'auto'")
            return "one_shot", "it was asked for", thresholds
        return name, reason, thresholds

    cdef double warm_up(self, object dtypes, object ops) except -1.0:
        start = time.perf_counter()
        if self.kernels is not None:
            self.puts.ready()
            self.exchange.prepare_moves()
            for dtype in dtypes:
                for op in ops:
                    if self.has_kernel(dtype.id, op.id):
                        self.kernels.prepare(dtype.id, op.id)
                        self.exchange.prepare_scatter(dtype.id, op.id)
        return time.perf_counter() - start

    cdef int fail(self, TeamData team, int kind, int algorithm, str reason, void *stream) except -1:
        return 0    # the others have enqueued their part already


_NO_MPS = ("PEs share a GPU without MPS, where NVSHMEM has no collectives but barrier_all and sync_all, no teams of its own and "
           "no wait for signals. Start MPS (nvidia-cuda-mps-control -d) with CUDA_MPS_ACTIVE_THREAD_PERCENTAGE of at most 100 "
           "divided by the PEs on a GPU, or give each PE a GPU")

_MPS_SHARES = ("PEs share a GPU under MPS, but their CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is not set or adds up to more than 100; "
               "NVSHMEM then has no collectives but barrier_all and sync_all, no teams of its own and no wait for signals. Set "
               "it to at most 100 divided by the PEs on a GPU, or give each PE a GPU")


def _abort(agreement, reason):
    """At the end of a process whose job is half made: the others could not end by themselves."""
    sys.stdout.flush()
    print(f"nvsym: PE {agreement.rank} of {agreement.size} aborts the job, of which a PE is still inside NVSHMEM's "
          f"initialisation: {reason}", file=sys.stderr, flush=True)
    time.sleep(0.05)    # the launcher forwards what was printed before it ends the others
    agreement.comm.Abort(1)


def _remote_device(row, int pe):
    """The device of another PE, as it is seen from here: the same GPU under any number, or one of another process."""
    cdef Device device = Device.__new__(Device)
    device.runtime = get_cuda_runtime()
    device.pe = pe
    device.ordinal = row[5]
    device.foreign = True
    device.uuid = row[3]
    device.name = row[4]
    device.dlpack_type = 2
    return device


# ---- the C interface: Functions of backend.pxd ----------------------------------------------------------------------
#
# What has to be done with Python's objects, on a stream or in a thread that is new to nvsym or where NVSHMEM needs to be kept from
# a call, is done by the backend's methods, with the GIL. Otherwise a call needs none.


cdef inline NvshmemBackend backend_of(void *ctx):
    return <NvshmemBackend> ctx


cdef inline bint ready(void *ctx, void **stream) noexcept nogil:
    """Whether NVSHMEM can be called straight away, in this thread."""
    if stream[0] == NULL:
        stream[0] = (<NvshmemBackend> ctx).main
    return (<NvshmemBackend> ctx).gpu.using((<NvshmemBackend> ctx).ordinal)


cdef inline int done(void *ctx, void *stream, Status *status) noexcept nogil:
    """Note that work was enqueued."""
    if (<NvshmemBackend> ctx).gpu.marked(stream):
        return 0
    return mark(ctx, stream, status)


cdef int mark(void *ctx, void *stream, Status *status) noexcept with gil:
    try:
        return backend_of(ctx).gpu.mark(stream)
    except BaseException as error:
        status_of(status, error)
        return -1


cdef int use(void *ctx, Status *status) noexcept with gil:
    try:
        return backend_of(ctx).gpu.use(backend_of(ctx).ordinal)
    except BaseException as error:
        status_of(status, error)
        return -1


cdef bint c_symmetric(void *ctx, const void *ptr, size_t nbytes) noexcept nogil:
    cdef int i
    cdef size_t offset
    for i in range((<NvshmemBackend> ctx).n_spans):
        offset = <size_t> ptr - (<NvshmemBackend> ctx).spans[i].start    # of an address below it: a large one
        if offset <= (<NvshmemBackend> ctx).spans[i].nbytes and nbytes <= (<NvshmemBackend> ctx).spans[i].nbytes - offset:
            return True
    return False


cdef void *c_peer_ptr(void *ctx, const void *ptr, int pe) noexcept nogil:
    return nvshmem.nvshmem_ptr(ptr, pe)


cdef int c_put(void *ctx, void *dest, const void *src, size_t nbytes, int pe, void *stream, Status *status) noexcept nogil:
    if not ready(ctx, &stream) and use(ctx, status):
        return -1
    nvshmem.nvshmemx_putmem_on_stream(dest, src, nbytes, pe, stream)
    return done(ctx, stream, status)


cdef int c_get(void *ctx, void *dest, const void *src, size_t nbytes, int pe, void *stream, Status *status) noexcept nogil:
    if not ready(ctx, &stream) and use(ctx, status):
        return -1
    nvshmem.nvshmemx_getmem_on_stream(dest, src, nbytes, pe, stream)
    return done(ctx, stream, status)


cdef int c_put_signal(void *ctx, void *dest, const void *src, size_t nbytes, uint64_t *sig, uint64_t value, int op, int pe,
                      void *stream, Status *status) noexcept nogil:
    if not ready(ctx, &stream) and use(ctx, status):
        return -1
    if (<NvshmemBackend> ctx).fences(stream):
        return put_with_signal(ctx, dest, src, nbytes, sig, value, op, pe, stream, status)
    nvshmem.nvshmemx_putmem_signal_on_stream(dest, src, nbytes, sig, value, op, pe, stream)
    return done(ctx, stream, status)


cdef int put_with_signal(void *ctx, void *dest, const void *src, size_t nbytes, uint64_t *sig, uint64_t value, int op, int pe,
                         void *stream, Status *status) noexcept with gil:
    try:
        return backend_of(ctx).put_signal(dest, src, nbytes, sig, value, op, pe, stream, None)
    except BaseException as error:
        status_of(status, error)
        return -1


cdef int c_signal_op(void *ctx, uint64_t *sig, uint64_t value, int op, int pe, void *stream, Status *status) noexcept nogil:
    if not ready(ctx, &stream) and use(ctx, status):
        return -1
    if (<NvshmemBackend> ctx).fences(stream):
        return signal(ctx, sig, value, op, pe, stream, status)
    nvshmem.nvshmemx_signal_op_on_stream(sig, value, op, pe, stream)
    return done(ctx, stream, status)


cdef int signal(void *ctx, uint64_t *sig, uint64_t value, int op, int pe, void *stream, Status *status) noexcept with gil:
    try:
        return backend_of(ctx).signal_op(sig, value, op, pe, stream, None)
    except BaseException as error:
        status_of(status, error)
        return -1


cdef int c_signal_wait(void *ctx, uint64_t *sig, int cmp, uint64_t value, void *stream, Status *status) noexcept nogil:
    if not ready(ctx, &stream) and use(ctx, status):
        return -1
    if (<NvshmemBackend> ctx).limited:
        return refuse(ctx, b"signal_wait_until", status)
    nvshmem.nvshmemx_signal_wait_until_on_stream(sig, cmp, value, stream)
    return done(ctx, stream, status)


cdef int refuse(void *ctx, const char *what, Status *status) noexcept with gil:
    try:
        backend_of(ctx).not_limited((<bytes> what).decode())
        return 0
    except BaseException as error:
        status_of(status, error)
        return -1


cdef int c_quiet(void *ctx, void *stream, Status *status) noexcept nogil:
    if not ready(ctx, &stream) and use(ctx, status):
        return -1
    if (<NvshmemBackend> ctx).fences(stream):
        return fence(ctx, stream, status)
    nvshmem.nvshmemx_quiet_on_stream(stream)
    return done(ctx, stream, status)


cdef int fence(void *ctx, void *stream, Status *status) noexcept with gil:
    try:
        return backend_of(ctx).quiet(stream)
    except BaseException as error:
        status_of(status, error)
        return -1


cdef int c_barrier(void *ctx, nvsym_team_t team, bint complete, void *stream, Status *status) noexcept nogil:
    ready(ctx, &stream)
    return barrier(ctx, team.state, complete, stream, status)


cdef int barrier(void *ctx, void *team, bint complete, void *stream, Status *status) noexcept with gil:
    try:
        return backend_of(ctx).barrier(<NvshmemTeam> team, complete, stream)
    except BaseException as error:
        status_of(status, error)
        return -1


cdef int c_reduce(void *ctx, nvsym_team_t team, int dtype, int op, void *dest, const void *src, size_t count, int algorithm,
                  void *stream, Status *status) noexcept nogil:
    ready(ctx, &stream)
    return reduce(ctx, team.state, dtype, op, dest, src, count, algorithm, stream, status)


cdef int reduce(void *ctx, void *team, int dtype, int op, void *dest, const void *src, size_t count, int algorithm, void *stream,
                Status *status) noexcept with gil:
    cdef NvshmemBackend backend = backend_of(ctx)
    try:
        reason = backend.why_no_reduce(dtype, op, algorithm)
        if reason is not None:
            raise ValueError(reason)
        return backend.reduce(<NvshmemTeam> team, dtype, op, dest, src, count, algorithm, stream, None)
    except BaseException as error:
        status_of(status, error)
        return -1


cdef void c_fail_reduce(void *ctx, nvsym_team_t team, int algorithm, void *stream, const Status *status) noexcept nogil:
    pass    # the others have enqueued their part already
