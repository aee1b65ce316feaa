"""What rules share that make one constant of two: (x . a) . b -> x . (a . b)."""

from __future__ import annotations

from dlc.graph.op import Array, Op
from dlc.graph.rewrite import Match, Pattern, Weight


def twice(op: type[Op]) -> Pattern:
    """`x`, joined with the constant `a` and then with the constant `b`, in either order."""
    inner = Pattern(op, ("x", Weight("a")), either_order=True, name="inner")
    return Pattern(op, (inner, Weight("b")), either_order=True)


def why_apart(match: Match, joined: Array) -> str:
    """Why the constants may not become this one, or ""."""
    if match.editor.array(match["x"]) is not None:
        return "all operands are constants, which folding joins"
    if match["x"].type != match.root.output.type:
        return "a constant repeats the operand"
    if joined.size > max(match.array("a").size, match.array("b").size):
        return "both constants as one are larger than both"
    return ""
