# SPDX-License-Identifier: Apache-2.0
"""Exchange of file descriptors between the processes of a node, over UNIX sockets (SCM_RIGHTS).

Every member listens on a socket in a folder that only its user can enter, and connects to the members before it. Who connects
must belong to the same user, and every message carries a token that travelled over MPI: whoever does not know it is turned
away. Connecting does not wait for the other side (it need not have accepted), so nothing here waits for a process that failed
on the way: its sockets are closed, and the others see that at once. Once all have connected nobody needs the folders: they are
removed before the first connection is taken, so that only a process that is killed before leaves one.
"""

import contextlib
import hmac
import os
import select
import socket
import struct
import tempfile
import time

from .errors import NVSymError, PeerExitedError, PeerTimeoutError

__all__ = ["TOKEN_BYTES", "DescriptorExchange"]

TOKEN_BYTES = 32
_MESSAGE = struct.Struct(f"=8s{TOKEN_BYTES}sII")  # magic, token, stage, sender
_MAGIC = b"nvsymfd1"
_HELLO = 0
_CREDENTIALS = struct.Struct("=iII")  # pid, uid, gid
_PATIENCE = 0.05  # seconds between two looks at the peers


class DescriptorExchange:
    """The sockets of one process to all others of a group.

    The calls are made by all members in the order `open`, `connect`, `accept`, `exchange` (any number of times), `close`, each
    after a vote on the one before.

    Parameters
    ----------
    rank, size : int
        This process's number, and how many there are.
    token : bytes
        The same on all, and known to nobody else.
    folder : str
        Where the socket is made; the same file system for all.
    names : list of str
        What messages call the members.
    limit : float
        Seconds that a wait may last; 0: no limit.
    watch : callable, optional
        Called now and then while waiting; raises if a peer is gone.
    pes : list of int, optional
        The members' world numbers, for errors; by default their numbers here.
    """

    def __init__(self, rank, size, token, folder, names, limit, watch=None, pes=None):
        self._rank = rank
        self._size = size
        self._token = token
        self._folder = folder
        self._names = names
        self._limit = limit
        self._watch = watch
        self._pes = list(range(size)) if pes is None else pes
        self._private = None
        self._listener: socket.socket | None = None
        self._peers: dict[int, socket.socket] = {}
        self._stage = 0

    def open(self):
        """Listen; returns the socket's path, for the others."""
        path = self._folder
        try:
            self._private = tempfile.mkdtemp(prefix="nvsym-fd-", dir=self._folder)  # 0700
            path = os.path.join(self._private, "s")
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._listener.bind(path)
            self._listener.listen(self._size + 16)
        except OSError as error:
            raise NVSymError(
                f"{path}: no socket can be made there ({error}); NVSYM_SHM_DIR names another folder"
            ) from error
        return path

    def connect(self, paths):
        """Connect to the members before this one. They need not have accepted yet."""
        for rank in range(self._rank):
            with _as_nvsym_error("a socket"):
                peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._peers[rank] = peer
            try:
                peer.connect(paths[rank])
            except OSError as error:
                raise NVSymError(
                    f"{self._names[self._rank]} cannot reach the socket {paths[rank]} of {self._names[rank]} ({error}): are they "
                    "in different containers? Give them a common NVSYM_SHM_DIR"
                ) from error
            if _peer_uid(peer) != os.getuid():
                raise NVSymError(f"the socket {paths[rank]} belongs to another user than this process")
            self._send(rank, _HELLO)

    def accept(self):
        """Take the connections of the members after this one; others are turned away."""
        self._remove_folder()  # all have connected, whether or not it was accepted yet
        deadline = self._deadline()
        assert self._listener is not None  # open() came before
        while len(self._peers) < self._size - 1:
            missing = [rank for rank in range(self._rank + 1, self._size) if rank not in self._peers]
            self._wait(self._listener, deadline, missing, "connecting")
            with _as_nvsym_error("the connection of another PE"):
                stranger = self._listener.accept()[0]
            rank = None
            with contextlib.suppress(OSError, NVSymError):
                if _peer_uid(stranger) == os.getuid():
                    stranger.settimeout(1.0)  # who connects sends its first message at once
                    rank = self._receive(stranger, _HELLO, None)[0]
            if rank in missing:
                self._peers[rank] = stranger
            else:
                stranger.close()
        self._close_listener()

    def exchange(self, outgoing, senders):
        """Send a descriptor to every other member, and receive one from each of some.

        Parameters
        ----------
        outgoing : int or None
            A descriptor, which stays the caller's; None sends nothing.
        senders : iterable of int
            The members that send; the same on all.

        Returns
        -------
        dict of int
            A descriptor of each sender but this process, the caller's to close.
        """
        self._stage += 1
        received = {}
        deadline = self._deadline()
        try:
            if outgoing is not None:
                for rank in self._peers:
                    self._send(rank, self._stage, outgoing)
            for rank in senders:
                if rank == self._rank:
                    continue
                peer = self._peers[rank]
                self._wait(peer, deadline, [rank], "sending its memory")
                sender, descriptor = self._receive(peer, self._stage, rank)
                if sender != rank or descriptor is None:
                    if descriptor is not None:
                        os.close(descriptor)
                    raise NVSymError(f"{self._names[rank]} sent a message without its descriptor")
                received[rank] = descriptor
        except BaseException:
            for descriptor in received.values():
                os.close(descriptor)
            self.close()  # so that whoever still waits for this process need not
            raise
        return received

    def close(self):
        """Close the sockets, and remove the folder if it is still there."""
        for peer in self._peers.values():
            peer.close()
        self._peers = {}
        self._close_listener()
        self._remove_folder()

    def _close_listener(self):
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _remove_folder(self):
        if self._private is not None:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._private, "s"))
            with contextlib.suppress(OSError):
                os.rmdir(self._private)  # rmtree would need a descriptor, of which there may be none
            self._private = None

    def _deadline(self):
        return time.monotonic() + self._limit if self._limit > 0 else None

    def _wait(self, sock, deadline, ranks, what):
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        while not poll.poll(_PATIENCE * 1000):
            if self._watch is not None:
                self._watch()
            if deadline is not None and time.monotonic() > deadline:
                names = ", ".join(self._names[rank] for rank in ranks)
                raise PeerTimeoutError(
                    f"{names}: not seen {what} within {self._limit:g} s (NVSYM_TIMEOUT)",
                    [self._pes[rank] for rank in ranks],
                )

    def _send(self, rank, stage, descriptor=None):
        message = _MESSAGE.pack(_MAGIC, self._token, stage, self._rank)
        rights = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("=i", descriptor))]
        try:
            with _as_nvsym_error(f"sending to {self._names[rank]}"):
                self._peers[rank].sendmsg([message], rights)
        except ConnectionError as error:
            raise self._gone(rank, f" ({error})") from error

    def _gone(self, rank, why=""):
        """The error of a peer that has closed its connection; None: one that has not said who it is."""
        name, pes = ("a process", []) if rank is None else (self._names[rank], [self._pes[rank]])
        return PeerExitedError(f"{name} has closed its connection{why}", pes)

    def _receive(self, sock, stage, rank):
        """(sender, descriptor or None) of the next message."""
        # Room for one descriptor exactly: CMSG_SPACE would let a second one in unseen.
        try:
            with _as_nvsym_error("receiving from another PE"):
                data, ancillary, flags, _ = sock.recvmsg(_MESSAGE.size + 1, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC)
        except ConnectionError as error:  # it had not read what was sent to it
            raise self._gone(rank, f" ({error})") from error
        descriptors = []
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors += [part[0] for part in struct.iter_unpack("=i", content[: len(content) // 4 * 4])]
        try:
            name = "a process" if rank is None else self._names[rank]
            if not data:
                raise self._gone(rank)
            if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
                raise NVSymError(
                    f"{name} sent a descriptor that this process cannot take (limit of open files: ulimit -n?)"
                )
            if len(data) != _MESSAGE.size:
                raise NVSymError(f"{name} sent a message of {len(data)} bytes")
            magic, token, its_stage, sender = _MESSAGE.unpack(data)
            if magic != _MAGIC or not hmac.compare_digest(token, self._token):
                raise NVSymError(f"{name} does not know the token of this exchange")
            if its_stage != stage:
                raise NVSymError(f"{name} is at stage {its_stage} of the exchange, this process at {stage}")
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return sender, descriptors[0] if descriptors else None


@contextlib.contextmanager
def _as_nvsym_error(what):
    """An OSError, such as of too many open files, as an NVSymError; a ConnectionError, which is the peer's doing, stays."""
    try:
        yield
    except ConnectionError:
        raise
    except OSError as error:
        raise NVSymError(f"{what}: {error}") from error


def _peer_uid(sock):
    return _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
