"""Other ways through the graph: which kernels each would bring, and whether these are faster.

A way changes kernels: some go, others come, transforms among them. All are tasks like any other, so
a session times them and searches their schedules, and a way is judged by its kernels at their best
against those that it replaces, at theirs. What seems faster is raced in the whole model, with the
schedules that were found for it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dlc.autotune.decision import Decision, Verdict
from dlc.autotune.record import Choice
from dlc.autotune.session import WayView, Weighted
from dlc.autotune.versions import versions
from dlc.core.fork import Choices, Fork, Way
from dlc.lowering import Lowered, lower_again
from dlc.tune_plan import Plan, weigh_tasks

MODEL_ERROR = 0.3  # by which a model of costs may be wrong: ways that it thinks worse are not tried
HOPELESS = 0.8  # speed-up with default schedules, below which nobody searches better ones
SHARE = 0.15  # of a budget of time, for finding out what ways change and timing that
_SECONDS = 60.0  # for the same, where the budget is none of time
_TASK_SECONDS = 1.0  # to build and time a kernel that a way brings
_MOST = 24


@dataclass(frozen=True, slots=True)
class Alternative:
    """A way that is not taken, and how many calls of which kernels would go and come."""

    fork: Fork
    option: str
    gone: Mapping[str, int] = field(default_factory=dict)
    come: Mapping[str, int] = field(default_factory=dict)

    def speedup(self, times_ns: Mapping[str, float]) -> float | None:
        """Of what the way changes, by the times of single calls; None where one is not known."""
        known = all(
            times_ns.get(key, float("inf")) < float("inf") for key in (*self.gone, *self.come)
        )
        before, after = self._sum(self.gone, times_ns), self._sum(self.come, times_ns)
        return before / after if known and after > 0 else None

    def saved_ns(self, times_ns: Mapping[str, float]) -> float:
        """What a run of the models takes less."""
        if self.speedup(times_ns) is None:
            return 0.0
        return self._sum(self.gone, times_ns) - self._sum(self.come, times_ns)

    def decision(self, times_ns: Mapping[str, float]) -> Decision:
        """What is known of the way before whole models are raced."""
        speedup = round(self.speedup(times_ns) or 0.0, 4)
        return Decision(self.fork, self.option, speedup, 0.0, time.time(), versions())

    @staticmethod
    def _sum(calls: Mapping[str, int], times_ns: Mapping[str, float]) -> float:
        return sum(times_ns.get(key, 0.0) * count for key, count in calls.items())


@dataclass(frozen=True, slots=True)
class Crossroads:
    """The ways that a session looks at, and the tasks that only they bring."""

    alternatives: tuple[Alternative, ...] = ()
    tasks: tuple[Weighted, ...] = ()

    def rejected(self, times_ns: Mapping[str, float]) -> Collection[str]:
        """The tasks that only hopeless ways bring, by the times of default schedules."""
        wanted = {k for a in self.alternatives if self._has_hope(a, times_ns) for k in a.come}
        return {w.task.key for w in self.tasks} - wanted

    def views(self, times_ns: Mapping[str, float]) -> tuple[WayView, ...]:
        """The ways as a screen shows them."""
        return tuple(
            WayView(
                name=a.fork.name,
                option=a.option,
                default=a.fork.default,
                speedup=a.speedup(times_ns),
                status=self._status(a, times_ns),
            )
            for a in self.alternatives
        )

    def promising(self, times_ns: Mapping[str, float]) -> list[Alternative]:
        """The ways whose kernels are faster at their best, those that save the most first."""
        found = [a for a in self.alternatives if (a.speedup(times_ns) or 0.0) > 1.0]
        found.sort(key=lambda a: -a.saved_ns(times_ns))
        return list({a.fork.key: a for a in reversed(found)}.values())[::-1]

    def hopeless(self, times_ns: Mapping[str, float]) -> list[Alternative]:
        """The ways that no search of schedules was worth."""
        timed = [a for a in self.alternatives if a.speedup(times_ns) is not None]
        return [a for a in timed if not self._has_hope(a, times_ns)]

    def _status(self, alternative: Alternative, times_ns: Mapping[str, float]) -> str:
        if alternative.speedup(times_ns) is None:
            return "waiting"
        return "timed" if self._has_hope(alternative, times_ns) else "slower"

    @staticmethod
    def _has_hope(alternative: Alternative, times_ns: Mapping[str, float]) -> bool:
        speedup = alternative.speedup(times_ns)
        return speedup is not None and speedup >= HOPELESS


def forks_of(models: Iterable[Lowered]) -> dict[Fork, int]:
    """The forks of models, and how often each is met."""
    return dict(Counter(fork for model in models for fork in model.forks))


def promised_cycles(fork: Fork, option: str, taken: str, count: int = 1) -> float:
    """What a way may save if the model of costs is as wrong as it may be; below 0 nothing."""
    now, then = fork.cycles_of(taken), fork.cycles_of(option)
    return 0.0 if now is None or then is None else count * ((1 + MODEL_ERROR) * now - then)


def find_alternatives(
    plan: Plan, tried: Collection[tuple[str, str]] = (), seconds: float | None = None
) -> Crossroads:
    """The ways that are worth a look, the most promising first.

    Args:
        plan: the models, and the tasks of the ways that they take now.
        tried: (key of a fork, way) that are known to lose.
        seconds: a session's budget of time, if it has one.
    """
    room = SHARE * seconds if seconds is not None else _SECONDS
    counts = forks_of(plan.models)
    own = {w.task.key for w in plan.tasks}
    tasks: dict[str, Weighted] = {}
    found: list[Alternative] = []
    for fork, option in _in_order(plan, counts, tried):
        if room <= 0 or len(found) == _MOST:
            break
        began = time.monotonic()
        alternative, brought = _try(plan, fork, option)
        room -= time.monotonic() - began
        new = {
            k: replace(w, calls=alternative.come[k], is_alternative=True)
            for k, w in brought.items()
            if k not in own and k not in tasks
        }
        changes = alternative.gone or alternative.come
        if not changes or not set(alternative.gone) <= own or not brought:
            continue
        room -= _TASK_SECONDS * len(new)
        tasks |= new
        found.append(alternative)
    return Crossroads(tuple(found), tuple(tasks.values()))


def _in_order(
    plan: Plan, counts: Mapping[Fork, int], tried: Collection[tuple[str, str]]
) -> list[tuple[Fork, str]]:
    taken = {fork: plan.ways.option(fork) for fork in counts}
    promised = {
        (fork, option): promised_cycles(fork, option, taken[fork], count)
        for fork, count in counts.items()
        for option in fork.options
        if option != taken[fork] and (fork.key, option) not in tried
    }
    return sorted((p for p in promised if promised[p] > 0), key=lambda p: -promised[p])


def _try(plan: Plan, fork: Fork, option: str) -> tuple[Alternative, dict[str, Weighted]]:
    """What a way changes in the models that have its fork; the tasks that it brings."""
    ways = with_ways(plan.ways, {fork.key: Way(option, fork.default)})
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    tasks: dict[str, Weighted] = {}
    for model in plan.models:
        if fork not in model.forks:
            continue
        for weighted in weigh_tasks(model, plan.sizes):
            before[weighted.task.key] += weighted.calls
        for weighted in weigh_tasks(lower_again(model, ways), plan.sizes):
            key = weighted.task.key
            after[key] += weighted.calls
            found = tasks.get(key)
            tasks[key] = found.joined(weighted) if found else weighted
    come, gone = after - before, before - after
    return Alternative(fork, option, gone, come), {k: tasks[k] for k in come}


def with_ways(ways: Choices, others: Mapping[str, Way]) -> Choices:
    """Choices with other ways at some forks."""
    return Choices({**ways.ways, **others})


def tried_before(decisions: Iterable[Decision]) -> set[tuple[str, str]]:
    """The ways that lost with this very compiler."""
    return {(d.key, d.option) for d in decisions if not d.is_better and d.versions == versions()}


def bundles(
    alternatives: Sequence[Alternative], times_ns: Mapping[str, float], found: Mapping[str, Choice]
) -> list[dict[str, Verdict]]:
    """For each way its decision with the schedules that were found for what only it brings."""
    return [
        {a.fork.key: a.decision(times_ns), **{k: found[k] for k in a.come if k in found}}
        for a in alternatives
    ]
