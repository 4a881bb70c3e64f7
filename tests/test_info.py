# SPDX-License-Identifier: Apache-2.0
"""`python -m nvsym` and `python -m nvsym info`."""

import json
import os
import subprocess
import sys

import pytest

from nvsym import __version__, _info, _names, _settings, simulator

INFO = "import sys; from nvsym.__main__ import main; sys.exit(main(['info', *sys.argv[1:]]))\n"
LAUNCHER_NAMES = [name for name, _ in _info._LAUNCHERS] + list(_names._RANKS)


def alone(*args, **env):
    """Run `python -m nvsym ...` without a launcher."""
    environ = {key: value for key, value in os.environ.items() if key not in LAUNCHER_NAMES}
    environ.update(env)
    return subprocess.run(
        [sys.executable, "-m", "nvsym", *args], capture_output=True, text=True, env=environ, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def report():
    done = alone("info", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # the whole of stdout is the document


def test_alone_is_a_job_of_one_pe(report):
    assert report["job"] == {"backend": "host", "n_pes": 1, "n_nodes": 1}
    assert report["errors"] == []
    (pe,) = report["pes"]
    assert (pe["pe"], pe["node"], pe["backend"]) == (0, 0, "host")
    assert pe["started_by"] == {"launcher": None, "processes": 1}
    assert pe["device"]["is_host"]
    assert pe["links"] is None
    assert pe["heap"]["size"] == pe["heap"]["free"] == 1 << 30
    assert pe["heap"]["used"] == pe["heap"]["live"] == 0


def test_versions(report):
    import numpy

    versions = report["pes"][0]["versions"]
    assert versions["nvsym"] == __version__
    assert versions["Python"] == ".".join(map(str, sys.version_info[:3]))
    assert versions["numpy"] == numpy.__version__
    assert {"mpi4py", "ml_dtypes"} <= versions.keys()
    assert [int(part) for part in versions["Cython (build)"].split(".")[:2]] >= [3, 1]


def test_cache_of_compiled_kernels(report, tmp_path):
    assert report["pes"][0]["kernels"].keys() == {"folder", "entries", "nbytes", "compile_seconds", "compiler"}
    folder = tmp_path / "cache"
    kernels = json.loads(alone("info", "--json", NVSYM_CACHE_DIR=str(folder)).stdout)["pes"][0]["kernels"]
    assert (kernels["folder"], kernels["entries"], kernels["compile_seconds"]) == (str(folder), 0, None)
    done = alone("info", NVSYM_CACHE_DIR=str(folder))
    assert "nvsym.warmup()" in done.stdout
    assert done.returncode == 0


def test_libraries(report):
    libraries = report["pes"][0]["libraries"]
    assert libraries.keys() == {"MPI", "CUDA driver", "NVSHMEM"}
    mpi = libraries["MPI"]
    assert mpi["found"]
    assert os.path.isfile(mpi["path"])
    assert mpi["vendor"].replace(" ", "") in mpi["version"].replace(" ", "")
    assert mpi["thread_level"] in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
    for name in ("CUDA driver", "NVSHMEM"):
        if libraries[name]["found"]:
            assert os.path.isfile(libraries[name]["path"])
            assert libraries[name]["version"]
        else:
            assert "Tried" in libraries[name]["reason"]
    assert report["launcher"]["found"]
    assert os.access(report["launcher"]["path"], os.X_OK)


def test_capabilities_have_reasons(report):
    capabilities = report["pes"][0]["capabilities"]
    by_name = {c["name"]: c for c in capabilities}
    assert len(by_name) == len(capabilities)
    assert by_name["multicast"]["available"] is False
    assert by_name["peer_memory"]["available"] is False
    assert all(c["reason"] for c in capabilities)


def test_every_setting_is_listed(report):
    rows = report["pes"][0]["settings"]
    assert [row["name"] for row in rows] == list(_settings.SETTINGS)
    for row in rows:
        assert row["meaning"] == _settings.SETTINGS[row["name"]].meaning
        assert row["source"] == ("environment" if os.environ.get(row["name"]) else "default")


def test_library_that_a_setting_names_wrongly():
    report = json.loads(alone("info", "--json", NVSYM_LIBCUDA="/nowhere/libcuda.so.1").stdout)
    driver = report["pes"][0]["libraries"]["CUDA driver"]
    assert not driver["found"]
    assert "NVSYM_LIBCUDA=/nowhere/libcuda.so.1" in driver["reason"]


def test_table():
    done = alone("info", NVSYM_HEAP_SIZE="8M", COLUMNS="100")
    assert done.returncode == 0, done.stderr
    for text in (
        "Versions",
        "Libraries",
        "Job: 1 PE, host backend",
        "Capabilities",
        "Settings",
        "NVSYM_HEAP_SIZE",
        "8 MiB",
    ):
        assert text in done.stdout
    lines = done.stdout.splitlines()
    # A warning is one line: a path in it can be copied.
    assert all(len(line) <= 100 and line == line.rstrip() for line in lines if not line.startswith("WARNING"))
    (row,) = (line.split() for line in lines if line.startswith("NVSYM_HEAP_SIZE"))
    assert row[1:4] == ["8", "MiB", "environment"]
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("NVSYM_HEAP_SIZ", "8M", "unknown setting NVSYM_HEAP_SIZ='8M'; did you mean NVSYM_HEAP_SIZE?"),
        ("NVSYM_HEAP_SIZE", "lots", "NVSYM_HEAP_SIZE='lots'"),
    ],
)
def test_wrong_setting_is_an_error_of_a_whole_report(name, value, error):
    done = alone("info", "--json", **{name: value})
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert any(text.startswith("setting: ") and error in text for text in report["errors"])
    assert any(text.startswith("init: SettingError: ") for text in report["errors"])
    assert report["job"] == {"backend": None, "n_pes": 1, "n_nodes": None}
    (pe,) = report["pes"]
    assert [row["name"] for row in pe["settings"]] == list(_settings.SETTINGS)
    assert pe["heap"] is None
    table = alone("info", **{name: value})
    assert table.returncode == 1
    assert "no backend: init failed" in table.stdout
    assert f"ERROR: setting: {error}" in table.stdout


