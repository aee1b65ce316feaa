"""Every rule keeps the result of each nest it takes, on every target; uneven, exact data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from dlc.core.errors import ScheduleError
from dlc.core.target import Target
from dlc.core.types import INDEX, DType
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.ops.activation import HardSwish, LeakyRelu, Relu
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.binary import Add, Mul, Sub, Where
from dlc.graph.ops.channels import UnpackChannels
from dlc.graph.ops.conv import Conv
from dlc.graph.ops.conv_blocked import ConvBlocked, DepthwiseBlocked, PlanarConv
from dlc.graph.ops.conv_lanes import ConvLanes
from dlc.graph.ops.elementwise import Cast, Tanh
from dlc.graph.ops.filters import parts_of, positions
from dlc.graph.ops.layout import Interleave
from dlc.graph.ops.matmul import Einsum, MatMul, MatMulPacked
from dlc.graph.ops.norm import GroupNorm, InstanceNorm, LayerNorm
from dlc.graph.ops.norm_blocked import InstanceNormBlocked
from dlc.graph.ops.pairs import MatMulPairs
from dlc.graph.ops.phases import JoinPhases
from dlc.graph.ops.pool import AveragePool, MaxPool
from dlc.graph.ops.reduce import ArgMax, Reduce
from dlc.graph.ops.resize import Resize
from dlc.graph.ops.scatter import ScatterElements, ScatterND
from dlc.graph.ops.shape import Pad, Slice, Transpose
from dlc.graph.ops.softmax import LogSoftmax, Softmax
from dlc.graph.ops.sort import TopK
from dlc.graph.ops.winograd import ConvWinograd
from dlc.schedule.edit import loops_around, sites
from dlc.schedule.interpret import evaluate_size, run_func
from dlc.schedule.loop import (
    Alloc,
    Block,
    For,
    Func,
    If,
    LoopKind,
    Scope,
    Stmt,
    accumulation,
    allocs,
    loops,
)
from dlc.schedule.lower import lower_tensors
from dlc.schedule.nest import stages
from dlc.schedule.pipeline import optimize
from dlc.schedule.rules import (
    across,
    attend,
    columns,
    contract,
    prepare,
    ranks,
    repair,
    row,
    rule_for,
    schedule_func,
    short,
    sliding,
    transform,
    window,
)
from dlc.schedule.rules.tile import choose_tile
from dlc.schedule.text import parse_func
from dlc.schedule.trace import Trace
from dlc.schedule.work import operations, written_out
from dlc.te.affine import split_terms
from dlc.te.expr import Const, Expr, Select, Var, index, minimum
from dlc.te.tensor import Tensor, insert, pad, placeholder
from dlc.te.transform import free_vars, loads, walk
from dlc.te.types import TensorType, const_size

AVX512 = Target(features=frozenset({"avx512f", "avx2", "fma"}), thread_operations=0)
AVX2 = Target(features=frozenset({"avx2", "fma"}), thread_operations=0)
SSE = Target(thread_operations=0)
N, M = Var("n"), Var("m")


def tensor(name: str, *shape: int | Expr) -> Tensor:
    return placeholder(name, TensorType(shape))


def func(inputs: tuple[Tensor, ...], output: Tensor) -> Func:
    return lower_tensors("f", ("n", "m"), inputs, (output,))


def dense_bias_relu() -> Func:
    x, w, b = tensor("a", 5, 19), tensor("b", 3, 19, 16), tensor("c", 37)
    return func((x, w, b), Relu().compute(Add().compute(MatMulPacked(n=37).compute(x, w), b)))


def dense_gate() -> Func:
    x, w, b = tensor("a", 53, 19), tensor("b", 3, 19, 16), tensor("c", 37)
    total = Add().compute(MatMulPacked(n=37).compute(x, w), b)
    return func((x, w, b), Mul().compute(total, Relu().compute(total)))


def dense_many_rows() -> Func:
    x, w, b = tensor("a", 53, 19), tensor("b", 3, 19, 16), tensor("c", 37)
    return func((x, w, b), Relu().compute(Add().compute(MatMulPacked(n=37).compute(x, w), b)))


def dense_short_rows() -> Func:
    x, w = tensor("a", 1, 2, 2, 6), tensor("b", 3, 6, 16)
    return func((x, w), MatMulPacked(n=40).compute(x, w))


def dense_symbolic_rows() -> Func:
    x, w = tensor("a", N, 6), tensor("b", 2, 6, 16)
    return func((x, w), MatMulPacked(n=32).compute(x, w))


def one_factor() -> Func:
    x, w = tensor("a", N, 1), tensor("b", 1, 1)
    return func((x, w), MatMul().compute(x, w))


def long_sum() -> Func:
    x, w = tensor("a", 3, 608), tensor("b", 1, 608, 16)
    return func((x, w), MatMulPacked(n=16).compute(x, w))


def long_conv() -> Func:
    x, f = tensor("a", 1, 4, 3, 4, 16), tensor("b", 1, 4, 3, 3, 16, 16)
    return func((x, f), ConvBlocked().compute(x, f))


def one_row() -> Func:
    x, w = tensor("a", 1, 12), tensor("b", 9, 12, 16)
    return func((x, w), MatMulPacked(n=130).compute(x, w))


def scores() -> Func:
    q, k = tensor("a", 2, N, 5), tensor("b", 2, 5, N)
    return func((q, k), MatMul().compute(q, k))


def scores_transposed() -> Func:
    q, k = tensor("a", 2, 9, 5), tensor("b", 2, 21, 5)
    return func((q, k), MatMul().compute(q, Transpose(perm=(0, 2, 1)).compute(k)))


def scores_of_one_buffer(length: int | Expr) -> Callable[[], Func]:
    """Queries and keys are parts of one operand, as after a merged projection: [1, n, q k v, 5]."""

    def make() -> Func:
        x, mask = tensor("a", 1, length, 9, 5), tensor("b", 1, 1, length, length)

        def heads(first: int, perm: tuple[int, ...]) -> Tensor:
            starts, sizes = (0, 0, first, 0), (1, length, 3, 5)
            part = Slice(starts=as_sizes(starts), sizes=as_sizes(sizes)).compute(x)
            moved = Transpose(perm=perm).compute(replace(part, name=f"part{first}"))
            return replace(moved, name=f"heads{first}")

        q, k = heads(6, (0, 2, 1, 3)), heads(0, (0, 2, 3, 1))
        return func((x, mask), Add().compute(MatMul().compute(q, k), mask))

    return make


def scores_of_one_query() -> Func:
    q, k = tensor("a", 2, 1, 40), tensor("b", 2, 21, 40)
    return func((q, k), MatMul().compute(q, Transpose(perm=(0, 2, 1)).compute(k)))


def widened_columns(rows: int | Expr, *, turned: bool) -> Callable[[], Func]:
    """Queries of float32 meet keys, or values, that lie in memory as 16-bit floats."""

    def make() -> Func:
        shape = (2, 21, 40) if turned else (2, 40, 21)
        q, k = tensor("a", 2, rows, 40), placeholder("b", TensorType(shape, DType.F16))
        moved = Transpose(perm=(0, 2, 1)).compute(k) if turned else k
        wide = replace(Cast(to=DType.F32).compute(moved), name="wide")
        return func((q, k), MatMul().compute(q, wide))

    return make


def attention(
    heads: int,
    rows: int | Expr,
    keys: int | Expr,
    size: int,
    *,
    masked: bool = True,
    batch: int | Expr = 1,
) -> Callable[[], Func]:
    """Queries [batch, rows, heads, size], keys and values of their own length, perhaps a mask."""

    def make() -> Func:
        shapes = (batch, rows, heads, size), (batch, keys, heads, size), (batch, keys, heads, size)
        q, k, v = (tensor(name, *shape) for name, shape in zip("abc", shapes, strict=True))
        mask = tensor("d", 1, 1, rows, keys)

        def moved(x: Tensor, perm: tuple[int, ...]) -> Tensor:
            return replace(Transpose(perm=perm).compute(x), name=f"{x.name}_moved")

        scores = MatMul().compute(moved(q, (0, 2, 1, 3)), moved(k, (0, 2, 3, 1)))
        scores = replace(scores, name="scores")
        if masked:
            scores = replace(Add().compute(scores, mask), name="masked")
        weights = replace(Softmax(axis=-1).compute(scores), name="weights")
        mixed = replace(MatMul().compute(weights, moved(v, (0, 2, 1, 3))), name="mixed")
        operands = (q, k, v, mask) if masked else (q, k, v)
        return func(operands, moved(mixed, (0, 2, 1, 3)))

    return make


def blocked_conv(high: int, wide: int, stride: int, halo: bool) -> Callable[[], Func]:
    def make() -> Func:
        h, w = (high - 1) * stride + 3, (wide - 1) * stride + 3
        x, f = tensor("a", 1, 2, h, w, 16), tensor("b", 3, 2, 3, 3, 16, 16)
        y = Relu().compute(ConvBlocked(stride=(stride, stride)).compute(x, f))
        edge = (0, 0, 1, 1, 0)
        return func((x, f), pad("p", y, edge, edge) if halo else y)

    return make


def sparse_conv(high: int | Expr, groups: int) -> Callable[[], Func]:
    """Sums that are computed once more where they are not finite."""

    def make() -> Func:
        x, f = tensor("a", 1, 2, high, 6, 16), tensor("b", 2, 2 // groups, 2, 2, 16, 16)
        conv = ConvBlocked(groups=groups, sparse=True).compute(x, f)
        return func((x, f), pad("p", Relu().compute(conv), (0, 0, 1, 0, 0), (0, 0, 0, 1, 0)))

    return make


def conv_onto_enlarged(scale: int = 2) -> Func:
    """A convolution whose result is added to a smaller image, each pixel repeated."""
    x, f = tensor("a", 1, 2, 8, 16, 16), tensor("b", 3, 2, 3, 3, 16, 16)
    coarse = tensor("c", 1, 3, 6 // scale, 14 // scale, 16)
    large = Resize(sizes=(1, 3, 6, 14, 16)).compute(coarse)
    return func((x, f, coarse), Add().compute(ConvBlocked().compute(x, f), large))


def winograd(
    high: int | Expr, wide: int | Expr, out: tuple[int, int] = (2, 2), halo: bool = False
) -> Callable[[], Func]:
    """As scheduled on a strip: even and odd sizes, where the last tiles stick out."""

    def make() -> Func:
        x = tensor("a", 1, 1, high + 2, wide + 2, 3)
        u, w = tensor("b", out[0] + 2, out[1] + 2, 2, 1, 3, 16), tensor("c", 2, 1, 3, 3, 3, 16)
        y = Relu().compute(ConvWinograd(out=out).compute(x, u, w))
        edge = (0, 0, 1, 1, 0)
        return func((x, u, w), pad("p", y, edge, edge) if halo else y)

    return make


def winograd_of(
    sizes: tuple[int | Expr, ...],
    kernel: tuple[int, ...],
    out: tuple[int, ...] = (2, 2),
    stride: tuple[int, ...] = (),
) -> Callable[[], Func]:
    """Of pixels of some sizes: each result adds up images, or lines, and parts of a kernel."""

    def make() -> Func:
        outer, parts = kernel[: -len(out)], parts_of(kernel[-len(out) :], out)
        x = tensor("a", 1, 1, *sizes, 3)
        u = tensor("b", *positions(out), 2, 1, *outer, *parts, 3, 16)
        w = tensor("c", 2, 1, *kernel, 3, 16)
        conv = ConvWinograd(out=out, stride=stride, dilation=(1,) * len(stride))
        return func((x, u, w), Relu().compute(conv.compute(x, u, w)))

    return make


def first_conv() -> Func:
    x, f = tensor("a", 1, 3, 11, 13), tensor("b", 2, 3, 3, 3, 16)
    return func((x, f), PlanarConv(stride=(2, 2)).compute(x, f))


def padded_and_turned() -> Func:
    x, f = tensor("a", 1, 1, 5, 5), tensor("b", 4, 1, 3, 3)
    return func((x, f), Transpose(perm=(3, 2, 1, 0)).compute(Conv(pads=(1, 1, 1, 1)).compute(x, f)))


def planar_conv() -> Func:
    x, f = tensor("a", 2, 3, 7, 9), tensor("b", 5, 3, 3, 3)
    return func((x, f), Conv(pads=(1, 1, 1, 1)).compute(x, f))


def depthwise(wide: int | Expr, stride: int) -> Callable[[], Func]:
    def make() -> Func:
        w = (wide - 1) * stride + 3
        x, f = tensor("a", 1, 2, 6, w, 16), tensor("b", 2, 3, 3, 16)
        return func((x, f), DepthwiseBlocked(stride=(stride, stride)).compute(x, f))

    return make


def in_lanes(wide: int | Expr, group: int, kernel: tuple[int, ...] = (3, 3)) -> Callable[[], Func]:
    """Groups of channels within blocks of 16."""

    def make() -> Func:
        *above, width = kernel
        sizes = (*(k + 3 for k in above), wide + width - 1)
        x, f = tensor("a", 1, 2, *sizes, 16), tensor("b", 2, group, *kernel, 16)
        ones = (1,) * len(kernel)
        return func((x, f), ConvLanes(stride=ones, dilation=ones).compute(x, f))

    return make


def pool(kind: type) -> Callable[[], Func]:
    def make() -> Func:
        x = tensor("a", 1, 2, 7, 9, 16)
        return func((x,), kind(kernel=(3, 3), stride=(2, 2), pads=(1, 1, 1, 1)).compute(x))

    return make


def reflected(*shape: int | Expr, mode: str = "reflect") -> Callable[[], Func]:
    """An image with three more elements around it, which are its own."""

    def make() -> Func:
        x, pads = tensor("a", *shape), tuple(map(index, (*(0,) * (len(shape) - 2), 3, 3)))
        return func((x,), Pad(before=pads, after=pads, mode=mode).compute(x))

    return make


def global_mean() -> Func:
    x = tensor("a", 1, 3, 5, 7, 16)
    return func((x,), Reduce(kind="mean", axes=(2, 3), keepdims=True).compute(x))


def open_mean() -> Func:
    x = tensor("a", 2, 3, N, M, 16)
    return func((x,), Reduce(kind="mean", axes=(2, 3), keepdims=True).compute(x))


def transposed_conv(height: int | Expr) -> Callable[[], Func]:
    """Two phases in each dimension, computed by one convolution and written between each other."""

    def make() -> Func:
        x, f, b = tensor("a", 1, 2, height, 9, 16), tensor("b", 8, 2, 1, 1, 16, 16), tensor("c", 16)
        phases = Interleave(stride=(2, 2)).compute(ConvBlocked().compute(x, f))
        return func((x, f, b), Relu().compute(Add().compute(phases, b)))

    return make


def many_phases() -> Func:
    """Four phases of a stride of two, each of three blocks."""
    x, f = tensor("a", 1, 1, 4, 4, 16), tensor("b", 12, 1, 2, 2, 16, 16)
    return func((x, f), Interleave(stride=(2, 2)).compute(ConvBlocked().compute(x, f)))


def phases_of_a_line() -> Func:
    """As a vocoder has them: a line of pixels, four phases of four blocks."""
    x, f = tensor("a", 1, 1, 9, 16), tensor("b", 16, 1, 2, 16, 16)
    conv = ConvBlocked(stride=(1,), dilation=(1,)).compute(x, f)
    return func((x, f), Interleave(stride=(4,)).compute(conv))


def unpacked(width: int | Expr) -> Callable[[], Func]:
    def make() -> Func:
        x = tensor("a", 1, 2, 3, width, 16)
        return func((x,), UnpackChannels(channels=index(21)).compute(x))

    return make


def turned_columns() -> Func:
    x = tensor("a", 37, 48)
    return func((x,), Transpose(perm=(1, 0)).compute(x))


def turned_and_as_it_is() -> Func:
    x = tensor("a", 48, 48)
    return func((x,), Add().compute(x, Transpose(perm=(1, 0)).compute(x)))


def turned_with_rows() -> Func:
    x, y, z = tensor("a", 45, 3, 37), tensor("b", 3, 37, 45), tensor("c", 45)
    return func((x, y, z), Add().compute(Mul().compute(turned(x), y), z))


def turned_far() -> Func:
    x, y = tensor("a", 45, 3, 37), tensor("b", 45, 3, 37)
    return func(
        (x, y), HardSwish().compute(Mul().compute(turned(x), HardSwish().compute(turned(y))))
    )


def turned(x: Tensor) -> Tensor:
    return Transpose(perm=(1, 2, 0)).compute(x)


def norm_of_turned(*shape: int | Expr) -> Callable[[], Func]:
    """A norm over the channels of an image [n, c, ...], stored with the channels last."""

    def make() -> Func:
        x, s, b = tensor("a", *shape), tensor("b", shape[1]), tensor("c", shape[1])
        perm = (0, *range(2, len(shape)), 1)
        return func((x, s, b), LayerNorm(axis=-1).compute(Transpose(perm=perm).compute(x), s, b))

    return make


def among_zeros(*sizes: int | Expr, dilation: tuple[int, ...]) -> Callable[[], Func]:
    """Dilated convolutions whose taps often lie in the zeros around an image."""

    def make() -> Func:
        rank = len(dilation)
        padded = (size + 2 * d for size, d in zip(sizes, dilation, strict=True))
        x, f = tensor("a", 1, 1, *padded, 16), tensor("b", 2, 1, *(3,) * rank, 16, 16)
        conv = ConvBlocked(stride=(1,) * rank, dilation=dilation, zeros=dilation * 2)
        return func((x, f), Relu().compute(conv.compute(x, f)))

    return make


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


def short_rows(kind: str, *shape: int | Expr) -> Callable[[], Func]:
    x = tensor("a", *shape)
    return lambda: func((x,), Reduce(kind=kind, axes=(-1,), keepdims=False).compute(x))


def short_arg_max() -> Func:
    x = tensor("a", N, 7, M, 3)
    return func((x,), ArgMax(axis=-1).compute(x))


def top_k(k: int, *shape: int, axis: int = -1) -> Callable[[], Func]:
    def make() -> Func:
        x = tensor("a", *shape)
        return lower_tensors("f", (), (x,), TopK(k=index(k), axis=axis).compute(x))

    return make


def long_columns() -> Func:
    x = tensor("a", 5, 45, 19)
    return func((x,), Reduce(kind="sum", axes=(1,)).compute(x))


def planar_pool(
    op: type[AveragePool | MaxPool], kernel: int, pads: int, *shape: int | Expr, stride: int = 2
) -> Callable[[], Func]:
    """Windows that are some pixels apart, of images, or lines, that lie as they are."""

    def make() -> Func:
        x, rank = tensor("a", *shape), len(shape) - 2
        dims = {"kernel": (kernel,) * rank, "stride": (stride,) * rank, "dilation": (1,) * rank}
        return func((x,), op(**dims, pads=(pads,) * (2 * rank)).compute(x))

    return make


def sliding_pool(
    op: type[AveragePool | MaxPool], kernel: tuple[int, ...], *shape: int | Expr, apart: int = 1
) -> Callable[[], Func]:
    """Windows of each pixel, which overlap with their neighbours in all dimensions."""

    def make() -> Func:
        x, ones = tensor("a", *shape), (1,) * len(kernel)
        pads = tuple(k // 2 * apart for k in kernel) * 2
        made = op(kernel=kernel, stride=ones, pads=pads, dilation=(apart,) * len(kernel))
        return func((x,), made.compute(x))

    return make


def panel(kind: str, *shape: int | Expr) -> Callable[[], Func]:
    """A reduction over the rows of [rows, columns], or of several of these."""

    def make() -> Func:
        x = tensor("a", *shape)
        return func((x,), Reduce(kind=kind, axes=(len(shape) - 2,), keepdims=False).compute(x))

    return make


def single_scores() -> Func:
    q, k = tensor("a", 1, 4, 1, 8), tensor("b", 1, 4, 8, 1)
    s, b = tensor("c"), tensor("d", 4, 1, 1)
    return func((q, k, s, b), Add().compute(Mul().compute(MatMul().compute(q, k), s), b))


def softmax(width: int | Expr) -> Callable[[], Func]:
    def make() -> Func:
        x = tensor("a", 3, width)
        return func((x,), Softmax(axis=-1).compute(x))

    return make


def softmax_inner() -> Func:
    x = tensor("a", 3, 5, 4)
    return func((x,), Softmax(axis=1).compute(x))


def arg_max_channels(*shape: int | Expr) -> Callable[[], Func]:
    def make() -> Func:
        x = tensor("a", *shape)
        return func((x,), ArgMax(axis=1, keepdims=False).compute(x))

    return make


def one_column(rows: int | Expr, summands: int | Expr) -> Callable[[], Func]:
    def make() -> Func:
        x, w = tensor("a", rows, summands), tensor("b", summands, 1)
        return func((x, w), MatMul().compute(x, w))

    return make


def log_softmax_channels(*shape: int | Expr) -> Callable[[], Func]:
    def make() -> Func:
        x, y = tensor("a", *shape), tensor("b", 1, shape[-1])
        return func((x, y), LogSoftmax(axis=1).compute(Add().compute(x, y)))

    return make


def blocked_norm(*shape: int | Expr) -> Callable[[], Func]:
    def make() -> Func:
        x, s, b = (
            tensor(n, *size) for n, size in zip("abc", (shape, (2, 16), (2, 16)), strict=True)
        )
        return func((x, s, b), Relu().compute(InstanceNormBlocked().compute(x, s, b)))

    return make


def layer_norm() -> Func:
    x, s, b = tensor("a", 2, 3, 21), tensor("b", 21), tensor("c", 21)
    return func((x, s, b), LayerNorm(axis=-1).compute(x, s, b))


def instance_norm(*shape: int | Expr) -> Callable[[], Func]:
    def make() -> Func:
        x, s, b = tensor("a", *shape), tensor("b", 3), tensor("c", 3)
        return func((x, s, b), Relu().compute(InstanceNorm().compute(x, s, b)))

    return make


def group_norm(groups: int, *shape: int | Expr) -> Callable[[], Func]:
    def make() -> Func:
        x, s, b = tensor("a", *shape), tensor("b", shape[1]), tensor("c", shape[1])
        return func((x, s, b), GroupNorm(groups=groups).compute(x, s, b))

    return make


def image_norm(*shape: int | Expr) -> Callable[[], Func]:
    def make() -> Func:
        x, s = tensor("a", *shape), tensor("b", *shape[1:])
        return func((x, s), LayerNorm(axis=1).compute(Relu().compute(x), s))

    return make


def product_norm() -> Func:
    x, w = tensor("a", 5, 9), tensor("b", 9, 21)
    return func((x, w), LayerNorm().compute(MatMul().compute(x, w)))


def row_mean() -> Func:
    x = tensor("a", 3, 50)
    return func((x,), Reduce(kind="mean", axes=(1,), keepdims=False).compute(x))


def placed() -> Func:
    x, base = tensor("a", 1, 2, 3, 5, 16), tensor("b", 1, 5, 3, 5, 16)
    return func((x, base), insert("i", base, Relu().compute(x), (0, 2, 0, 0, 0)))


def placed_with_halo() -> Func:
    x, base = tensor("a", 1, 2, N, 5, 16), tensor("b", 1, 5, N + 2, 8, 16)
    framed = pad("p", Relu().compute(x), (0, 0, 1, 1, 0), (0, 0, 1, 2, 0))
    return func((x, base), insert("i", base, framed, (0, 2, 0, 0, 0)))


def joined_and_read_often() -> Func:
    """What is no move and read more than once is made between loops that moves have split."""
    x = tensor("a", 1, 2, 6, 3, 3, 16)
    made = JoinPhases(steps=(2, 3), sizes=(5, 8)).compute(x)
    for _ in range(3):
        made = LeakyRelu(alpha=0.5).compute(made)
    return func((x,), made)


CASES: dict[str, Callable[[], Func]] = {
    "unpacked": unpacked(37),
    "unpacked_open": unpacked(N),
    "turned_columns": turned_columns,
    "turned_and_as_it_is": turned_and_as_it_is,
    "turned_with_rows": turned_with_rows,
    "turned_far": turned_far,
    "dense_bias_relu": dense_bias_relu,
    "dense_many_rows": dense_many_rows,
    "dense_short_rows": dense_short_rows,
    "dense_symbolic_rows": dense_symbolic_rows,
    "long_sum": long_sum,
    "long_conv": long_conv,
    "one_row": one_row,
    "scores": scores,
    "scores_transposed": scores_transposed,
    "scores_of_one_buffer": scores_of_one_buffer(37),
    "scores_of_one_symbolic_buffer": scores_of_one_buffer(N),
    "scores_of_one_query": scores_of_one_query,
    "widened_for_one_query": widened_columns(1, turned=False),
    "widened_and_turned_for_one_query": widened_columns(1, turned=True),
    "widened_for_many": widened_columns(9, turned=False),
    "widened_and_turned_for_an_open_number": widened_columns(N, turned=True),
    "attention": attention(2, 7, 21, 5),
    "attention_unmasked": attention(3, 13, 37, 18, masked=False),
    "attention_of_wide_heads": attention(1, 5, 3, 35),
    "attention_to_one_key": attention(2, 5, 1, 3, masked=False),
    "attention_of_batches": attention(2, 6, 19, 4, batch=N),
    "attention_symbolic": attention(2, N, M, 5),
    "attention_symbolic_narrow": attention(2, N, N, 16),
    "attention_symbolic_unmasked": attention(1, N, N, 17, masked=False),
    "conv_7x7": blocked_conv(7, 7, 1, halo=True),
    "dense_gate": dense_gate,
    "one_factor": one_factor,
    "conv_5x15": blocked_conv(5, 15, 1, halo=False),
    "conv_strided": blocked_conv(4, 6, 2, halo=True),
    "first_conv": first_conv,
    "conv_sparse": sparse_conv(3, 1),
    "conv_sparse_groups": sparse_conv(4, 2),
    "conv_sparse_open": sparse_conv(N + 1, 2),
    "winograd": winograd(2, 4, halo=True),
    "winograd_odd": winograd(3, 5),
    "winograd_symbolic": winograd(N, 3),
    "winograd_large": winograd(8, 5, (4, 4), halo=True),
    "winograd_large_symbolic": winograd(N, 5, (2, 4)),
    "winograd_volume": winograd_of((6, 6, 7), (3, 3, 3), stride=(1,)),
    "winograd_volume_strided": winograd_of((5, 6, 7), (3, 3, 3), stride=(2,)),
    "winograd_volume_symbolic": winograd_of((N + 1, 6, 7), (2, 3, 3), stride=(1,)),
    "winograd_line": winograd_of((21,), (3,), (2,)),
    "winograd_line_long": winograd_of((267,), (3,), (4,)),
    "winograd_line_symbolic": winograd_of((N + 2,), (3,), (4,)),
    "winograd_line_of_parts": winograd_of((26,), (7,), (3,)),
    "winograd_line_of_parts_symbolic": winograd_of((N + 4,), (5,), (4,)),
    "winograd_parts": winograd_of((9, 11), (5, 5), (2, 4)),
    "winograd_parts_symbolic": winograd_of((11, N + 6), (7, 7), (3, 3)),
    "winograd_lines": winograd_of((6, 11), (2, 3), (4,), (1,)),
    "winograd_lines_symbolic": winograd_of((N + 2, M + 2), (3, 3), (2,), (1,)),
    "padded_and_turned": padded_and_turned,
    "planar_conv": planar_conv,
    "depthwise_7": depthwise(7, 1),
    "depthwise_19": depthwise(19, 1),
    "depthwise_strided": depthwise(5, 2),
    "groups_of_two": in_lanes(11, 2),
    "groups_of_eight": in_lanes(19, 8),
    "groups_open": in_lanes(N, 4),
    "groups_in_large_windows": in_lanes(9, 8, (11, 11)),
    "groups_in_long_lines": in_lanes(11, 8, (67,)),
    "groups_in_volumes": in_lanes(5, 4, (5, 5, 5)),
    "among_zeros": among_zeros(9, 13, dilation=(7, 5)),
    "line_among_zeros": among_zeros(11, dilation=(6,)),
    "open_among_zeros": among_zeros(7, N, dilation=(5, 4)),
    "depthwise_open": depthwise(N, 1),
    "depthwise_open_strided": depthwise(N, 2),
    "max_pool": pool(MaxPool),
    "planar_pool": planar_pool(MaxPool, 3, 1, 1, 2, 20, 75),
    "planar_pool_narrow": planar_pool(MaxPool, 3, 1, 2, 3, 7, 7),
    "planar_pool_of_one_line": planar_pool(MaxPool, 3, 1, 1, 2, 1, 37),
    "planar_pool_open": planar_pool(MaxPool, 3, 1, 1, 2, N, M),
    "planar_pool_without_pads": planar_pool(MaxPool, 3, 0, N, 1, 9, M + 2),
    "planar_pool_by_three": planar_pool(MaxPool, 5, 2, 1, 2, 31, 70, stride=3),
    "planar_pool_volume": planar_pool(MaxPool, 3, 1, 1, 2, 5, 6, 37),
    "planar_average_open": planar_pool(AveragePool, 3, 1, 1, N, 9, M),
    "line_pool": planar_pool(MaxPool, 3, 1, 1, 3, 75),
    "line_pool_by_three": planar_pool(MaxPool, 3, 0, 1, 3, 125, stride=3),
    "line_pool_by_four": planar_pool(MaxPool, 4, 0, 1, 3, 132, stride=4),
    "line_pool_open": planar_pool(MaxPool, 3, 1, 1, N, M),
    "line_average_open": planar_pool(AveragePool, 4, 0, 1, N, M, stride=4),
    "planar_average_pool": planar_pool(AveragePool, 2, 0, 2, 3, 9, 45),
    "average_pool": pool(AveragePool),
    "sliding_pool": sliding_pool(MaxPool, (5, 3), 1, 3, 61, 37),
    "sliding_pool_narrow": sliding_pool(MaxPool, (5, 5), 2, 1, 7, 3),
    "sliding_pool_blocked": sliding_pool(MaxPool, (5, 5), 1, 2, 5, 6, 16),
    "sliding_pool_apart": sliding_pool(MaxPool, (3, 3), 1, 2, 11, 19, apart=2),
    "sliding_pool_open": sliding_pool(MaxPool, (5, 5), 1, 2, N, M),
    "sliding_pool_volume": sliding_pool(MaxPool, (3, 3, 3), 1, 2, 4, 5, 18),
    "sliding_average": sliding_pool(AveragePool, (3, 3), 1, 2, 13, 33),
    "sliding_average_open": sliding_pool(AveragePool, (3, 3), N, 1, 9, M),
    "reflected": reflected(2, 9, 75),
    "reflected_open": reflected(2, N + 4, M + 4),
    "edge_open": reflected(2, 5, M + 1, mode="edge"),
    "wrapped": reflected(2, 5, 70, mode="wrap"),
    "global_mean": global_mean,
    "transposed_conv": transposed_conv(5),
    "transposed_conv_open": transposed_conv(N),
    "many_phases": many_phases,
    "phases_of_a_line": phases_of_a_line,
    "open_mean": open_mean,
    "long_columns": long_columns,
    "panel_of_sums": panel("sum", 2, 40, 300),
    "panel_of_maxima": panel("max", 17, 37),
    "panel_open": panel("sum", N, 20, M),
    "panel_of_open_sums": panel("mean", N, M),
    "norm_of_turned": norm_of_turned(2, 37, 3, 56),
    "norm_of_turned_lines": norm_of_turned(N, 45, 3 * 49),
    "norm_of_turned_few": norm_of_turned(2, 5, 7, 7),
    "norm_of_turned_prime": norm_of_turned(1, 48, 67),
    "norm_of_turned_prime_wide": norm_of_turned(1, 5, 197),
    "norm_of_turned_open": norm_of_turned(2, 21, N),
    "softmax_of_turned": softmax_of_turned,
    "softmax_of_one_turned": softmax_of_one_turned,
    "sums_of_turned": sums_of_turned,
    "short_sums": short_rows("mean", 37, 12),
    "short_sums_open": short_rows("sum_square", 2, N, 5),
    "short_sums_whole": short_rows("max", 3, 32, 16),
    "short_sums_few": short_rows("sum", 9, 12),
    "short_sums_long": short_rows("sum", 37, 17),
    "short_arg_max": short_arg_max,
    "ranks": top_k(2, 37, 8),
    "ranks_of_few": top_k(2, 3, 30),
    "ranks_of_many": top_k(36, 3, 40),
    "ranks_of_columns": top_k(3, 2, 5, 19, axis=1),
    "single_scores": single_scores,
    "softmax_40": softmax(40),
    "softmax_13": softmax(13),
    "softmax_symbolic": softmax(M),
    "softmax_inner": softmax_inner,
    "softmax_channels": log_softmax_channels(3, 7, 37),
    "softmax_channels_open": log_softmax_channels(N, 5, M),
    "softmax_open_channels": log_softmax_channels(2, M, 16),
    "arg_max_channels": arg_max_channels(2, 7, 3, 21),
    "arg_max_channels_open": arg_max_channels(N, 5, M),
    "one_column": one_column(13, 70),
    "one_column_short": one_column(37, 13),
    "one_column_open": one_column(N, M),
    "blocked_norm": blocked_norm(3, 2, 5, 7, 16),
    "blocked_norm_open": blocked_norm(N, 2, 3, M, 16),
    "blocked_norm_one_pixel": blocked_norm(1, 2, 1, 1, 16),
    "layer_norm": layer_norm,
    "instance_norm": instance_norm(2, 3, 5, 37),
    "instance_norm_open": instance_norm(N, 3, 2, M),
    "instance_norm_one_column": instance_norm(2, 3, 5, 1),
    "group_norm": group_norm(2, 2, 6, 5, 7),
    "group_norm_open": group_norm(3, N, 6, 4, M),
    "image_norm": image_norm(3, 4, 35),
    "image_norm_open": image_norm(N, M, 3),
    "product_norm": product_norm,
    "row_mean": row_mean,
    "placed": placed,
    "placed_with_halo": placed_with_halo,
    "conv_onto_enlarged": conv_onto_enlarged,
    "joined_and_read_often": joined_and_read_often,
}


def run(target_func: Func, arrays: dict[str, np.ndarray], sizes: dict[str, int]) -> np.ndarray:
    needed = {s: sizes[s] for s in target_func.sizes}
    return run_func(target_func, needed, arrays)["out"]


def data(plain: Func, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def extent(size: Expr) -> int:
        return int(size.value) if isinstance(size, Const) else eval(str(size), {}, dict(sizes))

    shapes = {b.name: tuple(extent(s) for s in b.type.shape) for b in plain.inputs}
    types = {b.name: NUMPY_DTYPES[b.type.dtype] for b in plain.inputs}
    return {n: rng.integers(-3, 4, s).astype(types[n]) for n, s in shapes.items()}


@pytest.fixture(autouse=True)
def no_rule_gives_up(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A refused step costs speed, not the kernel; here it is a mistake in a rule."""
    caplog.set_level(logging.INFO, logger="dlc.schedule")
    yield
    assert not [r for r in caplog.get_records("call") if r.name == "dlc.schedule"]


