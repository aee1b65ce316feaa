"""A contraction, a window over its image, and the contraction that reads that, line after line.

A pointwise convolution makes many channels of few, a depthwise one follows, and another pointwise
one makes few of many again. The images in between are several times those around. Where they do
not stay in the second cache, they are written to memory and read from it, which takes longer than
what is computed. A line of the result needs some lines of the first image alone, most of which
the line before it needed, too: they are kept in a ring.

Before:
    for block, line, pixel, lane:
        image[block, line + 1, pixel + 1, lane] = ...
    for block, line, pixel, lane:
        windowed[block, line, pixel, lane] = ...
    for column, line, pixel, lane:
        result[column, line, pixel, lane] = ...

After:
    for some lines:
        for line:
            for the lines of the image that are new:
                for block, pixel, lane:
                    image[block, line of the ring, pixel + 1, lane] = ...
            for block, pixel, lane:
                windowed[block, pixel, lane] = ...
            for column, pixel, lane:
                result[column, line, pixel, lane] = ...

All are tiled as they are alone. A core computes some lines of the result one after the other; what
the first of them needs is all that is computed twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from dlc.core.target import Target
from dlc.schedule.loop import Func, allocs, loops
from dlc.schedule.nest import Stage, stages
from dlc.schedule.rules import window
from dlc.schedule.rules.contraction import Contraction
from dlc.schedule.rules.contraction import analyse as find_product
from dlc.schedule.rules.cut_tiles import is_far
from dlc.schedule.rules.inner import products_space
from dlc.schedule.rules.window_contract import (
    FEW_PIXELS,
    IMAGE_RANK,
    find_window,
    reader,
    tile_product,
)
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.affine import coefficients
from dlc.te.transform import loads
from dlc.te.types import const_or_none, const_size

TRIED = (0, 2, 4, 7, 8, 10, 14, 16, 20, 28, 40)  # lines of a part
LINE = 2  # of an image: image, block, line, pixel, lane
FAR = 1.5  # times the second cache: a smaller image passes it about as fast as it is computed
RING_SHARE = 2  # of the second cache this part holds the ring
FEW_PARTS = 0.05  # of the time is lost where each core has one part: another program takes a core
MADE_SHARE = 0.4  # of the time the first contraction takes
MOST_COST = 1.15  # times what the sums alone take, with what is computed twice and cores that wait


@dataclass(frozen=True, slots=True)
class Ring:
    """Such sums, by buffers and loops."""

    before: str | None  # what the first contraction reads, of the sums of a window of its own
    made: str  # the sum of the first contraction
    image: str  # what a window passes
    windowed: str  # what the second contraction reads, of the sums of the window
    product: Contraction
    line: str  # the loop over lines of the result
    step: int  # lines of the image from one of the result to the next
    part: int  # lines of the result that a core computes one after the other


def match(func: Func, target: Target) -> Ring | None:
    """The sums over images in a function whose moves are inlined, or None.

    Only where sizes are known, the image is too large to stay near, its lines are not, and weights
    do. What is before it may be a window and a contraction, too.
    """
    found = stages(func)
    sums = [s for s in found if s.is_reduction]
    if len(sums) not in (3, 4) or func.sizes:
        return None
    *first, made, passing, total = sums
    before = [_windowed(func, found, window, made) for window in first]
    image, windowed = reader(found, made), _windowed(func, found, passing, total)
    result = reader(found, total)
    if image is None or windowed is None or result is None or None in before:
        return None
    if not _is_image(func, image) or reader(found, image) is not passing:
        return None
    product = _near_product(func, total, result, target)
    if product is None or _near_product(func, made, image, target) is None:
        return None
    *images, line, _ = product.rows
    extents = loops(func.body)
    high, wide = (const_size(extents[v].extent) for v in product.rows[-2:])
    steps = _lines_read(passing, image.buffer)
    if wide < FEW_PIXELS or steps is None or not _is_large(func, image, steps, target):
        return None
    step, lines = steps
    count = prod(const_size(extents[v].extent) for v in images)
    part = _choose_part(high, lines - step, step, count, target)
    if part is None:
        return None
    names = (made.buffer, image.buffer, windowed.buffer)
    earlier = next((s.buffer for s in before if s is not None), None)
    return Ring(earlier, *names, product, line, step, part)


def _is_image(func: Func, made: Stage) -> bool:
    """Whether a stage makes an image of blocks in memory, by a loop for each dimension."""
    at = made.store.index
    if made.buffer not in allocs(func.body) or not len(at) == len(made.names) == IMAGE_RANK:
        return False
    steps = (coefficients(i) for i in at)
    return all(s is not None and s.keys() <= {v} for s, v in zip(steps, made.names, strict=True))


def _windowed(func: Func, found: list[Stage], window_sum: Stage, total: Stage) -> Stage | None:
    """What is made of the sums of a window for one contraction alone, or None."""
    made = reader(found, window_sum)
    if made is None or made is total or not _is_image(func, made):
        return None
    if reader(found, made) is not total:
        return None
    return made if window.analyse(window_sum, made) is not None else None


def _near_product(func: Func, total: Stage, result: Stage, target: Target) -> Contraction | None:
    """A contraction of the pixels of lines, whose weights stay near from line to line, or None."""
    product = find_product(func, total, result)
    if product is None or product.packed is not None or product.breaks is not None:
        return None
    is_image = len(result.names) == IMAGE_RANK and len(product.rows) > 1
    return product if is_image and not is_far(product, target) else None


def _is_large(func: Func, image: Stage, steps: tuple[int, int], target: Target) -> bool:
    """Whether an image does not stay in the second cache, but the lines of a window do."""
    type_ = allocs(func.body)[image.buffer].buffer.type
    step, lines = steps
    high = type_.static_shape[LINE]
    line_bytes = prod(type_.static_shape[1:]) * type_.dtype.size_bytes // high
    is_large = line_bytes * high > target.l2_bytes * FAR
    return is_large and step < lines and line_bytes * lines <= target.l2_bytes // RING_SHARE


def _lines_read(total: Stage, image: str) -> tuple[int, int] | None:
    """How many lines of an image lie between those of a window, and how many it reads."""
    (read, *others) = [x for x in loads(total.value) if x.buffer == image]
    along = coefficients(read.index[LINE]) if not others and len(read.index) > LINE else None
    if along is None or len(total.names) <= LINE:
        return None
    step = along.pop(total.names[LINE], 0)
    extents = {f.var: const_or_none(f.extent) for f in total.inner}
    taps = {v: extents.get(v) for v in along if v}
    if step < 1 or any(n is None for n in taps.values()):
        return None
    return step, 1 + sum(along[v] * ((n or 1) - 1) for v, n in taps.items())


def _choose_part(high: int, again: int, step: int, images: int, target: Target) -> int | None:
    """How many lines of a result are a part: they divide it; None where each way costs too much.

    `again` lines of the image are computed once more for each part, and cores wait for the last.
    """

    def cost(part: int) -> float:
        parts = images * high // part
        waiting = -(-parts // target.cores) * target.cores / parts
        few = 1 + FEW_PARTS * target.cores / parts
        return waiting * few * (1 + MADE_SHARE * again / (part * step))

    best = min((n for n in range(1, high + 1) if high % n == 0), key=cost)
    return best if cost(best) <= MOST_COST else None


def space(func: Func, target: Target) -> Space:
    """How many `lines` are a part, 0 being the analytic choice; tiles of the last product."""
    found = match(func, target)
    assert found is not None, "a space is asked for where the rule matches"
    high = const_or_none(loops(func.body)[found.line].extent) or 1
    return products_space(target, {"lines": tuple(n for n in TRIED if high % (n or 1) == 0)})


def schedule(trace: Trace, found: Ring, target: Target, knobs: Mapping[str, int]) -> None:
    """Compute all sums line by line; see the module."""
    product = found.product
    names = next(s.names for s in stages(trace.func) if found.line in s.names)
    high, wanted = trace.constant(found.line) or 1, knobs.get("lines", 0)
    part = max(n for n in range(1, (wanted or found.part) + 1) if high % n == 0)
    parts, line = trace.split(found.line, part)
    at, line = trace.split(line, 1)
    inside = (*product.columns, line, product.rows[-1], product.lane)
    around = [v for v in names if v not in (found.line, *inside)]
    trace.do("reorder", (*around, parts, at, *inside))
    made_line = _bring_together(trace, found, at)
    trace.do("roll", found.image, at, LINE, found.step)
    windows = [find_window(trace, s) for s in (found.before, found.windowed) if s is not None]
    tile_product(trace, found.made, (), made_line, target, {})
    tile_product(trace, product.sum, (line,), at, target, knobs)
    for each in windows:
        window.tile(trace, each, target, {})


def _bring_together(trace: Trace, found: Ring, at: str) -> str:
    """Compute all but the result in a loop of its nest, the image line by line; its loop of lines.

    What a line of the image is made of is computed with it.
    """
    image = next(s for s in stages(trace.func) if s.reads(found.made))
    batch, block, line, *rest = image.names
    trace.do("reorder", (batch, line, block, *rest))
    names = list(dict.fromkeys(s.buffer for s in stages(trace.func)))
    _compute_at(trace, found, names[: names.index(found.image)], line)
    _compute_at(trace, found, names[names.index(found.image) :], at)
    return line


def _compute_at(trace: Trace, found: Ring, names: list[str], loop: str) -> None:
    """Compute some buffers in a loop, whole lines of what a window passes, and whole vectors."""
    for name in reversed(names):
        if name not in allocs(trace.func.body):
            continue  # the result
        *_, pixels, lanes = allocs(trace.func.body)[name].buffer.type.shape
        width = const_size(pixels) if name == found.image else 1
        is_image = name in (found.image, found.windowed, found.before)
        whole = (1, 1, 1, width, const_size(lanes))
        trace.do("compute_at", name, loop, *([whole] if is_image else []))
