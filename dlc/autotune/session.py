"""What a session is given, and what it shows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from dlc.autotune.bench_method import Method
from dlc.autotune.budget import Budget
from dlc.autotune.cost_models import check_cost_model
from dlc.autotune.executor import Executor
from dlc.autotune.search import SEARCHERS
from dlc.autotune.task import Task
from dlc.core.errors import UserError


@dataclass(frozen=True, slots=True)
class Weighted:
    """A task and how often a run of the model does it."""

    task: Task
    calls: int = 1
    is_alternative: bool = False  # no run does it unless another way through the graph is taken
    is_warm: bool = False  # a loop does it again while its data are in the cores' own caches

    def joined(self, other: Weighted) -> Weighted:
        """What is done here and elsewhere, as one; cold unless it is warm in both places."""
        warm = self.is_warm and other.is_warm
        return replace(self, calls=self.calls + other.calls, is_warm=warm)


@dataclass(frozen=True, slots=True)
class Machines:
    """Where candidates are built, and where they are measured."""

    build: Executor
    measure: Executor

    def close(self) -> None:
        """End the workers."""
        self.build.close()
        if self.measure is not self.build:
            self.measure.close()


@dataclass(frozen=True, slots=True)
class Options:
    """How to search."""

    budget: Budget = field(default_factory=lambda: Budget(seconds=600))
    search: str = "bayesian"
    method: Method = field(default_factory=Method)
    batch: int = 4
    seed: int = 0
    transfer: bool = True  # learn from all of the log, not only from the task at hand
    resume: bool = True  # go on from what the log holds of these tasks
    cost_model: str = "xgboost"

    def __post_init__(self) -> None:
        if self.search not in SEARCHERS:
            raise UserError(detail=f"search '{self.search}'", hint=f"one of {', '.join(SEARCHERS)}")
        check_cost_model(self.cost_model)

    def method_of(self, weighted: Weighted) -> Method:
        """How candidates of a task are timed."""
        if self.method.cache != "auto":
            return self.method
        return replace(self.method, cache="warm" if weighted.is_warm else "cold")


@dataclass(frozen=True, slots=True)
class TaskView:
    """One task as a screen shows it. Times are of one call."""

    name: str
    key: str
    calls: int
    share: float
    trials: int
    default_ns: float
    best_ns: float
    flatness: float  # of its course: 1 where nothing more is expected
    status: str  # "waiting", "improving", "flat", "exhausted", or what is wrong
    is_alternative: bool = False  # of a way through the graph that is not taken


@dataclass(frozen=True, slots=True)
class WayView:
    """A way through the graph as a screen shows it: `option` instead of `default`."""

    name: str
    option: str
    default: str
    speedup: float | None  # of the kernels it changes, at their best so far
    status: str  # "waiting", "slower", "timed", "lost", "won"


class Ways(Protocol):
    """The ways through the graph that a session looks at, which it knows by their tasks."""

    def rejected(self, times_ns: Mapping[str, float]) -> Collection[str]:
        """The tasks not to search, by the times of defaults."""
        ...

    def views(self, times_ns: Mapping[str, float]) -> tuple[WayView, ...]:
        """The ways as a screen shows them."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A session as a screen shows it."""

    tasks: tuple[TaskView, ...]
    seconds: float
    trials: int
    resumed: int
    failures: Mapping[str, int]
    correlation: float | None  # of predicted with measured order, in the last rounds
    eta_seconds: float | None
    spent: float  # share of the budget
    finished: bool = False
    ways: tuple[WayView, ...] = ()

    @property
    def timed(self) -> int:
        """Tasks whose default was timed, or cannot be."""
        return sum(t.default_ns < float("inf") or t.status != "waiting" for t in self.tasks)

    @property
    def default_ns(self) -> float:
        """The defaults of all calls together."""
        return sum(t.default_ns * t.calls for t in self._own if t.default_ns < float("inf"))

    @property
    def best_ns(self) -> float:
        """The best of all calls together."""
        return sum(t.best_ns * t.calls for t in self._own if t.best_ns < float("inf"))

    @property
    def _own(self) -> list[TaskView]:
        """What a run does as long as no other way is taken."""
        return [t for t in self.tasks if not t.is_alternative]
