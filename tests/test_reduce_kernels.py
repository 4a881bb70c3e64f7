# SPDX-License-Identifier: Apache-2.0
"""The reduction kernels of the host backend, compiled by themselves, in every instruction set that this machine has.

The expected results are made the way the kernels promise to make them: in order, 16- and 8-bit floats in float32 with
one rounding. They are compared bit for bit, but for which NaN it is.
"""

import ctypes
import functools
import os
import pathlib
import shutil
import subprocess
import sysconfig

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvsym.dtypes import DTYPES, OPS, REDUCIBLE, as_dtype, as_op, float8_tables

ROOT = pathlib.Path(__file__).parents[1]
SOURCE = ROOT / "nvsym" / "backends" / "host_reduce.c"
LENGTHS = (0, 1, 7, 8191, 8193)
LONGEST = LENGTHS[-1]
MAX_SOURCES = 5
PAIRS = [(d, op) for d in DTYPES for op in OPS if (d.id, op.id) in REDUCIBLE]
FLOAT8 = [d for d in DTYPES if d.name.startswith("float8")]
SMALL_FLOATS = [*(d for d in DTYPES if d.name in ("float16", "bfloat16")), *FLOAT8]

# The kernels with what the tests need to see of them.
PROBE = f"""
#include "{SOURCE}"

int probe_levels(void) {{ return best_level() + 1; }}

void probe_use(int at) {{ atomic_store(&active, levels[at]); }}

void probe_narrow(int dtype, void *d, const float *s, size_t n)
{{
    const level *at = atomic_load(&active);
    if (dtype >= F8_FIRST)
        at->float8.narrow(d, s, n, &f8_tables[dtype - F8_FIRST]);
    else
        (dtype == NVSYM_FLOAT16 ? &at->half : &at->bfloat16)->narrow(d, s, n, NULL);
}}

void probe_widen(int dtype, float *d, const void *s, size_t n)
{{
    const level *at = atomic_load(&active);
    if (dtype >= F8_FIRST)
        at->float8.widen(d, s, n, &f8_tables[dtype - F8_FIRST]);
    else
        (dtype == NVSYM_FLOAT16 ? &at->half : &at->bfloat16)->widen(d, s, n, NULL);
}}
"""

# NumPy's, for the infinities and NaNs among the operands.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def compiler():
    names = (os.environ.get("CC"), (sysconfig.get_config_var("CC") or "").split(" ")[0], "cc", "gcc", "clang")
    found = next((path for path in map(shutil.which, filter(None, names)) if path), None)
    return found or pytest.skip("no C compiler: CC is not set, and there is no cc, gcc or clang")


def compile_kernels(directory, command, *flags):
    source, library = directory / "probe.c", directory / "probe.so"
    source.write_text(PROBE)
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", *flags, f"-I{ROOT / 'include'}"]
    words = [command, *flags, str(source), "-o", str(library)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    loaded = ctypes.CDLL(str(library))
    loaded.nvsym_host_reduce.restype = ctypes.c_void_p
    void, integer = ctypes.c_void_p, ctypes.c_int
    loaded.nvsym_f8_table.argtypes = [integer, void, void, void, void, integer]
    loaded.probe_narrow.argtypes = loaded.probe_widen.argtypes = [integer, void, void, ctypes.c_size_t]
    return loaded


def give_tables(library):
    for d in FLOAT8:
        t = float8_tables(d)
        assert library.nvsym_f8_table(d.id, *[array.ctypes.data for array in t], len(t.thresholds)) == 0


FUNCTION = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, ctypes.c_size_t
)


class Kernels:
    """The kernels of one instruction set."""

    def __init__(self, library, level):
        self.library, self.level = library, level

    def reduce(self, d, op, dst, src):
        function = self.library.nvsym_host_reduce(d.id, op.id)
        assert function
        self.library.probe_use(self.level)
        pointers = [(ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays]) for arrays in (dst, src)]
        FUNCTION(function)(pointers[0], len(dst), pointers[1], len(src), len(src[0]))

    def narrow(self, d, values):
        self.library.probe_use(self.level)
        result = np.empty(len(values), d.numpy)
        self.library.probe_narrow(d.id, result.ctypes.data, np.ascontiguousarray(values).ctypes.data, len(values))
        return result

    def widen(self, d, codes):
        self.library.probe_use(self.level)
        result = np.empty(len(codes), np.float32)
        self.library.probe_widen(d.id, result.ctypes.data, codes.ctypes.data, len(codes))
        return result


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    loaded = compile_kernels(tmp_path_factory.mktemp("kernels"), compiler(), "-O2")
    give_tables(loaded)
    return loaded


