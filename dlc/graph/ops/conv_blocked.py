"""Convolution on channel-blocked tensors [n, cb, *spatial, c]: the forms `choose_layouts` makes.

The halo is part of the input, so none of them pads. Reductions run over the input's channel
blocks, the kernel, then the channels of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dlc.graph.assume import differs, is_below
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.absent import is_absent, sparse_conv
from dlc.graph.ops.conv import check_sizes, check_window, exact_conv
from dlc.graph.ops.planes import repaired
from dlc.graph.ops.precision import narrow, product, product_dtype
from dlc.graph.ops.window import out_size
from dlc.te import tensor as te
from dlc.te.expr import TRUE, ZERO, Expr, both, const, index, select
from dlc.te.simplify import canonical
from dlc.te.types import Shape, TensorType


def to_planar(x: Array) -> Array:
    """[n, cb, *spatial, c] -> [n, cb * c, *spatial]."""
    n, blocks, *spatial, block = x.shape
    return np.moveaxis(x, -1, 2).reshape(n, blocks * block, *spatial)


def to_blocked(x: Array, block: int) -> Array:
    """[n, cb * c, *spatial] -> [n, cb, *spatial, c]."""
    n, channels, *spatial = x.shape
    return np.moveaxis(x.reshape(n, channels // block, block, *spatial), 2, -1)


def group_of(blocks: Expr) -> Callable[..., tuple[Expr, ...]]:
    """Where a result stands if groups of some blocks have a dimension of their own."""
    return lambda n, o, *rest: (n, o // blocks, o % blocks, *rest)


def fit_groups(groups: int, blocks: Expr, per_group: Expr, results: Expr) -> bool:
    """Whether blocks of channels and of results may be parts of so many groups."""
    fits = groups >= 1 and not differs(blocks, per_group * groups)
    return fits and not differs(results % groups, 0)


def of_groups(
    name: str,
    shape: Shape,
    groups: int,
    total: Callable[..., te.Reduce],
    inputs: tuple[te.Tensor, ...],
) -> te.Tensor:
    """The results [n, ob, ...] of all groups, by the sum at [n, group, block of it, ...].

    With a dimension of their own, groups are told from the columns of one group.
    """
    if groups == 1:
        return te.compute(name, shape, lambda n, *at: total(n, ZERO, *at), inputs=inputs)
    n, ob, *rest = shape
    blocks = canonical(ob // groups)
    sums = te.compute(name, (n, index(groups), blocks, *rest), total, inputs=inputs)
    grouped = group_of(blocks)
    return te.compute("joined", shape, lambda *out: sums[grouped(*out)], inputs=(sums,))


def used_channels(used: int, channels: Expr) -> Expr:
    """How many channels of a block are summands: the first `used`, or all for 0."""
    return index(used) if used else channels


def only_used(used: int, x: Array, w: Array) -> tuple[Array, Array]:
    """A blocked image [..., c] and weights [..., c, oc] without channels that are no summands."""
    return (x[..., :used], w[..., :used, :]) if used else (x, w)


def summand(
    value: Expr, sizes: Sequence[Expr], place: Sequence[Expr], zeros: Sequence[int]
) -> Expr:
    """A product of a pixel; 0 where it lies in the zeros before each axis, or in those behind."""
    inside: Expr = TRUE
    ends = zip(zeros[: len(sizes)], zeros[len(sizes) :], strict=True)
    for size, at, (before, behind) in zip(sizes, place, ends, strict=False):
        inside = both(inside, index(before - 1) < at) if before else inside
        inside = both(inside, at < size - behind) if behind else inside
    return value if inside == TRUE else select(inside, value, const(0, value.dtype))


def cleared(x: Array, zeros: Sequence[int]) -> Array:
    """A blocked image with zeros where these are around it."""
    if not zeros:
        return x
    pads = [*zip(*np.reshape(zeros, (2, -1)).tolist(), strict=True)]
    ends = zip(x.shape[2:-1], pads, strict=True)
    inside = x[(slice(None), slice(None), *(slice(low, n - high) for n, (low, high) in ends))]
    return np.pad(inside, [(0, 0), (0, 0), *pads, (0, 0)])


class BlockedConv(Op):
    """What all forms share: the attributes' checks, the spatial sizes and where a result reads."""

    stride: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)

    def spatial(
        self, x: TensorType, w: TensorType, sizes: Sequence[Expr], kernel: Sequence[Expr]
    ) -> list[Expr]:
        """The spatial sizes of the result."""
        check_window(self, len(sizes), x, w, stride=self.stride, dilation=self.dilation)
        steps = zip(sizes, kernel, self.stride, self.dilation, strict=True)
        out = [out_size(*step) for step in steps]
        check_sizes(self, out, x, w)
        return out

    def source(self, at: Sequence[Expr], k: Sequence[Expr]) -> list[Expr]:
        """Where in the image a result reads for position `k` of the kernel."""
        steps = zip(at, k, self.stride, self.dilation, strict=True)
        return [i * s + j * d for i, j, s, d in steps]

    @property
    def no_pads(self) -> tuple[int, ...]:
        """The pads of the planar convolution of the same meaning."""
        return (0,) * (2 * len(self.stride))


