"""pipeline: fill the memory of later iterations while one computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dlc.schedule.edit import redirect, renamed, swap_loop, written
from dlc.schedule.gpu import copied
from dlc.schedule.instruction import COMMIT, INSTRUCTIONS, MAX_STAGES, WAITS
from dlc.schedule.loop import (
    Alloc,
    Block,
    Buffer,
    For,
    Func,
    If,
    Invoke,
    LoopKind,
    Scope,
    Stmt,
    allocs,
    block,
    exprs,
    loops,
    put_inside,
    rewrite,
    substitute,
    walk,
)
from dlc.schedule.primitive import check_fresh, find_serial, primitive, refuse
from dlc.te.expr import Const, Expr, Var, index
from dlc.te.transform import loads
from dlc.te.types import TensorType


@primitive
def pipeline(func: Func, loop: str, stages: int) -> Func:
    """Let each iteration fill shared memory for the one `stages - 1` later, before it computes.

    Each shared buffer that the loop allocates and fills first gets so many parts. Copies that run
    beside the threads end with a commit, and an iteration waits for those of its own part only. One
    stage is no pipeline: an iteration waits for the copies it has asked for itself.

    Before:
        def f(A: f32[6, 64], *, B: f32[6, 64]):
            for b in block(1):
                for k in range(6):
                    t = alloc(f32[64], "shared")
                    for i in thread(64):
                        t[i] = A[k, i]
                    for j in thread(64):
                        B[k, j] = t[63 - j]

    Call:
        pipeline("k", 3)

    After:
        def f(A: f32[6, 64], *, B: f32[6, 64]):
            for b in block(1):
                t = alloc(f32[3, 64], "shared")
                for k_first in range(2):
                    for i_first in thread(64):
                        t[k_first, i_first] = A[k_first, i_first]
                for k in range(6):
                    if k + 2 < 6:
                        for i in thread(64):
                            t[(k + 2) % 3, i] = A[k + 2, i]
                    for j in thread(64):
                        B[k, j] = t[k % 3, 63 - j]

    Raises:
        ScheduleError: no such loop; it is no longer serial; it runs less often than there are
            stages; fewer stages than 1, or more than can be waited for; it does not begin by
            filling shared memory that it allocates; that is filled with what the loop computes; a
            name is taken.
    """
    target = find_serial("pipeline", func, loop)
    if not 1 <= stages <= MAX_STAGES:
        refuse("pipeline", func, f"there are no pipelines of {stages} stages")
    if stages > 1 and not (isinstance(target.extent, Const) and target.extent.value >= stages):
        refuse("pipeline", func, f"loop '{loop}' runs {target.extent} times, not {stages} at least")
    parts = _Parts.of(target)
    if not parts.fills:
        refuse("pipeline", func, f"loop '{loop}' does not begin by filling memory it allocates")
    if _reads(parts.fills) & written(target.body):
        refuse("pipeline", func, f"loop '{loop}' computes what it fills its memory with")
    made = _one_stage(target, parts) if stages == 1 else _many_stages(func, target, parts, stages)
    return swap_loop(func, loop, lambda _: made)


def _one_stage(target: For, parts: _Parts) -> Stmt:
    """The loop, each iteration of which waits for the copies it has asked for itself."""
    body = block(*parts.fills, *parts.commit, *parts.wait(0), *parts.rest)
    return replace(target, body=put_inside(parts.buffers, body))


def _many_stages(func: Func, target: For, parts: _Parts, stages: int) -> Stmt:
    """The loop, whose iterations fill memory of later ones, behind what fills that of the first."""
    loop, first = target.var, f"{target.var}_first"
    news = {v: f"{v}_first" for fill in parts.fills for v in loops(fill)}
    check_fresh("pipeline", func, (first, *news.values()))

    ahead = Var(loop) + (stages - 1)
    now = [parts.at(s, Var(first)) for s in parts.filled(loop, Var(first))]
    later = [parts.at(s, ahead % stages) for s in parts.filled(loop, ahead)]
    prologue = block(*(renamed(s, news, {}) for s in now), *parts.commit)
    steady = block(
        *parts.wait(stages - 2),
        If(ahead < target.extent, block(*later)),
        *parts.commit,
        *(parts.at(s, Var(loop) % stages) for s in parts.rest),
    )
    begin = For(first, index(stages - 1), LoopKind.SERIAL, prologue)
    made = [replace(a, buffer=_with_parts(a.buffer, stages)) for a in parts.buffers]
    return put_inside(made, block(begin, replace(target, body=steady)))


def _with_parts(buffer: Buffer, stages: int) -> Buffer:
    type_ = buffer.type
    return replace(buffer, type=TensorType((index(stages), *type_.shape), type_.dtype))


@dataclass(frozen=True, slots=True)
class _Parts:
    """What an iteration allocates, fills, and computes."""

    buffers: tuple[Alloc, ...]
    fills: tuple[Stmt, ...]
    rest: tuple[Stmt, ...]

    @staticmethod
    def of(target: For) -> _Parts:
        """The statements that only fill new shared memory, and the ones behind them."""
        buffers: list[Alloc] = []
        fills: list[Stmt] = []
        rest = [target.body]
        while rest:
            match rest[0]:
                case Alloc(_, Scope.SHARED, body) as alloc:
                    buffers.append(alloc)
                    rest[:1] = [body]
                case Block(stmts):
                    rest[:1] = stmts
                case stmt if written(stmt) <= {a.buffer.name for a in buffers} and written(stmt):
                    if allocs(stmt):
                        break
                    fills.append(stmt)
                    del rest[0]
                case _:
                    break
        return _Parts(tuple(buffers), tuple(fills), tuple(rest))

    @property
    def commit(self) -> tuple[Stmt, ...]:
        """What ends the copies of an iteration; nothing where none runs beside the threads."""
        return (Invoke(COMMIT.name, ()),) if any(copied(s) for s in self.fills) else ()

    def wait(self, pending: int) -> tuple[Stmt, ...]:
        """The wait for all copies but those of the `pending` latest iterations."""
        return (Invoke(WAITS[pending].name, ()),) if self.commit else ()

    def filled(self, loop: str, at: Expr) -> list[Stmt]:
        """The filling of some iteration."""
        return [substitute(s, {loop: at}) for s in self.fills]

    def at(self, stmt: Stmt, part: Expr) -> Stmt:
        """A statement that uses one part of the buffers."""
        for alloc in self.buffers:
            stmt = _redirected(stmt, alloc.buffer.name, lambda place: (part, *place))
        return stmt


def _redirected(
    stmt: Stmt, buffer: str, at: Callable[[tuple[Expr, ...]], tuple[Expr, ...]]
) -> Stmt:
    """As `redirect`; a region keeps its last dimensions, so instructions may follow too."""

    def visit(node: Stmt) -> Stmt:
        if not isinstance(node, Invoke):
            return node
        places = ((b, at(place) if b == buffer else place) for b, place in node.operands)
        return replace(node, operands=tuple(places))

    return rewrite(redirect(stmt, buffer, buffer, at), visit)


def _reads(stmts: Iterable[Stmt]) -> set[str]:
    """The buffers that statements read: of instructions, the inputs."""
    found: set[str] = set()
    for stmt in stmts:
        found |= {x.buffer for e in exprs(stmt) for x in loads(e)}
        for node in walk(stmt):
            if isinstance(node, Invoke):
                known = INSTRUCTIONS[node.instruction].func
                found |= {name for name, _ in node.operands[: len(known.inputs)]}
    return found
