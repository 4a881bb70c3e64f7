# SPDX-License-Identifier: Apache-2.0
"""CUDA C++ to machine code at run time, by NVRTC, with a cache on disk.

The cache is a folder of the user's own (``NVSYM_CACHE_DIR``, else ``$XDG_CACHE_HOME/nvsym`` or ``~/.cache/nvsym``). An entry is
named by the hash of all that it comes from: sources, options, architecture, compiler version. It is written under another name
and renamed, so that many processes may compile at once; it begins with the hash of its contents, so that a damaged one is seen
and made anew. The contents are the seconds that the compilation took, and the machine code.
"""

import functools
import hashlib
import os
import re
import stat
import statistics
import struct
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from ..errors import BackendError, NotAvailableError

__all__ = [
    "KERNELS",
    "LEVELS",
    "MOVES",
    "MULTIMEM",
    "OPERATORS",
    "ORDERS",
    "PUTS",
    "SCATTERS",
    "TYPES",
    "allreduce_cubin",
    "begin_loading",
    "cache_folder",
    "cache_report",
    "compile_cubin",
    "compiler_version",
    "levels_cubin",
    "moves_cubin",
    "multimem_cubin",
    "order_cubin",
    "put_cubin",
    "reduce_scatter_cubin",
]

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
    "float8_e3m4": "nvsym::e3m4",
    "float8_e4m3": "nvsym::e4m3",
    "float8_e4m3fn": "nvsym::e4m3fn",
    "float8_e4m3fnuz": "nvsym::e4m3fnuz",
    "float8_e4m3b11fnuz": "nvsym::e4m3b11fnuz",
    "float8_e5m2": "nvsym::e5m2",
    "float8_e5m2fnuz": "nvsym::e5m2fnuz",
}
OPERATORS = {"sum": "Sum", "prod": "Prod", "min": "Min", "max": "Max", "and": "And", "or": "Or", "xor": "Xor"}
KERNELS = (
    "nvsym_one_shot",
    "nvsym_two_shot",
    "nvsym_low_latency",
    "nvsym_push",
    "nvsym_staged",
    "nvsym_count_copy",
)
SCATTERS = ("nvsym_reduce_scatter", "nvsym_reduce_scatter_lines")
# What the switch combines, by nvsym's names.
_SWITCHED = ("sum", "min", "max", "and", "or", "xor")
MULTIMEM = {
    "float32": ("sum",),
    "float64": ("sum",),
    "float16": ("sum", "min", "max"),
    "bfloat16": ("sum", "min", "max"),
    "int32": _SWITCHED,
    "uint32": _SWITCHED,
    "int64": _SWITCHED,
    "uint64": _SWITCHED,
}
LEVELS = ("nvsym_level_in", "nvsym_level_out")
ORDERS = ("nvsym_barrier", "nvsym_fence")
PUTS = ("nvsym_copy", "nvsym_copy_signal")
MOVES = (
    "nvsym_broadcast",
    "nvsym_fcollect",
    "nvsym_alltoall",
    "nvsym_broadcast_lines",
    "nvsym_fcollect_lines",
    "nvsym_alltoall_lines",
)

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


def begin_loading(arch):
    """Begin to load NVRTC, and what every job needs, in a thread of its own: together they take a tenth of a second or two.

    Returns
    -------
    callable
        It waits for the thread, and returns and raises what `order_cubin` does.
    """
    executor = ThreadPoolExecutor(1, "nvsym-nvrtc")
    orders = executor.submit(order_cubin, arch)
    puts = executor.submit(put_cubin, arch)  # into the cache
    executor.shutdown(wait=False)

    def result():
        wait([puts])
        return orders.result()

    return result


def _include_folder():
    installed = _FOLDER.parent / "include"
    return installed if installed.is_dir() else _FOLDER.parent.parent / "include"


