"""Operators with subgraphs, by the graph they become."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from dlc.core.errors import ModelError, UnsupportedModel
from dlc.frontend.onnx import import_model, load_model
from tests.frontend.text_model import results

RNG = np.random.default_rng(5)


def model(text: str, opset: int = 20) -> onnx.ModelProto:
    head = f'<ir_version: 8, opset_import: ["": {opset}, "ai.onnx.preview": 1]>\nmain '
    return parser.parse_model(head + text)


def test_one_element_may_have_another_rank_in_each_branch():
    text = """(float[1] x, bool c, float[3] z) => (float[3] y) {
        s = If(c) <then_branch = a () => (p) { p = Constant<value = float {0}>() },
                   else_branch = b () => (q) { q = Neg(x) }>
        y = Add(z, s)
    }"""
    x, z = np.array([2], np.float32), np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(results(model(text), x, np.array(True), z)[0], z)
    np.testing.assert_array_equal(results(model(text), x, np.array(False), z)[0], z - 2)


SCAN = """(float[n,2] h, float[n,t,2] x) => (float[n,2] last, float[n,t,2] sums) {
    last, sums = Scan<num_scan_inputs=1, directions=[D], body = b (float[2] a, float[2] e)
        => (float[2] next, float[2] out) { next = Add(a, e) out = Identity(next) }>(, h, x)
}"""


@pytest.mark.parametrize("reverse", [0, 1])
def test_an_old_scan_runs_for_each_row_of_a_batch(reverse):
    h, x = RNG.integers(-4, 5, (3, 2)).astype(np.float32), RNG.integers(-4, 5, (3, 5, 2))
    last, sums = results(model(SCAN.replace("D", str(reverse)), 8), h, x.astype(np.float32))
    order = x[:, ::-1] if reverse else x
    np.testing.assert_array_equal(last, h + x.sum(1))
    np.testing.assert_array_equal(sums, h[:, None] + order.cumsum(1))


def test_an_old_scan_of_several_lengths_is_refused():
    text = (
        SCAN.replace("D", "0")
        .replace("(, h, x)", "(k, h, x)")
        .replace("(float", "(int64[n] k, float", 1)
    )
    with pytest.raises(UnsupportedModel, match="several lengths"):
        import_model(load_model(model(text, 8)))


FLEX = """(float[2,4,3,8] q, float[2,2,5,8] k, float[2,2,5,6] v) => (float[2,4,3,6] y) {
    y = ai.onnx.preview.FlexAttention<scale=0.5,
        score_mod = f (float[a,b,c,d] s) => (float[a,b,c,d] t)
            <float big = {100.0}> { g = Greater(s, big) t = Where(g, big, s) },
        prob_mod = g (float[a,b,c,d] p) => (float[a,b,c,d] r) { r = Add(p, p) }>(q, k, v)
}"""


def test_scores_and_probabilities_go_through_subgraphs():
    q, k, v = (RNG.standard_normal(s) for s in ((2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 6)))
    q *= 99
    found = results(model(FLEX), *(a.astype(np.float32) for a in (q, k, v)))
    q, k, v = (a.astype(np.float32).astype(np.float64) for a in (q, k, v))
    k, v = k.repeat(2, 1), v.repeat(2, 1)
    scores = np.minimum(q @ k.swapaxes(2, 3) * 0.5, 100)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(found[0], 2 * weights @ v, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("float[2,2,5,8] k", "float[2,3,5,8] k", "4 heads of queries for 3"),
        ("float[2,2,5,8] k", "float[2,h,5,8] k", "number of heads is not fixed"),
        ("float[2,2,5,8] k", "float[2,2,5] k", "not of rank 4"),
        ("r = Add(p, p)", "r = Transpose(p)", "makes something else"),
    ],
)
def test_what_flex_attention_cannot_be_is_refused(old, new, why):
    with pytest.raises(UnsupportedModel, match=why):
        import_model(load_model(model(FLEX.replace(old, new))))


def test_heads_without_elements_do_not_tell_the_scale():
    text = FLEX.replace("8] q", "0] q").replace("8] k", "0] k").replace("scale=0.5,", "")
    with pytest.raises(UnsupportedModel, match="no elements to tell the scale"):
        import_model(load_model(model(text)))


def test_a_loop_reads_tensors_of_no_elements_from_around_it():
    text = """(float[b,2,4] boxes, float[b,3,2] scores, int64 most) => (int64[k,3] y) {
        y = NonMaxSuppression(boxes, scores, most)
    }""".replace("[b,", "[0,")
    found = results(model(text), np.ones((0, 2, 4), np.float32), np.ones((0, 3, 2), np.float32),
                np.array(2))  # fmt: skip
    assert found[0].shape == (0, 3)


def test_a_body_whose_result_has_no_name_is_refused():
    text = """(int64 n, bool c, float[2] x) => (float[2] y) {
        y = Loop(n, c, x) <body = b (int64 i, bool d, float[2] e) => (bool go, float[2] f)
            { go = Identity(d) f = Neg(e) }>
    }"""
    nameless = model(text)
    nameless.graph.node[0].attribute[0].g.output[0].name = ""
    with pytest.raises(ModelError, match="an output of graph 'b' has no name"):
        import_model(load_model(nameless))


def test_interpolation_along_many_unknown_axes_needs_constant_sizes():
    text = """(float[a,b,c,d] x, int64[4] sizes) => (float[e,f,g,h] y) {
        y = Resize<mode="cubic">(x, , , sizes)
    }"""
    with pytest.raises(UnsupportedModel, match="which of 4 axes are resized") as caught:
        import_model(load_model(model(text)))
    assert caught.value.issues[0].fields["needs"] == "sizes"
