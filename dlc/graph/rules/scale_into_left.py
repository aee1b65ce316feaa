"""a @ (b * c) -> (a * c) @ b, for a number c.

Exporters split the scale of an attention between queries and keys. Keys may be many: those of all
tokens so far, of which one is new.
"""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.binary import Mul
from dlc.graph.ops.matmul import MatMul
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule
from dlc.te.simplify import surely_less


@rule(Pattern(MatMul, ("a", Pattern(Mul, ("b", Weight("c")), either_order=True, name="columns"))))
def scale_into_left(match: Match) -> Value | Refusal:
    """Multiply the left operand."""
    a, b = match["a"].type, match["b"].type
    if not a.dtype.is_float:
        return Refusal("integer products may overflow at another place")
    if match.array("c").size != 1:
        return Refusal("the factor is not one number")
    if b != match["columns"].type:
        return Refusal("the factor adds dimensions")
    if surely_less(b.elems, a.elems):
        return Refusal("the left operand is larger")
    number = match.constant(match.array("c").reshape(()), match["c"])
    return match.call(MatMul(), match.call(Mul(), match["a"], number), match["b"])
