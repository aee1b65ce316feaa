"""Keep constant weights of a few bits as they are, packed for the product that reads them.

Before:
    def main(x: f32[3, 16]):
        q: u4[2, 16] = const()
        s: f32[2, 1] = const()
        z: f32[2, 1] = const(8.0, 8.0)
        w: f32[2, 16] = dequantize_blocks(q, s, z, axis=1, block=16)
        t: f32[16, 2] = transpose(w, perm=(1, 0))
        y: f32[3, 2] = matmul(x, t)
        return y

After:
    def main(x: f32[3, 16]):
        t_words: u32[1, 2, 8] = const()
        t_scale: f32[1, 1, 8] = const()
        y: f32[3, 2] = matmul_few_bits(x, t_words, t_scale, n=2, bits=4, middle=8)
        return y

Position: before separate_scales and fold_constants, which would make floats of them.

Rows of an open number are mostly few, and a product of few rows waits for its weights. Where tiles
or pairs of bf16 multiply many rows faster than floats, their weights are unpacked now. Rows that
are dequantized bytes, in blocks as long as those of the weights, are multiplied as bytes where
vectors have an instruction for it: `matmul_bytes_few_bits`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from dlc.core.types import DType
from dlc.graph.arrays import round_to
from dlc.graph.chosen import choose_again, chosen
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.layout import pack_columns
from dlc.graph.op import Array
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.binary import Mul
from dlc.graph.ops.elementwise import Cast
from dlc.graph.ops.few_bits import (
    WORD_BITS,
    DequantizeBlocks,
    MatMulBytesFewBits,
    MatMulFewBits,
    pack_words,
)
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.reduce import Reduce
from dlc.graph.ops.shape import Pad, Reshape, Transpose
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.te.expr import Const, index
from dlc.te.simplify import canonical
from dlc.te.types import const_size

FEW_ROWS = 8  # of products that wait for weights even where bf16 is multiplied faster than floats


@graph_pass(bodies=True)
def keep_few_bits(graph: Graph, context: PassContext) -> Graph:
    """Replace products with constants that are dequantized in blocks along the depth."""
    editor = GraphEditor(graph)
    packed: dict[tuple[str, bool], _Packed | None] = {}
    is_cpu = context.target.gpu is None
    for node in graph.nodes:
        if not isinstance(node.op, MatMul) or (found := _weights(editor, node)) is None:
            continue
        rows = _rows_of_bytes(editor, node, found, context)
        key = name, in_quads = found.name, rows is not None
        wanted = is_cpu and node.inputs[0].type.dtype is DType.F32
        wanted = wanted and not _is_fast_as_floats(node, context, rows, found)
        if wanted and key not in packed:
            packed[key] = _pack(editor, found, name, context, in_quads)
        made = packed[key] if wanted else None
        if made is None:
            matrix = choose_again(editor, found.choice, _floats(editor, found, name))
            editor.update(replace(node, inputs=(node.inputs[0], matrix)))
        else:
            operands = tuple(choose_again(editor, found.choice, v) for v in made.operands)
            made = replace(made, operands=operands)
            if rows is not None:
                editor.update(_product_of_bytes(editor, node, made, rows))
            else:
                editor.update(_product(editor, node, made))
        editor.discard(node.inputs)
    return editor.finish()


@dataclass(frozen=True, slots=True)
class _Weights:
    """Constant weights, by columns: the depth is the last axis; of a stack, before a choice."""

    name: str
    choice: Node | None
    block: int
    dtype: DType
    numbers: Array
    scale: Array
    zero: Array


@dataclass(frozen=True, slots=True)
class _Packed:
    columns: int
    depth: int  # of the words, which are whole blocks
    bits: int
    middle: int
    operands: tuple[Value, ...]


def _weights(editor: GraphEditor, node: Node) -> _Weights | None:
    """The right operand where it is a dequantized constant, perhaps transposed and chosen."""
    choice = chosen(editor, node.inputs[1])
    value = node.inputs[1] if choice is None else choice.inputs[0]
    rank, name, turned = value.type.rank, value.name, False
    made = editor.producer(value)
    if made is not None and isinstance(made.op, Transpose) and made.op.perm == _turn(rank):
        turned, made = True, editor.producer(made.inputs[0])
    if made is None or not isinstance(made.op, DequantizeBlocks):
        return None
    if rank != 2 and node.inputs[0].type.shape[:-2] != node.inputs[1].type.shape[:-2]:
        return None
    arrays = [editor.array(v) for v in made.inputs]
    if made.op.axis != rank - 2 + turned or any(a is None or not a.size for a in arrays):
        return None
    numbers, scale, *zeros = (a if turned else a.swapaxes(-1, -2) for a in arrays if a is not None)
    zero = zeros[0] if zeros else np.zeros_like(scale)
    dtype = made.inputs[0].type.dtype
    return _Weights(name, choice, made.op.block, dtype, numbers, scale, zero)


def _turn(rank: int) -> tuple[int, ...]:
    """What swaps the last two axes."""
    return (*range(rank - 2), rank - 1, rank - 2)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of signed bytes, each block times a factor."""

    numbers: Value
    factor: Value


