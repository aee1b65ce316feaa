"""What is tuned: a loop function and a target, and nothing of the model they come from."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dlc.core.errors import UserError
from dlc.core.target import Target
from dlc.core.target_json import record_facts, target_from_json, target_to_json
from dlc.schedule.loop import Func
from dlc.schedule.text import canonical_text, parse_func


@dataclass(frozen=True, slots=True)
class Task:
    """A lowered function as text, the machine it is for, and values for its size variables.

    `key` names the task wherever it is met: names of loops and buffers do not count, nor do the
    sizes it happened to be measured at.
    """

    text: str
    target: Target
    sizes: tuple[tuple[str, int], ...] = ()

    @property
    def func(self) -> Func:
        """The function."""
        return _parse(self.text)

    @property
    def key(self) -> str:
        """A hash of the function and of the facts about the target that records depend on."""
        return _key(self.text, self.target)

    @property
    def name(self) -> str:
        """The function's name, for people."""
        return self.func.name

    def to_json(self) -> dict[str, object]:
        """The task as data."""
        return {
            "text": self.text,
            "target": target_to_json(self.target),
            "sizes": dict(self.sizes),
        }


def make_task(func: Func, target: Target, sizes: Mapping[str, int] | None = None) -> Task:
    """The task of a lowered function; a size without a value is measured at 1."""
    given = sizes or {}
    return Task(str(func), target, tuple((s, max(1, given.get(s, 1))) for s in func.sizes))


def task_from_json(data: Mapping[str, Any]) -> Task:
    """Read what `Task.to_json` wrote.

    Raises:
        UserError: it is not a task.
    """
    match data:
        case {"text": str(text), "target": dict(target), "sizes": dict(sizes)}:
            pairs = tuple((str(name), int(value)) for name, value in sizes.items())
            return Task(text, target_from_json(target), pairs)
    raise UserError(detail="not a tuning task")


def task_key(func: Func, target: Target) -> str:
    """The key of the task that a function is on a target."""
    parts = json.dumps(record_facts(target), sort_keys=True) + "\n" + canonical_text(func)
    return hashlib.sha256(parts.encode()).hexdigest()[:24]


@functools.lru_cache(maxsize=512)
def _parse(text: str) -> Func:
    return parse_func(text)


@functools.lru_cache(maxsize=512)
def _key(text: str, target: Target) -> str:
    return task_key(_parse(text), target)