@op("conv_blocked", fuse=Fuse.ANCHOR)
class ConvBlocked(BlockedConv):
    """Convolution from blocked to blocked channels; groups split the block axes.

    A sum that is not finite is computed once more where the weights are sparse: see `absent.py`.
    Channels behind those that are `used` have weights of 0. The `zeros` around an image are no
    summands.

    Shapes:
        x: [n, cb, *spatial, c]; w: [ob, cb / groups, *kernel, c, oc] -> [n, ob, *out, oc]
        turned: w: [ob, cb / groups, *kernel, oc, c]
    """

    stride: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    sparse: bool = False  # whether a weight of -0 is none
    turned: bool = False  # whether summands lie side by side in the weights, not results
    used: int = 0  # how many channels of a block, the first ones, are summands; 0: all of them
    zeros: tuple[int, ...] = ()  # pixels before each axis, then behind; (): all are summands

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        dtype = product_dtype(x.dtype, w.dtype)
        if dtype is None or w.rank != x.rank + 1 or x.rank < 4:
            raise self.reject("needs blocked operands of one type", x, w)
        (n, cb, *sizes, c), (ob, per_group, *kernel, ci, oc) = x.shape, self._turn(w.shape)
        if differs(c, ci) or not fit_groups(self.groups, cb, per_group, ob):
            raise self.reject(f"the channel blocks do not fit {self.groups} groups", x, w)
        if self.used < 0 or is_below(c, self.used):
            raise self.reject(f"a block has no {self.used} channels", x, w)
        if self.zeros and len(self.zeros) != 2 * len(sizes):
            raise self.reject(f"an image has no {self.zeros} around it", x, w)
        return TensorType((n, ob, *self.spatial(x, w, sizes, kernel), oc), dtype)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        ob, per_group, *kernel, ci, _ = self._turn(w.shape)
        blocks = canonical(ob // self.groups)
        extents = (per_group, *kernel, used_channels(self.used, ci))

        def factors(*at: Expr) -> Callable[..., tuple[Expr, Expr]]:
            n, group, o, *position, oi = at

            def pair(b: Expr, *r: Expr) -> tuple[Expr, Expr]:
                *k, i = r
                pixel = x[(n, group * per_group + b, *self.source(position, k), i)]
                return pixel, w[self._turn((group * blocks + o, b, *k, i, oi))]

            return pair

        def total(*at: Expr) -> te.Reduce:
            pair = factors(*at)

            def term(*r: Expr) -> Expr:
                place = self.source(at[3:-1], r[1:-1])
                return summand(product(*pair(*r)), x.shape[2:-1], place, self.zeros)

            return te.reduce_sum(extents, term)

        if not self.sparse:
            sums = of_groups(self.name, type_.shape, self.groups, total, (x, w))
            return narrow(sums, type_.dtype)
        n, _, *rest = type_.shape
        sums = te.compute("sums", (n, index(self.groups), blocks, *rest), total, inputs=(x, w))
        grouped = group_of(blocks)

        def present(*out: Expr) -> Callable[..., Expr]:
            pair = factors(*grouped(*out))

            def summand(*r: Expr) -> Expr:
                both = product(*pair(*r))
                return select(is_absent(pair(*r)[1]), const(0, both.dtype), both)

            return summand

        result = repaired(self.name, type_.shape, sums, grouped, extents, present, (x, w))
        return narrow(result, type_.dtype)

    def _turn(self, of_weights: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Sizes or places of weights in the other order of c and oc, if they lie so."""
        *others, c, oc = of_weights
        return (*others, oc, c) if self.turned else of_weights

    def reference(self, x: Array, w: Array) -> Array:
        w = np.swapaxes(w, -1, -2) if self.turned else w
        x = cleared(x, self.zeros)
        x, w = only_used(self.used, x, w)
        ob, per_group, *kernel, ci, oc = w.shape
        rows = np.moveaxis(w, (-1, -2), (1, 3)).reshape(ob * oc, per_group * ci, *kernel)
        if self.sparse:
            planar = sparse_conv(to_planar(x), rows, self.stride, self.dilation, self.groups)
        else:
            planar = exact_conv(
                to_planar(x), rows, self.stride, self.no_pads, self.dilation, self.groups
            )
        return to_blocked(planar, oc)


@op("conv_planar", fuse=Fuse.ANCHOR)
class PlanarConv(BlockedConv):
    """Convolution from planar to blocked channels, for inputs of few channels.

    Shapes:
        x: [n, c, *spatial]; w: [ob, c, *kernel, oc] -> [n, ob, *out, oc]
    """

    stride: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        dtype = product_dtype(x.dtype, w.dtype)
        if dtype is None or w.rank != x.rank + 1 or x.rank < 3:
            raise self.reject("needs a planar image and blocked weights of one type", x, w)
        (n, c, *sizes), (ob, ci, *kernel, oc) = x.shape, w.shape
        if differs(c, ci):
            raise self.reject(f"{c} input channels do not fit {ci} of the weights", x, w)
        return TensorType((n, ob, *self.spatial(x, w, sizes, kernel), oc), dtype)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        _, c, *kernel, _ = w.shape

        def pixel(*out: Expr) -> te.Reduce:
            n, o, *at, oi = out

            def term(*r: Expr) -> Expr:
                i, *k = r
                return product(x[(n, i, *self.source(at, k))], w[(o, i, *k, oi)])

            return te.reduce_sum((c, *kernel), term)

        return narrow(te.compute(self.name, type_.shape, pixel, inputs=(x, w)), type_.dtype)

    def reference(self, x: Array, w: Array) -> Array:
        ob, c, *kernel, oc = w.shape
        rows = np.moveaxis(w, -1, 1).reshape(ob * oc, c, *kernel)
        planar = exact_conv(x, rows, self.stride, self.no_pads, self.dilation, 1)
        return to_blocked(planar, oc)


@op("conv_depthwise", fuse=Fuse.ANCHOR)
class DepthwiseBlocked(BlockedConv):
    """Convolution of each channel by itself.

    Shapes:
        x: [n, cb, *spatial, c]; w: [cb, *kernel, c] -> [n, cb, *out, c]
    """

    stride: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        dtype = product_dtype(x.dtype, w.dtype)
        if dtype is None or x.rank != w.rank + 1 or x.rank < 4:
            raise self.reject("needs blocked operands of one type", x, w)
        (n, cb, *sizes, c), (wb, *kernel, wc) = x.shape, w.shape
        if differs(c, wc) or differs(cb, wb):
            raise self.reject("image and weights differ in their channels", x, w)
        return TensorType((n, cb, *self.spatial(x, w, sizes, kernel), c), dtype)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        _, *kernel, _ = w.shape

        def pixel(*out: Expr) -> te.Reduce:
            n, b, *at, i = out
            return te.reduce_sum(
                kernel, lambda *k: product(x[(n, b, *self.source(at, k), i)], w[(b, *k, i)])
            )

        return narrow(te.compute(self.name, type_.shape, pixel, inputs=(x, w)), type_.dtype)

    def reference(self, x: Array, w: Array) -> Array:
        blocks, *kernel, block = w.shape
        rows = np.moveaxis(w, -1, 1).reshape(blocks * block, 1, *kernel)
        planar = exact_conv(
            to_planar(x), rows, self.stride, self.no_pads, self.dilation, blocks * block
        )
        return to_blocked(planar, block)
