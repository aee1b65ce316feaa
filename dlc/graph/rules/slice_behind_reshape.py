"""reshape(slice(x)) -> slice(reshape(x)), where a slice of the last axis takes whole rows of the
two axes that the reshape makes of it (the heads of attention), or takes one of several last axes,
which the reshape makes two of.

A reshape of the whole renames memory, and a slice at the end is index arithmetic in its readers;
the other way round the slice must be copied.
"""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.shape import Reshape, Slice
from dlc.graph.rewrite import Match, Pattern, Refusal, rule
from dlc.graph.rules.one_before_moves import moves_units
from dlc.te.expr import ONE, Const
from dlc.te.types import is_const, same_shape


@rule(Pattern(Reshape, (Pattern(Slice, ("x",), name="part"),)))
def slice_behind_reshape(match: Match) -> Value | Refusal:
    """Split the last axis before taking part of it."""
    x, part, result = match["x"].type, match["part"].type, match.root.output.type
    op = match.op(Slice)
    if x.shape[:-1] != part.shape[:-1] or not all(is_const(s, 0) for s in op.starts[:-1]):
        return Refusal("the slice is not of the last axis alone")
    if op.steps:
        return Refusal("the slice leaves elements out")
    if result.rank != x.rank + 1 or result.shape[:-2] != x.shape[:-1]:
        return Refusal("the reshape does not split the last axis alone")
    row, whole, start = result.shape[-1], x.shape[-1], op.starts[-1]
    if not isinstance(row, Const) or not isinstance(whole, Const) or not isinstance(start, Const):
        return Refusal("the slice or the split is of unknown size")
    size = int(row.value)
    if not size or whole.value % size or start.value % size:
        return Refusal("the slice begins or ends within a row")
    shape = as_sizes((*x.shape[:-1], whole.value // size, row))
    split = match.call(Reshape(shape=shape), match["x"])
    starts = as_sizes((*op.starts[:-1], start.value // size, 0))
    return match.call(Slice(starts=starts, sizes=result.shape), split)


@rule(Pattern(Reshape, (Pattern(Slice, ("x",), name="part"),)))
def one_behind_reshape(match: Match) -> Value | Refusal:
    """Split all last axes before taking one of them, which is then some rows of one."""
    x, result = match["x"].type.shape, match.root.output.type.shape
    op = match.op(Slice)
    if len(x) < 2 or not same_shape((*x[:-2], ONE, x[-1]), op.sizes) or op.steps:
        return Refusal("the slice does not take one of several last axes")
    if len(result) < 2 or not moves_units(x[:-2], result[:-2]):
        return Refusal("the reshape moves what stands before the last axes")
    sizes = [n.value for n in (op.starts[-2], x[-2], *result[-2:]) if isinstance(n, Const)]
    if len(sizes) != 4:
        return Refusal("the slice or the split is of unknown size")
    start, count, rows, row = sizes
    if count < 2 or rows < 2:
        return Refusal("the last axis is not split, or there is one alone")
    lead = result[:-2]
    split = match.call(Reshape(shape=as_sizes((*lead, count * rows, row))), match["x"])
    starts = as_sizes((*(0 for _ in lead), start * rows, 0))
    return match.call(Slice(starts=starts, sizes=result), split)
