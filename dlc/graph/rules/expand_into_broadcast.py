"""f(expand(x), y) -> f(x, y), where f repeats x by itself; expand(f(x, y)), where neither does."""

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
    operands = _expanded(match)
    if operands == node.inputs:
        return Refusal("no operand is an expansion")
    _, known = result_of(node.op, node.inputs)
    for position, operand in enumerate(operands):
        chosen = (*node.inputs[:position], operand, *node.inputs[position + 1 :])
        result, assumed = result_of(node.op, chosen)
        fits = result == node.output.type and assumed <= known
        if operand != node.inputs[position] and fits:
            return match.call(node.op, *chosen)
    return Refusal("nothing else surely has the size of the expansion")


def _expand_behind(match: Match) -> Value | Refusal:
    node = match.root
    operands = _expanded(match)
    result, assumed = result_of(node.op, operands)
    _, known = result_of(node.op, node.inputs)
    if result == node.output.type:
        return Refusal("without expansions, elements are as many")
    if not assumed <= known:
        return Refusal("without expansions, more is taken for granted of sizes")
    return match.call(Expand(shape=node.output.type.shape), match.call(node.op, *operands))


def _expanded(match: Match) -> tuple[Value, ...]:
    """The operands, and in the places of expansions what they repeat."""
    makers = [match.editor.producer(v) for v in match.root.inputs]
    return tuple(
        m.inputs[0] if m is not None and isinstance(m.op, Expand) else v
        for m, v in zip(makers, match.root.inputs, strict=True)
    )


def result_of(op: Op, operands: Sequence[Value]) -> tuple[object, set[Expr]]:
    """What an operator gives, and what it takes for granted of sizes."""
    with collect_assumptions() as found:
        result = op.infer(*(v.type for v in operands))
    return result, set(found)


def _rules() -> tuple[Rule, ...]:
    kinds = (*subclasses(Binary), Where)
    return (
        Rule("expand_into_broadcast", Pattern(kinds), _drop_expansions),
        Rule("expand_behind_broadcast", Pattern(kinds), _expand_behind),
    )


def subclasses(kind: type[T]) -> tuple[type[T], ...]:
    """All kinds of an operator."""
    found: list[type[T]] = []
    for each in kind.__subclasses__():
        found += [each, *subclasses(each)]
    return tuple(found)


EXPAND_INTO_BROADCAST = _rules()
