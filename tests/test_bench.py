# SPDX-License-Identifier: Apache-2.0
"""`python -m nvsym bench` and benchmarks/host.py: what they call and print; never how long it took."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from nvsym._bench import data

HOST = pathlib.Path(__file__).resolve().parents[1] / "benchmarks" / "host.py"

# Several command lines in one job: each prints what it prints, then a line with its status.
MANY = """\
import json, sys
from nvsym.__main__ import main
from nvsym import my_pe
for line in json.loads(sys.argv[1]):
    try:
        status = main(["bench", *line])
    except SystemExit as end:
        status = end.code
    print("status", status, flush=True)
"""

TINY = ["-n", "3", "-w", "1", "--batches", "2"]
SIZED = ["-b", "16", "-e", "256", "-f", "4"]


def bench(mpirun, n, *lines, timeout=120.0):
    """What PE 0 printed for each command line, with the statuses; and PE 0's errors."""
    done = mpirun(n, MANY, json.dumps(lines), timeout=timeout)
    assert not any(line for text in done.pe_stdout[1:] for line in text.splitlines() if not line.startswith("status "))
    outputs, current = [], []
    for line in done.pe_stdout[0].splitlines():
        if line.startswith("status "):
            outputs.append(("\n".join(current), int(line.split()[1])))
            current = []
        else:
            current.append(line)
    assert len(outputs) == len(lines)
    return outputs, done.pe_stderr[0]


def check_series(one, calls=3, batches=2):
    assert one["calls"] == calls
    assert one["batches"] == batches
    assert one["correct"] is True
    assert 0 < one["min_us"] <= one["p25_us"] <= one["median_us"] <= one["p75_us"]


@pytest.fixture(scope="module")
def reports(request):
    """The JSON of every subcommand, from one job of 2 PEs with mpi4py beside nvsym."""
    from nvsym.testing import mpirun

    commands = {
        "latency": [*SIZED],
        "put": [*SIZED],
        "get": [*SIZED, "--local", "array"],
        "allreduce": [*SIZED, "--dtype", "int32", "--op", "max", "--algorithm", "two_shot"],
        "barrier": [],
        "atomics": [],
        "overhead": [],
    }
    outputs, errors = bench(
        mpirun, 2, *([name, *args, *TINY, "--vs", "mpi4py", "--json"] for name, args in commands.items())
    )
    assert "nvsym bench: 16 4 ..." in errors  # progress, apart from the document
    assert [status for _, status in outputs] == [0] * len(commands)
    return {name: json.loads(text) for name, (text, _) in zip(commands, outputs, strict=True)}


@pytest.mark.parametrize("name", ["latency", "put", "get", "allreduce", "barrier", "atomics", "overhead"])
def test_report(reports, name):
    report = reports[name]
    assert report["bench"] == name
    assert (report["pes"], report["nodes"]) == (2, 1)
    assert report["unavailable"] == {}
    assert [line.split()[0] for line in report["libraries"]] == ["nvsym", "mpi4py"]
    assert "A B A B" in report["method"]
    for row in report["rows"]:
        check_series(row["nvsym"])
        for peer in row["peers"].values():
            check_series(peer)
            assert peer["ratio"] == pytest.approx(row["nvsym"]["median_us"] / peer["median_us"])
        assert set(row["peers"]) | set(row["unavailable"]) == {"mpi4py"}


@pytest.mark.parametrize("name", ["latency", "put", "get", "allreduce"])
def test_sizes(reports, name):
    rows = reports[name]["rows"]
    assert [(row["bytes"], row["count"]) for row in rows] == [(16, 4), (64, 16), (256, 64)]
    assert all(list(row["peers"]) == ["mpi4py"] for row in rows)
    for row in rows:
        own = row["nvsym"]
        assert ("GB_per_s" in own) == (name != "latency")
        assert ("bus_GB_per_s" in own) == (name == "allreduce")
        if name != "latency":
            assert own["GB_per_s"] == pytest.approx(row["bytes"] / own["median_us"] / 1e3)
        if name == "allreduce":
            assert own["bus_GB_per_s"] == pytest.approx(own["GB_per_s"])  # 2 (n - 1) / n with 2 PEs


def test_allreduce_takes_its_options(reports):
    options = reports["allreduce"]["options"]
    assert (options["dtype"], options["op"], options["algorithm"]) == ("int32", "max", "two_shot")
    assert reports["allreduce"]["rows"][0]["nvsym"]["variant"] == "two_shot"


