"""Attention on a matrix engine: two sums of products of bf16 planes with a chain over rows between.

    scores = queries @ keys    weights = softmax(scores + mask)    result = weights @ values

The keys and values of a matrix are packed as tiles once. Then 32 rows at a time: the queries are
split into planes, all scores of the rows are summed up, the chain runs row by row, and the weights
are split and multiplied by the values.

    for matrix (parallel):
        tiles of the keys, tiles of the values
        for rows / 32:
            planes of the queries, sums of the scores
            for row: scores, chain, weights
            planes of the weights, sums
            for row: result

Where matrices are too few for all cores, tiles are packed before, and both loops run parallel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dlc.core.target import Target
from dlc.schedule.loop import Func, allocs
from dlc.schedule.nest import Stage, simple_index, stages
from dlc.schedule.rules import row
from dlc.schedule.rules.attend import is_of_rows, matrices_of
from dlc.schedule.rules.lines import is_shared
from dlc.schedule.rules.planes import (
    PAIR,
    ROWS,
    accumulate,
    finish_reader,
    is_product,
    pack_tiles,
    split_rows,
)
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.expr import Const, Var
from dlc.te.simplify import surely_equal
from dlc.te.transform import free_vars, loads
from dlc.te.types import is_const


@dataclass(frozen=True, slots=True)
class Product:
    """One sum of products of planes, by buffers."""

    rows: str
    tiles: str
    sums: str
    exact: str  # what is summed once more in float32
    result: str


@dataclass(frozen=True, slots=True)
class Attention:
    """The parts of an attention, by buffers and by loops of the nest that writes the result."""

    scores: Product
    chain: tuple[str, ...]  # from the scores to the weights, both left out
    weights: str
    mixed: Product
    stack: tuple[str, ...]  # loops over matrices
    row: str
    inner: tuple[str, ...]  # loops over one row, the last over 16 columns


def match(func: Func, target: Target) -> Attention | None:
    """The attention in a function of which only moves are inlined, or None."""
    if target.gpu is not None or "amx-bf16" not in target.features:
        return None
    found = stages(func)
    parts = [_product(found, s) for s in found if is_product(s)]
    if len(parts) != 2 or len(func.outputs) != 1 or found[-1].buffer != func.outputs[0].name:
        return None
    first, second = parts
    if first is None or second is None or second.result != found[-1].buffer:
        return None
    names = [s.buffer for s in found]
    read = {x.buffer for x in loads(found[names.index(second.rows)].value)}
    before = found[names.index(first.result) : names.index(second.rows)]
    made = [s for s in before if s.buffer in read and not s.is_reduction]
    if len(made) != 1:
        return None
    chain = before[: before.index(made[0])]
    if not _is_chain(chain, made[0]):
        return None
    between = tuple(s.buffer for s in chain[1:])
    return _of_result(found[-1], Attention(first, between, made[0].buffer, second, (), "", ()))


def _of_result(result: Stage, found: Attention) -> Attention | None:
    """The attention with the loops of its result: over matrices, rows and blocks of 16 columns."""
    position = _position(result, found.mixed.sums)
    if position is None:
        return None
    *stack, block, at, lane = position
    if at not in [(v,) for v in result.names] or lane != (result.names[-1],):
        return None
    if not is_const(result.loops[-1].extent, ROWS) or any(len(used) > 1 for used in stack):
        return None
    named = {v for used in position for v in used}
    ones = [f.var for f in result.loops if is_const(f.extent, 1) and f.var not in named]
    outer = (*ones, *(v for used in stack for v in used))
    inner = tuple(v for v in result.names if v in (*block, *lane))
    if not outer or len(outer) + 1 + len(inner) != len(result.names):
        return None
    return replace(found, stack=outer, row=at[0], inner=inner)


def _is_chain(chain: list[Stage], made: Stage) -> bool:
    """Whether scores, the first of the chain, become weights row by row, in rows of 16 or more.

    The columns of the scores may be cut in blocks of 16.
    """
    width, rank = made.loops[-1].extent, len(made.loops) - 1
    if not chain or rank < 2 or (isinstance(width, Const) and width.value < ROWS):
        return False
    first, *others = chain
    pairs = zip(first.loops[:rank], made.loops[:rank], strict=False)
    same = all(surely_equal(a.extent, b.extent) for a, b in pairs)
    fits = same and len(first.loops) in (rank + 1, rank + 2)
    return fits and all(is_of_rows(s, made) for s in others)


def _product(found: list[Stage], total: Stage) -> Product | None:
    """A sum of products with what it reads, and the two stages that read it."""
    assert total.factors is not None, "a product has factors"
    rows, tiles = (loads(f)[0].buffer for f in total.factors)
    readers = [s for s in found if s.reads(total.buffer)]
    made = {s.buffer for s in found}
    if [s.is_reduction for s in readers] != [True, False] or not {rows, tiles} <= made:
        return None
    return Product(rows, tiles, total.buffer, readers[0].buffer, readers[1].buffer)


def _position(result: Stage, sums: str) -> list[tuple[str, ...]] | None:
    """The loops of the result by the dimension of the sums whose index they are in."""
    at = {x.index for x in loads(result.value) if x.buffer == sums}
    if len(at) != 1:
        return None
    index = [simple_index(i, result.loops) for i in at.pop()]
    if index[-2] not in [Var(v) for v in result.names]:
        return None
    return [tuple(v for v in result.names if v in free_vars(i)) for i in index]


def space(func: Func, target: Target) -> Space:
    """Nothing to choose yet."""
    return Space({})


def schedule(trace: Trace, found: Attention, target: Target, knobs: Mapping[str, int]) -> None:
    """Bring all stages of 32 rows together; see the module."""
    first, second = found.scores, found.mixed
    pair, inside = trace.split(found.row, PAIR)
    trace.do("reorder", (*found.stack, pair, inside, *found.inner))
    apart = is_shared(matrices_of(trace, found.stack), target)
    trace.do("compute_at", second.exact, [inside, *found.inner][-2])
    finish_reader(trace, second.exact)
    trace.do("vectorize", found.inner[-1])
    _sum_at(trace, second, pair)
    if not apart:
        trace.do("compute_at", second.tiles, found.stack[-1])
    between = (first.result, *found.chain)
    for buffer in reversed((*between, found.weights, second.rows)):
        trace.do("compute_at", buffer, pair)
    line = trace.stage(found.weights).names[-2]
    for buffer in reversed(between):
        trace.do("compute_at", buffer, line)
    for buffer in found.chain:
        if trace.stage(buffer).is_reduction:
            row.in_lanes(trace, trace.stage(buffer), target.lanes(4))
    _scores(trace, first)
    _sum_at(trace, first, pair)
    if not apart:
        trace.do("compute_at", first.tiles, found.stack[-1])
    trace.do("compute_at", first.rows, pair)
    for part in (first, second):
        split_rows(trace, part.rows)
        accumulate(trace, part.sums)
        pack_tiles(trace, part.tiles)
    trace.do("parallel", trace.fuse_all([*found.stack, pair] if apart else list(found.stack)))


def _sum_at(trace: Trace, part: Product, loop: str) -> None:
    """Compute the sums of 32 rows, of whole panels of columns."""
    rank = len(allocs(trace.func.body)[part.sums].buffer.type.shape)
    trace.do("compute_at", part.sums, loop, (*(1,) * (rank - 3), 2, PAIR, 1))


def _scores(trace: Trace, part: Product) -> None:
    """Write the scores of a row from its sums, 16 at a time."""
    *outer, column = trace.stage(part.result).names
    block, lane = column, column
    if trace.constant(column) != ROWS:
        block, lane = trace.split(column, ROWS)
    else:
        block = outer[-1]
    trace.do("compute_at", part.exact, block)
    finish_reader(trace, part.exact)
    trace.do("vectorize", lane)
