"""roll: keep from one iteration to the next what both read of an intermediate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dlc.schedule.dependence import bounds_in
from dlc.schedule.edit import (
    aliases,
    read,
    redirect,
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
    rewrite,
    substitute,
    walk,
)
from dlc.schedule.primitive import find_intermediate, find_serial, primitive, refuse
from dlc.te.affine import split_terms
from dlc.te.expr import Expr, Var, either, equal, index
from dlc.te.simplify import Bounds, canonical, simplify
from dlc.te.transform import free_vars
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
            common; an instruction uses the buffer; no loop computes rows of it that are the same
            numbers in the next iteration, `step` rows before.
    """
    alloc = find_intermediate("roll", func, buffer)
    each = find_serial("roll", func, loop)
    if not any(node is alloc for node in _directly_in(each.body)):
        refuse("roll", func, f"'{buffer}' is not directly inside of loop '{loop}'")
    shape = alloc.buffer.type.shape
    rows = const_or_none(shape[dim]) if 0 <= dim < len(shape) else None
    if rows is None:
        refuse("roll", func, f"'{buffer}' has no dimension {dim} of a known length")
    if not 0 < step < rows:
        refuse("roll", func, f"iterations that are {step} of {rows} rows apart have none in common")
    if touched_by_invoke(each, buffer):
        refuse("roll", func, f"an instruction uses '{buffer}'")

    bounds = bounds_in(func.body)
    rolled = _Rolled(func, each, buffer, dim, rows, step, bounds)
    first = equal(Var(loop), 0)
    again = 0

    def skip(node: Stmt) -> Stmt:
        nonlocal again
        if not isinstance(node, For) or (offset := rolled.offset(node)) is None:
            return node
        again += 1
        is_new = simplify(index(rows - step) - offset <= Var(node.var), bounds)
        return replace(node, body=If(either(first, is_new), node.body))

    body = rewrite(each.body, skip)
    if not again:
        refuse("roll", func, f"no loop computes rows of '{buffer}' that iterations have in common")

    def place(at: tuple[Expr, ...]) -> tuple[Expr, ...]:
        row = canonical(at[dim] + Var(loop) * step)
        return (*at[:dim], canonical(row % rows), *at[dim + 1 :])

    body = redirect(body, buffer, buffer, place)
    result = swap_loop(func, loop, lambda f: replace(f, body=body))
    result = swap_alloc(result, buffer, lambda a: a.body)
    return swap_loop(result, loop, lambda f: Alloc(alloc.buffer, alloc.scope, f))


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

    def offset(self, node: For) -> Expr | None:
        """The row that a loop over rows begins with, if it computes the same ones again; or None.

        Each of its iterations stores one row, of numbers that depend on it and on the loop around
        in one way only: as on where the row lies in all. It ends with the last row, as each row
        but the new ones has to have been one of its rows an iteration before.
        """
        own = allocs(node).keys()
        stored = [s.store for s in sites(node.body) if s.store.buffer == self.buffer]
        if not stored or written(node) - own != {self.buffer}:
            return None
        moving, offset = split_terms(stored[0].index[self.dim], {node.var})
        if moving != Var(node.var) or free_vars(offset):
            return None
        if canonical(node.extent + offset) != index(self.rows):
            return None
        same = aliases(self.func)
        sources = {same.get(b, b) for b in read(node) - own}
        if self.buffer in sources or sources & {same.get(b, b) for b in written(self.each)}:
            return None
        return offset if self._is_same(node) else None

    def _is_same(self, node: For) -> bool:
        """Whether the next iteration computes the same, `step` rows before."""
        var, loop = node.var, self.each.var
        next_one = {var: Var(var) - self.step, loop: Var(loop) + 1}
        after = substitute(node.body, next_one)
        pairs = zip(walk(node.body), walk(after), strict=True)
        return all(
            a == b or simplify(a, self.bounds) == simplify(b, self.bounds)
            for now, then in pairs
            for a, b in zip(self._own(now), self._own(then, self.step), strict=True)
        )

    def _own(self, stmt: Stmt, behind: int = 0) -> tuple[Expr, ...]:
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
