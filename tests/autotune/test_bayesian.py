"""The process over knobs, and the search that follows it."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from dlc.autotune.search import SEARCHERS
from dlc.autotune.search.bayesian import Bayesian
from dlc.autotune.search.process import KnobProcess
from dlc.autotune.search.searcher import Problem, make_design
from dlc.schedule.space import Space
from tests.autotune import landscape


def points(family, *values):
    return [make_design(family, dict(zip(family.space.knobs, v, strict=True))) for v in values]


def test_a_process_is_sure_of_what_is_near():
    space = Space({"x": (1, 2, 4, 8), "y": (0, 1)})
    one, other = landscape.family(space, "one"), landscape.family(space, "other")
    process = KnobProcess((one, other))
    known = points(one, (1, 0), (2, 0), (8, 1))
    asked = [*known, *points(one, (4, 0), (8, 0)), *points(other, (1, 0))]
    expected, deviation = process.predict(
        process.points(known), [-1.0, 0.0, 1.0], process.points(asked)
    )
    assert expected[:3] == pytest.approx([-1.22, 0.0, 1.22], abs=0.1)  # in deviations
    assert max(deviation[:3]) < 0.2 < min(deviation[3:])
    assert deviation[5] > 0.95  # of another family, little is known
    assert abs(expected[5]) < 0.15


def test_scores_that_are_all_equal_are_no_trouble():
    family = landscape.family(Space({"x": (1, 2, 3)}))
    process = KnobProcess((family,))
    rows = process.points(points(family, (1,), (2,), (3,)))
    expected, deviation = process.predict(rows[:2], [0.5, 0.5], rows)
    assert expected.tolist() == [0.0, 0.0, 0.0]
    assert np.all(np.isfinite(deviation))


def search(name, trials, seed, space=landscape.SPACE):
    problem = Problem((landscape.family(space),), Random(seed))
    searcher = SEARCHERS[name](problem)
    while len(problem.scores) < trials:
        for design in searcher.propose(4):
            problem.seen.add(design)
            problem.scores[design] = landscape.speedup(design)
    return max(problem.scores.values())


def test_it_needs_a_quarter_of_the_trials_of_chance():
    by_chance = sorted(search("random", 96, seed) for seed in range(7))[3]
    assert sorted(search("bayesian", 24, seed) for seed in range(7))[3] >= by_chance


def test_a_large_space_is_searched_in_parts():
    large = Space({"x": tuple(range(16)), "y": tuple(range(16)), "z": tuple(range(16))})
    assert len(large) > 2048
    assert search("bayesian", 40, 0, large) > search("random", 40, 0, large)


def test_the_cost_model_is_asked_about_few_and_only_at_first():
    problem = Problem((landscape.family(),), Random(0))
    asked = []

    def predict(designs):
        asked.append(len(designs))
        return [landscape.speedup(d) for d in designs]

    problem.predict = predict
    searcher = Bayesian(problem)
    for number in range(12):
        designs = searcher.propose(4)
        assert len(designs) == 4
        for design in designs:
            problem.seen.add(design)
            problem.scores[design] = landscape.speedup(design)
        assert len(asked) == min(number + 1, 2)
    assert asked == [8] * 2


def test_hopes_hold_while_little_more_is_known(monkeypatch):
    """A search that asks for one design at a time does not pay for all of a space each time."""
    asked = []
    predict = KnobProcess.predict

    def counted(self, known, scores, points):
        asked.append(len(known))
        return predict(self, known, scores, points)

    monkeypatch.setattr(KnobProcess, "predict", counted)
    problem = Problem((landscape.family(),), Random(0))
    searcher = Bayesian(problem)
    for _ in range(120):
        (design,) = searcher.propose(1)
        assert design not in problem.seen
        problem.seen.add(design)
        problem.scores[design] = landscape.speedup(design)
    assert 20 < len(asked) < 50
    assert all(b > 1.1 * a for a, b in pairwise(asked))


def test_hopes_for_a_family_that_was_taken_away_are_given_up():
    one, other = landscape.family(name="one"), landscape.family(name="other")
    problem = Problem((one, other), Random(0))
    searcher = Bayesian(problem)
    for _ in range(20):
        for design in searcher.propose(4):
            problem.seen.add(design)
            problem.scores[design] = landscape.speedup(design)
    problem.families = (other,)
    assert {d.family for d in searcher.propose(8)} == {"other"}
