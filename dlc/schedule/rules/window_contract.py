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
from dlc.schedule.rules.cut_tiles import is_far
from dlc.schedule.rules.inner import TILE_KNOBS, products_space
from dlc.schedule.rules.lines import is_shared
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.expr import ONE, Load
from dlc.te.transform import free_vars, loads
from dlc.te.types import const_or_none, const_size

TRIED = (0, 1, 2, 3, 4, 6, 8, 12, 16)  # lines of a strip
STRIP_SHARE = 4  # of the second cache a part of this holds what a window leaves of a strip
PARTS = 4  # strips for each core, where there are lines enough
WAITING = 1.25  # times what cores need for their strips, where the last of them end late
IMAGE_RANK = 5  # image, block, line, pixel, lane
FEW_PIXELS = 6  # less than a tile of rows
FAR_PIXELS = 0.8
"""Pixels of a strip for each lane of a vector, where columns come from beyond the second cache for
each strip: their products take about as long as that."""


@dataclass(frozen=True, slots=True)
class Strips:
    """A window and the contraction that reads it, by buffers and loops of the last nest."""

    windowed: str  # what the contraction reads, of the sums of the window
    product: Contraction
    line: str  # the loop that is cut into strips
    lines: int  # of a strip


def match(func: Func, target: Target) -> Strips | None:
    """The two sums over an image in a function whose moves are inlined, or None.

    An image of few lines, or pixels, is left to kernels whose cores share its channels. A sum that
    is read as it is takes a loop above its lines, over several blocks in each strip.
    """
    found = stages(func)
    sums = [s for s in found if s.is_reduction]
    if len(sums) != 2 or sums[1].factors is None:
        return None
    made, result = (reader(found, total) for total in sums)
    made = _stored(sums[0]) if made is sums[1] else made
    if made is None or result is None or made.buffer not in allocs(func.body):
        return None
    if len(made.store.index) != IMAGE_RANK or window.analyse(sums[0], made) is None:
        return None
    if made.buffer == sums[0].buffer and not _adds_up_blocks(sums[1], made.buffer):
        return None
    product = find_product(func, sums[1], result)
    if reader(found, made) is not sums[1] or product is None:
        return None
    if product.packed is not None or product.breaks is not None or len(product.rows) < 2:
        return None
    line, row = (loops(func.body)[v] for v in product.rows[-2:])
    line_bytes = _line_bytes(func, made.buffer, line)
    lines = _choose_lines(line, row, line_bytes, is_far(product, target), target)
    return None if lines is None else Strips(made.buffer, product, line.var, lines)


def reader(found: list[Stage], made: Stage) -> Stage | None:
    """The only stage that reads what another one computes."""
    readers = [s for s in found if s.reads(made.buffer) and s is not made]
    return readers[0] if len(readers) == 1 else None


def _stored(total: Stage) -> Stage:
    """The stage that writes a sum as it is, for a reader that takes the sum itself."""
    value = Load(total.buffer, total.store.index, total.store.value.dtype)
    return replace(total, store=replace(total.store, value=value), inner=(), start=None)


def _adds_up_blocks(total: Stage, windowed: str) -> bool:
    """Whether a sum reads several blocks of channels; groups of channels may have one each."""
    steps = {f.var for f in total.inner if f.extent != ONE}
    read = [x for factor in total.factors or () for x in loads(factor) if x.buffer == windowed]
    return any(steps & free_vars(x.index[1]) for x in read)


def _line_bytes(func: Func, windowed: str, line: For) -> int | None:
    """What a window leaves of one line of an image; None where sizes are open, or 0."""
    type_ = allocs(func.body)[windowed].buffer.type
    sizes = [const_or_none(n) for n in (*type_.shape[1:], line.extent)]
    *image, count = (n or 0 for n in sizes)
    return prod(image) * type_.dtype.size_bytes // count if all(sizes) else None


