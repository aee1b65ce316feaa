"""Who binds and who reads size variables in a graph, and what it is once they are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from dlc.core.types import INDEX
from dlc.graph.graph import Graph, Node
from dlc.graph.op import Op
from dlc.graph.ops.bind_sizes import BindSizes
from dlc.graph.ops.control import If, Loop
from dlc.te.expr import Const, Expr, Var
from dlc.te.simplify import canonical
from dlc.te.transform import free_vars, substitute
from dlc.te.types import Shape

Sizes = Mapping[str, int]


def bound_sizes(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The size variables that nodes bind, in order."""
    names: list[str] = []
    for node in nodes:
        match node.op:
            case BindSizes(names=bound) | Loop(results=bound) | If(results=bound):
                names += bound
    return tuple(names)


def inner_sizes(op: Op) -> tuple[str, ...]:
    """The size variables that an operator gives to its body."""
    return op.sizes if isinstance(op, Loop) else ()


def known_sizes(graph: Graph) -> tuple[str, ...]:
    """The size variables of a graph: those it is given, then those its nodes bind."""
    return (*graph.sizes, *bound_sizes(graph.nodes))


def sizes_read(node: Node) -> frozenset[str]:
    """The size variables that a node's attributes and result types read, given outside of it."""
    exprs = [size for value in node.outputs for size in value.type.shape]
    names = set(names_in((*exprs, *attribute_exprs(node.op))))
    for body in bodies(node.op):
        names |= graph_reads(body)
    return frozenset(names) - {*inner_sizes(node.op), *bound_sizes((node,))}


def graph_reads(graph: Graph) -> frozenset[str]:
    """The size variables that a graph reads and does not bind."""
    names = set(graph.sizes)
    names |= names_in(n for v in (*graph.inputs, *graph.outputs) for n in v.type.shape)
    for node in graph.nodes:
        names |= sizes_read(node)
    return frozenset(names) - set(bound_sizes(graph.nodes))


def names_in(exprs: Iterable[Expr]) -> frozenset[str]:
    """The variables that expressions read."""
    names: set[str] = set()
    for expr in exprs:
        match expr:
            case Const():
                pass
            case Var(name):
                names.add(name)
            case _:
                names |= free_vars(expr)
    return frozenset(names)


def attribute_exprs(op: Op) -> Iterator[Expr]:
    """The size expressions among an operator's attributes."""
    for field in fields(op):  # type: ignore[arg-type]  # every operator is a dataclass
        value = getattr(op, field.name)
        parts = value if isinstance(value, tuple) else (value,)
        yield from (p for p in parts if isinstance(p, Expr))


def bodies(op: Op) -> Iterator[Graph]:
    """The graphs among an operator's attributes."""
    for field in fields(op):  # type: ignore[arg-type]  # every operator is a dataclass
        if isinstance(value := getattr(op, field.name), Graph):
            yield value


def bind_shape(shape: Shape, sizes: Sizes) -> Shape:
    """Sizes with the known variables replaced by their values."""
    env: dict[str, Expr] = {name: Const(int(n), INDEX) for name, n in sizes.items()}
    return tuple(e if isinstance(e, Const) else canonical(substitute(e, env)) for e in shape)


def bind_op(op: Op, sizes: Sizes) -> Op:
    """The operator with its size attributes, and those of graphs inside it, as constants."""
    changes: dict[str, Any] = {}
    for field in fields(op):  # type: ignore[arg-type]  # every operator is a dataclass
        value = getattr(op, field.name)
        bound = _bind(value, sizes)
        if bound is not value:
            changes[field.name] = bound
    return replace(op, **changes) if changes else op  # type: ignore[type-var]  # a dataclass


def _bind(value: object, sizes: Sizes) -> object:
    match value:
        case Graph(nodes=nodes):
            return replace(value, nodes=tuple(replace(n, op=bind_op(n.op, sizes)) for n in nodes))
        case tuple() if any(isinstance(v, Expr) for v in value):
            return tuple(_bind(v, sizes) for v in value)
        case _ if isinstance(value, Expr) and free_vars(value):
            return bind_shape((value,), sizes)[0]
    return value
