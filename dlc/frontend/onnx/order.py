"""Checks on names: each is defined once, and nodes are put in an order in which they can run."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Collection, Iterator
from dataclasses import replace

from dlc.core.errors import ModelError
from dlc.frontend.onnx.model import OnnxGraph, OnnxNode

_LOG = logging.getLogger(__name__)


def check_names(label: str, graph: OnnxGraph) -> None:
    """Refuse a graph that cannot mean anything.

    Raises:
        ModelError: nothing to compute, a name defined twice, or a result nobody computes.
    """
    if not graph.outputs:
        raise ModelError(model=label, reason="the graph has no outputs")
    defined = set(graph.constants)
    seen: set[str] = set()
    for value in graph.inputs:
        if value.name in seen or not value.name:
            reason = f"input '{value.name}' is declared twice or has no name"
            raise ModelError(model=label, reason=reason)
        seen.add(value.name)
    defined |= seen
    for node in graph.nodes:
        for output in filter(None, node.outputs):
            if output in defined:
                reason = f"'{output}', a result of node '{node.label}', is defined twice"
                raise ModelError(model=label, reason=reason)
            defined.add(output)
    for value in graph.outputs:
        if value.name not in defined:
            raise ModelError(model=label, reason=f"nothing computes the output '{value.name}'")


def without_repeats(label: str, graph: OnnxGraph) -> OnnxGraph:
    """The graph without constants that are overwritten by a later constant of the same name.

    ONNX forbids that, yet there are such models, and onnxruntime takes the last one.
    """
    last = {node.outputs: node for node in graph.nodes if node.op_type == "Constant"}
    nodes = tuple(
        node for node in graph.nodes if node.op_type != "Constant" or last[node.outputs] is node
    )
    if len(nodes) < len(graph.nodes):
        gone = len(graph.nodes) - len(nodes)
        _LOG.warning("%s: %d constants are defined twice; the last ones count", label, gone)
    return replace(graph, nodes=nodes)


def in_order(label: str, graph: OnnxGraph, outside: Collection[str] = ()) -> OnnxGraph:
    """The graph with every node after those it reads; the given order is kept where it can be.

    `outside` names what a subgraph may read of the graphs around it.

    Raises:
        ModelError: a node reads what nothing computes, or nodes wait for each other.
    """
    given = {v.name for v in graph.inputs} | set(graph.constants) | set(outside)
    makers = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs if name}
    waiting: list[int] = []
    readers: dict[int, list[int]] = {}
    for index, node in enumerate(graph.nodes):
        needs = {name for name in reads(node) if name not in given}
        if missing := next((name for name in sorted(needs) if name not in makers), None):
            reason = f"node '{node.label}' reads '{missing}', which nothing computes"
            raise ModelError(model=label, reason=reason)
        before = {makers[name] for name in needs}
        waiting.append(len(before))
        for maker in before:
            readers.setdefault(maker, []).append(index)
    ready = [index for index, count in enumerate(waiting) if not count]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers.get(index, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(graph.nodes):
        stuck = next(graph.nodes[i] for i, count in enumerate(waiting) if count)
        reason = f"node '{stuck.label}' needs its own result: the graph has a cycle"
        raise ModelError(model=label, reason=reason)
    return replace(graph, nodes=tuple(graph.nodes[i] for i in order))


def reads(node: OnnxNode) -> Iterator[str]:
    """The names a node reads, those captured by its subgraphs included."""
    yield from filter(None, node.inputs)
    for value in node.attributes.values():
        if isinstance(value, OnnxGraph):
            yield from captured(value)


def captured(graph: OnnxGraph) -> Iterator[str]:
    """The names a subgraph reads but does not define."""
    own = {v.name for v in graph.inputs} | set(graph.constants)
    own.update(name for node in graph.nodes for name in node.outputs)
    for node in graph.nodes:
        yield from (name for name in reads(node) if name not in own)
    yield from (v.name for v in graph.outputs if v.name not in own)
