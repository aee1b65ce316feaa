"""Make bytes of whole numbers by one scale instead of two.

Before:
    def main(u: u8[2, 4]):
        w: i8[1, 1, 3, 4] = const()
        c: f32[3] = const(0.25, 0.125, 0.0625)
        b: f32[3] = const(1.0, 2.0, 3.0)
        s: f32[()] = const(0.75)
        r: f32[()] = const(1.3333333730697632)
        z: f32[()] = const(-3.0)
        x: i32[2, 3] = matmul_bytes(u, w, n=3)
        a: f32[2, 3] = cast(x, to=f32)
        p: f32[2, 3] = mul(a, c)
        q: f32[2, 3] = add(p, b)
        d: f32[2, 3] = quotient(q, s, r)
        n: f32[2, 3] = round(d)
        m: f32[2, 3] = add(n, z)
        y: i8[2, 3] = cast(m, to=i8)
        return y

After:
    def main(u: u8[2, 4]):
        w: i8[1, 1, 3, 4] = const()
        a_scaled: f32[3] = const(0.3333333432674408, 0.1666666716337204, 0.0833333358168602)
        b_scaled: f32[3] = const(1.3333333730697632, 2.6666667461395264, 4.0)
        m_zero: i32[()] = const(-3)
        x: i32[2, 3] = matmul_bytes(u, w, n=3)
        a: f32[2, 3] = cast(x, to=f32)
        y_1: f32[2, 3] = mul(a, a_scaled)
        y_2: f32[2, 3] = add(y_1, b_scaled)
        y: i8[2, 3] = to_bytes(y_2, m_zero, to=i8)
        return y

Position: after use_byte_products, whose sums are whole numbers; before fuse_groups. Sums of the
matrix engine are floats whose range nobody knows, and stay as they are.

How large whole numbers are is known, and so is what constants make of them: nothing overflows or
is NaN, and nothing has to ask. Sums of products get one scale, rounded once, where two were rounded
one after the other: either is as far from the exact result. Numbers that are made of bytes alone
keep their scales, so that their bytes are those of the model, and lose their questions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dlc.core.types import DType
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.integers import BYTES, Product, integer_range, magnitude
from dlc.graph.op import Array, Op
from dlc.graph.ops.activation import Relu
from dlc.graph.ops.binary import Add, Div, Mul, Sub, Where
from dlc.graph.ops.elementwise import Cast, Round
from dlc.graph.ops.quotient import Quotient
from dlc.graph.ops.to_bytes import ToBytes
from dlc.graph.pass_ import PassContext, graph_pass

_LIMIT = 2.0**30  # of magnitudes: an i32 holds twice as much
_SUM_LIMIT = 2.0**18  # of terms that may cancel: their last digits are 1/64 of a byte then
_MAX_TERMS = 8
_MAX_DEPTH = 8


@graph_pass(after=("use_matrix_engine", "use_byte_products"), bodies=True)
def requantize(graph: Graph, context: PassContext) -> Graph:
    """Join the scales of whole numbers with that of the bytes they become."""
    editor = GraphEditor(graph)
    for node in graph.nodes:
        if isinstance(node.op, Cast) and node.op.to in BYTES:
            _make_bytes(editor, node, node.op)
    return editor.finish()


def _make_bytes(editor: GraphEditor, node: Node, op: Cast) -> None:
    """Replace a cast of rounded numbers, if they are made of whole ones."""
    rounded, zero = _less_zero(editor, node.inputs[0])
    maker = editor.producer(rounded)
    if zero is None or maker is None or not isinstance(maker.op, Round):
        return
    term = _Terms(editor, node).of(maker.inputs[0], np.ones(()))
    if term is None or term.most + float(np.abs(zero).max(initial=0)) >= _LIMIT:
        return
    before = node.inputs
    found = term.build() if term.sums and not term.apart else _unasked(editor, maker.inputs[0])
    whole = editor.constant(zero.astype(np.int32), DType.I32, f"{before[0].name}_zero")
    editor.update(replace(node, op=ToBytes(to=op.to), inputs=(found, whole)))
    editor.discard(before)


def _unasked(editor: GraphEditor, value: Value) -> Value:
    """A value of which nothing overflows, without a question whether it does."""
    node = editor.producer(value)
    if node is None or not isinstance(node.op, Quotient):
        return value
    return editor.call(replace(node.op, finite=True), *node.inputs, at=node)


def _less_zero(editor: GraphEditor, value: Value) -> tuple[Value, Array | None]:
    """What the zero point is added to, and that: none is 0; None is a number that is not whole."""
    node = editor.producer(value)
    if node is None or not isinstance(node.op, Add):
        return value, np.zeros((), np.int32)
    if (found := _beside_constant(editor, node)) is None:
        return value, None
    inner, constant, array = found
    return inner, None if integer_range(editor, constant) is None else array


def _beside_constant(editor: GraphEditor, node: Node) -> tuple[Value, Value, Array] | None:
    """The operand beside a constant one, that one and its elements; or None."""
    for other, constant in (node.inputs, node.inputs[::-1]):
        if (array := editor.array(constant)) is not None:
            return other, constant, array
    return None


@dataclass(frozen=True, slots=True)
class _Term:
    """A value that is not made yet, and its largest magnitude."""

    build: Callable[[], Value]
    most: float
    sums: bool = False  # whether sums of products are part of it
    apart: bool = False  # whether its scales may not become one


class _Terms:
    """What a node reads, as sums of whole numbers times constants."""

    def __init__(self, editor: GraphEditor, node: Node) -> None:
        self.editor = editor
        self.node = node
        self._count = 0

    def of(self, value: Value, by: Array, depth: int = 0, *, shared: bool = False) -> _Term | None:
        """A value times a constant, or None if it is not made of whole numbers alone.

        Sums of products that others read too, `shared`, stay in memory and are as they are.
        """
        node = self.editor.producer(value)
        if node is None or value.type.dtype is not DType.F32 or depth > _MAX_DEPTH:
            return None
        shared = shared or self.editor.sole_user(value) is None
        x, *others = node.inputs
        match node.op:
            case Cast():
                return self._whole(value, x, by, shared=shared)
            case Relu() if (by > 0).all():
                return self._relu(self.of(x, by, depth + 1, shared=shared))
            case Quotient() | Div() if (array := self.editor.array(others[0])) is not None:
                return self.of(x, _f64(by, array, np.divide), depth + 1, shared=shared)
            case Mul() if (found := _beside_constant(self.editor, node)) is not None:
                factor, _, array = found
                return self.of(factor, _f64(by, array, np.multiply), depth + 1, shared=shared)
            case Add() | Sub():
                terms = [self._summand(v, by, depth + 1, shared=shared) for v in node.inputs]
                return self._joined(node.op, (), *terms)
            case Where():
                terms = [self._summand(v, by, depth + 1, shared=shared) for v in others]
                return self._joined(node.op, (x,), *terms)
        return self._whole(value, value, by, shared=shared)

    def _whole(self, value: Value, x: Value, by: Array, *, shared: bool) -> _Term | None:
        self._count += 1
        if self._count > _MAX_TERMS:
            return None
        limits, factor = integer_range(self.editor, x), self._constant(by, value)
        if limits is None or factor is None:
            return None
        most, sums = magnitude(limits) * factor.most, self._is_sum(x)
        return _Term(
            lambda: self._call(Mul(), value, factor.build()), most, sums, apart=sums and shared
        )

    def _is_sum(self, value: Value) -> bool:
        """Whether whole numbers are sums of products, perhaps less those of their zeros."""
        node = self.editor.producer(value)
        if node is not None and isinstance(node.op, Cast | Sub | Add):
            return self._is_sum(node.inputs[0])
        return node is not None and isinstance(node.op, Product)

    def _summand(self, value: Value, by: Array, depth: int, *, shared: bool) -> _Term | None:
        array = self.editor.array(value)
        if array is None:
            return self.of(value, by, depth, shared=shared)
        return self._constant(_f64(by, array, np.multiply), value)

    def _relu(self, a: _Term | None) -> _Term | None:
        return None if a is None else replace(a, build=lambda: self._call(Relu(), a.build()))

    def _joined(
        self, op: Op, first: tuple[Value, ...], a: _Term | None, b: _Term | None
    ) -> _Term | None:
        """A sum, or whichever of both terms a condition picks."""
        if a is None or b is None:
            return None
        most = a.most + b.most
        return _Term(
            lambda: self._call(op, *first, a.build(), b.build()),
            most,
            a.sums or b.sums,
            a.apart or b.apart or most >= _SUM_LIMIT,
        )

    def _constant(self, array: Array, like: Value) -> _Term | None:
        """A constant, unless float32 has no digits enough for it."""
        with np.errstate(over="ignore", under="ignore"):
            rounded = array.astype(np.float32)
        size = np.abs(rounded[array != 0])
        if not (np.isfinite(size).all() and (size >= np.finfo(np.float32).tiny).all()):
            return None
        most = float(np.abs(rounded).max(initial=0.0))
        name = f"{like.name}_scaled"
        return _Term(lambda: self.editor.constant(rounded, DType.F32, name), most)

    def _call(self, op: Op, *inputs: Value) -> Value:
        return self.editor.call(op, *inputs, at=self.node)


def _f64(by: Array, array: Array, function: np.ufunc) -> Array:
    with np.errstate(all="ignore"):  # what is not finite is refused later
        found: Array = function(by, array.astype(np.float64))
    return found
