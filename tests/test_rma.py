# SPDX-License-Identifier: Apache-2.0
"""put and get: every kind of local operand, size, target and stream; their completion; and what is refused."""

import array

import numpy as np
import pytest

import nvsym

PES = pytest.mark.pes(1, 2, 4)
NODES = pytest.mark.pes(4, nodes=2)

SIZES = (0, 1, 2, 15, 16, 17, 255, 4096, 16384, 65535, 65536, 65537, 300_001)


def pattern(n, pe, salt=0, dtype=np.float32):
    return ((np.arange(n) * 7 + 13 * pe + salt) % 251).astype(dtype)


class Operand:
    """A kind of local memory: made from an array, and read back."""

    def __init__(self, make, writable=True):
        self.make = make
        self.writable = writable


def _host_buffer(values):
    host = nvsym.HostBuffer(values.dtype, len(values))
    np.asarray(host)[:] = values
    return host


def _symmetric(values):
    return nvsym.SHMEMBuffer[values.dtype].from_numpy(values)


def _slice(values):
    whole = nvsym.SHMEMBuffer[values.dtype].zeros(len(values) + 5)
    part = whole[3 : 3 + len(values)]
    np.asarray(part)[:] = values
    return part


def _read_only(values):
    values = values.copy()
    values.flags.writeable = False
    return values


OPERANDS = {
    "numpy": Operand(lambda values: values.copy()),
    "numpy slice": Operand(lambda values: np.concatenate([values, values])[len(values) :]),
    "numpy read-only": Operand(_read_only, False),
    "array.array": Operand(lambda values: array.array("f", values.tolist())),
    "memoryview": Operand(lambda values: memoryview(values.copy())),
    "bytes-backed": Operand(lambda values: np.frombuffer(values.tobytes(), np.float32), False),
    "HostBuffer": Operand(_host_buffer),
    "Buffer": Operand(lambda values: nvsym.Buffer.from_numpy(values)),
    "SHMEMBuffer": Operand(_symmetric),
    "slice of a SHMEMBuffer": Operand(_slice),
}


@PES
@NODES
@pytest.mark.parametrize("kind", OPERANDS)
def test_each_kind_of_local_operand(ctx, kind):
    me, n, count = ctx.my_pe(), ctx.n_pes(), 1000
    right, left = (me + 1) % n, (me - 1) % n
    operand = OPERANDS[kind]
    whole = nvsym.SHMEMBuffer[np.float32].zeros(count + 8)
    window = whole[4 : 4 + count]
    nvsym.put(window, operand.make(pattern(count, me)), right)
    nvsym.barrier_all()
    expected = np.concatenate([np.zeros(4), pattern(count, left), np.zeros(4)])
    assert np.array_equal(whole.to_numpy(), expected)
    if operand.writable:
        target = operand.make(np.full(count, -1, np.float32))
        nvsym.get(target, window, right)
        assert np.array_equal(np.asarray(target), pattern(count, me))
    else:
        with pytest.raises((ValueError, BufferError, TypeError), match=r"dest.*(read-only|writ)"):
            nvsym.get(operand.make(np.full(count, -1, np.float32)), window, right)
    nvsym.barrier_all()


@PES
@NODES
def test_sizes_and_all_pairs(ctx):
    me, n = ctx.my_pe(), ctx.n_pes()
    for count in SIZES:
        landed = nvsym.SHMEMBuffer[np.uint8].full(n * count + 1, 255)
        source = nvsym.SHMEMBuffer[np.uint8].from_numpy(pattern(count, me, dtype=np.uint8))
        for pe in range(n):
            nvsym.put(landed[me * count : (me + 1) * count], pattern(count, me, pe, np.uint8), pe)
        nvsym.barrier_all()
        assert np.array_equal(
            landed.to_numpy(), np.concatenate([*(pattern(count, pe, me, np.uint8) for pe in range(n)), [255]])
        )
        for pe in range(n):
            got = np.full(count, 254, np.uint8)
            nvsym.get(got, source, pe)
            assert np.array_equal(got, pattern(count, pe, dtype=np.uint8))
        nvsym.barrier_all()
        source.free()
        landed.free()


@pytest.mark.pes(2)
@pytest.mark.pes(2, nodes=2)
def test_some_megabytes(ctx):
    me = ctx.my_pe()
    values = np.random.default_rng(me).random(1 << 19)
    buffer = nvsym.SHMEMBuffer[np.float64].zeros(len(values))
    nvsym.put(buffer, values, 1 - me)
    nvsym.barrier_all()
    assert np.array_equal(buffer.to_numpy(), np.random.default_rng(1 - me).random(1 << 19))
    back = np.empty_like(values)
    nvsym.get(back, buffer, 1 - me)
    assert np.array_equal(back, values)
    nvsym.barrier_all()


