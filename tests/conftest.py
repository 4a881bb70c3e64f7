# SPDX-License-Identifier: Apache-2.0
"""What the whole suite shares: pytest's `pytester`, for the tests of nvsym's own plugin.

`ctx`, `mpirun` and the mark `pes` come from the plugin `nvsym.testing`, which the installed package registers.
"""

import os

pytest_plugins = ["pytester"]

# PEs that outnumber the cores: while MPICH waits it would poll a thousand times before it lets another process run.
os.environ.setdefault("MPIR_CVAR_POLLS_BEFORE_YIELD", "1")
