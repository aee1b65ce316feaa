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
from dataclasses import dataclass

from dlc.core.target import Target
from dlc.schedule.loop import For, Func, allocs
from dlc.schedule.nest import Stage, simple_index, stages
from dlc.schedule.rules.inner import products_space, schedule_products
from dlc.schedule.rules.tile import most_rows
from dlc.schedule.rules.transform_accuracy import chain
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
from dlc.te.expr import ONE, ZERO, Binary, BinOp, Cast, Const, Expr, Load, Select, Var
from dlc.te.transform import loads, walk
from dlc.te.types import const_or_none, const_size

MOST_BEHIND = 4096  # operations behind the transforms that are written out for a tile
SEVERAL = 4  # blocks of channels, beside which the memory of one more is little
RANKS = (3, 4)  # without those of a tile: of images, and of volumes


@dataclass(frozen=True, slots=True)
class Transformed:
    """The parts of a function, by buffers and by loops of the nest that writes the result."""

    pixel_columns: str | None  # of tiles of two axes, as the columns of sums
    operand: str
    sums: str
    sum_columns: str | None
    weight_columns: str | None
    weights: str | None  # that are transformed in a run, as pixels are
    readers: tuple[str, ...]  # what reads those before the result, in order
    result: str
    lead: str
    block: str
    image: str | None  # of a volume
    rows: tuple[str, ...]
    lane: str
    tile: tuple[int, ...]  # results of one tile along each of the rows
    positions: tuple[int, ...]  # products of one tile, likewise

    @property
    def place(self) -> int:
        """That of a volume's images in an index of the operand."""
        return len(self.tile) + 2


@dataclass(frozen=True, slots=True)
class _Parts:
    """The stages around the sums, in order, and the results of a tile along both axes."""

    pixel_columns: Stage | None
    operand: Stage
    sums: Stage
    sum_columns: Stage | None
    weight_columns: Stage | None
    weights: Stage | None
    transformed: Stage
    tile: tuple[int, ...]


def kept(func: Func) -> frozenset[str]:
    """The intermediates around the sums, which are computed once for many of them."""
    parts = _parts(stages(func))
    if parts is None:
        return frozenset()
    around = (
        parts.pixel_columns,
        parts.operand,
        parts.weight_columns,
        parts.weights,
        parts.sum_columns,
        parts.transformed,
    )
    return frozenset(stage.buffer for stage in around if stage is not None)


def match(func: Func, target: Target) -> Transformed | None:
    """The transformed products in a function whose moves are inlined, or None."""
    found = stages(func)
    parts = _parts(found)
    if parts is None:
        return None
    readers = [parts.transformed]
    for stage in found[found.index(parts.transformed) + 1 :]:
        known = {r.buffer for r in readers}
        if any(x.buffer in known for x in loads(stage.value)):
            readers.append(stage)
    result = readers[-1]
    if not all(_in_place(r, readers[0]) for r in readers[1:]):
        return None
    axes = len(parts.tile)
    if len(result.loops) - axes not in RANKS or result.is_reduction:
        return None
    if len(parts.sums.loops) != len(result.loops) + axes:
        return None
    *positions, _ = around = parts.sums.loops[1 : axes + 2]  # and blocks
    if not all(isinstance(f.extent, Const) for f in (*around, parts.sums.loops[-1])):
        return None
    lead, block, *image, lane = result.names
    image, rows = image[:-axes], image[-axes:]
    return Transformed(
        pixel_columns=_name(parts.pixel_columns),
        operand=parts.operand.buffer,
        sums=parts.sums.buffer,
        sum_columns=_name(parts.sum_columns),
        weight_columns=_name(parts.weight_columns),
        weights=_name(parts.weights),
        readers=tuple(r.buffer for r in readers[:-1]),
        result=result.buffer,
        lead=lead,
        block=block,
        image=image[0] if image else None,
        rows=tuple(rows),
        lane=lane,
        tile=parts.tile,
        positions=tuple(const_size(f.extent) for f in positions),
    )


def _name(stage: Stage | None) -> str | None:
    return None if stage is None else stage.buffer


def _parts(found: list[Stage]) -> _Parts | None:
    """The sums, what their operand is computed of, and what is computed of them."""
    made = {s.buffer: s for s in found}
    for sums in found:
        operand, weights = (_made(made, factor) for factor in sums.factors or (None, None))
        reader = _if_select(_only_reader(found, sums))
        if operand is None or reader is None:
            continue
        if tile := _tile(reader, axes=1):
            return _Parts(None, operand, sums, None, None, weights, reader, tile)
        pixels = _if_select(made.get(_only_load(operand)))
        columns = _if_select(made.get(_only_load(weights))) if weights else None
        transformed = _if_select(_only_reader(found, reader))
        if pixels and transformed and (tile := _tile(transformed, axes=2)):
            return _Parts(pixels, operand, sums, reader, columns, weights, transformed, tile)
    return None


def _made(made: Mapping[str, Stage], factor: Expr | None) -> Stage | None:
    """The stage that makes a factor, which may be widened, in one of several ways."""
    load = factor.a if isinstance(factor, Cast) else factor
    return _if_select(made.get(load.buffer)) if isinstance(load, Load) else None


def _if_select(stage: Stage | None) -> Stage | None:
    """A stage whose elements are computed in one of several ways, by where they are."""
    is_one = stage is not None and not stage.is_reduction and isinstance(stage.value, Select)
    return stage if is_one else None


def _only_load(stage: Stage) -> str:
    """The one buffer that a stage reads, "" where there are others."""
    read = {x.buffer for x in loads(stage.value)}
    return read.pop() if len(read) == 1 else ""


def _only_reader(found: list[Stage], stage: Stage) -> Stage | None:
    """The one stage that reads another."""
    readers = [s for s in found if any(x.buffer == stage.buffer for x in loads(s.value))]
    return readers[0] if len(readers) == 1 else None


def _tile(stage: Stage, *, axes: int) -> tuple[int, ...] | None:
    """By what its own positions are divided to find the tile that an element is of."""
    if len(stage.loops) - axes not in RANKS or not isinstance(stage.value, Select):
        return None
    found = set[tuple[str, int]]()
    for load in loads(stage.value):
        for i in load.index:
            for node in walk(i):
                match node:
                    case Binary(BinOp.FLOORDIV, Var(name), Const(factor)):
                        found.add((name, int(factor)))
    along = dict(found)
    rows = stage.names[-1 - axes : -1]
    is_one = len(found) == len(along) == axes and set(along) == set(rows)
    return tuple(along[row] for row in rows) if is_one else None


def _in_place(stage: Stage, transformed: Stage) -> bool:
    """Whether a stage reads what was transformed at its own position, loop by loop."""
    for load in loads(stage.value):
        if load.buffer != transformed.buffer:
            continue
        for i, loop in zip(load.index, stage.loops, strict=False):
            simple = simple_index(i, stage.loops)
            if simple != Var(loop.var) and not (simple == ZERO and loop.extent == ONE):
                return False
    return True


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
