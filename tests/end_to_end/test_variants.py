"""Programs for some sizes alone beside the general one: which one runs, and what it gives."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import dlc
from dlc.core.errors import UserError
from dlc.core.target import Target
from dlc.frontend.onnx import load_model
from dlc.frontend.onnx.variants import import_variants
from dlc.graph.evaluate import evaluate
from dlc.lowering import lower_model

WEIGHTS = ((np.arange(128) % 7) - 3).reshape(8, 16)
LISTED = ",".join(map(str, WEIGHTS.ravel()))
TEXT = f"""<ir_version: 8, opset_import: ["": 20]>
main (float[b,s,8] x) => (float[b,s,16] y, float[s] z, float[k] n, float[b,s,8] x2)
<float[8,16] w = {{{LISTED}}}> {{
    h = MatMul(x, w)
    y = Relu(h)
    first = Constant<value_ints=[0, 2]>()
    z = ReduceSum<keepdims=0>(x, first)
    flat = Constant<value_ints=[-1]>()
    all = Reshape(x, flat)
    zero = Constant<value_float=0.0>()
    positive = Greater(all, zero)
    n = Compress(all, positive)
    x2 = Identity(x)
}}"""
VARIANTS = [{"b": 1, "s": 5}, {"b": (1, 3)}, {"s": (7, None)}]
SIZES = [(1, 5), (1, 4), (3, 2), (4, 2), (4, 9), (0, 3), (2, 0), (0, 0)]


def test_one_variant_is_a_list_of_one():
    with pytest.raises(UserError, match=r"one was given\n.*variants=\[\{'batch': 1\}\]"):
        dlc.compile(parser.parse_model(TEXT), variants={"b": 1})  # type: ignore[arg-type]


def wanted(x):
    return [np.maximum(x @ WEIGHTS, 0), x.sum((0, 2)), x[x > 0], x]


def small(b, s):
    return np.random.default_rng(b * 10 + s).integers(-3, 4, (b, s, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def module() -> dlc.Module:
    return dlc.compile(parser.parse_model(TEXT), variants=VARIANTS)


@pytest.mark.parametrize(("b", "s"), SIZES)
def test_every_size_is_right(module, b, s):
    x = small(b, s)
    for have, want in zip(module(x), wanted(x), strict=True):
        np.testing.assert_array_equal(have, want)


def test_the_signature_is_the_general_one(module):
    general = dlc.compile(parser.parse_model(TEXT))
    assert module.inputs == general.inputs
    assert [v.name for v in module.outputs] == ["y", "z", "n", "x2"]
    assert module.sizes == general.sizes


def test_the_first_that_fits_is_run():
    graph = import_variants(load_model(parser.parse_model(TEXT)), VARIANTS).graph
    for b, s in SIZES:
        x = small(b, s)
        found = evaluate(graph, {graph.inputs[0].name: x})
        for value, want in zip(graph.outputs, wanted(x), strict=True):
            np.testing.assert_array_equal(found[value.name], want)
    text = str(graph)
    assert text.count("= branch(") == 3
    assert "f32[1, 5, 16] = relu" in text


def test_a_profile_shows_which_one_runs():
    text = """<ir_version: 8, opset_import: ["": 20]>
    main (float[b,8] x) => (float[b,8] y) { y = Softmax(x) }"""
    module = dlc.compile(parser.parse_model(text), variants=[{"b": 1}])
    one, six = (
        {s.kernel for s in module.profile({"x": np.ones((b, 8), np.float32)}, rounds=1).steps}
        for b in (1, 6)
    )
    assert one - six
    assert six - one


def test_weights_are_there_once_and_branches_share_memory():
    kinds = ([{"b": 2, "s": 64}], [{"b": 1, "s": 64}, {"b": 2, "s": 64}])
    one, two = (lower_model(parser.parse_model(TEXT), Target(), variants=v) for v in kinds)
    sizes = [sum(a.nbytes for a in low.constants.values()) for low in (one, two)]
    assert sizes[1] - sizes[0] < WEIGHTS.size * 4
    static = [max(int(str(r)) for r in low.program.arena if str(r).isdigit()) for low in (one, two)]
    assert static[1] < static[0] * 1.1


@pytest.mark.parametrize(
    ("variants", "dims", "why"),
    [
        ([{"q": 1}], {}, "'q' is none"),
        ([{"b": 1}], {"b": 2}, "'b' is none"),
        ([{"b": 9}], {"b": (1, 8)}, "no run takes the variant"),
        ([{"b": (0, 0)}], {"b": (1, None)}, "no run takes the variant"),
        ([{}], {}, "fixes or bounds no dimension"),
    ],
)
def test_variants_that_mean_nothing_are_refused(variants, dims, why):
    with pytest.raises(UserError, match=why):
        import_variants(load_model(parser.parse_model(TEXT)), variants, dims=dims)


def test_what_only_a_variant_allows_is_checked_there():
    """The general program refuses what it cannot do; a variant need not."""
    text = """<ir_version: 8, opset_import: ["": 20]>
    main (float[a,4] x, float[b,4] y) => (float[c,4] z) { z = Add(x, y) }"""
    module = dlc.compile(parser.parse_model(text), variants=[{"b": 1}, {"a": 1}])
    for a, b in ((3, 3), (3, 1), (1, 3), (1, 1), (0, 1), (0, 0)):
        x, y = (np.full((n, 4), n, np.float32) for n in (a, b))
        np.testing.assert_array_equal(module(x, y), x + y)
    with pytest.raises(UserError, match="must hold"):
        module(np.ones((2, 4), np.float32), np.ones((3, 4), np.float32))
