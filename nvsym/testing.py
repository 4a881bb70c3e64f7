# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin for tests that run on N PEs (processing elements: the processes of one MPI job).

::

    @pytest.mark.pes(1, 2, 4)
    def test_x(ctx): ...

Such a test is parametrised over the backend, the number of PEs and the number of nodes: ``test_x[host-n4]``. The
ordinary pytest process starts one MPI job per configuration, in which every PE runs an inner pytest session over the
same tests in the same order, and reports for each test what all PEs recorded. The job writes its results as they arise,
so that a hang or a crash costs the test that was running and no other: the rest goes on in a fresh job.

The plugin is registered under the entry point ``pytest11``; `mpirun` is a function too. See ``docs/testing.md``.

This module never imports ``mpi4py.MPI`` outside the PEs: the outer process is no part of an MPI job.
"""

import array
import contextlib
import ctypes
import dataclasses
import faulthandler
import gc
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
import uuid
import warnings

import pytest

__all__ = ["CompletedJob", "mpirun"]

BACKENDS = ("host", "nvshmem", "simulator")  # the last: the NVSHMEM backend on nvsym.simulator
PARAM = "_nvsym_job"  # the hidden parameter that carries a test's configuration
TOKEN = "NVSYM_TEST_JOB"  # in the environment of every process of a job: finds them all, whoever their parent is by now
RANK_VARIABLES = {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"}  # launchers give one of them to each program
DUMP_SIGNAL = signal.SIGRTMIN + 5  # asks a PE for its Python stacks; a real-time signal is hardly ever taken
START_LIMIT = 120.0  # seconds from the launch to the end of the inner collection
EXIT_LIMIT = 30.0  # seconds from the end of the last test to the end of the job
WAITING_NOTICE = 5.0  # seconds without a result after which the terminal says what is awaited

# ---------------------------------------------------------------------------------------------------------------------
# Processes: starting an MPI job, finding all of it, ending all of it
# ---------------------------------------------------------------------------------------------------------------------

_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _end_with_parent():
    """Run in the launcher between fork and exec: it gets SIGTERM, and ends its job, when pytest is killed."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class _Processes:
    """The launcher of one MPI job and every process that it started, on this machine."""

    def __init__(self, n, program, *, nodes, env, cwd, stdout, stderr):
        from nvsym._launch import find_launcher  # late: only a test that runs needs a launcher

        self.launcher = find_launcher(prefer=os.environ.get("NVSYM_TEST_MPI", "mpich"))
        self.token = uuid.uuid4().hex
        full = {k: v for k, v in os.environ.items() if k not in ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST")}
        # More BLAS threads than cores make a small job slow; whoever sets the number himself keeps it.
        full.setdefault("OMP_NUM_THREADS", "1")
        full = self.launcher.environ(full)
        if nodes > 1:
            full["MPIR_CVAR_NUM_CLIQUES"] = str(nodes)
        full.update(env)
        full[TOKEN] = self.token
        self.args = [*self.launcher.command, "-n", str(n), *map(str, program)]
        self.popen = subprocess.Popen(
            self.args,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=full,
            cwd=cwd,
            start_new_session=True,  # Ctrl-C reaches pytest alone, which then ends the job in order
            preexec_fn=_end_with_parent,  # noqa: PLW1509 (one system call, no lock and no allocation)
        )
        self.segments = set()

    def find(self):
        """The processes of the job that live: the launcher's own, and the programs with their children."""
        mark = f"{TOKEN}={self.token}".encode()
        own: list[int] = []
        programs: list[int] = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                # A process that ends meanwhile, or that belongs to somebody else, is none of ours.
                with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
                    variables = file.read().split(b"\0")
                    if mark in variables:
                        names = {variable.partition(b"=")[0].decode() for variable in variables}
                        (programs if names & RANK_VARIABLES else own).append(int(entry))
        return own, programs

    def abort_programs(self, patience=2.0):
        """Make the programs abort: Python's fault handler prints their stacks then."""
        own, programs = self.find()
        # The launcher must not see the first one die: it would kill the others before they have printed.
        _send(own, signal.SIGSTOP)
        _send(programs, signal.SIGABRT)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and any((_stat(pid) or (b"Z",))[0] != b"Z" for pid in programs):
            time.sleep(0.02)
        _send(own, signal.SIGCONT)

    def note_segments(self):
        """Remember the shared memory of the job: an MPI that is killed leaves its own behind."""
        for pid in self.find()[1]:
            self.segments.update(_segments(pid))

    def wait(self, timeout):
        """Wait for the launcher; False if it still runs after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        pause = 0.005
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(min(pause, left))
                return True
            self.note_segments()
            pause = min(1.1 * pause, 1.0)
        return False

    def kill(self):
        """End every process of the job, reap the launcher, and remove the shared memory that is left."""
        self.note_segments()
        self._kill_processes()
        for path in self.segments:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _kill_processes(self):
        began = time.monotonic()
        while True:
            own, programs = self.find()
            _send(programs, signal.SIGKILL)
            # The launcher sees its programs end, removes what it made and ends (Open MPI's takes two seconds).
            if time.monotonic() - began > 3.0:
                _send(own, signal.SIGKILL)
            if self.popen.poll() is not None and not own and not programs:
                return
            if time.monotonic() - began > 10.0:
                raise RuntimeError(f"nvsym: processes {own + programs} of the job {self.args} cannot be killed")
            time.sleep(0.01)


def _send(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _stat(pid):
    """Fields 3 and on of /proc/PID/stat (state, parent, ...), or None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None


def _segments(pid):
    """The named shared memory that a process has mapped."""
    try:
        with open(f"/proc/{pid}/maps") as file:
            paths = {line.split(maxsplit=5)[-1].strip() for line in file if "/dev/shm/" in line}
    except OSError:
        return set()
    return {path for path in paths if path.startswith("/dev/shm/") and not path.endswith(" (deleted)")}


def _alive(pid, start_time):
    """Whether the process `pid` that began at `start_time` (clock ticks) still runs; a zombie does not."""
    fields = _stat(pid)
    return fields is not None and fields[0] != b"Z" and int(fields[19]) == start_time


def _catches(pid, number):
    """Whether the process has a handler for the signal."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _read(path):
    """The text of a file; none if nobody wrote it."""
    return path.read_text(errors="replace") if path.exists() else ""


def _read_tail(path, *, offset=0, lines=40):
    """The last lines of a file from `offset` on."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(offset, size - 200 * lines))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.strip("\n").splitlines()[-lines:])


def _simulates_nodes():
    """None if the launcher's MPI can simulate several nodes on this machine, else the reason why it cannot."""
    from nvsym._launch import find_launcher

    launcher = find_launcher(prefer=os.environ.get("NVSYM_TEST_MPI", "mpich"))
    if launcher.kind == "mpich":
        return None
    return f"simulated nodes: {launcher.kind} has none (MPICH has, with MPIR_CVAR_NUM_CLIQUES)"


# ---------------------------------------------------------------------------------------------------------------------
# mpirun: one program, one job, run to its end
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class CompletedJob:
    """What an MPI job that ended left behind.

    Attributes
    ----------
    args : list of str
        The command line (without the shell that gives each PE its output files).
    returncode : int
        The launcher's exit status; negative: the signal that ended it.
    stdout, stderr : str
        The output of PE 0, of PE 1, ..., then the launcher's own.
    pe_stdout, pe_stderr : list of str
        The output of each PE.
    elapsed : float
        Seconds from the launch to the end.
    """

    args: list[str]
    returncode: int
    stdout: str
    stderr: str
    pe_stdout: list[str]
    pe_stderr: list[str]
    elapsed: float

    def describe(self) -> str:
        """The command, its status and its whole output, as text for a failure."""
        return (
            f"command: {' '.join(self.args)}\nexit status: {self.returncode} after {self.elapsed:.1f} s\n"
            f"--- stdout ---\n{self.stdout}\n--- stderr ---\n{self.stderr}"
        )


_TO_FILES = 'pe=${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-$PMIX_RANK}}; exec "$@" >>"$0/stdout.$pe" 2>>"$0/stderr.$pe"'


def mpirun(n, script_or_code, *args, nodes=1, env=None, timeout=30.0, check=True, cwd=None):
    """Run a Python program on `n` PEs to its end.

    Parameters
    ----------
    n : int
        Number of PEs.
    script_or_code : path or str
        A path object, or a string without a line break that ends in ``.py``: a script. Any other string: code, which
        is dedented.
    *args
        Arguments of the program.
    nodes : int
        Simulated nodes. More than one needs MPICH; the test is skipped with other MPIs.
    env : dict, optional
        Added to the environment of the job. A value of None removes the variable.
    timeout : float
        Seconds. At the limit the PEs are asked for their Python stacks, every process of the job is killed, and the
        test fails.
    check : bool
        Fail the test when the exit status is not zero.
    cwd : path, optional
        Working directory of the job.

    Returns
    -------
    CompletedJob

    Raises
    ------
    pytest.fail.Exception
        The time limit passed, or `check` and a status other than zero; the text has the whole output.
    FileNotFoundError
        The script does not exist.
    nvsym.errors.NotAvailableError
        There is no MPI launcher.
    """
    __tracebackhide__ = True
    if _this_pe is not None:
        pytest.fail("mpirun starts a job of its own: call it from an ordinary test, not from one marked `pes`")
    if nodes > 1 and (reason := _simulates_nodes()):
        pytest.skip(reason)
    env = dict(env or {})
    with tempfile.TemporaryDirectory(prefix="nvsym-mpirun-") as name:
        folder = pathlib.Path(name)
        if isinstance(script_or_code, str) and ("\n" in script_or_code or not script_or_code.endswith(".py")):
            script = folder / "program.py"
            script.write_text(textwrap.dedent(script_or_code))
        else:
            script = pathlib.Path(script_or_code).absolute()
            if not script.is_file():
                raise FileNotFoundError(f"mpirun: no script {script}")
        removed = [name for name, value in env.items() if value is None]
        program = [sys.executable, script, *args]
        if removed:
            program = ["env", *(f"--unset={name}" for name in removed), *program]
        # Each PE writes to files of its own: launchers mix what they forward, and drop the end of it when a PE dies.
        wrapped = ["/bin/sh", "-c", _TO_FILES, folder, *program]
        added = {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"} | {
            name: str(value) for name, value in env.items() if value is not None
        }
        began = time.monotonic()
        with open(folder / "stdout", "wb") as stdout, open(folder / "stderr", "wb") as stderr:
            job = _Processes(n, wrapped, nodes=nodes, env=added, cwd=cwd, stdout=stdout, stderr=stderr)
        try:
            expired = not job.wait(timeout)
            if expired:
                job.abort_programs()
        finally:
            elapsed = time.monotonic() - began
            job.kill()
        command = [*job.launcher.command, "-n", str(n), *map(str, program)]
        out, err = ([_read(folder / f"{name}.{pe}") for pe in range(n)] for name in ("stdout", "stderr"))
        done = CompletedJob(
            args=command,
            returncode=job.popen.returncode,
            stdout="".join(out) + _read(folder / "stdout"),
            stderr="".join(err) + _read(folder / "stderr"),
            pe_stdout=out,
            pe_stderr=err,
            elapsed=elapsed,
        )
    if expired:
        pytest.fail(
            f"mpirun: the job did not end within {timeout:g} s and was killed\n{done.describe()}", pytrace=False
        )
    if check and done.returncode != 0:
        pytest.fail(f"mpirun: the job failed\n{done.describe()}", pytrace=False)
    return done


# ---------------------------------------------------------------------------------------------------------------------
# Configurations of a test
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Configuration:
    """What a job is made for; tests of one configuration share a job."""

    backend: str
    pes: int
    nodes: int

    def __str__(self):
        return f"{self.backend}-n{self.pes}" + (f"-{self.nodes}nodes" if self.nodes > 1 else "")


@dataclasses.dataclass(frozen=True)
class _Wish:
    """One parametrisation of a test: its configuration and what it asks for itself."""

    configuration: _Configuration
    timeout: float | None
    own_job: bool


def _wishes(mark, chosen):
    """The wishes of one `pes` mark; `chosen`: the backends that the user named, or None."""

    def refuse(what):
        pytest.fail(f"@pytest.mark.pes{mark.args}: {what}", pytrace=False)

    options: dict = {"nodes": 1, "timeout": None, "own_job": False, "backends": None}
    if unknown := sorted(set(mark.kwargs) - set(options)):
        refuse(f"unknown option {', '.join(unknown)}; there are {', '.join(options)}")
    options.update(mark.kwargs)
    nodes, timeout = options["nodes"], options["timeout"]
    if not mark.args:
        refuse("numbers of PEs are missing, as in @pytest.mark.pes(1, 2, 4)")
    if type(nodes) is not int or nodes < 1:
        refuse(f"nodes={nodes!r}: a number from 1 on is needed")
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        refuse(f"timeout={timeout!r}: a number of seconds above 0 is needed")
    for n in mark.args:
        if type(n) is not int or n < nodes:
            refuse(f"{n!r} PEs on {nodes} nodes: a number from {nodes} on is needed")
    able = options["backends"]
    if able is None:
        backends = chosen or ["host"]
    elif isinstance(able, str) or not able or set(able) - set(BACKENDS):
        refuse(f"backends={able!r}: a sequence of some of {', '.join(BACKENDS)} is needed")
    else:
        backends = able[:1] if chosen is None else [name for name in chosen if name in able]
    return [
        _Wish(_Configuration(backend, n, nodes), timeout, bool(options["own_job"]))
        for backend in backends
        for n in mark.args
    ]


def _wish_of(item):
    """The wish of a collected item, or None for an ordinary test."""
    callspec = getattr(item, "callspec", None)
    return callspec.params.get(PARAM) if callspec is not None else None


def _numbers(pes):
    """PE numbers in words: ``PE 3``, ``PEs 0, 2``."""
    return f"PE{'s' if len(pes) > 1 else ''} {', '.join(map(str, pes))}"


# ---------------------------------------------------------------------------------------------------------------------
# Reports: from one list per PE to one list per test
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Crash:
    """The place and the first line of a failure, for pytest's short summary."""

    path: str
    lineno: int
    message: str

    def __str__(self):
        return f"{self.path}:{self.lineno}: {self.message}"

    def toterminal(self, tw):
        tw.line(str(self))


class _PEsRepr:
    """The failures of several PEs, one after the other, as pytest's terminal and its report files print them."""

    def __init__(self, parts, crash):
        self.parts = parts  # (heading, text or pytest's own representation)
        self.reprcrash = crash

    def toterminal(self, tw):
        for heading, body in self.parts:
            if heading:
                tw.sep("-", heading)
            if hasattr(body, "toterminal"):
                body.toterminal(tw)
            else:
                for line in str(body).splitlines():
                    tw.line(line)

    def __str__(self):
        return "\n".join(f"--- {heading} ---\n{body}" if heading else str(body) for heading, body in self.parts)


def _crash_of(item, pe, longrepr):
    crash = getattr(longrepr, "reprcrash", None)
    path, lineno = (crash.path, crash.lineno) if crash else (item.location[0], (item.location[1] or 0) + 1)
    message = crash.message if crash else (str(longrepr).strip().splitlines() or ["failed"])[-1]
    return _Crash(path, lineno, message if pe is None else f"PE {pe}: {message}")


def _failure_parts(item, pes, failures):
    """Parts of a `_PEsRepr` and its crash line from [(pe, report)]; PEs that failed alike share a part."""
    groups: dict = {}
    for pe, report in failures:
        groups.setdefault((report.when, str(report.longrepr)), []).append((pe, report))
    parts = []
    for (when, _), members in groups.items():
        heading = f"{_numbers([pe for pe, _ in members])} of {pes}" + ("" if when == "call" else f", in {when}")
        parts.append((heading if pes > 1 or when != "call" else "", members[0][1].longrepr))
    first, report = failures[0]
    return parts, _crash_of(item, first if pes > 1 else None, report.longrepr)


def _sections(pes, chosen):
    """The captured output of [(pe, report)], each section under the number of its PE."""
    return [
        (f"{name}, PE {pe}" if pes > 1 else name, text)
        for pe, report in chosen
        for name, text in report.sections
        if text.strip()
    ]


def _make_report(item, when, outcome, longrepr=None, *, like=(), sections=(), **extra):
    """One report of the test for all PEs; times and properties are taken from the reports `like`."""
    like = list(like)
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome=outcome,
        longrepr=longrepr,
        when=when,
        sections=sections,
        duration=max((r.duration for r in like), default=0.0),
        start=min((r.start for r in like), default=0.0),
        stop=max((r.stop for r in like), default=0.0),
        user_properties=like[0].user_properties if like else [],
        **extra,
    )


