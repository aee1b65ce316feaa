"""Restricting a nest to the part of it that touches a box of a buffer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dlc.schedule.loop import For, If, LoopKind, Stmt, loops, rewrite, substitute
from dlc.schedule.region import Span
from dlc.schedule.simplify import conjuncts, guarded
from dlc.te.affine import loop_bounds, split_terms
from dlc.te.expr import ZERO, Const, Expr, Var
from dlc.te.simplify import Bounds, simplify, to_poly
from dlc.te.transform import free_vars

Refuse = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Anchor:
    """An index into the buffer inside the nest, and the loops and guards around it."""

    index: tuple[Expr, ...]
    around: tuple[For | If, ...]

    @property
    def names(self) -> list[str]:
        """The variables of the loops around the index."""
        return [s.var for s in self.around if isinstance(s, For)]


@dataclass(frozen=True, slots=True)
class Plan:
    """For each loop to shorten, the dimension it walks along and where it starts there."""

    loops: dict[str, tuple[int, Expr]]

    def dims(self, anchor: Anchor) -> set[int]:
        """The dimensions that shortened loops around an index walk along."""
        return {self.loops[v][0] for v in anchor.names if v in self.loops}


def plan_restriction(stmt: Stmt, anchors: list[Anchor], box: tuple[Span, ...]) -> Plan:
    """Find the loops that walk along a dimension of the box that is not whole.

    Such a loop's variable stands alone in one index (`v + offset`), the same in all anchors.
    """
    inside = frozenset(loops(stmt))
    chosen: dict[str, tuple[int, Expr]] = {}
    for var in loops(stmt):
        under = [a for a in anchors if var in a.names]
        options = [_walks(a, var, box, inside) for a in under]
        common = [o for o in options[0] if all(o in more for more in options)] if options else []
        if common:
            chosen[var] = common[0]
    return Plan(chosen)


def _walks(
    anchor: Anchor, var: str, box: tuple[Span, ...], inside: frozenset[str]
) -> list[tuple[int, Expr]]:
    found: list[tuple[int, Expr]] = []
    for d, (part, span) in enumerate(zip(anchor.index, box, strict=True)):
        if span.whole or to_poly(part, {}).get((Var(var),)) != 1:
            continue
        moving, offset = split_terms(part, {var})
        if moving == Var(var) and not free_vars(offset) & inside:
            found.append((d, offset))
    return found


def restrict(
    stmt: Stmt, plan: Plan, box: tuple[Span, ...], bounds: Bounds, refuse: Refuse
) -> tuple[Stmt, Bounds]:
    """Run the planned loops over the box only, and never outside of what they ran over before.

    Returns the new nest and the ranges of all variables now.
    """
    now = dict(bounds)
    env: dict[str, Expr] = {}
    for var, (d, offset) in plan.loops.items():
        now |= loop_bounds({var: box[d].extent})
        env[var] = simplify(box[d].start - offset, bounds) + Var(var)

    def visit(node: Stmt) -> Stmt:
        if not (isinstance(node, For) and node.var in plan.loops):
            return node
        span = box[plan.loops[node.var][0]]
        fixed = node.kind in (LoopKind.VECTOR, LoopKind.UNROLL)
        if fixed and not isinstance(span.extent, Const):
            refuse(f"{node.kind} loop '{node.var}' would run {span.extent} times")
        guard = within(env[node.var], ZERO, node.extent, now)
        return replace(node, extent=span.extent, body=guarded(guard, node.body))

    # The guards speak of the old variable, whose place the expression takes: substitute first.
    return rewrite(substitute(stmt, env), visit), now


def within(value: Expr, start: Expr, extent: Expr, bounds: Bounds) -> list[Expr]:
    """The tests of `start <= value < start + extent` that are not surely true."""
    tests = (simplify(start <= value, bounds), simplify(value < start + extent, bounds))
    return [c for test in tests for c in conjuncts(test)]
