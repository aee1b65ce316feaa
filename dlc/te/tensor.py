"""Tensor expressions: what a tensor's elements are, not how to loop over them.

A tensor's body is one of four: an expression for each element; a reduction, which appears only
at the root of a body; a `Placed` box inside a larger tensor, which is how halos and
concatenations are written without a test for each element; or `Scattered` values, each combined
into the element that the data says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dlc.core.errors import InternalError
from dlc.core.types import INDEX, DType
from dlc.te.expr import (
    TRUE,
    BinOp,
    Const,
    Expr,
    ExprLike,
    Load,
    Select,
    Var,
    both,
    const,
    index,
)
from dlc.te.simplify import canonical
from dlc.te.types import TensorType

_MARK = "'"
REDUCTIONS = frozenset({BinOp.ADD, BinOp.MUL, BinOp.MIN, BinOp.MAX})


@dataclass(frozen=True, slots=True)
class Axis:
    """An iteration axis over `range(extent)`.

    Its name ends in a mark that no size variable has: a formula that reads size `n` at axis `n`
    tells them apart.
    """

    name: str
    extent: Expr

    @property
    def label(self) -> str:
        """The name without the mark: what a loop over the axis is called if it can be."""
        return self.name.removesuffix(_MARK)


@dataclass(frozen=True, slots=True)
class Reduce:
    """`value` combined over `axes` by an associative, commutative operator."""

    op: BinOp
    axes: tuple[Axis, ...]
    value: Expr

    def __post_init__(self) -> None:
        if self.op not in REDUCTIONS:
            raise InternalError(detail=f"'{self.op}' is no reduction")

    @property
    def dtype(self) -> DType:
        """The type of the result."""
        return self.value.dtype


@dataclass(frozen=True, slots=True)
class Placed:
    """A box of elements inside the tensor: element `offset + axes` is `value`.

    Outside of the box the tensor is `fill`, as far as `frame` goes: a box around the box, or all
    of the tensor. Where neither reaches, it keeps the elements of the first input, which then has
    the tensor's own type and shares its memory.
    """

    offset: tuple[Expr, ...]
    value: Expr
    fill: Const | None
    frame: Frame | None = None

    @property
    def keeps(self) -> bool:
        """Whether some elements are those of the first input."""
        return self.fill is None or self.frame is not None


@dataclass(frozen=True, slots=True)
class Frame:
    """A box of elements: where it begins, and its sizes."""

    offset: tuple[Expr, ...]
    shape: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Scattered:
    """Elements that begin as `start` and take in values at places that data may name.

    At each position of `updates` at which `where` holds, `value` is combined into the element at
    `place` by an associative, commutative operator, or takes its place where there is none: the
    last of several counts. `place` lies inside of the tensor then.
    """

    op: BinOp | None
    start: Expr
    updates: tuple[Axis, ...]
    where: Expr
    place: tuple[Expr, ...]
    value: Expr

    def __post_init__(self) -> None:
        if self.op is not None and self.op not in REDUCTIONS:
            raise InternalError(detail=f"'{self.op}' is no reduction")
        if self.start.dtype is not self.value.dtype:
            raise InternalError(detail=f"{self.value.dtype} is combined into {self.start.dtype}")


Body = Expr | Reduce | Placed | Scattered


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A named tensor; `body` is None for a parameter.

    Identity is the object, not its value: a deep structural comparison of a graph of tensors that
    share inputs would be exponential.
    `axes` are the loops of the body: the whole tensor's, or the box's where it is `Placed`. Of what
    is `Scattered` they are those of its start.
    """

    name: str
    type: TensorType
    axes: tuple[Axis, ...] = ()
    body: Body | None = None
    inputs: tuple[Tensor, ...] = ()

    @property
    def shape(self) -> tuple[Expr, ...]:
        """The sizes of all dimensions."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.type.dtype

    def __getitem__(self, position: ExprLike | tuple[ExprLike, ...]) -> Load:
        parts = position if isinstance(position, tuple) else (position,)
        if len(parts) != self.type.rank:
            raise InternalError(detail=f"'{self.name}': {len(parts)} indices for {self.type}")
        return Load(self.name, tuple(index(p) for p in parts), self.type.dtype)


def placeholder(name: str, type_: TensorType) -> Tensor:
    """A tensor whose elements are given by the caller."""
    return Tensor(name, type_)


def compute(
    name: str,
    shape: Sequence[ExprLike],
    body: Callable[..., Expr | Reduce],
    *,
    inputs: tuple[Tensor, ...],
) -> Tensor:
    """Define a tensor by the formula for one element; axis names are the lambda's.

    A lambda with `*index` works for any rank; its axes are called i0, i1, ...
    """
    axes = _axes(shape, body)
    value = body(*(Var(a.name) for a in axes))
    return Tensor(name, TensorType(tuple(shape), value.dtype), axes, value, inputs)


def reduce(op: BinOp, extents: Sequence[ExprLike], body: Callable[..., Expr]) -> Reduce:
    """Combine a formula over new axes; axis names are the lambda's (r0, r1, ... for `*r`)."""
    axes = _axes(extents, body, prefix="r")
    return Reduce(op, axes, body(*(Var(a.name) for a in axes)))


