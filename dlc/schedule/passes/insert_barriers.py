"""Make the threads of a block wait where one phase uses what another one wrote.

Before:
    def f(A: f32[64], *, B: f32[64]):
        for b in block(1):
            t = alloc(f32[64], "shared")
            for i in thread(64):
                t[i] = A[i]
            for j in thread(64):
                B[j] = t[63 - j]

After:
    def f(A: f32[64], *, B: f32[64]):
        for b in block(1):
            t = alloc(f32[64], "shared")
            for i in thread(64):
                t[i] = A[i]
            invoke("barrier")
            for j in thread(64):
                B[j] = t[63 - j]

Two phases need a barrier between them if one writes a buffer that the other reads or writes. A
loop around phases makes its last phase come before its first one. Buffers of scope `register`
belong to one thread each and need none; nor do phases that surely use different parts of a buffer,
by its first index, as the stages of a pipeline do. A shared buffer counts as written where one is
that takes its place in memory (`gpu.shared_offsets`). Where threads wait for copies, each for its
own, these are there for the others behind a barrier only.

Position: the last of the loop passes; nothing may move statements after it.

Source: Muchnick, "Advanced Compiler Design and Implementation", section 9.1, for the dependences;
that whole phases are compared, and not elements, is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dlc.schedule.dependence import accesses
from dlc.schedule.edit import aliases, read, sequence, written
from dlc.schedule.gpu import copied, is_barrier, is_cooperative, is_sync, waits_for, wiped
from dlc.schedule.instruction import BARRIER
from dlc.schedule.loop import (
    Alloc,
    Block,
    For,
    Func,
    If,
    Invoke,
    LoopKind,
    Scope,
    Stmt,
    allocs,
    loops,
)
from dlc.schedule.loop import block as sequence_of
from dlc.te.expr import Binary, BinOp, Const, Expr, Var
from dlc.te.simplify import canonical, surely_differ
from dlc.te.transform import free_vars, substitute
from dlc.te.types import const_or

Place = tuple[str, Expr | None]  # memory, and the first index where that is known
Places = frozenset[Place]
_NOWHERE: Places = frozenset()
_MANY = 8  # iterations that are told apart


def insert_barriers(func: Func) -> Func:
    """Put a barrier before each phase that conflicts with an earlier one."""
    return replace(func, body=_Inserter(func).launches(func.body))


@dataclass(frozen=True, slots=True)
class _Touched:
    """What was read and written since the last barrier."""

    reads: Places = _NOWHERE
    writes: Places = _NOWHERE

    def __or__(self, other: _Touched) -> _Touched:
        return _Touched(self.reads | other.reads, self.writes | other.writes)

    def __le__(self, other: _Touched) -> bool:
        return self.reads <= other.reads and self.writes <= other.writes

    def conflicts(self, later: _Touched) -> bool:
        """Whether what comes later must wait."""
        return _meet(self.writes, later.reads | later.writes) or _meet(self.reads, later.writes)

    def earlier(self, var: str) -> _Touched:
        """The same of the iteration before."""
        return self._with({var: Var(var) - 1})

    def anywhere(self, var: str) -> _Touched:
        """The same of any iteration."""
        return _Touched(_unknown(self.reads, var), _unknown(self.writes, var))

    def _with(self, env: dict[str, Expr]) -> _Touched:
        return _Touched(_moved(self.reads, env), _moved(self.writes, env))


def _moved(places: Places, env: dict[str, Expr]) -> Places:
    return frozenset((n, p if p is None else canonical(substitute(p, env))) for n, p in places)


def _unknown(places: Places, var: str) -> Places:
    return frozenset((n, p if p is None or var not in free_vars(p) else None) for n, p in places)


def _meet(some: Places, others: Places) -> bool:
    return any(n == m and not _apart(p, q) for n, p in some for m, q in others)


def _apart(a: Expr | None, b: Expr | None) -> bool:
    """Whether two indices surely differ: also as remainders of numbers close to each other."""
    if a is None or b is None:
        return False
    (x, m), (y, n) = _modulo(a), _modulo(b)
    between = canonical(x - y)
    if isinstance(between, Const) and (m == n or not m or not n):  # one of them is a remainder
        return between.value % (m or n) != 0 if m or n else between.value != 0
    return surely_differ(a, b)


def _modulo(part: Expr) -> tuple[Expr, int]:
    """An index as a number and what it is the remainder by, 0 if it is the number itself."""
    match part:
        case Binary(BinOp.MOD, number, Const(divisor, _)):
            return number, int(divisor)
        case _:
            return part, 0


class _Inserter:
    """One walk over a function; methods return the new statement and what is open behind it."""

    def __init__(self, func: Func) -> None:
        self.names = aliases(func)
        made = allocs(func.body).items()
        self.private = {name for name, a in made if a.scope is Scope.REGISTER}
        self.shared = {name for name, a in made if a.scope is Scope.SHARED}
        self.copied = copied(func.body)
        self.func = func
        self.wiped: dict[str, set[str]] = {}

    def launches(self, stmt: Stmt) -> Stmt:
        """Each launch by itself: the end of a launch is a barrier for all blocks."""
        match stmt:
            case Alloc():
                return replace(stmt, body=self.launches(stmt.body))
            case Block(stmts):
                return Block(tuple(self.launches(s) for s in stmts))
            case _:
                self.wiped = wiped(replace(self.func, body=stmt))
                return self.launch(stmt)

    def launch(self, stmt: Stmt) -> Stmt:
        """What runs in each block, with nothing open before it; nor is there before a tail."""
        match stmt:
            case For(kind=LoopKind.BLOCK):
                return replace(stmt, body=self.launch(stmt.body))
            case Block((For(kind=LoopKind.BLOCK) as loop, *rest)):
                tail = self.stmt(Block(tuple(rest)), _Touched())[0]
                return sequence_of(self.launch(loop), tail)
            case _:
                return self.stmt(stmt, _Touched())[0]

    def stmt(self, stmt: Stmt, before: _Touched) -> tuple[Stmt, _Touched]:
        if is_sync(stmt):
            return stmt, self.sync(stmt, before)
        match stmt:
            case Block(stmts):
                parts: list[Stmt] = []
                for child in stmts:
                    new, before = self.stmt(child, before)
                    parts.append(new)
                return sequence_of(*parts), before
            case Alloc(_, _, body) if is_cooperative(stmt):
                new, after = self.stmt(body, before)
                return replace(stmt, body=new), after
            case If() if is_cooperative(stmt):
                return self.guard(stmt, before)
            case For() if is_cooperative(stmt):
                return self.loop(stmt, before)
            case _:
                return self.phase(stmt, before)

    def sync(self, stmt: Stmt, before: _Touched) -> _Touched:
        """Behind a wait, what is copied has been written: by any thread, to any part."""
        if is_barrier(stmt):
            return _Touched()
        if waits_for(stmt) is None:
            return before
        return before | _Touched(writes=frozenset((n, None) for n in self.copied))

    def guard(self, stmt: If, before: _Touched) -> tuple[Stmt, _Touched]:
        """A barrier right inside of a guard stands before it: then what follows has it as well."""
        new, after = self.stmt(stmt.body, before)
        first, *rest = sequence(new)
        if is_barrier(first) and rest and not is_barrier(sequence(stmt.body)[0]):
            return sequence_of(first, replace(stmt, body=sequence_of(*rest))), after
        return replace(stmt, body=new), before | after

    def loop(self, stmt: For, before: _Touched) -> tuple[Stmt, _Touched]:
        """Before an iteration there are some others: how many, a short loop tells."""
        runs = const_or(stmt.extent, _MANY + 1)
        new, after = self.stmt(stmt.body, before)
        carried = before
        for _ in range(min(runs - 1, _MANY)):
            if after.earlier(stmt.var) <= carried:
                break
            carried |= after.earlier(stmt.var)
            new, after = self.stmt(stmt.body, carried)
        else:
            if runs > _MANY:
                carried |= after.anywhere(stmt.var)
                new, after = self.stmt(stmt.body, carried)
        return replace(stmt, body=new), before | after.anywhere(stmt.var)

    def phase(self, stmt: Stmt, before: _Touched) -> tuple[Stmt, _Touched]:
        names = written(stmt)
        gone = {(other, None) for name in names for other in self.wiped.get(name, ())}
        now = _Touched(self.outside(stmt, read(stmt)), self.outside(stmt, names) | gone)
        if before.conflicts(now):
            return sequence_of(Invoke(BARRIER.name, ()), stmt), now
        return stmt, before | now

    def outside(self, stmt: Stmt, names: set[str]) -> Places:
        """What a phase touches that other threads may touch, by memory."""
        own = self.private | set(allocs(stmt))
        found = ((self.names.get(n, n), self.part(stmt, n)) for n in names if n not in own)
        return frozenset(found)

    def part(self, stmt: Stmt, buffer: str) -> Expr | None:
        """The one part of a shared buffer that a phase uses, by its first index."""
        if buffer not in self.shared:
            return None
        found = {a.index[0] for a in accesses(stmt) if a.buffer == buffer}
        place = canonical(found.pop()) if len(found) == 1 else None
        if place is None or any(v.startswith("#") for v in free_vars(place)):  # of a whole region
            return None
        return None if free_vars(place) & set(loops(stmt)) else place
