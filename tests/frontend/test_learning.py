"""Operators of ai.onnx.ml but for trees, determinants and n-grams, against onnxruntime."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from dlc.core.errors import UnsupportedModel
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate
from tests.frontend.onnx_model import model

RNG = np.random.default_rng(6)
X = (RNG.integers(-8, 9, (7, 4)) / 4).astype(np.float32)
ROWS = (RNG.integers(-8, 9, (3, 4)) / 4).astype(np.float32)


def ml(op, inputs=("x",), outputs=("y",), **attributes):
    return helper.make_node(op, inputs, outputs, domain="ai.onnx.ml", **attributes)


def learner(node, x, constants=()):
    """A model of one node, whose input is like `x`."""
    kinds = {"x": {"i": "i", "f": "f", "O": "s"}[x.dtype.kind]}
    proto = model([node], {"x": x.shape}, constants, outputs=node.output, kinds=kinds)
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return proto


def results(proto, x) -> list[np.ndarray]:
    graph = import_model(load_model(proto)).graph
    found = evaluate(graph, {v.name: x for v in graph.inputs})
    return [found[v.name] for v in graph.outputs]


def check(node, x, constants=()) -> list[np.ndarray]:
    proto = learner(node, x, constants)
    want = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    for found, expected in zip(results(proto, x), want, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    return want


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm):
    check(ml("Normalizer", norm=norm), np.abs(np.concatenate([X, np.zeros((1, 4), np.float32)])))


def test_features():
    check(ml("Binarizer", threshold=0.5), X)
    check(ml("ArrayFeatureExtractor", ["x", "i"]), X, {"i": np.array([[3, 0]])})
    check(ml("Scaler", offset=[1.0, 2.0, 3.0, 4.0], scale=[2.0] * 4), X)
    check(ml("FeatureVectorizer", ["x", "x"], inputdimensions=[4, 4]), X)
    check(ml("OneHotEncoder", cats_int64s=[-1, 0, 2], zeros=1), X.astype(np.int64))


def test_categories_may_be_texts():
    node = ml("OneHotEncoder", cats_strings=["b", "a"])
    x = np.array(["a", "c", "b"], object)
    np.testing.assert_array_equal(results(learner(node, x), x), [[[0, 1], [0, 0], [1, 0]]])


def test_imputer():
    x = X.copy()
    x[0, 1] = x[3, 3] = np.nan
    check(ml("Imputer", imputed_value_floats=[1.0, 2.0, 3.0, 4.0], replaced_value_float=np.nan), x)
    check(ml("Imputer", imputed_value_floats=[9.0], replaced_value_float=0.25), X)
    check(ml("Imputer", imputed_value_int64s=[7], replaced_value_int64=1), X.astype(np.int64))


def test_label_encoder():
    ints = X.astype(np.int64)
    node = ml("LabelEncoder", keys_int64s=[-1, 0, 2], values_floats=[0.5, 2.5, -1.0])
    check(node, ints)
    node = ml("LabelEncoder", keys_int64s=[-1, 0], values_int64s=[5, 6], default_int64=99)
    check(node, ints)


def test_nan_is_a_key():
    """As ONNX's own evaluator has it; onnxruntime finds no NaN."""
    x = np.array([0.25, np.nan, 1.0], np.float32)
    node = ml("LabelEncoder", keys_floats=[0.25, np.nan], values_int64s=[5, 6], default_int64=-7)
    np.testing.assert_array_equal(results(learner(node, x), x), [[5, 6, -7]])
    many = [*np.arange(100) + 0.25, np.nan]
    node = ml("LabelEncoder", keys_floats=many, values_int64s=range(101), default_int64=-7)
    np.testing.assert_array_equal(results(learner(node, x), x), [[0, 100, -7]])