def _skip_longrepr(skips):
    """The (path, line, reason) of [(pe, report)] that skipped; different reasons are listed by PE."""
    path, lineno, reason = skips[0][1].longrepr
    reasons = {report.longrepr[2] for _, report in skips}
    if len(reasons) > 1:
        reason = "; ".join(f"PE {pe}: {report.longrepr[2]}" for pe, report in skips)
    return (path, lineno, reason)


def _merge(item, pes, reports):
    """One test's reports over all PEs, as one ordinary process would have reported them.

    Parameters
    ----------
    reports : list of list of pytest.TestReport
        What each PE reported, in PE order.

    Returns
    -------
    list of pytest.TestReport
        One per phase. A phase failed if it failed on any PE. A test is skipped only when all PEs skipped it.
    """
    phases = {
        when: [(pe, r) for pe, mine in enumerate(reports) for r in mine if r.when == when]
        for when in ("setup", "call", "teardown")
    }
    merged = []

    def add(when, outcome, longrepr=None, chosen=None, **extra):
        members = phases[when]
        merged.append(
            _make_report(
                item,
                when,
                outcome,
                longrepr,
                like=[r for _, r in members],
                sections=_sections(pes, members if chosen is None else chosen),
                **extra,
            )
        )

    def add_failure(when, failures):
        parts, crash = _failure_parts(item, pes, failures)
        add(when, "failed", _PEsRepr(parts, crash), failures)

    def wasxfail(members):
        return next(({"wasxfail": r.wasxfail} for _, r in members if hasattr(r, "wasxfail")), {})

    def failed(when):
        return [(pe, r) for pe, r in phases[when] if r.outcome == "failed"]

    setup = phases["setup"]
    call = [
        (pe, r) for pe, r in phases["call"] if type(r) is pytest.TestReport
    ]  # the reports of subtests count as failures only
    skipped = [(pe, r) for pe, r in setup + call if r.outcome == "skipped"]
    if failed("setup"):
        # What the other PEs met in the test itself is mostly the consequence, but may be the cause.
        add_failure("setup", failed("setup") + failed("call"))
    elif setup and all(r.outcome == "skipped" for _, r in setup):
        add("setup", "skipped", _skip_longrepr(skipped), **wasxfail(setup))
    else:
        add("setup", "passed")
        xfailed = [r for _, r in call if r.outcome == "skipped" and hasattr(r, "wasxfail")]
        # A test that is expected to fail does so by failing on some PE: the others' strict complaint is moot then.
        failures = [
            (pe, r) for pe, r in failed("call") if not (xfailed and str(r.longrepr).startswith("[XPASS(strict)]"))
        ]
        if failures:
            add_failure("call", failures)
        elif xfailed:
            add("call", "skipped", xfailed[0].longrepr, wasxfail=xfailed[0].wasxfail)
        elif len(skipped) == pes:
            add("call", "skipped", _skip_longrepr(sorted(skipped, key=lambda member: member[0])))
        else:
            add("call", "passed", **wasxfail(call))
            for pe, r in skipped:
                merged[-1].sections.append((f"skipped on PE {pe}", r.longrepr[2]))
    if failed("teardown"):
        add_failure("teardown", failed("teardown"))
    else:
        add("teardown", "passed")
    return merged


