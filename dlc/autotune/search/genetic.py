"""Genetic search: the fastest measured designs are crossed and mutated; no model is asked."""

from __future__ import annotations

from dataclasses import dataclass

from dlc.autotune.design import Design
from dlc.autotune.search.searcher import Problem, cross, explore, mutate

_PARENTS = 16
_MUTATION = 0.4


@dataclass(slots=True)
class Genetic:
    """Breeds from measured designs."""

    problem: Problem

    def propose(self, count: int) -> list[Design]:
        """See `Searcher`."""
        problem = self.problem
        parents = problem.best(_PARENTS)
        children: dict[Design, None] = {}
        for _ in range(20 * count if parents else 0):
            if len(children) >= count:
                break
            one, other = problem.random.choices(parents, k=2)
            child = cross(problem, one, other)
            if child is None or child in problem.seen or problem.random.random() < _MUTATION:
                child = mutate(problem, child or one)
            if child is not None and child not in problem.seen:
                children[child] = None
        return explore(problem, list(children), count, share=0.1)
