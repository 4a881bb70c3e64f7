# SPDX-License-Identifier: Apache-2.0
"""Texts for messages: numbers of PEs in words, files, and the ends of files."""

import os


def pe_numbers(pes):
    """PE numbers in words: ``PE 3``, ``PEs 0, 2``."""
    return f"PE{'s' if len(pes) > 1 else ''} {', '.join(map(str, pes))}"


def read_text(path):
    """The text of a file; none if nobody wrote it."""
    return path.read_text(errors="replace") if path.exists() else ""


def read_tail(path, *, offset=0, lines=40):
    """The last lines of a file from `offset` on."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(offset, size - 200 * lines))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.strip("\n").splitlines()[-lines:])
