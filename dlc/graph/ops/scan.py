"""A loop over the first axis of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from dlc.core.errors import InternalError
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.assume import differs
from dlc.graph.graph import Graph
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.te import tensor as te
from dlc.te.expr import Const, Expr, Var, index
from dlc.te.simplify import canonical
from dlc.te.transform import substitute
from dlc.te.types import TensorType


@op("scan", fuse=Fuse.OPAQUE)
class Scan(Op):
    """Run a body once for each element of the sequences' first axis, carrying values along.

    Operands: the initial carries, the sequences (time is axis 0), then what stays the same.
    The body takes carries, one element of each sequence, and what stays the same; it gives the
    next carries and one element of each result. Results: the last carries, the stacked elements.
    `reverse` starts at the last element; results stay in the order of time.

    Source: https://onnx.ai/onnx/operators/onnx__Scan.html
    """

    body: Graph
    carries: int
    reverse: bool = False

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        wanted = tuple(v.type for v in self.body.inputs)
        if len(operands) != len(wanted) or not 0 <= self.carries <= len(wanted):
            raise self.reject(f"'{self.body.name}' takes {len(wanted)} operands", *operands)
        last = self.carries + self.sequences([t.rank for t in operands])
        rows = operands[self.carries : last]
        slices = (TensorType(t.shape[1:], t.dtype) for t in rows)
        if (*operands[: self.carries], *slices, *operands[last:]) != wanted:
            takes = ", ".join(map(str, wanted))
            raise self.reject(f"'{self.body.name}' takes {takes}", *operands)
        if not rows or any(differs(t.shape[0], rows[0].shape[0]) for t in rows):
            raise self.reject("there is no sequence, or they differ in length", *operands)
        results = tuple(v.type for v in self.body.outputs)
        if results[: self.carries] != operands[: self.carries]:
            raise self.reject("a carry changes its type", *operands)
        steps = rows[0].shape[0]
        stacked = (TensorType((steps, *t.shape), t.dtype) for t in results[self.carries :])
        return (*results[: self.carries], *stacked)

    def sequences(self, ranks: Sequence[int]) -> int:
        """How many operands are sequences: those of which the body sees one axis less."""
        pairs = list(zip(ranks, self.body.inputs, strict=True))[self.carries :]
        return sum(rank == value.type.rank + 1 for rank, value in pairs)

    def compute(self, *operands: te.Tensor) -> NoReturn:
        raise InternalError(detail=f"a scan is a loop of the host, not a kernel: {self.body.name}")

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        from dlc.graph.evaluate import evaluate  # it evaluates nodes that hold graphs

        operands = as_f64(*operands)
        first = self.carries
        last = first + self.sequences([a.ndim for a in operands])
        names = [v.name for v in self.body.inputs]

        def run(carried: Sequence[Array], row: Sequence[Array]) -> list[Array]:
            found = evaluate(
                self.body, dict(zip(names, (*carried, *row, *operands[last:]), strict=True))
            )
            return [found[v.name] for v in self.body.outputs]

        carried: Sequence[Array] = operands[:first]
        sequences = operands[first:last]
        rows: list[list[Array]] = []
        for step in range(len(sequences[0])):
            at = len(sequences[0]) - 1 - step if self.reverse else step
            results = run(carried, [s[at] for s in sequences])
            carried = results[:first]
            rows.append(results[first:])
        if not rows and (shapes := self._row_shapes(operands)) is not None:
            dtypes = (v.type.dtype for v in self.body.outputs[first:])
            empty = [
                np.zeros((0, *s), NUMPY_DTYPES[d]) for s, d in zip(shapes, dtypes, strict=True)
            ]
            return (*carried, *as_f64(*empty))
        if not rows:  # run it on anything, for the shapes of what is stacked
            template = run(carried, [np.zeros(s.shape[1:], s.dtype) for s in sequences])
            return (*carried, *(np.zeros((0, *r.shape), r.dtype) for r in template[first:]))
        ordered = reversed(rows) if self.reverse else rows
        return (*carried, *(np.stack(column) for column in zip(*ordered, strict=True)))

    def _row_shapes(self, operands: Sequence[Array]) -> list[tuple[int, ...]] | None:
        """The shapes of what a step gives to be stacked; None unless the operands tell them."""
        sizes: dict[str, Expr] = {}
        last = self.carries + self.sequences([a.ndim for a in operands])
        for place, (value, array) in enumerate(zip(self.body.inputs, operands, strict=True)):
            row = array.shape[1:] if self.carries <= place < last else array.shape
            pairs = zip(value.type.shape, row, strict=True)
            sizes |= {size.name: index(n) for size, n in pairs if isinstance(size, Var)}
        found = [
            [canonical(substitute(size, sizes)) for size in value.type.shape]
            for value in self.body.outputs[self.carries :]
        ]
        if not all(isinstance(size, Const) for shape in found for size in shape):
            return None
        return [
            tuple(int(size.value) for size in shape if isinstance(size, Const)) for shape in found
        ]
