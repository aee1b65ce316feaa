"""Matrices that indices choose out of a stack, as a router chooses experts, as right operands.

gather(w, which) @ x, of one column each -> transpose(transpose(x) @ gather(transpose(w), which))
transpose(gather(w, which)) -> gather(transpose(w), which), within what is chosen
cast(gather(w, which)) -> gather(cast(w), which), of 16-bit floats that become float32

A transposed stack is a constant again, and packed once; what is chosen is not. So is a wide one,
and narrow_weights finds the bits that it needs.
"""

from __future__ import annotations

from dlc.core.types import DType
from dlc.graph.graph import Value
from dlc.graph.ops.elementwise import Cast
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.precision import HALF
from dlc.graph.ops.shape import Reshape, Transpose
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule
from dlc.te.expr import ONE


@rule(Pattern(MatMul, (Pattern(Gather, (Weight("w"), "which"), name="chosen"), "x")))
def chosen_to_the_right(match: Match) -> Value | Refusal:
    """Multiply single columns as rows."""
    w, which, x = match["w"], match["which"], match["x"].type
    if match.op(Gather).axis != 0 or w.type.rank != 3:
        return Refusal("the left operand is no choice of matrices")
    if x.rank < 2 or x.shape[-1] != ONE or x.shape[:-2] != which.type.shape:
        return Refusal("the right operand is not one column for each")
    turned = match.call(Transpose(perm=(0, 2, 1)), w)
    row = match.call(Reshape(shape=(*x.shape[:-2], ONE, x.shape[-2])), match["x"])
    y = match.call(MatMul(), row, match.call(Gather(axis=0), turned, which))
    return match.call(Reshape(shape=match.root.output.type.shape), y)


@rule(Pattern(Transpose, (Pattern(Gather, (Weight("w"), "which")),)))
def transpose_before_choice(match: Match) -> Value | Refusal:
    """Transpose the stack."""
    outer, perm = match["which"].type.rank, match.op(Transpose).perm
    if match.op(Gather).axis != 0 or perm[:outer] != tuple(range(outer)):
        return Refusal("what is chosen is moved itself")
    inside = (0, *(axis - outer + 1 for axis in perm[outer:]))
    turned = match.call(Transpose(perm=inside), match["w"])
    return match.call(Gather(axis=0), turned, match["which"])


@rule(Pattern(Cast, (Pattern(Gather, (Weight("w"), "which")),)))
def cast_before_choice(match: Match) -> Value | Refusal:
    """Widen the stack."""
    op, w = match.op(Cast), match["w"].type
    if match.op(Gather).axis != 0 or w.rank < 3:
        return Refusal("no matrices are chosen")
    if w.dtype not in HALF or op.to is not DType.F32:
        return Refusal("it is not from 16-bit floats to float32")
    wide = match.editor.constant(match.stored("w"), DType.F32, f"{match['w'].name}_wide")
    return match.call(Gather(axis=0), wide, match["which"])
