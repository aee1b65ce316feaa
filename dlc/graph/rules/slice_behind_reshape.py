"""reshape(slice(x)) -> slice(reshape(x)), where a slice of the last axis takes whole rows of the
two axes that the reshape makes of it (the heads of attention).

A reshape of the whole renames memory, and a slice at the end is index arithmetic in its readers;
the other way round the slice must be copied.
"""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.shape import Reshape, Slice
from dlc.graph.rewrite import Match, Pattern, Refusal, rule
from dlc.te.expr import Const
from dlc.te.types import is_const


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
