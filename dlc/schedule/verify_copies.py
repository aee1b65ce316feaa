"""Whether copies beside the threads of a block have arrived wherever they are used.

A launch is walked as a thread runs it, iteration by iteration: which parts of shared memory are on
their way, in which group; which ones the thread has waited for; and which ones a barrier has shown
to all threads. A part is the first index of a buffer, where it reads serial loops only.

Source: PTX ISA 9.0, "Data Movement and Conversion Instructions: Asynchronous copy", for groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dlc.schedule.dependence import accesses
from dlc.schedule.gpu import (
    block_bodies,
    copied,
    is_barrier,
    is_commit,
    is_cooperative,
    phases,
    waits_for,
)
from dlc.schedule.instruction import ASYNC_COPIES
from dlc.schedule.loop import Alloc, Block, For, Func, If, Invoke, Stmt, allocs, walk
from dlc.te.affine import loop_bounds
from dlc.te.expr import Binary, BinOp, Const, Expr, Var
from dlc.te.simplify import Bounds, simplify, surely_divides

Part = tuple[str, int | None]  # None: any part
_WHOLE = {BinOp.ADD: int.__add__, BinOp.SUB: int.__sub__, BinOp.MUL: int.__mul__,
          BinOp.MOD: int.__mod__, BinOp.FLOORDIV: int.__floordiv__}  # fmt: skip


def wrong_copies(func: Func) -> Iterator[str]:
    """What is wrong with the copies of a launch, if it has any."""
    if not copied(func.body):
        return
    yield from misaligned_copies(func)
    for body in block_bodies(func):
        walker = _Walker(_uses(body))
        walker.stmt(body, {})
        if walker.open or any(walker.groups):
            walker.problems["copies are on their way when a block ends"] = None
        yield from walker.problems


def misaligned_copies(func: Func) -> Iterator[str]:
    """Lines of shared memory and of the source begin, and places in them are, at whole copies."""
    buffers = {b.name: b for b in func.params} | {n: a.buffer for n, a in allocs(func.body).items()}
    bounds: dict[str, tuple[Expr, Expr]] = {}
    for stmt in walk(func.body):
        if isinstance(stmt, For):
            bounds.update(loop_bounds({stmt.var: stmt.extent}))
        if not isinstance(stmt, Invoke) or stmt.instruction not in ASYNC_COPIES:
            continue
        count = ASYNC_COPIES[stmt.instruction].count
        for name, index in stmt.operands:
            line = buffers[name].type.shape[-1:]
            if not all(_whole(count, part, bounds) for part in (*line, index[-1])):
                yield f"copies of {count} elements of '{name}' are not surely aligned"


def _whole(count: int, size: Expr, bounds: Bounds) -> bool:
    return surely_divides(count, simplify(size, bounds), bounds)


def widest_copy(func: Func, buffer: str) -> int:
    """The bytes of the widest copy from a buffer; 0 where there is none."""
    found = [s for s in walk(func.body) if isinstance(s, Invoke) and s.instruction in ASYNC_COPIES]
    mine = [ASYNC_COPIES[s.instruction].bytes for s in found if s.operands[0][0] == buffer]
    return max(mine, default=0)


@dataclass(frozen=True, slots=True)
class _Use:
    """What a phase does to one buffer that copies fill."""

    buffer: str
    part: Expr
    copies: bool


def _uses(body: Stmt) -> dict[int, tuple[_Use, ...]]:
    """By phase: the uses of buffers that copies fill."""
    names = copied(body)
    found: dict[int, tuple[_Use, ...]] = {}
    for phase in phases(body):
        sources = copied(phase)
        seen = {_Use(a.buffer, a.index[0], a.buffer in sources): None
                for a in accesses(phase) if a.buffer in names}  # fmt: skip
        found[id(phase)] = tuple(seen)
    return found


@dataclass
class _Walker:
    """One walk over what a block runs."""

    uses: dict[int, tuple[_Use, ...]]
    open: set[Part] = field(default_factory=set)  # not committed yet
    groups: list[set[Part]] = field(default_factory=list)  # committed, not waited for
    arrived: set[Part] = field(default_factory=set)  # waited for, not shown by a barrier
    problems: dict[str, None] = field(default_factory=dict)

    def stmt(self, stmt: Stmt, env: Mapping[str, int]) -> None:
        if is_barrier(stmt):
            self.arrived.clear()
        elif is_commit(stmt):
            self.groups.append(self.open)
            self.open = set()
        elif (count := waits_for(stmt)) is not None:
            done = max(0, len(self.groups) - count)
            self.arrived = self.arrived.union(*self.groups[:done])
            del self.groups[:done]
        elif not is_cooperative(stmt):
            self.phase(stmt, env)
        else:
            self.nested(stmt, env)

    def nested(self, stmt: Stmt, env: Mapping[str, int]) -> None:
        """What stands around phases."""
        match stmt:
            case Block(stmts):
                for child in stmts:
                    self.stmt(child, env)
            case Alloc(_, _, body):
                self.stmt(body, env)
            case If(cond, body):
                if _is_true(cond, env):
                    self.stmt(body, env)
            case For():
                self.loop(stmt, env)
            case _:
                pass

    def loop(self, loop: For, env: Mapping[str, int]) -> None:
        if isinstance(loop.extent, Const):
            for n in range(int(loop.extent.value)):
                self.stmt(loop.body, {**env, loop.var: n})
            return
        for _ in range(2):
            self.stmt(loop.body, env)
            if self.open or any(self.groups):
                problem = f"copies are on their way around '{loop.var}', a loop of any length"
                self.problems[problem] = None

    def phase(self, stmt: Stmt, env: Mapping[str, int]) -> None:
        for use in self.uses.get(id(stmt), ()):
            part = (use.buffer, _value(use.part, env))
            waiting = self.groups if use.copies else [self.open, *self.groups, self.arrived]
            if any(_same(part, other) for group in waiting for other in group):
                problem = f"'{use.buffer}' is used before its copies are there for all threads"
                self.problems[problem] = None
            if use.copies:
                self.open.add(part)


def _same(a: Part, b: Part) -> bool:
    return a[0] == b[0] and (a[1] is None or b[1] is None or a[1] == b[1])


def _value(expr: Expr, env: Mapping[str, int]) -> int | None:
    """The value of an index; None where it is not known from the serial loops."""
    match expr:
        case Const(value, _):
            return int(value)
        case Var(name, _):
            return env.get(name)
        case Binary(op, a, b) if op in _WHOLE:
            left, right = _value(a, env), _value(b, env)
            return None if left is None or right is None else _WHOLE[op](left, right)
        case _:
            return None


def _is_true(cond: Expr, env: Mapping[str, int]) -> bool:
    """Whether a guard holds, as far as the serial loops tell."""
    if isinstance(cond, Binary) and cond.op in (BinOp.LT, BinOp.LE):
        a, b = _value(cond.a, env), _value(cond.b, env)
        if a is not None and b is not None:
            return a < b if cond.op is BinOp.LT else a <= b
    return True
