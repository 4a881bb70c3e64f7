# SPDX-License-Identifier: Apache-2.0
"""`PE`: one PE of a job of tests, a plugin of its inner pytest session."""

import array
import gc
import os
import sys
import time
import traceback

import pytest

from ._protocol import JobFolder, encode

# What a PE is about when it votes.
COLLECTED, CTX_SETUP, CTX_TEARDOWN, END_OF_TEST = range(4)


class PE:
    """One PE of a job of tests: a plugin of its inner pytest session."""

    def __init__(self, spec, MPI):
        self.spec = spec
        self.MPI = MPI
        self.pe = MPI.COMM_WORLD.Get_rank()
        self.pes = MPI.COMM_WORLD.Get_size()
        self.backend = spec["backend"]
        self.folder = JobFolder(spec["folder"])
        self.index = {nodeid: i for i, nodeid in enumerate(spec["ids"])}
        self.current = -1
        self.failed = False  # this PE, in the current test
        self.stopped = False
        self.collect_errors = []
        self.held = None  # duplicates of the descriptors under capture
        self.fd = os.open(self.folder.records_of(self.pe), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        # Nobody else's messages can be mistaken for a vote, and a vote for nobody else's.
        self.comm = MPI.COMM_WORLD.Dup()

    def record(self, kind, **data):
        """Append one line for the outer process; it is in the file when this returns."""
        os.write(self.fd, encode(kind, **data))

    def gather(self, *values):
        """Everyone's integers, in PE order. Waits asleep, so that the PEs that still work have the cores."""
        mine = array.array("q", values)
        everyone = array.array("q", bytes(8 * len(values) * self.pes))
        kind = self.MPI.INT64_T
        request = self.comm.Iallgather([mine, kind], [everyone, kind])
        began = time.monotonic()
        while not request.Test():
            time.sleep(min(max(20e-6, (time.monotonic() - began) / 8), 5e-3))
        return [tuple(everyone[i : i + len(values)]) for i in range(0, len(everyone), len(values))]

    def vote(self, about):
        """Meet the other PEs, each with what it is about: [(about, test, failed, stop)]."""
        stop = self.pe == 0 and self.folder.stop.exists()
        return self.gather(about, self.current, self.failed, stop)

    def missing_at(self, votes, about):
        """The PEs that are about something else."""
        return [pe for pe, vote in enumerate(votes) if vote[0] != about]

    # Hooks

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config):
        self.config = config
        config.option.__dict__.update(self.spec["options"])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session):
        if self.spec["hypothesis"]:
            import hypothesis

            # Every PE has to draw the same examples in the same order, at its own pace and without a memory of its own.
            hypothesis.settings.register_profile(
                "nvsym-pes",
                parent=hypothesis.settings(),
                derandomize=True,
                database=None,
                deadline=None,
                suppress_health_check=list(hypothesis.HealthCheck),
            )
            hypothesis.settings.load_profile("nvsym-pes")

    def pytest_collectreport(self, report):
        if report.failed:
            self.collect_errors.append(str(report.longrepr))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session):
        """Keep the wanted tests that all PEs have, in the given order."""
        found: dict = {}
        for item in session.items:
            found.setdefault(item.nodeid, item)
        ids = self.spec["ids"]
        have = self.gather(*(nodeid in found for nodeid in ids))
        missing = {}
        for i, nodeid in enumerate(ids):
            if nodeid not in found:
                missing[i] = "\n".join(self.collect_errors) or "it was not collected"
        session.items[:] = [found[nodeid] for i, nodeid in enumerate(ids) if all(row[i] for row in have)]
        # `ctx` collects garbage after each test: what is here by now need not be looked through every time.
        gc.collect()
        gc.freeze()
        self.record("ready", missing=missing)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        self.current = self.index[item.nodeid]
        self.failed = False
        self.record("start", index=self.current, log=os.lseek(1, 0, os.SEEK_END))
        result = yield
        self.record("done", index=self.current)
        self._end_of_test(item.session)
        return result

    def _end_of_test(self, session):
        if self.MPI.Is_finalized():  # a test that finalizes MPI has a job of its own
            return
        while True:
            votes = self.vote(END_OF_TEST)
            # A PE that skipped or failed early meets the others in a vote about `ctx`; then they all come here.
            if not self.missing_at(votes, END_OF_TEST):
                break
        if any(test != self.current for _, test, _, _ in votes):
            raise RuntimeError(f"nvsym: the PEs run different tests: {[test for _, test, _, _ in votes]}")
        if failed := [pe for pe, vote in enumerate(votes) if vote[2]]:
            self.record("vote", index=self.current, failed=failed)
        if any(stop for _, _, _, stop in votes):
            self.stopped = True
            session.shouldstop = "the outer session wants no more"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        if self.held is None:
            # Capture is on here. What it holds has no name: the outer process opens it through these descriptors, so
            # that it can show what a test had printed when its process died. It says when it has them.
            self.held = [os.dup(1), os.dup(2)]
            self.record("capture", numbers=self.held)
            deadline = time.monotonic() + 2.0
            while not self.folder.go.exists() and time.monotonic() < deadline:
                time.sleep(0.005)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if call.excinfo is not None:
            # The report is text by now. The frames would keep the test's buffers alive.
            _clear_frames(call.excinfo.value)
            for name in ("last_type", "last_value", "last_traceback", "last_exc"):
                sys.__dict__.pop(name, None)
        return report

    def pytest_runtest_logreport(self, report):
        self.failed = self.failed or report.failed
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.record("report", index=self.current, report=data)

    def pytest_warning_recorded(self, warning_message, when, nodeid):
        if when == "runtest":
            category = warning_message.category
            self.record(
                "warning",
                category=(category.__module__, category.__qualname__),
                message=str(warning_message.message),
                filename=warning_message.filename,
                lineno=warning_message.lineno,
                when=when,
                nodeid=nodeid,
            )


def _clear_frames(error):
    """Let go of the local variables that an exception, and those behind it, hold."""
    waiting, seen = [error], set()
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        traceback.clear_frames(each.__traceback__)
        waiting += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
