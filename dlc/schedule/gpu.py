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
from itertools import permutations
from math import prod
from typing import TypeGuard

from dlc.core.types import DType
from dlc.schedule.edit import read, sequence, written
from dlc.schedule.instruction import ASYNC_COPIES, BARRIER, COMMIT, WAITS
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
    loops,
    walk,
)
from dlc.te.expr import Const, Expr, index
from dlc.te.transform import loads
from dlc.te.types import TensorType, const_size

WARP = 32
ARRIVALS = "arrivals"
SHARED_ALIGNMENT = 16  # bytes: the widest access
APART = 48 * 1024  # bytes of shared memory with which several blocks fit a processor


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """What a launch looks for beside its work: elements of an input that are no indices.

    An element must be below its limit, and not below 0, or where `negative` is set, not below
    -limit. There is one limit, or one for each element of a row. Limits and the number of the
    report are sizes of the launch; a number below 0 asks for nothing.
    """

    launch: str
    indices: str
    negative: bool
    limits: tuple[str, ...]
    report: str


@dataclass(frozen=True, slots=True)
class Launches:
    """What one scheduled function is on a GPU: kernels in order, and memory between them.

    `arrivals` count blocks: one number for each group with a tail, 0 before and after a launch.
    """

    scratch: tuple[Buffer, ...]
    funcs: tuple[Func, ...]
    arrivals: tuple[Buffer, ...] = ()
    checks: tuple[IndexCheck, ...] = ()


@dataclass(frozen=True, slots=True)
class Tail:
    """What the last block of each group runs.

    `groups` are the loops that number the groups, `members` those that number who arrives: the
    blocks of a group, or the last blocks of the groups inside of it.
    """

    groups: tuple[For, ...]
    members: tuple[For, ...]
    body: Stmt


def split_launches(func: Func) -> Launches:
    """Make a function of each launch. Its parameters are the buffers it uses, under their names.

    Kernels that would be called alike end in numbers, so those of launches have a word before them.
    """
    scratch = _outer_allocs(func.body)
    funcs: list[Func] = []
    arrivals: list[Buffer] = []
    known = {b.name: b for b in (*func.params, *scratch)}
    nests = sequence(func.body)
    for number, nest in enumerate(nests):
        writes = written(nest)
        reads = read(nest) - writes
        name = func.name if len(nests) == 1 else f"{func.name}_launch_{number + 1}"
        in_place = tuple((o, i) for o, i in func.in_place if o in writes and i in reads)
        launch = Func(
            name,
            func.sizes,
            tuple(b for n, b in known.items() if n in reads),
            tuple(b for n, b in known.items() if n in writes),
            nest,
            in_place,
        )
        if ends := tails(launch):
            arrivals.append(_arrivals(f"{ARRIVALS}_{number + 1}", ends))
            launch = replace(launch, outputs=(*launch.outputs, arrivals[-1]))
        funcs.append(launch)
    return Launches(tuple(scratch), tuple(funcs), tuple(arrivals))


def _arrivals(name: str, ends: tuple[Tail, ...]) -> Buffer:
    return Buffer(name, TensorType((index(sum(group_count(t) for t in ends)),), DType.U32))


def group_count(tail: Tail) -> int:
    """How many groups of blocks have a tail of their own."""
    return prod(_constant(f) for f in tail.groups)


def member_count(tail: Tail) -> int:
    """How many arrive before the tail runs."""
    return prod(_constant(f) for f in tail.members)


def _constant(loop: For) -> int:
    assert isinstance(loop.extent, Const), "blocks with a tail are a constant number"
    return int(loop.extent.value)


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
    """The block loops of a launch, outermost first, and what runs inside of all of them."""
    found: list[For] = []
    stmt = func.body
    while (loop := _block_loop(stmt)) is not None:
        found.append(loop)
        stmt = loop.body
    return tuple(found), stmt


