"""Product of two computed matrices on a matrix engine: see `planes.py`."""

from __future__ import annotations

from collections.abc import Callable

from dlc.core.types import DType
from dlc.graph.assume import differs
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.planes import DEPTH, ROWS, pair_sums, plane, repaired, whole_pairs
from dlc.te import tensor as te
from dlc.te.expr import Const, Expr, minimum, select
from dlc.te.simplify import canonical
from dlc.te.types import TensorType

PAIR = 2 * ROWS


@op("matmul_pair", fuse=Fuse.ANCHOR)
class MatMulPair(Op):
    """The product of two stacks of matrices by products of bf16 planes, `planes` of each.

    Shapes:
        a: f32[..., m, k]; b: f32[..., k, n] -> f32[..., m, n]; nothing broadcasts.
    """

    planes: int = 1

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        if self.planes not in (1, 2, 3):
            raise self.reject("multiplies one to three planes", a, b)
        if reason := why_not_pair(a, b):
            raise self.reject(reason, a, b)
        return TensorType((*a.shape[:-1], b.shape[-1]), DType.F32)

    def compute(self, a: te.Tensor, b: te.Tensor) -> te.Tensor:
        *stack, m, k = a.shape
        n = b.shape[-1]

        def split(*index: Expr) -> Expr:
            *place, block, row, p, c = index
            at = block * DEPTH + c
            # Rows behind the last feed only sums that nobody reads; what is behind a row, nothing.
            value: Expr = a[(*place, clamped(row, m), at)]
            value = value if fills(k) else select(at < k, value, 0.0)
            return plane(value, p, self.planes)

        def pack(*index: Expr) -> Expr:
            *place, panel, block, p, side, pair, j, half = index
            # What is behind the last row meets zeros; what is behind the last column, nobody.
            row = clamped(block * DEPTH + pair * 2 + half, k)
            return plane(b[(*place, row, clamped((panel * 2 + side) * ROWS + j, n))], p, count)

        count = self.planes
        blocks, height = _filled(k), whole_pairs(m)
        panels = _filled(n)
        rows = te.compute("rows", (*stack, blocks, height, count, DEPTH), split, inputs=(a,))
        shape = (*stack, panels, blocks, count, 2, ROWS, ROWS, 2)
        tiles = te.compute("tiles", shape, pack, inputs=(b,))

        sums = pair_sums(rows, tiles, (*stack, canonical(panels * 2), height, ROWS))

        def at(*index: Expr) -> tuple[Expr, ...]:
            *place, row, j = index
            # What an open number of columns reads is then surely whole panels.
            block = j // ROWS if isinstance(n, Const) else j // PAIR * 2 + j // ROWS % 2
            return (*place, block, row, j % ROWS)

        def once_more(*index: Expr) -> Callable[..., Expr]:
            *place, row, j = index
            return lambda c: a[(*place, row, c)] * b[(*place, c, j)]

        out = self.infer(a.type, b.type).shape
        return repaired(self.name, out, sums, at, (k,), once_more, (a, b))

    def reference(self, a: Array, b: Array) -> Array:
        return MatMul().reference(a, b)


def why_not_pair(a: TensorType, b: TensorType) -> str:
    """Why two operands have no product of planes, or ""."""
    if a.dtype is not DType.F32 or b.dtype is not DType.F32:
        return "the operands are not f32"
    if a.rank < 2 or a.rank != b.rank or differs(a.shape[-1], b.shape[-2]):
        return "the sizes differ"
    if any(differs(x, y) for x, y in zip(a.shape[:-2], b.shape[:-2], strict=True)):
        return "the stacks differ"
    return ""


def _filled(size: Expr) -> Expr:
    """How many blocks of 32 hold a size: one more than the last element's."""
    return canonical((size - 1) // PAIR + 1)


def fills(size: Expr, width: int = PAIR) -> bool:
    """Whether a size surely fills whole blocks."""
    return isinstance(size, Const) and size.value % width == 0


def clamped(position: Expr, size: Expr, width: int = PAIR) -> Expr:
    """A position in blocks, or the last one there is for those behind it."""
    return position if fills(size, width) else minimum(position, size - 1)
