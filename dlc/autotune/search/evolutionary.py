"""Evolutionary search over the predicted speed: mutation and crossover of the best, some luck.

Source: Zheng et al., Ansor: Generating High-Performance Tensor Programs for Deep Learning
(OSDI 2020), section 5.1; the population is small because each member is a nest that is scheduled.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlc.autotune.design import Design
from dlc.autotune.search.genetic import Genetic
from dlc.autotune.search.searcher import Problem, cross, draw_new, explore, mutate, rank

_POPULATION = 24
_GENERATIONS = 1
_CROSSOVER = 0.3
_EXPLORATION = 0.1
_PER_KIND = 3  # of one proposal, designs that differ in one knob only


@dataclass(slots=True)
class Evolutionary:
    """Evolves designs by what the cost model predicts; without one, breeds from measured ones."""

    problem: Problem

    def propose(self, count: int) -> list[Design]:
        """See `Searcher`."""
        problem = self.problem
        if problem.predict is None:
            return Genetic(problem).propose(count)
        parents = problem.best(_POPULATION // 2)
        population = parents + draw_new(problem, _POPULATION - len(parents), parents)
        for _ in range(_GENERATIONS):
            children = [self._child(population) for _ in range(_POPULATION)]
            everyone = [*population, *(c for c in children if c is not None)]
            population = rank(problem, list(dict.fromkeys(everyone)))[:_POPULATION]
            if not population:
                break
        return explore(problem, self._varied(population, count), count, _EXPLORATION)

    def _child(self, parents: list[Design]) -> Design | None:
        """A child of two, or a mutant of one; the first of the population are parents often."""
        if not parents:
            return None
        rng = self.problem.random
        weights = [1.0 / (n + 3) for n in range(len(parents))]
        one, other = rng.choices(parents, weights, k=2)
        if rng.random() < _CROSSOVER:
            child = cross(self.problem, one, other)
            if child not in (None, one, other):
                return child
        return mutate(self.problem, one)

    def _varied(self, designs: list[Design], count: int) -> list[Design]:
        """Unseen designs, few of which are nearly the same."""
        chosen: list[Design] = []
        spare: list[Design] = []
        for design in designs:
            if design in self.problem.seen:
                continue
            near = sum(_distance(design, other) <= 1 for other in chosen)
            (chosen if near < _PER_KIND else spare).append(design)
        return (chosen + spare)[:count]


def _distance(one: Design, other: Design) -> int:
    """In how many knobs two designs differ."""
    if one.family != other.family:
        return len(one.knobs) + len(other.knobs)
    return sum(a != b for a, b in zip(one.knobs, other.knobs, strict=True))
