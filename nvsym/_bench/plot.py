# SPDX-License-Identifier: Apache-2.0
"""Draws the report of a benchmark with matplotlib."""

from pathlib import Path

__all__ = ["plot", "plot_scaling"]

# One colour for each library in every picture; nvsym's stands out.
_COLOURS = {
    "nvsym": "#76b900", "nccl": "#1f4e9c", "torch": "#d9541e", "nvshmem": "#7f3fa6", "nvshmem4py": "#b98fd6",
    "cuda": "#444444", "mpi4py": "#1f4e9c", "shmem4py": "#d9541e", "numpy": "#7f3fa6",
}  # fmt: skip


def plot(report, path):
    """Draw a report into a file.

    Parameters
    ----------
    report : dict
        The document of ``--json``.
    path : str
        Its ending says which format: .png, .svg or .pdf.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pages = _curves(report)
    if pages:
        figure = _draw_curves(pyplot, report, pages)
    else:
        figure = _draw_bars(pyplot, report)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    if not Path(path).stat().st_size:
        raise OSError(f"matplotlib wrote nothing to {path}")


def plot_scaling(reports, path):
    """Draw what allreduce takes, and its bus bandwidth, on different numbers of PEs.

    Parameters
    ----------
    reports : list of dict
        Documents of allreduce; their rows of float32 inside graphs are drawn, or the eager ones where there are none.
    path : str
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12.8, 4.2), layout="constrained")
    for report in sorted(reports, key=lambda one: one["pes"]):
        rows = [row for row in report["rows"] if row["dtype"] == "float32" and row["mode"] == "graph"] or report["rows"]
        sizes = [row["bytes"] for row in rows]
        label = f"{report['pes']} PEs"
        left.plot(sizes, [row["nvsym"]["median_us"] for row in rows], marker="o", markersize=3, label=label)
        right.plot(sizes, [row["nvsym"]["bus_GB_per_s"] for row in rows], marker="o", markersize=3, label=label)
    left.set(yscale="log", ylabel="microseconds")
    right.set(ylabel="bus GB/s")
    for ax in (left, right):
        ax.set_xscale("log", base=2)
        ax.set_xlabel("bytes")
        ax.grid(visible=True, which="major", linewidth=0.4)
        ax.legend(fontsize="small")
    figure.suptitle(f"nvsym allreduce\n{reports[0]['machine']}", fontsize="small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _times(row):
    return {"nvsym": row["nvsym"], **row["peers"]}


def _curves(report):
    """The rows by what they have in common beside their size; empty where rows have no sizes."""
    pages: dict[str, list] = {}
    for row in report["rows"]:
        if "bytes" not in row:
            return {}
        title = ", ".join(str(row[name]) for name in ("copy", "dtype", "mode") if name in row)
        pages.setdefault(title, []).append(row)
    return pages


def _draw_curves(pyplot, report, pages):
    rated = "GB_per_s" in next(iter(pages.values()))[0]["nvsym"]
    bus = "bus_GB_per_s" in next(iter(pages.values()))[0]["nvsym"]
    figure, axes = pyplot.subplots(
        len(pages), 1 + rated, squeeze=False, figsize=(6.4 * (1 + rated), 3.6 * len(pages) + 0.6), layout="constrained"
    )
    for line, (title, rows) in zip(axes, pages.items(), strict=True):
        names = list(dict.fromkeys(name for row in rows for name in _times(row)))
        for name in names:
            points = [(row["bytes"], _times(row)[name]) for row in rows if name in _times(row)]
            sizes = [size for size, _ in points]
            style = {"color": _COLOURS.get(name), "marker": "o", "markersize": 3, "label": name}
            line[0].plot(sizes, [one["median_us"] for _, one in points], **style)
            if rated:
                own = rows[-1]["nvsym"]
                factor = own["bus_GB_per_s"] / own["GB_per_s"] if bus else 1  # the same for all rows and libraries
                rates = [factor * size / one["median_us"] / 1e3 for size, one in points]
                line[1].plot(sizes, rates, **style)
        # Far below what a launch takes the floor says nothing.
        least = min(row["nvsym"]["median_us"] for row in rows) / 4
        floors = [(row["bytes"], row["nvsym"].get("floor_us") or 0) for row in rows]
        floors = [(size, floor) for size, floor in floors if floor >= least]
        if floors:
            line[0].plot(*zip(*floors, strict=True), color="#999999", linestyle="--", linewidth=1, label="floor")
        line[0].set(xscale="log", yscale="log", xlabel="bytes", ylabel="microseconds", title=title)
        if rated:
            line[1].set(xscale="log", xlabel="bytes", ylabel="bus GB/s" if bus else "GB/s", title=title)
        for ax in line:
            ax.set_xscale("log", base=2)
            ax.grid(visible=True, which="major", linewidth=0.4)
            ax.legend(fontsize="small")
    figure.suptitle(f"nvsym bench {report['bench']}, {report['pes']} PEs\n{report['machine']}", fontsize="small")
    return figure


def _draw_bars(pyplot, report):
    rows = report["rows"]
    names = list(dict.fromkeys(name for row in rows for name in _times(row)))
    figure, ax = pyplot.subplots(figsize=(8, 1.2 + 0.25 * len(rows) * max(1, len(names))), layout="constrained")
    height = 0.8 / len(names)
    for i, name in enumerate(names):
        times = [(at + i * height, _times(row).get(name, {}).get("median_us")) for at, row in enumerate(rows)]
        found = [(at, time) for at, time in times if time is not None]
        ax.barh(*zip(*found, strict=True), height=height, color=_COLOURS.get(name), label=name)
    labels = [" ".join(str(row[c]) for c in ("operation", "call", "what", "mode") if c in row) for row in rows]
    ax.set_yticks([at + 0.4 - height / 2 for at in range(len(rows))], labels)
    ax.invert_yaxis()
    ax.set(xscale="log", xlabel="microseconds")
    ax.grid(visible=True, axis="x", linewidth=0.4)
    ax.legend(fontsize="small")
    figure.suptitle(f"nvsym bench {report['bench']}, {report['pes']} PEs\n{report['machine']}", fontsize="small")
    return figure
