# SPDX-License-Identifier: Apache-2.0
"""Makes one Markdown file, with pictures, of the documents that suite.py wrote, and says which bars are met.

::

    python benchmarks/gpu/report.py FOLDER --results benchmarks/results

In place of the folder it takes one file of all documents (``--raw``), for instance from a machine without matplotlib.
"""

import argparse
import datetime
import json
import pathlib
import re

TITLES = {"1": "1 PE", "2-mps": "2 PEs on one GPU, under MPS", "4-mps": "4 PEs on one GPU, under MPS"}
LABEL = re.compile(r"(1|2-mps|4-mps|gpus\d*)-(.+)")

# What plain peer-pointer kernels reached in a graph, float32, in microseconds by bytes: no slower at any size.
CALIBRATION = {
    "2-mps": {8: 2.05, 512: 2.04, 4096: 2.20, 32 << 10: 2.50, 256 << 10: 3.94, 2 << 20: 6.01, 16 << 20: 23.6},
    "4-mps": {8: 2.99, 512: 2.99, 4096: 3.35, 32 << 10: 3.58, 256 << 10: 8.30, 2 << 20: 10.7, 16 << 20: 46.8},
    "gpus2": {8: 2.29, 512: 2.35, 4096: 2.52, 32 << 10: 2.85, 256 << 10: 4.15, 2 << 20: 11.8, 16 << 20: 54.7,
             128 << 20: 412.0, 1 << 30: 3135.0},
}  # fmt: skip

# Of NCCL's time, inside a graph: up to so many bytes at most so much.
NCCL_TWO = ((64 << 10, 0.45), (256 << 10, 0.5), (2 << 20, 0.4), (16 << 20, 0.7), (128 << 20, 0.82), (1 << 30, 0.92))
NCCL_MORE = ((64 << 10, 0.4), (256 << 10, 0.6), (1 << 20, 0.8))


class Bars:
    """The bars as they are found, each with what was measured."""

    def __init__(self):
        self.rows = []

    def most(self, what, value, limit, unit=""):
        """A value that may be at most so large; None: it was not measured."""
        self._add(what, f"at most {limit:g}{unit}", value, unit, None if value is None else value <= limit)

    def least(self, what, value, limit, unit=""):
        """A value that must be at least so large."""
        self._add(what, f"at least {limit:g}{unit}", value, unit, None if value is None else value >= limit)

    def _add(self, what, bar, value, unit, met):
        shown = "not measured" if value is None else f"{value:.3g}{unit}"
        self.rows.append((what, bar, shown, "-" if met is None else "yes" if met else "**no**"))

    def markdown(self):
        """All of them, and how many are met."""
        met = sum(row[3] == "yes" for row in self.rows)
        judged = sum(row[3] != "-" for row in self.rows)
        return f"{met} of {judged} are met.\n\n" + table(("bar", "limit", "measured", "met"), self.rows)


def labels(documents):
    """The configurations that were measured: the first part of the documents' names, in a fixed order."""
    found = {LABEL.fullmatch(name)[1] for name in documents}
    return [
        *(label for label in TITLES if label in found),
        *sorted(found - TITLES.keys(), key=lambda one: (len(one), one)),
    ]


def title(label):
    """A configuration in words."""
    return TITLES.get(label) or f"one PE on each of {label.removeprefix('gpus')} GPUs"


