"""Let numbers stand for texts, so that all other passes and every kernel see numbers only.

Before:
    def main(x: str[3], y: str[3]):
        e: bool[3] = equal(x, y)
        j: str[3] = concat_text(x, y)
        return e, j

After:
    def main(x: str[3], y: str[3]):
        x_number: i64[3] = number_of_text(x)
        y_number: i64[3] = number_of_text(y)
        e: bool[3] = equal(x_number, y_number)
        j_number: i64[3] = concat_text(x_number, y_number)
        j: str[3] = text_of_number(j_number)
        return e, j

Position: first. Equal texts have equal numbers, and the empty text is number 0; a constant text
gets its number when a run begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from dlc.core.types import DType
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Node, Value, call
from dlc.graph.op import Array, Op
from dlc.graph.ops.bodies import map_bodies
from dlc.graph.ops.text import NumberOfBytes, NumberOfText, TextOfNumber, WriteNumbers
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.te.types import TensorType


@graph_pass()
def number_texts(graph: Graph, context: PassContext) -> Graph:
    """Number the texts that come in, and write out the texts of the results."""
    if not _holds_texts(graph):
        return graph
    fresh = GraphEditor(graph).fresh
    numbers: dict[Value, Value] = {}
    nodes: list[Node] = []
    constants: dict[Value, Array] = {}
    for value, array in graph.constants.items():
        if not _is_text(value):
            constants[value] = array
            continue
        data, ends = (
            Value(fresh(f"{value.name}_{what}"), TensorType(a.shape, dtype))
            for what, a, dtype in zip(("bytes", "ends"), _bytes(array), _KINDS, strict=True)
        )
        constants |= zip((data, ends), _bytes(array), strict=True)
        nodes.append(call(NumberOfBytes(), data, ends, name=fresh(f"{value.name}_number")))
        numbers[value] = nodes[-1].output
    for value in graph.inputs:
        if _is_text(value):
            nodes.append(call(NumberOfText(), value, name=fresh(f"{value.name}_number")))
            numbers[value] = nodes[-1].output
    found = dict.fromkeys(graph.outputs)
    written = [v for v in found if _is_text(v) and v not in graph.inputs]
    for value in written:
        numbers[value] = numbers.get(value) or _number(
            replace(value, name=fresh(f"{value.name}_number"))
        )
    nodes += _nodes(graph, numbers)
    nodes += (call(TextOfNumber(), numbers[value], name=value.name) for value in written)
    return replace(graph, nodes=tuple(nodes), constants=constants)


_KINDS = (DType.U8, DType.I64)


def _bytes(array: Array) -> tuple[Array, Array]:
    """The bytes of all texts, and where each ends."""
    texts = [text.encode("utf-8", "surrogateescape") for text in array.reshape(-1)]
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64).reshape(array.shape)
    return np.frombuffer(b"".join(texts), np.uint8), ends


def _nodes(graph: Graph, numbers: dict[Value, Value]) -> Iterable[Node]:
    for node in graph.nodes:
        op: Op = map_bodies(node.op, _body)
        if isinstance(op, WriteNumbers):
            op = replace(op, numbered=True)
        inputs = tuple(numbers.get(v, _number(v)) for v in node.inputs)
        outputs = tuple(numbers.get(v, _number(v)) for v in node.outputs)
        yield Node(op, inputs, outputs, node.source)


def _body(graph: Graph) -> Graph:
    """A graph inside of a loop or a branch: numbers come in and go out."""
    if not _holds_texts(graph):
        return graph
    return replace(
        graph,
        inputs=tuple(map(_number, graph.inputs)),
        nodes=tuple(_nodes(graph, {})),
        outputs=tuple(map(_number, graph.outputs)),
    )


def _is_text(value: Value) -> bool:
    return value.type.dtype is DType.STR


def _number(value: Value) -> Value:
    if not _is_text(value):
        return value
    return replace(value, type=replace(value.type, dtype=DType.I64))


def _holds_texts(graph: Graph) -> bool:
    values = [*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs)]
    return any(map(_is_text, values)) or any(
        isinstance(n.op, WriteNumbers) or map_bodies(n.op, _marked) is not n.op for n in graph.nodes
    )


def _marked(body: Graph) -> Graph:
    """Another graph where a body holds texts."""
    return replace(body) if _holds_texts(body) else body
