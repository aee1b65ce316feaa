"""Compute products with constant matrices on a matrix engine, where that is faster.

Before:
    def main(x: f32[128, 256]):
        w: f32[16, 256, 16] = const()
        y: f32[128, 256] = matmul_packed(x, w, n=256)
        return y

After:
    def main(x: f32[128, 256]):
        w_planes: bf16[8, 8, 3, 2, 16, 16, 2] = const()
        y: f32[128, 256] = matmul_planes(x, w_planes, n=256, slack=97)
        return y

Position: after choose_layouts, pack_matmul_weights and everything that looks for their operators;
the decision is about single operators and changes no layout.

`precision` says how many planes a float32 has: "highest" three, "high" two, "medium" one.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from dlc.core.types import DType
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.op import Array, Op
from dlc.graph.ops.conv_blocked import ConvBlocked
from dlc.graph.ops.matmul import MatMulPacked
from dlc.graph.ops.planes import DEPTH, PAIRS, ROWS, pack_tiles
from dlc.graph.ops.planes_conv import ConvPlanes, Grid
from dlc.graph.ops.planes_matmul import MatMulPlanes
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.schedule.rules.strip import Shape, choose_strip, cycles
from dlc.te.types import const_size

PLANES = {"highest": 3, "high": 2, "medium": 1}
FEATURES = frozenset({"amx-bf16", "avx512bf16"})
FMA_SHARE = 0.8  # of the peak, that kernels of fused multiply-adds reach


@graph_pass(after=("choose_layouts", "pack_matmul_weights"), bodies=True)
def use_matrix_engine(graph: Graph, context: PassContext) -> Graph:
    """Replace products with constant matrices by products of planes."""
    if not context.target.features >= FEATURES:
        return graph
    editor = GraphEditor(graph)
    packed: dict[str, Value] = {}
    count = PLANES[context.precision]
    for node in graph.nodes:
        found = _planes(node, editor, count)
        if found is None or not _pays(found[0], found[1], node, context):
            continue
        op, _, dense = found
        x, w = node.inputs
        if w.name not in packed:
            tiles = pack_tiles(dense, count)
            packed[w.name] = editor.constant(tiles, DType.BF16, f"{w.name}_planes")
        editor.update(replace(node, op=op, inputs=(x, packed[w.name])))
    return editor.finish()


def _planes(node: Node, editor: GraphEditor, count: int) -> tuple[Op, Shape, Array] | None:
    """The operator on planes, its size and the constant operand as [depth, *kernel, columns]."""
    match node.op:
        case ConvBlocked() | MatMulPacked():
            x, w = node.inputs
            array = editor.array(w)
            wanted = array is not None and w.type.dtype is DType.F32
            if array is None or not wanted or not x.type.is_static or not array.size:
                return None
            if isinstance(node.op, ConvBlocked):
                return _conv(node.op, node.output, array, count)
            return _matmul(node.op, x, node.output, array, count)
        case _:
            return None


def _conv(op: ConvBlocked, out: Value, w: Array, count: int) -> tuple[Op, Shape, Array] | None:
    ob, cb, *kernel, ci, oc = w.shape
    if op.groups != 1 or ci != ROWS or oc != ROWS:
        return None
    rank = len(kernel)
    dense = w.transpose(1, 2 + rank, *range(2, 2 + rank), 0, 3 + rank)
    n, _, *sizes, _ = out.type.static_shape
    grid = Grid(out.type.shape[2:-1], kernel, op.stride, op.dilation)
    slack = (sizes[0] // 2 + 1) * grid.line + 2 * ROWS
    shape = Shape(
        lead=n,
        lines=sizes[0],
        width=grid.line,
        last=const_size(grid.height) - (sizes[0] - 1) * grid.line,
        reach=const_size(grid.reach),
        spare=slack,
        columns=-(-ob // 2),
        steps=-(-cb // 2) * prod(kernel),
        products=len(PAIRS[count]),
        row_bytes=-(-cb // 2) * prod(grid.phases) * count * DEPTH * 2,
    )
    new = ConvPlanes(blocks=out.type.shape[1], stride=op.stride, dilation=op.dilation, slack=slack)
    return new, shape, dense.reshape(cb * ROWS, *kernel, ob * ROWS)


def _matmul(
    op: MatMulPacked, x: Value, out: Value, w: Array, count: int
) -> tuple[Op, Shape, Array] | None:
    panels, depth, width = w.shape
    *lead, m, n = out.type.static_shape if x.type.rank > 1 else (1, 1)
    if depth % DEPTH or n % ROWS or m < 2:
        return None
    slack = m // 2 + 2 * ROWS + 1
    shape = Shape(
        lead=prod(lead),
        lines=m,
        width=1,
        last=1,
        reach=0,
        spare=slack,
        columns=-(-n // (2 * ROWS)),
        steps=depth // DEPTH,
        products=len(PAIRS[count]),
        row_bytes=depth * count * 2,
    )
    dense = w.transpose(1, 0, 2).reshape(depth, panels * width)[:, :n]
    return MatMulPlanes(n=op.n, slack=slack), shape, np.ascontiguousarray(dense)


def _pays(op: Op, shape: Shape, node: Node, context: PassContext) -> bool:
    """Whether the engine is faster than fused multiply-adds."""
    target = context.target
    if not shape.lead or not shape.lines:
        return False
    rows = shape.lead * ((shape.lines - 1) * shape.width + shape.last)
    macs = rows * shape.columns * 2 * ROWS * shape.steps * DEPTH
    fused = macs / (2 * target.lanes(4) * FMA_SHARE)
    strip = choose_strip(shape, target, {})
    return strip is not None and cycles(shape, strip, target) < fused
