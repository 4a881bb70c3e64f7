# SPDX-License-Identifier: Apache-2.0
"""Which form of a GPU's collective is taken for a size, and that what is launched finds its place on the GPU. No GPU is needed."""

import json
import math
import pathlib
import re
import shutil
import sys

import installed
import pytest
from machine_code import disassemble

from nvsym import simulator
from nvsym.kernels import compiler

ROOT = installed.ROOT
FOLDER = pathlib.Path(__file__).parent / "kernels"

# Of an H200, and of all GPUs of compute capability 8.0 and 9.0.
REGISTERS, REGISTERS_AT_ONCE, THREADS, BLOCKS = 65536, 256, 2048, 32

# The kernels of low latency and the registers of a thread: what the table counts on, in nvsym/kernels/allreduce.pyx and exchange.pyx.
AT_MOST = {"allreduce": 40, "moves": 32, "reduce-scatter": 56}
LINES = {
    "allreduce": (compiler.allreduce_cubin, ["nvsym_low_latency"]),
    "moves": (compiler.moves_cubin, ["nvsym_broadcast_lines", "nvsym_fcollect_lines", "nvsym_alltoall_lines"]),
    "reduce-scatter": (compiler.reduce_scatter_cubin, ["nvsym_reduce_scatter_lines"]),
}
PAIRS = [("int64", "prod"), ("float8_e4m3", "sum")]

# (PEs, processors of each, PEs that share a GPU)
H200 = 132
JOBS = [
    (2, H200, 1),
    (4, H200, 1),
    (8, H200, 1),
    (2, 52, 2),
    (4, 26, 4),
    (4, 52, 2),
    (8, 13, 8),
    (1, H200, 1),
    (2, 1, 2),
]

KIB, MIB = 1 << 10, 1 << 20


def after(nbytes):
    """The first size above this one; check.py asks for it."""
    return nbytes + 1


# PEs, processors, PEs on a GPU, members of the team, in place: what was measured, see benchmarks/results/notes-allreduce.md.
DISPATCH = {
    "two PEs, a GPU each": (
        (2, H200, 1, None, False),
        # What copy engines send, above 16 MiB, is there with memory for its stages only.
        [["low_latency", 8], ["push", after(128 * KIB)], ["two_shot", after(16 * MIB)]],
        64 * KIB,
    ),
    "four PEs, a GPU each": (
        (4, H200, 1, None, False),
        [["low_latency", 8], ["two_shot", after(64 * KIB)]],
        32 * KIB,
    ),
    "eight PEs, a GPU each": (
        (8, H200, 1, None, False),
        [["low_latency", 8], ["two_shot", after(64 * KIB)]],
        8 * KIB,
    ),
    "two PEs on one GPU": (
        (2, 52, 2, None, False),
        [["low_latency", 8], ["two_shot", after(512 * KIB)]],
        256 * KIB,
    ),
    "four PEs on one GPU": (
        (4, 26, 4, None, False),
        [["low_latency", 8], ["two_shot", after(256 * KIB)]],
        256 * KIB,
    ),
    "a team of two of four PEs": (
        (4, H200, 1, 2, False),
        [["low_latency", 8], ["one_shot", after(64 * KIB)], ["two_shot", 512 * KIB]],
        64 * KIB,
    ),
    "a team of two of four PEs, in place": (
        (4, H200, 1, 2, True),
        [["low_latency", 8], ["two_shot", after(64 * KIB)]],
        64 * KIB,
    ),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """What tests/kernels/check.py says of all jobs."""
    pytest.importorskip("Cython", reason="Cython is not installed")
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    folder = tmp_path_factory.mktemp("table")
    installed.compile_extension(folder, "table", FOLDER / "table.pyx")
    question = {"grids": JOBS, "dispatch": [job for job, _, _ in DISPATCH.values()]}
    environ = {**simulator.environment(devices=1), "PYTHONPATH": ROOT}
    command = [sys.executable, FOLDER / "check.py", folder, json.dumps(question)]
    return json.loads(installed.run(command, env=environ, cwd=folder))


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_low_latency_finds_a_place(table, job):
    """Its blocks wait for those of other PEs: all of them are on the processors at a time, and each has lines of its own."""
    launches = table["grids"][JOBS.index(job)]
    assert {launch[0] for launch in launches} == set(AT_MOST)
    for what, nbytes, blocks, threads, line_bytes, early in launches:
        told = f"{what} of {nbytes} bytes: {blocks} blocks of {threads} threads"
        assert blocks <= table["line_blocks"], told
        assert threads % 32 == 0, told
        assert (blocks - 1) * threads * 8 < nbytes <= blocks * threads * 8, told
        assert threads * 16 <= line_bytes, told
        of_a_warp = math.ceil(AT_MOST[what] * 32 / REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
        at_once = min(REGISTERS // of_a_warp * 32 // threads, THREADS // threads, BLOCKS)
        assert blocks <= at_once * job[1], told
        if early:  # one more may wait there
            assert 2 * math.ceil(blocks / job[1]) <= at_once, told


@pytest.mark.parametrize("what", LINES)
@pytest.mark.parametrize("arch", [80, 90])
def test_low_latency_has_few_registers(tmp_path, monkeypatch, what, arch):
    monkeypatch.setenv("NVSYM_CACHE_DIR", str(tmp_path / "cache"))
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    make, kernels = LINES[what]
    for pair in PAIRS if what != "moves" else [()]:
        text = disassemble(make(*pair, arch)[0])
        registers = {
            name: int(number, 16)
            for name, number in re.findall(
                r"EIATTR_REGCOUNT\n.*?index@\((\w+)\)\n.*?\.word\s+(0x[0-9a-f]+)", text, re.DOTALL
            )
        }
        for name in kernels:
            assert 0 < registers[name] <= AT_MOST[what], (pair, registers)


@pytest.mark.parametrize("name", DISPATCH)
def test_dispatch(table, name):
    _, forms, most = DISPATCH[name]
    found = table["dispatch"][list(DISPATCH).index(name)]
    assert found["allreduce"] == forms
    assert found["moves"] == most
