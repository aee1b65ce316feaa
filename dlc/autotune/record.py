"""What is known of a candidate, as data: a `Trial` is one measurement, a `Choice` a verdict.

Both are self-describing JSON, so that a log can be read, merged and judged without this program.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from statistics import median
from typing import Any

from dlc.core.errors import UserError
from dlc.schedule.primitive import Step, steps_from_json


class Status(enum.StrEnum):
    """How a trial ended."""

    OK = "ok"
    INVALID = "invalid"  # the schedule was refused
    BUILD = "build"  # the compiler failed, died or took too long
    CRASH = "crash"  # the candidate's process died of a signal
    TIMEOUT = "timeout"
    SLOW = "slow"  # so much slower than the default that it was not timed
    MEMORY = "memory"
    WRONG = "wrong"  # other numbers than the reference, or a write outside of its buffers


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate, measured. Times are of single runs, in the order they were made.

    `anchor_ns` are times of the default schedule, taken in turn with those of the candidate.
    """

    task: str  # key
    family: str  # what made the schedule: a rule, or a sketch
    knobs: tuple[tuple[str, int], ...]
    steps: str = "[]"  # JSON, replays on the task's function
    nest: str = ""  # hash of the scheduled loop nest
    status: Status = Status.OK
    detail: str = ""  # the reason, where the status is not `ok`
    times_ns: tuple[int, ...] = ()
    anchor_ns: tuple[int, ...] = ()
    cache: str = "cold"
    threads: int = 1
    features: tuple[float, ...] = ()
    tree: str = ""  # of loops, as text; only where the cost model reads it
    predicted: float | None = None
    made_at: float = 0.0  # seconds since 1970
    versions: tuple[tuple[str, str], ...] = ()

    @property
    def time_ns(self) -> float:
        """The run that a quarter of all are faster than; infinity where there is none.

        What disturbs a run only ever makes it longer, so the faster half is nearer to the truth.
        """
        return quartile(self.times_ns) if self.times_ns else float("inf")

    @property
    def spread(self) -> float:
        """Median distance from the median, relative to it, of the candidate or the default."""
        return max(_spread(self.times_ns), _spread(self.anchor_ns))

    @property
    def speedup(self) -> float:
        """How many times faster than the default it ran; 0 where it did not run."""
        if not self.times_ns or not self.anchor_ns or self.status is not Status.OK:
            return 0.0
        return quartile(self.anchor_ns) / self.time_ns

    @property
    def plan(self) -> tuple[Step, ...]:
        """The schedule."""
        return steps_from_json(self.steps)

    @property
    def digest(self) -> str:
        """A hash of everything."""
        return digest_of(self.to_json())

    def to_json(self) -> dict[str, object]:
        """The trial as data."""
        data = asdict(self)
        if not self.tree:  # as rows were written before there were trees
            del data["tree"]
        return data | {"knobs": dict(self.knobs), "versions": dict(self.versions)}


@dataclass(frozen=True, slots=True)
class Choice:
    """The claim that a schedule beats the default of a task; it holds for these two loop nests.

    `speedup` was measured on the kernel alone, `model_speedup` in a whole model. A choice without
    steps says that the default is best.
    """

    task: str
    steps: str
    nest: str
    default_nest: str
    speedup: float
    model_speedup: float
    made_at: float = 0.0
    versions: tuple[tuple[str, str], ...] = field(default=())

    @property
    def is_better(self) -> bool:
        """Whether the schedule won by itself and in a whole model."""
        return self.speedup > 1.0 and self.model_speedup > 1.0

    def replaces(self, other: Choice | None) -> bool:
        """Whether this later verdict on a task takes the place of an earlier one.

        A schedule that lost says nothing against another one that won.
        """
        return other is None or self.is_better or not other.is_better

    @property
    def plan(self) -> tuple[Step, ...]:
        """The schedule."""
        return steps_from_json(self.steps)

    @property
    def digest(self) -> str:
        """A hash of everything."""
        return digest_of(self.to_json())

    def to_json(self) -> dict[str, object]:
        """The choice as data."""
        return asdict(self) | {"versions": dict(self.versions)}


def quartile(times_ns: Sequence[int]) -> float:
    """The time that a quarter of all are below; of three, the fastest."""
    return float(sorted(times_ns)[len(times_ns) // 4])


def _spread(times_ns: Sequence[int]) -> float:
    middle = median(times_ns) if times_ns else 0
    return median(abs(t - middle) for t in times_ns) / middle if middle else 0.0


def trial_from_json(data: Mapping[str, Any]) -> Trial:
    """Read what `Trial.to_json` wrote; fields a later version added are passed over.

    Raises:
        UserError: it is not a trial.
    """
    try:
        known = _known(Trial, data)
        known["knobs"] = tuple((str(k), int(v)) for k, v in known["knobs"].items())
        known["status"] = Status(known["status"])
        for name in ("times_ns", "anchor_ns", "features"):
            known[name] = tuple(known.get(name, ()))
        return Trial(**known)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(detail=f"not a trial: {error}") from error


def choice_from_json(data: Mapping[str, Any]) -> Choice:
    """Read what `Choice.to_json` wrote.

    Raises:
        UserError: it is not a choice.
    """
    try:
        return Choice(**_known(Choice, data))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(detail=f"not a choice: {error}") from error


def _known(kind: type[Trial] | type[Choice], data: Mapping[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    known = {name: value for name, value in data.items() if name in names}
    known["versions"] = tuple(sorted(dict(known.get("versions", {})).items()))
    return known


def digest_of(data: Mapping[str, object]) -> str:
    """A hash of a row of the log."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:32]
