"""Where the buffers of a program of launches lie: memory is used again by what comes later anyway.

Launches that share no memory may run side by side. A buffer that took the memory of another one,
as it may in a program that runs step by step, would order them. So each launch has a level, the
length of the longest chain of launches that hand data to it, and memory is used again only on
higher levels than before. Then the longest chain stays as long as the data makes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dlc.schedule.loop import Buffer, Func
from dlc.schedule.memory import Request, plan_arena
from dlc.schedule.program import CallKernel, Fetch, HostIf, HostLoop, HostStmt, Place, View
from dlc.te.expr import Expr
from dlc.te.simplify import canonical


def place_buffers(
    body: tuple[HostStmt, ...], buffers: Iterable[Buffer], kernels: Mapping[str, Func]
) -> tuple[tuple[Place, ...], tuple[Expr, ...]]:
    """Places for buffers of a program, and the size of each region, in bytes.

    Args:
        body: a program of launches; nothing in it places these buffers.
        buffers: those that own memory.
        kernels: the kernels it calls, by name.
    """
    owned = {b.name: b for b in buffers}
    walk = _Lives(kernels)
    walk.block(body)
    requests = [
        Request(
            name, canonical(owned[name].type.elems * owned[name].type.dtype.size_bytes),
            *life.steps, life.levels,
        )
        for name, life in walk.lives.items() if name in owned
    ]  # fmt: skip
    places, regions = plan_arena(requests)
    return tuple(Place(owned[name], *where) for name, where in places.items()), regions


@dataclass(slots=True)
class _Life:
    """From the first use to the last, in order of the program and by levels."""

    steps: tuple[int, int]
    levels: tuple[int, int]
    written: int = 0  # the level of the last launch that writes it

    def use(self, steps: tuple[int, int], levels: tuple[int, int]) -> None:
        """Extend it."""
        self.steps = min(self.steps[0], steps[0]), max(self.steps[1], steps[1])
        self.levels = min(self.levels[0], levels[0]), max(self.levels[1], levels[1])


class _Lives:
    """The life of each buffer that owns memory. What a loop uses lives all through it."""

    def __init__(self, kernels: Mapping[str, Func]) -> None:
        self.kernels = kernels
        self.lives: dict[str, _Life] = {}
        self.roots: dict[str, str] = {}  # view -> the buffer it is part of
        self.step = 0

    def block(self, body: tuple[HostStmt, ...]) -> None:
        """The statements, in order."""
        for stmt in body:
            match stmt:
                case View(buffer, source):
                    self.roots[buffer.name] = self.roots.get(source, source)
                case CallKernel(kernel, _, names):
                    count = len(self.kernels[kernel].inputs)
                    read = [self.roots.get(n, n) for n in names[:count]]
                    self.call(read, [self.roots.get(n, n) for n in names[count:]])
                case Fetch(name):
                    self.call([self.roots.get(name, name)], [])
                case HostIf(_, then, other):
                    self.block(then)
                    self.block(other)
                case HostLoop(_, _, inner):
                    self.loop(inner)
                case _:
                    pass

    def call(self, read: list[str], written: list[str]) -> None:
        """One launch: it waits for what wrote what it reads, and for all uses of what it writes."""
        self.step += 1
        known = self.lives
        waits = [known[n].written for n in read if n in known]
        waits += [known[n].levels[1] for n in written if n in known]
        level = 1 + max(waits, default=0)
        self.use([*read, *written], (self.step, self.step), (level, level))
        for name in written:
            self.lives[name].written = level

    def loop(self, body: tuple[HostStmt, ...]) -> None:
        """A loop is one long step, behind all that writes what it uses."""
        first = self.step + 1
        outer, self.lives = self.lives, {}
        self.block(body)
        inner, self.lives = self.lives, outer
        waits = [outer[name].levels[1] for name in inner if name in outer]
        low = 1 + max(waits, default=0)
        high = low + max((life.levels[1] for life in inner.values()), default=0)
        self.use(inner, (first, self.step), (low, high))
        for name in inner:
            self.lives[name].written = high

    def use(self, names: Iterable[str], steps: tuple[int, int], levels: tuple[int, int]) -> None:
        for name in names:
            self.lives.setdefault(name, _Life(steps, levels)).use(steps, levels)
