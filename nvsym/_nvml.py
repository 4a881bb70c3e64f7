# SPDX-License-Identifier: Apache-2.0
"""The state of the NVLink fabric behind a GPU, as NVML reports it (through nvidia-ml-py, which is optional)."""

import contextlib
import ctypes
from dataclasses import dataclass

__all__ = ["FabricInfo", "fabric_info"]

COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED
_STATES = {0: "not supported", 1: "not started", 2: "in progress", COMPLETED: "completed"}


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
        import pynvml
    except ImportError:
        return None, (
            "the state of its NVLink fabric is unknown, since nvidia-ml-py is not installed "
            '(pip install nvidia-ml-py, or "nvsym[cu13]")'
        )
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"the state of its NVLink fabric is unknown, since NVML does not work: {error}"
    try:
        device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        try:
            info = pynvml.c_nvmlGpuFabricInfoV_t()
            pynvml.nvmlDeviceGetGpuFabricInfoV(device, ctypes.byref(info))
        except (AttributeError, pynvml.NVMLError):
            # Of drivers before 12.3, or a package before it.
            info = pynvml.c_nvmlGpuFabricInfo_t()
            pynvml.nvmlDeviceGetGpuFabricInfo(device, ctypes.byref(info))
    except (AttributeError, pynvml.NVMLError) as error:
        return None, f"the state of its NVLink fabric is unknown: NVML says {error}"
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    return FabricInfo(int(info.state), int(info.status), bytes(info.clusterUuid).hex(), int(info.cliqueId)), None
