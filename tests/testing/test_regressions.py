"""Models that the fuzzer found and made small: each was compiled wrongly, or not at all, once."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from dlc.testing.check import VARIANTS, Verdict, check
from dlc.testing.generate import Sample

MODELS: dict[str, tuple[dict[str, tuple[int, ...]], str]] = {
    "work counted with a load for each use": ({"x": (2, 1)}, """
        (float[m, 1] x) => (float[m, 1] y) { y = Asin (x) }"""),
    "lanes that only a condition tells apart": ({"x": (1, 2, 2, 2)}, """
        (float[1, 2, 2, 2] x) => (float[1, 1, 4, 4] y) <float[2, 1, 2, 1] w = {2, 3, 4, 5}> {
            y = ConvTranspose <dilations = [2, 2], strides = [1, 4], pads = [0, 0, 0, 1]> (x, w)
        }"""),
    "channels that only the weights know": ({"x": (1, 3, 4), "w": (3, 1, 1)}, """
        (float[1, n, 4] x, float[n, 1, 1] w) => (float[1, n, 4] y)
        <float[3] s = {1, 2, 3}, float[3] b = {4, 5, 6}, float[3] u = {7, 8, 9}> {
            c = Conv <group: int = 3> (x, w)
            y = BatchNormalization (c, s, b, u, s)
        }"""),
    "constant weights on open channels": ({"x": (1, 2, 3, 3)}, """
        (float[1, n, 3, 3] x) => (float[1, 2, 3, 3] y)
        <float[2, 1, 1, 1] w = {2, 3}> { y = Conv <group: int = 2> (x, w) }"""),
    "one row by open columns": ({"x": (1, 1, 1, 1, 1), "w": (1, 1, 1, 1, 3)}, """
        (float[1, 1, 1, 1, 1] x, float[1, 1, 1, 1, n] w) => (float[1, 1, 1, 1, n] y) {
            y = MatMul (x, w)
        }"""),
    "a guarded loop whose last row of vectors is gone": (
        {"x": (1, 17, 17), "w": (51, 1, 1), "b": (51,)}, """
        (float[1, 17, 17] x, float[51, 1, 1] w, float[51] b) => (float[1, 51, 10] y) {
            y = Conv <group: int = 17, pads: ints = [1, 2], strides: ints = [2]> (x, w, b)
        }"""),
    "a size that has the name of an axis": ({"x": (1, 3, 2, 4)}, """
        (float[1, n, 2, 4] x) => (float[1, c, 1, 2] y) { y = SpaceToDepth <blocksize: int = 2> (x) }
        """),
    "how many elements of a constant differ": ({"x": (1,)}, """
        (float[1] x) => (float[k] y) <float[5] c = {1, 2, 1, 3, 2}> {
            u = Unique (c)
            y = Mul (u, x)
        }"""),
    "a view that is handed out after a loop": (
        {"x": (6, 4), "axis": (1,), "s": (3,), "last": ()}, """
        (float[6, 4] x, int64[1] axis, float[3] s, int64 last)
            => (float[a, b, c] y, float[3] z) <int64 four = {4}, bool yes = {1}> {
            r = Relu (x)
            y = Unsqueeze (r, axis)
            z, zs = Loop (four, yes, s) <body = b (int64 i, bool c, float[3] v)
                    => (bool k, float[3] w, float[3] o) {
                w = Sub (v, s)
                k = Less (i, last)
                o = Neg (w)
            }>
        }"""),
    "a transposed convolution of open channels": ({"x": (1, 2, 3, 3)}, """
        (float[1, n, 3, 3] x) => (float[1, 1, 4, 4] y)
        <float[2, 1, 2, 2] w = {2, 3, 4, 5, 6, 7, 8, 9}> { y = ConvTranspose (x, w) }"""),
    "attention to values of one element": (
        {"q": (1, 8, 3), "k": (1, 3, 5), "v": (1, 5, 1)}, """
        (float[1, 8, 3] q, float[1, 3, 5] k, float[1, 5, 1] v) => (float[1, 8, 1] y) {
            s = MatMul (q, k)
            p = Softmax (s)
            y = MatMul (p, v)
        }"""),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_it_is_right_now(name):
    shapes, text = MODELS[name]
    head = '<ir_version: 10, opset_import: ["" : 18]> agraph '
    model = onnx.parser.parse_model(head + text)
    rng = np.random.default_rng(0)
    kinds = {v.name: v.type.tensor_type.elem_type for v in model.graph.input}
    feeds = {}
    for name, shape in shapes.items():
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kinds[name])
        feeds[name] = (rng.integers(-60, 60, shape) / 64).astype(dtype)
    finding = check(Sample(model, feeds, (), False), VARIANTS)
    assert finding.verdict is Verdict.OK, finding


ONE_CHANNEL = """(float[1, 2, 4, 4] x) => (float[1, 1, 2, 2] y)
    <float[1, 2, 2, 2] w = {1, -2, 3, 1, -1, 2, 1, 2}, float[1, 1, 2, 2] v = {1, 2, 3, 4}> {
        a = Conv (x, w)
        b = Relu (a)
        y = Conv (b, v)
    }"""
JOINED_BY_A_PIXEL = """(float[1, 2, 3, 3] x, float[1, 1, 3, 3] g) => (float[1, 1, 3, 3] y)
    <float[3, 2, 1, 1] w = {1, -2, 3, 1, -1, 2}, float[1, 3, 1, 1] v = {1, 2, 3}> {
        a = Conv (x, w)
        b = Add (a, g)
        y = Conv (b, v)
    }"""
TRANSPOSED = """(float[1, 2, 3, 3] x) => (float[1, 1, 5, 5] y)
    <float[2, 5, 3, 3] w, float[1, 5, 1, 1] v = {1, 2, 3, 4, 5}> {
        a = ConvTranspose (x, w)
        b = Relu (a)
        y = Conv (b, v)
    }""".replace("3] w,", f"3] w = {{{', '.join(str(n % 7 + 1) for n in range(90))}}},")


@pytest.mark.parametrize("text", [ONE_CHANNEL, JOINED_BY_A_PIXEL, TRANSPOSED])
def test_infinities_do_not_reach_a_convolution_from_lanes_without_a_channel(text):
    """An idle lane of a blocked tensor held infinity times 0, which is NaN, and that times 0."""
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 18]> agraph ' + text)
    feeds = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        feeds[value.name] = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    feeds[model.graph.input[-1].name].flat[5] = np.inf
    finding = check(Sample(model, feeds, (), True), ("",))
    assert finding.verdict is Verdict.OK, finding


def _transposed(c, results, kernel, stride, group, pads):
    count = c * results // group * kernel**2
    w = ", ".join(str(n % 7 + 1) for n in range(count))
    out = 2 * stride + kernel - 2 * pads
    return f"""(float[1, {c}, 3, 3] x) => (float[1, {results}, {out}, {out}] y)
        <float[{c}, {results // group}, {kernel}, {kernel}] w = {{{w}}}> {{
            y = ConvTranspose <strides = [{stride}, {stride}], group = {group},
                pads = [{pads}, {pads}, {pads}, {pads}]> (x, w)
        }}"""


@pytest.mark.parametrize(
    ("c", "results", "kernel", "stride", "group", "pads"),
    [
        (3, 3, 1, 3, 3, 0),
        (3, 3, 3, 2, 3, 0),
        (3, 3, 5, 2, 3, 2),
        (2, 9, 3, 2, 1, 0),
        (2, 9, 4, 2, 1, 1),
        (2, 9, 1, 2, 1, 0),
        (2, 9, 5, 3, 1, 0),
        (2, 9, 5, 3, 1, 2),
        (2, 9, 5, 1, 1, 3),
        (2, 3, 3, 2, 1, 0),
        (2, 3, 4, 2, 1, 1),
        (2, 1, 4, 2, 1, 1),
        (4, 6, 3, 2, 2, 0),
        (4, 4, 4, 2, 2, 0),
        (4, 4, 4, 2, 2, 1),
        (32, 32, 3, 2, 2, 0),
    ],
)
def test_infinities_are_not_multiplied_with_taps_that_a_kernel_lacks(
    c, results, kernel, stride, group, pads
):
    """Phases of a stride that have fewer taps than others were filled up with zeros."""
    text = _transposed(c, results, kernel, stride, group, pads)
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 18]> agraph ' + text)
    x = np.arange(c * 9, dtype=np.float32).reshape(1, c, 3, 3)
    x[0, 1, 1, 1] = np.inf
    finding = check(Sample(model, {"x": x}, (), True), ("",))
    assert finding.verdict is Verdict.OK, finding


@pytest.mark.parametrize(("c", "group"), [(6, 3), (12, 2), (32, 8), (48, 16)])
def test_infinities_stay_in_their_group(c, group):
    """Groups that share a block are one convolution, in which those between them were zeros."""
    w = ", ".join(str(n % 5 - 2) for n in range(c * c // group * 2))
    text = f"""(float[1, {c}, 3, 5] x) => (float[1, {c}, 3, 4] y)
        <float[{c}, {c // group}, 1, 2] w = {{{w}}}> {{
            y = Conv <group = {group}> (x, w)
        }}"""
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 18]> agraph ' + text)
    x = np.arange(c * 15, dtype=np.float32).reshape(1, c, 3, 5)
    x[0, 1, 1, 1], x[0, -1, 2, 0] = np.inf, np.nan
    finding = check(Sample(model, {"x": x}, (), True), ("",))
    assert finding.verdict is Verdict.OK, finding
