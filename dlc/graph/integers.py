"""Which values are whole numbers, and how large: quantized models are made of them.

Sums of products of whole numbers are exact in float32 as long as they stay below 2^24, and whole
numbers up to 256 are exact in bf16.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np

from dlc.core.types import DType
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Node, Value
from dlc.graph.op import Array, Op
from dlc.graph.ops import from_sizes
from dlc.graph.ops.activation import Clip, Relu
from dlc.graph.ops.binary import Add, Maximum, Minimum, Mul, Sub
from dlc.graph.ops.byte_products import ConvBytes, MatMulBytes
from dlc.graph.ops.byte_tiles import ConvByteTiles, ConvPlanarByteTiles, MatMulByteTiles
from dlc.graph.ops.channels import PackChannels, UnpackChannels
from dlc.graph.ops.conv import Conv
from dlc.graph.ops.conv_blocked import DepthwiseBlocked
from dlc.graph.ops.elementwise import Cast
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.pool import MaxPool
from dlc.graph.ops.shape import Concat, Empty, Expand, Insert, Pad, Reshape, Slice, Tile, Transpose
from dlc.graph.pass_ import PassContext
from dlc.te.expr import Const

Range = tuple[int, int]
ByteOp = ConvBytes | ConvByteTiles | ConvPlanarByteTiles | MatMulBytes | MatMulByteTiles
Product = Conv | DepthwiseBlocked | MatMul | ByteOp
F32_EXACT = 2**24
"""Every whole number up to this one is a float32."""
BF16_EXACT = 2**8
F64_EXACT = 2**53
BYTES = (DType.I8, DType.U8)
MAX_BYTE = 255
_MOVES = (Concat, Expand, Insert, MaxPool, Reshape, Slice, Tile, Transpose, UnpackChannels)
_MAX_DEPTH = 16
_PROBE = 64
_PART = 1 << 16

_ARITHMETIC: dict[type, Callable[[int, int], int]] = {
    Add: lambda a, b: a + b,
    Sub: lambda a, b: a - b,
    Mul: lambda a, b: a * b,
    Minimum: min,
    Maximum: max,
}


def integer_range(editor: GraphEditor, value: Value) -> Range | None:
    """The least and the largest element a value may have; None unless all are whole numbers."""
    return _range(editor, value, 0, {})


def _range(
    editor: GraphEditor, value: Value, depth: int, known: dict[str, Range | None]
) -> Range | None:
    """The same; `known` has what was found before, by names: several paths may lead to a value."""
    if value.name in known:
        return known[value.name]
    array = editor.array(value)
    if array is not None:
        return _of_array(array)
    node = editor.producer(value)
    found = None if node is None or depth > _MAX_DEPTH else _of_node(editor, node, depth, known)
    limits = type_range(value.type.dtype)
    if found is None or limits is None:
        result = found or limits
    else:
        inside = limits[0] <= found[0] and found[1] <= limits[1]
        result = found if inside else limits  # integers wrap around
    known[value.name] = result
    return result


def fits_bf16(editor: GraphEditor, value: Value) -> bool:
    """Whether every element is surely exact in bf16."""
    array = editor.array(value)
    if array is not None:
        return bf16_exact(array)
    found = integer_range(editor, value)
    return found is not None and magnitude(found) <= BF16_EXACT


def bf16_exact(array: Array) -> bool:
    """Whether every element of a float32 array is exact in bf16."""
    bits = np.ascontiguousarray(array, np.float32).reshape(-1).view(np.uint32)
    return not (bits[:_PROBE] & 0xFFFF).any() and not (bits & 0xFFFF).any()


def is_kept_whole(context: PassContext, w: Array) -> bool:
    """Whether weights stay as they are because the target multiplies such whole numbers faster."""
    if context.has_matrix_engine:
        return bf16_exact(w)
    return context.byte_products > 0 and byte_type(w) is DType.I8


def largest_sum(op: Product, w: Array) -> int:
    """The largest sum of the magnitudes of the weights that meet in one element of a product."""
    match op:
        case MatMul():
            axes: tuple[int, ...] = (-min(w.ndim, 2),)
        case Conv():
            axes = tuple(range(1, w.ndim))
        case DepthwiseBlocked():  # the last weights are of different channels
            axes = tuple(range(1, w.ndim - 1))
        case (
            ConvBytes()
            | ConvByteTiles()
            | ConvPlanarByteTiles()
            | MatMulBytes()
            | MatMulByteTiles()
        ):  # the last are neighbours, and those before them of different columns
            axes = (*range(1, w.ndim - 2), w.ndim - 1)
    return int(np.abs(w, dtype=np.float64).sum(axis=axes).max(initial=0))


def may_wrap(op: Conv | MatMul, w: Array, zero: int) -> bool:
    """Whether sums of products of weights and bytes, less `zero` each, may be larger than i32."""
    return largest_sum(op, w) * (MAX_BYTE + abs(zero)) >= 2**31


def magnitude(found: Range) -> int:
    """The largest magnitude in a range."""
    return max(map(abs, found))


def byte_type(array: Array) -> DType | None:
    """The type of bytes that holds every element of an array, which is not empty; or None."""
    found = _of_array(array) if array.size else None
    limits = {dtype: type_range(dtype) or (0, 0) for dtype in BYTES}
    return next(
        (d for d, (a, b) in limits.items() if found and a <= found[0] and found[1] <= b), None
    )


def moved_bytes(editor: GraphEditor, value: Value) -> tuple[Value, int] | None:
    """Bytes that a value is made of, and the number that is taken away from each; or None."""
    node = editor.producer(value)
    if node is None:
        return None
    if isinstance(node.op, Cast):
        (source,) = node.inputs
        if source.type.dtype in BYTES:
            return source, 0
        return moved_bytes(editor, source) if source.type.dtype is DType.I32 else None
    if not isinstance(node.op, Sub | Add) or value.type.dtype is not DType.I32:
        return None
    inner, number = moved_bytes(editor, node.inputs[0]), editor.array(node.inputs[1])
    if inner is None or number is None or number.size != 1:
        return None
    step = int(number.reshape(-1)[0])
    return inner[0], inner[1] + (step if isinstance(node.op, Sub) else -step)


def _of_array(array: Array) -> Range | None:
    if not array.size:
        return (0, 0)
    if array.dtype.kind in "iub":
        return int(array.min()), int(array.max())
    flat, ranges = array.reshape(-1), []
    begin, size = 0, _PROBE
    while begin < flat.size:  # parts that grow: most arrays are none at their beginning
        numbers = flat[begin : begin + size].astype(np.float64)
        if not (np.isfinite(numbers).all() and (numbers == np.rint(numbers)).all()):
            return None
        ranges.append((int(numbers.min()), int(numbers.max())))
        begin, size = begin + size, min(2 * size, _PART)
    return _hull(ranges)


def type_range(dtype: DType) -> Range | None:
    """The least and the largest element of a type; None for floats."""
    if dtype is DType.BOOL:
        return (0, 1)
    if dtype.is_float:
        return None
    limits = ml_dtypes.iinfo(NUMPY_DTYPES[dtype])  # type: ignore[no-untyped-call]
    return int(limits.min), int(limits.max)


def _of_node(
    editor: GraphEditor, node: Node, depth: int, known: dict[str, Range | None]
) -> Range | None:
    whole: list[Range] = []
    for value in node.inputs:  # until the first that is none: the others may be a long way up
        found = _range(editor, value, depth + 1, known)
        if found is None:
            return None
        whole.append(found)
    if isinstance(node.op, Product):
        weights = editor.array(node.inputs[1])
        if weights is None:
            return None
        largest = magnitude(whole[0]) * largest_sum(node.op, weights)
        found = (-largest, largest)
    elif type(node.op) in _ARITHMETIC and len(whole) == 2:
        ends = [_ARITHMETIC[type(node.op)](a, b) for a in whole[0] for b in whole[1]]
        found = (min(ends), max(ends))
    else:
        found = _moved(node.op, whole)
    if found is None or not node.output.type.dtype.is_float:
        return found
    exact = {DType.F32: F32_EXACT, DType.F64: F64_EXACT}.get(node.output.type.dtype, 0)
    return found if magnitude(found) <= exact else None


def _moved(op: Op, whole: list[Range]) -> Range | None:
    """The range of what an operator makes of whole numbers without computing new ones."""
    match op:
        case Cast():
            return whole[0]
        case Empty():
            return (0, 0)
        case from_sizes.Range():
            return _counted(op)
        case Relu():
            return max(whole[0][0], 0), max(whole[0][1], 0)
        case Clip(min=low, max=high) if _is_whole(low) and _is_whole(high):
            return _clipped(whole[0], low, high)
        case Pad(value=fill) if _is_whole(fill):
            return _hull([*whole, (int(fill), int(fill))])
        case PackChannels():
            return _hull([*whole, (0, 0)])
        case MaxPool(dilation=steps) if set(steps) != {1}:
            return None  # a window may hold nothing but pads, which are less than any number
        case _ if isinstance(op, _MOVES):
            return _hull(whole)
        case _:
            return None


def _counted(op: from_sizes.Range) -> Range | None:
    limits = type_range(op.dtype)
    if limits is None or not isinstance(op.start, Const) or not isinstance(op.delta, Const):
        return None
    first = int(op.start.value)
    return (first, limits[1]) if op.delta.value > 0 else (limits[0], first)


def _is_whole(number: float | None) -> bool:
    return number is None or (math.isfinite(number) and number == round(number))


def _clipped(found: Range, low: float | None, high: float | None) -> Range:
    least, most = found
    if low is not None:
        least, most = max(least, int(low)), max(most, int(low))
    if high is not None:
        least, most = min(least, int(high)), min(most, int(high))
    return least, most


def _hull(ranges: list[Range]) -> Range:
    return min(low for low, _ in ranges), max(high for _, high in ranges)
