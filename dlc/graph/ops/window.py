"""Windows that slide over spatial dimensions: what convolutions and pools share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dlc.graph.op import Array
from dlc.te.expr import Expr, ExprLike, index
from dlc.te.simplify import canonical


def out_size(size: Expr, kernel: ExprLike, stride: int, dilation: int, pads: int = 0) -> Expr:
    """How many whole windows fit: (size + pads - dilation * (kernel - 1) - 1) // stride + 1."""
    reach = (index(kernel) - 1) * dilation + 1
    return canonical((size + pads - reach) // stride + 1)


def windows(
    x: Array, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], Array]]:
    """For each position inside the window, the elements of `x` that all windows have there.

    The window slides over axes 2, 3, ... of `x`; there the arrays have the extents of the result.
    """
    sizes = zip(x.shape[2:], kernel, stride, dilation, strict=False)
    counts = [max(0, (n - d * (k - 1) - 1) // s + 1) for n, k, s, d in sizes]
    for position in np.ndindex(*kernel):
        steps = zip(position, counts, stride, dilation, strict=True)
        cut = tuple(slice(p * d, p * d + s * n, s) for p, n, s, d in steps)
        yield tuple(position), x[:, :, *cut]
