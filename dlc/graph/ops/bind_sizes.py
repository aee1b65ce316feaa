"""Sizes that are known only from data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from dlc.core.errors import InputError, InternalError
from dlc.core.types import INDEX, DType
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.attributes import set_sizes
from dlc.te import tensor as te
from dlc.te.expr import Const, Expr, Load, const
from dlc.te.simplify import simplify, surely_at_most, surely_less
from dlc.te.transform import loads, rewrite, substitute
from dlc.te.types import TensorType


@op("bind_sizes", fuse=Fuse.OPAQUE)
class BindSizes(Op):
    """Bind size variables to expressions over elements of the operands.

    An element of operand i is written `in<i>[...]`, at a constant position. From this node on the
    names are sizes like any other; a run whose data makes one negative fails with `message`. The
    result is a tensor without elements: a node has one.
    """

    names: tuple[str, ...]
    values: tuple[Expr, ...]
    message: str = "a size computed from the data is negative"
    required: bool = False
    """Whether a run must refuse a negative size though nobody reads it."""

    def __post_init__(self) -> None:
        set_sizes(self, "values")

    def infer(self, *operands: TensorType) -> TensorType:
        if len(self.names) != len(self.values) or any(v.dtype is not INDEX for v in self.values):
            raise self.reject("needs a size for each name", *operands)
        types = {f"in{i}": t for i, t in enumerate(operands)}
        for load in (load for value in self.values for load in loads(value)):
            source = types.get(load.buffer)
            if source is None or source.dtype is not load.dtype or source.rank != len(load.index):
                raise self.reject(f"there is no element {load}", *operands)
            if load.dtype.is_float:
                raise self.reject(f"{load} is no integer", *operands)
            for at, size in zip(load.index, source.shape, strict=True):
                known = isinstance(at, Const) and isinstance(size, Const)
                if not (known and surely_at_most(0, at) and surely_less(at, size)):
                    raise self.reject(f"there is no element {load}", *operands)
        return TensorType((0,), DType.I64)

    def compute(self, *operands: te.Tensor) -> NoReturn:
        raise InternalError(detail=f"sizes are bound by the host, not a kernel: {self.names}")

    def reference(self, *operands: Array) -> Array:
        raise InternalError(detail=f"binding {self.names} gives sizes, not an array")

    def evaluate(self, operands: tuple[Array, ...], sizes: Mapping[str, int]) -> dict[str, int]:
        """The sizes, given those bound before.

        Raises:
            InputError: one of them is negative.
        """
        env: dict[str, Expr] = {name: Const(n, INDEX) for name, n in sizes.items()}

        def element(node: Expr) -> Expr:
            if not isinstance(node, Load):
                return node
            at = tuple(int(i.value) for i in node.index if isinstance(i, Const))
            return const(operands[int(node.buffer.removeprefix("in"))][at].item(), node.dtype)

        found: dict[str, int] = {}
        for name, value in zip(self.names, self.values, strict=True):
            number = simplify(rewrite(substitute(value, env), element))
            if not isinstance(number, Const):
                raise InternalError(detail=f"size '{name}' = {number} is not known")
            if number.value < 0:
                raise InputError(name=name, reason=self.message)
            found[name] = int(number.value)
            env[name] = number
        return found
