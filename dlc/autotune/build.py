"""Build a candidate: schedule it, describe it, compile it."""

from __future__ import annotations

import hashlib
from typing import Any

from dlc.autotune.design import Design, make_trace
from dlc.autotune.features import extract_features
from dlc.autotune.nest import nest_hash
from dlc.autotune.task import Task, task_from_json
from dlc.autotune.trial_program import compile_candidate, make_artefact
from dlc.autotune.wire import Message
from dlc.core.errors import InternalError
from dlc.schedule.loop import Func
from dlc.schedule.pipeline import tidy
from dlc.schedule.primitive import Step, replay, steps_from_json, steps_to_json
from dlc.schedule.rules import schedule_func


def build_job(data: dict[str, Any]) -> Message:
    """Answer a job: how the candidate is scheduled and, unless only asked that, its artefact.

    Raises:
        ScheduleError: the schedule is refused.
        CodegenError: the code generator or the linker fails.
    """
    task = task_from_json(data["task"])
    steps, func = scheduled(task, data)
    reply: dict[str, Any] = {
        "status": "ok",
        "steps": steps_to_json(steps),
        "nest": nest_hash(func),
        "features": extract_features(func, task.target, dict(task.sizes)),
    }
    if not data.get("code", True):
        return Message(reply)
    code = compile_candidate(func, task.target, plain=data["kind"] == "plain")
    reply["code"] = hashlib.sha256(code).hexdigest()[:24]
    return Message(reply, (make_artefact(task, code),))


def scheduled(task: Task, data: dict[str, Any]) -> tuple[tuple[Step, ...], Func]:
    """The steps a job asks for, and the function they lead to."""
    match data["kind"]:
        case "design":
            knobs = tuple((str(k), int(v)) for k, v in data["knobs"].items())
            trace = make_trace(task, Design(data["family"], knobs))
            return tuple(trace.steps), tidy(trace.func)
        case "steps":
            steps = steps_from_json(data["steps"])
            return steps, tidy(replay(task.func, steps))
        case "default":
            trace = schedule_func(task.func, task.target, {})
            return tuple(trace.steps), tidy(trace.func)
        case "plain":
            return (), tidy(task.func)
        case kind:
            raise InternalError(detail=f"nothing is built as '{kind}'")
