"""The converter of TreeEnsemble, which has trees in another form since version 5 of ai.onnx.ml.

Source: https://onnx.ai/onnx/operators/onnx_aionnxml_TreeEnsemble.html
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.trees import (
    DOMAIN,
    MEMBER,
    MOST_WEIGHTS,
    Forest,
    check_features,
    depth_of,
    leaves,
    transformed,
)
from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.binary import Mul
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.reduce import Reduce

_MODES = (
    "BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", MEMBER,
)  # fmt: skip
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_AGGREGATES = (("sum", 0.0), ("sum", 0.0), ("min", np.inf), ("max", -np.inf))
"""By number: average, sum, min, max; how trees are joined, and what joins without a trace."""


@converter("TreeEnsemble", since=5, domain=DOMAIN)
def convert_tree_ensemble(
    ctx: Context,
    x: Value,
    *,
    aggregate_function: int = 1,
    leaf_targetids: Sequence[int],
    leaf_weights: Array,
    membership_values: Array | None = None,
    n_targets: int = 1,
    nodes_falseleafs: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_featureids: Sequence[int],
    nodes_hitrates: Array | None = None,
    nodes_missing_value_tracks_true: Sequence[int] = (),
    nodes_modes: Array,
    nodes_splits: Array,
    nodes_trueleafs: Sequence[int],
    nodes_truenodeids: Sequence[int],
    post_transform: int = 0,
    tree_roots: Sequence[int],
) -> Value:
    """Leaves of all trees joined by target. `nodes_hitrates` say nothing about the result."""
    if not 0 <= aggregate_function < 4 or not 0 <= post_transform < 5 or n_targets < 1:
        ctx.refuse(f"aggregate_function {aggregate_function}, post_transform {post_transform}")
    check_features(ctx, x, nodes_featureids)
    x = x if x.type.dtype.is_float else cast_to(ctx, x, DType.F32)
    inner, outer = len(nodes_featureids), len(leaf_targetids)
    columns = (nodes_splits, nodes_modes, nodes_trueleafs, nodes_falseleafs, nodes_truenodeids)
    if any(len(c) != inner for c in (*columns, nodes_falsenodeids)) or outer != leaf_weights.size:
        ctx.refuse("the attributes of its nodes differ in length")

    def targets(ids: Sequence[int], ends: Sequence[int]) -> Array:
        found = np.array(ids, np.int64) + inner * (np.array(ends, np.int64) != 0)
        beyond = np.where(np.array(ends) != 0, inner + outer, inner)
        if inner and not ((np.array(ids) >= 0) & (found < beyond)).all():
            ctx.refuse("a node leads to a node that is not there")
        return np.concatenate([found, inner + np.arange(outer)])

    modes = [int(m) for m in nodes_modes]
    roots = np.array(tree_roots, np.int64)
    if any(not 0 <= m < len(_MODES) for m in modes) or not ((roots >= 0) & (roots < inner)).all():
        ctx.refuse("a node has an unknown mode, or a root is not there")
    names = np.array([_MODES[m] for m in modes] + ["LEAF"] * outer)
    yes, no = (
        targets(nodes_truenodeids, nodes_trueleafs),
        targets(nodes_falsenodeids, nodes_falseleafs),
    )
    padding = np.zeros(outer)
    missing = np.array(nodes_missing_value_tracks_true or [0] * inner)
    forest = Forest(
        roots=roots,
        depth=depth_of(ctx, roots, yes, no),
        modes={m: names == m for m in sorted(set(names)) if m != "LEAF"},
        features=np.concatenate([np.array(nodes_featureids), padding]).astype(np.int64),
        thresholds=np.concatenate([nodes_splits, padding]).astype(nodes_splits.dtype),
        yes=yes,
        no=no,
        missing_is_yes=np.concatenate([missing, padding]) != 0,
        position={},
        members=_members(ctx, modes, outer, membership_values),
    )
    kind, nothing = _AGGREGATES[aggregate_function]
    if (inner + outer) * n_targets > MOST_WEIGHTS or not all(
        0 <= t < n_targets for t in leaf_targetids
    ):
        ctx.refuse(f"leaves of {n_targets} targets lead to others, or are too many")
    weights = np.full((inner + outer, n_targets), nothing, leaf_weights.dtype)
    weights[inner + np.arange(outer), np.array(leaf_targetids)] = leaf_weights
    each = ctx.call(Gather(axis=0), ctx.constant(weights), leaves(ctx, forest, x))
    total = ctx.call(Reduce(kind=kind, axes=(1,), keepdims=False), each)
    if aggregate_function == 0:
        total = ctx.call(Mul(), total, ctx.scalar(1 / len(roots), total.type.dtype))
    return transformed(ctx, total, _TRANSFORMS[post_transform])


def _members(ctx: Context, modes: Sequence[int], leaves: int, values: Array | None) -> Array:
    """The set of each node, of equal length; NaN ends a set, and is no member of any."""
    testing = [i for i, mode in enumerate(modes) if _MODES[mode] == MEMBER]
    if not testing:
        return np.zeros((0, 0))
    if values is None:
        ctx.refuse("membership_values are missing")
    ended = itertools.groupby(values.tolist(), key=lambda v: v != v)
    sets = [list(group) for is_end, group in ended if not is_end]
    if len(sets) != len(testing):
        ctx.refuse(f"{len(sets)} sets of members for {len(testing)} nodes")
    table = np.full((len(modes) + leaves, max(map(len, sets))), np.nan, values.dtype)
    for node, members in zip(testing, sets, strict=True):
        table[node, : len(members)] = members
    return table
