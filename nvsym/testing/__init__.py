# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin for tests that run on N PEs (processing elements: the processes of one MPI job).

::

    @pytest.mark.pes(1, 2, 4)
    def test_x(ctx): ...

Such a test is parametrised over the backend, the number of PEs and the number of nodes: ``test_x[host-n4]``. The
ordinary pytest process starts one MPI job per configuration, in which every PE runs an inner pytest session over the
same tests in the same order, and reports for each test what all PEs recorded. The job writes its results as they arise,
so that a hang or a crash costs the test that was running and no other: the rest goes on in a fresh job.

The plugin is registered under the entry point ``pytest11``; `mpirun` is a function too. See ``docs/testing.md``.

A file imports only from those above it in this table:

============== ==================================================================== ========================================
layer          files                                                                what lives there
============== ==================================================================== ========================================
the machine    ``_procfs``, ``_launcher``, ``_processes``, ``_text``                processes, launchers, jobs, files
agreements     ``_this_process``, ``_protocol``, ``_configuration``, ``_wish``,     which process this is; how pytest and
               ``_options``                                                         the PEs talk; what a test and the user
                                                                                    ask for
programs       ``_completed_job``, ``_mpirun``                                      `mpirun`, a job of any program
reports        ``_longrepr``, ``_reports``, ``_merge``                              one report from those of all PEs
outer process  ``_stacks``, ``_inner_session``, ``_lost_error``, ``_pe_state``,     a job of tests from outside; which job
               ``_warning_forwarder``, ``_job``, ``_runner``                        runs which tests
inner process  ``_pe``, ``_pe_main``                                                one PE of such a job
pytest         ``_fixtures``, ``_hooks``                                            what pytest calls
============== ==================================================================== ========================================

No file imports ``mpi4py.MPI`` outside the PEs: the outer process is no part of an MPI job.
"""

from ._completed_job import CompletedJob
from ._fixtures import _mpirun_fixture as _mpirun_fixture
from ._fixtures import ctx as ctx
from ._fixtures import nvsym_backend as nvsym_backend
from ._fixtures import nvsym_context as nvsym_context
from ._hooks import pytest_addoption as pytest_addoption
from ._hooks import pytest_collection_modifyitems as pytest_collection_modifyitems
from ._hooks import pytest_configure as pytest_configure
from ._hooks import pytest_generate_tests as pytest_generate_tests
from ._hooks import pytest_runtest_protocol as pytest_runtest_protocol
from ._hooks import pytest_sessionfinish as pytest_sessionfinish
from ._hooks import pytest_unconfigure as pytest_unconfigure
from ._mpirun import mpirun

__all__ = ["CompletedJob", "mpirun"]
