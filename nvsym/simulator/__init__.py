# SPDX-License-Identifier: Apache-2.0
"""A CUDA driver and an NVSHMEM that run on the CPU, for tests of multi-GPU code on machines without GPUs.

They are shared libraries, which nvsym opens where ``NVSYM_LIBCUDA`` and ``NVSYM_LIBNVSHMEM`` name them: `environment` gives
these settings, ``python -m nvsym simulate`` runs a program with them. The functions here ask and tell the simulator in the
calling process; docs/simulator.md describes its settings and what it checks.
"""

import contextlib
import ctypes
import difflib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..errors import BackendError, NotAvailableError

__all__ = [
    "SETTINGS",
    "Call",
    "Counters",
    "call_counts",
    "calls",
    "configure",
    "counters",
    "deferred",
    "environment",
    "fail",
    "fence",
    "fence_alias",
    "is_active",
    "last_violation",
    "ld_reduce",
    "library_path",
    "load",
    "multimem_red",
    "multimem_st",
    "place",
    "read_log",
    "store",
]

_LIBRARIES = Path(__file__).resolve().parent / "lib"

# What the libraries read, NVSYM_SIM_ and one of these; docs/simulator.md says what each means.
SETTINGS = frozenset((
    "ABORT", "ATTR", "BLOCK_LIMIT", "CLIQUE", "DEVICES", "DRIVER", "FABRIC_CLUSTER", "FABRIC_STATE",
    "FABRIC_STATUS", "FAIL", "FREE", "GRANULARITY", "HEAP_GRANULE", "IMEX", "INITIALIZED", "LATE",
    "LATE_IMPORT", "LOG", "MEMORY", "MPS", "NODE", "NODES", "NVLINKS", "NVML", "NVSHMEM", "PE", "PEERS",
    "PES", "SLOTS",
))  # fmt: skip


def library_path(name: str = "libcuda.so.1") -> str:
    """The file of a simulated library: ``"libcuda.so.1"``, ``"libnvshmem_host.so.3"`` or ``"nvml/libnvidia-ml.so.1"``."""
    return str(_LIBRARIES / name)


def environment(devices: int | str | None = None, *, by_name: bool = False, **settings: object) -> dict[str, str]:
    """The environment variables of a process on the simulator.

    Parameters
    ----------
    devices : int, optional
        GPUs of the simulated node.
    by_name : bool
        Whether programs that open ``libcuda.so.1`` by its name (cuda-bindings) find the simulated one, too.
    **settings
        Others, without their prefix: ``late=0.01`` for ``NVSYM_SIM_LATE=0.01``.

    Returns
    -------
    dict of str

    Raises
    ------
    ValueError
        For a setting that does not exist.
    """
    more = {name.upper(): str(int(value) if isinstance(value, bool) else value) for name, value in settings.items()}
    for name in more.keys() - SETTINGS:
        near = difflib.get_close_matches(name, SETTINGS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(SETTINGS))}"
        raise ValueError(f"the simulator has no setting {name}; {hint}")
    # nvidia-ml-py, which asks for the state of the NVLink fabric, opens its library by name.
    folders = [str(_LIBRARIES / "nvml"), *([str(_LIBRARIES)] if by_name else []), os.environ.get("LD_LIBRARY_PATH")]
    found = {
        "NVSYM_LIBCUDA": library_path("libcuda.so.1"),
        "NVSYM_LIBNVSHMEM": library_path("libnvshmem_host.so.3"),
        "LD_LIBRARY_PATH": ":".join(filter(None, folders)),
    }
    if devices is not None:
        found["NVSYM_SIM_DEVICES"] = str(devices)
    return found | {f"NVSYM_SIM_{name}": value for name, value in more.items()}