def _rows_of_bytes(
    editor: GraphEditor, node: Node, weights: _Weights, context: PassContext
) -> _Rows | None:
    """The left operand as bytes, where it is made of them and vectors multiply such bytes."""
    made = editor.producer(node.inputs[0])
    if made is None or not isinstance(made.op, DequantizeBlocks) or len(made.inputs) != 2:
        return None
    numbers, factor = made.inputs
    whole = numbers.type.shape[-1] == index(weights.scale.shape[-1] * weights.block)
    is_alike = made.op.axis == numbers.type.rank - 1 and made.op.block == weights.block and whole
    fits = numbers.type.dtype is DType.I8 and context.target.adds_words(weights.dtype.bits)
    return _Rows(numbers, factor) if is_alike and fits else None


def _is_fast_as_floats(
    node: Node, context: PassContext, rows: _Rows | None, weights: _Weights
) -> bool:
    """Whether there are so many rows that bf16 products outweigh the size of floats.

    Tiles are faster than vectors of bytes, and pairs are not. Rows that choose a matrix are few.
    """
    if weights.choice is not None:
        return False
    if not context.has_matrix_engine and (rows is not None or not context.multiplies_pairs):
        return False
    sizes = node.inputs[0].type.shape[:-1]
    return all(isinstance(n, Const) for n in sizes) and prod(map(const_size, sizes)) > FEW_ROWS


def _floats(editor: GraphEditor, found: _Weights, name: str) -> Value:
    op = DequantizeBlocks(axis=found.numbers.ndim - 1, block=found.block)
    matrix = op.reference(found.numbers, found.scale, found.zero).swapaxes(-1, -2)
    return editor.constant(np.ascontiguousarray(matrix), DType.F32, f"{name}_floats")


def _pack(
    editor: GraphEditor, found: _Weights, name: str, context: PassContext, in_quads: bool
) -> _Packed | None:
    """The operands of the product, None where numbers or blocks do not fill words."""
    bits, lowest = found.dtype.bits, -(1 << (found.dtype.bits - 1)) if found.dtype.is_signed else 0
    each = WORD_BITS // bits
    if not found.dtype.is_int or bits > 8 or found.block % each:
        return None
    lanes = max(4, context.target.lanes(DType.F32.size_bytes))
    *stack, columns, depth = found.numbers.shape
    zero = found.zero.astype(np.float32) - lowest
    whole = -(-depth // found.block) * found.block
    numbers = _from_zero(found.numbers, lowest)
    if whole > depth:
        numbers = np.pad(numbers, ((0, 0),) * (len(stack) + 1) + ((0, whole - depth),))
    words = pack_words(numbers, bits, in_quads=in_quads)
    arrays = {"words": (words, DType.U32), "scale": (found.scale, _scale_type(found.scale))}
    middle, is_single = float(zero.flat[0]), bool((zero == zero.flat[0]).all())
    if not (is_single and middle.is_integer() and 0 <= middle < 1 << bits):
        is_byte = bool((zero == np.clip(np.rint(zero), 0, 255)).all())
        arrays["zero"] = (zero, DType.U8 if is_byte else DType.F32)
        middle = 0.0
    operands = tuple(
        editor.constant(pack_columns(array.swapaxes(-1, -2), lanes), dtype, f"{name}_{hint}")
        for hint, (array, dtype) in arrays.items()
    )
    return _Packed(columns, whole, bits, int(middle), operands)


def _from_zero(numbers: Array, lowest: int) -> Array:
    """Numbers of a byte or less as what they are above the lowest one."""
    plain = numbers if numbers.dtype == np.uint8 else numbers.astype(np.int8).view(np.uint8)
    return plain - np.uint8(lowest % 256) if lowest else plain


def _scale_type(scale: Array) -> DType:
    """Half as many bytes where they hold the same numbers."""
    with np.errstate(over="ignore"):
        same = round_to(scale, DType.F16).astype(scale.dtype) == scale
    return DType.F16 if same.all() else DType.F32


def _product(editor: GraphEditor, node: Node, made: _Packed) -> Node:
    """The product with packed weights; rows get zeros up to the end of the last block."""
    x = node.inputs[0]
    rest = made.depth - const_size(x.type.shape[-1])
    if rest:
        none = (0,) * (x.type.rank - 1)
        pad = Pad(before=as_sizes((*none, 0)), after=as_sizes((*none, rest)))
        x = editor.call(pad, x, at=node, hint=f"{x.name}_whole")
    op = MatMulFewBits(n=index(made.columns), bits=made.bits, middle=made.middle)
    return replace(node, op=op, inputs=(x, *made.operands))


def _product_of_bytes(editor: GraphEditor, node: Node, made: _Packed, rows: _Rows) -> Node:
    """The product of bytes with packed weights.

    A zero point takes the sum of a block of a row away; one that is the same everywhere is
    multiplied here.
    """
    (*lead, depth), (*_, blocks) = rows.numbers.type.shape, rows.factor.type.shape
    block = canonical(depth // blocks)
    parts: Value = editor.call(Reshape(shape=(*lead, blocks, block)), rows.numbers, at=node)
    sums = editor.call(Cast(to=DType.F32), parts, at=node)
    sums = editor.call(Reduce(kind="sum", axes=(len(lead) + 1,), keepdims=False), sums, at=node)
    if len(made.operands) == 2:
        middle = editor.constant(np.array(made.middle), DType.F32, "middle")
        sums = editor.call(Mul(), sums, middle, at=node)
    op = MatMulBytesFewBits(n=index(made.columns), bits=made.bits)
    return replace(node, op=op, inputs=(rows.numbers, rows.factor, sums, *made.operands))
