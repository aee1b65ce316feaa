"""Sums of products between two transforms, as in Winograd's convolution.

The row operand is computed from tiles of the image, the result from several sums of one tile, both
along the columns of a tile and then along its rows; weights are constants, or computed in this way,
too. A strip of the result keeps operands and sums
in the second cache:

Before:
    pixel_columns -> operand -> sums -> sum_columns -> transformed -> exact -> result

After:
    for strip (parallel):                 operand
        operand of the strip              for some columns (parallel):
        for some columns:            or       for strip:
            sums, result                          sums, result

Columns are the outer loop where there are more weights than a strip pays for; each group of them
then transforms its weights by itself, where otherwise all are before the strips. The columns of a
tile, of its pixels and of its sums, are in registers; tiles of one axis have none. Products pass
the tiles of an image one after the other, as one line of them: rows of tiles are short. Results
of a volume add up several images: a strip has the rows of some of them, and of all images that
they need.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from dlc.core.target import Target
from dlc.schedule.loop import For, Func, allocs
from dlc.schedule.nest import Stage, stages
from dlc.schedule.rules.inner import products_space, schedule_products
from dlc.schedule.rules.tile import most_rows
from dlc.schedule.rules.transform_accuracy import chain
from dlc.schedule.rules.transform_parts import Transformed, find_transformed
from dlc.schedule.rules.transform_parts import kept as kept
from dlc.schedule.rules.transform_plan import (
    OPEN_HIGH,
    OPEN_STRIP,
    Plan,
    Shape,
    Volume,
    choose_plan,
)
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.schedule.work import written_out
from dlc.te.affine import coefficients
from dlc.te.expr import Expr
from dlc.te.transform import loads
from dlc.te.types import const_or_none

MOST_BEHIND = 4096  # operations behind the transforms that are written out for a tile
SEVERAL = 4  # blocks of channels, beside which the memory of one more is little


def match(func: Func, target: Target) -> Transformed | None:
    """The transformed products in a function whose moves are inlined, or None."""
    return find_transformed(func)


def space(func: Func, target: Target) -> Space:
    """Rows of tiles in a strip, columns of a group, the outer loop, and the tiles of the products.

    0 and -1 stand for the analytic choice.
    """
    found = match(func, target)
    images = (0,) if found is None or found.image is None else (0, 1, 2, 4, 8)
    strips = {"strip": (0, 1, 2, 4, 7, 8), "group": (0, 1, 2, 3, 4, 6), "images": images}
    return products_space(target, {**strips, "columns_outer": (-1, 0, 1)})


def schedule(trace: Trace, found: Transformed, target: Target, knobs: Mapping[str, int]) -> None:
    """Bring all of a strip together, and tile the products; see the module."""
    shape = _shape(trace.func, found, target)
    plan = choose_plan(shape, target, knobs)
    outer, groups, inside, tile, inner = _order(trace, found, plan)
    first, *others = found.readers
    for name in reversed(others):
        trace.do("compute_at", name, inner[-1])
    trace.do("compute_at", first, tile)
    if found.sum_columns is not None:
        trace.do("compute_at", found.sum_columns, tile)
        _in_registers(trace, found.sum_columns)
    is_short = _is_short(trace, found)
    for name in inner if is_short else ():
        trace.do("unroll", name)
    for name in found.readers:
        stage = trace.stage(name)
        if stage.is_reduction:
            trace.do("guard_sum", name)
        for each in stage.names[-1 - len(inner) : -1] if name == first else ():
            trace.do("unroll", each)
        trace.do("vectorize", stage.names[-1])
        if name != first or is_short:
            trace.do("set_scope", name, "register")
    trace.do("vectorize", found.lane)
    trace.do("compute_at", found.sums, inside)
    trace.do("compute_at", found.operand, outer)
    axes, outside = len(found.tile), plan.columns_outside
    pixels, weights = slice(1, 1 + axes), slice(axes)
    _operand(trace, found.operand, found.pixel_columns, pixels, target, parallel=outside)
    if found.weights is not None:
        if outside:
            trace.do("compute_at", found.weights, groups)
        _operand(trace, found.weights, found.weight_columns, weights, target, parallel=not outside)
    _fuse_rows(trace, found)
    schedule_products(
        trace, found.sums, target, knobs, chain(found.tile, found.positions, shape.depth)
    )


def _shape(func: Func, found: Transformed, target: Target) -> Shape:
    made = {name: a.buffer.type for name, a in allocs(func.body).items()}
    shape, element_bytes = made[found.sums].shape, made[found.operand].dtype.size_bytes
    stage = next(s for s in stages(func) if s.buffer == found.sums)
    lead, *positions, blocks = (const_or_none(n) for n in shape[: found.place])
    high, *rest = (const_or_none(n) for n in shape[-1 - len(found.tile) : -1])
    wide = rest[0] if rest else 1
    strip = OPEN_HIGH if rest else OPEN_STRIP
    depth = math.prod(const_or_none(f.extent) or 1 for f in stage.inner)
    volume = Volume() if found.image is None else _volume(stage, found, shape[found.place])
    count = math.prod(p or 1 for p in positions)
    axes = len(found.tile)
    return Shape(lead, high, wide, count, depth, blocks or 1, volume, axes, strip, element_bytes)


def _volume(sums: Stage, found: Transformed, images: Expr) -> Volume:
    """Which images of a volume the sums read."""
    taps = {f.var: const_or_none(f.extent) or 1 for f in sums.inner}
    (read,) = {x.index[found.place] for x in loads(sums.value) if x.buffer == found.operand}
    steps = coefficients(read) or {}
    along = [(taps[name], step) for name, step in steps.items() if name in taps]
    reach = 1 + sum((count - 1) * step for count, step in along)
    stride = sum(step for name, step in steps.items() if name in sums.names)
    return Volume(const_or_none(images), math.prod(count for count, _ in along), stride, reach)


def _is_short(trace: Trace, found: Transformed) -> bool:
    """Whether what is done with a result is little enough to be written out for each of a tile."""
    names = (*found.readers[1:], found.result)
    each = sum(written_out(trace.stage(name).store) for name in names)
    return each * math.prod(found.tile) <= MOST_BEHIND


def _order(
    trace: Trace, found: Transformed, plan: Plan
) -> tuple[str, str, str, str, tuple[str, ...]]:
    """Cut and order the loops of the result.

    Returns:
        Those that operand, weights, sums and transformed are made in, and those over the results of
        a tile.
    """
    tops, inner = zip(*map(trace.split, found.rows, found.tile), strict=True)
    strip, row = trace.split(tops[0], plan.strip) if plan.strip else (None, tops[0])
    rows = (row, *tops[1:])
    groups, block = trace.split(found.block, plan.group)
    images = () if found.image is None else (trace.split(found.image, plan.images),)
    of_volume, of_strip = [i for i, _ in images], [i for _, i in images]
    below = (block, *of_strip, *rows, *inner, found.lane)
    if plan.columns_outside:
        whole = trace.constant(groups)
        assert whole is not None
        place, groups = trace.split(groups, whole)
        strips = (strip,) if strip else ()
        trace.do("reorder", (found.lead, place, groups, *of_volume, *strips, *below))
        trace.do("parallel", groups)
        return place, groups, strip or groups, rows[-1], inner
    assert strip is not None, "only where columns are outside are all rows one strip"
    trace.do("reorder", (found.lead, *of_volume, strip, groups, *below))
    fused = trace.fuse_all([found.lead, *of_volume, strip])
    trace.do("parallel", fused)
    return fused, groups, groups, rows[-1], inner


def _fuse_rows(trace: Trace, found: Transformed) -> None:
    """Let the tiles of an image lie one behind the other, and their products be one loop.

    Rows of which only some are there, as of the last strip of an open number, stay as they are: a
    guard stands in their loop.
    """
    if len(found.rows) != 2 or found.image is not None:
        return
    *_, row, column, _ = trace.stage(found.sums).names
    if not isinstance(trace.loop(row).body, For):
        return
    trace.fuse_all([row, column])
    for name in (found.operand, found.sums):
        rank = len(allocs(trace.func.body)[name].buffer.type.shape)
        trace.do("fuse_dims", name, rank - 3)


def _operand(
    trace: Trace, name: str, columns: str | None, among: slice, target: Target, *, parallel: bool
) -> None:
    """Compute all products' operands of one tile at once: its pixels, or weights, are loaded once.

    The loops over its products are `among` those of the operand.
    """
    *others, column, lane = trace.stage(name).names
    positions = others[among]
    outer = [v for v in others if v not in positions]
    trace.do("reorder", (*outer, column, *positions, lane))
    if columns is not None:
        trace.do("compute_at", columns, column)
        _in_registers(trace, columns)
    for each in positions:
        trace.do("unroll", each)
    trace.do("vectorize", lane)
    if parallel:
        trace.do("parallel", trace.fuse_all(outer))
    _spread(trace, name, among, target)


def _spread(trace: Trace, name: str, among: slice, target: Target) -> None:
    """Let products of one tile, which are stored one after the other, lie in different sets.

    Where a run tells how many tiles there are, they may be pages apart.

    Source: measured on Zen 3: pages apart, a layer of 7 x 7 pixels and 512 channels takes 1.8 times
    as long. On Zen 5, an open one of 14 x 14 pixels and 256 channels 1.08 times.
    """
    type_ = allocs(trace.func.body)[name].buffer.type
    products, behind = type_.shape[among], [const_or_none(n) for n in type_.shape[among.stop :]]
    place = len(products) + 1  # of the blocks of channels, in either operand
    if None in behind:
        are_apart = (const_or_none(type_.shape[place]) or 1) >= SEVERAL
    else:
        stride = math.prod(n or 1 for n in behind) * type_.dtype.size_bytes
        are_apart = most_rows(stride, target) < math.prod(const_or_none(n) or 1 for n in products)
    if are_apart:
        trace.do("pad_dim", name, place, 1)


def _in_registers(trace: Trace, name: str) -> None:
    """Compute the columns of one tile in vectors that nothing else sees."""
    *others, lane = trace.stage(name).names
    for each in others:
        trace.do("unroll", each)
    trace.do("vectorize", lane)
    trace.do("set_scope", name, "register")
