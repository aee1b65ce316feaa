"""Which rule takes a nest, and what becomes of one that a rule gives up."""

from __future__ import annotations

import logging
from importlib import import_module

import pytest

from dlc.core.target import Target
from dlc.graph.ops.activation import Relu
from dlc.graph.ops.binary import Mul
from dlc.graph.ops.pool import AveragePool
from dlc.graph.ops.reduce import Reduce
from dlc.schedule.abstract_sizes import abstract_sizes
from dlc.schedule.interpret import evaluate_size
from dlc.schedule.loop import loops
from dlc.schedule.pipeline import optimize
from dlc.schedule.rules import (
    across,
    attend,
    columns,
    contract,
    ranks,
    row,
    rule_for,
    schedule_func,
    short,
    sliding,
    transform,
    window,
    window_contract,
)
from dlc.schedule.text import parse_func
from dlc.schedule.trace import Trace
from dlc.schedule.work import written_out
from dlc.te.simplify import canonical
from dlc.te.text import parse_expr
from tests.schedule.rules.cases import CASES
from tests.schedule.rules.nests import AVX2, AVX512, SSE, assert_agree, func, prepared, tensor
from tests.schedule.rules.products import dense_bias_relu
from tests.schedule.rules.windows import planar_pool


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("dense_bias_relu", contract),
        ("one_row", contract),
        ("scores", contract),
        ("scores_transposed", contract),
        ("scores_of_one_buffer", contract),
        ("scores_of_one_query", row),
        ("attention", attend),
        ("attention_unmasked", attend),
        ("attention_symbolic", attend),
        ("conv_7x7", contract),
        ("first_conv", contract),
        ("transposed_conv_open", contract),
        ("winograd_odd", transform),
        ("winograd_large", transform),
        ("winograd_large_symbolic", transform),
        ("winograd_volume", transform),
        ("winograd_volume_symbolic", transform),
        ("winograd_line", transform),
        ("winograd_line_long", transform),
        ("winograd_line_symbolic", transform),
        ("winograd_line_of_parts", transform),
        ("winograd_parts", transform),
        ("winograd_parts_symbolic", transform),
        ("winograd_lines", transform),
        ("winograd_lines_symbolic", transform),
        ("depthwise_7", window),
        ("depthwise_open", window),
        ("window_product", window_contract),
        ("window_product_strided", window_contract),
        ("window_product_images", window_contract),
        ("window_product_open", window_contract),
        ("window_product_line", columns),  # not strips: cores would share images alone
        ("groups_of_eight", window),
        ("groups_open", window),
        ("max_pool", window),
        ("sliding_pool", sliding),
        ("sliding_pool_narrow", sliding),
        ("sliding_pool_blocked", sliding),
        ("sliding_pool_apart", sliding),
        ("sliding_pool_open", sliding),
        ("sliding_pool_volume", sliding),
        ("sliding_average", sliding),
        ("planar_pool", sliding),
        ("planar_pool_narrow", sliding),
        ("planar_pool_open", sliding),
        ("planar_pool_without_pads", sliding),
        ("planar_pool_by_three", sliding),
        ("planar_pool_volume", sliding),
        ("line_pool", window),
        ("line_pool_by_three", sliding),
        ("line_pool_by_four", row),
        ("line_pool_open", sliding),
        ("line_average_open", sliding),
        ("global_mean", window),
        ("open_mean", window),
        ("softmax_40", row),
        ("layer_norm", row),
        ("image_norm_open", row),
        ("one_column", row),
        ("one_column_open", row),
        ("one_column_short", contract),
        ("panel_of_sums", columns),
        ("panel_open", columns),
        ("softmax_inner", columns),
        ("arg_max_channels", columns),
        ("softmax_channels_open", columns),
        ("blocked_norm", columns),
        ("norm_of_turned", across),
        ("norm_of_turned_lines", across),
        ("norm_of_turned_few", across),
        ("norm_of_turned_prime", across),
        ("norm_of_turned_prime_wide", across),
        ("norm_of_turned_open", across),
        ("norm_of_turned_two", None),
        ("sums_of_turned", across),
        ("short_sums", short),
        ("short_sums_open", short),
        ("short_sums_whole", short),
        ("short_sums_few", row),
        ("short_sums_few_open", row),
        ("short_sums_long", row),
        ("short_arg_max", short),
        ("ranks", ranks),
        ("ranks_of_few", ranks),
        ("ranks_of_many", ranks),
        ("ranks_of_columns", ranks),
        ("softmax_13", row),
    ],
)
def test_each_nest_gets_its_rule(name: str, rule: object) -> None:
    assert rule_for(prepared(CASES[name]()), AVX512) is rule


