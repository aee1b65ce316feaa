"""Index arithmetic: one canonical form, and questions that are True only when proven.

An index expression becomes a polynomial over atoms (variables, and what is not a sum or product:
floor divisions, remainders, minima, loads). The canonical form is that polynomial written out in
a fixed order. `Bounds` gives variables a range; variables without one are sizes: never negative.

Form and questions are one module because they are one recursion: a quotient is simplified where its
parts are proven, and a proof looks at simplified parts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import chain, product
from math import gcd

from dlc.core.types import INDEX, DType
from dlc.te.expr import (
    ZERO,
    Binary,
    BinOp,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    UnOp,
    Var,
    binary,
    both,
    cast,
    const,
    either,
    unary,
)
from dlc.te.poly import (
    Monomial,
    Poly,
    add,
    cancel_factor,
    from_poly,
    multiply,
    quotient_terms,
    scale,
)
from dlc.te.sample import Bounds as Bounds
from dlc.te.sample import Known, is_negative_somewhere, known_bounds
from dlc.te.transform import free_vars, rewrite

_NONE: Bounds = {}
_MAX_ATTEMPTS = 160  # replacements tried before a question counts as not proven


@functools.lru_cache(maxsize=65536)
def canonical(size: Expr) -> Expr:
    """The canonical form of an index expression over size variables."""
    if isinstance(size, Const | Var):
        return size
    return from_poly(to_poly(size, _NONE))


def simplify(expr: Expr, bounds: Bounds = _NONE) -> Expr:
    """Simplify every index expression and every index comparison inside an expression.

    What is simple already comes back as the very same object.
    """
    if isinstance(expr, Const | Var):
        return expr
    return _simplify_known(expr, _known(expr, bounds))


@functools.lru_cache(maxsize=65536)
def _simplify_known(expr: Expr, known: Known) -> Expr:
    simple = _simplify(expr, dict(known))
    return expr if simple == expr else simple


def _simplify(expr: Expr, bounds: Bounds) -> Expr:  # noqa: C901 - a case per node
    match expr:
        case Load(buffer, index, dtype):
            return Load(buffer, tuple(simplify(i, bounds) for i in index), dtype)
        case _ if expr.dtype is INDEX:
            return from_poly(to_poly(expr, bounds))
        case Binary(BinOp.LT | BinOp.LE | BinOp.EQ | BinOp.NE as op, a, b) if a.dtype is INDEX:
            return _compare(op, a, b, bounds)
        case Binary(BinOp.AND, a, b):
            return both(simplify(a, bounds), simplify(b, bounds))
        case Binary(BinOp.OR, a, b):
            return either(simplify(a, bounds), simplify(b, bounds))
        case Binary(op, a, b):
            return binary(op, simplify(a, bounds), simplify(b, bounds))
        case Unary(op, a):
            return unary(op, simplify(a, bounds))
        case Cast(dtype, a):
            return cast(dtype, simplify(a, bounds))
        case Select(cond, then, other):
            test = simplify(cond, bounds)
            if isinstance(test, Const):
                return simplify(then if test.value else other, bounds)
            return Select(test, simplify(then, bounds), simplify(other, bounds))
        case _:
            return rewrite(expr, lambda e: e)


def surely_equal(a: Expr, b: Expr | int, bounds: Bounds = _NONE) -> bool:
    """Whether `a == b` for all values of the variables."""
    return not _difference(a, b, bounds)


def surely_differ(a: Expr, b: Expr | int, bounds: Bounds = _NONE) -> bool:
    """Whether `a != b` for all values of the variables."""
    difference = _difference(a, b, bounds)
    common = gcd(*(factor for atoms, factor in difference.items() if atoms))
    if common > 1 and difference.get((), 0) % common:  # 6 n is never 35
        return True
    return surely_less(a, b, bounds) or surely_less(_index(b), a, bounds)


def surely_less(a: Expr | int, b: Expr | int, bounds: Bounds = _NONE) -> bool:
    """Whether `a < b` for all values of the variables."""
    a, b = _index(a), _index(b)
    if isinstance(a, Const) and isinstance(b, Const):
        return a.value < b.value
    if not bounds:
        return _surely_less_size(a, b)
    return _nonnegative(add(_difference(b, a, bounds), {(): -1}), bounds)


@functools.lru_cache(maxsize=65536)
def _surely_less_size(a: Expr, b: Expr) -> bool:
    """The question about sizes alone; verifiers ask it again after each pass."""
    return _nonnegative(add(_difference(b, a, _NONE), {(): -1}), _NONE)


def surely_at_most(a: Expr | int, b: Expr | int, bounds: Bounds = _NONE) -> bool:
    """Whether `a <= b` for all values of the variables."""
    a, b = _index(a), _index(b)
    if isinstance(a, Const) and isinstance(b, Const):
        return a.value <= b.value
    return _nonnegative(_difference(b, a, bounds), bounds)


def surely_divides(factor: int, size: Expr, bounds: Bounds = _NONE) -> bool:
    """Whether `size` is a multiple of `factor` for all values of the variables."""
    return surely_equal(size % factor, 0, bounds)


def to_poly(expr: Expr, bounds: Bounds) -> Poly:
    """An index expression as a polynomial; nobody may change it."""
    match expr:
        case Const(value, _):
            return {(): int(value)} if value else {}
        case Var():
            return {(expr,): 1}
    return _known_poly(expr, _known(expr, bounds) if bounds else ())


def _known(expr: Expr, bounds: Bounds) -> Known:
    """The bounds of those variables of `expr` that have any."""
    return tuple([(name, bounds[name]) for name in free_vars(expr) if name in bounds])


@functools.lru_cache(maxsize=65536)
def _known_poly(expr: Expr, known: Known) -> Poly:
    """The polynomial, given the bounds of those variables of `expr` that have any."""
    return _to_poly(expr, dict(known))


def _to_poly(expr: Expr, bounds: Bounds) -> Poly:  # noqa: C901 - a case per node
    match expr:
        case Binary(BinOp.ADD, a, b):
            return add(to_poly(a, bounds), to_poly(b, bounds))
        case Binary(BinOp.SUB, a, b):
            return add(to_poly(a, bounds), scale(to_poly(b, bounds), -1))
        case Unary(UnOp.NEG, a):
            return scale(to_poly(a, bounds), -1)
        case Binary(BinOp.MUL, a, b):
            return multiply(to_poly(a, bounds), to_poly(b, bounds))
        case Binary(BinOp.FLOORDIV, a, b):
            return _divide(to_poly(a, bounds), to_poly(b, bounds), bounds)
        case Binary(BinOp.MOD, a, b):
            return _remainder(to_poly(a, bounds), to_poly(b, bounds), bounds)
        case Binary(BinOp.MIN | BinOp.MAX as op, a, b):
            return _extreme(op, to_poly(a, bounds), to_poly(b, bounds), bounds)
        case Select(cond, then, other):
            test = simplify(cond, bounds)
            if isinstance(test, Const):
                return to_poly(then if test.value else other, bounds)
            left, right = from_poly(to_poly(then, bounds)), from_poly(to_poly(other, bounds))
            return to_poly(left, bounds) if left == right else {(Select(test, left, right),): 1}
        case Load(buffer, index, dtype):
            return {(Load(buffer, tuple(simplify(i, bounds) for i in index), dtype),): 1}
        case Cast(dtype, a):
            converted = cast(dtype, simplify(a, bounds))
            if isinstance(converted, Cast):
                return {(converted,): 1}
            return to_poly(converted, bounds)
        case _:
            return {(rewrite(expr, lambda e: e),): 1}


def _index(value: Expr | int) -> Expr:
    return Const(value, INDEX) if isinstance(value, int) else value


def _difference(a: Expr, b: Expr | int, bounds: Bounds) -> Poly:
    return add(to_poly(a, bounds), scale(to_poly(_index(b), bounds), -1))


def _compare(op: BinOp, a: Expr, b: Expr, bounds: Bounds) -> Expr:
    x, y = from_poly(to_poly(a, bounds)), from_poly(to_poly(b, bounds))
    if op in (BinOp.EQ, BinOp.NE):
        if surely_equal(x, y, bounds):
            return const(op is BinOp.EQ, DType.BOOL)
        if surely_differ(x, y, bounds):
            return const(op is BinOp.NE, DType.BOOL)
        return Binary(op, x, y)
    proven = surely_less if op is BinOp.LT else surely_at_most
    refuted = surely_at_most if op is BinOp.LT else surely_less
    if proven(x, y, bounds):
        return const(True, DType.BOOL)
    if refuted(y, x, bounds):
        return const(False, DType.BOOL)
    return _coarser(x, y, bounds) if op is BinOp.LT else Binary(op, x, y)


def _coarser(x: Expr, y: Expr, bounds: Bounds) -> Expr:
    """`x < y` without what cannot change it: 32 i + j < 32 n is i < n when 0 <= j < 32.

    So is 31 - j < 32 i of 0 < i.
    """
    rest = _difference(x, y, bounds)
    grains = sorted({abs(f) for m, f in rest.items() if m and abs(f) > 1}, reverse=True)
    for grain, to_zero in product(grains, (False, True)):
        whole = {
            m: -(-f // grain) if to_zero and m and f < 0 else f // grain for m, f in rest.items()
        }
        coarse = {m: n for m, n in whole.items() if n}
        fine = {m: f - whole[m] * grain for m, f in rest.items() if f != whole[m] * grain}
        if any(m for m in fine) and _within(fine, {(): grain}, bounds):
            left = {m: f for m, f in coarse.items() if f > 0}
            right = {m: -f for m, f in coarse.items() if f < 0}
            return Binary(BinOp.LT, from_poly(left), from_poly(right))
    return Binary(BinOp.LT, x, y)


def _divide(a: Poly, b: Poly, bounds: Bounds) -> Poly:
    if not b:
        return {(Binary(BinOp.FLOORDIV, from_poly(a), ZERO),): 1}
    if not _nonnegative(add(b, {(): -1}), bounds):  # the sign of the divisor is not known
        return {(Binary(BinOp.FLOORDIV, from_poly(a), from_poly(b)),): 1} if a != b else {(): 1}
    divisor = b.get((), 0) if set(b) == {()} else 0
    if divisor:
        a = _in_multiples(a, divisor, bounds)
    quotient, rest = quotient_terms(a, b)
    if _within(rest, b, bounds):
        return quotient
    if divisor:
        rest, divisor = cancel_factor(rest, divisor)
        match from_poly(rest):
            case Binary(BinOp.FLOORDIV, inner, Const(int(first))) if first > 0:
                return add(
                    quotient,
                    _divide(to_poly(inner, bounds), {(): first * divisor}, bounds),
                )
        coarse, _, grain = _split_grain(rest, divisor, bounds)
        if grain > 1:  # (32 i + j) // 64 is i // 2 when 0 <= j < 32
            return add(quotient, _divide(coarse, {(): divisor // grain}, bounds))
    if divisor == 1:
        return add(quotient, rest)
    low = Const(divisor, INDEX) if divisor else from_poly(b)
    return add(quotient, {(Binary(BinOp.FLOORDIV, from_poly(rest), low),): 1})


def _in_multiples(a: Poly, divisor: int, bounds: Bounds) -> Poly:
    """The same polynomial with multiples of a divisor written as such: x - x % 8 is x // 8 * 8.

    So is 6 x - 2 (x % 2), of 4: 4 x + x // 2 * 4.
    """

    def others(poly: Poly) -> tuple[int, int, int]:
        factors = [f for m, f in poly.items() if m]
        return sum(f % divisor != 0 for f in factors), sum(f < 0 for f in factors), len(poly)

    for atoms, factor in a.items():
        match atoms:
            case (Binary(BinOp.MOD, x, Const(int(size))),) if size > 0:
                if divisor % size and size % divisor:
                    continue
                whole = _divide(to_poly(x, bounds), {(): size}, bounds)
                itself = add(to_poly(x, bounds), scale(whole, -size))
                changed = add({m: f for m, f in a.items() if m != atoms}, scale(itself, factor))
                if others(changed) < others(a):
                    return changed
    return a


def _remainder(a: Poly, b: Poly, bounds: Bounds) -> Poly:
    if not b or not _nonnegative(add(b, {(): -1}), bounds):
        if b and a == b:
            return {}
        return {(Binary(BinOp.MOD, from_poly(a), from_poly(b)),): 1}
    if set(b) == {()}:
        a = _without_remainders(a, b[()], bounds)
    _, rest = quotient_terms(a, b)
    if _within(rest, b, bounds):
        return rest
    if set(b) == {()}:
        divisor = b[()]
        common = divisor
        for factor in rest.values():
            common = gcd(common, factor)
        if common > 1:  # (6 i) % 4 is 2 * ((3 i) % 2)
            inner = _remainder(
                {m: f // common for m, f in rest.items()}, {(): divisor // common}, bounds
            )
            return scale(inner, common)
        coarse, fine, grain = _split_grain(rest, divisor, bounds)
        if grain > 1:  # (32 i + j) % 64 is (i % 2) * 32 + j when 0 <= j < 32
            inner = _remainder(coarse, {(): divisor // grain}, bounds)
            return add(scale(inner, grain), fine)
        if divisor > 2 and all(f == divisor - 1 for m, f in rest.items() if m):
            # What is missing to a multiple: (2 - x) % 4 is 2 - x + 4 * ((x + 1) // 4)
            missing = scale(add(rest, scale({m: 1 for m in rest if m}, -divisor)), -1)
            multiple = _divide(add(missing, {(): divisor - 1}), b, bounds)
            return add(scale(multiple, divisor), scale(missing, -1))
    return {(Binary(BinOp.MOD, from_poly(rest), from_poly(b)),): 1}


def _without_remainders(a: Poly, divisor: int, bounds: Bounds) -> Poly:
    """A polynomial of the same remainder: (x % 8 + y) % 4 is (x + y) % 4."""
    total: Poly = {}
    for atoms, factor in a.items():
        match atoms:
            case (Binary(BinOp.MOD, x, Const(int(inner))),) if inner > 0 and inner % divisor == 0:
                total = add(total, scale(to_poly(x, bounds), factor))
            case _:
                total = add(total, {atoms: factor})
    return total


def _split_grain(rest: Poly, divisor: int, bounds: Bounds) -> tuple[Poly, Poly, int]:
    """Write `rest` as coarse * grain + fine with 0 <= fine < grain, grain a factor of `divisor`.

    Grain 1 means that no such sum was found.
    """
    grains = {abs(f) for m, f in rest.items() if m and divisor % abs(f) == 0 and abs(f) > 1}
    for grain in sorted(grains, reverse=True):
        coarse = {m: f // grain for m, f in rest.items() if f // grain and (m or f >= grain)}
        fine = {m: f % grain for m, f in rest.items() if f % grain}
        if coarse and len(fine) < len(rest) and _within(fine, {(): grain}, bounds):
            return coarse, fine, grain
    return {}, rest, 1


def _extreme(op: BinOp, a: Poly, b: Poly, bounds: Bounds) -> Poly:
    low, high = (a, b) if op is BinOp.MIN else (b, a)
    if _nonnegative(add(high, scale(low, -1)), bounds):  # MIN: a <= b; MAX: b <= a
        return a
    if _nonnegative(add(low, scale(high, -1)), bounds):
        return b
    x, y = sorted((from_poly(a), from_poly(b)), key=str)
    return {(Binary(op, x, y),): 1}


def _within(rest: Poly, b: Poly, bounds: Bounds) -> bool:
    """Whether 0 <= rest < b."""
    return _nonnegative(rest, bounds) and _nonnegative(
        add(add(b, scale(rest, -1)), {(): -1}), bounds
    )


def _nonnegative(poly: Poly, bounds: Bounds, budget: list[int] | None = None) -> bool:
    """Whether a polynomial is at least 0 for all values of its variables.

    A term is replaced by a lower bound of it until no term can be negative: a bounded variable
    by its lowest or highest value, c * (x // c) by x or x - (c - 1), a remainder by its range or
    by what it is left of, a minimum by either side. What leaves the fewest terms in doubt is tried
    first; `budget` counts down the attempts. What a maximum is taken from may be either side: both
    have to do.
    """
    if budget is None:
        if next(_doubtful(poly, bounds, [_MAX_ATTEMPTS]), None) is None:
            return True  # as the answer to most questions is
        common = gcd(*poly.values())
        terms = tuple([(m, f // common) for m, f in poly.items()])
        return _proven(terms, known_bounds(chain.from_iterable(poly), bounds))
    if next(_doubtful(poly, bounds, budget), None) is None:
        return True
    if not any(m for m in poly):
        return False
    if (sides := _either_side(poly, bounds)) is not None:
        budget[0] -= 1
        return budget[0] > 0 and all(_nonnegative(p, bounds, budget) for p in sides)
    tried: list[tuple[int, int, Poly]] = []
    for replaced in _replacements(poly, bounds, budget):
        budget[0] -= 1
        if budget[0] < 0:
            return False
        doubts = sum(1 for _ in _doubtful(replaced, bounds, budget))
        if not doubts:
            return True
        tried.append((doubts, len(replaced), replaced))
    tried.sort(key=lambda t: t[:2])
    return any(budget[0] > 0 and _nonnegative(p, bounds, budget) for _, _, p in tried)


@functools.lru_cache(maxsize=65536)
def _proven(terms: tuple[tuple[Monomial, int], ...], known: Known) -> bool:
    """Whether a polynomial of these terms is at least 0; their order is that of the attempts."""
    poly, bounds = dict(terms), dict(known)
    return not is_negative_somewhere(poly, bounds) and _nonnegative(poly, bounds, [_MAX_ATTEMPTS])


def _either_side(poly: Poly, bounds: Bounds) -> list[Poly] | None:
    """What a polynomial is where a maximum that it subtracts is its one side, or its other."""
    for atoms, factor in poly.items():
        match atoms:
            case (Binary(BinOp.MAX, a, b),) if factor < 0:
                rest = {m: f for m, f in poly.items() if m != atoms}
                return [add(rest, scale(to_poly(side, bounds), factor)) for side in (a, b)]
    return None


def _doubtful(poly: Poly, bounds: Bounds, budget: list[int]) -> Iterator[Monomial]:
    """The terms that may be negative."""
    for atoms, factor in poly.items():
        if factor < 0 or not _atoms_nonnegative(atoms, bounds, budget):
            yield atoms


def _replacements(poly: Poly, bounds: Bounds, budget: list[int]) -> Iterator[Poly]:
    """Lower bounds of (a positive multiple of) a polynomial, one term replaced in each."""
    for atoms, factor in poly.items():
        for position, atom in enumerate(atoms):
            if isinstance(atom, Var) and atom.name not in bounds:
                continue  # a size, below which there is nothing but 0
            others = atoms[:position] + atoms[position + 1 :]
            if not _atoms_nonnegative(others, bounds, budget):
                continue
            bounded = _lower_bounds(atom, factor, bounds, budget, alone=not others)
            for times, options in [*_coarser_or_finer(atom, factor, poly), *bounded]:
                rest = scale({m: f for m, f in poly.items() if m != atoms}, times)
                for option in options:
                    yield add(rest, multiply(option, {others: 1}))


def _atoms_nonnegative(atoms: Monomial, bounds: Bounds, budget: list[int]) -> bool:
    for atom in atoms:
        if isinstance(atom, Var):
            if atom.name in bounds and not _atom_nonnegative(atom, bounds, budget):
                return False
        elif free_vars(atom).isdisjoint(bounds):
            if not _size_nonnegative(atom):
                return False
        elif not _atom_nonnegative(atom, bounds, budget):
            return False
    return True


@functools.lru_cache(maxsize=65536)
def _size_nonnegative(atom: Expr) -> bool:
    return _atom_nonnegative(atom, _NONE, [_MAX_ATTEMPTS])


def _atom_nonnegative(atom: Expr, bounds: Bounds, budget: list[int]) -> bool:
    match atom:
        case Var(name):
            low = bounds[name][0] if name in bounds else ZERO
            return isinstance(low, Const) and low.value >= 0
        case Binary(BinOp.MOD, _, Const(int(divisor))):
            return divisor > 0
        case Binary(BinOp.FLOORDIV, a, Const(int(divisor))) if divisor > 0:
            return _nonnegative(to_poly(a, bounds), bounds, budget)
        case Binary(BinOp.MAX, a, b):
            return any(_nonnegative(to_poly(side, bounds), bounds, budget) for side in (a, b))
        case Binary(BinOp.MIN, a, b):
            return all(_nonnegative(to_poly(side, bounds), bounds, budget) for side in (a, b))
        case _:
            return False


def _coarser_or_finer(atom: Expr, factor: int, poly: Poly) -> Iterator[tuple[int, list[Poly]]]:
    """Lower bounds of `factor * (x // c)` by another quotient of the same x in the polynomial.

    For c = r * d, x // c is (x // d) // r: r * (x // c) lies between x // d - (r - 1) and x // d.
    """
    match atom:
        case Binary(BinOp.FLOORDIV, x, Const(int(c))):
            for other in dict.fromkeys(chain.from_iterable(poly)):
                match other:
                    case Binary(BinOp.FLOORDIV, y, Const(int(d))) if x == y and 0 < d < c:
                        if c % d == 0:
                            below = (c // d - 1) * factor if factor > 0 else 0
                            yield c // d, [add({(other,): factor}, {(): -below} if below else {})]


def _lower_bounds(
    atom: Expr, factor: int, bounds: Bounds, budget: list[int], *, alone: bool
) -> list[tuple[int, list[Poly]]]:
    """Lower bounds of `factor * atom`, each as (scale, polynomials): `scale` times the bound.

    Of the polynomials of one entry, any one is a valid lower bound; `alone` says that the atom is
    the whole term. The sum of all terms is an integer: n >= x // c where c * n + c - 1 >= x, and
    x // c >= n where x >= c * n. A bound of 0 for what is no doubt proves nothing.
    """
    match atom:
        case Var(name) if name in bounds:
            edge = to_poly(bounds[name][0] if factor > 0 else bounds[name][1], _NONE)
            return [(1, [scale(edge, factor)])] if edge or factor < 0 else []
        case Binary(BinOp.FLOORDIV, a, Const(int(c))) if c > 0:
            inner = to_poly(a, bounds)
            if factor > 0:  # x // c >= (x - (c - 1)) / c
                inner = add(inner, {(): 1 - c})
            spare = c - 1 if alone and abs(factor) == 1 else 0
            return [(c, [add(scale(inner, factor), {(): spare} if spare else {})])]
        case Binary(BinOp.MOD, a, Const(int(c))) if c > 0:
            if factor > 0:
                return []
            x = to_poly(a, bounds)
            multiple = scale(_divide(x, {(): c}, bounds), -c)  # x % c = x - x // c * c
            high: list[Poly] = [{(): factor * (c - 1)}, scale(add(x, multiple), factor)]
            if _nonnegative(x, bounds, budget):  # x % c <= x
                high.append(scale(x, factor))
            return [(1, high)]
        case Binary(BinOp.MIN, a, b) if factor < 0:
            return [(1, [scale(to_poly(side, bounds), factor) for side in (a, b)])]
        case Binary(BinOp.MAX, a, b) if factor > 0:
            return [(1, [scale(to_poly(side, bounds), factor) for side in (a, b)])]
        case _:
            return []