# ---------------------------------------------------------------------------------------------------------------------
# The outer process: one job at a time, read while it runs
# ---------------------------------------------------------------------------------------------------------------------


class _PEState:
    """What the outer process knows of one PE, from the file to which that PE appends its records."""

    def __init__(self, folder, pe):
        self.pe = pe
        self.records = folder / f"pe{pe}.records"
        self.log = folder / f"pe{pe}.log"
        self.stacks = folder / f"pe{pe}.stacks"
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
        return bool(self.pid) and _alive(self.pid, self.start_time)

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
        return [json.loads(line) for line in data.splitlines()]

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


def _backend_environment(configuration):
    """What the PEs of a job have in their environment for the backend."""
    if configuration.backend != "simulator":
        return {}
    from nvsym import simulator

    return simulator.environment(devices=os.environ.get("NVSYM_SIM_DEVICES") or configuration.pes)


class _LostError(Exception):
    """The job cannot deliver the result of the test; the arguments are the parts of its failure."""

    def __init__(self, message, parts=(), sections=()):
        super().__init__(message)
        self.parts = list(parts)
        self.sections = list(sections)


class _Job:
    """One MPI job that runs a list of tests, seen from outside."""

    def __init__(self, config, configuration, items, limits, folder):
        self.config = config
        self.configuration = configuration
        self.ids = [item.nodeid for item in items]
        self.limits = limits
        self.folder = folder
        self.next = 0  # the first test whose result was not yet taken
        self.states = [_PEState(folder, pe) for pe in range(configuration.pes)]
        self.started = time.monotonic()
        self.running_since = None
        self.failed_since = None
        self.acknowledged = False
        self.finished = False
        self.bad_exit: _PEsRepr | None = None  # what was wrong with the end of the job, after its last test
        spec = {
            "sys_path": sys.path,
            "folder": str(folder),
            "pes": configuration.pes,
            "nodes": configuration.nodes,
            "backend": "nvshmem" if configuration.backend == "simulator" else configuration.backend,
            "ids": self.ids,
            "hypothesis": _use_hypothesis(items),
            "args": _inner_arguments(config, items, folder),
            "options": _inner_options(config),
        }
        spec_path = folder / "job.json"
        spec_path.write_text(json.dumps(spec))
        # The PEs see the modules that this process sees, in the same order; -P: not what lies in the current folder.
        code = (
            "import json, sys; spec = json.load(open(sys.argv[1])); sys.path[:] = spec['sys_path']; "
            "from nvsym.testing import _pe_main; _pe_main(spec)"
        )
        self.log = folder / "job.log"
        with open(self.log, "wb") as log:
            self.processes = _Processes(
                configuration.pes,
                [sys.executable, "-P", "-c", code, spec_path],
                nodes=configuration.nodes,
                env=_backend_environment(configuration),
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
            (self.folder / "go").touch()
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
            self._forward_warning(record)
        elif kind == "end":
            state.ended = True

    def _forward_warning(self, record):
        """Show a warning of an inner session in the outer summary, once for all PEs."""
        key = (*record["category"], record["message"], record["filename"], record["lineno"], record["nodeid"])
        seen = self.config.stash[_RUNNER].warnings_seen
        if key in seen:
            return
        seen.add(key)
        module, name = record["category"]
        category = getattr(sys.modules.get(module), name, None) or type(name, (Warning,), {})
        try:
            message = category(record["message"])
        except TypeError:  # a category of the user's whose constructor wants more than a text
            category = type(name, (Warning,), {})
            message = category(record["message"])
        self.config.hook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": warnings.WarningMessage(message, category, record["filename"], record["lineno"]),
                "when": record["when"],
                "nodeid": record["nodeid"],
                "location": None,
            }
        )

    # Waiting

    def result(self, tick):
        """Wait for the next test and return each PE's reports; `tick(seconds)` is called while it lasts.

        Raises `_LostError` when the job cannot deliver them; the job has ended then.
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
            text = f"the inner session of {_numbers([pe for pe, _ in lacking])} does not have this test"
            raise _LostError(text, [("", text), ("", lacking[0][1])])
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
                index, f"{_numbers(failed)} failed, and {grace:g} s later {_numbers(others)} had not ended the test"
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

    def _stacks(self):
        """Have every PE that lives dump its Python stacks: [(state, text)]."""
        live = [state for state in self.states if state.lives()]
        # After Python's end, in MPI_Finalize, the signal would end the process.
        able = [state for state in live if _catches(state.pid, DUMP_SIGNAL)]
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
            dumped.append((state, _shorten_stacks(_read(state.stacks)) or f"(none: {why})"))
        return dumped

    def _expire(self, index, what):
        """Get every PE's stacks, kill the job and raise."""
        stacks = self._stacks()
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
            parts += _failure_parts(item_like, self.configuration.pes, failures)[0]
        parts += stacks
        for state in self.states:
            # pytest's own line about the test aside, that is what the process said when it died.
            text = _shorten_stacks(
                _read_tail(state.log, offset=state.log_offset).removeprefix(self.ids[index]).lstrip()
            )
            if text and not re.fullmatch(r"[A-Z]+( \(.*\))? *(\[ *\d+%\])?", text):
                parts.append((f"log of PE {state.pe}", text))
        if text := _read_tail(self.log):
            parts.append(("output of the job", text))
        sections = [section for state in self.states for section in state.captured_sections()]
        sections += _sections(self.configuration.pes, failures)
        self._close()
        raise _LostError(what, parts, sections)

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
                text += f"; {_numbers(quiet)} did not end the session"
            self._bad_exit(text)

    def _expire_exit(self):
        stacks = [(f"stacks of PE {state.pe} of {self.configuration.pes}", text) for state, text in self._stacks()]
        self.kill()
        self._close()
        self._bad_exit(f"the job did not end within {EXIT_LIMIT:g} s after its last test", stacks)

    def _bad_exit(self, text, parts=()):
        parts = [("", text), *parts]
        for state in self.states:
            if tail := _read_tail(state.log, offset=state.log_offset, lines=25):
                parts.append((f"log of PE {state.pe}", tail))
        if tail := _read_tail(self.log):
            parts.append(("output of the job", tail))
        self.bad_exit = _PEsRepr(parts, None)

    def stop(self, patience=3.0):
        """End a job whose remaining tests nobody wants: in order if it does so within `patience` seconds."""
        if self.finished:
            return
        (self.folder / "stop").touch()
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


