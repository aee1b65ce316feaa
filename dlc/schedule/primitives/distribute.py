"""distribute: run the iterations of nested loops on the blocks and threads of a GPU."""

from __future__ import annotations

from itertools import pairwise

from dlc.schedule.dependence import why_not_all_independent
from dlc.schedule.edit import loops_around, swap_loop
from dlc.schedule.loop import For, Func, If, LoopKind, substitute
from dlc.schedule.primitive import check_fresh, find_serial, primitive, refuse
from dlc.te.expr import Expr, Var, index
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
    chain = _check(func, loops, threads, steps)
    blocks: list[tuple[str, Expr]] = []
    lanes: list[tuple[str, int]] = []
    inner: list[tuple[str, int]] = []
    env: dict[str, Expr] = {}
    guards: list[Expr] = []
    for loop, count, step in zip(chain, threads, steps, strict=True):
        tile = count * step
        whole = Var(f"{loop.var}_b") * tile + Var(f"{loop.var}_t") * step
        if step > 1:
            whole = whole + Var(f"{loop.var}_s")
            inner.append((f"{loop.var}_s", step))
        env[loop.var] = whole
        if not surely_divides(tile, loop.extent):
            guards.append(whole < loop.extent)
        blocks.append((f"{loop.var}_b", canonical((loop.extent + (tile - 1)) // tile)))
        lanes.append((f"{loop.var}_t", count))
    check_fresh("distribute", func, [n for n, _ in (*blocks, *lanes, *inner)], freed=loops)
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


def _check(
    func: Func, loops: tuple[str, ...], threads: tuple[int, ...], steps: tuple[int, ...]
) -> list[For]:
    chain = [find_serial("distribute", func, name) for name in loops]
    if not len(chain) == len(threads) == len(steps) or min((*threads, *steps), default=0) < 1:
        refuse("distribute", func, f"{threads} and {steps} are not numbers for {len(loops)} loops")
    for outer, inner in pairwise(chain):
        if outer.body is not inner:
            refuse("distribute", func, f"'{inner.var}' is not the whole body of '{outer.var}'")
    for around in loops_around(func, loops[0])[:-1]:
        if around.kind is not LoopKind.BLOCK:
            refuse("distribute", func, f"loop '{loops[0]}' is inside of '{around.var}'")
    if reason := why_not_all_independent(func, loops):
        refuse("distribute", func, reason)
    return chain