@pytest.mark.thorough
@pytest.mark.parametrize("target", [AVX512, AVX2, SSE], ids=["avx512", "avx2", "sse"])
@pytest.mark.parametrize("name", CASES)
def test_the_first_rule_that_knows_a_nest_schedules_it(
    name: str, target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a word, one that is refused would leave the nest to rules that are far slower."""
    with caplog.at_level(logging.INFO, logger="dlc.schedule"):
        schedule_func(CASES[name](), target, {})
    assert not caplog.messages


@pytest.mark.parametrize(("pads", "stride"), [(1, 2), (0, 5)])
def test_lanes_that_would_not_all_be_there_stay_apart(pads: int, stride: int) -> None:
    """Few of them for the width of the window, or such as lie far apart."""
    plain = prepared(planar_pool(AveragePool, 8, pads, 1, 2, 32, stride=stride))
    assert rule_for(plain, AVX512) is row


def test_neighbours_that_share_what_they_read_are_no_panel() -> None:
    x, w = tensor("a", 2, 40, 64), tensor("b", 40, 64)
    weighted = func((x, w), Reduce(kind="max", axes=(1,)).compute(Mul().compute(x, w)))
    assert rule_for(prepared(weighted), AVX512) is window


def test_a_refused_step_leaves_the_kernel_to_other_rules(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse_all(trace: Trace, *_: object) -> None:
        trace.do("split", "nowhere", 4, ("a", "b"))

    monkeypatch.setattr(contract, "schedule", refuse_all)
    plain = dense_bias_relu()
    assert_agree(plain, optimize(plain, AVX512), {})
    assert "contract is left to other rules" in caplog.text
    assert {r.levelno for r in caplog.records} == {logging.INFO}  # not a user's to read
    caplog.clear()


SLICED = """
def f(n: size, X: f32[999, 48], W: f32[48, 32], *, out: f32[ROWS, 32]):
    part = alloc(f32[ROWS, 48], "local")
    sums = alloc(f32[ROWS, 32], "local")
    for i in range(ROWS):
        for k in range(48):
            part[i, k] = X[START + i, k]
    for i_1 in range(ROWS):
        for j in range(32):
            sums[i_1, j] = 0.0
            for k_1 in range(48):
                sums[i_1, j] += part[i_1, k_1] * W[k_1, j]
    for i_2 in range(ROWS):
        for j_1 in range(32):
            out[i_2, j_1] = sums[i_2, j_1]
"""


@pytest.mark.parametrize("n", [0, 9, 20])
def test_rows_between_two_ends_that_a_run_tells_are_tiled(
    n: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a table of positions, of which a sequence reads what its length needs, both ways."""
    start = "max(0, min((1500 - n if 501 - n < 0 else 501 - n), 999))"
    rows = str(canonical(parse_expr(f"max(min(n + 498, 999) - {start}, 0)")))
    whole = parse_func(SLICED.replace("ROWS", rows).replace("START", start))
    plain, passed = abstract_sizes(whole)
    caplog.set_level(logging.INFO)
    fast = optimize(plain, AVX512)
    assert "is left to other rules" not in caplog.text
    sizes = zip(plain.sizes, passed, strict=True)
    assert_agree(plain, fast, {name: evaluate_size(value, {"n": n}) for name, value in sizes})


def test_a_loop_whose_vectors_are_refused_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was done before the refused step is undone."""

    def refuse_half_way(trace: Trace, name: str, *_: object) -> None:
        trace.split(name, 8)
        trace.do("vectorize", "nowhere")

    monkeypatch.setattr(import_module("dlc.schedule.rules.prepare"), "vectorize", refuse_half_way)
    x = tensor("a", 5, 40)
    plain = func((x,), Relu().compute(x))
    fast = optimize(plain, AVX512)
    assert_agree(plain, fast, {})
    assert not any("// 8" in line for line in str(fast).splitlines())
    assert "loop 'i0' stays as it is" in caplog.text
    caplog.clear()


def test_what_would_be_compiled_for_minutes_is_left_to_other_rules(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write_out(trace: Trace, *_: object) -> None:
        for name in loops(trace.func.body):
            trace.do("unroll", name)

    x = tensor("a", 1, 4, 80, 80, 16)
    plain = func((x,), Reduce(kind="mean", axes=(2, 3), keepdims=True).compute(x))
    assert rule_for(prepared(plain), AVX512) is window
    monkeypatch.setattr(window, "schedule", write_out)
    assert written_out(optimize(plain, AVX512).body) < 100
    assert "operations would be written out one by one" in caplog.text
    caplog.clear()
