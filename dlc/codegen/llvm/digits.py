"""Join the digits of a number: x // 8 % 4 * 8 + x % 8 is x % 32, and x itself where x < 32.

A fused loop takes its variable apart by divisions; where the parts meet again in one address,
nothing is left to divide.
"""

from __future__ import annotations

from dlc.te.expr import Binary, BinOp, Const, Expr, binary
from dlc.te.poly import Monomial, Poly, from_poly
from dlc.te.simplify import Bounds, surely_at_most, surely_less, to_poly


def join_digits(poly: Poly, bounds: Bounds) -> Poly:
    """An equal polynomial with fewer divisions."""
    if not any(isinstance(atom, Binary) for atoms in poly for atom in atoms):
        return poly
    current: Poly = {}
    for atoms, factor in poly.items():
        _add(current, tuple(_shorter(a, bounds) for a in atoms), factor)
    while (joined := _join_once(current, bounds)) is not None:
        current = joined
    return current


def _join_once(poly: Poly, bounds: Bounds) -> Poly | None:
    """Join one pair of digits, or None where no two meet."""
    for atoms, factor in poly.items():
        for position, atom in enumerate(atoms):
            match atom:
                case Binary(BinOp.MOD, x, Const(int(base))) if base > 0:
                    others = atoms[:position] + atoms[position + 1 :]
                    joined = _join_above(poly, (x, base, others, factor), bounds)
                    if joined is not None:
                        return _without(joined, poly, atoms, bounds)
    return None


def _join_above(
    poly: Poly, digit: tuple[Expr, int, Monomial, int], bounds: Bounds
) -> tuple[Monomial, Expr, Monomial, int] | None:
    """The term that stands above `x % base` and what the two are together."""
    x, base, others, factor = digit
    quotient = binary(BinOp.FLOORDIV, x, Const(base, x.dtype))
    above = from_poly(to_poly(quotient, bounds))
    for atoms, scale in poly.items():
        if scale != factor * base or len(atoms) != len(others) + 1:
            continue
        for atom in atoms:
            match atom:
                case Binary(BinOp.MOD, inner, Const(int(next_base))) if inner == above:
                    whole = binary(BinOp.MOD, x, Const(base * next_base, x.dtype))
                case _ if atom == above:
                    whole = x
                case _:
                    continue
            if _with(others, atom) == _with(atoms):
                return atoms, whole, others, factor
    return None


def _without(
    joined: tuple[Monomial, Expr, Monomial, int], poly: Poly, low: Monomial, bounds: Bounds
) -> Poly:
    """The polynomial with two terms replaced by one."""
    high, whole, others, factor = joined
    rest = {atoms: f for atoms, f in poly.items() if atoms not in (low, high)}
    for piece, scale in to_poly(whole, bounds).items():
        _add(rest, _with(others, *piece), factor * scale)
    return rest


def _shorter(atom: Expr, bounds: Bounds) -> Expr:
    """`x // a % b` without the remainder, where x < a * b."""
    match atom:
        case Binary(BinOp.MOD, Binary(BinOp.FLOORDIV, x, Const(int(a))) as quotient, Const(int(b))):
            if a > 0 and surely_less(x, a * b, bounds) and surely_at_most(0, x, bounds):
                return quotient
    return atom


def _with(atoms: Monomial, *more: Expr) -> Monomial:
    return tuple(sorted((*atoms, *more), key=str))


def _add(poly: Poly, atoms: Monomial, factor: int) -> None:
    total = poly.get(atoms, 0) + factor
    if total:
        poly[atoms] = total
    else:
        poly.pop(atoms, None)
