# SPDX-License-Identifier: Apache-2.0
"""``python -m nvsym info``: what a report of a problem needs, in one command.

Every PE finds out what it has, PE 0 prints all of it. Whatever fails becomes a line of the report: one that stops at
the first thing that is wrong does not show it.
"""

import argparse
import atexit
import importlib
import importlib.metadata
import io
import json
import os
import platform
import shlex
import socket
import sys
import warnings
from typing import Any

from . import _libfind, _nvml, _settings
from ._names import first_process
from ._version import __version__
from .errors import NotAvailableError, SettingError
from .kernels import compiler

__all__ = ["collect", "main", "render"]

GATHER_LIMIT = 60.0  # seconds that PE 0 waits for what the others report
WIDTH = 120  # columns where the output is no terminal

# What the launchers leave in the environment of a process.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_SIZE", "Open MPI"),
    ("MPI_LOCALNRANKS", "MPICH"),
    ("PMI_SIZE", "MPICH"),
    ("PMIX_SIZE", "PMIx"),
    ("SLURM_NTASKS", "Slurm"),
)


# ---- what one PE knows ----------------------------------------------------------------------------------------------


def _versions():
    found = {"nvsym": __version__, "Python": platform.python_version()}
    for name in ("numpy", "mpi4py", "ml_dtypes"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not found: no such package is installed"
    found["Cython (build)"] = _cython()
    found["platform"] = platform.platform()
    return found


def _cython():
    """The Cython that built the extension modules, which name their shared types after it."""
    from . import job

    for value in vars(job).values():
        module = type(value).__module__
        if module.startswith("_cython_"):
            return ".".join(module.removeprefix("_cython_").split("_"))
    return "unknown: nvsym.job has no function of Cython's"


def _library(module):
    """A library that nvsym opens itself: its place and version, or why there is none."""
    try:
        info = importlib.import_module(f"{__package__}.{module}").library_info()
    except (NotAvailableError, ImportError, OSError) as error:
        return {"found": False, "reason": str(error).rstrip()}
    return {
        "found": True,
        "path": info.path,
        "version": info.version,
        "found_by": info.found_by,
        "missing": list(info.missing),
        "also_loaded": list(info.also_loaded),
    }


def _mpi(launcher):
    """The MPI library that mpi4py loads, or why there is none. Begins MPI, unless it is not the launcher's."""
    try:
        import mpi4py

        # Loaded first and begun later: under a launcher of another MPI the beginning may end the process.
        if "mpi4py.MPI" not in sys.modules:
            mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        return {"found": False, "reason": f"mpi4py cannot load one: {error}"}
    text = MPI.Get_library_version().strip("\0 \n")
    found = {
        "found": True,
        # Where MPI is linked into mpi4py itself, that file is its place.
        "path": (_libfind.loaded_files("libmpi.so") or _libfind.loaded_files("libmpi") or [MPI.__file__])[0],
        "version": " ".join(text.splitlines()[0].split()),
        "vendor": MPI.get_vendor()[0],
        "standard": ".".join(map(str, MPI.Get_version())),
        "thread_level": None,
    }
    if not MPI.Is_initialized() and not (launcher == "Open MPI" and found["vendor"] != "Open MPI"):
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        atexit.register(MPI.Finalize)
    if MPI.Is_initialized():
        levels = {MPI.THREAD_SINGLE: "SINGLE", MPI.THREAD_FUNNELED: "FUNNELED", MPI.THREAD_SERIALIZED: "SERIALIZED"}
        found["thread_level"] = levels.get(MPI.Query_thread(), "MULTIPLE")
    return found


def _started_by():
    """The launcher that started this process and the number of processes that it tells of, or (None, 1)."""
    for name, launcher in _LAUNCHERS:
        text = os.environ.get(name, "")
        if text.isdigit():
            return launcher, int(text)
    return None, 1


def _settings_rows():
    """Every setting, and the errors of those that cannot be taken."""
    good, bad, errors = {}, {}, []
    for name, text in os.environ.items():
        if not name.startswith("NVSYM_"):
            continue
        try:
            _settings.load({name: text})
        except SettingError as error:
            errors.append(str(error))
            bad[name] = text
        else:
            good[name] = text
    rows = [
        {
            "name": name,
            "value": bad.get(name, value),
            "source": "environment (not taken)" if name in bad else source,
            "meaning": meaning,
        }
        for name, value, source, meaning in _settings.load(good).rows()
    ]
    return rows, errors


def _job_facts(context, facts):
    """Add what the running job says of this PE."""
    pe = context.my_pe()
    device, heap = context.device, context.heap
    facts.update(
        pe=pe,
        node=context.nodes()[pe],
        backend=context.backend,
        device={
            "name": device.name,
            "ordinal": device.ordinal,
            "uuid": str(device.uuid),
            "is_host": bool(device.is_host),
        },
        heap={
            name: int(getattr(heap, name))
            for name in ("size", "used", "free", "largest_free", "high_water", "live", "deferred")
        },
        links=_links(context),
        capabilities=[
            {"name": name, "available": bool(available), "reason": reason}
            for name, available, reason in context.capabilities()
        ],
    )


def _links(context):
    """How this PE's GPU is connected with those of the others on its node; None on the host."""
    me, nodes, devices = context.my_pe(), context.nodes(), context.devices()
    if devices[me].is_host:
        return None
    own = devices[me].uuid
    peers = [pe for pe in range(len(devices)) if pe != me and nodes[pe] == nodes[me]]
    others = list(dict.fromkeys(devices[pe].uuid for pe in peers if devices[pe].uuid != own))
    found, reason = _nvml.links(own, others)
    if found is None:
        return {"nvlinks": None, "mbps": None, "to": [], "reason": reason}
    ways = {own: "the same GPU", **dict(zip(others, found.to, strict=True))}
    return {
        "nvlinks": found.count,
        "mbps": found.mbps or None,
        "to": [{"pe": pe, "by": ways[devices[pe].uuid]} for pe in peers],
        "reason": None,
    }


def _pool_capability():
    """Whether the GPUs that this process sees could share a pool; no multicast call is made."""
    from .device import Device, number_of_gpus
    from .pool import SymmetricPool

    try:
        n = number_of_gpus()
        reason: str | None = "this process sees no usable GPU"
        if n > 0:
            reason = SymmetricPool.why_unsupported([Device(i) for i in range(n)])
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a line of the report
        n, reason = 0, f"{type(error).__name__}: {error}"
    return {
        "name": "symmetric_pool_in_process",
        "available": reason is None,
        "reason": reason or f"over the {n} GPUs that this process sees",
    }


def _own_facts():
    """What this PE reports, and the context of the job where there is one."""
    import nvsym

    settings, setting_errors = _settings_rows()
    launcher, launched = _started_by()
    mpi = _mpi(launcher)
    facts: dict[str, Any] = {
        "pe": None,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "cores": len(os.sched_getaffinity(0)),
        "node": None,
        "backend": None,
        "device": None,
        "heap": None,
        "links": None,
        "capabilities": [],
        "settings": settings,
        "errors": [f"setting: {error}" for error in setting_errors],
        "warnings": [],
        "versions": _versions(),
        "libraries": {"MPI": mpi, "CUDA driver": _library("_driver"), "NVSHMEM": _library("_nvshmem")},
        "kernels": compiler.cache_report(),
        "started_by": {"launcher": launcher, "processes": launched},
    }
    foreign = _foreign_launcher(launcher, mpi)
    if foreign:
        facts["warnings"].append(foreign)
    if mpi["found"] and mpi["thread_level"] is None:
        facts["errors"].append(
            f"init: not tried: {mpi['version']} can end a process that another MPI's launcher started"
        )
        return facts
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            _job_facts(nvsym.init(), facts)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the report is for
            facts["errors"].append(f"init: {type(error).__name__}: {error}")
    facts["capabilities"].append(_pool_capability())
    facts["warnings"] += [str(warning.message) for warning in caught]
    return facts


def _foreign_launcher(launcher, mpi):
    """What is wrong with the pair of launcher and library, or None."""
    if launcher not in ("Open MPI", "MPICH") or not mpi["found"]:
        return None
    of_open_mpi = mpi["vendor"] == "Open MPI"
    if of_open_mpi == (launcher == "Open MPI"):
        return None
    return (
        f"the launcher is that of {launcher}, the MPI library that mpi4py loads is {mpi['version']} at {mpi['path']}: "
        "they do not belong together, and each process is a job of its own"
    )


# ---- the report -----------------------------------------------------------------------------------------------------


def _launcher_to_use(mpi, warned):
    """The launcher that goes with the MPI that is loaded here."""
    from . import _launch

    if not mpi["found"]:
        return {"found": False, "reason": "there is no MPI"}
    try:
        launcher = _launch.find_launcher("openmpi" if mpi["vendor"] == "Open MPI" else "mpich")
    except NotAvailableError as error:
        return {"found": False, "reason": str(error)}
    if os.path.realpath(launcher.library) != os.path.realpath(mpi["path"]):
        warned.append(
            f"{launcher.command[0]} goes with {launcher.library}, but mpi4py has loaded {mpi['path']} here; "
            "start jobs with " + " ".join(f"{name}={value}" for name, value in launcher.env.items())
        )
    return {
        "found": True,
        "path": launcher.command[0],
        "version": launcher.version,
        "command": shlex.join(launcher.command),
    }


def collect():
    """The report of all PEs; collective.

    Returns
    -------
    dict or None
        On PE 0: ``job`` (backend, number of PEs and nodes), ``launcher``, ``warnings``, ``errors``, and ``pes``, a list
        with what each PE found; its values are plain, for JSON. None on the others.
    """
    own = _own_facts()
    rows, lost = [own], None
    if own["libraries"]["MPI"]["found"] and own["libraries"]["MPI"]["thread_level"]:
        from mpi4py import MPI

        from .agreement import Agreement

        if MPI.COMM_WORLD.Get_size() > 1:
            try:
                rows = Agreement(MPI.COMM_WORLD.Dup(), GATHER_LIMIT).gather(own, "gathering the report")
            except Exception as error:  # noqa: BLE001 - a PE that is gone is part of the report
                lost = f"gathering the report: {type(error).__name__}: {error}"
            if MPI.COMM_WORLD.Get_rank() != 0:
                return None
    for rank, row in enumerate(rows):
        if row["pe"] is None:
            row["pe"] = rank
    report: dict[str, Any] = {
        "job": {
            "backend": own["backend"],
            "n_pes": len(rows),
            "n_nodes": len({row["node"] for row in rows if row["node"] is not None}) or None,
        },
        "launcher": None,
        "warnings": [],
        "errors": [lost] if lost else [],
        "pes": rows,
    }
    report["launcher"] = _launcher_to_use(own["libraries"]["MPI"], report["warnings"])
    for kind in ("warnings", "errors"):
        report[kind] += [_said_by(pes, text, len(rows)) for text, pes in _grouped(row[kind] for row in rows)]
    for what in ("versions", "libraries"):
        for name in own[what]:
            values = _grouped([row[what].get(name)] for row in rows)
            if len(values) > 1:
                report["warnings"].append(
                    f"{name} is not the same on all PEs: {'; '.join(f'{_pes(p)} has {_short(v)}' for v, p in values)}"
                )
    return report


def _short(value):
    if isinstance(value, dict):
        return f"{value['version']} at {value['path']}" if value["found"] else "none"
    return str(value)


def _grouped(lists):
    """The different items of the PEs' lists, in the order of their first appearance, each with the PEs that have it."""
    found = {}
    for pe, items in enumerate(lists):
        for item in items:
            found.setdefault(json.dumps(item, sort_keys=True), (item, []))[1].append(pe)
    return list(found.values())


def _pes(pes):
    """PE numbers in words: ``"PE 0"``, ``"PEs 0-3, 6"``."""
    runs = []
    for pe in pes:
        if runs and runs[-1][1] == pe - 1:
            runs[-1][1] = pe
        else:
            runs.append([pe, pe])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"PE {text}" if len(pes) == 1 else f"PEs {text}"


def _said_by(pes, text, n_pes):
    return text if len(pes) == n_pes else f"{_pes(pes)}: {text}"


def _console():
    """(where to print, the text that is printed at the end or None)."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False), None
    # Under mpirun the output is a pipe, and a file goes with the report of a problem: plain, and no spaces at the ends.
    columns = os.environ.get("COLUMNS", "")
    text = io.StringIO()
    return Console(
        file=text, highlight=False, width=int(columns) if columns.isdigit() and int(columns) >= 40 else WIDTH
    ), text


def _table(columns, rows):
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=i == 0)
    for row in rows:
        # Paths and messages may hold brackets, which are no markup here.
        table.add_row(*(_text(cell) for cell in row))
    return table


def _text(cell):
    from rich.text import Text

    return Text(str(cell), style={"yes": "green", "no": "yellow"}.get(str(cell), ""))


def render(report):
    """Print a report as tables."""
    console, text = _console()
    pes = report["pes"]
    first, n = pes[0], len(pes)
    size = _settings.format_size

    def show(title, columns, rows):
        console.print(title, style="bold", markup=False)
        console.print(_table(columns, rows))
        console.print()

    show("Versions", ("what", "version"), first["versions"].items())
    libraries = []
    for name, library in first["libraries"].items():
        if library["found"]:
            libraries.append((name, library["version"], library["path"]))
            if library.get("missing"):
                libraries.append(("", "", f"without {', '.join(library['missing'])}"))
            libraries += [("", "", f"also loaded: {path}") for path in library.get("also_loaded", ())]
        else:
            libraries.append((name, "-", f"not found: {library['reason']}"))
    launcher = report["launcher"]
    libraries.append(
        ("launcher", launcher["version"], launcher["command"])
        if launcher["found"]
        else ("launcher", "-", f"not found: {launcher['reason']}")
    )
    kernels = first["kernels"]
    if kernels["folder"] is None:
        libraries.append(
            ("GPU kernels", kernels["compiler"], "not cached: there is no folder that is the user's alone")
        )
    else:
        cost = kernels["compile_seconds"]
        libraries.append(("GPU kernels", kernels["compiler"], f"cached in {kernels['folder']}"))
        libraries.append(
            (
                "",
                "",
                f"{kernels['entries']} compiled, {size(kernels['nbytes'])}; "
                + (
                    "a first call compiles; nvsym.warmup() does it ahead"
                    if cost is None
                    else f"a first call without an entry takes {cost:.1f} s (nvsym.warmup() pays it ahead)"
                ),
            )
        )
    show("Libraries" if n == 1 else "Libraries (as PE 0 has them)", ("what", "version", "where"), libraries)

    rows = []
    for row in pes:
        heap, device = row["heap"], row["device"]
        rows.append(
            (
                row["pe"],
                row["host"],
                row["pid"],
                "-" if row["node"] is None else row["node"],
                row["backend"] or "-",
                device["name"] if device else "-",
                f"{size(heap['used'])} of {size(heap['size'])}, {heap['live']} buffers" if heap else "-",
                row["cores"],
            )
        )
    backend = f"{report['job']['backend']} backend" if report["job"]["backend"] else "no backend: init failed"
    by = first["started_by"]
    started = f"started by the launcher of {by['launcher']}" if by["launcher"] else "started without a launcher"
    title = f"Job: {n} PE{'s' * (n > 1)}, {backend}, {started}"
    show(title, ("PE", "host", "pid", "node", "backend", "device", "heap in use", "cores"), rows)

    links = [(row["pe"], *_links_in_words(row["links"])) for row in pes if row["links"] is not None]
    if links:
        show("Links (as NVML reports them)", ("PE", "NVLinks up", "to the other PEs of its node"), links)
    capabilities = [
        (_which(c["name"], members, n), "yes" if c["available"] else "no", c["reason"])
        for c, members in _grouped(row["capabilities"] for row in pes)
    ]
    if capabilities:
        show("Capabilities", ("capability", "", "reason"), capabilities)
    settings = [
        (_which(s["name"], members, n), s["value"], s["source"], s["meaning"])
        for s, members in sorted(
            _grouped(row["settings"] for row in pes), key=lambda item: list(_settings.SETTINGS).index(item[0]["name"])
        )
    ]
    show("Settings", ("environment variable", "value", "source", "meaning"), settings)
    for kind, name in (("warnings", "WARNING"), ("errors", "ERROR")):
        for line in report[kind]:
            console.print(
                f"{name}: {line}", style="bold red" if kind == "errors" else "yellow", markup=False, soft_wrap=True
            )
    if text is not None:
        print("\n".join(line.rstrip() for line in text.getvalue().splitlines()), flush=True)


def _links_in_words(links):
    """The number and speed of a GPU's NVLinks, and which PEs it reaches how."""
    if links["reason"] is not None:
        return "-", f"not known: {links['reason']}"
    ways: dict[str, list[int]] = {}
    for way in links["to"]:
        ways.setdefault(way["by"], []).append(way["pe"])
    speed = f", {links['mbps'] / 1000:.1f} GB/s each way" if links["nvlinks"] and links["mbps"] else ""
    return f"{links['nvlinks']}{speed}", "; ".join(f"{_pes(pes)}: {way}" for way, pes in ways.items()) or "-"


def _which(name, members, n_pes):
    return name if len(members) == n_pes else f"{name} ({_pes(members)})"


def main(argv=None):
    """Print the report; returns the exit status: 1 where init fails or a setting is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m nvsym info",
        description="What nvsym finds here: versions, libraries, devices, capabilities with their reasons, heap use "
        "and settings. Under mpirun it is one report of all PEs. The exit status is 1 where a job cannot begin.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, and nothing else there")
    options = parser.parse_args(argv)
    report = collect()
    if report is None:
        return 0
    # Under a launcher of another MPI every process is PE 0 of its own job; one of them speaks for all.
    if len(report["pes"]) > 1 or first_process():
        if options.json:
            json.dump(report, sys.stdout, indent=1)
            print(flush=True)
        else:
            render(report)
    return 1 if report["errors"] else 0