@PES
@NODES
@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "bfloat16", "float8_e5m2", "complex128", "uint64"])
def test_dtypes(ctx, dtype):
    me, n = ctx.my_pe(), ctx.n_pes()
    buffer = nvsym.SHMEMBuffer[dtype].zeros(9)
    values = pattern(9, me, dtype=np.int64) % 2 if dtype == "bool" else pattern(9, me, dtype=np.int64) % 5
    nvsym.put(buffer, values.astype(buffer.dtype), (me + 1) % n)
    nvsym.barrier_all()
    expected = pattern(9, (me - 1) % n, dtype=np.int64) % (2 if dtype == "bool" else 5)
    assert np.array_equal(buffer.to_numpy(), expected.astype(buffer.dtype))


@PES
@NODES
def test_streams_run_in_order(ctx):
    me, n, count = ctx.my_pe(), ctx.n_pes(), 5000
    right = (me + 1) % n
    stream = nvsym.Stream()
    buffer = nvsym.SHMEMBuffer[np.int32].zeros(count)
    for i in range(200):
        # The array is nobody else's: the operation keeps it alive.
        nvsym.put(buffer, np.full(count, i + me, np.int32), right, stream=stream)
    nvsym.quiet(stream=stream)
    nvsym.barrier_all(stream=stream)
    got = np.zeros(count, np.int32)
    nvsym.get(got, buffer, right, stream=stream)
    stream.synchronize()
    assert (buffer.to_numpy() == 199 + (me - 1) % n).all()
    assert (got == 199 + me).all()
    nvsym.barrier_all()


@PES
@NODES
def test_a_stream_is_given_by_its_handle(ctx):
    class Torch:
        cuda_stream = 0

    class Cupy:
        ptr = 0

    class Core:
        def __cuda_stream__(self):
            return (0, stream.handle)

    stream = nvsym.Stream()
    buffer = nvsym.SHMEMBuffer[np.int32].zeros(1)
    for i, form in enumerate((None, 0, stream, stream.handle, Torch(), Cupy(), Core())):
        nvsym.put(buffer, np.array([i], np.int32), ctx.my_pe(), stream=form)
        stream.synchronize()
        assert buffer.to_numpy()[0] == i
    for bad, error in ((-1, ValueError), (12345678, ValueError), ("s", TypeError), (True, TypeError), (2.0, TypeError)):
        with pytest.raises(error, match="stream"):
            nvsym.put(buffer, np.array([9], np.int32), ctx.my_pe(), stream=bad)
    assert buffer.to_numpy()[0] == i


@PES
@NODES
def test_completion(ctx):
    """fence, quiet, the barriers: each in its forms, and data is there after a barrier."""
    me, n = ctx.my_pe(), ctx.n_pes()
    buffer = nvsym.SHMEMBuffer[np.int64].zeros(n)
    stream = nvsym.Stream()
    for i in range(50):
        for pe in range(n):
            nvsym.put(buffer[me : me + 1], np.array([1000 * i + me]), pe)
            nvsym.fence()
            nvsym.put(buffer[me : me + 1], np.array([2000 * i + me]), pe)
        if i % 3 == 0:
            nvsym.barrier_all()
        elif i % 3 == 1:
            nvsym.quiet()
            nvsym.sync_all()
        else:
            nvsym.barrier(nvsym.TEAM_WORLD)
        assert np.array_equal(buffer.to_numpy(), 2000 * i + np.arange(n))
        nvsym.sync(nvsym.TEAM_WORLD)
    for call in (nvsym.fence, nvsym.quiet, nvsym.barrier_all, nvsym.sync_all, nvsym.barrier, nvsym.sync):
        call(stream=stream)
    ctx.barrier_all(stream)
    stream.synchronize()
    ctx.barrier_all()


