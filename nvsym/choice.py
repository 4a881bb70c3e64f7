# SPDX-License-Identifier: Apache-2.0
"""`AllreduceChoice`: which algorithm an allreduce uses, and why."""

from collections.abc import Mapping
from dataclasses import dataclass

from ._settings import format_size

__all__ = ["AllreduceChoice"]


@dataclass(frozen=True, slots=True)
class AllreduceChoice:
    """What `nvsym.explain_allreduce` says; printing it gives a sentence and the thresholds.

    Attributes
    ----------
    algorithm : str
        What runs: "low_latency", "push", "staged", "one_shot", "two_shot", "two_level", "multimem", "nvshmem", "mpi", "copy" (a
        team of one PE) or "none" (no elements).
    reason : str
    thresholds : mapping of str to str
        When "auto" takes which algorithm, for this team.
    asked : str
        The algorithm that was asked for, or "auto".
    asked_by : str
        "call", "environment" (NVSYM_ALLREDUCE_ALGORITHM) or "default".
    backend, dtype, op : str
    n_pes : int
        Of the team.
    nbytes : int
        Of one operand.
    """

    algorithm: str
    reason: str
    thresholds: Mapping[str, str]
    asked: str
    asked_by: str
    backend: str
    dtype: str
    op: str
    n_pes: int
    nbytes: int

    def __str__(self) -> str:
        by = {"call": "", "environment": " (by NVSYM_ALLREDUCE_ALGORITHM)", "default": ""}[self.asked_by]
        call = f"{self.op} of {format_size(self.nbytes)} of {self.dtype} on {self.n_pes} PEs, {self.backend} backend"
        lines = [f"{self.algorithm}: {call}, asked for {self.asked!r}{by}: {self.reason}"]
        lines += [f"  auto takes {name} {when}" for name, when in self.thresholds.items()]
        return "\n".join(lines)
