"""Groups of nodes that become one: what they have together, and whether a rule takes that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType

from dlc.core.target import Target
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.lower import lower_group
from dlc.graph.ops.shape import Insert
from dlc.graph.sizes import bound_sizes
from dlc.schedule.rules import prepare
from dlc.schedule.trace import Trace

Group = tuple[Node, ...]


def in_order(graph: Graph, members: Iterable[Node]) -> Group:
    """Some nodes of a graph in execution order, each once."""
    position = {id(n): i for i, n in enumerate(graph.nodes)}
    return tuple(sorted({id(n): n for n in members}.values(), key=lambda n: position[id(n)]))


def made_alone(graph: Graph, reader: Node | None, made: Mapping[Value, int]) -> int | None:
    """The group that makes the first operand of a node for it alone, and all of it."""
    if reader is None or not reader.inputs:
        return None
    value = reader.inputs[0]
    maker = graph.producers.get(value)
    if maker is None or isinstance(maker.op, Insert):
        return None  # the other parts of what it is put into are made elsewhere
    alone = graph.users.get(value, ()) == (reader,) and value not in graph.outputs
    return made.get(value) if alone else None


def matches(rules: Sequence[ModuleType], graph: Graph, members: Group, target: Target) -> bool:
    """Whether one of the rules takes the nests that some nodes have together.

    None does where one memory is what they read and, as a concatenation, what they write.
    """
    sizes = (*graph.sizes, *bound_sizes(graph.nodes))
    trace = Trace(lower_group(group_body(sizes, members, "joined"), "kernel"))
    if trace.attempt(prepare, target) is not None:
        return False
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