def _shorten_stacks(text):
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


def _use_hypothesis(items):
    return any(getattr(item.function, "is_hypothesis_test", False) for item in items)


def _inner_arguments(config, items, folder):
    """The command line of the inner sessions: what must be known before pytest is configured."""
    option = config.option
    args = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:pytest_cov", "-o", "addopts="]
    if not _use_hypothesis(items):
        args += ["-p", "no:hypothesispytest"]  # importing it takes each PE longer than all the rest of its start
    for plugin in option.plugins:
        args += ["-p", plugin]
    for pair in option.override_ini or []:
        args += ["-o", pair]
    for rule in option.pythonwarnings or []:
        args += ["-W", rule]
    if config.inipath:
        args += ["-c", str(config.inipath)]
        if option.confcutdir:
            args.append(f"--confcutdir={option.confcutdir}")
    else:
        # Without this a file near the tests might be taken that the outer session did not take.
        args += ["-c", os.devnull, f"--confcutdir={option.confcutdir or config.rootpath}"]
    args += [f"--rootdir={config.rootpath}", f"--import-mode={option.importmode}", f"--assert={option.assertmode}"]
    if option.noconftest:
        args.append("--noconftest")
    args += ["--capture=fd", f"--basetemp={folder}/tmp-pe%PE%"]
    return args + list(dict.fromkeys(str(item.path) for item in items))


