"""Predicts from what a nest is like how it compares with the default of its task.

The target of learning is the logarithm of the speed-up over the default, which means the same for
every task, shape and model; so all tasks teach one model, and what it learned is a start for new
ones. XGBoost is imported when a model is fitted for the first time.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from dlc.autotune.features import NAMES
from dlc.autotune.record import Status, Trial
from dlc.autotune.versions import FEATURES
from dlc.core.errors import UserError

_LOG = logging.getLogger("dlc.tune")
FAILED = -5.0  # of a candidate that did not run: as if 32 times slower
MIN_SAMPLES = 8  # fewer teach nothing
_GRADES = 32  # of one task's candidates, for ranking
Objective = Literal["rank", "regression"]
# A model that was learned from other features, or from these in another order, is of no use.
_FEATURES = hashlib.sha256(" ".join([*NAMES, FEATURES[1]]).encode()).hexdigest()[:16]

# Few samples, many features: shallow trees, each on a part of both. One thread, here and for each
# matrix: threads that wait for work this small spin for longer than all of it takes.
_PARAMETERS: Mapping[str, object] = {
    "tree_method": "hist",
    "max_depth": 6,
    "eta": 0.15,
    "min_child_weight": 0.5,
    "subsample": 0.8,
    "colsample_bytree": 0.6,
    "lambda": 1.0,
    "verbosity": 0,
    "nthread": 1,
}
_ROUNDS = 120


@dataclass(frozen=True, slots=True)
class Description:
    """A scheduled nest as cost models see it: its features, and the text of its tree of loops.

    There is a tree only where the cost model of the session reads it.
    """

    features: tuple[float, ...] = ()
    tree: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one candidate taught: what it is like, and log2 of its speed-up over the default."""

    task: str
    seen: Description
    score: float


def sample_of(trial: Trial) -> Sample | None:
    """The sample in a trial; None where its features are none or mean something else."""
    if FEATURES not in trial.versions or len(trial.features) != len(NAMES):
        return None
    seen = Description(trial.features, trial.tree)
    if trial.status is not Status.OK:
        return Sample(trial.task, seen, FAILED)
    if trial.speedup <= 0:
        return None
    return Sample(trial.task, seen, max(FAILED, float(np.log2(trial.speedup))))


class CostModel(Protocol):
    """Learns from samples, and ranks."""

    @property
    def reads_trees(self) -> bool:
        """Whether it wants the tree of loops of each nest."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether it learned enough to be asked."""
        ...

    def fit(self, samples: Sequence[Sample]) -> None:
        """Learn from samples of any tasks, forgetting what was learned before."""
        ...

    def predict(self, seen: Sequence[Description]) -> list[float]:
        """A number for each nest; a larger one is a faster nest of the same task."""
        ...


class XGBoostModel:
    """Boosted trees, to predict the score itself or only the order within a task.

    A model that was loaded is ready; what it learns from then on are more trees, which correct it.
    Whatever XGBoost objects to leaves the model as it was loaded, or not ready; the search then
    goes on without it.
    """

    reads_trees = False

    def __init__(self, objective: Objective = "regression", *, seed: int = 0) -> None:
        if objective not in ("rank", "regression"):
            raise UserError(detail=f"objective '{objective}'", hint="rank or regression")
        self.objective = objective
        self.seed = seed
        self._loaded: Any = None
        self._booster: Any = None

    @property
    def is_ready(self) -> bool:
        """Whether it learned enough to be asked."""
        return self._booster is not None

    def fit(self, samples: Sequence[Sample]) -> None:
        """Learn; with too few samples it stays as it is."""
        good = [s for s in samples if np.isfinite(s.score) and len(s.seen.features) == len(NAMES)]
        if len(good) < MIN_SAMPLES or len({s.score for s in good}) < 2:
            return
        try:
            self._booster = self._train(good)
        except Exception as error:  # of any version of XGBoost, on any data
            _LOG.warning("the cost model cannot be fitted: %s", error)
            self._booster = self._loaded

    def predict(self, seen: Sequence[Description]) -> list[float]:
        """See `CostModel`; all equal where the model is not ready."""
        if self._booster is None or not seen:
            return [0.0] * len(seen)
        import xgboost

        matrix = xgboost.DMatrix(np.asarray([d.features for d in seen], np.float32), nthread=1)
        return [float(x) for x in self._booster.predict(matrix)]

    def save(self, path: Path) -> None:
        """Write what was learned; the suffix is `.json` or `.ubj`."""
        if self._booster is None:
            raise UserError(detail="the cost model has learned nothing yet")
        self._booster.set_attr(features=_FEATURES, objective=self.objective)
        self._booster.save_model(path)

    def load(self, path: Path) -> bool:
        """Begin with what `save` wrote; False where it says nothing here, or cannot be read."""
        try:
            import xgboost

            booster = xgboost.Booster({"nthread": 1})
            booster.load_model(path)
            written = booster.attr("features"), booster.attr("objective")
        except Exception as error:  # of any version of XGBoost, or because there is none
            _LOG.info("the cost model %s cannot be read: %s", path.name, error)
            return False
        if written != (_FEATURES, self.objective):
            return False
        self._loaded = self._booster = booster
        return True

    def _train(self, samples: list[Sample]) -> Any:
        import xgboost

        samples = sorted(samples, key=lambda s: s.task)  # groups must lie together
        table = np.asarray([s.seen.features for s in samples], np.float32)
        parameters = dict(_PARAMETERS) | {"seed": self.seed}
        if self.objective == "rank":
            matrix = xgboost.DMatrix(table, label=_grades(samples), nthread=1)
            _, groups = np.unique([s.task for s in samples], return_counts=True)
            matrix.set_group(groups)
            parameters |= {"objective": "rank:pairwise"}
        else:
            matrix = xgboost.DMatrix(table, label=[s.score for s in samples], nthread=1)
            parameters |= {"objective": "reg:squarederror"}
        return xgboost.train(parameters, matrix, num_boost_round=_ROUNDS, xgb_model=self._loaded)


def _grades(samples: Sequence[Sample]) -> list[int]:
    """Whole numbers from 0 for the slowest of each task: XGBoost ranks no others."""
    grades = [0] * len(samples)
    for task in {s.task for s in samples}:
        own = [n for n, s in enumerate(samples) if s.task == task]
        order = sorted({samples[n].score for n in own})
        for n in own:
            place = order.index(samples[n].score)
            grades[n] = place * (_GRADES - 1) // max(1, len(order) - 1)
    return grades


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's: 1 where both put all in the same order, 0 where they know nothing of each other.

    Source: Spearman, The proof and measurement of association between two things (1904).
    """
    if len(a) < 2:
        return 0.0
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / scale if scale else 0.0


def _ranks(values: Sequence[float]) -> Any:
    array = np.asarray(values, np.float64)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]
