"""From a lowered function to one that codegen reads: schedule it, then tidy its indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dlc.core.target import Target
from dlc.schedule.loop import Func
from dlc.schedule.passes.hoist_guards import hoist_guards
from dlc.schedule.passes.simplify_indices import simplify_indices
from dlc.schedule.rules import schedule_func
from dlc.schedule.verify import verify_func

PASSES: tuple[Callable[[Func], Func], ...] = (simplify_indices, hoist_guards)


def optimize(func: Func, target: Target, knobs: Mapping[str, int] | None = None) -> Func:
    """The scheduled form of a function. `knobs` are a tuning record's; absent ones are analytic."""
    func = schedule_func(func, target, knobs or {}).func
    for step in PASSES:
        func = step(func)
        verify_func(func, when=f"after {step.__name__}")
    return func