def table(heads, rows):
    """A table in Markdown."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def size(nbytes):
    """Bytes in words."""
    for unit, one in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= one and nbytes % one == 0:
            return f"{nbytes // one} {unit}"
    return f"{nbytes} B"


def times(row):
    """The medians of a row in microseconds, by library."""
    return {"nvsym": row["nvsym"]["median_us"], **{name: one["median_us"] for name, one in row["peers"].items()}}


def variants(row, library):
    """The medians of all ways of a library that were measured."""
    found = {one["variant"]: one["median_us"] for one in row.get("variants", []) if one["library"] == library}
    if not found and library in row["peers"]:
        found = {row["peers"][library]["variant"]: row["peers"][library]["median_us"]}
    return found


def rows_of(document, **wanted):
    """The rows whose columns are these."""
    if document is None:
        return []
    return [row for row in document["rows"] if all(row.get(key) == value for key, value in wanted.items())]


def one_row(document, **wanted):
    """The row whose columns are these, or None."""
    rows = rows_of(document, **wanted)
    return rows[0] if rows else None


def ratio(row, library):
    """What a row says of nvsym's time over a library's, or None."""
    return None if row is None or library not in row["peers"] else row["peers"][library]["ratio"]


# ---- the tables -----------------------------------------------------------------------------------------------------


def section(name, document, other=None):
    """A document as text: the command, the references, a table; `other`: the same not in place."""
    parts = [f"### {name}", f"`python -m nvsym bench {command_line(document)}`"]
    references = document.get("references") or {}
    said = {
        "memory_GB_per_s": "copies within a GPU {:.0f} GB/s, read and written",
        "link_GB_per_s": "best copies to the next PE, all at once, {:.1f} GB/s each",
        "barrier_us": "NVSHMEM's barrier {:.2f} µs from C",
        "barrier_graph_us": "and in a graph {:.2f} µs",
    }
    if references:
        parts.append("In this run: " + "; ".join(said[key].format(value) for key, value in references.items()) + ".")
    measured = {name for row in document["rows"] for name in row["peers"]}
    missing = dict(document["unavailable"])
    for row in document["rows"]:
        missing.update({name: reason for name, reason in row["unavailable"].items() if name not in measured})
    parts += [f"Not measured: {reason}." for reason in missing.values()]
    groups = {}
    for row in document["rows"]:
        groups.setdefault(", ".join(row[c] for c in ("dtype", "mode") if c in row), []).append(row)
    for title, rows in groups.items():
        if len(groups) > 1:
            parts.append(f"{title}:")
        parts.append(rows_table(rows, other))
    return "\n\n".join(parts)


def command_line(document):
    """Roughly how the document was made."""
    options = document["options"]
    words = [document["bench"]]
    for key, value in options.items():
        if value in (None, False) or key in ("backend", "batches", "local", "first", "budget", "op", "reference"):
            continue
        if key == "vs_every" and value == 1:
            continue
        key = key.replace("_", "-")
        if isinstance(value, list):
            value = ",".join(value)
        if key in ("b", "e", "heap"):
            value = size(value).replace(" B", "").replace(" ", "").replace("iB", "")
        words.append(f"{'-' if len(key) == 1 else '--'}{key}" + ("" if value is True else f" {value}"))
    return " ".join(str(word) for word in words)


def rows_table(rows, other=None):
    """The rows of one element type and mode; where `other` is given, with its times for the same, not in place."""
    libraries = list(dict.fromkeys(name for row in rows for name in row["peers"]))
    sized, floors = "bytes" in rows[0], any(row["nvsym"].get("floor_us") for row in rows)
    named = [c for c in ("operation", "call", "copy") if c in rows[0]]
    rates = [
        (key, head) for key, head in (("GB_per_s", "GB/s"), ("bus_GB_per_s", "bus GB/s")) if key in rows[0]["nvsym"]
    ]
    heads = [*named, *(["bytes"] if sized else []), "nvsym, µs", *[head for _, head in rates]]
    heads += [head for name in libraries for head in (f"{name}, µs", "ratio")] + (["floor, µs"] if floors else [])
    heads += ["not in place, µs"] if other else []
    lines = []
    for row in rows:
        own = row["nvsym"]
        cells = [str(row[c]) for c in named] + ([size(row["bytes"])] if sized else [])
        cells.append(number(own["median_us"]) + ("" if own["correct"] else " WRONG"))
        cells += [number(own.get(key)) for key, _ in rates]
        for name in libraries:
            peer = row["peers"].get(name)
            cells += ["-", "-"] if peer is None else [number(peer["median_us"]), number(peer["ratio"])]
        if floors:
            cells.append(number(own.get("floor_us")))
        if other:
            same = one_row(other, **{column: row[column] for column in ("dtype", "mode", "bytes")})
            cells.append(number(None if same is None else same["nvsym"]["median_us"]))
        lines.append(cells)
    return table(heads, lines)


def number(value):
    """Three digits that count."""
    return "-" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


# ---- the bars -------------------------------------------------------------------------------------------------------


def judge_calls(bars, where, overhead):
    """What calls cost above C, and beside nvshmem4py."""
    for call in ("put", "get", "put_signal", "signal_op", "quiet", "barrier_all", "reduce by NVSHMEM"):
        row = one_row(overhead, call=call)
        above = None
        if row is not None and "nvshmem" in row["peers"]:
            above = row["nvsym"]["median_us"] - row["peers"]["nvshmem"]["median_us"]
        bars.most(f"{where}: {call} 4 KiB, the call above the same call in a C loop", above, 0.7, " µs")
    for call, limit in (("put", 0.6), ("signal_op", 0.2), ("reduce by NVSHMEM", 0.2)):
        found = ratio(one_row(overhead, call=call), "nvshmem4py")
        bars.most(f"{where}: {call}, of nvshmem4py's call", found, limit)
    row = one_row(overhead, call="allreduce")
    above = None
    if row is not None and "cuda" in row["peers"]:
        above = row["nvsym"]["median_us"] - row["peers"]["cuda"]["median_us"]
    bars.most(f"{where}: allreduce 4 KiB, the call above the launch of an empty kernel from C", above, 1.5, " µs")


def judge_init(bars, where, document, other):
    """What the beginning of a job costs above NVSHMEM's; in `other` NVSHMEM was the first in its process."""
    row = one_row(document, operation="beginning")
    above = None
    if row is not None and "nvshmem" in row["peers"]:
        above = (row["nvsym"]["median_us"] - row["peers"]["nvshmem"]["median_us"]) / 1e6
    bars.most(f"{where}: init above NVSHMEM's own", above, 0.15, " s")
    cold = [one_row(one, operation="first beginning of a process") for one in (document, other)]
    above = None
    if None not in cold and cold[0]["nvsym"]["median_us"] and "nvshmem" in cold[1]["peers"]:
        above = (cold[0]["nvsym"]["median_us"] - cold[1]["peers"]["nvshmem"]["median_us"]) / 1e6
    bars.most(f"{where}: the first init of a process above NVSHMEM's first", above, 0.15, " s")


