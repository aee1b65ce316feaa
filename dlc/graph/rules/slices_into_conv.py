"""conv(concat(x[::s, ::s], x[1::s, ::s], ...), w) -> conv(x, w', stride=s * stride): the pixels of
each s x s square, stacked as channels by strided slices (Focus, space to depth), are what a kernel
s times as large sees in the image itself.

    w'[o, c, s * ky + i, s * kx + j] = w[o, part(i, j) * channels + c, ky, kx]

Source: the first layer of YOLOX (Ge et al., arXiv 2107.08430) and of YOLOv5 up to version 5.
"""

from __future__ import annotations

import math

import numpy as np

from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.conv import Conv
from dlc.graph.ops.shape import Concat, Slice
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule
from dlc.te.expr import Const
from dlc.te.simplify import surely_equal
from dlc.te.types import is_const


@rule(Pattern(Conv, (Pattern(Concat, name="stack"), Weight("w"))))
def slices_into_conv(match: Match) -> Value | Refusal:
    """Read the image itself, with a larger kernel."""
    conv, stack, w = match.op(Conv), match.maker("stack"), match.array("w")
    assert isinstance(stack, Concat)
    if stack.axis % w.ndim != 1:
        return Refusal("the slices are not stacked as channels")
    if conv.groups != 1 or any(d != 1 for d in conv.dilation):
        return Refusal("the convolution has groups or dilation")
    found = _strided_slices(match)
    if isinstance(found, Refusal):
        return found
    x, steps, starts = found
    if len(starts) != math.prod(steps) or len(set(starts)) != len(starts):
        return Refusal("the slices do not cover each square once")
    sizes = zip(x.type.shape[2:], match["stack"].type.shape[2:], steps, strict=True)
    if not all(surely_equal(whole, part * step) for whole, part, step in sizes):
        return Refusal("the squares do not cover the image")
    weights = match.constant(_spread(w, steps, starts), match["w"], f"{match['w'].name}_spread")
    twice = (*steps, *steps)
    op = Conv(
        stride=tuple(a * b for a, b in zip(conv.stride, steps, strict=True)),
        pads=tuple(a * b for a, b in zip(conv.pads, twice, strict=True)),
        dilation=conv.dilation,
    )
    return match.call(op, x, weights)


def _strided_slices(
    match: Match,
) -> tuple[Value, tuple[int, ...], list[tuple[int, ...]]] | Refusal:
    """The image, the steps and the starts of the slices that are stacked."""
    stack = match.editor.producer(match["stack"])
    assert stack is not None, "the pattern has matched it"
    nodes = [match.editor.producer(v) for v in stack.inputs]
    slices = [(n.inputs[0], n.op) for n in nodes if n is not None and isinstance(n.op, Slice)]
    if len(slices) < len(nodes) or len({x for x, _ in slices}) != 1:
        return Refusal("not all parts are slices of one image")
    (x, first), *_ = slices
    starts: list[tuple[int, ...]] = []
    for _, op in slices:
        if op.strides != first.strides or op.strides[:2] != (1, 1) or min(op.strides) < 1:
            return Refusal("the slices have different steps")
        constant = [int(s.value) for s in op.starts if isinstance(s, Const)]
        if len(constant) < len(op.starts) or constant[:2] != [0, 0]:
            return Refusal("the slices begin at unknown places or channels")
        if op.sizes[:2] != x.type.shape[:2] or not isinstance(x.type.shape[1], Const):
            return Refusal("the slices do not take all channels")
        starts.append(tuple(constant[2:]))
    if any(s >= step for start in starts for s, step in zip(start, first.strides[2:], strict=True)):
        return Refusal("a slice begins beyond the first square")
    assert not is_const(x.type.shape[1], 0), "a convolution has input channels"
    return x, first.strides[2:], starts


def _spread(w: Array, steps: tuple[int, ...], starts: list[tuple[int, ...]]) -> Array:
    """The weights of the larger kernel."""
    oc, total, *kernel = w.shape
    channels = total // len(starts)
    result = np.zeros((oc, channels, *(k * s for k, s in zip(kernel, steps, strict=True))), w.dtype)
    for number, start in enumerate(starts):
        places = tuple(slice(i, None, s) for i, s in zip(start, steps, strict=True))
        part = slice(number * channels, (number + 1) * channels)
        result[(slice(None), slice(None), *places)] = w[:, part]
    return result
