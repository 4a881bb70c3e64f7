# SPDX-License-Identifier: Apache-2.0
"""What lies under a pool: the exchange of descriptors between processes, and how it is decided how handles travel."""

import array
import contextlib
import os
import resource
import socket
import stat
import struct
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from nvsym import _descriptors, _facts, _nvml
from nvsym._descriptors import TOKEN_BYTES, DescriptorExchange
from nvsym._group import Requests
from nvsym.errors import NVSymError, PeerExitedError, PeerTimeoutError
from nvsym.pool_agreement import PoolAgreement

TOKEN = bytes(range(TOKEN_BYTES))


def members(n, folder, *, token=TOKEN, limit=5.0, watch=None):
    names = [f"PE {rank}" for rank in range(n)]
    return [DescriptorExchange(rank, n, token, str(folder), names, limit, watch) for rank in range(n)]


def together(*calls):
    """Make calls at the same time; returns what each returned or raised."""
    results = [None] * len(calls)

    def run(i):
        try:
            results[i] = calls[i]()
        except Exception as error:  # noqa: BLE001 - what it is, is what the test looks at
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def connected(group):
    """The group with open connections."""
    paths = [member.open() for member in group]
    for member in group:
        member.connect(paths)
    for member in group:
        member.accept()
    return paths


def open_files():
    return len(os.listdir("/proc/self/fd"))


def temporary(number):
    """A descriptor of a file that says who it belongs to."""
    descriptor = os.memfd_create(f"of-{number}")
    os.write(descriptor, b"%d" % number)
    return descriptor


def who(descriptor):
    return int(os.pread(descriptor, 10, 0))


@pytest.mark.parametrize("n", [2, 3, 8])
def test_every_member_gets_what_every_other_sent(tmp_path, n):
    before = open_files()
    group = members(n, tmp_path)
    connected(group)
    assert list(tmp_path.iterdir()) == []  # whoever dies from here on leaves nothing
    own = [temporary(rank) for rank in range(n)]
    results = together(*(lambda m=m, d=d: m.exchange(d, range(n)) for m, d in zip(group, own, strict=True)))
    for rank, received in enumerate(results):
        assert sorted(received) == [other for other in range(n) if other != rank], received
        for other, descriptor in received.items():
            assert who(descriptor) == other
            assert not os.get_inheritable(descriptor)
            os.close(descriptor)
    # One member only sends; and again, after that.
    for sender in (0, n - 1):
        results = together(
            *(lambda m=m, r=r, s=sender: m.exchange(own[r] if r == s else None, [s]) for r, m in enumerate(group))
        )
        for rank, received in enumerate(results):
            assert sorted(received) == ([] if rank == sender else [sender])
            for descriptor in received.values():
                assert who(descriptor) == sender
                os.close(descriptor)
    for descriptor in own:
        os.close(descriptor)
    for member in group:
        member.close()
    assert open_files() == before
    assert list(tmp_path.iterdir()) == []


def test_socket_is_the_users_own(tmp_path):
    (member,) = members(1, tmp_path)
    path = member.open()
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
    member.close()
    assert not os.path.exists(os.path.dirname(path))


def test_folder_goes_before_the_connections_are_taken(tmp_path):
    """They wait in the socket; who dies, or waits for one that does, leaves nothing."""
    group = members(2, tmp_path, limit=0.2)
    paths = [member.open() for member in group]
    group[0].connect(paths)
    with pytest.raises(PeerTimeoutError, match="PE 1"):
        group[0].accept()
    assert not os.path.exists(os.path.dirname(paths[0]))
    assert os.path.exists(paths[1])
    for member in group:
        member.close()
    assert list(tmp_path.iterdir()) == []


def test_stranger_is_turned_away(tmp_path):
    """Who does not know the token, or says nothing, does not get in, and keeps nobody out."""
    before = open_files()
    group = members(2, tmp_path)
    paths = [member.open() for member in group]
    strangers = []
    for message in (
        _descriptors._MESSAGE.pack(_descriptors._MAGIC, bytes(TOKEN_BYTES), 0, 1),  # another token
        _descriptors._MESSAGE.pack(b"otherone", TOKEN, 0, 1),
        _descriptors._MESSAGE.pack(_descriptors._MAGIC, TOKEN, 0, 7),  # no member
        b"hello",
    ):
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stranger.connect(paths[0])
        stranger.send(message)
        strangers.append(stranger)
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    silent.connect(paths[0])
    strangers.append(silent)
    group[0].connect(paths)
    group[1].connect(paths)
    group[1].accept()
    group[0].accept()
    for stranger in strangers:
        assert stranger.recv(100) == b""  # closed
        stranger.close()
    own = temporary(1)
    assert together(lambda: group[0].exchange(None, [1]), lambda: group[1].exchange(own, [1]))[1] == {}
    os.close(own)
    for member in group:
        member.close()
    assert open_files() <= before + 1  # what PE 0 was given, and this test did not close


