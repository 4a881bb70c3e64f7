# SPDX-License-Identifier: Apache-2.0
"""What pytest prints of a test that failed on PEs."""

import dataclasses


class PEsRepr:
    """The failures of several PEs, one after the other, as pytest's terminal and its report files print them."""

    def __init__(self, parts, crash):
        self.parts = parts  # (heading, text or pytest's own representation)
        self.reprcrash = crash

    def toterminal(self, tw):
        for heading, body in self.parts:
            if heading:
                tw.sep("-", heading)
            if hasattr(body, "toterminal"):
                body.toterminal(tw)
            else:
                for line in str(body).splitlines():
                    tw.line(line)

    def __str__(self):
        return "\n".join(f"--- {heading} ---\n{body}" if heading else str(body) for heading, body in self.parts)


@dataclasses.dataclass
class Crash:
    """The place and the first line of a failure, for pytest's short summary."""

    path: str
    lineno: int
    message: str

    def __str__(self):
        return f"{self.path}:{self.lineno}: {self.message}"

    def toterminal(self, tw):
        tw.line(str(self))
