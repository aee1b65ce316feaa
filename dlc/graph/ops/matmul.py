"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from dlc.core.types import DType
from dlc.graph.assume import differs, is_below
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.attributes import constants, set_size
from dlc.graph.ops.precision import narrow, product, product_dtype, widen
from dlc.te import tensor as te
from dlc.te.expr import ZERO, Expr, cast
from dlc.te.types import Shape, TensorType, is_const

_NARROW = (DType.F16, DType.BF16, DType.I8)


@op("matmul", fuse=Fuse.ANCHOR, onnx="MatMul")
class MatMul(Op):
    """The matrix product, as NumPy's `matmul`: vectors, and stacks that broadcast.

    The products of two operands of 8-bit integers are summed in i32.

    Shapes:
        a: [..., m, k]; b: [..., k, n] -> [..., m, n]; a vector [k] gives no m, or no n.

    Source: https://onnx.ai/onnx/operators/onnx__MatMul.html
    """

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        dtype = product_dtype(a.dtype, b.dtype)
        if dtype is None or a.rank < 1 or b.rank < 1:
            raise self.reject("needs two operands of one type and of 1 or more dimensions", a, b)
        if differs(a.shape[-1], b.shape[max(0, b.rank - 2)]):
            raise self.reject("the inner sizes differ", a, b)
        stacks = a.shape[:-2], b.shape[:-2]
        for x, y in zip(reversed(stacks[0]), reversed(stacks[1]), strict=False):
            if not is_const(x, 1) and not is_const(y, 1) and differs(x, y):
                raise self.reject(f"stacks of {x} and {y} matrices do not broadcast", a, b)
        stack = te.broadcast_shape(stacks)
        return TensorType((*stack, *a.shape[-2:-1], *b.shape[1:][-1:]), dtype)

    def compute(self, a: te.Tensor, b: te.Tensor) -> te.Tensor:
        type_ = self.infer(a.type, b.type)
        rows, columns = min(1, a.type.rank - 1), min(1, b.type.rank - 1)

        def element(*out: Expr) -> te.Reduce:
            stack = out[: len(out) - rows - columns]
            row = out[len(stack) : len(stack) + rows]
            column = out[len(stack) + rows :]
            left, right = _aligned(a.shape[:-2], stack), _aligned(b.shape[:-2], stack)
            return te.reduce_sum(
                (a.shape[-1],), lambda k: product(a[(*left, *row, k)], b[(*right, k, *column)])
            )

        return narrow(te.compute(self.name, type_.shape, element, inputs=(a, b)), type_.dtype)

    def reference(self, a: Array, b: Array) -> Array:
        dtype = np.int32 if a.dtype.itemsize == 1 and a.dtype.kind in "iu" else a.dtype
        if a.dtype.kind in "iu":
            return np.asarray(np.matmul(a.astype(dtype), b.astype(dtype)))
        return np.asarray(np.matmul(*as_f64(a, b)))


def _aligned(shape: Shape, stack: Sequence[Expr]) -> list[Expr]:
    tail = stack[len(stack) - len(shape) :]
    return [ZERO if is_const(size, 1) else i for size, i in zip(shape, tail, strict=True)]


