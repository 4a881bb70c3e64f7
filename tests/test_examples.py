# SPDX-License-Identifier: Apache-2.0
"""Every example runs on 1, 2 and 4 PEs and can fail; the documents' program, settings, names and links are right."""

import builtins
import functools
import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import nvsym
from nvsym._settings import SETTINGS

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
DOCUMENTS = [ROOT / "README.md", EXAMPLES / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PES = [1, 2, 4]


@pytest.fixture
def mpirun(mpirun):
    """Jobs of seconds, on a machine that may have much else to do."""
    return functools.partial(mpirun, timeout=120)


def only_pe_0_speaks(job):
    return not any(job.pe_stdout[1:]) and not any(job.pe_stderr)


@pytest.mark.parametrize("n", PES)
def test_hello(mpirun, n):
    job = mpirun(n, EXAMPLES / "hello.py")
    greeted = re.findall(r"^PE (\d+) of (\d+): node 0, .* greeted by PE (\d+)$", job.stdout, re.MULTILINE)
    assert greeted == [(str(pe), str(n), str((pe - 1) % n)) for pe in range(n)]
    assert job.stdout.endswith("all greetings arrived\n")
    assert only_pe_0_speaks(job)


@pytest.mark.parametrize(("n", "steps"), [(1, None), (2, 7), (4, None), (4, 7)])
def test_ring_shift(mpirun, n, steps):
    job = mpirun(n, EXAMPLES / "ring_shift.py", "--count", 5001, *([] if steps is None else ["--steps", steps]))
    held = [int(pe) for pe in re.findall(r"^step \d+: PE 0 holds the block of PE (\d+)$", job.stdout, re.MULTILINE)]
    assert held == [(-step - 1) % n for step in range(steps or n)]
    assert job.stdout.endswith("all blocks are right\n")
    assert only_pe_0_speaks(job)


@pytest.mark.parametrize(
    ("n", "dtype", "op", "algorithm"),
    [
        (1, "float32", "sum", "auto"),
        (2, "float32", "sum", "auto"),
        (2, "bfloat16", "prod", "two_shot"),
        (4, "float32", "max", "auto"),
        (4, "complex64", "sum", "mpi"),
        (4, "int16", "xor", "one_shot"),
    ],
)
def test_allreduce(mpirun, n, dtype, op, algorithm):
    options = ["-d", dtype, "-o", op, "--algorithm", algorithm, "-b", 4, "-e", "64K", "-f", 8, "-n", 3, "-w", 1]
    job = mpirun(n, EXAMPLES / "allreduce.py", *options, "--json")
    found = json.loads(job.stdout)
    assert (found["pes"], found["iterations"], found["warmup"]) == (n, 3, 1)
    itemsize = np.dtype(nvsym.SHMEMBuffer[dtype].dtype).itemsize
    sizes = [max(4 * 8**i // itemsize, 1) * itemsize for i in range(5)]
    assert [row["bytes"] for row in found["results"]] == sizes
    for row in found["results"]:
        assert (row["dtype"], row["op"], row["algorithm"], row["wrong"]) == (dtype, op, algorithm, 0)
        assert row["count"] * itemsize == row["bytes"]
        assert row["algbw"] == pytest.approx(row["bytes"] / row["microseconds"] / 1e3)
        assert row["busbw"] == pytest.approx(row["algbw"] * 2 * (n - 1) / n)
    # The table, on stderr now, has the same rows.
    assert len(re.findall(rf"^ +\d+ +\d+ +{dtype} +{op} +{algorithm} .* 0$", job.pe_stderr[0], re.MULTILINE)) == 5
    assert not any(job.pe_stdout[1:] + job.pe_stderr[1:])


def test_allreduce_prints_a_table(mpirun):
    job = mpirun(2, EXAMPLES / "allreduce.py", "-e", "1K", "-n", 2)
    lines = job.stdout.splitlines()
    assert lines[1].split() == ["size", "count", "type", "redop", "algorithm", "time", "algbw", "busbw", "wrong"]
    assert lines[3].split()[:5] == ["8", "2", "float32", "sum", "auto"]
    assert lines[-1] == "all 4 sizes are right"
    assert only_pe_0_speaks(job)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["-o", "and"], "and is not defined for float32"),
        (["--algorithm", "multimem"], "multicast"),
        (["--algorithm", "fastest"], "'fastest' is none of"),
        (["-d", "float31"], "--dtype: .*float31"),
        (["-b", "1K", "-e", "8"], "not below the smallest"),
    ],
)
def test_allreduce_refuses(mpirun, options, reason):
    job = mpirun(2, EXAMPLES / "allreduce.py", *options, check=False)
    assert job.returncode == 2
    assert re.search(reason, job.stdout + job.stderr)
    assert "Traceback" not in job.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What the training on 1, 2 and 4 PEs of one node, and on 4 of two, has printed and saved."""
    from nvsym.testing import mpirun
    from nvsym.testing._launcher import simulates_nodes

    folder = tmp_path_factory.mktemp("digits")
    runs = {}
    for n, nodes in [(1, 1), (2, 1), (4, 1)] + ([] if simulates_nodes() else [(4, 2)]):
        file = folder / f"weights-{n}-{nodes}.npz"
        job = mpirun(n, EXAMPLES / "data_parallel_digits.py", "--epochs", 12, "--save", file, nodes=nodes, timeout=120)
        with np.load(file) as saved:
            runs[n, nodes] = job, dict(saved)
    return runs


@pytest.mark.parametrize("n", PES)
def test_digits_are_learnt(trained, n):
    job, saved = trained[n, 1]
    losses = [float(loss) for loss in re.findall(r"^epoch .* loss ([\d.]+), test accuracy", job.stdout, re.MULTILINE)]
    assert len(losses) == 12
    assert losses[-1] < losses[0] / 10
    assert saved["accuracy"] > 0.95
    assert f"test accuracy {saved['accuracy']:.4f} after 12 epochs" in job.stdout
    assert "the same on all PEs" in job.stdout
    assert only_pe_0_speaks(job)


@pytest.mark.parametrize("n", [2, 4])
def test_digits_reach_the_same_weights_on_any_number_of_pes(trained, n):
    one, many = trained[1, 1][1], trained[n, 1][1]
    assert set(one) == {"w1", "b1", "w2", "b2", "accuracy"}
    assert one["w1"].shape == (64, 64)
    for name, weights in one.items():
        np.testing.assert_allclose(many[name], weights, rtol=0, atol=2e-4, err_msg=name)


def test_digits_reach_the_same_bits_on_two_nodes(trained):
    if (4, 2) not in trained:
        pytest.skip("the MPI of this run cannot simulate several nodes")
    for name, weights in trained[4, 1][1].items():
        np.testing.assert_array_equal(trained[4, 2][1][name], weights, err_msg=name)


@pytest.mark.parametrize(("n", "rows", "columns"), [(1, 40, 33), (2, 40, 33), (4, 40, 33), (4, 6, 5)])
def test_halo_exchange(mpirun, n, rows, columns):
    job = mpirun(n, EXAMPLES / "halo_exchange.py", "--rows", rows, "--columns", columns, "--steps", 60)
    assert "largest difference from one process: 0\n" in job.stdout
    assert job.stdout.endswith("the result is that of one process, bit for bit\n")
    assert only_pe_0_speaks(job)


def test_halo_exchange_refuses_more_pes_than_rows(mpirun):
    job = mpirun(4, EXAMPLES / "halo_exchange.py", "--rows", 5, check=False)
    assert job.returncode == 2
    assert "5 rows are too few for 4 PEs" in job.stderr
    assert "Traceback" not in job.stderr


@pytest.mark.parametrize("example", ["hello", "ring_shift", "halo_exchange"])
def test_examples_on_two_nodes(mpirun, example):
    job = mpirun(4, EXAMPLES / f"{example}.py", nodes=2)
    assert "FAILED" not in job.stdout
    assert only_pe_0_speaks(job)


# Each example with an nvsym that errs on PE 1: a check that cannot fail would find nothing.
BROKEN = {
    "hello.py": "nvsym.put = lambda dest, source, pe: None",
    "ring_shift.py": """
        put_signal = nvsym.put_signal
        def wrong(dest, source, *rest):
            if nvsym.my_pe() == 1:
                source[17:18].fill(-1)
            put_signal(dest, source, *rest)
        nvsym.put_signal = wrong
    """,
    "allreduce.py": """
        reduce = nvsym.allreduce
        def wrong(dest, *rest, **options):
            reduce(dest, *rest, **options)
            if nvsym.my_pe() == 1 and dest.dtype == "float32":
                dest[-1:].fill(0.5)
        nvsym.allreduce = wrong
    """,
    "data_parallel_digits.py": """
        reduce = nvsym.allreduce
        def wrong(dest, *rest):
            reduce(dest, *rest)
            if nvsym.my_pe() == 1 and dest.dtype == "float32":
                dest[7:8].fill(0.001)
        nvsym.allreduce = wrong
    """,
    "halo_exchange.py": """
        put_signal = nvsym.put_signal
        def wrong(dest, source, *rest):
            if nvsym.my_pe() == 1:
                source[3:4].fill(1e-9)
            put_signal(dest, source, *rest)
        nvsym.put_signal = wrong
    """,
}


@pytest.mark.parametrize("example", BROKEN)
def test_examples_notice_what_is_wrong(mpirun, example):
    code = "import runpy, sys, textwrap\nimport nvsym\nexec(textwrap.dedent(sys.argv[2]))\n"
    code += "path, sys.argv = sys.argv[1], [sys.argv[1], *sys.argv[3:]]\nrunpy.run_path(path, run_name='__main__')\n"
    options = {"data_parallel_digits.py": ["--epochs", 1], "allreduce.py": ["-n", 1, "-e", "64"]}
    job = mpirun(2, code, EXAMPLES / example, BROKEN[example], *options.get(example, []), check=False)
    assert job.returncode == 1, job.describe()
    assert "FAILED" in job.pe_stdout[0]
    assert "Traceback" not in job.stderr


# The library that an example cannot do without, and what it says to install.
LIBRARIES = {
    "cupy_ring.py": ("cupy", "CuPy", "cupy-cuda13x"),
    "jax_regression.py": ("jax", "JAX", "jax"),
    "numba_heat.py": ("numba", "Numba", "numba"),
    "torch_ddp_digits.py": ("torch", "PyTorch and scikit-learn", "torch scikit-learn"),
    "torch_graph.py": ("torch", "PyTorch", "torch"),
    "triton_allreduce.py": ("triton", "PyTorch and Triton", "torch triton"),
    "data_parallel_digits.py": ("sklearn", "scikit-learn", "scikit-learn"),
    "cuda_cpp/ring.py": ("cuda.bindings", "cuda-bindings", "'nvsym[cu13]'"),
}


@pytest.mark.parametrize("example", [path.relative_to(EXAMPLES).as_posix() for path in sorted(EXAMPLES.glob("*.py"))]
                         + ["cuda_cpp/ring.py", "cuda_cpp/histogram.py"])  # fmt: skip
def test_examples_without_the_library_that_they_need(example):
    library, name, package = LIBRARIES.get(example, ("nothing", "", ""))
    # None in the place of a module is one that cannot be imported.
    code = "import runpy, sys\nsys.modules[sys.argv[1]] = None\nsys.argv = sys.argv[2:]\n"
    code += "runpy.run_path(sys.argv[0], run_name='__main__')\n"

    def run(*options):
        words = [sys.executable, "-c", code, library, EXAMPLES / example, *options]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)

    shown = run("--help")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f"usage: {pathlib.Path(example).name} ")
    assert len(re.findall(r"^  --\w+", shown.stdout, re.MULTILINE)) > 1 or example in ("hello.py", "cupy_ring.py")
    if example in LIBRARIES:
        alone = run()
        assert alone.returncode == 1
        assert alone.stderr.startswith(f"{pathlib.Path(example).name} needs {name}"), alone.stderr
        assert f": pip install {package}" in alone.stderr
        assert len(alone.stderr.splitlines()) == 1


def test_a_file_that_cannot_be_written_is_a_mistake_of_the_command_line(tmp_path):
    for file in (tmp_path / "no" / "weights.npz", tmp_path):
        words = [sys.executable, EXAMPLES / "data_parallel_digits.py", "--save", file]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 2
        assert f"argument --save: {file} cannot be written" in done.stderr


def test_every_example_is_tested_and_listed():
    examples = {path.name for path in EXAMPLES.glob("*.py")}
    folder = pathlib.Path(__file__).parent
    of_libraries = ("test_torch.py", "test_jax.py", "test_interop.py", "gpu/test_interop_gpu.py")
    elsewhere = "".join((folder / name).read_text() for name in of_libraries)
    assert set(BROKEN) < examples
    for name in examples:
        assert name in BROKEN or name.removesuffix(".py") in elsewhere, name
        assert f"({name})" in (EXAMPLES / "README.md").read_text()
        assert f"`{name}`" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("n", PES)
def test_the_example_of_the_readme(mpirun, n):
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    assert len(program.splitlines()) <= 15
    job = mpirun(n, program)
    assert job.stdout == f"{n} PEs: the sum is {n * (n + 1) / 2}, and PE {(0 - 1) % n} greets PE 0\n"
    assert not job.stderr


def test_the_settings_of_the_readme():
    text = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| `(NVSYM_\w+)` \| (.*?) \| (.*?) \|$", text, re.MULTILINE)

    def shown(setting):
        if setting.default is None:
            return "unset"
        if isinstance(setting.default, bool):
            return f"`{int(setting.default)}`"
        return f"`{setting.shown_as(setting.default)}`"

    assert rows == [(s.name, shown(s), s.meaning) for s in SETTINGS.values()]
    for name, default, _ in rows:
        if default != "unset":  # what the table calls the default can be set
            assert SETTINGS[name].parse(default.strip("`")) == SETTINGS[name].default


@functools.cache
def names_of_headers():
    """The constants and macros of C."""
    text = "".join(path.read_text() for path in (ROOT / "include" / "nvsym").iterdir())
    return set(re.findall(r"\bNVSYM_\w*\w", text))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_and_files_of_the_documents_exist(document):
    text = document.read_text()
    assert text.startswith("<!-- SPDX-License-Identifier: Apache-2.0 -->\n")
    for name in re.findall(r"\bnvsym\.([A-Za-z]\w+)", text):
        files = [ROOT / "nvsym" / f"{name}.py", ROOT / "nvsym" / name / "__init__.py"]
        assert hasattr(nvsym, name) or any(file.is_file() for file in files) or name in ("py", "pyx", "cuh"), name
    for name in re.findall(r"\b([A-Z]\w+Error)\b", text):
        assert hasattr(nvsym, name) or hasattr(builtins, name), name
    for name in re.findall(r"\bNVSYM_\w*\w", text):
        assert (
            name in SETTINGS
            or name in names_of_headers()
            or name.startswith(("NVSYM_TEST_", "NVSYM_BENCH_", "NVSYM_BUILD_", "NVSYM_SIM_"))
        ), name
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
        if "://" not in target:
            assert (document.parent / target).exists(), target
    for path in re.findall(r"`((?:nvsym|include|examples|tests|docs|benchmarks|tools)/[\w./-]+)`", text):
        # A header may be named as it is included.
        assert (ROOT / path).exists() or (ROOT / "include" / path).exists(), path
