"""Searches over candidates that were all measured before: exact, quick, and the same for each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.tuning.record import PARTS, read_built
from dlc.autotune.design import Design, Family
from dlc.autotune.job import Job, Reply
from dlc.autotune.log import TuningLog
from dlc.autotune.record import Status
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace


@dataclass(frozen=True, slots=True)
class _Known(Space):
    """The points of a family that were built."""

    points_known: frozenset[tuple[tuple[str, int], ...]] = frozenset()

    def __len__(self) -> int:
        """The number of points that were built."""
        return len(self.points_known)

    def points(self) -> Iterator[dict[str, int]]:
        """Those that were built: few of a large space."""
        yield from (dict(point) for point in sorted(self.points_known))

    def allows(self, point: Mapping[str, int]) -> bool:
        """Whether a point was built."""
        return tuple((name, point[name]) for name in self.knobs) in self.points_known


class Replay:
    """An executor that builds and measures one task by looking up what `record` wrote."""

    def __init__(self, folder: Path, name: str) -> None:
        built = dict(read_built(folder / f"{name}.built"))
        self.default = built.pop(Design("default", ())).data
        for part in PARTS[1:]:
            del built[Design(part, ())]
        self.built = {d: reply.data for d, reply in built.items()}
        with TuningLog(folder / f"{name}.db", read_only=True) as log:
            self.trials = {t.nest: t for t in log.trials()}
        self.default_ns = int(median(t for x in self.trials.values() for t in x.anchor_ns))
        self.slots = 1

    def families(self) -> tuple[Family, ...]:
        """The families of what was built; nothing else can be drawn."""
        points: dict[str, set[tuple[tuple[str, int], ...]]] = defaultdict(set)
        for design in self.built:
            points[design.family].add(design.knobs)
        found = []
        for family, known in points.items():
            values: dict[str, set[int]] = defaultdict(set)
            for point in known:
                for name, value in point:
                    values[name].add(value)
            knobs = {name: tuple(sorted(choices)) for name, choices in values.items()}
            found.append(Family(family, _Known(knobs, (), frozenset(known)), _never))
        return tuple(found)

    def close(self) -> None:
        """Nothing runs."""

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Reply]]:
        """See `Executor`."""
        yield from ((n, self._answer(job)) for n, job in enumerate(jobs))

    def _answer(self, job: Job) -> Reply:
        data = job.data
        if data["job"] == "measure":
            return self._measure(job.blobs[0].decode())
        if data["kind"] in ("default", "plain"):
            return Reply(dict(self.default), (b"default",))
        found = self.built.get(
            Design(data.get("family", ""), tuple(data.get("knobs", {}).items())), {}
        )
        return Reply({"status": "invalid"} | dict(found), (str(found.get("nest")).encode(),))

    def _measure(self, nest: str) -> Reply:
        trial = self.trials.get(nest)
        if trial is None:  # the default, which no search measures as a candidate
            return Reply({"status": "ok", "times_ns": [self.default_ns], "anchor_ns": []})
        if trial.status is not Status.OK:
            return Reply({"status": str(trial.status), "detail": trial.detail})
        return Reply(
            {
                "status": "ok",
                "times_ns": list(trial.times_ns),
                "anchor_ns": list(trial.anchor_ns),
            }
        )


def _never(knobs: Mapping[str, int]) -> Trace:
    raise AssertionError("nobody schedules here")
