# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence
from typing import Literal

from .device import Device
from .memory import Buffer

class SymmetricPool:
    byte_size: int
    devices: tuple[Device, ...]
    handles: Literal["none", "posix", "fabric"]
    @staticmethod
    def allocate(devices: Sequence[Device], byte_size: int) -> SymmetricPool: ...
    @staticmethod
    def lookup(devices: Sequence[Device]) -> SymmetricPool | None: ...
    @staticmethod
    def is_supported(devices: Sequence[Device]) -> bool: ...
    @staticmethod
    def why_unsupported(devices: Sequence[Device]) -> str | None: ...
    def unicast_view(self, device: Device) -> Buffer: ...
    def multicast_view(self, device: Device) -> Buffer: ...