SLOW = pytest.mark.slow
TARGETS = [
    pytest.param(AVX512, id="avx512"),
    pytest.param(AVX2, id="avx2", marks=SLOW),
    pytest.param(SSE, id="sse", marks=SLOW),
]


@pytest.mark.thorough
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_a_rule_keeps_the_result(name: str, target: Target) -> None:
    plain = CASES[name]()
    fast = optimize(plain, target)
    symbolic = bool(plain.sizes)
    for n in (0, 1, 17, 33) if symbolic else (1,):
        sizes = {"n": n, "m": n}
        arrays = data(plain, sizes)
        want, got = run(plain, arrays, sizes), run(fast, arrays, sizes)
        rounded = ("softmax", "norm", "attention", "mean", "average")  # by order of summation
        if any(word in name for word in rounded):
            np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)
        else:
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["conv_sparse", "conv_sparse_groups"])
def test_what_is_not_finite_is_computed_once_more_without_absent_weights(name: str) -> None:
    plain = CASES[name]()
    fast = optimize(plain, AVX512)
    assert any(s.buffer == "exact" for s in stages(fast)), "there is nothing to test"
    arrays = data(plain, {})
    arrays["b"][np.random.default_rng(1).random(arrays["b"].shape) < 0.5] = -0.0
    arrays["a"][0, 0, 1, 2, 3], arrays["a"][0, 1, 0, 4, 9] = np.inf, np.nan
    want, got = run(plain, arrays, {}), run(fast, arrays, {})
    np.testing.assert_array_equal(got, want)
    kinds = np.isinf(want).sum(), np.isnan(want).sum()
    assert all(0 < kind < want.size / 2 for kind in kinds)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("conv_sparse_groups", {"lines": 1}),
        ("conv_sparse_groups", {"lines": 2, "rows": 3, "columns": 2, "steps": 1}),
        ("depthwise_19", {"rows": 3, "vectors": 2, "written_out": 0}),
        ("max_pool", {"rows": 1, "vectors": 4, "written_out": 1}),
        ("row_mean", {"vectors": 1}),
        ("sliding_pool", {"lines": 4}),
        ("sliding_pool_volume", {"lines": 2}),
        ("conv_7x7", {"first_summand": 1, "columns": 2, "rows": 3}),
        ("conv_7x7", {"first_summand": 9, "high": 2, "rows": 7}),
        ("conv_strided", {"high": 3, "columns_outer": 1}),
        ("among_zeros", {"high": 2, "rows": 2, "columns": 1}),
        ("planar_conv", {"first_summand": 2, "high": 4, "steps": 4}),
        ("dense_bias_relu", {"first_summand": 1, "high": 2}),
    ],
)
def test_a_choice_of_knobs_keeps_the_result(name: str, knobs: dict[str, int]) -> None:
    plain = CASES[name]()
    trace = schedule_func(plain, AVX512, knobs)
    assert trace.steps != schedule_func(plain, AVX512, {}).steps or name == "dense_bias_relu"
    arrays = data(plain, {})
    np.testing.assert_array_equal(run(trace.func, arrays, {}), run(plain, arrays, {}))


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("dense_bias_relu", contract),
        ("one_row", contract),
        ("scores", contract),
        ("scores_transposed", contract),
        ("scores_of_one_buffer", contract),
        ("scores_of_one_query", row),
        ("attention", attend),
        ("attention_unmasked", attend),
        ("attention_symbolic", attend),
        ("conv_7x7", contract),
        ("first_conv", contract),
        ("transposed_conv_open", contract),
        ("winograd_odd", transform),
        ("winograd_large", transform),
        ("winograd_large_symbolic", transform),
        ("winograd_volume", transform),
        ("winograd_volume_symbolic", transform),
        ("winograd_line", transform),
        ("winograd_line_long", transform),
        ("winograd_line_symbolic", transform),
        ("winograd_line_of_parts", transform),
        ("winograd_parts", transform),
        ("winograd_parts_symbolic", transform),
        ("winograd_lines", transform),
        ("winograd_lines_symbolic", transform),
        ("depthwise_7", window),
        ("depthwise_open", window),
        ("groups_of_eight", window),
        ("groups_open", window),
        ("max_pool", window),
        ("sliding_pool", sliding),
        ("sliding_pool_narrow", sliding),
        ("sliding_pool_blocked", sliding),
        ("sliding_pool_apart", sliding),
        ("sliding_pool_open", sliding),
        ("sliding_pool_volume", sliding),
        ("sliding_average", sliding),
        ("planar_pool", sliding),
        ("planar_pool_narrow", sliding),
        ("planar_pool_open", sliding),
        ("planar_pool_without_pads", sliding),
        ("planar_pool_by_three", sliding),
        ("planar_pool_volume", sliding),
        ("line_pool", window),
        ("line_pool_by_three", sliding),
        ("line_pool_by_four", row),
        ("line_pool_open", sliding),
        ("line_average_open", sliding),
        ("global_mean", window),
        ("open_mean", window),
        ("softmax_40", row),
        ("layer_norm", row),
        ("image_norm_open", row),
        ("one_column", row),
        ("one_column_open", row),
        ("one_column_short", contract),
        ("panel_of_sums", columns),
        ("panel_open", columns),
        ("softmax_inner", columns),
        ("arg_max_channels", columns),
        ("softmax_channels_open", columns),
        ("blocked_norm", columns),
        ("norm_of_turned", across),
        ("norm_of_turned_lines", across),
        ("norm_of_turned_few", across),
        ("norm_of_turned_prime", across),
        ("norm_of_turned_prime_wide", None),
        ("norm_of_turned_open", None),
        ("sums_of_turned", across),
        ("short_sums", short),
        ("short_sums_open", short),
        ("short_sums_whole", short),
        ("short_sums_few", row),
        ("short_sums_long", row),
        ("short_arg_max", short),
        ("ranks", ranks),
        ("ranks_of_few", ranks),
        ("ranks_of_many", ranks),
        ("ranks_of_columns", ranks),
        ("softmax_13", row),
    ],
)
def test_each_nest_gets_its_rule(name: str, rule: object) -> None:
    assert rule_for(optimize_prepared(CASES[name]()), AVX512) is rule


