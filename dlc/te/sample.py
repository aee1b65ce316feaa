"""Values of index arithmetic at some points: one where a claim fails ends the search for a proof.

Most questions that are hard to prove are not true, and a search that fails tries all it can. A
point is a value for each variable, made from its name and its bounds, so that a question has the
same answer in every process.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from random import Random

from dlc.te.expr import Binary, Const, Expr, Unary, UnOp, Var
from dlc.te.operators import fold_ints
from dlc.te.poly import Poly
from dlc.te.transform import free_vars

Bounds = Mapping[str, tuple[Expr, Expr]]  # variable -> (lowest, highest) value
Known = tuple[tuple[str, tuple[Expr, Expr]], ...]  # the same of some variables, as a key
_Values = tuple[int | None, ...]  # at each point; None where there is none, or nobody can tell

POINTS = 48
_SIZES = (10, 70, 300, 4096)  # below one of them is a size: rests of tiles, images, long sequences


def is_negative_somewhere(poly: Poly, bounds: Bounds) -> bool:
    """Whether a polynomial is surely negative at one of the points."""
    terms = [
        (factor, [_values(atom, known_bounds((atom,), bounds)) for atom in atoms])
        for atoms, factor in poly.items()
    ]
    for point in range(POINTS):
        total = 0
        for factor, atoms in terms:
            for values in atoms:
                value = values[point]
                if value is None:
                    break
                factor *= value
            else:
                total += factor
                continue
            break
        else:
            if total < 0:
                return True
    return False


def known_bounds(exprs: Iterable[Expr], bounds: Bounds) -> Known:
    """The bounds of the variables of expressions, and of those in these bounds."""
    found: dict[str, tuple[Expr, Expr]] = {}
    pending = list(exprs)
    while pending:
        for name in free_vars(pending.pop()):
            if name in bounds and name not in found:
                found[name] = bounds[name]
                pending += bounds[name]
    return tuple(found.items())


@functools.lru_cache(maxsize=65536)
def _values(expr: Expr, known: Known) -> _Values:
    bounds = dict(known)

    def of(part: Expr) -> _Values:
        return _values(part, known_bounds((part,), bounds))

    match expr:
        case Const(int(value), _):
            return (value,) * POINTS
        case Var(name) if name in bounds:
            low, high = map(of, bounds[name])
            return tuple(map(_between, _numbers(name), low, high))
        case Var(name):
            return tuple(map(_size, range(POINTS), _numbers(name)))
        case Binary(op, a, b):
            return tuple(
                None if x is None or y is None else fold_ints(op, x, y)
                for x, y in zip(of(a), of(b), strict=True)
            )
        case Unary(UnOp.NEG, a):
            return tuple(None if x is None else -x for x in of(a))
        case _:
            return (None,) * POINTS


@functools.lru_cache(maxsize=4096)
def _numbers(name: str) -> tuple[int, ...]:
    random = Random(name)  # which is seeded by the text, not by its hash
    return tuple(random.getrandbits(32) for _ in range(POINTS))


def _size(point: int, number: int) -> int:
    """All sizes are 0 at the first point and 1 at the second; then each is small or large."""
    return point if point < 2 else number // len(_SIZES) % _SIZES[number % len(_SIZES)]


def _between(number: int, low: int | None, high: int | None) -> int | None:
    """A value of a variable, its lowest or highest more often than not; None where it has none."""
    if low is None or high is None or low > high:
        return None
    return (low, high, low + number // 3 % (high - low + 1))[number % 3]
