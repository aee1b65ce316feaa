"""Which nodes become one kernel. Rules are about how operators touch elements (`Fuse`), never
about operator names.

A group grows from a root (a contraction, a reduction or an elementwise node) along its result:
an elementwise user joins when everything that reads the result ends up inside the group. What
feeds an elementwise group alone, element by element, joins it too, so that its paths meet. What
only moves elements (slices, transposes) is copied into the groups that read it, as index
arithmetic. Reshapes stay between groups: they rename memory and cost nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from dlc.core.types import DType
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.op import Fuse, Op
from dlc.graph.ops.binary import Add, Mul, Sub
from dlc.graph.ops.bind_sizes import BindSizes
from dlc.graph.ops.bits import BitCast
from dlc.graph.ops.checked_indices import CheckedIndices
from dlc.graph.ops.conv_blocked import ConvBlocked, DepthwiseBlocked
from dlc.graph.ops.elementwise import Cast
from dlc.graph.ops.from_sizes import Range
from dlc.graph.ops.layout import Interleave
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.narrow import Widen
from dlc.graph.ops.pairs import ConvPairs, MatMulPairs
from dlc.graph.ops.pairs_planar import PlanarPairs
from dlc.graph.ops.phases import JoinPhases
from dlc.graph.ops.planes_conv import ConvPlanes
from dlc.graph.ops.planes_matmul import MatMulPlanes
from dlc.graph.ops.planes_planar import ConvPlanarPlanes
from dlc.graph.ops.precision import HALF
from dlc.graph.ops.resize import Resize
from dlc.graph.ops.shape import Empty, Expand, Insert, Pad, Reshape, Slice, Transpose
from dlc.graph.ops.text import TextOp
from dlc.graph.ops.winograd import TiledConv
from dlc.schedule.rules.operands import MIN_USES
from dlc.te.expr import ONE, Const, index
from dlc.te.simplify import surely_equal

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
    return _Grouping(graph, depth, is_stored, widens_halves=widens_halves).run()


_FREE = Reshape | BitCast | CheckedIndices | Empty | BindSizes | TextOp


def is_free(node: Node) -> bool:
    """Whether a node needs no kernel: the host renames or reserves memory, binds sizes, or calls a
    function of the runtime.
    """
    return isinstance(node.op, _FREE)


class _Grouping:
    def __init__(
        self,
        graph: Graph,
        depth: Decide,
        is_stored: Callable[[Node], bool],
        *,
        widens_halves: bool,
    ) -> None:
        self.graph = graph
        self.widens_halves = widens_halves
        self.depth = depth
        self.is_stored = is_stored
        self.position = {id(n): i for i, n in enumerate(graph.nodes)}
        self.outputs = set(graph.outputs)
        self.taken: set[int] = set()  # ids of nodes that are in a group
        self.views: set[int] = set()  # ids of nodes copied into their readers

    def run(self) -> list[tuple[Node, ...]]:
        copied = (n for n in self.graph.nodes if self._is_copied(n))
        self.views = {id(n) for n in copied if not self.is_stored(n)}
        for node in self.graph.nodes:
            if self._widens(node):
                self.views.add(id(node))
        found: list[list[Node]] = []
        order = (Fuse.ANCHOR, Fuse.REDUCTION, Fuse.ELEMENTWISE, Fuse.INJECTIVE, Fuse.OPAQUE)
        for kind in order:
            for node in self.graph.nodes:
                free = id(node) in self.taken or id(node) in self.views or is_free(node)
                if node.op.fuse is kind and not free:
                    found.append(self._grow(node))
        complete = [self._with_views(members) for members in found]
        return sorted(complete, key=lambda g: self.position[id(g[-1])])

    def _is_copied(self, node: Node) -> bool:
        """Whether a node only moves elements, or counts, and all that read it can by themselves."""
        if isinstance(node.op, Range):
            users = self.graph.users.get(node.output, ())
            computed = all(u.op.fuse is Fuse.ELEMENTWISE for u in users)
            return bool(users) and computed and node.output not in self.outputs
        if repeats_rows(node) or isinstance(node.op, JoinPhases):
            return self._is_sampled(node)
        if not isinstance(node.op, Slice | Transpose | Expand) or node.output in self.outputs:
            return False
        if isinstance(node.op, Transpose) and self._joins_anchor(node):
            return False
        if self._feeds_own_memory(node):
            return False
        users = self.graph.users.get(node.output, ())
        kinds = (Fuse.ANCHOR, Fuse.ELEMENTWISE, Fuse.REDUCTION)
        return bool(users) and all(
            u.op.fuse in kinds or isinstance(u.op, Slice | Transpose | Expand | Insert | Pad)
            for u in users
        )

    def _is_sampled(self, node: Node) -> bool:
        """Whether all that read an image made of others look each element up in those."""
        if node.output in self.outputs or self._feeds_own_memory(node):
            return False
        users = self.graph.users.get(node.output, ())
        return bool(users) and all(
            u.op.fuse is Fuse.ELEMENTWISE or isinstance(u.op, Pad | Insert) for u in users
        )

    def _widens(self, node: Node) -> bool:
        """Whether a node is on the way from bytes, or bf16, to the numbers they stand for.

        Those are what is kept in memory then, and each reader makes the numbers anew.
        """
        if isinstance(node.op, Widen):
            return True
        if self._widens_half(node):
            return True
        if not isinstance(node.op, Cast | Add | Sub | Mul) or node.output in self.outputs:
            return False
        operands = [v for v in node.inputs if v not in self.graph.constants]
        if len(operands) != 1 or operands[0].type.shape != node.output.type.shape:
            return False
        dtype, maker = operands[0].type.dtype, self.graph.producers.get(operands[0])
        if dtype.size_bytes > 1 and (maker is None or id(maker) not in self.views):
            return False
        if node.output.type.dtype.size_bytes < 2:
            return False
        if isinstance(node.op, Mul):
            scales = [v for v in node.inputs if v is not operands[0]]
            if maker is None or not isinstance(maker.op, Cast) or scales[0].type.elems != ONE:
                return False
        elif dtype.is_float:
            return False
        users = self.graph.users.get(node.output, ())
        return bool(users) and all(reads_widened(u.op) for u in users)

    def _widens_half(self, node: Node) -> bool:
        """Whether a node makes float32 of 16-bit floats for kernels that may as well read those."""
        if not isinstance(node.op, Cast) or node.inputs[0].type.dtype not in HALF:
            return False
        if not self.widens_halves or node.output.type.dtype is not DType.F32:
            return False
        users = self.graph.users.get(node.output, ())
        is_read = bool(users) and node.output not in self.outputs
        return is_read and all(
            u.op.fuse in (Fuse.ELEMENTWISE, Fuse.REDUCTION)
            or isinstance(u.op, DepthwiseBlocked)
            or meets_few_rows(u, node.output)
            for u in users
        )

    def _feeds_own_memory(self, view: Node) -> bool:
        """Whether what is computed from a view is placed into the memory that the view reads.

        Such a kernel would read what it writes; the view is copied out first instead. No kernel
        holds two contractions without a reduction between them (attention has one).
        """
        memory = self._memory(view.inputs[0])
        seen: set[tuple[int, bool]] = set()
        pending = deque((u, False, 1) for u in self.graph.users.get(view.output, ()))
        while pending:
            node, contracted, depth = pending.popleft()
            kind = node.op.fuse
            if (id(node), contracted) in seen or (contracted and kind is Fuse.ANCHOR):
                continue
            seen.add((id(node), contracted))
            if isinstance(node.op, Insert):
                if self._memory(node.inputs[0]) == memory:
                    return True
            elif depth < MAX_GROUP_NODES:
                contracted = kind is Fuse.ANCHOR or (contracted and kind is not Fuse.REDUCTION)
                users = (u for v in node.outputs for u in self.graph.users.get(v, ()))
                pending += ((u, contracted, depth + 1) for u in users)
        return False

    def _memory(self, value: Value) -> Value:
        """The value whose memory this one shares by being placed into it."""
        producer = self.graph.producers.get(value)
        while producer is not None and isinstance(producer.op, Insert):
            value = producer.inputs[0]
            producer = self.graph.producers.get(value)
        return value

    def _joins_anchor(self, node: Node) -> bool:
        """Whether a move can be how a contraction writes its result.

        Rows move, but the innermost dimension stays innermost, so whole vectors are stored.
        """
        if not isinstance(node.op, Interleave) and not _keeps_rows(node.op):
            return False
        producer = self.graph.producers.get(node.inputs[0])
        while producer is not None and producer.op.fuse is Fuse.ELEMENTWISE:
            producer = self.graph.producers.get(producer.inputs[0])
        anchored = producer is not None and producer.op.fuse is Fuse.ANCHOR
        if producer is not None and isinstance(producer.op, TiledConv):
            return False  # its tiles are written where they are computed
        if isinstance(node.op, Interleave) and producer is not None:
            whole = isinstance(producer.op, ConvPlanes) and _keeps_pairs(node, node.op)
            anchored = whole or isinstance(producer.op, ConvBlocked)
        alone = len(self.graph.users.get(node.inputs[0], ())) == 1
        return anchored and alone

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
        return node if _same_shape(value, reader.output) else None

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
            return _same_shape(node.output, value)
        if not alone or not node.inputs:
            return False
        if isinstance(node.op, Pad):
            return node.op.mode == "constant"
        if isinstance(node.op, Insert):
            return node.inputs[1] == value and node.inputs[0] != value
        return self._joins_anchor(node)

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


def repeats_rows(node: Node) -> bool:
    """Whether a node repeats, or leaves out, whole rows of its operand."""
    return isinstance(node.op, Resize) and node.op.repeats_rows(node.inputs[0].type)


def reads_widened(op: Op) -> bool:
    """Whether an operator reads each element about once, or whole vectors of them."""
    if op.fuse is Fuse.ANCHOR:
        planes = isinstance(op, ConvPlanes | ConvPlanarPlanes | MatMulPlanes)
        return planes or isinstance(op, ConvPairs | MatMulPairs | PlanarPairs | DepthwiseBlocked)
    return op.fuse in (Fuse.ELEMENTWISE, Fuse.REDUCTION) or isinstance(op, Slice | Transpose)


def meets_few_rows(node: Node, columns: Value) -> bool:
    """Whether a product reads each element of its columns about once, as few rows as it has."""
    if not isinstance(node.op, MatMul) or columns in node.inputs[:1] or columns.type.rank < 2:
        return False
    rows = node.inputs[0].type.shape[-2:-1] or (ONE,)
    return isinstance(rows[0], Const) and rows[0].value < MIN_USES


def _keeps_rows(op: Op) -> bool:
    """Whether a transpose leaves the innermost dimension where it is."""
    return isinstance(op, Transpose) and op.perm[-1:] == (len(op.perm) - 1,)


def _keeps_pairs(node: Node, op: Interleave) -> bool:
    """Whether pairs of blocks, which a matrix engine computes at once, stay within one digit of
    what an interleave makes of them: blocks, or pixels where there is one block for each.
    """
    blocks = node.output.type.shape[1]
    fastest = index(op.stride[-1]) if blocks == ONE else blocks
    return isinstance(fastest, Const) and fastest.value % 2 == 0


def _same_shape(a: Value, b: Value) -> bool:
    if a.type.rank != b.type.rank:
        return False
    pairs = zip(a.type.shape, b.type.shape, strict=True)
    return all(
        surely_equal(x, y) or (isinstance(x, Const) and x.value == 1 and x == y) for x, y in pairs
    )
