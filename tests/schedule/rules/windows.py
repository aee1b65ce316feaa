"""Nests whose results read windows of an image: convolutions and pools."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dlc.graph.ops.activation import Relu
from dlc.graph.ops.binary import Add
from dlc.graph.ops.conv import Conv
from dlc.graph.ops.conv_blocked import ConvBlocked, DepthwiseBlocked, PlanarConv
from dlc.graph.ops.conv_lanes import ConvLanes
from dlc.graph.ops.filters import Tile
from dlc.graph.ops.layout import Interleave
from dlc.graph.ops.pool import AveragePool, MaxPool
from dlc.graph.ops.reduce import Reduce
from dlc.graph.ops.resize import Resize
from dlc.graph.ops.shape import Transpose
from dlc.graph.ops.winograd import ConvWinograd
from dlc.schedule.loop import Func
from dlc.te.expr import Expr
from dlc.te.tensor import pad
from tests.schedule.rules.nests import M, N, func, tensor


def blocked_conv(high: int, wide: int, stride: int, halo: bool) -> Func:
    h, w = (high - 1) * stride + 3, (wide - 1) * stride + 3
    x, f = tensor("a", 1, 2, h, w, 16), tensor("b", 3, 2, 3, 3, 16, 16)
    y = Relu().compute(ConvBlocked(stride=(stride, stride)).compute(x, f))
    edge = (0, 0, 1, 1, 0)
    return func((x, f), pad("p", y, edge, edge) if halo else y)


def sparse_conv(high: int | Expr, groups: int) -> Func:
    """Sums that are computed once more where they are not finite."""
    x, f = tensor("a", 1, 2, high, 6, 16), tensor("b", 2, 2 // groups, 2, 2, 16, 16)
    conv = ConvBlocked(groups=groups, sparse=True).compute(x, f)
    return func((x, f), pad("p", Relu().compute(conv), (0, 0, 1, 0, 0), (0, 0, 0, 1, 0)))


def conv_onto_enlarged(scale: int = 2) -> Func:
    """A convolution whose result is added to a smaller image, each pixel repeated."""
    x, f = tensor("a", 1, 2, 8, 16, 16), tensor("b", 3, 2, 3, 3, 16, 16)
    coarse = tensor("c", 1, 3, 6 // scale, 14 // scale, 16)
    large = Resize(sizes=(1, 3, 6, 14, 16)).compute(coarse)
    return func((x, f, coarse), Add().compute(ConvBlocked().compute(x, f), large))


def long_conv() -> Func:
    x, f = tensor("a", 1, 4, 3, 4, 16), tensor("b", 1, 4, 3, 3, 16, 16)
    return func((x, f), ConvBlocked().compute(x, f))


def first_conv() -> Func:
    x, f = tensor("a", 1, 3, 11, 13), tensor("b", 2, 3, 3, 3, 16)
    return func((x, f), PlanarConv(stride=(2, 2)).compute(x, f))


def padded_and_turned() -> Func:
    x, f = tensor("a", 1, 1, 5, 5), tensor("b", 4, 1, 3, 3)
    return func((x, f), Transpose(perm=(3, 2, 1, 0)).compute(Conv(pads=(1, 1, 1, 1)).compute(x, f)))


def planar_conv() -> Func:
    x, f = tensor("a", 2, 3, 7, 9), tensor("b", 5, 3, 3, 3)
    return func((x, f), Conv(pads=(1, 1, 1, 1)).compute(x, f))


def winograd(
    high: int | Expr, wide: int | Expr, out: tuple[int, int] = (2, 2), halo: bool = False
) -> Func:
    """As scheduled on a strip: even and odd sizes, where the last tiles stick out."""
    x = tensor("a", 1, 1, high + 2, wide + 2, 3)
    u, w = tensor("b", out[0] + 2, out[1] + 2, 2, 1, 3, 16), tensor("c", 2, 1, 3, 3, 3, 16)
    y = Relu().compute(ConvWinograd(out=out).compute(x, u, w))
    edge = (0, 0, 1, 1, 0)
    return func((x, u, w), pad("p", y, edge, edge) if halo else y)


def winograd_of(
    sizes: tuple[int | Expr, ...],
    kernel: tuple[int, ...],
    out: tuple[int, ...] = (2, 2),
    stride: tuple[int, ...] = (),
    steps: tuple[int, ...] = (),
) -> Func:
    """Of pixels of some sizes: each result adds up images, or lines, and parts of a kernel."""
    outer, tile = kernel[: -len(out)], Tile(out, kernel[-len(out) :], steps)
    x = tensor("a", 1, 1, *sizes, 3)
    u = tensor("b", *tile.positions, 2, 1, *outer, *tile.parts, 3, 16)
    w = tensor("c", 2, 1, *kernel, 3, 16)
    conv = ConvWinograd(out=out, stride=stride, dilation=(1,) * len(stride), steps=steps)
    return func((x, u, w), Relu().compute(conv.compute(x, u, w)))


def depthwise(wide: int | Expr, stride: int) -> Func:
    w = (wide - 1) * stride + 3
    x, f = tensor("a", 1, 2, 6, w, 16), tensor("b", 2, 3, 3, 16)
    return func((x, f), DepthwiseBlocked(stride=(stride, stride)).compute(x, f))


def window_product(
    high: int | Expr,
    wide: int | Expr,
    stride: int = 1,
    images: int | Expr = 1,
    *,
    halo: bool = True,
    between: bool = True,
    blocks: int = 2,
    groups: int = 1,
    used: int = 0,
) -> Func:
    """A depthwise convolution that a pointwise one reads, with a shortcut and zeros around it.

    An activation is `between` the two, or nothing. Not all channels of a block may be `used`.
    """
    h, w = ((n - 1) * stride + 3 for n in (high, wide))
    x, f = tensor("a", images, blocks, h, w, 16), tensor("b", blocks, 3, 3, 16)
    g = tensor("c", 3 * groups, blocks // groups, 1, 1, 16, 16)
    r = tensor("d", images, 3 * groups, high, wide, 16)
    windows = DepthwiseBlocked(stride=(stride, stride)).compute(x, f)
    windows = Relu().compute(windows) if between else windows
    y = Add().compute(ConvBlocked(groups=groups, used=used).compute(windows, g), r)
    edge = (0, 0, 1, 1, 0)
    return func((x, f, g, r), pad("p", y, edge, edge) if halo else y)


def narrowed(
    high: int | Expr,
    wide: int | Expr,
    stride: int = 1,
    images: int | Expr = 1,
    *,
    kernel: int = 3,
    before: str = "",
    halo: bool = False,
) -> Func:
    """An image of more channels, a depthwise convolution of it, a pointwise one that leaves fewer.

    A shortcut is added. What the first image is made of is other blocks of channels, or a `window`
    of them, `phases` of a stride, or `planar`.
    """
    h, w = ((n - 1) * stride + 1 for n in (high, wide))
    edge = kernel // 2
    f, g = tensor("b", 4, kernel, kernel, 16), tensor("c", 2, 4, 1, 1, 16, 16)
    if before == "planar":
        x, e = tensor("a", images, 3, 2 * h + 1, 2 * w + 1), tensor("d", 4, 3, 3, 3, 16)
        inputs, made = [x, e], PlanarConv(stride=(2, 2)).compute(x, e)
    else:
        around = 2 * (before == "window")
        x, e = tensor("a", images, 2, h + around, w + around, 16), tensor("d", 4, 2, 1, 1, 16, 16)
        inputs, pixels = [x, e], x
        if before == "window":
            inputs.append(tensor("e", 2, 3, 3, 16))
            pixels = Relu().compute(DepthwiseBlocked().compute(x, inputs[-1]))
        made = ConvBlocked().compute(pixels, e)
    if before == "phases":
        x, e = tensor("a", images, 2, h // 2, w // 2, 16), tensor("d", 16, 2, 1, 1, 16, 16)
        inputs, made = [x, e], Interleave(stride=(2, 2)).compute(ConvBlocked().compute(x, e))
    sides = (0, 0, edge, edge, 0)
    image = pad("m", Relu().compute(made), sides, sides)
    windows = Relu().compute(DepthwiseBlocked(stride=(stride, stride)).compute(image, f))
    r = tensor("f", images, 2, high, wide, 16)
    y = Add().compute(ConvBlocked().compute(windows, g), r)
    sides = (0, 0, 1, 1, 0)
    return func((*inputs, f, g, r), pad("p", y, sides, sides) if halo else y)


def window_product_line() -> Func:
    """The same along lines, of an open number of images."""
    x, f, g = tensor("a", N, 2, 11, 16), tensor("b", 2, 3, 16), tensor("c", 3, 2, 1, 16, 16)
    lines = {"stride": (1,), "dilation": (1,)}
    windows = Relu().compute(DepthwiseBlocked(**lines).compute(x, f))
    return func((x, f, g), ConvBlocked(**lines).compute(windows, g))


def in_lanes(wide: int | Expr, group: int, kernel: tuple[int, ...] = (3, 3)) -> Func:
    """Groups of channels within blocks of 16."""
    *above, width = kernel
    sizes = (*(k + 3 for k in above), wide + width - 1)
    x, f = tensor("a", 1, 2, *sizes, 16), tensor("b", 2, group, *kernel, 16)
    ones = (1,) * len(kernel)
    return func((x, f), ConvLanes(stride=ones, dilation=ones).compute(x, f))


def among_zeros(*sizes: int | Expr, dilation: tuple[int, ...]) -> Func:
    """Dilated convolutions whose taps often lie in the zeros around an image."""
    rank = len(dilation)
    padded = (size + 2 * d for size, d in zip(sizes, dilation, strict=True))
    x, f = tensor("a", 1, 1, *padded, 16), tensor("b", 2, 1, *(3,) * rank, 16, 16)
    conv = ConvBlocked(stride=(1,) * rank, dilation=dilation, zeros=dilation * 2)
    return func((x, f), Relu().compute(conv.compute(x, f)))


def transposed_conv(height: int | Expr) -> Func:
    """Two phases in each dimension, computed by one convolution and written between each other."""
    x, f, b = tensor("a", 1, 2, height, 9, 16), tensor("b", 8, 2, 1, 1, 16, 16), tensor("c", 16)
    phases = Interleave(stride=(2, 2)).compute(ConvBlocked().compute(x, f))
    return func((x, f, b), Relu().compute(Add().compute(phases, b)))


def many_phases() -> Func:
    """Four phases of a stride of two, each of three blocks."""
    x, f = tensor("a", 1, 1, 4, 4, 16), tensor("b", 12, 1, 2, 2, 16, 16)
    return func((x, f), Interleave(stride=(2, 2)).compute(ConvBlocked().compute(x, f)))


def phases_of_a_line() -> Func:
    """As a vocoder has them: a line of pixels, four phases of four blocks."""
    x, f = tensor("a", 1, 1, 9, 16), tensor("b", 16, 1, 2, 16, 16)
    conv = ConvBlocked(stride=(1,), dilation=(1,)).compute(x, f)
    return func((x, f), Interleave(stride=(4,)).compute(conv))


def pool(kind: type) -> Func:
    x = tensor("a", 1, 2, 7, 9, 16)
    return func((x,), kind(kernel=(3, 3), stride=(2, 2), pads=(1, 1, 1, 1)).compute(x))


def planar_pool(
    op: type[AveragePool | MaxPool], kernel: int, pads: int, *shape: int | Expr, stride: int = 2
) -> Func:
    """Windows that are some pixels apart, of images, or lines, that lie as they are."""
    x, rank = tensor("a", *shape), len(shape) - 2
    dims = {"kernel": (kernel,) * rank, "stride": (stride,) * rank, "dilation": (1,) * rank}
    return func((x,), op(**dims, pads=(pads,) * (2 * rank)).compute(x))


def sliding_pool(
    op: type[AveragePool | MaxPool], kernel: tuple[int, ...], *shape: int | Expr, apart: int = 1
) -> Func:
    """Windows of each pixel, which overlap with their neighbours in all dimensions."""
    x, ones = tensor("a", *shape), (1,) * len(kernel)
    pads = tuple(k // 2 * apart for k in kernel) * 2
    made = op(kernel=kernel, stride=ones, pads=pads, dilation=(apart,) * len(kernel))
    return func((x,), made.compute(x))


def global_mean() -> Func:
    x = tensor("a", 1, 3, 5, 7, 16)
    return func((x,), Reduce(kind="mean", axes=(2, 3), keepdims=True).compute(x))


def open_mean() -> Func:
    x = tensor("a", 2, 3, N, M, 16)
    return func((x,), Reduce(kind="mean", axes=(2, 3), keepdims=True).compute(x))


CASES: dict[str, Callable[[], Func]] = {
    "long_conv": long_conv,
    "conv_7x7": partial(blocked_conv, 7, 7, 1, halo=True),
    "conv_5x15": partial(blocked_conv, 5, 15, 1, halo=False),
    "conv_strided": partial(blocked_conv, 4, 6, 2, halo=True),
    "first_conv": first_conv,
    "conv_sparse": partial(sparse_conv, 3, 1),
    "conv_sparse_groups": partial(sparse_conv, 4, 2),
    "conv_sparse_open": partial(sparse_conv, N + 1, 2),
    "winograd": partial(winograd, 2, 4, halo=True),
    "winograd_odd": partial(winograd, 3, 5),
    "winograd_symbolic": partial(winograd, N, 3),
    "winograd_large": partial(winograd, 8, 5, (4, 4), halo=True),
    "winograd_large_symbolic": partial(winograd, N, 5, (2, 4)),
    "winograd_volume": partial(winograd_of, (6, 6, 7), (3, 3, 3), stride=(1,)),
    "winograd_volume_strided": partial(winograd_of, (5, 6, 7), (3, 3, 3), stride=(2,)),
    "winograd_volume_symbolic": partial(winograd_of, (N + 1, 6, 7), (2, 3, 3), stride=(1,)),
    "winograd_line": partial(winograd_of, (21,), (3,), (2,)),
    "winograd_line_long": partial(winograd_of, (267,), (3,), (4,)),
    "winograd_line_symbolic": partial(winograd_of, (N + 2,), (3,), (4,)),
    "winograd_line_of_parts": partial(winograd_of, (26,), (7,), (3,)),
    "winograd_line_of_parts_symbolic": partial(winograd_of, (N + 4,), (5,), (4,)),
    "winograd_parts": partial(winograd_of, (9, 11), (5, 5), (2, 4)),
    "winograd_parts_symbolic": partial(winograd_of, (11, N + 6), (7, 7), (3, 3)),
    "winograd_pairs": partial(winograd_of, (9, 11), (2, 2), (3, 3)),
    "winograd_pairs_symbolic": partial(winograd_of, (8, N + 3), (2, 3), (3, 4)),
    "winograd_line_of_pairs": partial(winograd_of, (27,), (2,), (3,)),
    "winograd_strided": partial(winograd_of, (13, 19), (3, 3), (3, 3), steps=(2, 2)),
    "winograd_strided_rows": partial(winograd_of, (N * 2 + 1, 10), (3, 3), (3, 4), steps=(2, 1)),
    "winograd_strided_line": partial(winograd_of, (40,), (4,), (3,), steps=(2,)),
    "winograd_lines": partial(winograd_of, (6, 11), (2, 3), (4,), (1,)),
    "winograd_lines_symbolic": partial(winograd_of, (N + 2, M + 2), (3, 3), (2,), (1,)),
    "padded_and_turned": padded_and_turned,
    "planar_conv": planar_conv,
    "depthwise_7": partial(depthwise, 7, 1),
    "depthwise_19": partial(depthwise, 19, 1),
    "depthwise_strided": partial(depthwise, 5, 2),
    "groups_of_two": partial(in_lanes, 11, 2),
    "groups_of_eight": partial(in_lanes, 19, 8),
    "groups_open": partial(in_lanes, N, 4),
    "groups_in_large_windows": partial(in_lanes, 9, 8, (11, 11)),
    "groups_in_long_lines": partial(in_lanes, 11, 8, (67,)),
    "groups_in_volumes": partial(in_lanes, 5, 4, (5, 5, 5)),
    "among_zeros": partial(among_zeros, 9, 13, dilation=(7, 5)),
    "line_among_zeros": partial(among_zeros, 11, dilation=(6,)),
    "open_among_zeros": partial(among_zeros, 7, N, dilation=(5, 4)),
    "depthwise_open": partial(depthwise, N, 1),
    "window_product": partial(window_product, 6, 7),
    "window_product_strided": partial(window_product, 4, 9, 2, halo=False),
    "window_product_images": partial(window_product, 4, 5, 1, N),
    "window_product_open": partial(window_product, N, M),
    "window_product_line": window_product_line,
    "depthwise_open_strided": partial(depthwise, N, 2),
    "max_pool": partial(pool, MaxPool),
    "planar_pool": partial(planar_pool, MaxPool, 3, 1, 1, 2, 20, 75),
    "planar_pool_narrow": partial(planar_pool, MaxPool, 3, 1, 2, 3, 7, 7),
    "planar_pool_of_one_line": partial(planar_pool, MaxPool, 3, 1, 1, 2, 1, 37),
    "planar_pool_to_rest": partial(planar_pool, MaxPool, 2, 0, 1, 2, 9, 44, stride=1),
    "planar_pool_open": partial(planar_pool, MaxPool, 3, 1, 1, 2, N, M),
    "planar_pool_without_pads": partial(planar_pool, MaxPool, 3, 0, N, 1, 9, M + 2),
    "planar_pool_of_whole_vectors": partial(planar_pool, MaxPool, 2, 0, 1, 2, 5, M + 1, stride=1),
    "planar_pool_of_an_odd_line": partial(planar_pool, MaxPool, 2, 0, 2, 5, M * 2 + 2, stride=1),
    "planar_pool_by_four_open": partial(planar_pool, MaxPool, 4, 1, 1, 2, N, M, stride=4),
    "planar_pool_by_three": partial(planar_pool, MaxPool, 5, 2, 1, 2, 31, 70, stride=3),
    "planar_pool_volume": partial(planar_pool, MaxPool, 3, 1, 1, 2, 5, 6, 37),
    "planar_average_open": partial(planar_pool, AveragePool, 3, 1, 1, N, 9, M),
    "line_pool": partial(planar_pool, MaxPool, 3, 1, 1, 3, 75),
    "line_pool_by_three": partial(planar_pool, MaxPool, 3, 0, 1, 3, 125, stride=3),
    "line_pool_by_four": partial(planar_pool, MaxPool, 4, 0, 1, 3, 132, stride=4),
    "line_pool_open": partial(planar_pool, MaxPool, 3, 1, 1, N, M),
    "line_average_open": partial(planar_pool, AveragePool, 4, 0, 1, N, M, stride=4),
    "planar_average_pool": partial(planar_pool, AveragePool, 2, 0, 2, 3, 9, 45),
    "average_pool": partial(pool, AveragePool),
    "sliding_pool": partial(sliding_pool, MaxPool, (5, 3), 1, 3, 61, 37),
    "sliding_pool_narrow": partial(sliding_pool, MaxPool, (5, 5), 2, 1, 7, 3),
    "sliding_pool_blocked": partial(sliding_pool, MaxPool, (5, 5), 1, 2, 5, 6, 16),
    "sliding_pool_apart": partial(sliding_pool, MaxPool, (3, 3), 1, 2, 11, 19, apart=2),
    "sliding_pool_open": partial(sliding_pool, MaxPool, (5, 5), 1, 2, N, M),
    "sliding_pool_volume": partial(sliding_pool, MaxPool, (3, 3, 3), 1, 2, 4, 5, 18),
    "sliding_average": partial(sliding_pool, AveragePool, (3, 3), 1, 2, 13, 33),
    "sliding_average_open": partial(sliding_pool, AveragePool, (3, 3), N, 1, 9, M),
    "global_mean": global_mean,
    "transposed_conv": partial(transposed_conv, 5),
    "transposed_conv_open": partial(transposed_conv, N),
    "many_phases": many_phases,
    "phases_of_a_line": phases_of_a_line,
    "open_mean": open_mean,
    "conv_onto_enlarged": conv_onto_enlarged,
}
