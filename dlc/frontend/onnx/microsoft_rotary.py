"""Converters of onnxruntime's rotary embeddings: pairs of elements are turned by an angle.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dlc.core.types import INDEX, DType
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.indices import checked
from dlc.frontend.onnx.microsoft import DOMAIN
from dlc.frontend.onnx.microsoft_attention import fixed, heads_of, parts_of
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, transpose, unsqueeze
from dlc.frontend.onnx.slicing import concat, slice_axes
from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.binary import Add, Mul, Sub, Where
from dlc.graph.ops.from_sizes import Range
from dlc.graph.ops.gather import Gather
from dlc.te.expr import ZERO, const, index
from dlc.te.types import Shape


@converter("RotaryEmbedding", since=1, domain=DOMAIN)
def convert_rotary_embedding(
    ctx: Context,
    x: Value,
    positions: Value,
    cos: Value,
    sin: Value,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Value:
    """Pairs of elements turned by an angle that grows with the position."""
    whole = x.type.shape
    x = _heads_to_turn(ctx, x, cos, sin, num_heads, is_plain=not is_packed_batching and scale == 1)
    if positions.type.rank == 1:  # the position of the first one
        steps = ctx.call(Range(size=x.type.shape[2], start=ZERO, dtype=DType.I64))
        positions = unsqueeze(ctx, ctx.call(Add(), positions, steps), (0,))
    made = rotated(ctx, x, positions, cos, sin, interleaved=bool(interleaved))
    return _merged(ctx, made, whole)


@converter("MRotaryEmbedding", since=1, domain=DOMAIN)
def convert_multimodal_rotary_embedding(
    ctx: Context,
    x: Value,
    positions: Value,
    cos: Value,
    sin: Value,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    mrope_layout: int = 0,
    mrope_section: Sequence[int],
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Value:
    """The same with three positions of each token, in time, height and width: [3, batch, n].

    Each belongs to a section of the pairs: one behind the other, or (`mrope_layout` 1) in turns
    until height and width have theirs.
    """
    whole = x.type.shape
    x = _heads_to_turn(ctx, x, cos, sin, num_heads, is_plain=not is_packed_batching and scale == 1)
    pairs = fixed(ctx, cos.type.shape[1])
    if len(mrope_section) != 3 or sum(mrope_section) != pairs or positions.type.rank != 3:
        ctx.refuse(f"sections {list(mrope_section)} of {pairs} pairs for {positions.type}")
    if mrope_layout:
        place, (_, high, wide) = np.arange(pairs), mrope_section
        axis = np.where((place % 3 == 1) & (place < 3 * high), 1, 0)
        axis = np.where((place % 3 == 2) & (place < 3 * wide), 2, axis)
    else:
        axis = np.repeat(np.arange(3), mrope_section)
    angles = (_of_sections(ctx, v, axis) for v in _looked_up(ctx, positions, cos, sin))
    made = _turned_by(ctx, x, *angles, interleaved=bool(interleaved))
    return _merged(ctx, made, whole)


def _of_sections(ctx: Context, each: Value, axis: Array) -> Value:
    """The angle of the axis that each pair has: [3, batch, n, pairs] -> [batch, 1, n, pairs]."""
    time, *others = (slice_axes(ctx, each, [index(n)], [index(n + 1)], [0], [1]) for n in range(3))
    found = time
    for number, other in enumerate(others, start=1):
        found = ctx.call(Where(), ctx.constant(axis == number), other, found)
    return transpose(ctx, found, (1, 0, 2, 3))


def _heads_to_turn(
    ctx: Context, x: Value, cos: Value, sin: Value, heads: int, *, is_plain: bool
) -> Value:
    """Heads of x: [batch, n, heads * size] -> [batch, heads, n, size]; of rank 4 they are."""
    if not is_plain or x.type.rank not in (3, 4):
        ctx.refuse(f"is_packed_batching, a scale or {x.type} is not handled")
    _check_angles(ctx, cos, sin)
    if x.type.rank == 4:
        return x
    whole, turned = fixed(ctx, x.type.shape[2]), 2 * fixed(ctx, cos.type.shape[1])
    return heads_of(ctx, x, heads or whole // turned)


def _merged(ctx: Context, x: Value, shape: Shape) -> Value:
    """Heads in the shape that they had, of rank 3 or 4."""
    return x if len(shape) == 4 else reshape_to(ctx, transpose(ctx, x, (0, 2, 1, 3)), shape)


def _looked_up(ctx: Context, positions: Value, cos: Value, sin: Value) -> Iterator[Value]:
    """The cosines and sines of positions: [...] -> [..., pairs]."""
    at = checked(ctx, positions, cos.type.shape[:1], negative=False)
    return (ctx.call(Gather(axis=0), table, at) for table in (cos, sin))


def _check_angles(ctx: Context, cos: Value, sin: Value) -> None:
    if {cos.type.rank, sin.type.rank} != {2}:
        ctx.refuse(f"angles of types {cos.type} and {sin.type}, not [positions, pairs]")


def rotated(
    ctx: Context, x: Value, positions: Value, cos: Value, sin: Value, *, interleaved: bool
) -> Value:
    """Pairs of elements turned by the angle of their position.

    Shapes:
        x: [batch, heads, n, size]; positions: [batch or 1, n]; cos, sin: [positions, pairs] -> as x
    """
    _check_angles(ctx, cos, sin)
    c, s = (unsqueeze(ctx, v, (1,)) for v in _looked_up(ctx, positions, cos, sin))
    return _turned_by(ctx, x, c, s, interleaved=interleaved)


def _turned_by(ctx: Context, x: Value, c: Value, s: Value, *, interleaved: bool) -> Value:
    """Pairs of elements turned by the angles of these cosines and sines.

    Shapes:
        x: [batch, heads, n, size]; c, s: [batch or 1, 1, n, pairs] -> as x
    """
    turned = 2 * fixed(ctx, c.type.shape[3])
    batch, heads, length, size = x.type.shape
    head, *rest = parts_of(ctx, x, [turned, fixed(ctx, size) - turned])
    half = const(turned // 2, INDEX)
    if interleaved:
        pairs = reshape_to(ctx, head, (batch, heads, length, half, index(2)))
        shape = (batch, heads, length, half)
        first, second = (reshape_to(ctx, p, shape) for p in parts_of(ctx, pairs, [1, 1]))
    else:
        first, second = parts_of(ctx, head, [turned // 2] * 2)
    low = ctx.call(Sub(), ctx.call(Mul(), first, c), ctx.call(Mul(), second, s))
    high = ctx.call(Add(), ctx.call(Mul(), second, c), ctx.call(Mul(), first, s))
    if interleaved:
        both = concat(ctx, [unsqueeze(ctx, v, (4,)) for v in (low, high)], 4)
        made = reshape_to(ctx, both, (batch, heads, length, index(turned)))
    else:
        made = concat(ctx, [low, high], 3)
    return concat(ctx, [made, *rest], 3) if fixed(ctx, size) > turned else made
