# SPDX-License-Identifier: Apache-2.0
"""What each GPU offers for multicast, and what several of them therefore can do together.

A driver that says that a GPU supports multicast does not say that it can be used: without a working fabric manager the first
object fails, and may take the GPUs with it. So the state of the fabric has to be known, and good, too.
"""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import _driver, _nvml, _settings
from .errors import NVSymError
from .multicast import attributes

__all__ = [
    "DISABLED",
    "DeviceFacts",
    "Transport",
    "facts_of",
    "has_ended",
    "pool_capability",
    "socket_folder",
    "transport_of",
    "why_unsupported",
]

DISABLED = "disabled by "

# CUdevice_attribute
_VIRTUAL_MEMORY, _POSIX, _FABRIC, _MULTICAST = 102, 103, 128, 132

_FUNCTIONS = (
    "cuMulticastCreate",
    "cuMulticastAddDevice",
    "cuMulticastBindMem",
    "cuMulticastUnbind",
    "cuMulticastGetGranularity",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
)


def _new_mark():
    return int.from_bytes(os.urandom(4), "big")


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One GPU, as the process that owns it sees it; travels between PEs."""

    name: str  # in messages: "PE 1 on n0, GPU 0 (NVIDIA H200)"
    host: str
    uuid: str
    switch: str | None  # the environment variable that forbids multicast
    problem: str | None = None  # why this GPU cannot take part, whatever the others are
    posix: bool = False
    fabric: _nvml.FabricInfo | None = None
    can_fabric: bool = False
    boot: str = ""  # identity of the machine, of the folder for sockets in it, and of the user
    place: tuple[int, int] = (0, 0)
    uid: int = 0
    node: int = 0
    process: tuple[int, int, int] = (0, 0, 0)  # number, time of its start, namespace of the number
    # Drawn anew whenever the facts are gathered: that of a job's begin is no other job's.
    mark: int = field(default_factory=_new_mark)


@dataclass(frozen=True, slots=True)
class Transport:
    """How handles travel between processes: ``kind`` is "none", "posix" or "fabric"."""

    kind: str
    text: str


def _boot_id():
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _start_of(pid):
    """When a process was started, in clock ticks; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _this_process():
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        space = 0
    return (os.getpid(), _start_of(os.getpid()) or 0, space)


def has_ended(fact, own):
    """Whether the process behind `fact` is known to have ended, as seen from that behind `own`."""
    pid, started, space = fact.process
    if not started or space != own.process[2] or fact.boot != own.boot:
        return False
    return _start_of(pid) != started


def socket_folder():
    """Where the sockets between the PEs of a node are made."""
    return _settings.load_one("NVSYM_SHM_DIR")


def _folder_identity():
    try:
        found = os.stat(socket_folder())
    except (OSError, NVSymError):
        return (0, 0)
    return (found.st_dev, found.st_ino)


def _missing_function():
    return next((missing for missing in map(_driver.why_missing, _FUNCTIONS) if missing is not None), None)


def _problem(virtual_memory, multicast, uuid):
    """Why a GPU cannot take part, or None; its fabric where that is known."""
    if not virtual_memory:
        return (
            "the driver offers no virtual memory management for it (CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)",
            None,
        )
    if not multicast:
        return "the driver says that it does not support multicast (CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED)", None
    fabric, reason = _nvml.fabric_info(uuid)
    return (reason if fabric is None else fabric.why_not_ready()), fabric


def facts_of(device, name, node=0):
    """What one GPU of this process offers. No multicast call is made, and none of the driver where a switch forbids multicast.

    Parameters
    ----------
    device : Device
        A GPU of this process.
    name : str
        What messages call it.
    node : int
        The number of its node in the job.
    """
    host = socket.gethostname()
    switch = _settings.multicast_switch()
    if switch is not None:
        return DeviceFacts(name, host, device.uuid, switch, boot=_boot_id(), node=node, process=_this_process())
    try:
        has = attributes(device.ordinal, (_VIRTUAL_MEMORY, _MULTICAST, _POSIX, _FABRIC))
        missing = _missing_function()
        problem, fabric = (missing, None) if missing is not None else _problem(has[0], has[1], device.uuid)
    except Exception as error:  # noqa: BLE001 - whatever it is, it makes the answer "unknown", which is "unsupported"
        return DeviceFacts(name, host, device.uuid, None, f"what it supports is unknown: {error}")
    return DeviceFacts(
        name,
        host,
        device.uuid,
        None,
        problem,
        bool(has[2]),
        fabric,
        bool(has[3]),
        _boot_id(),
        _folder_identity(),
        os.getuid(),
        node,
        _this_process(),
    )


