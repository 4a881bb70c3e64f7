# SPDX-License-Identifier: Apache-2.0
from typing import Any, Self

class NativeCalls:
    last: int
    def add(
        self, name: str, address: int, *arguments: int, status: bool = False, step: int = -1, keep: Any = None
    ) -> Self: ...
    def __call__(self) -> None: ...
    def loop(self, calls: int) -> int: ...
