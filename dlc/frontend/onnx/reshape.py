"""Converters of operators that keep the elements and change the shape, and of `Shape` itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from dlc.core.types import INDEX
from dlc.frontend.onnx import data_axes
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.registry import converter
from dlc.graph.graph import Value
from dlc.graph.ops.layout import SpaceToDepth
from dlc.graph.ops.shape import Expand, Reshape, Transpose
from dlc.te.expr import ONE, ZERO, Const, Expr, equal, select
from dlc.te.poly import from_poly
from dlc.te.simplify import canonical, surely_divides, surely_equal, surely_less, to_poly
from dlc.te.transform import loads
from dlc.te.types import is_const


@converter("Reshape", since=1)
def convert_reshape_attribute(ctx: Context, x: Value, *, shape: Sequence[int]) -> Value:
    """Until opset 5 the shape was an attribute."""
    return reshape_to(ctx, x, resolve_shape(ctx, x, [Const(n, INDEX) for n in shape], False))


@converter("Reshape", since=5)
def convert_reshape(ctx: Context, x: Value, shape: Value, *, allowzero: int = 0) -> Value:
    """The shape as an operand; -1 is what remains, 0 copies a size unless `allowzero` is set."""
    wanted = ctx.need_sizes(shape, "the new shape")
    return reshape_to(ctx, x, resolve_shape(ctx, x, wanted, bool(allowzero)))


def reshape_to(ctx: Context, x: Value, shape: Sequence[Expr]) -> Value:
    """The same elements in another shape; nothing is added where the shape is the same."""
    shape = tuple(map(canonical, shape))
    if shape == x.type.shape:
        return x
    if all(isinstance(s, Const) for s in shape):
        fixed = tuple(int(s.value) for s in shape if isinstance(s, Const))
        array = ctx.array(x)
        if array is not None and 0 < array.size == math.prod(fixed):
            return ctx.constant(array.reshape(fixed))
        known = ctx.on_elements(lambda e: e.reshape(fixed), x)
        if known is not None:
            return known
    return ctx.call(Reshape(shape=shape), x)


def each_repeated(ctx: Context, x: Value, axis: int, times: Expr) -> Value:
    """What lies along an axis, each as often as told before the next one."""
    before, (count, *behind) = x.type.shape[:axis], x.type.shape[axis:]
    apart = reshape_to(ctx, x, (*before, count, ONE, *behind))
    many = ctx.call(Expand(shape=(*before, count, times, *behind)), apart)
    return reshape_to(ctx, many, (*before, canonical(count * times), *behind))


def resolve_shape(
    ctx: Context, x: Value, wanted: Sequence[Expr], allowzero: bool
) -> tuple[Expr, ...]:
    """Replace -1 and 0 by sizes."""
    shape: list[Expr] = []
    open_axis = -1
    for axis, size in enumerate(wanted):
        if is_const(size, 0) and not allowzero:
            if axis >= x.type.rank:
                ctx.refuse(f"size 0 at axis {axis} copies a size that {x.type} does not have")
            shape.append(x.type.shape[axis])
        elif loads(size):
            return _shape_of_data(ctx, x, wanted, allowzero)
        elif is_const(size, -1):
            if open_axis >= 0:
                ctx.refuse("more than one size is -1")
            open_axis = axis
            shape.append(ONE)
        elif surely_less(size, 0):
            ctx.refuse(f"size {size} at axis {axis} is negative")
        else:
            shape.append(canonical(size))
    if open_axis >= 0:
        shape[open_axis] = _remaining(ctx, x, shape)
    _check_count(ctx, x, shape)
    return tuple(shape)


def _shape_of_data(
    ctx: Context, x: Value, wanted: Sequence[Expr], allowzero: bool
) -> tuple[Expr, ...]:
    """The same where a run says which size is 0 or -1; it checks the number of elements too."""
    copied = [
        size
        if allowzero or axis >= x.type.rank
        else select(equal(size, 0), x.type.shape[axis], size)
        for axis, size in enumerate(wanted)
    ]
    known = math.prod((select(equal(size, -1), ONE, size) for size in copied), start=ONE)
    rest = select(equal(known, 0), ZERO, x.type.elems // known)
    return tuple(ctx.data.size(select(equal(size, -1), rest, size)) for size in copied)


def _remaining(ctx: Context, x: Value, others: Sequence[Expr]) -> Expr:
    """The number of elements of `x` divided by the product of the other sizes.

    A run refuses sizes where that leaves a rest. Sizes on both sides are crossed out first:
    [batch, seq, 768] as [batch, -1] is [batch, seq * 768] whatever `batch` is.
    """
    have, need = Counter(x.type.shape), Counter(others)
    common = have & need
    total, divisor = _product(have - common), _product(need - common)
    quotient = _exact_quotient(total, divisor)
    if quotient is not None:
        return quotient
    if isinstance(total, Const) and isinstance(divisor, Const):
        ctx.refuse(f"the size -1 is {total} / {divisor}, which is no whole number")
    if surely_less(0, divisor):
        return canonical(total // divisor)
    return select(equal(divisor, 0), ZERO, total // divisor)


def _product(sizes: Counter[Expr]) -> Expr:
    return canonical(math.prod(sizes.elements(), start=ONE))


def _exact_quotient(total: Expr, divisor: Expr) -> Expr | None:
    """The quotient where every term divides; None where that is not certain."""
    if surely_equal(total, divisor):
        return ONE
    terms = to_poly(divisor, {})
    if len(terms) != 1:
        return None
    ((atoms, factor),) = terms.items()
    quotient = {}
    for have, count in to_poly(total, {}).items():
        if count % factor or Counter(atoms) - Counter(have):
            return None
        quotient[_without(have, atoms)] = count // factor
    return from_poly(quotient)


def _without(have: Sequence[Expr], atoms: Sequence[Expr]) -> tuple[Expr, ...]:
    """`have` without one occurrence of each of `atoms`."""
    kept = list(have)
    for atom in atoms:
        kept.remove(atom)
    return tuple(kept)


def _check_count(ctx: Context, x: Value, shape: Sequence[Expr]) -> None:
    """Refuse a shape whose number of elements surely differs from that of `x`."""
    have, need = x.type.elems, canonical(math.prod(shape, start=ONE))
    ctx.require_equal(
        have, need, f"{x.type} has {have} elements and the shape ({_text(shape)}) has {need}"
    )


def _text(shape: Sequence[Expr]) -> str:
    return ", ".join(map(str, shape))


@converter("Flatten", since=1)
def convert_flatten(ctx: Context, x: Value, *, axis: int = 1) -> Value:
    """A matrix: sizes before `axis` times sizes from `axis` on."""
    if not -x.type.rank <= axis <= x.type.rank:
        ctx.refuse(f"axis {axis} does not exist in rank {x.type.rank}")
    axis += x.type.rank if axis < 0 else 0
    first = math.prod(x.type.shape[:axis], start=ONE)
    return reshape_to(ctx, x, (first, math.prod(x.type.shape[axis:], start=ONE)))


@converter("Squeeze", since=1)
def convert_squeeze_attribute(ctx: Context, x: Value, *, axes: Sequence[int] = ()) -> Value:
    """Until opset 13 the axes were an attribute."""
    return squeeze(ctx, x, axes or None)


@converter("Squeeze", since=13)
def convert_squeeze(ctx: Context, x: Value, axes: Value | None = None) -> Value:
    """Remove axes of size 1; all of them where none is named."""
    if axes is not None and (found := ctx.data_only(axes)) is not None:
        return data_axes.reshape(ctx, x, data_axes.without_axes(ctx, x.type.shape, found))
    return squeeze(ctx, x, None if axes is None else ctx.ints(axes, "axes"))


def squeeze(ctx: Context, x: Value, axes: Sequence[int] | None) -> Value:
    """Remove axes of size 1."""
    if axes is None:
        if all(isinstance(s, Const) or ctx.data.reads_any(s) for s in x.type.shape):
            return _squeeze_known(ctx, x)
        if any(not isinstance(s, Const) for s in x.type.shape):
            ctx.refuse(f"which axes of {x.type} have size 1 is known only at run time")
        axes = [i for i, s in enumerate(x.type.shape) if is_const(s, 1)]
    gone = set(axes_of(ctx, axes, x.type.rank))
    for axis in gone:
        ctx.require_equal(x.type.shape[axis], ONE, f"axis {axis} of {x.type} must have size 1")
    return reshape_to(ctx, x, [s for i, s in enumerate(x.type.shape) if i not in gone])


def _squeeze_known(ctx: Context, x: Value) -> Value:
    """Remove the axes that surely have size 1; a run refuses sizes from data that are 1 too."""
    left = [s for s in x.type.shape if not is_const(s, 1)]
    shape = [
        s if isinstance(s, Const) else ctx.data.checked(select(equal(s, 1), Const(-1, INDEX), s))
        for s in left
    ]
    return reshape_to(ctx, x, shape)


@converter("Unsqueeze", since=1)
def convert_unsqueeze_attribute(ctx: Context, x: Value, *, axes: Sequence[int]) -> Value:
    """Until opset 13 the axes were an attribute."""
    return unsqueeze(ctx, x, axes)


@converter("Unsqueeze", since=13)
def convert_unsqueeze(ctx: Context, x: Value, axes: Value) -> Value:
    """Insert axes of size 1."""
    if (found := ctx.data_only(axes)) is not None:
        return data_axes.reshape(ctx, x, data_axes.with_axes(ctx, x.type.shape, found))
    return unsqueeze(ctx, x, ctx.ints(axes, "axes"))


def unsqueeze(ctx: Context, x: Value, axes: Sequence[int]) -> Value:
    """Insert axes of size 1 at these positions of the result."""
    rank = x.type.rank + len(axes)
    new = set(axes_of(ctx, axes, rank))
    if len(new) != len(axes):
        ctx.refuse(f"axes {list(axes)} name one axis twice")
    sizes = iter(x.type.shape)
    return reshape_to(ctx, x, [ONE if i in new else next(sizes) for i in range(rank)])


@converter("Transpose", since=1)
def convert_transpose(ctx: Context, x: Value, *, perm: Sequence[int] = ()) -> Value:
    """Axes in another order, by default the reverse one."""
    return transpose(ctx, x, perm or range(x.type.rank)[::-1])


def transpose(ctx: Context, x: Value, perm: Sequence[int]) -> Value:
    """Axes in another order; nothing is added where it is the same."""
    order = axes_of(ctx, perm, x.type.rank)
    if sorted(order) != list(range(x.type.rank)):
        ctx.refuse(f"perm {list(perm)} does not name every axis of {x.type} once")
    if order == tuple(range(x.type.rank)):
        return x
    known = ctx.on_elements(lambda e: e.transpose(order), x)
    return known if known is not None else ctx.call(Transpose(perm=order), x)


@converter("Shape", since=1)
def convert_shape(ctx: Context, x: Value, *, start: int = 0, end: int | None = None) -> Value:
    """The sizes of a tensor."""
    return ctx.size_tensor(_vector(x.type.shape[start:end]))


@converter("Size", since=1)
def convert_size(ctx: Context, x: Value) -> Value:
    """The number of elements."""
    return ctx.size_tensor(_vector([x.type.elems]).reshape(()))


def _vector(sizes: Sequence[Expr]) -> np.ndarray[tuple[int, ...], np.dtype[np.object_]]:
    result = np.full(len(sizes), ZERO, np.object_)
    for i, size in enumerate(sizes):
        result[i] = size
    return result


@converter("SpaceToDepth", since=1)
def convert_space_to_depth(ctx: Context, x: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    """Channels made of blocks of pixels; `mode` says which of them vary slowest."""
    if mode == "DCR":
        return ctx.call(SpaceToDepth(blocksize=blocksize), x)
    if mode != "CRD":
        ctx.refuse(f"mode = '{mode}' is not known")
    if x.type.rank != 4 or blocksize < 1:
        ctx.refuse(f"{x.type} does not make blocks of {blocksize}")
    n, c, h, w = x.type.shape
    if not all(surely_divides(blocksize, s) for s in (h, w)):
        ctx.refuse(f"{h} by {w} pixels do not surely make blocks of {blocksize}")
    rows, columns = h // blocksize, w // blocksize
    b = Const(blocksize, INDEX)
    blocks = transpose(ctx, reshape_to(ctx, x, (n, c, rows, b, columns, b)), (0, 1, 3, 5, 2, 4))
    return reshape_to(ctx, blocks, (n, c * (blocksize * blocksize), rows, columns))
