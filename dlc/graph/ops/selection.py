"""Operators behind those whose results are as many as the data says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dlc.core.types import DType
from dlc.graph.op import Array, Fuse, op
from dlc.graph.ops.attributes import constants, set_size
from dlc.graph.ops.nest import NestOp, each, lines, when
from dlc.schedule.loop import Buffer
from dlc.te.expr import Expr
from dlc.te.types import TensorType

_WIDTH = 64
"""Flags that are looked at together: of most blocks none may be set."""


@op("true_places", fuse=Fuse.OPAQUE)
class TruePlaces(NestOp):
    """Where the elements are that are true, in order; `count` is how many there are.

    Shapes:
        x: bool[n] -> i64[count]
    """

    count: Expr

    def __post_init__(self) -> None:
        set_size(self, "count")

    def infer(self, x: TensorType) -> TensorType:
        if x.rank != 1 or x.dtype is not DType.BOOL:
            raise self.reject("needs a vector of bools", x)
        return TensorType((self.count,), DType.I64)

    def nest(self, inputs: tuple[Buffer, ...], outputs: tuple[Buffer, ...]) -> str:
        (x,), (out,) = inputs, outputs
        (size,), (count,) = x.type.shape, out.type.shape

        def store(at: str) -> str:
            found = lines(f"{out.name}[index(found[0])] = i64({at})", "found[0] = found[0] + NEXT")
            step = f"(i64(1) if {x.name}[{at}] else i64(0))"
            return when(f"index(found[0]) < {count}", found.replace("NEXT", step))

        return lines(
            'found = alloc(i64[1], "register")', "found[0] = i64(0)", over_true(x.name, size, store)
        )

    def reference(self, x: Array) -> Array:
        (count,) = constants((self.count,))
        return np.flatnonzero(x)[:count].astype(np.int64)


def over_true(flags: str, size: Expr, body: Callable[[str], str]) -> str:
    """A loop over the places of blocks in which some flag is set.

    A body that stores each place where the next one that counts is due, and moves on behind those
    that count, needs no branch that data decides.

    Args:
        flags: a vector of bools, or a row of them, as `flags[r, AT]`.
        size: how many there are.
        body: what to do at a place.
    """
    flag = flags if "AT" in flags else f"{flags}[AT]"
    first = f"({size}) // {_WIDTH} * {_WIDTH}"
    hit = f"(i32(1) if {flag.replace('AT', f'b * {_WIDTH} + lane')} else i32(0))"
    block = lines(
        'some = alloc(i32[1], "register")',
        "some[0] = i32(0)",
        each("lane", _WIDTH, f"some[0] += {hit}", "vectorize"),
        when("i32(0) < some[0]", each("within", _WIDTH, body(f"b * {_WIDTH} + within"))),
    )
    rest = each("behind", size % _WIDTH, body(f"{first} + behind"))
    return lines(each("b", size // _WIDTH, block), rest)
