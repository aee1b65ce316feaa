"""Ways to search a space of schedules, behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dlc.autotune.search.annealing import Annealing
from dlc.autotune.search.bayesian import Bayesian
from dlc.autotune.search.evolutionary import Evolutionary
from dlc.autotune.search.genetic import Genetic
from dlc.autotune.search.grid import Grid
from dlc.autotune.search.random_search import RandomSearch
from dlc.autotune.search.searcher import Problem, Searcher

SEARCHERS: Mapping[str, Callable[[Problem], Searcher]] = {
    "bayesian": Bayesian,
    "evolutionary": Evolutionary,
    "annealing": Annealing,
    "genetic": Genetic,
    "random": RandomSearch,
    "grid": Grid,
}
