# SPDX-License-Identifier: Apache-2.0
"""The declarations of the CUDA driver and of NVSHMEM, and how the two libraries are found and opened.

Most tests run in processes of their own, since a library that is open stays open. They use libraries compiled here, so
that they run everywhere. The tests against the real NVSHMEM need its package, but no GPU; NVSYM_TEST_NVSHMEM may list
other files of it to test, separated by colons, and NVSYM_TEST_CUDA_H further cuda.h.
"""

import ctypes
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap

import pytest

import nvsym
from nvsym import _driver, _libfind, _nvshmem
from nvsym.errors import NotAvailableError

SOURCES = pathlib.Path(__file__).parent / "libraries"
PACKAGE = pathlib.Path(nvsym.__file__).parent
INCLUDE = pathlib.Path(__file__).parents[1] / "include"

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="CUDA and NVSHMEM run on Linux")


def require_compiler(name):
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(command, **kwargs):
    """Run a command; a failure shows what it printed."""
    words = [str(word) for word in command]
    result = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, **kwargs)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def compile_library(path, source, *flags):
    path.parent.mkdir(parents=True, exist_ok=True)
    run(
        [
            require_compiler("gcc"),
            "-shared",
            "-fPIC",
            "-Wall",
            "-Werror",
            "-Wno-missing-prototypes",
            source,
            "-o",
            path,
            *flags,
        ]
    )
    return path


def fake_cuda(folder, *flags):
    return compile_library(folder / "libcuda.so.1", SOURCES / "fake_cuda.c", "-Wl,-soname,libcuda.so.1", *flags)


# Functions that fake_nvshmem.c has of its own.
OWN = {
    "nvshmemx_vendor_get_version_info",
    "nvshmemx_init_status",
    "nvshmemx_buffer_register",
    "nvshmem_my_pe",
    "nvshmemx_float_sum_reduce_on_stream",
}


def fake_nvshmem(folder, version, without=()):
    """An NVSHMEM of a version, with the functions that the version has according to the table."""
    major, minor, patch = version
    number = major * 10000 + minor * 100 + patch
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name, since, _ in _nvshmem.functions() if since <= number or since == _nvshmem.OLDEST]
    (folder / "names.h").write_text("".join(f"FAKE({n})\n" for n in names if n not in OWN and n not in without))
    return compile_library(
        folder / "libnvshmem_host.so.3",
        SOURCES / "fake_nvshmem.c",
        "-Wl,-soname,libnvshmem_host.so.3",
        f"-I{folder}",
        f"-DMAJOR={major}",
        f"-DMINOR={minor}",
        f"-DPATCH={patch}",
    )


@pytest.fixture(scope="session")
def probe(tmp_path_factory):
    """The folder of a Cython extension that cimports the tables, as another package would."""
    gcc = require_compiler("gcc")
    if importlib.util.find_spec("Cython") is None:
        pytest.skip("Cython is not installed")
    folder = tmp_path_factory.mktemp("probe")
    source, target = folder / "probe.c", folder / f"probe{sysconfig.get_config_var('EXT_SUFFIX')}"
    run([sys.executable, "-m", "cython", "-3", "-I", PACKAGE.parent, SOURCES / "probe.pyx", "-o", source])
    run([gcc, "-shared", "-fPIC", "-O0", f"-I{sysconfig.get_paths()['include']}", f"-I{INCLUDE}", source, "-o", target])
    return folder


PREAMBLE = """
import json, sys
sys.path.insert(0, {probe!r})
from nvsym import _driver, _libfind, _nvshmem

def error_of(function, *args):
    try:
        function(*args)
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None

"""


def python(code, *arguments, probe=None, **environ):
    """What the code leaves in `result`, run in a process of its own; it finds the arguments in sys.argv."""
    env = {k: v for k, v in os.environ.items() if k not in ("NVSYM_LIBCUDA", "NVSYM_LIBNVSHMEM")}
    env.update({k: str(v) for k, v in environ.items()})
    code = (
        PREAMBLE.format(probe=str(probe or SOURCES)) + textwrap.dedent(code) + "\nprint('RESULT', json.dumps(result))"
    )
    out = run([sys.executable, "-c", code, *arguments], env=env)
    return json.loads(out.rpartition("RESULT ")[2])


