# SPDX-License-Identifier: Apache-2.0
"""nvsym/multimem.cuh compiles to the multimem instructions, form by form, and says what is wrong. No GPU is needed."""

import itertools
import re
from pathlib import Path

import pytest
from machine_code import disassemble

import nvsym
from nvsym.errors import BackendError
from nvsym.kernels import compiler

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")

HEADERS = {"nvsym/multimem.cuh": (Path(nvsym.get_include()) / "nvsym" / "multimem.cuh").read_text()}
HEAD = '#include "nvsym/multimem.cuh"\nusing namespace nvsym::multimem;\n'

ARITHMETIC, BITWISE = ("Add", "Min", "Max"), ("And", "Or", "Xor")
INTEGERS = {
    "unsigned": ("u32", "b32"),
    "int": ("s32", "b32"),
    "unsigned long long": ("u64", "b64"),
    "long long": ("s64", "b64"),
}
FP8 = ("e4m3x4", "e5m2x4")


def forms(fp8):
    """(instruction, operator, order, C type, vector, PTX) of all forms."""
    vector = {1: "", 2: ".v2", 4: ".v4"}
    types = [("float", (1, 2, 4), ("Add",), ("Add",)), ("double", (1,), ("Add",), ("Add",))]
    types += [(name, (1, 2, 4), ARITHMETIC, ("Add",)) for name in ("f16x2", "bf16x2")]
    types += [(name, (1,), ARITHMETIC + BITWISE, ARITHMETIC + BITWISE) for name in INTEGERS]
    types += [(name, (1, 2, 4), ARITHMETIC, ()) for name in FP8 if fp8]
    for name, vectors, loads, reds in types:
        ptx = {"float": "f32", "double": "f64"}.get(name, INTEGERS.get(name, (name,))[0])
        for n in vectors:
            for order in ("Relaxed", "Release"):
                yield "store", None, order, name, n, f"multimem.st.{order.lower()}.sys.global{vector[n]}.{ptx}"
            for instruction, ops, orders in (
                ("ld_reduce", loads, ("Relaxed", "Acquire")),
                ("red", reds, ("Relaxed", "Release")),
            ):
                for op, order in itertools.product(ops, orders):
                    type_ = INTEGERS[name][1] if op in BITWISE else "u64" if (name, op) == ("long long", "Add") else ptx
                    how = ""
                    if instruction == "ld_reduce" and op == "Add":
                        how = {
                            "f16x2": ".acc::f32",
                            "bf16x2": ".acc::f32",
                            "e4m3x4": ".acc::f16",
                            "e5m2x4": ".acc::f16",
                        }.get(name, "")
                    yield (
                        instruction, op, order, name, n,
                        f"multimem.{instruction}.{order.lower()}.sys.global.{op.lower()}{how}{vector[n]}.{type_}",
                    )  # fmt: skip


def kernel(index, instruction, op, order, name, n, _):
    vec = f"Vec<{name}, {n}>"
    arguments = f"{vec} *mc, {vec} *own"
    calls = {
        "store": f"store<{order}>(mc + threadIdx.x, own[threadIdx.x])",
        "ld_reduce": f"own[threadIdx.x] = ld_reduce<{op}, {order}>(mc + threadIdx.x)",
        "red": f"red<{op}, {order}>(mc + threadIdx.x, own[threadIdx.x])",
    }
    return f'extern "C" __global__ void form_{index}({arguments}) {{ {calls[instruction]}; }}\n'


def ptx_of(source, arch):
    status, program = nvrtc.nvrtcCreateProgram(
        source.encode(),
        b"forms.cu",
        1,
        [text.encode() for text in HEADERS.values()],
        [name.encode() for name in HEADERS],
    )
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS
    (status,) = nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture=compute_{arch}".encode()])
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS
    _, size = nvrtc.nvrtcGetPTXSize(program)
    text = bytearray(size)
    nvrtc.nvrtcGetPTX(program, text)
    return text.decode().rstrip("\0")


@pytest.fixture(scope="module", params=["90", "100a"])
def compiled(request):
    """All forms of an architecture, with their kernels' PTX and cubin."""
    found = list(forms(request.param == "100a"))
    source = HEAD + "".join(kernel(i, *form) for i, form in enumerate(found))
    return request.param, found, source, compiler.compile_cubin(source, "forms.cu", request.param, headers=HEADERS)


def test_ptx_of_every_form(compiled):
    arch, found, source, _ = compiled
    bodies = dict(re.findall(r"\.entry form_(\d+)\((.*?)\n}", ptx_of(source, arch), re.DOTALL))
    assert len(bodies) == len(found) > 150
    for i, form in enumerate(found):
        assert re.search(rf"\b{re.escape(form[-1])} ", bodies[str(i)]), (form, bodies[str(i)])
        assert bodies[str(i)].count("multimem.") == 1


