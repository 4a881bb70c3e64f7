# SPDX-License-Identifier: Apache-2.0
"""What the whole suite shares: pytest's `pytester`, for the tests of nvsym's own plugin.

`ctx`, `mpirun` and the mark `pes` come from the plugin `nvsym.testing`, which the installed package registers.
"""

pytest_plugins = ["pytester"]
