# SPDX-License-Identifier: Apache-2.0
"""What a test asks for with the mark `pes`, once for each of its parametrisations."""

import dataclasses

import pytest

from ._configuration import BACKENDS, Configuration

PARAM = "_nvsym_job"  # the hidden parameter that carries a test's configuration


@dataclasses.dataclass(frozen=True)
class Wish:
    """One parametrisation of a test: its configuration and what it asks for itself."""

    configuration: Configuration
    timeout: float | None
    own_job: bool


def wishes_of(mark, chosen):
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
        Wish(Configuration(backend, n, nodes), timeout, bool(options["own_job"]))
        for backend in backends
        for n in mark.args
    ]


def backends_of(mark):
    """The backends that a `pes` mark names; without any, all."""
    return mark.kwargs.get("backends") or BACKENDS


def wish_of(item):
    """The wish of a collected item, or None for an ordinary test."""
    callspec = getattr(item, "callspec", None)
    return callspec.params.get(PARAM) if callspec is not None else None
