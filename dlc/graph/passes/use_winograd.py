"""Compute convolutions by fewer products, where the transforms cost less.

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

Position: after use_matrix_engine, which takes what is faster there, and after use_byte_products,
whose products by two have transforms of whole numbers; before use_pair_products, which takes what
is left. The decision is about single operators and changes no layout.

Kernels have two taps or more along each axis that is transformed: both of an image, or its lines
alone. What is larger than the kernels of a tile is a sum of several such.

Sums of bytes stay exact: they are transformed where the constant weights, and what pixels can be,
prove that nothing is lost that counts.
"""

from __future__ import annotations

from dataclasses import replace

from dlc.core.types import DType
from dlc.graph.edit import GraphEditor
from dlc.graph.forks import decide
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.op import Array
from dlc.graph.ops.byte_products import ConvBytes
from dlc.graph.ops.conv_blocked import ConvBlocked
from dlc.graph.ops.filters import Out, Tile, transform_weights
from dlc.graph.ops.winograd import ConvWinograd, ConvWinogradBytes
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.graph.transformed import (
    direct_cycles,
    fastest,
    is_exact,
    run_cycles,
    surely_fits,
    tile_of,
    transformed_cycles,
)

DIRECT = "direct"  # the way of the fork that transforms nothing


@graph_pass(after=("choose_layouts", "use_matrix_engine", "use_byte_products"), bodies=True)
def use_winograd(graph: Graph, context: PassContext) -> Graph:
    """Replace convolutions by transformed ones."""
    if context.target.gpu is not None:
        return graph
    editor = GraphEditor(graph)
    made: dict[tuple[Value, Tile], Value] = {}
    for node in graph.nodes:
        if not isinstance(node.op, ConvBlocked | ConvBytes):
            continue
        x, w = node.inputs
        array = editor.array(w)
        out = None if array is None else _chosen(editor, node, context)
        if array is None or out is None:
            continue
        tile, axes = tile_of(node, out), len(out)
        if (w, tile) not in made:
            made[w, tile] = _of_tiles(editor, w, array, tile)
        outer = {"stride": node.op.stride[:-axes], "dilation": node.op.dilation[:-axes]}
        if isinstance(node.op, ConvBytes):
            whole = ConvWinogradBytes(out=out, **outer)
            editor.update(replace(node, op=whole, inputs=(x, made[w, tile])))
            continue
        cycles = run_cycles(node, out, context)
        op = ConvWinograd(out=out, steps=tile.steps, used=node.op.used, cycles=cycles, **outer)
        editor.update(replace(node, op=op, inputs=(x, made[w, tile], w)))
    return editor.finish()


def _of_tiles(editor: GraphEditor, w: Value, array: Array, tile: Tile) -> Value:
    """The weights of a convolution as one by such tiles takes them."""
    if tile.is_whole:
        pairs = array.reshape(*array.shape[:-2], -1)
        return editor.constant(pairs, DType.I8, f"{w.name}_pairs")
    transformed = transform_weights(array, tile.out, tile.steps)
    return editor.constant(transformed, DType.F32, f"{w.name}_transformed")


def _chosen(editor: GraphEditor, node: Node, context: PassContext) -> Out | None:
    """The tile to transform by: where it is estimated to be fastest, or was measured to be."""
    transformed = transformed_cycles(node, context)
    if isinstance(node.op, ConvBytes):
        transformed = {o: c for o, c in transformed.items() if surely_fits(editor, node, o)}
    elif transformed and is_exact(editor, node):
        return None
    if not transformed:
        return None
    direct = direct_cycles(node, context)
    ways: dict[str, Out | None] = {DIRECT: None}
    ways |= {f"tiles of {' by '.join(map(str, out))}": out for out in transformed}
    default = fastest(node, transformed, context)
    way = decide(
        context, editor.graph, [node], kind="winograd", version=2, options=tuple(ways),
        default=next(way for way, out in ways.items() if out == default),
        cycles=lambda: (direct, *transformed.values()),
    )  # fmt: skip
    return ways[way]