def test_both_wrong_settings_are_reported():
    done = alone("info", "--json", NVSYM_SPIN="x", NVSYM_NONSENSE="1")
    errors = "\n".join(json.loads(done.stdout)["errors"])
    assert "NVSYM_SPIN='x'" in errors
    assert "NVSYM_NONSENSE='1'" in errors


def test_a_wrong_setting_is_listed_as_it_is_and_truth_as_the_readme_has_it():
    done = alone("info", "--json", NVSYM_SPIN="x", NVSYM_TIMEOUT="7", NVSYM_DISABLE_MULTICAST="true")
    rows = {row["name"]: (row["value"], row["source"]) for row in json.loads(done.stdout)["pes"][0]["settings"]}
    assert rows["NVSYM_SPIN"] == ("x", "environment (not taken)")
    assert rows["NVSYM_TIMEOUT"] == ("7.0", "environment")
    assert rows["NVSYM_DISABLE_MULTICAST"] == ("1", "environment")
    assert rows["NVSYM_ABORT_ON_EXCEPTION"] == ("1", "default")


def test_two_pes_are_one_report(mpirun):
    done = mpirun(2, INFO, "--json", env={"NVSYM_HEAP_SIZE": "16M"})
    assert done.pe_stdout[1] == ""
    report = json.loads(done.pe_stdout[0])
    assert report["job"] == {"backend": "host", "n_pes": 2, "n_nodes": 1}
    assert [row["pe"] for row in report["pes"]] == [0, 1]
    assert len({row["pid"] for row in report["pes"]}) == 2
    assert report["warnings"] == report["errors"] == []
    for row in report["pes"]:
        assert row["heap"]["size"] == 16 << 20
        assert {c["name"]: c["available"] for c in row["capabilities"]}["peer_memory"]
        assert row["started_by"]["processes"] == 2
        assert {"name": "NVSYM_HEAP_SIZE", "value": "16 MiB", "source": "environment",
                "meaning": _settings.SETTINGS["NVSYM_HEAP_SIZE"].meaning} in row["settings"]  # fmt: skip


def test_two_pes_are_one_table(mpirun):
    done = mpirun(2, INFO)
    assert done.pe_stdout[1] == ""
    assert "Job: 2 PEs, host backend" in done.pe_stdout[0]
    rows = [line.split()[0] for line in done.pe_stdout[0].splitlines() if " 0 B of 1 GiB" in line]
    assert rows == ["0", "1"]


