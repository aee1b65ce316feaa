"""Converters of Fourier transforms: products with matrices of cosines and sines.

Source: https://onnx.ai/onnx/operators/onnx__DFT.html, onnx__STFT.html
"""

from __future__ import annotations

import numpy as np

from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.microsoft import DOMAIN
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, transpose, unsqueeze
from dlc.frontend.onnx.slicing import concat, pad_axes, slice_axes
from dlc.graph.arrays import round_to
from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.binary import Add, Sub
from dlc.graph.ops.conv import Conv
from dlc.graph.ops.matmul import MatMul
from dlc.te.expr import ONE, Const, Expr, index
from dlc.te.simplify import surely_equal
from dlc.te.types import is_const


@converter("DFT", since=20)
def convert_dft(
    ctx: Context,
    x: Value,
    dft_length: Value | None = None,
    axis: Value | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Value:
    """The discrete Fourier transform; the last axis holds real and imaginary parts."""
    along = -2 if axis is None else ctx.one_int(axis, "axis")
    return _dft(ctx, x, dft_length, along, inverse=bool(inverse), onesided=bool(onesided))


@converter("DFT", since=17)
def convert_dft_attribute(
    ctx: Context,
    x: Value,
    dft_length: Value | None = None,
    *,
    axis: int = 1,
    inverse: int = 0,
    onesided: int = 0,
) -> Value:
    """Until opset 20 the axis was an attribute."""
    return _dft(ctx, x, dft_length, axis, inverse=bool(inverse), onesided=bool(onesided))


def _dft(
    ctx: Context, x: Value, dft_length: Value | None, axis: int, *, inverse: bool, onesided: bool
) -> Value:
    (axis,) = axes_of(ctx, (axis,), x.type.rank)
    if axis == x.type.rank - 1:
        ctx.refuse(f"axis {axis} of {x.type} holds real and imaginary parts")
    if inverse and onesided:
        return _real_inverse(ctx, x, dft_length, axis)
    wanted = x.type.shape[axis] if dft_length is None else ctx.one_size(dft_length, "dft_length")
    length = _fixed(ctx, wanted, "the length of a transform")
    x = _resized(ctx, x, axis, length)
    last = x.type.rank - 2
    order = [a for a in range(last + 1) if a != axis]
    parts = [transpose(ctx, p, [*order, axis]) for p in _parts(ctx, x)]
    bins = length // 2 + 1 if onesided else length
    cosine, sine = (_constant(ctx, x, m) for m in _waves(length, bins, inverse=inverse))
    real = ctx.call(MatMul(), parts[0], cosine)
    imaginary = ctx.call(MatMul(), parts[0], sine)
    if len(parts) == 2:
        real = ctx.call(Sub(), real, ctx.call(MatMul(), parts[1], sine))
        imaginary = ctx.call(Add(), imaginary, ctx.call(MatMul(), parts[1], cosine))
    back = [*range(axis), last, *range(axis, last)]
    both = [unsqueeze(ctx, transpose(ctx, p, back), [-1]) for p in (real, imaginary)]
    return concat(ctx, both, -1)


def _real_inverse(ctx: Context, x: Value, dft_length: Value | None, axis: int) -> Value:
    """The real signal of half a spectrum: the other half is its mirror image, conjugated."""
    have = x.type.shape[axis]
    wanted = (have - 1) * 2 if dft_length is None else ctx.one_size(dft_length, "dft_length")
    length = _fixed(ctx, wanted, "the length of a transform")
    bins = length // 2 + 1
    x = _resized(ctx, x, axis, bins)
    last = x.type.rank - 2
    order = [a for a in range(last + 1) if a != axis]
    parts = [transpose(ctx, p, [*order, axis]) for p in _parts(ctx, x)]
    cosine, sine = (wave[:, :bins].T for wave in _waves(length, length, inverse=True))
    mirrored = np.full((bins, 1), 2.0)
    mirrored[0] = 1
    if length % 2 == 0:
        mirrored[-1] = 1
    y = ctx.call(MatMul(), parts[0], _constant(ctx, x, cosine * mirrored))
    if len(parts) == 2:
        rest = ctx.call(MatMul(), parts[1], _constant(ctx, x, sine * mirrored))
        y = ctx.call(Sub(), y, rest)
    return unsqueeze(ctx, transpose(ctx, y, [*range(axis), last, *range(axis, last)]), [-1])


def _waves(length: int, bins: int, *, inverse: bool) -> tuple[Array, Array]:
    """Real and imaginary part of exp(-2 pi i n k / length), conjugated and divided for inverse."""
    turns = np.outer(np.arange(length), np.arange(bins)) % length * (2 * np.pi / length)
    cosine, sine = np.cos(turns), -np.sin(turns)
    return (cosine / length, -sine / length) if inverse else (cosine, sine)


def _constant(ctx: Context, like: Value, array: Array) -> Value:
    return ctx.constant(round_to(array, like.type.dtype))


def _fixed(ctx: Context, size: Expr, what: str) -> int:
    if not isinstance(size, Const) or not 0 < int(size.value) <= _LONGEST:
        hint = "fix a dimension with dims= or shapes="
        ctx.refuse(f"{what} must be fixed and at most {_LONGEST}, and is {size}", hint)
    return int(size.value)


_LONGEST = 4096  # the matrices have this many rows and columns


def _resized(ctx: Context, x: Value, axis: int, length: int) -> Value:
    """Cut off, or filled up with zeros."""
    have = _fixed(ctx, x.type.shape[axis], "the signal")
    if have >= length:
        return slice_axes(ctx, x, [index(0)], [index(length)], [axis], [1])
    return pad_axes(ctx, x, [index(0), index(length - have)], [axis], "constant", 0.0)


def _parts(ctx: Context, x: Value) -> list[Value]:
    """The real part, and the imaginary part if there is one."""
    width = x.type.shape[-1]
    if not (is_const(width, 1) or is_const(width, 2)):
        ctx.refuse(f"the last axis of {x.type} must hold a real and maybe an imaginary part")
    count = 1 if is_const(width, 1) else 2
    return [
        reshape_to(
            ctx,
            slice_axes(ctx, x, [index(i)], [index(i + 1)], [x.type.rank - 1], [1]),
            x.type.shape[:-1],
        )
        for i in range(count)
    ]


def _check_one(ctx: Context, normalized: int, onesided: int, signal_ndim: int) -> None:
    if normalized or not onesided or signal_ndim != 1:
        given = f"normalized = {normalized}, onesided = {onesided}, signal_ndim = {signal_ndim}"
        ctx.refuse(f"{given} is not handled")


@converter("Rfft", since=1, domain=DOMAIN)
def convert_rfft(
    ctx: Context, x: Value, *, normalized: int, onesided: int, signal_ndim: int
) -> Value:
    """Half the spectrum of a real signal along the last axis, before an axis of its parts."""
    _check_one(ctx, normalized, onesided, signal_ndim)
    last = x.type.rank - 1
    return _dft(ctx, unsqueeze(ctx, x, [-1]), None, last, inverse=False, onesided=True)


@converter("Irfft", since=1, domain=DOMAIN)
def convert_irfft(
    ctx: Context, x: Value, *, normalized: int, onesided: int, signal_ndim: int
) -> Value:
    """The real signal, of an even length, of half a spectrum."""
    _check_one(ctx, normalized, onesided, signal_ndim)
    y = _real_inverse(ctx, x, None, x.type.rank - 2)
    return reshape_to(ctx, y, y.type.shape[:-1])


@converter("STFT", since=17)
def convert_stft(
    ctx: Context,
    signal: Value,
    frame_step: Value,
    window: Value | None = None,
    frame_length: Value | None = None,
    *,
    onesided: int = 1,
) -> Value:
    """Transforms of overlapping frames: a convolution with windowed waves."""
    if signal.type.rank == 3:
        if not surely_equal(signal.type.shape[2], ONE):
            ctx.refuse(f"{signal.type} is not surely real")
    elif signal.type.rank != 2:
        ctx.refuse(f"a signal of type {signal.type}")
    step = ctx.one_int(frame_step, "frame_step")
    shape = None if window is None else ctx.array(window)
    if window is not None and shape is None:
        ctx.refuse_variable("its window", window)
    if frame_length is not None:
        length = ctx.one_int(frame_length, "frame_length")
    elif shape is not None:
        length = shape.size
    else:
        ctx.refuse("it has neither a window nor a frame_length")
    if step < 1 or not 0 < length <= _LONGEST or (shape is not None and shape.size != length):
        ctx.refuse(f"frames of {length}, {step} apart, with a window of {shape}")
    bins = length // 2 + 1 if onesided else length
    waves = np.concatenate(_waves(length, bins, inverse=False), axis=1).T
    if shape is not None:
        waves = waves * shape.reshape(-1)
    batch, samples = signal.type.shape[:2]
    x = reshape_to(ctx, signal, (batch, ONE, samples))
    weights = _constant(ctx, signal, waves[:, None])
    op = Conv(stride=(step,), pads=(0, 0), dilation=(1,))
    frames = transpose(ctx, ctx.call(op, x, weights), (0, 2, 1))
    count = frames.type.shape[1]
    both = reshape_to(ctx, frames, (batch, count, index(2), index(bins)))
    return transpose(ctx, both, (0, 1, 3, 2))
