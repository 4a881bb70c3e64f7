# SPDX-License-Identifier: Apache-2.0
"""Times calls of several libraries in one job, in turn.

Other work on the machine changes how fast everything is from one moment to the next. So the libraries are not measured
one after the other but in short batches that alternate, A B A B ..., and each is judged by the median of its batches.
"""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np

__all__ = ["Case", "PeerUnavailableError", "PlainLoop", "Sampler", "Series", "agree", "best"]

METHOD = (
    "Each batch: the PEs meet, then some calls that are not counted, then the counted ones, back to back. Batches of "
    "the libraries alternate (A B A B ...). A sample is the mean time of one call in one batch, averaged over the PEs. "
    "Times are medians of the samples; ratio is the median of nvsym over that of the peer, so below 1 nvsym is faster. "
    "Results are checked before the clock starts."
)


class PeerUnavailableError(Exception):
    """A library cannot do what is to be measured; the message says why. The same on every PE."""


def nothing() -> None:
    """Does nothing."""


class PlainLoop:
    """A call written out in a plain loop, as timeit does: there is no other call around the one that is measured.

    Parameters
    ----------
    text : str
        The call.
    **names
        What the text refers to.
    """

    def __init__(self, text, **names):
        source = (
            f"def make({', '.join([*names, 'repeat'])}):\n"
            "    def loop(times):\n"
            "        for _ in repeat(None, times):\n"
            f"            {text}\n"
            "    return loop\n"
        )
        found: dict[str, Any] = {}
        exec(compile(source, "<benchmark>", "exec"), found)
        self.loop = found["make"](**names, repeat=repeat)

    def __call__(self):
        self.loop(1)


@dataclass
class Case:
    """What is called, of one library.

    Attributes
    ----------
    library : str
        ``"nvsym"``, or the name of what it is compared with.
    variant : str
        Which way of several; empty where there is one.
    call : callable
        Makes the operation, once. On every PE as many times.
    settle : callable
        Called after a batch, by all PEs: what it left to be done is done by then, on all of them.
    check : callable
        After `call` and `settle`: whether the result is right on this PE.
    close : callable
        Gives back what the case holds; collective.
    steps : int
        Operations in one call (2 in a round trip of which one way is wanted).
    reset : callable
        Makes what `check` looks at wrong, and the input what it is to be. On GPUs only.
    in_place : bool
        The input is overwritten, so that repeated calls do not give the result that `check` expects.
    loop : callable, optional
        Makes the call so many times without Python between them. On GPUs only.
    graphs : bool
        Whether it can be captured into a CUDA graph.
    """

    library: str
    variant: str
    call: Callable[[], Any]
    settle: Callable[[], Any] = nothing
    check: Callable[[], bool] = lambda: True
    close: Callable[[], Any] = nothing
    steps: int = 1
    reset: Callable[[], Any] = nothing
    in_place: bool = False
    loop: Callable[[int], Any] | None = None
    graphs: bool = True


