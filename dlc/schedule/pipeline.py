"""From a lowered function to one that codegen reads: schedule it, then tidy its indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dlc.core.target import Target
from dlc.schedule.loop import Func
from dlc.schedule.passes.hoist_guards import hoist_guards
from dlc.schedule.passes.insert_barriers import insert_barriers
from dlc.schedule.passes.simplify_indices import simplify_indices
from dlc.schedule.primitive import Step, replay
from dlc.schedule.rules import schedule_func
from dlc.schedule.verify import verify_func

PASSES: tuple[Callable[[Func], Func], ...] = (simplify_indices, hoist_guards, insert_barriers)


def optimize(func: Func, target: Target, steps: Sequence[Step] | None = None) -> Func:
    """The scheduled form of a function. `steps` are a tuning record's; None for the rule's own.

    Raises:
        ScheduleError: a step is refused.
    """
    if steps is None:
        return tidy(schedule_func(func, target, {}).func)
    return tidy(replay(func, steps))


def tidy(func: Func) -> Func:
    """The form of a scheduled function that codegen reads."""
    for step in PASSES:
        func = step(func)
        verify_func(func, when=f"after {step.__name__}")
    return func
