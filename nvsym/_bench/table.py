# SPDX-License-Identifier: Apache-2.0
"""Prints the rows of a benchmark as they come, on PE 0."""

import json
import sys
from pathlib import Path

__all__ = ["Printer"]

_NUMBERS = ("bytes", "count")
_WIDE = ("operation", "call", "copy")


class Printer:
    """The table, or the document in its place, and the document in a file.

    Parameters
    ----------
    command : str
    columns : list of str
        The rows' own.
    peers : list of str
    rates : list of str
        Keys of `result["nvsym"]` to show beside its time, such as ``"GB_per_s"``.
    json_to : {None, "-"} or str
        No document; the document instead of the table; its file.
    """

    def __init__(self, command, columns, peers, rates, json_to, digits=3):
        self.command = command
        self.columns = columns
        self.peers = peers
        self.rates = rates
        self.json_to = json_to
        self.digits = digits
        self.said: set[str] = set()  # reasons: once is enough

    @property
    def quiet(self):
        return self.json_to == "-"

    def begin(self, report):
        """The heading: what is measured, where, with what, and how."""
        if self.quiet:
            return
        print(f"# nvsym bench {report['bench']}: {report['pes']} PEs on {report['nodes']} node(s); {report['machine']}")
        for line in [*report["libraries"], *report["unavailable"].values()]:
            print(f"# {line}")
        _fold(report["method"])
        for text in _in_words(report.get("references", {})):
            print(f"# {text}")
        titles = [self._own(name, name) for name in self.columns]
        titles.append(f"{'nvsym us':>11}")
        titles += [f"{_RATES[rate]:>9}" for rate in self.rates]
        titles += [f"{name + ' us':>{self._width(name)}} {'ratio':>7}" for name in self.peers]
        titles.append("check")
        print("  ".join(titles).rstrip(), flush=True)

    def announce(self, row, number, of):
        """The row that is being measured, where the table does not come as it is made."""
        if self.quiet:
            words = " ".join(str(value) for value in row.columns.values())
            print(f"nvsym bench: {words} ... ({number} of {of})", file=sys.stderr, flush=True)

    def row(self, result):
        """A row that was measured."""
        if self.quiet:
            return
        cells = [self._own(name, result[name]) for name in self.columns]
        own = result["nvsym"]
        cells.append(_number(own["median_us"], 11, self.digits))
        cells += [_number(own.get(rate), 9, 3) for rate in self.rates]
        remarks = []
        for name in self.peers:
            peer = result["peers"].get(name)
            if peer is None:
                cells.append(f"{'-':>{self._width(name)}} {'-':>7}")
                reason = result["unavailable"].get(name, "")
                remarks.append("" if reason in self.said else reason)
                self.said.add(reason)
                continue
            time = _number(peer["median_us"], self._width(name), self.digits)
            cells.append(f"{time} {_number(peer['ratio'], 7, 3)}")
            if peer["variant"]:
                remarks.append(f"{name}: {peer['variant']}" if len(self.peers) > 1 else peer["variant"])
        wrong = [name for name, one in [("nvsym", own), *result["peers"].items()] if not one["correct"]]
        cells.append(f"WRONG RESULT of {', '.join(wrong)};" if wrong else f"{'ok':<5}")
        print("  ".join([*cells, "; ".join(filter(None, remarks))]).rstrip(), flush=True)

    def end(self, report, wrong):
        """The document, and the number of wrong results."""
        if self.json_to:
            text = json.dumps(report, indent=1)
            if self.quiet:
                print(text, flush=True)
            else:
                Path(self.json_to).write_text(text + "\n")
        if wrong and not self.quiet:
            print(f"# {wrong} wrong results", flush=True)

    def _own(self, name, value):
        if name in _NUMBERS:
            return f"{value:>10}"
        return f"{value:<22}" if name in _WIDE else f"{value:<9}"

    def _width(self, name):
        return max(12, len(name) + 3)


_RATES = {"GB_per_s": "GB/s", "bus_GB_per_s": "bus GB/s", "floor_us": "floor us"}


def _number(value, width, digits):
    return f"{'-':>{width}}" if value is None else f"{value:>{width}.{digits}f}"


def _in_words(references):
    """What the machine reaches by itself, a line for each."""
    texts = {
        "memory_GB_per_s": "copies within a GPU read and write {:.0f} GB/s",
        "link_GB_per_s": "the best copies to the next PE, by all PEs at once, move {:.1f} GB/s each",
        "barrier_us": "NVSHMEM's barrier of all PEs takes {:.2f} us",
        "barrier_graph_us": "and inside a graph {:.2f} us",
    }
    return [texts[name].format(value) for name, value in references.items()]


def _fold(text):
    line = "#"
    for word in text.split():
        if len(line) + len(word) > 118:
            print(line)
            line = "#"
        line += f" {word}"
    print(line)
