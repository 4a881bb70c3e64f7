# SPDX-License-Identifier: Apache-2.0
"""The kernels of the collectives in one process on one GPU: one launch whose blocks are those of all members.

It needs no MPI, no NVSHMEM, no MPS and no second GPU, and no two launches that have to run at the same time: so it is what
compute-sanitizer can look at (tools/gpu.sh memcheck, racecheck, synccheck). The members' operands end where their memory does,
so that what is read or written behind them is an error there.
"""

import ctypes

import numpy as np
import pytest

import nvsym
from nvsym import _driver
from nvsym.kernels import compiler

KINDS = (
    "one_shot", "two_shot", "push", "low_latency", "broadcast", "broadcast_in_shares", "broadcast_lines", "fcollect",
    "fcollect_lines", "alltoall", "alltoall_lines", "reduce_scatter", "reduce_scatter_lines", "staged",
)  # fmt: skip
IN_PLACE = ("two_shot", "push", "low_latency", "broadcast", "broadcast_in_shares", "broadcast_lines", "staged")
OF_TWO = ("push", "staged")  # members
MAX_PES, MAX_BLOCKS, LL_STAGES, LL_BLOCKS = 32, 256, 2, 128
PUSH_THREADS, PUSH_STAGES, PUSH_LAYERS, PUSH_BLOCKS = 512, 8, 5, 4
EMPTY, KEYED = 0x9E3779B9, 0x85EBCA6B
LL_BYTES = 16 * 512
EPOCHS = 3 * MAX_BLOCKS + 1
STAGES, STAGE_BYTES, STAGE_THREADS = 2, 32 << 10, 64
STAGE_UNIT = STAGE_THREADS * 2 * 16  # bytes that a block reduces at a time
GUARD = 64  # bytes before the operands that nobody may write

SOURCE = r"""
#include "nvsym/exchange.cuh"
#include "nvsym/staged.cuh"
using namespace nvsym;

struct Call {
    float *dst;
    const float *src;
    u64 count;
    u64 root;
    Team team;
    Stage stage;
};

/* gridDim.y members of gridDim.x blocks each. */
extern "C" __global__ void __launch_bounds__(512) members(const Call *calls, int kind)
{
    const Call &c = calls[blockIdx.y];
    char *to = (char *)c.dst;
    const char *from = (const char *)c.src;
    const u64 nbytes = c.count * sizeof(float);
    const int root = (int)c.root;
    switch (kind) {
    case 0: return one_shot<float, Sum>(c.dst, c.src, c.count, c.team);
    case 1: return two_shot<float, Sum>(c.dst, c.src, c.count, c.team);
    case 2: return push<float, Sum>(c.dst, c.src, c.count, c.team);
    case 3: return low_latency<float, Sum>(c.dst, c.src, c.count, c.team);
    case 4: return broadcast(to, from, nbytes, root, false, c.team);
    case 5: return broadcast(to, from, nbytes, root, true, c.team);
    case 6: return broadcast_lines(to, from, nbytes, root, c.team);
    case 7: return fcollect(to, from, nbytes, c.team);
    case 8: return fcollect_lines(to, from, nbytes, c.team);
    case 9: return alltoall(to, from, nbytes, c.team);
    case 10: return alltoall_lines(to, from, nbytes, c.team);
    case 11: return reduce_scatter<float, Sum>(c.dst, c.src, c.count, c.team);
    case 12: return reduce_scatter_lines<float, Sum>(c.dst, c.src, c.count, c.team);
    case 13: return staged<float, Sum>(c.dst, c.src, c.count, c.stage, c.team);
    }
}
"""


class Team(ctypes.Structure):
    """nvsym::Team of include/nvsym/collectives.cuh."""

    _fields_ = [
        ("me", ctypes.c_int), ("n", ctypes.c_int), ("epochs", ctypes.c_uint64), ("pad", ctypes.c_uint64),
        ("ll", ctypes.c_uint64), ("ll_bytes", ctypes.c_uint64), ("push", ctypes.c_uint64),
        ("push_blocks", ctypes.c_uint64), ("failure", ctypes.c_uint64), ("limit_ns", ctypes.c_uint64),
        ("op", ctypes.c_uint32), ("delta", ctypes.c_int64 * MAX_PES),
    ]  # fmt: skip


