"""cast(cast(x)) -> x, for whole numbers that both types hold exactly."""

from __future__ import annotations

from dlc.core.types import DType
from dlc.graph.graph import Value
from dlc.graph.integers import integer_range
from dlc.graph.ops.elementwise import Cast
from dlc.graph.rewrite import Match, Pattern, Refusal, rule


@rule(Pattern(Cast, (Pattern(Cast, ("x",), name="between", shared=True),)))
def cast_there_and_back(match: Match) -> Value | Refusal:
    """Leave out both casts."""
    x, between = match["x"], match["between"]
    if match.root.output.type != x.type:
        return Refusal("the types differ")
    if between.type.dtype is not DType.I32:
        return Refusal("the type between is no i32")
    if not x.type.dtype.is_float:
        return Refusal("the operand is no float")
    if integer_range(match.editor, x) is None:
        return Refusal("the operand may be no whole number")
    return x
