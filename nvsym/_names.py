# SPDX-License-Identifier: Apache-2.0
"""Subcommands by name, for the tools under ``python -m nvsym``."""

import difflib
import os
import sys

__all__ = ["choose", "first_process", "launcher_rank"]

_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")


def launcher_rank():
    """The number of this process among those that the launcher started, or 0 where no launcher says."""
    for name in _RANKS:
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return 0


def first_process():
    """Whether this process is the one that speaks, where all of a job would say the same and there is no MPI yet."""
    return launcher_rank() == 0


def usage(prog, commands, epilog=""):
    """The help of a command that has subcommands."""
    width = max(map(len, commands))
    lines = [f"usage: {prog} COMMAND [options]", "", *(f"  {name:<{width}}  {text}" for name, text in commands.items())]
    return "\n".join([*lines, "", f"{prog} COMMAND --help says more. {epilog}".rstrip()])


def choose(prog, argv, commands, epilog=""):
    """The subcommand that `argv` begins with.

    Parameters
    ----------
    prog : str
        What the user typed before it.
    argv : list of str
    commands : dict of str to str
        Name and meaning of each.
    epilog : str
        Ends the help.

    Returns
    -------
    (str or None, int)
        The name; or None and an exit status, after the help or an error with the nearest name was printed.
    """
    if not argv or argv[0] in ("-h", "--help"):
        if first_process():
            print(usage(prog, commands, epilog))
        return None, 0
    if argv[0] in commands:
        return argv[0], 0
    if first_process():
        near = difflib.get_close_matches(argv[0], commands, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(commands)}"
        print(f"{prog}: error: no command {argv[0]!r}; {hint}", file=sys.stderr)
    return None, 2
