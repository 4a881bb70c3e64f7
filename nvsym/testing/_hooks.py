# SPDX-License-Identifier: Apache-2.0
"""The hooks of the outer session and of the inner ones: the mark `pes`, the order of the tests, and who runs them."""

import pytest

from . import _options, _this_process
from ._configuration import BACKENDS
from ._runner import Runner
from ._wish import PARAM, backends_of, wish_of, wishes_of

_RUNNER = pytest.StashKey[Runner]()


def pytest_addoption(parser):
    _options.add_options(parser)


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "pes(*n, nodes=1, timeout=None, own_job=False, backends=None): run the test on n PEs, once for each n, as a job "
        "of MPI processes, on that many simulated nodes, in at most `timeout` seconds; `own_job`: in a job of its own; "
        "`backends`: those on which it can run, the first of them where the user chose none.",
    )
    _options.check_options(config)
    if _this_process.pe is None:
        config.stash[_RUNNER] = Runner(config)


def pytest_unconfigure(config):
    # Also after Ctrl-C or an internal error: no job outlives the session.
    if (runner := config.stash.get(_RUNNER, None)) is not None:
        runner.close()


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc):
    # The marks nearest to the test count; those of its class or module are for tests without.
    marks = [(node, mark) for node, mark in metafunc.definition.iter_markers_with_node("pes")]
    if not marks:
        return
    wishes, able = {}, {}
    for node, mark in reversed(marks):
        if node is marks[0][0]:
            for wish in wishes_of(mark, _options.backends(metafunc.config)):
                wishes[wish.configuration] = wish
            able |= dict.fromkeys(backends_of(mark))
    metafunc.fixturenames.append(PARAM)
    if wishes:
        metafunc.parametrize(PARAM, list(wishes.values()), ids=[str(configuration) for configuration in wishes])
    else:
        # An empty list would make it a test with a value of pytest's own. Skipped, it is one that needs no job.
        reason = f"it runs on {', '.join(able)} only, and that was not chosen"
        metafunc.parametrize(PARAM, [pytest.param(None, id="no-backend", marks=pytest.mark.skip(reason=reason))])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    wishes = {id(item): wish for item in items if (wish := wish_of(item))}
    if config.pluginmanager.hasplugin("timeout"):
        # pytest-timeout would count the start of the job, and cannot end one: the plugin keeps the limits itself.
        for item in items:
            if id(item) in wishes:
                item.add_marker(pytest.mark.timeout(0), append=False)
    if _this_process.pe is None:
        # Neighbours of one configuration share a job. Ordinary tests come first, small jobs before large ones.
        def place(item):
            wish = wishes.get(id(item))
            if wish is None:
                return (0,)
            configuration = wish.configuration
            return (1, BACKENDS.index(configuration.backend), configuration.nodes, configuration.pes, wish.own_job)

        items.sort(key=place)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if _this_process.pe is not None or wish_of(item) is None:
        return None
    item.config.stash[_RUNNER].run(item, nextitem)
    return True


def pytest_sessionfinish(session, exitstatus):
    if (runner := session.config.stash.get(_RUNNER, None)) is not None:
        runner.close(patience=0.0 if exitstatus == pytest.ExitCode.INTERRUPTED else 3.0)