# Options of the outer session that the inner ones must not follow, and what they have instead.
_INNER_OPTIONS = {
    "color": "no",
    "collectonly": False,
    "continue_on_collection_errors": True,
    "deselect": None,
    "dist": "no",
    "durations": None,
    "keyword": "",
    "log_file": None,
    "markexpr": "",
    "maxfail": 0,
    "numprocesses": None,
    "pastebin": None,
    "reportchars": "",
    "stepwise": False,
    "trace": False,
    "tx": [],
    "usepdb": False,
    "verbose": 1,
    "xmlpath": None,
}
# Options that are on the inner command line already, or that belong to the outer process.
_OUTER_OPTIONS = {
    "assertmode", "basetemp", "capture", "confcutdir", "debug", "file_or_dir", "help", "importmode", "inifilename",
    "noconftest", "override_ini", "plugins", "pythonwarnings", "rootdir", "version",
}  # fmt: skip


def _inner_options(config):
    """All other options, those of the user's own plugins included, as they are in the outer session."""
    options = {}
    for name, value in vars(config.option).items():
        if name not in _OUTER_OPTIONS:
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                continue  # an object of some plugin: only plain values travel
            options[name] = value
    options.update(_INNER_OPTIONS)
    options["nvsym_backend"] = ",".join(_backends(config) or ()) or None
    return options


