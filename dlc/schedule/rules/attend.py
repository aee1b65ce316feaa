"""Attention: a sum of products, a chain over its rows (softmax), and a sum of products with that.

    scores = queries @ keys    weights = softmax(scores + mask)    result = weights @ values

All of it runs for a block of rows of one matrix before the next block starts, so the scores stay
in the second-level cache and never become a tensor. The keys are packed once for all rows of a
matrix. Both products are tiled as any contraction is; what lies between them runs row by row, so
that a row stays in the first-level cache.

The whole row of scores is there before its softmax starts: an online softmax would only pay where
a few rows of scores overflow the cache, at more than 10,000 keys.

Source: Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness"
(2022), for keeping blocks of scores in fast memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dlc.core.target import Target
from dlc.schedule.loop import Func, Store, allocs, loops
from dlc.schedule.nest import Stage, stages
from dlc.schedule.rules import contract, row
from dlc.schedule.rules.contraction import Contraction, analyse
from dlc.schedule.rules.prepare import unroll_factor
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.expr import ONE, ZERO, Const, Load
from dlc.te.simplify import surely_equal
from dlc.te.transform import loads

MIN_ROWS = 4  # of a matrix; below, the products are no tiles


@dataclass(frozen=True, slots=True)
class Attention:
    """The parts of an attention, by buffers and by loops of the nest that writes the result."""

    scores: str  # the first product
    masked: str | None  # what is written from it at its own position, if that is one buffer
    chain: tuple[str, ...]  # from there to the weights, both left out
    weights: str  # the rows of the second product
    mixed: str  # the second product
    result: str
    operands: tuple[str, ...]  # what the products read packed
    batch: tuple[str, ...]  # loops over matrices
    rows: str  # the loop over rows of one matrix


def match(func: Func, target: Target) -> Attention | None:
    """The attention in a function of which only moves are inlined, or None."""
    found = stages(func)
    products = [s for s in found if s.is_reduction and s.factors is not None]
    if len(products) != 2 or len(func.outputs) != 1:
        return None
    scores, mixed = products
    result = found[-1]
    second = analyse(func, mixed, result)
    made = _weights(found, mixed, target)
    if second is None or made is None or result.buffer != func.outputs[0].name:
        return None
    if len(second.rows) != 1 or not second.batch or second.columns or _is_low(result, second):
        return None
    chain = found[found.index(scores) + 1 : found.index(made)]
    if not all(is_of_rows(s, made) for s in (scores, *chain)):
        return None
    readers = [s for s in found if any(x.buffer == scores.buffer for x in loads(s.value))]
    alone = len(readers) == 1 and not readers[0].is_reduction and readers[0] in chain
    first = analyse(func, scores, readers[0] if alone else _copy(scores))
    if first is None or len(first.rows) != 1 or first.columns:
        return None
    return Attention(
        scores.buffer,
        readers[0].buffer if alone else None,
        tuple(s.buffer for s in chain if not alone or s is not readers[0]),
        made.buffer,
        mixed.buffer,
        result.buffer,
        tuple(x.packed for x in (first, second) if x.packed in allocs(func.body) and x.packed),
        second.batch,
        second.rows[0],
    )


def _weights(found: list[Stage], mixed: Stage, target: Target) -> Stage | None:
    """The stage that makes the rows of the second product, right before it.

    A GPU rounds them, or makes them wider, on their way to the product. Rows of one weight are
    no business of tiles.
    """
    factors = mixed.factors or ()
    if target.gpu is None:
        names = {f.buffer for f in factors if isinstance(f, Load)}
    else:
        names = {x.buffer for f in factors for x in loads(f)}
    before = found[: found.index(mixed)]
    made = [s for s in before if s.buffer in names and not s.is_reduction and not _moves(s)]
    if len(made) != 1 or not made[0].loops or made[0].loops[-1].extent == ONE:
        return None
    return made[0]


def _moves(stage: Stage) -> bool:
    return isinstance(stage.value, Load)


def _is_low(result: Stage, second: Contraction) -> bool:
    """Whether a matrix surely has too few rows for tiles, or one column only."""
    rows = next(f.extent for f in result.loops if f.var == second.rows[0])
    return (isinstance(rows, Const) and rows.value < MIN_ROWS) or result.loops[-1].extent == ONE


def is_of_rows(stage: Stage, made: Stage) -> bool:
    """Whether a stage is computed row by row as the weights are, or reduces whole rows."""
    pairs = list(zip(stage.loops, made.loops, strict=False))
    same = len(stage.loops) == len(made.loops) and all(
        surely_equal(a.extent, b.extent) for a, b in pairs[:-1]
    )
    last = stage.loops[-1].extent if stage.loops else ZERO
    whole, one = surely_equal(last, made.loops[-1].extent), last == ONE
    if stage.factors is not None:
        return same and whole
    return same and ((one and row.over_last(stage)) if stage.is_reduction else (one or whole))


def _copy(total: Stage) -> Stage:
    """The stage that would write a product unchanged."""
    index = total.store.index
    value = Load(total.buffer, index, total.value.dtype)
    return Stage(total.buffer, Store(total.buffer, index, value), total.loops, (), None)


def space(func: Func, target: Target) -> Space:
    """The rows of a block; 0 is the analytic choice."""
    return Space({"block": (0, 16, 32, 64, 128)})


def schedule(trace: Trace, found: Attention, target: Target, knobs: Mapping[str, int]) -> None:
    """Bring all stages of a block of rows together, then tile both products; see the module."""
    lane = trace.stage(found.result).names[-1]
    trace.do("reorder", (*found.batch, found.rows, lane))
    at = _block(trace, found, target, knobs)
    first = (found.scores, found.masked) if found.masked else (found.scores,)
    for buffer in reversed((*first, *found.chain, found.weights, found.mixed)):
        trace.do("compute_at", buffer, at)
    for operand in found.operands:
        trace.do("compute_at", operand, found.batch[-1])
        _lay_in_panels(trace, operand, target.lanes(4))
    line = trace.stage(found.weights).names[-2]
    for buffer in reversed(found.chain):
        trace.do("compute_at", buffer, line)
    for buffer in found.chain:
        if trace.stage(buffer).is_reduction:
            row.in_lanes(trace, trace.stage(buffer), target.lanes(4))
    if found.masked:
        _product(trace, (found.scores, found.masked), at, found, target)
    else:
        name, top = f"{found.scores}_product", trace.stage(found.scores).names[0]
        trace.do("cache_write", found.scores, top, name, "local")
        _product(trace, (name, found.scores), top, found, target)
    _product(trace, (found.mixed, found.result), at, found, target)


def _lay_in_panels(trace: Trace, operand: str, lanes: int) -> None:
    """Store the columns of an operand in panels of a vector, as those of a weight, one by one.

    A tile then reads lines side by side, and what a panel is gathered from stays in the cache.
    """
    *_, summand, column = trace.stage(operand).names
    width = trace.constant(column)
    if width is not None and width <= lanes:
        return
    panel, _ = trace.split(column, lanes)
    trace.do("reorder", (panel, summand))
    rank = len(trace.stage(operand).store.index)
    order = (*range(rank - 2), rank - 1, rank - 2, rank)
    trace.do("transform_layout", operand, order, (*(1,) * (rank - 1), lanes))


def _product(
    trace: Trace, parts: tuple[str, str], at: str, found: Attention, target: Target
) -> None:
    """Tile a product and what is written from it, both in the loop `at`."""
    total, result = (trace.stage(name) for name in parts)
    product = analyse(trace.func, total, result)
    assert product is not None, "compute_at keeps the form of a product"
    inside = loops(trace.loop(at).body)
    product = replace(
        product,
        rows=tuple(v for v in product.rows if v in inside),
        batch=tuple(v for v in product.batch if v in inside),
        packed=None if product.packed in found.operands else product.packed,
        within=at,
    )
    contract.schedule(trace, product, target, {})


def _block(trace: Trace, found: Attention, target: Target, knobs: Mapping[str, int]) -> str:
    """The loop in which all of a block of rows is computed: over blocks, or over matrices."""
    rows = trace.constant(found.rows)
    width = trace.constant(trace.stage(found.weights).names[-1])
    if rows is None or width is None:
        return found.batch[-1]
    most = knobs.get("block", 0) or max(1, target.l2_bytes // 4 // (2 * 4 * width))
    size = unroll_factor(trace.extent(found.rows), most)
    if size == rows or size < MIN_ROWS:  # mostly a prime number of rows
        return found.batch[-1]
    return trace.split(found.rows, size)[0]
