"""Attention: a sum of products, a chain over its rows (softmax), and a sum of products with that.

    scores = queries @ keys    weights = softmax(scores + mask)    result = weights @ values

All of it runs for a block of rows of one matrix before the next block starts, so the scores stay
in the second-level cache and never become a tensor. The keys are packed once for all rows of a
matrix; where matrices are too few for all cores, those of all matrices are packed before, and
blocks of rows run parallel. So are the values, if there are rows enough: lines that lie a tensor
apart share a few sets of the first-level cache, and each is on a page of its own. Both products are
tiled as any contraction is; what lies between them runs a few rows at a time, which stay in the
first-level cache and do not wait for each other. What blocks leave of the rows is a nest of its
own, with buffers of its own.

Products of pairs of bf16 read queries and weights that are rounded, a block of rows at a time, and
keys and values that are rounded and packed in tiles once for all rows of a matrix.

The whole row of scores is there before its softmax starts: an online softmax would only pay where
a few rows of scores overflow the cache, at more than 10,000 keys.

Source: Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness"
(2022), for keeping blocks of scores in fast memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from dlc.core.errors import ScheduleError
from dlc.core.target import Target
from dlc.schedule.instruction import DOT_2XBF16_F32
from dlc.schedule.loop import Func, Store, allocs, loops
from dlc.schedule.nest import Stage, readers, stages, stages_of
from dlc.schedule.rules import contract, row
from dlc.schedule.rules.contraction import Contraction, added_at_once, analyse
from dlc.schedule.rules.lines import is_shared
from dlc.schedule.rules.planes import is_tiles, pack_tiles
from dlc.schedule.rules.row_blocks import MIN_ROWS, choose_block
from dlc.schedule.rules.vectorize import cut_rest
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.affine import with_sizes
from dlc.te.expr import ONE, ZERO, Const, Expr, Load
from dlc.te.simplify import surely_divides, surely_equal
from dlc.te.transform import free_vars, loads
from dlc.te.types import const_size

PACKED_ROWS = 32  # of a matrix, from which on packed values take less time than packing them
LAST = "_last"  # behind the names of what is computed of rows that whole blocks leave
TOGETHER = 4  # rows whose reductions run one after the other: each ends in a chain of shuffles


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
    queries: str | None = None  # the rows of the first product, where products are of pairs

    @property
    def in_blocks(self) -> list[str]:
        """What is computed for a block of rows, in order."""
        parts = (self.queries, self.scores, self.masked, *self.chain, self.weights, self.mixed)
        return [name for name in parts if name is not None]

    def of_last(self) -> Attention:
        """The same for the rows that whole blocks leave, whose buffers are copies."""
        return replace(
            self,
            scores=f"{self.scores}{LAST}",
            masked=self.masked and f"{self.masked}{LAST}",
            chain=tuple(f"{name}{LAST}" for name in self.chain),
            weights=f"{self.weights}{LAST}",
            mixed=f"{self.mixed}{LAST}",
            queries=self.queries and f"{self.queries}{LAST}",
        )


def match(func: Func, target: Target) -> Attention | None:
    """The attention in a function of which only moves are inlined, or None."""
    found = stages(func)
    products = [s for s in found if s.is_reduction and s.factors is not None]
    if len(products) != 2 or len(func.outputs) != 1:
        return None
    scores, mixed = products
    result = found[-1]
    if sum(s.buffer == result.buffer for s in found) > 1:  # what is around it is written apart
        return None
    second = analyse(func, mixed, result)
    pairs = [x for s in products if (x := _of_pairs(s, found)) is not None]
    if len(pairs) == 1:
        return None
    made = pairs[1].rows if pairs else _weights(found, mixed, target)
    if second is None or made is None or result.buffer != func.outputs[0].name:
        return None
    if len(second.rows) != 1 or not second.batch or second.columns or _is_low(result, second):
        return None
    chain = found[found.index(scores) + 1 : found.index(made)]
    whole = scores if pairs else made  # pairs fill up the last of a row of weights
    if whole.loops[-1].extent == ONE or not _same_rows(made, whole):
        return None
    if not all(is_of_rows(s, whole) for s in (scores, *chain)):
        return None
    using = [s for s in found if s.reads(scores.buffer)]
    alone = len(using) == 1 and not using[0].is_reduction and using[0] in chain
    first = analyse(func, scores, using[0] if alone else _copy(scores))
    if first is None or len(first.rows) != 1 or first.columns:
        return None
    packed = [x.packed for x in (first, second) if x.packed in allocs(func.body) and x.packed]
    return Attention(
        scores.buffer,
        using[0].buffer if alone else None,
        tuple(s.buffer for s in chain if not alone or s is not using[0]),
        made.buffer,
        mixed.buffer,
        result.buffer,
        tuple(x.tiles for x in pairs) if pairs else tuple(packed),
        second.batch,
        second.rows[0],
        pairs[0].rows.buffer if pairs else None,
    )


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The operands of a product of pairs: the stage that rounds its rows, and packed columns."""

    rows: Stage
    tiles: str


