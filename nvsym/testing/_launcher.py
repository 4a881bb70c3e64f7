# SPDX-License-Identifier: Apache-2.0
"""The launcher of the MPI that the user chose for tests, and what its MPI can do."""

import os


def find():
    """The launcher, of the MPI that the environment's NVSYM_TEST_MPI prefers."""
    from .._launch import find_launcher  # late: only a test that runs needs a launcher

    return find_launcher(prefer=os.environ.get("NVSYM_TEST_MPI", "mpich"))


def simulates_nodes():
    """None if the launcher's MPI can simulate several nodes on this machine, else the reason why it cannot."""
    launcher = find()
    if launcher.kind == "mpich":
        return None
    return f"simulated nodes: {launcher.kind} has none (MPICH has, with MPIR_CVAR_NUM_CLIQUES)"