@pytest.fixture(params=["baseline", "avx2", "avx512"])
def kernels(request, library):
    level = ["baseline", "avx2", "avx512"].index(request.param)
    if level >= library.probe_levels():
        pytest.skip(f"this processor has no {request.param}")
    return Kernels(library, level)


def bytes_of(array):
    """The elements as rows of bytes, without the padding of an x87 number."""
    rows = np.ascontiguousarray(array).view(np.uint8).reshape(len(array), array.itemsize)
    return rows[:, :10] if array.dtype == np.longdouble and np.finfo(np.longdouble).nmant == 63 else rows


def check_equal(actual, expected, what=""):
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    parts = [(actual, expected)]
    if actual.dtype.kind == "c":
        parts = [(actual.real, expected.real), (actual.imag, expected.imag)]
    for got, wanted in parts:
        same = np.all(bytes_of(got) == bytes_of(wanted), axis=1)
        if got.dtype.kind in "fV":
            same |= np.isnan(got) & np.isnan(wanted)
        wrong = np.flatnonzero(~same)
        if len(wrong):
            i = wrong[0]
            pytest.fail(f"{what}: {len(wrong)} differ, first [{i}]: {got[i]} is not {wanted[i]}")


def bits(d, n, rng):
    """Elements of random bits, so that all kinds of values come up."""
    if d.kind == "bool":
        return rng.integers(0, 2, n).astype(np.bool_)
    return rng.integers(0, 256, n * d.itemsize, dtype=np.uint8).view(d.numpy)


def operands(d, n, rng):
    """Numbers of which some are special and many, of a usual size, meet in ties, cancel or are equal."""
    if d.kind in ("bool", "int", "uint"):
        x = bits(d, n, rng)
        x[::3] = rng.integers(0, 2, len(x[::3])).astype(d.numpy)
        return x
    if d.kind == "complex":
        x = np.empty(n, d.numpy)
        real = as_dtype(x.real.dtype)
        x.real, x.imag = operands(real, n, rng), operands(real, n, rng)
        return x
    x = (rng.standard_normal(n) * 2.0 ** rng.integers(-8, 9, n)).astype(np.float32).astype(d.numpy)
    if d.itemsize > 4:
        x *= d.scalar(1) + d.scalar(rng.standard_normal()) / d.scalar(3)
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0**-24, 2.0**-149, -(2.0**-133), 65504.0, 3e38, 448.0]
    x[::4] = rng.choice(np.array(special, np.float32).astype(d.numpy), len(x[::4]))
    if d.itemsize <= 8:
        x[1::4] = bits(d, len(x[1::4]), rng)
    return x


def first_or_second(a, b, first):
    return np.where(first | np.isnan(a), a, b)


def step(d, op, a, b):
    """One operation, on the type that the reduction of `d` is done in."""
    name = op.name
    if d.kind == "bool":
        return {"sum": a | b, "max": a | b, "or": a | b, "prod": a & b, "min": a & b, "and": a & b, "xor": a ^ b}[name]
    if d.kind in ("int", "uint"):  # Python's integers, which know no overflow
        wide = {
            "sum": lambda: a + b, "prod": lambda: a * b, "min": lambda: np.minimum(a, b),
            "max": lambda: np.maximum(a, b), "and": lambda: a & b, "or": lambda: a | b, "xor": lambda: a ^ b,
        }[name]()  # fmt: skip
        low = -(1 << (8 * d.itemsize - 1)) if d.kind == "int" else 0
        return (wide - low) % (1 << (8 * d.itemsize)) + low
    if name == "min":
        return first_or_second(a, b, a <= b)
    if name == "max":
        return first_or_second(a, b, a >= b)
    if a.dtype == np.float32:  # float64 holds a sum or product of two so well that rounding it once more is the same
        x, y = a.astype(np.float64), b.astype(np.float64)
        return (x + y if name == "sum" else x * y).astype(np.float32)
    if d.kind == "complex" and name == "prod":
        result = np.empty_like(a)
        result.real = a.real * b.real - a.imag * b.imag
        result.imag = a.real * b.imag + a.imag * b.real
        return result
    return a + b if name == "sum" else a * b


@functools.cache
def case(d, op):
    """The operands, and the expected results for 1, 2, ... of them."""
    rng = np.random.default_rng([d.id, op.id])
    src = [operands(d, LONGEST, rng) for _ in range(MAX_SOURCES)]
    widened = {"int": object, "uint": object}.get(d.kind, np.float32 if d in SMALL_FLOATS else d.numpy)
    acc = src[0].astype(widened)
    expected = [src[0]]
    for x in src[1:]:
        acc = step(d, op, acc, x.astype(widened))
        expected.append(acc.astype(d.numpy))
    return src, expected