def _of_pairs(product: Stage, found: list[Stage]) -> _Pairs | None:
    """The operands of a product, where it is one of pairs and both are made here; else None."""
    if added_at_once(product) is not DOT_2XBF16_F32 or product.factors is None:
        return None
    lane = product.names[-1]
    columns, rows = (
        {x.buffer for f in product.factors if (lane in free_vars(f)) is side for x in loads(f)}
        for side in (True, False)
    )
    made = {s.buffer: s for s in found if not s.is_reduction}
    if len(rows) != 1 or len(columns) != 1 or not rows | columns <= made.keys():
        return None
    tiles = columns.pop()
    return _Pairs(made[rows.pop()], tiles) if is_tiles(made[tiles]) else None


def _same_rows(a: Stage, b: Stage) -> bool:
    """Whether two stages have the same loops but for the innermost."""
    pairs = zip(a.loops[:-1], b.loops[:-1], strict=False)
    return len(a.loops) == len(b.loops) and all(surely_equal(x.extent, y.extent) for x, y in pairs)


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
    same = _same_rows(stage, made)
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
    if found.queries is not None:
        found = _round_at_once(trace, found)
    else:
        found = _pack_values(trace, found)
    lane = trace.stage(found.result).names[-1]
    trace.do("reorder", (*found.batch, found.rows, lane))
    matrices = matrices_of(trace, found.batch)
    at, whole = _block(trace, found, matrices, target, knobs)
    apart = at not in found.batch and is_shared(matrices, target)
    for buffer in reversed(found.in_blocks):
        trace.do("compute_at", buffer, at)
    for operand in found.operands:
        if not apart:
            trace.do("compute_at", operand, found.batch[-1])
        if found.queries is not None:
            pack_tiles(trace, operand)
        else:
            _lay_in_panels(trace, operand, target.lanes(4))
    parts = [(found, at)]
    if whole is not None:
        trace.do("partition", at, str(whole), LAST)
        trace.do("once", f"{at}{LAST}")
        for var in reversed(found.batch if apart else ()):
            trace.do("fission", var, LAST)
        parts.append((found.of_last(), f"{at}{LAST}"))
    for part, loop in parts:
        _tile(trace, part, loop, target)


def _tile(trace: Trace, found: Attention, at: str, target: Target) -> None:
    """Tile the products of a block of rows, and bring what is between them together."""
    line = _few_rows(trace, found, target)
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


def _round_at_once(trace: Trace, found: Attention) -> Attention:
    """Round the weights where they are computed, if nobody else reads them."""
    read = {x.buffer for x in loads(trace.stage(found.weights).value)}
    name = next(iter(found.chain[-1:]), "")
    if read != {name} or readers(trace.func, name) > 1 or trace.stage(name).is_reduction:
        return found
    trace.do("compute_inline", name)
    return replace(found, chain=found.chain[:-1])


