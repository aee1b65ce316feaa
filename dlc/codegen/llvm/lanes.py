"""Vectors of some lanes of others."""

from __future__ import annotations

from collections.abc import Sequence

from dlc.codegen.llvm.ir import Builder, Val, lane_constants, poison


def pick(builder: Builder, value: Val, places: Sequence[int]) -> Val:
    """A vector of elements of another one."""
    text = f"shufflevector {value}, {value.type} poison, {lane_constants(places, 'i32')}"
    return builder.op(text, value.elem, len(places))


def widened(builder: Builder, value: Val, width: int) -> Val:
    """A value in the first lanes of a vector; a scalar is in all of them."""
    if value.lanes == width:
        return value
    if not value.lanes:
        one = f"insertelement {poison(value.elem, width)}, {value}, i64 0"
        first = builder.op(one, value.elem, width)
        zeros = f"<{width} x i32> zeroinitializer"
        return builder.op(f"shufflevector {first}, {first.type} poison, {zeros}", value.elem, width)
    return pick(builder, value, [min(n, value.lanes - 1) for n in range(width)])


def narrowed(builder: Builder, value: Val, lanes: int) -> Val:
    """The first lanes of a vector; an element for none."""
    if lanes == value.lanes:
        return value
    if not lanes:
        return builder.op(f"extractelement {value}, i64 0", value.elem)
    return pick(builder, value, range(lanes))
