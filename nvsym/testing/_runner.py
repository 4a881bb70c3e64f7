# SPDX-License-Identifier: Apache-2.0
"""`Runner`: the tests of the outer session that run on PEs, one job at a time."""

import os
import pathlib
import shutil
import tempfile
import textwrap
import time

import pytest

from ._job import Job
from ._launcher import simulates_nodes
from ._longrepr import Crash, PEsRepr
from ._lost_error import LostError
from ._merge import merge
from ._processes import RANK_VARIABLES
from ._reports import make_report
from ._warning_forwarder import WarningForwarder
from ._wish import wish_of

WAITING_NOTICE = 5.0  # seconds without a result after which the terminal says what is awaited


class Runner:
    """Runs the `pes` tests of the outer session, a batch of neighbours with one configuration per job."""

    def __init__(self, config):
        self.config = config
        self.job: Job | None = None
        self.folders: pathlib.Path | None = None
        self.broken = {}  # configuration: why its jobs do not start
        self.warnings = WarningForwarder(config)

    def run(self, item, nextitem):
        """Run one test, or fetch its result from the job that runs already, and report it."""
        try:
            starting = self._prepare(item)
        except (OSError, RuntimeError, ValueError) as error:  # the launcher is missing, or cannot be executed
            self._report(item, nextitem, self._plain_failure(item, f"{type(error).__name__}: {error}"), logstart=True)
            return
        job = self.job
        if starting is not None or job is None:
            self._report(item, nextitem, starting, logstart=True)
            return
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        notice = WAITING_NOTICE

        def tick(seconds):
            nonlocal notice
            if seconds >= notice:
                notice *= 2
                self._say(f"nvsym: {item.nodeid}: {seconds:.0f} s so far on {job.configuration.pes} PEs", always=True)

        try:
            try:
                per_pe = job.result(tick)
            finally:
                if job.finished:
                    self.job = None
        except LostError as lost:
            if not all(state.ready for state in job.states):
                self.broken[job.configuration] = str(lost), item.nodeid
            crash = Crash(item.location[0], (item.location[1] or 0) + 1, str(lost))
            reports = self._lost_reports(item, job, PEsRepr(lost.parts, crash), lost.sections)
        else:
            reports = merge(item, job.configuration.pes, per_pe)
        if job.bad_exit is not None:
            job.bad_exit.reprcrash = Crash(item.location[0], (item.location[1] or 0) + 1, job.bad_exit.parts[0][1])
            reports[-1] = make_report(item, "teardown", "failed", job.bad_exit)
        if self.config.option.capture == "no":
            lines = [
                textwrap.indent(text.rstrip("\n"), f"[{heading.removeprefix('Captured ')}] ")
                for heading, text in reports[-1].sections  # the last report has the output of all phases
            ]
            if lines:
                self._say("\n".join(lines), always=True)
        self._report(item, nextitem, reports)

    def _prepare(self, item):
        """Make `self.job` the job whose next test is `item`; reports instead if there can be none."""
        wish = wish_of(item)
        configuration = wish.configuration
        if self.job is not None:
            if self.job.ids[self.job.next] == item.nodeid and self.job.configuration == configuration:
                return None
            self.job.stop()
            self.job = None
        if RANK_VARIABLES & os.environ.keys():
            return self._plain_failure(
                item, "pytest runs under mpirun: start it without, the plugin starts the jobs itself"
            )
        if configuration.nodes > 1 and (reason := simulates_nodes()):
            path, lineno, _ = item.location
            return [
                make_report(item, "setup", "skipped", (str(path), (lineno or 0) + 1, f"Skipped: {reason}")),
                make_report(item, "teardown", "passed"),
            ]
        if configuration in self.broken:
            why, first = self.broken[configuration]
            return self._plain_failure(item, f"{why}; the first test of it, {first}, has the details")
        items = self._batch(item, wish)
        self.job = Job(
            self.config,
            configuration,
            items,
            [self._limit(each) for each in items],
            self._folder(configuration),
            self.warnings,
        )
        launcher = self.job.launcher
        self._say(
            f"nvsym: {launcher.kind} {launcher.version}: {configuration}, "
            f"{len(items)} test{'s' if len(items) > 1 else ''} in one job"
        )
        return None

    def _batch(self, item, wish):
        """`item` and those after it that go into the same job."""
        if wish.own_job or hasattr(
            self.config, "workerinput"
        ):  # an xdist worker runs a selection that only xdist knows
            return [item]
        items = item.session.items
        first = next(i for i, each in enumerate(items) if each is item)
        batch = []
        for each in items[first:]:
            other = wish_of(each)
            if other is None or other.own_job or other.configuration != wish.configuration:
                break
            batch.append(each)
        return batch

    def _limit(self, item):
        wish = wish_of(item)
        if wish.timeout is not None:
            return float(wish.timeout)
        for mark in item.iter_markers("timeout"):  # pytest-timeout's mark says the same
            value = mark.args[0] if mark.args else mark.kwargs.get("timeout")
            if value:
                return float(value)
        return float(self.config.getini("nvsym_timeout"))

    def _folder(self, configuration):
        """A fresh folder for a job's files; in pytest's own temporary tree, which keeps the last few sessions."""
        factory = getattr(self.config, "_tmp_path_factory", None)
        if factory is not None:
            return factory.mktemp(f"nvsym-{configuration}-")
        if self.folders is None:
            self.folders = pathlib.Path(tempfile.mkdtemp(prefix="nvsym-pytest-"))
        return pathlib.Path(tempfile.mkdtemp(prefix=f"{configuration}-", dir=self.folders))

    @staticmethod
    def _plain_failure(item, text):
        longrepr = PEsRepr([("", text)], Crash(item.location[0], (item.location[1] or 0) + 1, text.splitlines()[0]))
        return [make_report(item, "setup", "failed", longrepr), make_report(item, "teardown", "passed")]

    @staticmethod
    def _lost_reports(item, job, longrepr, sections):
        """Reports of a test during which the job was lost: it failed, in whichever phase."""
        reports = [r for state in job.states for r in state.reports.get(job.ids.index(item.nodeid), [])]
        duration = time.monotonic() - (job.running_since or job.started)
        failure = make_report(item, "call", "failed", longrepr, like=reports, sections=sections)
        failure.duration = duration
        return [make_report(item, "setup", "passed"), failure, make_report(item, "teardown", "passed")]

    def _report(self, item, nextitem, reports, *, logstart=False):
        if logstart:
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        # Fixtures of ordinary tests before this one that the next one does not share end here, as after any test.
        teardown = pytest.CallInfo.from_call(lambda: item.session._setupstate.teardown_exact(nextitem), "teardown")
        if teardown.excinfo is not None:
            reports[-1] = item.ihook.pytest_runtest_makereport(item=item, call=teardown)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _say(self, text, *, always=False):
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and (always or self.config.get_verbosity() >= 0):
            reporter.ensure_newline()
            # With a line per test pytest itself begins a new line before the next name.
            reporter.write(text if self.config.get_verbosity() > 0 else f"{text}\n")
            reporter.currentfspath = None

    def close(self, patience=0.0):
        if self.job is not None:
            self.job.stop(patience)
            self.job = None
        if self.folders is not None:
            shutil.rmtree(self.folders, ignore_errors=True)
