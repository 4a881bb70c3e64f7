# SPDX-License-Identifier: Apache-2.0
from typing import Any

from .device import Device
from .stream import Stream

COLLECTIVE_NAMES: tuple[str | None, ...]
ALGORITHMS: tuple[str, ...]

class Backend:
    name: str
    my_pe: int
    n_pes: int
    device: Device
    stream: Stream
    devices: list[Device]
    nodes: list[int]

class TeamData:
    def __init__(self, *args: Any) -> None: ...
