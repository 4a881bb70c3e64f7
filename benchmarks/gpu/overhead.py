# SPDX-License-Identifier: Apache-2.0
"""What a call of the NVSHMEM backend costs above a C++ loop of the same NVSHMEM call, and the rates of copies.

Run on each PE by tools/gpu.sh bench. Both sides work on the same buffers and stream of the same process, in turn;
medians of the rounds. PE 0 prints a table and, with --results, appends it to a file.
"""

import argparse
import ctypes
import datetime
import pathlib
import statistics
import subprocess
import tempfile
import time

import numpy as np

import nvsym
from nvsym import _driver, _nvshmem

HERE = pathlib.Path(__file__).resolve().parent
P, I, Z = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t  # noqa: E741


def loops():
    with tempfile.TemporaryDirectory() as folder:
        library = pathlib.Path(folder, "loops.so")
        subprocess.run(["g++", "-O3", "-shared", "-fPIC", "-o", library, HERE / "loops.cpp"], check=True)
        return ctypes.CDLL(str(library))


def address(library, name):
    return ctypes.cast(getattr(library, name), P)


def per_call(text, names):
    """A function that runs `text` n times in a plain loop, as timeit does, and returns nanoseconds of one."""
    source = f"def loop(n):\n    begin = clock()\n    for _ in range(n):\n        {text}\n    return (clock() - begin) / n"
    names = dict(names, clock=time.perf_counter_ns)
    exec(f"def outer({', '.join(names)}):\n    " + source.replace("\n", "\n    ") + "\n    return loop", globals(), found := {})
    return found["outer"](**names)


def call_rows(ctx, options):
    c = loops()
    shmem = ctypes.CDLL(_nvshmem.library_info().path)
    me, n = ctx.my_pe(), ctx.n_pes()
    pe = (me + 1) % n
    a, b = nvsym.SHMEMBuffer["float32"].zeros(1024), nvsym.SHMEMBuffer["float32"].zeros(1024)
    signal = nvsym.SHMEMBuffer["uint64"].zeros(1)
    to, source, at, stream = P(a.unsafe_ptr()), P(b.unsafe_ptr()), P(signal.unsafe_ptr()), P(ctx.stream.handle)
    put, get = address(shmem, "nvshmemx_putmem_on_stream"), address(shmem, "nvshmemx_getmem_on_stream")
    put_signal = address(shmem, "nvshmemx_putmem_signal_on_stream")
    signal_op = address(shmem, "nvshmemx_signal_op_on_stream")
    quiet, barrier = address(shmem, "nvshmemx_quiet_on_stream"), address(shmem, "nvshmemx_barrier_all_on_stream")
    reduce = address(shmem, "nvshmemx_float_sum_reduce_on_stream")
    cases = {
        "put 4 KiB": (lambda k: c.loop_rma(put, to, source, Z(4096), pe, stream, k), "put(a, b, pe)"),
        "get 4 KiB": (lambda k: c.loop_rma(get, to, source, Z(4096), pe, stream, k), "get(a, b, pe)"),
        "put_signal 4 KiB": (lambda k: c.loop_put_signal(put_signal, to, source, Z(4096), at, pe, stream, k),
                             "put_signal(a, b, signal, 1, pe)"),
        "signal_op": (lambda k: c.loop_signal_op(signal_op, at, pe, stream, k), "signal_op(signal, 1, pe)"),
        "quiet": (lambda k: c.loop_stream(quiet, stream, k), "quiet()"),
        "barrier_all": (lambda k: c.loop_stream(barrier, stream, k), "barrier_all()"),
        "reduce 4 KiB": (lambda k: c.loop_reduce(reduce, to, source, Z(1024), stream, k),
                         "reduce(a, b, algorithm='nvshmem')"),
    }  # fmt: skip
    for name in ("loop_rma", "loop_put_signal", "loop_signal_op", "loop_stream", "loop_reduce", "copy"):
        getattr(c, name).restype = ctypes.c_double
    names = {name: getattr(nvsym, name) for name in ("put", "get", "put_signal", "signal_op", "quiet", "barrier_all", "reduce")}
    names.update(a=a, b=b, signal=signal, pe=pe)
    rows = []
    for name, (native, ours) in cases.items():
        ours = per_call(ours, names)
        per = 40 if name.startswith(("barrier", "reduce")) else 200
        times = [[], []]
        for i in range(options.rounds + 2):
            for which in (0, 1):
                nvsym.barrier_all()
                ctx.synchronize()
                taken = ours(per) if which else native(per)
                ctx.synchronize()
                if i >= 2:
                    times[which].append(taken / 1e3)
        own, its = statistics.median(times[1]), statistics.median(times[0])
        rows.append((name, f"{its:.2f}", f"{own:.2f}", f"{own - its:+.2f}"))
    return c, rows


