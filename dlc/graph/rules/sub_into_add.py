"""x - c -> x + (-c), for a constant c: one operator less for other rules to know."""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add, Sub
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule


@rule(Pattern(Sub, ("x", Weight("c"))))
def sub_into_add(match: Match) -> Value | Refusal:
    """Negate the constant; a rounded result is the same."""
    if not match["c"].type.dtype.is_float:
        return Refusal("an integer may have no negative")
    return match.call(Add(), match["x"], match.constant(-match.array("c"), match["c"]))