@dataclass(frozen=True, slots=True)
class Counters:
    """What exists in the simulated driver, in this process.

    Attributes
    ----------
    memory_handles, multicast_handles : int
        References by handles: one for each create, import and retain that was not released.
    memory_objects, multicast_objects : int
        What these handles and the mappings keep.
    reservations, mappings, binds : int
    descriptors : int
        File descriptors that the simulator itself holds.
    contexts, device_allocations, host_allocations, registrations, streams, events, graphs, modules : int
    violations : int
        Calls that broke a rule of the driver, so far; nearly all of them are refused.
    misuses : int
        Calls whose effect the driver leaves undefined, so far.
    injected : int
        Failures and delays of the plan that have come true, so far.
    """

    memory_handles: int
    multicast_handles: int
    memory_objects: int
    multicast_objects: int
    reservations: int
    mappings: int
    binds: int
    descriptors: int
    contexts: int
    device_allocations: int
    host_allocations: int
    registrations: int
    streams: int
    events: int
    graphs: int
    modules: int
    violations: int
    misuses: int
    injected: int

    def memory(self) -> tuple[int, ...]:
        """The counts of memory: what must be as before when an allocation has failed or was given back.

        Returns
        -------
        tuple of int
        """
        return tuple(getattr(self, field.name) for field in fields(self)[:8])


class _Counters(ctypes.Structure):
    _fields_ = tuple((field.name, ctypes.c_uint64) for field in fields(Counters))


@functools.cache
def _library():
    # The one that the process uses, which may be another build of it.
    library = ctypes.CDLL(os.environ.get("NVSYM_LIBCUDA") or library_path())
    if not hasattr(library, "nvsym_sim_version"):
        raise NotAvailableError(f"NVSYM_LIBCUDA={os.environ['NVSYM_LIBCUDA']} is not the simulated driver")
    library.nvsym_sim_fail.argtypes = (ctypes.c_char_p,)
    library.nvsym_sim_counters.argtypes = (ctypes.POINTER(_Counters),)
    library.nvsym_sim_counters.restype = None
    library.nvsym_sim_calls.argtypes = (ctypes.c_char_p,)
    library.nvsym_sim_calls.restype = ctypes.c_uint64
    for words in (
        library.nvsym_sim_call_names,
        library.nvsym_sim_last_violation,
        library.nvsym_sim_plan_refusal,
    ):
        words.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
        words.restype = ctypes.c_size_t
    library.nvsym_sim_set.argtypes = (ctypes.c_char_p, ctypes.c_double)
    library.nvsym_sim_place.argtypes = (ctypes.POINTER(ctypes.c_int),) * 4
    library.nvsym_sim_place.restype = None
    number, address, text, size, data = ctypes.c_int, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p
    library.nvsym_sim_ld_reduce.argtypes = (number, address, text, text, number, number, size, data)
    library.nvsym_sim_multimem_st.argtypes = (number, address, text, number, number, size, data)
    library.nvsym_sim_multimem_red.argtypes = (number, address, text, text, number, number, size, data)
    library.nvsym_sim_load.argtypes = (number, address, number, number, size, data)
    library.nvsym_sim_store.argtypes = (number, address, number, number, size, data)
    library.nvsym_sim_deferred.argtypes = (number,)
    for nothing in (library.nvsym_sim_deferred, library.nvsym_sim_fence, library.nvsym_sim_fence_alias):
        nothing.restype = None
    return library


def is_active() -> bool:
    """Whether this process uses the simulated driver."""
    from .. import _driver

    return _driver.is_loaded() and _driver.is_simulated()


def fail(plan: str = "") -> None:
    """Replace this process's plan of failures; without one, end it.

    Parameters
    ----------
    plan : str
        ``"FUNCTION:WHICH:ACTION@peN"``, several by semicolons. WHICH of the calls from now on: ``2``, ``2-4``, ``3+`` or ``*``.
        ACTION: a status, which the call returns without an effect; ``delay=0.5``, seconds before the call; ``exit``; ``kill``.
        Without ``@peN`` it holds on every PE.

    Raises
    ------
    ValueError
        If it cannot be read, or names a function or a PE that does not exist; the plan is then as it was.
    """
    if _library().nvsym_sim_fail(plan.encode()) != 0:
        why = _text(_library().nvsym_sim_plan_refusal)
        raise ValueError(f"plan: {plan!r} cannot be read: {why}; write such as 'cuMemCreate:2:802@pe1'")


def counters() -> Counters:
    """What exists now, as `Counters`."""
    found = _Counters()
    _library().nvsym_sim_counters(ctypes.byref(found))
    return Counters(*(getattr(found, field.name) for field in fields(Counters)))