def judge_copies(bars, where, document):
    """Copies of 256 MB."""
    for row in rows_of(document, bytes=256 << 20):
        found = ratio(row, "cuda")
        of = None if found is None else 1 / found
        if row["copy"].startswith("pinned"):
            bars.least(f"{where}: copy of 256 MiB, {row['copy']}, of the driver's rate", of, 0.95)
        else:
            bars.least(f"{where}: copy of 256 MiB, {row['copy']}, of the driver's own pageable rate", of, 5)


def judge_shared(bars, suite, documents):
    """Allreduce of PEs that share a GPU."""
    where, document = title(suite), documents.get(f"{suite}-allreduce")
    references = (document or {}).get("references", {})
    graph = rows_of(document, mode="graph", dtype="float32")
    by_size = {row["bytes"]: row for row in graph}
    for nbytes in (16 << 20, 64 << 20):
        row = by_size.get(nbytes)
        floor = row["nvsym"].get("floor_us") if row else None
        found = row["nvsym"]["median_us"] / floor if floor else None
        bars.most(f"{where}: allreduce of {size(nbytes)} in a graph, of the memory's floor", found, 1.6)
    found = ratio(by_size.get(16 << 20), "nvshmem")
    bars.most(f"{where}: allreduce of 16 MiB in a graph, of NVSHMEM's", found, 1 / 300)
    small = [row["nvsym"]["median_us"] for row in graph if row["bytes"] <= 16 << 10]
    for name, how in (("barrier_us", ", from C"), ("barrier_graph_us", ", in a graph too")):
        barrier = references.get(name)
        found = max(small) / barrier if barrier and small else None
        bars.most(f"{where}: slowest allreduce of 8 B to 16 KiB in a graph, of NVSHMEM's barrier{how}", found, 0.35)
    calibrated(bars, where, suite, by_size)


