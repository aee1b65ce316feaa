"""The search over all tasks of a session: propose, build, check, time, learn, and keep a log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from dlc.autotune.confirm import confirm
from dlc.autotune.cost_model import CostModel, Sample, sample_of
from dlc.autotune.cost_models import begin_model
from dlc.autotune.job import Job, Reply
from dlc.autotune.log import TuningLog
from dlc.autotune.record import Choice, Trial
from dlc.autotune.session import Machines, Options, Snapshot, Ways, Weighted
from dlc.autotune.task_scheduler import next_task
from dlc.autotune.task_search import TaskSearch

_GROWTH = 1.25  # of the samples, from which on the cost model is fitted anew
_VERDICT_SHARE = 0.25  # of a budget of time, at most, for what follows the search
_CONFIRM_SECONDS = 2.0  # of each task that promises something
_RACE_SECONDS = 30.0  # of whole models, for the caller


@dataclass(slots=True)
class Outcome:
    """What a session found: for each task that has one, a schedule that beat the default."""

    choices: dict[str, Choice] = field(default_factory=dict)
    interrupted: bool = False
    snapshot: Snapshot | None = None


class Tuner:
    """One session. Everything it learns is in the log when it is learned."""

    def __init__(
        self,
        tasks: Sequence[Weighted],
        log: TuningLog,
        machines: Machines,
        options: Options | None = None,
        *,
        model: CostModel | None = None,
        ways: Ways | None = None,
        on_update: Callable[[Snapshot], None] | None = None,
    ) -> None:
        self.options = options or Options()
        self.log, self.machines = log, machines
        self.model = model or self._begin_model(tasks)
        self.ways = ways
        self.on_update = on_update or (lambda _: None)
        self.began = time.monotonic()
        self.trials = 0
        self.failures: Counter[str] = Counter()
        self._taught = 0  # samples that the cost model has seen
        random = Random(self.options.seed)
        self.searches = [
            TaskSearch(w, machines, self.options, self.model, Random(random.random()))
            for w in tasks
        ]
        self.samples: list[Sample] = self._old_samples()
        self.resumed = 0
        if self.options.resume:
            self.resumed = sum(s.resume(log.trials(s.key)) for s in self.searches)

    def run(self) -> Outcome:
        """Search until the budget is spent or nothing is left; Ctrl-C ends it early."""
        outcome = Outcome()
        try:
            self._prepare()
            self._search()
            outcome.choices = self._confirm()
        except KeyboardInterrupt:
            outcome.interrupted = True
        outcome.snapshot = replace(self.snapshot(), finished=True)
        self.on_update(outcome.snapshot)
        return outcome

    def snapshot(self) -> Snapshot:
        """The session as it is now."""
        own = (s.course.weight_ns for s in self.searches if not s.weighted.is_alternative)
        total = sum(own) or 1.0
        seconds = time.monotonic() - self.began
        spent = self.options.budget.share_spent(seconds, self.trials)
        correlations = [s.correlation for s in self.searches if s.correlation is not None]
        return Snapshot(
            tasks=tuple(s.view(total) for s in self.searches),
            seconds=seconds,
            trials=self.trials,
            resumed=self.resumed,
            failures=dict(self.failures),
            correlation=sum(correlations) / len(correlations) if correlations else None,
            eta_seconds=seconds * (1 - spent) / spent if spent > 0 else None,
            spent=spent,
            ways=self.ways.views(self.times_ns) if self.ways else (),
        )

    @property
    def times_ns(self) -> dict[str, float]:
        """By task the time of a call with the best schedule so far."""
        return {s.key: s.best_ns for s in self.searches}

    def _prepare(self) -> None:
        """Build and time what candidates are compared with; this gives the tasks their weights."""
        build: list[Job] = []
        for search in self.searches:
            self.log.add_task(search.task)
            build += search.builds()
        built = dict(self.machines.build.run(build))  # all of it: nothing is timed beside builds
        each = len(build) // max(1, len(self.searches))
        for number, search in enumerate(self.searches):
            parts = range(number * each, (number + 1) * each)
            self._time_default(search, [built[part] for part in parts])
        if self.ways is not None:
            rejected = self.ways.rejected({s.key: s.default_ns for s in self.searches})
            for search in self.searches:
                if search.key in rejected and not search.problem_text:
                    search.rest("of a slower way")
        if self.options.transfer:
            self.model.fit(self.samples)

    def _time_default(self, search: TaskSearch, parts: Sequence[Reply]) -> None:
        job = search.take_builds(parts)
        if job is not None:
            ((_, reply),) = self.machines.measure.run([job])
            search.take_default(reply)
        self.on_update(self.snapshot())

    def _search(self) -> None:
        budget = self.options.budget
        flat = budget.seconds is None and budget.trials is None
        while budget.share_spent(self._seconds_with_verdict(), self.trials) < 1.0:
            position = next_task([s.course for s in self.searches], until_flat=flat)
            if position is None:
                return
            search = self.searches[position]
            count = self.options.batch
            if budget.trials is not None:
                count = min(count, budget.trials - self.trials)
            for trial in search.round(count):
                self._note(trial)
                self.on_update(self.snapshot())
            self._teach(search)
            self.on_update(self.snapshot())

    def _seconds_with_verdict(self) -> float:
        """The seconds of a session that would stop to search now."""
        whole = self.options.budget.seconds or 0.0
        verdict = _CONFIRM_SECONDS * sum(s.is_promising for s in self.searches) + _RACE_SECONDS
        return time.monotonic() - self.began + min(verdict, _VERDICT_SHARE * whole)

    @property
    def deadline(self) -> float | None:
        """When the time is up, of `time.monotonic`; None for other budgets."""
        seconds = self.options.budget.seconds
        return None if seconds is None else self.began + seconds

    def _teach(self, search: TaskSearch) -> None:
        """Let the cost model learn, unless what is new would hardly change it."""
        if not self.options.transfer:
            self.model.fit(search.samples())
        elif len(self.samples) >= _GROWTH * self._taught:
            self._taught = len(self.samples)
            self.model.fit(self.samples)

    def _note(self, trial: Trial) -> None:
        self.log.add_trial(trial)
        self.trials += 1
        if trial.status != "ok":
            self.failures[str(trial.status)] += 1
        sample = sample_of(trial)
        if sample is not None:
            self.samples.append(sample)

    def _confirm(self) -> dict[str, Choice]:
        """Measure the best of each task once more, at length, and keep those that hold.

        Those that may save the most come first; once the time is up, the others wait for the next
        session.
        """
        choices: dict[str, Choice] = {}
        promising = [s for s in self.searches if s.is_promising]
        for number, search in enumerate(sorted(promising, key=lambda s: -s.promised_ns)):
            if number and self.deadline is not None and time.monotonic() > self.deadline:
                break
            choice = confirm(search, self.machines.measure)
            if choice is not None:
                choices[search.key] = choice
        return choices

    def _begin_model(self, tasks: Sequence[Weighted]) -> CostModel:
        """A cost model that knows what one for this family of CPUs learned before."""
        target = tasks[0].task.target if tasks and self.options.transfer else None
        return begin_model(self.options.cost_model, target, seed=self.options.seed)

    def _old_samples(self) -> list[Sample]:
        """What the log teaches; of the tasks at hand, what was timed on such caches as now."""
        if not self.options.transfer:
            return []
        caches = {s.key: s.method.cache for s in self.searches}
        as_now = (t for t in self.log.trials() if caches.get(t.task, t.cache) == t.cache)
        return [s for t in as_now if (s := sample_of(t)) is not None]
