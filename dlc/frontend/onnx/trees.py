"""Converters of tree ensembles: rows walk to a leaf of each tree, whose weights are added up.

Source: https://onnx.ai/onnx/operators/onnx_aionnxml_TreeEnsembleClassifier.html and its sibling
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to
from dlc.frontend.onnx.slicing import concat, slice_axes
from dlc.frontend.onnx.text import texts
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.activation import Sigmoid
from dlc.graph.ops.binary import Add, Equal, Greater, Sub, Where
from dlc.graph.ops.elementwise import Neg
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.reduce import ArgMax, Reduce
from dlc.graph.ops.softmax import Softmax
from dlc.graph.ops.trees import TreeWalk
from dlc.te.expr import index
from dlc.te.simplify import surely_less

DOMAIN = "ai.onnx.ml"
TESTS = {
    "BRANCH_LEQ": "le",
    "BRANCH_LT": "lt",
    "BRANCH_GTE": "ge",
    "BRANCH_GT": "gt",
    "BRANCH_EQ": "eq",
    "BRANCH_NEQ": "ne",
}
"""Mode -> test of `TreeWalk`."""
MOST_WEIGHTS = 1 << 24
"""Of all nodes together, for all classes or targets."""


@dataclass(frozen=True, slots=True)
class Forest:
    """All trees in one numbering of nodes; a leaf leads to itself."""

    roots: Array
    depth: int
    modes: dict[str, Array]
    """Mode -> which nodes have it."""
    features: Array
    thresholds: Array
    yes: Array
    no: Array
    missing_is_yes: Array
    position: dict[tuple[int, int], int]
    """(tree, node) -> number."""


class _NeededAttributes(TypedDict):
    nodes_falsenodeids: Sequence[int]
    nodes_featureids: Sequence[int]
    nodes_modes: Sequence[str]
    nodes_nodeids: Sequence[int]
    nodes_treeids: Sequence[int]
    nodes_truenodeids: Sequence[int]
    nodes_values: Sequence[float]


class NodeAttributes(_NeededAttributes, total=False):
    """What ONNX says of the nodes of trees; `nodes_hitrates` say nothing about the result."""

    nodes_hitrates: Sequence[float]
    nodes_missing_value_tracks_true: Sequence[int]


def _forest(ctx: Context, x: Value, given: NodeAttributes) -> Forest:
    """The trees, which test features that `x` surely has."""
    trees, modes = given["nodes_treeids"], given["nodes_modes"]
    features, thresholds = given["nodes_featureids"], given["nodes_values"]
    nodes, yes, no = (
        given["nodes_nodeids"], given["nodes_truenodeids"], given["nodes_falsenodeids"],
    )  # fmt: skip
    missing = given.get("nodes_missing_value_tracks_true", ())
    count = len(trees)
    columns: tuple[Sequence[object], ...] = (nodes, modes, features, thresholds, yes, no)
    uneven = any(len(column) != count for column in columns) or len(missing) not in (0, count)
    if not count or uneven:
        ctx.refuse("the attributes of its nodes differ in length")
    features = [0 if m == "LEAF" else f for m, f in zip(modes, features, strict=True)]
    check_features(ctx, x, features)
    position = {key: i for i, key in enumerate(zip(trees, nodes, strict=True))}
    inner = [mode != "LEAF" for mode in modes]
    kinds = {mode for mode in modes if mode != "LEAF"}
    if len(position) != count or not kinds <= set(TESTS):
        ctx.refuse(f"nodes given twice, or nodes of unknown kinds: {sorted(kinds)}")
    numbers = np.arange(count)

    def targets(column: Sequence[int]) -> Array:
        found = [position.get(key, -1) for key in zip(trees, column, strict=True)]
        return np.where(inner, found, numbers)

    then, other = targets(yes), targets(no)
    if min(then.min(), other.min()) < 0:
        ctx.refuse("a node leads to a node that is not there")
    first: dict[int, int] = {}
    for number, tree in enumerate(trees):
        first.setdefault(tree, number)
    roots = np.array(list(first.values()))
    return Forest(
        roots=roots,
        depth=depth_of(ctx, roots, then, other),
        modes={kind: np.array(modes) == kind for kind in sorted(kinds)},
        features=np.array(features, np.int64),
        thresholds=np.array(thresholds, np.float32),
        yes=then,
        no=other,
        missing_is_yes=np.array(missing or [0] * count, np.int64) != 0,
        position=position,
    )


def depth_of(ctx: Context, roots: Array, yes: Array, no: Array) -> int:
    """How many steps lead from the roots to all leaves."""
    here, depth = np.unique(roots), 0
    while True:
        below = np.unique(np.concatenate([yes[here], no[here]]))
        if np.array_equal(below, here):
            return depth
        here, depth = below, depth + 1
        if depth > len(yes):
            ctx.refuse("a tree leads back to itself")


def leaves(ctx: Context, forest: Forest, x: Value) -> Value:
    """The number of the leaf that each row of `x` reaches in each tree: i32[trees, n]."""
    kinds = forest.missing_is_yes.astype(np.int32)
    for place, where in enumerate(forest.modes.values()):
        kinds[where] += 2 * place
    links = np.stack([forest.features, forest.no, forest.yes, kinds], 1).astype(np.int32)
    numbers = np.arange(len(forest.yes))
    inner = (forest.yes != numbers) | (forest.no != numbers)
    below = np.zeros(len(inner), np.int64)
    for _ in range(forest.depth):
        below = np.where(inner, np.maximum(below[forest.yes], below[forest.no]) + 1, 0)
    walk = TreeWalk(
        tests=tuple(TESTS[mode] for mode in forest.modes) or ("le",),
        nan_holds=bool(forest.missing_is_yes.any()),
        steps=forest.depth,
    )
    thresholds = forest.thresholds.astype(NUMPY_DTYPES[x.type.dtype])
    tables = (
        forest.roots.astype(np.int32),
        below[forest.roots].astype(np.int32),
        links,
        thresholds,
    )
    return ctx.call(walk, x, *map(ctx.constant, tables))


def total_of(ctx: Context, weights: Array, reached: Value, kind: str = "sum") -> Value:
    """The weights of leaves joined over all trees: [n, columns of the weights]."""
    each = ctx.call(Gather(axis=0), ctx.constant(weights), reached)
    return ctx.call(Reduce(kind=kind, axes=(0,), keepdims=False), each)


def _scores(ctx: Context, forest: Forest, x: Value, weights: Array, base: Array) -> Value:
    """The sum of the leaves' weights over all trees: [n, number of weights]."""
    x = x if x.type.dtype.is_float else cast_to(ctx, x, DType.F32)
    total = total_of(ctx, weights, leaves(ctx, forest, x))
    return ctx.call(Add(), total, ctx.constant(base)) if base.any() else total


