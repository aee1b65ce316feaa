"""Sums of products between two transforms, as in Winograd's convolution.

The row operand is computed from tiles of the image, the result from several sums of one tile. A
strip of the result keeps both in the second cache:

Before:
    operand -> sums -> transformed -> exact -> result

After:
    for strip (parallel):                 operand
        operand of the strip              for some columns (parallel):
        for some columns:            or       for strip:
            sums, result                          sums, result

Columns are the outer loop where there are more weights than a strip pays for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dlc.core.target import Target
from dlc.schedule.loop import Func, allocs
from dlc.schedule.nest import Stage, simple_index, stages
from dlc.schedule.rules.inner import products_space, schedule_products
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.expr import ONE, ZERO, Binary, BinOp, Const, Expr, Load, Select, Var
from dlc.te.transform import loads, walk

MAX_GROUP = 6  # vectors of columns whose sums are computed together
FMA_SHARE = 0.8  # of the peak, that the products reach
TRANSFORM = 70.0  # cycles to transform a tile of one vector of channels, in or out; measured
FAR_BYTES = 8.0  # bytes in a cycle from beyond the second cache
NEAR_SHARE = 0.75  # of the second cache, up to which what is read again is still there


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of the products. A number of tiles is None where a run tells it."""

    lead: int | None  # images
    high: int | None  # rows of tiles
    wide: int | None  # tiles of a row
    positions: int  # products of one tile for one pair of channels
    depth: int  # summands
    blocks: int  # vectors of columns


@dataclass(frozen=True, slots=True)
class Plan:
    """Rows of tiles of a strip, vectors of columns of a group, and whether columns are outside."""

    strip: int
    group: int
    columns_outside: bool


@dataclass(frozen=True, slots=True)
class Transformed:
    """The parts of a function, by buffers and by loops of the nest that writes the result."""

    operand: str
    sums: str
    readers: tuple[str, ...]  # what reads the sums before the result, in order
    lead: str
    block: str
    rows: tuple[str, str]
    lane: str
    tile: int  # results of one tile along each of the rows


def kept(func: Func) -> frozenset[str]:
    """The intermediates around the sums, which are computed once for many of them."""
    parts = _parts(stages(func))
    return frozenset() if parts is None else frozenset({parts[0].buffer, parts[2].buffer})


def match(func: Func, target: Target) -> Transformed | None:
    """The transformed products in a function whose moves are inlined, or None."""
    found = stages(func)
    parts = _parts(found)
    if parts is None:
        return None
    operand, sums, transformed = parts
    tile = _tile(transformed)
    readers = [transformed]
    for stage in found[found.index(transformed) + 1 :]:
        known = {r.buffer for r in readers}
        if any(x.buffer in known for x in loads(stage.value)):
            readers.append(stage)
    result = readers[-1]
    if tile is None or not all(_in_place(r, transformed) for r in readers[1:]):
        return None
    if len(result.loops) != 5 or result.is_reduction or len(sums.loops) != 7:
        return None
    if not all(isinstance(sums.loops[d].extent, Const) for d in (1, 2, 3, 6)):
        return None
    lead, block, *rows, lane = result.names
    before = tuple(r.buffer for r in readers[:-1])
    return Transformed(
        operand.buffer, sums.buffer, before, lead, block, (rows[0], rows[1]), lane, tile
    )


def _parts(found: list[Stage]) -> tuple[Stage, Stage, Stage] | None:
    """The operand, the sums, and what is computed of several sums at each place."""
    for sums in found:
        factors = sums.factors
        if factors is None or not isinstance(factors[0], Load):
            continue
        made = [s for s in found if s.buffer == factors[0].buffer]
        readers = [s for s in found if any(x.buffer == sums.buffer for x in loads(s.value))]
        if len(made) != 1 or made[0].is_reduction or not isinstance(made[0].value, Select):
            continue
        if len(readers) == 1 and not readers[0].is_reduction and _tile(readers[0]) is not None:
            return made[0], sums, readers[0]
    return None


def _tile(stage: Stage) -> int | None:
    """By what its own positions are divided to find the tile that an element is of."""
    if len(stage.loops) != 5 or not isinstance(stage.value, Select):
        return None
    found = set[Expr]()
    for load in loads(stage.value):
        for i in load.index:
            for node in walk(i):
                match node:
                    case Binary(BinOp.FLOORDIV, Var(name), Const()) if name in stage.names[2:4]:
                        found.add(node.b)
    factors = [int(f.value) for f in found if isinstance(f, Const)]
    return factors[0] if len(factors) == 1 else None


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
    strips = {"strip": (0, 1, 2, 4, 7, 8), "group": (0, 1, 2, 3, 4, 6)}
    return products_space(target, {**strips, "columns_outer": (-1, 0, 1)})


def choose_plan(shape: Shape, target: Target, knobs: Mapping[str, int]) -> Plan:
    """The cheapest plan; knobs other than 0 and -1 decide."""
    strips = _divisors(shape.high, 64)
    groups = _divisors(shape.blocks, MAX_GROUP)
    options = [Plan(s, g, o) for s in strips for g in groups for o in (False, True)]
    wanted = knobs.get("strip", 0), knobs.get("group", 0), knobs.get("columns_outer", -1)
    for field, value in zip(("strip", "group", "columns_outside"), wanted, strict=True):
        chosen = [p for p in options if getattr(p, field) == value]
        options = chosen or options
    return min(options, key=lambda plan: cycles(shape, plan, target))


