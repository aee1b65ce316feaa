"""Convolution on planar tensors [n, c, *spatial]; `conv_blocked.py` has the other layouts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dlc.core.count import show_count
from dlc.graph.assume import differs
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.precision import narrow, product, product_dtype
from dlc.graph.ops.window import out_size, windows
from dlc.te import tensor as te
from dlc.te.expr import TRUE, ZERO, Expr, both, equal, select
from dlc.te.simplify import canonical, surely_less
from dlc.te.types import TensorType


def check_window(op: Op, spatial: int, *operands: TensorType, **attributes: Sequence[int]) -> None:
    """Refuse attributes whose length is not that of the spatial dimensions (pads: twice that)."""
    for name, values in attributes.items():
        if len(values) != spatial * (2 if name == "pads" else 1):
            axes = show_count(spatial, "spatial dimension")
            raise op.reject(f"{name}={tuple(values)} for {axes}", *operands)
        least = 0 if name in ("pads", "output_padding") else 1
        if any(v < least for v in values):
            raise op.reject(f"{name}={tuple(values)} is below {least}", *operands)


def padded(x: te.Tensor, pads: Sequence[int]) -> te.Tensor:
    """`x` with a halo of zeros around its spatial dimensions."""
    if not any(pads):
        return x
    half = len(pads) // 2
    return te.pad(f"{x.name}_padded", x, (0, 0, *pads[:half]), (0, 0, *pads[half:]))


def check_sizes(op: Op, sizes: Sequence[Expr], *operands: TensorType) -> None:
    """Refuse results whose size would be negative; one that just does not fit gives none."""
    if any(surely_less(n, 0) for n in sizes):
        raise op.reject("the kernel is larger than the padded image", *operands)


@op("conv", fuse=Fuse.ANCHOR)
class Conv(Op):
    """Cross-correlation, as ONNX `Conv` defines it, over any number of spatial dimensions.

    The products of two operands of 8-bit integers are summed in i32.

    Shapes:
        x: [n, c, *spatial]; w: [oc, c / groups, *kernel] -> [n, oc, *out]
        out = (size + begin + end - dilation * (kernel - 1) - 1) // stride + 1

    Source: https://onnx.ai/onnx/operators/onnx__Conv.html
    """

    stride: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)  # at the beginning of each axis, then at the end of each
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        dtype = product_dtype(x.dtype, w.dtype)
        if dtype is None or x.rank != w.rank or x.rank < 3:
            raise self.reject("needs two operands of one type and of 3 or more dimensions", x, w)
        rank = x.rank - 2
        check_window(self, rank, x, w, stride=self.stride, pads=self.pads, dilation=self.dilation)
        (n, c, *spatial), (oc, c_per_group, *kernel) = x.shape, w.shape
        unequal = differs(c, c_per_group * self.groups)
        if self.groups < 1 or unequal or differs(oc % self.groups, 0):
            raise self.reject(f"{c} input channels do not fit {self.groups} groups", x, w)
        total = [self.pads[d] + self.pads[d + rank] for d in range(rank)]
        steps = zip(spatial, kernel, self.stride, self.dilation, total, strict=True)
        out = [out_size(*step) for step in steps]
        check_sizes(self, out, x, w)
        return TensorType((n, oc, *out), dtype)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        image = padded(x, self.pads)
        oc, c_per_group, *kernel = w.shape
        per_group = canonical(oc // self.groups)

        def pixel(*out: Expr) -> te.Reduce:
            n, o, *at = out
            first = ZERO if self.groups == 1 else o // per_group * c_per_group

            def term(*r: Expr) -> Expr:
                c, *k = r
                source = self._source(at, k)
                return product(image[(n, first + c, *source)], w[(o, c, *k)])

            return te.reduce_sum((c_per_group, *kernel), term)

        return narrow(te.compute(self.name, type_.shape, pixel, inputs=(image, w)), type_.dtype)

    def _source(self, at: Sequence[Expr], k: Sequence[Expr]) -> list[Expr]:
        steps = zip(at, k, self.stride, self.dilation, strict=True)
        return [i * s + j * d for i, j, s, d in steps]

    def reference(self, x: Array, w: Array) -> Array:
        return exact_conv(x, w, self.stride, self.pads, self.dilation, self.groups)


def exact_conv(
    x: Array,
    w: Array,
    stride: Sequence[int],
    pads: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """A convolution as one matrix product for each position inside the kernel."""
    integers = x.dtype.kind in "iu"
    x, w = (a.astype(np.int64) if integers else a for a in as_f64(x, w))
    half = len(pads) // 2
    amounts = [(0, 0), (0, 0), *zip(pads[:half], pads[half:], strict=True)]
    x = np.pad(x, amounts)
    (n, c), (oc, per_group, *kernel) = x.shape[:2], w.shape
    total: Array | None = None
    for position, part in windows(x, kernel, stride, dilation):
        out = part.shape[2:]
        columns = part.reshape(n, groups, c // groups, math.prod(out))
        here: tuple[slice | int, ...] = (slice(None), slice(None), *position)
        rows = w[here].reshape(groups, oc // groups, per_group)
        with np.errstate(invalid="ignore"):  # an infinity gives NaN, as it should
            term = np.matmul(rows, columns).reshape(n, oc, *out)
            total = term if total is None else total + term
    assert total is not None, "a kernel has at least one position"
    return total.astype(np.int32) if integers else total


@op("conv_transpose", fuse=Fuse.ANCHOR)
class ConvTranspose(Op):
    """The transpose of a convolution, as ONNX `ConvTranspose` defines it.

    Shapes:
        x: [n, c, *spatial]; w: [c, oc / groups, *kernel] -> [n, oc, *out]
        out = (size - 1) * stride + dilation * (kernel - 1) + 1 + output_padding - begin - end

    Source: https://onnx.ai/onnx/operators/onnx__ConvTranspose.html
    """

    stride: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    output_padding: tuple[int, ...] = (0, 0)
    groups: int = 1

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        dtype = product_dtype(x.dtype, w.dtype)
        if dtype is None or not dtype.is_float or x.rank != w.rank or x.rank < 3:
            raise self.reject("needs two float operands of 3 or more dimensions", x, w)
        rank = x.rank - 2
        check_window(
            self, rank, x, w, stride=self.stride, pads=self.pads, dilation=self.dilation,
            output_padding=self.output_padding,
        )  # fmt: skip
        (n, c, *spatial), (wc, oc_per_group, *kernel) = x.shape, w.shape
        if self.groups < 1 or differs(c, wc) or differs(c % self.groups, 0):
            raise self.reject(f"{c} input channels do not fit {self.groups} groups", x, w)
        out = [
            (size - 1) * self.stride[d] + (kernel[d] - 1) * self.dilation[d] + 1
            + self.output_padding[d] - self.pads[d] - self.pads[d + rank]
            for d, size in enumerate(spatial)
        ]  # fmt: skip
        check_sizes(self, out, x, w)
        return TensorType((n, oc_per_group * self.groups, *out), dtype)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        c, oc_per_group, *kernel = w.shape
        per_group = canonical(c // self.groups)
        spatial = x.shape[2:]

        def pixel(*out: Expr) -> te.Reduce:
            n, o, *at = out
            first = ZERO if self.groups == 1 else o // oc_per_group * per_group
            inner = o if self.groups == 1 else o % oc_per_group

            def term(*r: Expr) -> Expr:
                ic, *k = r
                inside: Expr = TRUE
                source: list[Expr] = []
                for d, (i, j, size) in enumerate(zip(at, k, spatial, strict=True)):
                    # Element `source` of x reaches position source * stride + k * dilation.
                    reach = i + self.pads[d] - j * self.dilation[d]
                    stride = self.stride[d]
                    if stride > 1:
                        inside = both(inside, equal(reach % stride, 0))
                    source.append(reach // stride)
                    inside = both(inside, both(source[-1] >= 0, source[-1] < size))
                value = product(x[(n, first + ic, *source)], w[(first + ic, inner, *k)])
                return select(inside, value, 0.0)

            return te.reduce_sum((per_group, *kernel), term)

        return narrow(te.compute(self.name, type_.shape, pixel, inputs=(x, w)), type_.dtype)

    def reference(self, x: Array, w: Array) -> Array:
        x, w = as_f64(x, w)
        (n, c, *spatial), (_, oc_per_group, *kernel) = x.shape, w.shape
        full = [
            (s - 1) * t + d * (k - 1) + 1 + o
            for s, t, d, k, o in zip(
                spatial, self.stride, self.dilation, kernel, self.output_padding, strict=True
            )
        ]
        result = np.zeros((n, oc_per_group * self.groups, *full))
        columns = x.reshape(n, self.groups, c // self.groups, math.prod(spatial))
        for position in np.ndindex(*kernel):
            rows = w[:, :, *position].reshape(self.groups, c // self.groups, oc_per_group)
            part = np.matmul(rows.transpose(0, 2, 1), columns)
            steps = zip(position, spatial, self.stride, self.dilation, strict=True)
            cut = tuple(slice(p * d, p * d + t * (s - 1) + 1, t) for p, s, t, d in steps)
            place: tuple[slice, ...] = (slice(None), slice(None), *cut)
            result[place] += part.reshape(n, result.shape[1], *spatial)
        half = len(self.pads) // 2
        crop = zip(self.pads[:half], self.pads[half:], full, strict=True)
        cut = tuple(slice(begin, size - end) for begin, end, size in crop)
        return np.asarray(result[:, :, *cut])
