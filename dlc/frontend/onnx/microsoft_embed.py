"""Converters of the embeddings that onnxruntime's optimizer finds, with the norm behind them.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.generate import fill
from dlc.frontend.onnx.indices import checked
from dlc.frontend.onnx.microsoft import DOMAIN
from dlc.frontend.onnx.quantized import dequantized
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.slicing import slice_axes
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add, Equal
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.norm import LayerNorm
from dlc.graph.ops.reduce import Reduce
from dlc.te.expr import ZERO


@converter("EmbedLayerNormalization", since=1, domain=DOMAIN)
def convert_embed_layer_norm(
    ctx: Context,
    ids: Value,
    segments: Value | None = None,
    words: Value | None = None,
    places: Value | None = None,
    segment_table: Value | None = None,
    gamma: Value | None = None,
    beta: Value | None = None,
    mask: Value | None = None,
    position_ids: Value | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> tuple[Value, ...]:
    """The layer norm of a sum of embeddings: of the word, its position and its segment."""
    if words is None or places is None or gamma is None or beta is None:
        ctx.refuse("it lacks an embedding, gamma or beta")
    total = ctx.call(Add(), _rows(ctx, words, ids), _places(ctx, places, ids, position_ids))
    if segments is not None and segment_table is not None:
        total = ctx.call(Add(), total, _rows(ctx, segment_table, segments))
    y = ctx.call(LayerNorm(axis=2, epsilon=epsilon), total, gamma, beta)
    return (y, _counted(ctx, ids, mask), total) if any(ctx.node.outputs[1:]) else (y,)


def _counted(ctx: Context, ids: Value, mask: Value | None) -> Value:
    """How many words of each row are real: [batch]; 0 where no mask tells."""
    if mask is None:
        return fill(ctx, np.zeros((), np.int32), ids.type.shape[:1])
    real = cast_to(ctx, ctx.call(Equal(), mask, ctx.scalar(1, mask.type.dtype)), DType.I32)
    return ctx.call(Reduce(kind="sum", axes=(1,), keepdims=False), real)


@converter("QEmbedLayerNormalization", since=1, domain=DOMAIN)
def convert_quantized_embed(
    ctx: Context,
    ids: Value,
    segments: Value | None = None,
    words: Value | None = None,
    places: Value | None = None,
    segment_table: Value | None = None,
    gamma: Value | None = None,
    beta: Value | None = None,
    mask: Value | None = None,
    word_scale: Value | None = None,
    place_scale: Value | None = None,
    segment_scale: Value | None = None,
    gamma_scale: Value | None = None,
    beta_scale: Value | None = None,
    word_zero: Value | None = None,
    place_zero: Value | None = None,
    segment_zero: Value | None = None,
    gamma_zero: Value | None = None,
    beta_zero: Value | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Value, ...]:
    """The same of tables of bytes."""

    def real(rows: Value, scale: Value | None, zero: Value | None) -> Value:
        if scale is None:
            ctx.refuse("it has no scale")
        return dequantized(ctx, rows, scale, zero, (0, 0))

    if words is None or places is None or gamma is None or beta is None:
        ctx.refuse("it lacks an embedding, gamma or beta")
    word = real(_rows(ctx, words, ids), word_scale, word_zero)
    place = real(_places(ctx, places, ids, None), place_scale, place_zero)
    total = ctx.call(Add(), word, place)
    if segments is not None and segment_table is not None:
        segment = real(_rows(ctx, segment_table, segments), segment_scale, segment_zero)
        total = ctx.call(Add(), total, segment)
    affine = (real(gamma, gamma_scale, gamma_zero), real(beta, beta_scale, beta_zero))
    y = ctx.call(LayerNorm(axis=2, epsilon=epsilon), total, *affine)
    return (y, _counted(ctx, ids, mask)) if any(ctx.node.outputs[1:]) else (y,)


def _places(ctx: Context, table: Value, ids: Value, positions: Value | None) -> Value:
    """The embeddings of positions, which by default count from the first word."""
    if ids.type.rank != 2:
        ctx.refuse(f"the numbers of words are {ids.type}, not [batch, length]")
    if positions is None:
        return slice_axes(ctx, table, [ZERO], [ids.type.shape[1]], [0], [1])
    return _rows(ctx, table, positions)


def _rows(ctx: Context, table: Value, numbers: Value) -> Value:
    inside = checked(ctx, numbers, table.type.shape[:1], negative=False)
    return ctx.call(Gather(axis=0), table, inside)
