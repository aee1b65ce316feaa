"""Compute products with constant matrices on a matrix engine, where that is faster.

Before:
    def main(x: f32[128, 256]):
        w: f32[16, 256, 16] = const()
        y: f32[128, 256] = matmul_packed(x, w, n=256)
        return y

After:
    def main(x: f32[128, 256]):
        w_planes: bf16[16, 8, 3, 16, 16, 2] = const()
        y: f32[128, 256] = matmul_planes(x, w_planes, n=256, slack=97, planes=3)
        return y

Position: after choose_layouts, pack_matmul_weights and everything that looks for their operators;
the decision is about single operators and changes no layout. What multiply-adds between transforms
are surely faster at is left to use_winograd.

Three planes are more bytes than float32, which a run of few rows would wait for: where their number
is open, `matmul_split` makes planes of the columns, too.

What passes a large image in strips of lines (`strips.py`) is left to multiply-adds where these take
less than the engine and the memory that the image passes: its kernels would be apart. These are
formed by fuse_groups, much later; no pass in between changes what they are made of.

An only row is worth it in a loop that reads the columns again and again from the second cache.

Products of bytes are exact on the engine, and on vectors that add several of them in a lane, whose
rows need no planes: these have what is not clearly faster on the engine. Where it multiplies tiles
of bytes, what has a form on these is left to use_byte_products: they take half as many products.

`precision` says how many planes a float32 has: "highest" three, "high" and "tf32" two,
"medium" one. What is exact in bf16, as the whole numbers of quantized models, has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from dlc.core.types import DType
from dlc.graph.byte_engine import has_byte_tiles
from dlc.graph.byte_operands import find_byte_product
from dlc.graph.edit import GraphEditor
from dlc.graph.engine_products import (
    BYTE_RATES,
    MARGIN,
    Product,
    engine_cycles,
    fewest_rows,
    vector_cycles,
)
from dlc.graph.engine_shapes import Split, conv_shape, dense_conv, line_length, matmul_shape
from dlc.graph.estimate import FAR_BYTES, bytes_of
from dlc.graph.forks import decide
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.integers import bf16_exact, fits_bf16, integer_range
from dlc.graph.joined import Group
from dlc.graph.layout import pack_columns
from dlc.graph.op import Array, Op
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.binary import Add
from dlc.graph.ops.conv_blocked import ConvBlocked, DepthwiseBlocked, PlanarConv
from dlc.graph.ops.matmul import MatMulPacked
from dlc.graph.ops.planes import DEPTH, ROWS, pack_tiles
from dlc.graph.ops.planes_conv import ConvPlanes, is_open
from dlc.graph.ops.planes_matmul import MatMulPlanes, MatMulSplit
from dlc.graph.ops.planes_planar import ConvPlanarPlanes, reach_of
from dlc.graph.ops.shape import Slice
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.graph.passes.fuse_groups import kernels
from dlc.graph.strips import APART, STRIPS, passing
from dlc.graph.transformed import least_cycles
from dlc.schedule.rules.strip import OPEN_ROWS
from dlc.te.expr import Const
from dlc.te.types import const_or, const_size

VECTORS, MATRIX = "vectors", "matrix"  # the ways of the fork


@graph_pass(after=("choose_layouts", "pack_matmul_weights"), bodies=True)
def use_matrix_engine(graph: Graph, context: PassContext) -> Graph:
    """Replace products with constant matrices by products of planes."""
    if not context.has_matrix_engine:
        return graph
    editor = GraphEditor(graph)
    packed: dict[tuple[str, bool, int, int], Value] = {}
    in_strips = _in_strips(editor, context)
    for node in graph.nodes:
        if id(node) in in_strips:
            continue
        of_bytes = find_byte_product(node, editor, context.byte_products)
        if of_bytes is not None and has_byte_tiles(node, of_bytes.weights, context):
            continue  # which take half as many products, and rows that are there
        found = _product(node, editor, context)
        is_of_bytes = of_bytes is not None
        parts = None if found is None else _parts(editor, node, found, context, is_of_bytes)
        if found is None or parts is None:
            continue
        op = found.op
        if isinstance(op, MatMulSplit):
            op = replace(op, fewest=fewest_rows(found, parts, context))
        depth = -(-found.shape.steps // parts) * DEPTH
        cuts = _cuts(found.dense.shape[0], depth)
        columns: list[Value] = []
        for cut in cuts:
            key = (node.inputs[1].name, isinstance(op, MatMulSplit), *cut)
            if key not in packed:
                packed[key] = _columns(editor, node, found, cut)
            columns.append(packed[key])
        if parts == 1:
            editor.update(replace(node, op=op, inputs=(node.inputs[0], columns[0])))
        else:
            _add_up(editor, node, op, cuts, columns)
    return editor.finish()


def _in_strips(editor: GraphEditor, context: PassContext) -> set[int]:
    """The ids of products that stay in kernels which pass images in strips."""
    found: set[int] = set()
    for group in _far_strips(editor.graph, context):
        if any(find_byte_product(n, editor, context.byte_products) for n in group):
            continue  # bytes are multiplied as bytes, by kernels of their own
        if any(least_cycles(editor, n, context) is not None for n in group):
            continue  # as is what use_winograd may transform
        products = {id(n): p for n in group if (p := _product(n, editor, context)) is not None}
        vectors = {at: vector_cycles(p, context) for at, p in products.items()}
        engines = {
            at: engine[1]
            for at, p in products.items()
            if (engine := engine_cycles(p, context)) and engine[1] < vectors[at] * MARGIN
        }
        if not engines:
            continue
        far = [n for n in passing(group) if id(n) in engines or isinstance(n.op, DepthwiseBlocked)]
        images = [n.inputs[0] for n in far]  # what other contractions read is still near
        passes = 1 if context.rounds_to_bf16 else 2  # an image is written and read; bf16 are half
        memory = passes * bytes_of(images) / FAR_BYTES
        costs = sum(vectors.values()), sum((vectors | engines).values()) + memory
        each = (
            f"{p.shape.products} products of {p.shape.planes} planes" for p in products.values()
        )
        way = decide(
            context, editor.graph, group, kind="engine_strips", version=1,
            options=(STRIPS, APART), default=STRIPS if costs[0] < costs[1] * MARGIN else APART,
            cycles=partial(tuple, costs), facts="\n".join(each),
        )  # fmt: skip
        if way == STRIPS:
            found |= products.keys()
    return found


def _far_strips(graph: Graph, context: PassContext) -> list[Group]:
    """The kernels that would pass images in strips which do not stay in the second cache.

    Only images of known sizes: nobody knows how far others are.
    """

    def is_far(images: Sequence[Value]) -> bool:
        is_known = all(v.type.is_static for v in images)
        return is_known and bytes_of(images) > context.target.l2_bytes

    windows = [n for n in graph.nodes if isinstance(n.op, DepthwiseBlocked)]
    if context.target.gpu is not None or not any(
        is_far(images) for n in windows for images in (n.inputs[:1], n.outputs)
    ):
        return []  # soon: this is not what most graphs have
    quiet = replace(context, on_fork=None)  # whoever listens is told when kernels are formed
    found = kernels(graph, quiet)
    return [group for group in found if is_far([n.inputs[0] for n in passing(group)])]


def _columns(editor: GraphEditor, node: Node, found: Product, cut: tuple[int, int]) -> Value:
    """The constant operand of a part of the depth: tiles of its planes, or panels to be split."""
    w, dense = node.inputs[1], found.dense[slice(*cut)]
    if not isinstance(found.op, MatMulSplit):
        return editor.constant(pack_tiles(dense, found.planes), DType.BF16, f"{w.name}_planes")
    if len(dense) == len(found.dense):
        return w
    return editor.constant(pack_columns(dense, ROWS), DType.F32, f"{w.name}_part")


def _cuts(depth: int, size: int) -> list[tuple[int, int]]:
    """Ranges of at most `size` that cover a depth."""
    return [(start, min(start + size, depth)) for start in range(0, depth, size)]


def _add_up(
    editor: GraphEditor, node: Node, op: Op, cuts: list[tuple[int, int]], columns: list[Value]
) -> None:
    """Put the sum of the products of parts of the depth in the place of a node."""
    x = node.inputs[0]
    lead = x.type.shape[:-1]
    total: Value | None = None
    for (start, stop), w in zip(cuts, columns, strict=True):
        view = Slice(
            starts=as_sizes((*(0 for _ in lead), start)), sizes=as_sizes((*lead, stop - start))
        )
        part = editor.call(op, editor.call(view, x, at=node), w, at=node)
        if total is None:
            total = part
        elif stop < cuts[-1][1]:
            total = editor.call(Add(), total, part, at=node)
        else:
            editor.update(replace(node, op=Add(), inputs=(total, part)))


def _product(node: Node, editor: GraphEditor, context: PassContext) -> Product | None:
    """What a node would become, if its operator has a form on planes."""
    count = context.planes
    match node.op:
        case ConvBlocked() | PlanarConv() | MatMulPacked():
            x, w = node.inputs
            array = editor.array(w)
            if array is None or w.type.dtype is not DType.F32 or not array.size:
                return None
            split = Split(
                rows=1 if fits_bf16(editor, x) else count,
                weights=1 if bf16_exact(array) else count,
                is_finite=integer_range(editor, x) is not None and bool(np.isfinite(array).all()),
            )
            if isinstance(node.op, MatMulPacked):
                found = _matmul(node.op, x, node.output, array, split)
                return found if found is None or _is_near(found, context) else None
            if isinstance(node.op, PlanarConv):
                return _planar_conv(node.op, x, node.output, array, split)
            return _conv(node.op, node.output, array, split)
        case _:
            return None


def _conv(op: ConvBlocked, out: Value, w: Array, split: Split) -> Product | None:
    ob, cb, *kernel, ci, oc = w.shape
    if op.groups != 1 or op.sparse or ci != ROWS or oc != ROWS or _is_half(ob, split):
        return None
    shape, slack = conv_shape(op, out, kernel, -(-cb // 2), split)
    new = ConvPlanes(
        blocks=out.type.shape[1],
        stride=op.stride,
        dilation=op.dilation,
        slack=slack,
        planes=split.rows,
        is_finite=split.is_finite,
    )
    summands, length = cb * ROWS * prod(kernel), line_length(out, shape)
    is_fixed = not is_open(out.type.shape[2:-1])
    return Product(new, shape, dense_conv(w), split.weights, summands, length, is_fixed)


def _is_half(blocks: int, split: Split) -> bool:
    """Whether 16 columns alone would have to pay for rows of several planes."""
    return blocks < 2 and split.rows > 1


def _planar_conv(op: PlanarConv, x: Value, out: Value, w: Array, split: Split) -> Product | None:
    ob, c, *lines, width, oc = w.shape
    reach = reach_of(width)
    if is_open(x.type.shape[1:]):
        return None
    columns = const_size(x.type.shape[-1])
    needed = (
        (const_size(out.type.shape[-2]) - 1) * op.stride[-1] + (reach - 1) * op.dilation[-1] + 1
    )
    if oc != ROWS or _is_half(ob, split) or columns < needed:
        return None
    wide = np.pad(w, [(0, reach - width if d == w.ndim - 2 else 0) for d in range(w.ndim)])
    rank = wide.ndim
    dense = wide.transpose(1, rank - 2, *range(2, rank - 2), 0, rank - 1)
    shape, slack = conv_shape(op, out, [*lines, 1], -(-c * reach // DEPTH), split)
    new = ConvPlanarPlanes(
        blocks=out.type.shape[1],
        width=width,
        stride=op.stride,
        dilation=op.dilation,
        slack=slack,
        planes=split.rows,
        is_finite=split.is_finite,
    )
    dense = dense.reshape(c * reach, *lines, 1, ob * ROWS)
    summands = c * prod(lines) * width
    return Product(new, shape, dense, split.weights, summands, line_length(out, shape))


def _matmul(op: MatMulPacked, x: Value, out: Value, w: Array, split: Split) -> Product | None:
    panels, depth, width = w.shape
    if x.type.rank < 2 or not isinstance(op.n, Const):
        return None
    m, n = const_or(out.type.shape[-2], OPEN_ROWS), const_size(out.type.shape[-1])
    if depth % DEPTH or n % ROWS or m < 1 or n < 2 * ROWS:
        return None
    shape, slack = matmul_shape(out, depth // DEPTH, split)
    dense = w.transpose(1, 0, 2).reshape(depth, panels * width)[:, :n]
    is_fixed = isinstance(out.type.shape[-2], Const)
    new: Op = MatMulPlanes(n=op.n, slack=slack, planes=split.rows, is_finite=split.is_finite)
    # A run may have few rows, which wait for the weights: those must not be more bytes.
    if not is_fixed and split.weights * DType.BF16.size_bytes > w.itemsize:
        if split.rows != split.weights or width != ROWS or n % (2 * ROWS):
            return None
        new, shape = MatMulSplit(n=op.n, planes=split.rows), replace(shape, constant=False)
    return Product(new, shape, dense, split.weights, depth, is_fixed=is_fixed)


def _is_near(found: Product, context: PassContext) -> bool:
    """Whether many rows share the columns, or a loop reads them again from the second cache."""
    if found.rows > 1 or not found.is_fixed:
        return True
    columns_bytes = found.dense.size * found.planes * DType.BF16.size_bytes
    return context.is_repeated and columns_bytes <= context.target.l2_bytes // 2


def _parts(
    editor: GraphEditor, node: Node, found: Product, context: PassContext, is_of_bytes: bool
) -> int | None:
    """Into how many products of less depth to cut; None where multiply-adds are as fast."""
    shape = found.shape
    if not shape.lead or not shape.lines:
        return None
    engine = engine_cycles(found, context)
    if engine is None:
        return None
    vectors = vector_cycles(found, context)
    if is_of_bytes:
        vectors /= BYTE_RATES[context.byte_products]
    most = vectors * MARGIN
    if (transformed := least_cycles(editor, node, context)) is not None:
        vectors = min(vectors, transformed)
        most = min(most, transformed / MARGIN)  # transforms gain as much over what they replace
    parts, cost = engine
    facts = f"{shape.products} products of {shape.planes} planes"
    facts += f", or of bytes, {context.byte_products} at a time" if is_of_bytes else ""
    way = decide(
        context, editor.graph, [node], kind="engine", version=2, options=(VECTORS, MATRIX),
        default=MATRIX if cost < most else VECTORS,
        cycles=lambda: (vectors, cost), facts=facts,
    )  # fmt: skip
    return parts if way == MATRIX else None
