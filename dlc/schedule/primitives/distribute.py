"""distribute: run the iterations of nested loops on the blocks and threads of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, zip_longest
from math import prod

from dlc.schedule.dependence import why_not_all_independent
from dlc.schedule.edit import loops_around, swap_loop
from dlc.schedule.loop import For, Func, If, LoopKind, substitute
from dlc.schedule.primitive import check_fresh, find_serial, primitive, refuse
from dlc.te.expr import Expr, Var, ceil_div, index
from dlc.te.simplify import canonical, surely_divides


@primitive
def distribute(
    func: Func, loops: tuple[str, ...], threads: tuple[int, ...], steps: tuple[int, ...]
) -> Func:
    """Cut each loop of a perfect nest into blocks, threads and steps of one thread.

    The new loops are called after the old ones, with `_b`, `_t` and `_s` behind; a loop with one
    step per thread has no `_s`. What `split`, `reorder` and `bind` would do in many steps, for
    loops whose indices are so involved (after `fuse`) that their independence can be proven for
    the whole only.

    Before:
        def fill(n: size, *, B: f32[n, 12]):
            for i in range(n):
                for j in range(12):
                    B[i, j] = 0.5

    Call:
        distribute(("i", "j"), (16, 4), (2, 1))

    After:
        def fill(n: size, *, B: f32[n, 12]):
            for i_b in block((n + 31) // 32):
                for j_b in block(3):
                    for i_t in thread(16):
                        for j_t in thread(4):
                            for i_s in range(2):
                                if i_b * 32 + i_t * 2 + i_s < n:
                                    B[i_b * 32 + i_t * 2 + i_s, j_b * 4 + j_t] = 0.5

    Raises:
        ScheduleError: no such loops; they are no longer serial, or not directly nested; they are
            inside of another loop that is not bound to blocks; not one number of threads and of
            steps of at least 1 for each; a name is taken; an iteration may read what another one
            writes.
    """
    if not len(loops) == len(threads) == len(steps) or min((*threads, *steps), default=0) < 1:
        refuse("distribute", func, f"{threads} and {steps} are not numbers for {len(loops)} loops")
    digits = [
        (("t", count, "thread"), *((("s", step, "step"),) if step > 1 else ()))
        for count, step in zip(threads, steps, strict=True)
    ]
    return cut_digits("distribute", func, loops, digits)


Digit = tuple[str, int, str]  # what stands behind the name of its loop, extent, "thread" or "step"


def cut_digits(
    name: str, func: Func, loops: tuple[str, ...], digits: Sequence[Sequence[Digit]]
) -> Func:
    """Cut each loop of a perfect nest into blocks and digits, whose loops are threads or steps.

    Digits of a loop come from the outermost on. The first ones of all loops that are threads stand
    around the second ones, and so on, and all steps inside.
    """
    chain = _check(name, func, loops)
    blocks: list[tuple[str, Expr]] = []
    env: dict[str, Expr] = {}
    guards: list[Expr] = []
    for loop, own in zip(chain, digits, strict=True):
        tile = prod(size for _, size, _ in own)
        whole = Var(f"{loop.var}_b") * tile
        for position, (suffix, _, _) in enumerate(own):
            whole = whole + Var(f"{loop.var}_{suffix}") * prod(n for _, n, _ in own[position + 1 :])
        env[loop.var] = whole
        if not surely_divides(tile, loop.extent):
            guards.append(env[loop.var] < loop.extent)
        blocks.append((f"{loop.var}_b", canonical(ceil_div(loop.extent, tile))))
    lanes, inner = (_in_turn(loops, digits, kind) for kind in ("thread", "step"))
    check_fresh(name, func, [n for n, _ in (*blocks, *lanes, *inner)], freed=loops)
    body = substitute(chain[-1].body, env)
    for guard in reversed(guards):
        body = If(guard, body)
    for var, size in reversed(inner):
        body = For(var, index(size), LoopKind.SERIAL, body)
    for var, size in reversed(lanes):
        body = For(var, index(size), LoopKind.THREAD, body)
    for var, extent in reversed(blocks):
        body = For(var, extent, LoopKind.BLOCK, body)
    return swap_loop(func, loops[0], lambda _: body)


def _in_turn(
    loops: tuple[str, ...], digits: Sequence[Sequence[Digit]], kind: str
) -> list[tuple[str, int]]:
    """The loops over digits of a kind: the first of each loop, then the second of each."""
    own = [
        [(f"{v}_{d[0]}", d[1]) for d in ds if d[2] == kind]
        for v, ds in zip(loops, digits, strict=True)
    ]
    return [d for turn in zip_longest(*own) for d in turn if d is not None]


def _check(name: str, func: Func, loops: tuple[str, ...]) -> list[For]:
    chain = [find_serial(name, func, loop) for loop in loops]
    for outer, inner in pairwise(chain):
        if outer.body is not inner:
            refuse(name, func, f"'{inner.var}' is not the whole body of '{outer.var}'")
    for around in loops_around(func, loops[0])[:-1]:
        if around.kind is not LoopKind.BLOCK:
            refuse(name, func, f"loop '{loops[0]}' is inside of '{around.var}'")
    if reason := why_not_all_independent(func, loops):
        refuse(name, func, reason)
    return chain
