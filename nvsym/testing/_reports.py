# SPDX-License-Identifier: Apache-2.0
"""One report of a test for all PEs: how it is made, and the failures and the output of the PEs in it."""

import pytest

from ._longrepr import Crash
from ._text import pe_numbers


def make_report(item, when, outcome, longrepr=None, *, like=(), sections=(), **extra):
    """One report of the test for all PEs; times and properties are taken from the reports `like`."""
    like = list(like)
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome=outcome,
        longrepr=longrepr,
        when=when,
        sections=sections,
        duration=max((r.duration for r in like), default=0.0),
        start=min((r.start for r in like), default=0.0),
        stop=max((r.stop for r in like), default=0.0),
        user_properties=like[0].user_properties if like else [],
        **extra,
    )


def failure_parts(item, pes, failures):
    """Parts of a `PEsRepr` and its crash line from [(pe, report)]; PEs that failed alike share a part."""
    groups: dict = {}
    for pe, report in failures:
        groups.setdefault((report.when, str(report.longrepr)), []).append((pe, report))
    parts = []
    for (when, _), members in groups.items():
        heading = f"{pe_numbers([pe for pe, _ in members])} of {pes}" + ("" if when == "call" else f", in {when}")
        parts.append((heading if pes > 1 or when != "call" else "", members[0][1].longrepr))
    first, report = failures[0]
    return parts, _crash_of(item, first if pes > 1 else None, report.longrepr)


def _crash_of(item, pe, longrepr):
    crash = getattr(longrepr, "reprcrash", None)
    path, lineno = (crash.path, crash.lineno) if crash else (item.location[0], (item.location[1] or 0) + 1)
    message = crash.message if crash else (str(longrepr).strip().splitlines() or ["failed"])[-1]
    return Crash(path, lineno, message if pe is None else f"PE {pe}: {message}")


def output_sections(pes, chosen):
    """The captured output of [(pe, report)], each section under the number of its PE."""
    return [
        (f"{name}, PE {pe}" if pes > 1 else name, text)
        for pe, report in chosen
        for name, text in report.sections
        if text.strip()
    ]
