"""Operators on images, against ONNX's own evaluator."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from dlc.core.errors import UnsupportedModel
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate
from tests.frontend.test_convert import model

RNG = np.random.default_rng(2)
NODE = helper.make_node


def real(*shape) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def check(node, x, constants, opset=22, oracle=True) -> list[np.ndarray]:
    proto = model([node], {"x": x.shape}, constants, outputs=list(node.output), opset=opset)
    graph = import_model(load_model(proto)).graph
    found = evaluate(graph, {"x": x})
    results = [found[v.name] for v in graph.outputs]
    if oracle:
        for got, want in zip(results, ReferenceEvaluator(proto).run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)
    return results


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("exclude_outside", [0, 1])
def test_antialiasing(mode, coordinates, exclude_outside):
    node = NODE(
        "Resize", ["x", "", "s"], ["y"], mode=mode, antialias=1, exclude_outside=exclude_outside,
        coordinate_transformation_mode=coordinates,
    )  # fmt: skip
    check(node, real(1, 2, 9, 7), {"s": np.array([1, 1, 0.4, 1.5], np.float32)})


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_regions_of_interest(mode):
    node = NODE(
        "Resize", ["x", "r", "", "n"], ["y"], mode=mode, extrapolation_value=7.0,
        coordinate_transformation_mode="tf_crop_and_resize",
    )  # fmt: skip
    roi = np.array([0, 0, 0.3125, -0.1875, 1, 1, 0.9375, 0.6875], np.float32)
    constants = {"r": roi, "n": np.array([1, 2, 3, 5], np.int64)}
    check(node, real(1, 2, 6, 7), constants)


def test_deformable_convolution():
    constants = {"w": real(4, 2, 2, 3), "o": real(2, 2 * 12, 5, 4), "b": real(4),
                 "m": real(2, 2 * 6, 5, 4)}  # fmt: skip
    node = NODE(
        "DeformConv", ["x", "w", "o", "b", "m"], ["y"], group=2, offset_group=2,
        pads=[0, 1, 0, 1], strides=[1, 2],
    )  # fmt: skip
    check(node, real(2, 4, 6, 8), constants)


def test_a_pool_and_back():
    x = real(2, 2, 6, 7)
    down = NODE("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 3], strides=[2, 2])
    pooled, indices = check(down, x, {})
    up = NODE("MaxUnpool", ["x", "i", "n"], ["y"], kernel_shape=[2, 3], strides=[2, 2])
    constants = {"i": indices, "n": np.array([2, 2, 7, 9], np.int64)}
    check(up, pooled.astype(np.float32), constants)


def test_regions_of_unknown_extent_are_refused():
    constants = {"r": real(3, 4), "b": np.zeros(3, np.int64)}
    node = NODE("RoiAlign", ["x", "r", "b"], ["y"], output_height=2, output_width=2)
    with pytest.raises(UnsupportedModel, match="sampling_ratio"):
        check(node, real(1, 2, 6, 8), constants)


def test_what_is_not_handled_is_refused():
    x = real(1, 2, 6, 8)
    cases = [
        (NODE("ImageDecoder", ["x"], ["y"]), {}, "decodes no images"),
        (NODE("MaxUnpool", ["x", "i", "n"], ["y"], kernel_shape=[1, 1]),
         {"i": np.zeros(x.shape, np.int64), "n": np.array([1, 2, 5, 8])}, "smaller than"),
        (NODE("Resize", ["x", "", "s"], ["y"], coordinate_transformation_mode="tf_crop_and_resize"),
         {"s": np.ones(4, np.float32)}, "no roi"),
        (NODE("Col2Im", ["x", "n", "k"], ["y"]),
         {"n": np.array([3, 3]), "k": np.array([2])}, "patches of"),
    ]  # fmt: skip
    for node, constants, why in cases:
        with pytest.raises(UnsupportedModel, match=why):
            check(node, x, constants, oracle=False)
