"""Nests that reduce rows and columns, among them norms and softmax."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dlc.graph.ops.activation import Relu
from dlc.graph.ops.binary import Add
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.norm import GroupNorm, InstanceNorm, LayerNorm
from dlc.graph.ops.norm_blocked import InstanceNormBlocked
from dlc.graph.ops.reduce import ArgMax, Reduce
from dlc.graph.ops.shape import Transpose
from dlc.graph.ops.softmax import LogSoftmax, Softmax
from dlc.graph.ops.sort import TopK
from dlc.schedule.loop import Func
from dlc.schedule.lower import lower_tensors
from dlc.te.expr import Expr, index, minimum
from dlc.te.tensor import pad
from tests.schedule.rules.nests import M, N, func, tensor


def short_rows(kind: str, *shape: int | Expr) -> Func:
    x = tensor("a", *shape)
    return func((x,), Reduce(kind=kind, axes=(-1,), keepdims=False).compute(x))


def short_arg_max() -> Func:
    x = tensor("a", N, 7, M, 3)
    return func((x,), ArgMax(axis=-1).compute(x))


def row_mean() -> Func:
    x = tensor("a", 3, 50)
    return func((x,), Reduce(kind="mean", axes=(1,), keepdims=False).compute(x))


def long_columns() -> Func:
    x = tensor("a", 5, 45, 19)
    return func((x,), Reduce(kind="sum", axes=(1,)).compute(x))


def panel(kind: str, *shape: int | Expr) -> Func:
    """A reduction over the rows of [rows, columns], or of several of these."""
    x = tensor("a", *shape)
    return func((x,), Reduce(kind=kind, axes=(len(shape) - 2,), keepdims=False).compute(x))


def top_k(k: int, *shape: int, axis: int = -1) -> Func:
    x = tensor("a", *shape)
    return lower_tensors("f", (), (x,), TopK(k=index(k), axis=axis).compute(x))


def arg_max_channels(*shape: int | Expr) -> Func:
    x = tensor("a", *shape)
    return func((x,), ArgMax(axis=1, keepdims=False).compute(x))


def softmax(width: int | Expr) -> Func:
    x = tensor("a", 3, width)
    return func((x,), Softmax(axis=-1).compute(x))


def softmax_inner() -> Func:
    x = tensor("a", 3, 5, 4)
    return func((x,), Softmax(axis=1).compute(x))


def log_softmax_channels(*shape: int | Expr) -> Func:
    x, y = tensor("a", *shape), tensor("b", 1, shape[-1])
    return func((x, y), LogSoftmax(axis=1).compute(Add().compute(x, y)))


def layer_norm() -> Func:
    x, s, b = tensor("a", 2, 3, 21), tensor("b", 21), tensor("c", 21)
    return func((x, s, b), LayerNorm(axis=-1).compute(x, s, b))


def product_norm() -> Func:
    x, w = tensor("a", 5, 9), tensor("b", 9, 21)
    return func((x, w), LayerNorm().compute(MatMul().compute(x, w)))


def image_norm(*shape: int | Expr) -> Func:
    x, s = tensor("a", *shape), tensor("b", *shape[1:])
    return func((x, s), LayerNorm(axis=1).compute(Relu().compute(x), s))


def instance_norm(*shape: int | Expr) -> Func:
    x, s, b = tensor("a", *shape), tensor("b", 3), tensor("c", 3)
    return func((x, s, b), Relu().compute(InstanceNorm().compute(x, s, b)))


def group_norm(groups: int, *shape: int | Expr) -> Func:
    x, s, b = tensor("a", *shape), tensor("b", shape[1]), tensor("c", shape[1])
    return func((x, s, b), GroupNorm(groups=groups).compute(x, s, b))


def blocked_norm(*shape: int | Expr) -> Func:
    x, s, b = (tensor(n, *size) for n, size in zip("abc", (shape, (2, 16), (2, 16)), strict=True))
    return func((x, s, b), Relu().compute(InstanceNormBlocked().compute(x, s, b)))


def norm_of_turned(*shape: int | Expr) -> Func:
    """A norm over the channels of an image [n, c, ...], stored with the channels last."""
    x, s, b = tensor("a", *shape), tensor("b", shape[1]), tensor("c", shape[1])
    perm = (0, *range(2, len(shape)), 1)
    return func((x, s, b), LayerNorm(axis=-1).compute(Transpose(perm=perm).compute(x), s, b))


def softmax_of_turned() -> Func:
    x, y = tensor("a", 2, 21, 3, 44), tensor("b", 2, 3, 44, 21)
    both = Add().compute(Transpose(perm=(0, 2, 3, 1)).compute(x), y)
    return func((x, y), Softmax(axis=-1).compute(both))


def softmax_of_one_turned() -> Func:
    x = tensor("a", 2, 21, 3, 44)
    return func((x,), Softmax(axis=-1).compute(Transpose(perm=(0, 2, 3, 1)).compute(x)))


def sums_of_turned() -> Func:
    x = tensor("a", 2, 49, 83)
    return func((x,), Reduce(kind="mean", axes=(-1,)).compute(Transpose(perm=(0, 2, 1)).compute(x)))


def padded_mean(*shape: int | Expr) -> Func:
    """One pixel for each channel, with zeros around it."""
    x = tensor("a", *shape)
    mean = Reduce(kind="mean", axes=(2, 3), keepdims=True).compute(x)
    return func((x,), pad("p", mean, (0, 0, 1, 1), (0, 0, 1, 1)))


def padded_norm(*shape: int | Expr) -> Func:
    """As in front of a convolution."""
    x, s, b = tensor("a", *shape), tensor("b", 3), tensor("c", 3)
    norm = Relu().compute(InstanceNorm().compute(x, s, b))
    return func((x, s, b), pad("p", norm, (0, 0, 1, 2), (0, 0, 1, 0)))


def padded_blocked_norm(*shape: int | Expr) -> Func:
    x, s, b = (tensor(n, *size) for n, size in zip("abc", (shape, (2, 16), (2, 16)), strict=True))
    norm = InstanceNormBlocked().compute(x, s, b)
    return func((x, s, b), pad("p", norm, (0, 0, 1, 1, 0), (0, 0, 1, 1, 0)))


CASES: dict[str, Callable[[], Func]] = {
    "padded_mean": partial(padded_mean, 2, 3, 5, 40),
    "padded_mean_open": partial(padded_mean, N, 3, 5, M),
    "padded_norm": partial(padded_norm, 2, 3, 5, 37),
    "padded_norm_open": partial(padded_norm, N, 3, 2, M),
    "padded_blocked_norm": partial(padded_blocked_norm, 1, 2, 5, 7, 16),
    "padded_blocked_norm_open": partial(padded_blocked_norm, N, 2, 3, M, 16),
    "long_columns": long_columns,
    "panel_of_sums": partial(panel, "sum", 2, 40, 300),
    "panel_of_maxima": partial(panel, "max", 17, 37),
    "panel_open": partial(panel, "sum", N, 20, M),
    "panel_of_open_sums": partial(panel, "mean", N, M),
    "norm_of_turned": partial(norm_of_turned, 2, 37, 3, 56),
    "norm_of_turned_lines": partial(norm_of_turned, N, 45, 3 * 49),
    "norm_of_turned_few": partial(norm_of_turned, 2, 5, 7, 7),
    "norm_of_turned_prime": partial(norm_of_turned, 1, 48, 67),
    "norm_of_turned_prime_wide": partial(norm_of_turned, 1, 5, 197),
    "norm_of_turned_open": partial(norm_of_turned, 2, 21, N),
    "norm_of_turned_open_lines": partial(norm_of_turned, 2, 21, 3, M),
    "norm_of_turned_two": partial(norm_of_turned, 1, 5, 2),
    "softmax_of_turned": softmax_of_turned,
    "softmax_of_one_turned": softmax_of_one_turned,
    "sums_of_turned": sums_of_turned,
    "short_sums": partial(short_rows, "mean", 37, 12),
    "short_sums_open": partial(short_rows, "sum_square", 2, N, 5),
    "short_sums_whole": partial(short_rows, "max", 3, 32, 16),
    "short_sums_few": partial(short_rows, "sum", 9, 12),
    "short_sums_few_open": partial(short_rows, "sum", minimum(N, 5), 3),
    "short_sums_long": partial(short_rows, "sum", 37, 17),
    "short_arg_max": short_arg_max,
    "ranks": partial(top_k, 2, 37, 8),
    "ranks_of_few": partial(top_k, 2, 3, 30),
    "ranks_of_many": partial(top_k, 36, 3, 40),
    "ranks_of_columns": partial(top_k, 3, 2, 5, 19, axis=1),
    "softmax_40": partial(softmax, 40),
    "softmax_13": partial(softmax, 13),
    "softmax_symbolic": partial(softmax, M),
    "softmax_inner": softmax_inner,
    "softmax_channels": partial(log_softmax_channels, 3, 7, 37),
    "softmax_channels_open": partial(log_softmax_channels, N, 5, M),
    "softmax_open_channels": partial(log_softmax_channels, 2, M, 16),
    "arg_max_channels": partial(arg_max_channels, 2, 7, 3, 21),
    "arg_max_channels_open": partial(arg_max_channels, N, 5, M),
    "blocked_norm": partial(blocked_norm, 3, 2, 5, 7, 16),
    "blocked_norm_open": partial(blocked_norm, N, 2, 3, M, 16),
    "blocked_norm_one_pixel": partial(blocked_norm, 1, 2, 1, 1, 16),
    "layer_norm": layer_norm,
    "instance_norm": partial(instance_norm, 2, 3, 5, 37),
    "instance_norm_open": partial(instance_norm, N, 3, 2, M),
    "instance_norm_one_column": partial(instance_norm, 2, 3, 5, 1),
    "group_norm": partial(group_norm, 2, 2, 6, 5, 7),
    "group_norm_open": partial(group_norm, 3, N, 6, 4, M),
    "image_norm": partial(image_norm, 3, 4, 35),
    "image_norm_open": partial(image_norm, N, M, 3),
    "product_norm": product_norm,
    "row_mean": row_mean,
}
