"""Bayesian search: measure where a process over the knobs hopes for most.

The hope is the expected score and a share of how far off it may be.
Source: Srinivas et al., Gaussian Process Optimization in the Bandit Setting (ICML 2010).
"""

from __future__ import annotations

from math import log2

from dlc.autotune.design import Design
from dlc.autotune.search.process import KnobProcess
from dlc.autotune.search.searcher import Problem, draw_new, make_design, mutate, rank

_HOPE = 0.7  # deviations
_FIRST = 4  # trials before the process is asked
_TAUGHT = 8  # trials of a task, until which other tasks know more of it than its own knobs tell
_LOOKED_AT = 2  # designs that the cost model looks at, for each that is wanted
_WHOLE = 2048  # points of a space that is looked at as a whole; of a larger one, half as many
_MUTANTS = 8  # of each of the best, where the space is larger
_WORST = 2.0**-5  # what a failure counts as
_GROWTH = 1.1  # of what is known, from which on hopes are no longer those of before


class Bayesian:
    """Looks at all of a space by its knobs; first, the cost model tells what other tasks taught."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._left: list[Design] = []  # unseen, the highest hopes first
        self._told = 0  # how many designs were known then

    def propose(self, count: int) -> list[Design]:
        """See `Searcher`."""
        problem = self.problem
        known = [d for d in problem.scores if problem.family(d.family)]
        wanted = count
        if problem.predict is not None and len(known) < _TAUGHT:
            wanted = _LOOKED_AT * count
        by_chance = len(known) < _FIRST
        found = draw_new(problem, wanted) if by_chance else self._hopeful(known, wanted)
        if wanted == count:
            return found
        ranked = rank(problem, found)
        return [d for d in ranked if d not in problem.seen][:count] or found[:count]

    def _hopeful(self, known: list[Design], count: int) -> list[Design]:
        """The designs with the highest hopes; those of before while little more is known."""
        problem = self.problem
        self._left = [d for d in self._left if d not in problem.seen and problem.family(d.family)]
        if len(known) > _GROWTH * self._told or len(self._left) < count:
            self._left, self._told = self._by_hope(known), len(known)
        found, self._left = self._left[:count], self._left[count:]
        return found

    def _by_hope(self, known: list[Design]) -> list[Design]:
        """Candidates, the highest hopes first."""
        fresh = self._candidates()
        if not fresh:
            return []
        process = KnobProcess(self.problem.families)
        scores = [log2(max(self.problem.scores[d], _WORST)) for d in known]
        expected, deviation = process.predict(process.points(known), scores, process.points(fresh))
        hopes = expected + _HOPE * deviation
        order = sorted(range(len(fresh)), key=lambda n: (-float(hopes[n]), n))
        return [fresh[n] for n in order]

    def _candidates(self) -> list[Design]:
        """Designs that nobody has seen, in no order."""
        problem = self.problem
        if sum(len(f.space) for f in problem.families) <= _WHOLE:
            found = [make_design(f, p) for f in problem.families for p in f.space.points()]
            found = [d for d in found if d not in problem.seen]
            problem.random.shuffle(found)
            return found
        near = [mutate(problem, d) for d in problem.best(_MUTANTS) for _ in range(_MUTANTS)]
        unseen = {d: None for d in near if d is not None and d not in problem.seen}
        return [*unseen, *draw_new(problem, _WHOLE // 2, unseen)]
