"""(cast(a) - z) @ cast(w) -> a @ w - z * columns(w), for bytes a and w, on GPUs.

The sums of the columns of w are a constant, so what is multiplied stays bytes in memory.
"""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Value
from dlc.graph.integers import type_range
from dlc.graph.op import Array
from dlc.graph.ops.binary import Add, Sub
from dlc.graph.ops.elementwise import Cast
from dlc.graph.ops.matmul import MatMul
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule

BYTES = (DType.I8, DType.U8)
MIN_COLUMNS = 16  # of the narrowest tile
DEPTH = 32  # summands of one instruction


@rule(Pattern(MatMul, ("x", Weight("w")), name="y"))
def integers_into_bytes(match: Match) -> Value | Refusal:
    """Multiply bytes as they are, for which GPUs have an instruction."""
    w = match.array("w")
    if match.context.target.gpu is None:
        return Refusal("the target has no instruction for bytes")
    wanted = match["y"].type.dtype
    if wanted not in (DType.I32, DType.F32) or w.ndim != 2:
        return Refusal("the product is no matrix of i32 or f32")
    if are_bytes(match):
        return Refusal("the operands are bytes")
    if w.shape[0] % DEPTH or w.shape[1] < MIN_COLUMNS:
        return Refusal("the product fills no instruction")
    found = _moved_bytes(match.editor, match["x"])
    dtype = next((d for d in BYTES if _holds(d, w)), None)
    if found is None or dtype is None:
        return Refusal("an operand is not made of bytes")
    a, zero = found
    weights = match.editor.constant(w, dtype, f"{match['w'].name}_bytes")
    product = match.call(MatMul(), a, weights)
    if zero:
        moved = -zero * w.astype(np.int64).sum(axis=0)
        name = f"{match['w'].name}_columns"
        product = match.call(Add(), product, match.editor.constant(moved, DType.I32, name))
    return product if wanted is DType.I32 else match.call(Cast(to=wanted), product)


def are_bytes(match: Match) -> bool:
    """Whether the operands x and w of a product are bytes already."""
    return all(match[name].type.dtype in BYTES for name in ("x", "w"))


def _holds(dtype: DType, array: Array) -> bool:
    """Whether numbers are whole and inside of the range of a type."""
    limits = type_range(dtype)
    assert limits is not None, "bytes are whole numbers"
    inside = array.size > 0 and limits[0] <= array.min() and array.max() <= limits[1]
    return bool(inside) and bool((array == np.floor(array)).all())


def _moved_bytes(editor: GraphEditor, value: Value) -> tuple[Value, int] | None:
    """Bytes, and the number that is taken away from each of them."""
    node = editor.producer(value)
    if node is None:
        return None
    if isinstance(node.op, Cast):
        (source,) = node.inputs
        if source.type.dtype in BYTES:
            return source, 0
        return _moved_bytes(editor, source) if source.type.dtype is DType.I32 else None
    if not isinstance(node.op, Sub | Add) or value.type.dtype is not DType.I32:
        return None
    inner, number = _moved_bytes(editor, node.inputs[0]), editor.array(node.inputs[1])
    if inner is None or number is None or number.size != 1:
        return None
    step = int(number.reshape(-1)[0])
    return inner[0], inner[1] + (step if isinstance(node.op, Sub) else -step)