@op("matmul_packed", fuse=Fuse.ANCHOR)
class MatMulPacked(Op):
    """The product with a matrix whose columns stand in panels; the last panel may stick out.

    Of a stack of matrices, each meets rows of its own. A matrix of fewer bytes, f16, bf16 or i8,
    may meet rows of f32: products are of float32.

    Shapes:
        x: [*stack, ..., k]; w: [*stack, ceil(n / nr), k, nr] -> [*stack, ..., n]
    """

    n: Expr

    def __post_init__(self) -> None:
        set_size(self, "n")

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        dtype = product_dtype(x.dtype, w.dtype)
        if x.dtype is DType.F32 and w.dtype in _NARROW:
            dtype = x.dtype
        if dtype is None or w.rank < 3:
            raise self.reject("needs rows and packed columns of one type", x, w)
        check_stack(self, x, w)
        panels, k, nr = w.shape[-3:]
        if differs(x.shape[-1], k):
            raise self.reject("the inner sizes differ", x, w)
        if is_below(panels * nr, self.n):
            raise self.reject(f"the panels hold less than {self.n} columns", x, w)
        return TensorType((*x.shape[:-1], self.n), dtype)

    def compute(self, x: te.Tensor, w: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type)
        (*stack, _, size, nr) = w.shape

        def element(*out: Expr) -> te.Reduce:
            *row, j = out

            def term(k: Expr) -> Expr:
                a, b = x[(*row, k)], w[(*row[: len(stack)], j // nr, k, j % nr)]
                return product(a, cast(a.dtype, b) if a.dtype is DType.F32 else b)

            return te.reduce_sum((size,), term)

        return narrow(te.compute(self.name, type_.shape, element, inputs=(x, w)), type_.dtype)

    def reference(self, x: Array, w: Array) -> Array:
        *stack, panels, k, nr = w.shape
        (n,) = constants((self.n,))
        columns = np.moveaxis(w, -3, -2).reshape(*stack, k, panels * nr)[..., :n]
        rows = x.reshape(*stack, prod(x.shape[len(stack) : -1]), k) if stack else x
        return MatMul().reference(rows, columns).reshape(*x.shape[:-1], n)


def check_stack(op: Op, x: TensorType, w: TensorType) -> None:
    """Refuse rows that are not those of a stack of packed matrices."""
    stack = w.shape[:-3]
    if x.rank <= len(stack) or any(differs(a, b) for a, b in zip(x.shape, stack, strict=False)):
        raise op.reject("the rows are not those of the stack", x, w)


@op("einsum", fuse=Fuse.ANCHOR)
class Einsum(Op):
    """A sum of products by named subscripts, as in `bij,bjk->bik`: each letter is one dimension.

    The result's letters are always spelled out; there is no ellipsis and no broadcasting.

    Source: https://onnx.ai/onnx/operators/onnx__Einsum.html
    """

    equation: str

    def infer(self, *operands: TensorType) -> TensorType:
        terms, result = self._terms()
        lengths = [len(t) for t in terms] == [t.rank for t in operands]
        if not lengths or not all(c.isalpha() for c in "".join((*terms, result))):
            raise self.reject(f"'{self.equation}' does not fit the operands", *operands)
        sizes: dict[str, Expr] = {}
        for term, operand in zip(terms, operands, strict=True):
            for letter, size in zip(term, operand.shape, strict=True):
                if differs(sizes.setdefault(letter, size), size):
                    raise self.reject(f"'{letter}' has two sizes", *operands)
        if len(set(result)) != len(result) or not set(result) <= set(sizes):
            raise self.reject(f"'{result}' is no list of operands' letters", *operands)
        dtype = operands[0].dtype
        if any(t.dtype is not dtype for t in operands) or not (dtype.is_float or dtype.is_int):
            raise self.reject("the operands' types do not fit", *operands)
        return TensorType(tuple(sizes[c] for c in result), dtype)

    def _terms(self) -> tuple[list[str], str]:
        left, _, right = self.equation.replace(" ", "").partition("->")
        return left.split(","), right

    def compute(self, *operands: te.Tensor) -> te.Tensor:
        type_ = self.infer(*(t.type for t in operands))
        terms, result = self._terms()
        sizes: dict[str, Expr] = {}
        for term, operand in zip(terms, operands, strict=True):
            sizes.update(zip(term, operand.shape, strict=True))
        summed = [c for c in sizes if c not in result]

        def element(*out: Expr) -> te.Reduce:
            def value(*r: Expr) -> Expr:
                env = dict(zip((*result, *summed), (*out, *r), strict=True))
                loads = [
                    t[tuple(env[c] for c in term)] for term, t in zip(terms, operands, strict=True)
                ]
                total = widen(loads[0])
                for load in loads[1:]:
                    total = total * widen(load)
                return total

            return te.reduce_sum([sizes[c] for c in summed], value)

        made = te.compute(self.name, type_.shape, element, inputs=tuple(dict.fromkeys(operands)))
        return narrow(made, type_.dtype)

    def reference(self, *operands: Array) -> Array:
        return np.asarray(np.einsum(self.equation, *as_f64(*operands)))
