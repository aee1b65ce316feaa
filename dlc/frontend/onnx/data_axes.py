"""Axes that are known only from data.

Which axis an operator works on is decided by reshaping: sizes that depend on the axes make a tensor
of a fixed rank in which it is known, so no operator needs to know.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dlc.frontend.onnx.context import Context
from dlc.graph.graph import Value
from dlc.graph.ops.shape import Reshape
from dlc.te.expr import FALSE, ONE, TRUE, ZERO, Expr, both, either, equal, index, select
from dlc.te.types import Shape

_INVALID = index(-1)  # a size that a run refuses


def split_at(ctx: Context, x: Value, axis: Expr) -> Value:
    """x as [sizes before the axis, the size along it, sizes behind it]."""
    at = _from_front(axis, x.type.rank)
    sizes = list(enumerate(x.type.shape))
    before = math.prod((select(index(d) < at, n, ONE) for d, n in sizes), start=ONE)
    behind = math.prod((select(at < d, n, ONE) for d, n in sizes), start=ONE)
    parts = [before, _pick(x.type.shape, at), behind]
    return reshape(ctx, x, [ctx.data.size(part) for part in parts])


def fold_axes(ctx: Context, x: Value, axes: Sequence[Expr]) -> Value:
    """x with two axes for each of its own: one of those named by `axes` has its size behind."""
    sizes: list[Expr] = []
    named = _named(axes, x.type.rank)
    fits = equal(sum((select(found, ONE, ZERO) for found in named), start=ZERO), len(axes))
    for size, found in zip(x.type.shape, named, strict=True):
        kept, folded = select(found, ONE, size), select(found, size, ONE)
        sizes += [ctx.data.size(select(fits, n, _INVALID)) for n in (kept, folded)]
    return reshape(ctx, x, sizes)


def without_axes(ctx: Context, shape: Shape, axes: Sequence[Expr]) -> list[Expr]:
    """A shape without the axes named."""
    named = _named(axes, len(shape))
    place: Expr = ZERO
    sizes: list[Expr] = [ZERO] * (len(shape) - len(axes))
    for size, found in zip(shape, named, strict=True):
        for position, so_far in enumerate(sizes):
            here = both(equal(place, position), _not(found))
            sizes[position] = select(here, size, so_far)
        place = place + select(found, ZERO, ONE)
    fits = equal(place, len(sizes))  # else an axis is named twice, or there is none
    return [ctx.data.size(select(fits, size, _INVALID)) for size in sizes]


def with_axes(ctx: Context, shape: Shape, axes: Sequence[Expr]) -> list[Expr]:
    """A shape with axes of size 1 at the places that `axes` names in the result."""
    named = _named(axes, len(shape) + len(axes))
    place: Expr = ZERO
    sizes: list[Expr] = []
    for found in named:
        sizes.append(select(found, ONE, _pick(shape, place)))
        place = place + select(found, ZERO, ONE)
    fits = equal(place, len(shape))
    return [ctx.data.size(select(fits, size, _INVALID)) for size in sizes]


def of_axis(
    axes: Sequence[Expr], rank: int, values: Sequence[Expr], default: Sequence[Expr]
) -> list[Expr]:
    """For each of the axes, the value that belongs to it, or its default."""
    found: list[Expr] = list(default)
    for axis, value in zip(axes, values, strict=True):
        at = _from_front(axis, rank)
        found = [select(equal(at, d), value, so_far) for d, so_far in enumerate(found)]
    return found


def reshape(ctx: Context, x: Value, shape: Sequence[Expr]) -> Value:
    """x in a shape that has as many elements; a run checks that."""
    return ctx.call(Reshape(shape=tuple(shape)), x)


def _named(axes: Sequence[Expr], rank: int) -> list[Expr]:
    """For each axis whether it is named."""
    found: list[Expr] = [FALSE] * rank
    for axis in axes:
        at = _from_front(axis, rank)
        found = [either(so_far, equal(at, d)) for d, so_far in enumerate(found)]
    return found


def _from_front(axis: Expr, rank: int) -> Expr:
    return select(axis < 0, axis + rank, axis)


def _pick(shape: Shape, at: Expr) -> Expr:
    """The size at a position; one that a run refuses where there is none."""
    found: Expr = _INVALID
    for d, size in enumerate(shape):
        found = select(equal(at, d), size, found)
    return found


def _not(cond: Expr) -> Expr:
    return select(cond, FALSE, TRUE)
