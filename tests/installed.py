# SPDX-License-Identifier: Apache-2.0
"""A wheel of nvsym, a fresh environment in which it is installed, and extensions built against it, for the tests of what users get.

The extensions that are built in place go into the wheel as they are: compiling them again would take minutes.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import nvsym

ROOT = pathlib.Path(nvsym.__file__).resolve().parents[1]
FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE", "README.md", "CHANGELOG.md")


def run(command, **options):
    """Run a command; a failure shows what it printed. Returns its output."""
    options.setdefault("timeout", 300)
    words = [str(word) for word in command]
    # A source tree on the path of modules would be found before what is installed.
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    environ.update({k: str(v) for k, v in options.pop("env", {}).items()})
    options.setdefault("check", True)
    check = options.pop("check")
    result = subprocess.run(words, capture_output=True, text=True, check=False, env=environ, **options)
    assert not check or result.returncode == 0, f"{words}\n{result.stdout}\n{result.stderr}"
    return result if not check else result.stdout


def compile_extension(folder, name, source, *flags, language="c"):
    """Compile a Cython source (or C, if it is a .c file) to an extension module in `folder`."""
    if source.suffix == ".pyx":
        c = folder / f"{name}.{language}"
        cython = [sys.executable, "-m", "cython", "-3", *(["--cplus"] if language == "cpp" else []), "-I", ROOT]
        run([*cython, source, "-o", c])
        source = c
    includes = [f"-I{sysconfig.get_paths()['include']}", f"-I{nvsym.get_include()}"]
    target = folder / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    compiler = "g++" if language == "cpp" else "gcc"
    run([compiler, "-shared", "-fPIC", "-O2", *flags, *includes, source, "-o", target])


def build_wheel(folder):
    """The wheel of this tree, with the extensions that are built in place. Returns its path."""
    tree = folder / "tree"
    shutil.copytree(ROOT / "nvsym", tree / "nvsym", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "include", tree / "include")
    for name in FILES:
        shutil.copy2(ROOT / name, tree / name)
    # Where build_ext puts what it builds; it builds nothing that is newer than its sources, and these than theirs.
    for source in (tree / "nvsym").rglob("*.pyx"):
        os.utime(source.with_suffix(".c"))
    library = tree / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    modules = sorted((tree / "nvsym").rglob("*.so*"))
    assert modules, "nvsym is not built in place"
    for module in modules:
        target = library / module.relative_to(tree)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(module, target)
        os.utime(target)
    run([sys.executable, "setup.py", "bdist_wheel", "--dist-dir", folder], cwd=tree)
    (wheel,) = folder.glob("*.whl")
    return wheel


def make_environment(folder, *wheels):
    """A fresh virtual environment with these wheels, and without a network. Returns its Python.

    What nvsym depends on, and Cython with setuptools, are those of the environment that runs the tests; nvsym itself is not, however
    it is installed there.
    """
    run([sys.executable, "-m", "venv", "--without-pip", folder])
    python = folder / "bin" / "python"
    pip_install(python, *wheels)
    site = run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    others = [path for path in sys.path if pathlib.Path(path).name in ("site-packages", "dist-packages")]
    (pathlib.Path(site) / "tests-of-nvsym.pth").write_text("".join(f"{path}\n" for path in others))
    return python


def pip_install(python, *packages):
    """Install packages from files into an environment, without their dependencies."""
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
    run([sys.executable, "-m", "pip", "--python", python, "install", *options, *packages], timeout=600)
