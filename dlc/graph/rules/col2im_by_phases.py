"""Patches laid down in steps -> those of each phase of the steps by itself, which are then put
between each other: a pixel adds up only the elements of patches that reach it.

Before:
    y: f32[n, 1, 8] = col2im(x, image=(8,), kernel=(3,), stride=(2,), pads=(0, 0), dilation=(1,))

After:
    p: f32[n, 1, 2, 4] = col2im_phases(x, counts=(3,), kernel=(3,), stride=(2,))
    t: f32[n, 1, 4, 2] = transpose(p, perm=(0, 1, 3, 2))
    y: f32[n, 1, 8] = reshape(t, shape=(n, 1, 8))
"""

from __future__ import annotations

from math import prod

from dlc.graph.graph import Value
from dlc.graph.ops.columns import Col2Im, Col2ImPhases
from dlc.graph.rewrite import Match, Pattern, Refusal, rule
from dlc.graph.rules.phases import pixels_of_phases


@rule(Pattern(Col2Im, ("x",)))
def col2im_by_phases(match: Match) -> Value | Refusal:
    """Each pixel adds up the elements of its phase."""
    op = match.op(Col2Im)
    if match.context.target.gpu is not None:
        return Refusal("what it gains on a GPU has not been measured")
    if prod(op.stride) == 1:
        return Refusal("there is one phase")
    if any(d != 1 for d in op.dilation):
        return Refusal("the elements of a patch are apart")
    parts = Col2ImPhases(counts=op.counts(), kernel=op.kernel, stride=op.stride)
    phases = match.call(parts, match["x"])
    return pixels_of_phases(match, phases, op.stride, op.pads[: len(op.stride)], op.image)
