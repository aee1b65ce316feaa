"""Operators whose operands may be of types that nobody computes in."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

import dlc
from tests.frontend.onnx_model import model

NODE = helper.make_node
GRID = np.array([[[[-1, -1], [1, -1]], [[0.3, 0.2], [1, 1]]]])


def results(node, feeds, opset=22):
    """What machine code gives."""
    proto = model([node], {n: a.shape for n, a in feeds.items()}, opset=opset)
    for value in proto.graph.input:
        kind = helper.np_dtype_to_tensor_dtype(feeds[value.name].dtype)
        value.type.tensor_type.elem_type = kind
    found = dlc.compile(proto).run(feeds)
    assert len(found) == 1
    return found["y"]


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_small_floats_are_no_numbers_or_infinite(dtype):
    x = np.array([0.5, np.nan, -np.inf, np.inf, -2]).astype(dtype)
    wide = x.astype(np.float32)
    np.testing.assert_array_equal(results(NODE("IsNaN", ["x"], ["y"]), {"x": x}), np.isnan(wide))
    found = results(NODE("IsInf", ["x"], ["y"], detect_negative=0), {"x": x})
    np.testing.assert_array_equal(found, np.isposinf(wide))


@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "i8", "u8"])
def test_integers_shrink(dtype):
    x = np.array([0, 1, 2, 3, 100]).astype(dtype)
    found = results(NODE("Shrink", ["x"], ["y"], lambd=1.5, bias=1.25), {"x": x})
    np.testing.assert_array_equal(found, np.array([0, 0, 0, 1, 98]).astype(dtype))
    assert found.dtype == x.dtype


@pytest.mark.parametrize("dtype", ["i4", "i8", "u4"])
def test_means_of_integers_lose_their_fraction(dtype):
    x = np.array([[3, 4, 4], [2**31 - 1, 2**31 - 1, 2**31 - 2]]).astype(dtype)
    axis = {"axes": [1], "keepdims": 0}
    found = results(NODE("ReduceMean", ["x"], ["y"], **axis), {"x": x}, opset=13)
    np.testing.assert_array_equal(found, [3, 2**31 - 2])
    found = results(NODE("ReduceL2", ["x"], ["y"], **axis), {"x": x[:1]}, opset=13)
    np.testing.assert_array_equal(found, [6])


@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_integers_to_a_power_that_is_a_fraction(dtype):
    x = np.array([0, 4, 9, 8]).astype(dtype)
    power = np.array([0.5, 0.5, 1.5, 1 / 3], np.float32)
    found = results(NODE("Pow", ["x", "p"], ["y"]), {"x": x, "p": power})
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, [0, 2, 27, 2])


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "u1", "i8", "?"])
@pytest.mark.parametrize("grid", ["f4", "f8"])
def test_images_and_grids_differ_in_type(dtype, grid):
    x = np.array([[[[0, 1, 0], [1, 1, 0]]]]).astype(dtype)
    node = NODE("GridSample", ["x", "g"], ["y"], mode="nearest", align_corners=1)
    found = results(node, {"x": x, "g": GRID.astype(grid)})
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, np.array([[[[0, 0], [1, 0]]]]).astype(dtype))


def test_norms_have_statistics_of_another_type():
    x = np.array([[[1, 3, 5, 7]], [[2, 4, 6, 8]]], np.float16)
    feeds = {"x": x, "s": np.array([2.0], "f4"), "b": np.array([1.0], "f4")}
    feeds |= {"m": np.array([3.0]), "v": np.array([4.0])}
    node = NODE("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], epsilon=0.0)
    found = results(node, feeds)
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, x - 2)
    node = NODE("RMSNormalization", ["x", "s"], ["y"], epsilon=0.0)
    found = results(node, {"x": np.full((2, 4), 3, np.float16), "s": feeds["s"]}, opset=23)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.full((2, 4), 2))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_a_mean_and_a_deviation_of_any_float(dtype):
    x = np.array([1, 3, 1, 3]).reshape(1, 1, 2, 2).astype(dtype)
    found = results(NODE("MeanVarianceNormalization", ["x"], ["y"]), {"x": x}, opset=13)
    assert found.dtype == x.dtype
    want = (x.astype(np.float64) - 2) / (1 + 1e-9)
    np.testing.assert_allclose(
        found.astype(np.float64), want, rtol=1e-15 if dtype is np.float64 else 1e-8
    )


def test_scales_may_be_integers():
    x = np.array([-7, 4, 900, 6], np.int32)
    node = NODE("QuantizeLinear", ["x", "s"], ["y"])
    found = results(node, {"x": x, "s": np.array(4, np.int32)}, opset=23)
    np.testing.assert_array_equal(found, np.array([0, 1, 225, 2], np.uint8))


@pytest.mark.parametrize("dtype", ["u4", "u8"])
def test_no_unsigned_integer_is_below_zero(dtype):
    x = np.array([0, 3, 2**32 - 1]).astype(dtype)
    found = results(NODE("PRelu", ["x", "s"], ["y"]), {"x": x, "s": np.array([5], dtype)})
    np.testing.assert_array_equal(found, x)
