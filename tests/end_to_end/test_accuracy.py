"""Errors of functions stay below the aims of docs/accuracy.md, on a sample of their operands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import dlc
from benchmarks import ulp

WITH_AIM = [f for f in ulp.FUNCTIONS if f.aim]
# Where most is lost: factors and sums just above a power of two, the result just below one.
HARD = [
    ("Sigmoid", -4.1573), ("Softplus", -2.01637), ("Mish", -0.234165), ("Mish", -13.803),
    ("Gelu", -1.8549), ("Gelu", 0.02908),
]  # fmt: skip


@pytest.mark.parametrize("function", WITH_AIM, ids=lambda f: f.op)
def test_a_function_is_as_accurate_as_it_should_be(function):
    worst = ulp.measure(function, 199_999)[0]
    assert worst.count > 5000
    assert worst.ulp <= function.aim, worst.at


@pytest.mark.parametrize(("name", "near"), HARD)
def test_a_function_is_accurate_where_that_is_hard(name, near):
    (function,) = (f for f in WITH_AIM if f.op == name)
    low, high = sorted((near * (1 - 2**-9), near * (1 + 2**-9)))
    function = replace(function, low=low, high=high)
    worst = ulp.measure(function, 1, alone=True)[0]
    assert worst.count > 5000
    assert worst.ulp <= function.aim, worst.at


def test_sums_are_as_accurate_as_they_should_be():
    found = {name: (ours, aim) for name, ours, _, aim in ulp.sums()}
    assert len(found) == 3
    for name, (ours, aim) in found.items():
        assert ours <= aim, name


@pytest.mark.parametrize("top", [-3.0, 0.0, 9.0, 16.0, 17.0, 90.0])
def test_a_softmax_of_logits_of_any_size_adds_up_to_one(top):
    """Where the largest is from 0 to 16 nothing is taken off, else what is beyond.

    What would be less than the least normal number may be 0, as docs/accuracy.md says.
    """
    module = dlc.compile(ulp.node_model("Softmax", [("x", [3, 19])], axis=1))
    x = np.float32(top) - np.arange(57, dtype=np.float32).reshape(3, 19) % 19 * 7
    powers = np.exp(x.astype(np.float64) - top)
    want = powers / powers.sum(1, keepdims=True)
    found = module.run({"x": x})["y"]
    is_normal = want >= np.finfo(np.float32).tiny
    assert ulp.ulps(found, want)[is_normal].max() <= 4
    assert np.abs(found - want)[~is_normal].max(initial=0) <= np.finfo(np.float32).tiny
