"""conv(pad(x), w) -> conv(x, w, pads=...): a convolution pads by itself."""

from __future__ import annotations

from dataclasses import replace

from dlc.graph.graph import Value
from dlc.graph.ops.conv import Conv
from dlc.graph.ops.shape import Pad
from dlc.graph.rewrite import Match, Pattern, Refusal, rule
from dlc.te.expr import Const, Expr
from dlc.te.types import is_const


@rule(Pattern(Conv, (Pattern(Pad, ("x",)), "w")))
def pad_into_conv(match: Match) -> Value | Refusal:
    """Add the pads to the convolution's own."""
    pad, conv = match.op(Pad), match.op(Conv)
    if pad.mode != "constant" or pad.value != 0:
        return Refusal("a convolution pads with zeros only")
    amounts = (*pad.before, *pad.after)
    if not all(is_const(a, 0) for a in (*pad.before[:2], *pad.after[:2])):
        return Refusal("the batch or channel axis is padded")
    if not all(_is_pad(a) for a in amounts):
        return Refusal("an amount is negative or not known")
    spatial = (*pad.before[2:], *pad.after[2:])
    added = [int(a.value) for a in spatial if isinstance(a, Const)]
    pads = tuple(p + a for p, a in zip(conv.pads, added, strict=True))
    return match.call(replace(conv, pads=pads), match["x"], match["w"])


def _is_pad(amount: Expr) -> bool:
    return isinstance(amount, Const) and amount.value >= 0
