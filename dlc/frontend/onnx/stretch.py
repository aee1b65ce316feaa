"""Operands that broadcast along sizes of which only a run knows whether they are 1.

Operators take sizes that differ in name for equal, and a run checks it: kernels for equal sizes are
fast, and most models mean that. Where a run may find a 1 instead, the model is imported once more
with the operands repeated to the size that a run finds out; each size there is either that or 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlc.graph.graph import Value
from dlc.graph.op import Op
from dlc.graph.ops.binary import Binary, Where
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.shape import Expand
from dlc.te.expr import ONE, Const, Expr, Var, equal, select
from dlc.te.simplify import surely_at_most, surely_differ, surely_equal
from dlc.te.transform import free_vars

if TYPE_CHECKING:
    from dlc.frontend.onnx.context import Context


_BROADCASTING = frozenset({
    "Add", "And", "BiasAdd", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal",
    "FusedMatMul", "Gemm", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "MatMul",
    "MatMulInteger", "MatMulIntegerToFloat", "Max", "Mean", "Min", "Mod", "Mul", "MulInteger", "Or",
    "Pow", "QLinearAdd", "QLinearMatMul", "QLinearMul", "QLinearWhere", "Sub", "Sum",
    "TransposeMatMul", "Where", "Xor",
})  # fmt: skip
"""ONNX's operators that broadcast both ways; the sizes that others compare must be equal."""


class Stretcher:
    """What one import knows of sizes that broadcast."""

    def __init__(self, *, decides: bool) -> None:
        self.decides = decides
        """Whether operands are repeated; else sizes are taken for equal, and that is noted."""
        self.assumed: list[Expr] = []
        """What was taken for granted: pairs of sizes that are equal."""
        self._parts: dict[Expr, frozenset[Expr]] = {}
        """A size that a run finds out -> the sizes of which it is the one that is not 1."""

    def stretch(self, ctx: Context, op: Op, operands: tuple[Value, ...]) -> tuple[Value, ...]:
        """The operands of an operator, repeated where a run decides that."""
        last = _not_broadcast(op, operands) if ctx.node.op_type in _BROADCASTING else None
        return operands if last is None else self.together(ctx, operands, last)

    def together(
        self, ctx: Context, operands: tuple[Value, ...], last: int = 0
    ) -> tuple[Value, ...]:
        """Operands whose axes but the last ones broadcast, repeated where a run decides that."""
        shapes = [v.type.shape[: v.type.rank - last] for v in operands]
        rank = max(map(len, shapes))
        columns = [[s[d - rank] for s in shapes if len(s) >= rank - d] for d in range(rank)]
        wanted = [self._joined(ctx, column) for column in columns]
        if all(size is None for size in wanted):
            return operands
        return tuple(
            self._repeated(ctx, v, s, wanted[rank - len(s) :])
            for v, s in zip(operands, shapes, strict=True)
        )

    def _repeated(
        self, ctx: Context, value: Value, own: Sequence[Expr], wanted: Sequence[Expr | None]
    ) -> Value:
        sizes = [
            have if want is None or have == ONE else want
            for have, want in zip(own, wanted, strict=True)
        ]
        if tuple(sizes) == tuple(own):
            return value
        return ctx.call(Expand(shape=(*sizes, *value.type.shape[len(own) :])), value)

    def _joined(self, ctx: Context, sizes: Sequence[Expr]) -> Expr | None:
        """The size that operands are repeated to; None where no size is, or they are equal."""
        found: list[Expr] = []
        for size in sizes:
            if size != ONE and not any(surely_equal(size, other, ctx.bounds) for other in found):
                found.append(size)
        found = [s for s in found if not any(s in self._parts.get(o, ()) for o in found)]
        if len(found) < 2:
            return found[0] if found and found[0] in self._parts else None
        narrow = {s for s in found if surely_at_most(s, ONE, ctx.bounds)}
        surely_wide = {
            s for s in found if isinstance(s, Const) or surely_differ(s, ONE, ctx.bounds)
        }
        found.sort(key=lambda s: (s in surely_wide, s not in narrow))
        *unclear, wide = found
        if meant := [s for s in unclear if _are_meant_equal(s, wide)]:
            if not narrow.issuperset(meant):
                return None
            return self._joined(ctx, [s for s in found if s not in meant]) or wide  # as of x[-1:]
        self.assumed += [equal(s, wide) for s in unclear]
        if not self.decides:
            return None
        return wide if isinstance(wide, Const) else self._found_out(ctx, found)

    def _found_out(self, ctx: Context, sizes: Sequence[Expr]) -> Expr:
        """The first of sizes that is not 1, or the last one."""
        *before, chosen = sizes
        for size in reversed(before):
            chosen = select(equal(size, 1), chosen, size)
        known = ctx.data.found_outside(chosen)
        parts = frozenset(p for s in sizes for p in (s, *self._parts.get(s, ())))
        self._parts[known] = self._parts.get(known, frozenset()) | parts
        return known


def _are_meant_equal(a: Expr, b: Expr) -> bool:
    """Whether sizes that differ in form are equal, or the model is wrong.

    Formulas of one size are, and formulas none of which is a size of an input or a fixed one.
    """
    return bool(free_vars(a) & free_vars(b)) or not (isinstance(a, Var) or isinstance(b, Var))


def _not_broadcast(op: Op, operands: Sequence[Value]) -> int | None:
    """How many of the last axes do not broadcast; None where no axis does."""
    if isinstance(op, Binary | Where):
        return 0
    if isinstance(op, MatMul) and all(v.type.rank > 1 for v in operands):
        return 2
    return None
