# SPDX-License-Identifier: Apache-2.0
"""What the wheel and the sdist hold, and how the package is built in place."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

import nvsym

ROOT = pathlib.Path(nvsym.__file__).parents[1]

pytestmark = [
    pytest.mark.skipif(not (ROOT / "setup.py").is_file(), reason="nvsym is installed, not in a source tree"),
    pytest.mark.timeout(300),
]


def setup_py(tree, *args, **env):
    result = subprocess.run(
        [sys.executable, "setup.py", *args],
        cwd=tree,
        env={**os.environ, "NVSYM_BUILD_JOBS": "2", **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the sources without anything that was built."""
    copy = tmp_path_factory.mktemp("tree") / "nvsym"
    generated = {p.with_suffix(suffix) for p in (ROOT / "nvsym").rglob("*.pyx") for suffix in (".c", ".cpp")}
    built = ROOT / "nvsym" / "simulator" / "lib"

    def ignore(folder, names):
        paths = {n: pathlib.Path(folder) / n for n in names}
        return [
            n for n, path in paths.items()
            if n == "__pycache__" or n.endswith((".so", ".egg-info")) or path in generated or path == built
        ]  # fmt: skip

    copy.mkdir()
    for name in ("nvsym", "include"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignore)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE", "README.md", "CHANGELOG.md", "Makefile"):
        shutil.copy2(ROOT / name, copy / name)
    return copy


def below(tree, *suffixes):
    """The sources of a tree: build/ appears beside them as the tests go on."""
    files = [*(tree / "nvsym").rglob("*"), *(tree / "include").rglob("*")]
    return {file.relative_to(tree).as_posix() for file in files if file.suffix in suffixes}


def test_wheel_has_what_a_cimport_user_needs(tree, tmp_path):
    # The extensions are left out: they take minutes, and the tests run on them anyway.
    setup_py(tree, "-q", "bdist_wheel", "--dist-dir", tmp_path, NVSYM_BUILD_EXTENSIONS="0")
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        metadata = file.read(next(n for n in names if n.endswith("METADATA"))).decode()
        entry_points = file.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    assert below(tree, ".pxd", ".pyi", ".py") <= names
    assert "nvsym/py.typed" in names
    headers = {f"nvsym/{name}" for name in below(tree, ".h", ".cuh") if name.startswith("include/")}
    assert headers
    assert headers <= names
    assert {f"nvsym/cmake/{name}.cmake" for name in ("nvsymConfig", "nvsymConfigVersion")} <= names
    assert not [n for n in names if n.endswith((".pyx", ".c", ".cpp")) and not n.startswith("nvsym/simulator/")]
    assert f"\nVersion: {nvsym.__version__}\n" in metadata
    assert "[pytest11]\nnvsym = nvsym.testing" in entry_points


def test_sdist_builds_the_same_package_and_holds_nothing_generated(tree, tmp_path):
    setup_py(tree, "-q", "sdist", "--dist-dir", tmp_path)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    # Nothing was built in the copy: all that is there now is a source.
    assert below(tree, ".pyx", ".pxd", ".pyi", ".py", ".h", ".cuh", ".cu", ".c") <= names
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "Makefile"} <= names
    assert not [n for n in names if n.endswith(".so") or ".so." in n]
    assert "nvsym/simulator/memory.c" in names
    # The wheel of the sdist is that of the tree.
    wheels = []
    with tarfile.open(sdist) as file:
        file.extractall(tmp_path, filter="data")
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    for source in (tree, unpacked):
        folder = tmp_path / f"wheel-{len(wheels)}"
        setup_py(source, "-q", "bdist_wheel", "--dist-dir", folder, NVSYM_BUILD_EXTENSIONS="0")
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as file:
            wheels.append({name: file.getinfo(name).CRC for name in file.namelist() if not name.endswith("RECORD")})
    assert wheels[0] == wheels[1]


