# SPDX-License-Identifier: Apache-2.0
"""Where the CUDA driver and NVSHMEM are found: one search for both libraries.

A library named by the environment is the only one tried. Else a copy that the process has already loaded is used, since
two copies of a library share no state; else what cuda-pathfinder finds; else what the system's loader finds. A library
that is open stays open: both have threads and exit handlers of their own.
"""

import contextlib
import ctypes
import os
from dataclasses import dataclass

from .errors import NotAvailableError

__all__ = ["Library", "LibraryInfo", "find", "loaded_files"]

_RTLD_DI_LINKMAP = 2  # <dlfcn.h> of glibc


@dataclass(frozen=True, slots=True)
class LibraryInfo:
    """What is known of an open library.

    Attributes
    ----------
    path : str
    version : str
        As the library itself reports it.
    found_by : str
        The step of the search that found it.
    missing : tuple of str
        The functions of nvsym's table that this library does not have.
    also_loaded : tuple of str
        Other copies of the library in this process, which nvsym does not use.
    """

    path: str
    version: str
    found_by: str
    missing: tuple[str, ...] = ()
    also_loaded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Library:
    """An open library: the loader's handle, its file, and the step of the search that found it."""

    handle: int
    path: str
    found_by: str
    also_loaded: tuple[str, ...]


class _LinkMap(ctypes.Structure):
    """The first two members of glibc's `struct link_map`."""

    _fields_ = (("l_addr", ctypes.c_void_p), ("l_name", ctypes.c_char_p))


def _open(name, *, only_if_loaded=False):
    """The handle of a library, or the loader's own message as an OSError."""
    return ctypes.CDLL(name, mode=os.RTLD_NOW | (os.RTLD_NOLOAD if only_if_loaded else os.RTLD_LOCAL))._handle


def _path_of(handle):
    """The file that a handle was opened from."""
    dlinfo = ctypes.CDLL(None).dlinfo
    dlinfo.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    link_map = ctypes.POINTER(_LinkMap)()
    if dlinfo(handle, _RTLD_DI_LINKMAP, ctypes.byref(link_map)) != 0 or not link_map:
        raise OSError(f"the loader knows no file for the handle {handle:#x}")
    return os.path.abspath(os.fsdecode(link_map.contents.l_name))


def loaded_files(stem):
    """The files mapped into this process whose name begins with `stem`, in the order of the memory map.

    Parameters
    ----------
    stem : str
        Such as ``"libcuda.so"``.

    Returns
    -------
    list of str
    """
    files = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            path = "".join(line.rstrip("\n").split(maxsplit=5)[5:]).removesuffix(" (deleted)")
            if os.path.basename(path).startswith(stem) and path not in files:
                files.append(path)
    return files


def _already_loaded(soname, stem, prefer):
    """The handles of the loaded copies: the one that `prefer` names first, then in the loader's order."""
    handles = []
    for name in (soname, *loaded_files(stem)):
        # A file that was replaced on disk since it was loaded does not open by its path; its SONAME still does.
        with contextlib.suppress(OSError):
            handle = _open(name, only_if_loaded=True)
            if handle not in handles:
                handles.append(handle)
    if len(handles) > 1 and prefer is not None:
        handles.sort(key=lambda handle: not prefer(handle))
    return handles


def find(title, *, soname, variable, pathfinder_name, install, prefer=None):
    """Open a library.

    Parameters
    ----------
    title : str
        What the messages call it.
    soname : str
        Such as ``"libcuda.so.1"``.
    variable : str
        The environment variable that may hold the path of the one file to open.
    pathfinder_name : str
        Its name in `cuda.pathfinder.load_nvidia_dynamic_lib`.
    install : str
        What to do to have it, for the message.
    prefer : callable, optional
        Called with a handle; true for the copy to use where the process has loaded several.

    Returns
    -------
    Library

    Raises
    ------
    NotAvailableError
        Naming everything that was tried, with the loader's own messages.
    """
    stem = soname.partition(".so")[0] + ".so"
    named = os.environ.get(variable)
    if named:
        try:
            handle = _open(named)
        except OSError as error:
            raise NotAvailableError(
                f"{title}: {variable}={named} does not open ({error}); "
                f"nothing else is tried while {variable} is set: correct it, or unset it to search"
            ) from None
        return _library(handle, stem, f"{variable} names it")

    loaded = _already_loaded(soname, stem, prefer)
    if loaded:
        return _library(loaded[0], stem, "the process had loaded it")

    # Late: it takes a sixth of what `import nvsym` takes, and a process that has its library, or needs none, does without.
    from cuda.pathfinder import load_nvidia_dynamic_lib

    tried = [f"loaded in this process: no {stem}*"]
    try:
        found = load_nvidia_dynamic_lib(pathfinder_name)
    except RuntimeError as error:  # its own exceptions, and the loader's message on a file that it found
        tried.append(f"cuda-pathfinder ({pathfinder_name}): {' '.join(str(error).split())}")
    else:
        return _library(_open(found.abs_path), stem, f"cuda-pathfinder found it ({found.found_via})")
    try:
        return _library(_open(soname), stem, "the system's loader found it")
    except OSError as error:
        tried.append(f"the system's loader ({soname}): {error}")
    raise NotAvailableError(
        f"{title} was not found. Tried:\n"
        + "".join(f"  - {line}\n" for line in tried)
        + f"{install}, or set {variable} to the path of {soname}"
    )


def _library(handle, stem, found_by):
    path = _path_of(handle)
    real = os.path.realpath(path)
    others = tuple(file for file in loaded_files(stem) if os.path.realpath(file) != real)
    return Library(handle, path, found_by, others)
