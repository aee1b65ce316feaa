"""Random operators: the seed decides, numbers have the distribution asked for."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate
from tests.frontend.onnx_model import model

NODE = helper.make_node
X = np.linspace(0, 1, 6000, dtype=np.float32).reshape(3, 2000)


def drawn(node, x=X, constants=()) -> list[np.ndarray]:
    proto = model([node], {"x": x.shape}, constants, outputs=[o for o in node.output if o])
    graph = import_model(load_model(proto)).graph
    found = evaluate(graph, {v.name: x for v in graph.inputs})
    return [found[v.name] for v in graph.outputs]


@pytest.mark.parametrize("op", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_the_seed_decides(op):
    first, second, other = (drawn(NODE(op, ["x"], ["y"], seed=s))[0] for s in (1.5, 1.5, 2.5))
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


@pytest.mark.parametrize("op", ["RandomNormalLike", "RandomUniformLike"])
def test_the_type_may_be_another_than_that_of_the_shape(op):
    proto = model([NODE(op, ["x"], ["y"], dtype=11)], {"x": (2, 3)}, kinds={"x": "i"})
    graph = import_model(load_model(proto)).graph
    assert [str(v.type) for v in (*graph.inputs, *graph.outputs)] == ["i64[2, 3]", "f64[2, 3]"]


def test_nodes_without_seeds_differ():
    a, b = (drawn(NODE("RandomNormalLike", ["x"], ["y"], name=n))[0] for n in ("a", "b"))
    assert (a != b).any()


def test_moments():
    (normal,) = drawn(NODE("RandomNormal", [], ["y"], shape=[100, 100], mean=3.0, scale=2.0))
    assert abs(normal.mean() - 3) < 0.1
    assert abs(normal.std() - 2) < 0.1
    (uniform,) = drawn(NODE("RandomUniform", [], ["y"], shape=[100, 100], low=-1.0, high=3.0))
    assert uniform.min() >= -1
    assert uniform.max() < 3
    assert np.histogram(uniform, 4, (-1, 3))[0].min() > 2300
    assert abs(np.corrcoef(uniform[:, 1:].ravel(), uniform[:, :-1].ravel())[0, 1]) < 0.03


def test_bernoulli_hits_as_often_as_it_should():
    (hits,) = drawn(NODE("Bernoulli", ["x"], ["y"], seed=4.0))
    assert set(np.unique(hits)) == {0.0, 1.0}
    assert abs(hits[0].mean() - X[0].mean()) < 0.03
    assert abs(hits[2].mean() - X[2].mean()) < 0.03


def test_multinomial_draws_classes_by_their_probability():
    chances = np.array([[0.1, 0.0, 0.7, 0.2], [0.25, 0.25, 0.25, 0.25]], np.float32)
    with np.errstate(divide="ignore"):
        logs = np.log(chances) + np.float32(2)
    (found,) = drawn(NODE("Multinomial", ["x"], ["y"], sample_size=5000, dtype=7), logs)
    assert found.dtype == np.int64
    for row, wanted in zip(found, chances, strict=True):
        counts = np.bincount(row, minlength=4) / 5000
        np.testing.assert_allclose(counts, wanted, atol=0.03)


def test_dropout_in_training_drops_and_scales():
    constants = {"r": np.float32(0.25), "t": np.array(True)}
    node = NODE("Dropout", ["x", "r", "t"], ["y", "kept"], seed=5)
    y, kept = drawn(node, X + 1, constants)
    assert abs(kept.mean() - 0.75) < 0.02
    np.testing.assert_allclose(y, np.where(kept, (X + 1) / 0.75, 0), rtol=1e-6)


def test_dropout_at_inference_keeps_all():
    y, kept = drawn(NODE("Dropout", ["x"], ["y", "kept"]))
    np.testing.assert_array_equal(y, X)
    assert kept.all()
