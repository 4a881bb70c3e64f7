# SPDX-License-Identifier: Apache-2.0
"""NumPy's copies, in memory of this PE."""

from functools import partial

import numpy as np

from .data import Shape, pattern
from .sampling import Case, PeerUnavailableError

__all__ = ["NumpyCases"]


class NumpyCases:
    """Makes the cases of NumPy."""

    name = "numpy"

    def describe(self):
        return f"numpy {np.__version__}: copyto"

    def copy(self, kind, direction, shape: Shape):
        """A copy from one array to another."""
        source = pattern(shape.count, shape.dtype, 0)
        dest = np.zeros_like(source)
        call = partial(np.copyto, dest, source)
        return [Case(self.name, "copyto", call, lambda: None, lambda: bool(np.array_equal(dest, source)))]

    def __getattr__(self, operation):
        if operation.startswith("_"):
            raise AttributeError(operation)
        return self._nothing

    def _nothing(self, *arguments):
        raise PeerUnavailableError("numpy: it is measured for copies only")