#  The search  ------------------------------------------------------------------------------------------------------


def test_import_opens_nothing():
    # MPI may have loaded a libcuda of its own accord, so that only nvsym's own word counts for that one.
    result = python("""
        import nvsym
        result = [_driver.is_loaded(), _nvshmem.is_loaded(), _libfind.loaded_files("libnvshmem_host.so")]
    """)
    assert result == [False, False, []]


def test_override(tmp_path):
    path = fake_cuda(tmp_path, "-DVERSION=12040")
    result = python(
        "result = [_driver.library_info().__getattribute__(n) for n in ('path', 'version', 'found_by')]",
        NVSYM_LIBCUDA=path,
    )
    assert result == [str(path), "12.4", "NVSYM_LIBCUDA names it"]


@pytest.mark.parametrize(("variable", "module"), [("NVSYM_LIBCUDA", "_driver"), ("NVSYM_LIBNVSHMEM", "_nvshmem")])
@pytest.mark.parametrize("kind", ["missing", "text"])
def test_override_that_does_not_open(tmp_path, variable, module, kind):
    path = tmp_path / "lib.so"
    if kind == "text":
        path.write_text("no library\n" * 100)
    name, text = python(f"result = error_of({module}.library_info)", **{variable: path})
    assert name == "NotAvailableError"
    assert f"{variable}={path}" in text
    assert ("No such file" if kind == "missing" else "invalid ELF header") in text
    assert "nothing else is tried" in text
    assert "pathfinder" not in text


def test_empty_override_is_none(tmp_path):
    path = fake_cuda(tmp_path, "-DVERSION=12040")
    result = python(
        """
        import ctypes
        ctypes.CDLL(sys.argv[1])
        result = _driver.library_info().path
    """,
        path,
        NVSYM_LIBCUDA="",
    )
    assert result == str(path)


def test_nothing_found_lists_all_that_was_tried():
    with pytest.raises(NotAvailableError) as raised:
        _libfind.find(
            "A library",
            soname="libnvsym_nowhere.so.1",
            variable="NVSYM_TEST_NOWHERE",
            pathfinder_name="nvsym_nowhere",
            install="Install it",
        )
    lines = str(raised.value).splitlines()
    assert lines[0] == "A library was not found. Tried:"
    assert lines[1] == "  - loaded in this process: no libnvsym_nowhere.so*"
    assert lines[2].startswith("  - cuda-pathfinder (nvsym_nowhere): Unknown library name")
    assert lines[3].startswith("  - the system's loader (libnvsym_nowhere.so.1): libnvsym_nowhere.so.1: cannot open")
    assert lines[4] == "Install it, or set NVSYM_TEST_NOWHERE to the path of libnvsym_nowhere.so.1"


def test_pathfinder_finds_a_package(tmp_path):
    """A package in the site-packages of a virtual environment is found without any variable."""
    site = tmp_path / "lib" / "site-packages"
    path = fake_nvshmem(site / "nvidia" / "nvshmem" / "lib", (3, 6, 5))
    result = python(
        """
        import site
        site.getsitepackages = lambda: [sys.argv[1]]
        info = _nvshmem.library_info()
        result = [info.path, info.found_by]
    """,
        site,
    )
    assert result == [str(path), "cuda-pathfinder found it (site-packages)"]


def test_loader_message_of_a_broken_package(tmp_path):
    """A file that pathfinder finds and the loader refuses is reported with the loader's words."""
    folder = tmp_path / "site-packages" / "nvidia" / "nvshmem" / "lib"
    folder.mkdir(parents=True)
    (folder / "libnvshmem_host.so.3").write_text("a placeholder\n" * 100)
    name, text = python(
        """
        import site
        site.getsitepackages = lambda: [sys.argv[1]]
        result = error_of(_nvshmem.library_info)
    """,
        tmp_path / "site-packages",
    )
    assert name == "NotAvailableError"
    assert f"{folder / 'libnvshmem_host.so.3'}: invalid ELF header" in text
    assert 'pip install "nvsym[cu12]"' in text


