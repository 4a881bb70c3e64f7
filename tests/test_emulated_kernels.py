# SPDX-License-Identifier: Apache-2.0
"""The text of the GPU kernels, compiled for the CPU and run with each of CUDA's threads as a fiber (tests/emulated).

The PEs get apart at random, so a missing barrier, a wrong index or an epoch that is used twice gives a wrong result. What it
cannot find are missing fences: the CPU's order is stronger.
"""

import ctypes
import re
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import nvsym
from nvsym.dtypes import float8_tables
from nvsym.kernels.compiler import TYPES

FOLDER = Path(__file__).parent / "emulated"
INCLUDE = Path(__file__).parent.parent / "include"
FLOAT8 = {name: kind.removeprefix("nvsym::") for name, kind in TYPES.items() if name.startswith("float8")}


def build(folder, include=INCLUDE):
    library = folder / "collectives.so"
    command = [
        "g++",
        "-std=c++20",
        "-O1",
        "-fno-strict-aliasing",
        "-shared",
        "-fPIC",
        "-w",
        f"-I{include}",
        f"-I{FOLDER}",
    ]
    subprocess.run([*command, "-o", library, FOLDER / "collectives.cpp"], check=True)
    emulated = ctypes.CDLL(str(library))
    emulated.last_message.restype = ctypes.c_char_p
    return emulated


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    return build(tmp_path_factory.mktemp("emulated"))


def declared(text, name, constants):
    """A struct that Cython source declares, as ctypes lays it out."""
    fields = []
    for kind, star, field, sizes in re.findall(
        r"^    (\w+) *(\*?) *(\w+)((?:\[\w+\])*)",
        re.search(rf"cdef struct {name}:\n((?:    .*\n)+)", text)[1],
        re.MULTILINE,
    ):
        type_ = ctypes.c_void_p if star else getattr(ctypes, "c_" + kind.removesuffix("_t"))
        for size in reversed(re.findall(r"\w+", sizes)):
            type_ *= constants[size] if size in constants else int(size)
        fields.append((field, type_))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def test_structs_are_declared_as_they_are(emulated):
    """What kernels take is declared in CUDA C++ and in Cython."""
    kernels = Path(nvsym.__file__).parent / "kernels"
    text = (kernels / "allreduce.pxd").read_text() + (kernels / "staged.pxd").read_text()
    constants = {name: int(value, 0) for name, value in re.findall(r"^    (\w+) *= (\d\w*)", text, re.MULTILINE)}
    team, flags, rounds, stage = (
        declared(text, name, constants) for name in ("TeamArgs", "StageFlags", "StageRounds", "Stage")
    )
    pad = (2 * constants["MAX_BLOCKS"] + 1) * constants["MAX_PES"] * 4
    expected = [
        *(ctypes.sizeof(team), team.delta.offset, ctypes.sizeof(flags), flags.loose.offset),
        *(ctypes.sizeof(rounds), rounds.copied.offset, ctypes.sizeof(stage), stage.number.offset, pad),
    ]
    emulated.layout.restype = ctypes.c_ulong
    assert [emulated.layout(i) for i in range(len(expected))] == expected


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_random_sequences(emulated, n):
    """All kernels in random order, sizes, alignments and grids, one behind the other without a wait between them."""
    for seed in range(10):
        assert emulated.run_random(ctypes.c_uint64(seed), n, 50) == 0, emulated.last_message()


@pytest.mark.parametrize(("nodes", "local"), [(2, 1), (2, 2), (3, 2), (2, 4)])
def test_two_levels(emulated, nodes, local):
    for seed in range(5):
        assert emulated.run_levels(ctypes.c_uint64(seed), nodes, local, 20) == 0, emulated.last_message()


@pytest.mark.parametrize("n", [2, 4])
def test_a_missing_pe_is_named(emulated, n):
    """Every kernel stops within the time limit, and names the one PE that did not come."""
    for kind in range(emulated.kinds()):
        if n > emulated.most_pes(kind):
            continue
        for missing in (0, n - 1):
            assert emulated.run_missing(ctypes.c_uint64(kind), n, kind, missing) == 0, emulated.last_message()


def test_staged(emulated):
    """Two PEs that copy and reduce: sizes of one stage and of several, alignments, in place, words that look like empty ones."""
    for seed in range(20):
        assert emulated.run_staged(ctypes.c_uint64(seed), 30, -1) == 0, emulated.last_message()


