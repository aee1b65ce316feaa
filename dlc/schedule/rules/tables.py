"""Places along a line that cost divisions are read from tables, computed once for all lines.

Where a run says how an image is enlarged or padded, each element divides by sizes to find what it
is made of, as every element above it has done.
"""

from __future__ import annotations

from collections.abc import Iterator

from dlc.core.errors import ScheduleError
from dlc.core.types import DType
from dlc.schedule.loop import For, fresh_name, names_in
from dlc.schedule.nest import Stage, stages
from dlc.schedule.trace import Trace
from dlc.te.expr import Binary, BinOp, Const, Expr, Select, Var, children
from dlc.te.simplify import surely_less
from dlc.te.transform import free_vars, loads, walk
from dlc.te.types import is_const

LEAST = 32  # elements of a line: the edges that a line is parted from stay as they are


def tabulate_places(trace: Trace) -> frozenset[str]:
    """Tabulate what divides the counter of an innermost loop by a size, where others repeat it.

    What these loops divide is tabulated, too. Returns the loops that fill the tables, which are too
    short for threads, and for vectors of what no vector divides.
    """
    found: dict[str, dict[Expr, None]] = {}
    fills = list[str]()
    for stage in stages(trace.func):
        repeated = [f for f in stage.loops if not is_const(f.extent, 1)]
        if stage.is_reduction or len(repeated) < 2 or surely_less(repeated[-1].extent, LEAST):
            continue
        places = {loop.var: dict.fromkeys(_costly(stage, loop)) for loop in repeated}
        if not places[repeated[-1].var]:
            continue
        for var, exprs in places.items():
            found.setdefault(var, {}).update(exprs)
    for var, exprs in found.items():
        # A part of another one is looked up in what is left.
        for expr in sorted(exprs, key=lambda e: -sum(1 for _ in walk(e))):
            name = fresh_name(f"{var}_table", names_in(trace.func))
            try:
                trace.do("tabulate", var, str(expr), name)
            except ScheduleError:
                continue  # it may divide by what is negative, or be part of what a table has
            fills.append(f"{name}_0")
    return frozenset(fills)


def _costly(stage: Stage, loop: For) -> list[Expr]:
    """The largest parts of a value that divide a loop's counter, and read no other loop."""
    others = {f.var for f in stage.loops} - {loop.var}

    def parts(expr: Expr) -> Iterator[Expr]:
        if loop.var not in free_vars(expr):
            return
        alone = not loads(expr) and others.isdisjoint(free_vars(expr))
        if not alone or expr.dtype is DType.BOOL:
            for part in children(expr):
                yield from parts(part)
        elif any(_is_costly(node, loop) for node in walk(expr)):
            yield expr

    return list(parts(stage.value))


def _is_costly(node: Expr, loop: For) -> bool:
    """Whether a counter is divided by more than a shift, and not by a constant alone.

    Digits of a counter are told by vectors. What lies beyond an edge is told by parts of a line
    (see `edges`), where it is known before the run where edges are.
    """
    match node:
        case Binary(BinOp.FLOORDIV | BinOp.MOD, a, Const(int(size))):
            digits = isinstance(a, Var) or size & (size - 1) == 0
            return not digits and loop.var in free_vars(a)
        case Binary(BinOp.FLOORDIV | BinOp.MOD, a, _):
            return loop.var in free_vars(a)
        case Select(cond, _, _):
            return loop.var in free_vars(cond) and not isinstance(loop.extent, Const)
        case _:
            return False
