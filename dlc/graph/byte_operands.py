"""Products of bytes by constant bytes: what multiplies them, and what their rows are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dlc.core.types import DType
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Node, Value
from dlc.graph.integers import (
    MAX_BYTE,
    byte_type,
    integer_range,
    magnitude,
    moved_bytes,
    type_range,
)
from dlc.graph.op import Array, Op
from dlc.graph.ops.binary import Sub
from dlc.graph.ops.byte_products import ConvBytes, MatMulBytes
from dlc.graph.ops.channels import PackChannels
from dlc.graph.ops.conv_blocked import ConvBlocked, PlanarConv
from dlc.graph.ops.elementwise import Cast
from dlc.graph.ops.matmul import MatMulPacked
from dlc.graph.ops.shape import Pad, Slice
from dlc.te.expr import ONE, Const
from dlc.te.types import const_size

_WIDENING = {(DType.I32, DType.I32), (DType.I32, DType.F32), (DType.F32, DType.F32)}


@dataclass(frozen=True, slots=True)
class Bytes:
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


def _bytes_less(editor: GraphEditor, x: Value) -> Bytes | None:
    """What a value is made of; the zero of dynamically quantized bytes is computed."""
    found, node = moved_bytes(editor, x), editor.producer(x)
    if found is not None:
        return Bytes(*found) if found[0].type.shape == x.type.shape else None
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


def _stands_for(found: Bytes, pad: Pad) -> bool:
    """Whether there is a byte that stands for what is padded."""
    fill, limits = pad.value + found.less, type_range(found.source.type.dtype) or (0, 0)
    known = found.computed is None and pad.mode == "constant"
    return known and fill == round(fill) and limits[0] <= fill <= limits[1]


@dataclass(frozen=True, slots=True)
class ByteProduct:
    """What a node would become, its rows, and its weights as they are packed."""

    op: ConvBytes | MatMulBytes
    rows: Bytes
    weights: Array


def find_byte_product(node: Node, editor: GraphEditor, each: int) -> ByteProduct | None:
    """The product of bytes that a node is, where vectors add so many in a lane, or 0; or None."""
    op = _of_bytes(node, each) if each else None
    if op is None:
        return None
    x, w = node.inputs
    found, array = _bytes_less(editor, x), editor.array(w)
    if found is None or array is None or byte_type(array) is not DType.I8:
        return None
    if isinstance(node.op, PlanarConv):
        array = _one_block(array, each)
    elif isinstance(node.op, MatMulPacked):
        array = _filled(array, 1, each)
    fits = _largest(array) * (MAX_BYTE + found.largest) < 2**31
    return ByteProduct(op, found, array) if fits else None


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
