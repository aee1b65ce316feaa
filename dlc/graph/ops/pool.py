"""Pooling over windows.

The spatial axes are 2, 3, ...: as many as the kernel has sizes; what follows them (the channels of
a block) is left alone. Global pools are reductions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dlc.core.types import FLOATS, INDEX
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.conv import check_sizes, check_window
from dlc.graph.ops.elementwise import NUMBERS, check_dtype
from dlc.graph.ops.precision import wide, widen
from dlc.graph.ops.window import out_size, windows
from dlc.te import tensor as te
from dlc.te.expr import TRUE, BinOp, Expr, both, cast, const, maximum, minimum, select
from dlc.te.simplify import canonical, surely_less
from dlc.te.types import TensorType


class Pool(Op):
    """What the pools share: where windows lie.

    Shapes:
        x: [n, c, *spatial, ...] -> [n, c, *out, ...]
        out = (size + begin + end - dilation * (kernel - 1) - 1) // stride + 1; with ceil_mode the
        quotient is rounded up, unless the last window would begin beyond `size + begin`

    Source: https://onnx.ai/onnx/operators/onnx__MaxPool.html
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)  # at the beginning of each axis, then at the end of each
    dilation: tuple[int, ...] = (1, 1)
    ceil_mode: bool = False

    def infer(self, x: TensorType) -> TensorType:
        rank = len(self.kernel)
        check_window(
            self, rank, x, kernel=self.kernel, stride=self.stride, pads=self.pads,
            dilation=self.dilation,
        )  # fmt: skip
        if x.rank < rank + 2:
            raise self.reject(f"needs {rank + 2} or more dimensions", x)
        out = [self._out(d, size) for d, size in enumerate(x.shape[2 : rank + 2])]
        check_sizes(self, out, x)
        return TensorType((*x.shape[:2], *out, *x.shape[rank + 2 :]), x.dtype)

    def _out(self, d: int, size: Expr) -> Expr:
        kernel, stride, dilation = self.kernel[d], self.stride[d], self.dilation[d]
        begin, end = self.pads[d], self.pads[d + len(self.kernel)]
        if not self.ceil_mode:
            return out_size(size, kernel, stride, dilation, begin + end)
        whole = out_size(size, kernel, stride, dilation, begin + end + stride - 1)
        return canonical(minimum(whole, (size + (begin - 1)) // stride + 1))

    def window(
        self, x: te.Tensor, out: Sequence[Expr], k: Sequence[Expr]
    ) -> tuple[tuple[Expr, ...], Expr]:
        """The element of `x` that position `k` of a window reads, and whether there is one."""
        index = list(out)
        inside: Expr = TRUE
        for d, j in enumerate(k):
            size, stride, begin = x.shape[d + 2], self.stride[d], self.pads[d]
            index[d + 2] = out[d + 2] * stride + j * self.dilation[d] - begin
            if begin:
                inside = both(inside, index[d + 2] >= 0)
            reach = (self.kernel[d] - 1) * self.dilation[d] - begin
            last = (self._out(d, size) - 1) * stride + reach
            if not surely_less(last, size):
                inside = both(inside, index[d + 2] < size)
        return tuple(index), inside

    def with_pads(self, x: Array, fill: float) -> Array:
        """`x` surrounded by its pads."""
        rank = len(self.kernel)
        pads = zip(self.pads[:rank], self.pads[rank:], strict=True)
        amounts = [(0, 0), (0, 0), *pads, *[(0, 0)] * (x.ndim - rank - 2)]
        return np.pad(x, amounts, constant_values=np.asarray(fill).astype(x.dtype))

    def parts(self, halo: Array, sizes: Sequence[int], fill: float) -> list[Array]:
        """For each position inside the window what all windows read there.

        `halo` has the pads, `sizes` is the shape without them; `fill` is what lies beyond.
        """
        counts = [self._count(d, n) for d, n in enumerate(sizes[2 : len(self.kernel) + 2])]
        amounts = [(0, 0)] * halo.ndim
        for d, count in enumerate(counts):
            reach = (count - 1) * self.stride[d] + (self.kernel[d] - 1) * self.dilation[d] + 1
            amounts[d + 2] = (0, max(0, reach - halo.shape[d + 2]))
        whole = np.pad(halo, amounts, constant_values=np.asarray(fill).astype(halo.dtype))
        cut = tuple(slice(0, n) for n in counts)
        every = windows(whole, self.kernel, self.stride, self.dilation)
        return [part[:, :, *cut] for _, part in every]

    def _count(self, d: int, size: int) -> int:
        begin, end = self.pads[d], self.pads[d + len(self.kernel)]
        free = size + begin + end - self.dilation[d] * (self.kernel[d] - 1) - 1
        if not self.ceil_mode:
            return free // self.stride[d] + 1
        count = math.ceil(free / self.stride[d]) + 1
        return count - 1 if (count - 1) * self.stride[d] >= size + begin else count


@op("max_pool", fuse=Fuse.REDUCTION)
class MaxPool(Pool):
    """The largest element of each window; NaN if there is one. Pads never win.

    Source: https://onnx.ai/onnx/operators/onnx__MaxPool.html
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    ceil_mode: bool = False

    def infer(self, x: TensorType) -> TensorType:
        check_dtype(self, NUMBERS, x)
        return super().infer(x)

    def compute(self, x: te.Tensor) -> te.Tensor:
        lowest = te.identity(BinOp.MAX, x.dtype)

        def element(*out: Expr) -> te.Reduce:
            def value(*k: Expr) -> Expr:
                index, inside = self.window(x, out, k)
                return select(inside, x[index], lowest)

            return te.reduce_max(self.kernel, value)

        return te.compute(self.name, self.infer(x.type).shape, element, inputs=(x,))

    def reference(self, x: Array) -> Array:
        (x,) = as_f64(x)
        lowest = -math.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        parts = self.parts(self.with_pads(x, lowest), x.shape, lowest)
        result = parts[0]
        for part in parts[1:]:
            result = np.maximum(result, part)
        return result


@op("average_pool", fuse=Fuse.REDUCTION)
class AveragePool(Pool):
    """The mean of each window; `count_include_pad` counts the pads as zeros.

    What a last window of `ceil_mode` reads beyond the pads never counts.

    Source: https://onnx.ai/onnx/operators/onnx__AveragePool.html
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    ceil_mode: bool = False
    count_include_pad: bool = False

    def infer(self, x: TensorType) -> TensorType:
        check_dtype(self, FLOATS, x)
        return super().infer(x)

    def compute(self, x: te.Tensor) -> te.Tensor:
        shape = self.infer(x.type).shape
        dtype = wide(x.dtype)

        def window_sum(*out: Expr) -> te.Reduce:
            def value(*k: Expr) -> Expr:
                index, inside = self.window(x, out, k)
                return select(inside, widen(x[index]), const(0, dtype))

            return te.reduce_sum(self.kernel, value)

        total = te.compute(f"{x.name}_sum", shape, window_sum, inputs=(x,))

        def mean(*out: Expr) -> Expr:
            count: Expr = const(1, INDEX)
            for d, n in enumerate(x.shape[2 : len(self.kernel) + 2]):
                count = count * self._counted(d, n, out[d + 2])
            return cast(x.dtype, total[out] / cast(dtype, count))

        return te.compute(self.name, shape, mean, inputs=(total,))

    def _counted(self, d: int, size: Expr, at: Expr) -> Expr:
        """How many positions of the window count along axis `d`."""
        kernel, stride, dilation = self.kernel[d], self.stride[d], self.dilation[d]
        begin, end = self.pads[d], self.pads[d + len(self.kernel)]
        low, high = (-begin, size + end) if self.count_include_pad else (0, size)
        start = at * stride - begin
        last = (self._out(d, size) - 1) * stride + (kernel - 1) * dilation - begin
        above: Expr = const(kernel, INDEX)
        if not surely_less(last, high):
            above = minimum(above, (high - start + (dilation - 1)) // dilation)
        if low + begin <= 0:
            return above
        return above - maximum((-start + (low + dilation - 1)) // dilation, 0)

    def reference(self, x: Array) -> Array:
        (x,) = as_f64(x)
        counted = self.with_pads(np.ones_like(x), float(self.count_include_pad))
        total = sum(self.parts(self.with_pads(x, 0.0), x.shape, 0.0))
        with np.errstate(all="ignore"):
            return np.asarray(total / sum(self.parts(counted, x.shape, 0.0)))
