"""The search of one task: what was tried, what is best, and one more round."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from dlc.autotune import job as jobs
from dlc.autotune.cost_model import CostModel, Description, Sample, rank_correlation, sample_of
from dlc.autotune.design import Design, families
from dlc.autotune.executor import SEAT, Executor
from dlc.autotune.job import Anchor, Job, Reply
from dlc.autotune.record import Status, Trial, quartile
from dlc.autotune.search import SEARCHERS
from dlc.autotune.search.searcher import Problem
from dlc.autotune.session import Machines, Options, TaskView, Weighted
from dlc.autotune.task_scheduler import Course
from dlc.autotune.versions import FEATURES, versions
from dlc.autotune.wire import Message
from dlc.autotune.worker import LOST

_SUSPENDED_AFTER = 3  # crashes or wrong results of one family
_HEAVY = frozenset({Status.CRASH, Status.WRONG, Status.MEMORY, Status.TIMEOUT})
_DEFAULT_ROUNDS = 15
_LOOKED_AT = 8  # designs for each that is wanted, until enough are no twins of what is known
_LEAST_LOOKED_AT = 64
_NOISY = 0.1  # spread beyond which a contender is measured again
_DISTURBED = 0.25  # by which the default was slower than it is known to be
_ATTEMPTS = 2  # to measure one that was disturbed
_LEAST_PREDICTED = 8
_LATEST = 32  # predictions whose order is compared with what was measured
LEAST_GAIN = 1.02  # a smaller one may be noise


class TaskSearch:
    """One task of a session."""

    def __init__(
        self,
        weighted: Weighted,
        machines: Machines,
        options: Options,
        model: CostModel,
        random: Random,
    ) -> None:
        self.weighted, self.machines = weighted, machines
        self.options, self.model = options, model
        self.task, self.calls, self.key = weighted.task, weighted.calls, weighted.task.key
        self.method = options.method_of(weighted)
        self.problem = Problem(families(self.task), random)
        self.searcher = SEARCHERS[options.search](self.problem)
        self.course = Course(0.0)
        self.anchor: Anchor | None = None
        self.default_ns = float("inf")
        self.default_nest = ""
        self.trials: list[Trial] = []
        self.best: Trial | None = None
        self.correlation: float | None = None
        self.problem_text = ""  # why the task cannot be tuned
        self._described: dict[Design, tuple[Description | None, str]] = {}  # and the nest's name
        self._seats: dict[Design, int] = {}  # of the builder that described it
        self._spare: list[tuple[Design, Reply]] = []  # built, for the next round
        self._nests: dict[str, float] = {}  # measured nest -> speed-up
        self._failures: Counter[str] = Counter()
        self._predictions: deque[tuple[float, float]] = deque(maxlen=_LATEST)

    def resume(self, trials: Iterable[Trial]) -> int:
        """Take up what earlier sessions measured with this compiler; return how many trials."""
        count = 0
        for trial in trials:
            as_now = trial.cache == self.method.cache or not trial.times_ns
            if as_now and set(versions()) <= set(trial.versions):
                self._learn(trial)
                count += 1
        return count

    def builds(self) -> list[Job]:
        """What candidates run beside: the parts of the task's anchor."""
        return jobs.build_anchor(self.task)

    def take_builds(self, replies: Sequence[Reply]) -> Job | None:
        """The job that times the default; None where it cannot be built."""
        for reply in replies:
            if reply.data["status"] != "ok":
                self._give_up(str(reply.data.get("detail", "")))
                return None
        self.anchor = Anchor(*(reply.blobs[0] for reply in replies))
        self.default_nest = replies[0].data["nest"]
        method = replace(self.method, rounds=_DEFAULT_ROUNDS, budget_seconds=0.25)
        return jobs.measure(self.task, self.anchor.default, self.anchor, method)

    def take_default(self, reply: Reply) -> None:
        """Take note of the default's time, which is the task's weight."""
        if reply.data["status"] != "ok":
            self._give_up(f"the default: {reply.data.get('detail', reply.data['status'])}")
            return
        self._set_default(quartile([*reply.data["times_ns"], *reply.data["anchor_ns"]]))
        self._nests.setdefault(self.default_nest, 1.0)
        if not self.problem.families:
            self._give_up("no choice")

    def round(self, count: int) -> Iterator[Trial]:
        """Propose, build and measure up to `count` candidates."""
        self.problem.predict = self._predict if self.model.is_ready else None
        built = self._build(count) if self.anchor is not None else []
        if not built:
            self.course.exhausted = True
            return
        yield from self._measure_all(built)
        speedup = self.best.speedup if self.best else 1.0
        self.course.best.append(min(1.0, 1.0 / max(speedup, 1e-9)))

    def samples(self) -> list[Sample]:
        """What this task alone teaches."""
        return [s for t in self.trials if (s := sample_of(t)) is not None]

    def view(self, total_ns: float) -> TaskView:
        """The task as a screen shows it."""
        status = "waiting" if not self.course.best else "improving"
        if self.course.exhausted:
            status = self.problem_text or "exhausted"
        elif self.course.is_flat:
            status = "flat"
        return TaskView(
            name=self.task.name,
            key=self.key,
            calls=self.calls,
            share=self.course.weight_ns / total_ns,
            trials=len(self.trials),
            default_ns=self.default_ns,
            best_ns=self.best_ns,
            flatness=self.course.flatness,
            status=status,
            is_alternative=self.weighted.is_alternative,
        )

    @property
    def best_ns(self) -> float:
        """The time of a call with the best schedule so far."""
        return self.default_ns / (max(1.0, self.best.speedup) if self.best else 1.0)

    def rest(self, reason: str) -> None:
        """Search no more."""
        self._give_up(reason)

    @property
    def is_promising(self) -> bool:
        """Whether the best candidate seems faster than the default by more than noise."""
        return self.best is not None and self.best.speedup >= LEAST_GAIN

    @property
    def promised_ns(self) -> float:
        """What the best candidate seems to save in one run of the model."""
        return self.course.weight_ns * (1 - 1 / self.best.speedup) if self.best else 0.0

    def contenders(self, count: int) -> list[Trial]:
        """The fastest trials, each nest once."""
        ran = {t.nest: t for t in self.trials if t.status is Status.OK and t.speedup > 1}
        return sorted(ran.values(), key=lambda t: -t.speedup)[:count]

    def _build(self, count: int) -> list[tuple[Design, Reply]]:
        """Up to `count` built designs, each with a nest of its own that nobody has measured.

        Those that cannot be built too. What schedules a design compiles it, unless it turns out
        to be a twin of what is known. No builder is idle: what is too many is for the next round.
        """
        found, self._spare = self._spare, []
        nests = {*self._nests, *(r.data["nest"] for _, r in found if "nest" in r.data)}
        looked_at = 0
        while len(found) < count and looked_at < max(_LOOKED_AT * count, _LEAST_LOOKED_AT):
            wanted = max(count - len(found), self.machines.build.slots if found else 0)
            designs = self.searcher.propose(wanted)
            if not designs:
                break
            looked_at += len(designs)
            tree = self.model.reads_trees
            work = [
                jobs.build_design(self.task, d, tree=tree, known=nests, seat=self._seats.get(d))
                for d in designs
            ]
            for design, reply in zip(designs, self._all(self.machines.build, work), strict=True):
                self.problem.seen.add(design)
                nest = self._note(design, reply)
                if nest in nests:
                    self.problem.scores[design] = self._nests.get(nest, 0.0)
                    continue
                nests.update([nest] if nest else [])
                found.append((design, reply))
        found, self._spare = found[:count], found[count:]
        return found

    def _measure_all(self, built: Sequence[tuple[Design, Reply]]) -> Iterator[Trial]:
        assert self.anchor is not None
        ready = [(d, r) for d, r in built if r.data["status"] == "ok"]
        predicted = self._predicted([r for _, r in ready])
        for design, reply in built:
            if reply.data["status"] != "ok":
                yield self._learn(self._failed(design, reply))
        anchor, default_ns = self.anchor, self.default_ns
        work = [
            jobs.measure(self.task, r.blobs[0], anchor, self.method, default_ns=default_ns)
            for _, r in ready
        ]
        for position, result in self.machines.measure.run(work):
            design, reply = ready[position]
            trial = self._trial(design, reply, result, predicted[position])
            for _ in range(_ATTEMPTS):
                if not self._is_doubtful(trial):
                    break
                (again,) = self._all(self.machines.measure, [work[position]])
                result = Message(result.data | _joined(result.data, again.data))
                trial = self._trial(design, reply, result, predicted[position])
            if trial.predicted is not None and trial.status is Status.OK:
                self._predictions.append((trial.predicted, trial.speedup))
            yield self._learn(trial)
        if len(self._predictions) >= _LEAST_PREDICTED:
            self.correlation = rank_correlation(*zip(*self._predictions, strict=True))

    def _is_doubtful(self, trial: Trial) -> bool:
        """Whether a trial that matters was disturbed: its times differ, or the default was slow."""
        best = self.best.speedup if self.best else 1.0
        if trial.status is not Status.OK or trial.speedup <= 0.95 * best:
            return False
        disturbed = quartile(trial.anchor_ns) > (1 + _DISTURBED) * self.default_ns
        return disturbed or trial.spread > _NOISY

    def _predicted(self, built: Sequence[Reply]) -> list[float | None]:
        if not self.model.is_ready:
            return [None] * len(built)
        return list(self.model.predict([_description(r) for r in built]))

    def _trial(self, design: Design, built: Reply, result: Reply, predicted: float | None) -> Trial:
        data, seen = result.data, _description(built)
        status = data["status"]
        known = status in {str(s) for s in Status}
        return Trial(
            task=self.key,
            family=design.family,
            knobs=design.knobs,
            steps=built.data["steps"],
            nest=built.data["nest"],
            status=Status(status) if known else Status.CRASH,
            detail=str(data.get("detail", "")),
            times_ns=tuple(data.get("times_ns", ())),
            anchor_ns=tuple(data.get("anchor_ns", ())),
            cache=self.method.cache,
            threads=self.method.threads,
            features=seen.features,
            tree=seen.tree,
            predicted=predicted,
            made_at=time.time(),
            versions=(*versions(), FEATURES),
        )

    def _failed(self, design: Design, reply: Reply) -> Trial:
        status = Status.INVALID if reply.data["status"] == Status.INVALID else Status.BUILD
        return Trial(
            task=self.key,
            family=design.family,
            knobs=design.knobs,
            status=status,
            detail=str(reply.data.get("detail", ""))[:2000],
            made_at=time.time(),
            versions=versions(),
        )

    def _learn(self, trial: Trial) -> Trial:
        """Take note of a trial, of this session or an earlier one."""
        design = Design(trial.family, trial.knobs)
        self.trials.append(trial)
        self.problem.seen.add(design)
        self.problem.scores[design] = trial.speedup
        if trial.nest:
            self._nests[trial.nest] = trial.speedup
        if trial.anchor_ns and self.anchor is not None:  # the default ran again: know it better
            self._set_default(min(self.default_ns, quartile(trial.anchor_ns)))
        if trial.speedup > (self.best.speedup if self.best else 1.0):
            self.best = trial
        if trial.status in _HEAVY:
            self._failures[trial.family] += 1
            if self._failures[trial.family] == _SUSPENDED_AFTER:
                kept = tuple(f for f in self.problem.families if f.name != trial.family)
                self.problem.families = kept
        return trial

    def _predict(self, designs: Sequence[Design]) -> list[float]:
        """What the cost model says; minus infinity for what is refused or was measured."""
        self._describe(designs)
        good = {
            d: seen
            for d in designs
            if (seen := self._described[d][0]) is not None and not self._is_twin(d)
        }
        known = dict(zip(good, self.model.predict(list(good.values())), strict=True))
        return [known.get(d, float("-inf")) for d in designs]

    def _describe(self, designs: Sequence[Design]) -> None:
        """Schedule designs, to know their features and their nests; neither if one is refused."""
        new = list(dict.fromkeys(d for d in designs if d not in self._described))
        tree = self.model.reads_trees
        work = [jobs.build_design(self.task, d, code=False, tree=tree) for d in new]
        for position, reply in self.machines.build.run(work):
            self._note(new[position], reply)

    def _note(self, design: Design, reply: Reply) -> str:
        """Take note of what a design is like; the name of its nest."""
        nest: str = reply.data.get("nest", "")
        self._described[design] = (_description(reply) if nest else None, nest)
        if SEAT in reply.data:
            self._seats[design] = reply.data[SEAT]
        return nest

    def _is_twin(self, design: Design) -> bool:
        """Whether another design with the same nest was measured."""
        nest = self._described[design][1]
        if nest not in self._nests or design in self.problem.scores:
            return False
        self.problem.seen.add(design)
        self.problem.scores[design] = self._nests[nest]
        return True

    def _set_default(self, time_ns: float) -> None:
        self.default_ns = time_ns
        self.course.weight_ns = time_ns * self.calls

    def _give_up(self, reason: str) -> None:
        self.problem_text = reason.splitlines()[0] if reason else "failed"
        self.course.exhausted = True

    def _all(self, executor: Executor, work: Sequence[Job]) -> list[Reply]:
        """The answers to some jobs, in order."""
        found: dict[int, Reply] = dict(executor.run(work))
        lost = Reply({"status": LOST, "detail": "no answer"})
        return [found.get(n, lost) for n in range(len(work))]


def _description(built: Reply) -> Description:
    """What a candidate is like, as the worker that scheduled it says."""
    return Description(tuple(built.data["features"]), built.data.get("tree", ""))


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two measurements of one candidate as one; what went wrong in the second counts."""
    if second["status"] != "ok":
        return dict(second)
    return {name: [*first[name], *second[name]] for name in ("times_ns", "anchor_ns")}
