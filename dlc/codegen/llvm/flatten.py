"""Index expressions as flat sums, quick to evaluate while loops are written out.

An index is kept as `constant + lane factor * lane + rest`, where `rest` is a polynomial over what
changes at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from dlc.codegen.llvm.digits import join_digits
from dlc.core.types import INDEX
from dlc.te.affine import loop_bounds
from dlc.te.expr import Const, Expr, Var
from dlc.te.poly import Monomial, Poly, add, multiply, scale
from dlc.te.simplify import to_poly
from dlc.te.transform import free_vars, substitute

T = TypeVar("T")


class Flat(NamedTuple):
    """`const + lane * <lane number> + rest`; `lane` is None when the lane enters in another way."""

    const: int
    lane: int | None
    rest: int


@dataclass(frozen=True, slots=True)
class Form:
    """An index expression, ready to be evaluated quickly under many values of unrolled variables.

    It is the sum of factor * value over `steps` and of `rest`, in which terms read the unrolled
    variables `names` in other ways. `memo` has that rest by the values of `names`.
    """

    steps: tuple[tuple[str, int], ...]
    rest: Poly
    names: tuple[str, ...]
    memo: dict[tuple[int, ...], Flat] = field(default_factory=dict)


_EMPTY = 0


class Flattener:
    """Turns index expressions into flat sums under the values of unrolled variables.

    `fixed` holds the variables of unrolled loops and their values, `lane_var` the variable of the
    vector loop around.
    """

    def __init__(self) -> None:
        self.fixed: dict[str, int] = {}
        self.bounds: dict[str, tuple[Expr, Expr]] = {}
        self.lane_var: str | None = None
        self.lanes = 0
        self.rests: list[Poly] = [{}]
        # Indices are known by identity: hashing a deep tree costs more than all the rest. Beside
        # its form stands what has the identity, so that nothing else can get it.
        self._forms: dict[tuple[int, bool], tuple[Form, Expr]] = {}
        self._elements: dict[tuple[int, int, bool], tuple[Form, object, object]] = {}
        self._rest_ids: dict[frozenset[tuple[Monomial, int]], int] = {frozenset(): _EMPTY}
        self._products: dict[tuple[Monomial, tuple[tuple[str, int], ...]], Poly] = {}

    # Variables.

    def bind(self, var: str, extent: Expr) -> None:
        """Note the range of a loop variable."""
        if var not in self.bounds:
            self.bounds |= loop_bounds({var: extent})

    @contextmanager
    def as_lanes(self, var: str, count: int) -> Iterator[None]:
        """Take a variable for the lane of vectors."""
        self.lane_var, self.lanes = var, count
        yield
        self.lane_var, self.lanes = None, 0

    # From expressions to flat sums.

    def flat(self, expr: Expr) -> Flat:
        """Evaluate an index expression under the current values of unrolled variables."""
        key = (id(expr), self.lane_var is None)
        found = self._forms.get(key)
        if found is None:
            found = self._forms[key] = (self._form(to_poly(expr, self.bounds)), expr)
        return self._evaluate(found[0])

    def element(self, index: tuple[Expr, ...], strides: tuple[Expr, ...]) -> Flat:
        """The position of an element, in elements, from its index and its buffer's strides."""
        key = (id(index), id(strides), self.lane_var is None)
        found = self._elements.get(key)
        if found is None:
            poly: Poly = {}
            for i, stride in zip(index, strides, strict=True):
                part = multiply(to_poly(i, self.bounds), to_poly(stride, self.bounds))
                poly = add(poly, part)
            found = self._elements[key] = (self._form(poly), index, strides)
        return self._evaluate(found[0])

    def _evaluate(self, form: Form) -> Flat:
        """A form under the current values of unrolled variables."""
        fixed = self.fixed
        key = tuple([fixed[name] for name in form.names])
        found = form.memo.get(key)
        if found is None:
            found = form.memo[key] = self._split(self._worked_out(form))
        if not form.steps:
            return found
        const, lane, rest = found
        for name, factor in form.steps:
            const += fixed[name] * factor
        return Flat(const, lane, rest)

    def _form(self, poly: Poly) -> Form:
        steps: list[tuple[str, int]] = []
        rest: Poly = {}
        names: set[str] = set()
        for atoms, factor in join_digits(poly, self.bounds).items():
            match atoms:
                case (Var(name),) if name in self.fixed:
                    steps.append((name, factor))
                case _:
                    rest[atoms] = factor
                    names.update(self._unrolled_in(atoms))
        return Form(tuple(steps), rest, tuple(sorted(names)))

    def _unrolled_in(self, atoms: Monomial) -> list[str]:
        """The unrolled variables that a product reads, in order."""
        return sorted({name for atom in atoms for name in free_vars(atom) if name in self.fixed})

    def _worked_out(self, form: Form) -> Poly:
        """The rest of a form under the current values of unrolled variables."""
        if not form.names:
            return form.rest
        total: Poly = {}
        for atoms, factor in form.rest.items():
            total = add(total, scale(self._product(atoms), factor))
        return join_digits(total, self.bounds)

    def _product(self, atoms: Monomial) -> Poly:
        """A product under the current values: the same one stands in many indices."""
        values = tuple([(name, self.fixed[name]) for name in self._unrolled_in(atoms)])
        if not values:
            return {atoms: 1}
        found = self._products.get((atoms, values))
        if found is None:
            env = {name: Const(value, INDEX) for name, value in values}
            found = {(): 1}
            for atom in atoms:
                found = multiply(found, to_poly(substitute(atom, env), self.bounds))
            self._products[atoms, values] = found
        return found

    def _split(self, poly: Poly) -> Flat:
        rest = dict(poly)
        const = rest.pop((), 0)
        lane: int | None = 0
        if self.lane_var is not None:
            lane = rest.pop((Var(self.lane_var),), 0)
            if any(self.lane_var in free_vars(a) for atoms in rest for a in atoms):
                lane = None
        return Flat(const, lane, self.rest_id(rest))

    def rest_id(self, rest: Poly) -> int:
        """The number of a rest."""
        key = frozenset(rest.items())
        found = self._rest_ids.get(key)
        if found is None:
            found = self._rest_ids[key] = len(self.rests)
            self.rests.append(rest)
        return found

    def per_lane(self, emit: Callable[[], T]) -> list[T]:
        """Emit something once for each lane, with the lane as a constant."""
        var, lanes = self.lane_var, self.lanes
        assert var is not None
        self.lane_var, self.lanes = None, 0
        parts = []
        for lane in range(lanes):
            self.fixed[var] = lane
            parts.append(emit())
        del self.fixed[var]
        self.lane_var, self.lanes = var, lanes
        return parts
