"""Multiply bytes by constant whole numbers where vectors add four such products at once, or two.

Before:
    def main(x: u8[8, 4]):
        w: f32[1, 4, 2] = const(1, 2, 3, 4, -5, -6, 7, 8)
        z: i32[()] = const(3)
        a: i32[8, 4] = cast(x, to=i32)
        b: i32[8, 4] = sub(a, z)
        c: f32[8, 4] = cast(b, to=f32)
        y: f32[8, 2] = matmul_packed(c, w, n=2)
        return y

After:
    def main(x: u8[8, 4]):
        w_bytes: i8[1, 1, 2, 4] = const(1, 3, -5, 7, 2, 4, -6, 8)
        w_zero: i32[1, 2] = const(18, 24)
        y_1: i32[8, 2] = matmul_bytes(x, w_bytes, n=2)
        y_2: i32[8, 2] = sub(y_1, w_zero)
        y: f32[8, 2] = cast(y_2, to=f32)
        return y

Position: after pad_bytes, which leaves nothing but arithmetic between bytes and products, and after
use_matrix_engine, whose tiles are faster still where there are any; before use_pair_products and
use_winograd, which take what is left.

The products are those of the bytes themselves. What is taken away from each is taken away from the
sums at once: its product with the sum of a column. Where four are added, left operands of the
instruction are unsigned, so signed ones are moved up by 128; where two are, they are widened. Both
where they are made: before they are padded, or a part is read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dlc.core.types import DType
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.integers import (
    MAX_BYTE,
    byte_type,
    integer_range,
    magnitude,
    moved_bytes,
    type_range,
)
from dlc.graph.op import Array, Op
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.binary import Add, Mul, Sub
from dlc.graph.ops.byte_products import ConvBytes, MatMulBytes, pack_bytes
from dlc.graph.ops.channels import PackChannels
from dlc.graph.ops.conv_blocked import ConvBlocked, PlanarConv
from dlc.graph.ops.elementwise import Cast
from dlc.graph.ops.matmul import MatMulPacked
from dlc.graph.ops.shape import Pad, Slice
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.te.expr import ONE, Const
from dlc.te.types import const_size

_WIDENING = {(DType.I32, DType.I32), (DType.I32, DType.F32), (DType.F32, DType.F32)}
_UP = 128  # from signed bytes to unsigned ones
WIDEN = Cast(to=DType.I16)


@graph_pass(
    after=("choose_layouts", "pack_matmul_weights", "pad_bytes", "use_matrix_engine"), bodies=True
)
def use_byte_products(graph: Graph, context: PassContext) -> Graph:
    """Replace products of bytes and constant bytes."""
    each = context.byte_products
    if not each:
        return graph
    editor = GraphEditor(graph)
    products = _Products(editor, each)
    for node in graph.nodes:
        op = _of_bytes(node, each)
        if op is None:
            continue
        x, w = node.inputs
        found, array = _bytes_less(editor, x), editor.array(w)
        if found is None or array is None or byte_type(array) is not DType.I8:
            continue
        if isinstance(node.op, PlanarConv):
            array = _one_block(array, each)
            found = replace(found, moves=(*found.moves, PackChannels(block=array.shape[-2])))
        elif isinstance(node.op, MatMulPacked):
            array = _filled(array, 1, each)
        if _largest(array) * (MAX_BYTE + found.largest) < 2**31:
            total = products.add(node, op, found, array)
            editor.update(replace(node, op=Cast(to=DType.F32), inputs=(total,)))
            editor.discard((x,))
    products.read_widened()
    return editor.finish()


@dataclass(frozen=True, slots=True)
class _Bytes:
    """What a value is made of: bytes, less a number and perhaps a computed one, then moved."""

    source: Value
    less: int
    computed: Value | None = None
    most: int = 0  # the largest magnitude of what is computed
    moves: tuple[Op, ...] = ()

    @property
    def largest(self) -> int:
        """The largest magnitude of what is taken away."""
        return abs(self.less) + self.most


def _bytes_less(editor: GraphEditor, x: Value) -> _Bytes | None:
    """What a value is made of; the zero of dynamically quantized bytes is computed."""
    found, node = moved_bytes(editor, x), editor.producer(x)
    if found is not None:
        return _Bytes(*found) if found[0].type.shape == x.type.shape else None
    if node is None or not isinstance(node.op, Cast | Sub | Slice | Pad | PackChannels):
        return None
    value = node.inputs[0]
    kinds = value.type.dtype, x.type.dtype
    inner = _bytes_less(editor, value) if kinds in _WIDENING else None
    if inner is None or isinstance(node.op, Cast):
        return inner
    if isinstance(node.op, Pad) and not _stands_for(inner, node.op):
        return None
    if not isinstance(node.op, Sub):  # channels that only fill a block meet weights of 0
        return replace(inner, moves=(*inner.moves, node.op))
    computed = node.inputs[1]
    limits = integer_range(editor, computed)
    single = computed.type.elems == ONE and x.type.shape == value.type.shape
    if limits is None or not single or inner.computed is not None or kinds[1] is not DType.I32:
        return None
    return replace(inner, computed=computed, most=magnitude(limits))


def _stands_for(found: _Bytes, pad: Pad) -> bool:
    """Whether there is a byte that stands for what is padded."""
    fill, limits = pad.value + found.less, type_range(found.source.type.dtype) or (0, 0)
    known = found.computed is None and pad.mode == "constant"
    return known and fill == round(fill) and limits[0] <= fill <= limits[1]


class _Products:
    """Products of bytes, which share what they read."""

    def __init__(self, editor: GraphEditor, each: int) -> None:
        self.editor, self.each = editor, each
        self._packed: dict[Value, Value] = {}
        self._moved: dict[tuple[Op, Value], Value] = {}

    def add(self, node: Node, op: ConvBytes | MatMulBytes, found: _Bytes, w: Array) -> Value:
        """The sums of a product, in the place of a node."""
        weights = node.inputs[1]
        if weights not in self._packed:
            packed = pack_bytes(w, self.each)
            self._packed[weights] = self.editor.constant(packed, DType.I8, f"{weights.name}_bytes")
        found = replace(found, less=found.less + self._up(found.source))
        source = self._operand(found.source, node)
        for move in found.moves:
            if isinstance(move, Pad):
                move = replace(move, value=move.value + found.less)
            source = self._once(move, source, node)
        if isinstance(op, MatMulBytes) and (rest := w.shape[1] - const_size(source.type.shape[-1])):
            lead = (0,) * (source.type.rank - 1)
            fill = Pad(before=as_sizes((*lead, 0)), after=as_sizes((*lead, rest)))
            source = self._once(fill, source, node)  # bytes that meet weights of 0
        total = self.editor.call(op, source, self._packed[weights], at=node)
        return self._less(total, found, _columns(op, w), node)

    def _less(self, total: Value, found: _Bytes, sums: Array, at: Node) -> Value:
        """Sums of products without what was to be taken away from each byte.

        Differences may wrap around on the way; the last one is in range.
        """
        name = at.inputs[1].name
        if found.less:
            taken = self.editor.constant(found.less * sums, DType.I32, f"{name}_zero")
            total = self.editor.call(Sub(), total, taken, at=at)
        if found.computed is not None:
            weights = self.editor.constant(sums, DType.I32, f"{name}_sums")
            taken = self.editor.call(Mul(), found.computed, weights, at=at)
            total = self.editor.call(Sub(), total, taken, at=at)
        return total

    def _once(self, move: Op, value: Value, at: Node) -> Value:
        """A value moved, for all that read it so."""
        if (move, value) not in self._moved:
            self._moved[move, value] = self.editor.call(move, value, at=at)
        return self._moved[move, value]

    def read_widened(self) -> None:
        """Let others who widen bytes by themselves read those that are widened for products."""
        for (op, source), wide in self._moved.items():
            for user in self.editor.users(source) if op == WIDEN else ():
                if isinstance(user.op, Cast) and user.output != wide:
                    self.editor.update(replace(user, inputs=(wide,)))

    def _up(self, source: Value) -> int:
        """What is added to bytes before they are multiplied."""
        return _UP if self.each == 4 and source.type.dtype is DType.I8 else 0

    def _operand(self, source: Value, at: Node) -> Value:
        """Bytes as vectors multiply them: unsigned ones, or widened ones."""
        up = self._up(source)
        if self.each == 4 and not up:
            return source
        node = self.editor.producer(source)
        op = None if node is None else node.op
        if isinstance(op, Pad) and op.mode == "constant":
            op = replace(op, value=op.value + up)
        elif not isinstance(op, Slice):
            op = None
        if node is not None and op is not None:
            return self._once(op, self._operand(node.inputs[0], at), at)
        if not up:
            return self._once(WIDEN, source, at)
        same = Cast(to=DType.U8)  # which wraps around, and so does the sum
        if (same, source) not in self._moved:
            more = self.editor.constant(np.array(up, np.uint8), DType.U8, "up")
            wrapped = self.editor.call(same, source, at=at)
            self._moved[same, source] = self.editor.call(Add(), wrapped, more, at=at)
        return self._moved[same, source]


def _of_bytes(node: Node, each: int) -> ConvBytes | MatMulBytes | None:
    """What a node would become, if its operator has a form on bytes."""
    op = node.op
    if not isinstance(op, ConvBlocked | PlanarConv | MatMulPacked):
        return None
    x, w = node.inputs
    if node.output.type.dtype is not DType.F32 or not w.type.is_static:
        return None
    if isinstance(op, PlanarConv):  # of one channel three products of four were with nothing
        several = const_size(w.type.shape[1]) > 1
        return ConvBytes(stride=op.stride, dilation=op.dilation) if several else None
    if isinstance(op, MatMulPacked):
        is_known = x.type.rank >= 2 and isinstance(x.type.shape[-1], Const)
        return MatMulBytes(n=op.n) if is_known else None
    if op.turned or const_size(w.type.shape[-2]) % each:
        return None  # bytes are finite, wherever weights are sparse
    return ConvBytes(stride=op.stride, dilation=op.dilation, groups=op.groups)


def _one_block(w: Array, each: int) -> Array:
    """Weights for few planar channels as those for one block of them, filled up with zeros.

    Shapes:
        w: [ob, c, *kernel, oc] -> [ob, 1, *kernel, c filled up, oc]
    """
    return _filled(np.moveaxis(w, 1, -2), -2, each)[:, np.newaxis]


def _filled(w: Array, axis: int, each: int) -> Array:
    """Weights with zeros behind an axis, up to a multiple."""
    fill = [(0, 0)] * w.ndim
    fill[axis] = (0, -w.shape[axis] % each)
    return np.pad(w, fill)


def _largest(w: Array) -> int:
    """The largest sum of the magnitudes of the weights of one result."""
    summands = tuple(range(1, w.ndim - 1))
    return int(np.abs(w.astype(np.int64)).sum(axis=summands).max(initial=0))


def _columns(op: ConvBytes | MatMulBytes, w: Array) -> Array:
    """The sums of the weights of each result, in the shape of the result without its rows."""
    sums: Array = w.astype(np.int32).sum(axis=tuple(range(1, w.ndim - 1)), dtype=np.int32)
    if isinstance(op, ConvBytes):
        return np.expand_dims(sums, (0, *range(2, 2 + len(op.stride))))
    return sums.reshape(1, -1)[:, : const_size(op.n)]
