"""(x + a) + b -> x + (a + b), for constants a and b."""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule


@rule(
    Pattern(
        Add,
        (Pattern(Add, ("x", Weight("a")), either_order=True, name="inner"), Weight("b")),
        either_order=True,
    )
)
def add_into_add(match: Match) -> Value | Refusal:
    """Add the constants while compiling."""
    if match.editor.array(match["x"]) is not None:
        return Refusal("all operands are constants, which folding adds")
    if match["x"].type != match.root.output.type:
        return Refusal("a constant repeats the operand")
    total = match.array("a") + match.array("b")
    if total.size > max(match.array("a").size, match.array("b").size):
        return Refusal("the sum of the constants is larger than both")
    return match.call(Add(), match["x"], match.constant(total, match["a"]))
