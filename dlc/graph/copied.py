"""Which nodes are copied into the groups that read them: moves become index arithmetic there, and
what is kept in fewer bytes becomes numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dlc.core.types import DType
from dlc.graph.chosen import CHOOSE_COLUMNS, is_choice
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.op import Fuse, Op
from dlc.graph.ops.binary import Add, Mul, Sub
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
from dlc.graph.ops.planes_matmul import MatMulPlanes, MatMulSplit
from dlc.graph.ops.planes_planar import ConvPlanarPlanes
from dlc.graph.ops.precision import HALF
from dlc.graph.ops.resize import Resize
from dlc.graph.ops.shape import Expand, Insert, Pad, Slice, Transpose
from dlc.graph.ops.softmax import Softmax
from dlc.graph.ops.winograd import TiledConv
from dlc.schedule.rules.operands import MIN_USES
from dlc.te.expr import ONE, Const, index


def copied_nodes(
    graph: Graph, is_stored: Callable[[Node], bool], *, widens_halves: bool, reach: int
) -> set[int]:
    """The ids of all of them; see `groups`, of which none has more than `reach` nodes."""
    return _Copied(graph, is_stored, widens_halves, reach).ids


class _Copied:
    def __init__(
        self, graph: Graph, is_stored: Callable[[Node], bool], widens_halves: bool, reach: int
    ) -> None:
        self.graph = graph
        self.widens_halves = widens_halves
        self.reach = reach
        self.outputs = set(graph.outputs)
        self.ids = {id(n) for n in graph.nodes if self._is_copied(n) and not is_stored(n)}
        for node in graph.nodes:
            if self._widens(node):
                self.ids.add(id(node))

    def _is_read_by(self, node: Node, accepts: Callable[[Node], bool]) -> bool:
        """Whether something reads a node, and all that does is accepted; so no result is."""
        users = self.graph.users.get(node.output, ())
        return bool(users) and node.output not in self.outputs and all(map(accepts, users))

    def _is_copied(self, node: Node) -> bool:
        """Whether a node only moves elements, or counts, and all that read it can by themselves."""
        kinds: tuple[Fuse, ...]
        moves: tuple[type[Op], ...]
        if is_choice(node):
            return self._is_read_by(node, lambda u: reads_stack(u, node.output))
        if isinstance(node.op, Range):
            return self._is_read_by(node, lambda u: u.op.fuse is Fuse.ELEMENTWISE)
        if repeats_rows(node) or isinstance(node.op, JoinPhases):  # looked up in other images
            kinds, moves = (Fuse.ELEMENTWISE,), (Pad, Insert)
        elif isinstance(node.op, Interleave):
            return self._is_read_by(node, self._reads_each_once) and not (
                joins_anchor(self.graph, node) or self._feeds_own_memory(node)
            )
        elif isinstance(node.op, Slice | Transpose | Expand):
            kinds = (Fuse.ANCHOR, Fuse.ELEMENTWISE, Fuse.REDUCTION)
            moves = (Slice, Transpose, Expand, Insert, Pad)
        else:
            return False
        if not self._is_read_by(node, lambda u: u.op.fuse in kinds or isinstance(u.op, moves)):
            return False
        if isinstance(node.op, Transpose) and (
            joins_anchor(self.graph, node) or turns_softmax(self.graph, node)
        ):
            return False
        return not self._feeds_own_memory(node)

    def _reads_each_once(self, node: Node) -> bool:
        """Whether a node, or what reads the part that it takes, reads each pixel about once."""
        if isinstance(node.op, Slice):
            return all(map(self._reads_each_once, self.graph.users.get(node.output, ())))
        return node.op.fuse is Fuse.ELEMENTWISE or isinstance(node.op, Pad | Insert)

    def _widens(self, node: Node) -> bool:
        """Whether a node is on the way from bytes, or bf16, to the numbers they stand for.

        Those are what is kept in memory then, and each reader makes the numbers anew.
        """
        if isinstance(node.op, Widen) or self._widens_half(node):
            return True
        if not isinstance(node.op, Cast | Add | Sub | Mul):
            return False
        operands = [v for v in node.inputs if v not in self.graph.constants]
        if len(operands) != 1 or operands[0].type.shape != node.output.type.shape:
            return False
        dtype, maker = operands[0].type.dtype, self.graph.producers.get(operands[0])
        if dtype.size_bytes > 1 and (maker is None or id(maker) not in self.ids):
            return False
        if node.output.type.dtype.size_bytes < 2:
            return False
        if isinstance(node.op, Mul):
            scales = [v for v in node.inputs if v is not operands[0]]
            if maker is None or not isinstance(maker.op, Cast) or scales[0].type.elems != ONE:
                return False
        elif dtype.is_float:
            return False
        return self._is_read_by(node, lambda u: reads_widened(u.op))

    def _widens_half(self, node: Node) -> bool:
        """Whether a node makes float32 of 16-bit floats for kernels that may as well read those."""
        if not isinstance(node.op, Cast) or node.inputs[0].type.dtype not in HALF:
            return False
        if not self.widens_halves or node.output.type.dtype is not DType.F32:
            return False
        return self._is_read_by(
            node,
            lambda u: (
                u.op.fuse in (Fuse.ELEMENTWISE, Fuse.REDUCTION)
                or isinstance(u.op, DepthwiseBlocked)
                or meets_few_rows(u, node.output)
            ),
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
            elif depth < self.reach:
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


def joins_anchor(graph: Graph, node: Node) -> bool:
    """Whether a move can be how a contraction writes its result.

    Rows move, but the innermost dimension stays innermost, so whole vectors are stored.
    """
    if not isinstance(node.op, Interleave) and not _keeps_rows(node.op):
        return False
    producer = graph.producers.get(node.inputs[0])
    while producer is not None and producer.op.fuse is Fuse.ELEMENTWISE:
        producer = graph.producers.get(producer.inputs[0])
    if producer is None or isinstance(producer.op, TiledConv):
        return False  # tiles are written where they are computed
    anchored = producer.op.fuse is Fuse.ANCHOR
    if isinstance(node.op, Interleave):
        whole = isinstance(producer.op, ConvPlanes) and _keeps_pairs(node, node.op)
        anchored = whole or isinstance(producer.op, ConvBlocked)
    return anchored and len(graph.users.get(node.inputs[0], ())) == 1


def turns_softmax(graph: Graph, node: Node) -> bool:
    """Whether a softmax along lines would read them from elements that lie apart.

    It reads them twice, and no vector runs along them then: 3 to 11 times as slow as a transpose
    before it, in registers. Norms have vectors across their lines; log_softmax, too.

    Source: measured on Zen 3.
    """
    if _keeps_rows(node.op):
        return False
    rank, users = node.output.type.rank, graph.users.get(node.output, ())
    return any(isinstance(u.op, Softmax) and u.op.axis % rank == rank - 1 for u in users)


def repeats_rows(node: Node) -> bool:
    """Whether a node repeats, or leaves out, whole rows of its operand."""
    return isinstance(node.op, Resize) and node.op.repeats_rows(node.inputs[0].type)


def reads_widened(op: Op) -> bool:
    """Whether an operator reads each element about once, or whole vectors of them."""
    if op.fuse is Fuse.ANCHOR:
        planes = isinstance(op, ConvPlanes | ConvPlanarPlanes | MatMulPlanes | MatMulSplit)
        return planes or isinstance(op, ConvPairs | MatMulPairs | PlanarPairs | DepthwiseBlocked)
    return op.fuse in (Fuse.ELEMENTWISE, Fuse.REDUCTION) or isinstance(op, Slice | Transpose)


def meets_few_rows(node: Node, columns: Value) -> bool:
    """Whether a product reads each element of its columns about once, as few rows as it has."""
    if not isinstance(node.op, MatMul) or columns in node.inputs[:1] or columns.type.rank < 2:
        return False
    rows = node.inputs[0].type.shape[-2:-1] or (ONE,)
    return isinstance(rows[0], Const) and rows[0].value < MIN_USES


def reads_stack(node: Node, stack: Value) -> bool:
    """Whether a product reads packed matrices where they lie, wherever that is."""
    rows = CHOOSE_COLUMNS.get(type(node.op))
    return rows is not None and stack not in node.inputs[:rows]


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
