"""Random models are valid, varied, and the same for the same seed."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import onnx
import pytest

from dlc.frontend.onnx.registry import CONVERTERS, _one_to_one
from dlc.testing.cases import all_cases
from dlc.testing.draft import MICROSOFT, DiscardError, Draft, draw_array
from dlc.testing.generate import draw_sample
from dlc.testing.recipes import RECIPES

NOT_DRAWN = {
    "GlobalLpPool",  # no other engine has it
    "Constant",  # an initializer by another name
    "SimplifiedLayerNormalization",  # of no domain, and no standard either
    "Scatter",  # the old name of ScatterElements
    "Upsample",  # the old name of Resize
    # Of texts, and drafts hold numbers: ONNX has cases of them, see test_node_suite.
    "RegexFullMatch",
    "StringConcat",
    "StringNormalizer",
    "StringSplit",
    # Compared with their references in tests/graph and tests/frontend/test_random.py: engines
    # draw other numbers, and no ONNX case has a model that is drawn.
    "MaxRoiPool",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    # Of sequences, drawn by recipes of the operators that make these.
    "ConcatFromSequence",
    "SequenceAt",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    # Values that are not tensors; tests/frontend/test_sequences.py compares with onnxruntime.
    "Optional",
    "SequenceEmpty",
    "SequenceMap",
}
"""Operators that have no recipe and no test among ONNX's own that is drawn, with the reason."""


@pytest.fixture(scope="module")
def samples():
    return [draw_sample(seed, cases=False) for seed in range(120)]


def test_a_seed_gives_the_same_model_again(samples):
    for seed in (0, 7, 50):
        again = draw_sample(seed, cases=False)
        assert again.model == samples[seed].model
        for name, array in samples[seed].feeds.items():
            np.testing.assert_array_equal(again.feeds[name], array)


def test_models_are_valid(samples):
    for sample in samples:
        if any(n.domain for n in sample.model.graph.node):
            continue
        onnx.checker.check_model(sample.model)
        assert set(sample.feeds) == {v.name for v in sample.model.graph.input}


def test_models_are_varied(samples):
    operators = Counter(n.op_type for s in samples for n in s.model.graph.node)
    arrays = [a for s in samples for a in s.feeds.values()]
    assert len(operators) > 60
    assert {"float32", "float64", "float16", "int64", "bool"} <= {a.dtype.name for a in arrays}
    assert {0, 1, 17} <= {n for a in arrays for n in a.shape}
    assert any(len(s.model.graph.output) > 1 for s in samples)
    assert any(s.others for s in samples)
    assert any(s.special for s in samples)


@pytest.mark.slow
def test_every_operator_with_a_converter_is_drawn():
    """A new operator needs a recipe, or a test among ONNX's own."""
    drawn = {op.removeprefix("com.microsoft:") for r in RECIPES for op in r.operators}
    drawn |= {n.op_type for c in all_cases() for n in c.model.graph.node}
    domains = {"", MICROSOFT}
    known = {op for domain, op in CONVERTERS if domain in domains} | set(_one_to_one())
    missing = sorted(known - drawn - NOT_DRAWN)
    assert not [op for op in missing if (MICROSOFT, op) not in CONVERTERS]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.operators[0])
def test_recipes_mostly_work(recipe):
    """Each operator of a recipe can be added to some models."""
    for op in recipe.operators:
        added = 0
        for seed in range(12):
            draft = Draft(random.Random(seed), opset=23, symbolic=False, special=False)
            try:
                recipe.add(draft, op)
                added += 1
            except DiscardError:
                continue
        assert added >= 2, op


def test_floats_are_multiples_of_a_64th():
    array = draw_array(np.random.default_rng(0), "float16", (100,), -2, 2)
    np.testing.assert_array_equal(np.round(array.astype(np.float64) * 64) / 64, array)
    assert array.min() < -1
    assert array.max() > 1


def test_unsigned_integers_are_not_below_zero():
    assert not draw_array(np.random.default_rng(0), "uint8", (9,), -2, -1).any()
