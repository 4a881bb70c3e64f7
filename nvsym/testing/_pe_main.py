# SPDX-License-Identifier: Apache-2.0
"""What every process of a job of tests runs."""

import array
import faulthandler
import os
import sys

import pytest

from . import _procfs, _this_process
from ._pe import PE
from ._protocol import DUMP_SIGNAL, JobFolder


def main(spec):
    """Be the PE that MPI says: run the tests of the job, and tell the outer process of them."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.Get_size() != spec["pes"]:
        raise SystemExit(
            f"nvsym: a job of {spec['pes']} PEs was started, but mpi4py sees {world.Get_size()} "
            f"({MPI.Get_library_version().splitlines()[0]}): the launcher belongs to another MPI; "
            "NVSYM_TEST_MPI selects one"
        )
    me = world.Get_rank()
    folder = JobFolder(spec["folder"])
    log = os.open(folder.log_of(me), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    # Open to the end: a PE that hangs at exit shows where, too.
    stacks = os.open(folder.stacks_of(me), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.register(DUMP_SIGNAL, file=stacks, all_threads=True)
    _this_process.pe = pe = PE(spec, MPI)
    pe.record(
        "hello", pid=os.getpid(), start_time=int(_procfs.stat("self")[19]), segments=sorted(_procfs.segments("self"))
    )
    if spec["nodes"] > 1:
        _check_nodes(pe.comm, MPI, spec["nodes"])
    code = pytest.main([arg.replace("%PE%", str(me)) for arg in spec["args"]], plugins=[pe])
    fine = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
    if code not in fine and not pe.stopped:
        # The others wait for this PE in a vote, and would for ever.
        print(f"nvsym: the inner session of PE {me} ended with {code!r}", flush=True)
        world.Abort(1)
        os._exit(1)  # some MPIs return from Abort, and end the process a little later
    pe.record("end", code=int(code))
    if not MPI.Is_finalized():
        pe.comm.Free()


def _check_nodes(comm, MPI, nodes):
    """The launcher was asked for simulated nodes: MPI must see them."""
    shared = comm.Split_type(MPI.COMM_TYPE_SHARED)
    leader = array.array("q", [shared.Get_rank() == 0])
    found = array.array("q", [0])
    comm.Allreduce([leader, MPI.INT64_T], [found, MPI.INT64_T])
    shared.Free()
    if found[0] != nodes:
        raise SystemExit(f"nvsym: {nodes} simulated nodes were asked for, MPI sees {found[0]}")