def calibrated(bars, where, suite, by_size):
    """Allreduce beside the plain kernels."""
    for nbytes, limit in CALIBRATION[suite].items():
        row = by_size.get(nbytes)
        found = None if row is None else row["nvsym"]["median_us"]
        bars.most(f"{where}: allreduce of {size(nbytes)} in a graph, as plain kernels did", found, limit, " µs")


def judge_moves(bars, where, suite, documents):
    """One-sided operations of 4 KB, completed."""
    for name, limit in (("put_signal", 0.6), ("put", 0.8)):
        document = documents.get(f"{suite}-{name}")
        for mode in ("eager", "graph"):
            row = one_row(document, bytes=4096, mode=mode)
            if row is not None or mode == "eager":
                bars.most(
                    f"{where}: {name} of 4 KiB, completed, {mode}, of NVSHMEM's from C", ratio(row, "nvshmem"), limit
                )


def judge_gpus(bars, label, documents):
    """One PE on each GPU."""
    document = documents.get(f"{label}-allreduce")
    if document is None:
        return
    pes = document["pes"]
    where = f"{pes} GPUs"
    for dtype in ("float32", "bfloat16"):
        graph = rows_of(document, mode="graph", dtype=dtype)
        smallest = 0
        for largest, limit in NCCL_TWO if pes == 2 else NCCL_MORE:
            # The last size of each range is the one that is named; below 64 KiB all are.
            sizes = [
                row
                for row in graph
                if smallest < row["bytes"] <= largest and (smallest == 0 or row["bytes"] == largest)
            ]
            found = [ratio(row, "nccl") for row in sizes if ratio(row, "nccl") is not None]
            up_to = "up to " if smallest == 0 else "of "
            bars.most(
                f"{where}: {dtype} allreduce {up_to}{size(largest)} in a graph, of NCCL's",
                max(found, default=None),
                limit,
            )
            smallest = largest
        found = {row["bytes"]: ratio(row, "torch") for row in graph if ratio(row, "torch") is not None}
        worst = max(found, key=found.get, default=None)
        at = "" if worst is None else f" (worst at {size(worst)})"
        bars.most(f"{where}: {dtype} allreduce in a graph, of PyTorch's better one{at}", found.get(worst),
                  0.9 if pes == 2 else 1.0)  # fmt: skip
        eager = []
        for row in rows_of(documents.get(f"{label}-allreduce-eager", document), mode="eager", dtype=dtype):
            other = variants(row, "torch").get("torch.distributed")
            if other is not None and row["bytes"] <= 256 << 10:
                eager.append(row["nvsym"]["median_us"] / other)
        bars.most(
            f"{where}: {dtype} allreduce up to 256 KiB, eager, of NCCL through PyTorch", max(eager, default=None), 0.25
        )
        link = document.get("references", {}).get("link_GB_per_s")
        if pes == 2:
            large = [row for row in graph if row["bytes"] >= 128 << 20]
            found = [row["nvsym"]["median_us"] * link * 1e3 / row["bytes"] for row in large] if link else []
            bars.most(
                f"{where}: {dtype} allreduce from 128 MiB in a graph, of the link's limit",
                max(found, default=None),
                1.1,
            )
        else:
            found = [row["nvsym"]["bus_GB_per_s"] for row in graph if row["bytes"] >= 256 << 20]
            bars.least(
                f"{where}: {dtype} allreduce from 256 MiB in a graph, bus bandwidth",
                min(found, default=None),
                340,
                " GB/s",
            )
    if pes == 2:
        graph = rows_of(document, mode="graph", dtype="float32")
        calibrated(bars, where, "gpus2", {row["bytes"]: row for row in graph})
    large = [row for row in rows_of(documents.get(f"{label}-put"), mode="eager") if row["bytes"] >= 64 << 20]
    found = [1 / ratio(row, "cuda") for row in large if ratio(row, "cuda")]
    bars.least(f"{where}: put from 64 MiB, of the best peer copy's rate", min(found, default=None), 0.95)


