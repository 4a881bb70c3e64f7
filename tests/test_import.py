# SPDX-License-Identifier: Apache-2.0
"""What `import nvsym` does, and does not."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import nvsym

PACKAGE = Path(nvsym.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.so"))
LINKED_BY_ANY = {
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}


def run(code, **env):
    """Run code in a fresh interpreter, with this one's way to find nvsym."""
    path = [str(PACKAGE.parent)]
    program = f"import sys\nsys.path[:0] = {path!r}\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", **env},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split("\n")[:-1]


def test_it_loads_no_mpi_and_no_gpu_library():
    lines = run(
        "import nvsym\n"
        "print('mpi4py.MPI' in sys.modules)\n"
        "print([line.split()[-1] for line in open('/proc/self/maps') if any(name in line for name in"
        " ('libmpi', 'libcuda', 'libnvshmem', 'libcudart', 'libnvrtc'))])\n"
    )
    assert lines == ["False", "[]"]


def test_a_source_tree_that_was_not_built_says_so(tmp_path):
    tree = tmp_path / "nvsym"
    tree.mkdir()
    for name in ("__init__.py", "_built.py", "_version.py"):
        (tree / name).write_bytes((PACKAGE / name).read_bytes())
    words = [sys.executable, "-c", "import nvsym"]
    done = subprocess.run(words, cwd=tmp_path, env={"PYTHONPATH": ""}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"nvsym in {tree} has no extension modules for this Python" in done.stderr.splitlines()[-1]


def test_it_starts_no_thread_and_makes_no_file():
    lines = run(
        "import os\nbefore = set(os.listdir('/proc/self/fd'))\nimport numpy\n"
        "threads = len(os.listdir('/proc/self/task'))\n"
        "import nvsym\n"
        "print(len(os.listdir('/proc/self/task')) - threads)\n"
        "print(set(os.listdir('/proc/self/fd')) - before)\n"
    )
    assert lines == ["0", "set()"]


def test_without_mpi_it_imports_and_says_what_is_missing():
    code = (
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'mpi4py': raise ImportError('no module mpi4py')\n"
        "sys.meta_path.insert(0, Without())\n"
        "import nvsym\n"
        "print(nvsym.is_initialized(), nvsym.SHMEMBuffer['float32'].get_type_name())\n"
        "try: nvsym.init()\n"
        "except nvsym.NotAvailableError as error: print('mpi4py' in str(error) and 'pip install' in str(error))\n"
    )
    assert run(code) == ["False SHMEMBuffer[float32]", "True"]


def test_with_a_library_that_is_no_mpi():
    code = "import nvsym\ntry: nvsym.init()\nexcept nvsym.NotAvailableError as error: print(error)\n"
    text = "\n".join(run(code, MPI4PY_LIBMPI="/nonexistent/libmpi.so"))
    assert "cannot load MPI library" in text
    assert "nvsym[mpich]" in text


def test_calls_before_init_raise():
    buffer = nvsym.SHMEMBuffer["float32"]
    for call in (
        nvsym.my_pe,
        nvsym.n_pes,
        nvsym.context,
        nvsym.collect,
        nvsym.finalize,
        nvsym.barrier_all,
        nvsym.sync_all,
        nvsym.quiet,
        nvsym.fence,
        nvsym.barrier,
        nvsym.sync,
        lambda: buffer(3),
        lambda: buffer.zeros(3),
        lambda: buffer.from_numpy([1.0]),
        nvsym.TEAM_WORLD.my_pe,
        nvsym.TEAM_NODE.n_pes,
        lambda: nvsym.TEAM_WORLD.split_strided(0, 1, 1),
    ):
        with pytest.raises(nvsym.NotInitializedError, match="init"):
            call()
    assert not nvsym.is_initialized()
    assert "not usable" in repr(nvsym.TEAM_SHARED)


def test_it_is_quick():
    """Beyond numpy: a small part of a second of processor time."""
    lines = run(
        "import numpy, time\nstart = time.process_time()\nimport nvsym\nprint(time.process_time() - start)\n",
        PYTHONDONTWRITEBYTECODE="",
    )
    assert float(lines[-1]) < 0.5


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name.split(".")[0])
def test_no_module_is_linked_with_mpi_or_a_gpu_library(module):
    listing = subprocess.run(["readelf", "-d", str(module)], capture_output=True, text=True, check=True).stdout
    needed = {line.split("[")[1].rstrip("]") for line in listing.splitlines() if "(NEEDED)" in line}
    assert needed <= LINKED_BY_ANY | {name for name in needed if name.startswith("libpython")}


def test_there_are_modules_and_headers():
    assert MODULES
    assert (Path(nvsym.get_include()) / "nvsym" / "types.h").is_file()


def test_no_other_name_is_in_the_way():
    others = {name for name, value in vars(nvsym).items() if not (name.startswith("_") or inspect.ismodule(value))}
    assert others <= set(nvsym.__all__)


def test_every_public_name_exists():
    assert sorted(set(nvsym.__all__)) == sorted(nvsym.__all__)
    for name in nvsym.__all__:
        assert getattr(nvsym, name) is not None