def _block_loop(stmt: Stmt) -> For | None:
    """A block loop, alone or before a tail."""
    first = stmt.stmts[0] if isinstance(stmt, Block) and stmt.stmts else stmt
    return first if isinstance(first, For) and first.kind is LoopKind.BLOCK else None


def tails(func: Func) -> tuple[Tail, ...]:
    """The tails of a launch, in the order in which they run."""
    found: list[Tail] = []
    around: list[For] = []
    begins: list[tuple[int, Stmt]] = []  # how many loops are around a tail
    stmt = func.body
    while (loop := _block_loop(stmt)) is not None:
        if isinstance(stmt, Block):
            begins.append((len(around), Block(stmt.stmts[1:])))
        around.append(loop)
        stmt = loop.body
    inner = len(around)
    for depth, body in reversed(begins):
        found.append(Tail(tuple(around[:depth]), tuple(around[depth:inner]), body))
        inner = depth
    return tuple(found)


def block_bodies(func: Func) -> tuple[Stmt, ...]:
    """What blocks of a launch run: what stands inside of all block loops, then the tails."""
    return (block_loops(func)[1], *(t.body for t in tails(func)))


def block_phases(func: Func) -> Iterator[Stmt]:
    """All phases of a launch."""
    for body in block_bodies(func):
        yield from phases(body)


def is_cooperative(stmt: Stmt) -> bool:
    """Whether a statement holds phases of several threads, rather than being a phase."""
    if _is_of_threads(stmt):
        return False
    return any(_is_of_threads(s) or is_sync(s) for s in walk(stmt))


def _is_of_threads(stmt: Stmt) -> TypeGuard[For]:
    return isinstance(stmt, For) and stmt.kind in (LoopKind.THREAD, LoopKind.WARP)


def is_barrier(stmt: Stmt) -> bool:
    """Whether a statement makes the threads of a block wait for each other."""
    return isinstance(stmt, Invoke) and stmt.instruction == BARRIER.name


_WAITS = {wait.name: number for number, wait in enumerate(WAITS)}
_SYNCS = frozenset({BARRIER.name, COMMIT.name, *_WAITS})


def is_sync(stmt: Stmt) -> bool:
    """Whether a statement orders what threads do, and computes nothing."""
    return isinstance(stmt, Invoke) and stmt.instruction in _SYNCS


def is_commit(stmt: Stmt) -> bool:
    """Whether a statement ends a group of copies."""
    return isinstance(stmt, Invoke) and stmt.instruction == COMMIT.name


def waits_for(stmt: Stmt) -> int | None:
    """How many groups of copies may still be on their way behind a statement; None if any."""
    return _WAITS.get(stmt.instruction) if isinstance(stmt, Invoke) else None


def copied(stmt: Stmt) -> set[str]:
    """The buffers that a statement fills by copies beside the threads."""
    found = (s for s in walk(stmt) if isinstance(s, Invoke) and s.instruction in ASYNC_COPIES)
    return {s.operands[-1][0] for s in found}


def phases(stmt: Stmt) -> Iterator[Stmt]:
    """The phases of what runs in a block, in order."""
    match stmt:
        case Alloc() | If() | For() if is_cooperative(stmt):
            yield from phases(stmt.body)
        case Block(stmts):
            for child in stmts:
                yield from phases(child)
        case _ if not is_sync(stmt):
            yield stmt


def thread_loops(phase: Stmt) -> tuple[For, ...]:
    """The thread and warp loops of a phase, outermost first."""
    return tuple(s for s in walk(phase) if _is_of_threads(s))


def threads_of(phase: Stmt) -> int:
    """How many threads a phase runs on."""
    return max((a * n for a, n in strides(thread_loops(phase)).values()), default=1)


