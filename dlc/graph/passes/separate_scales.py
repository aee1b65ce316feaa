"""Multiply whole numbers, and their products by the scales.

Before:
    def main(x: f32[2, 4]):
        k: f32[4, 3] = const(1, 2, 3, 4, 5, 6, -7, -8, -9, 0, 11, 12)
        c: f32[3] = const()
        w: f32[4, 3] = mul(k, c)
        y: f32[2, 3] = matmul(x, w)
        return y

After:
    def main(x: f32[2, 4]):
        k: f32[4, 3] = const()
        c: f32[3] = const()
        y_1: f32[1, 3] = reshape(c, shape=(1, 3))
        y_2: f32[2, 3] = matmul(x, k)
        y: f32[2, 3] = mul(y_2, y_1)
        return y

Position: before fold_constants, which makes one constant of quantized weights and their scale.

What a quantized model multiplies are whole numbers of eight bits. These are exact in bf16, so that
a matrix engine needs one product for them where it needs six for float32.
"""

from __future__ import annotations

from dataclasses import replace

from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.integers import BF16_EXACT, integer_range, magnitude
from dlc.graph.ops.binary import Mul
from dlc.graph.ops.conv import Conv, ConvTranspose
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.shape import Reshape, Transpose
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.te.expr import ONE, Expr
from dlc.te.types import is_const

Scaled = tuple[Value, Value]
"""Whole numbers, and a scale: of as many dimensions, or one number."""


@graph_pass(bodies=True)
def separate_scales(graph: Graph, context: PassContext) -> Graph:
    """Take the scales of quantized operands out of products whose right operand has one."""
    editor = GraphEditor(graph)
    for node in graph.nodes:
        if isinstance(node.op, Conv | ConvTranspose | MatMul) and node.output.type.dtype.is_float:
            _separate(editor, node)
    return editor.finish() if editor.changed else graph


def _separate(editor: GraphEditor, node: Node) -> None:
    x, w = node.inputs
    right = _scaled(editor, w, node)
    factor = None if right is None else _column_scale(editor, node, right[1])
    if right is None or factor is None:
        return
    factors = [factor]
    left = _scaled(editor, x, node)
    if left is not None and _is_row_scale(node, left[1].type.shape):
        x = left[0]
        factors.insert(0, left[1])
    total = editor.call(node.op, x, right[0], at=node)
    for scale in factors[:-1]:
        total = editor.call(Mul(), total, scale, at=node)
    editor.update(replace(node, op=Mul(), inputs=(total, factors[-1])))
    editor.discard(node.inputs)


def _scaled(editor: GraphEditor, value: Value, at: Node) -> Scaled | None:
    """A value as whole numbers of eight bits times a scale, where it is made so."""
    node = editor.producer(value)
    if node is None:
        return None
    if isinstance(node.op, Transpose):
        inner = _scaled(editor, node.inputs[0], at)
        if inner is None:
            return None
        whole, scale = inner
        if scale.type.rank:
            scale = editor.call(node.op, scale, at=at)
        return editor.call(node.op, whole, at=at), scale
    if not isinstance(node.op, Mul):
        return None
    for whole, scale in (node.inputs, node.inputs[::-1]):
        found = integer_range(editor, whole)
        fits = found is not None and magnitude(found) <= BF16_EXACT
        if fits and whole.type == value.type != scale.type:
            if not scale.type.rank:
                return whole, scale
            shape = (*(ONE,) * (value.type.rank - scale.type.rank), *scale.type.shape)
            return whole, editor.call(Reshape(shape=shape), scale, at=at)
    return None


def _is_row_scale(node: Node, shape: tuple[Expr, ...]) -> bool:
    """Whether a scale of the left operand fits the product: it is the same for all summands."""
    kept = shape[:-1] if isinstance(node.op, MatMul) and len(shape) > 1 else ()
    return all(is_const(n, 1) for n in shape[len(kept) :])


def _column_scale(editor: GraphEditor, node: Node, scale: Value) -> Value | None:
    """A scale of the right operand as one of the product, if it is the same for all summands."""
    shape = scale.type.shape
    if not shape:
        return scale
    if isinstance(node.op, MatMul):
        if len(shape) < 2 or not is_const(shape[-2], 1) or len(node.inputs[0].type.shape) < 2:
            return None
        return scale if node.output.type.rank >= len(shape) else None
    axis = 0
    if isinstance(node.op, ConvTranspose):
        axis = 1
        if node.op.groups > 1:  # which have the results of a group alone along that axis
            return None
    if any(not is_const(n, 1) for d, n in enumerate(shape) if d != axis):
        return None
    turned = (shape[axis], *(ONE,) * (len(shape) - 2))
    return editor.call(Reshape(shape=turned), scale, at=node)
