# SPDX-License-Identifier: Apache-2.0
"""The names under which ``torch.distributed`` knows nvsym: the backend "nvsym" and the init method "nvsym://"."""

from __future__ import annotations

import atexit
import fcntl
import glob
import itertools
import os
import shutil
import socket
import tempfile
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import torch.distributed as dist

import nvsym
from nvsym._settings import load

from .process_group import check_job, create, job_begun

_ADDRESS_BYTES = 1024
_PREFIX = "nvsym-torch-"
_INIT_OPTIONS = ("backend", "heap_size", "bootstrap")

_folders: dict[str, str] = {}  # by the folder they are in, NVSYM_SHM_DIR
_stores: dict[str, dist.Store] = {}  # those in files, for as long as the process lives
_calls = itertools.count()


def register() -> None:
    """Make the backend and the init method known to PyTorch; done by importing ``nvsym.torch``."""
    if not dist.is_available():
        raise nvsym.NotAvailableError("nvsym.torch: this PyTorch was built without torch.distributed")
    dist.Backend.register_backend("nvsym", create, extended_api=True, devices=["cpu", "cuda"])
    dist.register_rendezvous_handler("nvsym", _rendezvous)


def _rendezvous(url, timeout=None, **_):
    """The store, rank and size of this process, all from nvsym's job, which begins here if there is none yet."""
    parts = urlsplit(url)
    if misplaced := parts.netloc + parts.path.strip("/") + parts.fragment:
        raise ValueError(
            f"init_method: {url!r} has {misplaced!r} where nothing is; options are behind ?: nvsym://?backend=host"
        )
    given = dict(parse_qsl(parts.query))
    try:
        rank, size = int(given.pop("rank", -1)), int(given.pop("world_size", -1))
    except ValueError:
        raise ValueError(f"init_method: {url!r} has a rank or world_size that is no whole number") from None
    if unknown := [name for name in given if name not in _INIT_OPTIONS]:
        raise ValueError(f"init_method: {url!r} has the option {unknown[0]!r}; there are {', '.join(_INIT_OPTIONS)}")
    if not nvsym.is_initialized():
        nvsym.init(**given)
        job_begun()
    else:
        check_job("init_method", given.get("backend", "auto"), given.get("heap_size"))
    ctx = nvsym.context()
    me, n = ctx.my_pe(), ctx.n_pes()
    if rank not in (-1, me) or size not in (-1, n):
        raise ValueError(f"init_method: {url!r} asks for rank {rank} of {size}, and this is PE {me} of {n} of the job")
    yield _store(ctx, timeout), me, n


def _store(ctx, timeout):
    """A store that all PEs share: a file that only this user can open, or on several nodes a TCP server on PE 0.

    A process has one file for all its jobs, and a prefix of its own for each.
    """
    me, n = ctx.my_pe(), ctx.n_pes()
    one_node = len(set(ctx.nodes())) == 1
    options = {} if timeout is None else {"timeout": timeout}
    served = None
    address = ""
    if me == 0 and one_node:
        address = f"{next(_calls)} {_folder(load()['NVSYM_SHM_DIR'])}/store"
    elif me == 0:
        host = os.environ.get("MASTER_ADDR") or _own_name()
        served = dist.TCPStore(host, 0, n, is_master=True, wait_for_workers=False, **options)
        address = f"{host} {served.port}"
    address = _tell_all(address, me, n)
    if one_node:
        call, path = address.split(" ", 1)
        return dist.PrefixStore(call, _file_store(path))
    if served is not None:
        return served
    host, port = address.split()
    return dist.TCPStore(host, int(port), n, is_master=False, wait_for_workers=False, **options)


def _file_store(path):
    """The store in a file.

    By a file descriptor: PyTorch opens it by name at each use, for the last time when the store goes, and waits for it to be
    there, while PE 0 may have ended and removed it.
    """
    found = _stores.get(path)
    if found is None:
        opened = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)  # until the process ends, as the store
        found = _stores[path] = dist.FileStore(f"/proc/self/fd/{opened}")
    return found


def _folder(parent):
    """That of this process."""
    found = _folders.get(parent)
    if found is None or not os.path.isdir(found):
        found = _folders[parent] = _new_folder(parent)
    return found


def _new_folder(parent):
    """A folder that only this user can open. Those of processes that were killed are removed: nobody holds their locks."""
    for old in glob.glob(os.path.join(parent, f"{_PREFIX}*")):
        try:
            lock = os.open(os.path.join(old, "lock"), os.O_RDWR)
        except OSError:
            continue  # another user's, or just being made
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old, ignore_errors=True)
        except BlockingIOError:
            pass  # in use
        finally:
            os.close(lock)
    folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)  # mode 0700
    lock = os.open(os.path.join(folder, "lock"), os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # until the process ends, in whatever way
    return folder


def _own_name():
    """What other nodes know this one as."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return socket.getfqdn()
    return name


def _tell_all(text, me, n):
    """PE 0's text, on all PEs. By puts, which every kind of job can do."""
    line = np.zeros(_ADDRESS_BYTES, np.uint8)
    data = np.frombuffer(text.encode(), np.uint8)
    line[: len(data)] = data
    with nvsym.SHMEMBuffer[np.uint8].zeros(_ADDRESS_BYTES) as shared:
        if me == 0:
            for pe in range(n):
                nvsym.put(shared, line, pe)
        nvsym.barrier_all()
        return bytes(shared.to_numpy()).rstrip(b"\0").decode()


os.register_at_fork(after_in_child=_folders.clear)


@atexit.register
def _remove_folders():
    for folder in _folders.values():
        shutil.rmtree(folder, ignore_errors=True)