@pytest.mark.parametrize(
    ("make", "sums"),
    [
        (softmax(13), "3"),
        (layer_norm, "2 3"),
        (product_norm, "5"),
        (instance_norm(2, 3, 5, 37), "2 3"),
        (instance_norm(N, 3, M, M), "n 3"),
        (instance_norm(2, 3, 1, 37), "2 3 1"),
        (group_norm(2, 2, 6, 5, 7), "2 2"),
        (group_norm(3, N, 6, M), "n 3"),
        (image_norm(3, 4, 35), "3"),
        (image_norm(1, 4, 35), "1"),
    ],
)
def test_each_sum_of_a_row_is_computed_once(make: Callable[[], Func], sums: str) -> None:
    plain = optimize_prepared(make())
    found = row.match(plain, AVX512)
    assert found is not None
    assert found.anchor is not None
    around = loops_around(plain, found.anchor)
    assert " ".join(str(f.extent) for f in around) == sums


@pytest.mark.parametrize(
    "name", ["softmax_channels", "softmax_channels_open", "arg_max_channels", "blocked_norm_open"]
)
def test_columns_are_summed_in_registers(name: str) -> None:
    fast = optimize(CASES[name](), AVX512)
    sums = [s for s in stages(fast) if s.is_reduction]
    known = allocs(fast.body)
    assert sums
    assert all(s.loops[-1].kind is LoopKind.VECTOR for s in sums)
    assert {known[s.buffer].scope for s in sums} == {Scope.REGISTER}


