# SPDX-License-Identifier: Apache-2.0
"""The reports of a test: from one list per PE to one list per test."""

import pytest

from ._longrepr import PEsRepr
from ._reports import failure_parts, make_report, output_sections


def merge(item, pes, reports):
    """One test's reports over all PEs, as one ordinary process would have reported them.

    Parameters
    ----------
    reports : list of list of pytest.TestReport
        What each PE reported, in PE order.

    Returns
    -------
    list of pytest.TestReport
        One per phase. A phase failed if it failed on any PE. A test is skipped only when all PEs skipped it.
    """
    phases = {
        when: [(pe, r) for pe, mine in enumerate(reports) for r in mine if r.when == when]
        for when in ("setup", "call", "teardown")
    }
    merged = []

    def add(when, outcome, longrepr=None, chosen=None, **extra):
        members = phases[when]
        merged.append(
            make_report(
                item,
                when,
                outcome,
                longrepr,
                like=[r for _, r in members],
                sections=output_sections(pes, members if chosen is None else chosen),
                **extra,
            )
        )

    def add_failure(when, failures):
        parts, crash = failure_parts(item, pes, failures)
        add(when, "failed", PEsRepr(parts, crash), failures)

    def wasxfail(members):
        return next(({"wasxfail": r.wasxfail} for _, r in members if hasattr(r, "wasxfail")), {})

    def failed(when):
        return [(pe, r) for pe, r in phases[when] if r.outcome == "failed"]

    setup = phases["setup"]
    call = [
        (pe, r) for pe, r in phases["call"] if type(r) is pytest.TestReport
    ]  # the reports of subtests count as failures only
    skipped = [(pe, r) for pe, r in setup + call if r.outcome == "skipped"]
    if failed("setup"):
        # What the other PEs met in the test itself is mostly the consequence, but may be the cause.
        add_failure("setup", failed("setup") + failed("call"))
    elif setup and all(r.outcome == "skipped" for _, r in setup):
        add("setup", "skipped", _skip_longrepr(skipped), **wasxfail(setup))
    else:
        add("setup", "passed")
        xfailed = [r for _, r in call if r.outcome == "skipped" and hasattr(r, "wasxfail")]
        # A test that is expected to fail does so by failing on some PE: the others' strict complaint is moot then.
        failures = [
            (pe, r) for pe, r in failed("call") if not (xfailed and str(r.longrepr).startswith("[XPASS(strict)]"))
        ]
        if failures:
            add_failure("call", failures)
        elif xfailed:
            add("call", "skipped", xfailed[0].longrepr, wasxfail=xfailed[0].wasxfail)
        elif len(skipped) == pes:
            add("call", "skipped", _skip_longrepr(sorted(skipped, key=lambda member: member[0])))
        else:
            add("call", "passed", **wasxfail(call))
            for pe, r in skipped:
                merged[-1].sections.append((f"skipped on PE {pe}", r.longrepr[2]))
    if failed("teardown"):
        add_failure("teardown", failed("teardown"))
    else:
        add("teardown", "passed")
    return merged


def _skip_longrepr(skips):
    """The (path, line, reason) of [(pe, report)] that skipped; different reasons are listed by PE."""
    path, lineno, reason = skips[0][1].longrepr
    reasons = {report.longrepr[2] for _, report in skips}
    if len(reasons) > 1:
        reason = "; ".join(f"PE {pe}: {report.longrepr[2]}" for pe, report in skips)
    return (path, lineno, reason)
