"""(x @ w) * c -> x @ (w * c), for a constant c that differs by column or not at all."""

from __future__ import annotations

from dlc.graph.broadcast import along_axis
from dlc.graph.graph import Value
from dlc.graph.integers import is_kept_whole
from dlc.graph.ops.binary import Mul
from dlc.graph.ops.matmul import MatMul
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule


@rule(Pattern(Mul, (Pattern(MatMul, ("x", Weight("w")), name="y"), Weight("c")), either_order=True))
def scale_into_matmul(match: Match) -> Value | Refusal:
    """Scale the columns instead of the result."""
    w, y = match.array("w"), match["y"]
    if not y.type.dtype.is_float:
        return Refusal("integer products may overflow at another place")
    if is_kept_whole(match.context, w):
        return Refusal("the target multiplies such whole numbers faster")
    if w.ndim != 2:
        return Refusal("the right operand is not one matrix")
    if match.root.output.type != y.type:
        return Refusal("the factor repeats the product")
    c = along_axis(match.array("c"), y.type.rank, y.type.rank - 1, w.shape[1])
    if c is None:
        return Refusal("the factor differs within a column")
    weights = match.constant(w * c, match["w"], f"{match['w'].name}_scaled")
    return match.call(MatMul(), match["x"], weights)
