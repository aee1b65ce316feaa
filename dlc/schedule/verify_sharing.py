"""Which places of a host program's arena may share memory: those that do not live together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dlc.schedule.program import (
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
    Place,
    Program,
    View,
    WriteSize,
)
from dlc.te.expr import Expr
from dlc.te.simplify import surely_at_most
from dlc.te.transform import loads


@dataclass(slots=True)
class _Life:
    """From the first to the last use of a place, in statements counted through all bodies."""

    place: Place
    placed: int
    first: int | None = None
    last: int = 0

    def use(self, first: int, last: int) -> None:
        """Extend the life."""
        self.first = first if self.first is None else min(self.first, first)
        self.last = max(self.last, last)


def sharing_problems(program: Program) -> Iterator[str]:
    """Pairs of places that live together and are not surely apart, and those beyond their region.

    Regions lie apart, whatever their sizes: only places in the same region are compared.
    """
    lives = _Lives()
    lives.visit(program.body)
    for life in lives.found.values():
        place = life.place
        inside = place.region in range(len(program.arena))
        if inside and not surely_at_most(_end(place), program.arena[place.region]):
            yield f"'{place.buffer.name}' does not surely end within its region"
    used = [(life.first, life.last, life.place) for life in lives.found.values() if life.last]
    alive: list[tuple[int, Place]] = []
    for first, last, place in sorted(used, key=lambda item: item[0] or 0):
        alive = [item for item in alive if item[0] >= (first or 0)]
        for _, other in alive:
            if not _apart(place, other):
                yield f"'{other.buffer.name}' and '{place.buffer.name}' may share memory"
        alive.append((last, place))


def _apart(a: Place, b: Place) -> bool:
    if a.region != b.region:
        return True
    return surely_at_most(_end(a), b.offset) or surely_at_most(_end(b), a.offset)


def _end(place: Place) -> Expr:
    return place.offset + place.buffer.type.elems * place.buffer.type.dtype.size_bytes


class _Lives:
    """The life of each place. What a loop uses, and was placed before it, lives all through it."""

    def __init__(self) -> None:
        self.found: dict[str, _Life] = {}
        self.roots: dict[str, str] = {}  # view -> the place it is part of
        self.clock = 0

    def visit(self, stmts: Iterable[HostStmt]) -> None:
        for stmt in stmts:
            self.clock += 1
            for name in _uses(stmt):
                life = self.found.get(self.roots.get(name, name))
                if life is not None:
                    life.use(self.clock, self.clock)
            match stmt:
                case Place(buffer):
                    self.found[buffer.name] = _Life(stmt, self.clock)
                case View(buffer, source, _):
                    self.roots[buffer.name] = self.roots.get(source, source)
                case HostIf(_, then, other):
                    self.visit(then)
                    self.visit(other)
                case HostLoop(_, _, body, _):
                    start = self.clock
                    self.visit(body)
                    for life in self.found.values():
                        if life.placed < start < life.last:
                            life.use(start, self.clock)
                case _:
                    pass


def _uses(stmt: HostStmt) -> tuple[str, ...]:
    match stmt:
        case CallKernel(_, _, buffers, _) | CallRuntime(_, _, buffers):
            return buffers
        case Copy(target, source):
            return (target, source)
        case BindSize(_, value, _):
            return tuple(load.buffer for load in loads(value))
        case WriteSize(buffer, _, _) | CheckRange(buffer, _, _, _) | Fetch(buffer, _, _):
            return (buffer,)
        case HostLoop(_, _, _, go) if go is not None:
            return tuple(load.buffer for load in loads(go))
        case Check(cond, _) | HostIf(cond, _, _):
            return tuple(load.buffer for load in loads(cond))
        case _:
            return ()
