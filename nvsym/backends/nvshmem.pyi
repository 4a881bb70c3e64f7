# SPDX-License-Identifier: Apache-2.0
from ..backend import Backend

class NvshmemBackend(Backend): ...