@pytest.mark.parametrize(
    ("shape", "target", "panels"),
    [
        ((40, 300), AVX512, "112 76"),
        ((40, 256), AVX512, "128"),
        ((40, 256), replace(AVX512, cores=8), "32"),
        ((40, 256), AVX2, "64"),
        ((40, 19), AVX512, "19"),
        ((40, M), AVX512, "128 128"),
        ((15, 256), AVX512, ""),
        ((40, 16), AVX512, ""),
    ],
)
def test_vectors_of_columns_go_together(
    shape: tuple[int | Expr, ...], target: Target, panels: str
) -> None:
    """Each core has a panel; few rows, and a single vector, need none."""
    fast = optimize(panel("max", *shape)(), target)
    found = [a.buffer.type.shape[-1] for n, a in allocs(fast.body).items() if n.endswith("_panel")]
    assert " ".join(map(str, found)) == panels
    sums = [s for s in stages(fast) if s.is_reduction]
    assert all(s.loops[-1].kind is LoopKind.VECTOR for s in sums)
    results = [s for s in stages(fast) if s.buffer == "out"]
    assert all(s.loops[-1].kind is LoopKind.VECTOR for s in results)


def test_a_panel_of_many_rows_stays_in_the_second_cache() -> None:
    x = tensor("a", 3, 1024, 512)
    fast = optimize(func((x,), Softmax(axis=1).compute(x)), AVX512)
    found = [a.buffer for n, a in allocs(fast.body).items() if n.endswith("_panel")]
    assert len(found) == 2
    rows = 1024 * const_size(found[0].type.shape[-1]) * 4  # of the image, and of what is made of it
    assert 2 * rows == AVX512.l2_bytes // 2


@pytest.mark.parametrize("n", [0, 1, 33])
@pytest.mark.parametrize("m", [127, 128, 300])
def test_panels_of_open_columns_and_what_they_leave(n: int, m: int) -> None:
    plain = panel("sum", N, M)()
    fast, sizes = optimize(plain, AVX512), {"n": n, "m": m}
    arrays = data(plain, sizes)
    np.testing.assert_array_equal(run(fast, arrays, sizes), run(plain, arrays, sizes))


def test_lanes_that_lie_apart_are_all_there_but_at_the_edge() -> None:
    """36 of the 38 pixels of a line need none from beyond its ends: two vectors, and four more."""
    fast = optimize(CASES["line_pool"](), AVX512)
    sums = [s for s in stages(fast) if s.is_reduction]
    assert sorted(const_size(s.loops[-1].extent) for s in sums) == [3, 3, 4, 16]  # 3 lines
    tested = [any(isinstance(e, Select) for e in walk(s.value)) for s in sums]
    assert tested == [const_size(s.loops[-1].extent) == 3 for s in sums]


@pytest.mark.parametrize(("pads", "stride"), [(1, 2), (0, 5)])
def test_lanes_that_would_not_all_be_there_stay_apart(pads: int, stride: int) -> None:
    """Few of them for the width of the window, or such as lie far apart."""
    plain = optimize_prepared(planar_pool(AveragePool, 8, pads, 1, 2, 32, stride=stride)())
    assert rule_for(plain, AVX512) is row


def test_neighbours_that_share_what_they_read_are_no_panel() -> None:
    x, w = tensor("a", 2, 40, 64), tensor("b", 40, 64)
    weighted = func((x, w), Reduce(kind="max", axes=(1,)).compute(Mul().compute(x, w)))
    assert rule_for(optimize_prepared(weighted), AVX512) is window


def test_short_rows_of_one_sum_are_added_up_as_vectors() -> None:
    fast = optimize(group_norm(2, 2, 6, 5, 7)(), AVX512)
    sums = [s for s in stages(fast) if s.buffer.endswith("_lanes") and s.is_reduction]
    assert sums
    assert all(s.loops[-1].kind is LoopKind.VECTOR for s in sums)
    assert {str(s.loops[-1].extent) for s in sums} == {"7"}


def test_rows_shorter_than_a_vector_are_reduced_as_one() -> None:
    reductions = [s for s in stages(optimize(softmax(13)(), AVX512)) if s.is_reduction]
    assert len(reductions) == 2
    assert all(s.inner[-1].kind is LoopKind.VECTOR for s in reductions)


@pytest.mark.parametrize(
    ("width", "guarded"),
    [(197, {"r0ii_t", "r0_1ii_t"}), (N, {"r0ii_t", "r0_1ii_t"}), (192, set())],
)
def test_only_the_last_vectors_of_a_sum_are_masked(width: int | Expr, guarded: set[str]) -> None:
    fast = optimize(softmax(width)(), AVX512)
    masked = {f.var for f in loops(fast.body).values() if isinstance(f.body, If)}
    assert {v for v in masked if v.startswith("r0")} == guarded


