"""Tensor types: a shape of size expressions and an element type."""

from __future__ import annotations

from dataclasses import dataclass

from dlc.core.errors import InternalError
from dlc.core.types import INDEX, DType
from dlc.te.expr import Const, Expr, ExprLike, index
from dlc.te.simplify import canonical, surely_equal

Shape = tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """`f32[batch, 3, 224, 224]`. Sizes are kept in canonical form, so equal sizes compare equal."""

    shape: Shape
    dtype: DType = DType.F32

    def __init__(self, shape: tuple[ExprLike, ...], dtype: DType = DType.F32) -> None:
        sizes = tuple(canonical(index(s)) for s in shape)
        if any(s.dtype is not INDEX for s in sizes):
            raise InternalError(detail=f"a shape of something not an index: {shape}")
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "dtype", dtype)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every size is a constant."""
        return all(isinstance(s, Const) for s in self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The sizes as ints; only for static types."""
        return tuple(const_size(s) for s in self.shape)

    @property
    def elems(self) -> Expr:
        """Number of elements."""
        return elements_of(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape)) or '()'}]"


def elements_of(shape: Shape) -> Expr:
    """The number of elements of a tensor, or of some of its axes."""
    total: Expr = Const(1, INDEX)
    for size in shape:
        total = total * size
    return canonical(total)


def same_shape(a: Shape, b: Shape) -> bool:
    """Whether two shapes are surely equal, size by size."""
    return len(a) == len(b) and all(map(surely_equal, a, b))


def const_size(size: Expr) -> int:
    """The value of a size that is known to be a constant."""
    if not isinstance(size, Const):
        raise InternalError(detail=f"size {size} is not a constant")
    return int(size.value)


def const_or_none(size: Expr) -> int | None:
    """The value of a constant size, or None where only a run knows it."""
    return int(size.value) if isinstance(size, Const) else None


def const_or(size: Expr, otherwise: int) -> int:
    """The value of a constant size, or what to take it for where only a run knows it."""
    return int(size.value) if isinstance(size, Const) else otherwise


def is_const(size: Expr, value: int) -> bool:
    """Whether a size is surely this constant."""
    return isinstance(size, Const) and size.value == value
