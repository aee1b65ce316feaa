"""Indices that come from the data: a run refuses those that lead outside, and names the node."""

from __future__ import annotations

from collections.abc import Sequence

from dlc.core.types import DType
from dlc.frontend.onnx.context import Context
from dlc.graph.graph import Value
from dlc.graph.ops.checked_indices import CheckedIndices
from dlc.te.expr import Expr


def checked(ctx: Context, indices: Value, sizes: Sequence[Expr], *, negative: bool = True) -> Value:
    """The indices, each below its size; `negative` ones count from the end.

    There is one size for all, or one for each element of the last axis. What is known while
    importing is left as it is: converters refuse it, or it is a size that has its own checks.
    """
    if ctx.array(indices) is not None or ctx.is_symbolic(indices):
        return indices
    if indices.type.dtype not in (DType.I32, DType.I64):
        return indices
    shown = ", ".join(map(str, sizes))
    label = f"node '{ctx.node.label}' ({ctx.node.op_type})"
    message = f"{label}: an index from the data lies outside of size {shown}"
    return ctx.call(CheckedIndices(sizes=tuple(sizes), negative=negative, message=message), indices)
