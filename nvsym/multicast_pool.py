# SPDX-License-Identifier: Apache-2.0
"""`MulticastPool`: when a pool is worth its memory, how large it should be, and how a program goes on without one.

After `MulticastPool` of Modular's MAX.
"""

import logging
from collections.abc import Sequence
from operator import index

from .device import Device
from .pool import SymmetricPool

__all__ = ["MulticastPool"]

_log = logging.getLogger("nvsym")


class MulticastPool:
    """The policy around `SymmetricPool`. There are no objects of it; a subclass may change the limits.

    Attributes
    ----------
    MIN_DEVICES : int
        With fewer GPUs peer pointers are as good.
    MAX_BYTES : int
        The largest pool: larger messages are bound by the links either way.
    """

    MIN_DEVICES = 4
    MAX_BYTES = 512 << 20

    def __init__(self):
        raise TypeError("MulticastPool has static methods only")

    @classmethod
    def capacity_bytes(cls, num_devices: int, num_tokens: int, hidden_size: int, itemsize: int = 2) -> int:
        """Bytes of a pool that holds the activations of a step: tokens x hidden size x bytes of an element.

        Returns
        -------
        int
            0 where no pool should be made: fewer than `MIN_DEVICES` devices, nothing to hold, or more than `MAX_BYTES`.

        Raises
        ------
        TypeError
            Naming the argument that is no whole number.
        """
        num_devices = _number(num_devices, "num_devices")
        num_tokens = _number(num_tokens, "num_tokens")
        hidden_size = _number(hidden_size, "hidden_size")
        itemsize = _number(itemsize, "itemsize")
        if num_devices < cls.MIN_DEVICES or min(num_tokens, hidden_size, itemsize) <= 0:
            return 0
        nbytes = num_tokens * hidden_size * itemsize
        return nbytes if nbytes <= cls.MAX_BYTES else 0

    @classmethod
    def allocate_or_none(cls, devices: Sequence[Device], byte_size: int) -> SymmetricPool | None:
        """The pool of these devices, whatever its size, else a new one; None where there can be none.

        The reason is logged (logger ``nvsym``, level WARNING), and the caller goes on with peer pointers. Collective where
        `SymmetricPool.allocate` is, with the same outcome on all PEs.

        Parameters
        ----------
        devices : sequence of Device
        byte_size : int
            0, as of `capacity_bytes`: no pool.
        """
        if byte_size <= 0:
            return None
        pool = SymmetricPool.lookup(devices)
        if pool is not None:
            return pool
        try:
            return SymmetricPool.allocate(devices, byte_size)
        except RuntimeError as error:
            _log.warning("nvsym: no multicast pool, going on with peer pointers: %s", error)
            return None


def _number(value, name):
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{name}: expected a whole number, not {type(value).__name__}") from None