@dataclass
class Series:
    """The samples of one case.

    Attributes
    ----------
    case : Case
    calls : int
        In a batch.
    samples : list of float
        Seconds of one operation: one for each batch, averaged over the PEs.
    correct : bool
        On every PE.
    launches : int
        Of the graph of `calls` calls, in a batch; 0: no graph.
    cost : float
        Seconds of a batch, about.
    """

    case: Case
    calls: int
    samples: list[float] = field(default_factory=list)
    correct: bool = True
    launches: int = 0
    cost: float = 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; times in microseconds."""
        low, middle, high = (float(q) * 1e6 for q in np.quantile(self.samples, (0.25, 0.5, 0.75)))
        return {
            "variant": self.case.variant,
            "median_us": middle,
            "p25_us": low,
            "p75_us": high,
            "min_us": min(self.samples) * 1e6,
            "calls": self.calls,
            **({"launches": self.launches} if self.launches else {}),
            "batches": len(self.samples),
            "correct": self.correct,
        }


def agree(comm, action):
    """Do something on all PEs that may fail on some, in another library; collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    action : callable

    Returns
    -------
    (object, str or None)
        What it returned; or None and the reason, the same on every PE, if it raised on any.
    """
    result, reason = None, None
    try:
        result = action()
    except PeerUnavailableError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001  whatever another library raises ends its part, not the job
        lines = str(error).strip().splitlines() or [""]
        reason = f"{type(error).__name__}: {lines[0]}"[:300]
    reasons = comm.allgather(reason)
    for pe, text in enumerate(reasons):
        if text is not None:
            return None, text if all(other == text for other in reasons) else f"PE {pe}: {text}"
    return result, None


def best(series: list[Series]) -> dict[str, Series]:
    """The fastest variant of each library."""
    found: dict[str, Series] = {}
    for one in series:
        name = one.case.library
        if name not in found or one.median < found[name].median:
            found[name] = one
    return found


class Sampler:
    """Measures cases of several libraries in turn; collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The PEs.
    meet : callable
        Where the PEs meet before each batch. Called several times in a row: after the first, they arrive together.
    calls : int, optional
        Counted calls of a batch; by default as many as take `batch_time`.
    warmup : int, optional
        Calls of a batch that are not counted; by default 10, or 1 where a call takes more than a millisecond.
    batches : int
        Of each case.
    batch_time : float
        Seconds that the counted calls of a batch may take.
    budget : float
        Seconds for all batches of the cases. Where they take longer there are fewer of them, but 5 at least; not so if
        `calls` is given.
    """

    def __init__(self, comm, meet, *, calls=None, warmup=None, batches=21, batch_time=4e-3, budget=4.0):
        self.comm = comm
        self.meet = meet
        self.calls = calls
        self.warmup = warmup
        self.batches = batches
        self.batch_time = batch_time
        self.budget = budget

    def measure(self, cases: list[Case]) -> list[Series]:
        """The samples of the cases, in their order; the cases are closed."""
        from mpi4py import MPI

        series = [Series(case, self.calls or 1) for case in cases]
        for one in series:
            one.case.call()
            one.case.settle()
            one.correct = not self.comm.allreduce(not one.case.check(), MPI.LOR)
        costs = [self._calibrate(one) for one in series]
        warmups = [self.warmup if self.warmup is not None else (1 if cost > 1e-3 else 10) for cost in costs]
        batches = self.batches
        if self.calls is None:
            round_time = sum(cost * (one.calls + w) for cost, one, w in zip(costs, series, warmups, strict=True))
            batches = max(min(batches, 5), min(batches, int(self.budget / round_time)))
        own = np.empty((batches, len(series)))
        collecting = gc.isenabled()
        gc.disable()
        try:
            for batch in range(batches):
                for i, one in enumerate(series):
                    own[batch, i] = self._batch(one.case, one.calls, warmups[i])
        finally:
            if collecting:
                gc.enable()
        mean = np.empty_like(own)
        self.comm.Allreduce(own, mean, MPI.SUM)
        mean /= self.comm.Get_size()
        for i, one in enumerate(series):
            one.samples = (mean[:, i] / (one.calls * one.case.steps)).tolist()
            one.case.close()
        return series

    def _calibrate(self, one: Series) -> float:
        """Set the calls of a batch; returns the seconds of one call, by the slowest PE."""
        from mpi4py import MPI

        calls = 1
        while True:
            cost = self.comm.allreduce(self._batch(one.case, calls, 1), MPI.MAX) / calls
            if self.calls is not None:
                return cost
            if cost * calls >= self.batch_time / 4 or calls >= 100_000:
                one.calls = max(1, min(round(self.batch_time / cost), 100_000))
                return cost
            calls *= 4

    def _batch(self, case: Case, calls: int, warmup: int) -> float:
        """Seconds of so many calls on this PE."""
        call = case.call
        for _ in range(3):
            self.meet()
        for _ in repeat(None, warmup):
            call()
        start = time.perf_counter()
        for _ in repeat(None, calls):
            call()
        elapsed = time.perf_counter() - start
        case.settle()
        return elapsed
