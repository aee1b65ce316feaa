"""A tuning log as one HTML file that needs no network: curves, predictions, failures, choices.

Needs the extra `report`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import accumulate
from typing import Any

from dlc.autotune.cost_model import rank_correlation
from dlc.autotune.log import TuningLog
from dlc.autotune.record import Choice, Status, Trial
from dlc.autotune.task import Task
from dlc.core.errors import UserError


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """What a log says about one task. Speed-ups are over the default, which is 1."""

    task: Task
    trials: tuple[Trial, ...]
    choice: Choice | None

    @property
    def curve(self) -> list[float]:
        """The best speed-up after each trial."""
        return list(accumulate((t.speedup for t in self.trials), max, initial=1.0))[1:]

    @property
    def failures(self) -> dict[str, int]:
        """Trials that did not run, by kind."""
        found = Counter(str(t.status) for t in self.trials if t.status is not Status.OK)
        return dict(sorted(found.items()))

    @property
    def predicted(self) -> list[tuple[float, float]]:
        """(predicted score, measured speed-up) of the trials that have both."""
        return [
            (t.predicted, t.speedup)
            for t in self.trials
            if t.predicted is not None and t.status is Status.OK
        ]

    @property
    def correlation(self) -> float | None:
        """Of predicted with measured order; None with too few trials."""
        pairs = self.predicted
        if len(pairs) < 4:
            return None
        return rank_correlation([p for p, _ in pairs], [m for _, m in pairs])


def summarize(log: TuningLog) -> list[TaskSummary]:
    """What a log says about each task, the most tried first."""
    choices = log.choices()
    found = [TaskSummary(t, tuple(log.trials(t.key)), choices.get(t.key)) for t in log.tasks()]
    return sorted(found, key=lambda s: (-len(s.trials), s.task.name))


def render_report(summaries: Sequence[TaskSummary], title: str, corrupt: int = 0) -> str:
    """The report as HTML.

    Raises:
        UserError: the extra `report` is not installed.
    """
    try:
        import plotly.offline
        from jinja2 import Environment
    except ImportError as error:
        hint = "pip install 'dlc[report]'"
        raise UserError(detail=f"a report needs {error.name}", hint=hint) from error
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    text = resources.files("dlc.autotune").joinpath("report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(text).render(
        title=title,
        summaries=summaries,
        trials=sum(len(s.trials) for s in summaries),
        corrupt=corrupt,
        plotly_js=plotly.offline.get_plotlyjs(),
        curves=_figure(_curves(summaries), "trials", "best speed-up"),
        predictions=_figure(_predictions(summaries), "predicted score", "measured speed-up"),
    )


def _curves(summaries: Iterable[TaskSummary]) -> list[dict[str, Any]]:
    return [
        {"type": "scatter", "mode": "lines", "line": {"shape": "hv"}, "name": s.task.name,
         "x": list(range(1, len(s.trials) + 1)), "y": s.curve}
        for s in summaries
        if s.trials
    ]  # fmt: skip


def _predictions(summaries: Iterable[TaskSummary]) -> list[dict[str, Any]]:
    return [
        {"type": "scatter", "mode": "markers", "name": s.task.name,
         "x": [p for p, _ in s.predicted], "y": [m for _, m in s.predicted]}
        for s in summaries
        if s.predicted
    ]  # fmt: skip


def _figure(traces: list[dict[str, Any]], x: str, y: str) -> dict[str, Any]:
    layout = {
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}},
        "margin": {"t": 20},
        "height": 420,
    }
    return {"data": traces, "layout": layout}
