"""Which kernels become one that computes a strip of lines after the other.

A depthwise convolution writes an image that a pointwise one reads at once: see
`schedule/rules/window_contract.py`. Where a pointwise one makes what it reads, a large image, all
three are one: see `schedule/rules/contract_window.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from dlc.core.target import Target
from dlc.graph.estimate import node_cycles
from dlc.graph.forks import decide
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.joined import Group, in_order, made_alone, matches
from dlc.graph.op import Fuse
from dlc.graph.ops.conv_blocked import ConvBlocked, DepthwiseBlocked
from dlc.graph.pass_ import PassContext
from dlc.schedule.rules import contract_window, window_contract
from dlc.te.types import is_const

APART, STRIPS, RING = "apart", "strips", "ring"  # the ways
RULES = {STRIPS: window_contract, RING: contract_window}


def join_strips(graph: Graph, groups: Sequence[Group], context: PassContext) -> list[Group]:
    """The groups, of which two become one where strips of lines pass both, three with a ring."""
    made = {group[-1].outputs[0]: number for number, group in enumerate(groups)}
    result = dict(enumerate(groups))
    for number, group in enumerate(groups):
        first = made_alone(graph, _product(group), made)
        window = None if first is None else _window(groups[first])
        if first is None or window is None:
            continue
        parts = {APART: (number,), STRIPS: (first, number)}
        before = made_alone(graph, window, made)
        if before in result:
            parts[RING] = (before, first, number)
        way, result[number] = _choose(graph, result, parts, context)
        for part in parts[way][:-1]:
            del result[part]
    return list(result.values())


def passing(group: Group) -> list[Node]:
    """The contractions of a group that read what those before them make: not from memory."""
    contractions = [n for n in group if n.op.fuse is Fuse.ANCHOR]
    made = {v for n in group for v in n.outputs}
    return [n for n in contractions[1:] if n.inputs and n.inputs[0] in made]


def _choose(
    graph: Graph,
    groups: Mapping[int, Group],
    parts: Mapping[str, tuple[int, ...]],
    context: PassContext,
) -> tuple[str, Group]:
    """Which way to take, and the kernel of its parts, which are some of the groups."""
    joined = {
        way: in_order(graph, (node for part in some for node in groups[part]))
        for way, some in parts.items()
    }
    ways = tuple(
        way
        for way, group in joined.items()
        if way == APART or matches((RULES[way],), graph, group, context.target)
    )
    most = ways[-1]
    kernels = [
        (joined[way], *(groups[part] for part in parts[most] if part not in parts[way]))
        for way in ways
    ]
    way = decide(
        context, graph, joined[most], kind="strips", version=1, options=ways, default=most,
        cycles=partial(_cycles, kernels, context.target),
    )  # fmt: skip
    return way, joined[way]


def _cycles(ways: Sequence[Sequence[Group]], target: Target) -> tuple[float, ...]:
    """The times of some ways, by their kernels."""
    return tuple(sum(node_cycles(group, target) for group in way) for way in ways)


def _product(group: Group) -> Node | None:
    """The only convolution of a group that multiplies, if it does so pixel by pixel."""
    products = [n for n in group if isinstance(n.op, ConvBlocked)]
    return products[0] if list(map(is_pointwise, products)) == [True] else None


def _window(group: Group) -> Node | None:
    """The depthwise convolution of a group, or None."""
    return next((n for n in group if isinstance(n.op, DepthwiseBlocked)), None)


def is_pointwise(node: Node) -> bool:
    """Whether a node multiplies a blocked image pixel by pixel."""
    if not isinstance(node.op, ConvBlocked) or max(node.op.stride) > 1:
        return False
    return all(is_const(k, 1) for k in node.inputs[1].type.shape[2:-2])


def passes_in_strips(graph: Graph, image: Value) -> bool:
    """Whether an image may never be in memory, as a strip of it is multiplied while it is near."""
    readers = graph.users.get(image, ())
    if len(readers) != 1 or not is_pointwise(readers[0]):
        return False
    node = graph.producers.get(image)
    while node is not None and node.op.fuse is Fuse.ELEMENTWISE:
        node = graph.producers.get(node.inputs[0])
    return node is not None and isinstance(node.op, DepthwiseBlocked)
