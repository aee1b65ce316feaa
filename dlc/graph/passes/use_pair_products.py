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

from dlc.core.types import DType
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.op import Op
from dlc.graph.ops.conv_blocked import ConvBlocked
from dlc.graph.ops.matmul import MatMulPacked
from dlc.graph.ops.pairs import ROUNDED, ConvPairs, MatMulPairs, pack_pairs
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.te.expr import Const
from dlc.te.simplify import surely_divides
from dlc.te.types import const_size

FMA_SHARE = 0.8  # of the peak, that kernels of multiply-adds reach, and those of pairs
PAIR_RATE = 2.0  # products of an instruction of pairs for each of a multiply-add; measured on Zen 4
ROUND = 2.0  # cycles to round 16 floats, to write and to read them
MARGIN = 0.9  # of the time of multiply-adds, that pairs may take
OPEN_SIZE = 128  # assumed where a size is known at run time only


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
        op = _paired(node)
        if op is None or not _pays(node, context):
            continue
        x, w = node.inputs
        array = editor.array(w)
        if array is None:
            continue
        if w.name not in packed:
            packed[w.name] = editor.constant(pack_pairs(array), DType.BF16, f"{w.name}_pairs")
        editor.update(replace(node, op=op, inputs=(x, packed[w.name])))
    return editor.finish()


def _paired(node: Node) -> Op | None:
    """What a node would become, if its operator has a form on pairs."""
    op = node.op
    if not isinstance(op, ConvBlocked | MatMulPacked):
        return None
    x, w = node.inputs
    if not x.type.dtype is w.type.dtype is DType.F32 or not w.type.is_static:
        return None
    if isinstance(op, MatMulPacked):
        fits = x.type.rank >= 2 and surely_divides(ROUNDED, x.type.shape[-1])
        return MatMulPairs(n=op.n) if fits else None
    channels = const_size(w.type.shape[-2])
    if op.sparse or op.turned or channels % ROUNDED:
        return None
    return ConvPairs(stride=op.stride, dilation=op.dilation, groups=op.groups)


def _pays(node: Node, context: PassContext) -> bool:
    """Whether products of pairs are estimated to be faster, if nobody else rounds the rows."""
    x, w = node.inputs
    lanes = context.target.lanes(4)
    summands = prod(map(const_size, w.type.shape[1:-1]))
    fmas = _elements(node.output) * summands / (2 * FMA_SHARE * lanes)
    rounded = _elements(x) / lanes * ROUND
    return fmas / PAIR_RATE + rounded < MARGIN * fmas


def _elements(value: Value) -> int:
    """The elements of a value."""
    sizes = value.type.shape
    return prod(int(n.value) if isinstance(n, Const) else OPEN_SIZE for n in sizes)
