"""A tuning log as one HTML file that needs no network: curves, predictions, failures, choices.

Needs the extra `report`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import accumulate
from statistics import median
from typing import Any

from dlc.autotune.cost_model import rank_correlation
from dlc.autotune.decision import Decision
from dlc.autotune.log import TuningLog
from dlc.autotune.record import Choice, Status, Trial, quartile
from dlc.autotune.shipped import family_of
from dlc.autotune.task import Task
from dlc.core.count import show_count
from dlc.core.errors import UserError

_FAST = 8.0  # log2 of a speed-up that nobody will believe: a larger one is drawn there
_SHOWN = 16  # tasks in a figure: more cannot be told apart


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
    def default_ns(self) -> float | None:
        """The time of the default, as most trials met it; None where none ran."""
        times = [quartile(t.anchor_ns) for t in self.trials if t.anchor_ns]
        return median(times) if times else None

    @property
    def failures(self) -> dict[str, int]:
        """Trials that did not run, by kind."""
        found = Counter(str(t.status) for t in self.trials if t.status is not Status.OK)
        return dict(sorted(found.items()))

    @property
    def predicted(self) -> list[tuple[float, float]]:
        """(predicted, measured) speed-ups of the trials that have both."""
        return [
            (2.0 ** min(t.predicted, _FAST), t.speedup)
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
    found = [
        TaskSummary(t, _comparable(log.trials(t.key)), choices.get(t.key)) for t in log.tasks()
    ]
    return sorted(found, key=lambda s: (-len(s.trials), s.task.name))


def _comparable(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Trials but for those on other caches (cold, warm) than the last one."""
    found = tuple(trials)
    last = next((t.cache for t in reversed(found) if t.times_ns), "")
    return tuple(t for t in found if t.cache == last or not t.times_ns)


def render_report(
    summaries: Sequence[TaskSummary],
    title: str,
    corrupt: int = 0,
    decisions: Iterable[Decision] = (),
) -> str:
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
    environment.filters |= {"time": _time, "counted": show_count}
    text = resources.files("dlc.autotune").joinpath("report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(text).render(
        title=title,
        summaries=summaries,
        trials=sum(len(s.trials) for s in summaries),
        corrupt=corrupt,
        decisions=sorted(decisions, key=lambda d: (-d.model_speedup, -d.speedup)),
        plotly_js=plotly.offline.get_plotlyjs(),
        failures=sum((Counter(s.failures) for s in summaries), Counter()),
        targets=sorted({_machine(s.task) for s in summaries}),
        hidden=max(0, sum(bool(s.trials) for s in summaries) - _SHOWN),
        curves=_figure(_curves(summaries), "trials", "best speed-up over the default"),
        predictions=_figure(_predictions(summaries), "predicted speed-up", "measured speed-up"),
    )


def _machine(task: Task) -> str:
    target = task.target
    return f"{family_of(target)}, {target.cores} cores, L2 {target.l2_bytes >> 10} KiB"


def _time(nanoseconds: float | None) -> str:
    if nanoseconds is None:
        return "–"
    for unit, size in (("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.2f} {unit}"
    return f"{nanoseconds:.0f} ns"


def _curves(summaries: Sequence[TaskSummary]) -> list[dict[str, Any]]:
    return [
        {"type": "scatter", "mode": "lines", "line": {"shape": "hv"}, "name": name,
         "x": list(range(1, len(s.trials) + 1)), "y": s.curve}
        for name, s in _shown(summaries)
        if s.trials
    ]  # fmt: skip


def _predictions(summaries: Sequence[TaskSummary]) -> list[dict[str, Any]]:
    drawn = [(name, s.predicted) for name, s in _shown(summaries) if s.predicted]
    if not drawn:
        return []
    values = [value for _, pairs in drawn for pair in pairs for value in pair]
    ends = [min(values), max(values)]
    exact = {"type": "scatter", "mode": "lines", "name": "exact", "x": ends, "y": ends,
             "line": {"dash": "dot", "color": "#999"}}  # fmt: skip
    points = [
        {"type": "scatter", "mode": "markers", "name": name, "marker": {"size": 6, "opacity": 0.6},
         "x": [p for p, _ in pairs], "y": [m for _, m in pairs]}
        for name, pairs in drawn
    ]  # fmt: skip
    return [*points, exact]


def _shown(summaries: Sequence[TaskSummary]) -> list[tuple[str, TaskSummary]]:
    """The tasks that are drawn, by names that tell them apart."""
    names = Counter(s.task.name for s in summaries)
    return [
        (s.task.name if names[s.task.name] == 1 else f"{s.task.name} {s.task.key[:6]}", s)
        for s in summaries[:_SHOWN]
    ]


def _figure(traces: list[dict[str, Any]], x: str, y: str) -> dict[str, Any]:
    layout = {
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}, "rangemode": "tozero"},
        "margin": {"t": 20, "r": 20},
        "height": 460,
        "legend": {"orientation": "h", "y": -0.2},
    }
    return {"data": traces, "layout": layout}
