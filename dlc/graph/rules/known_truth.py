"""and(x, true) -> x, or(x, true) -> true, where(true, a, b) -> a, and the same of false."""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Value
from dlc.graph.ops.binary import And, Or, Where
from dlc.graph.ops.shape import Expand
from dlc.graph.rewrite import Match, Pattern, Refusal, rule
from dlc.graph.rules.expand_into_broadcast import result_of


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
        return repeated(match, value)
    return Refusal("neither operand is the same everywhere")


@rule(Pattern(Where, ("cond", "a", "b")))
def known_truth_in_where(match: Match) -> Value | Refusal:
    """Take the operand that is chosen everywhere."""
    truth = _truth(match.editor, match["cond"])
    if truth is None:
        return Refusal("the condition is not the same everywhere")
    return repeated(match, match["a" if truth else "b"])


def repeated(match: Match, value: Value) -> Value | Refusal:
    """A value in the place of the result, repeated as often as that needs.

    A run still checks all sizes that the operands have to have in common.
    """
    op, inputs = match.root.op, match.root.inputs
    expansion = Expand(shape=match.root.output.type.shape)
    if not result_of(op, inputs)[1] <= result_of(expansion, (value,))[1]:
        return Refusal("the sizes of what is left out would not be checked any more")
    return match.call(expansion, value)


def _truth(editor: GraphEditor, value: Value) -> bool | None:
    """The one element that all others are equal to, if a value has no other."""
    node = editor.producer(value)
    if node is not None and isinstance(node.op, Expand):
        return _truth(editor, node.inputs[0])
    array = editor.array(value)
    if array is None or not array.size or array.any() != array.all():
        return None
    return bool(array.flat[0])
