"""fission: one loop for each statement of a body."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from dlc.schedule.apart import why_not_unordered
from dlc.schedule.dependence import why_not_independent
from dlc.schedule.edit import renamed, swap_loop
from dlc.schedule.loop import Block, Func, If, Stmt, block
from dlc.schedule.primitive import check_fresh, find_serial, primitive, refuse
from dlc.schedule.simplify import guarded
from dlc.te.expr import Expr
from dlc.te.transform import loads


@primitive
def fission(func: Func, loop: str, suffix: str = "") -> Func:
    """Give each statement in the body of a loop a loop of its own, one after the other.

    The loops after the first are called after it, with `suffix` and `_2`, `_3` and so on behind. A
    guard around all of the body then stands around each statement.

    Before:
        def f(*, B: f32[4, 8]):
            for i in range(4):
                for j in range(2):
                    B[i, j] = 0.0
                for k in range(3):
                    B[i, k + 2] = 1.0

    Call:
        fission("i")

    After:
        def f(*, B: f32[4, 8]):
            for i in range(4):
                for j in range(2):
                    B[i, j] = 0.0
            for i_2 in range(4):
                for k in range(3):
                    B[i_2, k + 2] = 1.0

    Raises:
        ScheduleError: no such loop; it is no longer serial; its body is one statement; two of the
            statements may use one element of a buffer, which one of them writes, and not only in
            the same iteration; a name is taken.
    """
    target = find_serial("fission", func, loop)
    conds, body = _guards(target.body)
    if not isinstance(body, Block):
        refuse("fission", func, f"the body of loop '{loop}' is one statement")
    parts = [guarded(conds, part) for part in body.stmts]
    names = [loop, *(f"{loop}{suffix}_{n}" for n in range(2, len(parts) + 1))]
    check_fresh("fission", func, names[1:])

    nests = [replace(target, body=part) for part in parts]
    if why_not_independent(func, loop):
        for a, b in combinations(nests, 2):
            if reason := why_not_unordered(func, a, b):
                refuse("fission", func, reason)
    made = (renamed(n, {loop: name}, {}) for n, name in zip(nests, names, strict=True))
    return swap_loop(func, loop, lambda _: block(*made))


def _guards(body: Stmt) -> tuple[list[Expr], Stmt]:
    """The guards around a body that read no memory, and what they guard."""
    conds: list[Expr] = []
    while isinstance(body, If) and not loads(body.cond):
        conds.append(body.cond)
        body = body.body
    return conds, body
