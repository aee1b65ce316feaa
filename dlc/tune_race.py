"""Race whole models with and without what won alone; keep what wins there too.

That is schedules of kernels, and ways through the graph with the schedules of what these bring.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dlc.autotune import job as jobs
from dlc.autotune.apply import Records
from dlc.autotune.decision import Decision, Verdict
from dlc.autotune.duel import Duel
from dlc.autotune.record import Choice
from dlc.autotune.session import Machines
from dlc.autotune.task import Task, task_key
from dlc.core.errors import DlcError
from dlc.core.fork import Choices
from dlc.core.scratch import scratch_folder
from dlc.lowering import Lowered, lower_again
from dlc.whole_build import assemble, rules_own

_LOG = logging.getLogger("dlc.tune")
_MAX_RACES = 12  # in one session
_KEPT_MODELS = 2  # lowered with other ways: their weights take room


@dataclass(frozen=True, slots=True)
class Racers:
    """Models, values of their open sizes, and the tasks that choices may be about."""

    models: tuple[Lowered, ...]
    sizes: Mapping[str, int]
    tasks: Mapping[str, Task]


def keep_winners(
    racers: Racers,
    choices: Mapping[str, Verdict],
    incumbents: Mapping[str, Verdict],
    machines: Machines,
    until: float | None = None,
    bundles: Sequence[Mapping[str, Verdict]] = (),
) -> tuple[dict[str, Verdict], float]:
    """What builds should use of `choices` and of the `incumbents`, which won earlier.

    All choices together first, on top of the incumbents. Where that does not win, each half on top
    of what was kept before. Then the `bundles` in the same manner, none of which is divided. What
    is kept in the end must beat the defaults too; else the incumbents stay, which did. After
    `until`, of `time.monotonic`, no further group is tried.

    Returns:
        What is kept, and how much faster than with defaults that makes the models; 1 for nothing.
    """
    kept = dict(incumbents)
    with scratch_folder(watched=True) as folder:
        races = Races(racers, machines, folder)
        single = [{key: choice} for key, choice in choices.items()]
        waiting = [group for group in (single, list(bundles)) if group]
        while waiting and races.count < _MAX_RACES:
            if races.count and until is not None and time.monotonic() > until:
                break
            group = waiting.pop(0)
            trial = kept | {k: v for part in group for k, v in part.items()}
            if races.speedup(trial, kept) > 1.0:
                kept = trial
            elif len(group) > 1:
                half = len(group) // 2
                waiting += [group[:half], group[half:]]
        final = races.speedup(kept, {}) if kept != incumbents else 0.0
    if final <= 1.0:
        return dict(incumbents), known_speedup(incumbents)
    new = {k: c for k, c in kept.items() if incumbents.get(k) != c}
    return kept | {k: replace(c, model_speedup=round(final, 4)) for k, c in new.items()}, final


def known_speedup(choices: Mapping[str, Verdict]) -> float:
    """How much faster choices that won made the models when they were raced; 1 for none."""
    return max((c.model_speedup for c in choices.values()), default=1.0)


class Races:
    """Whole models, with and without some choices."""

    def __init__(self, racers: Racers, machines: Machines, folder: Path) -> None:
        self.racers, self.machines, self.folder = racers, machines, folder
        self.count = 0
        self.keys = [_keys(model) for model in racers.models]
        self._known: dict[tuple[frozenset[str], frozenset[str]], float] = {}
        self._lowered: dict[tuple[int, frozenset[str]], Lowered] = {}

    def speedup(self, new: Mapping[str, Verdict], old: Mapping[str, Verdict]) -> float:
        """How much faster the models are with `new` than with `old`; 0 unless it is certain.

        It counts for the models that hold one of the kernels or forks.
        """
        pair = (_named(new), _named(old))
        if pair not in self._known:
            self.count += 1
            changed = {k for k in {*new, *old} if new.get(k) != old.get(k)}
            concerned = [n for n, own in enumerate(self.keys) if own & changed]
            speedups = (self._one(n, self.racers.models[n], new, old) for n in concerned)
            self._known[pair] = min(speedups, default=0.0)
        return self._known[pair]

    def _one(
        self, number: int, model: Lowered, new: Mapping[str, Verdict], old: Mapping[str, Verdict]
    ) -> float:
        try:
            paths = (self._build(number, old), self._build(number, new))
        except (OSError, DlcError) as error:
            _LOG.warning("the whole model cannot be raced: %s", error)
            return 0.0
        job = jobs.race(paths, sizes=self.racers.sizes, threads=model.target.cores)
        ((_, reply),) = self.machines.measure.run([job])
        if reply.data["status"] != "ok":
            reason = reply.data.get("detail") or reply.data["status"]
            _LOG.warning("the whole model cannot be raced: %s", reason)
            return 0.0
        duel = Duel(tuple(reply.data["lives"]))
        return duel.speedup if duel.is_faster else 0.0

    def _build(self, number: int, choices: Mapping[str, Verdict]) -> str:
        ways = {
            k: v for k, v in choices.items() if isinstance(v, Decision) and k in self.keys[number]
        }
        model = self._with_ways(number, ways)
        held = {task_key(k, model.target) for k in model.program.kernels}
        own = {k: v for k, v in choices.items() if isinstance(v, Choice) and k in held}
        named = sorted(_named({**ways, **own}))
        name = hashlib.sha256(repr(named).encode()).hexdigest()[:24]
        path = self.folder / f"{number}-{name}.so"
        if not path.exists():
            # For this race the choices count as better, which is what it is to find out.
            trusted = {k: replace(c, model_speedup=c.speedup) for k, c in own.items()}
            assemble(model, path, Records(self.racers.tasks, trusted), rules_own)
        return str(path)

    def _with_ways(self, number: int, decisions: Mapping[str, Decision]) -> Lowered:
        """A model that takes these ways and else defaults."""
        key = (number, _named(decisions))
        if key not in self._lowered:
            ways = Choices({k: d.way for k, d in decisions.items()})
            model = self.racers.models[number]
            same = _restricted(model.asked.choices, self.keys[number]) == ways
            while len(self._lowered) >= _KEPT_MODELS:
                del self._lowered[next(iter(self._lowered))]
            self._lowered[key] = model if same else lower_again(model, ways)
        return self._lowered[key]


def _keys(model: Lowered) -> set[str]:
    """Of the kernels and the forks of a model."""
    kernels = {task_key(kernel, model.target) for kernel in model.program.kernels}
    return kernels | {fork.key for fork in model.forks}


def _restricted(ways: Choices, keys: Collection[str]) -> Choices:
    return Choices({k: way for k, way in ways.ways.items() if k in keys})


def _named(choices: Mapping[str, Verdict]) -> frozenset[str]:
    marks = {k: v.nest if isinstance(v, Choice) else v.option for k, v in choices.items()}
    return frozenset(f"{key} {mark}" for key, mark in marks.items())
