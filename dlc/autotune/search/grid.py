"""Grid search: every point of every family, in order."""

from __future__ import annotations

from collections.abc import Iterator

from dlc.autotune.design import Design
from dlc.autotune.search.searcher import Problem, make_design


class Grid:
    """Proposes all designs, one family after the other."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._points = self._all()

    def propose(self, count: int) -> list[Design]:
        """See `Searcher`."""
        found: list[Design] = []
        while len(found) < count and (design := next(self._points, None)) is not None:
            if design not in self.problem.seen and self.problem.family(design.family):
                found.append(design)
        return found

    def _all(self) -> Iterator[Design]:
        for family in self.problem.families:
            for point in family.space.points():
                yield make_design(family, point)
