# SPDX-License-Identifier: Apache-2.0
"""`mpirun`: one program, one job, run to its end."""

import os
import pathlib
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping

import pytest

from . import _this_process
from ._completed_job import CompletedJob
from ._launcher import simulates_nodes
from ._processes import Processes
from ._text import read_text

_TO_FILES = 'pe=${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-$PMIX_RANK}}; exec "$@" >>"$0/stdout.$pe" 2>>"$0/stderr.$pe"'


def mpirun(
    n: int,
    script_or_code: str | os.PathLike[str],
    *args: object,
    nodes: int = 1,
    env: Mapping[str, object] | None = None,
    timeout: float = 30.0,
    check: bool = True,
    cwd: str | os.PathLike[str] | None = None,
) -> CompletedJob:
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
    if _this_process.pe is not None:
        pytest.fail("mpirun starts a job of its own: call it from an ordinary test, not from one marked `pes`")
    if nodes > 1 and (reason := simulates_nodes()):
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
            job = Processes(n, wrapped, nodes=nodes, env=added, cwd=cwd, stdout=stdout, stderr=stderr)
        try:
            expired = not job.wait(timeout)
            if expired:
                job.abort_programs()
        finally:
            elapsed = time.monotonic() - began
            job.kill()
        command = [*job.launcher.command, "-n", str(n), *map(str, program)]
        out, err = ([read_text(folder / f"{name}.{pe}") for pe in range(n)] for name in ("stdout", "stderr"))
        done = CompletedJob(
            args=command,
            returncode=job.popen.returncode,
            stdout="".join(out) + read_text(folder / "stdout"),
            stderr="".join(err) + read_text(folder / "stderr"),
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
