"""How long runs took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from dlc.core.count import show_count


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of single runs, in the order they were made."""

    times_ns: tuple[int, ...]

    @property
    def min_ms(self) -> float:
        """The fastest run, in milliseconds."""
        return min(self.times_ns) / 1e6

    @property
    def median_ms(self) -> float:
        """The run half of all are faster than, in milliseconds."""
        return self._share(0.5)

    @property
    def p90_ms(self) -> float:
        """The run nine tenths of all are faster than, in milliseconds."""
        return self._share(0.9)

    def __str__(self) -> str:
        return (
            f"median {self.median_ms:.3f} ms, min {self.min_ms:.3f} ms, "
            f"p90 {self.p90_ms:.3f} ms ({show_count(len(self.times_ns), 'run')})"
        )

    def _share(self, share: float) -> float:
        ordered = sorted(self.times_ns)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] / 1e6


def measure(run: Callable[[], object], *, rounds: int, warmup: int) -> Timing:
    """Time `run`, after `warmup` runs that do not count."""
    for _ in range(warmup):
        run()
    times = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    return Timing(tuple(times))