def test_two_nodes(mpirun):
    report = json.loads(mpirun(4, INFO, "--json", nodes=2).pe_stdout[0])
    assert report["job"]["n_nodes"] == 2
    assert sorted(row["node"] for row in report["pes"]) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("pes", "machine", "rows"),
    [
        (3, {"devices": 3}, ["18, 26.6 GB/s each way PEs 1-2: NVLink", "18, 26.6 GB/s each way PEs 0, 2: NVLink",
                             "18, 26.6 GB/s each way PEs 0-1: NVLink"]),
        (2, {"devices": 2, "nvlinks": 0}, ["0 PE 1: PCIe between NUMA nodes", "0 PE 0: PCIe between NUMA nodes"]),
        (2, {"devices": 1, "mps": 1}, ["18, 26.6 GB/s each way PE 1: the same GPU", "18, 26.6 GB/s each way PE 0: the same GPU"]),
        (1, {"devices": 1}, ["18, 26.6 GB/s each way -"]),
        (1, {"devices": 1, "nvml": 0}, ["- not known: NVML does not work: Driver Not Loaded"]),
    ],
)  # fmt: skip
def test_links(mpirun, pes, machine, rows):
    """How the GPUs of a node are connected."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    env = simulator.environment(**machine) | {"NVSYM_BACKEND": "nvshmem", "NVSYM_HEAP_SIZE": "16M"}
    if "mps" in machine:
        env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(90 // pes)
    lines = mpirun(pes, INFO, env=env).pe_stdout[0].splitlines()
    begin = lines.index("Links (as NVML reports them)") + 3
    found = [" ".join(line.split()) for line in lines[begin : begin + pes + 1]]
    assert found == [*(f"{pe} {row}" for pe, row in enumerate(rows)), ""]


def test_links_of_several_nodes(mpirun):
    """Those of a node are told of; NVML's answer of one pair is no matter of the others."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    env = simulator.environment(devices=2, nodes=2) | {"NVSYM_BACKEND": "nvshmem", "NVSYM_HEAP_SIZE": "16M"}
    report = json.loads(mpirun(4, INFO, "--json", env=env, nodes=2).pe_stdout[0])
    nodes = [row["node"] for row in report["pes"]]
    for pe, row in enumerate(report["pes"]):
        assert row["links"]["nvlinks"] == 18
        assert row["links"]["mbps"] == 26562
        assert row["links"]["to"] == [
            {"pe": other, "by": "NVLink"} for other, node in enumerate(nodes) if other != pe and node == nodes[pe]
        ]


def test_wrong_setting_on_one_pe(mpirun):
    done = mpirun(
        2,
        """\
        import os, sys
        from nvsym._names import launcher_rank
        from nvsym.__main__ import main
        if launcher_rank() == 1:
            os.environ["NVSYM_SPIN"] = "x"
        sys.exit(main(["info", "--json"]))
        """,
        check=False,
    )
    assert done.returncode != 0
    report = json.loads(done.pe_stdout[0])
    assert [row["pe"] for row in report["pes"]] == [0, 1]
    assert any(text.startswith("PE 1: setting: NVSYM_SPIN='x'") for text in report["errors"])
    assert any(text.startswith("init: SettingError: init() failed on 1 of 2 PEs. PE 1: ") for text in report["errors"])


def test_launcher_of_another_mpi(report):
    # What the launcher of the other MPI leaves in the environment.
    of_open_mpi = report["pes"][0]["libraries"]["MPI"]["vendor"] == "Open MPI"
    other = (
        {"MPI_LOCALNRANKS": "2", "PMI_SIZE": "2"}
        if of_open_mpi
        else {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
    )
    done = alone("info", "--json", **other)
    found = json.loads(done.stdout)
    assert any("do not belong together" in text for text in found["warnings"])
    if not of_open_mpi:
        # MPICH may end a process that Open MPI's launcher started: it is not begun.
        assert done.returncode == 1
        assert any(text.startswith("init: not tried: ") for text in found["errors"])
        second = alone("info", "--json", **{**other, "OMPI_COMM_WORLD_RANK": "1"})
        assert (second.stdout, second.returncode) == ("", 1)


def test_groups_of_pes():
    assert _info._pes([0]) == "PE 0"
    assert _info._pes([0, 1, 2, 5, 7, 8]) == "PEs 0-2, 5, 7-8"
    groups = _info._grouped([["a", {"x": 1}], [{"x": 1}], ["b", "a"]])
    assert groups == [("a", [0, 2]), ({"x": 1}, [0, 1]), ("b", [2])]
    assert _info._said_by([0, 1], "text", 2) == "text"
    assert _info._said_by([1], "text", 2) == "PE 1: text"


def test_without_arguments_it_helps():
    for args in ([], ["--help"], ["bench"], ["bench", "-h"]):
        done = alone(*args)
        assert done.returncode == 0
        assert done.stdout.startswith(f"usage: python -m nvsym{' bench' * ('bench' in args)} COMMAND")
    assert alone("--version").stdout == f"nvsym {__version__}\n"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(["inf"], "info"), (["bnech"], "bench"), (["bench", "allreduc"], "allreduce"), (["bench", "putt"], "put")],
)
def test_mistyped_command(typed, meant):
    done = alone(*typed)
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"no command {typed[-1]!r}; did you mean {meant!r}?" in done.stderr


def test_unknown_option():
    done = alone("info", "--jso")
    assert done.returncode == 2
    assert "--jso" in done.stderr
