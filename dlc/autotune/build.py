"""Build a candidate: schedule it, describe it, compile it."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import Any

from dlc.autotune.design import Design, make_trace
from dlc.autotune.features import extract_features
from dlc.autotune.loop_tree import print_tree, tree_of
from dlc.autotune.nest import nest_hash
from dlc.autotune.reference import reference_nest
from dlc.autotune.task import Task, task_from_json
from dlc.autotune.trial_program import compile_candidate, make_artefact
from dlc.autotune.wire import Message
from dlc.core.errors import InternalError
from dlc.schedule.loop import Func
from dlc.schedule.pipeline import tidy
from dlc.schedule.primitive import Step, replay, steps_from_json, steps_to_json
from dlc.schedule.rules import schedule_func


@dataclass(frozen=True, slots=True)
class _Described:
    """A candidate before it is compiled."""

    steps: str
    func: Func
    nest: str
    features: list[float]


def build_job(data: dict[str, Any]) -> Message:
    """Answer a job: how the candidate is scheduled and its artefact.

    No artefact where only the schedule is asked for, or where its nest is known.

    Raises:
        ScheduleError: the schedule is refused.
        CodegenError: the code generator or the linker fails.
    """
    task = task_from_json(data["task"])
    if data["kind"] == "design":
        found = _describe_design(task, _design(data))
    else:
        found = _describe(task, *scheduled(task, data))
    reply: dict[str, Any] = {
        "status": "ok",
        "steps": found.steps,
        "nest": found.nest,
        "features": found.features,
    }
    if data.get("tree"):
        reply["tree"] = print_tree(tree_of(found.func, dict(task.sizes)))
    if not data.get("code", True) or found.nest in data.get("known", ()):
        return Message(reply)
    code = compile_candidate(found.func, task.target, plain=data["kind"] == "plain")
    reply["code"] = hashlib.sha256(code).hexdigest()[:24]
    return Message(reply, (make_artefact(task, code),))


@functools.lru_cache(maxsize=512)
def _describe_design(task: Task, design: Design) -> _Described:
    """A design is described when the search looks at it, and built when it is chosen."""
    trace = make_trace(task, design)
    return _describe(task, tuple(trace.steps), tidy(trace.func))


def _describe(task: Task, steps: tuple[Step, ...], func: Func) -> _Described:
    features = extract_features(func, task.target, dict(task.sizes))
    return _Described(steps_to_json(steps), func, nest_hash(func), features)


def _design(data: dict[str, Any]) -> Design:
    return Design(data["family"], tuple((str(k), int(v)) for k, v in data["knobs"].items()))


def scheduled(task: Task, data: dict[str, Any]) -> tuple[tuple[Step, ...], Func]:
    """The steps a job asks for, and the function they lead to."""
    match data["kind"]:
        case "design":
            trace = make_trace(task, _design(data))
            return tuple(trace.steps), tidy(trace.func)
        case "steps":
            steps = steps_from_json(data["steps"])
            return steps, tidy(replay(task.func, steps))
        case "default":
            trace = schedule_func(task.func, task.target, {})
            return tuple(trace.steps), tidy(trace.func)
        case "plain":
            return (), tidy(reference_nest(task.func))
        case kind:
            raise InternalError(detail=f"nothing is built as '{kind}'")
