"""Values in the data that lead outside of a tensor: a run refuses them and names the node."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import dlc
from dlc.core.errors import UserError

X = np.arange(12, dtype=np.float32).reshape(3, 4)
FAR = 1 << 40


def at(*values: object, dtype: type = np.int64) -> np.ndarray:
    return np.array(values, dtype)


CASES = {
    "Gather": (
        "(float[a,4] x, int32[n] k) => (float[n,4] y) { y = Gather(x, k) }",
        [(X, at(0, -3, 2, dtype=np.int32)), (X, at(dtype=np.int32))],
        [(X, at(0, 3, dtype=np.int32)), (X, at(-4, dtype=np.int32))],
    ),
    "computed Gather": (
        "(float[3,4] x, int64[n] k) => (float[n,4] y) { j = Add(k, k) y = Gather(x, j) }",
        [(X, at(0, 1, -1))],
        [(X, at(2)), (X, at(-2)), (X, at(FAR)), (X, at(-(1 << 62)))],
    ),
    "GatherElements": (
        "(float[3,4] x, int64[n,4] k) => (float[n,4] y) { y = GatherElements(x, k) }",
        [(X, at([0, 1, 2, -3]))],
        [(X, at([0, 1, 2, 3])), (X, at([0, -4, 2, 2]))],
    ),
    "GatherND": (
        "(float[3,b] x, int64[n,2] k) => (float[n] y) { y = GatherND(x, k) }",
        [(X, at([2, 3], [-3, -4]))],
        [(X, at([0, 4])), (X, at([1, 1], [3, 0])), (X, at([0, -5]))],
    ),
    "ScatterElements": (
        "(float[3,4] x, int64[1,4] k) => (float[3,4] y) { y = ScatterElements(x, k, k_) }",
        [(X, at([0, 1, 2, -3]))],
        [(X, at([0, 1, 2, 3])), (X, at([0, 1, -4, 2]))],
    ),
    "ScatterND": (
        "(float[3,4] x, int64[n,1] k) => (float[3,4] y) { y = ScatterND(x, k, u) }",
        [(X, at([2], [-3]))],
        [(X, at([3], [0])), (X, at([0], [-4]))],
    ),
    "MaxUnpool": (
        """(float[1,1,1,2] x, int64[1,1,1,2] k) => (float[1,1,2,4] y) {
            y = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(x, k)
        }""",
        [(X[:1, :2][None, None], at([[[0, 7]]]))],
        [(X[:1, :2][None, None], at([[[0, 8]]])), (X[:1, :2][None, None], at([[[-1, 0]]]))],
    ),
}


IMAGE = np.arange(384, dtype=np.float32).reshape(2, 3, 8, 8)
BOX = np.array([[0, 0, 4, 4]], np.float32)
CACHE = np.zeros((2, 6, 4), np.float32)
ROWS = "(float[2] a, float[2] b, int64 k) => (float[2] y) { s = SequenceConstruct(a, b)"
STEPS = (IMAGE[0, :3, :2, :4], IMAGE[:1, 0, :8, :4], IMAGE[:1, 0, :8, :2])

MORE: dict[str, tuple[str, list[tuple[np.ndarray, ...]], list[tuple[np.ndarray, ...]]]] = {
    "ReverseSequence": (
        "(float[3,n] x, int64[n] k) => (float[3,n] y) { y = ReverseSequence(x, k) }",
        [(X, at(1, 2, 3, 0))],
        [(X, at(1, 2, 3, 4)), (X, at(-1, 0, 0, 0)), (X, at(FAR, 0, 0, 0))],
    ),
    "RoiAlign": (
        """(float[2,3,8,8] x, float[n,4] r, int64[n] k) => (float[n,3,2,2] y) {
            y = RoiAlign<output_height=2, output_width=2, sampling_ratio=2>(x, r, k)
        }""",
        [(IMAGE, BOX, at(1)), (IMAGE, np.full_like(BOX, np.nan), at(0))],
        [(IMAGE, BOX, at(2)), (IMAGE, BOX, at(-1)), (IMAGE, BOX, at(FAR))],
    ),
    "MaxRoiPool": (
        "(float[2,3,8,8] x, float[1,5] r) => (float[1,3,2,2] y)"
        "{ y = MaxRoiPool<pooled_shape=[2,2]>(x, r) }",
        [(IMAGE, np.array([[1, 0, 0, 4, 4]], np.float32))],
        [(IMAGE, np.array([[image, 0, 0, 4, 4]], np.float32)) for image in (2, -1, 1e20)],
    ),
    "TensorScatter": (
        "(float[2,6,4] x, float[2,2,4] u, int64[2] k) => (float[2,6,4] y)"
        "{ y = TensorScatter(x, u, k) }",
        [(CACHE, CACHE[:, :2] + 1, at(0, 4))],
        [(CACHE, CACHE[:, :2], at(*k)) for k in ((0, 5), (-1, 0), (1 << 62, 0))],
    ),
    "circular TensorScatter": (
        """(float[2,6,4] x, float[2,2,4] u, int64[2] k) => (float[2,6,4] y) {
            y = TensorScatter<mode="circular">(x, u, k)
        }""",
        [(CACHE, CACHE[:, :2] + 1, at(0, 5))],
        [(CACHE, CACHE[:, :2], at(0, 6))],
    ),
    "Compress": (
        "(float[3,4] x, bool[n] k) => (float[m,4] y) { y = Compress<axis=0>(x, k) }",
        [(X, at(1, 0, dtype=bool)), (X, at(dtype=bool))],
        [(X, at(1, 0, 1, 0, dtype=bool))],
    ),
    "NonMaxSuppression": (
        "(float[1,3,4] b, float[1,1,3] s, int64 k) => (int64[m,3] y)"
        "{ y = NonMaxSuppression(b, s, k) }",
        [(X[None], X[None, :1, :3], at(k).reshape(())) for k in (5, -1, 1 << 62)],
        [],
    ),
    "SequenceAt": (
        ROWS + "y = SequenceAt(s, k) }",
        [(X[0, :2], X[1, :2], np.array(-2))],
        [(X[0, :2], X[1, :2], np.array(k)) for k in (2, -3, FAR)],
    ),
    "SequenceErase": (
        ROWS + "y_ = SequenceErase(s, k) z = Constant<value_int=0>() y = SequenceAt(y_, z) }",
        [(X[0, :2], X[1, :2], np.array(-2))],
        [(X[0, :2], X[1, :2], np.array(k)) for k in (2, -3)],
    ),
    "SequenceInsert": (
        ROWS + "y_ = SequenceInsert(s, a, k) z = Constant<value_int=0>() y = SequenceAt(y_, z) }",
        [(X[0, :2], X[1, :2], np.array(2))],
        [(X[0, :2], X[1, :2], np.array(k)) for k in (3, -3)],
    ),
    "Loop": (
        """(int64 k) => (int64 y) {
            z = Constant<value_int=0>()
            y = Loop<body = b (int64 i, bool c, int64 s) => (bool d, int64 t)
                { d = Identity(c) t = Add(s, i) }>(k, , z)
        }""",
        [(np.array(k),) for k in (0, 5, -3, -FAR)],
        [],
    ),
    "LSTM": (
        """(float[3,2,4] x, float[1,8,4] w, float[1,8,2] r, int32[2] k) => (float[3,1,2,2] y) {
            y = LSTM<hidden_size=2>(x, w, r, , k)
        }""",
        [(*STEPS, at(0, 3, dtype=np.int32))],
        [(*STEPS, at(0, 4, dtype=np.int32)), (*STEPS, at(-1, 3, dtype=np.int32))],
    ),
    "ArrayFeatureExtractor": (
        "(float[n,4] x, int64[2] k) => (float[n,2] y)"
        "{ y = ai.onnx.ml.ArrayFeatureExtractor(x, k) }",
        [(X, at(0, 3))],
        [(X, at(4, 0)), (X, at(-1, 0))],
    ),
    "EmbedLayerNormalization": (
        """(int32[1,n] k, float[3,4] w, float[5,4] p, float[4] g) => (float[1,n,4] y) {
            y = com.microsoft.EmbedLayerNormalization(k, , w, p, , g, g)
        }""",
        [(at([0, 2], dtype=np.int32), X, IMAGE[0, 0, :5, :4], X[0])],
        [(at([0, k], dtype=np.int32), X, IMAGE[0, 0, :5, :4], X[0]) for k in (3, -1)],
    ),
    "RotaryEmbedding": (
        """(float[1,2,4] x, int64[1,2] k, float[3,2] c) => (float[1,2,4] y) {
            y = com.microsoft.RotaryEmbedding<num_heads=1>(x, k, c, c)
        }""",
        [(X[None, :2], at([0, 2]), X[:, :2])],
        [(X[None, :2], at([0, k]), X[:, :2]) for k in (3, -1)],
    ),
    "NegativeLogLikelihoodLoss": (
        "(float[2,3] x, int64[2] k) => (float y) { y = NegativeLogLikelihoodLoss(x, k) }",
        [(X[:2, :3], at(0, 2))],
        [(X[:2, :3], at(0, 3)), (X[:2, :3], at(-4, 0))],
    ),
    "SoftmaxCrossEntropyLoss": (
        "(float[2,3] x, int64[2] k) => (float y) { y = SoftmaxCrossEntropyLoss(x, k) }",
        [(X[:2, :3], at(0, 2))],
        [(X[:2, :3], at(0, 3)), (X[:2, :3], at(FAR, 0))],
    ),
    "TopK": (
        "(float[3,4] x, int64[1] k) => (float[3,m] y, int64[3,m] i) { y, i = TopK(x, k) }",
        [(X, at(0)), (X, at(4))],
        [(X, at(5)), (X, at(-1)), (X, at(FAR))],
    ),
    "CumSum": (
        "(float[3,4] x, int64 k) => (float[3,4] y) { y = CumSum(x, k) }",
        [(X, np.array(-1))],
        [(X, np.array(2)), (X, np.array(-3))],
    ),
    "Resize": (
        "(float[1,1,3,4] x, float[4] k) => (float[a,b,c,d] y) { y = Resize(x, , k) }",
        [(X[None, None], np.array([1, 1, 2, 0.5], np.float32))],
        [(X[None, None], np.array([1, 1, k, 0.5], np.float32)) for k in (-2, np.nan)],
    ),
    "BitShift": (
        '(uint8[n] x, uint8[n] k) => (uint8[n] y) { y = BitShift<direction="LEFT">(x, k) }',
        [(at(3, 255, dtype=np.uint8), at(200, 8, dtype=np.uint8))],
        [],
    ),
    "OneHotEncoder": (
        """(int64[n] x) => (float[n,3] y) {
            y = ai.onnx.ml.OneHotEncoder<cats_int64s=[5, 7, 9], zeros=0>(x)
        }""",
        [(at(5, 9, 5),), (at(),)],
        [(at(5, 6),)],
    ),
    "Pad of an empty axis": (
        "(float[n,4] x) => (float[m,4] y) { p = Constant<value_ints=[2, 0, 1, 0]>()"
        ' y = Pad<mode="edge">(x, p) }',
        [(X,), (X[:1],)],
        [(X[:0],)],
    ),
    "Pad from data": (
        '(float[n,4] x, int64[4] p) => (float[m,4] y) { y = Pad<mode="reflect">(x, p) }',
        [(X, at(2, 0, 1, 0)), (X[:0], at(0, 0, 0, 0)), (X[:1], at(-1, 0, 0, 0))],
        [(X[:0], at(2, 0, 1, 0)), (X, at(-4, 0, 0, 0)), (X[:0], at(0, 0, 1, 0))],
    ),
    "Trilu": (
        "(float[n,4] x, int64 k) => (float[n,4] y) { y = Trilu(x, k) }",
        [(X, at(k).reshape(())) for k in (1, FAR, -FAR, 2**63 - 1, -(2**63))],
        [],
    ),
    "GridSample": (
        "(float[1,1,3,4] x, float[1,2,2,2] g) => (float[1,1,2,2] y) { y = GridSample(x, g) }",
        [
            (X[None, None], np.full((1, 2, 2, 2), k, np.float32))
            for k in (0, np.nan, np.inf, 1e30, -1e30)
        ],
        [],
    ),
    "GridSample of edges": (
        "(float[1,1,3,4] x, float[1,2,2,2] g) => (float[1,1,2,2] y)"
        ' { y = GridSample<mode="cubic", padding_mode="border">(x, g) }',
        [
            (X[None, None], np.full((1, 2, 2, 2), k, np.float32))
            for k in (0, np.nan, np.inf, 1e30, -1e30)
        ],
        [],
    ),
    "DeformConv": (
        """(float[1,1,3,4] x, float[1,1,1,1] w, float[1,2,3,4] o) => (float[1,1,3,4] y) {
            y = DeformConv(x, w, o)
        }""",
        [
            (X[None, None], X[None, None, :1, :1], np.full((1, 2, 3, 4), k, np.float32))
            for k in (0, np.nan, np.inf, 1e30)
        ],
        [],
    ),
    "Multinomial": (
        "(float[1,3] x) => (int32[1,2] y) { y = Multinomial<sample_size=2, seed=1.0>(x) }",
        [(np.array([row], np.float32),) for row in ([np.nan, 0, 1], [-np.inf] * 3)],
        [],
    ),
}


@pytest.mark.parametrize("name", MORE)
def test_a_value_that_means_nothing_is_refused(name):
    text, good, bad = MORE[name]
    opsets = '"": 24, "ai.onnx.ml": 3, "com.microsoft": 1'
    module = dlc.compile(parser.parse_model(f"<ir_version: 10, opset_import: [{opsets}]> m {text}"))
    for feeds in good:
        module(*feeds)
    for feeds in bad:
        with pytest.raises(UserError, match=r"'y[_'/]"):
            module(*feeds)
    module(*good[0])  # and the model goes on


def _model(text: str) -> str:
    """Updates are rows of x: as many as there are indices."""
    if "k_" in text:
        text = text.replace("y = ", "o = Constant<value_ints=[1]>() z = Constant<value_ints=[0]>() "
                            "u = Slice(x, z, o, z) y = ").replace("k_", "u")  # fmt: skip
    elif ", u)" in text:
        text = text.replace("y = ", "o = Constant<value_ints=[2]>() z = Constant<value_ints=[0]>() "
                            "u = Slice(x, z, o, z) y = ")  # fmt: skip
    return f'<ir_version: 8, opset_import: ["": 20]>\nmain {text}'


@pytest.mark.parametrize("name", CASES)
def test_an_index_that_leads_outside_is_refused(name):
    text, good, bad = CASES[name]
    module = dlc.compile(parser.parse_model(_model(text)))
    for feeds in good:
        module(*feeds)
    for feeds in bad:
        with pytest.raises(UserError, match=r"node 'y' .*an index from the data lies outside"):
            module(*feeds)
    module(*good[0])  # and the model goes on


def test_indices_in_a_loop_are_checked_in_each_step():
    text = """(float[3,4] x, int64[n] k) => (float[n,4] y) {
        y = Scan<num_scan_inputs=1, body = b (int64 i) => (float[4] r) { r = Gather(x, i) }>(k)
    }"""
    module = dlc.compile(parser.parse_model(_model(text)))
    np.testing.assert_array_equal(module(X, at(2, -3)), X[[2, -3]])
    with pytest.raises(UserError, match=r"node 'r' .*lies outside of size 3"):
        module(X, at(0, 1, 3))
