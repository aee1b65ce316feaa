"""and(x, true) -> x, or(x, true) -> true, where(true, a, b) -> a, and the same of false."""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Value
from dlc.graph.ops.binary import And, Or, Where
from dlc.graph.ops.shape import Expand
from dlc.graph.rewrite import Match, Pattern, Refusal, rule


@rule(Pattern((And, Or), ("x", "y")))
def known_truth_in_logic(match: Match) -> Value | Refusal:
    """Take the other operand, or what is known whatever that is."""
    decides = isinstance(match.root.op, Or)
    for known, other in (("x", "y"), ("y", "x")):
        truth = _truth(match.editor, match[known])
        if truth is None:
            continue
        value = match[other]
        if truth is decides:
            value = match.editor.constant(np.array(truth), DType.BOOL, match.root.output.name)
        return match.call(Expand(shape=match.root.output.type.shape), value)
    return Refusal("neither operand is the same everywhere")


@rule(Pattern(Where, ("cond", "a", "b")))
def known_truth_in_where(match: Match) -> Value | Refusal:
    """Take the operand that is chosen everywhere."""
    truth = _truth(match.editor, match["cond"])
    if truth is None:
        return Refusal("the condition is not the same everywhere")
    chosen = match["a" if truth else "b"]
    return match.call(Expand(shape=match.root.output.type.shape), chosen)


def _truth(editor: GraphEditor, value: Value) -> bool | None:
    """The one element that all others are equal to, if a value has no other."""
    node = editor.producer(value)
    if node is not None and isinstance(node.op, Expand):
        return _truth(editor, node.inputs[0])
    array = editor.array(value)
    if array is None or not array.size or array.any() != array.all():
        return None
    return bool(array.flat[0])
