# SPDX-License-Identifier: Apache-2.0
"""The GPU kernels compile for every architecture, and the cache of what was compiled keeps its promises. No GPU is needed."""

import concurrent.futures
import multiprocessing
import os
import re
import stat
import sys

import pytest
from machine_code import disassemble

from nvsym.dtypes import DTYPES, OPS, REDUCIBLE
from nvsym.errors import BackendError, NotAvailableError
from nvsym.kernels import atomics, compiler

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")

ARCHITECTURES = (80, 90, 100)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("NVSYM_CACHE_DIR", str(folder))
    return folder


# Those of the same template are one compilation each and no more.
FLOAT8_ALIKE = {"float8_e3m4", "float8_e4m3", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2fnuz"}


def combinations():
    """Every element type and every operator, each for one architecture of all: a compilation takes a second."""
    types = [("sum", dtype.name) for dtype in DTYPES if dtype.name in compiler.TYPES.keys() - FLOAT8_ALIKE]
    ops = [(op.name, "int32") for op in OPS] + [("max", "float32"), ("and", "bool")]
    legal = {(OPS[op].name, DTYPES[dtype].name) for dtype, op in REDUCIBLE}
    pairs = sorted({pair for pair in types + ops if pair in legal})
    return [(dtype, op, ARCHITECTURES[i % 3]) for i, (op, dtype) in enumerate(pairs)]


def test_types_and_operators_are_nvsyms():
    assert set(compiler.TYPES) <= {dtype.name for dtype in DTYPES}
    assert set(compiler.OPERATORS) == {op.name for op in OPS}


def test_the_compiler_is_loaded_by_a_thread(cache, monkeypatch):
    assert compiler.begin_loading(90)() == (compiler.order_cubin(90)[0], True)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    load = compiler.begin_loading(90)
    with pytest.raises(NotAvailableError, match="cuda-bindings"):
        load()


def test_all_kernels_compile(cache):
    calls = [(compiler.allreduce_cubin, compiler.KERNELS, arguments) for arguments in combinations()]
    scattered = [("float32", "sum", 80), ("bfloat16", "max", 90), ("float8_e4m3fnuz", "sum", 100), ("bool", "xor", 90)]
    calls += [(compiler.reduce_scatter_cubin, compiler.SCATTERS, arguments) for arguments in scattered]
    calls += [(compiler.levels_cubin, compiler.LEVELS, arguments) for arguments in scattered]
    for cubin_of, kernels in (
        (compiler.moves_cubin, compiler.MOVES),
        (compiler.put_cubin, compiler.PUTS),
        (compiler.order_cubin, compiler.ORDERS),
    ):
        calls += [(cubin_of, kernels, (arch,)) for arch in ARCHITECTURES]
    # The compiler does one thing at a time in a process.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(len(os.sched_getaffinity(0)), context) as pool:
        results = [future.result() for future in [pool.submit(function, *args) for function, _, args in calls]]
    for (function, kernels, arguments), (cubin, fresh) in zip(calls, results, strict=True):
        assert fresh, (function, arguments)
        assert cubin[:4] == b"\x7fELF"
        for kernel in kernels:
            assert kernel.encode() in cubin, (arguments, kernel)
    report = compiler.cache_report()
    assert report["entries"] == len(calls)
    assert report["nbytes"] > sum(len(cubin) for cubin, _ in results)
    assert 0 < report["compile_seconds"] < 60
    assert report["compiler"].startswith("NVRTC")
    assert report["folder"] == str(cache)


# The machine code of multimem.ld_reduce and multimem.st, by what they combine and store.
SWITCHED = {
    ("float32", "sum"): ("LDGMC.E.ADD.F32x4.RN.STRONG.SYS", "STG.E.128.STRONG.SYS"),
    ("bfloat16", "sum"): ("LDGMC.E.F32ADD.BF16x8.RN.STRONG.SYS", "STG.E.128.STRONG.SYS"),
    ("float16", "max"): ("LDGMC.E.MAX.F16x8.RN.STRONG.SYS", "STG.E.128.STRONG.SYS"),
    ("int64", "xor"): ("LDGMC.E.XOR.64.STRONG.SYS", "STG.E.64.STRONG.SYS"),
    ("uint32", "sum"): ("LDGMC.E.ADD.32.STRONG.SYS", "STG.E.STRONG.SYS"),
}


@pytest.mark.parametrize("pair", SWITCHED, ids="-".join)
def test_machine_code_of_the_multimem_allreduce(cache, pair):
    """The switch reduces a share and stores it to all, four packs at a time, between two barriers."""
    code = disassemble(compiler.multimem_cubin(*pair, 90)[0], "-c")
    load, store = SWITCHED[pair]
    assert re.findall(r"LDGMC\S*", code) == [load] * 4
    stores = re.findall(r"STG\.E\S*", code).count(store)
    assert stores == 4 if ".128." in store else stores > 4  # the loose elements are stored one by one


def test_multimem_needs_an_architecture_that_has_it(cache):
    with pytest.raises(BackendError, match="sm_90"):
        compiler.multimem_cubin("float32", "sum", 80)


cubin_of = compiler.levels_cubin  # the cache is one for all; this compiles in a tenth of a second


def test_second_time_comes_from_the_cache(cache):
    first, fresh = cubin_of("float32", "sum", 90)
    assert fresh
    second, fresh = cubin_of("float32", "sum", 90)
    assert not fresh
    assert first == second
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    (entry,) = cache.iterdir()
    assert stat.S_IMODE(entry.stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize("damage", [lambda data: data[:100], lambda data: data[:-1] + b"x", lambda data: b""])
def test_damaged_entry_is_made_anew(cache, damage):
    first, _ = cubin_of("int32", "xor", 90)
    (entry,) = cache.iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    second, fresh = cubin_of("int32", "xor", 90)
    assert fresh
    assert first == second
    assert not cubin_of("int32", "xor", 90)[1]


def test_other_architecture_is_another_entry(cache):
    cubin_of("int32", "and", 80)
    assert cubin_of("int32", "and", 90)[1]
    assert len(list(cache.iterdir())) == 2


def test_folder_that_others_may_write_to_is_not_used(cache):
    cache.mkdir(mode=0o700)
    os.chmod(cache, 0o777)
    assert compiler.cache_folder() is None
    assert cubin_of("int32", "or", 90)[1]
    assert not list(cache.iterdir())


def test_many_processes_at_once_leave_one_whole_entry(cache):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = [r[0] for r in pool.map(lambda _: cubin_of("uint8", "max", 90), range(4))]
    assert all(result == results[0] for result in results)
    assert len(list(cache.iterdir())) == 1
    assert not cubin_of("uint8", "max", 90)[1]


def test_error_has_the_compilers_message():
    with pytest.raises(BackendError, match=r"compiling broken\.cu failed.*\n(.|\n)*undefined_thing"):
        compiler.compile_cubin('extern "C" __global__ void f() { undefined_thing(); }', "broken.cu", 90)


def test_atomics_ptx_has_every_entry():
    text = atomics.ptx().rstrip(b"\0").decode()
    names = re.findall(r"\.entry (\w+)\(", text)
    assert names == [atomics.entry_name(*entry) for entry in atomics.ENTRIES]
    assert len(names) == len(set(names)) == 24