def reduce_sum(extents: Sequence[ExprLike], body: Callable[..., Expr]) -> Reduce:
    """Sum a formula over new axes."""
    return reduce(BinOp.ADD, extents, body)


def reduce_max(extents: Sequence[ExprLike], body: Callable[..., Expr]) -> Reduce:
    """The largest value of a formula over new axes; NaN if any is."""
    return reduce(BinOp.MAX, extents, body)


def scatter(
    op: BinOp | None,
    start: Tensor,
    extents: Sequence[ExprLike],
    update: Callable[..., tuple[Expr, tuple[Expr, ...], Expr]],
    *,
    inputs: tuple[Tensor, ...],
) -> Tensor:
    """`start`, given by a formula, with values combined into it at places that data may name.

    Args:
        op: what combines them; None: the last value of an element counts.
        start: what elements begin as, made by `compute`.
        extents: how many updates there are, along each of their axes.
        update: from the position of an update: whether it counts, its place, its value.
        inputs: what `update` reads.
    """
    first = start.body
    if first is None or isinstance(first, Reduce | Placed | Scattered):
        raise InternalError(detail=f"'{start.name}' begins as no formula")
    updates = _axes(extents, update, prefix="u")
    where, place, value = update(*(Var(a.name) for a in updates))
    body = Scattered(op, first, updates, where, place, value)
    return replace(start, body=body, inputs=(*start.inputs, *inputs))


def identity(op: BinOp, dtype: DType) -> Const:
    """The value that a reduction starts from."""
    if op is BinOp.ADD:
        return const(0, dtype)
    if op is BinOp.MUL:
        return const(1, dtype)
    if dtype is DType.BOOL:
        return const(op is BinOp.MIN, dtype)
    if dtype.is_float:
        return const(float("inf" if op is BinOp.MIN else "-inf"), dtype)
    low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    high = (1 << (dtype.bits - int(dtype.is_signed))) - 1
    return const(high if op is BinOp.MIN else low, dtype)


def elementwise(name: str, fn: Callable[..., Expr], *inputs: Tensor) -> Tensor:
    """Apply a scalar formula at each position of tensors that broadcast together.

    Shapes:
        inputs: aligned at their last dimensions; a size 1 is repeated.
    """
    shape = broadcast_shape([t.shape for t in inputs])

    def formula(*position: Expr) -> Expr:
        return fn(*(t[_aligned(t.shape, position)] for t in inputs))

    return compute(name, shape, formula, inputs=inputs)


