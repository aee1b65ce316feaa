"""Addresses that move with the innermost loops, so that LLVM need not look for better ones.

Its loop strength reduction takes half the time of code generation, and finds what is known here:
which addresses are linear in a loop's variable. See ADR 0042.
"""

from __future__ import annotations

from collections.abc import Callable

from dlc.codegen.llvm.ir import Block, Builder, Val, phi_text
from dlc.core.target import Target
from dlc.schedule.loop import For, LoopKind, walk
from dlc.te.expr import Binary, BinOp, Const, Expr
from dlc.te.poly import Poly, add, scale
from dlc.te.simplify import Bounds, to_poly

MARK = "; addresses move with the loops\n"
"""Begins the text of a module that needs neither strength reduction nor sinking of addresses."""
MIN_SHARING = 3
"""Pointers that make one offset for all of them better than an addition for each.

An address with an index is one of two registers, which costs an instruction that also computes a
second operation on Intel's processors since Haswell: two pointers are better moved on their own.
"""


def may_move(target: Target) -> bool:
    """Whether the addresses of kernels move: on x86-64, where that was measured."""
    return target.arch == "x86_64"


def is_innermost(loop: For) -> bool:
    """Whether a loop holds none that is not written out."""
    serial = (LoopKind.SERIAL, LoopKind.PARALLEL)
    inner = (node for node in walk(loop.body) if isinstance(node, For) and node.kind in serial)
    return all(isinstance(node.extent, Const) and node.extent.value <= 1 for node in inner)


def without_remainders(poly: Poly, bounds: Bounds, chosen: Callable[[Expr], bool]) -> Poly:
    """A sum in which chosen remainders are `a - a // b * b`; the caller may change it.

    Other terms need the quotient, too, and what is linear in `a` moves with the loop.
    """
    total: Poly = {}
    for atoms, factor in poly.items():
        part: Poly = {atoms: 1}
        match atoms:
            case (Binary(BinOp.MOD, a, Const(divisor) as b) as atom,) if chosen(atom):
                quotient = to_poly(Binary(BinOp.FLOORDIV, a, b), bounds)
                part = add(to_poly(a, bounds), scale(quotient, -int(divisor)))
                part = without_remainders(part, bounds, chosen)
        total = add(total, scale(part, factor))
    return total


def advance(
    builder: Builder, start: Block, counter: Val, begin: Val, end: Val, *, read: bool
) -> Val:
    """End an iteration of the innermost loop, which `start` enters: whether another one follows.

    `read` tells whether anything but the end of the loop needs the counter.
    """
    offset = _move_pointers(builder, start)
    if read or begin.ref != "0" or end.ref[0] == "%":
        following = builder.step(start, counter, begin, "add nuw nsw", 1)
        return builder.fresh(f"icmp slt {following}, {end.ref}", "i1")
    if offset is not None:
        moved, step = offset
        return builder.fresh(f"icmp ne {moved}, {int(end.ref) * step}", "i1")
    # Down to 0 no comparison is needed: the subtraction sets the flags.
    following = builder.step(start, counter, end, "add nsw", -1)
    return builder.fresh(f"icmp ne {following}, 0", "i1")


def _move_pointers(builder: Builder, start: Block) -> tuple[Val, int] | None:
    """Define the pointers of the innermost loop: registers to which a constant is added.

    Where many move by the same step, they are fixed and one offset moves. Returns what such an
    offset is in the next iteration, and its step.
    """
    level = builder.levels[-1]
    by_step: dict[int, list[tuple[Val, Val]]] = {}
    for pointer, first, step in level.pointers:
        by_step.setdefault(step, []).append((pointer, first))
    found = None
    for step, pointers in by_step.items():
        if len(pointers) >= MIN_SHARING:
            offset = Val(builder.name(), "i64")
            found = builder.step(start, offset, Val("0", "i64"), "add nsw", step), step
            level.block.early[:0] = [
                f"{pointer.ref} = getelementptr i8, {first}, {offset}"
                for pointer, first in pointers
            ]
            continue
        for pointer, first in pointers:
            moved = builder.fresh(f"getelementptr i8, {pointer}, i64 {step}", "ptr")
            incoming = [(first, start), (moved, builder.current)]
            level.block.phis.append(phi_text(pointer.ref, pointer, incoming))
    return found
