"""Grids of moved images, against the formula of their operator in float64."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from dlc.core.errors import UnsupportedModel, UserError
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate
from dlc.graph.graph import Graph

RNG = np.random.default_rng(8)


def imported(
    theta: tuple[object, ...],
    size: tuple[int, ...],
    aligned: int,
    known: bool,
    kind: int = TensorProto.FLOAT,
) -> Graph:
    """A model of one node; its size is a constant if it is `known`, else an input."""
    inputs = [helper.make_tensor_value_info("theta", kind, theta)]
    constants = [numpy_helper.from_array(np.array(size, np.int64), "size")]
    if not known:
        inputs.append(helper.make_tensor_value_info("size", TensorProto.INT64, [len(size)]))
    node = helper.make_node("AffineGrid", ["theta", "size"], ["y"], align_corners=aligned)
    outputs = [helper.make_tensor_value_info("y", kind, [None] * len(size))]
    graph = helper.make_graph([node], "g", inputs, outputs, constants if known else [])
    opsets = [helper.make_opsetid("", 20)]
    return import_model(load_model(helper.make_model(graph, opset_imports=opsets))).graph


def exact(theta: np.ndarray, extents: tuple[int, ...], aligned: int) -> np.ndarray:
    """theta times x, y (z) and 1 of each pixel, pixel by pixel."""
    found = np.empty((len(theta), *extents, len(extents)))
    for at in np.ndindex(extents):
        ends = [(2 * i / max(n - 1, 1), (2 * i + 1) / n) for i, n in zip(at, extents, strict=True)]
        point = [end[1 - aligned] - 1 for end in reversed(ends)]
        found[(slice(None), *at)] = theta.astype(np.float64) @ [*point, 1]
    return found


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("size", [(1, 3, 5, 7), (3, 1, 4, 6), (2, 1, 3, 1, 6), (1, 1, 1, 2)])
def test_each_pixel_is_moved(size: tuple[int, ...], known: bool, aligned: int) -> None:
    rank = len(size) - 2
    theta = RNG.standard_normal((size[0], rank, rank + 1)).astype(np.float32)
    graph = imported(theta.shape, size, aligned, known)
    given = zip((v.name for v in graph.inputs), (theta, np.array(size)), strict=not known)
    (found,) = evaluate(graph, dict(given)).values()
    wanted = exact(theta, size[2:], aligned)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("aligned", [0, 1])
def test_halves_know_the_pixels_of_long_lines(aligned: int) -> None:
    theta = np.array([[[1, 0, 0], [0, 1, 0]]], np.float16)
    graph = imported(theta.shape, (1, 1, 1, 70_000), aligned, True, TensorProto.FLOAT16)
    (found,) = evaluate(graph, {"theta": theta}).values()
    np.testing.assert_allclose(found, exact(theta, (1, 70_000), aligned), atol=5e-4)


def test_a_run_refuses_another_number_of_images() -> None:
    theta, size = np.zeros((2, 2, 3), np.float32), np.array([3, 1, 4, 5])
    graph = imported(("n", 2, 3), (3, 1, 4, 5), 0, known=False)
    given = dict(zip((v.name for v in graph.inputs), (theta, size), strict=True))
    with pytest.raises(UserError, match="must hold"):
        evaluate(graph, given, {"n": 2})


@pytest.mark.parametrize(
    ("theta", "size", "reason"),
    [
        ((1, 2, 3), (1, 3, 5), "3 dimensions"),
        ((1, 2, 3), (1, 3, 5, 6, 7), "is not 3 x 4"),
        ((2, 2, 3), (1, 3, 5, 7), "is not 2 x 3"),
        ((2, 3), (1, 3, 5, 7), "4 dimensions"),
    ],
)
def test_what_does_not_fit_is_refused(
    theta: tuple[int, ...], size: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        imported(theta, size, 0, known=True)