def _divisors(extent: int | None, most: int) -> list[int]:
    if extent is None:
        return [1]
    return [d for d in range(1, min(extent, most) + 1) if extent % d == 0] or [1]


def cycles(shape: Shape, plan: Plan, target: Target) -> float:
    """An estimate of the time of all threads together."""
    lanes = target.lanes(4)
    lead, high, wide = shape.lead or 1, shape.high or 32, shape.wide or 32
    tiles = lead * high * wide
    columns = shape.blocks * lanes
    products = tiles * shape.positions * shape.depth * shape.blocks / (2 * FMA_SHARE)
    narrow = 1.15 if plan.group == 1 and target.multiply_adds > 1 else 1.0  # a vector a broadcast
    few = max(1.0, 12 / (plan.strip * wide))  # rows feed too few multiply-adds for each load
    total = products * narrow * math.sqrt(math.sqrt(few))
    total += tiles * TRANSFORM * (shape.depth / lanes + shape.blocks)
    weights = shape.positions * shape.depth * columns * 4
    strips = lead * high // plan.strip
    strip = plan.strip * wide * shape.positions * shape.depth * 4
    sums = plan.strip * wide * shape.positions * plan.group * lanes * 4
    near = NEAR_SHARE * target.l2_bytes
    groups = shape.blocks // plan.group
    if plan.columns_outside:
        tasks = groups
        far = weights + strip * strips * (groups if strip * strips + sums > near else 0)
    else:
        tasks = strips
        far = weights * (strips if weights + strip + sums > near else 1)
        far += strip * strips * (groups if strip + sums > near else 0)
    rounds = -(-tasks // target.cores)
    return (total + far / FAR_BYTES) * rounds * target.cores / max(tasks, 1)


def schedule(trace: Trace, found: Transformed, target: Target, knobs: Mapping[str, int]) -> None:
    """Bring all of a strip together, and tile the products; see the module."""
    plan = choose_plan(_shape(trace.func, found, target), target, knobs)
    outer, inside, tile, last = _order(trace, found, plan)
    first, *others = found.readers
    for name in reversed(others):
        trace.do("compute_at", name, last)
    trace.do("compute_at", first, tile)
    for name in found.readers:
        stage = trace.stage(name)
        if stage.is_reduction:
            trace.do("guard_sum", name)
        for each in stage.names[2:4] if name == first else ():
            trace.do("unroll", each)
        trace.do("vectorize", stage.names[-1])
        trace.do("set_scope", name, "register")
    trace.do("vectorize", found.lane)
    trace.do("compute_at", found.sums, inside)
    trace.do("compute_at", found.operand, outer)
    _operand(trace, found.operand, parallel=plan.columns_outside)
    schedule_products(trace, found.sums, target, knobs)


def _shape(func: Func, found: Transformed, target: Target) -> Shape:
    shape = allocs(func.body)[found.sums].buffer.type.shape
    stage = next(s for s in stages(func) if s.buffer == found.sums)
    lead, *positions, blocks, high, wide, _ = (_constant(n) for n in shape)
    depth = math.prod(_constant(f.extent) or 1 for f in stage.inner)
    return Shape(lead, high, wide, math.prod(p or 1 for p in positions), depth, blocks or 1)


def _constant(extent: Expr) -> int | None:
    return int(extent.value) if isinstance(extent, Const) else None


def _order(trace: Trace, found: Transformed, plan: Plan) -> tuple[str, str, str, str]:
    """Cut and order the loops of the result; those that operand, sums and readers are made in."""
    tops, inner = zip(*(trace.split(v, found.tile) for v in found.rows), strict=True)
    strip, row = trace.split(tops[0], plan.strip)
    groups, block = trace.split(found.block, plan.group)
    below = (block, row, tops[1], *inner, found.lane)
    for name in inner:
        trace.do("unroll", name)
    if plan.columns_outside:
        whole = trace.constant(groups)
        assert whole is not None
        place, groups = trace.split(groups, whole)
        trace.do("reorder", (found.lead, place, groups, strip, *below))
        trace.do("parallel", groups)
        return place, strip, tops[1], inner[1]
    trace.do("reorder", (found.lead, strip, groups, *below))
    fused = trace.fuse_all([found.lead, strip])
    trace.do("parallel", fused)
    return fused, groups, tops[1], inner[1]


def _operand(trace: Trace, name: str, *, parallel: bool) -> None:
    """Compute all products' operands of one tile at once: its pixels are loaded once."""
    lead, *positions, block, row, column, lane = trace.stage(name).names
    trace.do("reorder", (lead, block, row, column, *positions, lane))
    for each in positions:
        trace.do("unroll", each)
    trace.do("vectorize", lane)
    if parallel:
        trace.do("parallel", trace.fuse_all([lead, block, row]))
