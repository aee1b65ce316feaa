"""conv(x, w) -> conv(x, w[..., a:b]), with fewer pads: what only ever meets pads adds nothing. That
is the border of kernels dilated beyond a small image, and of any kernel on a single pixel.

Source: Chen, Papandreou, Schroff, Adam, "Rethinking Atrous Convolution for Semantic Image
Segmentation", arXiv 1706.05587, section 3.3, where kernels degenerate to their middle.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dlc.graph.graph import Value
from dlc.graph.ops.conv import Conv
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule
from dlc.te.expr import Const, Expr


@rule(Pattern(Conv, ("x", Weight("w")), name="y"))
def crop_kernel(match: Match) -> Value | Refusal:
    """Keep the part of the kernel that meets pixels."""
    conv, w = match.op(Conv), match.stored("w")
    _, _, *kernel = w.shape
    sizes = zip(match["x"].type.shape[2:], match["y"].type.shape[2:], strict=True)
    kept = [_kept(conv, axis, kernel[axis], *size) for axis, size in enumerate(sizes)]
    if all(part == range(k) for part, k in zip(kept, kernel, strict=True)):
        return Refusal("every weight meets a pixel")
    gone = (
        *(part.start for part in kept),
        *(k - p.stop for p, k in zip(kept, kernel, strict=True)),
    )
    steps = zip(conv.pads, gone, conv.dilation * 2, strict=True)
    pads = tuple(pad - positions * dilation for pad, positions, dilation in steps)
    if min(pads) < 0:
        return Refusal("the first pixels are left out, too")
    inside = (slice(None), slice(None), *(slice(p.start, p.stop) for p in kept))
    outside = np.ones(w.shape[2:], bool)
    outside[inside[2:]] = False
    if not np.isfinite(w[:, :, outside]).all():
        return Refusal("zeros times what is not finite are not numbers")
    cropped = match.constant(w[inside], match["w"], f"{match['w'].name}_cropped")
    return match.call(replace(conv, pads=pads), match["x"], cropped)


def _kept(conv: Conv, axis: int, kernel: int, size: Expr, results: Expr) -> range:
    """The positions of a kernel from the first to the last that meets a pixel, along one axis."""
    if not isinstance(size, Const) or not isinstance(results, Const):
        return range(kernel)
    pad, stride, dilation = conv.pads[axis], conv.stride[axis], conv.dilation[axis]
    n, out = int(size.value), int(results.value)

    def meets(position: int) -> bool:
        behind = position * dilation - pad  # of the first result
        first = max(0, -(behind // stride))  # the first result that is not in front of the image
        return first < out and first * stride + behind < n

    met = [position for position in range(kernel) if meets(position)]
    return range(met[0], met[-1] + 1) if met else range(kernel)
