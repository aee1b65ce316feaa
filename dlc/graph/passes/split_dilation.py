"""Convolve each phase of a dilation on its own, where the images are then transformed.

Before:
    def main(x: f32[1, 8, 36, 36, 8]):
        w: f32[8, 8, 3, 3, 8, 8] = const()
        y: f32[1, 8, 32, 32, 8] = conv_blocked(x, w, dilation=(2, 2))
        return y

After:
    def main(x: f32[1, 8, 36, 36, 8]):
        w_apart: f32[8, 8, 1, 3, 3, 8, 8] = const()
        x_apart: f32[1, 8, 4, 18, 18, 8] = split_phases(x, steps=(2, 2))
        y_apart: f32[1, 8, 4, 16, 16, 8] = conv_blocked(x_apart, w_apart, stride=(1, 1, 1),
            dilation=(1, 1, 1))
        y: f32[1, 8, 32, 32, 8] = join_phases(y_apart, steps=(2, 2), sizes=(32, 32))
        return y

Position: before use_winograd, which transforms what is not dilated; the images of all phases are a
volume there, whose strips share weights. After use_matrix_engine, which dilates as it pleases.
"""

from __future__ import annotations

from dataclasses import replace

from dlc.graph.edit import GraphEditor
from dlc.graph.forks import decide
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.ops.conv_blocked import ConvBlocked
from dlc.graph.ops.phases import JoinPhases, SplitPhases
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.graph.transformed import (
    MOVED_MARGIN,
    direct_cycles,
    is_exact,
    moving_cycles,
    probe,
    summand_share,
    transformed_cycles,
)
from dlc.te.expr import Const
from dlc.te.types import TensorType, const_size

WHOLE, SPLIT = "whole", "phases"  # the ways of the fork
AXES = (1, 2)  # of a line, and of an image


@graph_pass(after=("choose_layouts", "use_matrix_engine"), bodies=True)
def split_dilation(graph: Graph, context: PassContext) -> Graph:
    """Replace dilated convolutions by those of the phases of their dilation."""
    if context.target.gpu is not None:
        return graph
    editor = GraphEditor(graph)
    matrices: dict[Value, Value] = {}
    images: dict[tuple[Value, tuple[int, ...]], Value] = {}
    for node in graph.nodes:
        if not isinstance(node.op, ConvBlocked) or not _fits(node.op, node):
            continue
        x, w = node.inputs
        array, steps = editor.array(w), node.op.dilation
        if array is None or not _pays(editor, node, context):
            continue
        if w not in matrices:
            shape = _apart(w.type.static_shape)
            matrices[w] = editor.constant(array.reshape(shape), w.type.dtype, f"{w.name}_apart")
        if (x, steps) not in images:
            split = SplitPhases(steps=steps)
            images[x, steps] = editor.call(split, x, at=node, hint=f"{x.name}_apart")
        parts, hint = (images[x, steps], matrices[w]), f"{node.output.name}_apart"
        sums = editor.call(_undilated(node.op), *parts, at=node, hint=hint)
        sizes = tuple(const_size(size) for size in node.output.type.shape[2:-1])
        join = JoinPhases(steps=steps, sizes=sizes)
        editor.update(replace(node, op=join, inputs=(sums,)))
    return editor.finish()


def _fits(op: ConvBlocked, node: Node) -> bool:
    """Whether an image is dilated, its pixels are read one by one, and its sizes are known."""
    sizes = (*node.inputs[0].type.shape[1:], *node.inputs[1].type.shape)
    is_dilated = len(op.dilation) in AXES and max(op.dilation) > 1
    return is_dilated and set(op.stride) == {1} and all(isinstance(n, Const) for n in sizes)


def _undilated(op: ConvBlocked) -> ConvBlocked:
    ones = (1,) * (len(op.dilation) + 1)
    return replace(op, stride=ones, dilation=ones, zeros=())


def _apart(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of weights [ob, cb, *kernel, c, oc] of one image of a volume."""
    return (*shape[:2], 1, *shape[2:])


def _pays(editor: GraphEditor, node: Node, context: PassContext) -> bool:
    """Whether the images of all phases are convolved in less time, with their copies."""
    op = node.op
    assert isinstance(op, ConvBlocked)
    if is_exact(editor, node):
        return False
    x, w = node.inputs
    parts = SplitPhases(steps=op.dilation).infer(x.type)
    weights = TensorType(_apart(w.type.static_shape), w.type.dtype)
    apart = probe(_undilated(op), parts, weights)
    transformed = transformed_cycles(apart, context)
    if not transformed:
        return False
    direct = direct_cycles(node, context)
    margin = min(1.0, MOVED_MARGIN / summand_share(node))  # of what all taps would take
    cost = min(transformed.values()) + moving_cycles(parts, apart.output.type)
    way = decide(
        context, editor.graph, [node], kind="phases", version=1, options=(WHOLE, SPLIT),
        default=SPLIT if cost < direct * margin else WHOLE,
        cycles=lambda: (direct, cost),
    )  # fmt: skip
    return way == SPLIT
