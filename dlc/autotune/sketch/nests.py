"""What sketches share: which nest carries the work, sizes to try, and the loops run parallel."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from dlc.schedule.loop import For, Func, LoopKind
from dlc.schedule.nest import Stage, stages, top_nests
from dlc.schedule.trace import Trace
from dlc.te.types import const_or_none

_SYMBOLIC = 64  # what a size known only at run time counts as


def extent(loop: For) -> int | None:
    """The extent of a loop; None where it is symbolic."""
    return const_or_none(loop.extent)


def busiest_sum(func: Func) -> Stage | None:
    """The reduction with the most summands."""
    sums = [s for s in stages(func) if s.is_reduction and s.inner]
    return max(sums, key=_work, default=None)


def reader_of(func: Func, buffer: str) -> Stage | None:
    """The stage that reads a buffer, if there is one and it runs over as many loops."""
    made = next(s for s in stages(func) if s.buffer == buffer)
    found = [s for s in stages(func) if s.buffer != buffer and s.reads(buffer)]
    return found[0] if len(found) == 1 and len(found[0].loops) == len(made.loops) else None


def divisors(size: int | None, most: int) -> tuple[int, ...]:
    """Sizes of a tile that leave no rest; only 1 where the size is symbolic."""
    if size is None:
        return (1,)
    return tuple(n for n in range(1, min(size, most) + 1) if size % n == 0)


def write_out(trace: Trace, names: Sequence[str]) -> None:
    """Write out the loops over a tile of sums, and those that set them to zero; none may be left.

    The innermost one becomes lanes.
    """
    for tile in (names, [f"{n}_init" for n in names]):
        for number, name in enumerate(tile):
            trace.tile_loop(name, lanes=number == len(tile) - 1)


def run_parallel(trace: Trace, depth: int) -> None:
    """Run the outermost loops of each nest parallel: up to `depth` of them, fused; 0 is none."""
    for top in top_nests(trace.func):
        elements = {v for s in stages(trace.func) for v in s.names}
        chain: list[str] = []
        stmt = top
        while isinstance(stmt, For) and stmt.kind is LoopKind.SERIAL and stmt.var in elements:
            chain.append(stmt.var)
            stmt = stmt.body
        if depth and chain:
            trace.do("parallel", trace.fuse_all(chain[:depth]))


def _work(stage: Stage) -> int:
    return prod(extent(f) or _SYMBOLIC for f in (*stage.loops, *stage.inner))
