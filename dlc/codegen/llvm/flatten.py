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
from dlc.te.expr import ZERO, Const, Expr, Var
from dlc.te.poly import Monomial, Poly
from dlc.te.simplify import to_poly
from dlc.te.transform import free_vars, substitute

T = TypeVar("T")


class Flat(NamedTuple):
    """`const + lane * <lane number> + rest`; `lane` is None when the lane enters in another way."""

    const: int
    lane: int | None
    rest: int


@dataclass(slots=True)
class Form:
    """An index expression, ready to be evaluated quickly under many values of unrolled variables.

    A plain form is `flat` plus the sum of factor * value over `steps`; any other form is worked
    out once for each tuple of values of `names`.
    """

    expr: Expr
    flat: Flat
    steps: tuple[tuple[str, int], ...]
    names: tuple[str, ...]
    plain: bool
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
        self._forms: dict[tuple[int, bool], Form] = {}
        self._rest_ids: dict[frozenset[tuple[Monomial, int]], int] = {frozenset(): _EMPTY}
        self._flat_exprs: dict[tuple[int, int], tuple[Expr, object, object]] = {}

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
        # Expressions are cached by identity: hashing a deep tree costs more than all the rest.
        # The form keeps its expression alive, so an id is never reused.
        form = self._forms.get((id(expr), self.lane_var is None))
        if form is None:
            form = self._form(expr)
            self._forms[(id(expr), self.lane_var is None)] = form
        if form.plain:
            if not form.steps:
                return form.flat
            const, lane, rest = form.flat
            fixed = self.fixed
            for name, factor in form.steps:
                const += fixed[name] * factor
            return Flat(const, lane, rest)
        key = tuple([self.fixed[name] for name in form.names])
        found = form.memo.get(key)
        if found is None:
            env = {name: Const(self.fixed[name], INDEX) for name in form.names}
            found = self._split(self._poly(substitute(form.expr, env)))
            form.memo[key] = found
        return found

    def element(self, index: tuple[Expr, ...], strides: tuple[Expr, ...]) -> Flat:
        """The position of an element, in elements, from its index and its buffer's strides."""
        key = (id(index), id(strides))
        found = self._flat_exprs.get(key)
        if found is None:
            total: Expr = ZERO
            for i, stride in zip(index, strides, strict=True):
                total = total + i * stride
            self._flat_exprs[key] = found = (total, index, strides)  # keeps both ids in use
        return self.flat(found[0])

    def _form(self, expr: Expr) -> Form:
        poly = self._poly(expr)
        steps: list[tuple[str, int]] = []
        others: Poly = {}
        plain = True
        for atoms, factor in poly.items():
            match atoms:
                case (Var(name),) if name in self.fixed:
                    steps.append((name, factor))
                case _:
                    others[atoms] = factor
                    plain = plain and not any(free_vars(a) & self.fixed.keys() for a in atoms)
        if plain:
            return Form(expr, self._split(others), tuple(steps), (), True)
        names = tuple(sorted(free_vars(expr) & self.fixed.keys()))
        return Form(expr, Flat(0, 0, _EMPTY), (), names, False)

    def _poly(self, expr: Expr) -> Poly:
        return join_digits(to_poly(expr, self.bounds), self.bounds)

    def _split(self, poly: Poly) -> Flat:
        rest = dict(poly)
        const = rest.pop((), 0)
        lane: int | None = 0
        if self.lane_var is not None:
            lane = rest.pop((Var(self.lane_var),), 0)
            if any(self.lane_var in free_vars(a) for atoms in rest for a in atoms):
                lane = None
        key = frozenset(rest.items())
        found = self._rest_ids.get(key)
        if found is None:
            found = self._rest_ids[key] = len(self.rests)
            self.rests.append(rest)
        return Flat(const, lane, found)

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
