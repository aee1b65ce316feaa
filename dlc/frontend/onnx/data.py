"""Sizes that are known only from data: elements of tensors that the host program reads.

A converter that needs the elements of a small tensor of integers gets them as expressions that
load them, and computes with these as with any size. Once an operator is made of them, each becomes
a size variable of its own, which a `bind_sizes` node before the operator binds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from dlc.core.types import INDEX, DType
from dlc.graph.graph import Value, call
from dlc.graph.op import Op
from dlc.graph.ops.bind_sizes import BindSizes
from dlc.te.expr import ZERO, Const, Expr, Load, Var, cast, maximum
from dlc.te.simplify import simplify, surely_at_most
from dlc.te.transform import free_vars, loads, rewrite

if TYPE_CHECKING:
    from dlc.frontend.onnx.context import Context

_MAX_READ = 64
"""Elements of a tensor that are read one by one."""
AnyOp = TypeVar("AnyOp", bound=Op)


class DataSizes:
    """The sizes that one context has read."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.around: DataSizes | None = None
        """The sizes of the context around a loop's body or a branch."""
        self._sources: dict[str, Value] = {}
        self._joined: dict[str, tuple[Value, ...]] = {}
        self._sizes: dict[Expr, Expr] = {}
        self._bound: set[str] = set()

    def elements(self, value: Value) -> tuple[Expr, ...] | None:
        """The elements of a small tensor of integers or bools, as expressions that load them.

        Of a vector that was joined, those that are known are not loaded.
        """
        if value.name in self._joined:
            return tuple(e for p in self._joined[value.name] for e in self._part(p))
        readable = value.type.dtype.is_int or value.type.dtype is DType.BOOL
        if not readable or not value.type.is_static:
            return None
        shape = value.type.static_shape
        if math.prod(shape) > _MAX_READ:
            return None
        self._sources[value.name] = value
        places = itertools.product(*map(range, shape))
        return tuple(
            cast(INDEX, Load(value.name, tuple(Const(i, INDEX) for i in at), value.type.dtype))
            for at in places
        )

    def _part(self, value: Value) -> tuple[Expr, ...]:
        """The elements of a part of a joined vector, which is as small as that."""
        found = self.ctx.sizes(value) or self.elements(value)
        assert found is not None, f"'{value.name}' is part of a small vector of integers"
        return found

    def join(self, value: Value, parts: Sequence[Value]) -> None:
        """Tell what a small vector of integers was made of."""
        small = value.type.is_static and math.prod(value.type.static_shape) <= _MAX_READ
        if value.type.rank == 1 and value.type.dtype.is_int and small:
            self._joined[value.name] = tuple(parts)

    def rename(self, value: Value, renamed: Value) -> None:
        """Know a joined vector by another name."""
        if (parts := self._joined.pop(value.name, None)) is not None:
            self._joined[renamed.name] = parts

    def bound(self, op: AnyOp) -> AnyOp:
        """The operator with a size variable for each attribute that is computed from data."""
        changes: dict[str, Any] = {}
        for field in fields(op):  # type: ignore[arg-type]  # every operator is a dataclass
            value = getattr(op, field.name)
            parts = value if isinstance(value, tuple) else (value,)
            if any(isinstance(p, Expr) and loads(p) for p in parts):
                signed = field.name in op.signed
                made = tuple(self._size(p, signed) if isinstance(p, Expr) else p for p in parts)
                changes[field.name] = made if isinstance(value, tuple) else made[0]
        return replace(op, **changes) if changes else op  # type: ignore[type-var]  # a dataclass

    def reads_any(self, value: Expr) -> bool:
        """Whether an expression depends on data."""
        return bool(loads(value)) or any(self._is_bound(name) for name in free_vars(value))

    def _is_bound(self, name: str) -> bool:
        return name in self._bound or (self.around is not None and self.around._is_bound(name))

    def fresh(self) -> str:
        """The name of a size that a node binds, other than by reading an element."""
        name = self.ctx.names.fresh("k")
        self._bound.add(name)
        return name

    def change(self, names: Iterable[str]) -> None:
        """Sizes that differ from step to step: what is computed of them is no size outside."""
        self._bound.update(names)

    def size(self, value: Expr) -> Expr:
        """A size that is not negative, as a size variable where it is computed from data."""
        return self._size(value, signed=False)

    def signed(self, value: Expr) -> Expr:
        """A whole number, as the difference of two size variables where it is from data."""
        return self._size(value, signed=True)

    def require(self, cond: Value, wanted: bool, message: str) -> None:
        """Let a run refuse a bool of one element that is not as wanted."""
        loaded = self.elements(cond)
        assert loaded is not None, f"'{cond.name}' is not one bool"
        value = loaded[0] - 1 if wanted else -loaded[0]
        self._emit(value, message, required=True)

    def refuse_negative(self, value: Expr, message: str) -> None:
        """Let a run refuse sizes of which this value, not known now, is negative."""
        if not surely_at_most(0, value, self.ctx.bounds):
            self._emit(value, message, required=True)

    def checked(self, value: Expr) -> Expr:
        """A size variable with the value of a size known by now; a run refuses a negative one."""
        known = self._known(value)
        if known is None:
            known = self._sizes[value] = self._bind(value)
        return known

    def found_outside(self, value: Expr) -> Expr:
        """As `checked`, outside of loops and branches that find out nothing of what it reads."""
        home = self
        while home.around is not None and not free_vars(value) & home._bound:
            home = home.around
        return home.checked(value)

    def found(self, value: Expr) -> Expr:
        """A whole number that a run finds, whatever it is computed from."""
        if surely_at_most(0, value, self.ctx.bounds):
            return self.checked(value)
        return self.checked(maximum(value, ZERO)) - self.checked(maximum(-value, ZERO))

    def _size(self, value: Expr, signed: bool) -> Expr:
        value = simplify(value, self.ctx.bounds)
        if not loads(value):
            return value
        return self.found(value) if signed else self.checked(value)

    def _known(self, value: Expr) -> Expr | None:
        known = self._sizes.get(value)
        if known is None and self.around is not None:
            return self.around._known(value)
        return known

    def _source(self, name: str) -> Value:
        found = self._sources.get(name)
        if found is not None:
            return found
        assert self.around is not None, f"'{name}' was not read"
        return self.around._source(name)

    def _bind(self, value: Expr) -> Expr:
        where = f"node '{self.ctx.node.label}' ({self.ctx.node.op_type})"
        return self._emit(value, f"{where}: its data asks for an axis or a size there cannot be")

    def _emit(self, value: Expr, message: str, *, required: bool = False) -> Expr:
        ctx = self.ctx
        operands = list(dict.fromkeys(load.buffer for load in loads(value)))

        def element(node: Expr) -> Expr:
            if not isinstance(node, Load):
                return node
            return Load(f"in{operands.index(node.buffer)}", node.index, node.dtype)

        name = self.fresh()
        op = BindSizes(
            names=(name,), values=(rewrite(value, element),), message=message, required=required
        )
        sources = tuple(self._source(operand) for operand in operands)
        ctx.emit(call(op, *sources, name=ctx.names.fresh(f"{name}_bound"), source=ctx.node.label))
        return Var(name)
