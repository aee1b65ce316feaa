"""Positions of one number each: gather_nd(x, at[..., 1]) -> gather(x, at[...], axis=0)."""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.gather import Gather, GatherND
from dlc.graph.ops.shape import Reshape
from dlc.graph.rewrite import Match, Pattern, Refusal, rule
from dlc.te.types import is_const


@rule(Pattern(GatherND, ("x", "at")))
def gather_nd_into_gather(match: Match) -> Value | Refusal:
    """Drop the axis of the one number."""
    shape = match["at"].type.shape
    if match.op(GatherND).batch_dims:
        return Refusal("each position is in a part of its own")
    if not is_const(shape[-1], 1):
        return Refusal("a position has several numbers")
    return match.call(
        Gather(axis=0), match["x"], match.call(Reshape(shape=shape[:-1]), match["at"])
    )
