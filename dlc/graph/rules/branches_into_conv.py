"""(conv(x, v) + a) + (conv(x, w) + b) -> (conv(x, v + w) + a) + b: branches that read one image
and are added up are one convolution, if one kernel holds the other. `x * c` and `x` itself are
branches of a convolution of each channel alone, too, of a kernel of one pixel. Sums over channels
would add them far from the end, and round them more than once, while an addition behind is free.

Source: Ding et al., "RepVGG: Making VGG-style ConvNets Great Again", arXiv 2101.03697, section
3.3. Models are often exported as they were trained, in branches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from dlc.core.types import DType
from dlc.graph.arrays import round_to
from dlc.graph.broadcast import along_axis
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Node, Value
from dlc.graph.integers import is_kept_whole
from dlc.graph.op import Array
from dlc.graph.ops.binary import Add, Mul
from dlc.graph.ops.conv import Conv
from dlc.graph.rewrite import Match, Pattern, Refusal, rule

WIDE_FLOATS = (DType.F32, DType.F64)  # in fewer bits one weight would round the other away


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A convolution and its weights."""

    conv: Conv
    weights: Array

    @property
    def taps(self) -> tuple[int, ...]:
        """The size of the kernel, without its channels."""
        return self.weights.shape[2:]


@dataclass(frozen=True, slots=True)
class _Branch:
    """What is made of `x`: it is convolved, or multiplied by a factor; then `bias` is added."""

    x: Value
    by: _Kernel | Array
    bias: Value | None = None


@rule(Pattern(Add, ("left", "right")))
def branches_into_conv(match: Match) -> Value | Refusal:
    """Add the kernels while compiling."""
    y, sides = match.root.output, (match["left"], match["right"])
    small, large = sorted((_branch(match.editor, side) for side in sides), key=_taps)
    if not isinstance(large.by, _Kernel) or small.x != large.x:
        return Refusal("no convolution reads what the other branch reads")
    if y.type.dtype not in WIDE_FLOATS or any(side.type != y.type for side in sides):
        return Refusal("a branch repeats, or is not of float32 or float64")
    kernels = [b.by for b in (small, large) if isinstance(b.by, _Kernel)]
    if any(is_kept_whole(match.context, k.weights) for k in kernels):
        return Refusal("the target multiplies such whole numbers faster")
    inner = small.by if isinstance(small.by, _Kernel) else _pixel(match, small.by, large.by)
    if isinstance(inner, Refusal):
        return inner
    places = _places(inner, large.by)
    if places is None:
        return Refusal("one kernel does not hold the other")
    total = large.by.weights.astype(np.float64)
    total[(slice(None), slice(None), *places)] += inner.weights
    if not np.isfinite(round_to(total, y.type.dtype)).all():
        return Refusal("a weight is not finite")
    result = match.call(large.by.conv, large.x, match.constant(total, y, f"{y.name}_weights"))
    for bias in (large.bias, small.bias):
        result = match.call(Add(), result, bias) if bias else result
    return result


def _taps(branch: _Branch) -> int:
    """The elements of a kernel in one channel; none of a factor."""
    return prod(branch.by.taps) if isinstance(branch.by, _Kernel) else 0


def _branch(editor: GraphEditor, value: Value) -> _Branch:
    """What the match alone reads: a convolution or a product by a constant, and one added to it."""
    core, bias = _parts(editor, value, Add)
    node = _own(editor, core)
    if node is not None and isinstance(node.op, Conv):
        weights = editor.array(node.inputs[1])
        if weights is not None:
            return _Branch(node.inputs[0], _Kernel(node.op, weights), bias)
    x, factor = _parts(editor, core, Mul)
    by = None if factor is None else editor.array(factor)
    return _Branch(x, np.ones(()) if by is None else by, bias)


def _parts(editor: GraphEditor, value: Value, op: type[Add | Mul]) -> tuple[Value, Value | None]:
    """A value and the constant that `op` joins with it; None where there is nothing of the kind."""
    node = _own(editor, value)
    if node is not None and isinstance(node.op, op):
        for other, constant in (node.inputs, node.inputs[::-1]):
            if editor.array(constant) is not None and other.type == value.type:
                return other, constant
    return value, None


def _own(editor: GraphEditor, value: Value) -> Node | None:
    """The node that makes a value, if one node alone reads it."""
    return editor.producer(value) if editor.sole_user(value) else None


def _pixel(match: Match, factor: Array, kernel: _Kernel) -> _Kernel | Refusal:
    """A factor as a kernel of one pixel, beside another one of each channel alone."""
    channels, per_group, *taps = kernel.weights.shape
    if match.context.precision != "highest" or match.context.half:
        return Refusal("products would round the image")
    if per_group > 1:
        return Refusal("a sum over channels would round the image more than once")
    weights = along_axis(factor, kernel.weights.ndim, 1, channels)
    if weights is None:
        return Refusal("the factor differs within a channel")
    ones, zeros = (1,) * len(taps), (0,) * (2 * len(taps))
    conv = replace(kernel.conv, stride=ones, pads=zeros)
    return _Kernel(conv, weights.reshape(-1, 1, *ones))


def _places(small: _Kernel, large: _Kernel) -> tuple[slice, ...] | None:
    """Where one kernel lies in the other, if that holds it."""
    a, b = small.conv, large.conv
    if (a.stride, a.groups) != (b.stride, b.groups):
        return None
    found = []
    for axis, (few, many) in enumerate(zip(small.taps, large.taps, strict=True)):
        first, rest = divmod(b.pads[axis] - a.pads[axis], b.dilation[axis])
        is_spread_alike = few == 1 or a.dilation[axis] == b.dilation[axis]
        if rest or first < 0 or first + few > many or not is_spread_alike:
            return None
        found.append(slice(first, first + few))
    return tuple(found)
