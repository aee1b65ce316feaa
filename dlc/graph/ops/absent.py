"""Weights that are none, as those between groups that one dense convolution computes together.

A zero in their place would do for finite pixels, but infinity times 0 is NaN. They are stored as
-0, which multiplies like 0; where a sum is not finite, it is computed once more without them.
Other weights have no -0: it makes the same sums as 0, since these begin with 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dlc.core.types import DType
from dlc.graph.op import Array
from dlc.graph.ops.window import windows
from dlc.te.expr import Binary, BinOp, Expr, cast, const

ABSENT = -0.0


def present(w: Array) -> Array:
    """Weights of which none is absent."""
    return w + np.zeros((), w.dtype)


def is_absent(weight: Expr) -> Expr:
    """Whether an element of the weights is -0."""
    wide = weight if weight.dtype is DType.F64 else cast(DType.F32, weight)
    zero, one = const(0, wide.dtype), const(1, wide.dtype)
    is_zero = Binary(BinOp.EQ, wide, zero)
    return Binary(BinOp.AND, is_zero, Binary(BinOp.LT, Binary(BinOp.DIV, one, wide), zero))


def sparse_conv(
    x: Array, w: Array, stride: Sequence[int], dilation: Sequence[int], groups: int
) -> Array:
    """A convolution, weight by weight, without those that are absent.

    Shapes:
        x: [n, c, *spatial]; w: [oc, c / groups, *kernel] -> [n, oc, *out]
    """
    oc, per_group, *kernel = w.shape
    parts = dict(windows(x.astype(np.float64), kernel, stride, dilation))
    some = next(iter(parts.values()))
    total = np.zeros((x.shape[0], oc, *some.shape[2:]))
    with np.errstate(invalid="ignore"):  # infinity times 0, and less infinity, are NaN
        for o, i, *position in np.argwhere(~((w == 0) & np.signbit(w))):
            channel = o // (oc // groups) * per_group + i
            part = parts[tuple(int(p) for p in position)][:, channel]
            total[:, o] += part * float(w[(o, i, *position)])
    return total
