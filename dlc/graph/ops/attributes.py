"""Attributes that are sizes or axes, brought into one form when an operator is built."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dlc.core.count import show_count
from dlc.graph.op import Op
from dlc.te.expr import Const, Expr, ExprLike, index
from dlc.te.simplify import canonical
from dlc.te.types import TensorType


def set_sizes(op: Op, *fields: str) -> None:
    """Turn fields that hold ints and size expressions into tuples of canonical expressions."""
    for name in fields:
        object.__setattr__(op, name, as_sizes(getattr(op, name)))


def set_size(op: Op, field: str) -> None:
    """Turn a field that holds an int or a size expression into a canonical expression."""
    object.__setattr__(op, field, as_sizes((getattr(op, field),))[0])


def as_sizes(values: Iterable[ExprLike]) -> tuple[Expr, ...]:
    """Canonical size expressions."""
    return tuple(canonical(index(v)) for v in values)


def constants(values: Sequence[Expr]) -> tuple[int, ...]:
    """The values of size expressions that are constants; a reference has no others."""
    found = [v.value for v in values if isinstance(v, Const)]
    assert len(found) == len(values), f"sizes without a value: {values}"
    return tuple(int(v) for v in found)


def normal_axis(op: Op, axis: int, rank: int, *operands: TensorType) -> int:
    """The axis counted from the front; a negative one counts from the back."""
    if not -rank <= axis < rank:
        raise op.reject(f"there is no axis {axis} in {show_count(rank, 'dimension')}", *operands)
    return axis % rank


def normal_axes(op: Op, axes: Sequence[int], x: TensorType) -> tuple[int, ...]:
    """Distinct axes counted from the front, in order."""
    found = sorted(normal_axis(op, a, x.rank, x) for a in axes)
    if len(set(found)) != len(found):
        raise op.reject(f"an axis is named twice in {tuple(axes)}", x)
    return tuple(found)
