# SPDX-License-Identifier: Apache-2.0
"""The launcher and the MPI library of a job belong together: how they are found, refused, and used."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from nvsym import _launch
from nvsym.errors import NotAvailableError

FILE = pathlib.Path(_launch.__file__)

JOB = """
import sys
import numpy as np
from mpi4py import MPI
mine, total = np.array([MPI.COMM_WORLD.rank + 1.0]), np.zeros(1)
MPI.COMM_WORLD.Allreduce(mine, total)
if MPI.COMM_WORLD.rank == 0:
    library = MPI.Get_library_version().splitlines()[0].strip("\\0 ")  # Open MPI's ends in a NUL
    print(MPI.COMM_WORLD.size, total[0], library, sys.argv[1:], flush=True)
"""


@pytest.fixture
def clean(monkeypatch):
    """No answer of an earlier test, and no choice of MPI from outside."""
    for name in ("MPI4PY_LIBMPI", "MPI4PY_MPIABI"):
        monkeypatch.delenv(name, raising=False)
    caches = (_launch._find, _launch._identify, _launch._probe_in)
    for cache in caches:
        cache.cache_clear()
    yield monkeypatch
    for cache in caches:
        cache.cache_clear()


@pytest.fixture(params=_launch.KINDS)
def kind(request, clean):
    try:
        _launch.find_launcher(request.param)
    except NotAvailableError as error:
        if request.param == "mpich":
            raise  # the development environment has it
        pytest.skip(f"no Open MPI: {error}")
    return request.param


def fake_launcher(folder, says, name="mpiexec"):
    program = folder / "bin" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    return program


def run_cli(*args, **env):
    return subprocess.run(
        [sys.executable, "-P", str(FILE), *map(str, args)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_job_sees_all_its_processes(kind, tmp_path):
    script = tmp_path / "job.py"
    script.write_text(JOB)
    launcher = _launch.find_launcher(kind)
    result = subprocess.run(
        [*launcher.command, "-n", "4", sys.executable, script, "a b"],
        env=launcher.environ(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.strip() == f"4 10.0 {launcher.library_version} ['a b']"


def test_library_is_that_of_the_launcher(kind):
    launcher = _launch.find_launcher(kind)
    assert launcher.kind == kind
    assert launcher.version in launcher.library_version
    assert pathlib.Path(launcher.library).is_file()
    assert os.access(launcher.command[0], os.X_OK)


def test_the_calling_process_loads_no_mpi():
    code = "import sys; from nvsym._launch import find_launcher as f; f('mpich'); print('mpi4py.MPI' in sys.modules)"
    folder = FILE.parents[1]
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=True, timeout=120
    )
    assert result.stdout.strip() == "False"


def test_unknown_name():
    with pytest.raises(ValueError, match="'mvapich' is unknown; there are mpich, openmpi"):
        _launch.find_launcher("mvapich")


def test_no_launcher_at_all(clean, tmp_path):
    clean.setenv("PATH", str(tmp_path))
    clean.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(
        NotAvailableError, match=r"no MPI launcher .* was found:\n  no mpiexec or mpirun on PATH"
    ) as raised:
        _launch.find_launcher()
    assert "python -m pip install mpich" in str(raised.value)


def test_unknown_launcher_is_named(clean, tmp_path):
    program = fake_launcher(tmp_path, "a launcher of the future")
    clean.setenv("PATH", str(program.parent))
    clean.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(NotAvailableError, match="'a launcher of the future'") as raised:
        _launch.find_launcher()
    assert str(program) in str(raised.value)


def test_launcher_of_another_version_is_refused(clean, tmp_path):
    real = _launch.find_launcher("mpich")
    program = fake_launcher(tmp_path, "HYDRA build details:\n    Version:            3.99.1")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmpi.so.12").symlink_to(real.library)
    clean.setenv("PATH", str(program.parent))
    clean.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(NotAvailableError, match=r"MPICH 3\.99\.1.*another version"):
        _launch.find_launcher("mpich")


def test_launcher_of_another_mpi_is_refused(clean, tmp_path):
    """An mpirun of Open MPI whose folder holds MPICH's library: the wrong-mpirun case."""
    real = _launch.find_launcher("mpich")
    program = fake_launcher(tmp_path, "mpirun (Open MPI) 4.1.4", "mpirun")
    clean.setenv("MPI4PY_LIBMPI", real.library)
    clean.setenv("PATH", str(program.parent))
    clean.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(NotAvailableError, match="mpi4py loads MPICH") as raised:
        _launch.find_launcher()
    assert f"MPI4PY_LIBMPI={real.library}" in str(raised.value)


