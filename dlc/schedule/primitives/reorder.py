"""reorder: nest loops in another order."""

from __future__ import annotations

from dlc.schedule.dependence import why_not_permutable
from dlc.schedule.edit import loops_around, swap_loop
from dlc.schedule.loop import For, Func, If, LoopKind, Stmt, put_inside
from dlc.schedule.primitive import find_loop, primitive, refuse

_ORDERED = (LoopKind.SERIAL, LoopKind.UNROLL)


@primitive
def reorder(func: Func, order: tuple[str, ...]) -> Func:
    """Put loops of one perfect nest into a new order, outermost first.

    The loops take each other's places; loops between them that are not named stay where they are.
    Guards between the loops move to the innermost place. A reduction may be reordered, which
    changes the order of its operations and so the rounding of a float result; anything else must
    be provably independent.

    Before:
        def sum(A: f32[4, 8], *, s: f32[4]):
            for i in range(4):
                for j in range(8):
                    s[i] += A[i, j]

    Call:
        reorder(("j", "i"))

    After:
        def sum(A: f32[4, 8], *, s: f32[4]):
            for j in range(8):
                for i in range(4):
                    s[i] += A[i, j]

    Raises:
        ScheduleError: no such loop; a loop is named twice; the loops are no perfect nest; one is
            already parallel or vectorized; an iteration may read what another one writes.
    """
    for name in order:
        find_loop("reorder", func, name)
    if len(set(order)) < len(order):
        refuse("reorder", func, "a loop is named twice")
    if len(order) < 2:
        return func
    chain, guards, body = _chain(func, order)
    names = [f.var for f in chain]
    if missing := [name for name in order if name not in names]:
        inside = f"'{missing[0]}' is not perfectly nested with '{names[0]}'"
        refuse("reorder", func, inside, "other statements stand between the loops")
    fixed = next((f for f in chain if f.kind not in _ORDERED), None)
    if fixed is not None:
        refuse("reorder", func, f"loop '{fixed.var}' is already {fixed.kind}", "reorder it before")
    if reason := why_not_permutable(func, chain[0], tuple(names)):
        refuse("reorder", func, reason)

    queue = iter(order)
    by_name = {f.var: f for f in chain}
    loops = [by_name[next(queue)] if f.var in order else f for f in chain]
    turned = put_inside([*loops, *guards], body)
    return swap_loop(func, names[0], lambda _: turned)


def _chain(func: Func, order: tuple[str, ...]) -> tuple[list[For], list[If], Stmt]:
    """From the outermost of the loops to the innermost: loops, guards, and what is inside."""
    depth = {name: len(loops_around(func, name)) for name in order}
    outermost = min(order, key=lambda name: depth[name])
    pending = set(order)
    chain: list[For] = []
    guards: list[If] = []
    stmt: Stmt = loops_around(func, outermost)[-1]
    while pending:
        match stmt:
            case For(var, _, _, body):
                chain.append(stmt)
                pending.discard(var)
                stmt = body
            case If(_, body):
                guards.append(stmt)
                stmt = body
            case _:
                break
    return chain, guards, stmt
