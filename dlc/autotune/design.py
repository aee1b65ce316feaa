"""The candidates of a task: families of schedules, each with a space of knobs.

A family is the rule that knows the nest, or a sketch (`dlc/autotune/sketch`) for what no rule
does better; of a GPU, rules alone. A `Design` is one point of one family, and plain data.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dlc.autotune.sketch import SKETCHES
from dlc.autotune.task import Task
from dlc.core.errors import UserError
from dlc.schedule.nest import is_scheduled
from dlc.schedule.rules import prepare, rules_for, schedule_by
from dlc.schedule.space import Space
from dlc.schedule.trace import Memory, Trace

_ENOUGH = 256  # points of rules, which all differ; with fewer there are sketches too
_MEMORY = Memory(8000)  # a prediction takes the steps that the candidate itself takes later
RULE = "rule"  # prefix of the families that are rules


@dataclass(frozen=True, slots=True)
class Design:
    """One candidate: a family and a choice for each of its knobs."""

    family: str
    knobs: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Family:
    """Schedules of one kind."""

    name: str
    space: Space
    schedule: Callable[[Mapping[str, int]], Trace]


@functools.lru_cache(maxsize=64)
def families(task: Task) -> tuple[Family, ...]:
    """The families of a task, the one that knows it best first; none where it is scheduled."""
    func, target = task.func, task.target
    if is_scheduled(func):
        return ()
    prepared = Trace(func, memory=_MEMORY)
    prepare(prepared, target)
    found = []
    for rule in rules_for(prepared.func, target):
        name = f"{RULE}.{rule.__name__.rsplit('.', 1)[-1]}"
        space = rule.space(prepared.func, target)
        schedule = functools.partial(schedule_by, rule, prepared, target)
        found.append(Family(name, space, schedule))
    if target.gpu is not None or sum(len(f.space) for f in found) >= _ENOUGH:
        return tuple(found)  # sketches are of cores and vectors
    for name, sketch in SKETCHES.items():
        space = sketch.space(prepared.func, target)
        if space is not None and len(space) > 1:
            schedule = functools.partial(sketch.schedule, prepared, target)
            found.append(Family(name, space, schedule))
    return tuple(found)


def make_trace(task: Task, design: Design) -> Trace:
    """The schedule of a design.

    Raises:
        UserError: the task has no such family.
        ScheduleError: the schedule is refused.
    """
    for family in families(task):
        if family.name == design.family:
            return family.schedule(dict(design.knobs))
    raise UserError(detail=f"'{task.name}' has no family of schedules '{design.family}'")
