"""How loop IR runs on a GPU: which statements are launches, phases and the threads' own.

The statements of a scheduled function that follow each other outside of all loops are *launches*.
Inside of the block loops of a launch stand *phases*, run one after the other by all threads of a
block: a nest of thread loops, whose variables are the digits of the thread's number, or any other
statement, which the first thread runs alone. Serial loops, guards and allocations may stand around
phases. What is allocated outside of all phases belongs to the block (scope `shared`) or, if every
index has the thread's digits at fixed places, to its threads (scope `register`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dlc.schedule.edit import read, sequence, written
from dlc.schedule.instruction import BARRIER
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
    walk,
)
from dlc.te.expr import Const, Expr

WARP = 32


@dataclass(frozen=True, slots=True)
class Launches:
    """What one scheduled function is on a GPU: kernels in order, and memory between them."""

    scratch: tuple[Buffer, ...]
    funcs: tuple[Func, ...]


def split_launches(func: Func) -> Launches:
    """Make a function of each launch. Its parameters are the buffers it uses, under their names."""
    scratch = _outer_allocs(func.body)
    funcs: list[Func] = []
    known = {b.name: b for b in (*func.params, *scratch)}
    nests = sequence(func.body)
    for number, nest in enumerate(nests):
        writes = written(nest)
        reads = read(nest) - writes
        name = func.name if len(nests) == 1 else f"{func.name}_{number + 1}"
        in_place = tuple((o, i) for o, i in func.in_place if o in writes and i in reads)
        funcs.append(
            Func(
                name,
                func.sizes,
                tuple(b for n, b in known.items() if n in reads),
                tuple(b for n, b in known.items() if n in writes),
                nest,
                in_place,
            )
        )
    return Launches(tuple(scratch), tuple(funcs))


def _outer_allocs(stmt: Stmt) -> list[Buffer]:
    """The buffers that live outside of all loops, in order."""
    match stmt:
        case Alloc(buffer, _, body):
            return [buffer, *_outer_allocs(body)]
        case Block(stmts):
            return [b for child in stmts for b in _outer_allocs(child)]
        case _:
            return []


def block_loops(func: Func) -> tuple[tuple[For, ...], Stmt]:
    """The block loops of a launch, outermost first, and what runs inside of them."""
    found: list[For] = []
    stmt = func.body
    while isinstance(stmt, For) and stmt.kind is LoopKind.BLOCK:
        found.append(stmt)
        stmt = stmt.body
    return tuple(found), stmt


def is_cooperative(stmt: Stmt) -> bool:
    """Whether a statement holds phases of several threads, rather than being a phase."""
    if isinstance(stmt, For) and stmt.kind is LoopKind.THREAD:
        return False
    return any(
        (isinstance(s, For) and s.kind is LoopKind.THREAD) or is_barrier(s) for s in walk(stmt)
    )


def is_barrier(stmt: Stmt) -> bool:
    """Whether a statement makes the threads of a block wait for each other."""
    return isinstance(stmt, Invoke) and stmt.instruction == BARRIER.name


def phases(stmt: Stmt) -> Iterator[Stmt]:
    """The phases of what runs in a block, in order."""
    match stmt:
        case Alloc() | If() | For() if is_cooperative(stmt):
            yield from phases(stmt.body)
        case Block(stmts):
            for child in stmts:
                yield from phases(child)
        case _ if not is_barrier(stmt):
            yield stmt


def thread_loops(phase: Stmt) -> tuple[For, ...]:
    """The thread loops of a phase, outermost first."""
    return tuple(s for s in walk(phase) if isinstance(s, For) and s.kind is LoopKind.THREAD)


def threads_of(phase: Stmt) -> int:
    """How many threads a phase runs on."""
    total = 1
    for loop in thread_loops(phase):
        assert isinstance(loop.extent, Const), "thread loops have constant extents"
        total *= int(loop.extent.value)
    return total


def block_threads(func: Func) -> int:
    """How many threads a block of a launch has: whole warps that are enough for each phase."""
    _, body = block_loops(func)
    most = max((threads_of(p) for p in phases(body)), default=1)
    return -(-most // WARP) * WARP


def strides(loops: tuple[For, ...]) -> dict[str, tuple[int, int]]:
    """(stride, extent) of each thread loop's variable as a digit of the thread's number."""
    found: dict[str, tuple[int, int]] = {}
    stride = 1
    for loop in reversed(loops):
        assert isinstance(loop.extent, Const), "thread loops have constant extents"
        found[loop.var] = (stride, int(loop.extent.value))
        stride *= int(loop.extent.value)
    return found


def shared_buffers(func: Func) -> tuple[Buffer, ...]:
    """The buffers of a launch that its block shares."""
    return tuple(a.buffer for a in allocs(func.body).values() if a.scope is Scope.SHARED)


def grid(func: Func) -> tuple[Expr, ...]:
    """The extents of the block loops of a launch."""
    return tuple(loop.extent for loop in block_loops(func)[0])


def without_barriers(func: Func) -> Func:
    """The same launch before `insert_barriers`."""

    def visit(stmt: Stmt) -> Stmt:
        match stmt:
            case Block(stmts):
                return Block(tuple(visit(s) for s in stmts if not is_barrier(s)))
            case If() | For() | Alloc():
                return replace(stmt, body=visit(stmt.body))
            case _:
                return stmt

    return replace(func, body=visit(func.body))
