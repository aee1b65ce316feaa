"""Groups that save a GPU launches by being one kernel.

A launch costs as much as a small kernel, so groups are joined wherever the schedule of both has
fewer launches than they have apart. That is asked of the rules themselves: what they can do is
written nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlc.core.target import Target
from dlc.graph.graph import Graph, Node
from dlc.graph.joined import copied_nodes, group_body, kept_values
from dlc.graph.lower import lower_group
from dlc.graph.op import Fuse
from dlc.graph.ops.shape import Insert, Pad, Reshape
from dlc.graph.sizes import bound_sizes
from dlc.schedule.gpu import split_launches
from dlc.schedule.loop import Func
from dlc.schedule.nest import is_cheap, stages
from dlc.schedule.rules import gpu_norm, prepare, rule_for, schedule_func
from dlc.schedule.trace import Trace
from dlc.te.simplify import surely_equal

Group = tuple[Node, ...]
MAX_NODES = 24
_JOINED = (Fuse.ANCHOR, Fuse.REDUCTION, Fuse.ELEMENTWISE, Fuse.INJECTIVE)
_PLACED = (Insert, Pad)  # write a part of something larger


def join_launches(graph: Graph, groups: Sequence[Group], target: Target) -> list[Group]:
    """The groups, pairs of which become one where that saves a launch."""
    return _Joining(graph, list(groups), target).run()


class _Joining:
    def __init__(self, graph: Graph, groups: list[Group], target: Target) -> None:
        self.graph = graph
        self.groups = groups
        self.copied = copied_nodes(groups)
        self.target = target
        self.sizes = (*graph.sizes, *bound_sizes(graph.nodes))
        self.position = {id(n): i for i, n in enumerate(graph.nodes)}
        self.known: dict[str, int] = {}  # launches, by the text of a group

    def run(self) -> list[Group]:
        """Join each group with the one that alone reads it, in order, as long as that helps."""
        number = 0
        while number < len(self.groups):
            found = self._reader(self.groups[number])
            joined = None if found is None else self._joined(number, *found)
            if joined is None or found is None:
                number += 1
            else:
                self.groups[found[0]] = joined
                del self.groups[number]
        return self.groups

    def _reader(self, group: Group) -> tuple[int, Group] | None:
        """The first group that reads what a group makes, and the reshapes in between.

        Other readers come later, and read what the joined group keeps: not through reshapes.
        """
        if len(group[-1].outputs) != 1:
            return None
        value, between = group[-1].output, []
        users = self.graph.users.get(value, ())
        while len(users) == 1 and isinstance(users[0].op, Reshape):
            if value in self.graph.outputs:
                return None
            between.append(users[0])
            value = users[0].output
            users = self.graph.users.get(value, ())
        ids = {id(n) for n in users}
        readers = [n for n, g in enumerate(self.groups) if ids & {id(m) for m in g}]
        first = min(readers, key=self._place, default=None)
        if first is None or self.groups[first] is group:
            return None
        others = ids - {id(m) for m in self.groups[first]}
        if any(self.position[n] < self._place(first) for n in others):
            return None
        is_kept = bool(others) or len(readers) > 1 or value in self.graph.outputs
        return None if is_kept and between else (first, tuple(between))

    def _place(self, number: int) -> int:
        """Where a group runs: at the place of its last node."""
        return self.position[id(self.groups[number][-1])]

    def _joined(self, number: int, reader: int, between: Group) -> Group | None:
        """Both as one group, if that saves a launch."""
        first, second = self.groups[number], self.groups[reader]
        if not self._may_join(first, second):
            return None
        members = {id(n): n for n in (*first, *between, *second)}
        if len(members) > MAX_NODES:
            return None
        joined = tuple(sorted(members.values(), key=lambda n: self.position[id(n)]))
        if kept_values(self.graph, joined, self.copied) and Fuse.ANCHOR not in _kinds(first):
            return None  # only a product whose rows are normalised keeps them
        if Fuse.ANCHOR in _kinds(first) and not self._is_norm(joined):
            return None
        apart = self._launches(first) + self._launches(second)
        return joined if self._launches(joined) < apart else None

    def _is_norm(self, group: Group) -> bool:
        """Whether the rule for norms takes a product with a reduction behind it.

        Any other would give each row to one block, which multiplies it by itself.
        """
        trace = Trace(self._lowered(group))
        prepare(trace, self.target)
        return rule_for(trace.func, self.target) is gpu_norm

    def _launches(self, group: Group) -> int:
        func = self._lowered(group)
        key = str(func)
        if key not in self.known:
            self.known[key] = len(split_launches(schedule_func(func, self.target, {}).func).funcs)
        return self.known[key]

    def _lowered(self, group: Group) -> Func:
        kept = kept_values(self.graph, group, self.copied)
        return lower_group(group_body(self.sizes, group, "kernel", kept), "kernel")

    def _may_join(self, first: Group, second: Group) -> bool:
        """Whether the second computes no element of the first again, unless that is no work."""
        if any(n.op.fuse not in _JOINED or isinstance(n.op, _PLACED) for n in (*first, *second)):
            return False
        if any(len(n.outputs) != 1 for n in (*first, *second)):
            return False
        if Fuse.ANCHOR in _kinds(first):
            return Fuse.REDUCTION in _kinds(second) and Fuse.ANCHOR not in _kinds(second)
        kinds = _kinds(first)
        if not kinds <= {Fuse.ELEMENTWISE, Fuse.INJECTIVE} or Fuse.ANCHOR in _kinds(second):
            return False
        made, wanted = first[-1].output.type.elems, second[-1].output.type.elems
        if surely_equal(made, wanted):
            return True
        return all(is_cheap(s.value) for s in stages(self._lowered(first)))


def _kinds(group: Group) -> set[Fuse]:
    return {n.op.fuse for n in group}
