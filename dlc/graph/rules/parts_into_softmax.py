"""e / sum(e) with e = exp(x - max(x)) -> softmax(x), all over one axis."""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.binary import Div, Sub
from dlc.graph.ops.elementwise import Exp
from dlc.graph.ops.reduce import Reduce
from dlc.graph.ops.softmax import Softmax
from dlc.graph.rewrite import Match, Pattern, Refusal, rule


@rule(
    Pattern(
        Div,
        (
            Pattern(
                Exp,
                (Pattern(Sub, ("x", Pattern(Reduce, ("x",), name="highest"))),),
                name="e",
            ),
            Pattern(Reduce, ("e",), name="total"),
        ),
    )
)
def parts_into_softmax(match: Match) -> Value | Refusal:
    """Join the five into one operator."""
    rank = match["x"].type.rank
    highest, total = match.maker("highest"), match.maker("total")
    assert isinstance(highest, Reduce)
    assert isinstance(total, Reduce)
    if highest.kind != "max" or total.kind != "sum":
        return Refusal("not the maximum and the sum")
    if not highest.keepdims or not total.keepdims:
        return Refusal("a reduced axis is dropped, and others may line up with it")
    axes = {a % rank for a in highest.axes}, {a % rank for a in total.axes}
    if axes[0] != axes[1] or len(axes[0]) != 1:
        return Refusal("maximum and sum are not over the same one axis")
    return match.call(Softmax(axis=axes[0].pop()), match["x"])
