"""What the host reads of a GPU's data: conditions, trip counts, sizes.

Between two places where the host calls kernels, chooses or repeats lies a segment. Whatever its
statements load of a buffer is fetched at once, before the first of them. The condition of a loop is
fetched before the loop and at the end of each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dlc.core.errors import VerifyError
from dlc.schedule.program import (
    Allocate,
    BindSize,
    CallKernel,
    CallRuntime,
    Check,
    CheckRange,
    Copy,
    Fetch,
    HostIf,
    HostLoop,
    HostStmt,
    Local,
    Place,
    Program,
    Take,
    View,
    WriteSize,
    element_position,
    statements,
)
from dlc.te.expr import Expr, Load
from dlc.te.transform import loads
from dlc.te.types import TensorType

_GAP = 16  # elements that nobody reads, at most, within one fetch: a wait costs more than them


def written_for_host(program: Program) -> frozenset[str]:
    """The buffers of sizes that no kernel, copy or view uses: they stay in memory of the host."""
    placed: set[str] = set()
    written: set[str] = set()
    used: set[str] = set()
    for stmt in statements(program.body):
        match stmt:
            case Place(buffer):
                placed.add(buffer.name)
            case WriteSize(name):
                written.add(name)
            case CallKernel(_, _, buffers) | CallRuntime(_, _, buffers):
                used |= set(buffers)
            case Copy(target, source):
                used |= {target, source}
            case View(_, source) | CheckRange(source):
                used.add(source)
            case _:
                pass
    return frozenset(placed & written - used)


def with_fetches(program: Program, body: tuple[HostStmt, ...]) -> tuple[HostStmt, ...]:
    """A body made of the program's, in which the host fetches what it loads of the GPU's memory."""
    return _Fetches(program).block(body)


def verify_fetches(program: Program, *, when: str) -> None:
    """Raise `VerifyError` where the host loads what it has not fetched since the last launch."""
    fetches = _Fetches(program)
    if problems := list(fetches.problems(program.body)):
        unit = f"program '{program.name}'"
        raise VerifyError(unit=unit, when=when, problems="; ".join(dict.fromkeys(problems)))


class _Fetches:
    def __init__(self, program: Program) -> None:
        given = (*program.inputs, *program.constants, *program.outputs)
        self.types: dict[str, TensorType] = {b.name: b.type for b in given}
        self.local: set[str] = set()
        for stmt in statements(program.body):
            match stmt:
                case Local(buffer):
                    self.local.add(buffer.name)
                case Place(buffer) | View(buffer) | Allocate(buffer) | Take(buffer):
                    self.types[buffer.name] = buffer.type
                case _:
                    pass

    def block(self, body: tuple[HostStmt, ...]) -> tuple[HostStmt, ...]:
        """The statements, segment by segment."""
        result: list[HostStmt] = []
        for segment in segments(body):
            wanted = self.elements(e for stmt in segment for e in _read_by(stmt))
            for stmt in segment:
                for buffer in self.elements(_read_by(stmt)):
                    result += _runs(buffer, wanted.pop(buffer, ()))
                result += self.inside(stmt)
        return tuple(result)

    def inside(self, stmt: HostStmt) -> list[HostStmt]:
        """A statement with fetches in its bodies."""
        match stmt:
            case HostIf(cond, then, other):
                return [HostIf(cond, self.block(then), self.block(other))]
            case HostLoop(var, extent, body, go):
                wanted = self.elements([go] if go is not None else [])
                asked = [f for name, at in wanted.items() for f in _runs(name, at)]
                return [*asked, HostLoop(var, extent, (*self.block(body), *asked), go)]
            case _:
                return [stmt]

    def elements(self, exprs: Iterable[Expr]) -> dict[str, set[int]]:
        """The elements of the GPU's memory that expressions load, by buffer."""
        found: dict[str, set[int]] = {}
        for expr in exprs:
            for load in loads(expr):
                if load.buffer not in self.local:
                    found.setdefault(load.buffer, set()).add(self.position(load))
        return found

    def position(self, load: Load) -> int:
        return element_position(load, self.types[load.buffer])

    def problems(self, body: Sequence[HostStmt]) -> Iterator[str]:
        """Loads that read what was not fetched, or was before a kernel that may have changed it."""
        seen: set[tuple[str, int]] = set()
        for stmt in body:
            yield from self.unseen(_read_by(stmt), seen)
            match stmt:
                case Fetch(buffer, first, count):
                    seen |= {(buffer, at) for at in range(first, first + count)}
                case CallKernel():
                    seen = set()
                case HostIf(_, then, other):
                    yield from self.problems(then)
                    yield from self.problems(other)
                    seen = set()
                case HostLoop(_, _, inner, go):
                    ends = [go] if go is not None else []
                    yield from self.unseen(ends, seen)
                    yield from self.problems((*inner, *(Check(g, "") for g in ends)))
                    seen = set()
                case _:
                    pass

    def unseen(self, exprs: Iterable[Expr], seen: set[tuple[str, int]]) -> Iterator[str]:
        for buffer, positions in self.elements(exprs).items():
            if any((buffer, at) not in seen for at in positions):
                yield f"the host loads of '{buffer}' what it has not fetched"


def segments(body: Sequence[HostStmt]) -> Iterator[list[HostStmt]]:
    """The statements up to each call, branch or loop, and that one with them."""
    segment: list[HostStmt] = []
    for stmt in body:
        segment.append(stmt)
        if isinstance(stmt, CallKernel | HostIf | HostLoop):
            yield segment
            segment = []
    yield segment


def _read_by(stmt: HostStmt) -> tuple[Expr, ...]:
    """The expressions that a statement computes itself; steps compute the condition of a loop."""
    match stmt:
        case BindSize(_, value, _) | WriteSize(_, _, value):
            return (value,)
        case Check(cond, _) | HostIf(cond, _, _):
            return (cond,)
        case HostLoop(_, extent, _, _):
            return (extent,)
        case CallKernel(_, sizes, _):
            return sizes
        case Allocate(buffer) | Take(buffer):
            return buffer.type.shape
        case View(buffer, _, offset):
            return (*buffer.type.shape, offset)
        case _:
            return ()


def _runs(buffer: str, positions: Iterable[int]) -> list[Fetch]:
    """Fetches of elements, few at a time: those far apart have one each."""
    found: list[Fetch] = []
    for at in sorted(positions):
        if found and at - (found[-1].first + found[-1].count) < _GAP:
            found[-1] = Fetch(buffer, found[-1].first, at + 1 - found[-1].first)
        else:
            found.append(Fetch(buffer, at, 1))
    return found
