"""Probabilities that nobody can tell from zero are zero: denormal ones slow each product down."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import dlc


def model(body: str) -> bytes:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> main {body}')


@pytest.mark.parametrize(("type_", "dtype"), [("float", np.float32), ("double", np.float64)])
def test_masked_probabilities_are_zero_not_denormal(type_: str, dtype: type) -> None:
    softmax = dlc.compile(model(f"({type_}[n,37] x) => ({type_}[n,37] y) {{ y = Softmax(x) }}"))
    least = float(np.finfo(dtype).smallest_normal)
    edge = np.log(least)  # of which the exponential is the least normal number
    x = np.zeros((4, 37), dtype)
    x[0, 5:] = edge - 10  # denormal at once
    x[1, 5:], x[1, :5] = edge + 15, 16  # only after dividing by the sum
    x[2, 5:], x[2, :5] = edge - 40, -40  # far from 0, and near to the largest: denormal, too
    x[3, 5:] = np.nan
    (y,) = softmax.run({"x": x}).values()
    assert np.isnan(y[3]).all()
    assert (y[:3, 5:] == 0).all()
    np.testing.assert_allclose(y[:3, :5], 0.2, rtol=1e-6)


def test_what_is_small_but_normal_stays() -> None:
    softmax = dlc.compile(model("(float[1,37] x) => (float[1,37] y) { y = Softmax(x) }"))
    x = np.zeros((1, 37), np.float32)
    x[0, 1:] = -80
    (y,) = softmax.run({"x": x}).values()
    np.testing.assert_allclose(y[0, 1:], np.exp(-80.0), rtol=1e-5)
