"""Tree ensembles against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from dlc.core.errors import UnsupportedModel
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate
from tests.frontend.test_convert import model

FEATURES = 5


def forest(rng, trees, depth, mode) -> tuple[dict, list[tuple[int, int]]]:
    """Random trees of uneven depth: attributes, and the leaves as (tree, node)."""
    rows: list[tuple] = []
    leaves: list[tuple[int, int]] = []

    def grow(tree: int, level: int, taken: list[int]) -> int:
        node = taken[0]
        taken[0] += 1
        at = len(rows)
        rows.append(())
        if level == depth or (level and rng.random() < 0.3):
            leaves.append((tree, node))
            rows[at] = (tree, node, "LEAF", 0, 0.0, 0, 0, 0)
            return node
        feature, threshold = int(rng.integers(FEATURES)), float(rng.integers(-2, 3))
        yes, no = grow(tree, level + 1, taken), grow(tree, level + 1, taken)
        rows[at] = (tree, node, mode, feature, threshold, yes, no, int(rng.integers(2)))
        return node

    for tree in range(trees):
        grow(tree, 0, [0])
    names = (
        "treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids",
        "missing_value_tracks_true",
    )  # fmt: skip
    columns = zip(*rows, strict=True)
    return {f"nodes_{n}": list(c) for n, c in zip(names, columns, strict=True)}, leaves


def check(node, x, outputs) -> None:
    proto = model([node], {"x": ("n", FEATURES)}, outputs=outputs)
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    want = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    graph = import_model(load_model(proto)).graph
    found = evaluate(graph, {"x": x})
    for value, expected in zip(graph.outputs, want, strict=True):
        np.testing.assert_allclose(found[value.name], expected, rtol=1e-5, atol=1e-6)


def inputs(rng) -> np.ndarray:
    """Whole numbers, so that thresholds are met exactly, and some NaN."""
    x = rng.integers(-3, 4, (40, FEATURES)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    return x


@pytest.mark.parametrize("mode", ["LEQ", "LT", "GTE", "GT", "EQ", "NEQ"])
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE"])
def test_regression(mode, aggregate):
    rng = np.random.default_rng(len(mode))
    nodes, leaves = forest(rng, 7, 4, f"BRANCH_{mode}")
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **nodes, n_targets=2,
        aggregate_function=aggregate, base_values=[0.5, -1.0],
        target_treeids=[t for t, _ in leaves] * 2, target_nodeids=[n for _, n in leaves] * 2,
        target_ids=[0] * len(leaves) + [1] * len(leaves),
        target_weights=rng.standard_normal(2 * len(leaves)).tolist(),
    )  # fmt: skip
    check(node, inputs(rng), ["y"])


def classifier(rng, labels, ids, weights, **attributes):
    nodes, leaves = forest(rng, 6, 3, "BRANCH_LEQ")
    return helper.make_node(
        "TreeEnsembleClassifier", ["x"], ["y", "z"], domain="ai.onnx.ml", **nodes,
        class_treeids=[t for t, _ in leaves], class_nodeids=[n for _, n in leaves],
        class_ids=[ids(i) for i in range(len(leaves))],
        class_weights=weights(len(leaves)).tolist(), classlabels_int64s=labels, **attributes,
    )  # fmt: skip


@pytest.mark.parametrize("how", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_classification_of_many(how):
    rng = np.random.default_rng(3)
    node = classifier(
        rng, [7, 3, 5], lambda i: i % 3, rng.standard_normal, post_transform=how,
        base_values=[0.1, 0.2, -0.3],
    )  # fmt: skip
    check(node, inputs(rng), ["y", "z"])


@pytest.mark.parametrize("how", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("scored", [0, 1])
def test_classification_of_two_by_one_score(how, positive, scored):
    rng = np.random.default_rng(5)

    def weights(count: int) -> np.ndarray:
        drawn = rng.standard_normal(count)
        return np.abs(drawn) / 6 if positive else drawn

    node = classifier(rng, [4, 9], lambda i: scored, weights, post_transform=how)
    check(node, inputs(rng), ["y", "z"])


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"nodes_values": [0.5]}, "differ in length"),
        ({"nodes_featureids": 99}, "feature 99"),
        ({"nodes_truenodeids": 99}, "not there"),
        ({"nodes_nodeids": 0}, "twice"),
        ({"class_ids": 9}, "column 9"),
        ({"post_transform": "PROBIT"}, "PROBIT"),
        ({"classlabels_int64s": None}, "no labels"),
    ],
)
def test_trees_that_do_not_fit_are_refused(change, word):
    rng = np.random.default_rng(6)
    node = classifier(rng, [7, 3, 5], lambda i: i % 3, rng.standard_normal, post_transform="NONE")
    for attribute in list(node.attribute):
        if attribute.name in change:
            node.attribute.remove(attribute)
            new = change[attribute.name]
            if isinstance(new, int):
                new = [new] * len(attribute.ints)
            if new is not None:
                node.attribute.append(helper.make_attribute(attribute.name, new))
    for name in change.keys() - {a.name for a in node.attribute}:
        if change[name] is not None:
            node.attribute.append(helper.make_attribute(name, change[name]))
    proto = model([node], {"x": ("n", FEATURES)}, outputs=["y", "z"])
    with pytest.raises(UnsupportedModel, match=word):
        import_model(load_model(proto))


def test_a_tree_that_leads_back_to_itself_is_refused():
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml",
        nodes_treeids=[0, 0], nodes_nodeids=[0, 1], nodes_modes=["BRANCH_LEQ"] * 2,
        nodes_featureids=[0, 0], nodes_values=[0.0, 0.0], nodes_truenodeids=[1, 0],
        nodes_falsenodeids=[1, 0], target_ids=[0], target_nodeids=[1], target_treeids=[0],
        target_weights=[1.0],
    )  # fmt: skip
    with pytest.raises(UnsupportedModel, match="back to itself"):
        import_model(load_model(model([node], {"x": ("n", FEATURES)})))
