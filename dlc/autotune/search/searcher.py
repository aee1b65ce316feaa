"""What every search is given and must do, and the moves in a space that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from dlc.autotune.design import Design, Family

Predict = Callable[[Sequence[Design]], Sequence[float]]
_ATTEMPTS = 50  # to draw something new before a space counts as exhausted


@dataclass(slots=True)
class Problem:
    """One task as a search sees it.

    Attributes:
        families: where candidates come from; those that turn out bad are taken away.
        random: the only source of chance.
        predict: a number for each design, larger for faster; None without a cost model.
        seen: designs that were measured, or are no candidates.
        scores: the speed-up of each measured design; 0 where it did not run.
    """

    families: tuple[Family, ...]
    random: Random
    predict: Predict | None = None
    seen: set[Design] = field(default_factory=set)
    scores: dict[Design, float] = field(default_factory=dict)

    def family(self, name: str) -> Family | None:
        """The family of this name, unless it was taken away."""
        return next((f for f in self.families if f.name == name), None)

    def best(self, count: int) -> list[Design]:
        """The fastest designs so far."""
        ran = [d for d, score in self.scores.items() if score > 0 and self.family(d.family)]
        return sorted(ran, key=lambda d: -self.scores[d])[:count]


class Searcher(Protocol):
    """Proposes designs; learns what became of them from `Problem.scores`."""

    def propose(self, count: int) -> list[Design]:
        """Up to `count` designs that nobody has seen; fewer where the space is exhausted."""
        ...


def make_design(family: Family, point: Mapping[str, int]) -> Design:
    """A point of a family."""
    return Design(family.name, tuple((name, point[name]) for name in family.space.knobs))


def draw(problem: Problem) -> Design | None:
    """A design by chance, families in proportion to the logarithm of their size."""
    if not problem.families:
        return None
    weights = [len(f.space).bit_length() for f in problem.families]
    (family,) = problem.random.choices(problem.families, weights)
    for _ in range(_ATTEMPTS):
        point = {n: problem.random.choice(v) for n, v in family.space.knobs.items()}
        if family.space.allows(point):
            return make_design(family, point)
    return None


def draw_new(problem: Problem, count: int, taken: Iterable[Design] = ()) -> list[Design]:
    """Designs by chance that nobody has seen."""
    found: dict[Design, None] = {}
    avoid = problem.seen | set(taken)
    for _ in range(_ATTEMPTS * max(1, count)):
        if len(found) == count:
            break
        design = draw(problem)
        if design is not None and design not in avoid:
            found[design] = None
    return list(found)


def mutate(problem: Problem, design: Design) -> Design | None:
    """A neighbour: one knob, sometimes two, takes another choice, mostly the next one."""
    family = problem.family(design.family)
    movable = [n for n, v in family.space.knobs.items() if len(v) > 1] if family else []
    if family is None or not movable:
        return None
    rng = problem.random
    for _ in range(_ATTEMPTS):
        point = dict(design.knobs)
        for name in rng.sample(movable, min(len(movable), 1 + (rng.random() < 0.3))):
            choices = family.space.knobs[name]
            at = choices.index(point[name]) if point[name] in choices else 0
            beside = [at + step for step in (-1, 1) if 0 <= at + step < len(choices)]
            near = rng.random() < 0.6
            point[name] = choices[rng.choice(beside)] if near else rng.choice(choices)
        if family.space.allows(point) and make_design(family, point) != design:
            return make_design(family, point)
    return None


def cross(problem: Problem, one: Design, other: Design) -> Design | None:
    """A child: each knob as in one of two parents, which must be of one family."""
    family = problem.family(one.family)
    if family is None or one.family != other.family:
        return None
    second = dict(other.knobs)
    point = {n: problem.random.choice((v, second.get(n, v))) for n, v in one.knobs}
    return make_design(family, point) if family.space.allows(point) else None


def rank(problem: Problem, designs: Sequence[Design]) -> list[Design]:
    """Designs by prediction, the fastest first, without those that are refused."""
    assert problem.predict is not None, "a search without a model asks for no prediction"
    predicted = problem.predict(designs)
    order = sorted(range(len(designs)), key=lambda n: -predicted[n])
    return [designs[n] for n in order if predicted[n] != float("-inf")]


def explore(problem: Problem, chosen: Sequence[Design], count: int, share: float) -> list[Design]:
    """The first of `chosen`, and a share drawn by chance: no model knows all."""
    lucky = max(1, round(count * share)) if count > 1 else 0
    kept = list(dict.fromkeys(d for d in chosen if d not in problem.seen))[: count - lucky]
    return kept + draw_new(problem, count - len(kept), kept)
