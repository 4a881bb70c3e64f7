# SPDX-License-Identifier: Apache-2.0
"""The threads that copy between pageable memory and pinned blocks, with a caller in the place of a stream (staging/probe.c)."""

import ctypes
import mmap
import os
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from test_reduce_kernels import compiler

HERE = Path(__file__).parent
PART, STREAMED = 256 << 10, 1 << 20  # STAGING_PART, STAGING_STREAM
PAGE = mmap.PAGESIZE


def build(target, *flags):
    words = [compiler(), "-std=gnu11", "-O2", "-pthread", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
    words += ["-D_GNU_SOURCE", f"-I{HERE.parent / 'nvsym'}", *flags, HERE / "staging" / "probe.c", "-o", target]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    target = tmp_path_factory.mktemp("staging") / "probe.so"
    done = build(target, "-shared", "-fPIC")
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(target))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.probe_pool.restype = pointer
    library.probe_copy.argtypes = [pointer, size, ctypes.c_uint64, pointer, pointer, size, ctypes.c_int]
    library.probe_stuck.argtypes = [pointer, size, ctypes.c_uint64, pointer, size]
    library.probe_stuck.restype = pointer
    library.probe_abandon.argtypes = [pointer, pointer]
    library.probe_stream.argtypes = [pointer, pointer, size]
    library.probe_fresh.argtypes = [pointer, size]
    return library


@pytest.fixture(scope="module")
def pool(probe):
    found = probe.probe_pool(4)
    assert found
    return found


def both_ways(probe, pool, block, slots, nbytes, offset, seed):
    """Copy to a "device" and back, at an offset from a cache line; nothing beside the memory may be written."""
    data = np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
    source, out, device = (np.full(nbytes + 256, 0x55, np.uint8) for _ in range(3))
    start = -source.ctypes.data % 64 + offset
    source[start : start + nbytes] = data
    assert probe.probe_copy(pool, block, slots, source.ctypes.data + start, device.ctypes.data, nbytes, 0) == 0
    assert np.array_equal(device[:nbytes], data)
    assert (device[nbytes:] == 0x55).all()
    start = -out.ctypes.data % 64 + offset
    assert probe.probe_copy(pool, block, slots, out.ctypes.data + start, device.ctypes.data, nbytes, 1) == 0
    assert np.array_equal(out[start : start + nbytes], data)
    assert (out[:start] == 0x55).all()
    assert (out[start + nbytes :] == 0x55).all()


@pytest.mark.parametrize("block", [64 << 10, PART, PART + 4096, 2 << 20])
@pytest.mark.parametrize("slots", [1, 2, 7])
def test_sizes_around_blocks_and_parts(probe, pool, block, slots):
    edges = {PART, STREAMED, block, slots * block, (slots + 1) * block}
    sizes = sorted({1, 63, 64, 65} | {edge + more for edge in edges for more in (-1, 0, 1)})
    for i, nbytes in enumerate(sizes):
        both_ways(probe, pool, block, slots, nbytes, i * 7 % 64, i)


@pytest.mark.parametrize("offset", [0, 1, 8, 15, 16, 17, 48, 63])
def test_addresses_at_any_offset(probe, pool, offset):
    both_ways(probe, pool, 512 << 10, 3, STREAMED + 12345, offset, offset)


def test_stores_past_the_caches(probe):
    """As memcpy(), wherever the ends are."""
    source = np.random.default_rng(5).integers(0, 256, 1024, np.uint8)
    for nbytes in (0, 1, 15, 16, 63, 64, 65, 127, 128, 129, 500, 700):
        for to in (0, 1, 16, 31, 63):
            for start in (0, 1, 15, 32, 63):
                target = np.full(1024, 0x55, np.uint8)
                at = -target.ctypes.data % 64 + to
                probe.probe_stream(target.ctypes.data + at, source.ctypes.data + start, nbytes)
                assert np.array_equal(target[at : at + nbytes], source[start : start + nbytes])
                assert (target[:at] == 0x55).all()
                assert (target[at + nbytes :] == 0x55).all()


def test_memory_without_pages(probe, pool):
    """Such memory is told from other memory, and a copy into it leaves what lies beside it in its first and last page."""
    nbytes = 9 << 20
    memory = np.frombuffer(mmap.mmap(-1, nbytes + 4 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    start = PAGE + 100
    at = memory.ctypes.data + start
    memory[:start] = 7
    memory[start + nbytes :] = 8
    assert probe.probe_fresh(at, nbytes) == 1
    device = np.random.default_rng(3).integers(0, 256, nbytes, np.uint8)
    assert probe.probe_copy(pool, 2 << 20, 4, at, device.ctypes.data, nbytes, 1) == 0
    assert np.array_equal(memory[start : start + nbytes], device)
    assert (memory[:start] == 7).all()
    assert (memory[start + nbytes :] == 8).all()
    assert probe.probe_fresh(at, nbytes) == 0


def test_streams_at_once(probe, pool):
    """Rings of several callers share the threads; each caller's copies stay apart."""
    errors = []

    def copy(seed):
        try:
            for i in range(12):
                nbytes = 100_003 * (1 + i) + seed
                both_ways(probe, pool, PART << i % 3, 2 + seed % 3, nbytes, (i * 13 + seed) % 64, seed)
        except AssertionError as error:
            errors.append(error)

    threads = [threading.Thread(target=copy, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_slow_stream(probe, pool):
    """The threads fall asleep between its blocks, and come back for the next."""
    pause = ctypes.c_uint.in_dll(probe, "probe_pause")
    pause.value = 30_000
    try:
        for seed in range(2):
            both_ways(probe, pool, PART, 2, 5 * PART + 1, 3, seed)
    finally:
        pause.value = 0


def test_a_stuck_stream_stops_only_its_own_ring(probe, pool):
    """A ring whose stream comes to nothing is passed over; given up, it holds nobody."""
    never = np.zeros(5 << 20, np.uint8)
    worked = []

    def others():
        both_ways(probe, pool, PART, 3, 3 << 20, 5, 1)
        worked.append(True)

    ring = probe.probe_stuck(pool, PART, 2, never.ctypes.data, never.nbytes)
    assert ring
    for _ in range(2):
        thread = threading.Thread(target=others, daemon=True)
        thread.start()
        thread.join(60)
        assert worked.pop()
        time.sleep(0.05)  # by now the threads sleep, and one looks for all
    assert probe.probe_abandon(pool, ring) == 1
    others()
    assert not never.any()


def test_no_data_races(tmp_path):
    """By the compiler's thread sanitizer, with random copies on three streams and six threads."""
    program = tmp_path / "races"
    done = build(program, "-g", "-fsanitize=thread")
    if done.returncode != 0 and "tsan" in done.stderr:
        pytest.skip("the compiler has no thread sanitizer library")
    assert done.returncode == 0, done.stderr
    environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=1"}
    ran = subprocess.run([str(program)], env=environment, capture_output=True, text=True, check=False, timeout=300)
    if "unexpected memory mapping" in ran.stderr:
        pytest.skip("the thread sanitizer does not know this kernel's memory layout")
    assert ran.returncode == 0, ran.stdout + ran.stderr