class StageFlags(ctypes.Structure):
    """nvsym::StageFlags of include/nvsym/staged.cuh."""

    _fields_ = [
        ("emptied", ctypes.c_uint32 * MAX_BLOCKS * STAGES), ("seen", ctypes.c_uint32 * MAX_BLOCKS),
        ("loose", ctypes.c_uint32 * 4 * 4 * STAGES), ("failed", ctypes.c_uint32 * 4),
    ]  # fmt: skip


class StageRounds(ctypes.Structure):
    """nvsym::StageRounds."""

    _fields_ = [
        ("round", ctypes.c_uint32 * MAX_BLOCKS * STAGES), ("seen", ctypes.c_uint32 * MAX_BLOCKS),
        ("in_place", ctypes.c_uint32 * MAX_BLOCKS * STAGES), ("copied", ctypes.c_uint32 * STAGES), ("failed", ctypes.c_uint32),
    ]  # fmt: skip


class Stage(ctypes.Structure):
    """nvsym::Stage."""

    _fields_ = [
        ("flags", ctypes.c_uint64), ("rounds", ctypes.c_uint64), ("packs", ctypes.c_uint64), ("marks", ctypes.c_uint64),
        ("pushed", ctypes.c_uint64), ("number", ctypes.c_uint32), ("in_place", ctypes.c_uint32),
    ]  # fmt: skip


class Call(ctypes.Structure):
    _fields_ = [
        ("dst", ctypes.c_uint64), ("src", ctypes.c_uint64), ("count", ctypes.c_uint64), ("root", ctypes.c_uint64),
        ("team", Team), ("stage", Stage),
    ]  # fmt: skip


