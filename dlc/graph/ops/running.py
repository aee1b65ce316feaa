"""Running sums, one element after the other."""

from __future__ import annotations

from dlc.graph.op import Array, Fuse, op
from dlc.graph.ops.elementwise import NUMBERS, check_dtype
from dlc.graph.ops.nest import NestOp, each, each_row, lines
from dlc.graph.ops.precision import wide
from dlc.graph.ops.reduce import CumSum
from dlc.schedule.loop import Buffer
from dlc.te.expr import ONE, Expr
from dlc.te.types import TensorType

_ROWS = 8
"""Rows whose sums grow together: each waits for its own addition only."""
_LANES = 16


@op("running_sum", fuse=Fuse.OPAQUE)
class RunningSum(NestOp):
    """Running sums along the middle axis; as `CumSum`.

    Shapes:
        x: [m, n, k] -> [m, n, k]
    """

    exclusive: bool = False
    reverse: bool = False

    def infer(self, x: TensorType) -> TensorType:
        check_dtype(self, NUMBERS, x)
        if x.rank != 3:
            raise self.reject("needs three axes", x)
        return x

    def nest(self, inputs: tuple[Buffer, ...], outputs: tuple[Buffer, ...]) -> str:
        (x,), (out,) = inputs, outputs
        rows, size, width = x.type.shape
        kind = wide(x.type.dtype)

        def at(step: str) -> str:
            return f"{size} - 1 - {step}" if self.reverse else step

        def add(total: str, place: str) -> str:
            summed = f"{total} = {total} + {kind}({x.name}[{place}])"
            stored = f"{out.name}[{place}] = {x.type.dtype}({total})"
            return lines(stored, summed) if self.exclusive else lines(summed, stored)

        def several(name: str, count: int, first: str) -> str:
            """Rows of one column side by side."""
            step, row, total = f"{name}_step", f"{name}_row", f"{name}_total"
            place = f"{first} + {row}, {at(step)}, 0"
            clear = each(f"{name}_clear", count, f"{total}[{name}_clear] = {kind}(0)", "unroll")
            body = each(row, count, add(f"{total}[{row}]", place), "unroll")
            return lines(
                f'{total} = alloc({kind}[{count}], "register")', clear, each(step, size, body)
            )

        if width == ONE:
            rest = each("q", rows % _ROWS, several("one", 1, f"({rows}) // {_ROWS} * {_ROWS} + q"))
            whole = several("all", _ROWS, f"r * {_ROWS}")
            return lines(each_row(rows // _ROWS, x.type.elems, whole), rest)

        def along(var: str, extent: Expr | int, column: str, how: str) -> str:
            return each(var, extent, add(f"total[{column}]", f"r, {at('i')}, {column}"), how)

        behind = f"({width}) // {_LANES} * {_LANES} + k"
        vector = along("j", _LANES, f"b * {_LANES} + j", "vectorize")
        step = lines(
            each("b", width // _LANES, vector), along("k", width % _LANES, behind, "range")
        )
        clear = each("z", width, f"total[z] = {kind}(0)")
        sums = lines(f'total = alloc({kind}[{width}], "local")', clear, each("i", size, step))
        return each_row(rows, x.type.elems, sums)

    def reference(self, x: Array) -> Array:
        return CumSum(axis=1, exclusive=self.exclusive, reverse=self.reverse).reference(x)