@pytest.mark.parametrize("count", [63, 64, 65, 128, 1000])
@pytest.mark.parametrize(("kind", "other"), [("int64s", "floats"), ("floats", "int64s")])
def test_many_labels(kind, other, count):
    """Keys in no order. Of one that is given twice the last counts; onnxruntime takes any."""
    dtype = np.int64 if kind == "int64s" else np.float32
    keys = RNG.permutation(np.arange(-count // 4, count))[:count].astype(dtype)
    keys[1:4] = [-(2**63), 2**62, 7 * count] if dtype is np.int64 else [-np.inf, np.inf, 0.25]
    rest = [count + 1, -(2**62)] if dtype is np.int64 else [count + 1, np.nan, 0.5, -0.0]
    x = np.concatenate([keys, np.array(rest, dtype)])

    def labels(keys: np.ndarray, values: list[int]) -> Any:
        typed = np.array(values, np.float32 if other == "floats" else np.int64)
        return ml("LabelEncoder", **{f"keys_{kind}": keys, f"values_{other}": typed})

    (found,) = check(labels(keys, [*range(count)]), x)
    twice = labels(np.concatenate([keys[:1], keys]), [7, *range(count)])
    np.testing.assert_array_equal(results(learner(twice, x), x), [found])


@pytest.mark.parametrize("how", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_linear_models(how):
    weights = {"coefficients": ROWS.ravel().tolist(), "intercepts": [0.5, -1.0, 0.0]}
    check(ml("LinearRegressor", targets=3, post_transform=how, **weights), X)
    node = ml("LinearClassifier", outputs=["l", "y"], classlabels_ints=[5, 3, 9],
              post_transform=how, **weights)  # fmt: skip
    check(node, X)


@pytest.mark.parametrize("how", ["NONE", "LOGISTIC"])
def test_one_linear_function_tells_two_classes_apart(how):
    node = ml("LinearClassifier", outputs=["l", "y"], classlabels_ints=[5, 3],
              coefficients=ROWS[0].tolist(), intercepts=[0.25], post_transform=how)  # fmt: skip
    check(node, X)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("one_class", [0, 1])
def test_support_vector_regression(kernel, one_class):
    node = ml("SVMRegressor", kernel_type=kernel, kernel_params=[0.25, 0.5, 2.0], n_supports=3,
              coefficients=[1.0, -0.5, 2.0], rho=[0.3], support_vectors=ROWS.ravel().tolist(),
              one_class=one_class)  # fmt: skip
    check(node, X)


def vectors(classes, kernel, **more):
    """A classifier of two support vectors for each class."""
    rows = (RNG.integers(-8, 9, (2 * classes, 4)) / 4).astype(np.float32)
    pairs = classes * (classes - 1) // 2
    weights = RNG.integers(-4, 5, ((classes - 1), 2 * classes)) / 4
    labels = {"classlabels_ints": list(range(5, 5 + classes))}
    return ml(
        "SVMClassifier", outputs=["l", "y"], kernel_type=kernel, kernel_params=[0.25, 0.5, 2.0],
        coefficients=weights.astype(float).ravel().tolist(), rho=[0.3] * pairs,
        support_vectors=rows.ravel().tolist(), vectors_per_class=[2] * classes, **labels, **more,
    )  # fmt: skip


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("classes", [3, 4])
def test_support_vector_classification(kernel, classes):
    check(vectors(classes, kernel), X)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_probabilities_of_support_vectors(classes):
    pairs = classes * (classes - 1) // 2
    more = {"prob_a": [-1.5 + 0.1 * k for k in range(pairs)], "prob_b": [0.2] * pairs}
    check(vectors(classes, "RBF", **more), X)


@pytest.mark.parametrize("how", ["NONE", "LOGISTIC"])
def test_support_vectors_of_two_classes(how):
    check(vectors(2, "RBF", post_transform=how), X)


def test_classes_of_linear_vectors():
    """Without support vectors there is a linear function for each class; onnxruntime has none."""
    node = ml("SVMClassifier", outputs=["l", "y"], coefficients=ROWS.ravel().tolist(), rho=[0.5],
              classlabels_ints=[5, 3, 9])  # fmt: skip
    labels, scores = results(learner(node, X), X)
    np.testing.assert_array_equal(scores, X @ ROWS.T + np.float32(0.5))
    np.testing.assert_array_equal(labels, np.array([5, 3, 9])[scores.argmax(1)])


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_determinants(size):
    x = RNG.standard_normal((2, 3, size, size)).astype(np.float32)
    x[0, 0] = 0
    x[1, 1, 0, 0] = 0
    check(helper.make_node("Det", ["x"], ["y"]), x)


@pytest.mark.parametrize(("mode", "skip"), list(itertools.product(["TF", "IDF", "TFIDF"], [0, 2])))
def test_n_grams(mode, skip):
    node = helper.make_node(
        "TfIdfVectorizer", ["x"], ["y"], mode=mode, min_gram_length=1, max_gram_length=3,
        max_skip_count=skip, ngram_counts=[0, 3, 7], ngram_indexes=[4, 0, 2, 6, 1, 3],
        pool_int64s=[2, 3, 5, 5, 4, 2, 3, 2, 5, 5], weights=[0.5, 1.0, 2.0, 3.0, 4.0, 0.25],
    )  # fmt: skip
    check(node, RNG.integers(2, 6, (3, 9)).astype(np.int64))


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (ml("Normalizer", norm="L3"), "not known"),
        (ml("Imputer"), "no values"),
        (ml("LinearClassifier", outputs=["l", "y"], coefficients=[1.0] * 4), "no labels"),
        (ml("SVMRegressor", coefficients=[1.0], kernel_type="TREE", n_supports=1,
            support_vectors=[1.0] * 4), "not known"),
        (helper.make_node("Det", ["x"], ["y"]), "square"),
        (vectors(2, "RBF", post_transform="SOFTMAX"), "of one score for two classes"),
        (vectors(3, "RBF", prob_a=[1.0], prob_b=[1.0]), "for 3 pairs"),
    ],
)  # fmt: skip
def test_what_is_not_handled_is_refused(node, why):
    with pytest.raises(UnsupportedModel, match=why):
        import_model(load_model(learner(node, X)))
