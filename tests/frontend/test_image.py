"""Operators on images, against ONNX's own evaluator."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper, parser
from onnx.reference import ReferenceEvaluator

import dlc
from dlc.core.errors import UnsupportedModel
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate
from dlc.graph.ops.taps import WeighNeighbours
from tests.frontend.onnx_model import model

RNG = np.random.default_rng(2)
NODE = helper.make_node


def real(*shape) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def by_runtime(proto, x) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return list(session.run(None, {"x": x}))


def by_evaluator(proto, x) -> list[np.ndarray]:
    return list(ReferenceEvaluator(proto).run(None, {"x": x}))


def check(node, x, constants, opset=22, oracle=by_evaluator) -> list[np.ndarray]:
    proto = model([node], {"x": x.shape}, constants, outputs=list(node.output), opset=opset)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    proto.graph.input[0].type.tensor_type.elem_type = kind
    graph = import_model(load_model(proto)).graph
    found = evaluate(graph, {"x": x})
    results = [found[v.name] for v in graph.outputs]
    if oracle:  # its weights are float32: what cancels has errors of the size of the pixels
        atol = 1e-5 * max(1, np.abs(x).max(initial=0))
        for got, want in zip(results, oracle(proto, x), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=atol)
    return results


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(
    "coordinates", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
)
@pytest.mark.parametrize("scales", [(0.4, 1.5), (0.4, 0.2)], ids=str)
@pytest.mark.parametrize("exclude_outside", [0, 1])
def test_antialiasing(mode, coordinates, scales, exclude_outside):
    node = NODE(
        "Resize", ["x", "", "s"], ["y"], mode=mode, antialias=1, exclude_outside=exclude_outside,
        coordinate_transformation_mode=coordinates,
    )  # fmt: skip
    x, constants = real(1, 2, 9, 7), {"s": np.array([1, 1, *scales], np.float32)}
    check(node, x, constants, oracle=by_runtime)


@pytest.mark.parametrize("shape", [(2, 23, 31, 3), (3, 40, 17), (1, 1, 1, 50)], ids=str)
def test_antialiasing_reads_neighbours_only(shape):
    """Each result costs as many products as its kernel is wide, along the lanes of vectors."""
    scales = np.array([1, *([0.25] * (len(shape) - 1))], np.float32)
    scales = np.where(np.array(shape) < 4, 1, scales).astype(np.float32)
    node = NODE("Resize", ["x", "", "s"], ["y"], mode="linear", antialias=1)
    proto = model([node], {"x": shape}, {"s": scales}, outputs=["y"], opset=22)
    graph = import_model(load_model(proto)).graph
    sums = [n for n in graph.nodes if isinstance(n.op, WeighNeighbours)]
    assert len(sums) == sum(scales < 1)
    for each in sums:
        rows, _, weights = (v.type.static_shape for v in each.inputs)
        assert weights[1] == 8
        assert rows[-1] >= min(16, np.prod(shape) // max(shape))
    x = real(*shape)
    (want,) = by_runtime(proto, x) if len(shape) == 4 else by_evaluator(proto, x)
    np.testing.assert_allclose(evaluate(graph, {"x": x})["y"], want, rtol=2e-5, atol=1e-5)


def test_what_is_not_near_is_not_read():
    """A NaN far away stays there."""
    node = NODE("Resize", ["x", "", "s"], ["y"], mode="linear", antialias=1)
    x = real(1, 1, 6, 24)
    x[..., 20] = np.nan
    (found,) = check(node, x, {"s": np.array([1, 1, 1, 0.5], np.float32)}, oracle=None)
    assert np.isfinite(found[..., :8]).all()
    assert np.isnan(found[..., 10]).all()


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_regions_of_interest(mode):
    node = NODE(
        "Resize", ["x", "r", "", "n"], ["y"], mode=mode, extrapolation_value=7.0,
        coordinate_transformation_mode="tf_crop_and_resize",
    )  # fmt: skip
    roi = np.array([0, 0, 0.3125, -0.1875, 1, 1, 0.9375, 0.6875], np.float32)
    constants = {"r": roi, "n": np.array([1, 2, 3, 5], np.int64)}
    check(node, real(1, 2, 6, 7), constants)
    node.input[:] = ["x", "r", "s"]
    for scales in ((0.6, 1.3), (0.6, 0.2)):  # 3.6 and 9.1 rows and columns, that is 3 and 9
        by_scale = {"r": roi, "s": np.array([1, 1, *scales], np.float32)}
        check(node, real(1, 2, 6, 7), by_scale, oracle=by_runtime)


def test_deformable_convolution():
    constants = {"w": real(4, 2, 2, 3), "o": real(2, 2 * 12, 5, 4), "b": real(4),
                 "m": real(2, 2 * 6, 5, 4)}  # fmt: skip
    node = NODE(
        "DeformConv", ["x", "w", "o", "b", "m"], ["y"], group=2, offset_group=2,
        pads=[0, 1, 0, 1], strides=[1, 2],
    )  # fmt: skip
    check(node, real(2, 4, 6, 8), constants)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resized_integers_are_cut_off(dtype, mode):
    low = 0 if dtype == np.uint8 else -60
    x = RNG.integers(low, 60, (1, 2, 3, 4)).astype(dtype)
    x[0, 1] = 7  # a constant stays itself, though 1 / 3 and 2 / 3 are no floats
    node = NODE("Resize", ["x", "", "", "n"], ["y"], mode=mode)
    sizes = {"n": np.array([1, 2, 7, 9])}
    (found,) = check(node, x, sizes, oracle=None)
    (exact,) = check(node, x.astype(np.float64), sizes)
    assert found.dtype == dtype
    bounds = np.iinfo(dtype)
    cut = np.trunc(exact * (1 + 2**-40)).clip(bounds.min, bounds.max)
    np.testing.assert_array_equal(found, cut)
    assert (found[0, 1] == 7).all()


def test_a_pool_and_back():
    x = real(2, 2, 6, 7)
    down = NODE("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 3], strides=[2, 2])
    pooled, indices = check(down, x, {})
    up = NODE("MaxUnpool", ["x", "i", "n"], ["y"], kernel_shape=[2, 3], strides=[2, 2])
    constants = {"i": indices, "n": np.array([2, 2, 7, 9], np.int64)}
    check(up, pooled.astype(np.float32), constants)


REGIONS = np.array(
    [[0, 0, 7, 5], [1, 2, 2, 3.5], [-3, -2, 15, 4], [3, 3, 3, 3], [5, 4, 2, 1]], "f4"
)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("pixels", ["half_pixel", "output_half_pixel"])
def test_regions_have_as_many_points_as_they_are_large_or_as_are_asked_for(mode, ratio, pixels):
    constants = {"r": REGIONS, "b": np.array([0, 1, 1, 0, 1])}
    node = NODE("RoiAlign", ["x", "r", "b"], ["y"], output_height=2, output_width=3, mode=mode,
                sampling_ratio=ratio, coordinate_transformation_mode=pixels)  # fmt: skip
    check(node, real(2, 3, 6, 8), constants)


def test_regions_are_data():
    text = """<ir_version: 8, opset_import: ["": 16]>
    main (float[2,3,6,8] x, float[n,4] r, int64[n] b) => (float[n,3,2,2] y) {
        y = RoiAlign<output_height=2, output_width=2>(x, r, b)
    }"""
    model = parser.parse_model(text)
    module = dlc.compile(model)
    graph = import_model(load_model(model)).graph
    x = real(2, 3, 6, 8)
    for count in (5, 1, 0):
        feeds = {"x": x, "r": REGIONS[:count], "b": np.array([0, 1, 1, 0, 1])[:count]}
        want = evaluate(graph, feeds)["y"]
        np.testing.assert_allclose(module.run(feeds)["y"], want, rtol=1e-5, atol=1e-5)
    for side in (1e30, np.inf):
        feeds["r"], feeds["b"] = np.array([[0, 0, side, 1]], "f4"), np.array([0])
        with pytest.raises(dlc.UserError, match="4096 points or more"):
            module.run(feeds)


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
