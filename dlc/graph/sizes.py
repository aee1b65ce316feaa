"""Who binds and who reads size variables in a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields

from dlc.graph.graph import Graph, Node
from dlc.graph.op import Op
from dlc.graph.ops.bind_sizes import BindSizes
from dlc.graph.ops.control import If, Loop
from dlc.te.expr import Const, Expr, Var
from dlc.te.transform import free_vars


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