@functools.cache
def _source(name):
    """The text of a .cu file here, and of the headers that it includes, by the names that they are included by."""
    text = (_FOLDER / name).read_text()
    include, headers, wanted = _include_folder(), {}, [text]
    while wanted:
        for file in re.findall(r'^#include "([^"]+)"', wanted.pop(), re.MULTILINE):
            if file not in headers:
                # A header includes its neighbours by their bare names.
                headers[file] = (include / "nvsym" / file.removeprefix("nvsym/")).read_text()
                wanted.append(headers[file])
    return text, headers


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
    """The machine code of an entry, or None if it is not there or damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, contents = data[:32], data[32:]
    return contents[_SECONDS.size :] if hashlib.sha256(contents).digest() == digest else None


_SECONDS = struct.Struct("<d")


def _write(path, seconds, cubin):
    contents = _SECONDS.pack(seconds) + cubin
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(hashlib.sha256(contents).digest() + contents)
            file.flush()
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise


def cache_report():
    """What the cache holds, and what a first call costs where it does not hold the kernels yet.

    Returns
    -------
    dict
        ``folder`` (None where there is none), ``entries``, ``nbytes``, ``compile_seconds`` (the median over the entries of
        what their compilation took; None where there is no entry), ``compiler`` (NVRTC's version, or why there is none).
    """
    try:
        compiler = "NVRTC {}.{}".format(*compiler_version())
    except NotAvailableError as error:
        compiler = f"not found: {error}"
    folder = cache_folder()
    seconds, nbytes = [], 0
    for path in sorted(folder.glob("*.cubin")) if folder is not None else ():
        try:
            with path.open("rb") as file:
                head = file.read(32 + _SECONDS.size)
            nbytes += path.stat().st_size
        except OSError:
            continue  # another process replaces it
        if len(head) == 32 + _SECONDS.size:
            seconds.append(_SECONDS.unpack(head[32:])[0])
    return {
        "folder": None if folder is None else str(folder),
        "entries": len(seconds),
        "nbytes": nbytes,
        "compile_seconds": statistics.median(seconds) if seconds else None,
        "compiler": compiler,
    }


def _cached_cubin(name, arch, defines=()):
    """The machine code of a .cu file, and whether it was compiled now."""
    source, headers = _source(name)
    key = repr((source, sorted(headers.items()), defines, _OPTIONS, arch, compiler_version()))
    folder = cache_folder()
    stem = name.removesuffix(".cu")
    path = None if folder is None else folder / f"{stem}-{hashlib.sha256(key.encode()).hexdigest()}.cubin"
    if path is not None:
        cubin = _read(path)
        if cubin is not None:
            return cubin, False
    start = time.perf_counter()
    cubin = compile_cubin(source, name, arch, defines, headers)
    if path is not None:
        try:
            _write(path, time.perf_counter() - start, cubin)
        except OSError:
            return cubin, True  # a full disk costs the next process a second, no more
    return cubin, True


def allreduce_cubin(dtype, op, arch):
    """The machine code of the allreduce kernels (`KERNELS`) of an element type and operator.

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
    return _cached_cubin("allreduce.cu", arch, _typed(dtype, op))


def reduce_scatter_cubin(dtype, op, arch):
    """The same for the kernels of reduce-scatter (`SCATTERS`)."""
    return _cached_cubin("reduce_scatter.cu", arch, _typed(dtype, op))


def levels_cubin(dtype, op, arch):
    """The same for the kernels inside a node of an allreduce over several nodes (`LEVELS`)."""
    return _cached_cubin("levels.cu", arch, _typed(dtype, op))


def multimem_cubin(dtype, op, arch):
    """The same for the allreduce through a multicast address (``nvsym_multimem``), of the pairs in `MULTIMEM`; from sm_90 on."""
    return _cached_cubin("multimem.cu", arch, _typed(dtype, op))


def moves_cubin(arch):
    """The same for the collectives that move bytes (`MOVES`)."""
    return _cached_cubin("moves.cu", arch)


def order_cubin(arch):
    """The same for the barrier and the fence (`ORDERS`)."""
    return _cached_cubin("order.cu", arch)


def put_cubin(arch):
    """The same for small puts and gets (`PUTS`)."""
    return _cached_cubin("put.cu", arch)


def _typed(dtype, op):
    return f"NVSYM_T={TYPES[dtype]}", f"NVSYM_OP={OPERATORS[op]}"