def calls(name: str) -> int:
    """How often this process has called a function of the driver, by its name in C without ``_v2``."""
    return _library().nvsym_sim_calls(name.encode())


def _text(function) -> str:
    size = function(None, 0) + 4096
    buffer = ctypes.create_string_buffer(size)
    function(buffer, size)
    return buffer.value.decode()


def call_counts() -> dict[str, int]:
    """The functions of the driver that this process has called, with how often, as a dict."""
    rows = (line.split() for line in _text(_library().nvsym_sim_call_names).splitlines())
    return {name: int(count) for name, count in rows}


def last_violation() -> str:
    """The rule that a call of this process broke last, in words; empty where none did."""
    return _text(_library().nvsym_sim_last_violation)


def configure(**settings: float) -> None:
    """Change settings of the simulator in this process.

    Parameters
    ----------
    **settings : float
        ``late`` and ``block_limit`` (seconds), ``slots``, ``imex`` (-1: no channel), ``clique``, ``late_import_empty``, ``node``,
        ``peers``: as the environment variables of these names.

    Raises
    ------
    ValueError
        For another name, or a negative value.
    """
    for name, value in settings.items():
        status = _library().nvsym_sim_set(name.encode(), float(value))
        if status == -2:
            raise ValueError(f"{name}: {value!r} is no value of this setting; a number from 0 on is needed")
        if status != 0:
            raise ValueError(f"{name}: no setting of the simulator that can be changed")


def place() -> tuple[int, int, int, int]:
    """(PE, number of PEs, node, number of nodes), as the simulator takes them from the launcher's environment."""
    pe, n_pes, node, nodes = values = [ctypes.c_int() for _ in range(4)]
    _library().nvsym_sim_place(*map(ctypes.byref, values))
    return pe.value, n_pes.value, node.value, nodes.value


@dataclass(frozen=True, slots=True)
class Call:
    """A line of the call log.

    Attributes
    ----------
    began, ended : float
        Seconds of the machine's monotonic clock, the same for all processes.
    thread : int
    name : str
    status : int
    arguments : str
    note : str
        The rule that it broke, or ``"injected"``; else empty.
    """

    began: float
    ended: float
    thread: int
    name: str
    status: int
    arguments: str
    note: str


def read_log(path: str | os.PathLike[str]) -> list[Call]:
    """The calls in a file that ``NVSYM_SIM_LOG`` made, as a list of `Call`."""
    found = []
    for line in Path(path).read_text().splitlines():
        text, _, note = line.partition(" # ")
        began, ended, thread, name, status, *arguments = text.split(" ", 5)
        found.append(
            Call(float(began), float(ended), int(thread), name, int(status), " ".join(arguments).strip(), note.strip())
        )
    return found


#  Instructions, from the host  ----------------------------------------------------------------------------------------

_ORDERS = {"weak": 0, "relaxed": 1, "acquire": 2, "release": 3}
_TYPES = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f16x2": np.float16,
    "bf16x2": ml_dtypes.bfloat16,
    "u32": np.uint32,
    "s32": np.int32,
    "u64": np.uint64,
    "s64": np.int64,
    "b32": np.uint32,
    "b64": np.uint64,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3x2": ml_dtypes.float8_e4m3fn,
    "e5m2x2": ml_dtypes.float8_e5m2,
    "e4m3x4": ml_dtypes.float8_e4m3fn,
    "e5m2x4": ml_dtypes.float8_e5m2,
}


def _order(order):
    if order not in _ORDERS:
        raise ValueError(f"order: {order!r} is none of {', '.join(_ORDERS)}")
    return _ORDERS[order]


def _element(type_):
    if type_ not in _TYPES:
        raise ValueError(f"type_: {type_!r} is none of {', '.join(_TYPES)}")
    return np.dtype(_TYPES[type_])


def _instructions(type_, vector, n):
    """How many instructions `n` elements take."""
    each = vector * int(type_.partition("x")[2] or 1)
    if n % each:
        raise ValueError(f"{n} elements: .v{vector}.{type_} moves {each} at a time")
    return n // each


def _check(status):
    if status != 0:
        raise BackendError(f"{last_violation()} (status {status})")


