# SPDX-License-Identifier: Apache-2.0
BACKENDS: tuple[str, ...]
BOOTSTRAPS: tuple[str, ...]

def check_kernels() -> None: ...

class Job:
    my_pe: int
    n_pes: int
