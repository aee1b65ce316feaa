"""Indices that data says, another one in each lane: worked out along vectors.

Where memory has no vectors of addresses, each lane loads for itself. What brings its index into
range, some comparisons and choices, is the same for all: vectors do it for several at a time, and
the lanes are taken apart behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlc.codegen.llvm.ir import Val, mangled
from dlc.core.types import INDEX
from dlc.te.expr import COMPARISONS, LOGICAL, Binary, BinOp, Expr, Select
from dlc.te.transform import loads

if TYPE_CHECKING:
    from dlc.codegen.llvm.index import Indices

_OPS = {BinOp.ADD: "add nsw", BinOp.SUB: "sub nsw"}
_EXTREMES = {BinOp.MIN: "smin", BinOp.MAX: "smax"}


def is_from_data(indices: Indices, expr: Expr) -> bool:
    """Whether data says what an index is in each lane, and vectors can work it out."""
    if not indices.in_vectors or indices.flat(expr).lane is not None:
        return False
    return bool(loads(expr)) and _has_vectors(indices, expr)


def _has_vectors(indices: Indices, expr: Expr) -> bool:
    """Whether no part of an index is divided or multiplied, but for what steps with the lanes."""
    match expr:
        case Binary(op, a, b) if op in {*COMPARISONS, *LOGICAL, *_OPS, *_EXTREMES}:
            return _has_vectors(indices, a) and _has_vectors(indices, b)
        case Select(cond, then, other):
            return all(_has_vectors(indices, part) for part in (cond, then, other))
        case Binary() if expr.dtype is INDEX:
            return indices.flat(expr).lane is not None
        case _:
            return True


def vector_of(indices: Indices, expr: Expr) -> Val:
    """An index that is from data, for all lanes."""
    builder, lanes = indices.builder, indices.lanes
    match expr:
        case Binary(op, a, b):
            x, y = (indices.splat(indices.evaluate(part), lanes) for part in (a, b))
            if op in _EXTREMES:
                name = f"llvm.{_EXTREMES[op]}.{mangled('i64', lanes)}"
                return builder.call(name, x, x, y)
            return builder.op(f"{_OPS[op]} {x}, {y.ref}", "i64", lanes)
        case _:
            return indices.splat(indices.evaluate(expr), lanes)
