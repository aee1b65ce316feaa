"""Nests that move elements: transposed, unpacked, padded, placed in others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dlc.graph.ops.activation import HardSwish, LeakyRelu, Relu
from dlc.graph.ops.binary import Add, Mul
from dlc.graph.ops.channels import UnpackChannels
from dlc.graph.ops.phases import JoinPhases
from dlc.graph.ops.shape import Pad, Transpose
from dlc.schedule.loop import Func
from dlc.te.expr import Expr, index
from dlc.te.tensor import Tensor, insert, pad
from tests.schedule.rules.nests import M, N, func, tensor


def unpacked(width: int | Expr) -> Func:
    x = tensor("a", 1, 2, 3, width, 16)
    return func((x,), UnpackChannels(channels=index(21)).compute(x))


def turned_columns() -> Func:
    x = tensor("a", 37, 48)
    return func((x,), Transpose(perm=(1, 0)).compute(x))


def turned_and_as_it_is() -> Func:
    x = tensor("a", 48, 48)
    return func((x,), Add().compute(x, Transpose(perm=(1, 0)).compute(x)))


def turned(x: Tensor) -> Tensor:
    return Transpose(perm=(1, 2, 0)).compute(x)


def turned_with_rows() -> Func:
    x, y, z = tensor("a", 45, 3, 37), tensor("b", 3, 37, 45), tensor("c", 45)
    return func((x, y, z), Add().compute(Mul().compute(turned(x), y), z))


def turned_far() -> Func:
    x, y = tensor("a", 45, 3, 37), tensor("b", 45, 3, 37)
    return func(
        (x, y), HardSwish().compute(Mul().compute(turned(x), HardSwish().compute(turned(y))))
    )


def reflected(*shape: int | Expr, mode: str = "reflect") -> Func:
    """An image with three more elements around it, which are its own."""
    x, pads = tensor("a", *shape), tuple(map(index, (*(0,) * (len(shape) - 2), 3, 3)))
    return func((x,), Pad(before=pads, after=pads, mode=mode).compute(x))


def placed() -> Func:
    x, base = tensor("a", 1, 2, 3, 5, 16), tensor("b", 1, 5, 3, 5, 16)
    return func((x, base), insert("i", base, Relu().compute(x), (0, 2, 0, 0, 0)))


def placed_with_halo() -> Func:
    x, base = tensor("a", 1, 2, N, 5, 16), tensor("b", 1, 5, N + 2, 8, 16)
    framed = pad("p", Relu().compute(x), (0, 0, 1, 1, 0), (0, 0, 1, 2, 0))
    return func((x, base), insert("i", base, framed, (0, 2, 0, 0, 0)))


def joined_and_read_often() -> Func:
    """What is no move and read more than once is made between loops that moves have split."""
    x = tensor("a", 1, 2, 6, 3, 3, 16)
    made = JoinPhases(steps=(2, 3), sizes=(5, 8)).compute(x)
    for _ in range(3):
        made = LeakyRelu(alpha=0.5).compute(made)
    return func((x,), made)


CASES: dict[str, Callable[[], Func]] = {
    "unpacked": partial(unpacked, 37),
    "unpacked_open": partial(unpacked, N),
    "turned_columns": turned_columns,
    "turned_and_as_it_is": turned_and_as_it_is,
    "turned_with_rows": turned_with_rows,
    "turned_far": turned_far,
    "reflected": partial(reflected, 2, 9, 75),
    "reflected_open": partial(reflected, 2, N + 4, M + 4),
    "edge_open": partial(reflected, 2, 5, M + 1, mode="edge"),
    "wrapped": partial(reflected, 2, 5, 70, mode="wrap"),
    "placed": placed,
    "placed_with_halo": placed_with_halo,
    "joined_and_read_often": joined_and_read_often,
}