def broadcast_shape(shapes: Sequence[tuple[Expr, ...]]) -> tuple[Expr, ...]:
    """The common shape by ONNX's multidirectional broadcasting; open sizes count as equal."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Expr] = []
    for position in range(rank):
        sizes = [s[position - rank + len(s)] for s in shapes if position >= rank - len(s)]
        wide = [s for s in sizes if s != const(1, INDEX)]
        constants = [s for s in wide if isinstance(s, Const)]
        result.append((constants or wide or sizes)[0])
    return tuple(result)


def _aligned(shape: tuple[Expr, ...], position: tuple[Expr, ...]) -> tuple[Expr, ...]:
    tail = position[len(position) - len(shape) :]
    one = const(1, INDEX)
    return tuple(const(0, INDEX) if s == one else i for s, i in zip(shape, tail, strict=True))


def pad(
    name: str,
    x: Tensor,
    before: Sequence[ExprLike],
    after: Sequence[ExprLike],
    value: float | int | bool = 0,
) -> Tensor:
    """Surround a tensor with a constant."""
    offset = tuple(canonical(index(b)) for b in before)
    shape = tuple(index(b) + n + index(a) for b, n, a in zip(before, x.shape, after, strict=True))
    axes = whole(x)
    body = Placed(offset, x[tuple(Var(a.name) for a in axes)], const(value, x.dtype))
    return Tensor(name, TensorType(shape, x.dtype), axes, body, (x,))


def insert(name: str, base: Tensor, piece: Tensor, offset: Sequence[ExprLike]) -> Tensor:
    """`base` with the box at `offset` replaced by `piece`; shares the memory of `base`.

    A piece with a border is placed together with it.
    """
    at = tuple(canonical(index(o)) for o in offset)
    match piece.body:
        case Placed(inner, value, Const() as fill, None):
            begin = tuple(canonical(o + i) for o, i in zip(at, inner, strict=True))
            body = Placed(begin, value, fill, Frame(at, piece.shape))
            return Tensor(name, base.type, piece.axes, body, (base, *piece.inputs))
        case _:
            axes = whole(piece)
            body = Placed(at, piece[tuple(Var(a.name) for a in axes)], None)
            return Tensor(name, base.type, axes, body, (base, piece))


def whole(tensor: Tensor) -> tuple[Axis, ...]:
    """Axes over all elements of a tensor: i0, i1, ..."""
    return tuple(Axis(f"i{d}{_MARK}", n) for d, n in enumerate(tensor.shape))


def element(tensor: Tensor, position: tuple[Expr, ...]) -> Expr:
    """The formula of one element; of a tensor that combines many, the element itself."""
    from dlc.te.transform import substitute

    match tensor.body:
        case None | Reduce() | Scattered():
            return tensor[position]
        case Placed(offset, value, fill, frame):
            sizes = tuple(a.extent for a in tensor.axes)
            env = {a.name: p - o for a, p, o in zip(tensor.axes, position, offset, strict=True)}
            outside: Expr = fill if fill is not None else tensor.inputs[0][position]
            if fill is not None and frame is not None:
                within = _is_inside(position, frame.offset, frame.shape)
                outside = Select(within, fill, tensor.inputs[0][position])
            return Select(_is_inside(position, offset, sizes), substitute(value, env), outside)
        case body:
            env = dict(zip((a.name for a in tensor.axes), position, strict=True))
            return substitute(body, env)


def _is_inside(position: Sequence[Expr], start: Sequence[Expr], sizes: Sequence[Expr]) -> Expr:
    inside: Expr = TRUE
    for p, o, n in zip(position, start, sizes, strict=True):
        inside = both(inside, both(const(0, INDEX) <= p - o, p - o < n))
    return inside


def _axes(
    extents: Sequence[ExprLike], body: Callable[..., object], prefix: str = "i"
) -> tuple[Axis, ...]:
    parameters = inspect.signature(body).parameters.values()
    names = [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_POSITIONAL]
    if len(names) < len(parameters):
        names += [f"{prefix}{d}" for d in range(len(names), len(extents))]
    return tuple(
        Axis(f"{n}{_MARK}", canonical(index(e))) for n, e in zip(names, extents, strict=True)
    )
