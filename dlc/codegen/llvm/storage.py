"""Where the buffers of a function live, and how far apart their elements are."""

from __future__ import annotations

from dataclasses import dataclass

from dlc.codegen.llvm.ir import Val
from dlc.core.types import DType
from dlc.te.expr import ZERO, Const, Expr, ceil_div
from dlc.te.simplify import canonical


@dataclass(frozen=True, slots=True)
class Storage:
    """Where a buffer lives. `base` is None for register buffers.

    `alias` names what may share its memory; `private` is the variable of the vector loop that
    holds its allocation: each lane then has elements of its own.
    """

    name: str
    dtype: DType
    strides: tuple[Expr, ...]
    shape: tuple[Expr, ...]
    base: Val | None
    alias: str
    private: str = ""


# Rows of register buffers start at multiples of this: a vector that sticks out of one row must not
# reach into the next. Elements nobody names cost nothing.
_REGISTER_ROW = 64


def register_strides(shape: tuple[Expr, ...], lanes: int = 0) -> tuple[Expr, ...]:
    """The strides of a register buffer: rows are padded."""
    if not shape:
        return strides_of(shape, lanes)
    row = canonical(ceil_div(shape[-1], _REGISTER_ROW) * _REGISTER_ROW)
    return strides_of((*shape[:-1], row), lanes)


def strides_of(shape: tuple[Expr, ...], lanes: int = 0) -> tuple[Expr, ...]:
    """The strides of a dense row-major buffer, in elements; private lanes are its last axis."""
    full = (*shape, Const(lanes, ZERO.dtype)) if lanes else shape
    step: Expr = Const(1, ZERO.dtype)
    result: list[Expr] = []
    for size in reversed(full):
        result.append(step)
        step = canonical(step * size)
    return tuple(reversed(result))