def test_token_of_another_exchange(tmp_path):
    group = [members(2, tmp_path)[0], members(2, tmp_path, token=bytes(TOKEN_BYTES), limit=0.3)[1]]
    group[0]._limit = 0.3
    paths = [member.open() for member in group]
    group[1].connect(paths)
    with pytest.raises(PeerTimeoutError, match="PE 1"):
        group[0].accept()
    for member in group:
        member.close()


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("no descriptor", "without its descriptor"),
        ("two descriptors", "cannot take"),
        ("another stage", "stage 5"),
        ("another length", "bytes"),
        ("the end", "closed"),
    ],
)
def test_bad_message(tmp_path, what, says):
    before = open_files()
    group = members(2, tmp_path)
    connected(group)
    peer = group[1]._peers[0]
    own = [temporary(0), temporary(1)]

    def send(stage, *descriptors, extra=b""):
        message = _descriptors._MESSAGE.pack(_descriptors._MAGIC, TOKEN, stage, 1) + extra
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        peer.sendmsg([message], rights)

    {
        "no descriptor": lambda: send(1),
        "two descriptors": lambda: send(1, *own),
        "another stage": lambda: send(5, own[0]),
        "another length": lambda: send(1, own[0], extra=b"x"),
        "the end": peer.close,
    }[what]()
    with pytest.raises(NVSymError, match=says):
        group[0].exchange(None, [1])
    for descriptor in own:
        os.close(descriptor)
    for member in group:
        member.close()
    assert open_files() == before  # what came with the bad message is closed, too


def test_no_more_descriptors(tmp_path):
    """At the limit of open files the receiver says so, and the sender does not wait for it."""
    group = members(2, tmp_path)
    connected(group)
    own = temporary(0)
    group[1].exchange(own, [])
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    fillers = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 3, before[1]))
        with contextlib.suppress(OSError):
            while len(fillers) < 5000:
                fillers.append(os.dup(0))
        assert len(fillers) < 5000
        # Those that look need none.
        with pytest.raises(NVSymError, match="limit of open files"):
            group[0]._receive(group[0]._peers[1], 1, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in [*fillers, own]:
            os.close(descriptor)
        for member in group:
            member.close()


@contextlib.contextmanager
def no_descriptor_left():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(name) for name in os.listdir("/proc/self/fd")) + 3, before[1]))
    try:
        with contextlib.suppress(OSError):
            while len(fillers) < 5000:
                fillers.append(os.dup(0))
        assert len(fillers) < 5000
        yield
    finally:
        for descriptor in fillers:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_no_more_descriptors_for_sockets(tmp_path):
    """All that fails here is an NVSymError, as `SymmetricPool.allocate` promises, and says where."""
    group = members(2, tmp_path)
    with no_descriptor_left(), pytest.raises(NVSymError, match=r"no socket can be made there .*Too many open files"):
        group[0].open()
    group[0].close()
    paths = [member.open() for member in group]
    with no_descriptor_left(), pytest.raises(NVSymError, match=r"a socket: .*Too many open files"):
        group[1].connect(paths)
    group[1].connect(paths)
    with no_descriptor_left(), pytest.raises(NVSymError, match=r"the connection of another PE: .*Too many open files"):
        group[0].accept()
    for member in group:
        member.close()
    assert list(tmp_path.iterdir()) == []
    missing = DescriptorExchange(0, 1, TOKEN, str(tmp_path / "nowhere"), ["PE 0"], 5.0)
    with pytest.raises(NVSymError, match=r"nowhere: no socket can be made there .*NVSYM_SHM_DIR"):
        missing.open()


def test_member_that_failed_with_unread_messages(tmp_path):
    """Its connection is reset: the others name the PE as one that is gone, and its own reason is the one that counts."""
    group = members(2, tmp_path)
    connected(group)
    own = temporary(1)
    group[1].exchange(own, [])
    group[0].close()
    with pytest.raises(PeerExitedError, match=r"PE 0 has closed its connection \(.*reset") as caught:
        group[1].exchange(None, [0])
    assert caught.value.pes == (0,) or list(caught.value.pes) == [0]
    os.close(own)
    group[1].close()


