# SPDX-License-Identifier: Apache-2.0
"""The options of ``python -m nvsym bench``."""

import argparse
import importlib.util

from .. import _settings
from .._names import first_process
from .data import ATOMICS, COLLECTIVES
from .gpu_sampling import GPU_METHOD
from .sampling import METHOD

__all__ = ["COMMANDS", "EPILOG", "PEERS", "SIZED", "make_parser"]

COMMANDS = {
    "allreduce": "allreduce over all PEs",
    "broadcast": "broadcast from PE 0 to all PEs",
    "fcollect": "fcollect (allgather) over all PEs",
    "alltoall": "alltoall over all PEs",
    "reducescatter": "reducescatter over all PEs",
    "put": "put to the next PE, complete there (put and quiet)",
    "get": "get from the next PE",
    "latency": "one way of a message with notification between two PEs: put_signal and signal_wait_until",
    "copy": "copies between the symmetric heap and arrays of this PE",
    "barrier": "barrier_all",
    "atomics": "atomic operations on an element of the next PE",
    "overhead": "what a call costs the caller",
    "init": "how long it takes to begin a job, and to end it",
}

SIZED = ("allreduce", *COLLECTIVES, "put", "get", "latency", "copy")

# The libraries that can be measured beside nvsym, and where.
PEERS = {
    "nccl": "NCCL from C",
    "nvshmem": "NVSHMEM's own calls from C",
    "nvshmem4py": "nvshmem.core",
    "torch": "torch.distributed and PyTorch's symmetric memory",
    "cuda": "the driver's copies, a copy kernel, an empty launch",
    "mpi4py": "on the host backend",
    "shmem4py": "on the host backend",
    "numpy": "copies, on the host backend",
}

_START = "Start it by mpirun for as many PEs as are wanted:"
_EXAMPLE = "mpirun -n 2 python -m nvsym bench put -b 16 -e 1M --vs mpi4py"
EPILOG = f"{_START} {_EXAMPLE}\n"


class _Parser(argparse.ArgumentParser):
    """Speaks on one process of a job."""

    def _print_message(self, message, file=None):
        if message and first_process():
            super()._print_message(message, file)


class _Paragraphs(argparse.HelpFormatter):
    """Leaves the empty lines between paragraphs."""

    def _fill_text(self, text, width, indent):
        fill = super()._fill_text
        return "\n\n".join(fill(paragraph, width, indent) for paragraph in text.split("\n\n"))


def _size(text):
    try:
        return _settings.parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def _count(text):
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _number(text, least, what):
    try:
        value = float(text)
    except ValueError:
        value = least
    if not least < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value


def _factor(text):
    return _number(text, 1, "a number above 1")


def _seconds(text):
    return _number(text, 0, "a number of seconds above 0")


def _names(text, known):
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
    return list(dict.fromkeys(names))


def _elements(text):
    from ..dtypes import as_dtype

    try:
        return [as_dtype(name.strip()).numpy for name in text.split(",") if name.strip()]
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _peers(text):
    return _names(text, PEERS)


def _algorithms(text):
    from ..backend import ALGORITHMS

    return _names(text, ALGORITHMS)


def _picture(text):
    if not text.endswith((".png", ".svg", ".pdf")):
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .png, .svg or .pdf")
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError('plots need matplotlib: pip install "nvsym[bench]"')
    return text


def _sized(parser, command):
    smallest, largest, factor = ("1M", "256M", 16.0) if command == "copy" else ("16", "1M", 4.0)
    what = " of the larger operand of a PE" if command in COLLECTIVES else ""
    parser.add_argument(
        "-b", type=_size, default=smallest, metavar="SIZE", help=f"smallest size in bytes{what} (default: {smallest})"
    )
    parser.add_argument(
        "-e", type=_size, metavar="SIZE", help=f"largest size (default: {largest}; with -b above it, that of -b)"
    )
    parser.add_argument(
        "-f", type=_factor, default=factor, metavar="FACTOR", help=f"from one size to the next (default: {factor:g})"
    )
    parser.add_argument(
        "--vs-every", type=_positive, default=1, metavar="N",
        help="compare at every N-th size only, the smallest first (default: 1)",
    )  # fmt: skip
    parser.set_defaults(largest=largest)


