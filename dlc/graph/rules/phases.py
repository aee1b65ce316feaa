"""What rules share that compute each phase of a stride by itself: the way back to an image."""

from __future__ import annotations

from collections.abc import Sequence

from dlc.graph.graph import Value
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.shape import Pad, Reshape, Slice, Transpose
from dlc.graph.rewrite import Match
from dlc.te.expr import Expr
from dlc.te.simplify import surely_at_most


def pixels_of_phases(
    match: Match, phases: Value, stride: Sequence[int], begin: Sequence[int], kept: Sequence[Expr]
) -> Value:
    """The pixels of all phases between each other, from `begin` on; what they do not reach is 0.

    Shapes:
        phases: [n, c, *stride, *sizes] -> [n, c, *kept]
    """
    rank = len(stride)
    n, channels, *sizes = (*phases.type.shape[:2], *phases.type.shape[2 + rank :])
    pairs = (d for axis in range(rank) for d in (2 + rank + axis, 2 + axis))
    mixed = match.call(Transpose(perm=(0, 1, *pairs)), phases)
    wide = [size * step for size, step in zip(sizes, stride, strict=True)]
    whole = match.call(Reshape(shape=as_sizes((n, channels, *wide))), mixed)
    ends = [size + first for size, first in zip(kept, begin, strict=True)]
    if all(surely_at_most(end, size) for end, size in zip(ends, wide, strict=True)):
        crop = Slice(starts=as_sizes((0, 0, *begin)), sizes=as_sizes((n, channels, *kept)))
        return match.call(crop, whole)
    more = (end - size for end, size in zip(ends, wide, strict=True))
    fit = Pad(before=as_sizes((0, 0, *(-first for first in begin))), after=as_sizes((0, 0, *more)))
    return match.call(fit, whole)
