"""Products with constant weights in pairs of bf16, for vectors that add two products in each lane.

The weights of a pair of summands stand side by side, as they do in the rows. Both factors are
rounded to bf16, and sums are float32. A factor that rounds to infinity is infinite.
"""

from __future__ import annotations

from dlc.core.types import DType
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.assume import differs, is_below
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.attributes import as_sizes, constants, set_size
from dlc.graph.ops.conv_blocked import BlockedConv, ConvBlocked, group_of
from dlc.graph.ops.matmul import MatMulPacked
from dlc.graph.ops.neighbours import in_rows, side_by_side
from dlc.graph.ops.planes import split_planes
from dlc.te import tensor as te
from dlc.te.expr import ZERO, Expr, cast, index
from dlc.te.simplify import canonical
from dlc.te.types import TensorType

PAIR = 2
ROUNDED = 16  # floats of a row that are rounded at once


def pack_pairs(w: Array) -> Array:
    """Constant weights as they lie in memory, rounded to bf16.

    Shapes:
        w: f32[..., c, columns] -> bf16[..., c / 2, columns, 2]
    """
    bits = split_planes(w, 1)[0]
    return side_by_side(bits, PAIR).view(NUMPY_DTYPES[DType.BF16])


@op("conv_pairs", fuse=Fuse.ANCHOR)
class ConvPairs(BlockedConv):
    """Convolution from blocked to blocked channels by products of pairs of bf16.

    Shapes:
        x: f32[n, cb, *spatial, c]; w: bf16[ob, cb / groups, *kernel, c / 2, oc, 2]
        -> f32[n, ob, *out, oc]
    """

    stride: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        if x.dtype is not DType.F32 or w.dtype is not DType.BF16 or w.rank != x.rank + 2:
            raise self.reject("needs a blocked f32 image and bf16 weights in pairs", x, w)
        (n, cb, *sizes, c), (ob, wb, *kernel, pairs, oc, half) = x.shape, w.shape
        unequal = differs(cb, wb * self.groups) or differs(ob % self.groups, 0)
        if differs(half, PAIR) or differs(c, pairs * PAIR) or unequal:
            raise self.reject("image and weights differ in their channels", x, w)
        return TensorType((n, ob, *self.spatial(x, w, sizes, kernel), oc), DType.F32)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        ob, per_group, *kernel, pairs, _, half = w.shape
        *lead, c = x.shape
        blocks = canonical(ob // self.groups)

        def rounded(*at: Expr) -> Expr:
            *outer, _, i = at
            return cast(DType.BF16, x[(*outer, i)])

        rows = te.compute("rows", (*lead, index(1), c), rounded, inputs=(x,))

        def pixel(*out: Expr) -> te.Reduce:
            n, group, o, *position, oi = out

            def term(*r: Expr) -> Expr:
                b, *k, p, h = r
                source = (*self.source(position, k), ZERO, p * PAIR + h)
                left = rows[(n, group * per_group + b, *source)]
                right = w[(group * blocks + o, b, *k, p, oi, h)]
                return cast(DType.F32, left) * cast(DType.F32, right)

            return te.reduce_sum((per_group, *kernel, pairs, half), term)

        if self.groups == 1:
            return te.compute(
                self.name, type_.shape, lambda *at: pixel(at[0], ZERO, *at[1:]), inputs=(rows, w)
            )
        # With a dimension of their own, groups are told from the columns of one group.
        n, _, *rest = type_.shape
        shape = (n, index(self.groups), blocks, *rest)
        sums = te.compute(self.name, shape, pixel, inputs=(rows, w))

        at = group_of(blocks)
        return te.compute("joined", type_.shape, lambda *out: sums[at(*out)], inputs=(sums,))

    def reference(self, x: Array, w: Array) -> Array:
        op = ConvBlocked(stride=self.stride, dilation=self.dilation, groups=self.groups)
        return op.reference(x, in_rows(w))


@op("matmul_pairs", fuse=Fuse.ANCHOR)
class MatMulPairs(Op):
    """The product with a matrix whose columns stand in panels, by products of pairs of bf16.

    Shapes:
        x: f32[..., k]; w: bf16[ceil(n / nr), k / 2, nr, 2] -> f32[..., n]; k is a multiple of 16
    """

    n: Expr

    def __post_init__(self) -> None:
        set_size(self, "n")

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        if x.dtype is not DType.F32 or w.dtype is not DType.BF16 or x.rank < 2 or w.rank != 4:
            raise self.reject("needs f32 rows and packed bf16 columns in pairs", x, w)
        panels, pairs, nr, half = w.shape
        if differs(half, PAIR) or differs(x.shape[-1], pairs * PAIR):
            raise self.reject("the inner sizes differ", x, w)
        if differs(x.shape[-1] % ROUNDED, 0):
            raise self.reject(f"the inner size is no multiple of {ROUNDED}", x, w)
        if is_below(panels * nr, self.n):
            raise self.reject(f"the panels hold less than {self.n} columns", x, w)
        return TensorType((*x.shape[:-1], self.n), DType.F32)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        *lead, k = x.shape
        nr = w.shape[-2]
        blocks = canonical(k // ROUNDED)

        def rounded(*at: Expr) -> Expr:
            *row, block, _, i = at
            return cast(DType.BF16, x[(*row, block * ROUNDED + i)])

        shape = (*lead, blocks, index(1), index(ROUNDED))
        rows = te.compute("rows", shape, rounded, inputs=(x,))

        def element(*out: Expr) -> te.Reduce:
            *row, j = out

            def term(block: Expr, p: Expr, h: Expr) -> Expr:
                left = rows[(*row, block, index(0), p * PAIR + h)]
                right = w[j // nr, block * (ROUNDED // PAIR) + p, j % nr, h]
                return cast(DType.F32, left) * cast(DType.F32, right)

            return te.reduce_sum(as_sizes((blocks, ROUNDED // PAIR, PAIR)), term)

        return te.compute(self.name, type_.shape, element, inputs=(rows, w))

    def reference(self, x: Array, w: Array) -> Array:
        (n,) = constants((self.n,))
        return MatMulPacked(n=index(n)).reference(x, in_rows(w))
