"""Product of two computed matrices by pairs of bf16 in vectors: see `pairs.py`."""

from __future__ import annotations

from dlc.core.types import DType
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.pairs import PAIR
from dlc.graph.ops.planes import DEPTH, ROWS
from dlc.graph.ops.planes_pair import clamped, fills, why_not_pair
from dlc.te import tensor as te
from dlc.te.expr import ZERO, Expr, UnOp, cast, ceil_div, index, select, unary
from dlc.te.simplify import canonical
from dlc.te.types import TensorType


@op("matmul_pairs_computed", fuse=Fuse.ANCHOR)
class MatMulPairsComputed(Op):
    """The product of two stacks of matrices, both rounded to bf16 by the kernel that multiplies.

    Columns are packed in tiles of 16 pairs for 16 columns, as for a matrix engine.

    Shapes:
        a: f32[..., m, k]; b: f32[..., k, n] -> f32[..., m, n]; nothing broadcasts.
    """

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        if reason := why_not_pair(a, b):
            raise self.reject(reason, a, b)
        return TensorType((*a.shape[:-1], b.shape[-1]), DType.F32)

    def compute(self, a: te.Tensor, b: te.Tensor) -> te.Tensor:
        *stack, m, k = a.shape
        n = b.shape[-1]
        blocks, panels = canonical(ceil_div(k, DEPTH)), canonical(ceil_div(n, ROWS))

        def rounded(*at: Expr) -> Expr:
            value = cast(DType.BF16, unary(UnOp.FLUSH, a[at]))
            return value if fills(k) else select(at[-1] < k, value, 0.0)

        def pack(*at: Expr) -> Expr:
            *place, panel, block, _, _, pair, j, half = at
            row = block * DEPTH + pair * PAIR + half
            # What is behind the last column is summed up for nobody.
            column = clamped(panel * ROWS + j, n, ROWS)
            value = cast(DType.BF16, b[(*place, row, column)])
            return value if fills(k) else select(row < k, value, 0.0)

        rows = te.compute("rows", (*stack, m, canonical(blocks * DEPTH)), rounded, inputs=(a,))
        one = index(1)
        shape = (*stack, panels, blocks, one, one, index(ROWS), index(ROWS), index(PAIR))
        tiles = te.compute("tiles", shape, pack, inputs=(b,))

        def element(*out: Expr) -> te.Reduce:
            *place, row, j = out

            def term(block: Expr, pair: Expr, half: Expr) -> Expr:
                left = rows[(*place, row, block * DEPTH + pair * PAIR + half)]
                right = tiles[(*place, j // ROWS, block, ZERO, ZERO, pair, j % ROWS, half)]
                return cast(DType.F32, left) * cast(DType.F32, right)

            return te.reduce_sum((blocks, index(ROWS), index(PAIR)), term)

        return te.compute(self.name, (*stack, m, n), element, inputs=(rows, tiles))

    def reference(self, a: Array, b: Array) -> Array:
        return MatMul().reference(a, b)
