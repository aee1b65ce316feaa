"""Softmax, norms and their kind on a GPU: a block for each row, from its first read to its result.

What is known of a row stays in shared memory if it fits, and is computed anew where it is read if
not: of a row whose width only a run knows, shared memory holds its sums alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import prod
from operator import mul

from dlc.core.target import Target
from dlc.schedule.edit import loops_around
from dlc.schedule.gpu import WARP
from dlc.schedule.loop import Alloc, Func, allocs
from dlc.schedule.nest import stages
from dlc.schedule.primitive import refuse
from dlc.schedule.rules import row
from dlc.schedule.rules.gpu_block import spread
from dlc.schedule.rules.gpu_finish import threads_for
from dlc.schedule.rules.gpu_reduce import reduce_rows
from dlc.schedule.rules.row import Rows
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.expr import ONE, Const, Expr
from dlc.te.simplify import canonical, surely_at_most
from dlc.te.types import const_or, const_size, is_const

MAX_THREADS = 256
ROOM = 64 * 1024  # bytes of shared memory for one stage of a row
WIDE = 1024  # stands for the width of a row that is only known at run time


def match(func: Func, target: Target) -> Rows | None:
    """The rows of a function whose moves are inlined, or None."""
    found = row.match(func, target)
    if found is None or found.anchor is None:
        return None
    made = [s.buffer for s in stages(func) if s.buffer != found.result]
    return found if len(set(made)) > 1 or _is_long(func) else None


def _is_long(func: Func) -> bool:
    """Whether a sum is so long that one thread alone would take too long."""
    sizes = [f.extent for s in stages(func) for f in s.inner]
    return any(not isinstance(n, Const) or n.value >= 4 * WARP for n in sizes)


def space(func: Func, target: Target) -> Space:
    """How many threads a block has; 0 is the analytic choice."""
    return Space({"threads": (0, 32, 64, 128, 256, 512)})


def schedule(trace: Trace, found: Rows, target: Target, knobs: Mapping[str, int]) -> None:
    """Bring all stages of a row into one block; see the module."""
    assert found.anchor is not None, "match sees to that"
    before = allocs(trace.func.body)
    trace.bring_together(found.result, found.anchor)
    _check_sums(trace, found.anchor, before)
    outer = [f.var for f in loops_around(trace.func, found.anchor)]
    block = trace.fuse_all(outer) if len(outer) > 1 else outer[0]
    width = _width(trace, block)
    if width < WARP:  # a thread for each row, which keeps it to itself
        trace.do("distribute", (block,), (threads_for(trace.extent(block)),), (1,))
        return
    trace.do("bind", block, "block")
    threads = knobs.get("threads", 0) or min(MAX_THREADS, -(-width // WARP) * WARP)
    _inline(trace, block)
    for buffer in allocs(trace.func.body):
        trace.do("set_scope", buffer, "shared")
    for stage in stages(trace.func):
        if stage.is_reduction:
            reduce_rows(trace, stage, [v for v in stage.names if v != block], threads)
        else:
            spread(trace, [v for v in stage.names if v != block], threads)


def _inline(trace: Trace, block: str) -> None:
    """Compute anew what is one number for a row, which saves a barrier, and what is too large."""
    for buffer, alloc in allocs(trace.func.body).items():
        found = [s for s in stages(trace.func) if s.buffer == buffer]
        single = all(trace.extent(v) == ONE for s in found for v in s.names if v != block)
        if not any(s.is_reduction for s in found) and (single or not _fits(alloc)):
            trace.do("compute_inline", buffer)


def _fits(alloc: Alloc) -> bool:
    """Whether shared memory holds a buffer beside those of other blocks."""
    kind = alloc.buffer.type
    return kind.is_static and const_size(kind.elems) * kind.dtype.size_bytes <= ROOM


def _check_sums(trace: Trace, anchor: str, before: Mapping[str, Alloc]) -> None:
    """Refuse rows that share their sums, as the windows of an image do: each would add them up.

    One sum for all rows passes: a thread that adds it up alone takes as long.
    """
    rows = [f.extent for f in loops_around(trace.func, anchor)]
    after = allocs(trace.func.body)
    sums = {s.buffer for s in stages(trace.func) if s.is_reduction}
    for buffer in sorted(sums & before.keys()):
        each, whole = (_product(a[buffer].buffer.type.shape) for a in (after, before))
        if not is_const(each, 1) and not surely_at_most(_product((each, *rows)), whole):
            refuse("compute_at", trace.func, f"several rows would compute the same of '{buffer}'")


def _product(sizes: Sequence[Expr]) -> Expr:
    """How many elements or iterations some sizes are together."""
    return canonical(reduce(mul, sizes, ONE))


def _width(trace: Trace, block: str) -> int:
    """The most elements of a row that one stage reads or writes."""
    sizes = [
        [f.extent for f in (*stage.loops, *stage.inner) if f.var != block]
        for stage in stages(trace.func)
    ]
    return max(prod(const_or(n, WIDE) for n in s) for s in sizes)
