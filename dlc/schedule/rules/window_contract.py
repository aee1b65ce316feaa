"""A window, and the contraction that reads it, one strip of lines after the other.

A depthwise convolution is followed by a pointwise one, which adds up all channels of a pixel. Each
of them alone writes, or reads, an image that is in no near cache by then, some lines of the cache
from each block of channels. A strip of lines is convolved depthwise into memory of its own, which
stays in the second cache, and multiplied at once. Nothing is computed twice.

Before:
    for block, line, pixel, lane:
        windowed[block, line, pixel, lane] = ...
    for column, line, pixel, lane:
        result[column, line, pixel, lane] = ...

After:
    for strip:
        for block, line in strip, pixel, lane:
            windowed[block, line, pixel, lane] = ...
        for column, line in strip, pixel, lane:
            result[column, line, pixel, lane] = ...

Both are tiled as they are alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from dlc.core.target import Target
from dlc.schedule.loop import For, Func, allocs, loops
from dlc.schedule.nest import Stage, stages
from dlc.schedule.rules import contract, window
from dlc.schedule.rules.contraction import Contraction
from dlc.schedule.rules.contraction import analyse as find_product
from dlc.schedule.rules.inner import TILE_KNOBS, products_space
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.types import const_or_none

LINES = (0, 1, 2, 3, 4, 6, 8, 12, 16)  # of a strip, to try
STRIP_SHARE = 4  # of the second cache a part of this holds what a window leaves of a strip
STRIPS = 4  # for each core at least, where there are lines enough
MAX_IDLE = 1.25  # times what cores need for their lines, where the last of them end late


@dataclass(frozen=True, slots=True)
class Strips:
    """A window and the contraction that reads it, by buffers and loops of the last nest."""

    windowed: str  # what the contraction reads, of the sums of the window
    product: Contraction
    line: str  # the loop that is cut into strips


def match(func: Func, target: Target) -> Strips | None:
    """The two sums in a function whose moves are inlined, or None.

    An image of few lines is left to kernels whose cores share its channels. So is a single line,
    outside of which there are images alone.
    """
    found = stages(func)
    sums = [s for s in found if s.is_reduction]
    if len(sums) != 2 or sums[1].factors is None:
        return None
    made, result = (_reader(found, total) for total in sums)
    if made is None or result is None or made.buffer not in allocs(func.body):
        return None
    if _reader(found, made) is not sums[1] or window.analyse(sums[0], made) is None:
        return None
    product = find_product(func, sums[1], result)
    if product is None or product.packed is not None or product.breaks is not None:
        return None
    *_, line, _ = ("", *product.rows[-2:])
    if line not in result.names[1:] or _is_idle(loops(func.body)[line], target):
        return None
    return Strips(made.buffer, product, line)


def _reader(found: list[Stage], made: Stage) -> Stage | None:
    """The only stage that reads what another one computes."""
    readers = [s for s in found if s.reads(made.buffer) and s is not made]
    return readers[0] if len(readers) == 1 else None


def _is_idle(line: For, target: Target) -> bool:
    """Whether cores would wait for the last lines of an image."""
    count = const_or_none(line.extent)
    if count is None:
        return False
    return -(-count // target.cores) * target.cores > count * MAX_IDLE


def space(func: Func, target: Target) -> Space:
    """How many `lines` are a strip, 0 being the analytic choice, and the tiles of the product."""
    found = match(func, target)
    assert found is not None, "a space is asked for where the rule matches"
    count = const_or_none(loops(func.body)[found.line].extent) or 1
    return products_space(target, {"lines": tuple(n for n in LINES if n <= count)})


def schedule(trace: Trace, found: Strips, target: Target, knobs: Mapping[str, int]) -> None:
    """Compute both sums strip by strip; see the module."""
    row = found.product.rows[-1]
    names = next(s.names for s in stages(trace.func) if found.line in s.names)
    lines = _choose_lines(trace, found, target, knobs.get("lines", 0))
    at, line = trace.split(found.line, lines)
    inside = (*found.product.columns, line, row, found.product.lane)
    around = [v for v in names if v not in (found.line, *inside)]
    trace.do("reorder", (*around, at, *inside))
    trace.bring_together(found.product.result, at)
    made = trace.stage(found.windowed)
    total = next(s for s in stages(trace.func) if s.is_reduction and made.reads(s.buffer))
    result = next(s for s in stages(trace.func) if s.reads(found.product.sum))
    windowed = window.analyse(total, made)
    product = find_product(trace.func, trace.stage(found.product.sum), result)
    assert windowed is not None, "compute_at keeps the form of a window"
    assert product is not None, "compute_at keeps the form of a product"
    product = replace(product, rows=(line, row), batch=(), within=at)
    tiles = {name: knobs[name] for name in TILE_KNOBS if name in knobs}
    contract.schedule(trace, product, target, {"columns_outer": 1, **tiles})
    window.tile(trace, windowed, target, {})


def _choose_lines(trace: Trace, found: Strips, target: Target, wanted: int) -> int:
    """How many lines a strip has: they divide the image, stay near, and leave cores some each."""
    count = trace.constant(found.line)
    made = allocs(trace.func.body)[found.windowed].buffer.type
    sizes = [const_or_none(size) for size in made.shape[1:]]
    if count is None or None in sizes:
        return 1
    line_bytes = prod(n or 1 for n in sizes) * made.dtype.size_bytes // count
    room = target.l2_bytes // STRIP_SHARE // line_bytes
    most = wanted or max(1, min(room, count // (STRIPS * target.cores)))
    return max(n for n in range(1, min(most, count) + 1) if count % n == 0)
