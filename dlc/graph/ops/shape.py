"""Operators that move elements without changing them.

Shapes, offsets and counts are size expressions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dlc.core.types import DType
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.assume import assume, differs, is_below
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.attributes import constants, normal_axis, set_sizes
from dlc.graph.ops.reindex import padded_element, reshaped_index
from dlc.te import tensor as te
from dlc.te.expr import ONE, ZERO, Const, Expr, both, const, either, equal, select
from dlc.te.simplify import surely_at_most, surely_differ, surely_equal, surely_less
from dlc.te.types import TensorType, is_const

_MOST_IN_TURN = 16  # parts of a concatenation


@op("reshape", fuse=Fuse.INJECTIVE)
class Reshape(Op):
    """The same elements in the same order, in another shape."""

    shape: tuple[Expr, ...]

    def __post_init__(self) -> None:
        set_sizes(self, "shape")

    def infer(self, x: TensorType) -> TensorType:
        result = TensorType(self.shape, x.dtype)
        if differs(x.elems, result.elems):
            raise self.reject(f"{x.elems} elements do not fill {result}", x)
        return result

    def compute(self, x: te.Tensor) -> te.Tensor:
        return te.compute(
            self.name,
            self.shape,
            lambda *i: x[reshaped_index(i, self.shape, x.shape)],
            inputs=(x,),
        )

    def reference(self, x: Array) -> Array:
        return x.reshape(constants(self.shape))


def undone(perm: Sequence[int]) -> tuple[int, ...]:
    """The order of axes that puts them back where they were before `perm`."""
    return tuple(perm.index(d) for d in range(len(perm)))


@op("transpose", fuse=Fuse.INJECTIVE)
class Transpose(Op):
    """Axis d of the result is axis perm[d] of x."""

    perm: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        if sorted(self.perm) != list(range(x.rank)):
            raise self.reject(f"{self.perm} is no order of {x.rank} axes", x)
        return TensorType(tuple(x.shape[d] for d in self.perm), x.dtype)

    def compute(self, x: te.Tensor) -> te.Tensor:
        def element(*i: Expr) -> Expr:
            return x[tuple(i[d] for d in undone(self.perm))]

        return te.compute(self.name, self.infer(x.type).shape, element, inputs=(x,))

    def reference(self, x: Array) -> Array:
        return x.transpose(self.perm)


@op("concat", fuse=Fuse.INJECTIVE)
class Concat(Op):
    """Operands one after the other along an axis."""

    axis: int

    def infer(self, *parts: TensorType) -> TensorType:
        if not parts:
            raise self.reject("needs an operand")
        first = parts[0]
        axis = normal_axis(self, self.axis, first.rank, *parts)
        total: Expr = ZERO
        for part in parts:
            if part.rank != first.rank or part.dtype is not first.dtype:
                raise self.reject("the operands differ in rank or type", *parts)
            pairs = zip(part.shape, first.shape, strict=True)
            if any(d != axis and differs(a, b) for d, (a, b) in enumerate(pairs)):
                raise self.reject(f"the operands differ in another axis than {axis}", *parts)
            total = total + part.shape[axis]
        return TensorType((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype)

    def compute(self, *parts: te.Tensor) -> te.Tensor:
        axis = normal_axis(self, self.axis, parts[0].type.rank, parts[0].type)

        def element(*i: Expr) -> Expr:
            ends: list[Expr] = [ZERO]
            for part in parts:
                ends.append(ends[-1] + part.shape[axis])
            loads = [
                part[(*i[:axis], i[axis] - start, *i[axis + 1 :])]
                for part, start in zip(parts, ends, strict=False)
            ]
            return _choose(i[axis], loads, ends[1:-1])

        shape = self.infer(*(p.type for p in parts)).shape
        return te.compute(self.name, shape, element, inputs=tuple(dict.fromkeys(parts)))

    def reference(self, *parts: Array) -> Array:
        return np.concatenate(parts, self.axis)


def _choose(at: Expr, values: Sequence[Expr], ends: Sequence[Expr]) -> Expr:
    """The value whose part of an axis a position is in: parts end at `ends`, but for the last.

    Few are asked for one by one; of many, a half at a time, so that the expression stays low.
    """
    if len(values) > _MOST_IN_TURN:
        half = len(values) // 2
        below = _choose(at, values[:half], ends[: half - 1])
        return select(at < ends[half - 1], below, _choose(at, values[half:], ends[half:]))
    value = values[-1]
    for other, end in zip(reversed(values[:-1]), reversed(ends), strict=True):
        value = select(at < end, other, value)
    return value


@op("empty", fuse=Fuse.OPAQUE)
class Empty(Op):
    """A tensor whose elements nobody may read before they are placed: memory, and no kernel."""

    shape: tuple[Expr, ...]
    dtype: DType = DType.F32

    def __post_init__(self) -> None:
        set_sizes(self, "shape")

    def infer(self) -> TensorType:
        return TensorType(self.shape, self.dtype)

    def compute(self) -> te.Tensor:
        return te.compute(self.name, self.shape, lambda *i: const(0, self.dtype), inputs=())

    def reference(self) -> Array:
        (result,) = as_f64(np.zeros(constants(self.shape), NUMPY_DTYPES[self.dtype]))
        return result


@op("insert", fuse=Fuse.INJECTIVE)
class Insert(Op):
    """`base` with the box at `offset` replaced by `piece`; shares the memory of `base`."""

    offset: tuple[Expr, ...]

    def __post_init__(self) -> None:
        set_sizes(self, "offset")

    def infer(self, base: TensorType, piece: TensorType) -> TensorType:
        if base.dtype is not piece.dtype or not base.rank == piece.rank == len(self.offset):
            raise self.reject("base, piece and offset differ in rank or type", base, piece)
        for size, part, at in zip(base.shape, piece.shape, self.offset, strict=True):
            if is_below(size, at + part) or is_below(at, 0):
                raise self.reject(f"a box of {part} at {at} sticks out of {size}", base, piece)
        return base

    def compute(self, base: te.Tensor, piece: te.Tensor) -> te.Tensor:
        return te.insert(self.name, base, piece, self.offset)

    def reference(self, base: Array, piece: Array) -> Array:
        result = base.astype(np.result_type(base, piece))
        starts = constants(self.offset)
        result[tuple(slice(s, s + n) for s, n in zip(starts, piece.shape, strict=True))] = piece
        return result


@op("slice", fuse=Fuse.INJECTIVE)
class Slice(Op):
    """`sizes` elements of each axis, from `starts` on, `steps` apart (backwards if negative)."""

    starts: tuple[Expr, ...]
    sizes: tuple[Expr, ...]
    steps: tuple[int, ...] = ()  # none: all 1

    def __post_init__(self) -> None:
        set_sizes(self, "starts", "sizes")
        if all(s == 1 for s in self.steps):
            object.__setattr__(self, "steps", ())

    @property
    def strides(self) -> tuple[int, ...]:
        """The step of each axis."""
        return self.steps or (1,) * len(self.starts)

    def infer(self, x: TensorType) -> TensorType:
        if not len(self.starts) == len(self.sizes) == len(self.strides) == x.rank:
            raise self.reject("needs a start, a size and a step for each axis", x)
        for n, start, size, step in zip(
            x.shape, self.starts, self.sizes, self.strides, strict=True
        ):
            last = start + (size - 1) * step
            if step == 0:
                raise self.reject("a step is 0", x)
            ends = (start, last)
            if surely_less(0, size) and any(
                surely_less(e, 0) or surely_less(n - 1, e) for e in ends
            ):
                raise self.reject(f"{size} elements from {start} on, {step} apart, of {n}", x)
            low, high = (start, last) if step > 0 else (last, start)
            assume(either(size <= 0, both(low >= 0, high < n)))
        return TensorType(self.sizes, x.dtype)

    def compute(self, x: te.Tensor) -> te.Tensor:
        def element(*i: Expr) -> Expr:
            parts = zip(i, self.starts, self.strides, strict=True)
            return x[tuple(start + at * step for at, start, step in parts)]

        return te.compute(self.name, self.sizes, element, inputs=(x,))

    def reference(self, x: Array) -> Array:
        starts, sizes = constants(self.starts), constants(self.sizes)
        parts = zip(starts, sizes, self.strides, strict=True)
        return x[np.ix_(*(np.arange(n) * step + start for start, n, step in parts))]


PAD_MODES = ("constant", "reflect", "edge", "wrap")


@op("pad", fuse=Fuse.INJECTIVE)
class Pad(Op):
    """Elements before and after each axis; a negative number removes elements.

    The new elements are `value`, or those of x mirrored at its edge (reflect), the edge itself
    (edge), or from the other end (wrap). Those need an element on each axis that grows.

    Source: https://onnx.ai/onnx/operators/onnx__Pad.html
    """

    signed = ("before", "after")
    before: tuple[Expr, ...]
    after: tuple[Expr, ...]
    value: float = 0.0
    mode: str = "constant"

    def __post_init__(self) -> None:
        set_sizes(self, "before", "after")

    def infer(self, x: TensorType) -> TensorType:
        if not len(self.before) == len(self.after) == x.rank:
            raise self.reject("one amount per axis is needed on either side", x)
        if self.mode not in PAD_MODES:
            raise self.reject(f"there is no mode '{self.mode}'", x)
        sizes = zip(self.before, x.shape, self.after, strict=True)
        shape = tuple(b + n + a for b, n, a in sizes)
        for n, result in zip(x.shape, shape, strict=True):
            if is_below(result, 0):
                raise self.reject("the operand is too small", x)
            if self.mode != "constant" and n != result:
                if is_const(n, 0) and surely_less(0, result):
                    raise self.reject("the operand is too small", x)
                assume(either(result <= 0, n > 0))
        return TensorType(shape, x.dtype)

    def compute(self, x: te.Tensor) -> te.Tensor:
        shape = self.infer(x.type).shape
        crops = not all(surely_at_most(0, p) for p in (*self.before, *self.after))
        if self.mode == "constant" and not crops:
            return te.pad(self.name, x, self.before, self.after, self.value)
        return te.compute(
            self.name,
            shape,
            lambda *i: padded_element(x, i, self.before, self.after, self.mode, self.value),
            inputs=(x,),
        )

    def reference(self, x: Array) -> Array:
        before, after = constants(self.before), constants(self.after)
        amounts = [(max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True)]
        fill = np.asarray(self.value).astype(x.dtype)
        if self.mode == "constant":
            whole = np.pad(x, amounts, constant_values=fill)
        else:
            whole = np.pad(x, amounts, mode=self.mode)  # type: ignore[call-overload]  # a str
        crop = [(max(-b, 0), max(-a, 0)) for b, a in zip(before, after, strict=True)]
        ends = zip(crop, whole.shape, strict=True)
        return np.asarray(whole[tuple(slice(b, n - a) for (b, a), n in ends)])


@op("expand", fuse=Fuse.INJECTIVE)
class Expand(Op):
    """x repeated along its axes of size 1, to what `shape` and x's shape broadcast to.

    Where only a run knows x's size, it finds the size of `shape` or 1. A size of `shape` that only
    a run knows is not 1 there, unless x's is.
    """

    shape: tuple[Expr, ...]

    def __post_init__(self) -> None:
        set_sizes(self, "shape")

    def infer(self, x: TensorType) -> TensorType:
        rank = max(x.rank, len(self.shape))
        have = (ONE,) * (rank - x.rank) + x.shape
        wanted = (ONE,) * (rank - len(self.shape)) + self.shape
        shape = [self._size(*pair, x) for pair in zip(have, wanted, strict=True)]
        return TensorType(tuple(shape), x.dtype)

    def _size(self, have: Expr, want: Expr, x: TensorType) -> Expr:
        if ONE in (have, want) or surely_equal(have, want):
            return have if want == ONE else want
        narrow, wide = (want, have) if isinstance(have, Const) else (have, want)
        if surely_differ(narrow, wide) and surely_differ(narrow, 1):
            raise self.reject(f"{x} does not expand to {TensorType(self.shape)}", x)
        assume(either(equal(narrow, wide), equal(narrow, 1)))
        return wide

    def compute(self, x: te.Tensor) -> te.Tensor:
        shape = self.infer(x.type).shape
        wanted = shape[len(shape) - x.type.rank :]

        def element(*i: Expr) -> Expr:
            tail = zip(x.shape, wanted, i[len(i) - x.type.rank :], strict=True)
            return x[tuple(_narrowed(have, want, at) for have, want, at in tail)]

        return te.compute(self.name, shape, element, inputs=(x,))

    def reference(self, x: Array) -> Array:
        shape = np.broadcast_shapes(x.shape, constants(self.shape))
        return np.broadcast_to(x, shape)


def _narrowed(have: Expr, want: Expr, at: Expr) -> Expr:
    """The index into an axis of size `have` that is repeated where that is 1."""
    if surely_at_most(have, ONE):
        return ZERO
    return at if surely_equal(have, want) else select(equal(have, 1), ZERO, at)


@op("tile", fuse=Fuse.INJECTIVE)
class Tile(Op):
    """x repeated `repeats` times along each axis."""

    repeats: tuple[Expr, ...]

    def __post_init__(self) -> None:
        set_sizes(self, "repeats")

    def infer(self, x: TensorType) -> TensorType:
        if len(self.repeats) != x.rank:
            raise self.reject("needs a count for each axis", x)
        shape = tuple(n * r for n, r in zip(x.shape, self.repeats, strict=True))
        return TensorType(shape, x.dtype)

    def compute(self, x: te.Tensor) -> te.Tensor:
        def element(*i: Expr) -> Expr:
            parts = zip(i, x.shape, self.repeats, strict=True)
            return x[tuple(at if is_const(r, 1) else at % n for at, n, r in parts)]

        return te.compute(self.name, self.infer(x.type).shape, element, inputs=(x,))

    def reference(self, x: Array) -> Array:
        return np.tile(x, constants(self.repeats))
