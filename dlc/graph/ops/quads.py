"""Products of bytes with constant weights, for vectors that add four products in each lane.

The weights of four summands stand side by side, as the bytes of a row do. Sums are whole numbers,
so they are exact, in whichever order.
"""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.graph.assume import differs, is_below
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.attributes import as_sizes, constants
from dlc.graph.ops.conv_blocked import BlockedConv, ConvBlocked
from dlc.graph.ops.matmul import MatMulPacked
from dlc.graph.ops.neighbours import in_rows, side_by_side
from dlc.te import tensor as te
from dlc.te.expr import Expr, cast, index
from dlc.te.simplify import canonical
from dlc.te.types import TensorType

QUAD = 4


def pack_quads(w: Array) -> Array:
    """Constant weights, whole numbers from -128 to 127, as they lie in memory.

    Shapes:
        w: [..., c, columns] -> i8[..., c / 4, columns, 4]
    """
    return side_by_side(w.astype(np.int8), QUAD)


@op("conv_quads", fuse=Fuse.ANCHOR)
class ConvQuads(BlockedConv):
    """Convolution from blocked to blocked channels by products of bytes.

    Shapes:
        x: u8[n, cb, *spatial, c]; w: i8[ob, cb, *kernel, c / 4, oc, 4]
        -> i32[n, ob, *out, oc]
    """

    stride: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        if x.dtype is not DType.U8 or w.dtype is not DType.I8 or w.rank != x.rank + 2:
            raise self.reject("needs a blocked u8 image and i8 weights in quads", x, w)
        (n, cb, *sizes, c), (ob, wb, *kernel, quads, oc, each) = x.shape, w.shape
        if differs(each, QUAD) or differs(c, quads * QUAD) or differs(cb, wb):
            raise self.reject("image and weights differ in their channels", x, w)
        return TensorType((n, ob, *self.spatial(x, w, sizes, kernel), oc), DType.I32)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        _, cb, *kernel, quads, _, each = w.shape

        def pixel(*out: Expr) -> te.Reduce:
            n, o, *position, oi = out

            def term(*r: Expr) -> Expr:
                b, *k, q, e = r
                left = x[(n, b, *self.source(position, k), q * QUAD + e)]
                return cast(DType.I32, left) * cast(DType.I32, w[(o, b, *k, q, oi, e)])

            return te.reduce_sum((cb, *kernel, quads, each), term)

        return te.compute(self.name, type_.shape, pixel, inputs=(x, w))

    def reference(self, x: Array, w: Array) -> Array:
        op = ConvBlocked(stride=self.stride, dilation=self.dilation)
        return op.reference(x.astype(np.float64), in_rows(w)).astype(np.int32)


@op("matmul_quads", fuse=Fuse.ANCHOR)
class MatMulQuads(Op):
    """The product of bytes with a matrix whose columns stand in panels.

    Shapes:
        x: u8[..., k]; w: i8[ceil(n / nr), k / 4, nr, 4] -> i32[..., n]; k is a multiple of 4
    """

    n: Expr

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", as_sizes((self.n,))[0])

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        if x.dtype is not DType.U8 or w.dtype is not DType.I8 or x.rank < 2 or w.rank != 4:
            raise self.reject("needs u8 rows and packed i8 columns in quads", x, w)
        panels, quads, nr, each = w.shape
        if differs(each, QUAD) or differs(x.shape[-1], quads * QUAD):
            raise self.reject("the inner sizes differ", x, w)
        if is_below(panels * nr, self.n):
            raise self.reject(f"the panels hold less than {self.n} columns", x, w)
        return TensorType((*x.shape[:-1], self.n), DType.I32)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        nr = w.shape[-2]

        def element(*out: Expr) -> te.Reduce:
            *row, j = out

            def term(q: Expr, e: Expr) -> Expr:
                left, right = x[(*row, q * QUAD + e)], w[j // nr, q, j % nr, e]
                return cast(DType.I32, left) * cast(DType.I32, right)

            return te.reduce_sum((canonical(x.shape[-1] // QUAD), index(QUAD)), term)

        return te.compute(self.name, type_.shape, element, inputs=(x, w))

    def reference(self, x: Array, w: Array) -> Array:
        (n,) = constants((self.n,))
        found = MatMulPacked(n=index(n)).reference(x.astype(np.float64), in_rows(w))
        return found.astype(np.int32)
