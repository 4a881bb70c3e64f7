# SPDX-License-Identifier: Apache-2.0
"""``python -m nvsym simulate``: a program, or a whole MPI job, on simulated GPUs."""

import argparse
import math
import os
import sys

from . import environment, library_path

_DESCRIPTION = """Run a command on simulated GPUs, such as: python -m nvsym simulate --devices 4 -- mpirun -n 4 python script.py.
Every process that the command starts finds the simulated CUDA driver and NVSHMEM; nvsym's backend 'auto' then takes NVSHMEM.
docs/simulator.md says what they check."""


def _parser():
    parser = argparse.ArgumentParser("python -m nvsym simulate", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--devices", type=int, metavar="N", help="GPUs of a node (NVSYM_SIM_DEVICES; default 8)")
    parser.add_argument("--nodes", type=int, metavar="N", help="nodes to which the PEs are dealt in turn (with MPICH)")
    parser.add_argument(
        "--late", type=float, metavar="SECONDS", help="how long streams let work lie that nobody waits for"
    )
    parser.add_argument("--fail", metavar="PLAN", help="FUNCTION:WHICH:ACTION[@peN], several by semicolons")
    parser.add_argument("--log", metavar="FOLDER", help="an existing folder for the call log of each process")
    parser.add_argument("--by-name", action="store_true", help="also for programs that open libcuda.so.1 by its name")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="another setting, NVSYM_SIM_NAME"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run, after --")
    return parser


def settings(argv):
    """The command, and the environment variables that it gets, from the arguments."""
    parser = _parser()
    options = parser.parse_args(argv)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no command; write it after --, such as: -- mpirun -n 4 python script.py")
    if options.devices is not None and not 1 <= options.devices <= 64:
        parser.error(f"--devices {options.devices}: from 1 to 64")
    if options.nodes is not None and not 1 <= options.nodes <= 64:
        parser.error(f"--nodes {options.nodes}: from 1 to 64")
    if options.late is not None and not 0 <= options.late < math.inf:
        parser.error(f"--late {options.late}: a number of seconds from 0 on")
    if options.log is not None and not os.path.isdir(options.log):
        parser.error(f"--log {options.log}: there is no such folder")
    more = {}
    for text in options.set:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            parser.error(f"--set {text}: write NAME=VALUE")
        if name.lower() == "by_name":
            parser.error(f"--set {text}: by_name is no setting of the simulator; there is the option --by-name")
        more[name.lower()] = value
    for name in ("devices", "late", "fail", "log", "nodes"):
        value = getattr(options, name)
        if value is not None:
            more[name] = os.path.abspath(value) if name == "log" else value
    try:
        found = environment(by_name=options.by_name, **more)
    except ValueError as error:
        parser.error(f"--set: {error}")
    if options.nodes is not None:
        found["MPIR_CVAR_NUM_CLIQUES"] = str(options.nodes)  # MPICH then has as many groups that share memory
    return command, found


def main(argv=None):
    """Run the command in place of this process; returns an exit status only where that cannot be done."""
    command, found = settings(sys.argv[1:] if argv is None else argv)
    if not os.path.exists(library_path()):
        print(f"nvsym: the simulator was not built: there is no {library_path()}", file=sys.stderr)
        return 1
    os.environ.update(found)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"nvsym: {command[0]} cannot be run: {error.strerror}", file=sys.stderr)
        return 127
