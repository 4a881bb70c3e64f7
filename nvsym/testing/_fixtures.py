# SPDX-License-Identifier: Apache-2.0
"""The fixtures."""

import gc

import pytest

from . import _this_process
from ._mpirun import mpirun
from ._pe import CTX_SETUP, CTX_TEARDOWN
from ._text import pe_numbers


def _pe_of(request):
    """The PE that this process is, for a fixture that has no meaning elsewhere."""
    if _this_process.pe is None:
        pytest.fail(f"the fixture {request.fixturename!r} needs a test marked @pytest.mark.pes(...)", pytrace=False)
    return _this_process.pe


@pytest.fixture(scope="session")
def nvsym_backend(request):
    """Name of the backend on which this job's tests run."""
    return _pe_of(request).backend


@pytest.fixture(scope="session")
def nvsym_context(request, nvsym_backend):
    """The job's `SHMEMContext`, from `nvsym.init` at its first use to `nvsym.finalize` at the end of the session.

    For fixtures of a wider scope than a test; a test takes `ctx`.
    """
    import nvsym

    yield nvsym.init(backend=nvsym_backend)
    nvsym.finalize()


@pytest.fixture
def ctx(request):
    """The job's `SHMEMContext`. After the test the heap must have as many live buffers as before it."""
    pe = _pe_of(request)
    if absent := pe.missing_at(pe.vote(CTX_SETUP), CTX_SETUP):
        pytest.fail(f"{pe_numbers(absent)} did not get as far as the fixture `ctx`", pytrace=False)
    context = request.getfixturevalue("nvsym_context")
    before = context.heap.live
    yield context
    votes = pe.vote(CTX_TEARDOWN)
    if pe.missing_at(votes, CTX_TEARDOWN):
        return  # on some PE the context could not be had: collect, which is collective, would wait for it

    import nvsym

    gc.collect()
    try:
        context.device.synchronize()  # what a stream is about to be done with is not left behind
    finally:
        nvsym.collect()  # the others are in it
    live = context.heap.live
    # A test that failed somewhere has its report, and may well have left something.
    if live != before and not any(failed for _, _, failed, _ in votes):
        pytest.fail(
            f"{live} buffers are live on the symmetric heap after the test, {before} were before", pytrace=False
        )


@pytest.fixture(name="mpirun")
def _mpirun_fixture(tmp_path):
    """`nvsym.testing.mpirun`, in the test's own temporary folder."""

    def run(n, script_or_code, *args, **options):
        __tracebackhide__ = True
        return mpirun(n, script_or_code, *args, **{"cwd": tmp_path, **options})

    return run
