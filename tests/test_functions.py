# SPDX-License-Identifier: Apache-2.0
"""Users' own functions in stream order, and the tables of peer addresses that they take, in host memory."""

import ctypes
import os
import threading

import numpy as np
import pytest

import nvsym

pytestmark = pytest.mark.pes(1, 2, 4)

F32 = nvsym.SHMEMBuffer[np.float32]
ONE = {"grid_dim": 1, "block_dim": 1}


def test_a_callable_runs_in_stream_order(ctx):
    x = F32.full(8, 1)
    seen = []

    def add(array, value, text):
        seen.append((type(array), value, text, threading.get_ident()))
        array += value

    ctx.enqueue_function(add, x[2:], np.float32(2), "text", **ONE)
    assert x.to_numpy().tolist() == [1, 1] + [3] * 6
    for dimensions in (range(1, 4), np.array([1, 2]), np.int64(3)):
        ctx.enqueue_function(len, x, grid_dim=dimensions, block_dim=dimensions)
    assert seen == [(np.ndarray, 2, "text", threading.get_ident())]
    stream, gate = nvsym.Stream(), nvsym.SHMEMBuffer[np.uint64].zeros(1)
    nvsym.signal_wait_until(gate, "eq", 1, stream=stream)
    x.fill(10, stream=stream)
    ctx.enqueue_function(add, x, 5, "later", stream=stream, **ONE)
    x[:1].fill(7, stream=stream)
    assert len(seen) == 1
    assert x.to_numpy()[7] == 3
    nvsym.signal_op(gate, 1, ctx.my_pe())
    stream.synchronize()
    assert seen[1][3] != threading.get_ident()
    assert x.to_numpy().tolist() == [7] + [15] * 7
    nvsym.barrier_all()


def test_what_it_raises(ctx):
    def fail(array):
        raise KeyError("mine")

    x = F32.zeros(1)
    with pytest.raises(KeyError, match="mine"):
        ctx.enqueue_function(fail, x, **ONE)
    stream = nvsym.Stream()
    ctx.enqueue_function(fail, x, stream=stream, **ONE)
    with pytest.raises(nvsym.BackendError, match=r"^KeyError: 'mine' \(.*test_functions\.py, line \d+, in fail\)$"):
        stream.synchronize()
    ctx.enqueue_function(int, "no number", stream=stream, **ONE)  # in no file
    with pytest.raises(ValueError, match=r"'no number'$"):
        stream.synchronize()
    assert x.to_numpy()[0] == 0
    nvsym.barrier_all()


class Unsayable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            ValueError("no file " + os.fsdecode(b"x-\xff")),
            ValueError,
            r"^no file x-\\udcff \(.*test_functions\.py, line \d+, in fail\)$",
        ),
        (KeyError("\ud800"), nvsym.BackendError, r"^KeyError: "),
        (Unsayable(), nvsym.BackendError, "Unsayable: .*RuntimeError"),
        (Exception("\u20ac" * 1000), nvsym.BackendError, "^Exception: \u20ac{100}"),
    ],
    ids=["surrogate", "surrogate of another class", "its words raise", "long"],
)
def test_errors_of_any_words_are_raised(ctx, error, kind, words):
    def fail():
        raise error

    stream, x = nvsym.Stream(), F32.zeros(1)
    ctx.enqueue_function(fail, stream=stream, **ONE)
    x.fill(5, stream=stream)
    with pytest.raises(kind, match=words):
        stream.synchronize()
    assert x.to_numpy()[0] == 0
    stream.synchronize()
    nvsym.barrier_all()


@pytest.mark.timeout(20)
def test_a_callable_that_waits_for_its_own_stream(ctx):
    stream, other, gate = nvsym.Stream(), nvsym.Stream(), nvsym.SHMEMBuffer[np.uint64].zeros(1)
    x, before, behind = F32.full(4, 3), nvsym.Event(), nvsym.Event()
    for wait in (
        stream.synchronize,
        ctx.synchronize,
        ctx.device.synchronize,
        x.peer(ctx.my_pe()).to_numpy,
        nvsym.finalize,
        behind.synchronize,
        lambda: ctx.stream.wait_event(behind),
        lambda: stream.record_event().synchronize(),
    ):
        nvsym.signal_wait_until(gate, "eq", 1, stream=stream)
        ctx.enqueue_function(wait, stream=stream, **ONE)
        behind.record(stream)
        nvsym.signal_op(gate, 1, ctx.my_pe())
        with pytest.raises(nvsym.NVSymError, match="wait for ever"):
            stream.synchronize()
        nvsym.signal_op(gate, 0, ctx.my_pe())

    # These are not its own.
    def waits():
        before.synchronize()
        x.fill(7, stream=other)
        other.synchronize()
        assert x.to_numpy()[0] == 7

    before.record(stream)
    ctx.enqueue_function(waits, stream=stream, **ONE)
    stream.synchronize()
    ctx.enqueue_function(ctx.stream.synchronize, **ONE)
    nvsym.barrier_all()


