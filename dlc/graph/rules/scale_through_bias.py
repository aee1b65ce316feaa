"""(f(x, w) + b) * c -> f(x, w) * c + b * c, where f is a convolution or a matrix product, which
then takes the factor into its weights.
"""

from __future__ import annotations

from dlc.graph.broadcast import along_axis
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add, Mul
from dlc.graph.ops.conv import Conv, ConvTranspose
from dlc.graph.ops.matmul import MatMul
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule
from dlc.te.expr import Const


@rule(
    Pattern(
        Mul,
        (
            Pattern(
                Add,
                (Pattern((Conv, ConvTranspose, MatMul), ("x", Weight("w")), name="y"), Weight("b")),
                either_order=True,
            ),
            Weight("c"),
        ),
        either_order=True,
    )
)
def scale_through_bias(match: Match) -> Value | Refusal:
    """Scale the bias and what it is added to."""
    y = match["y"]
    axis = 1 if not isinstance(match.maker("y"), MatMul) else y.type.rank - 1
    if match.root.output.type != y.type or not y.type.dtype.is_float:
        return Refusal("the constants repeat the result, or it is of integers")
    channels = y.type.shape[axis]
    if not isinstance(channels, Const):
        return Refusal("the number of channels is not known")
    count = int(channels.value)
    if along_axis(match.array("c"), y.type.rank, axis, count) is None:
        return Refusal("the factor differs within a channel")
    bias = match.constant(
        match.array("b") * match.array("c"), match["b"], f"{match['b'].name}_scaled"
    )
    return match.call(Add(), match.call(Mul(), y, match["c"]), bias)