def test_atomics_are_all_there(reports):
    assert [row["operation"] for row in reports["atomics"]["rows"]] == [f"atomic_{name}" for name in data.ATOMICS]
    assert all(row["peers"]["mpi4py"]["variant"].startswith("Win.Allocate") for row in reports["atomics"]["rows"])


def test_overhead_says_what_a_peer_lacks(reports):
    rows = {row["call"]: row for row in reports["overhead"]["rows"]}
    assert {"my_pe", "put + quiet", "allocate + free"} <= rows.keys()
    assert rows["my_pe"]["peers"]["mpi4py"]["variant"] == "Get_rank"
    assert rows["slice"]["unavailable"]["mpi4py"]


def test_tables(mpirun):
    lines = [
        ["put", *SIZED, *TINY, "--vs", "mpi4py"],
        ["allreduce", "-b", "3", "-e", "3", "--dtype", "bfloat16", *TINY, "--vs", "mpi4py"],
        ["barrier", *TINY],
        ["atomics", "--op", "swap", "--op", "fetch_add", "--dtype", "uint32", *TINY],
    ]
    outputs, _ = bench(mpirun, 4, *lines)
    assert [status for _, status in outputs] == [0] * 4
    heads = [[line for line in text.splitlines() if line.startswith("#")] for text, _ in outputs]
    bodies = [[line.split() for line in text.splitlines() if not line.startswith("#")] for text, _ in outputs]
    assert all("4 PEs on 1 node(s)" in head[0] and any("Each batch" in line for line in head) for head in heads)
    assert bodies[0][0] == ["bytes", "count", "nvsym", "us", "GB/s", "mpi4py", "us", "ratio"]
    assert [(row[0], row[1], len(row)) for row in bodies[0][1:]] == [("16", "4", 7), ("64", "16", 7), ("256", "64", 7)]
    # One element at least; a peer without the element type is named with the reason.
    assert bodies[1][1][:2] == ["2", "1"]
    assert "MPI has no datatype for bfloat16" in " ".join(bodies[1][1])
    assert bodies[2][0] == ["operation", "nvsym", "us"]
    assert [row[0] for row in bodies[2][1:]] == ["barrier_all"]
    assert [row[0] for row in bodies[3][1:]] == ["atomic_swap", "atomic_fetch_add"]


def test_what_cannot_be_measured(mpirun):
    lines = [
        ["latency", *TINY],
        ["allreduce", *TINY, "--algorithm", "multimem"],
        ["allreduce", *TINY, "--dtype", "float32", "--op", "xor"],
        ["atomics", *TINY, "--dtype", "int8"],
        ["put", "-b", "16", "-e", "8"],
        ["put", "-b", "1.2.3"],
        ["put", "--dtype", "float33"],
        ["put", "-n", "0"],
        ["allreduce", "--op", "mean"],
        ["barrier", "--vs", "mpi4py,gasnet"],
        ["barrier", *TINY],
    ]
    outputs, errors = bench(mpirun, 1, *lines)
    assert [status for _, status in outputs] == [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0]
    for text in (
        "needs 2 PEs",
        "multicast",
        "xor is not defined for float32",
        "no such atomic operation on int8",
        "-e 8 is below -b 16",
        "'1.2.3' is not a size",
        "float33",
        "'0' is not a whole number above zero",
        "invalid choice: 'mean'",
        "'gasnet' is none of mpi4py, shmem4py",
    ):
        assert text in errors, errors


