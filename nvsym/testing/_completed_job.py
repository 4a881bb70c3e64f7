# SPDX-License-Identifier: Apache-2.0
"""`CompletedJob`, what `mpirun` returns."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class CompletedJob:
    """What an MPI job that ended left behind.

    Attributes
    ----------
    args : list of str
        The command line (without the shell that gives each PE its output files).
    returncode : int
        The launcher's exit status; negative: the signal that ended it.
    stdout, stderr : str
        The output of PE 0, of PE 1, ..., then the launcher's own.
    pe_stdout, pe_stderr : list of str
        The output of each PE.
    elapsed : float
        Seconds from the launch to the end.
    """

    args: list[str]
    returncode: int
    stdout: str
    stderr: str
    pe_stdout: list[str]
    pe_stderr: list[str]
    elapsed: float

    def describe(self) -> str:
        """The command, its status and its whole output, as text for a failure."""
        return (
            f"command: {' '.join(self.args)}\nexit status: {self.returncode} after {self.elapsed:.1f} s\n"
            f"--- stdout ---\n{self.stdout}\n--- stderr ---\n{self.stderr}"
        )
