"""partition: run a loop as two loops, one after the other."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.dependence import bounds_in
from dlc.schedule.edit import renamed, swap_loop
from dlc.schedule.loop import For, Func, Stmt, allocs, block, loops, substitute
from dlc.schedule.primitive import check_fresh, find_loop, primitive, refuse
from dlc.schedule.simplify import hoist_stmt, simplify_stmt, tighten_stmt
from dlc.te.affine import are_whole_groups
from dlc.te.expr import Expr, Var, index, maximum
from dlc.te.simplify import Bounds, canonical, surely_at_most, surely_equal
from dlc.te.text import parse_expr
from dlc.te.transform import free_vars


@primitive
def partition(func: Func, loop: str, at: int | str, suffix: str) -> Func:
    """Run the iterations below `at` in one loop and the others in a copy of it.

    `at` is a number or a size expression. Loops and buffers of the copy get `suffix` behind their
    names. Guards that either part makes sure are dropped, which is how tails are cut off; a
    guard that limits a loop shortens it.

    Before:
        def copy(n: size, A: f32[n], *, B: f32[n]):
            for io in range((n + 7) // 8):
                for ii in range(8):
                    if io * 8 + ii < n:
                        B[io * 8 + ii] = A[io * 8 + ii]

    Call:
        partition("io", "n // 8", "_t")

    After:
        def copy(n: size, A: f32[n], *, B: f32[n]):
            for io in range(n // 8):
                for ii in range(8):
                    B[ii + io * 8] = A[ii + io * 8]
            for io_t in range((n + 7) // 8 - n // 8):
                for ii_t in range(8):
                    if ii_t + io_t * 8 + n // 8 * 8 < n:
                        B[ii_t + io_t * 8 + n // 8 * 8] = A[ii_t + io_t * 8 + n // 8 * 8]

    Raises:
        ScheduleError: no such loop; `at` reads something else than sizes, or is not surely within
            the loop, or leaves a part surely empty; a name with the suffix is taken.
    """
    target = find_loop("partition", func, loop)
    cut = canonical(index(at) if isinstance(at, int) else parse_expr(at))
    _check(func, target, cut)
    copies = {name: name + suffix for name in loops(target)}
    buffers = {name: name + suffix for name in allocs(target)}
    check_fresh("partition", func, (*copies.values(), *buffers.values()))

    bounds = bounds_in(func.body)
    rest = canonical(target.extent - cut)
    tail = renamed(replace(target, extent=rest), copies, buffers)
    assert isinstance(tail, For)
    shifted = substitute(tail.body, {tail.var: cut + Var(tail.var)})
    parts = (replace(target, extent=cut), replace(tail, body=shifted))
    both = block(*(tidy(part, bounds, func.sizes) for part in parts))
    return swap_loop(func, loop, lambda _: both)


def _check(func: Func, target: For, cut: Expr) -> None:
    what = f"{cut} of the {target.extent} iterations of '{target.var}'"
    if free_vars(cut) - set(func.sizes):
        refuse("partition", func, f"'{cut}' reads something that is no size variable")
    runs = maximum(target.extent, 0)  # an extent below zero is none
    is_there = surely_at_most(0, cut) and surely_at_most(cut, runs)
    if not (is_there or are_whole_groups(cut, target.extent)):
        refuse("partition", func, f"{what} are not surely there")
    if surely_equal(cut, 0) or surely_equal(cut, target.extent):
        refuse("partition", func, f"{what} leave an empty part")


def tidy(part: Stmt, bounds: Bounds, sizes: tuple[str, ...]) -> Stmt:
    """Drop guards that a part of a nest makes sure, and shorten loops that others limit."""
    simple = simplify_stmt(part, {**bounds, **bounds_in(part)})
    return tighten_stmt(hoist_stmt(simple), sizes)
