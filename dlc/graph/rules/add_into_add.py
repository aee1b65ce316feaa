"""(x + a) + b -> x + (a + b), for constants a and b."""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add
from dlc.graph.rewrite import Match, Refusal, rule
from dlc.graph.rules.twice import twice, why_apart


@rule(twice(Add))
def add_into_add(match: Match) -> Value | Refusal:
    """Add the constants while compiling."""
    total = match.array("a") + match.array("b")
    if reason := why_apart(match, total):
        return Refusal(reason)
    return match.call(Add(), match["x"], match.constant(total, match["a"]))
