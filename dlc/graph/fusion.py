"""Which nodes become one kernel. Rules are about how operators touch elements (`Fuse`), never
about operator names.

A group grows from a root (a contraction, a reduction or an elementwise node) along its result:
an elementwise user joins when everything that reads the result ends up inside the group. What
feeds an elementwise group alone, element by element, joins it too, so that its paths meet. What
only moves elements (slices, transposes) is copied into the groups that read it, as index
arithmetic. Reshapes stay between groups: they rename memory and cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dlc.graph.copied import copied_nodes, joins_anchor
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.op import Fuse, Op
from dlc.graph.ops.bind_sizes import BindSizes
from dlc.graph.ops.bits import BitCast
from dlc.graph.ops.checked_indices import CheckedIndices
from dlc.graph.ops.shape import Empty, Insert, Pad, Reshape
from dlc.graph.ops.text import TextOp
from dlc.te.types import same_shape

MAX_GROUP_NODES = 24
MAX_REGION_NODES = 16


Decide = Callable[[Node, Sequence[Sequence[Node]]], int]
"""How many of the regions that could join the group of a root do so."""


def join_all(root: Node, regions: Sequence[Sequence[Node]]) -> int:
    """The depth of fusion that is best as a rule: nothing is written that need not be."""
    return len(regions)


def copy_all(view: Node) -> bool:
    """As a rule no view is stored: those that read it look its elements up by themselves."""
    return False


def groups(
    graph: Graph,
    depth: Decide = join_all,
    is_stored: Callable[[Node], bool] = copy_all,
    *,
    widens_halves: bool = True,
) -> list[tuple[Node, ...]]:
    """Partition the nodes into kernels, each in execution order; see `is_free` for the rest.

    Views copied into their readers are part of several groups; `is_stored` says which of those that
    could be are not. `widens_halves` says whether 16-bit floats are read as such by kernels that
    compute with float32.
    """
    views = copied_nodes(graph, is_stored, widens_halves=widens_halves, reach=MAX_GROUP_NODES)
    return _Grouping(graph, depth, views).run()


_FREE = Reshape | BitCast | CheckedIndices | Empty | BindSizes | TextOp


def is_free(node: Node) -> bool:
    """Whether a node needs no kernel: the host renames or reserves memory, binds sizes, or calls a
    function of the runtime.
    """
    return isinstance(node.op, _FREE)


class _Grouping:
    def __init__(self, graph: Graph, depth: Decide, views: set[int]) -> None:
        self.graph = graph
        self.depth = depth
        self.position = {id(n): i for i, n in enumerate(graph.nodes)}
        self.outputs = set(graph.outputs)
        self.taken: set[int] = set()  # ids of nodes that are in a group
        self.views = views  # ids of nodes copied into their readers

    def run(self) -> list[tuple[Node, ...]]:
        found: list[list[Node]] = []
        order = (Fuse.ANCHOR, Fuse.REDUCTION, Fuse.ELEMENTWISE, Fuse.INJECTIVE, Fuse.OPAQUE)
        for kind in order:
            for node in self.graph.nodes:
                free = id(node) in self.taken or id(node) in self.views or is_free(node)
                if node.op.fuse is kind and not free:
                    found.append(self._grow(node))
        complete = [self._with_views(members) for members in found]
        return sorted(complete, key=lambda g: self.position[id(g[-1])])

    def _grow(self, root: Node) -> list[Node]:
        regions = self._regions(root)
        joined = regions[: self.depth(root, regions)]
        members = [root, *(node for region in joined for node in region)]
        self.taken.update(map(id, members))
        if root.op.fuse is Fuse.ELEMENTWISE:
            self._add_feeders(members)
        return members

    def _add_feeders(self, members: list[Node]) -> None:
        """Add elementwise nodes that nothing outside of a group reads; they cannot depend on it."""
        inside = {id(m) for m in members}
        pending = list(members)
        while pending and len(members) < MAX_GROUP_NODES:
            node = pending.pop(0)
            feeders = {id(p): p for v in node.inputs if (p := self._feeder(v, node, inside))}
            for feeder in list(feeders.values())[: MAX_GROUP_NODES - len(members)]:
                members.append(feeder)
                pending.append(feeder)
                inside.add(id(feeder))
                self.taken.add(id(feeder))

    def _feeder(self, value: Value, reader: Node, inside: set[int]) -> Node | None:
        """The node that makes an operand, if it may join the group that reads it."""
        node = self.graph.producers.get(value)
        both = (reader.op.fuse, node.op.fuse if node is not None else None)
        if node is None or both != (Fuse.ELEMENTWISE, Fuse.ELEMENTWISE) or value in self.outputs:
            return None
        if id(node) in self.taken or id(node) in self.views:
            return None
        if any(id(u) not in inside for u in self.graph.users.get(value, ())):
            return None
        return node if same_shape(value.type.shape, reader.output.type.shape) else None

    def _regions(self, root: Node) -> list[list[Node]]:
        """What could join the group of a root, one region after the other."""
        members, found = [root], list[list[Node]]()
        while len(members) < MAX_GROUP_NODES and self._may_continue(members[-1]):
            region = self._closed_region(members[-1].output, {id(m) for m in members})
            if region is None:
                break
            members.extend(region)
            found.append(region)
        return found

    def _may_continue(self, last: Node) -> bool:
        return len(last.outputs) == 1 and not isinstance(last.op, Insert)

    def _closed_region(self, value: Value, members: set[int]) -> list[Node] | None:
        """The nodes to add so that all that read `value` are inside, and one result leaves.

        The first region is the single reader; with several readers, the elementwise nodes up to
        the one where all paths meet again.
        """
        if value in self.outputs:
            return None
        region: list[Node] = []
        pending = sorted(self.graph.users.get(value, ()), key=lambda n: self.position[id(n)])
        inside = set(members)
        while pending and len(region) < MAX_REGION_NODES:
            node = pending.pop(0)
            if id(node) in inside:
                continue
            first = not region and not pending
            if not self._can_join(node, value, alone=first) or not self._ready(node, inside, value):
                return None
            region.append(node)
            inside.add(id(node))
            if not pending:
                return region if not self._leaks(region[:-1], inside) else None
            if node.output in self.outputs:
                return None
            pending = sorted(
                {id(n): n for n in (*pending, *self.graph.users.get(node.output, ()))}.values(),
                key=lambda n: self.position[id(n)],
            )
        return None

    def _leaks(self, nodes: Iterable[Node], inside: set[int]) -> bool:
        for node in nodes:
            users = self.graph.users.get(node.output, ())
            if node.output in self.outputs or any(id(u) not in inside for u in users):
                return True
        return False

    def _can_join(self, node: Node, value: Value, *, alone: bool) -> bool:
        if id(node) in self.taken or id(node) in self.views or len(node.outputs) != 1:
            return False
        if isinstance(self._maker(value), Pad) and not isinstance(node.op, Insert):
            return False  # what is placed is where it stays, or goes into something larger
        if node.op.fuse is Fuse.ELEMENTWISE:
            return same_shape(node.output.type.shape, value.type.shape)
        if not alone or not node.inputs:
            return False
        if isinstance(node.op, Pad):
            return node.op.mode == "constant"
        if isinstance(node.op, Insert):
            return node.inputs[1] == value and node.inputs[0] != value
        return joins_anchor(self.graph, node)

    def _maker(self, value: Value) -> Op | None:
        producer = self.graph.producers.get(value)
        return None if producer is None else producer.op

    def _ready(self, node: Node, inside: set[int], value: Value) -> bool:
        """Whether the node's other operands do not depend on the group through the outside.

        All readers of each inner value are inside, so only operands computed from `value` could.
        """
        for operand in node.inputs:
            producer = self.graph.producers.get(operand)
            if producer is None or id(producer) in inside:
                continue
            if self._depends(producer, inside):
                return False
        return True

    def _depends(self, node: Node, inside: set[int]) -> bool:
        lowest = min(self.position[i] for i in inside)
        stack, seen = [node], set()
        while stack:
            current = stack.pop()
            if id(current) in inside:
                return True
            if id(current) in seen or self.position[id(current)] < lowest:
                continue
            seen.add(id(current))
            stack += [p for v in current.inputs if (p := self.graph.producers.get(v)) is not None]
        return False

    def _with_views(self, members: list[Node]) -> tuple[Node, ...]:
        """Add copies of the views that the members read, and put all in execution order."""
        chosen = {id(n): n for n in members}
        stack = list(members)
        while stack:
            for operand in stack.pop().inputs:
                producer = self.graph.producers.get(operand)
                if producer is not None and id(producer) in self.views:
                    if id(producer) not in chosen:
                        stack.append(producer)
                    chosen[id(producer)] = producer
        return tuple(sorted(chosen.values(), key=lambda n: self.position[id(n)]))
