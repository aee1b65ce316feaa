"""ONNX's 1,884 tests of single nodes: right, or refused for a reason that is known here."""

from __future__ import annotations

import re

import pytest

from tests.frontend.node_suite import Outcome, run_all

REFUSED_OPERATORS = frozenset({
    "Compress",
    "ImageDecoder", "Loop",
    "NonMaxSuppression", "NonZero", "Optional", "OptionalGetElement",
    "OptionalHasElement", "Scan",
    "SequenceConstruct", "SplitToSequence", "Unique",
})  # fmt: skip
"""Operators of ai.onnx with at least one refused case; what is not here must never be refused."""

INPUTS_DLC_LACKS = re.compile(
    "element type (STRING|COMPLEX)|it is a (sequence|optional), no tensor"
)

KNOWN_DIFFERENCES = {
    "test_dynamicquantizelinear": "a tie of rounding in float32 is none in float64",
    "test_dynamicquantizelinear_expanded": "a tie of rounding in float32 is none in float64",
    **dict.fromkeys(
        (
            "test_bernoulli", "test_bernoulli_double", "test_bernoulli_seed",
            "test_bernoulli_expanded", "test_bernoulli_double_expanded",
            "test_bernoulli_seed_expanded", "test_training_dropout",
            "test_training_dropout_mask", "test_training_dropout_default",
            "test_training_dropout_default_mask",
        ),
        "ONNX's evaluator draws other random numbers",
    ),
}  # fmt: skip


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return run_all()


def test_what_is_converted_is_right(outcome):
    wrong = {name: why for name, why in outcome.failed.items() if name not in KNOWN_DIFFERENCES}
    assert not wrong
    assert len(outcome.passed) >= 1750


def test_known_differences_are_still_there(outcome):
    assert set(KNOWN_DIFFERENCES) <= set(outcome.failed)


def test_nothing_else_is_refused(outcome):
    surprises = {}
    for name, (operator, reason) in outcome.refused.items():
        base = re.sub(r"-\d+$", "", operator)
        if not operator and INPUTS_DLC_LACKS.search(reason):
            continue
        if base not in REFUSED_OPERATORS and not base.startswith("ai.onnx."):
            surprises[name] = (operator, reason)
    assert not surprises


def test_the_list_of_refused_operators_is_not_too_long(outcome):
    refused = {re.sub(r"-\d+$", "", operator) for operator, _ in outcome.refused.values()}
    assert refused >= REFUSED_OPERATORS