def test_loaded_library_is_used(tmp_path):
    """Two copies are two heaps: what the process has loaded is used, and the copy that is initialised of two."""
    first, second = fake_nvshmem(tmp_path / "a", (3, 4, 5)), fake_nvshmem(tmp_path / "b", (3, 8, 0))
    code = """
        import ctypes
        first, second = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
        if "initialise" in sys.argv:
            second.fake_initialize()
        info = _nvshmem.library_info()
        result = [info.path, info.version, info.found_by, info.also_loaded]
    """
    found = "the process had loaded it"
    assert python(code, first, first) == [str(first), "3.4.5", found, []]
    assert python(code, first, second) == [str(first), "3.4.5", found, [str(second)]]
    assert python(code, first, second, "initialise") == [str(second), "3.8.0", found, [str(first)]]
    named = python(code, first, second, "initialise", NVSYM_LIBNVSHMEM=first)
    assert named == [str(first), "3.4.5", "NVSYM_LIBNVSHMEM names it", [str(second)]]


def test_failure_is_not_kept(tmp_path):
    path = fake_cuda(tmp_path, "-DVERSION=13000")
    result = python(
        """
        import os
        failed = error_of(_driver.library_info)
        loaded = _driver.is_loaded()
        os.environ["NVSYM_LIBCUDA"] = sys.argv[1]
        result = [failed[0], loaded, _driver.library_info().version]
    """,
        path,
        NVSYM_LIBCUDA=tmp_path / "nothing.so",
    )
    assert result == ["NotAvailableError", False, "13.0"]


def test_first_use_from_many_threads(tmp_path, probe):
    result = python(
        """
        import threading, probe
        go, seen = threading.Barrier(8), []
        def use():
            go.wait()
            seen.append((probe.cuda_load(), probe.nvshmem_load(), probe.nvshmem_state()[1]))
        threads = [threading.Thread(target=use) for _ in range(8)]
        for t in threads: t.start()
        for t in threads: t.join()
        result = [sorted(set(seen)), len(seen)]
    """,
        probe=probe,
        NVSYM_LIBCUDA=fake_cuda(tmp_path, "-DVERSION=12040"),
        NVSYM_LIBNVSHMEM=fake_nvshmem(tmp_path, (3, 7, 2)),
    )
    assert result == [[[12040, 30702, 4]], 8]


#  The CUDA driver  -------------------------------------------------------------------------------------------------


def test_not_a_driver(tmp_path):
    path = fake_cuda(tmp_path)
    name, text = python("result = error_of(_driver.library_info)", NVSYM_LIBCUDA=path)
    assert (name, text) == ("NotAvailableError", f"{path} is not a CUDA driver: it has no function cuDriverGetVersion")


def test_stub_library(tmp_path):
    path = fake_cuda(tmp_path, "-DVERSION=0", "-DVERSION_STATUS=34")
    name, text = python("result = error_of(_driver.library_info)", NVSYM_LIBCUDA=path)
    assert name == "NotAvailableError"
    assert "cuDriverGetVersion returned 34" in text
    assert "LD_LIBRARY_PATH" in text


def test_driver_errors(tmp_path, probe):
    memory_hint = "other processes may hold memory of the GPU: see nvidia-smi"
    device_hint = (
        "no GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES; a container needs to be started with GPU access"
    )
    result = python(
        """
        import probe
        before = error_of(probe.cuda_init, 0)
        probe.cuda_load()
        result = [before] + [error_of(probe.cuda_init, status) for status in (0, 2, 100, 304, 4711)]
    """,
        probe=probe,
        NVSYM_LIBCUDA=fake_cuda(tmp_path, "-DVERSION=12000"),
    )
    assert result == [
        ["NotAvailableError", "cuInit was called before the CUDA driver was loaded"],
        None,
        [
            "BackendError",
            "cuInit failed: CUDA_ERROR_OUT_OF_MEMORY (2), out of memory; " + memory_hint,
        ],
        [
            "BackendError",
            "cuInit failed: CUDA_ERROR_NO_DEVICE (100), no CUDA-capable device is detected; " + device_hint,
        ],
        ["BackendError", "cuInit failed: CUDA_ERROR_OPERATING_SYSTEM (304), OS call failed"],
        ["BackendError", "cuInit failed: unknown status (4711)"],
    ]