def placed(array, offset):
    """A copy that starts `offset` elements, of its parts if complex, after a multiple of 256, between guards."""
    part = array.itemsize // 2 if array.dtype.kind == "c" else array.itemsize
    raw = np.full(array.nbytes + offset * part + 512, 0xA5, np.uint8)
    start = -raw.ctypes.data % 256 + offset * part
    place = raw[start : start + array.nbytes].view(array.dtype)
    place[:] = array
    return raw, start, place


class Arrays:
    """Operands or results at given places, of which nothing may be written but the results themselves."""

    def __init__(self, arrays, offsets):
        made = [placed(a, o) for a, o in zip(arrays, offsets, strict=True)]
        self.places = [place for _, _, place in made]
        self.raws = [(raw, start, start + place.nbytes) for raw, start, place in made]

    def check_guards(self):
        for raw, start, end in self.raws:
            assert np.all(raw[:start] == 0xA5)
            assert np.all(raw[end:] == 0xA5)


def ids(pair):
    return f"{pair[0].name}-{pair[1].name}"


@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_reduction(kernels, pair):
    d, op = pair
    src, expected = case(d, op)
    for nsrc in range(1, MAX_SOURCES + 1):
        for ndst in (1, 2, 3):
            for n in LENGTHS:
                offsets = [(nsrc + 3 * k + n) % 8 if ndst != 2 else 0 for k in range(nsrc + ndst)]
                sources = Arrays([a[:n] for a in src[:nsrc]], offsets[:nsrc])
                results = Arrays([np.zeros(n, d.numpy)] * ndst, offsets[nsrc:])
                kernels.reduce(d, op, results.places, sources.places)
                what = f"{nsrc} sources, {ndst} destinations, n = {n}"
                for place in results.places:
                    check_equal(place, expected[nsrc - 1][:n], what)
                for place, before in zip(sources.places, src, strict=False):
                    assert place.tobytes() == before[:n].tobytes(), what
                results.check_guards()


@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_in_place(kernels, pair):
    """Every source is a destination in turn, and all are at once."""
    d, op = pair
    src, expected = case(d, op)
    for n in (7, LONGEST):
        for nsrc in (1, 2, 3, 5):
            for chosen in [*([k] for k in range(nsrc)), list(range(nsrc)), [nsrc - 1, 0]]:
                arrays = Arrays([a[:n] for a in src[:nsrc]], range(nsrc))
                other = Arrays([np.zeros(n, d.numpy)], [1])
                dst = [arrays.places[k] for k in dict.fromkeys(chosen)] + other.places
                kernels.reduce(d, op, dst, arrays.places)
                for place in dst:
                    check_equal(place, expected[nsrc - 1][:n], f"{nsrc} sources, in place of {chosen}, n = {n}")
                arrays.check_guards()
                other.check_guards()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_layout(library, data):
    """What comes out depends neither on the instruction set nor on alignment, length or the number of destinations."""
    d, op = data.draw(st.sampled_from(PAIRS))
    level = data.draw(st.integers(0, library.probe_levels() - 1))
    nsrc, ndst = data.draw(st.integers(1, MAX_SOURCES)), data.draw(st.integers(1, 4))
    n = data.draw(st.integers(0, LONGEST))
    begin = data.draw(st.integers(0, LONGEST - n))
    offsets = data.draw(st.lists(st.integers(0, 70), min_size=nsrc + ndst, max_size=nsrc + ndst))
    src, expected = case(d, op)
    sources = Arrays([a[begin : begin + n] for a in src[:nsrc]], offsets[:nsrc])
    results = Arrays([np.zeros(n, d.numpy)] * ndst, offsets[nsrc:])
    Kernels(library, level).reduce(d, op, results.places, sources.places)
    for place in results.places:
        check_equal(place, expected[nsrc - 1][begin : begin + n])
    results.check_guards()


def test_a_copy_keeps_every_bit(kernels):
    rng = np.random.default_rng(3)
    for d in DTYPES:
        x = bits(d, 4099, rng)
        result = np.zeros_like(x)
        kernels.reduce(d, as_op("sum"), [result], [x])
        assert result.tobytes() == x.tobytes()


def test_any_byte_of_a_bool_that_is_not_zero_is_true(kernels):
    a, b = (x.ravel().copy() for x in np.meshgrid(*[np.arange(256, dtype=np.uint8)] * 2))
    for op in OPS:
        result = np.empty_like(a)
        kernels.reduce(as_dtype(bool), op, [result], [a, b])
        check_equal(result, step(as_dtype(bool), op, a != 0, b != 0).view(np.uint8), op.name)


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    """Compiled for this machine, as a user may: then every level may use its fused multiply-add."""
    return compile_kernels(tmp_path_factory.mktemp("native"), compiler(), "-O3", "-march=native")


