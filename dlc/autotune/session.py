"""What a session is given, and what it shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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

    @property
    def timed(self) -> int:
        """Tasks whose default was timed, or cannot be."""
        return sum(t.default_ns < float("inf") or t.status != "waiting" for t in self.tasks)

    @property
    def default_ns(self) -> float:
        """The defaults of all calls together."""
        return sum(t.default_ns * t.calls for t in self.tasks if t.default_ns < float("inf"))

    @property
    def best_ns(self) -> float:
        """The best of all calls together."""
        return sum(t.best_ns * t.calls for t in self.tasks if t.best_ns < float("inf"))