def _pack_values(trace: Trace, found: Attention) -> Attention:
    """Bring the values of each matrix together before all that reads them, if rows are many."""
    total, result = (trace.stage(name) for name in (found.mixed, found.result))
    second = analyse(trace.func, total, result)
    assert second is not None, "it was found as such"
    assert total.factors is not None, "values are mixed by a sum of products"
    *batch, row, lane = total.names
    side = int(lane in free_vars(total.factors[1]))
    rows = trace.constant(found.rows)
    few = rows is not None and rows < PACKED_ROWS
    if few or second.packed is not None or row in free_vars(total.factors[side]):
        return found
    name, trial = f"{found.mixed}_values", trace.copy()
    axes = (total.inner[-1].var, lane)
    try:
        trial.do("cache_factor", found.mixed, side, batch[-1], axes, name, "local")
        for var in reversed(batch):
            trial.do("expand_alloc", name, var)
            trial.do("fission", var)
    except ScheduleError:
        return found  # what they are made of depends on the row
    trace.take(trial)
    return replace(found, operands=(*found.operands, name))


def _few_rows(trace: Trace, found: Attention, target: Target) -> str:
    """The loop over some rows of weights whose stages alternate, or over single ones."""
    *_, line, key = trace.stage(found.weights).names
    width, rows = trace.constant(key), trace.constant(line)
    most = TOGETHER if width is None else min(TOGETHER, target.l1_bytes // (2 * 4 * width))
    if most < 2 or (rows is not None and rows <= most):
        return line
    return trace.split(line, most)[0]


def _lay_in_panels(trace: Trace, operand: str, lanes: int) -> None:
    """Store the columns of an operand in panels of a vector, as those of a weight, one by one.

    A tile then reads lines side by side, and what a panel is gathered from stays in the cache.
    """
    *_, summand, column = trace.stage(operand).names
    width = trace.constant(column)
    if width is not None and width <= lanes:
        return
    extent = trace.extent(column)
    panel, _ = trace.split(column, lanes)
    trace.do("reorder", (panel, summand))
    cut_rest(trace, panel, extent, lanes, "_v")  # whole panels have no guards
    rank = len(trace.stage(operand).store.index)
    order = (*range(rank - 2), rank - 1, rank - 2, rank)
    trace.do("transform_layout", operand, order, (*(1,) * (rank - 1), lanes))


def _product(
    trace: Trace, parts: tuple[str, str], at: str, found: Attention, target: Target
) -> None:
    """Tile a product and what is written from it, both in the loop `at`."""
    total, result = (_stage(trace, name, at) for name in parts)
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


def _stage(trace: Trace, buffer: str, at: str) -> Stage:
    """The nest in a loop that computes a buffer, which those of other loops may compute, too."""
    found = stages_of(trace.func, buffer)
    return next((s for s in found if at in s.names), found[0])


def matrices_of(trace: Trace, loops: Sequence[str]) -> int:
    """How many matrices loops go through, in a batch of one where a run tells its size."""
    count = prod((trace.extent(name) for name in loops), start=ONE)
    return const_size(with_sizes(count, 1))


def _block(
    trace: Trace,
    found: Attention,
    matrices: int,
    target: Target,
    knobs: Mapping[str, int],
) -> tuple[str, Expr | None]:
    """The loop in which all of a block of rows is computed: over blocks, or over matrices.

    Where blocks leave rows, the number of whole ones comes with it.
    """
    extent = trace.extent(found.rows)
    width = trace.constant(trace.stage(found.weights).names[-1])
    size = choose_block(extent, width, matrices, target, knobs.get("block", 0))
    if not size:
        return found.batch[-1], None
    at, _ = trace.split(found.rows, size)
    return at, (None if surely_divides(size, extent) else extent // size)
