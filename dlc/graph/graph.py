"""Graph IR: a list of operator calls in order. Immutable; a pass returns a new one.

A value is its name and its type, and names are unique in a graph, so graphs compare, print,
parse and pickle as plain data. `producers` and `users` are computed once per graph and cannot
go stale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from dlc.graph.op import Array, Op
from dlc.te.types import TensorType

SizeRanges = Mapping[str, tuple[int, int | None]]
"""Bounds of size variables: name -> (minimum, maximum or None)."""


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor flowing through the graph."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class Node:
    """`outputs = op(*inputs)`."""

    op: Op
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    source: str = field(default="", compare=False)
    """The ONNX node(s) this came from, for error messages."""

    @property
    def output(self) -> Value:
        """The result of a node that has one."""
        (value,) = self.outputs
        return value


@dataclass(frozen=True)
class Graph:
    """A model: size variables, parameters, constants, nodes in execution order, results.

    `operators` gives the ONNX operator behind a node's `source`, for error messages.
    """

    name: str
    sizes: tuple[str, ...]
    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    constants: Mapping[Value, Array] = field(default_factory=dict, compare=False)
    size_ranges: SizeRanges = field(default_factory=dict, hash=False)
    operators: Mapping[str, str] = field(default_factory=dict, compare=False)

    @cached_property
    def producers(self) -> Mapping[Value, Node]:
        """The node that makes each value."""
        return {v: n for n in self.nodes for v in n.outputs}

    @cached_property
    def users(self) -> Mapping[Value, tuple[Node, ...]]:
        """The nodes that read each value; a missing key means nobody."""
        table: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.inputs):
                table.setdefault(value, []).append(node)
        return {value: tuple(nodes) for value, nodes in table.items()}

    def __str__(self) -> str:
        from dlc.graph.text import print_graph  # the printer imports this module

        return print_graph(self)


def call(op: Op, *inputs: Value, name: str | tuple[str, ...], source: str = "") -> Node:
    """A node whose result types are inferred from its operands."""
    types = op.infer(*(v.type for v in inputs))
    types = types if isinstance(types, tuple) else (types,)
    names = name if isinstance(name, tuple) else (name,)
    outputs = tuple(Value(n, t) for n, t in zip(names, types, strict=True))
    return Node(op, inputs, outputs, source)
