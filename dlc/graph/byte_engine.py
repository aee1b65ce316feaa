"""Products of bytes on a matrix engine that multiplies bytes: what they become, and whether."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from dlc.core.errors import InternalError
from dlc.graph.engine_products import MARGIN, Product, engine_cycles, vector_cycles
from dlc.graph.engine_shapes import Split, conv_shape, dense_conv, line_length, matmul_shape
from dlc.graph.forks import decide
from dlc.graph.graph import Graph, Node
from dlc.graph.op import Array
from dlc.graph.ops.byte_tiles import (
    BYTES_DEPTH,
    EACH,
    ConvByteTiles,
    ConvPlanarByteTiles,
    MatMulByteTiles,
    byte_reach,
)
from dlc.graph.ops.conv_blocked import ConvBlocked, PlanarConv
from dlc.graph.ops.matmul import MatMulPacked
from dlc.graph.ops.planes import ROWS
from dlc.graph.ops.planes_conv import is_open
from dlc.graph.pass_ import PassContext
from dlc.schedule.rules.strip import OPEN_ROWS
from dlc.te.expr import Const
from dlc.te.types import const_or, const_size

VECTOR_RATE = 4.0  # products of bytes in the time of a multiply-add
_BYTES = Split(rows=1, weights=1, is_finite=True)


def has_byte_tiles(node: Node, weights: Array, context: PassContext) -> bool:
    """Whether a product of bytes has a form on the engine of the target.

    Args:
        node: a product of bytes, as `find_byte_product` finds it.
        weights: those of the node, whole numbers.
        context: the target's; there are none unless it multiplies tiles of bytes.
    """
    x, shape = node.inputs[0], node.output.type.shape
    is_empty = any(const_or(size, 1) == 0 for size in shape)
    if is_empty or not context.target.has_byte_engine or context.byte_products != EACH:
        return False
    match node.op:
        case ConvBlocked(groups=groups):
            return groups == 1 and weights.shape[-2:] == (ROWS, ROWS)
        case PlanarConv(dilation=steps):
            return set(steps) == {1} and weights.shape[-1] == ROWS and not is_open(x.type.shape[1:])
        case MatMulPacked(n=n):
            is_wide = isinstance(n, Const) and const_size(shape[-1]) >= 2 * ROWS
            # Vectors read the columns of an only row as fast.
            rows = prod(const_or(size, 1) for size in shape[:-2]) * const_or(shape[-2], OPEN_ROWS)
            return is_wide and weights.shape[1] % ROWS == 0 and rows > 1
        case _:
            return False


def byte_tiles(node: Node, weights: Array) -> Product:
    """What a product of bytes that `has_byte_tiles` would become on the engine."""
    match node.op:
        case ConvBlocked():
            return _conv(node, node.op, weights)
        case PlanarConv():
            return _planar_conv(node, node.op, weights)
        case MatMulPacked():
            return _matmul(node, node.op, weights)
        case _:
            raise InternalError(detail=f"'{node.op.name}' has no form on tiles of bytes")


def takes_tiles(graph: Graph, node: Node, found: Product, context: PassContext) -> bool:
    """Whether the engine computes a product of bytes, rather than vectors."""
    engine = engine_cycles(found, context)
    if engine is None:
        return False
    vectors = vector_cycles(found, context) / VECTOR_RATE
    way = decide(
        context, graph, [node], kind="byte_engine", version=1, options=("vectors", "matrix"),
        default="matrix" if engine[1] < vectors * MARGIN else "vectors",
        cycles=lambda: (vectors, engine[1]),
    )  # fmt: skip
    return way == "matrix"


def _conv(node: Node, op: ConvBlocked, w: Array) -> Product:
    _, cb, *kernel, _, _ = w.shape
    out = node.output
    shape, slack = conv_shape(op, out, kernel, -(-cb // EACH), _BYTES)
    new = ConvByteTiles(
        blocks=out.type.shape[1], stride=op.stride, dilation=op.dilation, slack=slack
    )
    is_fixed = not is_open(out.type.shape[2:-1])
    length = line_length(out, shape)
    return Product(new, shape, dense_conv(w), 1, cb * ROWS * prod(kernel), length, is_fixed)


def _planar_conv(node: Node, op: PlanarConv, w: Array) -> Product:
    """`w` is one block of channels, filled up to a word."""
    ob, _, *kernel, _, oc = w.shape
    x, out = node.inputs[0], node.output
    channels, width = const_size(x.type.shape[1]), const_size(x.type.shape[-1])
    wanted = (const_size(out.type.shape[-2]) - 1) * op.stride[-1] + byte_reach(kernel[-1])
    new = ConvPlanarByteTiles(
        blocks=out.type.shape[1],
        kernel=tuple(kernel),
        stride=op.stride,
        spare=max(0, wanted - width),
    )
    planar = np.moveaxis(w[:, 0, ..., :channels, :], -2, 0)  # [c, ob, *kernel, oc]
    dense = new.pack(np.moveaxis(planar, 1, -2).reshape(channels, *kernel, ob * oc))
    depth = -(-len(dense) // BYTES_DEPTH)
    shape, slack = conv_shape(new.on_rows, out, new.steps, depth, _BYTES)
    summands, length = channels * prod(kernel), line_length(out, shape)
    return Product(replace(new, slack=slack), shape, dense, 1, summands, length)


def _matmul(node: Node, op: MatMulPacked, w: Array) -> Product:
    panels, depth, width = w.shape
    rows, columns = node.output.type.shape[-2:]
    shape, slack = matmul_shape(node.output, -(-depth // BYTES_DEPTH), _BYTES)
    dense = w.transpose(1, 0, 2).reshape(depth, panels * width)[:, : const_size(columns)]
    new = MatMulByteTiles(n=op.n, slack=slack)
    return Product(new, shape, dense, 1, depth, is_fixed=isinstance(rows, Const))
