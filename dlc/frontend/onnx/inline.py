"""Functions of a model, replaced by their bodies wherever they are called.

The size of the result is computed first, so that a chain of functions that call each other
twice is refused rather than expanded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from dlc.core.errors import LimitError, ModelError
from dlc.frontend.onnx.limits import Limits
from dlc.frontend.onnx.model import (
    Attribute,
    FunctionKey,
    OnnxFunction,
    OnnxGraph,
    OnnxNode,
    OnnxValue,
    Reference,
)

Functions = Mapping[FunctionKey, OnnxFunction]


def inline_functions(
    label: str, graph: OnnxGraph, functions: Functions, limits: Limits
) -> OnnxGraph:
    """Replace every call of a function of the model.

    Raises:
        ModelError: a function calls itself, or is called with too many operands.
        LimitError: the result has too many nodes.
    """
    counts: dict[FunctionKey, int] = {}
    for key in functions:
        _count(label, key, functions, counts, ())
    total = sum(counts.get(_key(node), 1) for node in _all_nodes(graph.nodes))
    if total > limits.nodes:
        raise LimitError(what=label, reason=f"{total} nodes after inlining, above {limits.nodes}")
    return _Inliner(label, functions).graph(graph)


def expand(label: str, node: OnnxNode, function: OnnxFunction) -> tuple[OnnxNode, ...]:
    """The body of a function as nodes that take the place of a call."""
    if len(node.inputs) > len(function.inputs) or len(node.outputs) > len(function.outputs):
        reason = f"node '{node.label}' passes more values than '{function.name}' has"
        raise ModelError(model=label, reason=reason)
    operands = (*node.inputs, *[""] * (len(function.inputs) - len(node.inputs)))
    names = dict(zip(function.inputs, operands, strict=True))
    pairs = [(f, c) for f, c in zip(function.outputs, node.outputs, strict=False) if c]
    names.update((f, c) for f, c in pairs if f not in function.inputs)
    given = {k: v for k, v in node.attributes.items() if not isinstance(v, Reference)}
    renamed = _Rename(f"{node.label}/", names, {**function.defaults, **given})
    body = tuple(renamed.node(inner) for inner in function.nodes)
    passed = tuple(_copy(names[f], c) for f, c in pairs if f in function.inputs)
    return body + passed


def _copy(source: str, target: str) -> OnnxNode:
    return OnnxNode("", "", "Identity", 1, (source,), (target,), {})


def _key(node: OnnxNode) -> FunctionKey:
    return (node.domain, node.op_type)


def _all_nodes(nodes: tuple[OnnxNode, ...]) -> Iterator[OnnxNode]:
    for node in nodes:
        yield node
        for value in node.attributes.values():
            if isinstance(value, OnnxGraph):
                yield from _all_nodes(value.nodes)


def _count(
    label: str,
    key: FunctionKey,
    functions: Functions,
    counts: dict[FunctionKey, int],
    callers: tuple[FunctionKey, ...],
) -> int:
    """Nodes of a function once everything it calls is expanded."""
    if key in callers or len(callers) > 500:
        reason = f"function '{key[1]}' calls itself, or calls are too deep"
        raise ModelError(model=label, reason=reason)
    if key not in counts:
        counts[key] = sum(
            _count(label, _key(node), functions, counts, (*callers, key))
            if _key(node) in functions
            else 1
            for node in _all_nodes(functions[key].nodes)
        )
    return counts[key]


class _Inliner:
    def __init__(self, label: str, functions: Functions) -> None:
        self.label = label
        self.functions = functions
        self.calls = 0

    def graph(self, graph: OnnxGraph) -> OnnxGraph:
        return replace(graph, nodes=tuple(self.nodes(graph.nodes)))

    def nodes(self, nodes: tuple[OnnxNode, ...]) -> Iterator[OnnxNode]:
        for node in nodes:
            function = self.functions.get(_key(node))
            if function is None:
                yield replace(node, attributes=self.attributes(node.attributes))
                continue
            self.calls += 1
            call = replace(node, name=f"{node.label}#{self.calls}")
            yield from self.nodes(expand(self.label, call, function))

    def attributes(self, attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
        return {k: self.graph(v) if isinstance(v, OnnxGraph) else v for k, v in attributes.items()}


class _Rename:
    """Gives the inner names of a function body a prefix, and its attributes their values."""

    def __init__(
        self, prefix: str, names: Mapping[str, str], attributes: Mapping[str, Attribute]
    ) -> None:
        self.prefix = prefix
        self.names = names
        self.attributes = attributes

    def name(self, name: str) -> str:
        return self.names.get(name, self.prefix + name) if name else ""

    def node(self, node: OnnxNode) -> OnnxNode:
        attributes: dict[str, Attribute] = {}
        for key, value in node.attributes.items():
            if not isinstance(value, Reference):
                attributes[key] = self.graph(value) if isinstance(value, OnnxGraph) else value
            elif value.name in self.attributes:
                attributes[key] = self.attributes[value.name]
        return replace(
            node,
            name=self.prefix + node.label,
            inputs=tuple(map(self.name, node.inputs)),
            outputs=tuple(map(self.name, node.outputs)),
            attributes=attributes,
        )

    def graph(self, graph: OnnxGraph) -> OnnxGraph:
        return OnnxGraph(
            name=graph.name,
            inputs=tuple(map(self.value, graph.inputs)),
            outputs=tuple(map(self.value, graph.outputs)),
            nodes=tuple(map(self.node, graph.nodes)),
            constants={self.name(k): v for k, v in graph.constants.items()},
            values={},
        )

    def value(self, value: OnnxValue) -> OnnxValue:
        return replace(value, name=self.name(value.name))