def test_a_library_that_cannot_be_imported_is_named(mpirun, tmp_path, monkeypatch):
    (tmp_path / "shmem4py.py").write_text("raise ImportError('no OpenSHMEM here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    outputs, _ = bench(mpirun, 2, ["barrier", *TINY, "--vs", "shmem4py", "--json"])
    report = json.loads(outputs[0][0])
    assert list(report["unavailable"]) == ["shmem4py"]
    assert report["unavailable"]["shmem4py"].startswith("shmem4py: ")
    assert report["rows"][0]["peers"] == {}


@pytest.mark.pes(1, 2)
def test_libraries_take_turns(ctx):
    from mpi4py import MPI

    import nvsym
    from nvsym._bench import Case, Sampler, best

    order = []

    def case(library, variant=""):
        def close():
            order.append(f"close {library}{variant}")

        return Case(library, variant, lambda: order.append(library + variant), lambda: None, close=close, steps=2)

    sampler = Sampler(MPI.COMM_WORLD, nvsym.sync_all, calls=2, warmup=1, batches=3)
    series = sampler.measure([case("a"), case("b", "1"), case("b", "2")])
    each_round = ["a"] * 3 + ["b1"] * 3 + ["b2"] * 3
    checks, calibration = ["a", "b1", "b2"], ["a"] * 2 + ["b1"] * 2 + ["b2"] * 2
    assert order == checks + calibration + each_round * 3 + ["close a", "close b1", "close b2"]
    assert all(len(one.samples) == 3 and one.calls == 2 and one.correct for one in series)
    fastest = best(series)
    assert list(fastest) == ["a", "b"]
    assert fastest["b"].median == min(series[1].median, series[2].median)


@pytest.mark.pes(2)
def test_wrong_result_on_one_pe_is_seen_on_all(ctx):
    from mpi4py import MPI

    import nvsym
    from nvsym._bench import Case, Sampler

    me = ctx.my_pe()
    case = Case("a", "", lambda: None, lambda: None, check=lambda: me != 1)
    (series,) = Sampler(MPI.COMM_WORLD, nvsym.sync_all, calls=1, warmup=0, batches=1).measure([case])
    assert not series.correct
    assert series.as_dict()["correct"] is False


def test_expected_results():
    int32 = np.dtype(np.int32)
    assert data.pattern(4, int32, 2).tolist() == [2, 0, 1, 2]
    assert data.reduced(3, int32, "sum", 2).tolist() == [0 + 1, 1 + 2, 2 + 0]
    assert data.reduced(3, int32, "max", 2).tolist() == [1, 2, 2]
    assert data.reduced(3, np.dtype(np.float16), "prod", 2).dtype == np.float64
    assert data.same(np.array([1, 2], int32), np.array([1, 2]))
    assert not data.same(np.array([1, 2], int32), np.array([1, 3]))
    assert not data.same(np.array([1, 2], np.float32), np.array([1, 2.1]))


@pytest.fixture(scope="module")
def host():
    spec = importlib.util.spec_from_file_location("nvsym_host_benchmark", HOST)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _series(median, variant="", correct=True):
    return {"median_us": median, "variant": variant, "correct": correct}


def test_bars(host):
    result = {
        "rows": [
            {"name": "x", "bar": 0.5, "series": {"nvsym": _series(1.0), "mpi4py": _series(2.0, "Win.Allocate")}},
            {"name": "y", "bar": 0.5, "series": {"nvsym": _series(1.1), "mpi4py": _series(2.0)}},
            {"name": "z", "bar": None, "series": {"nvsym": _series(3.0), "mpi4py": _series(2.0)}},
            {"name": "w", "bar": 0.5, "series": {"nvsym": _series(1.0, correct=False), "mpi4py": _series(9.0)}},
            {"name": "v", "bar": 0.5, "series": {"nvsym": _series(1.0)}},
        ]
    }
    lines = host.lines_of(result, host.OWN_CORES)
    assert [line.ok for line in lines] == [True, False, None, False, None]
    assert [line.ratio for line in lines] == ["0.500", "0.550", "1.500", "0.111", "-"]
    assert lines[0].peer == "2.000 Win.Allocate"
    assert [line.ok for line in host.lines_of(result, host.SHARED_CORES)] == [True, True, False, False, None]
    assert [line.ok for line in host.lines_of(result, None)] == [None] * 5
    table = host.markdown("Title", "mpi4py", lines).splitlines()
    assert table[0] == "## Title"
    assert len({len(line) for line in table[2:-1]}) == 1
    assert [cell.strip() for cell in table[5].split("|")[1:-1]] == ["y", "1.100", "2.000", "0.550", "0.5", "**no**"]


def test_host_benchmark_runs(tmp_path):
    done = subprocess.run(
        [sys.executable, HOST, "--pes=2", "--batches=1", "--budget=0.01", "--largest=1024", "--repeats=1"],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr  # 1: a bar was missed, which this test does not judge
    assert "## 2 PEs on " in done.stdout
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line.startswith("| ")
    ]
    names = [row[0] for row in rows]
    for name in (
        "put 16 B + quiet",
        "atomic_fetch_add int64",
        "barrier_all",
        "allreduce 16 B",
        "my_pe(), the loop included",
    ):
        assert name in names
    assert "allreduce 8 KB" not in names  # above --largest
    assert "WRONG RESULT" not in done.stdout
    memory = [row for row in rows if row[0].startswith("added to each process")]
    assert [row[0][-3:] for row in memory] == ["RSS", "PSS"]
    assert "put 16 B + quiet" in done.stderr  # progress