def test_products_are_rounded_before_they_are_added(kernels, native):
    """x * x - y, where a fused multiply-add would leave the rounding error of x * x."""
    for d in (as_dtype("complex64"), as_dtype("complex128")):
        rng = np.random.default_rng(5)
        real = d.numpy.type(0).real.dtype
        x = rng.uniform(1, 2, 1000).astype(real)
        a, b = np.empty(1000, d.numpy), np.empty(1000, d.numpy)
        a.real, a.imag, b.real, b.imag = x, x * x, x, 1
        for built in (kernels, Kernels(native, kernels.level)):
            result = np.empty_like(a)
            built.reduce(d, as_op("prod"), [result], [a, b])
            assert np.all(result.real == 0)


def float32_patterns():
    """All float32 of 16 leading bits, alone and next to the middle between two, and random ones."""
    rng = np.random.default_rng(16)
    top = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    lows = (0, 1, 0x1000, 0x1FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xEFFF, 0xF000, 0xF001, 0xFFFF)
    random = rng.integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
    return np.concatenate([*(top + np.uint32(low) for low in lows), random]).view(np.float32)


@pytest.mark.parametrize("d", SMALL_FLOATS, ids=lambda d: d.name)
def test_conversions(kernels, d):
    every = np.arange(1 << (8 * d.itemsize), dtype=np.uint32).astype(f"u{d.itemsize}").view(d.numpy)
    check_equal(kernels.widen(d, every), every.astype(np.float32))
    x = float32_patterns()
    if d in FLOAT8:
        near = np.concatenate([float8_tables(d).thresholds + np.uint32(k) for k in (0, 1, 0xFFFFFFFF)])
        x = np.concatenate([x, near.view(np.float32), -near.view(np.float32)])
    check_equal(kernels.narrow(d, x), x.astype(d.numpy))


def test_instruction_sets_agree_on_every_bit(library):
    """Of conversions, NaNs included."""
    x = float32_patterns()
    for d in SMALL_FLOATS:
        every = np.arange(1 << (8 * d.itemsize), dtype=np.uint32).astype(f"u{d.itemsize}").view(d.numpy)
        narrow = [Kernels(library, i).narrow(d, x).tobytes() for i in range(library.probe_levels())]
        widen = [Kernels(library, i).widen(d, every).tobytes() for i in range(library.probe_levels())]
        assert len(set(narrow)) == len(set(widen)) == 1, d.name


@pytest.mark.parametrize("d", FLOAT8, ids=lambda d: d.name)
def test_float8_every_pair(kernels, d):
    codes = np.arange(256, dtype=np.uint8)
    a, b = (x.ravel().copy().view(d.numpy) for x in np.meshgrid(codes, codes))
    for name in ("sum", "prod", "min", "max"):
        result = np.empty_like(a)
        kernels.reduce(d, as_op(name), [result], [a, b])
        expected = step(d, as_op(name), a.astype(np.float32), b.astype(np.float32)).astype(d.numpy)
        check_equal(result, expected, name)


def test_pairs_that_are_not_legal(library):
    legal = {(d.id, op.id) for d in DTYPES for op in OPS if library.nvsym_host_reduce(d.id, op.id)}
    assert legal == REDUCIBLE
    for dtype, op in ((-1, 0), (len(DTYPES), 0), (0, -1), (0, len(OPS))):
        assert not library.nvsym_host_reduce(dtype, op)


def test_float8_waits_for_its_tables(tmp_path):
    fresh = compile_kernels(tmp_path, compiler(), "-O0")
    d = as_dtype("float8_e4m3fn")
    t = float8_tables(d)
    pointers = [array.ctypes.data for array in t]
    assert not fresh.nvsym_host_reduce(d.id, 0)
    # Two thresholds closer than a float8 has them, more than there are codes, and a type that takes no tables.
    close = np.array([1, 2], np.uint32)
    assert fresh.nvsym_f8_table(d.id, pointers[0], close.ctypes.data, *pointers[2:], 2) == -1
    assert fresh.nvsym_f8_table(d.id, *pointers, 512) == -1
    assert fresh.nvsym_f8_table(as_dtype("float16").id, *pointers, len(t.thresholds)) == -1
    assert not fresh.nvsym_host_reduce(d.id, 0)
    assert fresh.nvsym_f8_table(d.id, *pointers, len(t.thresholds)) == 0
    assert fresh.nvsym_f8_table(d.id, *pointers, len(t.thresholds)) == 0
    assert fresh.nvsym_host_reduce(d.id, 0)
    assert not fresh.nvsym_host_reduce(as_dtype("float8_e5m2").id, 0)


def test_it_is_strict_c11(tmp_path):
    compile_kernels(tmp_path, compiler(), "-std=c11", "-pedantic", "-O1")