def block_threads(func: Func) -> int:
    """How many threads a block of a launch has: whole warps that are enough for each phase."""
    most = max((threads_of(p) for p in block_phases(func)), default=1)
    return -(-most // WARP) * WARP


def strides(loops: tuple[For, ...]) -> dict[str, tuple[int, int]]:
    """(stride, extent) of each thread loop's variable as a digit of the thread's number."""
    found: dict[str, tuple[int, int]] = {}
    stride = 1
    for loop in reversed(loops):
        assert isinstance(loop.extent, Const), "thread loops have constant extents"
        if loop.kind is LoopKind.WARP:
            stride = max(stride, WARP)
        found[loop.var] = (stride, int(loop.extent.value))
        stride *= int(loop.extent.value)
    return found


def shared_offsets(func: Func) -> tuple[dict[str, int], int]:
    """Where each shared buffer of a launch begins in its block's memory, and the bytes of all.

    What a tail uses lies where the blocks before it are done with theirs. Where the buffers of a
    block are large, one may also lie where another one was that nothing uses any more: that costs
    a barrier. Shapes are constants.
    """
    found: dict[str, int] = {}
    most = 0
    for body in block_bodies(func):
        lives = _lives(body)
        apart = sum(life.size for life in lives) <= APART
        placed: list[tuple[int, _Life]] = []
        for life in lives:
            begin = 0
            for start, other in sorted(placed, key=lambda p: p[0]):
                if (apart or other.meets(life)) and start < begin + life.size:
                    begin = max(begin, start + other.size)
            placed.append((begin, life))
            found[life.buffer.name] = begin
            most = max(most, begin + life.size)
    return found, most


def wiped(func: Func) -> dict[str, set[str]]:
    """The shared buffers of a launch that lie where others were before: these."""
    found: dict[str, set[str]] = {}
    offsets, _ = shared_offsets(func)
    for body in block_bodies(func):
        for a, b in permutations(_lives(body), 2):
            begin, earlier = offsets[a.buffer.name], offsets[b.buffer.name]
            meet = begin < earlier + b.size and earlier < begin + a.size
            if meet and b.last < a.first:
                found.setdefault(a.buffer.name, set()).add(b.buffer.name)
    return found


@dataclass(frozen=True, slots=True)
class _Life:
    """A shared buffer, and the numbers of the first and the last statement that uses it."""

    buffer: Buffer
    first: int
    last: int

    @property
    def size(self) -> int:
        """Its bytes, whole places of the widest access."""
        size = const_size(self.buffer.type.elems) * self.buffer.type.dtype.size_bytes
        return -(-size // SHARED_ALIGNMENT) * SHARED_ALIGNMENT

    def meets(self, other: _Life) -> bool:
        return self.first <= other.last and other.first <= self.last


def _lives(body: Stmt) -> list[_Life]:
    """The shared buffers of a block, in the order of their allocation.

    A loop around phases is one statement: what one iteration uses, the next one may.
    """
    numbers: dict[str, list[int]] = {}
    for number, stmt in enumerate(_statements(body)):
        for name in read(stmt) | written(stmt):
            numbers.setdefault(name, []).append(number)
    shared = [a.buffer for a in allocs(body).values() if a.scope is Scope.SHARED]
    uses = [(b, numbers.get(b.name, [0])) for b in shared]
    return [_Life(b, used[0], used[-1]) for b, used in uses]


def _statements(stmt: Stmt) -> Iterator[Stmt]:
    """What runs one after the other in a block, barriers left out."""
    match stmt:
        case Alloc(_, _, body):
            yield from _statements(body)
        case Block(stmts):
            for child in stmts:
                yield from _statements(child)
        case _ if not is_sync(stmt):
            yield stmt


def grid(func: Func) -> tuple[Expr, ...]:
    """The extents of the block loops of a launch."""
    return tuple(loop.extent for loop in block_loops(func)[0])


def has_rare_work(func: Func) -> bool:
    """Whether threads run loops only where data asks for them, as for what is not finite."""
    guards = [s for p in block_phases(func) for s in walk(p) if isinstance(s, If)]
    return any(loads(g.cond) and loops(g.body) for g in guards)
