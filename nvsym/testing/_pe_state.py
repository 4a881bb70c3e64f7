# SPDX-License-Identifier: Apache-2.0
"""What the outer process knows of one PE."""

import contextlib

from . import _procfs
from ._protocol import decode


class PEState:
    """What the outer process knows of one PE, from the file to which that PE appends its records."""

    def __init__(self, folder, pe):
        self.pe = pe
        self.records = folder.records_of(pe)
        self.log = folder.log_of(pe)
        self.stacks = folder.stacks_of(pe)
        self.position = 0
        self.pid = 0  # until the PE has told it
        self.start_time = 0
        self.ready = False
        self.ended = False
        self.gone_since = None
        self.running = None  # index of the test that runs
        self.log_offset = 0  # length of the log when it began
        self.done = -1  # index of the last test that ended
        self.reports = {}  # index: reports
        self.missing = {}  # index: why the inner collection has no such test
        self.captured = None  # open files of what pytest captures just now

    def lives(self):
        return bool(self.pid) and _procfs.alive(self.pid, self.start_time)

    def read(self):
        """The records that came since the last call."""
        try:
            with open(self.records, "rb") as file:
                file.seek(self.position)
                data = file.read()
        except FileNotFoundError:
            return []
        data = data[: data.rfind(b"\n") + 1]  # a line that is still being written waits for the next call
        self.position += len(data)
        return decode(data)

    def open_captured(self, numbers):
        """Open the PE's capture files: they have no name, and outlive the process only if held open here."""
        self.captured = []
        for number in numbers:
            with contextlib.suppress(OSError):
                self.captured.append(open(f"/proc/{self.pid}/fd/{number}", "rb"))  # noqa: SIM115

    def captured_sections(self):
        """What the running phase of the test has printed so far."""
        sections = []
        for name, file in zip(("stdout", "stderr"), self.captured or (), strict=False):
            file.seek(0)
            if text := file.read().decode(errors="replace").strip("\0\n"):
                sections.append((f"Captured {name}, PE {self.pe}", text))
        return sections

    def close(self):
        for file in self.captured or ():
            file.close()

    def phase(self, index):
        """In words, how far this PE got in the test."""
        reports = self.reports.get(index, [])
        failed = [r.when for r in reports if r.outcome == "failed"]
        if self.done >= index:
            return f"failed in {failed[0]}" if failed else "ended the test"
        if self.running != index:
            return "had not begun"
        where = {
            None: "setup",
            "setup": "the test" if not failed else "teardown",
            "call": "teardown",
            "teardown": "teardown",
        }
        now = f"was in {where[reports[-1].when if reports else None]}"
        return now + (f" after it failed in {failed[0]}" if failed else "")
