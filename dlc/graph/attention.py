"""Which groups are one attention: scores, what is done to their rows, and the mixing of values.

The three stay apart in `groups`, because each has a loop nest of its own. They become one kernel
where the schedule rule for attention takes the nests that they have together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import ModuleType

from dlc.core.target import Target
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.lower import lower_group
from dlc.graph.op import Fuse, Op
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.pairs_computed import MatMulPairsComputed
from dlc.graph.ops.planes import ROWS
from dlc.graph.ops.planes_pair import MatMulPair, why_not_pair
from dlc.graph.ops.shape import Insert
from dlc.graph.sizes import bound_sizes
from dlc.schedule.rules import attend, attend_planes, gpu_attend, gpu_online, prepare
from dlc.schedule.trace import Trace
from dlc.te.simplify import surely_less
from dlc.te.types import is_const

Group = tuple[Node, ...]

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
        members = {id(n): n for part in parts for n in groups[part]} | {id(n): n for n in group}
        position = {id(n): i for i, n in enumerate(graph.nodes)}
        joined = tuple(sorted(members.values(), key=lambda n: position[id(n)]))
        forms = (
            (_on_engine(joined, planes), (attend_planes,)),
            (_on_pairs(joined) if pairs else (), rules),
            (joined, rules),
        )
        chosen = next((m for m, by in forms if m and _matches(by, graph, m, target)), None)
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
    second = _maker(graph, mixing, made)
    weighting = None if second is None else _root(groups[second], Fuse.REDUCTION)
    first = _maker(graph, weighting, made)
    if first is None or second is None or _root(groups[first], Fuse.ANCHOR) is None:
        return None
    shapes = [groups[part][-1].outputs[0].type.shape for part in (first, second)]
    return (first, second) if shapes[0] == shapes[1] and len(shapes[0]) > 2 else None


def _root(group: Group, kind: Fuse) -> Node | None:
    """The one node of a group that is no view and not element by element, if it is of a kind."""
    roots = [n for n in group if n.op.fuse not in (Fuse.ELEMENTWISE, Fuse.INJECTIVE)]
    return roots[0] if len(roots) == 1 and roots[0].op.fuse is kind else None


def _maker(graph: Graph, reader: Node | None, made: dict[Value, int]) -> int | None:
    """The group that makes the first operand of a node for it alone, and all of it."""
    if reader is None or not reader.inputs:
        return None
    value = reader.inputs[0]
    maker = graph.producers.get(value)
    if maker is None or isinstance(maker.op, Insert):
        return None  # the other parts of what it is put into are made elsewhere
    alone = graph.users.get(value, ()) == (reader,) and value not in graph.outputs
    return made.get(value) if alone else None


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


def _matches(rules: Sequence[ModuleType], graph: Graph, members: Group, target: Target) -> bool:
    """Whether one of the rules takes the nests that some nodes have together."""
    sizes = (*graph.sizes, *bound_sizes(graph.nodes))
    trace = Trace(lower_group(group_body(sizes, members, "attention"), "kernel"))
    prepare(trace, target)
    return any(rule.match(trace.func, target) is not None for rule in rules)


def group_body(
    sizes: tuple[str, ...], members: Group, name: str, kept: tuple[Value, ...] = ()
) -> Graph:
    """The graph of a group: its inputs are what its members read and do not make.

    Its outputs are what the last member makes, and before it what is kept of the others.
    """
    made = {v for n in members for v in n.outputs}
    inputs = tuple(dict.fromkeys(v for n in members for v in n.inputs if v not in made))
    return Graph(name, sizes, inputs, members, (*kept, *members[-1].outputs))


def copied_nodes(found: Iterable[Group]) -> frozenset[int]:
    """The ids of nodes that several groups compute, each for itself."""
    counts = Counter(id(n) for group in found for n in group)
    return frozenset(node for node, count in counts.items() if count > 1)


def kept_values(graph: Graph, members: Group, copied: frozenset[int]) -> tuple[Value, ...]:
    """What a group alone makes before its last member, and others read.

    A reader that several groups compute reads it in the others, too.
    """
    made = {v for n in members for v in n.outputs}  # a member may stand for a node of the graph
    wanted = set(graph.outputs)
    found = (v for n in members[:-1] if id(n) not in copied for v in n.outputs)
    return tuple(
        v
        for v in found
        if v in wanted
        or any(id(u) in copied or not made.issuperset(u.outputs) for u in graph.users.get(v, ()))
    )
