"""Every rule keeps the result of each nest it takes, on every target; uneven, exact data."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.target import Target
from dlc.schedule.interpret import run_func
from dlc.schedule.nest import stages
from dlc.schedule.pipeline import optimize
from dlc.schedule.rules import schedule_func
from tests.schedule.rules.cases import CASES
from tests.schedule.rules.moves import placed_with_halo
from tests.schedule.rules.nests import AVX2, AVX512, SSE, assert_agree, data

MANY = (pytest.mark.slow, pytest.mark.exhaustive)

TARGETS = [
    pytest.param(AVX512, id="avx512"),
    pytest.param(AVX2, id="avx2", marks=MANY),
    pytest.param(SSE, id="sse", marks=MANY),
]


@pytest.mark.thorough
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_a_rule_keeps_the_result(name: str, target: Target) -> None:
    plain = CASES[name]()
    fast = optimize(plain, target)
    rounded = ("softmax", "norm", "attention", "mean", "average")  # by order of summation
    tolerance = 2e-6 if any(word in name for word in rounded) else 0
    for n in (0, 1, 17, 33) if plain.sizes else (1,):
        assert_agree(plain, fast, {"n": n, "m": n}, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["conv_sparse", "conv_sparse_groups"])
def test_what_is_not_finite_is_computed_once_more_without_absent_weights(name: str) -> None:
    plain = CASES[name]()
    fast = optimize(plain, AVX512)
    assert any(s.buffer == "exact" for s in stages(fast)), "there is nothing to test"
    arrays = data(plain, {})
    arrays["b"][np.random.default_rng(1).random(arrays["b"].shape) < 0.5] = -0.0
    arrays["a"][0, 0, 1, 2, 3], arrays["a"][0, 1, 0, 4, 9] = np.inf, np.nan
    want, got = (run_func(f, {}, arrays)["out"] for f in (plain, fast))
    np.testing.assert_array_equal(got, want)
    kinds = np.isinf(want).sum(), np.isnan(want).sum()
    assert all(0 < kind < want.size / 2 for kind in kinds)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("conv_sparse_groups", {"lines": 1}),
        ("conv_sparse_groups", {"lines": 2, "rows": 3, "columns": 2, "steps": 1}),
        ("depthwise_19", {"rows": 3, "vectors": 2, "written_out": 0}),
        ("window_product", {"lines": 2, "rows": 3, "columns": 2}),
        ("window_product_strided", {"lines": 3, "rows": 1}),
        ("max_pool", {"rows": 1, "vectors": 4, "written_out": 1}),
        ("row_mean", {"vectors": 1}),
        ("sliding_pool", {"lines": 4}),
        ("sliding_pool_volume", {"lines": 2}),
        ("conv_7x7", {"first_summand": 1, "columns": 2, "rows": 3}),
        ("conv_7x7", {"first_summand": 9, "high": 2, "rows": 7}),
        ("conv_strided", {"high": 3, "columns_outer": 1}),
        ("among_zeros", {"high": 2, "rows": 2, "columns": 1}),
        ("planar_conv", {"first_summand": 2, "high": 4, "steps": 4}),
        ("dense_bias_relu", {"first_summand": 1, "high": 2}),
    ],
)
def test_a_choice_of_knobs_keeps_the_result(name: str, knobs: dict[str, int]) -> None:
    plain = CASES[name]()
    trace = schedule_func(plain, AVX512, knobs)
    assert trace.steps != schedule_func(plain, AVX512, {}).steps or name == "dense_bias_relu"
    assert_agree(plain, trace.func, {})


def test_a_piece_is_placed_with_its_frame() -> None:
    plain = placed_with_halo()
    arrays = data(plain, {"n": 3})
    wanted = arrays["b"].copy()
    wanted[:, 2:4] = 0
    wanted[:, 2:4, 1:4, 1:6] = np.maximum(arrays["a"], 0)
    np.testing.assert_array_equal(run_func(plain, {"n": 3}, arrays)["out"], wanted)