def make_parser(command):
    """The parser of a subcommand of `COMMANDS`."""
    parser = _Parser(
        prog=f"python -m nvsym bench {command}",
        description=COMMANDS[command] + ".",
        epilog="\n\n".join((_START, _EXAMPLE, f"On the host backend: {METHOD}", f"On GPUs: {GPU_METHOD}")),
        formatter_class=_Paragraphs,
        allow_abbrev=False,
    )
    if command in SIZED:
        _sized(parser, command)
    if command not in ("barrier", "init"):
        default = {"atomics": "int64", "overhead": None}.get(command, "float32")
        said = default or "int64, on GPUs float32"
        parser.add_argument(
            "--dtype", type=_elements, default=default, metavar="TYPES",
            help=f"element types, comma-separated (default: {said})",
        )  # fmt: skip
    if command in ("allreduce", "reducescatter"):
        parser.add_argument("--op", choices=("sum", "prod", "min", "max", "and", "or", "xor"), default="sum")
    if command == "allreduce":
        parser.add_argument(
            "--algorithm", type=_algorithms, default="auto", metavar="NAMES",
            help="of nvsym (default: auto); of several, those after the first are compared with it",
        )  # fmt: skip
        parser.add_argument(
            "--in-place", action="store_true", help="the result takes the place of the operand; on GPUs"
        )
    if command == "put":
        parser.add_argument("--signal", action="store_true", help="put_signal instead of put")
    if command in ("put", "get"):
        parser.add_argument(
            "--local", choices=("buffer", "array"), default="buffer",
            help="nvsym's local side: a SHMEMBuffer or a NumPy array (default: buffer)",
        )  # fmt: skip
    if command in ("allreduce", *COLLECTIVES, "put", "get", "barrier"):
        parser.add_argument(
            "--graph", nargs="?", choices=("no", "only", "both"), const="only", default="no",
            help="the calls inside a CUDA graph of several, or both ways (default: no; --graph alone: only)",
        )  # fmt: skip
    if command in ("allreduce", "put", "get"):
        parser.add_argument(
            "--reference", type=_size, default="256M", metavar="SIZE",
            help="on GPUs, of the copies that give the rates of memory and links (default: 256M)",
        )  # fmt: skip
    if command == "atomics":
        parser.add_argument("--op", choices=ATOMICS, action="append", help="only this one; may be repeated")
    if command == "init":
        parser.add_argument("--heap", type=_size, default="1G", metavar="SIZE", help="symmetric heap (default: 1G)")
        parser.add_argument(
            "--rounds", type=_positive, default=5, help="times that a job is begun and ended (default: 5)"
        )
        parser.add_argument(
            "--first", choices=("nvsym", "peer"), default="nvsym",
            help="who begins: only the first of a process makes the context of the GPU (default: nvsym)",
        )  # fmt: skip
    else:
        _sampling(parser)
    parser.add_argument(
        "--backend", choices=("auto", "host", "nvshmem"), default="auto",
        help="of the job (default: auto, which is NVSHMEM where every PE has a GPU)",
    )  # fmt: skip
    always = {"copy": "cuda or numpy", "overhead": "on GPUs nvshmem", "init": "on GPUs nvshmem"}.get(command)
    parser.add_argument(
        "--vs", type=_peers, metavar="PEERS",
        help=f"compare with these, comma-separated: {', '.join(PEERS)}" + (f" (default: {always})" if always else ""),
    )  # fmt: skip
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE",
        help="one JSON document, in FILE beside the table, or without FILE in its place",
    )  # fmt: skip
    parser.add_argument("--plot", type=_picture, metavar="FILE", help="a picture of the result: .png, .svg or .pdf")
    return parser


def _sampling(parser):
    parser.add_argument(
        "-n", type=_positive, metavar="CALLS",
        help="counted calls of a batch, or of a graph (default: some milliseconds' worth, at most 20 in a graph)",
    )  # fmt: skip
    parser.add_argument(
        "-w", type=_count, metavar="CALLS",
        help="calls of a batch, or launches of a graph, that are not counted (default: 10; slow calls 1; graphs 1)",
    )  # fmt: skip
    parser.add_argument("--batches", type=_positive, default=21, help="batches of each library (default: 21)")
    parser.add_argument(
        "--budget", type=_seconds, metavar="SECONDS",
        help="for the batches of a row, which are fewer where they take longer (default: 4; on GPUs 0.5)",
    )  # fmt: skip
