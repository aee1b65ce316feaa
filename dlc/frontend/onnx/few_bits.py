"""Weights of a few bits in blocks that share a scale, and rows rounded to bytes to meet them.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.padding import pad_axes
from dlc.frontend.onnx.reshape import reshape_to
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.binary import Div, Maximum, Mul
from dlc.graph.ops.elementwise import Round
from dlc.graph.ops.few_bits import DequantizeBlocks
from dlc.graph.ops.reduce import Reduce
from dlc.te.types import const_size

BYTES = 4  # the level of accuracy that rounds rows to bytes
_MOST = 127  # the largest magnitude of such a byte
_LEAST = 2.0**-118  # what a block of smaller numbers is taken for: a 127th of it is still normal
_KINDS = {2: DType.U2, 4: DType.U4, 8: DType.U8}


def unpacked(data: Array, bits: int) -> Array:
    """The numbers of a few bits in each byte, the lowest first, along a new last axis."""
    found = np.empty((*data.shape, 8 // bits), np.uint8)
    for place in range(found.shape[-1]):  # along the longer axes, which takes a quarter of the time
        np.bitwise_and(data >> np.uint8(place * bits), (1 << bits) - 1, out=found[..., place])
    return found


def unpacked_rows(data: Array, rows: int, bits: int) -> Array:
    """The numbers of a few bits in so many rows of bytes."""
    return unpacked(data.reshape(rows, -1), bits).reshape(rows, -1)


def in_blocks(
    ctx: Context, numbers: Array, scale: Array, zero: Array, bits: int, block: int
) -> Value:
    """Constant weights, blocks along whose last axis share a scale and a zero point."""
    kept = np.ascontiguousarray(numbers).view(NUMPY_DTYPES[_KINDS[bits]])
    op = DequantizeBlocks(axis=numbers.ndim - 1, block=block)
    return ctx.call(op, *map(ctx.constant, (kept, scale, zero)))


def rounded_to_bytes(ctx: Context, x: Value, blocks: int, block: int) -> Value:
    """Rows whose blocks are bytes times a scale: 127 is the largest magnitude of a block.

    Rows of a table of few bits often lie between two bytes: the inverse is onnxruntime's, too.

    Shapes:
        x: f32[..., k] -> f32[..., blocks * block], with zeros behind k

    Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
    """
    *lead, depth = x.type.shape
    if rest := blocks * block - const_size(depth):
        x = pad_axes(ctx, x, as_sizes((0, rest)), [len(lead)], "constant", 0.0)
    parts = reshape_to(ctx, x, (*lead, *as_sizes((blocks, block))))
    most = ctx.call(Reduce(kind="l_inf", axes=(len(lead) + 1,)), parts)
    least, largest = (ctx.constant(np.array(n, np.float32)) for n in (_LEAST, _MOST))
    most = ctx.call(Maximum(), most, least)
    scale, inverse = ctx.call(Div(), most, largest), ctx.call(Div(), largest, most)
    numbers = cast_to(ctx, ctx.call(Round(), ctx.call(Mul(), parts, inverse)), DType.I8)
    rows = reshape_to(ctx, numbers, x.type.shape)
    scales = reshape_to(ctx, scale, (*lead, *as_sizes((blocks,))))
    return ctx.call(DequantizeBlocks(axis=len(lead), block=block), rows, scales)