def _hosts(facts: Sequence[DeviceFacts]):
    return ", ".join(dict.fromkeys(fact.host for fact in facts))


def transport_of(facts: Sequence[DeviceFacts]):
    """How the handles of GPUs of several processes travel.

    Returns
    -------
    transport : Transport or None
    reason : str or None
        Why there is no way.
    """
    first = facts[0]
    domains = {(fact.fabric.cluster, fact.fabric.clique) if fact.fabric else None for fact in facts}
    no_fabric = [fact.name for fact in facts if not fact.can_fabric]
    one_domain = len(domains) == 1 and all(fact.fabric and fact.fabric.has_domain() for fact in facts)
    by_fabric = Transport("fabric", "fabric handles") if one_domain and not no_fabric else None
    if len({fact.node for fact in facts}) == 1 and len({fact.boot for fact in facts}) == 1:
        no_posix = [fact.name for fact in facts if not fact.posix]
        if no_posix:
            reason = f"{no_posix[0]}: the driver cannot share its memory by file descriptors"
        elif len({fact.uid for fact in facts}) > 1:
            reason = f"the PEs run under different users: {', '.join(f'{fact.name} as {fact.uid}' for fact in facts)}"
        elif len({fact.place for fact in facts}) > 1:
            reason = (
                f"the PEs are on one machine but not in one container: {first.name} sees another {socket_folder()} than "
                f"{next(fact.name for fact in facts if fact.place != first.place)}. Give them a common folder "
                "(docker run --ipc=host, or NVSYM_SHM_DIR)"
            )
        else:
            return Transport("posix", "file descriptors over UNIX sockets"), None
        return (by_fabric, None) if by_fabric else (None, reason)
    if by_fabric:
        return by_fabric, None
    hosts = _hosts(facts)
    if no_fabric:
        return None, (
            f"the GPUs are on several hosts or in several containers ({hosts}), and the driver cannot share the memory of "
            f"{no_fabric[0]} by fabric handles (multi-node NVLink with an IMEX channel is needed)"
        )
    return None, (
        f"the GPUs on {hosts} share no NVLink domain: "
        + ", ".join(f"{fact.name} is in {_domain(fact.fabric)}" for fact in facts)
    )


def _domain(fabric):
    return f"cluster {fabric.cluster[:8]} clique {fabric.clique}" if fabric and fabric.has_domain() else "none"


def why_unsupported(facts: Sequence[DeviceFacts], several_processes: bool):
    """Why these GPUs cannot share multicast memory; None if, as far as can be known before it is tried, they can."""
    for fact in facts:
        if fact.switch is not None:
            return f"{DISABLED}{fact.switch}" + (f" on {fact.name}" if several_processes else "")
    for fact in facts:
        if fact.problem is not None:
            return f"{fact.name}: {fact.problem}"
    return transport_of(facts)[1] if several_processes else None


def pool_capability(facts: Sequence[DeviceFacts]):
    """Whether all these GPUs, of a PE each, could share a `SymmetricPool`, and why or how: (bool, text)."""
    reason = why_unsupported(facts, len(facts) > 1)
    if reason is None and len({fact.uuid for fact in facts}) < len(facts):
        reason = "PEs share a GPU"
    if reason is None and len(facts) < 2:
        reason = "multicast takes two GPUs at least, and the job has one"
    if reason is not None:
        return False, reason
    transport, _ = transport_of(facts)
    return True, f"handles travel as {transport.text}"
