"""Which groups are one attention: scores, what is done to their rows, and the mixing of values.

The three stay apart in `groups`, because each has a loop nest of its own. They become one kernel
where the schedule rule for attention takes the nests that they have together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dlc.core.target import Target
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.joined import Group, in_order, made_alone, matches
from dlc.graph.op import Fuse, Op
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.pairs_computed import MatMulPairsComputed
from dlc.graph.ops.planes import ROWS
from dlc.graph.ops.planes_pair import MatMulPair, why_not_pair
from dlc.schedule.rules import attend, attend_planes, gpu_attend, gpu_online
from dlc.te.simplify import surely_less
from dlc.te.types import is_const

MAX_PLANES = 2
"""Of operands split at run time: with three, six products take longer than multiply-adds."""


def join_attention(
    graph: Graph,
    groups: Sequence[Group],
    target: Target,
    planes: int = 0,
    *,
    pairs: bool = False,
) -> list[Group]:
    """The groups, of which three become one where they are an attention.

    Its products are of `planes` bf16 planes where a rule for a matrix engine takes them, or of
    `pairs` of bf16 in vectors.
    """
    rules = (attend,) if target.gpu is None else (gpu_attend, gpu_online)
    made = {group[-1].outputs[0]: number for number, group in enumerate(groups)}
    result = dict(enumerate(groups))
    for number, group in enumerate(groups):
        parts = _parts(graph, group, groups, made)
        if parts is None:
            continue
        joined = in_order(graph, (*(n for part in parts for n in groups[part]), *group))
        forms = (
            (_on_engine(joined, planes), (attend_planes,)),
            (_on_pairs(joined) if pairs else (), rules),
            (joined, rules),
        )
        chosen = next((m for m, by in forms if m and matches(by, graph, m, target)), None)
        if chosen is None:
            continue
        result[number] = chosen
        for part in parts:
            del result[part]
    return list(result.values())


def _parts(
    graph: Graph, group: Group, groups: Sequence[Group], made: dict[Value, int]
) -> tuple[int, int] | None:
    """The groups of the scores and of the weights that the values of this group are mixed by."""
    mixing = _root(group, Fuse.ANCHOR)
    second = made_alone(graph, mixing, made)
    weighting = None if second is None else _root(groups[second], Fuse.REDUCTION)
    first = made_alone(graph, weighting, made)
    if first is None or second is None or _root(groups[first], Fuse.ANCHOR) is None:
        return None
    shapes = [groups[part][-1].outputs[0].type.shape for part in (first, second)]
    return (first, second) if shapes[0] == shapes[1] and len(shapes[0]) > 2 else None


def _root(group: Group, kind: Fuse) -> Node | None:
    """The one node of a group that is no view and not element by element, if it is of a kind."""
    roots = [n for n in group if n.op.fuse not in (Fuse.ELEMENTWISE, Fuse.INJECTIVE)]
    return roots[0] if len(roots) == 1 and roots[0].op.fuse is kind else None


def _on_engine(members: Group, planes: int) -> Group:
    """The nodes with products of planes, where both can be; else none."""
    if not 1 <= planes <= MAX_PLANES:
        return ()
    return _with_products(members, MatMulPair(planes=planes))


def _on_pairs(members: Group) -> Group:
    """The nodes with products of pairs in vectors, where both can be; else none.

    Sixteen columns would be taken for those of an engine's tile.
    """
    found = _with_products(members, MatMulPairsComputed())
    products = [n for n in found if isinstance(n.op, MatMulPairsComputed)]
    return () if any(is_const(n.output.type.shape[-1], ROWS) for n in products) else found


def _with_products(members: Group, op: Op) -> Group:
    """The nodes with both products by an operator, where it takes them; else none."""
    products = [n for n in members if isinstance(n.op, MatMul)]
    few = (n.output.type.shape[-2] for n in products)
    if len(products) != 2 or any(surely_less(m, ROWS) for m in few):
        return ()
    if any(why_not_pair(*(v.type for v in n.inputs)) for n in products):
        return ()
    return tuple(replace(n, op=op) if n in products else n for n in members)