def test_member_that_fails_is_not_waited_for(tmp_path):
    """It closes its connections: the others know at once."""
    group = members(3, tmp_path, limit=30.0)
    connected(group)
    own = temporary(0)
    began = time.monotonic()
    group[2].close()
    results = together(lambda: group[0].exchange(own, range(3)), lambda: group[1].exchange(own, range(3)))
    assert all(isinstance(result, NVSymError) for result in results), results
    assert time.monotonic() - began < 5
    os.close(own)
    for member in group:
        member.close()


def test_time_limit_and_watch(tmp_path):
    group = members(2, tmp_path, limit=0.2)
    connected(group)
    with pytest.raises(PeerTimeoutError, match=r"PE 1: not seen .* within 0\.2 s"):
        group[0].exchange(None, [1])
    for member in group:
        member.close()

    def watch():
        raise PeerExitedError("PE 1 has ended", [1])

    group = members(2, tmp_path, limit=30.0, watch=watch)
    connected(group)
    with pytest.raises(PeerExitedError, match="PE 1 has ended"):
        group[0].exchange(None, [1])
    for member in group:
        member.close()


def test_folder_that_is_not_there(tmp_path):
    member = members(2, tmp_path)[1]
    with pytest.raises(NVSymError, match=r"cannot reach the socket .*PE 0.*NVSYM_SHM_DIR"):
        member.connect([str(tmp_path / "nowhere" / "s"), ""])
    member.close()
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    (member,) = members(1, deep)
    with pytest.raises(NVSymError, match="NVSYM_SHM_DIR"):
        member.open()
    member.close()
    assert list(deep.iterdir()) == []


