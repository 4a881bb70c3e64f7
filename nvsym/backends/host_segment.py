# SPDX-License-Identifier: Apache-2.0
"""The shared segment of a node: one file that every PE of the node maps, private to the user and without a name once mapped.

Memory is taken from the system only as the heap grows into it (`commit`), so that a full /dev/shm is an error of the
allocation that met it instead of a bus error later on.
"""

import contextlib
import errno
import mmap
import os
import secrets
import stat

from ..errors import BackendError, HeapExhaustedError

__all__ = ["Segment"]


class Segment:
    """A mapping of the segment. Arrays over the memory hold it, so it may outlive the job.

    Attributes
    ----------
    memory : mmap.mmap
        The whole segment.
    """

    __slots__ = ("directory", "fd", "memory", "nbytes", "path")

    def __init__(self, directory, nbytes, path=None):
        self.directory = directory
        self.nbytes = nbytes
        self.path = path
        self.fd = -1
        self.memory = None

    def create(self):
        """Make the file. Its name is a secret of the job; others of the node get it over MPI."""
        self.path = os.path.join(self.directory, f"nvsym-{os.getuid()}-{secrets.token_hex(16)}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self.fd = os.open(self.path, flags, 0o600)
            os.ftruncate(self.fd, self.nbytes)
        except OSError as error:
            raise BackendError(
                f"no shared segment of {self.nbytes} bytes in {self.directory}: {error.strerror}. "
                "NVSYM_SHM_DIR names another directory (in memory: tmpfs), NVSYM_HEAP_SIZE a smaller heap"
            ) from error

    def open(self):
        """Open the file that another PE made, and make sure that it is that file."""
        try:
            self.fd = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise BackendError(
                f"the shared segment of the node, {self.path}, cannot be opened: {error.strerror}. PEs on one node must "
                "see one file system: in containers share it (NVSYM_SHM_DIR), or start one job per container"
            ) from error
        found = os.fstat(self.fd)
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) != 0o600 or found.st_size != self.nbytes:
            raise BackendError(
                f"{self.path} is not the segment that this job made (owner {found.st_uid}, mode "
                f"{stat.S_IMODE(found.st_mode):o}, {found.st_size} bytes)"
            )

    def map(self):
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_NORESERVE", 0)
        try:
            self.memory = mmap.mmap(self.fd, self.nbytes, flags)
        except (OSError, ValueError) as error:
            raise BackendError(f"the shared segment of {self.nbytes} bytes cannot be mapped: {error}") from error

    def commit(self, start, nbytes):
        """Take the memory of a range from the system.

        Raises
        ------
        HeapExhaustedError
            If there is none.
        """
        while True:
            try:
                os.posix_fallocate(self.fd, start, nbytes)
                return
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                    raise BackendError(f"the shared segment cannot be committed: {error}") from error
                room = os.fstatvfs(self.fd)
                raise HeapExhaustedError(
                    f"{self.directory} has {room.f_bavail * room.f_frsize} bytes left and the heap needs {nbytes} more; "
                    "enlarge it (containers: --shm-size) or point NVSYM_SHM_DIR elsewhere"
                ) from error

    def unlink(self):
        """Remove the name; the file lives on as long as it is open or mapped."""
        if self.path is not None:
            with contextlib.suppress(FileNotFoundError):  # a clean-up of the machine may have been first
                os.unlink(self.path)
            self.path = None

    def close(self):
        """Forget the file; the mapping goes with the last array over it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self.memory = None