def judge(documents):
    """All bars that the documents can tell of."""
    bars = Bars()
    for label in labels(documents):
        where = title(label)
        if f"{label}-overhead" in documents:
            judge_calls(bars, where, documents[f"{label}-overhead"])
        if f"{label}-init" in documents:
            judge_init(bars, where, documents[f"{label}-init"], documents.get(f"{label}-init-peer-first"))
        if f"{label}-copy" in documents:
            judge_copies(bars, where, documents[f"{label}-copy"])
        if label.endswith("-mps"):
            judge_shared(bars, label, documents)
        if f"{label}-put" in documents or f"{label}-put_signal" in documents:
            judge_moves(bars, where, label, documents)
        if label.startswith("gpus"):
            judge_gpus(bars, label, documents)
    return bars


# ---- the file -------------------------------------------------------------------------------------------------------


def draw(documents, results, stem):
    """Pictures of what has sizes; their names, or why there are none."""
    try:
        import matplotlib  # noqa: F401

        from nvsym._bench.plot import plot, plot_scaling
    except ImportError as error:
        return {}, f"No pictures: {error}."
    names = {}
    for name, document in documents.items():
        if document["bench"] in ("allreduce", "put") and len(document["rows"]) > 4:
            file = results / f"{stem}-{name}.png"
            plot(document, str(file))
            names[name] = file.name
    scaling = [d for name, d in documents.items() if re.fullmatch(r"gpus\d+-allreduce", name)]
    if len(scaling) > 1:
        file = results / f"{stem}-scaling.png"
        plot_scaling(scaling, str(file))
        names["scaling"] = file.name
    return names, None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("documents", type=pathlib.Path, help="their folder, or a file of --raw")
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("benchmarks/results"))
    parser.add_argument("--raw", type=pathlib.Path, help="also write all documents to this file")
    options = parser.parse_args()
    if options.documents.is_dir():
        files = sorted(options.documents.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)  # as they were made
        documents = {file.stem: json.loads(file.read_text()) for file in files}
    elif options.documents.is_file():
        documents = json.loads(options.documents.read_text())
    else:
        parser.error(f"{options.documents}: no such folder or file")
    if not documents:
        parser.error(f"{options.documents}: no document; did the benchmarks run?")
    strange = [name for name in documents if LABEL.fullmatch(name) is None]
    if strange:
        parser.error(f"{options.documents}: {', '.join(strange)} is of no suite")
    gpus = max(document["pes"] if name.startswith("gpus") else 1 for name, document in documents.items())
    stem = f"gpu{gpus if gpus > 1 else ''}-{datetime.date.today()}"
    options.results.mkdir(parents=True, exist_ok=True)
    pictures, why_none = draw(documents, options.results, stem)
    machine = next((d for d in documents.values() if d["bench"] != "init"), next(iter(documents.values())))
    libraries = list(dict.fromkeys(line for d in documents.values() for line in d["libraries"]))
    parts = [
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        f"# Benchmarks on {gpus} GPU{'s' if gpus > 1 else ''}, {datetime.date.today()}",
        machine["machine"],
        "\n".join(f"- {line}" for line in libraries),
        f"Made by `make bench-gpu`. {machine['method']}",
    ]
    if why_none:
        parts.append(why_none)
    for label in labels(documents):
        own = {name: document for name, document in documents.items() if LABEL.fullmatch(name)[1] == label}
        parts.append(f"## {title(label)[0].upper()}{title(label)[1:]}")
        for name, document in own.items():
            other = documents.get(name.removesuffix("-in-place")) if name.endswith("-in-place") else None
            parts.append(section(LABEL.fullmatch(name)[2], document, other))
            if name in pictures:
                parts.append(f"![{name}]({pictures[name]})")
    if "scaling" in pictures:
        parts += ["## Scaling", f"![scaling]({pictures['scaling']})"]
    bars = judge(documents)
    parts += ["## The bars", bars.markdown()]
    target = options.results / f"{stem}.md"
    target.write_text("\n\n".join(parts) + "\n")
    if options.raw:
        options.raw.write_text(json.dumps(documents))
    print("\n".join(" | ".join(row) for row in bars.rows))
    print(f"{target}: {len(documents)} benchmarks")


if __name__ == "__main__":
    main()