def test_credentials_are_those_of_the_peer():
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    assert _descriptors._peer_uid(a) == os.getuid()
    pid, uid, gid = struct.unpack("=iII", a.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    assert (pid, uid, gid) == (os.getpid(), os.getuid(), os.getgid())
    a.close()
    b.close()


# ---- the time limit of an agreement ----------------------------------------------------------------------------------


class Message:
    """A receive of MPI; one that has come is null afterwards, as mpi4py makes it."""

    def __init__(self, came):
        self.came = came
        self.cancelled = False

    def __bool__(self):
        return not self.came

    def Test(self):
        return self.came

    def Cancel(self):
        self.cancelled = True

    def Wait(self):
        assert self.cancelled


def agreement_of(came):
    """That of PE 0 with others whose messages have come, or not; that all is done is never seen before the time limit is over."""
    receives = {rank: Message(came[rank - 1]) for rank in range(1, len(came) + 1)}
    mpi = SimpleNamespace(Request=SimpleNamespace(Testall=lambda requests: False))
    group = SimpleNamespace(
        Get_rank=lambda: 0,
        Get_size=lambda: len(came) + 1,
        Get_ranks=lambda: [10 + rank for rank in range(len(came) + 1)],  # in the world
        Iallgather=lambda out, into: Requests(mpi, receives, [], out),
    )
    return PoolAgreement(group, 0.05, [f"PE {rank}" for rank in range(len(came) + 1)], None), receives


def test_what_comes_at_the_time_limit_is_taken():
    agreement, _ = agreement_of([True, True])
    for _ in range(2):
        assert agreement.decide("a step", None, False) is False
        assert not agreement.is_broken()


def test_who_has_not_come_at_the_time_limit_is_named():
    agreement, receives = agreement_of([True, False, True, False])
    with pytest.raises(PeerTimeoutError, match=r"a step: nothing came from PE 2, PE 4 within 0\.05 s") as caught:
        agreement.decide("a step", None, False)
    assert caught.value.pes == (12, 14)
    assert [rank for rank, message in receives.items() if message.cancelled] == [2, 4]
    with pytest.raises(
        NVSymError, match=r"can no longer agree, since a step was left with PeerTimeoutError: .*PE 2, PE 4"
    ):
        agreement.decide("another step", None, False)


# ---- how handles travel -----------------------------------------------------------------------------------------------

READY = _nvml.FabricInfo(3, 0, "00" * 16, 0)
DOMAIN = _nvml.FabricInfo(3, 0, "ab" + "00" * 15, 4)


def fact(pe, **changes):
    base = _facts.DeviceFacts(
        f"PE {pe} on n0, GPU {pe} (H)",
        "n0",
        f"GPU-{pe}",
        None,
        None,
        True,
        READY,
        True,
        "boot-0",
        (7, 1),
        1000,
        0,
        (100 + pe, 5, 9),
    )
    return replace(base, **changes)


def other_node(pe, **changes):
    return fact(pe, **({"host": "n1", "node": 1, "boot": "boot-1", "name": f"PE {pe} on n1, GPU {pe} (H)"} | changes))


def test_inside_a_node_by_descriptors():
    facts = [fact(pe) for pe in range(4)]
    assert _facts.transport_of(facts)[0].kind == "posix"
    assert _facts.why_unsupported(facts, True) is None
    assert _facts.pool_capability(facts) == (True, "handles travel as file descriptors over UNIX sockets")
    # Also where fabric handles could be had.
    assert _facts.transport_of([fact(pe, fabric=DOMAIN) for pe in range(4)])[0].kind == "posix"


def test_between_nodes_by_fabric_handles():
    facts = [fact(0, fabric=DOMAIN), other_node(1, fabric=DOMAIN)]
    assert _facts.transport_of(facts)[0].kind == "fabric"
    assert _facts.pool_capability(facts) == (True, "handles travel as fabric handles")


# Facts of two GPUs that cannot share memory, and what the reason says.
APART = {
    "another domain": (fact(0, fabric=DOMAIN), other_node(1, fabric=replace(DOMAIN, clique=5)), ["n0, n1", "no NVLink domain", "clique 4", "clique 5"]),
    "another cluster": (fact(0, fabric=DOMAIN), other_node(1, fabric=replace(DOMAIN, cluster="cd" * 16)), ["n0, n1", "cdcdcdcd"]),
    "no domain": (fact(0), other_node(1), ["n0, n1", "no NVLink domain", "none"]),
    "no fabric handles": (fact(0, fabric=DOMAIN), other_node(1, fabric=DOMAIN, can_fabric=False), ["n0, n1", "IMEX", "PE 1 on n1"]),
    "two containers of a machine": (fact(0), fact(1, place=(8, 1), host="c1"), ["PE 0", "PE 1", "container", "NVSYM_SHM_DIR"]),
    "two users": (fact(0), fact(1, uid=1001), ["different users", "1000", "1001"]),
    "no descriptors": (fact(0), fact(1, posix=False), ["PE 1", "file descriptors"]),
    "the same node by MPI, and two machines": (fact(0), fact(1, boot="boot-1", host="n1"), ["n0, n1", "no NVLink domain"]),
}  # fmt: skip


@pytest.mark.parametrize("case", APART)
def test_no_way(case):
    *facts, says = APART[case]
    for order in (facts, facts[::-1]):
        transport, reason = _facts.transport_of(order)
        assert transport is None
        for text in says if order is facts else []:
            assert text in reason, reason
        assert _facts.pool_capability(order) == (False, reason)


def test_fabric_handles_help_where_descriptors_cannot():
    for changes in ({"place": (8, 1)}, {"uid": 1001}, {"posix": False}):
        facts = [fact(0, fabric=DOMAIN), fact(1, fabric=DOMAIN, **changes)]
        assert _facts.transport_of(facts)[0].kind == "fabric"


def test_order_of_reasons():
    """What forbids multicast comes first, whoever has it; then the GPUs; then the way between them."""
    facts = [fact(0, problem="broken"), fact(1, switch="NCCL_NVLS_ENABLE=0", place=(8, 1))]
    assert _facts.why_unsupported(facts, True) == "disabled by NCCL_NVLS_ENABLE=0 on PE 1 on n0, GPU 1 (H)"
    assert _facts.why_unsupported(facts[:1], False) == "PE 0 on n0, GPU 0 (H): broken"
    assert _facts.pool_capability([fact(0)]) == (False, "multicast takes two GPUs at least, and the job has one")
    assert _facts.pool_capability([fact(0), fact(1, uuid="GPU-0")]) == (False, "PEs share a GPU")


@pytest.mark.parametrize(
    ("info", "says"),
    [
        (_nvml.FabricInfo(0, 0, "00" * 16, 0), "not supported"),
        (_nvml.FabricInfo(1, 0, "00" * 16, 0), "not started"),
        (_nvml.FabricInfo(2, 0, "00" * 16, 0), "in progress"),
        (_nvml.FabricInfo(9, 0, "00" * 16, 0), "9"),
        (_nvml.FabricInfo(3, 25, "00" * 16, 0), "status 25"),
    ],
)
def test_fabric_that_is_not_ready(info, says):
    assert says in info.why_not_ready()
    assert READY.why_not_ready() is None


def test_process_that_ended():
    own = fact(0, process=_facts._this_process())
    assert not _facts.has_ended(own, own)
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    its = fact(1, process=(child, _facts._start_of(child), own.process[2]))
    assert not _facts.has_ended(its, own)
    assert not _facts.has_ended(replace(its, boot="boot-1"), own)
    os.kill(child, 9)
    time.sleep(0.1)
    assert _facts.has_ended(its, own)  # also before it is waited for
    os.waitpid(child, 0)
    assert _facts.has_ended(its, own)
    # Numbers of another namespace mean nothing here.
    assert not _facts.has_ended(replace(its, process=(*its.process[:2], 1)), own)
