# SPDX-License-Identifier: Apache-2.0
"""Atomic operations on GPU memory as PTX, which the driver assembles itself, so that no compiler is needed.

One kernel of one thread for each operation and type: it applies the operation to an address, which may be another PE's, and
stores the old value where the caller asks for it. System scope; PTX ISA 7.0, "Parallel synchronization and communication
instructions: atom".
"""

__all__ = ["ENTRIES", "entry_name", "ptx"]

# The unsigned type adds for signed ones, too; floats are swapped and read as bits.
_BITS = {4: "b32", 8: "b64"}
_ADD = {("int", 4): "u32", ("int", 8): "u64", ("float", 4): "f32", ("float", 8): "f64"}

ENTRIES = tuple(
    (op, kind, size)
    for kind, ops in (
        ("int", ("fetch", "set", "add", "swap", "compare_swap", "and", "or", "xor")),
        ("float", ("fetch", "set", "add", "swap")),
    )
    for op in ops
    for size in (4, 8)
)


def entry_name(op, kind, size):
    """The name of the kernel for an operation on an `int` or `float` of `size` bytes."""
    return f"nvsym_{op}_{kind}{8 * size}"


def _instruction(op, kind, size):
    bits = _BITS[size]
    if op == "fetch":
        return f"ld.acquire.sys.{bits} %old, [%at];"
    if op == "add":
        return f"atom.acq_rel.sys.add.{_ADD[kind, size]} %old, [%at], %value;"
    if op in ("set", "swap"):
        return f"atom.acq_rel.sys.exch.{bits} %old, [%at], %value;"
    if op == "compare_swap":
        return f"atom.acq_rel.sys.cas.{bits} %old, [%at], %cond, %value;"
    return f"atom.acq_rel.sys.{op}.{bits} %old, [%at], %value;"


def _kernel(op, kind, size):
    bits = _BITS[size]
    register = _ADD["float", size] if kind == "float" and op == "add" else bits
    return f"""
.visible .entry {entry_name(op, kind, size)}(
    .param .u64 at, .param .{bits} value, .param .{bits} cond, .param .u64 result)
{{
    .reg .u64 %at, %result;
    .reg .{register} %value, %cond, %old;
    .reg .pred %wanted;
    ld.param.u64 %at, [at];
    ld.param.{register} %value, [value];
    ld.param.{register} %cond, [cond];
    ld.param.u64 %result, [result];
    {_instruction(op, kind, size)}
    setp.ne.u64 %wanted, %result, 0;
    @%wanted st.relaxed.sys.{register} [%result], %old;
    ret;
}}
"""


def ptx():
    """The module with the kernels of all `ENTRIES`, as the text that ``cuModuleLoadData`` takes."""
    head = ".version 7.0\n.target sm_70\n.address_size 64\n"
    return (head + "".join(_kernel(*entry) for entry in ENTRIES)).encode() + b"\0"
