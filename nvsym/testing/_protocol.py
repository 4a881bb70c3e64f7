# SPDX-License-Identifier: Apache-2.0
"""How the outer process and the PEs of a job talk: by files in the folder of the job, and by one signal.

The launched processes read what the job is from ``job.json``. From then on each PE appends records to a file of its own,
as they arise; a record is one line of JSON with a ``kind``:

=========== =========================== =========================================================================
kind        fields                      the PE says
=========== =========================== =========================================================================
``hello``   pid, start_time, segments   it runs; its MPI has mapped this shared memory
``ready``   missing                     it has collected; wanted tests that it does not have, with the reasons
``capture`` numbers                     the first test is about to run; descriptors of the files that hold its output
``start``   index, log                  it begins a test; the length of its log by now
``report``  index, report               pytest's report of a phase of the test
``warning`` category, message, ...      pytest recorded a warning in the test
``done``    index                       it ended the test
``vote``    index, failed               all PEs met after the test; those on which it failed
``end``     code                        its session is over
=========== =========================== =========================================================================

The outer process answers with empty files: ``go``, it has opened what ``capture`` named; ``stop``, it wants no more tests.
`DUMP_SIGNAL` asks a PE for its Python stacks, which come in a file of their own.
"""

import json
import pathlib
import signal

DUMP_SIGNAL = signal.SIGRTMIN + 5  # asks a PE for its Python stacks; a real-time signal is hardly ever taken


class JobFolder:
    """The folder of one job: its files by their meaning."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.spec = self.path / "job.json"
        self.log = self.path / "job.log"  # what the launcher prints, and programs that did not get as far as a log
        self.go = self.path / "go"
        self.stop = self.path / "stop"

    def records_of(self, pe):
        return self.path / f"pe{pe}.records"

    def log_of(self, pe):
        return self.path / f"pe{pe}.log"

    def stacks_of(self, pe):
        return self.path / f"pe{pe}.stacks"


def encode(kind, **data):
    """A record as a line of bytes."""
    return json.dumps({"kind": kind, **data}, default=repr).encode() + b"\n"


def decode(data):
    """The records in whole lines of bytes."""
    return [json.loads(line) for line in data.splitlines()]
