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
use_matrix_engine, which takes what tiles of bf16 are faster at, and leaves what has a form on tiles
of bytes; before use_pair_products and use_winograd, which take what is left.

The products are those of the bytes themselves. What is taken away from each is taken away from the
sums at once: its product with the sum of a column. Where four are added, left operands of the
instruction are unsigned, so signed ones are moved up by 128; where two are, they are widened. Both
where they are made: before they are padded, or a part is read.

A matrix engine that multiplies bytes has those that are faster there: `matmul_byte_tiles`,
`conv_byte_tiles` and `conv_planar_byte_tiles`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dlc.core.types import DType
from dlc.graph.byte_engine import byte_tiles, has_byte_tiles, takes_tiles
from dlc.graph.byte_operands import ByteProduct, Bytes, find_byte_product
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.op import Array, Op
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.binary import Add, Mul, Sub
from dlc.graph.ops.byte_products import ConvBytes, MatMulBytes, pack_bytes
from dlc.graph.ops.byte_tiles import ConvPlanarByteTiles, MatMulByteTiles, pack_byte_tiles
from dlc.graph.ops.channels import PackChannels
from dlc.graph.ops.conv_blocked import PlanarConv
from dlc.graph.ops.elementwise import Cast
from dlc.graph.ops.shape import Pad, Slice
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.te.types import const_size

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
    products = _Products(editor, each, context)
    for node in graph.nodes:
        found = find_byte_product(node, editor, each)
        if found is not None:
            total = products.add(node, found)
            editor.update(replace(node, op=Cast(to=DType.F32), inputs=(total,)))
            editor.discard(node.inputs[:1])
    products.read_widened()
    return editor.finish()


class _Products:
    """Products of bytes, which share what they read."""

    def __init__(self, editor: GraphEditor, each: int, context: PassContext) -> None:
        self.editor, self.each, self.context = editor, each, context
        self._packed: dict[tuple[str, str], Value] = {}
        self._moved: dict[tuple[Op, Value], Value] = {}

    def add(self, node: Node, product: ByteProduct) -> Value:
        """The sums of a product, in the place of a node."""
        op, found, w = product.op, product.rows, product.weights
        found = replace(found, less=found.less + self._up(found.source))
        source = self._operand(found.source, node)
        for move in found.moves:
            if isinstance(move, Pad):
                move = replace(move, value=move.value + found.less)
            source = self._once(move, source, node)
        has_tiles = has_byte_tiles(node, w, self.context)
        tiles = byte_tiles(node, w) if has_tiles else None
        if tiles is not None and takes_tiles(self.editor.graph, node, tiles, self.context):
            new = tiles.op
            form = f"tiles{new.phases}" if isinstance(new, ConvPlanarByteTiles) else "tiles"
            columns = self._weights(node, lambda: pack_byte_tiles(tiles.dense), form)
        else:
            new = op
            columns = self._weights(node, lambda: pack_bytes(w, self.each), "bytes")
        total = self.editor.call(new, self._filled(new, source, w, node), columns, at=node)
        return self._less(total, found, _columns(op, w), node)

    def _filled(self, op: Op, rows: Value, w: Array, at: Node) -> Value:
        """Rows as an operator reads them: with bytes behind them that meet weights of 0."""
        match op:
            case ConvBytes() if isinstance(at.op, PlanarConv):
                return self._once(PackChannels(block=w.shape[-2]), rows, at)
            case ConvPlanarByteTiles():
                rest = op.spare
            case MatMulBytes() | MatMulByteTiles():
                rest = w.shape[1] - const_size(rows.type.shape[-1])
            case _:
                return rows
        lead = (0,) * (rows.type.rank - 1)
        fill = Pad(before=as_sizes((*lead, 0)), after=as_sizes((*lead, rest)))
        return self._once(fill, rows, at) if rest else rows

    def _weights(self, node: Node, pack: Callable[[], Array], form: str) -> Value:
        """The constant operand of a product in one form, once for all that read it so."""
        key = node.inputs[1].name, form
        if key not in self._packed:
            name = f"{key[0]}_{form.partition('(')[0]}"
            self._packed[key] = self.editor.constant(pack(), DType.I8, name)
        return self._packed[key]

    def _less(self, total: Value, found: Bytes, sums: Array, at: Node) -> Value:
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


def _columns(op: ConvBytes | MatMulBytes, w: Array) -> Array:
    """The sums of the weights of each result, in the shape of the result without its rows."""
    sums: Array = w.astype(np.int32).sum(axis=tuple(range(1, w.ndim - 1)), dtype=np.int32)
    if isinstance(op, ConvBytes):
        return np.expand_dims(sums, (0, *range(2, 2 + len(op.stride))))
    return sums.reshape(1, -1)[:, : const_size(op.n)]
