# SPDX-License-Identifier: Apache-2.0
"""What a collective call of a process group returns: something to wait for."""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.distributed as dist

from nvsym.job import check_kernels


class HostWork(dist.Work):
    """A call that a thread carries out.

    Its future is made when it is asked for, which DistributedDataParallel does and most others do not. `help_out` is called
    with it before a thread waits for it.
    """

    def __init__(self, tensors: Any, help_out: Any):
        super().__init__()
        self._tensors = tensors
        self._help_out = help_out
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._future: Any = None

    def end(self, error: BaseException | None = None) -> None:
        """Called once, when the call is done or has failed."""
        with self._lock:
            self._error = error
            self._ended.set()
            future = self._future
        if future is not None:
            self._complete(future)

    def _complete(self, future):
        if self._error is None:
            future.set_result(self._tensors)
        elif isinstance(self._error, Exception):
            future.set_exception(self._error)
        else:
            future.set_exception(RuntimeError(f"{type(self._error).__name__}: {self._error}"))

    def wait(self, timeout: Any = None) -> bool:
        """Wait until the call is done, and raise what it failed with.

        Parameters
        ----------
        timeout : datetime.timedelta, optional
            Default: none of its own; the call ends by NVSYM_TIMEOUT.

        Raises
        ------
        TimeoutError
            If it is not done by then. It goes on.
        """
        self._help_out(self)
        seconds = None if timeout is None or timeout.total_seconds() <= 0 else timeout.total_seconds()
        if not self._ended.wait(seconds):
            raise TimeoutError(f"the collective call is not done after {seconds:g} s")
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the call is done or has failed."""
        return self._ended.is_set()

    def is_success(self) -> bool:
        """Whether the call is done and has not failed."""
        return self._ended.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """What the call failed with."""
        return self._error

    def result(self) -> Any:
        """The tensors of the call, after it is done."""
        self.wait()
        return self._tensors

    def get_future(self) -> Any:
        """A future whose value is the list of the call's tensors."""
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                if self._ended.is_set():
                    self._complete(self._future)
            return self._future


class GpuWork(dist.Work):
    """A call that is enqueued on the group's stream. Waiting for it makes the current stream wait, not the host."""

    def __init__(self, tensors: Any, stream: Any, blocks: bool):
        super().__init__()
        self._tensors = tensors
        self._stream = stream
        self._blocks = blocks
        self._event = torch.cuda.Event()
        self._event.record(stream)
        self._error: Exception | None = None
        self._future: Any = None

    def wait(self, timeout: Any = None) -> bool:
        """Let the current stream wait for the call; for a barrier, the host too.

        Raises
        ------
        PeerTimeoutError
            If the host waits, and a call of the job has given up waiting for another rank.
        """
        torch.cuda.current_stream(self._stream.device).wait_event(self._event)
        if self._blocks and not torch.cuda.is_current_stream_capturing():
            self.wait_on_host()
        return True

    def wait_on_host(self) -> None:
        """Let the host wait for the call, and raise what it has failed with."""
        self._event.synchronize()
        try:
            check_kernels()
        except Exception as error:
            self._error = error
            raise

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the stream has passed the call."""
        return self._event.query()

    def is_success(self) -> bool:
        """Whether the stream has passed the call, and no wait of the host has found that it failed."""
        return self._error is None and self._event.query()

    def exception(self) -> Exception | None:
        """What a wait of the host has found; what is bad about a call's arguments is raised when it is made."""
        return self._error

    def result(self) -> Any:
        """The tensors of the call, in the order of the current stream."""
        self.wait()
        return self._tensors

    def get_future(self) -> Any:
        """A future whose value is the list of the call's tensors, ordered behind the call."""
        if self._future is None:
            future: Any = torch.futures.Future(devices=[self._stream.device])
            with torch.cuda.stream(self._stream):
                future.set_result(self._tensors)
            self._future = future
        return self._future
