# SPDX-License-Identifier: Apache-2.0
"""CUDA C++ to machine code at run time, by NVRTC, with a cache on disk.

The cache is a folder of the user's own (``NVSYM_CACHE_DIR``, else ``$XDG_CACHE_HOME/nvsym`` or ``~/.cache/nvsym``). An entry is
named by the hash of all that it comes from: sources, options, architecture, compiler version. It is written under another name
and renamed, so that many processes may compile at once; it begins with the hash of its contents, so that a damaged one is seen
and made anew.
"""

import functools
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from ..errors import BackendError, NotAvailableError

__all__ = ["KERNELS", "OPERATORS", "TYPES", "allreduce_cubin", "cache_folder", "compile_cubin", "compiler_version"]

# The element types and operators of allreduce.cu, by nvsym's names.
TYPES = {
    "bool": "bool",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
    "uint32": "unsigned int",
    "int64": "long long",
    "uint64": "unsigned long long",
    "float16": "nvsym::f16",
    "float32": "float",
    "float64": "double",
    "bfloat16": "nvsym::bf16",
}
OPERATORS = {"sum": "Sum", "prod": "Prod", "min": "Min", "max": "Max", "and": "And", "or": "Or", "xor": "Xor"}
KERNELS = ("nvsym_one_shot", "nvsym_two_shot", "nvsym_low_latency", "nvsym_push")

_FOLDER = Path(__file__).resolve().parent
_OPTIONS = ("--std=c++17", "--fmad=false")


def _nvrtc():
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise NotAvailableError(
            f"nvsym compiles its GPU kernels with NVRTC through cuda-bindings, which is not there ({error}). "
            'pip install "nvsym[cu12]" or "nvsym[cu13]"'
        ) from error
    return nvrtc


def _check(nvrtc, result, call, program=None):
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        text = f"{call} failed: {status.name}"
        if program is not None:
            _, size = nvrtc.nvrtcGetProgramLogSize(program)
            log = bytearray(size)
            nvrtc.nvrtcGetProgramLog(program, log)
            text += "\n" + log.decode(errors="replace").strip("\0 \n")
        raise BackendError(text)
    return values[0] if len(values) == 1 else values


def compiler_version():
    """(major, minor) of NVRTC.

    Raises
    ------
    NotAvailableError
        If there is none.
    """
    nvrtc = _nvrtc()
    try:
        return tuple(_check(nvrtc, nvrtc.nvrtcVersion(), "nvrtcVersion"))
    except RuntimeError as error:  # cuda-bindings is there and the library is not
        raise NotAvailableError(f'no NVRTC library: {error}. pip install "nvsym[cu12]" or "nvsym[cu13]"') from error


def _include_folder():
    installed = _FOLDER.parent / "include"
    return installed if installed.is_dir() else _FOLDER.parent.parent / "include"


@functools.cache
def _sources():
    """The text of allreduce.cu and of the headers that it includes, by name."""
    include = _include_folder()
    names = ("nvsym/device.cuh", "nvsym/collectives.cuh")
    headers = {name: (include / name).read_text() for name in names}
    # collectives.cuh includes its neighbour by its bare name.
    headers["device.cuh"] = headers["nvsym/device.cuh"]
    return (_FOLDER / "allreduce.cu").read_text(), headers


def compile_cubin(source, name, arch, defines=(), headers=None):
    """Compile CUDA C++ to machine code.

    Parameters
    ----------
    source : str
    name : str
        Of the source, for the compiler's messages.
    arch : int
        90 for compute capability 9.0.
    defines : sequence of str
        ``"NAME=value"``.
    headers : dict of str
        Texts by the name that they are included by.

    Returns
    -------
    bytes
        A cubin.

    Raises
    ------
    BackendError
        With the compiler's messages.
    NotAvailableError
        If there is no NVRTC.
    """
    nvrtc = _nvrtc()
    headers = headers or {}
    options = [f"--gpu-architecture=sm_{arch}", *_OPTIONS, *[f"-D{define}" for define in defines]]
    program = _check(
        nvrtc,
        nvrtc.nvrtcCreateProgram(
            source.encode(),
            name.encode(),
            len(headers),
            [text.encode() for text in headers.values()],
            [include.encode() for include in headers],
        ),
        "nvrtcCreateProgram",
    )
    try:
        encoded = [option.encode() for option in options]
        _check(nvrtc, nvrtc.nvrtcCompileProgram(program, len(encoded), encoded), f"compiling {name}", program)
        size = _check(nvrtc, nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize")
        cubin = bytearray(size)
        _check(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin), "nvrtcGetCUBIN")
        return bytes(cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def cache_folder():
    """The folder of the compiled kernels, private to the user; None where none can be had.

    A folder that belongs to somebody else, or that others may write to, is not used: what lies there runs on the GPU.
    """
    base = os.environ.get("NVSYM_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "nvsym"
    )
    folder = Path(base)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:
        return None
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
        return None
    return folder


def _read(path):
    """The contents of an entry, or None if it is not there or damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, contents = data[:32], data[32:]
    return contents if hashlib.sha256(contents).digest() == digest else None


def _write(path, contents):
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(hashlib.sha256(contents).digest() + contents)
            file.flush()
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise


def allreduce_cubin(dtype, op, arch):
    """The machine code of the allreduce kernels of an element type and operator.

    Parameters
    ----------
    dtype, op : str
        Of `TYPES` and `OPERATORS`.
    arch : int
        As for `compile_cubin`.

    Returns
    -------
    cubin : bytes
    fresh : bool
        Whether it was compiled now.
    """
    source, headers = _sources()
    defines = (f"NVSYM_T={TYPES[dtype]}", f"NVSYM_OP={OPERATORS[op]}")
    key = repr((source, sorted(headers.items()), defines, _OPTIONS, arch, compiler_version()))
    folder = cache_folder()
    path = None if folder is None else folder / f"allreduce-{hashlib.sha256(key.encode()).hexdigest()}.cubin"
    if path is not None:
        cubin = _read(path)
        if cubin is not None:
            return cubin, False
    cubin = compile_cubin(source, "allreduce.cu", arch, defines, headers)
    if path is not None:
        try:
            _write(path, cubin)
        except OSError:
            return cubin, True  # a full disk costs the next process a second, no more
    return cubin, True
