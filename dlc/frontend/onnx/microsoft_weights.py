"""Converters of onnxruntime's operators whose weights take few bits.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import numpy as np

from dlc.core.types import NARROW_INTS, DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.few_bits import BYTES, in_blocks, rounded_to_bytes, unpacked, unpacked_rows
from dlc.frontend.onnx.indices import checked
from dlc.frontend.onnx.microsoft import DOMAIN
from dlc.frontend.onnx.quantized import dequantized
from dlc.frontend.onnx.registry import converter
from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.binary import Add
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.shape import Transpose

_FP4 = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
"""What the lower three bits stand for; the fourth is the sign.

Source: https://github.com/bitsandbytes-foundation/bitsandbytes, the type `fp4`
"""
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
"""Quantiles of the normal distribution.

Source: Dettmers et al., QLoRA, 2023, appendix E
"""
_TABLES = (np.array([*_FP4, *(-v for v in _FP4)], np.float32), np.array(_NF4, np.float32))


@converter("MatMulBnb4", since=1, domain=DOMAIN)
def convert_matmul_bnb4(
    ctx: Context,
    a: Value,
    b: Value,
    absmax: Value,
    *,
    K: int,  # noqa: N803 - ONNX's name
    N: int,  # noqa: N803
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,  # noqa: N803
) -> Value:
    """A product with weights of four bits that number floats in a table, times one per block."""
    if not transB or quant_type not in (0, 1):
        ctx.refuse(f"transB = {transB}, quant_type = {quant_type}")
    _check_packed(ctx, b, (N, K), block_size)
    data, factors = ctx.array(b), ctx.array(absmax)
    if data is None or factors is None:
        ctx.refuse("its weights are computed at run time")
    numbers = unpacked(data.reshape(-1), 4)[:, ::-1].reshape(-1)[: N * K]  # the upper half is first
    if numbers.size != N * K or factors.size * block_size < N * K:
        ctx.refuse(f"{data.size} bytes and {factors.size} scales are no {N} x {K} weights")
    scale = np.repeat(factors.reshape(-1).astype(np.float32), block_size)[: N * K]
    matrix = (_TABLES[quant_type][numbers] * scale).reshape(N, K).T.astype(factors.dtype)
    weight = ctx.constant(np.ascontiguousarray(matrix))
    return ctx.call(MatMul(), a, cast_to(ctx, weight, a.type.dtype))


def _check_packed(ctx: Context, b: Value, sizes: tuple[int, int], block_size: int) -> None:
    """Refuse what are no bytes of a matrix in blocks."""
    if b.type.dtype is not DType.U8 or min(*sizes, block_size) < 1:
        rows, columns = sizes
        ctx.refuse(f"{rows} x {columns} weights of {b.type.dtype} in blocks of {block_size}")


@converter("GatherBlockQuantized", since=1, domain=DOMAIN)
def convert_gather_block_quantized(
    ctx: Context,
    data: Value,
    indices: Value,
    scales: Value,
    zeros: Value | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Value:
    """Rows of a quantized table, dequantized: blocks of an axis share a scale."""
    rank = data.type.rank
    across, along = axes_of(ctx, (gather_axis, quantize_axis), rank)
    if across == along or bits not in (4, 8):
        ctx.refuse(f"gather_axis = quantize_axis = {along}, or {bits} bits, are not handled")
    if data.type.dtype not in (*NARROW_INTS, DType.U8):
        ctx.refuse(f"a table of {data.type.dtype} is not handled")
    if data.type.dtype not in NARROW_INTS:  # plain bytes, whose zero is in the middle
        data, given = _bytes(ctx, data, bits), zeros
        middle = ctx.constant(
            np.full([int(s) for s in _static(ctx, scales)], 1 << (bits - 1), "u1")
        )
        zeros = middle if given is None else _trimmed(ctx, _bytes(ctx, given, bits), scales)
    inside = checked(ctx, indices, (data.type.shape[across],))
    rows, factors = (ctx.call(Gather(axis=across), v, inside) for v in (data, scales))
    shifts = None if zeros is None else ctx.call(Gather(axis=across), zeros, inside)
    place = along if along < across else along + indices.type.rank - 1
    y = dequantized(ctx, rows, cast_to(ctx, factors, DType.F32), shifts, (place, block_size))
    return cast_to(ctx, y, scales.type.dtype)


def _static(ctx: Context, value: Value) -> tuple[int, ...]:
    if not value.type.is_static:
        ctx.refuse(f"scales of type {value.type} are not fixed")
    return value.type.static_shape


def _bytes(ctx: Context, value: Value, bits: int) -> Value:
    """Numbers of a byte each, of which two may lie in one along the last axis."""
    if bits == 8:
        return value
    packed = ctx.array(value)
    if packed is None or value.type.dtype is not DType.U8:
        ctx.refuse("its table is computed at run time, or its zero points are no bytes")
    return ctx.constant(unpacked(packed, bits).reshape(*packed.shape[:-1], -1))


def _trimmed(ctx: Context, zeros: Value, scales: Value) -> Value:
    """The zero points without the half byte behind an odd number of them."""
    array = ctx.array(zeros)
    assert array is not None, "it was unpacked"
    return ctx.constant(array[tuple(slice(n) for n in _static(ctx, scales))])


@converter("MatMulNBits", since=1, domain=DOMAIN)
def convert_matmul_n_bits(
    ctx: Context,
    a: Value,
    b: Value,
    scales: Value,
    zeros: Value | None = None,
    g_idx: Value | None = None,
    bias: Value | None = None,
    *,
    K: int,  # noqa: N803 - ONNX's name
    N: int,  # noqa: N803
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> Value:
    """A product with weights of a few bits in blocks.

    `accuracy_level` 4 rounds rows to bytes, a block of the weights at a time.
    """
    if weight_prepacked:
        ctx.refuse("weight_prepacked: the layout is that of one kind of GPU")
    if bits not in (2, 4, 8):
        ctx.refuse(f"weights of {bits} bits are not handled")
    _check_packed(ctx, b, (N, K), block_size)
    data, factors = ctx.array(b), ctx.array(scales)
    points = None if zeros is None else ctx.array(zeros)
    if data is None or factors is None or (zeros is not None and points is None):
        ctx.refuse("its weights are computed at run time")
    blocks = -(-K // block_size)
    plain = zeros is not None and zeros.type.dtype.is_float  # zero points that are not packed
    point_count = N * (blocks if plain else -(-blocks * bits // 8))
    counts = (N * blocks * block_size * bits // 8, N * blocks, point_count)
    for array, count in zip((data, factors, points), counts, strict=True):
        if array is not None and array.size != count:
            ctx.refuse(f"{array.size} weights, scales or zero points, not {count}")
    in_bytes = accuracy_level == BYTES and not plain and g_idx is None
    numbers = unpacked_rows(data, N, bits)[:, : blocks * block_size if in_bytes else K]
    factor = factors.astype(np.float32).reshape(N, blocks)
    middle = np.full((N, blocks), 1 << (bits - 1), np.float32)
    if points is not None:
        rows = points.reshape(N, -1) if plain else unpacked_rows(points, N, bits)
        middle = rows[:, :blocks].astype(np.float32)
    if g_idx is None:
        columns = in_blocks(ctx, numbers, factor, middle, bits, block_size)
        weight, x = ctx.call(Transpose(perm=(1, 0)), columns), cast_to(ctx, a, DType.F32)
        if in_bytes:
            x = rounded_to_bytes(ctx, x, blocks, block_size)
        y = cast_to(ctx, ctx.call(MatMul(), x, weight), a.type.dtype)
    else:
        block = _blocks_of_rows(ctx, g_idx, K, block_size)
        weights = (numbers - middle[:, block]) * factor[:, block]
        weight = ctx.constant(np.ascontiguousarray(weights.T.astype(factors.dtype)))
        y = ctx.call(MatMul(), a, cast_to(ctx, weight, a.type.dtype))
    return y if bias is None else ctx.call(Add(), y, bias)


def _blocks_of_rows(ctx: Context, g_idx: Value, rows: int, block_size: int) -> Array:
    """Which scale and zero point each row has, as `g_idx` says."""
    given, blocks = ctx.array(g_idx), -(-rows // block_size)
    if given is None:
        ctx.refuse("its groups of rows are computed at run time")
    found = given.reshape(-1)[:rows].astype(np.int64)
    if len(found) < rows or ((found < 0) | (found >= blocks)).any():
        ctx.refuse(f"g_idx names no group of the {blocks} for each of {rows} rows")
    return found
