"""Which kernels become one that computes a strip of lines after the other.

A depthwise convolution writes an image that a pointwise one reads at once: see
`schedule/rules/window_contract.py`.
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
from dlc.schedule.rules import window_contract
from dlc.te.types import is_const

APART, STRIPS = "apart", "strips"  # the ways


def join_strips(graph: Graph, groups: Sequence[Group], context: PassContext) -> list[Group]:
    """The groups, of which two become one where strips of lines pass both."""
    made = {group[-1].outputs[0]: number for number, group in enumerate(groups)}
    result = dict(enumerate(groups))
    for number, group in enumerate(groups):
        first = _windows(graph, group, made)
        if first is None or not any(isinstance(n.op, DepthwiseBlocked) for n in groups[first]):
            continue
        joined = in_order(graph, (*groups[first], *group))
        if not matches((window_contract,), graph, joined, context.target):
            continue
        ways = ((groups[first], group), (joined,))
        way = decide(
            context, graph, joined, kind="strips", version=1, options=(APART, STRIPS),
            default=STRIPS, cycles=partial(_cycles, ways, context.target),
        )  # fmt: skip
        if way == STRIPS:
            result[number] = joined
            del result[first]
    return list(result.values())


def _cycles(ways: Sequence[Sequence[Group]], target: Target) -> tuple[float, ...]:
    """The times of some ways, by their kernels."""
    return tuple(sum(node_cycles(group, target) for group in way) for way in ways)


def _windows(graph: Graph, group: Group, made: Mapping[Value, int]) -> int | None:
    """The group that makes, for this one alone, the image that it multiplies pixel by pixel."""
    products = [n for n in group if isinstance(n.op, ConvBlocked)]
    return (
        made_alone(graph, products[0], made)
        if list(map(is_pointwise, products)) == [True]
        else None
    )


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
