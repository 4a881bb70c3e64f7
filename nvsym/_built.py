# SPDX-License-Identifier: Apache-2.0
"""Imported before all else: says so where the extension modules are missing, for which Python has no words but their names."""

from importlib.util import find_spec
from pathlib import Path

if find_spec("nvsym.atomics") is None:
    raise ModuleNotFoundError(
        f"nvsym in {Path(__file__).parent} has no extension modules for this Python: it is a source tree that was not built, "
        "or was built for another one. Python looks in the current folder first: elsewhere it finds the nvsym that is installed. "
        "To build this one: make build; then .venv/bin/python finds it",
        name="nvsym.atomics",
    )