def test_driver_function_that_is_missing(tmp_path, probe):
    """Named at the call that needs it, with the version that it needs; the rest of the driver works."""
    code = """
        import probe
        probe.cuda_load()
        result = [error_of(probe.cuda_multicast_create), _driver.why_missing("cuInit"), probe.cuda_presence(),
                  probe.cuda_mem_alloc(64), "cuMulticastCreate" in _driver.library_info().missing]
    """
    old = fake_cuda(tmp_path / "old", "-DVERSION=12000")
    error, why, presence, address, listed = python(code, probe=probe, NVSYM_LIBCUDA=old)
    assert error == [
        "NotAvailableError",
        f"cuMulticastCreate needs a driver for CUDA 12.1 or later, found 12.0 at {old}",
    ]
    assert (why, presence, listed) == (None, [True, False], True)
    assert address == 0x700000000040  # cuMemAlloc_v2, not the function without a version
    new = fake_cuda(tmp_path / "new", "-DVERSION=12010")
    error = python(code, probe=probe, NVSYM_LIBCUDA=new)[0]
    assert error[1].startswith(f"cuMulticastCreate is missing from the driver for CUDA 12.1 at {new}, which should")


#  NVSHMEM  ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ((3, 2, 5), ["nvsym needs NVSHMEM 3.3 or later, found 3.2.5 at ", "pip install -U"]),
        ((2, 11, 0), ["nvsym needs NVSHMEM 3.3 or later, found 2.11.0 at "]),
        ((4, 0, 0), ["nvsym knows NVSHMEM 3, found 4.0.0 at "]),
    ],
)
def test_version_that_does_not_work(tmp_path, version, words):
    path = fake_nvshmem(tmp_path, version)
    name, text = python("result = error_of(_nvshmem.library_info)", NVSYM_LIBNVSHMEM=path)
    assert name == "NotAvailableError"
    for word in (*words, str(path)):
        assert word in text


def test_not_nvshmem(tmp_path):
    path = fake_cuda(tmp_path, "-DVERSION=12040")
    name, text = python("result = error_of(_nvshmem.library_info)", NVSYM_LIBNVSHMEM=path)
    assert name == "NotAvailableError"
    assert text.startswith(f"{path} is not NVSHMEM's host library")


def test_nvshmem_without_a_function_that_could_not_report_it(tmp_path):
    path = fake_nvshmem(tmp_path, (3, 8, 0), without={"nvshmem_malloc"})
    name, text = python("result = error_of(_nvshmem.library_info)", NVSYM_LIBNVSHMEM=path)
    assert name == "NotAvailableError"
    assert "has no function nvshmem_malloc, which every version has" in text
    assert str(path) in text


def test_nvshmem_function_that_is_missing(tmp_path, probe):
    code = """
        import probe
        result = [probe.nvshmem_load(), error_of(probe.nvshmem_need_flush), error_of(probe.nvshmem_team_init),
                  probe.nvshmem_presence(), list(_nvshmem.library_info().missing), _nvshmem.why_missing("nvshmem_ptr")]
    """
    path = fake_nvshmem(tmp_path / "old", (3, 4, 5), without={"nvshmemx_team_init"})
    number, flush, team, presence, missing, why = python(code, probe=probe, NVSYM_LIBNVSHMEM=path)
    assert number == 30405
    assert flush == ["NotAvailableError", f"nvshmemx_flush_on_stream needs NVSHMEM 3.7 or later, found 3.4.5 at {path}"]
    assert team[0] == "NotAvailableError"
    assert team[1].startswith(f"nvshmemx_team_init is missing from NVSHMEM 3.4.5 at {path}, which should have it")
    assert presence == [True, False]
    assert missing == [
        "nvshmemx_team_init",
        "nvshmemx_buffer_register_symmetric_at_preferred_address",
        "nvshmemx_flush_on_stream",
    ]
    assert why is None
    number, flush, team, presence, missing, _ = python(
        code, probe=probe, NVSYM_LIBNVSHMEM=fake_nvshmem(tmp_path / "new", (3, 7, 0))
    )
    assert (number, flush, team, presence, missing) == (30700, None, None, [True, True], [])