@pytest.mark.parametrize("behind", [0, 1])
def test_staged_with_a_late_pe(emulated, behind):
    """Both fail, each naming the other: nobody takes a stage that was given up for one that has come."""
    for seed in range(10):
        assert emulated.run_staged(ctypes.c_uint64(seed), 3, behind) == 0, emulated.last_message()


# What is taken out of a kernel, and has to be noticed.
DAMAGES = {
    "the barrier before fcollect stores to the others": (
        "exchange",
        "if (meet(t, 0, epoch)) { /* all are done with",
        "{ /*",
    ),
    "that a barrier waits": (
        "collectives",
        "meet_at(t.pad->met, t, epoch);",
        "",
    ),
    "the barrier after reduce_scatter has read": (
        "exchange",
        "meet(t, 1, epoch); /* all are done with the operands */",
        "",
    ),
    "the barrier between the shares of a broadcast": ("exchange", "if (k == 0 && !meet(t, 1, epoch))", "if (false)"),
    "that a word that is pushed looks as if nothing had come": (
        "collectives",
        "plain = plain && own[c].w[k] != EMPTY;",
        "",
    ),
    "that what is pushed has a key": ("collectives", "bool plain = own[0].w[0] != KEYED;", "bool plain = true;"),
    "that a key has come": ("collectives", "KEY_FLAG = 0x7fffffffu", "KEY_FLAG = 0xffffffffu"),
    "to empty what was pushed": ("collectives", "store_words(from + c * layer, empty);", ""),
    "that the peer has seen what is overwritten": ("staged", "await_count(own, seen, 1 - t.me, patience)", "true"),
    "that the peer has given up": ("staged", "if (here && load_acquire(&stage.flags->failed)) {", "if (false) {"),
    "that a copy of words with marks is over": ("staged", "if (any_marked)", "if (false)"),
    "that the peer's stage is empty again": ("staged", "await_count(emptied, round, peer, patience)", "true"),
    "that a word is one that means nothing has come": ("staged", "if (mark) {", "if (false) {"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_emulation_notices(tmp_path, damage):
    name, before, after = DAMAGES[damage]
    (tmp_path / "nvsym").mkdir()
    for header in (INCLUDE / "nvsym").glob("*.cuh"):
        (tmp_path / "nvsym" / header.name).write_text(header.read_text())
    header = tmp_path / "nvsym" / f"{name}.cuh"
    assert header.read_text().count(before) == 1
    header.write_text(header.read_text().replace(before, after))
    emulated = build(tmp_path, tmp_path)
    if name == "staged":
        runs = ((ctypes.c_uint64(seed), *run) for seed in range(60) for run in ((30, -1), (3, seed % 2)))
        assert any(emulated.run_staged(*run) for run in runs)
    else:
        assert any(
            emulated.run_random(ctypes.c_uint64(seed), n, 50)
            for n in (2, 3, 4)
            for seed in range(400 if n == 2 else 20)
        )


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


@pytest.mark.parametrize("name", FLOAT8)
def test_float8_conversions_are_those_of_ml_dtypes(emulated, name):
    tables = float8_tables(name)
    codes, values = np.arange(256, dtype=np.uint8), np.zeros(256, np.float32)
    getattr(emulated, f"decode_{FLOAT8[name]}")(pointer(codes), pointer(values), ctypes.c_long(256))
    same = (values == tables.decode) & (np.signbit(values) == np.signbit(tables.decode))
    assert (same | (np.isnan(values) & np.isnan(tables.decode))).all()
    # Around each point where the code changes, and anywhere else.
    points = [tables.thresholds, tables.thresholds - 1, tables.thresholds + 1]
    points.append(np.array([0, 1, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000], np.uint32))
    points.append(np.random.default_rng(3).integers(0, 1 << 31, 100_000).astype(np.uint32))
    for sign in (0, 1 << 31):
        numbers = (np.concatenate(points).astype(np.uint32) | np.uint32(sign)).view(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            expected = numbers.astype(getattr(ml_dtypes, name)).view(np.uint8)
        found = np.zeros(len(numbers), np.uint8)
        getattr(emulated, f"encode_{FLOAT8[name]}")(pointer(numbers), pointer(found), ctypes.c_long(len(numbers)))
        assert (found == expected).all()