@pytest.mark.parametrize(
    ("vectors", "partial"),
    [(125, 4), (124, 4), (123, 3), (122, 4), (17, 4), (14, 2), (13, 1), (16, 4)],
)
def test_sums_have_several_vectors_unless_the_last_ones_were_many(
    vectors: int, partial: int
) -> None:
    """Fewer than are in flight wait for each other, and each has more to round."""
    fast = optimize(softmax(8 * vectors)(), AVX2)
    found = [b for name, b in allocs(fast.body).items() if name.endswith("_vectors")]
    counts = {prod(const_size(n) for n in a.buffer.type.shape) // 8 for a in found}
    assert counts == ({partial} if partial > 1 else set())


@pytest.mark.parametrize("width", [0, 1, 15, 16, 17, 40])
def test_only_what_whole_vectors_leave_of_an_open_line_is_masked(width: int) -> None:
    x = tensor("a", N, M)
    plain = func((x,), Relu().compute(x))
    fast = optimize(plain, AVX512)
    lanes = [f for f in loops(fast.body).values() if f.kind is LoopKind.VECTOR]
    assert [isinstance(f.body, If) for f in lanes] == [False, True]
    sizes = {"n": 3, "m": width}
    arrays = data(plain, sizes)
    np.testing.assert_array_equal(run(fast, arrays, sizes), run(plain, arrays, sizes))


def test_vectors_that_an_open_line_surely_fills_have_no_rest() -> None:
    x = tensor("a", N, M * 16)
    fast = optimize(func((x,), Relu().compute(x)), AVX512)
    assert not any(isinstance(f.body, If) for f in loops(fast.body).values())
    assert sum(f.kind is LoopKind.VECTOR for f in loops(fast.body).values()) == 1


@pytest.mark.parametrize("n", [0, 1, 7, 15, 16, 17, 40])
def test_an_open_line_may_surely_leave_something(n: int) -> None:
    """An odd number of elements: no mask stands between what whole vectors leave and its end."""
    text = "def f(n: size, A: f32[n // 2 * 2 + 1], *, out: f32[n // 2 * 2 + 1]):"
    loop = "\n    for i in range(n // 2 * 2 + 1):\n        out[i] = A[i] * 2.0\n"
    fast = optimize(parse_func(text + loop), AVX2)
    assert sum(f.kind is LoopKind.VECTOR for f in loops(fast.body).values()) == 1
    arrays = {"A": np.arange(n // 2 * 2 + 1, dtype=np.float32)}
    np.testing.assert_array_equal(run(fast, arrays, {"n": n}), arrays["A"] * 2)


@pytest.mark.parametrize("n", [2, 3, 17, 18, 19, 40])
def test_an_open_line_may_have_a_length_below_zero(n: int) -> None:
    text = "def f(n: size, A: f32[n], *, out: f32[n - 2]):"
    plain = parse_func(text + "\n    for i in range(n - 2):\n        out[i] = A[i + 1]\n")
    fast = optimize(plain, AVX512)
    lanes = [f for f in loops(fast.body).values() if f.kind is LoopKind.VECTOR]
    assert [isinstance(f.body, If) for f in lanes] == [False, True]
    arrays = {"A": np.arange(n, dtype=np.float32)}
    np.testing.assert_array_equal(run(fast, arrays, {"n": n}), arrays["A"][1:-1])


def test_an_open_line_that_surely_is_no_whole_vector_is_one_masked() -> None:
    text = "def f(n: size, A: f32[n % 16], *, B: f32[n % 16]):"
    copy = "\n    for i in range(n % 16):\n        B[i] = A[i]\n"
    fast = optimize(parse_func(text + copy), AVX512)
    assert [f.kind for f in loops(fast.body).values()].count(LoopKind.VECTOR) == 1


@pytest.mark.parametrize("name", ["reflected", "reflected_open", "edge_open", "wrapped"])
def test_a_line_is_copied_from_where_it_begins_to_where_it_ends(name: str) -> None:
    """Only at its edges, and of lines above and below, an element is looked for."""
    fast = optimize(CASES[name](), AVX512)
    wide = [s for s in stages(fast) if s.loops[-1].extent == Const(16, INDEX)]
    assert wide
    for stage in wide:
        (load,) = loads(stage.value)
        along, _ = split_terms(load.index[-1], {stage.names[-1]})
        assert along == Var(stage.names[-1])
    assert [f.extent for f in loops(fast.body).values()].count(Const(3, INDEX)) == 2


def test_a_short_line_is_not_parted_from_its_edges() -> None:
    fast = optimize(reflected(9, 9, 20)(), AVX512)
    assert not any(
        isinstance(f.extent, Const) and f.extent.value == 3 for f in loops(fast.body).values()
    )


def test_the_logarithm_of_a_sum_is_not_computed_for_each_element() -> None:
    x = tensor("a", 3, 40)
    fast = optimize(func((x,), LogSoftmax().compute(x)), AVX512)
    logs = [s for s in stages(fast) if "log(" in str(s.value)]
    assert len(logs) == 1
    assert all(f.kind is LoopKind.PARALLEL for f in logs[0].loops)


def optimize_prepared(plain: Func) -> Func:
    trace = Trace(plain)
    prepare(trace, AVX512)
    return trace.func


@pytest.mark.parametrize("length", [20, 1000])
def test_the_sums_of_a_single_column_are_vectors(length: int) -> None:
    x, w = tensor("x", 9, length), tensor("w", length, 1)
    nest = optimize(func((x, w), MatMul().compute(x, w)), AVX512)
    sums = [s for s in stages(nest) if s.is_reduction and "x" in {v.buffer for v in loads(s.value)}]
    assert sums
    assert all(s.loops[-1].kind is LoopKind.VECTOR for s in sums)


@pytest.mark.parametrize("length", [37, N])
def test_only_the_keys_of_a_head_are_packed(length: int | Expr) -> None:
    fast = optimize(scores_of_one_buffer(length)(), AVX512)
    packed = [a.buffer.type for n, a in allocs(fast.body).items() if n.startswith("heads0")]
    assert packed
    assert {t.shape[:3] for t in packed} == {TensorType((1, 1, 5, 1)).shape[:3]}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("rows", "before"), [(1, False), (3, False), (4, True), (N, True)])
def test_columns_are_widened_before_many_products_alone(
    rows: int | Expr, before: bool, turned: bool
) -> None:
    fast = optimize(widened_columns(rows, turned=turned)(), AVX512)
    sizes = [a.buffer.type.elems for a in allocs(fast.body).values()]
    assert (index(2 * 40 * 21) in sizes) == before


@pytest.mark.parametrize("name", ["dense_bias_relu", "dense_many_rows"])
def test_no_product_is_computed_twice(name: str) -> None:
    plain = CASES[name]()
    assert additions(optimize(plain, AVX512).body) == additions(plain.body)


def additions(stmt: Stmt) -> int:
    """How often something is added to an element."""
    match stmt:
        case For(extent=Const(int(extent))):
            return extent * additions(stmt.body)
        case Block():
            return sum(map(additions, stmt.stmts))
        case For() | If() | Alloc():
            return additions(stmt.body)
    return int(accumulation(stmt) is not None)


IN_REGISTERS = (
    "dense_many_rows",
    "dense_gate",
    "transposed_conv",
    "conv_7x7",
    "conv_5x15",
    "depthwise_19",
)


@pytest.mark.parametrize("name", IN_REGISTERS)
def test_accumulators_stay_in_registers(name: str) -> None:
    fast = optimize(CASES[name](), AVX512)
    buffers = allocs(fast.body)  # a total of subtotals is in memory
    scopes = {a.scope for n, a in buffers.items() if f"{n}_subtotal" not in buffers}
    assert scopes == {Scope.REGISTER}
    kinds = {f.kind for f in loops(fast.body).values()}
    assert {LoopKind.PARALLEL, LoopKind.VECTOR, LoopKind.UNROLL} <= kinds
    assert all(not free_vars(f.extent) for f in loops(fast.body).values())


LONG = ("long_sum", "long_conv", "global_mean", "open_mean", "long_columns")


@pytest.mark.parametrize("name", LONG)
def test_long_sums_are_sums_of_sums(name: str) -> None:
    plain = CASES[name]()
    buffers = allocs(optimize(plain, AVX512).body)
    parts = [b for n, b in buffers.items() if n.endswith("_subtotal")]
    assert parts
    assert {a.scope for a in parts} == {Scope.REGISTER}
    short = allocs(optimize(CASES["dense_bias_relu"](), AVX512).body)
    assert not any("subtotal" in n for n in short)


@pytest.mark.parametrize(("length", "kind", "parts"), [
    (40_000, "sum", 1), (32_767, "sum", 0), (40_000, "max", 0), (2 * 16_411, "sum", 0),
])  # fmt: skip
def test_very_long_rows_are_summed_in_parts(length: int, kind: str, parts: int) -> None:
    """A maximum rounds nothing; a prime number of summands has no parts."""
    x = tensor("a", length)
    fast = optimize(func((x,), Reduce(kind=kind, axes=(0,)).compute(x)), AVX512)
    assert sum(n.endswith("_subtotal") for n in allocs(fast.body)) == parts
    assert any(f.kind is LoopKind.VECTOR for f in loops(fast.body).values())


def grid(rows: int | Expr) -> Func:
    x = tensor("a", rows, 64)
    return func((x,), Relu().compute(x))


@pytest.mark.parametrize(
    ("plain", "runs_parallel"),
    [
        (grid(1023), False),  # 4 vectors a row
        (grid(1024), True),
        (grid(N), True),  # as large as it may be
        (CASES["one_row"](), False),
    ],
)
def test_threads_share_only_what_is_worth_it(plain: Func, runs_parallel: bool) -> None:
    fast = optimize(plain, replace(AVX512, thread_operations=4096))
    kinds = {f.kind for f in loops(fast.body).values()}
    assert (LoopKind.PARALLEL in kinds) == runs_parallel


@pytest.mark.parametrize(
    ("shape", "divides"),
    [((N, 6, 5, M, 16), False), ((N, M, 16), True), ((3, M, 16), True), ((N, 6, M, 16), True)],
)
def test_a_counter_of_open_lines_is_not_divided_for_each_vector(
    shape: tuple[int | Expr, ...], divides: bool
) -> None:
    """Where the loops outside of a line are surely enough, a line runs in order."""
    x = tensor("a", *shape)
    fast = optimize(func((x,), Relu().compute(x)), AVX512)
    (shared,) = (f for f in loops(fast.body).values() if f.kind is LoopKind.PARALLEL)
    assert ("m" in free_vars(shared.extent)) == divides


def test_threads_share_the_columns_of_one_row() -> None:
    """The loop over rows has one iteration and several nests: tiles of columns, and tails."""
    x, w = tensor("a", 1, 300), tensor("b", 19, 300, 16)
    plain = func((x, w), MatMulPacked(n=290).compute(x, w))
    fast = optimize(plain, replace(AVX512, thread_operations=4096))
    shared = [f for f in loops(fast.body).values() if f.kind is LoopKind.PARALLEL]
    assert [int(f.extent.value) for f in shared if isinstance(f.extent, Const)] == [3]
    arrays = data(plain, {})
    np.testing.assert_array_equal(run(fast, arrays, {}), run(plain, arrays, {}))


@pytest.mark.parametrize(("rows", "steps"), [(1, [9, 8, 16]), (2, [8, 144])])
def test_a_result_of_one_row_is_cut_more_often(rows: int, steps: list[int]) -> None:
    """A row of a matrix product waits for its weights, and further additions cost nothing."""
    x, w = tensor("x", rows, 1152), tensor("w", 1152, 32)
    fast = optimize(func((x, w), MatMul().compute(x, w)), AVX512)
    summands = [f.extent for f in loops(fast.body).values() if f.var.startswith("k")]
    assert summands == [Const(n, INDEX) for n in steps]


def test_a_refused_step_leaves_the_kernel_to_other_rules(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse_all(trace: Trace, *_: object) -> None:
        trace.do("split", "nowhere", 4, ("a", "b"))

    monkeypatch.setattr(contract, "schedule", refuse_all)
    plain = dense_bias_relu()
    inputs = data(plain, {})
    np.testing.assert_array_equal(run(optimize(plain, AVX512), inputs, {}), run(plain, inputs, {}))
    assert "contract is left to other rules" in caplog.text
    assert {r.levelno for r in caplog.records} == {logging.INFO}  # not a user's to read
    caplog.clear()


def test_what_would_be_compiled_for_minutes_is_left_to_other_rules(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write_out(trace: Trace, *_: object) -> None:
        for name in loops(trace.func.body):
            trace.do("unroll", name)

    x = tensor("a", 1, 4, 80, 80, 16)
    plain = func((x,), Reduce(kind="mean", axes=(2, 3), keepdims=True).compute(x))
    assert rule_for(optimize_prepared(plain), AVX512) is window
    monkeypatch.setattr(window, "schedule", write_out)
    assert written_out(optimize(plain, AVX512).body) < 100
    assert "operations would be written out one by one" in caplog.text
    caplog.clear()


@pytest.mark.parametrize("name", ["short_sums", "short_sums_open", "short_arg_max"])
def test_each_lane_reduces_a_short_row_of_its_own(name: str) -> None:
    """The rows are loaded as they lie; those of three, whose lanes lie in a window, are not."""
    text = str(optimize(CASES[name](), AVX512))
    assert ("a_tile" in text or "in0_tile" in text) == (name != "short_arg_max")
    assert "vectorize(16)" in text


def test_lines_of_sums_are_no_text() -> None:
    """The lines that a sum without stages of its own along them was written to were text once."""
    x = tensor("a", 2, 48, 56, 64)
    plain = optimize_prepared(func((x,), Reduce(kind="sum", axes=(1,)).compute(x)))
    found = across.match(plain, AVX512)
    assert found is not None
    trace = Trace(plain)
    across.schedule(trace, found, AVX512, {})
    assert written_out(trace.func.body) < 100


def test_strips_of_repaired_sums_have_no_more_lines_than_there_are() -> None:
    """A single line was split, and its loop, gone by then, stayed in the place of a register."""
    assert repair.space(sparse_conv(4, 1)(), AVX512).knobs["lines"] == (0, 1, 2)  # 3 lines
    assert repair.space(sparse_conv(2, 1)(), AVX512).knobs["lines"] == (0, 1)
    assert repair.space(sparse_conv(N + 1, 1)(), AVX512).knobs["lines"] == repair.LINES


@pytest.mark.parametrize(
    ("rows", "near", "block"),
    [(24, 8, 8), (24, 24, 24), (24, 3, 4), (38, 18, 19), (37, 8, 37)],
)
def test_attention_runs_in_blocks_of_rows_that_stay_in_the_cache(
    rows: int, near: int, block: int
) -> None:
    plain = attention(2, rows, 21, 5)()
    fast = optimize(plain, replace(AVX512, l2_bytes=4 * 8 * 21 * near))
    blocks = [a.buffer.type for n, a in allocs(fast.body).items() if n == "masked"]
    assert [t.shape for t in blocks] == [TensorType((1, 1, block, 21)).shape]
    arrays = data(plain, {})
    want, got = run(plain, arrays, {}), run(fast, arrays, {})
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)  # order of summation


@pytest.mark.parametrize(("rows", "is_packed"), [(31, False), (32, True), (N, True)])
def test_the_values_of_many_rows_lie_in_panels(rows: int | Expr, is_packed: bool) -> None:
    """Lines a tensor apart share few sets of the first cache: long attention took twice as long."""
    plain = attention(2, rows, 21, 19)()
    fast = optimize(plain, AVX2)
    packed = [a.buffer.type.shape for n, a in allocs(fast.body).items() if n == "mixed_values"]
    assert packed == [TensorType((1, 1, 3, 21, 8)).shape] * is_packed
    sizes = {"n": 33} if plain.sizes else {}
    arrays = data(plain, sizes)
    want, got = run(plain, arrays, sizes), run(fast, arrays, sizes)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)  # order of summation


def test_keys_are_transposed_in_registers_into_their_panels() -> None:
    """The place in a panel is a remainder, which hid that lanes lie side by side."""
    fast = optimize(attention(2, 13, 21, 16)(), AVX2)
    tiles = [a for n, a in allocs(fast.body).items() if n.startswith("b_tile")]
    assert tiles
    assert {a.scope for a in tiles} == {Scope.REGISTER}


def test_only_the_last_panel_of_an_open_number_of_keys_is_guarded() -> None:
    fast = optimize(attention(2, 13, M, 16)(), AVX2)
    stores = [s for s in sites(fast.body) if s.store.buffer.startswith("b_moved")]
    assert {any(isinstance(outer, If) for outer in s.around) for s in stores} == {False, True}


@pytest.mark.parametrize("m", [1, 8, 20])
def test_keys_of_an_open_number_that_is_small_are_no_whole_vectors(m: int) -> None:
    """There is nothing to cut off them, and attention is found none the less."""
    plain = attention(2, 13, minimum(M, 12), 16, masked=False)()
    fast = optimize(plain, AVX2)
    assert any(name.startswith("b_moved") for name in allocs(fast.body))
    arrays = data(plain, {"m": m})
    want, got = (run(f, arrays, {"m": m}) for f in (plain, fast))
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("near", "together"), [(4, 4), (3, 3), (1, 1), (64, 4)])
def test_rows_of_weights_do_not_wait_for_each_other(near: int, together: int) -> None:
    plain = attention(2, 13, 21, 5)()
    fast = optimize(plain, replace(AVX2, l1_bytes=near * 2 * 4 * 21))
    rows = [a.buffer.type for n, a in allocs(fast.body).items() if n == "masked_max"]
    assert [t.shape for t in rows] == [TensorType((1, 1, together, 1)).shape]
    arrays = data(plain, {})
    want, got = run(plain, arrays, {}), run(fast, arrays, {})
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)  # order of summation