def test_nvshmem_errors(tmp_path, probe):
    result = python(
        """
        import probe
        probe.nvshmem_load()
        result = [error_of(probe.nvshmem_buffer_register, status) for status in (0, 4, 7, 4711)]
        result.append(error_of(probe.nvshmem_reduce, 77))       # the entry of float and sum is the right function
        result.append(error_of(probe.nvshmem_reduce, 78)[0])
    """,
        probe=probe,
        NVSYM_LIBNVSHMEM=fake_nvshmem(tmp_path, (3, 8, 0)),
    )
    call = "nvshmemx_buffer_register failed: "
    assert result == [
        None,
        ["BackendError", call + "NVSHMEMX_ERROR_SYMMETRY (4); the PEs made different calls"],
        [
            "BackendError",
            call + "NVSHMEMX_ERROR_INTERNAL (7); NVSHMEM wrote the cause to stderr; NVSHMEM_DEBUG=INFO "
            "makes it say more",
        ],
        ["BackendError", call + "unknown status (4711)"],
        None,
        "BackendError",
    ]


def test_table_of_reductions(tmp_path, probe):
    reduce, reducescatter, boolean, bitwise = python(
        """
        import probe
        probe.nvshmem_load()
        result = probe.nvshmem_absent_reductions()
    """,
        probe=probe,
        NVSYM_LIBNVSHMEM=fake_nvshmem(tmp_path, (3, 8, 0)),
    )
    # Four operators on 8 integer and 4 floating types, three more on the integers.
    assert (reduce, reducescatter, boolean, bitwise) == (12 * 4 + 8 * 3, 12 * 4 + 8 * 3, True, True)


@pytest.mark.parametrize(("version", "layout"), [((3, 4, 5), 1), ((3, 5, 0), 2)])
def test_initializers(tmp_path, probe, version, layout):
    """As the macros of the headers set them: version 2 of the attributes, with the device, came with 3.5."""
    attr, uid, config = (
        bytes.fromhex(text)
        for text in python(
            """
        import probe
        probe.nvshmem_load()
        result = [block.hex() for block in probe.nvshmem_initializers(3)]
    """,
            probe=probe,
            NVSYM_LIBNVSHMEM=fake_nvshmem(tmp_path, version),
        )
    )

    def word(block, offset):
        return int.from_bytes(block[offset : offset + 4], "little", signed=True)

    assert (len(attr), len(uid), len(config)) == (144, 128, 64)
    assert [word(attr, o) for o in (0, 16, 24, 40, 44, 48)] == [
        (layout << 16) + 144,
        (layout << 16) + 128,
        (1 << 16) + 24,
        -1,
        -1,
        3 if layout == 2 else 0,
    ]
    assert [word(uid, 0), word(config, 0), word(config, 4)] == [(1 << 16) + 128, (2 << 16) + 64, -1]
    assert config[8:16] == b"\xff" * 8


#  The declarations and the tables, as text  ------------------------------------------------------------------------


