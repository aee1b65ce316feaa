"""How passes ask which way to go: what a decision is about becomes a text without names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace

from dlc.core.fork import Fork
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.op import Op
from dlc.graph.pass_ import PassContext
from dlc.graph.sizes import attribute_exprs, bodies, names_in
from dlc.te.expr import Expr, Var
from dlc.te.transform import substitute
from dlc.te.types import TensorType

_LOG = logging.getLogger("dlc.tune")


def decide(
    context: PassContext,
    graph: Graph,
    members: Sequence[Node],
    *,
    kind: str,
    version: int,
    options: tuple[str, ...],
    default: str,
    cycles: Callable[[], tuple[float, ...]] = tuple,
    facts: str = "",
) -> str:
    """The way to take at a fork that some nodes of a graph are; the default, if nobody chose.

    Whoever listens is told of the fork. Where nobody chose and nobody listens it costs nothing.

    Args:
        context: what was chosen, for which target.
        graph: what the nodes are of; it tells which operands are constants.
        members: what the decision is about, in execution order.
        kind: names the decision.
        version: of the decision: raised when a way comes to mean something else.
        options: the ways that are legal here.
        default: the one that the model of costs takes.
        cycles: estimates of each way's time, where there is a model.
        facts: what else the ways depend on, such as what is known of the data of constants.
    """
    if not context.is_asked or context.target.gpu is not None or len(options) < 2:
        return default
    if any(True for node in members for _ in bodies(node.op)):
        return default
    about = canonical_text(graph, members)
    said = ["repeated" if context.is_repeated else "", facts]
    about = "\n".join(part for part in (*said, about) if part)
    asked = (kind, version, about, context.target, context.precision, options, default)
    fork = Fork(*asked, cycles() if context.on_fork is not None else ())
    if context.on_fork is not None:
        context.on_fork(fork)
    option = context.choices.option(fork)
    if option != default:
        _LOG.info("%s: '%s' instead of '%s'", fork.name, option, default)
    return option


def canonical_text(graph: Graph, members: Sequence[Node]) -> str:
    """The text of some nodes, with names of values and sizes replaced by numbers.

    Operands are told apart by whether they are constants; the data of these is not part of it.
    """
    sizes: dict[str, Expr] = {}
    values: dict[Value, Value] = {}
    made = {v for n in members for v in n.outputs}
    read = dict.fromkeys(v for n in members for v in n.inputs if v not in made)
    for value in read:
        letter = "c" if value in graph.constants else "x"
        values[value] = _renamed(value, f"{letter}{len(values)}", sizes)
    nodes = [_renamed_node(node, values, sizes) for node in members]
    inputs = tuple(values[v] for v in read)
    names = tuple(str(size) for size in sizes.values())
    return str(Graph("fork", names, inputs, tuple(nodes), nodes[-1].outputs))


def _renamed_node(node: Node, values: dict[Value, Value], sizes: dict[str, Expr]) -> Node:
    _number((*attribute_exprs(node.op),), sizes)
    inputs = tuple(values[v] for v in node.inputs)
    for value in node.outputs:
        values[value] = _renamed(value, f"x{len(values)}", sizes)
    outputs = tuple(values[v] for v in node.outputs)
    return replace(node, op=_renamed_op(node.op, sizes), inputs=inputs, outputs=outputs)


def _renamed(value: Value, name: str, sizes: dict[str, Expr]) -> Value:
    _number(value.type.shape, sizes)
    shape = tuple(substitute(n, sizes) for n in value.type.shape)
    return Value(name, TensorType(shape, value.type.dtype))


def _renamed_op(op: Op, sizes: Mapping[str, Expr]) -> Op:
    changed: dict[str, object] = {}
    for field in fields(op):  # type: ignore[arg-type]  # every operator is a dataclass
        old = getattr(op, field.name)
        if isinstance(old, Expr):
            changed[field.name] = substitute(old, sizes)
        elif isinstance(old, tuple):
            parts = (substitute(p, sizes) if isinstance(p, Expr) else p for p in old)
            changed[field.name] = tuple(parts)
    return replace(op, **changed) if changed else op  # type: ignore[type-var]


def _number(exprs: Sequence[Expr], sizes: dict[str, Expr]) -> None:
    """Give the sizes that are met for the first time the next numbers."""
    for expr in exprs:
        for name in sorted(names_in((expr,))):
            sizes.setdefault(name, Var(f"s{len(sizes)}"))
