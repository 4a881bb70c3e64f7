# SPDX-License-Identifier: Apache-2.0
"""What the user can set: the command line, the environment and the ini file."""

import os

import pytest

from ._configuration import BACKENDS


def add_options(parser):
    """Tell pytest of the options."""
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


def check_options(config):
    """Refuse values that make no sense before a test is collected."""
    backends(config)
    for name in ("nvsym_timeout", "nvsym_grace"):
        try:
            ok = float(config.getini(name)) > 0
        except ValueError:
            ok = False
        if not ok:
            raise pytest.UsageError(f"{name} = {config.getini(name)!r}: a number of seconds above 0 is needed")


def backends(config):
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