def _choose_lines(
    line: For, row: For, line_bytes: int | None, far: bool, target: Target
) -> int | None:
    """How many lines a strip has: they divide the image, stay near, and leave cores some strips.

    One where a size is open; None where cores would wait, or strips have too few pixels.
    """
    count, width = const_or_none(line.extent), const_or_none(row.extent)
    if count is None or line_bytes is None:
        return 1
    least = FAR_PIXELS * target.lanes(4) if far else FEW_PIXELS
    near = target.l2_bytes // STRIP_SHARE // line_bytes
    most = max(1, min(near, count // (PARTS * target.cores)))
    whole = [n for n in range(1, count + 1) if count % n == 0 and n * (width or least) >= least]
    several = [n for n in whole if not is_shared(count // n, target, WAITING)]
    return max((n for n in several if n <= most), default=min(several, default=None))


def space(func: Func, target: Target) -> Space:
    """How many `lines` are a strip, 0 being the analytic choice, and the tiles of the product."""
    found = match(func, target)
    assert found is not None, "a space is asked for where the rule matches"
    count = const_or_none(loops(func.body)[found.line].extent) or 1
    return products_space(target, {"lines": tuple(n for n in TRIED if count % (n or 1) == 0)})


def schedule(trace: Trace, found: Strips, target: Target, knobs: Mapping[str, int]) -> None:
    """Compute both sums strip by strip; see the module."""
    row = found.product.rows[-1]
    names = next(s.names for s in stages(trace.func) if found.line in s.names)
    count, wanted = trace.constant(found.line), knobs.get("lines", 0)
    lines = found.lines
    if wanted and count:  # strips divide the image
        lines = max(n for n in range(1, wanted + 1) if count % n == 0)
    at, line = trace.split(found.line, lines)
    inside = (*found.product.columns, line, row, found.product.lane)
    around = [v for v in names if v not in (found.line, *inside)]
    trace.do("reorder", (*around, at, *inside))
    *_, lanes = allocs(trace.func.body)[found.windowed].buffer.type.shape
    whole = (1,) * (IMAGE_RANK - 1) + (const_size(lanes),)  # also where some lanes are read alone
    trace.bring_together(found.product.result, at, {found.windowed: whole})
    windowed = find_window(trace, found.windowed)
    tile_product(trace, found.product.sum, (line,), at, target, knobs)
    window.tile(trace, windowed, target, {})


def tile_product(
    trace: Trace,
    total: str,
    lines: tuple[str, ...],
    within: str,
    target: Target,
    knobs: Mapping[str, int],
) -> None:
    """Tile the pixels of a contraction, and `lines` of them, within a loop."""
    result = next(s for s in stages(trace.func) if s.reads(total))
    product = find_product(trace.func, trace.stage(total), result)
    assert product is not None, "compute_at keeps the form of a product"
    product = replace(product, rows=(*lines, product.rows[-1]), batch=(), within=within)
    tiles = {name: knobs[name] for name in TILE_KNOBS if name in knobs}
    contract.schedule(trace, product, target, {"columns_outer": 1, **tiles})


def find_window(trace: Trace, name: str) -> window.Window:
    """The window that fills a buffer in a strip; its sum gets memory of its own."""
    made = trace.stage(name)
    if not made.is_reduction:
        total = next(s for s in stages(trace.func) if s.is_reduction and made.reads(s.buffer))
        found = window.analyse(total, made)
        assert found is not None, "compute_at keeps the form of a window"
        return found
    found = window.analyse(made, _stored(made))
    assert found is not None, "compute_at keeps the form of a window"
    own = f"{name}_window"
    trace.do("cache_write", name, made.names[0], own, "local")
    row = f"{found.row}_{own}"  # no loop where lines have one pixel
    is_loop = row in trace.stage(name).names
    return replace(found, sum=own, lane=f"{found.lane}_{own}", row=row if is_loop else None)
