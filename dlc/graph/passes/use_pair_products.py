"""Compute products with constant weights on pairs of bf16 in vectors, where that is faster.

Before:
    def main(x: f32[128, 256]):
        w: f32[16, 256, 16] = const()
        y: f32[128, 256] = matmul_packed(x, w, n=256)
        return y

After:
    def main(x: f32[128, 256]):
        w_pairs: bf16[16, 128, 16, 2] = const()
        y: f32[128, 256] = matmul_pairs(x, w_pairs, n=256)
        return y

Position: after use_matrix_engine, whose tiles are faster still where there are any, and after
use_winograd, which takes what needs fewer products; before narrow_weights, which takes what is
left. The decision is about single operators and changes no layout.

Only at precision "medium": a float32 is rounded to one bf16.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from dlc.core.types import DType
from dlc.graph.edit import GraphEditor
from dlc.graph.estimate import elements
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.integers import integer_range
from dlc.graph.op import Op
from dlc.graph.ops.conv_blocked import ConvBlocked, PlanarConv
from dlc.graph.ops.matmul import MatMulPacked
from dlc.graph.ops.pairs import PAIR, ROUNDED, ConvPairs, MatMulPairs, pack_pairs
from dlc.graph.ops.pairs_planar import PlanarPairs, pack_columns
from dlc.graph.ops.shape import Pad
from dlc.graph.ops.window import out_size
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.graph.pointwise import PAIR_RATE
from dlc.graph.transformed import summand_share
from dlc.te.expr import ZERO, index
from dlc.te.simplify import surely_divides, surely_equal
from dlc.te.types import const_size

FMA_SHARE = 0.8  # of the peak, that kernels of multiply-adds reach, and those of pairs
ROUND = 2.0  # cycles to round 16 floats, to write and to read them
MARGIN = 0.9  # of the time of multiply-adds, that pairs may take
LEFT_RATE = 0.8  # of products where those of zeros are left out, which pairs are not; as measured
LARGEST = 3.3e38  # below what rounds to infinity


@graph_pass(
    after=("choose_layouts", "pack_matmul_weights", "use_matrix_engine", "use_winograd"),
    bodies=True,
)
def use_pair_products(graph: Graph, context: PassContext) -> Graph:
    """Replace products with constant weights by products of pairs."""
    if not context.multiplies_pairs:
        return graph
    editor = GraphEditor(graph)
    packed: dict[str, Value] = {}
    for node in graph.nodes:
        op = _paired(node, editor)
        if op is None or not _pays(node, op, context):
            continue
        w = node.inputs[1]
        array = editor.array(w)
        if array is None:
            continue
        if w.name not in packed:
            pack = pack_columns if isinstance(op, PlanarPairs) else pack_pairs
            packed[w.name] = editor.constant(pack(array), DType.BF16, f"{w.name}_pairs")
        editor.update(replace(node, op=op, inputs=(_wide(node, op, editor), packed[w.name])))
    return editor.finish()


def _paired(node: Node, editor: GraphEditor) -> Op | None:
    """What a node would become, if its operator has a form on pairs."""
    op = node.op
    if not isinstance(op, ConvBlocked | PlanarConv | MatMulPacked):
        return None
    x, w = node.inputs
    if not x.type.dtype is w.type.dtype is DType.F32 or not w.type.is_static:
        return None
    if isinstance(op, MatMulPacked):
        fits = x.type.rank >= 2 and surely_divides(ROUNDED, x.type.shape[-1])
        return MatMulPairs(n=op.n) if fits else None
    if isinstance(op, PlanarConv):
        return _planar(op, x, w, editor)
    channels = const_size(w.type.shape[-2])
    if op.sparse or op.turned or channels % ROUNDED:
        return None
    return ConvPairs(stride=op.stride, dilation=op.dilation, groups=op.groups)


def _planar(op: PlanarConv, x: Value, w: Value, editor: GraphEditor) -> Op | None:
    """The form of a planar convolution, whose pairs are pixels side by side."""
    array = editor.array(w)
    if array is None or op.dilation[-1] != 1:
        return None
    is_whole = integer_range(editor, x) is not None
    return PlanarPairs(
        width=const_size(w.type.shape[-2]),
        stride=op.stride,
        dilation=op.dilation,
        is_finite=is_whole and float(np.abs(array).max(initial=0.0)) < LARGEST,
    )


def _wide(node: Node, op: Op, editor: GraphEditor) -> Value:
    """The image of a product, with one column more where its last results need it."""
    x = node.inputs[0]
    if not isinstance(op, PlanarPairs):
        return x
    more = op.width % PAIR
    size = out_size(x.type.shape[-1], index(op.width + more), op.stride[-1], 1)
    if surely_equal(size, node.output.type.shape[-2]):
        return x
    maker = editor.producer(x)
    pad = Pad(before=(ZERO,) * x.type.rank, after=(ZERO,) * x.type.rank)
    if maker is not None and isinstance(maker.op, Pad) and maker.op.mode == pad.mode:
        pad, x = maker.op, maker.inputs[0]
    *others, last = pad.after
    after = (*others, last + more)
    return editor.call(replace(pad, after=after), x, at=node, hint=f"{x.name}_wide")


def _pays(node: Node, op: Op, context: PassContext) -> bool:
    """Whether products of pairs are estimated to be faster, if nobody else rounds the rows."""
    x, w = node.inputs
    lanes = context.target.lanes(4)
    summands = prod(map(const_size, w.type.shape[1:-1]))
    fmas = elements(node.output) * summands / (2 * FMA_SHARE * lanes)
    rounded = elements(x) / lanes * ROUND
    idle = op.width % PAIR / op.width if isinstance(op, PlanarPairs) else 0.0
    share = summand_share(node) if isinstance(node.op, ConvBlocked) else 1.0
    return fmas * (1 + idle) / PAIR_RATE + rounded < fmas * min(MARGIN, share / LEFT_RATE)
