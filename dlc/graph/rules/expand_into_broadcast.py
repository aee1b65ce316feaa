"""f(expand(x), y) -> f(x, y), where f repeats x by itself."""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.binary import Binary, Where
from dlc.graph.ops.shape import Expand
from dlc.graph.rewrite import Match, Pattern, Refusal, Rule


def _drop_expansions(match: Match) -> Value | Refusal:
    node = match.root
    makers = [match.editor.producer(v) for v in node.inputs]
    operands = [
        m.inputs[0] if m is not None and isinstance(m.op, Expand) else v
        for m, v in zip(makers, node.inputs, strict=True)
    ]
    if tuple(operands) == node.inputs:
        return Refusal("no operand is an expansion")
    for position, operand in enumerate(operands):
        chosen = (*node.inputs[:position], operand, *node.inputs[position + 1 :])
        result = node.op.infer(*(v.type for v in chosen))
        if operand != node.inputs[position] and result == node.output.type:
            return match.call(node.op, *chosen)
    return Refusal("nothing else has the size of the expansion")


def _rules() -> tuple[Rule, ...]:
    kinds = (*_subclasses(Binary), Where)
    return (Rule("expand_into_broadcast", Pattern(kinds), _drop_expansions),)


def _subclasses(kind: type[Binary]) -> tuple[type[Binary], ...]:
    found: list[type[Binary]] = []
    for each in kind.__subclasses__():
        found += [each, *_subclasses(each)]
    return tuple(found)


EXPAND_INTO_BROADCAST = _rules()
