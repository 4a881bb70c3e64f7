# SPDX-License-Identifier: Apache-2.0
"""What a job is made for: its backend, its PEs and its nodes."""

import dataclasses
import os

BACKENDS = ("host", "nvshmem", "simulator")  # the last: the NVSHMEM backend on nvsym.simulator


@dataclasses.dataclass(frozen=True)
class Configuration:
    """What a job is made for; tests of one configuration share a job."""

    backend: str
    pes: int
    nodes: int

    def __str__(self):
        return f"{self.backend}-n{self.pes}" + (f"-{self.nodes}nodes" if self.nodes > 1 else "")


def backend_environment(configuration):
    """What the PEs of a job have in their environment for the backend."""
    if configuration.backend != "simulator":
        return {}
    from .. import simulator

    return simulator.environment(devices=os.environ.get("NVSYM_SIM_DEVICES") or configuration.pes)