def declarations(name):
    """A .pxd file of declarations: (its text as C, members of its table, constants, structures with their fields)."""
    text = re.sub(r"#.*", "", (PACKAGE / name).read_text())
    constants, structures, c_lines = {}, {}, []
    functions, table = [], False
    for block in re.split(r"\n(?=\S)", text):
        head, _, body = block.strip().partition("\n")
        if head.startswith("cdef enum"):
            constants.update((n, int(v, 0)) for n, v in re.findall(r"(\w+)\s*=\s*(-?\w+)", body))
        elif head.startswith(("ctypedef struct", "ctypedef union")):
            kind, struct = re.search(r"(struct|union) (\w+)", head).groups()
            structures[struct] = re.findall(r"(\w+)(?:\[\d+\])?$", body, re.MULTILINE)
            c_lines.append(
                f"{kind} {struct} {{ {'; '.join(line.strip() for line in body.splitlines() if line.strip())}; }};"
            )
        elif head.startswith("ctypedef"):
            c_lines.append(" ".join(block.split()).replace("ctypedef", "typedef").replace(" noexcept nogil", "") + ";")
        elif head.startswith("cdef struct"):
            table = re.search(r"struct (\w+)", head)[1]
            members = " ".join(body.split()).split(" noexcept nogil")
            members = [re.sub(r"(\w+ \w+(\[\w+\])+ )+", "", m.strip()) for m in members if m.strip()]
            members = [m for m in members if "(*" in m]
            functions = [re.search(r"\(\*(\w+)\)", m)[1] for m in members]
            c_lines.append(f"struct {table} {{ {'; '.join(members)}; }};")
    return "\n".join(c_lines), table, functions, constants, structures


def test_tables_hold_what_is_declared():
    """Every declared function is loaded, and loaded functions stand in the order of the declarations."""
    assert [name for name, _, _ in _driver.functions()] == declarations("libcuda.pxd")[2]
    assert len(set(_driver.functions())) == len(declarations("libcuda.pxd")[2]) > 80
    names = [name for name, _, _ in _nvshmem.functions()]
    plain = [n for n in names if not re.search(r"_(reduce|reducescatter)_on_stream$", n)]
    assert plain == declarations("libnvshmem.pxd")[2]
    assert len(names) == len(set(names)) == len(plain) + 2 * 72


def test_status_functions_return_int():
    """A function marked as returning a status is one that returns int, in the declarations."""
    text = re.sub(r"\s+", " ", (PACKAGE / "libnvshmem.pxd").read_text())
    for name, _, status in _nvshmem.functions():
        result = re.search(rf"(\w+ ?\*?) ?\(\*{name}\)\(", text)
        if status and result is not None:
            assert result[1].strip() == "int", name


#  The declarations against the headers  ----------------------------------------------------------------------------

# Names that not every cuda.h maps to the symbol that nvsym loads: the first, in CUDA 12, to an older function, which
# knows no MIG devices; the others, in CUDA 12.8 or 13, to a later one, which drivers for CUDA 12.0 do not have.
OTHER_SYMBOLS = {"cuDeviceGetUuid", "cuStreamGetCaptureInfo", "cuEventElapsedTime"}


def site_packages():
    return [pathlib.Path(p) for p in sys.path if p.endswith("-packages")]


def cuda_include_folders():
    """Every folder of this machine that holds a cuda.h, packages first."""
    roots = [root / "nvidia" / part for root in site_packages() for part in ("cuda_runtime", "cu13", "cu12")]
    roots += [pathlib.Path(p).parents[1] for p in os.environ.get("NVSYM_TEST_CUDA_H", "").split(":") if p]
    roots += [pathlib.Path(os.environ[v]) for v in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(v)]
    roots += sorted(pathlib.Path("/usr/local").glob("cuda*"))
    found = {(root / "include").resolve() for root in roots if (root / "include" / "cuda.h").is_file()}
    return sorted(found)


def compare(folder, prologue, checks, include, *, namespace):
    """Compile and run a comparison; returns what it printed and the preprocessed headers."""
    gxx = require_compiler("g++")
    source = folder / "compare.cpp"
    source.write_text(
        f'{prologue}\n#include "{SOURCES / "compare.hpp"}"\nnamespace ours {{\n{namespace}\n}}\n'
        "int main() {\n" + "\n".join(checks) + "\nreturn differences != 0;\n}\n"
    )
    flags = ["-std=c++17", "-Wno-deprecated-declarations", *(f"-I{i}" for i in include)]
    run([gxx, *flags, source, "-o", folder / "compare"])
    result = subprocess.run([folder / "compare"], capture_output=True, text=True, check=False)
    return result.stdout.splitlines(), run([gxx, *flags, "-E", "-P", source])


