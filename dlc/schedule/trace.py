"""A schedule in the making: primitives applied one after the other, and their record."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

import dlc.schedule.primitives  # noqa: F401 - registers the primitives
from dlc.core.errors import ScheduleError
from dlc.schedule.loop import For, Func, LoopKind, Stmt, allocs, loops
from dlc.schedule.nest import Stage, stages, stages_of
from dlc.schedule.primitive import PRIMITIVES, Step
from dlc.te.expr import Expr
from dlc.te.types import const_or_none


class Memory:
    """The last steps that were taken: schedules that begin alike take and verify each step once.

    A function is known by being the very same object, which costs no comparison.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: OrderedDict[tuple[int, Step], tuple[Func, Func]] = OrderedDict()

    def apply(self, func: Func, step: Step) -> Func:
        """What a step leads to."""
        key = (id(func), step)
        if key in self._found:
            self._found.move_to_end(key)
            return self._found[key][1]
        result = PRIMITIVES[step.primitive](func, *step.args)
        self._found[key] = (func, result)  # as long as it is here, no other object has its id
        if len(self._found) > self._most:
            self._found.popitem(last=False)
        return result


class Trace:
    """A function and the steps that led to it. `steps` replays on the original function."""

    def __init__(
        self, func: Func, steps: Iterable[Step] = (), *, memory: Memory | None = None
    ) -> None:
        self.func = func
        self.steps = list(steps)
        self._memory = memory or Memory(0)

    def copy(self) -> Trace:
        """The same function after the same steps; neither trace sees what the other does next."""
        return Trace(self.func, self.steps, memory=self._memory)

    def take(self, trial: Trace) -> None:
        """Go on from where a copy went."""
        self.func, self.steps = trial.func, trial.steps

    def attempt(self, steps: Callable[..., object], *args: object) -> ScheduleError | None:
        """Take all steps that `steps(trace, *args)` takes, or none and say which was refused."""
        trial = self.copy()
        try:
            steps(trial, *args)
        except ScheduleError as refusal:
            return refusal
        self.take(trial)
        return None

    def do(self, primitive: str, *args: object) -> None:
        """Apply a primitive by name."""
        step = Step(primitive, args)
        self.func = self._memory.apply(self.func, step)
        self.steps.append(step)

    def loop(self, var: str) -> For:
        """The loop of this name as it is now."""
        return loops(self.func.body)[var]

    def extent(self, var: str) -> Expr:
        """The extent of a loop as it is now."""
        return self.loop(var).extent

    def constant(self, var: str) -> int | None:
        """The extent of a loop, None where it is symbolic."""
        return const_or_none(self.extent(var))

    def stage(self, buffer: str) -> Stage:
        """The nest that computes a buffer as it is now."""
        return stages_of(self.func, buffer)[0]

    def split(self, var: str, factor: int) -> tuple[str, str]:
        """Split a loop; the parts are called after it."""
        parts = (f"{var}o", f"{var}i")
        self.do("split", var, factor, parts)
        return parts

    def tile_loop(self, var: str, lanes: bool = False) -> None:
        """Make a loop of constant extent part of the register tile: lanes, or written out."""
        if self.loop(var).kind is LoopKind.SERIAL:
            self.do("vectorize" if lanes else "unroll", var)

    def bring_together(
        self, result: str, loop: str, multiples: Mapping[str, tuple[int, ...]] | None = None
    ) -> list[str]:
        """Compute what a result is made of in a loop of its nest; all buffers but it, in order.

        What is computed of some buffers is rounded up to `multiples`; see `compute_at`.
        """
        made = dict.fromkeys(s.buffer for s in stages(self.func) if s.buffer != result)
        for buffer in reversed(made):
            if buffer in allocs(self.func.body):
                whole = (multiples or {}).get(buffer)
                self.do("compute_at", buffer, loop, *([whole] if whole else []))
        return list(made)

    def fuse_all(self, names: list[str]) -> str:
        """Fuse loops that stand directly inside each other, outermost first, into one."""
        fused = names[0]
        for name in names[1:]:
            both = f"{fused}_{name}"
            self.do("fuse", fused, name, both)
            fused = both
        return fused

    def turn(self, names: list[str], first: int) -> list[str]:
        """Let loops that stand directly inside each other run from the one in place `first` on.

        Those before it become the innermost; loops of one iteration do not count. The order comes
        back.
        """
        once = [v for v in names if self.constant(v) == 1]
        rest = [v for v in names if v not in once]
        at = min(first, max(0, len(rest) - 1))
        order = [*once, *rest[at:], *rest[:at]]
        if at:
            self.do("reorder", tuple(order))
        return order if at else names

    def parallel_outer(self, top: Stmt, stop: frozenset[str] = frozenset()) -> None:
        """Fuse the loops from the top of a nest down to one in `stop`; run them parallel.

        The innermost stay out where nobody can tell any more that iterations of all are
        independent, as of many open sizes.
        """
        chain: list[str] = []
        stmt = top
        while isinstance(stmt, For) and stmt.kind is LoopKind.SERIAL and stmt.var not in stop:
            chain.append(stmt.var)
            stmt = stmt.body
        while chain:
            trial = self.copy()
            try:
                trial.do("parallel", trial.fuse_all(chain))
            except ScheduleError:
                if len(chain) == 1:
                    raise
                chain.pop()
            else:
                return self.take(trial)
