"""Tree ensembles against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import dlc
from dlc.core.errors import UnsupportedModel
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate
from tests.frontend.onnx_model import model

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
        ({"nodes_featureids": -1}, "feature -1"),
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


def ensemble(**changes):
    """Two trees: one asks feature 0 for two sets, the other compares feature 1, then feature 0."""
    attributes = dict(
        tree_roots=[0, 2], n_targets=2, nodes_featureids=[0, 0, 1, 0], nodes_modes=[6, 6, 0, 3],
        nodes_splits=[0.0, 0.0, 0.5, 1.0], nodes_truenodeids=[0, 1, 2, 3],
        nodes_trueleafs=[1, 1, 1, 1], nodes_falsenodeids=[1, 3, 3, 4],
        nodes_falseleafs=[0, 1, 0, 1],
        nodes_missing_value_tracks_true=[0, 1, 0, 1], leaf_targetids=[0, 1, 0, 1, 0],
        leaf_weights=[1.0, 2.0, 4.0, 8.0, 16.0],
        membership_values=[1.0, 2.0, 4.0, float("nan"), 3.0, -1.0, float("nan")],
    ) | changes  # fmt: skip
    kinds = {"nodes_modes": 2, "nodes_splits": 1, "leaf_weights": 1, "membership_values": 1}
    given = {
        name: helper.make_tensor(name, kinds[name], [len(v)], v) if name in kinds else v
        for name, v in attributes.items()
        if v is not None
    }
    node = helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", **given)
    proto = model([node], {"x": ("n", 2)}, outputs=["y"])
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 5))
    return proto


@pytest.mark.parametrize(
    ("aggregate", "join"), [(0, np.mean), (1, np.sum), (2, np.min), (3, np.max)]
)
def test_members_of_sets(aggregate, join):
    x = np.array([[v, w] for v in (1, 2, 3, 4, -1, 0, 5, np.nan) for w in (0, 1)], np.float32)
    nothing = {0: 0.0, 1: 0.0, 2: np.inf, 3: -np.inf}[aggregate]
    want = []
    for v, w in x:
        first = (0, 1.0) if v in (1, 2, 4) else (1, 2.0) if v in (3, -1) or v != v else (1, 8.0)
        second = (0, 4.0) if w <= 0.5 else (1, 8.0) if v > 1 or v != v else (0, 16.0)
        each = np.full((2, 2), nothing)
        for row, (target, weight) in zip(each, (first, second), strict=True):
            row[target] = weight
        want.append(join(each, axis=0))
    graph = import_model(load_model(ensemble(aggregate_function=aggregate))).graph
    np.testing.assert_array_equal(evaluate(graph, {"x": x})["y"], want)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"membership_values": None}, "missing"),
        ({"membership_values": [1.0]}, "1 sets of members for 2 nodes"),
        ({"nodes_missing_value_tracks_true": [1]}, "differ in length"),
        ({"nodes_modes": [6, 6, 0, 7]}, "unknown mode"),
        ({"nodes_featureids": [0, -1, 0, 0]}, "feature -1"),
        ({"nodes_falsenodeids": [0, 3, 3, 4]}, "back to itself"),
    ],
)
def test_ensembles_that_do_not_fit_are_refused(changes, word):
    with pytest.raises(UnsupportedModel, match=word):
        import_model(load_model(ensemble(**changes)))


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 41, 203])
def test_compiled_walks_reach_the_same_leaves(rows):
    """Whole groups of rows, what they leave, and trees of one row side by side."""
    rng = np.random.default_rng(8)
    nodes, leaves = forest(rng, 21, 6, "BRANCH_LT")
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **nodes, n_targets=1,
        target_treeids=[t for t, _ in leaves], target_nodeids=[n for _, n in leaves],
        target_ids=[0] * len(leaves),
        target_weights=rng.integers(-9, 9, len(leaves)).astype(float).tolist(),
    )  # fmt: skip
    proto = model([node], {"x": ("n", FEATURES)}, outputs=["y"])
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    x = np.resize(inputs(rng), (rows, FEATURES))
    want = evaluate(import_model(load_model(proto)).graph, {"x": x})["y"]
    np.testing.assert_array_equal(dlc.compile(proto).run({"x": x})["y"], want)