def structure_checks(structures):
    for name, fields in structures.items():
        parent, _, member = name.rpartition("_")
        theirs = f"decltype(::{parent}::{member})" if parent in structures else f"::{name}"
        yield f"{{ using theirs = {theirs}; SIZE(ours::{name}, theirs)"
        yield from (f"FIELD(ours::{name}, theirs, {field})" for field in fields)
        yield "}"


def in_order(functions, text):
    places = [re.search(rf"\b{name}(_v\d)?\s*\(", text) for name in functions]
    assert all(places), [name for name, place in zip(functions, places, strict=True) if place is None]
    positions = [place.start() for place in places]
    return [name for name, a, b in zip(functions[1:], positions, positions[1:], strict=False) if a > b]


@pytest.mark.parametrize("include", cuda_include_folders() or [None], ids=str)
def test_driver_declarations(tmp_path, include):
    if include is None:
        pytest.skip("no cuda.h on this machine (CUDA toolkit or nvidia-cuda-runtime-cu12)")
    if not (include / "cudaTypedefs.h").is_file():
        pytest.skip(f"no cudaTypedefs.h beside {include / 'cuda.h'}")
    text, table, functions, constants, structures = declarations("libcuda.pxd")
    checks = [f"VALUE({name}, {value})" for name, value in constants.items()]
    checks += structure_checks(structures)
    for name, symbol, since in _driver.functions():
        # The type with this version exists only if the function came with it, and names its arguments.
        checks.append(f"FUNCTION_TYPE(ours::{table}::{name}, ::PFN_{name}_v{since})")
        if name not in OTHER_SYMBOLS:
            checks.append(f'SYMBOL({name}, "{symbol}")')
    assert len(constants) > 100
    assert len(structures) == 10
    output, preprocessed = compare(
        tmp_path, "#include <cuda.h>\n#include <cudaTypedefs.h>\n#include <cstdint>", checks, [include], namespace=text
    )
    assert output == []
    assert in_order(functions, preprocessed[: preprocessed.index("namespace ours")]) == []


#  The real NVSHMEM  ------------------------------------------------------------------------------------------------

FILES = [p for p in os.environ.get("NVSYM_TEST_NVSHMEM", "").split(":") if p]


@pytest.fixture(params=FILES or ["installed"])
def library(request):
    """The path of a real NVSHMEM host library."""
    if request.param != "installed":
        return pathlib.Path(request.param)
    code = "from cuda.pathfinder import load_nvidia_dynamic_lib as load; print(load('nvshmem_host').abs_path)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        pytest.skip("nvidia-nvshmem-cu12 is not installed")
    return pathlib.Path(found.stdout.strip())


def test_real_library_has_what_the_table_says(library):
    """Required functions resolve; each of the others is there exactly from the version on that the table states."""
    info, has = python(
        """
        import ctypes, dataclasses
        info = _nvshmem.library_info()
        raw = ctypes.CDLL(info.path)
        result = [dataclasses.asdict(info), {name: hasattr(raw, name) for name, _, _ in _nvshmem.functions()}]
    """,
        NVSYM_LIBNVSHMEM=library,
    )
    major, minor, patch = map(int, info["version"].split("."))
    number = major * 10000 + minor * 100 + patch
    assert (major, minor) >= (3, 3)
    assert info["path"] == str(library)
    expected = {name: since <= number for name, since, _ in _nvshmem.functions()}
    assert has == expected
    assert info["missing"] == [name for name, there in expected.items() if not there]


