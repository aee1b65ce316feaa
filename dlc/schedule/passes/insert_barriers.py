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
belong to one thread each and need none.

Position: the last of the loop passes; nothing may move statements after it.

Source: Muchnick, "Advanced Compiler Design and Implementation", section 9.1, for the dependences;
that whole phases are compared, and not elements, is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dlc.schedule.edit import aliases, read, written
from dlc.schedule.gpu import is_barrier, is_cooperative
from dlc.schedule.instruction import BARRIER
from dlc.schedule.loop import Alloc, Block, For, Func, If, Invoke, LoopKind, Scope, Stmt, allocs
from dlc.schedule.loop import block as sequence_of

_NO_NAMES: frozenset[str] = frozenset()


def insert_barriers(func: Func) -> Func:
    """Put a barrier before each phase that conflicts with an earlier one."""
    return replace(func, body=_Inserter(func).launches(func.body))


@dataclass(frozen=True, slots=True)
class _Touched:
    """Buffers read and written since the last barrier."""

    reads: frozenset[str] = _NO_NAMES
    writes: frozenset[str] = _NO_NAMES

    def __or__(self, other: _Touched) -> _Touched:
        return _Touched(self.reads | other.reads, self.writes | other.writes)

    def conflicts(self, later: _Touched) -> bool:
        """Whether what comes later must wait."""
        return bool(self.writes & (later.reads | later.writes) or self.reads & later.writes)


class _Inserter:
    """One walk over a function; methods return the new statement and what is open behind it."""

    def __init__(self, func: Func) -> None:
        self.names = aliases(func)
        self.private = {name for name, a in allocs(func.body).items() if a.scope is Scope.REGISTER}

    def launches(self, stmt: Stmt) -> Stmt:
        """Each launch by itself: the end of a launch is a barrier for all blocks."""
        match stmt:
            case Alloc():
                return replace(stmt, body=self.launches(stmt.body))
            case Block(stmts):
                return Block(tuple(self.launches(s) for s in stmts))
            case _:
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
        if is_barrier(stmt):
            return stmt, _Touched()
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
            case If(_, body) if is_cooperative(stmt):
                new, after = self.stmt(body, before)
                return replace(stmt, body=new), before | after
            case For(_, _, _, body) if is_cooperative(stmt):
                once = self.stmt(body, before)[1]
                new, after = self.stmt(body, before | once)
                return replace(stmt, body=new), before | after
            case _:
                return self.phase(stmt, before)

    def phase(self, stmt: Stmt, before: _Touched) -> tuple[Stmt, _Touched]:
        now = _Touched(self.outside(stmt, read(stmt)), self.outside(stmt, written(stmt)))
        if before.conflicts(now):
            return sequence_of(Invoke(BARRIER.name, ()), stmt), now
        return stmt, before | now

    def outside(self, stmt: Stmt, names: set[str]) -> frozenset[str]:
        """What a phase touches that other threads may touch, by memory."""
        own = self.private | set(allocs(stmt))
        return frozenset(self.names.get(n, n) for n in names if n not in own)
