"""Compute convolutions of three by three by fewer products, where the transforms cost less.

Before:
    def main(x: f32[1, 8, 16, 18, 8]):
        w: f32[8, 8, 3, 3, 8, 8] = const()
        y: f32[1, 8, 14, 16, 8] = conv_blocked(x, w)
        return y

After:
    def main(x: f32[1, 8, 16, 18, 8]):
        w: f32[8, 8, 3, 3, 8, 8] = const()
        w_transformed: f32[4, 6, 8, 8, 8, 8] = const()
        y: f32[1, 8, 14, 16, 8] = conv_winograd(x, w_transformed, w, out=(2, 4))
        return y

Position: after use_matrix_engine, which takes what is faster there; before use_pair_products, which
takes what is left. The decision is about single operators and changes no layout.

Larger tiles round more than direct sums do unless these are long; at precision "highest", short
sums are left to smaller tiles.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from dlc.core.types import DType
from dlc.graph.edit import GraphEditor
from dlc.graph.forks import decide
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.ops.conv_blocked import ConvBlocked
from dlc.graph.ops.winograd import (
    KERNEL,
    ConvWinograd,
    Out,
    positions,
    transform_weights,
)
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.graph.pointwise import PAIR_RATE
from dlc.schedule.rules.transform import is_accurate
from dlc.schedule.rules.transform_plan import FAR_BYTES, Shape, Volume, choose_plan, cycles
from dlc.te.expr import Const, Expr
from dlc.te.types import const_size

FMA_SHARE = 0.85  # of the peak, that kernels without transforms reach
MARGIN = 0.9  # of their time, that the transformed ones may take
AXES = (2, 3)  # of images, and of volumes
OPEN_SIZE = 64  # assumed where a size is known at run time only
TILES: tuple[Out, ...] = ((2, 2), (2, 4), (4, 4))
DIRECT = "direct"  # the way of the fork that transforms nothing


@graph_pass(after=("choose_layouts", "use_matrix_engine"), bodies=True)
def use_winograd(graph: Graph, context: PassContext) -> Graph:
    """Replace convolutions by transformed ones."""
    target = context.target
    if target.gpu is not None:
        return graph
    editor = GraphEditor(graph)
    made: dict[tuple[Value, Out], Value] = {}
    for node in graph.nodes:
        if not isinstance(node.op, ConvBlocked) or not _fits(node.op, node, context):
            continue
        x, w = node.inputs
        array = editor.array(w)
        if array is None:
            continue
        out = _chosen(graph, node, context)
        if out is None:
            continue
        if (w, out) not in made:
            transformed = transform_weights(array, out)
            made[w, out] = editor.constant(transformed, DType.F32, f"{w.name}_transformed")
        outer = {"stride": node.op.stride[:-2], "dilation": node.op.dilation[:-2]}
        op = ConvWinograd(out=out, **outer)
        editor.update(replace(node, op=op, inputs=(x, made[w, out], w)))
    return editor.finish()


def _fits(op: ConvBlocked, node: Node, context: PassContext) -> bool:
    """Whether a convolution has a transformed form."""
    x, w = node.inputs
    if w.type.dtype is not DType.F32 or x.type.dtype is not DType.F32 or not w.type.is_static:
        return False
    ob, cb, *kernel, _, oc = (const_size(n) for n in w.type.shape)
    if oc != context.target.lanes(4) or op.sparse or op.groups != 1:
        return False
    if len(kernel) not in AXES or kernel[-2:] != [KERNEL, KERNEL]:
        return False
    if (op.stride[-2:], op.dilation[-2:]) != ((1, 1), (1, 1)):
        return False
    n, _, *sizes, _ = node.output.type.shape
    return 0 not in (_constant(n), *map(_constant, sizes), ob, cb)


def _chosen(graph: Graph, node: Node, context: PassContext) -> Out | None:
    """The tile to transform by: where it is estimated to be fastest, or was measured to be."""
    tiles = _tiles(node, context)
    direct, *transformed = _cycles(node, tiles, context)
    ways: dict[str, Out | None] = {DIRECT: None}
    ways |= {f"tiles of {high} by {wide}": (high, wide) for high, wide in tiles}
    cycles = dict(zip(ways, (direct * MARGIN, *transformed), strict=True))
    way = decide(
        context, graph, [node], kind="winograd", version=2, options=tuple(ways),
        default=min(cycles, key=lambda way: cycles[way]),
        cycles=lambda: (direct, *transformed),
    )  # fmt: skip
    return ways[way]


def _cycles(node: Node, tiles: list[Out], context: PassContext) -> list[float]:
    """Estimates of the time of a convolution as it is, and by each tile."""
    w, target = node.inputs[1], context.target
    ob, cb, *kernel, c, _ = (const_size(n) for n in w.type.shape)
    n, _, *sizes, _ = node.output.type.shape
    volumes, *outer, high, wide = (_constant(size) for size in (n, *sizes))
    results = (volumes or 1) * prod(size or OPEN_SIZE for size in (*outer, high, wide))
    rate = PAIR_RATE if context.multiplies_pairs else 1.0
    direct = results * prod(kernel) * cb * c * ob / (target.multiply_adds * FMA_SHARE)
    direct += prod(const_size(size) for size in w.type.shape) * 4 / FAR_BYTES
    found = [direct / rate]
    volume = _volume(node, outer[0]) if outer else Volume()
    for out in tiles:
        count = -(-(high or OPEN_SIZE) // out[0]), -(-(wide or OPEN_SIZE) // out[1])
        depth = cb * volume.taps * c
        shape = Shape(volumes, *count, prod(positions(out)), depth, ob, volume)
        known = replace(shape, high=high and count[0], wide=wide and count[1])
        found.append(cycles(shape, choose_plan(known, target, {}), target))
    return found


def _volume(node: Node, images: int | None) -> Volume:
    """Which images of a volume its results need."""
    assert isinstance(node.op, ConvBlocked)
    taps = const_size(node.inputs[1].type.shape[2])
    return Volume(images, taps, node.op.stride[0], (taps - 1) * node.op.dilation[0] + 1)


def _tiles(node: Node, context: PassContext) -> list[Out]:
    """The tiles that are accurate enough, and smaller than the image."""
    _, cb, *outer, _, _, c, _ = (const_size(n) for n in node.inputs[1].type.shape)
    sizes = [_constant(size) for size in node.output.type.shape[-3:-1]]
    return [
        out
        for out in TILES
        if all(size is None or size > each for size, each in zip(sizes, out, strict=True))
        and (context.precision != "highest" or is_accurate(out, cb * prod(outer) * c))
    ]


def _constant(size: Expr) -> int | None:
    return int(size.value) if isinstance(size, Const) else None
