"""f(expand(x), y) -> f(x, y), where f repeats x by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from dlc.graph.assume import collect_assumptions
from dlc.graph.graph import Value
from dlc.graph.op import Op
from dlc.graph.ops.binary import Binary, Where
from dlc.graph.ops.shape import Expand
from dlc.graph.rewrite import Match, Pattern, Refusal, Rule
from dlc.te.expr import Expr

T = TypeVar("T", bound=Op)


def _drop_expansions(match: Match) -> Value | Refusal:
    node = match.root
    makers = [match.editor.producer(v) for v in node.inputs]
    operands = [
        m.inputs[0] if m is not None and isinstance(m.op, Expand) else v
        for m, v in zip(makers, node.inputs, strict=True)
    ]
    if tuple(operands) == node.inputs:
        return Refusal("no operand is an expansion")
    _, known = _result(node.op, node.inputs)
    for position, operand in enumerate(operands):
        chosen = (*node.inputs[:position], operand, *node.inputs[position + 1 :])
        result, assumed = _result(node.op, chosen)
        fits = result == node.output.type and assumed <= known
        if operand != node.inputs[position] and fits:
            return match.call(node.op, *chosen)
    return Refusal("nothing else surely has the size of the expansion")


def _result(op: Op, operands: Sequence[Value]) -> tuple[object, set[Expr]]:
    """What an operator gives, and what it takes for granted of sizes."""
    with collect_assumptions() as found:
        result = op.infer(*(v.type for v in operands))
    return result, set(found)


def _rules() -> tuple[Rule, ...]:
    kinds = (*subclasses(Binary), Where)
    return (Rule("expand_into_broadcast", Pattern(kinds), _drop_expansions),)


def subclasses(kind: type[T]) -> tuple[type[T], ...]:
    """All kinds of an operator."""
    found: list[type[T]] = []
    for each in kind.__subclasses__():
        found += [each, *subclasses(each)]
    return tuple(found)


EXPAND_INTO_BROADCAST = _rules()
