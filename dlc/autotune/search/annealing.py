"""Simulated annealing over the predicted speed: chains walk, and may walk downhill while hot.

Source: Kirkpatrick, Gelatt and Vecchi, Optimization by Simulated Annealing (1983).
"""

from __future__ import annotations

from math import exp

from dlc.autotune.design import Design
from dlc.autotune.search.searcher import Problem, draw_new, explore, mutate

_CHAINS = 16
_STEPS = 4


class Annealing:
    """Proposes the best of what the chains saw. Chains go on where the last call left them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.chains: list[Design] = []

    def propose(self, count: int) -> list[Design]:
        """See `Searcher`."""
        problem = self.problem
        if problem.predict is None:
            return draw_new(problem, count)
        self.chains = [c for c in self.chains if problem.family(c.family)][:_CHAINS]
        self.chains += problem.best(_CHAINS - len(self.chains))
        self.chains += draw_new(problem, _CHAINS - len(self.chains), self.chains)
        scores = list(problem.predict(self.chains))
        visited = dict(zip(self.chains, scores, strict=True))
        for step in range(_STEPS):
            heat = 1.0 - step / _STEPS
            moved = [mutate(problem, chain) or chain for chain in self.chains]
            after = list(problem.predict(moved))
            visited |= dict(zip(moved, after, strict=True))
            for n, (old, new) in enumerate(zip(scores, after, strict=True)):
                if new >= old or problem.random.random() < exp(min(0.0, (new - old) / heat)):
                    self.chains[n], scores[n] = moved[n], new
        order = sorted(visited, key=lambda d: -visited[d])
        return explore(problem, [d for d in order if visited[d] > float("-inf")], count, 0.1)
