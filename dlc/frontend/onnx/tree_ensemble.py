"""The converter of TreeEnsemble, which has trees in another form since version 5 of ai.onnx.ml.

Source: https://onnx.ai/onnx/operators/onnx_aionnxml_TreeEnsemble.html
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.trees import (
    DOMAIN,
    MOST_WEIGHTS,
    TESTS,
    Forest,
    check_features,
    depth_of,
    leaves,
    total_of,
    transformed,
)
from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.binary import Mul

_MODES = tuple(TESTS)
_MEMBER = len(_MODES)
_LEAF = _MEMBER + 1
_EQUAL = _MODES.index("BRANCH_EQ")
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
    missing = nodes_missing_value_tracks_true or [0] * inner
    columns = (
        nodes_splits, nodes_modes, nodes_trueleafs, nodes_falseleafs, nodes_truenodeids,
        nodes_falsenodeids, missing,
    )  # fmt: skip
    if any(len(c) != inner for c in columns) or outer != leaf_weights.size:
        ctx.refuse("the attributes of its nodes differ in length")

    def targets(ids: Sequence[int], ends: Sequence[int]) -> list[int]:
        found = np.array(ids, np.int64) + inner * (np.array(ends, np.int64) != 0)
        beyond = np.where(np.array(ends) != 0, inner + outer, inner)
        if inner and not ((np.array(ids) >= 0) & (found < beyond)).all():
            ctx.refuse("a node leads to a node that is not there")
        return [*found.tolist(), *range(inner, inner + outer)]

    modes = [int(m) for m in nodes_modes]
    roots = np.array(tree_roots, np.int64)
    if any(not 0 <= m <= _MEMBER for m in modes) or not ((roots >= 0) & (roots < inner)).all():
        ctx.refuse("a node has an unknown mode, or a root is not there")
    nodes = _Nodes(
        modes=[*modes, *[_LEAF] * outer],
        features=[*nodes_featureids, *[0] * outer],
        thresholds=[*nodes_splits.tolist(), *[0.0] * outer],
        yes=targets(nodes_truenodeids, nodes_trueleafs),
        no=targets(nodes_falsenodeids, nodes_falseleafs),
        missing=[*missing, *[0] * outer],
    )
    for node, members in _members(ctx, modes, membership_values):
        nodes.ask_one_by_one(node, members)
    forest = nodes.forest(ctx, roots)
    count = len(forest.yes)
    kind, nothing = _AGGREGATES[aggregate_function]
    if count * n_targets > MOST_WEIGHTS or not all(0 <= t < n_targets for t in leaf_targetids):
        ctx.refuse(f"leaves of {n_targets} targets lead to others, or are too many")
    weights = np.full((count, n_targets), nothing, leaf_weights.dtype)
    weights[inner + np.arange(outer), np.array(leaf_targetids)] = leaf_weights
    total = total_of(ctx, weights, leaves(ctx, forest, x), kind)
    if aggregate_function == 0:
        total = ctx.call(Mul(), total, ctx.scalar(1 / len(roots), total.type.dtype))
    return transformed(ctx, total, _TRANSFORMS[post_transform])


@dataclass
class _Nodes:
    """Columns of nodes, to which some are added."""

    modes: list[int]
    features: list[int]
    thresholds: list[float]
    yes: list[int]
    no: list[int]
    missing: list[int]

    def ask_one_by_one(self, node: int, members: Sequence[float]) -> None:
        """Tests for each member of a set instead of one for all: where one fails is the next."""
        self.modes[node], self.thresholds[node] = _EQUAL, members[0]
        last, otherwise = node, self.no[node]
        for member in members[1:]:
            self.no[last] = last = len(self.no)
            self.thresholds.append(member)
            self.no.append(otherwise)
            for column in (self.modes, self.features, self.yes, self.missing):
                column.append(column[node])

    def forest(self, ctx: Context, roots: Array) -> Forest:
        """The trees from these roots."""
        yes, no, modes = np.array(self.yes), np.array(self.no), np.array(self.modes)
        return Forest(
            roots=roots,
            depth=depth_of(ctx, roots, yes, no),
            modes={_MODES[m]: modes == m for m in sorted(set(self.modes) - {_LEAF})},
            features=np.array(self.features, np.int64),
            thresholds=np.array(self.thresholds),
            yes=yes,
            no=no,
            missing_is_yes=np.array(self.missing) != 0,
            position={},
        )


def _members(
    ctx: Context, modes: Sequence[int], values: Array | None
) -> Iterator[tuple[int, list[float]]]:
    """Each node that tests for members, and its set; NaN ends a set, and is no member of any."""
    testing = [i for i, mode in enumerate(modes) if mode == _MEMBER]
    if not testing:
        return iter(())
    if values is None:
        ctx.refuse("membership_values are missing")
    ended = itertools.groupby(values.tolist(), key=lambda v: v != v)
    sets = [list(group) for is_end, group in ended if not is_end]
    if len(sets) != len(testing):
        ctx.refuse(f"{len(sets)} sets of members for {len(testing)} nodes")
    return zip(testing, sets, strict=True)