def _weights(
    ctx: Context,
    forest: Forest,
    trees: Sequence[int],
    nodes: Sequence[int],
    columns: Sequence[int],
    values: Sequence[float],
    width: int,
) -> Array:
    """The weights of each node, one column for each class or target."""
    if not len(trees) == len(nodes) == len(columns) == len(values):
        ctx.refuse("the attributes of its weights differ in length")
    if len(forest.features) * width > MOST_WEIGHTS:
        ctx.refuse(f"{len(forest.features)} nodes have {width} scores each")
    table = np.zeros((len(forest.features), width), np.float32)
    for tree, node, column, value in zip(trees, nodes, columns, values, strict=True):
        row = forest.position.get((tree, node), -1)
        if row < 0 or not 0 <= column < width:
            ctx.refuse(f"a weight of node {node} of tree {tree}, column {column}")
        table[row, column] += np.float32(value)
    return table


def _base(ctx: Context, values: Sequence[float], width: int) -> Array:
    if len(values) not in (0, width):
        ctx.refuse(f"{len(values)} base_values for {width} scores")
    return np.array(values or [0.0] * width, np.float32)


def check_features(ctx: Context, x: Value, features: Sequence[int]) -> None:
    """Refuse rows that may lack a feature that is tested."""
    least, most = min(features, default=0), max(features, default=0)
    if x.type.rank != 2 or least < 0 or not surely_less(most, x.type.shape[1]):
        ctx.refuse(f"{x.type} does not surely have feature {least if least < 0 else most}")


