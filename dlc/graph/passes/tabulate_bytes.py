"""Look functions of one byte up in a table.

Before:
    def main(x: u8[2, 64]):
        s: f32[()] = const(0.0625)
        z: f32[()] = const(-128.0)
        t: f32[()] = const(0.0078125)
        r: f32[()] = const(128.0)
        b: i32[()] = const(64)
        a: f32[2, 64] = cast(x, to=f32)
        c: f32[2, 64] = add(a, z)
        d: f32[2, 64] = mul(c, s)
        e: f32[2, 64] = silu(d)
        q: f32[2, 64] = quotient(e, t, r)
        y: u8[2, 64] = to_bytes(q, b, to=u8)
        return y

After:
    def main(x: u8[2, 64]):
        y_table: u8[256] = const()
        y: u8[2, 64] = look_up(x, y_table)
        return y

Position: after requantize, by which bytes are made of sums; before fuse_groups.

A quantized activation has 256 arguments. Its results are those of the model, each operation rounded
as a constant's would be. What takes less time than a look-up stays, as what is made of sums and
products alone, unless vectors pick from tables, and what somebody reads before it is rounded to a
byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from dlc.graph.arrays import NUMPY_DTYPES, round_to
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.integers import BYTES
from dlc.graph.op import Array, Op
from dlc.graph.ops.activation import (
    Celu,
    Clip,
    Elu,
    Gelu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Mish,
    Selu,
    Sigmoid,
    Silu,
    Softplus,
)
from dlc.graph.ops.binary import Binary, Where
from dlc.graph.ops.elementwise import Cast, Erf, Exp, Log, Tanh, Unary
from dlc.graph.ops.look_up import ENTRIES, LookUp
from dlc.graph.ops.quotient import Quotient
from dlc.graph.ops.shape import Reshape, Transpose
from dlc.graph.ops.to_bytes import ToBytes
from dlc.graph.pass_ import PassContext, graph_pass

_COSTLY: tuple[type[Op], ...] = (
    Celu, Elu, Erf, Exp, Gelu, Log, Mish, Selu, Sigmoid, Silu, Softplus, Tanh,
)  # fmt: skip
"""Operators by polynomials: they take longer than a look-up."""
_QUICK: tuple[type[Op], ...] = (HardSigmoid, HardSwish, LeakyRelu, Quotient)
"""Some instructions, or new scales: they take longer than a look-up of a whole vector at once."""
_POINTWISE = (Binary, Cast, Clip, Quotient, ToBytes, Unary, Where)
"""Operators whose results are functions of nothing but the elements at their position."""
_MOVES = (Reshape, Transpose)


@dataclass(frozen=True, slots=True)
class _Source:
    """Bytes, and how elements are moved between these and functions of them."""

    byte: Value
    moves: tuple[Op, ...] = ()


@graph_pass(after=("requantize",), bodies=True)
def tabulate_bytes(graph: Graph, context: PassContext) -> Graph:
    """Replace costly functions of one byte by picks from a table of their results."""
    if context.target.gpu is not None:
        return graph
    costly = _COSTLY + _QUICK if context.looks_up_vectors else _COSTLY
    sources = _sources(graph)
    read = _read(graph, sources)
    editor = GraphEditor(graph)
    moved: dict[_Source, Value] = {}
    for end in graph.nodes:
        if end.outputs[0] not in read or not _is_byte(end.output):
            continue
        cone = _cone(graph, end, sources)
        if not any(isinstance(n.op, costly) and n.output not in read for n in cone):
            continue
        source = sources[end.output]
        if source not in moved:
            moved[source] = _moved(editor, source, end)
        results = _results(graph, cone, source.byte, end.output)
        table = editor.constant(results, end.output.type.dtype, f"{end.output.name}_table")
        editor.update(replace(end, op=LookUp(), inputs=(moved[source], table)))
        editor.discard(end.inputs)
    return editor.finish()


def _is_byte(value: Value) -> bool:
    return value.type.dtype in BYTES


def _sources(graph: Graph) -> dict[Value, _Source]:
    """What values are functions of, element by element, beside constants of one element."""
    found: dict[Value, _Source] = {}
    single = {v for v, array in graph.constants.items() if array.size == 1}
    for node in graph.nodes:
        read = [v for v in node.inputs if v not in single]
        sources = {found.get(v, _Source(v)) for v in read}
        source = sources.pop() if len(sources) == 1 else None
        if source is None or not _is_byte(source.byte):
            continue
        if isinstance(node.op, _MOVES) and source.byte is not read[0]:
            found[node.output] = replace(source, moves=(*source.moves, node.op))
        elif isinstance(node.op, _POINTWISE) and node.output.type.shape == read[0].type.shape:
            found[node.output] = source
    return found


def _read(graph: Graph, sources: Mapping[Value, _Source]) -> set[Value]:
    """Those functions of a byte that are read by others, or by floats that are, up to a byte."""
    found: set[Value] = set()
    for node in reversed(graph.nodes):
        value = node.outputs[0]
        if value not in sources:
            continue
        results = (v for user in graph.users.get(value, ()) for v in user.outputs)
        inside = (v in sources and sources[v].byte == sources[value].byte for v in results)
        if value in graph.outputs or not all(inside):
            found.add(value)
        if value in found and not _is_byte(value):
            found.update(v for v in node.inputs if v in sources)
    return found


def _cone(graph: Graph, end: Node, sources: Mapping[Value, _Source]) -> list[Node]:
    """The nodes between a byte and a value that is a function of it, in order."""
    found: set[Value] = set()
    pending = [end.output]
    while pending:
        value = pending.pop()
        if value not in found:
            found.add(value)
            pending += [v for v in graph.producers[value].inputs if v in sources]
    return [n for n in graph.nodes if n.outputs[0] in found]


def _moved(editor: GraphEditor, source: _Source, at: Node) -> Value:
    """Bytes, moved to where their functions are."""
    byte = source.byte
    for op in source.moves:
        byte = editor.call(op, byte, at=at, hint=f"{source.byte.name}_moved")
    return byte


def _results(graph: Graph, cone: list[Node], byte: Value, end: Value) -> Array:
    """What becomes of each byte; those below zero are behind the others: see `LookUp`."""
    arguments = np.arange(ENTRIES, dtype=np.uint8).view(NUMPY_DTYPES[byte.type.dtype])
    known: dict[Value, Array] = {byte: arguments}
    for node in cone:
        if isinstance(node.op, _MOVES):  # each byte by itself has no place
            known[node.output] = known[node.inputs[0]]
            continue
        operands = [known[v] if v in known else graph.constants[v].reshape(()) for v in node.inputs]
        result = node.op.reference(*operands)
        assert isinstance(result, np.ndarray), "a pointwise operator has one result"
        known[node.output] = round_to(result, node.output.type.dtype)
    return known[end]