def test_real_library_without_a_gpu(library, probe):
    """What works before an initialisation: versions, the state, a unique id, the attributes of a job."""
    number, state, level, specification, vendor, uids, version = python(
        """
        import probe
        number = probe.nvshmem_load()
        uids = [probe.nvshmem_uniqueid() for _ in range(2)]
        result = [number, probe.nvshmem_state(), probe.nvshmem_thread_level(), probe.nvshmem_specification(),
                  probe.nvshmem_vendor_version(), [[u[0], u[1].hex(), *u[2:]] for u in uids],
                  _nvshmem.library_info().version]
    """,
        probe=probe,
        NVSYM_LIBNVSHMEM=library,
    )
    assert state == [0, 0, 0]  # not initialised
    assert level == 2  # SERIALIZED
    assert specification == [1, 3]
    assert vendor == [number // 10000, number // 100 % 100, number % 100]
    assert version == ".".join(map(str, vendor))
    for uid_version, data, rank, ranks, pointed in uids:
        assert uid_version == (1 << 16) + 128
        assert any(bytes.fromhex(data))
        assert (rank, ranks, pointed) == (2, 5, True)
    assert uids[0][1] != uids[1][1]


def test_real_library_that_finds_no_gpu(library, probe):
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this machine has a CUDA driver, with which the initialisation would go on")
    number, error, state = python(
        """
        import probe
        result = [probe.nvshmem_load(), error_of(probe.nvshmem_initialize), probe.nvshmem_state()]
    """,
        probe=probe,
        NVSYM_LIBNVSHMEM=library,
    )
    if number < 30500:
        assert error is None  # older versions report success, and would end the process at the first allocation
    else:
        assert error[0] == "BackendError"
        assert error[1].startswith("nvshmemx_hostlib_init_attr failed: NVSHMEMX_ERROR_INTERNAL (7); NVSHMEM wrote")
    assert state == [1, 0, 1]  # bootstrapped, not initialised: PE 0 of 1


def test_real_library_that_is_loaded_is_used(library):
    result = python(
        """
        import ctypes
        ctypes.CDLL(sys.argv[1])
        info = _nvshmem.library_info()
        result = [info.path, info.found_by, info.also_loaded]
    """,
        library,
    )
    assert result == [str(library), "the process had loaded it", []]


def test_nvshmem_declarations(library, tmp_path):
    headers = library.parents[1] / "include"
    if not (headers / "nvshmem_host.h").is_file():
        pytest.skip(f"no nvshmem_host.h beside {library}")
    nvidia = library.parents[2]
    parts = [nvidia / part / "include" for part in ("cuda_runtime", "cuda_nvcc", "cuda_cccl")]
    if all(part.is_dir() for part in parts):
        include = [headers, *parts]
    elif toolkits := [f for f in cuda_include_folders() if (f / "crt" / "host_config.h").is_file()]:
        include = [headers, toolkits[-1], toolkits[-1] / "cccl"]
    else:
        pytest.skip(
            "nvidia-cuda-runtime-cu12, nvidia-cuda-nvcc-cu12, nvidia-cuda-cccl-cu12 are not installed, and there "
            "is no CUDA toolkit"
        )
    text, table, functions, constants, structures = declarations("libnvshmem.pxd")
    version = (headers / "non_abi" / "nvshmem_version.h").read_text()
    number = 0
    for part in ("MAJOR", "MINOR", "PATCH"):
        number = number * 100 + int(re.search(rf"NVSHMEM_VENDOR_{part}_VERSION (\d+)", version)[1])
    later = {"NVSHMEM_TEAM_MC_SHARED": 30700}
    checks = [f"VALUE({name}, {value})" for name, value in constants.items() if later.get(name, 0) <= number]
    if number < 30500:  # no cuda_device_id: the first version of the arguments ends in bytes of padding in its place
        structures["nvshmemx_init_args_t"] = ["version", "uid_args"]
    checks += structure_checks(structures)
    available = {name for name, since, _ in _nvshmem.functions() if since <= number}
    for name in available:
        ours = f"{table}::{name}" if name in functions else "reduction"
        checks.append(f"SIGNATURE(ours::{ours}, ::{name})")
    assert len(constants) >= 35
    assert len(structures) == 5
    output, preprocessed = compare(
        tmp_path,
        "#include <nvshmem_host.h>\n#include <cstdint>",
        checks,
        include,
        namespace=f"""
            typedef void *CUmodule;
            typedef void *CUlibrary;
            {text}
            extern nvshmemx_reduction_on_stream reduction;
        """,
    )
    assert output == []
    if number >= 30500:  # the headers before had another order
        present = [name for name in functions if name in available]
        assert in_order(present, preprocessed[: preprocessed.index("namespace ours")]) == []
