# SPDX-License-Identifier: Apache-2.0
"""The Python stacks of the PEs: asking for them, and what is shown of them."""

import os
import time

from . import _procfs
from ._protocol import DUMP_SIGNAL
from ._text import read_text


def dump(states):
    """Have every PE that lives dump its Python stacks: [(state, text)]."""
    live = [state for state in states if state.lives()]
    # After Python's end, in MPI_Finalize, the signal would end the process.
    able = [state for state in live if _procfs.catches(state.pid, DUMP_SIGNAL)]
    for state in able:
        os.kill(state.pid, DUMP_SIGNAL)
    deadline = time.monotonic() + 2.0
    sizes: list[int] = []
    before = None
    while time.monotonic() < deadline and not (before == sizes and all(sizes)):
        time.sleep(0.1)
        before, sizes = sizes, [state.stacks.stat().st_size for state in able]
    dumped = []
    for state in live:
        why = "the process did not react" if state in able else "Python has ended in this process"
        dumped.append((state, shorten(read_text(state.stacks)) or f"(none: {why})"))
    return dumped


def shorten(text):
    """Fault handler stacks (innermost first) without pytest's own frames at their outer end."""
    kept, hidden = [], False
    for line in text.splitlines():
        if not line.startswith('  File "'):
            hidden = False
        elif ("/_pytest/" in line or "/pluggy/" in line) and not hidden:
            kept.append("  ... pytest")
            hidden = True
        if not hidden:
            kept.append(line)
    return "\n".join(kept).strip("\n")
