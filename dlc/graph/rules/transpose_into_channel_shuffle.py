"""reshape(transpose(reshape(x))) -> channel_shuffle(x), where channels are split into groups, the
two parts change places, and are merged again.
"""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.layout import ChannelShuffle
from dlc.graph.ops.shape import Reshape, Transpose
from dlc.graph.rewrite import Match, Pattern, Refusal, rule
from dlc.te.expr import Const
from dlc.te.simplify import canonical

_SPLIT = Pattern(Reshape, ("x",), name="split")


@rule(Pattern(Reshape, (Pattern(Transpose, (_SPLIT,)),)))
def transpose_into_channel_shuffle(match: Match) -> Value | Refusal:
    """Say what the three do, so that blocked layouts can do it too."""
    x, split = match["x"].type, match["split"].type
    if match.root.output.type != x or x.rank < 3:
        return Refusal("the result is not an image as the operand is")
    n, groups, per_group, *spatial = split.shape
    if (n, *spatial) != (x.shape[0], *x.shape[2:]) or canonical(groups * per_group) != x.shape[1]:
        return Refusal("it is not the channels that are split")
    if match.op(Transpose).perm != (0, 2, 1, *range(3, split.rank)):
        return Refusal("groups and channels do not change places")
    if not isinstance(groups, Const):
        return Refusal("the number of groups is not known")
    return match.call(ChannelShuffle(groups=int(groups.value)), match["x"])
