"""Which elements of a buffer an index can reach: interval arithmetic over index expressions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dlc.te.affine import iterations
from dlc.te.expr import ONE, ZERO, Binary, BinOp, Const, Expr, Var
from dlc.te.poly import Poly, from_poly
from dlc.te.simplify import Bounds, canonical, simplify, surely_at_most, to_poly
from dlc.te.transform import free_vars, loads

Interval = tuple[Expr, Expr]  # lowest and highest value


@dataclass(frozen=True, slots=True)
class Span:
    """`extent` consecutive positions of one dimension from `start` on.

    `whole` means the full dimension: either nothing smaller was found, or it is not smaller.
    """

    start: Expr
    extent: Expr
    whole: bool = False


def interval(expr: Expr, varying: Bounds, bounds: Bounds) -> Interval | None:
    """The lowest and highest value of an index while the variables in `varying` vary.

    The result reads no varying variable. None: not found. `bounds` holds for all variables.
    """
    names = frozenset(varying)
    low: Poly = {}
    high: Poly = {}
    if loads(expr):  # what it loads may change
        return None
    for atoms, factor in to_poly(expr, bounds).items():
        moving = [a for a in atoms if free_vars(a) & names]
        still = tuple(a for a in atoms if a not in moving)
        if not moving:
            _add(low, {atoms: factor})
            _add(high, {atoms: factor})
            continue
        if len(moving) > 1 or not all(_is_size(a, bounds) for a in still):
            return None
        edges = _atom_interval(moving[0], varying, bounds)
        if edges is None:
            return None
        first, last = edges if factor > 0 else reversed(edges)
        _add(low, _times(to_poly(first, bounds), still, factor))
        _add(high, _times(to_poly(last, bounds), still, factor))
    return from_poly(low), from_poly(high)


def _add(total: Poly, more: Poly) -> None:
    for atoms, factor in more.items():
        value = total.get(atoms, 0) + factor
        if value:
            total[atoms] = value
        else:
            total.pop(atoms, None)


def _times(poly: Poly, atoms: tuple[Expr, ...], factor: int) -> Poly:
    scale: Expr = Const(factor, ONE.dtype)
    for atom in atoms:
        scale = scale * atom
    return to_poly(from_poly(poly) * scale, {})


def _is_size(atom: Expr, bounds: Bounds) -> bool:
    """Whether an atom is surely not negative; only then does a product keep its order."""
    return surely_at_most(0, atom, bounds)


def _atom_interval(atom: Expr, varying: Bounds, bounds: Bounds) -> Interval | None:
    match atom:
        case Var(name, _):
            return varying[name]
        case Binary(BinOp.MOD, _, divisor) if not free_vars(divisor) & frozenset(varying):
            return (ZERO, divisor - ONE) if _positive(divisor, bounds) else None
        case Binary(BinOp.FLOORDIV, a, divisor) if not free_vars(divisor) & frozenset(varying):
            edges = interval(a, varying, bounds)
            if edges is None or not _positive(divisor, bounds):
                return None
            return simplify(edges[0] // divisor, bounds), simplify(edges[1] // divisor, bounds)
        case Binary(BinOp.MIN | BinOp.MAX as op, a, b):
            left, right = interval(a, varying, bounds), interval(b, varying, bounds)
            if left is None or right is None:
                return None
            return tuple(  # type: ignore[return-value]  # two, as there are two edges
                simplify(Binary(op, x, y), bounds) for x, y in zip(left, right, strict=True)
            )
        case _:
            return None


def _positive(divisor: Expr, bounds: Bounds) -> bool:
    """A symbolic divisor divides only inside a loop that it makes non-empty (see `fuse`)."""
    if isinstance(divisor, Const):
        return bool(divisor.value > 0)
    return _is_size(divisor, bounds)


def union(indices: Iterable[Expr], size: Expr, varying: Bounds, bounds: Bounds) -> Span:
    """The span of one dimension of `size` that several indices reach while `varying` vary."""
    whole = Span(ZERO, size, whole=True)
    edges = [interval(index, varying, bounds) for index in dict.fromkeys(indices)]
    low: Expr | None = None
    high: Expr | None = None
    for edge in edges:
        if edge is None:
            return whole
        low = edge[0] if low is None else _ordered(low, edge[0], bounds, lowest=True)
        high = edge[1] if high is None else _ordered(high, edge[1], bounds, lowest=False)
        if low is None or high is None:
            return whole
    if low is None or high is None:
        return whole
    extent = canonical(high - low + ONE)
    if free_vars(extent) & frozenset(bounds):
        return whole
    # One of min(n, 1) rows stays one: vectors and registers are of a known size.
    is_known = isinstance(extent, Const) and not isinstance(size, Const)
    if not is_known and surely_at_most(size, extent, bounds):
        return whole
    return Span(low, canonical(iterations(extent)))  # where none runs, low is above high


def spans(
    indices: list[tuple[Expr, ...]], shape: tuple[Expr, ...], varying: Bounds, bounds: Bounds
) -> tuple[Span, ...]:
    """The box of a buffer that several indices reach while `varying` vary."""
    return tuple(
        union([index[d] for index in indices], size, varying, bounds)
        for d, size in enumerate(shape)
    )


def rebase(index: tuple[Expr, ...], box: tuple[Span, ...], bounds: Bounds) -> tuple[Expr, ...]:
    """An index counted from the start of a box."""
    return tuple(
        part if span.whole else simplify(part - span.start, bounds)
        for part, span in zip(index, box, strict=True)
    )


def _ordered(a: Expr, b: Expr, bounds: Bounds, *, lowest: bool) -> Expr | None:
    """The lower or higher of two; of equal ones, the one of fewer variables."""
    if len(free_vars(a)) > len(free_vars(b)):
        a, b = b, a
    if surely_at_most(a, b, bounds) and surely_at_most(b, a, bounds):
        return a
    if surely_at_most(a, b, bounds):
        return a if lowest else b
    if surely_at_most(b, a, bounds):
        return b if lowest else a
    return None
