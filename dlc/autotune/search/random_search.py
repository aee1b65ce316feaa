"""Random search: the baseline that every other search must beat."""

from __future__ import annotations

from dataclasses import dataclass

from dlc.autotune.design import Design
from dlc.autotune.search.searcher import Problem, draw_new


@dataclass(slots=True)
class RandomSearch:
    """Proposes designs by chance."""

    problem: Problem

    def propose(self, count: int) -> list[Design]:
        """See `Searcher`."""
        return draw_new(self.problem, count)
