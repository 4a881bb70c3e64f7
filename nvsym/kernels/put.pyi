# SPDX-License-Identifier: Apache-2.0
class PutKernels:
    put_up_to: int
    get_up_to: int
    get_above: int
    signal_up_to: int
    why_not: str | None