@converter("TreeEnsembleRegressor", since=1, domain=DOMAIN)
def convert_regressor(
    ctx: Context,
    x: Value,
    *,
    aggregate_function: str = "SUM",
    base_values: Sequence[float] = (),
    n_targets: int = 1,
    post_transform: str = "NONE",
    target_ids: Sequence[int],
    target_nodeids: Sequence[int],
    target_treeids: Sequence[int],
    target_weights: Sequence[float],
    **nodes: Unpack[NodeAttributes],
) -> Value:
    """The sum or mean of the trees' targets."""
    if aggregate_function not in ("SUM", "AVERAGE") or n_targets < 1:
        ctx.refuse(f"aggregate_function = '{aggregate_function}', n_targets = {n_targets}")
    forest = _forest(ctx, x, nodes)
    weights = _weights(
        ctx, forest, target_treeids, target_nodeids, target_ids, target_weights, n_targets
    )
    if aggregate_function == "AVERAGE":
        weights = weights / np.float32(len(forest.roots))
    scores = _scores(ctx, forest, x, weights, _base(ctx, base_values, n_targets))
    return transformed(ctx, scores, post_transform)


def labels_of(ctx: Context, ints: Sequence[int], strings: Sequence[str]) -> Value:
    """The labels of classes: numbers or texts."""
    if not ints and not strings:
        ctx.refuse("it has no labels")
    return ctx.constant(np.array(ints, np.int64)) if ints else texts(ctx, strings)


def transformed(ctx: Context, scores: Value, how: str) -> Value:
    """Scores as the attribute `post_transform` wants them."""
    match how:
        case "NONE":
            return scores
        case "LOGISTIC":
            return ctx.call(Sigmoid(), scores)
        case "SOFTMAX":
            return ctx.call(Softmax(axis=1), scores)
        case "SOFTMAX_ZERO":  # a score of 0 stays 0, and does not count
            zero = ctx.scalar(0.0, scores.type.dtype)
            absent = ctx.call(Equal(), scores, zero)
            low = ctx.call(Where(), absent, ctx.scalar(-math.inf, scores.type.dtype), scores)
            return ctx.call(Where(), absent, zero, ctx.call(Softmax(axis=1), low))
    ctx.refuse(f"post_transform = '{how}' is not handled")


@converter("TreeEnsembleClassifier", since=1, domain=DOMAIN)
def convert_classifier(
    ctx: Context,
    x: Value,
    *,
    base_values: Sequence[float] = (),
    class_ids: Sequence[int],
    class_nodeids: Sequence[int],
    class_treeids: Sequence[int],
    class_weights: Sequence[float],
    classlabels_int64s: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (),
    post_transform: str = "NONE",
    **nodes: Unpack[NodeAttributes],
) -> tuple[Value, Value]:
    """The class with the highest score, and all scores."""
    labels = labels_of(ctx, classlabels_int64s, classlabels_strings)
    forest = _forest(ctx, x, nodes)
    classes = len(classlabels_int64s or classlabels_strings)
    only = set(class_ids) if classes == 2 and len(set(class_ids)) == 1 else set()
    width = 1 if only == {0} else classes
    weights = _weights(ctx, forest, class_treeids, class_nodeids, class_ids, class_weights, width)
    scores = _scores(ctx, forest, x, weights, _base(ctx, base_values, width))
    if not only:
        best = ctx.call(ArgMax(axis=1, keepdims=False), scores)
        return ctx.call(Gather(axis=0), labels, best), transformed(ctx, scores, post_transform)
    positive = min(class_weights) >= 0
    score = slice_axes(ctx, scores, [index(width - 1)], [index(width)], [1], [1])
    above = ctx.call(Greater(), score, ctx.scalar(0.5 if positive else 0, score.type.dtype))
    best = cast_to(ctx, reshape_to(ctx, above, score.type.shape[:1]), DType.I64)
    label = ctx.call(Gather(axis=0), labels, best)
    if width == 2:
        return label, transformed(ctx, scores, post_transform)
    return label, of_one_score(ctx, score, positive=positive, how=post_transform)


def of_one_score(ctx: Context, score: Value, *, positive: bool, how: str) -> Value:
    """Scores of two classes: a probability if no weight is negative, or a margin.

    Source: onnxruntime/core/providers/cpu/ml/ml_common.h, `write_scores`
    """
    if how not in ("NONE", "LOGISTIC"):
        ctx.refuse(f"post_transform = '{how}' of one score for two classes")
    if positive and how == "NONE":
        one = ctx.scalar(1, score.type.dtype)
        return concat(ctx, [ctx.call(Sub(), one, score), score], 1)
    return transformed(ctx, concat(ctx, [ctx.call(Neg(), score), score], 1), how)


@converter("ZipMap", since=1, domain=DOMAIN)
def convert_zip_map(
    ctx: Context,
    x: Value,
    *,
    classlabels_int64s: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (),
) -> Value:
    """The scores as they are: columns in the order of the labels instead of a list of maps."""
    return x
