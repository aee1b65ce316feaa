"""Draw a random model, and inputs for it, from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto

from dlc.testing.cases import add_case
from dlc.testing.draft import DIMS, DiscardError, Draft
from dlc.testing.recipes import RECIPES
from dlc.testing.recipes.recipe import Recipe

Array = np.ndarray[Any, Any]

OPSETS = (17, 18, 21, 22, 23)
ATTEMPTS = 6  # for one node, before it is given up
_CHOICES = [(recipe, op) for recipe in RECIPES for op in recipe.operators]
_WEIGHTS = [recipe.weight / len(recipe.operators) for recipe in RECIPES for _ in recipe.operators]


@dataclass(frozen=True, slots=True)
class Sample:
    """A model, inputs it accepts, and inputs of other sizes where some are open."""

    model: ModelProto
    feeds: dict[str, Array]
    others: tuple[dict[str, Array], ...]
    special: bool
    """Whether the inputs hold NaN, infinities or the like."""


def draw_sample(seed: int, *, cases: bool = True) -> Sample:
    """The model of a seed: the same in every run with the same version of onnx.

    Seeds one after the other begin with one operator after the other, so that rare ones are not
    left to chance.

    Args:
        seed: decides everything.
        cases: whether a model may begin with one of ONNX's own tests, which take seconds to make.
    """
    rng = random.Random(seed)
    draft = Draft(
        rng,
        opset=rng.choice(OPSETS),
        symbolic=rng.random() < 0.3,
        special=rng.random() < 0.12,
    )
    wanted = rng.choice((1, 1, 2, 3, 4, 5, 6, 8, 10, 14))
    if cases and rng.random() < 0.25:
        add_case(draft)
    _add_one(draft, *_CHOICES[seed % len(_CHOICES)])
    while len(draft.nodes) < wanted:
        _add_node(draft)
    model = draft.finish()
    used = {v.name for v in model.graph.input}
    specs = [s for s in draft.specs if s.name in used]
    arrays = {v.name: v.array for v in draft.values}
    return Sample(
        model,
        {s.name: arrays[s.name] if s.fixed is None else s.fixed for s in specs},
        tuple(
            {s.name: s.draw(draft.numpy, sizes) for s in specs}
            for sizes in _other_sizes(rng, {d for s in specs for d in s.dims if isinstance(d, str)})
        ),
        draft.special,
    )


def _add_node(draft: Draft) -> None:
    """Add a node by a recipe drawn by weight; a plain one if ONNX refuses all that is tried."""
    for _ in range(ATTEMPTS):
        ((recipe, op),) = draft.rng.choices(_CHOICES, _WEIGHTS)
        if _add_one(draft, recipe, op):
            return
    draft.add("Identity", [draft.make("float32", draft.shape())])


def _add_one(draft: Draft, recipe: Recipe, op: str) -> bool:
    """Add a node by a recipe; False where ONNX refuses it."""
    try:
        recipe.add(draft, op)
    except DiscardError:
        return False
    return True


def _other_sizes(rng: random.Random, names: set[str]) -> list[dict[str, int]]:
    if not names:
        return []
    ordered = sorted(names)
    drawn = {name: rng.choice(DIMS) for name in ordered}
    return [drawn, dict.fromkeys(ordered, rng.choice((0, 1)))]