def test_a_refused_launcher_does_not_hide_the_next(clean, tmp_path):
    program = fake_launcher(tmp_path, "a launcher of the future")
    clean.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    assert _launch.find_launcher("mpich").command[0] != str(program)


@pytest.mark.parametrize(
    ("version", "flags"),
    [
        ("4.1.4", ["--oversubscribe", "--bind-to", "none"]),
        ("5.0.11", ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]),
        ("10.0", ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]),
    ],
)
@pytest.mark.parametrize("uid", [0, 1000])
def test_open_mpi_flags(clean, version, flags, uid):
    clean.setattr(os, "geteuid", lambda: uid)
    command, env = _launch._how("openmpi", version, "/opt/mpirun")
    assert command == ["/opt/mpirun", *flags]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    assert env == (root if uid == 0 else {})


def test_environ_drops_what_would_undo_it():
    launcher = _launch.Launcher("mpich", "5", ["mpiexec"], {"MPI4PY_LIBMPI": "/lib/libmpi.so.12"}, "", "")
    assert launcher.environ({"MPI4PY_MPIABI": "openmpi", "HOME": "/h"}) == {
        "MPI4PY_LIBMPI": "/lib/libmpi.so.12",
        "HOME": "/h",
    }


def test_command_line(kind, tmp_path):
    script = tmp_path / "job.py"
    script.write_text(JOB)
    result = run_cli("-n", 3, "--mpi", kind, "--", script, "-n", "x")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("3 6.0 ")
    assert result.stdout.rstrip().endswith("['-n', 'x']")


def test_command_line_finds_the_package_of_a_source_tree(clean, tmp_path):
    if not (FILE.parents[1] / "setup.py").is_file():
        pytest.skip("nvsym is installed, not in a source tree")
    result = run_cli("--", "-c", "import sys; print(sys.path[1])", PYTHONPATH=str(tmp_path))
    assert result.stdout.strip() == str(FILE.parents[1]), result.stderr


def test_command_line_shows(kind):
    result = run_cli("--mpi", kind, "--show")
    assert result.returncode == 0, result.stderr
    launcher = _launch.find_launcher(kind)
    assert launcher.command[0] in result.stdout
    assert launcher.library in result.stdout


def test_command_line_mistakes(tmp_path):
    assert "at least one process" in run_cli("-n", 0, "--", "x.py").stderr
    assert "no program" in run_cli("-n", 2).stderr
    command = run_cli("-n", 2, "--", "python", "x.py")  # as after mpirun
    assert command.returncode == 2
    assert "python: no such file; write what Python is to run" in command.stderr
    nothing = run_cli("--mpi", "openmpi", "--show", PATH=str(tmp_path))
    if shutil.which("mpirun", path=os.path.join(sys.prefix, "bin")) is None or nothing.returncode:
        assert nothing.returncode == 1
        assert "no Open MPI launcher" in nothing.stderr


def test_exit_status_is_that_of_the_program(kind):
    result = run_cli("-n", 2, "--mpi", kind, "--", "-c", "raise SystemExit(3)")
    assert result.returncode == 3, result.stdout + result.stderr
