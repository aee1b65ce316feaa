"""conv(cast(a) - z, cast(w)) -> conv(pad(a, z), w) - z * sums(w), for bytes a and w, on GPUs.

What surrounds an image is the byte that stands for zero, so that the sum of the weights of each
channel is a constant, at borders too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dlc.core.types import DType
from dlc.graph.graph import Value
from dlc.graph.integers import byte_type, may_wrap, moved_bytes, type_range
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.binary import Add
from dlc.graph.ops.conv import Conv
from dlc.graph.ops.elementwise import Cast
from dlc.graph.ops.shape import Pad
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule
from dlc.graph.rules.integers_into_bytes import are_bytes


@rule(Pattern(Conv, ("x", Weight("w")), name="y"))
def convolved_integers_into_bytes(match: Match) -> Value | Refusal:
    """Convolve bytes as they are."""
    w = match.array("w")
    if match.context.target.gpu is None:
        return Refusal("the target has no instruction for bytes")
    wanted = match["y"].type.dtype
    if wanted not in (DType.I32, DType.F32):
        return Refusal("the result is neither i32 nor f32")
    if are_bytes(match):
        return Refusal("the operands are bytes")
    found, dtype = moved_bytes(match.editor, match["x"]), byte_type(w)
    if found is None or dtype is None:
        return Refusal("an operand is not made of bytes")
    (image, zero), conv = found, match.op(Conv)
    limits = type_range(image.type.dtype)
    assert limits is not None, "bytes are whole numbers"
    if zero and any(conv.pads) and not limits[0] <= zero <= limits[1]:
        return Refusal("no byte stands for zero")
    if wanted is DType.F32 and may_wrap(conv, w, zero):
        return Refusal("the sums may be larger than i32")
    if zero and any(conv.pads):
        half = len(conv.pads) // 2
        before, after = ((0, 0, *p) for p in (conv.pads[:half], conv.pads[half:]))
        pad = Pad(before=as_sizes(before), after=as_sizes(after), value=float(zero))
        image, conv = match.call(pad, image), replace(conv, pads=(0,) * len(conv.pads))
    name = match["w"].name
    result = match.call(conv, image, match.editor.constant(w, dtype, f"{name}_bytes"))
    if zero:
        moved = -zero * w.astype(np.int64).sum(axis=tuple(range(1, w.ndim)))
        moved = moved.reshape(-1, *(1,) * (w.ndim - 2))
        result = match.call(Add(), result, match.editor.constant(moved, DType.I32, f"{name}_sums"))
    return result if wanted is DType.I32 else match.call(Cast(to=wanted), result)
