# SPDX-License-Identifier: Apache-2.0
"""`LostError`: a job ended, or had to be ended, before its tests did."""


class LostError(Exception):
    """The job cannot deliver the result of the test; the arguments are the parts of its failure."""

    def __init__(self, message, parts=(), sections=()):
        super().__init__(message)
        self.parts = list(parts)
        self.sections = list(sections)