class _Runner:
    """Runs the `pes` tests of the outer session, a batch of neighbours with one configuration per job."""

    def __init__(self, config):
        self.config = config
        self.job: _Job | None = None
        self.folders: pathlib.Path | None = None
        self.broken = {}  # configuration: why its jobs do not start
        self.warnings_seen = set()

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
        except _LostError as lost:
            if not all(state.ready for state in job.states):
                self.broken[job.configuration] = str(lost), item.nodeid
            crash = _Crash(item.location[0], (item.location[1] or 0) + 1, str(lost))
            reports = self._lost_reports(item, job, _PEsRepr(lost.parts, crash), lost.sections)
        else:
            reports = _merge(item, job.configuration.pes, per_pe)
        if job.bad_exit is not None:
            job.bad_exit.reprcrash = _Crash(item.location[0], (item.location[1] or 0) + 1, job.bad_exit.parts[0][1])
            reports[-1] = _make_report(item, "teardown", "failed", job.bad_exit)
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
        wish = _wish_of(item)
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
        if configuration.nodes > 1 and (reason := _simulates_nodes()):
            path, lineno, _ = item.location
            return [
                _make_report(item, "setup", "skipped", (str(path), (lineno or 0) + 1, f"Skipped: {reason}")),
                _make_report(item, "teardown", "passed"),
            ]
        if configuration in self.broken:
            why, first = self.broken[configuration]
            return self._plain_failure(item, f"{why}; the first test of it, {first}, has the details")
        items = self._batch(item, wish)
        self.job = _Job(
            self.config, configuration, items, [self._limit(each) for each in items], self._folder(configuration)
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
            other = _wish_of(each)
            if other is None or other.own_job or other.configuration != wish.configuration:
                break
            batch.append(each)
        return batch

    def _limit(self, item):
        wish = _wish_of(item)
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
        longrepr = _PEsRepr([("", text)], _Crash(item.location[0], (item.location[1] or 0) + 1, text.splitlines()[0]))
        return [_make_report(item, "setup", "failed", longrepr), _make_report(item, "teardown", "passed")]

    @staticmethod
    def _lost_reports(item, job, longrepr, sections):
        """Reports of a test during which the job was lost: it failed, in whichever phase."""
        reports = [r for state in job.states for r in state.reports.get(job.ids.index(item.nodeid), [])]
        duration = time.monotonic() - (job.running_since or job.started)
        failure = _make_report(item, "call", "failed", longrepr, like=reports, sections=sections)
        failure.duration = duration
        return [_make_report(item, "setup", "passed"), failure, _make_report(item, "teardown", "passed")]

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


# ---------------------------------------------------------------------------------------------------------------------
# The inner process: one PE of the job
# ---------------------------------------------------------------------------------------------------------------------

_this_pe = None  # the _PE of this process, in a job of the plugin

# What a PE is about when it votes.
_COLLECTED, _CTX_SETUP, _CTX_TEARDOWN, _END_OF_TEST = range(4)


class _PE:
    """One PE of a job of tests: a plugin of its inner pytest session."""

    def __init__(self, spec, MPI):
        self.spec = spec
        self.MPI = MPI
        self.pe = MPI.COMM_WORLD.Get_rank()
        self.pes = MPI.COMM_WORLD.Get_size()
        self.backend = spec["backend"]
        self.folder = pathlib.Path(spec["folder"])
        self.index = {nodeid: i for i, nodeid in enumerate(spec["ids"])}
        self.current = -1
        self.failed = False  # this PE, in the current test
        self.stopped = False
        self.collect_errors = []
        self.held = None  # duplicates of the descriptors under capture
        self.fd = os.open(self.folder / f"pe{self.pe}.records", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        # Nobody else's messages can be mistaken for a vote, and a vote for nobody else's.
        self.comm = MPI.COMM_WORLD.Dup()

    def record(self, kind, **data):
        """Append one line for the outer process; it is in the file when this returns."""
        os.write(self.fd, json.dumps({"kind": kind, **data}, default=repr).encode() + b"\n")

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
        stop = self.pe == 0 and (self.folder / "stop").exists()
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
            votes = self.vote(_END_OF_TEST)
            # A PE that skipped or failed early meets the others in a vote about `ctx`; then they all come here.
            if not self.missing_at(votes, _END_OF_TEST):
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
            while not (self.folder / "go").exists() and time.monotonic() < deadline:
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


def _check_nodes(comm, MPI, nodes):
    """The launcher was asked for simulated nodes: MPI must see them."""
    shared = comm.Split_type(MPI.COMM_TYPE_SHARED)
    leader = array.array("q", [shared.Get_rank() == 0])
    found = array.array("q", [0])
    comm.Allreduce([leader, MPI.INT64_T], [found, MPI.INT64_T])
    shared.Free()
    if found[0] != nodes:
        raise SystemExit(f"nvsym: {nodes} simulated nodes were asked for, MPI sees {found[0]}")


def _pe_main(spec):
    """What every process of a job runs."""
    global _this_pe
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.Get_size() != spec["pes"]:
        raise SystemExit(
            f"nvsym: a job of {spec['pes']} PEs was started, but mpi4py sees {world.Get_size()} "
            f"({MPI.Get_library_version().splitlines()[0]}): the launcher belongs to another MPI; "
            "NVSYM_TEST_MPI selects one"
        )
    me = world.Get_rank()
    log = os.open(f"{spec['folder']}/pe{me}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    # Open to the end: a PE that hangs at exit shows where, too.
    stacks = os.open(f"{spec['folder']}/pe{me}.stacks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.register(DUMP_SIGNAL, file=stacks, all_threads=True)
    _this_pe = pe = _PE(spec, MPI)
    pe.record("hello", pid=os.getpid(), start_time=int(_stat("self")[19]), segments=sorted(_segments("self")))
    if spec["nodes"] > 1:
        _check_nodes(pe.comm, MPI, spec["nodes"])
    code = pytest.main([arg.replace("%PE%", str(me)) for arg in spec["args"]], plugins=[pe])
    fine = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
    if code not in fine and not pe.stopped:
        # The others wait for this PE in a vote, and would for ever.
        print(f"nvsym: the inner session of PE {me} ended with {code!r}", flush=True)
        world.Abort(1)
        os._exit(1)  # some MPIs return from Abort, and end the process a little later
    pe.record("end", code=int(code))
    if not MPI.Is_finalized():
        pe.comm.Free()


# ---------------------------------------------------------------------------------------------------------------------
# The plugin
# ---------------------------------------------------------------------------------------------------------------------

_RUNNER = pytest.StashKey[_Runner]()


def pytest_addoption(parser):
    group = parser.getgroup("nvsym", "tests on N PEs (nvsym)")
    group.addoption(
        "--nvsym-backend",
        metavar="NAMES",
        default=None,
        help=f"backends on which tests marked `pes` run, a comma list of {', '.join(BACKENDS)} "
        "(default: the environment's NVSYM_TEST_BACKENDS, else host)",
    )
    parser.addini("nvsym_timeout", "seconds that a test marked `pes` may take (default: 60)", default="60")
    parser.addini(
        "nvsym_grace", "seconds that the other PEs have to end a test that failed on one PE (default: 10)", default="10"
    )


def _backends(config):
    """The names of the backends that the user chose, in the order given; None where he did not."""
    text = config.getoption("nvsym_backend")
    source = "--nvsym-backend"
    if text is None:
        text, source = os.environ.get("NVSYM_TEST_BACKENDS"), "NVSYM_TEST_BACKENDS"
        if not text:
            return None
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names or (unknown := [name for name in names if name not in BACKENDS]):
        what = f"no backend {', '.join(unknown)}" if names else "no name"
        raise pytest.UsageError(f"{source}={text!r}: {what}; there are {', '.join(BACKENDS)}")
    return names


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "pes(*n, nodes=1, timeout=None, own_job=False, backends=None): run the test on n PEs, once for each n, as a job "
        "of MPI processes, on that many simulated nodes, in at most `timeout` seconds; `own_job`: in a job of its own; "
        "`backends`: those on which it can run, the first of them where the user chose none.",
    )
    _backends(config)
    for name in ("nvsym_timeout", "nvsym_grace"):
        try:
            ok = float(config.getini(name)) > 0
        except ValueError:
            ok = False
        if not ok:
            raise pytest.UsageError(f"{name} = {config.getini(name)!r}: a number of seconds above 0 is needed")
    if _this_pe is None:
        config.stash[_RUNNER] = _Runner(config)


def pytest_unconfigure(config):
    # Also after Ctrl-C or an internal error: no job outlives the session.
    if (runner := config.stash.get(_RUNNER, None)) is not None:
        runner.close()


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc):
    # The marks nearest to the test count; those of its class or module are for tests without.
    marks = [(node, mark) for node, mark in metafunc.definition.iter_markers_with_node("pes")]
    wishes = {}
    for node, mark in reversed(marks):
        if node is marks[0][0]:
            for wish in _wishes(mark, _backends(metafunc.config)):
                wishes[wish.configuration] = wish
    if marks:
        metafunc.fixturenames.append(PARAM)
        metafunc.parametrize(PARAM, list(wishes.values()), ids=[str(configuration) for configuration in wishes])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    wishes = {id(item): wish for item in items if (wish := _wish_of(item))}
    if config.pluginmanager.hasplugin("timeout"):
        # pytest-timeout would count the start of the job, and cannot end one: the plugin keeps the limits itself.
        for item in items:
            if id(item) in wishes:
                item.add_marker(pytest.mark.timeout(0), append=False)
    if _this_pe is None:
        # Neighbours of one configuration share a job. Ordinary tests come first, small jobs before large ones.
        def place(item):
            wish = wishes.get(id(item))
            if wish is None:
                return (0,)
            configuration = wish.configuration
            return (1, BACKENDS.index(configuration.backend), configuration.nodes, configuration.pes, wish.own_job)

        items.sort(key=place)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if _this_pe is not None or _wish_of(item) is None:
        return None
    item.config.stash[_RUNNER].run(item, nextitem)
    return True


def pytest_sessionfinish(session, exitstatus):
    if (runner := session.config.stash.get(_RUNNER, None)) is not None:
        runner.close(patience=0.0 if exitstatus == pytest.ExitCode.INTERRUPTED else 3.0)


def _pe_of(request):
    """The PE that this process is, for a fixture that has no meaning elsewhere."""
    if _this_pe is None:
        pytest.fail(f"the fixture {request.fixturename!r} needs a test marked @pytest.mark.pes(...)", pytrace=False)
    return _this_pe


@pytest.fixture(scope="session")
def nvsym_backend(request):
    """Name of the backend on which this job's tests run."""
    return _pe_of(request).backend


@pytest.fixture(scope="session")
def nvsym_context(request, nvsym_backend):
    """The job's `SHMEMContext`, from `nvsym.init` at its first use to `nvsym.finalize` at the end of the session.

    For fixtures of a wider scope than a test; a test takes `ctx`.
    """
    import nvsym

    yield nvsym.init(backend=nvsym_backend)
    nvsym.finalize()


@pytest.fixture
def ctx(request):
    """The job's `SHMEMContext`. After the test the heap must have as many live buffers as before it."""
    pe = _pe_of(request)
    if absent := pe.missing_at(pe.vote(_CTX_SETUP), _CTX_SETUP):
        pytest.fail(f"{_numbers(absent)} did not get as far as the fixture `ctx`", pytrace=False)
    context = request.getfixturevalue("nvsym_context")
    before = context.heap.live
    yield context
    votes = pe.vote(_CTX_TEARDOWN)
    if pe.missing_at(votes, _CTX_TEARDOWN):
        return  # on some PE the context could not be had: collect, which is collective, would wait for it

    import nvsym

    gc.collect()
    context.device.synchronize()  # what a stream is about to be done with is not left behind
    nvsym.collect()
    live = context.heap.live
    # A test that failed somewhere has its report, and may well have left something.
    if live != before and not any(failed for _, _, failed, _ in votes):
        pytest.fail(
            f"{live} buffers are live on the symmetric heap after the test, {before} were before", pytrace=False
        )


@pytest.fixture(name="mpirun")
def _mpirun_fixture(tmp_path):
    """`nvsym.testing.mpirun`, in the test's own temporary folder."""

    def run(n, script_or_code, *args, **options):
        __tracebackhide__ = True
        return mpirun(n, script_or_code, *args, **{"cwd": tmp_path, **options})

    return run
