# SPDX-License-Identifier: Apache-2.0
"""How the PEs that own the GPUs of a pool make it together, or not at all.

Every step ends in a vote. What depends on the others (importing what they exported, binding memory once they have added their
devices) begins after the vote on what they did; so a PE that failed is never waited for, and the driver never waits for a device
that will not be added. On a failure all give back what they have, and raise the same error. Votes and exchanges are messages with
a time limit: a PE that died is one that did not answer.

The steps: compare the arguments and the GPUs; agree on a size; make the memory; exchange it; make the multicast object (one PE,
the root); exchange that; add the devices; bind the memory; map everything. Where the driver says that the system is not ready
(CUDA_ERROR_SYSTEM_NOT_READY, a fabric manager that is slow), all try again with a new object, a bounded number of times.
"""

import contextlib
import os
import time
from typing import Any

from . import _facts
from ._descriptors import TOKEN_BYTES, DescriptorExchange
from .errors import BackendError, CollectiveError, MulticastUnsupportedError, NVSymError

__all__ = ["RETRIES", "Allocation"]

RETRIES = 12  # with the pauses below nine seconds, which outlasts a fabric manager that was seen to be slow
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_ROOT = 0


class Allocation:
    """One collective allocation.

    Parameters
    ----------
    agreement : PoolAgreement
        Of the PEs that own the devices.
    owners : list of int
        The member that owns each device, by slot.
    make_memory : callable
        Makes the `PoolMemory` of this process, given the kind of transport.
    facts : list of DeviceFacts
        Of the devices of this process.
    byte_size : int
    error : Exception or None
        What is wrong with the call on this PE.
    problem : str or None
        What is wrong with the devices, in words: told where a setting forbids multicast, too.
    registered : int or None
        The size of the pool that this process has for these devices.
    """

    def __init__(self, agreement, owners, make_memory, facts, byte_size, error, problem, registered):
        self._agreement = agreement
        self._owners = owners
        self._make_memory = make_memory
        self._facts = facts
        self._byte_size = byte_size
        self._error = error
        self._problem = problem
        self._registered = registered
        self._me = agreement.rank
        self._size = agreement.size
        self._memory: Any = None
        self._exchange: Any = None
        self.transport: Any = None

    def run(self):
        """Make the pool's memory; returns it."""
        try:
            self._compare()
            token = self._agree_on_size()
            self._step("making the memory", self._memory.create)
            if self._size > 1:
                if self.transport.kind == "posix":
                    self._open_sockets(token)
                self._share_memory()
            self._make_multicast()
            self._step("mapping the memory", self._memory.map_all)
            self._step("releasing what is no longer needed", self._finish)
        except BaseException as error:
            if not isinstance(error, Exception):  # such as a KeyboardInterrupt, which may come between two steps
                self._agreement.leave("SymmetricPool.allocate", error)
            if self._memory is not None:
                for failure in self._memory.release("its allocation failed"):
                    error.add_note(f"and giving back what there was: {failure}")
                with contextlib.suppress(BackendError):
                    self._memory.restore_context()
            raise
        finally:
            if self._exchange is not None:
                self._exchange.close()
            if self._memory is not None:
                self._memory.watch.close()
        return self._memory

    def _finish(self):
        self._memory.drop_handles()
        self._memory.restore_context()

    # ---- the steps --------------------------------------------------------------------------------------------------

    def _step(self, what, function, *args, retry=False):
        """Do a step here and hear how it went elsewhere; returns (whether to try again, result)."""
        error: Any = None
        result = told = None
        try:
            result = function(*args)
        except Exception as e:  # noqa: BLE001 - it is raised again, on all PEs, by the vote
            error = told = e
        except BaseException as e:  # noqa: BLE001 - what a signal handler raised: this PE raises it, the others hear of it
            error = e
            told = NVSymError(f"it was left with {type(e).__name__}" + (f": {e}" if str(e) else ""))
        if error is not None and self._agreement.is_broken():
            raise error
        try:
            return self._agreement.decide(f"SymmetricPool.allocate: {what}", told, retry), result
        except BaseException as failure:
            # A descriptor that was made here, for others that will not take it.
            _close(*(result.values() if isinstance(result, dict) else [result]))
            if told is error:
                raise
            error._on_all_pes = getattr(failure, "_on_all_pes", False)
            raise error from failure

    def _compare(self):
        what = "SymmetricPool.allocate"
        own = (self._facts, self._byte_size, self._registered, None if self._error is None else True, self._problem)
        rows = self._agreement.gather(own, what)
        facts = [fact for row in rows for fact in row[0]]
        for fact in facts:
            # First of all, and whatever else is wrong.
            if fact.switch is not None:
                reason = f"multicast is {_facts.why_unsupported(facts, self._size > 1)}, and no multicast call is made"
                problem = next((row[4] for row in rows if row[4] is not None), None)
                raise MulticastUnsupportedError(f"{what}: {reason}" + ("" if problem is None else f"; and {problem}"))
        if any(row[3] for row in rows):
            self._agreement.vote(what, self._error)
        sizes = [row[1] for row in rows]
        if any(size != sizes[0] for size in sizes):
            names = self._agreement.names
            raise CollectiveError(
                f"{what}: byte_size differs between PEs. "
                + "; ".join(f"{name}: {size}" for name, size in zip(names, sizes, strict=True))
            )
        for row, name in zip(rows, self._agreement.names, strict=True):
            if row[2] is not None:
                raise NVSymError(
                    f"{what}: there is a pool of {row[2]} bytes for these devices on {name}; SymmetricPool.lookup(devices) "
                    "has it. A pool is made once and stays until the end of the job or the process"
                )
        reason = _facts.why_unsupported(facts, self._size > 1)
        if reason is not None:
            raise MulticastUnsupportedError(f"{what}: {reason}")
        if self._size > 1:
            self.transport, _ = _facts.transport_of(facts)
        else:
            self.transport = _facts.Transport("none", "one process")

    def _agree_on_size(self):
        """Returns the token of the exchange of descriptors."""
        token = os.urandom(TOKEN_BYTES) if self._me == _ROOT else b""
        granularity = 0

        def prepare():
            nonlocal granularity
            self._memory = self._make_memory(self.transport.kind)
            self._memory.check_can_begin()
            granularity = self._memory.granularity()
            if self.transport.kind == "fabric":
                self._memory.probe_fabric()

        self._step("preparing", prepare)
        rows = self._agreement.gather((granularity, token), "SymmetricPool.allocate: agreeing on a size")
        self._step("agreeing on a size", self._memory.check_size, max(row[0] for row in rows))
        return rows[_ROOT][1]

    def _open_sockets(self, token):
        agreement = self._agreement
        self._exchange = DescriptorExchange(
            self._me,
            self._size,
            token,
            _facts.socket_folder(),
            agreement.names,
            agreement.time_limit(),
            agreement.look,
            agreement.pes(),
        )
        path = self._step("opening sockets", self._exchange.open)[1]
        paths = agreement.gather(path, "SymmetricPool.allocate: opening sockets")
        self._step("connecting the PEs of the node", self._exchange.connect, paths)
        self._step("accepting the connections of the node", self._exchange.accept)

    def _share_memory(self):
        item = self._step("exporting the memory", self._memory.export)[1]
        with _closing(item):
            items = self._exchange_items("exchanging the memory", item, range(self._size))[1]

            def take():
                for slot, owner in enumerate(self._owners):
                    if owner != self._me:
                        self._memory.import_memory(slot, items[owner])

            with _closing(*items.values()):
                # The descriptor that was sent is closed after this vote, as is what was received.
                self._step("importing the memory of the other PEs", take)

    def _exchange_items(self, what, item, senders, retry=False):
        """What each of the `senders` exported, by its number; this PE's own is not among the descriptors."""
        if self.transport.kind == "posix":
            return self._step(what, self._exchange.exchange, item, senders, retry=retry)
        items = self._agreement.gather(item, f"SymmetricPool.allocate: {what}")
        return False, {sender: items[sender] for sender in senders}

    def _make_multicast(self):
        for attempt in range(RETRIES + 1):
            if not self._try_multicast(attempt < RETRIES):
                return
            self._step("giving the multicast object back for another try", self._memory.drop_multicast)
            # A step, too: what a signal handler raises in the pause is for all to hear.
            self._step("waiting for another try", time.sleep, min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE))

    def _try_multicast(self, retry):
        """One attempt; returns whether all should try again."""
        memory, root = self._memory, self._me == _ROOT

        def begin():
            if not root:
                return None
            memory.create_multicast()
            return memory.export_multicast() if self._size > 1 else None

        again, item = self._step("making the multicast object", begin, retry=retry)
        with _closing(item):
            if again:
                return True
            if self._size > 1:
                items = self._exchange_items("exchanging the multicast object", item, [_ROOT])[1]
                with _closing(*items.values()):
                    shared = item if root else items[_ROOT]
                    if self._step("importing the multicast object", memory.import_multicast, shared, retry=retry)[0]:
                        return True
        # No PE may bind before all have added their devices: the driver would wait for those that do not come.
        for what, function in (("adding the devices", memory.add_devices), ("binding the memory", memory.bind)):
            if self._step(what, function, retry=retry)[0]:
                return True
        return False


@contextlib.contextmanager
def _closing(*items):
    """Close the descriptors among what travels; a fabric handle is bytes."""
    try:
        yield
    finally:
        _close(*items)


def _close(*items):
    for item in items:
        if isinstance(item, int):
            os.close(item)
