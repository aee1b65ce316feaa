"""Index expressions as sums: their terms, their coefficients, the ranges of loop variables."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from dlc.te.expr import ONE, ZERO, Binary, BinOp, Const, Expr, Var, index, maximum
from dlc.te.poly import Poly, from_poly
from dlc.te.simplify import canonical, surely_at_most, surely_divides, surely_equal, to_poly
from dlc.te.transform import free_vars, substitute
from dlc.te.types import TensorType

MOST_GROUP = 64  # iterations of a loop that are a group; larger ones are not looked for


def split_terms(expr: Expr, names: frozenset[str] | set[str]) -> tuple[Expr, Expr]:
    """Write `expr` as a sum: (terms that read a variable of `names`, the other terms)."""
    with_names: Poly = {}
    without: Poly = {}
    for atoms, factor in to_poly(expr, {}).items():
        reads = any(free_vars(a) & names for a in atoms)
        (with_names if reads else without)[atoms] = factor
    return from_poly(with_names), from_poly(without)


def coefficients(expr: Expr) -> dict[str, int] | None:
    """The integer coefficient of each variable, or None when `expr` is not linear.

    `i * 32 + j` gives `{"i": 32, "j": 1}`; constants are dropped.
    """
    result: dict[str, int] = {}
    for atoms, factor in to_poly(expr, {}).items():
        match atoms:
            case ():
                continue
            case (Var(name),):
                result[name] = factor
            case _:
                return None
    return result


def coefficient(expr: Expr, var: str) -> int | None:
    """The integer coefficient of one variable, whatever the others do; None where it has none.

    In `min(i, 7) * 5 + j`, that of `j` is 1, and `i` has none.
    """
    found = 0
    for atoms, factor in to_poly(expr, {}).items():
        if atoms == (Var(var),):
            found = factor
        elif any(var in free_vars(atom) for atom in atoms):
            return None
    return found


def step_bytes(index: Sequence[Expr], type_: TensorType, var: str) -> int | None:
    """How far on in memory an element is for each step of a variable; None where nobody can tell.

    Of an open size, what lies outside of it is not known.
    """
    moved, size = 0, type_.dtype.size_bytes
    for extent, at in zip(reversed(type_.shape), reversed(index), strict=True):
        step = coefficients(at)
        if step is None:
            return None
        moved += step.get(var, 0) * size
        if not isinstance(extent, Const):
            return moved or None
        size *= int(extent.value)
    return moved


def loop_bounds(extents: Mapping[str, Expr]) -> dict[str, tuple[Expr, Expr]]:
    """Bounds of loop variables from the extents of their loops."""
    return {name: (ZERO, _last(extent)) for name, extent in extents.items()}


def iterations(extent: Expr) -> Expr:
    """How often a loop runs: not at all where its extent is below zero, as `w - 2` may be."""
    return extent if surely_at_most(0, extent) else maximum(extent, 0)


def with_sizes(expr: Expr, each: int) -> Expr:
    """A size whose variables are so many each: a constant, unless something is divided by 0."""
    return canonical(substitute(expr, dict.fromkeys(free_vars(expr), index(each))))


def whole_groups(extent: Expr, size: int) -> Expr:
    """The most iterations that are groups of `size`, so that what is left is a remainder if it can.

    Of n iterations, n % size are left of n - n % size; where nobody can tell that these are at most
    n, it is n // size * size.
    """
    count = iterations(extent)
    cut = count - count % size
    is_sure = surely_at_most(0, cut) and surely_at_most(cut, count)
    return cut if is_sure else count // size * size


def are_whole_groups(count: Expr, extent: Expr) -> bool:
    """Whether a count is that of whole groups of some size, by the way it is computed.

    So it is at most the extent, which a proof may miss: quotients of quotients become one.
    """
    each = iterations(extent)
    sizes = range(2, MOST_GROUP + 1)
    return any(surely_equal(count, each // size * size) for size in sizes)


def leaves_some(extent: Expr, size: int) -> bool:
    """Whether groups of `size` may leave iterations, and some groups may be whole."""
    return not (surely_divides(size, extent) or surely_equal(whole_groups(extent, size), 0))


@functools.lru_cache(maxsize=65536)
def _last(extent: Expr) -> Expr:
    """The last iteration of a loop, where it runs at all: of max(n, 0) times as of n."""
    match extent:
        case Binary(BinOp.MAX, count, Const(0)) | Binary(BinOp.MAX, Const(0), count):
            extent = count
    return from_poly(to_poly(extent - ONE, {}))
