"""roll: keep from one iteration to the next what both read of an intermediate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dlc.schedule.dependence import bounds_in
from dlc.schedule.edit import (
    aliases,
    read,
    redirect,
    sequence,
    sites,
    swap_alloc,
    swap_loop,
    touched_by_invoke,
    written,
)
from dlc.schedule.loop import (
    Alloc,
    Block,
    For,
    Func,
    If,
    Invoke,
    Stmt,
    Store,
    allocs,
    block,
    substitute,
    walk,
)
from dlc.schedule.primitive import find_intermediate, find_serial, primitive, refuse
from dlc.te.expr import Expr, Var, either, equal, index
from dlc.te.simplify import Bounds, canonical, simplify
from dlc.te.types import const_or_none


@primitive
def roll(func: Func, buffer: str, loop: str, dim: int, step: int) -> Func:
    """Compute of an intermediate only what the iteration of a loop before has not computed.

    The intermediate lies directly inside of the loop. Dimension `dim` holds rows of something
    longer, of which each iteration begins `step` rows further: those in front are what the
    iteration before has behind. The buffer moves out of the loop and becomes a ring, in which a row
    keeps its place; all iterations but the first one compute the last `step` rows alone.

    Before:
        def blur(A: f32[9], *, B: f32[6]):
            for y in range(6):
                t = alloc(f32[3], "local")
                for i in range(3):
                    t[i] = A[i + y] + A[i + y + 1]
                B[y] = t[0] * t[1] * t[2]

    Call:
        roll("t", "y", 0, 1)

    After:
        def blur(A: f32[9], *, B: f32[6]):
            t = alloc(f32[3], "local")
            for y in range(6):
                for i in range(3):
                    if y == 0 or 2 <= i:
                        t[(i + y) % 3] = A[i + y] + A[i + y + 1]
                B[y] = t[y % 3] * t[(y + 1) % 3] * t[(y + 2) % 3]

    Raises:
        ScheduleError: no such intermediate or loop; the loop is no longer serial; the intermediate
            is elsewhere, or has no such dimension of known length; iterations have no row in
            common; an instruction uses the buffer; something reads it before all is computed; it is
            stored elsewhere than in loops over all of its rows, each of which computes numbers that
            the next iteration would compute again, `step` rows before.
    """
    alloc = find_intermediate("roll", func, buffer)
    each = find_serial("roll", func, loop)
    rows = _check_place(func, alloc, each, dim, step)
    _check_order(func, each, buffer)

    rolled = _Rolled(func, each, buffer, dim, rows, step, bounds_in(func.body))
    first = equal(Var(loop), 0)

    def skip(stmt: Stmt) -> Stmt:
        if buffer not in written(stmt):
            return stmt
        match stmt:
            case For() if rolled.is_same(stmt):
                is_new = index(rows - step) <= Var(stmt.var)
                return replace(stmt, body=If(either(first, is_new), stmt.body))
            case For() | Alloc():
                return replace(stmt, body=skip(stmt.body))
            case Block(stmts):
                return block(*map(skip, stmts))
            case _:
                refuse(
                    "roll", func, f"not all rows of '{buffer}' are what iterations compute alike"
                )

    def place(at: tuple[Expr, ...]) -> tuple[Expr, ...]:
        row = canonical(at[dim] + Var(loop) * step)
        return (*at[:dim], canonical(row % rows), *at[dim + 1 :])

    body = redirect(skip(each.body), buffer, buffer, place)
    result = swap_loop(func, loop, lambda f: replace(f, body=body))
    result = swap_alloc(result, buffer, lambda a: a.body)
    return swap_loop(result, loop, lambda f: Alloc(alloc.buffer, alloc.scope, f))


def _check_place(func: Func, alloc: Alloc, each: For, dim: int, step: int) -> int:
    """How many rows there are of what lies directly inside of a loop."""
    buffer = alloc.buffer.name
    if not any(node is alloc for node in _directly_in(each.body)):
        refuse("roll", func, f"'{buffer}' is not directly inside of loop '{each.var}'")
    shape = alloc.buffer.type.shape
    rows = const_or_none(shape[dim]) if 0 <= dim < len(shape) else None
    if rows is None:
        refuse("roll", func, f"'{buffer}' has no dimension {dim} of a known length")
    if not 0 < step < rows:
        refuse("roll", func, f"iterations that are {step} of {rows} rows apart have none in common")
    if touched_by_invoke(each, buffer):
        refuse("roll", func, f"an instruction uses '{buffer}'")
    return rows


def _check_order(func: Func, each: For, buffer: str) -> None:
    """Refuse where something reads rows that are computed, or computed once more, later."""
    parts = sequence(each.body)
    stored = [n for n, part in enumerate(parts) if buffer in written(part)]
    readers = [n for n, part in enumerate(parts) if buffer in read(part)]
    if stored and readers and readers[0] <= stored[-1]:
        refuse("roll", func, f"'{buffer}' is read before all of it is computed")


def _directly_in(stmt: Stmt) -> Iterator[Stmt]:
    """The allocations that each iteration of a loop with this body begins and ends with."""
    match stmt:
        case Alloc(_, _, body):
            yield stmt
            yield from _directly_in(body)
        case Block(stmts):
            for child in stmts:
                yield from _directly_in(child)
        case _:
            return


@dataclass(frozen=True, slots=True)
class _Rolled:
    """A buffer in a loop, whose rows the next iteration has `step` rows before."""

    func: Func
    each: For
    buffer: str
    dim: int
    rows: int
    step: int
    bounds: Bounds

    def is_same(self, node: For) -> bool:
        """Whether a loop runs over all rows, and the next iteration computes the same ones again.

        Each of its iterations stores one row, of numbers that depend on it and on the loop around
        in one way only: as on where the row lies in all. As all rows are computed, those of the
        next iteration but its new ones were computed by this one.
        """
        own = allocs(node).keys()
        stored = [
            s.store.index[self.dim] for s in sites(node.body) if s.store.buffer == self.buffer
        ]
        if node.extent != index(self.rows) or any(row != Var(node.var) for row in stored):
            return False
        if written(node) - own != {self.buffer}:
            return False
        same = aliases(self.func)
        sources = {same.get(b, b) for b in read(node) - own}
        if sources & {same.get(b, b) for b in written(self.each)}:
            return False
        next_one = {node.var: Var(node.var) - self.step, self.each.var: Var(self.each.var) + 1}
        after = substitute(node.body, next_one)
        pairs = zip(walk(node.body), walk(after), strict=True)
        return all(
            a == b or simplify(a, self.bounds) == simplify(b, self.bounds)
            for now, then in pairs
            for a, b in zip(self._reads(now), self._reads(then, self.step), strict=True)
        )

    def _reads(self, stmt: Stmt, behind: int = 0) -> tuple[Expr, ...]:
        """What a statement without its children reads, a row of the buffer so much further."""
        match stmt:
            case Store(name, at, value) if name == self.buffer:
                return (*at[: self.dim], at[self.dim] + behind, *at[self.dim + 1 :], value)
            case Store(_, at, value):
                return (*at, value)
            case If(cond, _):
                return (cond,)
            case Invoke(_, operands):
                return tuple(i for _, at in operands for i in at)
            case _:
                return ()
