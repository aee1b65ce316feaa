"""Where the time of a run goes, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step of a model: a kernel, or a copy. A step inside of a loop counts all its turns."""

    kernel: str
    nodes: tuple[str, ...]  # of the model, that it stands for
    time_ns: float  # median over the runs
    operations: int  # on floats; a multiply-add is two
    bytes: int  # that it must at least read and write

    @property
    def gflops(self) -> float:
        """Operations in a nanosecond."""
        return self.operations / max(self.time_ns, 1.0)

    @property
    def gbytes_per_s(self) -> float:
        """Bytes in a nanosecond."""
        return self.bytes / max(self.time_ns, 1.0)


@dataclass(frozen=True, slots=True)
class Profile:
    """The steps of a model in the order of their first turn."""

    steps: tuple[StepTime, ...]

    @property
    def time_ns(self) -> float:
        """All steps together."""
        return sum(step.time_ns for step in self.steps)

    @staticmethod
    def of(runs: Sequence[Sequence[Sequence[int]]], names: object) -> Profile:
        """From (step, nanoseconds, operations, bytes) of each run, and the manifest's steps."""
        known = names if isinstance(names, list) else []
        totals: dict[int, list[list[int]]] = {}
        for run in runs:
            sums: dict[int, list[int]] = {}
            for number, *values in run:
                before = sums.get(number, [0, 0, 0])
                sums[number] = [a + b for a, b in zip(before, values, strict=True)]
            for number, values in sums.items():
                totals.setdefault(number, []).append(values)
        return Profile(
            tuple(
                StepTime(
                    *_name(known, number),
                    median(values[0] for values in found),
                    found[-1][1],
                    found[-1][2],
                )
                for number, found in totals.items()
            )
        )


def _name(known: Sequence[object], number: int) -> tuple[str, tuple[str, ...]]:
    step = known[number] if number < len(known) else None
    if not isinstance(step, dict):
        return f"step {number}", ()
    return str(step.get("kernel", "?")), tuple(map(str, step.get("nodes", ())))
