"""Loops that end when the data says so, and branches: their bodies are part of the host program.

Sizes of results that differ from step to step, or from branch to branch, become size variables that
the node binds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import numpy as np

from dlc.core.errors import InternalError
from dlc.core.types import DType
from dlc.graph.graph import Graph
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.attributes import as_sizes, constants, set_size
from dlc.te import tensor as te
from dlc.te.expr import Expr, Var
from dlc.te.transform import free_vars, substitute
from dlc.te.types import TensorType


@op("loop", fuse=Fuse.OPAQUE)
class Loop(Op):
    """Run a body at most `limit` times, while a condition holds, carrying values along.

    Operands: the condition, the initial carries, then what stays the same. The body takes the
    number of the step, the carries and what stays the same; it gives the condition of the next step
    and the next carries. Results: the number of steps that ran, and the last carries.

    `sizes` are those dimensions of the body's carries that a step may change; `results` are the
    names of their last values, in that order.

    Source: https://onnx.ai/onnx/operators/onnx__Loop.html
    """

    body: Graph
    carries: int
    limit: Expr
    sizes: tuple[str, ...] = ()
    results: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        set_size(self, "limit")

    def infer(self, condition: TensorType, *operands: TensorType) -> tuple[TensorType, ...]:
        body, count = self.body, self.carries
        wanted = [v.type for v in body.inputs[1:]]
        made = [v.type for v in body.outputs]
        if condition.elems != as_sizes((1,))[0] or condition.dtype is not DType.BOOL:
            raise self.reject("the condition is not one bool", condition)
        if len(operands) != len(wanted) or len(made) != 1 + count:
            raise self.reject(f"'{body.name}' takes {len(wanted)} operands", *operands)
        if made[0] != TensorType((), DType.BOOL) or len(self.results) != len(self.sizes):
            raise self.reject(f"'{body.name}' gives no condition, or sizes lack a name", *operands)
        for position, (have, want) in enumerate(zip(operands, wanted, strict=True)):
            later = (made[1 + position],) if position < count else ()
            if not all(self._fits(t, want) for t in (have, *later)):
                raise self.reject(f"'{body.name}' takes {want}, not {have}", *operands)
        last: dict[str, Expr] = dict(zip(self.sizes, map(Var, self.results), strict=True))
        carried = (
            TensorType(tuple(substitute(n, last) for n in t.shape), t.dtype) for t in wanted[:count]
        )
        return (TensorType((1,), DType.I64), *carried)

    def _fits(self, have: TensorType, want: TensorType) -> bool:
        """Whether a value may be carried: equal but for the sizes that may change."""
        if have.rank != want.rank or have.dtype is not want.dtype:
            return False
        return all(
            a == b or (isinstance(b, Var) and b.name in self.sizes)
            for a, b in zip(have.shape, want.shape, strict=True)
        )

    def moving(self) -> Iterator[tuple[str, int, int]]:
        """Each size that may change, the carry and the axis that it is the size of."""
        for name in self.sizes:
            yield next(
                (name, carry, axis)
                for carry, value in enumerate(self.body.inputs[1 : 1 + self.carries])
                for axis, size in enumerate(value.type.shape)
                if size == Var(name)
            )

    def compute(self, *operands: te.Tensor) -> NoReturn:
        raise InternalError(detail=f"a loop of the host is no kernel: {self.body.name}")

    def reference(self, condition: Array, *operands: Array) -> tuple[Array, ...]:
        from dlc.graph.evaluate import evaluate  # it evaluates nodes that hold graphs

        operands = as_f64(*operands)
        carried, rest = operands[: self.carries], operands[self.carries :]
        names = [v.name for v in self.body.inputs]
        go, steps = bool(condition.reshape(())), 0
        (limit,) = constants((self.limit,))
        while go and steps < limit:
            arrays = (np.array(steps, np.int64), *carried, *rest)
            found = evaluate(self.body, dict(zip(names, arrays, strict=True)))
            first, *carried_list = (found[v.name] for v in self.body.outputs)
            go, carried, steps = bool(first), tuple(carried_list), steps + 1
        return (np.array([steps], np.int64), *carried)


@op("branch", fuse=Fuse.OPAQUE)
class If(Op):
    """The results of one graph if a condition holds, else those of another.

    Operands: the condition, what `then` reads, what `other` reads. `results` are the names of the
    sizes of results that the branches do not agree on, in order.

    Source: https://onnx.ai/onnx/operators/onnx__If.html
    """

    then: Graph
    other: Graph
    results: tuple[str, ...] = ()

    def infer(self, condition: TensorType, *operands: TensorType) -> tuple[TensorType, ...]:
        wanted = tuple(v.type for v in (*self.then.inputs, *self.other.inputs))
        if operands != wanted:
            takes = ", ".join(map(str, wanted))
            raise self.reject(f"its branches take {takes}", condition, *operands)
        if condition.elems != as_sizes((1,))[0] or condition.dtype is not DType.BOOL:
            raise self.reject("the condition is not one bool", condition)
        names = iter(self.results)
        results = []
        if len(self.then.outputs) != len(self.other.outputs):
            raise self.reject("its branches differ in the number of results", condition)
        for a, b in zip(self.then.outputs, self.other.outputs, strict=True):
            if a.type.rank != b.type.rank or a.type.dtype is not b.type.dtype:
                raise self.reject(f"its branches give {a.type} and {b.type}", condition)
            pairs = zip(a.type.shape, b.type.shape, strict=True)
            shape = [m if self.agreed(m, n) else next(names, None) for m, n in pairs]
            if None in shape:
                raise self.reject("a size that the branches differ in lacks a name", condition)
            sizes = (Var(n) if isinstance(n, str) else n for n in shape if n is not None)
            results.append(TensorType(tuple(sizes), a.type.dtype))
        return tuple(results)

    def agreed(self, a: Expr, b: Expr) -> bool:
        """Whether a size is the same in both branches, and known outside of them."""
        return a == b and free_vars(a) <= {*self.then.sizes, *self.other.sizes}

    def moving(self) -> Iterator[tuple[str, int, int]]:
        """Each size that the branches differ in, the result and the axis it is the size of."""
        names = iter(self.results)
        for position, (a, b) in enumerate(zip(self.then.outputs, self.other.outputs, strict=True)):
            for axis, pair in enumerate(zip(a.type.shape, b.type.shape, strict=True)):
                if not self.agreed(*pair):
                    yield next(names), position, axis

    def compute(self, *operands: te.Tensor) -> NoReturn:
        raise InternalError(detail=f"a branch of the host is no kernel: {self.then.name}")

    def reference(self, condition: Array, *operands: Array) -> tuple[Array, ...]:
        from dlc.graph.evaluate import evaluate  # it evaluates nodes that hold graphs

        split = len(self.then.inputs)
        takes = bool(condition.reshape(()))
        graph, given = (self.then, operands[:split]) if takes else (self.other, operands[split:])
        names = (v.name for v in graph.inputs)
        found = evaluate(graph, dict(zip(names, as_f64(*given), strict=True)))
        return tuple(found[v.name] for v in graph.outputs)
