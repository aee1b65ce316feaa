"""batch_norm(x, scale, bias, mean, variance) -> x * s + t with s = scale / sqrt(variance + epsilon)
and t = bias - mean * s: two operations that later rules move into the weights before them.
"""

from __future__ import annotations

import numpy as np

from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add, Mul
from dlc.graph.ops.norm import BatchNorm
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule
from dlc.te.expr import Const


@rule(
    Pattern(BatchNorm, ("x", Weight("scale"), Weight("bias"), Weight("mean"), Weight("variance")))
)
def batch_norm_into_mul_add(match: Match) -> Value | Refusal:
    """Fold the five constants into two."""
    norm, x = match.op(BatchNorm), match["x"]
    if not isinstance(x.type.shape[1], Const):
        return Refusal("the number of channels is not known")
    total = match.array("variance") + norm.epsilon
    if not (total > 0).all():
        return Refusal("a variance is negative")
    s = match.array("scale") / np.sqrt(total)
    t = match.array("bias") - match.array("mean") * s
    shape = (-1,) + (1,) * (x.type.rank - 2)
    name = match.root.output.name
    scaled = match.call(Mul(), x, match.constant(s.reshape(shape), x, f"{name}_scale"))
    return match.call(Add(), scaled, match.constant(t.reshape(shape), x, f"{name}_shift"))