def copy_rows(ctx, c, options):
    cuda = ctypes.CDLL(_driver.library_info().path)
    driver, wait = address(cuda, "cuMemcpyAsync"), address(cuda, "cuStreamSynchronize")
    n = 64 << 20
    b = nvsym.SHMEMBuffer["float32"].zeros(n)
    stream = P(ctx.stream.handle)
    pinned, pageable = ctx.enqueue_create_host_buffer(np.float32, n), np.ones(n, np.float32)
    pinned[:] = 1
    rows = []
    for kind, host in (("pinned", pinned), ("pageable", pageable)):
        u = ctypes.c_uint64
        h, d = u(host.ctypes.data), u(b.unsafe_ptr())
        for direction, arguments, enqueue in (
            ("to the GPU", (d, h), b.enqueue_copy_from),
            ("back", (h, d), b.enqueue_copy_to),
        ):
            rates = [[], []]
            for i in range(options.rounds // 2 + 1):
                native = c.copy(driver, wait, *arguments, Z(4 * n), stream)
                start = time.perf_counter()
                enqueue(host)
                ctx.stream.synchronize()
                own = time.perf_counter() - start
                if i:
                    rates[0].append(4 * n / native / 1e9)
                    rates[1].append(4 * n / own / 1e9)
            its, own = (statistics.median(rate) for rate in rates)
            rows.append((f"{kind}, {direction}", f"{its:.1f}", f"{own:.1f}", f"{own / its:.2f}"))
    return rows


def table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--results", help="folder of the table")
    options = parser.parse_args()
    start = time.perf_counter()
    ctx = nvsym.init(backend="nvshmem", heap_size="1G")
    began = time.perf_counter() - start
    c, calls = call_rows(ctx, options)
    sections = [table(("call", "C++ loop, µs", "nvsym, µs", "above, µs"), calls)]
    if ctx.n_pes() == 1:
        copies = copy_rows(ctx, c, options)
        sections.append(table(("copy of 256 MB", "cuMemcpyAsync, GB/s", "nvsym, GB/s", "ratio"), copies))
    if ctx.my_pe() == 0:
        smi = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                             capture_output=True, text=True, check=True).stdout.splitlines()[0]  # fmt: skip
        text = (
            f"## {ctx.n_pes()} PE{'s under MPS' if ctx.n_pes() > 1 else ''}\n\n{smi}; NVSHMEM {_nvshmem.library_info().version}; "
            f"nvsym {nvsym.__version__}; {datetime.date.today()}; init {began:.2f} s\n\n" + "\n\n".join(sections) + "\n"
        )
        print(text, flush=True)
        if options.results:
            file = pathlib.Path(options.results, f"gpu-h200-{datetime.date.today()}.md")
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a") as out:
                licence = "<!-- SPDX-License-Identifier: Apache-2.0 -->\n# The NVSHMEM backend\n"
                out.write(("" if file.stat().st_size else licence) + "\n" + text)
    nvsym.finalize()


if __name__ == "__main__":
    main()
