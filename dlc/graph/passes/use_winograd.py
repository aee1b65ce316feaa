"""Compute convolutions of three by three by fewer products, where the transforms cost less.

Before:
    def main(x: f32[1, 6, 16, 18, 8]):
        w: f32[6, 6, 3, 3, 8, 8] = const()
        y: f32[1, 6, 14, 16, 8] = conv_blocked(x, w)
        return y

After:
    def main(x: f32[1, 6, 16, 18, 8]):
        w: f32[6, 6, 3, 3, 8, 8] = const()
        w_transformed: f32[4, 4, 6, 6, 8, 8] = const()
        y: f32[1, 6, 14, 16, 8] = conv_winograd(x, w_transformed, w)
        return y

Position: after use_matrix_engine, which takes what is faster there; before fuse_groups. The
decision is about single operators and changes no layout.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from dlc.core.types import DType
from dlc.graph.edit import GraphEditor
from dlc.graph.forks import decide
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.ops.conv_blocked import ConvBlocked
from dlc.graph.ops.winograd import IN, KERNEL, OUT, ConvWinograd, transform_weights
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.schedule.rules.transform import FAR_BYTES, Shape, choose_plan, cycles
from dlc.te.expr import Const, Expr
from dlc.te.types import const_size

FMA_SHARE = 0.85  # of the peak, that kernels without transforms reach
MARGIN = 0.9  # of their time, that the transformed ones may take
DIRECT, TRANSFORMED = "direct", "transformed"  # the ways of the fork


@graph_pass(after=("choose_layouts", "use_matrix_engine"), bodies=True)
def use_winograd(graph: Graph, context: PassContext) -> Graph:
    """Replace convolutions by transformed ones."""
    target = context.target
    if target.gpu is not None:
        return graph
    editor = GraphEditor(graph)
    made: dict[str, Value] = {}
    for node in graph.nodes:
        if not isinstance(node.op, ConvBlocked) or not _fits(node.op, node, context):
            continue
        x, w = node.inputs
        array = editor.array(w)
        if array is None or not _is_chosen(graph, node, context):
            continue
        if w.name not in made:
            transformed = transform_weights(array)
            made[w.name] = editor.constant(transformed, DType.F32, f"{w.name}_transformed")
        editor.update(replace(node, op=ConvWinograd(), inputs=(x, made[w.name], w)))
    return editor.finish()


def _fits(op: ConvBlocked, node: Node, context: PassContext) -> bool:
    """Whether a convolution has a transformed form."""
    x, w = node.inputs
    if w.type.dtype is not DType.F32 or x.type.dtype is not DType.F32 or not w.type.is_static:
        return False
    ob, cb, *kernel, _, oc = (const_size(n) for n in w.type.shape)
    unit = (1, 1)
    if oc != context.target.lanes(4) or op.sparse:
        return False
    if kernel != [KERNEL, KERNEL] or (op.stride, op.dilation, op.groups) != (unit, unit, 1):
        return False
    n, _, *sizes, _ = node.output.type.shape
    return 0 not in (_constant(n), *map(_constant, sizes), ob, cb)


def _is_chosen(graph: Graph, node: Node, context: PassContext) -> bool:
    """Whether to transform: where it is estimated to be faster, or was measured to be."""
    direct, transformed = _cycles(node, context)
    way = decide(
        context, graph, [node], kind="winograd", version=1, options=(DIRECT, TRANSFORMED),
        default=TRANSFORMED if transformed < direct * MARGIN else DIRECT,
        cycles=lambda: (direct, transformed),
    )  # fmt: skip
    return way == TRANSFORMED


def _cycles(node: Node, context: PassContext) -> tuple[float, float]:
    """Estimates of the time of a convolution as it is, and transformed."""
    w = node.inputs[1]
    ob, cb, *_, c, oc = (const_size(n) for n in w.type.shape)
    n, _, *sizes, _ = node.output.type.shape
    images, high, wide = _constant(n), *(_constant(size) for size in sizes)
    tiles = [None if size is None else -(-size // OUT) for size in (high, wide)]
    shape = Shape(images, tiles[0], tiles[1], IN * IN, cb * c, ob)
    time = cycles(shape, choose_plan(shape, context.target, {}), context.target)
    results = (images or 1) * (high or 32 * OUT) * (wide or 32 * OUT)
    direct = results * KERNEL * KERNEL * cb * c * ob * oc / (2 * oc * FMA_SHARE)
    direct += prod(const_size(size) for size in w.type.shape) * 4 / FAR_BYTES
    return direct, time


def _constant(size: Expr) -> int | None:
    return int(size.value) if isinstance(size, Const) else None
