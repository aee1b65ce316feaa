"""Products of bytes with constant weights, for vectors that add four of them, or two, in each lane.

The weights of as many summands stand side by side, as the elements of a row do. Where two are
added, a row holds bytes that were widened to i16; weights are widened as they are loaded. Sums are
whole numbers, so they are exact, in whichever order.
"""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.graph.assume import differs, is_below
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.attributes import constants, set_size
from dlc.graph.ops.conv_blocked import BlockedConv, ConvBlocked, fit_groups, of_groups
from dlc.graph.ops.matmul import MatMulPacked
from dlc.graph.ops.neighbours import in_rows, side_by_side
from dlc.te import tensor as te
from dlc.te.expr import Expr, cast, index
from dlc.te.simplify import canonical
from dlc.te.types import TensorType

ROWS = {4: DType.U8, 2: DType.I16}  # of as many products in a lane


def pack_bytes(w: Array, each: int) -> Array:
    """Constant weights, whole numbers from -128 to 127, as they lie in memory.

    Shapes:
        w: [..., c, columns] -> i8[..., c / each, columns, each]
    """
    return side_by_side(w.astype(np.int8), each)


def _each(x: TensorType, w: TensorType) -> int:
    """How many products are added in a lane; 0 for other types than there are."""
    each = next((n for n in ROWS if not differs(w.shape[-1], n)), 0) if w.rank else 0
    return each if each and w.dtype is DType.I8 and x.dtype is ROWS[each] else 0


@op("conv_bytes", fuse=Fuse.ANCHOR)
class ConvBytes(BlockedConv):
    """Convolution from blocked to blocked channels by products of bytes; groups split block axes.

    Shapes:
        x: u8 or i16[n, cb, *spatial, c];
        w: i8[ob, cb / groups, *kernel, c / each, oc, each], 4 or 2 each -> i32[n, ob, *out, oc]
    """

    stride: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        each = _each(x, w)
        if not each or w.rank != x.rank + 2:
            raise self.reject("needs a blocked image and i8 weights: u8 by 4, or i16 by 2", x, w)
        (n, cb, *sizes, c), (ob, per_group, *kernel, parts, oc, _) = x.shape, w.shape
        if differs(c, parts * each):
            raise self.reject("image and weights differ in their channels", x, w)
        if not fit_groups(self.groups, cb, per_group, ob):
            raise self.reject(f"the channel blocks do not fit {self.groups} groups", x, w)
        return TensorType((n, ob, *self.spatial(x, w, sizes, kernel), oc), DType.I32)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        ob, per_group, *kernel, parts, _, each = w.shape
        blocks = canonical(ob // self.groups)

        def total(*out: Expr) -> te.Reduce:
            n, group, o, *position, oi = out

            def term(*r: Expr) -> Expr:
                b, *k, g, e = r
                source = self.source(position, k)
                left = x[(n, group * per_group + b, *source, g * each + e)]
                right = w[(group * blocks + o, b, *k, g, oi, e)]
                return cast(DType.I32, left) * cast(DType.I32, right)

            return te.reduce_sum((per_group, *kernel, parts, each), term)

        return of_groups(self.name, type_.shape, self.groups, total, (x, w))

    def reference(self, x: Array, w: Array) -> Array:
        op = ConvBlocked(stride=self.stride, dilation=self.dilation, groups=self.groups)
        return op.reference(x.astype(np.float64), in_rows(w)).astype(np.int32)


@op("matmul_bytes", fuse=Fuse.ANCHOR)
class MatMulBytes(Op):
    """The product of bytes with a matrix whose columns stand in panels.

    Shapes:
        x: u8 or i16[..., k]; w: i8[ceil(n / nr), k / each, nr, each], 4 or 2 each -> i32[..., n];
        k is a multiple of each
    """

    n: Expr

    def __post_init__(self) -> None:
        set_size(self, "n")

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        each = _each(x, w)
        if not each or x.rank < 2 or w.rank != 4:
            raise self.reject("needs rows and packed i8 columns: u8 by 4, or i16 by 2", x, w)
        panels, groups, nr, _ = w.shape
        if differs(x.shape[-1], groups * each):
            raise self.reject("the inner sizes differ", x, w)
        if is_below(panels * nr, self.n):
            raise self.reject(f"the panels hold less than {self.n} columns", x, w)
        return TensorType((*x.shape[:-1], self.n), DType.I32)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        nr, each = w.shape[-2:]

        def element(*out: Expr) -> te.Reduce:
            *row, j = out

            def term(g: Expr, e: Expr) -> Expr:
                left, right = x[(*row, g * each + e)], w[j // nr, g, j % nr, e]
                return cast(DType.I32, left) * cast(DType.I32, right)

            return te.reduce_sum((canonical(x.shape[-1] // each), each), term)

        return te.compute(self.name, type_.shape, element, inputs=(x, w))

    def reference(self, x: Array, w: Array) -> Array:
        (n,) = constants((self.n,))
        found = MatMulPacked(n=index(n)).reference(x.astype(np.float64), in_rows(w))
        return found.astype(np.int32)
