# SPDX-License-Identifier: Apache-2.0
"""include/nvsym/nvsym.cuh and the examples of CUDA C++: they compile for each architecture, and run on emulated PEs.

No GPU is needed; what they do on one is in tests/gpu/test_cuda_cpp_gpu.py.
"""

import ctypes
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import nvsym

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples" / "cuda_cpp"
EMULATED = Path(__file__).parent / "emulated"
ARCHITECTURES = (80, 90, 100)

pytestmark = pytest.mark.timeout(300)


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ring():
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:
        pytest.skip(f"the NVRTC library is not installed: {error}")
    return example("ring")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_nvrtc_compiles_the_ring(ring, arch):
    cubin = ring.compile_cubin(EXAMPLES / "ring.cu", arch)
    assert cubin[:4] == b"\x7fELF"
    assert b"ring_sum" in cubin


# All of the header, for types of each size.
EVERYTHING = """
#include <nvsym/nvsym.cuh>
template <class T> __device__ void use(T *const *peers, nvsym::u64 *const *signals, int me, int n, nvsym::u64 count)
{
    nvsym::put_block(peers[0], peers[me], count);
    nvsym::put_signal_block(peers[0], peers[me], count, signals[0], 3);
}
extern "C" __global__ void everything(void *const *p, nvsym::u64 *const *signals, int me, int n, nvsym::u64 count, bool *out)
{
    use((char *const *)p, signals, me, n, count);
    use((nvsym::bf16 *const *)p, signals, me, n, count);
    use((float *const *)p, signals, me, n, count);
    use((double *const *)p, signals, me, n, count);
    nvsym::signal_set(signals[0], nvsym::signal_fetch(signals[me]));
    nvsym::signal_add(signals[0], 1);
    nvsym::signal_add_block(signals[0], 1);
    *out = nvsym::signal_wait(signals[me], nvsym::NE, 4) && nvsym::signal_wait_block(signals[me], nvsym::LE, 4, 1000)
        && nvsym::meet_block(signals, me, n, 1);
}
"""


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_nvrtc_compiles_the_header(ring, arch, tmp_path):
    source = tmp_path / "everything.cu"
    source.write_text(EVERYTHING)
    assert b"everything" in ring.compile_cubin(source, arch)


def test_a_mistake_is_named(ring, tmp_path):
    source = tmp_path / "wrong.cu"
    source.write_text("#include <nvsym/nvsym.cuh>\n__global__ void f() { nvsym::signal_sit(0, 1); }\n")
    with pytest.raises(RuntimeError, match=r"wrong\.cu does not compile(.|\n)*signal_sit"):
        ring.compile_cubin(source, 90)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_nvcc_compiles_the_histogram(tmp_path):
    file = example("histogram").build(tmp_path, 90)
    # Without a GPU it can be imported, and refuses what is no buffer.
    code = "import histogram_cuda\ntry: histogram_cuda.count(1, 2, 3, None)\nexcept TypeError as error: print(error)"
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(file.parent)!r}, {str(ROOT)!r}]\n{code}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert result.stdout == "buffer: expected a SHMEMBuffer or a Buffer, not int\n", result.stderr


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_nvcc_compiles_the_header_without_warnings(tmp_path):
    source = tmp_path / "everything.cu"
    source.write_text(EVERYTHING)
    includes = [f"-I{nvsym.get_include()}", f"-I{sysconfig.get_paths()['include']}"]
    flags = ["-std=c++17", "-arch=sm_90", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror"]
    for before in ("", "#include <nvsym/nvsym.h>\n"):
        source.write_text(before + EVERYTHING)
        subprocess.run(["nvcc", *flags, *includes, "-c", source, "-o", tmp_path / "o.o"], check=True, timeout=200)


def build_emulated(folder, headers, example_folder=EXAMPLES):
    library = folder / "user.so"
    flags = ["-std=c++20", "-O1", "-fno-strict-aliasing", "-shared", "-fPIC", "-w"]
    includes = [f"-I{path}" for path in (headers, EMULATED, example_folder)]
    subprocess.run(["g++", *flags, *includes, EMULATED / "user.cpp", "-o", library], check=True, timeout=200)
    emulated = ctypes.CDLL(str(library))
    emulated.last_message.restype = ctypes.c_char_p
    return emulated


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    return build_emulated(tmp_path_factory.mktemp("emulated"), ROOT / "include")


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_ring_on_emulated_pes(emulated, n):
    for seed in range(8):
        assert emulated.run_ring(ctypes.c_uint64(seed), n, False) == 0, emulated.last_message()


@pytest.mark.parametrize("n", [2, 4])
def test_ring_without_a_pe(emulated, n):
    assert emulated.run_ring(ctypes.c_uint64(1), n, True) == 0, emulated.last_message()


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_meetings_on_emulated_pes(emulated, n):
    for seed in range(8):
        assert emulated.run_meet(ctypes.c_uint64(seed), n) == 0, emulated.last_message()


DAMAGES = {
    "the wait of the ring": ("ring.cu", "nvsym::GE, number, limit_ns", "nvsym::GE, 0, limit_ns", "run_ring"),
    "the signal's place behind the data": ("nvsym.cuh", "    __syncthreads();\n    if (threadIdx.x == 0)\n        signal_set",
                                           "    if (threadIdx.x == 0)\n        signal_set", "run_ring"),
    "the wait of a meeting": ("nvsym.cuh", "here = signal_wait(pads[me] + p, GE, epoch, limit_ns);", "", "run_meet"),
}  # fmt: skip


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("damage", DAMAGES)
def test_the_emulation_notices(damage, tmp_path):
    name, before, after, run = DAMAGES[damage]
    shutil.copytree(ROOT / "include", tmp_path / "include")
    shutil.copy(EXAMPLES / "ring.cu", tmp_path / "ring.cu")
    file = tmp_path / name if name == "ring.cu" else tmp_path / "include" / "nvsym" / name
    assert file.read_text().count(before) == 1
    file.write_text(file.read_text().replace(before, after))
    emulated = build_emulated(tmp_path, tmp_path / "include", tmp_path)
    arguments = (3, False) if run == "run_ring" else (3,)
    assert any(getattr(emulated, run)(ctypes.c_uint64(seed), *arguments) for seed in range(30))
