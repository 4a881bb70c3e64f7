# SPDX-License-Identifier: Apache-2.0
"""How the calls of one group are carried out in order: by a thread in host memory, on a stream on a GPU."""

from __future__ import annotations

import collections
import threading

import torch

from .work import GpuWork, HostWork


class HostLine:
    """A thread that carries out calls one after another.

    A call that its caller waits for at once is carried out in the caller's own thread when nothing is before it. A callback
    of a future runs in the thread of the line: what it calls or waits for, and what is before that, is carried out there.
    """

    stream = None  # the default stream runs an operation in the calling thread

    def __init__(self, name: str):
        self._name = name
        self._waiting: collections.deque = collections.deque()
        self._changed = threading.Condition()
        self._busy = False
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, run, tensors, later, blocks=False):
        """Carry out `run()`, and return its Work; `later`: the caller does not wait for it now."""
        work = HostWork(tensors, self._serve_until)
        with self._changed:
            if self._closed:
                raise RuntimeError("the process group has been shut down")
            mine = not later and not self._busy and not self._waiting
            if mine:
                self._busy = True
            else:
                self._waiting.append((run, work))
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                    self._thread.start()
                self._changed.notify_all()
        if mine:
            try:
                run()
            except BaseException as error:
                work.end(error)
                raise
            else:
                work.end()
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
        else:
            self._serve_until(work)
        return work

    def _serve(self):
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._busy and (self._waiting or self._closed))
                if not self._waiting:
                    return
                self._busy = True
            self._serve_one()
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _serve_one(self):
        run, work = self._waiting.popleft()
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - raised where the work is waited for
            work.end(error)
        else:
            work.end()

    def _serve_until(self, work):
        """In a callback, which the thread of the line is in: nobody else would carry out what it waits for."""
        if threading.current_thread() is self._thread:
            while self._waiting and not work.is_completed():
                self._serve_one()

    def drain(self):
        """Wait until all calls are carried out."""
        with self._changed:
            self._changed.wait_for(lambda: not self._busy and not self._waiting)

    def close(self):
        """Take no more calls, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()


class GpuLine:
    """A stream of the group's own, which waits for the caller's current stream before each call."""

    def __init__(self, device: torch.device):
        self.stream = torch.cuda.Stream(device)
        self._closed = False

    def submit(self, run, tensors, later, blocks=False):
        """Enqueue what `run()` enqueues, and return its Work. `blocks`: the host waits in `Work.wait`, too."""
        if self._closed:
            raise RuntimeError("the process group has been shut down")
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            run()
        return GpuWork(tensors, self.stream, blocks)

    def drain(self):
        """Wait until all that was enqueued is done."""
        self.stream.synchronize()

    def close(self):
        """Take no more calls."""
        self._closed = True