def test_a_function_of_ctypes_gets_addresses(ctx):
    libc = ctypes.CDLL(None)
    x, y = F32.full(100, 3), F32.zeros(100)
    ctx.enqueue_function(libc.memcpy, y, x, ctypes.c_size_t(40), **ONE)
    assert y.to_numpy().tolist() == [3] * 10 + [0] * 90
    nvsym.barrier_all()


def test_misuse(ctx):
    x = F32.full(4, 1)
    calls = []
    for kernel in (12345, "scale", None):
        with pytest.raises(nvsym.NotAvailableError, match="no GPU"):
            ctx.enqueue_function(kernel, x, **ONE)
    for dimension in (
        0,
        -1,
        (1, 2, 3, 4),
        (),
        "x",
        1.5,
        None,
        1 << 31,
        b"11",
        {1},
        range(5),
        np.zeros(2),
        np.ones((1, 1), int),
    ):
        for name in ("grid_dim", "block_dim"):
            with pytest.raises((TypeError, ValueError), match=name):
                ctx.enqueue_function(calls.append, x, **{**ONE, name: dimension})
    for shared, error in ((-1, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match="shared_mem_bytes"):
            ctx.enqueue_function(calls.append, x, shared_mem_bytes=shared, **ONE)
    with pytest.raises(TypeError, match="stream"):
        ctx.enqueue_function(calls.append, x, stream="s", **ONE)
    with pytest.raises(TypeError):
        ctx.enqueue_function(calls.append, x, grid_dim=1)
    assert not calls
    freed = F32(4)
    freed.free()
    with pytest.raises(nvsym.FreedBufferError):
        ctx.enqueue_function(calls.append, freed, **ONE)
    assert not calls
    nvsym.barrier_all()


def test_peer_pointers(ctx):
    me, n = ctx.my_pe(), ctx.n_pes()
    x = F32.full(10, me)
    table = x.peer_pointers()
    assert (table.dtype, table.shape, table.device) == (np.uint64, (n,), ctx.device)
    assert table.to_numpy().tolist() == [x.peer(pe)._data_ptr() for pe in range(n)]
    assert x.peer_pointers() is table
    assert x.peer_pointers(nvsym.TEAM_WORLD) is table
    view = x[3:]
    assert view.peer_pointers().to_numpy().tolist() == [int(a) + 12 for a in table.to_numpy()]
    with pytest.raises(ValueError, match="read-only"):
        table.inplace_copy_from(np.zeros(n, np.uint64))
    nvsym.barrier_all()

    def gather(pointers, out):
        out[:] = [ctypes.c_float.from_address(int(address)).value for address in pointers]

    out = F32.zeros(n)
    ctx.enqueue_function(gather, table, out, **ONE)
    assert out.to_numpy().tolist() == list(range(n))
    backwards = nvsym.TEAM_WORLD.split_strided(n - 1, -1, n)
    assert x.peer_pointers(backwards).to_numpy().tolist() == table.to_numpy().tolist()[::-1]
    backwards.destroy()
    nvsym.barrier_all()
    x.free()
    with pytest.raises(nvsym.FreedBufferError):
        table.to_numpy()
    with pytest.raises(nvsym.FreedBufferError):
        x.peer_pointers()
    # What a table had is used again, and never freed under a kernel.
    for _ in range(50):
        with F32(4) as y:
            y.peer_pointers()
    nvsym.barrier_all()


@pytest.mark.pes(4, nodes=2)
def test_peer_pointers_of_two_nodes(ctx):
    x = F32(4)
    with pytest.raises(nvsym.PeerUnreachableError, match="TEAM_SHARED") as caught:
        x.peer_pointers()
    assert set(caught.value.pes) == {pe for pe in range(4) if ctx.nodes()[pe] != ctx.nodes()[ctx.my_pe()]}
    assert x.peer_pointers(nvsym.TEAM_SHARED).shape == (2,)
    nvsym.barrier_all()
