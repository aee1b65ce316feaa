"""Converters of Fourier transforms: products with matrices of cosines and sines.

Source: https://onnx.ai/onnx/operators/onnx__DFT.html, onnx__STFT.html
"""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.microsoft import DOMAIN
from dlc.frontend.onnx.padding import pad_axes
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, transpose, unsqueeze
from dlc.frontend.onnx.slicing import concat, slice_axes
from dlc.graph.arrays import round_to
from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.binary import Add, Div, Equal, Mod, Mul, Sub, Where
from dlc.graph.ops.conv import Conv
from dlc.graph.ops.elementwise import Cos, Neg, Sin
from dlc.graph.ops.from_sizes import Range
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.matmul import MatMul
from dlc.te.expr import ONE, Const, Expr, index, minimum
from dlc.te.simplify import canonical, surely_equal, surely_less
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
    length = x.type.shape[axis] if dft_length is None else ctx.one_size(dft_length, "dft_length")
    bins = canonical(length // 2 + 1) if onesided else length
    parts, back = _lines(ctx, x, axis, length)
    cosine, sine = _waves(ctx, x.type.dtype, length, (length, bins), inverse=inverse)
    real = ctx.call(MatMul(), parts[0], cosine)
    imaginary = ctx.call(MatMul(), parts[0], sine)
    if len(parts) == 2:
        real = ctx.call(Sub(), real, ctx.call(MatMul(), parts[1], sine))
        imaginary = ctx.call(Add(), imaginary, ctx.call(MatMul(), parts[1], cosine))
    both = [unsqueeze(ctx, transpose(ctx, p, back), [-1]) for p in (real, imaginary)]
    return concat(ctx, both, -1)


def _real_inverse(ctx: Context, x: Value, dft_length: Value | None, axis: int) -> Value:
    """The real signal of half a spectrum: the other half is its mirror image, conjugated."""
    have = x.type.shape[axis]
    wanted = (have - 1) * 2 if dft_length is None else ctx.one_size(dft_length, "dft_length")
    length = canonical(wanted)
    bins = canonical(length // 2 + 1)
    parts, back = _lines(ctx, x, axis, bins)
    waves = _waves(ctx, x.type.dtype, length, (bins, length), inverse=True, mirrored=True)
    y = ctx.call(MatMul(), parts[0], waves[0])
    if len(parts) == 2:
        y = ctx.call(Sub(), y, ctx.call(MatMul(), parts[1], waves[1]))
    return unsqueeze(ctx, transpose(ctx, y, back), [-1])


def _lines(ctx: Context, x: Value, axis: int, length: Expr) -> tuple[list[Value], list[int]]:
    """The parts of x with an axis as their last one, of a length; and the order that undoes it."""
    last = x.type.rank - 2
    order = [a for a in range(last + 1) if a != axis]
    parts = _parts(ctx, _resized(ctx, x, axis, length))
    back = [*range(axis), last, *range(axis, last)]
    return [transpose(ctx, p, [*order, axis]) for p in parts], back


def _waves(
    ctx: Context,
    dtype: DType,
    length: Expr,
    shape: tuple[Expr, Expr],
    *,
    inverse: bool,
    mirrored: bool = False,
) -> list[Value]:
    """Real and imaginary part of exp(-2 pi i n k / length), conjugated and divided for inverse.

    Where rows are `mirrored`, each but those that are their own mirror images counts twice.
    """
    if isinstance(length, Const) and 0 < int(length.value) <= _LONGEST:
        rows, columns = (int(s.value) for s in shape if isinstance(s, Const))
        known = _known_waves(int(length.value), rows, columns, inverse=inverse)
        if mirrored:
            own = np.arange(rows) * 2 % int(length.value) == 0
            known = [wave * np.where(own, 1, 2)[:, None] for wave in known]
        return [ctx.constant(round_to(wave, dtype)) for wave in known]
    if surely_less(length, ONE, ctx.bounds):
        ctx.refuse(f"the length of a transform is {length}")
    row = reshape_to(ctx, ctx.call(Range(size=shape[0])), (shape[0], ONE))
    count = ctx.size_tensor(np.array(length, np.object_))
    at = ctx.call(Mod(), ctx.call(Mul(), row, ctx.call(Range(size=shape[1]))), count)
    waves = [ctx.call(Gather(), w, at) for w in _one_turn(ctx, dtype, length, inverse=inverse)]
    if not mirrored:
        return waves
    twice = ctx.call(Mod(), ctx.call(Mul(), row, ctx.scalar(2, DType.I64)), count)
    own = ctx.call(Equal(), twice, ctx.scalar(0, DType.I64))
    times = ctx.call(Where(), own, ctx.scalar(1, dtype), ctx.scalar(2, dtype))
    return [ctx.call(Mul(), times, wave) for wave in waves]


def _one_turn(ctx: Context, dtype: DType, length: Expr, *, inverse: bool) -> list[Value]:
    """The waves of one turn, which the others pass in larger steps: rounded once, as constants."""
    count = cast_to(ctx, ctx.size_tensor(np.array(length, np.object_)), DType.F64)
    places = ctx.call(Range(size=length, dtype=DType.F64))
    turns = ctx.call(Div(), ctx.call(Mul(), places, ctx.scalar(2 * np.pi, DType.F64)), count)
    cosine, sine = ctx.call(Cos(), turns), ctx.call(Sin(), turns)
    if inverse:
        waves = [ctx.call(Div(), wave, count) for wave in (cosine, sine)]
    else:
        waves = [cosine, ctx.call(Neg(), sine)]
    return [cast_to(ctx, wave, dtype) for wave in waves]


def _known_waves(length: int, rows: int, columns: int, *, inverse: bool) -> list[Array]:
    turns = np.outer(np.arange(rows), np.arange(columns)) % length * (2 * np.pi / length)
    cosine, sine = np.cos(turns), -np.sin(turns)
    return [cosine / length, -sine / length] if inverse else [cosine, sine]


_LONGEST = 4096  # the matrices have this many rows and columns, or a run computes them


def _resized(ctx: Context, x: Value, axis: int, length: Expr) -> Value:
    """Cut off, or filled up with zeros."""
    have = x.type.shape[axis]
    if surely_equal(have, length, ctx.bounds):
        return x
    kept = ctx.simplify(minimum(have, length))
    x = slice_axes(ctx, x, [index(0)], [kept], [axis], [1])
    if surely_equal(kept, length, ctx.bounds):
        return x
    missing = ctx.simplify(length - kept)
    return pad_axes(ctx, x, [index(0), missing], [axis], "constant", 0.0)


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
    waves = np.concatenate(_known_waves(length, length, bins, inverse=False), axis=1).T
    if shape is not None:
        waves = waves * shape.reshape(-1)
    batch, samples = signal.type.shape[:2]
    x = reshape_to(ctx, signal, (batch, ONE, samples))
    weights = ctx.constant(round_to(waves[:, None], signal.type.dtype))
    op = Conv(stride=(step,), pads=(0, 0), dilation=(1,))
    frames = transpose(ctx, ctx.call(op, x, weights), (0, 2, 1))
    count = frames.type.shape[1]
    both = reshape_to(ctx, frames, (batch, count, index(2), index(bins)))
    return transpose(ctx, both, (0, 1, 3, 2))
