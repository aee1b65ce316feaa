"""Operators that models spell out in several are found: GELU, norms, zeros for NaN."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.graph.evaluate import evaluate
from dlc.graph.ops.activation import Gelu
from dlc.graph.rewrite import rewrite_graph
from dlc.graph.rules import PATTERN_RULES
from dlc.graph.text import parse_graph
from tests.graph.pass_cases import CONTEXT, read, same
from tests.graph.rule_cases import ON_GPU, body, ops, rewrite


@pytest.mark.parametrize(
    ("shape", "data", "result", "context", "reason"),
    [
        ("()", [0], "3, 5", ON_GPU, ""),
        ("1", [-0.0], "3, 5", ON_GPU, ""),
        ("()", [0], "3, 5", CONTEXT, "no GPU"),
        ("()", [1], "3, 5", ON_GPU, "not 0"),
        ("5", [0] * 5, "3, 5", ON_GPU, "not one number"),
        ("1, 1, 1", [0], "1, 3, 5", ON_GPU, "not one number"),
    ],
)
def test_zeros_for_nan_are_an_operator_of_their_own_on_gpus(shape, data, result, context, reason):
    text = body(
        "x: f32[3, 5]", f"z: f32[{shape}] = const({', '.join(map(str, data))})",
        "n: bool[3, 5] = isnan(x)", f"y: f32[{result}] = where(n, z, x)",
    )  # fmt: skip
    graph = parse_graph(text)
    refusals = []
    after = rewrite_graph(graph, PATTERN_RULES, context, lambda *why: refusals.append(why))
    assert ops(after) == (["isnan", "where"] if reason else ["nan_to_zero"])
    assert [name for name, _, why in refusals if reason and reason in why] == (
        ["where_into_nan_to_zero"] if reason else []
    )
    x = np.where(np.eye(3, 5) > 0, np.nan, 2).astype(np.float32)
    (want,), (got,) = (evaluate(g, {"x": x}).values() for g in (graph, after))
    np.testing.assert_array_equal(got, want)


GELU_ERF = (
    "r: f32[()] = const(1.4142135)", "one: f32[()] = const(1)", "half: f32[()] = const(0.5)",
    "a: f32[3, 5] = div(x, r)", "e: f32[3, 5] = erf(a)", "p: f32[3, 5] = add(e, one)",
)  # fmt: skip
GELU_TANH = (
    "k: f32[()] = const(0.044715)", "r: f32[()] = const(0.7978845)", "one: f32[()] = const(1)",
    "three: f32[()] = const(3)", "half: f32[()] = const(0.5)", "c: f32[3, 5] = pow(x, three)",
    "d: f32[3, 5] = mul(c, k)", "s: f32[3, 5] = add(x, d)", "m: f32[3, 5] = mul(s, r)",
    "t: f32[3, 5] = tanh(m)", "p: f32[3, 5] = add(t, one)",
)  # fmt: skip
ORDERS = {
    "(x * p) * half": ("q: f32[3, 5] = mul(x, p)", "y: f32[3, 5] = mul(q, half)"),
    "(x * half) * p": ("q: f32[3, 5] = mul(half, x)", "y: f32[3, 5] = mul(q, p)"),
    "x * (p * half)": ("q: f32[3, 5] = mul(half, p)", "y: f32[3, 5] = mul(x, q)"),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("lines", "tanh"), [(GELU_ERF, False), (GELU_TANH, True)])
def test_gelu_is_found(order, lines, tanh):
    graph = read(body("x: f32[3, 5]", *lines, *ORDERS[order]))
    after = rewrite_graph(graph, PATTERN_RULES, CONTEXT)
    assert [n.op for n in after.nodes] == [Gelu(approximate="tanh" if tanh else "none")]
    same(graph, after, tolerance=1e-6)


def test_gelu_with_another_factor_is_none():
    lines = [line.replace("0.5)", "0.51)") for line in GELU_ERF]
    graph = read(body("x: f32[3, 5]", *lines, *ORDERS["(x * p) * half"]))
    assert rewrite_graph(graph, PATTERN_RULES, CONTEXT) is graph


LAYER_NORM = (
    "m: f32[3, 5] = reduce(x, kind='mean', axes=(-1,))", "d: f32[3, 5] = sub(x, m)",
    "two: f32[()] = const(2)", "q: f32[3, 5] = pow(d, two)",
    "v: f32[3, 1] = reduce(q, kind='mean', axes=(-1,))", "eps: f32[()] = const(0.00001)",
    "w: f32[3, 1] = add(v, eps)", "r: f32[3, 1] = sqrt(w)", "n: f32[3, 5] = div(d, r)",
    "g: f32[5] = const(1, 2, 3, 4, 5)", "h: f32[3, 5] = mul(n, g)", "y: f32[3, 5] = add(h, g)",
)  # fmt: skip


def layer_norm(**changes):
    text = body("x: f32[3, 5]", *LAYER_NORM).replace("m: f32[3, 5]", "m: f32[3, 1]")
    for old, new in changes.items():
        text = text.replace(old, new)
    return text.replace("f32[", "f64[")


def test_layer_norm_is_found_with_scale_and_bias():
    graph = read(layer_norm())
    after = rewrite_graph(graph, PATTERN_RULES, CONTEXT)
    assert [(n.op.name, len(n.inputs)) for n in after.nodes] == [("layer_norm", 3)]
    same(graph, after)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind='mean', axes=(-1,))\n    d": "kind='max', axes=(-1,))\n    d"}, "not a mean"),
        ({"axes=(-1,)": "axes=(0,)", "f32[3, 1]": "f32[1, 5]"}, "not over the last axis"),
        ({"eps: f32[()] = const(0.00001)": "eps: f32[3, 1] = const(1, 2, 3)"}, "epsilon"),
    ],
)
def test_layer_norm_refuses(changes, reason):
    graph = read(layer_norm(**changes))
    refusals = []
    after = rewrite_graph(
        graph, PATTERN_RULES, CONTEXT, lambda name, _, why: refusals.append((name, why))
    )
    assert any(name == "parts_into_layer_norm" and reason in why for name, why in refusals)
    assert "layer_norm" not in ops(after)


RMS_NORM = (
    "two: f32[()] = const(2)", "q: f32[3, 5] = pow(x, two)",
    "v: f32[3, 1] = reduce(q, kind='mean', axes=(1,))", "eps: f32[()] = const(0.01)",
    "w: f32[3, 1] = add(v, eps)", "r: f32[3, 1] = sqrt(w)", "i: f32[3, 1] = reciprocal(r)",
    "n: f32[3, 5] = mul(x, i)", "g: f32[5] = const(1, 2, 3, 4, 5)", "y: f32[3, 5] = mul(n, g)",
)  # fmt: skip
RMS_SPELLINGS = {
    "mul reciprocal": [],
    "x * x": [("pow(x, two)", "mul(x, x)")],
    "div": [("i: f32[3, 1] = reciprocal(r)", "n: f32[3, 5] = div(x, r)"),
            ("n: f32[3, 5] = mul(x, i)", "one: f32[()] = const(1)")],
    "one over": [("i: f32[3, 1] = reciprocal(r)", "one: f32[()] = const(1)"),
                 ("n: f32[3, 5] = mul(x, i)",
                  "i: f32[3, 1] = div(one, r)\n    n: f32[3, 5] = mul(i, x)")],
    "power": [("r: f32[3, 1] = sqrt(w)", "half: f32[()] = const(-0.5)"),
              ("reciprocal(r)", "pow(w, half)")],
}  # fmt: skip


def rms_norm(changes):
    text = body("x: f32[3, 5]", *RMS_NORM)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return read(text.replace("f32[", "f64["))


@pytest.mark.parametrize("spelling", RMS_SPELLINGS)
def test_rms_norm_is_found_with_its_scale(spelling):
    graph = rms_norm(RMS_SPELLINGS[spelling])
    after = rewrite_graph(graph, PATTERN_RULES, CONTEXT)
    assert [(n.op.name, len(n.inputs)) for n in after.nodes] == [("rms_norm", 2)]
    same(graph, after)


@pytest.mark.parametrize(
    ("old", "new", "rule", "reason"),
    [
        ("kind='mean'", "kind='sum'", "parts_into_rms_norm", "not a mean"),
        ("eps: f32[()] = const(0.01)", "eps: f32[3, 1] = const(1, 2, 3)", "parts_into_rms_norm",
         "epsilon"),
        ("g: f32[5] = const(1, 2, 3, 4, 5)", "g: f32[3, 1] = const(1, 2, 3)",
         "scale_into_rms_norm", "for each column"),
    ],
)  # fmt: skip
def test_rms_norm_refuses(old, new, rule, reason):
    graph = rms_norm([(old, new)])
    refusals = []
    after = rewrite_graph(
        graph, PATTERN_RULES, CONTEXT, lambda name, _, why: refusals.append((name, why))
    )
    assert any(name == rule and reason in why for name, why in refusals)
    same(graph, after)


def test_rms_norm_over_other_axes_is_refused():
    graph = rms_norm([("axes=(1,)", "axes=(0,)"), ("f32[3, 1]", "f32[1, 5]")])
    refusals = []
    rewrite_graph(graph, PATTERN_RULES, CONTEXT, lambda *why: refusals.append(why))
    assert any("last axis" in why for _, _, why in refusals)


def test_a_scale_of_an_rms_norm_over_several_axes_is_refused():
    text = body(
        "x: f32[3, 5]", "n: f32[3, 5] = rms_norm(x, axis=0)", "g: f32[5] = const(1, 2, 3, 4, 5)",
        "y: f32[3, 5] = mul(n, g)",
    )  # fmt: skip
    _, after, refusals = rewrite(text, "scale_into_rms_norm")
    assert ops(after) == ["rms_norm", "mul"]
    assert refusals == [("scale_into_rms_norm", "the norm is over several axes")]
