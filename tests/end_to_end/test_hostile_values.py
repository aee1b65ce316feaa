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
