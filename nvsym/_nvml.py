# SPDX-License-Identifier: Apache-2.0
"""How a GPU is connected, and the state of the NVLink fabric behind it, as NVML reports it (through nvidia-ml-py, which is optional)."""

import contextlib
import ctypes
from dataclasses import dataclass

__all__ = ["FabricInfo", "Links", "fabric_info", "links"]

COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED
_STATES = {0: "not supported", 1: "not started", 2: "in progress", COMPLETED: "completed"}

NVLINK = "NVLink"
# nvmlGpuTopologyLevel_t
_PATHS = {
    0: "PCIe on one board",
    10: "PCIe through one switch",
    20: "PCIe through several switches",
    30: "PCIe through one host bridge",
    40: "PCIe inside a NUMA node",
    50: "PCIe between NUMA nodes",
}


@dataclass(frozen=True, slots=True)
class FabricInfo:
    """What NVML says of a GPU's membership in an NVLink fabric (`nvmlGpuFabricInfo`).

    `cluster` is the UUID of the NVLink domain in hexadecimal, all zeros inside one node; GPUs reach each other's memory
    where cluster and `clique` are equal.
    """

    state: int
    status: int
    cluster: str
    clique: int

    def why_not_ready(self):
        """None where the GPU has joined its fabric, else the reason."""
        if self.state != COMPLETED:
            return (
                f"NVML reports the state of its NVLink fabric as {_STATES.get(self.state, self.state)!r}, not as "
                "'completed': check the fabric manager (systemctl status nvidia-fabricmanager, nvidia-smi -q | grep -A9 Fabric)"
            )
        if self.status != 0:
            return (
                f"joining its NVLink fabric ended with NVML status {self.status}: check the fabric manager "
                "(nvidia-smi -q | grep -A9 Fabric)"
            )
        return None

    def has_domain(self):
        """Whether the GPU belongs to an NVLink domain that can span nodes."""
        return self.cluster.strip("0") != ""


@dataclass(frozen=True, slots=True)
class Links:
    """How a GPU is connected: `count` NVLinks are up, each of `mbps` MB/s one way (0: not known); `to`: the ways to other GPUs."""

    count: int
    mbps: int
    to: tuple[str, ...]


class _Unknown(Exception):
    """NVML does not answer; why."""


@contextlib.contextmanager
def _nvml():
    """The module pynvml while NVML is in use. What NVML refuses becomes `_Unknown`."""
    try:
        import pynvml
    except ImportError:
        raise _Unknown('nvidia-ml-py is not installed (pip install nvidia-ml-py, or "nvsym[cu13]")') from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise _Unknown(f"NVML does not work: {error}") from None
    try:
        yield pynvml
    except (AttributeError, pynvml.NVMLError) as error:  # of an older package, or an older driver
        raise _Unknown(f"NVML says {error}") from None
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def fabric_info(uuid):
    """The fabric state of a GPU.

    Parameters
    ----------
    uuid : str
        In the form of nvidia-smi.

    Returns
    -------
    info : FabricInfo or None
    reason : str or None
        Why there is no information.
    """
    try:
        with _nvml() as pynvml:
            device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            try:
                info = pynvml.c_nvmlGpuFabricInfoV_t()
                pynvml.nvmlDeviceGetGpuFabricInfoV(device, ctypes.byref(info))
            except (AttributeError, pynvml.NVMLError):
                # Of drivers before 12.3, or a package before it.
                info = pynvml.c_nvmlGpuFabricInfo_t()
                pynvml.nvmlDeviceGetGpuFabricInfo(device, ctypes.byref(info))
    except _Unknown as error:
        return None, f"the state of its NVLink fabric is unknown, since {error}"
    return FabricInfo(int(info.state), int(info.status), bytes(info.clusterUuid).hex(), int(info.cliqueId)), None


def links(uuid, others):
    """How a GPU is connected with others of its node.

    Parameters
    ----------
    uuid : str
        In the form of nvidia-smi.
    others : sequence of str
        The UUIDs of GPUs of the same node.

    Returns
    -------
    links : Links or None
    reason : str or None
        Why there is no information.
    """
    try:
        with _nvml() as pynvml:
            device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            to = []
            for other in others:
                try:
                    to.append(_way(pynvml, device, pynvml.nvmlDeviceGetHandleByUUID(other)))
                except pynvml.NVMLError as error:
                    to.append(f"not known (NVML says {error})")
            return Links(_nvlinks(pynvml, device), _nvlink_speed(pynvml, device), tuple(to)), None
    except _Unknown as error:
        return None, str(error)


def _way(pynvml, device, peer):
    """By what two GPUs of a node are connected."""
    if pynvml.nvmlDeviceGetP2PStatus(device, peer, pynvml.NVML_P2P_CAPS_INDEX_NVLINK) == pynvml.NVML_P2P_STATUS_OK:
        return NVLINK
    level = pynvml.nvmlDeviceGetTopologyCommonAncestor(device, peer)
    return _PATHS.get(level, f"PCIe (NVML's level {level})")


def _nvlinks(pynvml, device):
    """The number of NVLinks that are up."""
    count = 0
    for i in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            count += pynvml.nvmlDeviceGetNvLinkState(device, i) == 1
        except pynvml.NVMLError:  # there are no more, or none at all
            break
    return count


def _nvlink_speed(pynvml, device):
    """MB/s of an NVLink one way; 0 where NVML does not know."""
    fields = [pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_L0]
    try:
        values = pynvml.nvmlDeviceGetFieldValues(device, fields)
    except pynvml.NVMLError:
        return 0
    for value in values:
        if value.nvmlReturn == pynvml.NVML_SUCCESS and value.value.uiVal:
            return int(value.value.uiVal)
    return 0
