"""Softmax, norms and their kind on a GPU: a block for each row, from its first read to its result.

What is known of a row stays in shared memory. A reduction runs in one partial result for each
thread, then in a few for each of some threads, and the first thread adds those up: three phases
instead of a chain as long as the row, and always in the same order.

Source: Harris, "Optimizing Parallel Reduction in CUDA" (2007), for partial results per thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import mul

from dlc.core.target import Target
from dlc.schedule.edit import loops_around
from dlc.schedule.gpu import WARP
from dlc.schedule.loop import Alloc, Func, allocs, loops
from dlc.schedule.nest import Stage, stages
from dlc.schedule.primitive import refuse
from dlc.schedule.rules import row
from dlc.schedule.rules.gpu_block import spread
from dlc.schedule.rules.gpu_finish import threads_for
from dlc.schedule.rules.row import Rows
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.expr import ONE, Const, Expr
from dlc.te.simplify import canonical, surely_at_most
from dlc.te.types import is_const

MAX_THREADS = 256
WIDE = 1024  # stands for the width of a row that is only known at run time
LAST = 16  # partial results that one thread adds up


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
    made = dict.fromkeys(s.buffer for s in stages(trace.func) if s.buffer != found.result)
    before = allocs(trace.func.body)
    for buffer in reversed(made):
        if buffer in before:
            trace.do("compute_at", buffer, found.anchor)
    _check_sums(trace, found.anchor, before)
    outer = [f.var for f in loops_around(trace.func, found.anchor)]
    block = trace.fuse_all(outer) if len(outer) > 1 else outer[0]
    width = _width(trace, block)
    if width < WARP:  # a thread for each row, which keeps it to itself
        trace.do("distribute", (block,), (threads_for(trace.extent(block)),), (1,))
        return
    trace.do("bind", block, "block")
    threads = knobs.get("threads", 0) or min(MAX_THREADS, -(-width // WARP) * WARP)
    for buffer, alloc in allocs(trace.func.body).items():
        if not alloc.buffer.type.is_static:
            refuse("bind", trace.func, f"'{buffer}' has no constant shape for shared memory")
        trace.do("set_scope", buffer, "shared")
    for stage in stages(trace.func):
        if stage.is_reduction:
            _reduce(trace, stage, threads)
        else:
            spread(trace, [v for v in stage.names if v != block], threads)


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
    """The longest of the loops over a row."""
    inner = [f.extent for v, f in loops(trace.func.body).items() if v != block]
    return max((int(n.value) if isinstance(n, Const) else WIDE for n in inner), default=1)


def _reduce(trace: Trace, stage: Stage, threads: int) -> None:
    """Reduce in partial results, in two steps, before the first thread combines the last ones."""
    if any(trace.extent(v) != ONE for v in stage.names):
        refuse("rfactor", trace.func, f"'{stage.buffer}' has several sums for a row")
    inner = [f.var for f in stage.inner]
    summand = trace.fuse_all(inner) if len(inner) > 1 else inner[0]
    extent = trace.extent(summand)
    if isinstance(extent, Const) and extent.value <= LAST:
        return
    if not isinstance(extent, Const):
        refuse("rfactor", trace.func, f"'{stage.buffer}' has {extent} summands")
    count = min(threads, int(extent.value))
    buffer = stage.buffer
    if extent.value > count:
        _, part = trace.split(summand, count)
        _partial(trace, buffer, part, f"{buffer}_parts")
        summand = f"{part}_final"
    if count > LAST:
        _, part = trace.split(summand, LAST)
        _partial(trace, buffer, part, f"{buffer}_last")


def _partial(trace: Trace, buffer: str, part: str, name: str) -> None:
    """A partial result for each iteration of a loop, on as many threads."""
    trace.do("rfactor", buffer, part, name)
    trace.do("set_scope", name, "shared")
    trace.do("bind", part, "thread")
