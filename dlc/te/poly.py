"""Polynomials with integer coefficients over atoms: the arithmetic under `simplify`.

An atom is a variable, or what is not a sum or a product: a floor division, a remainder, a
minimum, a load. A polynomial maps the product of its atoms, sorted by their text, to a factor that
is not 0; nobody may change one.
"""

from __future__ import annotations

import functools
from math import gcd

from dlc.core.types import INDEX
from dlc.te.expr import ZERO, Binary, BinOp, Const, Expr, Unary, UnOp, Var

Monomial = tuple[Expr, ...]  # atoms, sorted by their text
Poly = dict[Monomial, int]


def from_poly(poly: Poly) -> Expr:
    """A polynomial as an expression: terms with variables first, in text order, constant last."""
    total: Expr = ZERO
    for atoms in sorted((m for m in poly if m), key=_monomial_key):
        factor = poly[atoms]
        term: Expr = atoms[0]
        for atom in atoms[1:]:
            term = Binary(BinOp.MUL, term, atom)
        if abs(factor) != 1:
            term = Binary(BinOp.MUL, term, Const(abs(factor), INDEX))
        if factor < 0:
            total = Unary(UnOp.NEG, term) if total == ZERO else Binary(BinOp.SUB, total, term)
        else:
            total = term if total == ZERO else Binary(BinOp.ADD, total, term)
    offset = poly.get((), 0)
    if total == ZERO:
        return Const(offset, INDEX)
    if offset < 0:
        return Binary(BinOp.SUB, total, Const(-offset, INDEX))
    return Binary(BinOp.ADD, total, Const(offset, INDEX)) if offset else total


def add(a: Poly, b: Poly) -> Poly:
    """The sum."""
    total = dict(a)
    for atoms, factor in b.items():
        value = total.get(atoms, 0) + factor
        if value:
            total[atoms] = value
        else:
            total.pop(atoms, None)
    return total


def scale(a: Poly, factor: int) -> Poly:
    """The product with an integer."""
    return {atoms: value * factor for atoms, value in a.items()} if factor else {}


def multiply(a: Poly, b: Poly) -> Poly:
    """The product, multiplied out."""
    total: Poly = {}
    for x, p in a.items():
        for y, q in b.items():
            atoms = x + y if not x or not y else tuple(sorted(x + y, key=_atom_key))
            total = add(total, {atoms: p * q})
    return total


def quotient_terms(a: Poly, b: Poly) -> tuple[Poly, Poly]:
    """Split `a` into (quotient, rest) with `a == quotient * b + rest`, term by term."""
    if len(b) != 1:
        return ({(): 1}, {}) if a == b else ({}, a)
    ((divisor, whole_factor),) = b.items()
    quotient: Poly = {}
    rest: Poly = {}
    for atoms, factor in a.items():
        remaining = list(atoms)
        for atom in divisor:
            if atom not in remaining:
                break
            remaining.remove(atom)
        else:
            whole, part = divmod(factor, whole_factor)
            if whole:
                quotient[tuple(remaining)] = whole
            if part:
                rest[atoms] = part
            continue
        rest[atoms] = factor
    return quotient, rest


def cancel_factor(rest: Poly, divisor: int) -> tuple[Poly, int]:
    """Cancel a common factor of the terms with variables: (6 i + 5) // 4 is (3 i + 2) // 2."""
    common = divisor
    for atoms, factor in rest.items():
        if atoms:
            common = gcd(common, factor)
    if common <= 1:
        return rest, divisor
    smaller = {m: f // common for m, f in rest.items() if f // common}
    return smaller, divisor // common


@functools.lru_cache(maxsize=65536)
def _atom_key(atom: Expr) -> str:
    return atom.name if isinstance(atom, Var) else "~" + str(atom)  # compound atoms come last


def _monomial_key(atoms: Monomial) -> tuple[int, list[str]]:
    return (-len(atoms), [_atom_key(a) for a in atoms])
