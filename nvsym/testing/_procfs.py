# SPDX-License-Identifier: Apache-2.0
"""What ``/proc`` tells of a process: whether it runs, the shared memory that it has mapped, the signals that it catches."""

import contextlib


def stat(pid):
    """Fields 3 and on of /proc/PID/stat (state, parent, ...), or None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None


def segments(pid):
    """The named shared memory that a process has mapped."""
    try:
        with open(f"/proc/{pid}/maps") as file:
            paths = {line.split(maxsplit=5)[-1].strip() for line in file if "/dev/shm/" in line}
    except OSError:
        return set()
    return {path for path in paths if path.startswith("/dev/shm/") and not path.endswith(" (deleted)")}


def alive(pid, start_time):
    """Whether the process `pid` that began at `start_time` (clock ticks) still runs; a zombie does not."""
    fields = stat(pid)
    return fields is not None and fields[0] != b"Z" and int(fields[19]) == start_time


def catches(pid, number):
    """Whether the process has a handler for the signal."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
