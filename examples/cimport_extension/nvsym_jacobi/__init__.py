# SPDX-License-Identifier: Apache-2.0
"""Laplace's equation on a grid that is split over the PEs of an nvsym job."""

from ._jacobi import Laplace

__all__ = ["Laplace"]
