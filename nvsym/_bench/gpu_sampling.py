# SPDX-License-Identifier: Apache-2.0
"""Times what is enqueued on a stream of a GPU, by several libraries in one job, in turn."""

import gc
import time
from itertools import repeat

import numpy as np

import nvsym

from .gpu import Graph
from .sampling import Series, agree

__all__ = ["GPU_METHOD", "GpuSampler"]

GPU_METHOD = (
    "Each batch: the PEs meet, then warm-up calls, then the counted ones, back to back on one stream between two device "
    "events; inside a graph, the launches of a graph of several calls. Batches of the libraries alternate (A B A B ...). "
    "A sample is the time of one call in one batch, the maximum over the PEs; times are medians over the batches. Rows "
    "of enqueue cost are by the host's clock around the calls, and copies by the same until they are complete. ratio is "
    "the median of nvsym over that of the peer: below 1 nvsym is faster. Results are checked before the clock starts, and "
    "again after a graph's first launch; above 64 MiB in three parts."
)

DEVICE, ENQUEUE, COMPLETE = "device", "enqueue", "complete"

_MOST_CALLS = {DEVICE: 400, ENQUEUE: 200, COMPLETE: 400}  # more would fill the queue of launches, and wait for the GPU
_IN_GRAPH = 20


class GpuSampler:
    """Measures cases of several libraries in turn; collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The PEs.
    gpu : Gpu
    calls : int, optional
        Counted calls of a batch, or of a graph; by default as many as take `batch_time`, at most 20 in a graph.
    warmup : int, optional
        Calls of a batch that are not counted (launches of a graph); by default 10, or 1 where that takes long.
    batches : int
        Of each case.
    batch_time : float
        Seconds that the counted calls of a batch may take.
    budget : float
        Seconds for all batches of the cases of a row. Where they take longer there are fewer of them, but 5 at least.
    """

    def __init__(self, comm, gpu, *, calls=None, warmup=None, batches=21, batch_time=2e-3, budget=0.5):
        self.comm = comm
        self.gpu = gpu
        self.calls = calls
        self.warmup = warmup
        self.batches = batches
        self.batch_time = batch_time
        self.budget = budget
        self.start = nvsym.Event(gpu.context.device, timing=True)
        self.end = nvsym.Event(gpu.context.device, timing=True)

    def measure(self, cases, *, graph=False, clock=DEVICE):
        """The samples of the cases, and the reasons of those that failed, by library.

        Parameters
        ----------
        cases : list of Case
        graph : bool
            Inside CUDA graphs.
        clock : {"device", "enqueue", "complete"}
            By device events; by the host's clock until the calls return; or until their work is done.

        Returns
        -------
        (list of Series, dict of str to str)
        """
        reasons: dict[str, str] = {}
        series, graphs = [], []
        for case in cases:
            one = Series(case, 1)
            captured, reason = (
                self._prepare(one, graph, clock) if case.graphs or not graph else (None, "not in a graph")
            )
            if reason is not None:
                reasons[case.library] = reason
                self._agree(case, case.close)
                continue
            series.append(one)
            graphs.append(captured)
        self._sample(series, graphs, clock, reasons)
        for one, captured in zip(series, graphs, strict=True):
            if captured is not None:
                captured.close()
            self._agree(one.case, one.case.close)
        done = [one for one in series if one.samples]
        finished = {one.case.library for one in done}
        return done, {name: reason for name, reason in reasons.items() if name not in finished}

    def _agree(self, case, action):
        """`agree` for another library; what nvsym raises is raised. The PEs meet; `action` itself must not communicate by MPI."""
        if case.library == "nvsym":
            result = action()
            self.comm.Barrier()
            return result, None
        return agree(self.comm, action)

    def _prepare(self, one, graph, clock):
        """Check a case, capture it, and set the sizes of its batches; returns its graph or None, and why it failed or None."""
        case = one.case
        reason = self._check(one, case.call)
        if reason is not None:
            return None, reason
        cost = 0.0
        for calls in (1, 5):
            if calls > 1 and cost > 1e-3:
                break
            cost, reason = self._cost(one, None, calls, clock)
            if reason is not None:
                return None, reason
        most = _IN_GRAPH if graph else _MOST_CALLS[clock]
        one.calls = self.calls or max(1, min(round(self.batch_time / cost), most))
        one.cost = cost * one.calls
        if not graph:
            return None, None
        captured, reason = self._agree(case, lambda: Graph(self.gpu, case.call, one.calls))
        if reason is None and not case.in_place:
            reason = self._check(one, captured.launch)
        if reason is None:
            cost, reason = self._cost(one, captured, 1, clock)
            one.launches = max(1, min(round(self.batch_time / cost), 50)) if cost else 1
            one.cost = cost * one.launches
        if reason is not None and captured is not None:
            captured.close()
        return captured, reason

    def _check(self, one, call):
        """Make a call on wiped memory and look at what it left; returns why it failed, or None."""
        from mpi4py import MPI

        case, correct = one.case, None
        for action in (case.reset, call, case.check):
            correct, reason = self._agree(case, lambda action=action: self._done(action))
            if reason is not None:
                return reason
        one.correct = bool(self.comm.allreduce(one.correct and bool(correct), MPI.LAND))
        return None

    def _done(self, action):
        result = action()
        self.gpu.synchronize()
        return result

    def _cost(self, one, captured, units, clock):
        """Seconds of a call or launch, by the slowest PE; and why it failed, or None."""
        from mpi4py import MPI

        if one.case.in_place:
            self._agree(one.case, lambda: self._done(one.case.reset))
        else:
            self.comm.Barrier()
        seconds, reason = self._agree(one.case, lambda: self._batch(one, captured, units, 1, clock))
        if reason is not None:
            return 0.0, reason
        return max(self.comm.allreduce(seconds, MPI.MAX) / units, 1e-7), None

    def _warmup(self, one, captured):
        if self.warmup is not None:
            return self.warmup
        if captured is not None:
            return 1
        return 1 if one.cost / one.calls > 1e-4 else 10

    def _sample(self, series, graphs, clock, reasons):
        from mpi4py import MPI

        if not series:
            return
        warmups = [self._warmup(one, graph) for one, graph in zip(series, graphs, strict=True)]
        units = [one.launches or one.calls for one in series]
        # 100 us: what a batch takes beside its calls.
        one_round = sum(one.cost * (1 + w / n) + 1e-4 for one, w, n in zip(series, warmups, units, strict=True))
        batches = max(min(self.batches, 5), min(self.batches, int(self.budget / one_round)))
        own = np.zeros((batches, len(series)))
        errors: list[str | None] = [None] * len(series)
        out = [False] * len(series)
        collecting = gc.isenabled()
        gc.disable()
        try:
            for batch in range(batches):
                for i, one in enumerate(series):
                    if out[i]:
                        continue
                    if one.case.in_place and errors[i] is None:
                        one.case.reset()
                    self.gpu.synchronize()
                    # Where the PEs meet, they also learn whether a library has failed on one of them.
                    out[i] = bool(self.comm.allreduce(errors[i] is not None, MPI.LOR))
                    if out[i]:
                        continue
                    try:
                        own[batch, i] = self._batch(one, graphs[i], units[i], warmups[i], clock)
                    except Exception as error:
                        if one.case.library == "nvsym":
                            raise
                        errors[i] = f"{type(error).__name__}: {error}"
        finally:
            if collecting:
                gc.enable()
        slowest = np.empty_like(own)
        self.comm.Allreduce(own, slowest, MPI.MAX)
        for i, one in enumerate(series):
            failed = [f"PE {pe}: {text}" for pe, text in enumerate(self.comm.allgather(errors[i])) if text]
            if failed:
                reasons[one.case.library] = failed[0]
                continue
            calls = one.calls * (one.launches or 1) * one.case.steps
            one.samples = (slowest[:, i] / calls).tolist()

    def _batch(self, one, captured, units, warmup, clock):
        """Seconds of so many calls, or launches, on this PE."""
        call, loop = one.case.call, one.case.loop
        if captured is not None:
            call, loop = captured.launch, captured.launch.loop
        for _ in repeat(None, warmup):
            call()
        if clock != DEVICE:
            self.gpu.synchronize()
            start = time.perf_counter()
            _repeat(call, loop, units)
            if clock == COMPLETE:
                self.gpu.synchronize()
            elapsed = time.perf_counter() - start
            self.gpu.synchronize()
            return elapsed
        self.start.record(self.gpu.context.stream)
        _repeat(call, loop, units)
        self.end.record(self.gpu.context.stream)
        self.gpu.synchronize()
        return self.start.elapsed_time(self.end) / 1e3


def _repeat(call, loop, times):
    if loop is not None:
        loop(times)
    else:
        for _ in repeat(None, times):
            call()
