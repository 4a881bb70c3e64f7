# SPDX-License-Identifier: Apache-2.0
class AllreduceKernels:
    compile_seconds: float