def ld_reduce(
    device: int, address: int, type_: str, op: str, n: int, *, vector: int = 1, order: str = "relaxed"
) -> npt.NDArray[Any]:
    """``multimem.ld_reduce``: what the members of a team hold at a multicast address, reduced.

    Parameters
    ----------
    device : int
        The GPU that runs it, by its number in this process.
    address : int
        A multicast address, aligned to the access.
    type_, op : str
        As in PTX: ``"f32"``, ``"bf16x2"``, ``"u64"``; ``"add"``, ``"min"``, ``"max"``, ``"and"``, ``"or"``, ``"xor"``.
    n : int
        Elements, by as many instructions as they take.
    vector : int
        1, 2, 4 or 8: ``.v4``.
    order : str
        ``"weak"``, ``"relaxed"`` or ``"acquire"``, at system scope.

    Returns
    -------
    numpy.ndarray

    Raises
    ------
    BackendError
        Naming the rule that is broken: no such form, no right to the address, memory that is not bound, alignment.
    """
    out = np.empty(n, _element(type_))
    count = _instructions(type_, vector, n)
    status = _library().nvsym_sim_ld_reduce(
        device, address, type_.encode(), op.encode(), vector, _order(order), count, out.ctypes.data
    )
    _check(status)
    return out


def multimem_st(
    device: int, address: int, type_: str, values: npt.ArrayLike, *, vector: int = 1, order: str = "relaxed"
) -> None:
    """``multimem.st``: stores values at a multicast address, into the memory of all members. As for `ld_reduce`.

    Parameters
    ----------
    order : str
        ``"weak"``, ``"relaxed"`` or ``"release"``.
    """
    values = np.ascontiguousarray(values, _element(type_))
    count = _instructions(type_, vector, values.size)
    _check(
        _library().nvsym_sim_multimem_st(
            device, address, type_.encode(), vector, _order(order), count, values.ctypes.data
        )
    )


def multimem_red(
    device: int, address: int, type_: str, op: str, values: npt.ArrayLike, *, vector: int = 1, order: str = "relaxed"
) -> None:
    """``multimem.red``: combines values with what each member holds at a multicast address. As for `ld_reduce`.

    Parameters
    ----------
    order : str
        ``"relaxed"`` or ``"release"``.
    """
    values = np.ascontiguousarray(values, _element(type_))
    count = _instructions(type_, vector, values.size)
    _check(
        _library().nvsym_sim_multimem_red(
            device, address, type_.encode(), op.encode(), vector, _order(order), count, values.ctypes.data
        )
    )


def load(device: int, address: int, dtype: npt.DTypeLike, n: int = 1, *, order: str = "weak") -> npt.NDArray[Any]:
    """An ordinary load through the address of an allocation or of another device's memory.

    Parameters
    ----------
    device, address : int
    dtype : dtype
        1, 2, 4 or 8 bytes long.
    n : int
    order : str
        ``"weak"``, ``"relaxed"`` or ``"acquire"``.

    Returns
    -------
    numpy.ndarray
    """
    out = np.empty(n, dtype)
    _check(_library().nvsym_sim_load(device, address, out.itemsize, _order(order), n, out.ctypes.data))
    return out


def store(device: int, address: int, values: npt.ArrayLike, *, order: str = "weak") -> None:
    """An ordinary store; `values` is an array of elements of 1, 2, 4 or 8 bytes. As for `load`; the orders are those of `multimem_st`."""
    values = np.ascontiguousarray(values)
    _check(_library().nvsym_sim_store(device, address, values.itemsize, _order(order), values.size, values.ctypes.data))


def fence() -> None:
    """``fence.acq_rel.sys``."""
    _library().nvsym_sim_fence()


def fence_alias() -> None:
    """``fence.proxy.alias``: between accesses to one place through its multicast address and through the other."""
    _library().nvsym_sim_fence_alias()


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """What the calling thread does inside, as one block of a kernel, sees memory as weakly as a GPU may show it.

    Stores wait, the newest of them comes first, until a release or a fence; weak loads, and `ld_reduce` that does not acquire, see
    memory as at the thread's last acquire or fence. A protocol that lacks a release or an acquire computes wrong results.
    The memory must stay bound and mapped inside.
    """
    _library().nvsym_sim_deferred(1)
    try:
        yield
    finally:
        _library().nvsym_sim_deferred(0)