def test_an_image_of_an_open_height_is_transformed_by_a_few_rows_of_tiles() -> None:
    """Fewer than a line of an open length is, of which each row is one tile."""
    fast = optimize(winograd(N * 16, 4)(), AVX512)
    assert allocs(fast.body)["sums"].buffer.type.shape[-3] == Const(4, INDEX)


OPEN_IMAGES = [(h, w) for h in (0, 1, 2, 3, 4, 6, 7) for w in (0, 1, 3, 4, 5, 9, 33)]


@pytest.mark.parametrize("halo", [False, True])
def test_what_open_lines_leave_are_columns_and_corners(halo: bool) -> None:
    """Single rows of one vector wait for each sum: on their own they have more columns."""
    plain = blocked_conv(N, M, 1, halo)()
    fast = optimize(plain, AVX512)
    tiles = [
        tuple(const_size(e) for e in a.buffer.type.shape[1:4])
        for n, a in allocs(fast.body).items()
        if n.startswith("conv")
    ]
    assert (1, 4, 1) in {(1, *t[1:]) for t in tiles}
    assert max(t[0] for t in tiles if t[1:] == (1, 1)) > 1
    for high, wide in OPEN_IMAGES:
        sizes = {"n": high, "m": wide}
        arrays = data(plain, sizes)
        np.testing.assert_array_equal(run(fast, arrays, sizes), run(plain, arrays, sizes))


def test_rows_that_are_surely_whole_tiles_leave_nothing() -> None:
    x, w = tensor("a", N * 4, 6), tensor("b", 4, 6, 16)
    fast = optimize(func((x, w), MatMulPacked(n=64).compute(x, w)), AVX512)
    assert not any("_rest" in name for name in loops(fast.body))


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 7, 29, 39])
def test_single_rows_of_an_open_number_have_many_columns(rows: int) -> None:
    x, w = tensor("a", N, 6), tensor("b", 8, 6, 16)
    plain = func((x, w), MatMulPacked(n=128).compute(x, w))
    fast = optimize(plain, AVX512)
    tiles = [a.buffer.type.shape for n, a in allocs(fast.body).items() if n.startswith("matmul")]
    assert max(const_size(t[1]) for t in tiles if t[0] == Const(1, INDEX)) >= 4 * 16
    arrays = data(plain, {"n": rows})
    sizes = {"n": rows}
    np.testing.assert_array_equal(run(fast, arrays, sizes), run(plain, arrays, sizes))


@pytest.mark.parametrize("keys", [0, 1, 7, 16, 21, 40])
def test_only_what_is_left_of_an_open_number_of_keys_is_guarded(keys: int) -> None:
    """Masks in each vector of scores and weights took longer than what they guard."""
    plain = attention(2, 12, M, 5)()
    fast = optimize(plain, AVX2)
    guarded = {"scores": set[bool](), "masked": set[bool](), "weights": set[bool]()}
    for site in sites(fast.body):
        name = site.store.buffer.split("_part")[0]
        if name in guarded:
            guarded[name].add(any(isinstance(s, If) for s in site.around))
    assert set(map(frozenset, guarded.values())) == {frozenset({True, False})}
    tiles = [a.buffer.type.shape[3] for n, a in allocs(fast.body).items() if n.startswith("scores")]
    assert max(map(const_size, tiles)) == 16  # a single vector is loaded as often as multiplied
    arrays = data(plain, {"m": keys})
    want, got = run(plain, arrays, {"m": keys}), run(fast, arrays, {"m": keys})
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)  # order of summation


