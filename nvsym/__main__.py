# SPDX-License-Identifier: Apache-2.0
"""``python -m nvsym``: what a user runs without writing a program."""

import sys

from ._names import choose
from ._version import __version__

COMMANDS = {
    "info": "versions, libraries, devices, capabilities with their reasons, and settings of a job",
    "bench": "what operations cost, beside other libraries in the same job",
    "simulate": "run a program or a job on simulated GPUs",
}

_EPILOG = "info and bench also run under mpirun, as one job of all PEs.\npython -m nvsym --version prints the version."


def main(argv=None):
    """Run a subcommand; returns the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["--version"]:
        print(f"nvsym {__version__}")
        return 0
    command, status = choose("python -m nvsym", argv, COMMANDS, _EPILOG)
    if command is None:
        return status
    if command == "info":
        from ._info import main as run
    elif command == "simulate":
        from .simulator.command import main as run
    else:
        from ._bench import main as run
    return run(argv[1:])


if __name__ == "__main__":
    sys.exit(main())
