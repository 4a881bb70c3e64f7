# SPDX-License-Identifier: Apache-2.0
from .allreduce import AllreduceKernels

class ExchangeKernels(AllreduceKernels): ...