@pytest.mark.parametrize(
    ("columns", "near", "cores", "groups"),
    [(192, 5, 1, 3), (192, 2, 1, 6), (192, 1, 1, 6), (192, 5, 9, 0), (192, 12, 1, 0),
     (184, 5, 1, 0)],
)  # fmt: skip
def test_rows_that_tiles_leave_pass_columns_that_are_still_near(
    columns: int, near: int, cores: int, groups: int
) -> None:
    """Each nest read all columns from afar; half of the second cache holds `near` vectors."""
    x, w = tensor("a", N, 24), tensor("b", -(-columns // 16), 24, 16)
    plain = func((x, w), MatMulPacked(n=columns).compute(x, w))
    target = replace(AVX512, l2_bytes=2 * near * 24 * 16 * 4, cores=cores)
    fast = optimize(plain, target)
    body = fast.body
    assert isinstance(body, For) == bool(groups)
    if isinstance(body, For):
        assert body.extent == Const(groups, INDEX)
        assert isinstance(body.body, Block)
    for rows in (0, 3, 6):
        sizes = {"n": rows}
        arrays = data(plain, sizes)
        np.testing.assert_array_equal(run(fast, arrays, sizes), run(plain, arrays, sizes))


@pytest.mark.parametrize(
    ("heads", "rows", "batch", "cores", "chunks"),
    [(1, 48, 1, 2, "3"), (3, 48, 1, 2, "9"), (4, 48, 1, 2, "4"), (4, 48, 1, 8, "12"),
     (1, 48, N, 2, "n * 3"), (2, 48, N, 2, "n * 2"), (1, 48, N * 2, 2, "n * 2"),
     (3, 58, 1, 2, "6"), (3, 37, 1, 2, "3")],
)  # fmt: skip
def test_cores_share_the_rows_of_few_matrices(
    heads: int, rows: int, batch: int | Expr, cores: int, chunks: str
) -> None:
    plain = attention(heads, rows, 21, 5, batch=batch)()
    fast = optimize(plain, replace(AVX512, cores=cores))
    *_, found = (f for f in loops(fast.body).values() if f.kind is LoopKind.PARALLEL)
    assert str(found.extent) == chunks
    sizes = {"n": 3} if plain.sizes else {}
    arrays = data(plain, sizes)
    want, got = run(plain, arrays, sizes), run(fast, arrays, sizes)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


def test_nobody_asks_ahead_for_what_the_same_nest_has_just_made() -> None:
    """How much an open attention reads is not known, but its keys lie packed beside it."""
    fast = optimize(attention(2, N, M, 5)(), AVX512)
    assert "prefetch" not in str(fast)


@pytest.mark.parametrize(
    ("l1_bytes", "ahead"), [(32 << 10, 1024), (48 << 10, 1536), (1 << 20, 4096)]
)
def test_what_is_asked_ahead_fits_the_first_cache(l1_bytes: int, ahead: int) -> None:
    """Two rows by eight vectors of columns: eight streams, which together take a quarter of it."""
    x, w = tensor("x", 2, 1024), tensor("w", 64, 1024, 16)
    fast = optimize(
        func((x, w), MatMulPacked(n=1024).compute(x, w)), replace(AVX512, l1_bytes=l1_bytes)
    )
    assert f"prefetch={ahead}" in str(fast)


@pytest.mark.parametrize(("l2_bytes", "columns"), [(1 << 20, 4), (16 << 20, 8)])
def test_one_row_reads_few_streams_from_afar_which_the_hardware_follows(
    l2_bytes: int, columns: int
) -> None:
    x, w = tensor("x", 1, 1024), tensor("w", 64, 1024, 16)
    plain = func((x, w), MatMulPacked(n=1024).compute(x, w))
    fast = optimize(plain, replace(AVX512, l2_bytes=l2_bytes))
    assert "prefetch" not in str(fast)
    sums = allocs(fast.body)["matmul_packed"].buffer.type
    assert sums.elems == index(16 * columns)


def test_one_row_asks_ahead_for_lines_that_do_not_follow_each_other() -> None:
    x, w = tensor("x", 1, 1024), tensor("w", 1024, 1024)
    fast = optimize(func((x, w), MatMul().compute(x, w)), AVX512)
    assert "prefetch=1024" in str(fast)


def test_what_reads_a_sum_many_times_stays_with_its_tile() -> None:
    x, f, bias = tensor("x", 1, 3, 11, 13), tensor("f", 1, 3, 3, 3, 16), tensor("c", 1, 1, 1, 1, 16)
    used, zero = placeholder("used", TensorType((1, 1, 1, 1, 16), DType.BOOL)), tensor("zero")
    masked = Where().compute(used, PlanarConv(stride=(2, 2)).compute(x, f), zero)
    result = HardSwish().compute(Add().compute(masked, bias))
    kernel = optimize(func((x, f, used, zero, bias), result), AVX512)
    assert {a.scope for a in allocs(kernel.body).values()} == {Scope.REGISTER}


def test_an_elements_factor_is_not_computed_for_each_element() -> None:
    fast = optimize(CASES["layer_norm"](), AVX512)
    roots = [s for s in stages(fast) if "sqrt" in str(s.value)]
    assert len(roots) == 1
    assert not roots[0].loops


@pytest.mark.parametrize("name", ["unpacked", "turned_columns", "turned_with_rows", "turned_far"])
def test_no_vector_reads_across_what_is_stored(name: str) -> None:
    fast = schedule_func(CASES[name](), AVX512, {}).func
    tiles = [n for n, a in allocs(fast.body).items() if a.scope is Scope.REGISTER]
    assert tiles
    for stage in stages(fast):
        lane = stage.names[-1]
        for load in loads(stage.value):
            across = any(lane in free_vars(i) for i in load.index[:-1])
            assert not across or load.buffer in tiles


@pytest.mark.parametrize(("name", "count"), [("norm_of_turned", 56), ("norm_of_turned_lines", 49)])
def test_sums_of_neighbours_are_computed_together_in_vectors(name: str, count: int) -> None:
    fast = schedule_func(CASES[name](), AVX512, {}).func
    kept = allocs(fast.body)
    for stage in stages(fast):
        if stage.buffer in kept and "tile" not in stage.buffer:
            wide = [f for f in stage.loops if f.extent != Const(1, INDEX)]
            assert not wide or wide[-1].kind is LoopKind.VECTOR
            assert prod(map(const_size, kept[stage.buffer].buffer.type.shape)) == count


@pytest.mark.parametrize(("name", "inside"), [("turned_with_rows", False), ("turned_far", True)])
def test_much_work_is_not_written_out_for_each_row_of_a_tile(name: str, inside: bool) -> None:
    fast = schedule_func(CASES[name](), AVX512, {}).func
    rows = [loops_around(fast, s.names[-1])[-2] for s in stages(fast) if s.buffer in ("out", "mul")]
    assert (LoopKind.UNROLL in {f.kind for f in rows}) is not inside


def test_of_an_open_number_of_lanes_whole_vectors_are_transposed() -> None:
    fast = schedule_func(unpacked(N)(), AVX512, {}).func
    tile = next(a for a in allocs(fast.body).values() if a.scope is Scope.REGISTER)
    assert tile.buffer.type.shape == (Const(16, INDEX), Const(16, INDEX))


@pytest.mark.parametrize(("name", "rows"), [("turned_and_as_it_is", 1)])
def test_vectors_that_gather_from_the_same_lines_follow_each_other(name: str, rows: int) -> None:
    fast = schedule_func(CASES[name](), AVX512, {}).func
    lanes = [f for f in loops(fast.body).values() if f.kind is LoopKind.VECTOR]
    around = [loops_around(fast, f.var)[-2] for f in lanes]
    assert len(around) == rows  # whole vectors, and the tail
    for loop, vector in zip(around, lanes, strict=True):
        (load,) = (
            x
            for s in stages(fast)
            for x in loads(s.value)
            if vector.var in s.names and vector.var not in free_vars(x.index[-1])
        )
        assert loop.var in free_vars(load.index[-1])
        assert vector.var not in free_vars(load.index[-1])


def test_the_tail_of_an_open_number_of_rows_has_tiles_too() -> None:
    fast = optimize(dense_symbolic_rows(), AVX512)
    tiles = [a.buffer.type.shape[0] for n, a in allocs(fast.body).items() if n.startswith("matmul")]
    assert tiles[1:] == [Const(rows, INDEX) for rows in (4, 3, 2, 1)]
    assert tiles[0] != tiles[1]


@pytest.mark.parametrize(("size", "columns"), [(56, 8), (28, 16), (14, 32), (14, 128)])
def test_tiles_of_few_registers_have_sums_to_spare(size: int, columns: int) -> None:
    """As many as two multiply-adds a cycle wait for, eight, would wait for each late load."""
    tile = choose_tile(size, size, columns, 16)
    assert tile.high * tile.rows * tile.columns >= 10


@pytest.mark.parametrize(
    ("sizes", "halved", "whole"),
    [
        ((56, 56, 16), (1, 28, 1), (1, 14, 2)),
        ((14, 14, 16), (2, 14, 1), (1, 14, 2)),
        ((7, 7, 32), (4, 7, 1), (1, 7, 2)),
        ((None, None, 64), (1, 28, 1), (1, 12, 2)),
        ((1, 1, 64), (1, 1, 8), (1, 1, 8)),
    ],
)
def test_one_multiply_add_a_cycle_asks_for_tall_tiles(
    sizes: tuple[int | None, int | None, int],
    halved: tuple[int, int, int],
    whole: tuple[int, int, int],
) -> None:
    """Two broadcasts in a cycle feed it; a vector of columns is read for as many rows as fit."""
    for fmas, expected in ((1, halved), (2, whole)):
        tile = choose_tile(*sizes, 32, fmas=fmas)
        assert (tile.high, tile.rows, tile.columns) == expected


@pytest.mark.parametrize(("channels", "tallest"), [(16, 10), (32, 10), (64, 14), (256, 28)])
def test_few_results_of_short_sums_are_written_at_once(channels: int, tallest: int) -> None:
    """Tall tiles of short sums fill the store queue, and the next tile waits."""
    x, w = tensor("x", 1, channels // 16, 56, 56, 16), tensor("w", 4, channels // 16, 1, 1, 16, 16)
    plain = func((x, w), ConvBlocked(stride=(1, 1), dilation=(1, 1)).compute(x, w))
    halved = replace(AVX512, in_halves=True)
    sums = allocs(optimize(plain, halved).body).values()
    assert max(prod(a.buffer.type.static_shape) // 16 for a in sums) <= tallest
    assert max(prod(a.buffer.type.static_shape) // 16 for a in sums) > tallest // 2


@pytest.mark.parametrize(
    ("depth", "l1_bytes", "tallest"),
    [
        (1024, 32 << 10, 8),
        (1024, 48 << 10, 12),
        (3072, 32 << 10, 8),
        (512, 32 << 10, 14),
        (1040, 32 << 10, 14),
    ],
)
def test_rows_of_a_tile_do_not_push_each_other_out(depth: int, l1_bytes: int, tallest: int) -> None:
    """Rows a multiple of 4096 bytes apart share the lines of one set, of which there are few."""
    x, w = tensor("x", 196, depth), tensor("w", 16, depth, 16)
    plain = func((x, w), MatMulPacked(n=256).compute(x, w))
    sums = allocs(optimize(plain, replace(AVX512, l1_bytes=l1_bytes)).body).values()
    heights = {int(a.buffer.type.static_shape[0]) for a in sums}
    assert max(heights) <= tallest
    assert max(heights) == 14 or depth % 1024 == 0


def test_rows_of_which_there_is_an_open_number_lie_as_far_apart() -> None:
    x, w = tensor("x", N, 1024), tensor("w", 16, 1024, 16)
    plain = func((x, w), MatMulPacked(n=256).compute(x, w))
    assert contract.match(optimize_prepared(plain), AVX512).row_stride == 4096
    sums = allocs(optimize(plain, AVX512).body).values()
    assert max(int(a.buffer.type.static_shape[0]) for a in sums) == 8


@pytest.mark.parametrize(
    ("make", "products"),
    [(many_phases, 12 * 3 * 3 * 2 * 2 * 16), (phases_of_a_line, 16 * 8 * 2 * 16)],
)
def test_no_sum_between_phases_is_computed(make: Callable[[], Func], products: int) -> None:
    """Phases are whole images apart; a tile of several would hold all blocks in between."""
    assert products < (operations(optimize(make(), AVX512).body) or 0) < 1.1 * products


@pytest.mark.parametrize(("size", "lines_outside"), [(56, True), (14, False)])
def test_of_two_large_operands_the_costlier_is_read_once(size: int, lines_outside: bool) -> None:
    """64 blocks of 56 x 56 pixels would be read for each two of 16 blocks of columns."""
    x, f = tensor("x", 1, 64, size, size, 16), tensor("f", 16, 64, 1, 1, 16, 16)
    fast = optimize(func((x, f), ConvBlocked().compute(x, f)), replace(AVX512, cores=1))
    outer, *inner = loops(fast.body).values()
    assert isinstance(outer.extent, Const)
    halfway = dict.fromkeys((f.var for f in inner), 0) | {outer.var: int(outer.extent.value) // 2}
    total = next(s for s in stages(fast) if s.is_reduction)
    image, weights = (next(x for x in loads(total.value) if x.buffer == n) for n in ("x", "f"))
    line, column = (evaluate_size(i, halfway) for i in (image.index[2], weights.index[0]))
    assert (line, column) == ((size // 2, 0) if lines_outside else (0, 8))


def test_tiles_stay_whole_where_pixels_are_repeated() -> None:
    tiles = [
        [a.buffer.type.shape for a in allocs(optimize(conv_onto_enlarged(n), AVX512).body).values()]
        for n in (1, 2)
    ]
    assert tiles[0] == tiles[1]


@pytest.mark.parametrize(
    ("dtype", "scale", "lanes"),
    [(DType.F32, 2, 16), (DType.F32, 8, 16), (DType.F32, 3, 3), (DType.U8, 32, 64)],
)
def test_repeated_pixels_fill_a_vector(dtype: DType, scale: int, lanes: int) -> None:
    """A vector of a whole number of repetitions is loaded at once and spread, also for odd rows."""
    op = Resize(
        sizes=as_sizes((5, 96 * scale)), scales=(1.0, scale),
        coordinates="asymmetric", rounding="floor",
    )  # fmt: skip
    x = placeholder("x", TensorType((5, 96), dtype))
    nest = optimize(func((x,), op.compute(x)), AVX512)
    (vector,) = (f for f in loops(nest.body).values() if f.kind is LoopKind.VECTOR)
    assert vector.extent == index(lanes)


@pytest.mark.parametrize(
    ("columns", "target", "lanes"),
    [(96, AVX2, [32]), (197, AVX2, [32, 5]), (60, AVX2, [32, 8, 4]), (20, AVX2, [8, 4]),
     (32, AVX2, [32]), (96, AVX512, [16])],
)  # fmt: skip
def test_vectors_of_a_polynomial_run_side_by_side(
    columns: int, target: Target, lanes: list[int]
) -> None:
    """Where there are few registers; what adds needs no company."""
    for op, found in ((Tanh(), lanes), (Relu(), None)):
        x = placeholder("x", TensorType((3, columns), DType.F32))
        plain = func((x,), op.compute(x))
        fast = optimize(plain, target)
        vectors = [f for f in loops(fast.body).values() if f.kind is LoopKind.VECTOR]
        extents = [int(f.extent.value) for f in vectors if isinstance(f.extent, Const)]
        assert extents == found if found else max(extents) <= target.lanes(4)


@pytest.mark.parametrize(
    ("op", "target", "lanes"),
    [(HardSwish(), AVX2, 16), (Relu(), AVX2, 8), (HardSwish(), AVX512, 16)],
)
def test_two_vectors_of_several_operations_share_a_loop(
    op: HardSwish | Relu, target: Target, lanes: int
) -> None:
    x = placeholder("x", TensorType((3, 96), DType.F32))
    fast = optimize(func((x,), op.compute(x)), target)
    vectors = [f for f in loops(fast.body).values() if f.kind is LoopKind.VECTOR]
    assert [f.extent for f in vectors] == [index(lanes)]


@pytest.mark.parametrize(
    ("case", "lanes"), [("ranks", 8), ("ranks_of_few", 8), ("ranks_of_many", 8)]
)
def test_ranks_are_counted_along_vectors(case: str, lanes: int) -> None:
    """All at once: blocks of few elements would read those that are chosen one by one."""
    fast = optimize(CASES[case](), AVX2)
    found, *others = (s for s in stages(fast) if s.is_reduction)
    assert {s.buffer.split("_")[0] for s in (found, *others)} == {"rank", "place"}
    assert not any(s.buffer.endswith("_1") for s in others)  # nor a second time
    assert allocs(fast.body)[found.buffer].scope is Scope.REGISTER
    assert found.loops[-1].kind is LoopKind.VECTOR
    assert found.loops[-1].extent == index(lanes)


@pytest.mark.parametrize(
    ("rows", "columns", "target", "groups"),
    [
        (64, 197, AVX2, 16),
        (66, 197, AVX2, 22),  # three at a time: none is left over
        (67, 197, AVX2, 16),  # four at a time, and three rows one by one
        (17, 197, replace(AVX2, cores=1), 4),  # one row is left, and is no loop
        (64, 513, AVX2, 64),  # too long
        (16, 197, replace(AVX2, cores=8), 16),  # each thread has its own
        (64, 197, AVX512, 64),
    ],
)
def test_short_rows_of_a_softmax_go_together(
    rows: int, columns: int, target: Target, groups: int
) -> None:
    x = placeholder("x", TensorType((rows, columns), DType.F32))
    plain = func((x,), Softmax().compute(x))
    fast = optimize(plain, target)
    outer = next(iter(loops(fast.body).values()))
    assert outer.extent == index(groups)
    assert outer.kind is (LoopKind.PARALLEL if target.cores > 1 else outer.kind)
    arrays = data(plain, {"n": 1, "m": 1})
    want, got = (run(f, arrays, {"n": 1, "m": 1}) for f in (plain, fast))
    np.testing.assert_allclose(got, want, rtol=2e-6)


@pytest.mark.parametrize(("heads", "extents"), [(1, [49]), (12, [12]), (3, [591])])
def test_heads_share_out_the_rows_that_groups_of_them_leave(heads: int, extents: list[int]) -> None:
    """Where they are fewer than threads, each row is shared out."""
    x = placeholder("x", TensorType((heads, 197, 60), DType.F32))
    plain = func((x,), Softmax().compute(x))
    fast = optimize(plain, replace(AVX2, cores=4, thread_operations=4096))
    shared = [f.extent for f in loops(fast.body).values() if f.kind is LoopKind.PARALLEL]
    assert shared == [index(n) for n in extents]
    arrays = data(plain, {"n": 1, "m": 1})
    want, got = (run(f, arrays, {"n": 1, "m": 1}) for f in (plain, fast))
    np.testing.assert_allclose(got, want, rtol=2e-6)


def test_short_rows_without_polynomials_go_one_by_one() -> None:
    x = placeholder("x", TensorType((64, 60), DType.F32))
    mean = Reduce(kind="mean", axes=(1,)).compute(x)
    fast = optimize(func((x,), Sub().compute(x, mean)), AVX2)
    (outer,) = (f for f in loops(fast.body).values() if f.kind is LoopKind.PARALLEL)
    assert outer.extent == index(64)


def test_places_are_found_along_vectors() -> None:
    fast = optimize(CASES["ranks"](), AVX2)
    (lanes,) = (s for s in stages(fast) if s.buffer == "place_lanes")
    assert lanes.loops[-1].kind is LoopKind.VECTOR


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 64, 77])
def test_vectors_of_an_open_line_run_side_by_side(n: int) -> None:
    """What is left of them is cut into single ones, of many lines the last of them alone masked."""
    for shape, extents in (((N,), [32, 8]), ((M, N), [32, 8, 8]), ((M, N * 32), [32])):
        x = tensor("a", *shape)
        plain = func((x,), Tanh().compute(x))
        fast = optimize(plain, AVX2)
        lanes = [f for f in loops(fast.body).values() if f.kind is LoopKind.VECTOR]
        assert [f.extent for f in lanes] == [Const(e, INDEX) for e in extents]
        sizes = {"n": n, "m": 2}
        arrays = data(plain, sizes)
        np.testing.assert_array_equal(run(fast, arrays, sizes), run(plain, arrays, sizes))


@pytest.mark.parametrize(("target", "lanes"), [(AVX2, 32), (AVX512, 16)])
def test_exponentials_that_are_summed_run_side_by_side(target: Target, lanes: int) -> None:
    x = placeholder("x", TensorType((3, 96), DType.F32))
    fast = optimize(func((x,), LogSoftmax(axis=1).compute(x)), target)
    vectors = [f for f in loops(fast.body).values() if f.kind is LoopKind.VECTOR]
    assert max(f.extent.value for f in vectors if isinstance(f.extent, Const)) == lanes


def test_a_piece_is_placed_with_its_frame() -> None:
    plain = placed_with_halo()
    arrays = data(plain, {"n": 3})
    wanted = arrays["b"].copy()
    wanted[:, 2:4] = 0
    wanted[:, 2:4, 1:4, 1:6] = np.maximum(arrays["a"], 0)
    np.testing.assert_array_equal(run(plain, arrays, {"n": 3}), wanted)


@pytest.mark.parametrize(("stride", "widths"), [(1, [12, 4, 1]), (2, [8, 4, 1])])
def test_windows_of_an_open_width_share_what_they_load(stride: int, widths: list[int]) -> None:
    fast = optimize(depthwise(N, stride)(), AVX512)
    tiles = [a.buffer.type.shape[-2] for a in allocs(fast.body).values()]
    assert tiles == [Const(w, INDEX) for w in widths]


def scattered(op: ScatterElements | ScatterND, *shapes: tuple[int, ...]) -> Func:
    types = [TensorType(s, DType.I64 if n == 1 else DType.F32) for n, s in enumerate(shapes)]
    x, at, updates = (placeholder(name, t) for name, t in zip("abc", types, strict=True))
    return func((x, at, updates), op.compute(x, at, updates))


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_the_work_of_a_scatter_grows_with_its_updates(reduction: str) -> None:
    def work(rows: int) -> int:
        shapes = (rows, 16), (rows, 1), (rows, 16)
        return operations(scattered(ScatterND(reduction=reduction), *shapes).body) or 0

    assert work(1000) == 100 * work(10) > 0


@pytest.mark.parametrize("reduction", ["none", "add"])
@pytest.mark.parametrize(("axis", "kind"), [(0, LoopKind.SERIAL), (1, LoopKind.PARALLEL)])
def test_only_lines_that_share_no_element_are_scattered_at_a_time(
    axis: int, kind: str, reduction: str
) -> None:
    op = ScatterElements(axis=axis, reduction=reduction)
    fast = optimize(scattered(op, (9, 40), (9, 40), (9, 40)), AVX512)
    (stage,) = [s for s in stages(fast) if s.is_scattered]
    assert [f.kind for f in stage.loops] == [kind, LoopKind.SERIAL]


@pytest.mark.parametrize(
    ("op", "shape"), [(ScatterND(), (50, 2)), (ScatterElements(axis=0), (50, 9))], ids=str
)
def test_single_elements_are_written_in_order(
    op: ScatterElements | ScatterND, shape: tuple[int, ...]
) -> None:
    """A copy and a store for each update, of which the last one counts; nothing is searched."""
    updates = shape[:1] if isinstance(op, ScatterND) else shape
    nest = optimize(scattered(op, (5, 9), shape, updates), AVX512)
    assert not allocs(nest.body)
    (stage,) = [s for s in stages(nest) if s.is_scattered]
    assert {f.kind for f in stage.loops} == {LoopKind.SERIAL}
    rng = np.random.default_rng(1)
    b = rng.integers(0, 5, shape)
    new = np.arange(prod(updates), dtype=np.float32).reshape(updates)
    arrays = {"a": np.full((5, 9), -1.0, np.float32), "b": b, "c": new}
    (found,) = run_func(nest, {}, arrays).values()
    want = np.full((5, 9), -1.0, np.float32)
    if isinstance(op, ScatterND):
        want[b[:, 0], b[:, 1]] = new
    else:
        want[b, np.arange(9)] = new
    np.testing.assert_array_equal(found, want)


def test_rows_are_scattered_in_vectors() -> None:
    fast = optimize(scattered(ScatterND(reduction="add"), (9, 40), (7, 1), (7, 40)), AVX512)
    found = [s for s in stages(fast) if s.is_scattered]
    assert [f.kind for f in found[0].loops] == [LoopKind.SERIAL, LoopKind.SERIAL, LoopKind.VECTOR]
    assert {s.loops[0].kind for s in found} == {LoopKind.SERIAL}


def test_a_scalar_product_of_a_vector_in_a_larger_one() -> None:
    x, y = tensor("a", 5), tensor("b", 5)
    padded = pad("pad", x, (0,), (2,), 0.0)
    part = Slice(starts=as_sizes((0,)), sizes=as_sizes((5,))).compute(padded)
    plain = func((x, y), MatMul().compute(part, y))
    fast = optimize(plain, AVX512)
    arrays = {"a": np.arange(5, dtype=np.float32), "b": np.arange(3, 8, dtype=np.float32)}
    (found,), (right,) = (run_func(f, {}, arrays).values() for f in (fast, plain))
    assert found == right == 60


@pytest.mark.parametrize(("kind", "rows"), [(MatMulPairs, 14), (MatMulPacked, 28)])
def test_pairs_of_bf16_keep_their_tiles_on_cores_that_work_in_halves(kind: type, rows: int) -> None:
    halved = replace(AVX512, features=AVX512.features | {"avx512bf16"}, in_halves=True)
    if kind is MatMulPairs:
        x, w = tensor("x", 56, 256), placeholder("w", TensorType((16, 128, 16, 2), DType.BF16))
    else:
        x, w = tensor("x", 56, 256), tensor("w", 16, 256, 16)
    plain = func((x, w), kind(n=256).compute(x, w))
    sums = allocs(optimize(plain, halved).body).items()
    heights = {int(a.buffer.type.static_shape[0]) for n, a in sums if n.startswith("matmul")}
    assert max(heights) == rows


def test_products_of_columns_without_a_sum_are_scheduled() -> None:
    x, y = tensor("x", 5), tensor("y", 7, 5)
    plain = func((x, y), Einsum(equation="b,ab->ba").compute(x, y))
    arrays = {"x": np.arange(5, dtype=np.float32), "y": np.ones((7, 5), np.float32)}
    (found,) = run_func(optimize(plain, AVX2), {}, arrays).values()
    np.testing.assert_array_equal(found, np.repeat(arrays["x"][:, None], 7, 1))


def test_loops_stay_out_of_a_parallel_one_where_their_independence_cannot_be_told():
    """Phases of a transposed convolution, of an open batch, height and width."""
    text = """def f(n: size, h: size, w: size, *, out: f32[n, 12, h // 8 * 2 + 2, w // 8 * 2 + 2]):
    for a in range(2):
        for b in range(2):
            for c in range(12):
                for i in range(n):
                    for y in range(h // 8):
                        for x in range(w // 32):
                            for k in range(4):
                                out[i, c, 1 + y * 2 + a, 1 + (x * 4 + k) * 2 + b] = 1.0
"""
    func = parse_func(text)
    whole = Trace(func)
    with pytest.raises(ScheduleError, match="different iterations may use one element"):
        whole.do("parallel", whole.fuse_all([*"abciyx"]))
    trace = Trace(func)
    trace.parallel_outer(func.body, frozenset("k"))
    assert trace.loop("a_b_c").kind is LoopKind.PARALLEL