def test_machine_code_of_every_form(compiled):
    """ld_reduce is LDGMC, a store a strong STG and a reduction a strong REDG, all of the whole system, of the right width."""
    arch, found, _, cubin = compiled
    text = disassemble(cubin, "-c")
    bodies = dict(re.findall(r"\.text\.form_(\d+):(.*?)(?=\n\s*\.section|\Z)", text, re.DOTALL))
    assert len(bodies) == len(found)
    width = {"float": 4, "double": 8, "unsigned long long": 8, "long long": 8}
    for i, (instruction, op, order, name, n, _) in enumerate(found):
        body = bodies[str(i)]
        nbytes = width.get(name, 4) * n
        if instruction == "ld_reduce":
            lines = re.findall(r"LDGMC\S*", body)
            assert len(lines) == 1, (found[i], body)
            what = {
                "float": "F32",
                "double": "F64",
                "f16x2": "F16",
                "bf16x2": "BF16",
                "e4m3x4": "E4M3",
                "e5m2x4": "E5M2",
            }.get(name)
            if what:
                assert what in lines[0], (found[i], lines)
            if name in ("f16x2", "bf16x2") and op == "Add":
                # Accumulated in float32, which sm_100 calls an addition of higher precision.
                assert ("HPADD" if arch == "100a" else "F32ADD") in lines[0], lines
        elif instruction == "store":
            size = {4: "", 8: ".64", 16: ".128"}[nbytes]
            lines = re.findall(r"STG\S*", body)
            assert lines == [f"STG.E{size}.STRONG.SYS"], (found[i], lines)
        else:
            lines = re.findall(r"REDG\S*", body)
            assert len(lines) == 1, (found[i], body)
        assert ".SYS" in lines[0], (found[i], lines)
        assert ("MEMBAR" in body) == (order == "Release"), (found[i], body)


def test_machine_code_by_its_bytes(compiled):
    """Without a disassembler: there is code for each kernel."""
    _, found, _, cubin = compiled
    assert cubin[:4] == b"\x7fELF"
    for i in range(len(found)):
        assert f".text.form_{i}\0".encode() in cubin


# What is refused: code, architecture, what the compiler says.
REFUSED = {
    "an old architecture": ("float *f; store(f, 1.0f)", "80", "need sm_90"),
    "fp8 on sm_90": ("Vec<e4m3x4, 4> *f; ld_reduce<Add>(f)", "90", "sm_100a"),
    "fp8 on sm_100": ("Vec<e5m2x4, 1> *f; ld_reduce<Max>(f)", "100", "sm_100a"),
    "a minimum of float": ("float *f; ld_reduce<Min>(f)", "90", "no such multimem form"),
    "bits of float": ("float *f; red<Xor>(f, 1.0f)", "90", "no such multimem form"),
    "two doubles": ("Vec<double, 2> *f; ld_reduce<Add>(f)", "90", "no such multimem form"),
    "four integers": ("Vec<int, 4> *f; ld_reduce<Add>(f)", "90", "no such multimem form"),
    "eight pairs": ("Vec<bf16x2, 8> *f; ld_reduce<Add>(f)", "90", "no such multimem form"),
    "red of fp8": ("Vec<e4m3x4, 4> *f; red<Add>(f, *f)", "100a", "no such multimem form"),
    "red that finds the minimum of bf16": ("Vec<bf16x2, 1> *f; red<Min>(f, *f)", "90", "no such multimem form"),
    "a load that releases": ("float *f; ld_reduce<Add, Release>(f)", "90", "no such multimem form"),
    "a store that acquires": ("float *f; store<Acquire>(f, 1.0f)", "90", "no such multimem form"),
    "a type of 16 bits": ("short *f; ld_reduce<Add>(f)", "90", "no such multimem form"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    code, arch, says = REFUSED[case]
    with pytest.raises(BackendError, match=says):
        compiler.compile_cubin(
            f"{HEAD}__global__ void f(void *p) {{ {code.replace('; ', ' = 0; ', 1)}; }}",
            "refused.cu",
            arch,
            headers=HEADERS,
        )


def test_header_is_harmless_on_an_old_architecture():
    """Only use is an error: one source serves several architectures."""
    code = HEAD + "__global__ void f(float *p) {\n#if __CUDA_ARCH__ >= 900\nstore(p, 1.0f);\n#endif\n}"
    assert compiler.compile_cubin(code, "old.cu", "80", headers=HEADERS)
    assert compiler.compile_cubin(code, "new.cu", "90", headers=HEADERS)


@pytest.mark.parametrize("arch", ["103a", "120a", "100f"])
def test_fp8_of_other_architectures(arch):
    code = HEAD + "__global__ void f(Vec<e4m3x4, 4> *p) { store(p, ld_reduce<Add>(p)); }"
    assert compiler.compile_cubin(code, "fp8.cu", arch, headers=HEADERS)


def test_allreduce_kernel_compiles():
    """As a kernel uses it: reduce a part, store it to all, with the fence between the two addresses of the memory."""
    code = (
        HEAD
        + """
    extern "C" __global__ void allreduce(Vec<bf16x2, 4> *mc, unsigned *mc_flag, const unsigned *flag, unsigned target, size_t first, size_t last)
    {
        if (threadIdx.x == 0) {
            fence_alias();
            red<Add, Release>(mc_flag, 1u);
            while ((int)(*(volatile const unsigned *)flag - target) < 0) {}
            fence_alias();
        }
        __syncthreads();
        for (size_t i = first + blockIdx.x * blockDim.x + threadIdx.x; i < last; i += gridDim.x * blockDim.x)
            store(mc + i, ld_reduce<Add>(mc + i));
    }
    """
    )
    for arch in ("90", "100a"):
        assert b"allreduce" in compiler.compile_cubin(code, "allreduce.cu", arch, headers=HEADERS)