class Gpu:
    """What is needed of the driver."""

    def __init__(self):
        self.stream = nvsym.Stream(nvsym.Device(0))  # makes the GPU's context current
        self.cuda = ctypes.CDLL(_driver.library_info().path)
        version = [ctypes.c_int(), ctypes.c_int()]
        for attribute, value in zip((75, 76), version, strict=True):  # of the compute capability
            self("cuDeviceGetAttribute", ctypes.byref(value), attribute, 0)
        arch = 10 * version[0].value + version[1].value
        headers = compiler._source("moves.cu")[1] | compiler._source("allreduce.cu")[1]
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        cubin = compiler.compile_cubin(SOURCE, "members.cu", arch, headers=headers)
        self("cuModuleLoadData", ctypes.byref(module), cubin)
        self("cuModuleGetFunction", ctypes.byref(self.function), module, b"members")

    def __call__(self, name, *arguments):
        status = getattr(self.cuda, name)(*arguments)
        assert status == 0, f"{name}: {status}"

    def alloc(self, nbytes):
        pointer = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(nbytes))
        self("cuMemsetD8_v2", pointer, 0, ctypes.c_size_t(nbytes))
        return pointer.value

    def free(self, pointer):
        self("cuMemFree_v2", ctypes.c_uint64(pointer))

    def write(self, pointer, data):
        data = bytes(data)
        if not data:
            return
        self("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), data, ctypes.c_size_t(len(data)))

    def read(self, pointer, nbytes):
        data = ctypes.create_string_buffer(nbytes)
        self("cuMemcpyDtoH_v2", data, ctypes.c_uint64(pointer), ctypes.c_size_t(nbytes))
        return data.raw

    def launch(self, blocks, members, threads, calls, kind):
        arguments = (ctypes.c_void_p * 2)()
        values = ctypes.c_uint64(calls), ctypes.c_int(kind)
        for i, value in enumerate(values):
            arguments[i] = ctypes.cast(ctypes.byref(value), ctypes.c_void_p)
        self("cuLaunchKernel", self.function, blocks, members, 1, threads, 1, 1, 0, None, arguments, None)
        self("cuCtxSynchronize")


@pytest.fixture(scope="module")
def gpu():
    return Gpu()


def value(member, n):
    """Whole numbers, whose sums are exact; words that look as if nothing had come, or as if the others of a pack had a key."""
    numbers = ((7 * member + 3 * np.arange(n)) % 17).astype(np.float32)
    numbers.view(np.uint32)[5 + member :: 701] = EMPTY
    numbers.view(np.uint32)[12 + 8 * member :: 404] = KEYED
    return numbers


def operands(kind, members, count):
    """(sources, results) of all members."""
    wide = kind.startswith(("alltoall", "reduce_scatter"))
    sources = [value(m, members * count if wide else count) for m in range(members)]
    root = members - 1
    total = sum(sources)
    results = {
        "broadcast": [sources[root]] * members,
        "fcollect": [np.concatenate(sources)] * members,
        "alltoall": [np.concatenate([s[m * count :][:count] for s in sources]) for m in range(members)],
        "reduce_scatter": [total[m * count :][:count] for m in range(members)],
    }
    name = next((name for name in results if kind.startswith(name)), None)
    return sources, results[name] if name else [total] * members


def grid(kind, members, count, turn):
    """(blocks of a member, threads), as the launches of nvsym have them, with fewer blocks; of lines with other blocks each time."""
    if kind == "low_latency" or kind.endswith("lines"):
        lines = (4 * count + 7) // 8
        threads = min((lines + 31) // 32 * 32, (64, LL_BYTES // 16, 128)[turn])
        return (lines + threads - 1) // threads, threads
    if kind in OF_TWO:  # several steps, or units of a block
        return 3, STAGE_THREADS
    return 3, 256 if members > 2 else 512


class Stages:
    """What kernels that reduce staged copies need; a copy engine's part is done by the host, before the launch."""

    def __init__(self, gpu, calls, bases, begin):
        self.gpu, self.calls, self.begin, self.bases = gpu, calls, begin, bases
        self.packs = begin + ctypes.sizeof(StageFlags)
        self.marks = self.packs + STAGES * STAGE_BYTES
        self.rounds = [gpu.alloc(ctypes.sizeof(StageRounds)) for _ in bases]
        for base, rounds in zip(bases, self.rounds, strict=True):
            gpu(
                "cuMemsetD32_v2",
                ctypes.c_uint64(base + self.packs),
                ctypes.c_uint(EMPTY),
                ctypes.c_size_t(STAGES * STAGE_BYTES // 4),
            )
            gpu("cuMemsetD32_v2", ctypes.c_uint64(rounds), ctypes.c_uint(1), ctypes.c_size_t(STAGES * MAX_BLOCKS))

    @staticmethod
    def memory_bytes():
        return ctypes.sizeof(StageFlags) + STAGES * (STAGE_BYTES + STAGE_BYTES // 16)

    def copy(self, turn, src, sources, in_place):
        """Before call `turn` of them: what each sends, from the offset `src` of its memory."""
        number = turn % STAGES
        for me, (call, base, rounds) in enumerate(zip(self.calls, self.bases, self.rounds, strict=True)):
            head = min(-(base + src) % 16, sources[me].nbytes)
            packed = (sources[me].nbytes - head) // 16 * 16
            pushed = STAGE_UNIT if packed >= 2 * STAGE_UNIT else 0
            self.gpu.write(
                self.bases[1 - me] + self.packs + number * STAGE_BYTES + pushed,
                sources[me].tobytes()[head + pushed : head + packed],
            )
            self.gpu.write(rounds + StageRounds.copied.offset + 4 * number, ctypes.c_uint32(turn // STAGES + 1))
            call.stage = Stage(
                base + self.begin, rounds, base + self.packs + number * STAGE_BYTES, base + self.marks + number * STAGE_BYTES // 16,
                pushed // 16, number, in_place,
            )  # fmt: skip

    def close(self):
        """Nothing may be left in them."""
        for base, rounds in zip(self.bases, self.rounds, strict=True):
            packs = np.frombuffer(self.gpu.read(base + self.packs, STAGES * STAGE_BYTES), np.uint32)
            assert (packs == EMPTY).all(), np.flatnonzero(packs != EMPTY)[:9]
            assert not any(self.gpu.read(base + self.marks, STAGES * STAGE_BYTES // 16))
            self.gpu.free(rounds)


def check(gpu, kind, members, count, shift, order):
    """One call of all members, three times on the same memory; `order`: which operand is at the end of the memory."""
    sources, results = operands(kind, members, count)
    push = PUSH_STAGES * PUSH_LAYERS * PUSH_BLOCKS * PUSH_THREADS * 16
    pad, ll = (2 * MAX_BLOCKS + 1) * MAX_PES * 4, LL_STAGES * LL_BLOCKS * members * LL_BYTES
    first = pad + ll + push + Stages.memory_bytes() + GUARD + 4 * shift
    sizes = {"source last": (results[0].nbytes, sources[0].nbytes), "dest last": (sources[0].nbytes, results[0].nbytes)}
    one, other = sizes.get(order, (results[0].nbytes, 0))
    bases = [gpu.alloc(first + one + other) for _ in range(members)]
    locals_ = [gpu.alloc(4 * EPOCHS) for _ in range(members)]
    failures = [gpu.alloc(4 * (1 + MAX_PES)) for _ in range(members)]
    calls = (Call * members)()
    places = {"source last": (first, first + one), "dest last": (first + one, first), "in place": (first, first)}
    dst, src = places[order]
    for me, (call, base) in enumerate(zip(calls, bases, strict=True)):
        gpu("cuMemsetD32_v2", ctypes.c_uint64(base + pad + ll), ctypes.c_uint(EMPTY), ctypes.c_size_t(push // 4))
        gpu.write(base + first - GUARD, b"\xab" * GUARD)
        call.dst, call.src, call.count, call.root = base + dst, base + src, count, members - 1
        team = call.team
        team.me, team.n, team.epochs, team.pad, team.ll = me, members, locals_[me], base, base + pad
        team.ll_bytes, team.push, team.push_blocks = LL_BYTES, base + pad + ll, PUSH_BLOCKS
        team.failure, team.limit_ns = failures[me], 30_000_000_000
        for p in range(members):
            team.delta[p] = bases[p] - base
    stages = Stages(gpu, calls, bases, pad + ll + push) if kind == "staged" else None
    table = gpu.alloc(ctypes.sizeof(calls))
    what = f"{kind} of {count} elements, {members} members, {order}, {shift} from the alignment"
    for turn in range(3):
        for base, source in zip(bases, sources, strict=True):
            gpu.write(base + src, source.tobytes())
        if stages is not None:
            stages.copy(turn, src, sources, order == "in place")
        gpu.write(table, calls)
        blocks, threads = grid(kind, members, count, turn)
        gpu.launch(blocks, members, threads, table, KINDS.index(kind))
        for me, base in enumerate(bases):
            assert not any(gpu.read(failures[me], 4)), f"{what}: member {me} waited in vain, call {turn}"
            found = np.frombuffer(gpu.read(base + dst, results[me].nbytes), np.float32)
            assert np.array_equal(found, results[me]), f"{what}: member {me}, call {turn}"
            if order != "in place":
                assert gpu.read(base + src, sources[me].nbytes) == sources[me].tobytes(), what
            assert gpu.read(base + first - GUARD, GUARD) == b"\xab" * GUARD, what
    if stages is not None:
        stages.close()
    for pointer in (*bases, *locals_, *failures, table):
        gpu.free(pointer)


@pytest.mark.parametrize("kind", [pytest.param(kind, id=f"nvshmem-n1-{kind}") for kind in KINDS])
def test_members(gpu, kind):
    for members in (2,) if kind in OF_TWO else (2, 4):
        for count, shift in ((1, 0), (7, 1), (1000, 2), (4099, 3)):
            for order in ("source last", "dest last", *(["in place"] if kind in IN_PLACE else [])):
                check(gpu, kind, members, count, shift, order)
