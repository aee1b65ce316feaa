"""Lines of memory that are asked for before they are read or written."""

from __future__ import annotations

from math import inf, prod

from dlc.codegen.llvm.flatten import Flat
from dlc.codegen.llvm.ir import Builder, Val
from dlc.codegen.llvm.storage import Storage
from dlc.core.target import Target
from dlc.schedule.asking import LINE_BYTES
from dlc.te.expr import Const

WRITE_AHEAD = 1024
"""Bytes between a vector that is written and the line that is asked for then.

A line that is written has to be fetched first, and the processor does not do so ahead of time by
itself. Measured on one core of a Xeon (Sapphire Rapids), beyond the second cache: plain copies move
17 GB/s, 27 with lines asked for 1 or 2 KB ahead.
"""
MIN_WRITE_BYTES = 32  # of a vector: what is less asks too often
FAR_SHARE = 2  # results beyond this part of the second cache count as being outside of it


def ask_ahead(
    builder: Builder,
    storage: Storage,
    flat: Flat,
    at: Val,
    ahead: int,
    lanes: int,
    *,
    to_write: bool = False,
) -> None:
    """Ask for the lines some bytes behind a vector, once where vectors share a line.

    They need not lie inside the buffer: the processor ignores an address that cannot be read.
    """
    size = storage.dtype.size_bytes
    for behind in range(0, lanes * size, LINE_BYTES):
        number = (flat.const * size + behind) // LINE_BYTES
        key = ("ahead", to_write, storage.name, flat.rest, number)
        if builder.recall(key) is not None:
            continue
        builder.remember(key, at)
        builder.declarations.use("llvm.prefetch.p0", "void", "ptr, i32, i32, i32")
        line = builder.op(f"getelementptr i8, {at}, i64 {ahead + behind}", "ptr")
        builder.line(f"call void @llvm.prefetch.p0({line}, i32 {int(to_write)}, i32 3, i32 1)")


def is_far(storage: Storage, target: Target) -> bool:
    """Whether a buffer is so large that most lines of it are not in the second cache."""
    count = prod(size.value if isinstance(size, Const) else inf for size in storage.shape)
    return count * storage.dtype.size_bytes * FAR_SHARE > target.l2_bytes
