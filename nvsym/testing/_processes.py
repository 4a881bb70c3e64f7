# SPDX-License-Identifier: Apache-2.0
"""Starts an MPI job, finds all of its processes, and ends all of them."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
import uuid

from . import _launcher, _procfs

TOKEN = "NVSYM_TEST_JOB"  # in the environment of every process of a job: finds them all, whoever their parent is by now
RANK_VARIABLES = {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"}  # launchers give one of them to each program

_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _end_with_parent():
    """Run in the launcher between fork and exec: it gets SIGTERM, and ends its job, when pytest is killed."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Processes:
    """The launcher of one MPI job and every process that it started, on this machine."""

    def __init__(self, n, program, *, nodes, env, cwd, stdout, stderr):
        self.launcher = _launcher.find()
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
        while time.monotonic() < deadline and any((_procfs.stat(pid) or (b"Z",))[0] != b"Z" for pid in programs):
            time.sleep(0.02)
        _send(own, signal.SIGCONT)

    def note_segments(self):
        """Remember the shared memory of the job: an MPI that is killed leaves its own behind."""
        for pid in self.find()[1]:
            self.segments.update(_procfs.segments(pid))

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
