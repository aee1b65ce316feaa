"""(cast(a) - z) @ cast(w) -> a @ w - z * columns(w), for bytes a and w, on GPUs.

The sums of the columns of w are a constant, so what is multiplied stays bytes in memory.
"""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.graph.graph import Value
from dlc.graph.integers import BYTES, byte_type, may_wrap, moved_bytes
from dlc.graph.ops.binary import Add
from dlc.graph.ops.elementwise import Cast
from dlc.graph.ops.matmul import MatMul
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule

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
    found, dtype = moved_bytes(match.editor, match["x"]), byte_type(w)
    if found is None or dtype is None:
        return Refusal("an operand is not made of bytes")
    a, zero = found
    if wanted is DType.F32 and may_wrap(MatMul(), w, zero):
        return Refusal("the sums may be larger than i32")
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
