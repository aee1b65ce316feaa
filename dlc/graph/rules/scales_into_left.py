"""(a * c) @ (b * d) -> (a * (c * d)) @ b, for numbers c and d.

The scale of an attention is split between queries and keys, and keys may be many: those of all
tokens so far, of which one is new.
"""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.binary import Mul
from dlc.graph.ops.matmul import MatMul
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule


@rule(
    Pattern(
        MatMul,
        (
            Pattern(Mul, ("a", Weight("c")), either_order=True, name="rows"),
            Pattern(Mul, ("b", Weight("d")), either_order=True, name="columns"),
        ),
    )
)
def scales_into_left(match: Match) -> Value | Refusal:
    """Multiply the left operand by both numbers."""
    if not match["a"].type.dtype.is_float:
        return Refusal("integer products may overflow at another place")
    c, d = match.array("c"), match.array("d")
    if c.size != 1 or d.size != 1:
        return Refusal("a factor is not one number")
    pairs = (("a", "rows"), ("b", "columns"))
    if any(match[x].type != match[y].type for x, y in pairs):
        return Refusal("a factor adds dimensions")
    both = match.constant((c * d).reshape(()), match["c"])
    return match.call(MatMul(), match.call(Mul(), match["a"], both), match["b"])
