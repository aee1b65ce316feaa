"""Putting the first few keys of rows in order by insertion, with a row in each lane of a vector.

A key is compared with the first ones so far, and those that are greater move on by one: for all
lanes that is a minimum, a maximum and the choice of two places for each, whatever the data is. Keys
come as they lie in memory, and tiles of them are transposed in registers.

Source: D. E. Knuth, The Art of Computer Programming, volume 3, 5.2.1 (sorting by insertion).
"""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.graph.op import Array, Fuse, op
from dlc.graph.ops.attributes import constants
from dlc.graph.ops.nest import each, each_row, lines
from dlc.graph.ops.order import Places
from dlc.schedule.loop import Buffer
from dlc.te.expr import Const, Expr
from dlc.te.simplify import surely_less
from dlc.te.types import TensorType


@op("first_keys", fuse=Fuse.OPAQUE)
class FirstKeys(Places):
    """Where the `k` smallest keys of each row are, in order; of equal ones the first comes first.

    `k` is a small constant: each key is compared with as many. `lanes` rows go together.

    Shapes:
        keys: [rows, n], unsigned -> i64[rows, k]
    """

    lanes: int

    def infer(self, keys: TensorType) -> TensorType:
        if not isinstance(self.k, Const) or not self.k.value:
            raise self.reject(f"{self.k} keys, not a constant number from 1 on", keys)
        return super().infer(keys)

    def nest(self, inputs: tuple[Buffer, ...], outputs: tuple[Buffer, ...]) -> str:
        (keys,), (out,) = inputs, outputs
        rows, lanes = keys.type.shape[0], self.lanes
        whole = _Rows("some", keys, out, lanes, f"r * {lanes} + AT").text()
        rest = _Rows("one", keys, out, 1, f"({rows}) // {lanes} * {lanes} + q + AT").text()
        return lines(each_row(rows // lanes, keys.type.elems, whole), each("q", rows % lanes, rest))

    def reference(self, keys: Array) -> Array:
        (k,) = constants((self.k,))
        return np.argsort(keys, axis=1, kind="stable")[:, :k].astype(np.int64)


class _Rows:
    """The statements for as many rows as there are lanes; `AT` stands for one of them in `row`."""

    def __init__(self, name: str, keys: Buffer, out: Buffer, lanes: int, row: str) -> None:
        self.name, self.keys, self.out, self.lanes, self.row = name, keys, out, lanes, row
        self.size: Expr = keys.type.shape[1]
        k = out.type.shape[1]
        assert isinstance(k, Const), "registers are as many as the program says"
        self.count = int(k.value)
        wide = keys.type.dtype is DType.U64
        self.key = DType.U64 if wide else DType.U32
        self.place = DType.I64 if wide or not surely_less(self.size, 2**31) else DType.I32
        self.loops = 0

    def text(self) -> str:
        """Insert the first keys, then the others, a tile of columns at a time; store the places."""
        k, lanes, name = self.count, self.lanes, self.name
        rest = self.size - k
        sizes = {"first": k * lanes, "own": lanes}
        parts = [
            f'{name}_{part} = alloc({dtype}[{size}], "register")'
            for what, size in sizes.items()
            for part, dtype in ((what, self.key), (f"{what}_at", self.place))
        ]
        parts += [self._insert(self._read(str(n)), str(n), n) for n in range(k)]
        parts.append(each(f"{name}_t", rest // lanes, self._tile(f"{k} + {name}_t * {lanes}")))
        behind = f"{k} + ({rest}) // {lanes} * {lanes} + {name}_s"
        last = self._insert(self._read(behind), behind, k)
        parts.append(each(f"{name}_s", rest % lanes, last))
        for n in range(k):
            place = self._held(n)[1]
            parts.append(self._each(f"{self.out.name}[{self.row}, {n}] = i64({place})"))
        return lines(*parts)

    def _read(self, column: str) -> str:
        return f"{self.key}({self.keys.name}[{self.row}, {column}])"

    def _tile(self, first: str) -> str:
        """Insert as many keys of each row as there are rows."""
        lanes, name = self.lanes, self.name
        if lanes == 1:
            return self._insert(self._read(first), first, self.count)
        tile, row, column = f"{name}_tile", f"{name}_a", f"{name}_b"
        load = self._read(f"{first} + {column}").replace("AT", row)
        load = each(column, lanes, f"{tile}[{row}, {column}] = {load}", "vectorize")
        columns = [
            self._insert(f"{tile}[AT, {n}]", f"{first} + {n}", self.count) for n in range(lanes)
        ]
        return lines(
            f'{tile} = alloc({self.key}[{lanes}, {lanes}], "register")',
            each(row, lanes, load, "unroll"),
            *columns,
        )

    def _insert(self, key: str, column: str, known: int) -> str:
        """Insert a key of each row among the first `known`, which grow by one up to `k`.

        All those behind it move on by one, the last of them first.
        """
        own, own_at = f"{self.name}_own[AT]", f"{self.name}_own_at[AT]"
        steps = [f"{own} = {key}", f"{own_at} = {self.place}({column})"]
        for n in reversed(range(min(known + 1, self.count))):
            (first, at), (before, before_at) = self._held(n), self._held(n - 1)
            moved = f"max({own}, {before})" if n else own
            moved_at = f"({before_at} if {own} < {before} else {own_at})" if n else own_at
            if n < known:
                moved_at = f"({moved_at} if {own} < {first} else {at})"
                moved = f"min({first}, {moved})"
            steps += [f"{at} = {moved_at}", f"{first} = {moved}"]
        return self._each(lines(*steps))

    def _held(self, n: int) -> tuple[str, str]:
        """The n-th key of each row so far, and its place."""
        at = f"[{n * self.lanes} + AT]"
        return f"{self.name}_first{at}", f"{self.name}_first_at{at}"

    def _each(self, statements: str) -> str:
        """Statements for each lane."""
        if self.lanes == 1:
            return statements.replace("AT", "0")
        self.loops += 1
        lane = f"{self.name}_v{self.loops}"
        return each(lane, self.lanes, statements.replace("AT", lane), "vectorize")
