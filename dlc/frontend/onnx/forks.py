"""An If of which only a run knows the rank of a result: what follows it goes on in its branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dlc.core.errors import ShapeError, UnsupportedOperator
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.loops import RanksDiffer, branch, only_branch
from dlc.frontend.onnx.model import OnnxGraph, OnnxNode, OnnxValue
from dlc.frontend.onnx.order import reads
from dlc.graph.graph import Value


def results_behind(
    ctx: Context, found: RanksDiffer, rest: Sequence[OnnxNode], wanted: Sequence[OnnxValue]
) -> tuple[Value, ...] | None:
    """What the nodes behind an If make of its results, in each branch by themselves.

    None where neither branch can go on so.
    """
    then, other = (_continued(ctx.node, graph, rest, wanted) for graph in found.branches)
    if then is None or other is None:
        return None
    try:
        return branch(ctx, found.cond, then, other)
    except RanksDiffer as still:
        return of_wanted_rank(ctx, still)
    except (UnsupportedOperator, ShapeError):
        return None


def of_wanted_rank(ctx: Context, found: RanksDiffer) -> tuple[Value, ...]:
    """The results of one branch alone; a run refuses to need the other one.

    It is the one that gives the ranks that the graph declares, or else the one of lower rank:
    exporters write "remove this axis if its size is 1" so.
    """
    ranks = [tuple(t.rank for t in types) for types in found.results]
    fits = [
        all(v.dims is None or len(v.dims) == n for v, n in zip(graph.outputs, own, strict=False))
        for graph, own in zip(found.branches, ranks, strict=True)
    ]
    kept = fits.index(True) if fits[0] != fits[1] else int(ranks[1] < ranks[0])
    left, have = (", ".join(map(str, found.results[i])) for i in (1 - kept, kept))
    reason = f"its result would be {left}, and a result has one rank: that of {have}"
    return only_branch(ctx, found.cond, kept == 0, found.branches[kept], reason)


def _continued(
    node: OnnxNode, graph: OnnxGraph, rest: Sequence[OnnxNode], wanted: Sequence[OnnxValue]
) -> OnnxGraph | None:
    """A branch of an If that goes on with the nodes behind it.

    None where a name of the branch is another value's behind it.
    """
    passed = [
        OnnxNode("", "", "Identity", node.opset, (own.name,), (name,), {})
        for own, name in zip(graph.outputs, node.outputs, strict=False)
        if name
    ]
    inside = {name for inner in graph.nodes for name in inner.outputs if name} | {*graph.constants}
    behind = {name for outer in (node, *rest) for name in outer.outputs if name}
    needed = {name for outer in rest for name in reads(outer)} | {v.name for v in wanted}
    if inside & (behind | needed):
        return None
    return replace(graph, nodes=(*graph.nodes, *passed, *rest), outputs=tuple(wanted))
