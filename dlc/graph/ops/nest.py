"""Operators that are steps in order: each says its own loops.

What a step of a sort, a running sum or a greedy choice does depends on the steps before it, so no
formula says what one element is. Such an operator is written as loop IR, with its schedule.
"""

from __future__ import annotations

import textwrap
from typing import NoReturn

from dlc.core.errors import InternalError
from dlc.graph.op import Op
from dlc.schedule.loop import Buffer
from dlc.te import tensor as te
from dlc.te.expr import ONE, ZERO, Const, Expr, ExprLike, index
from dlc.te.simplify import canonical

_WORTH_THREADS = 1 << 14
"""Elements from which rows run on several threads."""


class NestOp(Op):
    """An operator that is a loop nest of its own, and a kernel of its own."""

    def nest(self, inputs: tuple[Buffer, ...], outputs: tuple[Buffer, ...]) -> str:
        """The statements, in loop IR text. Sizes are those of the buffers.

        Names of loops and local buffers are free; lowering keeps them apart from those of sizes.
        """
        raise NotImplementedError

    def compute(self, *operands: te.Tensor) -> NoReturn:
        raise InternalError(detail=f"{self.name} is a loop nest, not a formula")


def each(var: str, extent: ExprLike, body: str, kind: str = "range") -> str:
    """A loop; nothing where it surely has no iteration."""
    size = canonical(index(extent))
    if size == ZERO:
        return "pass"
    return f"for {var} in {kind}({size}):\n" + textwrap.indent(body, "    ")


def each_row(rows: Expr, elems: Expr, body: str) -> str:
    """A loop `r` over rows that are independent: on threads where that may be worth it."""
    few = isinstance(elems, Const) and int(elems.value) < _WORTH_THREADS
    return each("r", rows, body, "range" if few or rows == ONE else "parallel")


def lines(*parts: str) -> str:
    """Statements, one after the other."""
    return "\n".join(parts)


def when(cond: str, body: str) -> str:
    """Statements behind a condition."""
    return f"if {cond}:\n" + textwrap.indent(body, "    ")
