# SPDX-License-Identifier: Apache-2.0
"""What ``init_process_group(pg_options=)`` takes for the backend "nvsym"."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Options of the default group.

    Attributes
    ----------
    backend : str
        Of the job, where there is none yet: "auto", "nvshmem" or "host". The init method ``nvsym://`` has begun one before. A
        job on another backend is a ValueError.
    heap_size : int or str, optional
        Bytes of the symmetric heap of each PE, where there is no job yet. Default: NVSYM_HEAP_SIZE. A job that
        has less is a ValueError.
    staging : int or str, optional
        Bytes of symmetric memory through which the default group sends tensors that are not in symmetric memory
        themselves. Longer ones go in pieces. Default: 16 MiB in host memory, 64 MiB on GPUs, but at most an eighth of the
        heap.
    groups : int
        How many further groups (`new_group`) may exist at a time on a PE. Each has a quarter of `staging`.
    """

    backend: str = "auto"
    heap_size: int | str | None = None
    staging: int | str | None = None
    groups: int = 8