def test_the_simulator_is_built_into_the_wheel(small, tmp_path):
    shutil.copytree(ROOT / "nvsym" / "simulator", small / "nvsym" / "simulator", ignore=shutil.ignore_patterns("lib"))
    setup_py(small, "-q", "bdist_wheel", "--dist-dir", tmp_path, NVSYM_BUILD_DEBUG="1")  # the fastest to compile
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    libraries = {
        f"nvsym/simulator/lib/{name}" for name in ("libcuda.so.1", "libnvshmem_host.so.3", "nvml/libnvidia-ml.so.1")
    }
    assert libraries <= names
    assert "nvsym/simulator/command.py" in names


def test_get_include():
    header = pathlib.Path(nvsym.get_include()) / "nvsym" / "types.h"
    assert "SPDX" in header.read_text()


def test_version_is_said_once():
    text = (ROOT / "pyproject.toml").read_text()
    assert not re.search(r"^version\s*=\s*\"", text, re.MULTILINE)
    assert re.fullmatch(r"\d+\.\d+\.\d+(?:[.\w]*)", nvsym.__version__)


SMALL = {
    "nvsym/__init__.py": "",
    "nvsym/_version.py": '__version__ = "0.1.0"\n',
    "nvsym/a.pxd": 'cdef extern from "nvsym/types.h":\n    pass\ncdef int twice(int x) noexcept nogil\n',
    "nvsym/a.pyx": "cdef int twice(int x) noexcept nogil:\n    return 2 * x\n",
    "nvsym/b.pyx": "from .a cimport twice\n\ndef f(int x):\n    return twice(x)\n",
    "nvsym/c.pyx": 'cdef extern from "own.h":\n    int OWN\n\ndef f():\n    return OWN\n',
    "nvsym/own.h": '#include "inner.h"\n',
    "nvsym/inner.h": "#define OWN 7\n",
}


@pytest.fixture
def small(tmp_path):
    """A package of three extensions under the project's own setup.py."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    tree = tmp_path / "small"
    (tree / "nvsym").mkdir(parents=True)
    shutil.copytree(ROOT / "include", tree / "include")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, tree / name)
    script = (ROOT / "setup.py").read_text()
    script, n = re.subn(r"EXTRAS = \{.*?^\}", "EXTRAS = {}", script, flags=re.DOTALL | re.MULTILINE)
    assert n == 1
    (tree / "setup.py").write_text(script)
    for name, text in SMALL.items():
        (tree / name).write_text(text)
    return tree


def built(tree):
    text = setup_py(tree, "-q", "build_ext", "--inplace")
    return set(re.findall(r"^built nvsym\.(\w+)", text, re.MULTILINE))


def touch_later(path, text=None):
    """Change a file, with a time that no product of the last build has reached."""
    if text is not None:
        path.write_text(text)
    newest = max(p.stat().st_mtime for p in path.parents[1].rglob("*") if p.is_file())
    os.utime(path, (newest + 2, newest + 2))


def test_only_what_changed_is_built(small):
    assert built(small) == {"a", "b", "c"}
    assert built(small) == set()
    # A header that only another header includes.
    touch_later(small / "nvsym" / "inner.h", "#define OWN 8\n")
    assert built(small) == {"c"}
    code = "from nvsym import b, c; print(b.f(3), c.f())"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=small, capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.split() == ["6", "8"]


def test_a_changed_declaration_reaches_its_users(small):
    assert built(small) == {"a", "b", "c"}
    touch_later(small / "nvsym" / "a.pxd")
    assert built(small) == {"a", "b"}


def test_a_cython_error_ends_the_build_with_its_place(small):
    (small / "nvsym" / "b.pyx").write_text("def f(:\n")
    with pytest.raises(AssertionError, match=r"setup.py: Cython found the errors above, the first of them in .*b\.pyx"):
        built(small)


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
def test_no_extension_links_mpi_or_a_gpu_library():
    files = sorted((ROOT / "nvsym").rglob("*.so"))
    assert files
    for file in files:
        text = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True, timeout=60).stdout
        needed = set(re.findall(r"NEEDED.*\[(.*?)\]", text))
        allowed = re.compile(r"lib(c|m|pthread|rt|dl|gcc_s|stdc\+\+|atomic)\.so\.\d+|ld-linux.*")
        assert not {name for name in needed if not allowed.fullmatch(name)}, f"{file}: {needed}"
