"""Convolve columns, and other lines that are not the last axis, as lines, which are transformed.

Before:
    def main(x: f32[1, 8, 38, 32, 8]):
        w: f32[8, 8, 7, 1, 8, 8] = const()
        y: f32[1, 8, 32, 32, 8] = conv_blocked(x, w)
        return y

After:
    def main(x: f32[1, 8, 38, 32, 8]):
        w_turned: f32[8, 8, 1, 7, 8, 8] = const()
        x_turned: f32[1, 8, 32, 38, 8] = transpose(x, perm=(0, 1, 3, 2, 4))
        y_turned: f32[1, 8, 32, 32, 8] = conv_blocked(x_turned, w_turned)
        y: f32[1, 8, 32, 32, 8] = transpose(y_turned, perm=(0, 1, 3, 2, 4))
        return y

Position: before split_dilation and use_winograd, which transform lines along the last axis, of an
image at most; after use_matrix_engine, to which all axes are alike. The axes across the lines
become one, so lines of a volume are those of an image.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from dlc.graph.edit import GraphEditor
from dlc.graph.forks import decide
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.op import Array
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.conv_blocked import ConvBlocked
from dlc.graph.ops.shape import Reshape, Transpose, undone
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.graph.transformed import (
    MOVED_MARGIN,
    direct_cycles,
    is_exact,
    moving_cycles,
    probe,
    transformed_cycles,
)
from dlc.te.expr import Const, Expr
from dlc.te.types import TensorType, const_size

AS_IS, TURNED = "as it is", "turned"  # the ways of the fork
FIRST = 2  # axes of an image, or of weights, before those of space


@graph_pass(after=("choose_layouts", "use_matrix_engine"), bodies=True)
def turn_lines(graph: Graph, context: PassContext) -> Graph:
    """Replace convolutions along one axis by those along the last axis of what is turned."""
    if context.target.gpu is not None:
        return graph
    editor = GraphEditor(graph)
    for node in graph.nodes:
        axis = _axis(node)
        if axis is None or not _pays(editor, node, axis, context):
            continue
        _turn(editor, node, axis)
    return editor.finish()


def _axis(node: Node) -> int | None:
    """The axis of space along which alone a convolution has a kernel, where it turns."""
    if not isinstance(node.op, ConvBlocked):
        return None
    x, w = node.inputs
    *kernel, _, _ = w.type.shape[FIRST:]
    if not all(isinstance(n, Const) for n in (*x.type.shape[1:], *w.type.shape)):
        return None
    along = [axis for axis, size in enumerate(kernel) if const_size(size) > 1]
    is_image = len(kernel) == 2
    if len(along) != 1 or len(kernel) == 1 or (is_image and along == [1]):
        return None
    return along[0] if set(node.op.stride) == {1} else None


def _order(node: Node, axis: int) -> tuple[int, ...]:
    """The axes of an image with that of the lines last, before the channels of a block."""
    rank = node.inputs[0].type.rank
    space = [d for d in range(FIRST, rank - 1) if d != FIRST + axis]
    return (*range(FIRST), *space, FIRST + axis, rank - 1)


def _joined(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The sizes of an image of lines: all axes across them are one."""
    *lead, line, lanes = shape
    across = prod(const_size(n) for n in lead[FIRST:])
    return as_sizes((*lead[:FIRST], across, line, lanes))


def _line_op(op: ConvBlocked, axis: int) -> ConvBlocked:
    return replace(op, stride=(1, 1), dilation=(1, op.dilation[axis]), zeros=())


def _weights(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    ob, cb, *kernel, c, oc = shape
    return (ob, cb, 1, kernel[axis], c, oc)


def _turn(editor: GraphEditor, node: Node, axis: int) -> None:
    """Put what is turned, and turned back, in the place of a convolution."""
    assert isinstance(node.op, ConvBlocked)
    x, w = node.inputs
    array = editor.array(w)
    assert array is not None
    order, lines = _order(node, axis), x
    if order != tuple(range(x.type.rank)):
        lines = editor.call(Transpose(perm=order), x, at=node, hint=f"{x.name}_turned")
    lines = _shaped(editor, lines, _joined(lines.type.shape), node, f"{x.name}_joined")
    turned: Array = array.reshape(_weights(array.shape, axis))
    weights = editor.constant(turned, w.type.dtype, f"{w.name}_turned")
    hint = f"{node.output.name}_turned"
    sums = editor.call(_line_op(node.op, axis), lines, weights, at=node, hint=hint)
    sizes = tuple(node.output.type.shape[d] for d in order)
    sums = _shaped(editor, sums, sizes, node, f"{node.output.name}_apart")
    editor.update(replace(node, op=Transpose(perm=undone(order)), inputs=(sums,)))


def _shaped(
    editor: GraphEditor, value: Value, shape: tuple[Expr, ...], at: Node, hint: str
) -> Value:
    if value.type.shape == shape:
        return value
    return editor.call(Reshape(shape=shape), value, at=at, hint=hint)


def _pays(editor: GraphEditor, node: Node, axis: int, context: PassContext) -> bool:
    """Whether lines are transformed in less time, with the copy of the result."""
    op, (x, w) = node.op, node.inputs
    assert isinstance(op, ConvBlocked)
    if editor.array(w) is None or is_exact(editor, node):
        return False
    order = _order(node, axis)
    lines = TensorType(_joined(tuple(x.type.shape[d] for d in order)), x.type.dtype)
    weights = TensorType(_weights(w.type.static_shape, axis), w.type.dtype)
    line_op = _line_op(op, axis)
    turned = probe(line_op, lines, weights)
    transformed = transformed_cycles(turned, context)
    if not transformed:
        return False
    direct = direct_cycles(node, context)
    cost = min(transformed.values()) + moving_cycles(turned.output.type)  # to turn it back
    way = decide(
        context, editor.graph, [node], kind="lines", version=1, options=(AS_IS, TURNED),
        default=TURNED if cost < direct * MOVED_MARGIN else AS_IS,
        cycles=lambda: (direct, cost),
    )  # fmt: skip
    return way == TURNED