BAD = {
    "dest is an array": (lambda b, a: (a, a, 0), TypeError, "dest.*SHMEMBuffer.*ndarray"),
    "dest is a peer's buffer": (lambda b, a: (b.peer(nvsym.my_pe()), a, 0), TypeError, "dest"),
    "another type": (lambda b, a: (b, a.astype(np.float64), 0), TypeError, "source.*float64.*float32"),
    "another type of a buffer": (
        lambda b, a: (b, nvsym.Buffer.from_numpy(a.astype(np.int32)), 0),
        TypeError,
        "source.*int32",
    ),
    "another byte order": (lambda b, a: (b, a.astype(">f4"), 0), TypeError, "source"),
    "too short": (lambda b, a: (b, a[:-1], 0), ValueError, "source.*9.*10"),
    "too long": (lambda b, a: (b[:5], a, 0), ValueError, "source.*10.*5"),
    "too short a slice": (lambda b, a: (b, b[1:], 0), ValueError, "source.*9.*10"),
    "not contiguous": (lambda b, a: (b, np.zeros(20, np.float32)[::2], 0), ValueError, "source.*contiguous"),
    "a list": (lambda b, a: (b, [0.0] * 10, 0), TypeError, "source.*list"),
    "None": (lambda b, a: (b, None, 0), TypeError, "source"),
    "an address": (
        lambda b, a: (b, a.ctypes.data, 0),
        TypeError,
        "^source: expected a SHMEMBuffer, a Buffer, or a C-contiguous array in host memory, not int$",
    ),
    "pe below": (lambda b, a: (b, a, -1), ValueError, "pe: -1"),
    "pe above": (lambda b, a: (b, a, nvsym.n_pes()), ValueError, r"pe: \d is not in 0\.\."),
    "pe far above": (lambda b, a: (b, a, 1 << 40), ValueError, r"pe: 1099511627776 is not in 0\.\."),
    "pe is a float": (lambda b, a: (b, a, 0.5), TypeError, "pe: .*float"),
    "pe is None": (lambda b, a: (b, a, None), TypeError, "pe: .*NoneType"),
}


@pytest.mark.pes(2)
@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_transfer_nothing(ctx, case):
    make, error, text = BAD[case]
    buffer = nvsym.SHMEMBuffer[np.float32].zeros(10)
    arguments = make(buffer, np.ones(10, np.float32))
    for stream in (None, nvsym.Stream()):
        with pytest.raises(error, match=text):
            nvsym.put(*arguments, stream=stream)
        if not isinstance(arguments[0], nvsym.SHMEMBuffer):
            continue
        with pytest.raises(error, match=text.replace("source", "dest")):
            nvsym.get(arguments[1], arguments[0], arguments[2], stream=stream)
    nvsym.barrier_all()
    assert (buffer.to_numpy() == 0).all()


@pytest.mark.pes(2)
def test_freed_buffers_are_refused(ctx):
    buffer = nvsym.SHMEMBuffer[np.float32].zeros(10)
    other = nvsym.SHMEMBuffer[np.float32].zeros(10)
    view = buffer[2:4]
    host = nvsym.HostBuffer(np.float32, 2)
    buffer.free()
    values = np.ones(10, np.float32)
    for call in (
        lambda: nvsym.put(buffer, values, 0),
        lambda: nvsym.put(other, buffer, 0),
        lambda: nvsym.put(view, values[:2], 0),
        lambda: nvsym.put(other[:2], view, 0),
        lambda: nvsym.get(values, buffer, 0),
        lambda: nvsym.get(buffer, other, 0),
        lambda: nvsym.get(host, view, 0),
    ):
        with pytest.raises(nvsym.FreedBufferError, match="freed"):
            call()
    nvsym.barrier_all()
    assert (other.to_numpy() == 0).all()


@pytest.mark.pes(2)
def test_the_source_of_an_enqueued_put_lives_until_it_is_done(ctx):
    """Also when the buffer that it comes from is dropped: its memory is not handed out before."""
    me = ctx.my_pe()
    stream = nvsym.Stream()
    gate = nvsym.SHMEMBuffer[np.uint64].zeros(1)
    landed = nvsym.SHMEMBuffer[np.int32].zeros(1000)
    nvsym.signal_wait_until(gate, "eq", 1, stream=stream)
    source = nvsym.SHMEMBuffer[np.int32].full(1000, 7 + me)
    address = source.unsafe_ptr()
    nvsym.put(landed, source, 1 - me, stream=stream)
    del source
    nvsym.collect()
    spoiler = nvsym.SHMEMBuffer[np.int32].full(1000, -1)
    assert spoiler.unsafe_ptr() != address
    nvsym.signal_op(gate, 1, me)
    stream.synchronize()
    nvsym.barrier_all()
    assert (landed.to_numpy() == 8 - me).all()


@pytest.mark.pes(4, nodes=2)
def test_peer_is_for_the_own_node(ctx):
    me = ctx.my_pe()
    buffer = nvsym.SHMEMBuffer[np.int32].full(3, me)
    nvsym.barrier_all()
    for pe, node in enumerate(ctx.nodes()):
        if node == ctx.nodes()[me]:
            assert (np.asarray(buffer.peer(pe)) == pe).all()
        else:
            with pytest.raises(nvsym.PeerUnreachableError, match=f"PE {pe} .*another node.*put and get") as caught:
                buffer.peer(pe)
            assert caught.value.pes == (pe,)
    nvsym.barrier_all()
