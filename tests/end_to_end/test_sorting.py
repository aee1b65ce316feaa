"""Sorting compiled models: every type, ties, NaN, both ends, any axis, any size."""

from __future__ import annotations

import math
from functools import cache

import ml_dtypes  # noqa: F401  # NumPy learns bfloat16
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import dlc

TYPES = ("float32", "float16", "bfloat16", "float64", "int8", "int32", "int64", "uint8", "uint64")
SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1.5, -1.5, 1e-5, -1e-5)


def model(typed: str, k: int | None, shape: list[int | str], axis: int) -> onnx.ModelProto:
    """TopK of both ends of one tensor; k is an operand where it is not given."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(typed))
    nodes, results = [], []
    for largest in (0, 1):
        names = [f"y{largest}", f"i{largest}"]
        nodes.append(helper.make_node("TopK", ["x", "k"], names, axis=axis, largest=largest))
        results += [onnx.ValueInfoProto(name=name) for name in names]
    inputs = [helper.make_tensor_value_info("x", kind, shape)]
    constants = []
    if k is None:
        inputs.append(helper.make_tensor_value_info("k", TensorProto.INT64, [1]))
    else:
        constants.append(helper.make_tensor("k", TensorProto.INT64, [1], [k]))
    graph = helper.make_graph(nodes, "g", inputs, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)


@cache
def compiled(typed: str, k: int | None, shape: tuple[int | str, ...], axis: int) -> dlc.Module:
    return dlc.compile(model(typed, k, list(shape), axis))


def values(typed: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Numbers of which many are equal; of floats, also special ones."""
    random = np.random.default_rng(seed)
    dtype = np.dtype(typed)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        few = random.integers(0, 9, shape) + (0 if dtype.kind == "u" else -4)
        wide = random.integers(info.min, info.max, shape, dtype, endpoint=True)
        return np.where(random.random(shape) < 0.5, few.astype(dtype), wide)
    some = random.choice(SPECIAL, shape)
    return np.where(random.random(shape) < 0.5, some, random.standard_normal(shape)).astype(dtype)


def expected(x: np.ndarray, k: int, axis: int, *, largest: bool) -> np.ndarray:
    """Places by Python's sort, which keeps the order of what is equal."""
    moved = np.moveaxis(x, axis, -1)
    found = np.zeros((*moved.shape[:-1], k), np.int64)
    for row in np.ndindex(moved.shape[:-1]):
        items = [v.item() if v.dtype.kind in "iu" else float(v) for v in moved[row]]
        sign = -1 if largest else 1
        keys = [(sign * (v != v), 0 if v != v else sign * v) for v in items]
        found[row] = sorted(range(len(keys)), key=keys.__getitem__)[:k]
    return np.moveaxis(found, -1, axis)


def check(module: dlc.Module, x: np.ndarray, k: int, axis: int, feeds: dict) -> None:
    results = module.run({"x": x, **feeds})
    for largest in (False, True):
        places = expected(x, k, axis, largest=largest)
        np.testing.assert_array_equal(results[f"i{largest:d}"], places)
        picked = np.take_along_axis(x, places, axis)
        found = results[f"y{largest:d}"]
        np.testing.assert_array_equal(
            found.view(f"u{x.dtype.itemsize}"), picked.view(f"u{x.dtype.itemsize}")
        )


@pytest.mark.parametrize("typed", TYPES)
def test_any_type_any_size_and_any_count(typed):
    module = compiled(typed, None, ("a", "n", 2), 1)
    for a, n in ((2, 7), (1, 1), (3, 130), (0, 5), (1, 700)):
        x = values(typed, (a, n, 2), n)
        for k in {0, 1, n // 3, n}:
            check(module, x, k, 1, {"k": np.array([k], np.int64)})


@pytest.mark.parametrize(
    ("k", "shape", "axis"),
    [
        (3, (4, 300), 1),
        (300, (4, 300), 1),
        (1, (9000,), 0),
        (50, (2, 3000), -1),
        (333, (2100, 3), 0),
    ],
)
def test_known_sizes(k, shape, axis):
    module = compiled("float32", k, shape, axis)
    for seed in range(3):
        check(module, values("float32", shape, seed), k, axis, {})


def test_all_are_equal_or_in_order():
    module = compiled("float32", 50, (2, 3000), -1)
    rising = np.arange(6000, dtype=np.float32).reshape(2, 3000)
    for x in (np.zeros((2, 3000), np.float32), rising, -rising, np.full((2, 3000), np.nan, "f4")):
        check(module, x, 50, -1, {})


@pytest.mark.parametrize("typed", TYPES)
def test_the_first_few_of_many_rows_of_any_type(typed):
    for k, shape, axis in ((4, (37, 45), 1), (1, (33, 20), 1), (3, (3, 30, 7), 1)):
        module = compiled(typed, k, shape, axis)
        check(module, values(typed, shape, k), k, axis, {})
        check(module, np.zeros(shape, np.dtype(typed)), k, axis, {})
    module = compiled(typed, 3, ("n", 20), 1)
    for rows in (0, 1, 8, 21):
        check(module, values(typed, (rows, 20), rows), 3, 1, {})
    if np.dtype(typed).kind in "iu":  # whose keys are all ones, or all zeros
        for end in (np.iinfo(typed).min, np.iinfo(typed).max):
            check(module, np.full((9, 20), end, np.dtype(typed)), 3, 1, {})


@pytest.mark.parametrize("size", [9, 300])
def test_places_may_be_sorted_in_turn(size: int) -> None:
    """Where each element stands in order, as models find the way back from a shuffle."""
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["v", "i"], largest=0),
        helper.make_node("TopK", ["i", "k"], ["w", "y"], largest=0),
        helper.make_node("TopK", ["y", "k"], ["u", "z"], largest=0),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, size])
    results = [onnx.ValueInfoProto(name=name) for name in ("y", "z")]
    k = helper.make_tensor("k", TensorProto.INT64, [1], [size])
    graph = helper.make_graph(nodes, "g", [x], results, [k])
    opset = helper.make_opsetid("", 24)
    module = dlc.compile(helper.make_model(graph, opset_imports=[opset], ir_version=10))
    given = np.random.default_rng(0).permuted(np.arange(size * 2.0, dtype=np.float32))
    found = module.run({"x": given.reshape(2, size)})
    order = np.argsort(given.reshape(2, size), axis=1)
    np.testing.assert_array_equal(found["y"], np.argsort(order, axis=1))
    np.testing.assert_array_equal(found["z"], order)
