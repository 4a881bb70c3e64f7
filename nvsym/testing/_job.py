# SPDX-License-Identifier: Apache-2.0
"""`Job`: one MPI job of tests, read while it runs, and ended when it must be."""

import contextlib
import dataclasses
import json
import pathlib
import re
import subprocess
import sys
import time

from . import _inner_session, _stacks
from ._configuration import backend_environment
from ._longrepr import PEsRepr
from ._lost_error import LostError
from ._pe_state import PEState
from ._processes import Processes
from ._protocol import JobFolder
from ._reports import failure_parts, output_sections
from ._text import pe_numbers, read_tail

START_LIMIT = 120.0  # seconds from the launch to the end of the inner collection
EXIT_LIMIT = 30.0  # seconds from the end of the last test to the end of the job


class Job:
    """One MPI job that runs a list of tests, seen from outside."""

    def __init__(self, config, configuration, items, limits, folder, warnings):
        self.config = config
        self.configuration = configuration
        self.ids = [item.nodeid for item in items]
        self.limits = limits
        self.folder = JobFolder(folder)
        self.warnings = warnings
        self.next = 0  # the first test whose result was not yet taken
        self.states = [PEState(self.folder, pe) for pe in range(configuration.pes)]
        self.started = time.monotonic()
        self.running_since = None
        self.failed_since = None
        self.acknowledged = False
        self.finished = False
        self.bad_exit: PEsRepr | None = None  # what was wrong with the end of the job, after its last test
        spec = {
            "sys_path": sys.path,
            "folder": str(folder),
            "pes": configuration.pes,
            "nodes": configuration.nodes,
            "backend": "nvshmem" if configuration.backend == "simulator" else configuration.backend,
            "ids": self.ids,
            "hypothesis": _inner_session.use_hypothesis(items),
            "args": _inner_session.arguments(config, items, folder),
            "options": _inner_session.options(config),
        }
        self.folder.spec.write_text(json.dumps(spec))
        # The PEs see the modules that this process sees, in the same order; -P: not what lies in the current folder.
        code = (
            "import json, sys; spec = json.load(open(sys.argv[1])); sys.path[:] = spec['sys_path']; "
            "from nvsym.testing._pe_main import main; main(spec)"
        )
        with open(self.folder.log, "wb") as log:
            self.processes = Processes(
                configuration.pes,
                [sys.executable, "-P", "-c", code, self.folder.spec],
                nodes=configuration.nodes,
                env=backend_environment(configuration),
                cwd=config.invocation_params.dir,
                stdout=log,
                stderr=log,
            )
        self.launcher = self.processes.launcher

    # Reading

    def _poll(self):
        """Take in what the PEs have written; True if there was something."""
        some = False
        for state in self.states:
            for record in state.read():
                some = True
                self._take(state, record)
        if not self.acknowledged and all(state.captured is not None for state in self.states):
            self.folder.go.touch()
            self.acknowledged = True
        return some

    def _take(self, state, record):
        kind, index = record["kind"], record.get("index")
        if kind == "hello":
            state.pid, state.start_time = record["pid"], record["start_time"]
            self.processes.segments.update(record["segments"])
        elif kind == "ready":
            state.ready = True
            state.missing = {int(i): why for i, why in record["missing"].items()}
        elif kind == "capture":
            state.open_captured(record["numbers"])
        elif kind == "start":
            state.running, state.log_offset = index, record["log"]
            if index == self.next and self.running_since is None:
                self.running_since = time.monotonic()
        elif kind == "report":
            report = self.config.hook.pytest_report_from_serializable(config=self.config, data=record["report"])
            if isinstance(report.longrepr, list):  # JSON has no tuples, and a skip's is one
                report.longrepr = tuple(report.longrepr)
            state.reports.setdefault(index, []).append(report)
            if report.outcome == "failed" and index == self.next and self.failed_since is None:
                self.failed_since = time.monotonic()
        elif kind == "done":
            state.done = index
        elif kind == "warning":
            self.warnings.forward(record)
        elif kind == "end":
            state.ended = True

    # Waiting

    def result(self, tick):
        """Wait for the next test and return each PE's reports; `tick(seconds)` is called while it lasts.

        Raises `LostError` when the job cannot deliver them; the job has ended then.
        """
        index, last = self.next, self.next == len(self.ids) - 1
        self.running_since = self.failed_since = None
        for state in self.states:
            if state.running == index:
                self.running_since = time.monotonic()
        began = time.monotonic()
        pause, checked = 0.002, began
        while not self._complete(index):
            now = time.monotonic()
            if self._poll():
                pause = 0.002
                continue
            if self.processes.popen.poll() is not None:
                self._poll()
                if self._complete(index):
                    break
                self._lost_job(index)
            self._check_limits(index, now, began)
            if now - checked > 0.5:
                checked = now
                self._check_processes(index, now)
            tick(now - began)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
        if any(index in state.missing for state in self.states):
            self.next += 1
            if last:
                self._finish()
            lacking = [(state.pe, state.missing[index]) for state in self.states if index in state.missing]
            text = f"the inner session of {pe_numbers([pe for pe, _ in lacking])} does not have this test"
            raise LostError(text, [("", text), ("", lacking[0][1])])
        self.next += 1
        if last:
            self._finish()
        return [state.reports.get(index, []) for state in self.states]

    def _complete(self, index):
        return all(state.ready for state in self.states) and (
            any(index in state.missing for state in self.states) or all(state.done >= index for state in self.states)
        )

    def _check_limits(self, index, now, began):
        if not all(state.ready for state in self.states):
            if now - self.started > START_LIMIT:
                self._expire(index, f"the job did not begin its tests within {START_LIMIT:g} s")
            return
        limit = self.limits[index]
        since = self.running_since if self.running_since is not None else began
        grace = float(self.config.getini("nvsym_grace"))
        if now - since > limit:
            self._expire(index, f"the test did not end within its limit of {limit:g} s")
        elif self.failed_since is not None and now - self.failed_since > grace:
            failed = [s.pe for s in self.states if any(r.outcome == "failed" for r in s.reports.get(index, []))]
            others = [s.pe for s in self.states if s.done < index]
            self._expire(
                index, f"{pe_numbers(failed)} failed, and {grace:g} s later {pe_numbers(others)} had not ended the test"
            )

    def _check_processes(self, index, now):
        """A PE that vanished while the launcher does not notice will never vote."""
        for state in self.states:
            if state.pid and not state.ended and not state.lives():
                state.gone_since = state.gone_since or now
                if now - state.gone_since > 3.0:
                    self._poll()
                    if not self._complete(index):
                        self._lost_job(index, f"PE {state.pe} ended, and the job did not end with it")

    def _expire(self, index, what):
        """Get every PE's stacks, kill the job and raise."""
        stacks = _stacks.dump(self.states)
        self._poll()
        pes = self.configuration.pes
        # A PE that ended the test waits in the plugin's vote: nobody asks where that is.
        parts = [(f"stacks of PE {state.pe} of {pes}", text) for state, text in stacks if state.done < index]
        self._lost(index, what, parts)

    def _lost_job(self, index, what=None):
        code = self.processes.popen.poll()
        if what is None:
            what = f"the job ended: {pathlib.Path(self.launcher.command[0]).name} returned {code}"
            if code == 0:
                what += ", though its PEs had tests to run"
        self._lost(index, what, [])

    def _lost(self, index, what, stacks):
        """Kill the job and raise with all that it left: states, failures already recorded, stacks, logs."""
        ready = all(state.ready for state in self.states)
        if not ready:
            what += " (before its first test)"
        elif all(state.running != index for state in self.states):
            what += (
                " (before this test began)" if index == 0 else f" (after {self.ids[index - 1]}, before this test began)"
            )
        states = [] if not ready else [f"PE {state.pe} {state.phase(index)}" for state in self.states]
        self.kill()
        self._poll()
        parts = [("", "\n".join([what, *states]))]
        failures = [(s.pe, r) for s in self.states for r in s.reports.get(index, []) if r.outcome == "failed"]
        item_like = _ItemLike(self.ids[index])
        if failures:
            parts += failure_parts(item_like, self.configuration.pes, failures)[0]
        parts += stacks
        for state in self.states:
            # pytest's own line about the test aside, that is what the process said when it died.
            text = _stacks.shorten(read_tail(state.log, offset=state.log_offset).removeprefix(self.ids[index]).lstrip())
            if text and not re.fullmatch(r"[A-Z]+( \(.*\))? *(\[ *\d+%\])?", text):
                parts.append((f"log of PE {state.pe}", text))
        if text := read_tail(self.folder.log):
            parts.append(("output of the job", text))
        sections = [section for state in self.states for section in state.captured_sections()]
        sections += output_sections(self.configuration.pes, failures)
        self._close()
        raise LostError(what, parts, sections)

    # Ending

    def _finish(self):
        """Wait for the end of the job after its last test."""
        deadline = time.monotonic() + EXIT_LIMIT
        pause = 0.002
        while self.processes.popen.poll() is None:
            if time.monotonic() > deadline:
                self._poll()
                self._expire_exit()
                return
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
        self._poll()
        code = self.processes.popen.returncode
        quiet = [state.pe for state in self.states if not state.ended]
        self.kill()
        self._close()
        if code != 0 or quiet:
            text = f"the job ended badly after its last test: the launcher returned {code}"
            if quiet:
                text += f"; {pe_numbers(quiet)} did not end the session"
            self._bad_exit(text)

    def _expire_exit(self):
        stacks = [
            (f"stacks of PE {state.pe} of {self.configuration.pes}", text) for state, text in _stacks.dump(self.states)
        ]
        self.kill()
        self._close()
        self._bad_exit(f"the job did not end within {EXIT_LIMIT:g} s after its last test", stacks)

    def _bad_exit(self, text, parts=()):
        parts = [("", text), *parts]
        for state in self.states:
            if tail := read_tail(state.log, offset=state.log_offset, lines=25):
                parts.append((f"log of PE {state.pe}", tail))
        if tail := read_tail(self.folder.log):
            parts.append(("output of the job", tail))
        self.bad_exit = PEsRepr(parts, None)

    def stop(self, patience=3.0):
        """End a job whose remaining tests nobody wants: in order if it does so within `patience` seconds."""
        if self.finished:
            return
        self.folder.stop.touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.processes.popen.wait(patience)
        self.kill()
        self._close()

    def kill(self):
        self.processes.kill()

    def _close(self):
        self.finished = True
        for state in self.states:
            state.close()


@dataclasses.dataclass
class _ItemLike:
    """Stands for an item where only its place is asked for."""

    nodeid: str

    @property
    def location(self):
        return (self.nodeid.partition("::")[0], None, self.nodeid)
