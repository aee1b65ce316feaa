"""te -> loop IR: the plain loop nests that a schedule then improves.

Each tensor becomes one nest (a padded tensor: one for the border, one for the inside), in an order
in which every tensor is complete before it is read. Intermediate tensors are local buffers around
the whole body. A reduction that is itself a result gets an accumulator of its own, so that a
schedule finds the same shape everywhere: accumulate, then write the result. What is scattered is
written twice, as it begins and by its updates, each behind a guard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dlc.core.errors import InternalError
from dlc.core.types import INDEX
from dlc.schedule.loop import (
    Alloc,
    Block,
    Buffer,
    For,
    Func,
    If,
    LoopKind,
    Scope,
    Stmt,
    Store,
    block,
    exprs,
    fresh_name,
    walk,
)
from dlc.schedule.verify import RESERVED, verify_func
from dlc.te.expr import Const, Expr, Load, Var, binary
from dlc.te.simplify import canonical, surely_equal
from dlc.te.tensor import Axis, Frame, Placed, Reduce, Scattered, Tensor, identity, whole
from dlc.te.transform import free_vars, rename_buffers, substitute


def lower_tensors(
    name: str, sizes: Iterable[str], inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
) -> Func:
    """Write the loop nests that compute `outputs` from `inputs`, element by element.

    `sizes` are the size variables of the model; the function takes those it uses.
    """
    lowering = _Lowering(names=set(sizes) | {t.name for t in inputs} | RESERVED)
    lowering.buffers = {id(t): t.name for t in inputs}
    results = tuple(lowering.result(t, i) for i, t in enumerate(outputs))
    body = block(*lowering.nests)
    for buffer in reversed(lowering.intermediates):
        body = Alloc(buffer, Scope.LOCAL, body)
    params = tuple(Buffer(t.name, t.type) for t in inputs)
    used = used_names(body, (*params, *results))
    func = Func(
        name,
        tuple(s for s in sizes if s in used),
        params,
        results,
        body,
        tuple(lowering.in_place),
    )
    verify_func(func, when="after lower_tensors")
    return func


@dataclass
class _Lowering:
    names: set[str]
    buffers: dict[int, str] = field(default_factory=dict)  # id of a tensor -> its buffer
    nests: list[Stmt] = field(default_factory=list)
    intermediates: list[Buffer] = field(default_factory=list)
    in_place: list[tuple[str, str]] = field(default_factory=list)
    kept: list[Tensor] = field(default_factory=list)  # keeps ids valid

    def result(self, tensor: Tensor, position: int) -> Buffer:
        """Lower one result of the function."""
        buffer = Buffer(self.fresh(f"out{position}" if position else "out"), tensor.type)
        if tensor.body is None or isinstance(tensor.body, Reduce) or id(tensor) in self.buffers:
            self.tensor(tensor)
            axes = whole(tensor)
            copy = Tensor(
                buffer.name, tensor.type, axes, tensor[tuple(Var(a.name) for a in axes)], (tensor,)
            )
            tensor = copy
        for source in tensor.inputs:
            self.tensor(source)
        self.stage(tensor, buffer)
        self.buffers[id(tensor)] = buffer.name
        self.kept.append(tensor)
        return buffer

    def tensor(self, tensor: Tensor) -> None:
        """Lower an intermediate tensor and what it reads, once."""
        if id(tensor) in self.buffers:
            return
        if tensor.body is None:
            raise InternalError(detail=f"'{tensor.name}' is read but is no input")
        for source in tensor.inputs:
            self.tensor(source)
        buffer = Buffer(self.fresh(tensor.name), tensor.type)
        self.intermediates.append(buffer)
        self.buffers[id(tensor)] = buffer.name
        self.kept.append(tensor)
        self.stage(tensor, buffer)

    def stage(self, tensor: Tensor, buffer: Buffer) -> None:
        """Append the nests that compute one tensor."""
        names = {t.name: self.buffers[id(t)] for t in tensor.inputs}
        env = {a.name: Var(self.fresh(a.label)) for a in tensor.axes}
        axes = tuple(Axis(env[a.name].name, a.extent) for a in tensor.axes)
        index: tuple[Expr, ...] = tuple(Var(a.name) for a in axes)

        def local(expr: Expr) -> Expr:
            return rename_buffers(substitute(expr, env), names)

        match tensor.body:
            case None:
                raise InternalError(detail=f"'{tensor.name}' has no body")
            case Reduce(op, inner, value):
                env |= {a.name: Var(self.fresh(a.label)) for a in inner}
                start = Store(buffer.name, index, identity(op, value.dtype))
                total = Load(buffer.name, index, value.dtype)
                step = Store(buffer.name, index, binary(op, total, local(value)))
                loops = tuple(Axis(env[a.name].name, a.extent) for a in inner)
                self.nests.append(nest(axes, block(start, nest(loops, step))))
            case Placed(offset, value, fill, frame) as placed:
                if placed.keeps:
                    self.share(tensor.inputs[0], buffer)
                if fill is not None:
                    whole_tensor = Frame((Const(0, INDEX),) * len(axes), buffer.type.shape)
                    self.border(buffer, axes, offset, fill, frame or whole_tensor)
                at = tuple(o + i for o, i in zip(offset, index, strict=True))
                self.nests.append(nest(axes, Store(buffer.name, at, local(value))))
            case Scattered(op, start, updates, where, place, value):
                self.nests.append(nest(axes, Store(buffer.name, index, local(start))))
                env |= {a.name: Var(self.fresh(a.label)) for a in updates}
                at = tuple(local(i) for i in place)
                new = local(value)
                if op is not None:
                    new = binary(op, Load(buffer.name, at, value.dtype), new)
                update = Store(buffer.name, at, new)
                loops = tuple(Axis(env[a.name].name, a.extent) for a in updates)
                self.nests.append(nest(loops, If(local(where), update)))
            case value:
                self.nests.append(nest(axes, Store(buffer.name, index, local(value))))

    def share(self, base: Tensor, buffer: Buffer) -> None:
        """Record that a result shares the memory of the input it is placed into."""
        if base.body is not None:
            raise InternalError(detail=f"'{base.name}' is placed into but is no input")
        self.in_place.append((buffer.name, self.buffers[id(base)]))

    def border(
        self,
        buffer: Buffer,
        axes: tuple[Axis, ...],
        offset: tuple[Expr, ...],
        fill: Const,
        frame: Frame,
    ) -> None:
        """Append one nest that fills what lies around the box, within the frame.

        Boxes are cut off one dimension after the other: below and above the box in dimension d,
        within the box's range in earlier dimensions, the full range in later ones. The leading
        dimensions that are not padded are loops around all boxes.
        """
        offset = tuple(canonical(o - f) for o, f in zip(offset, frame.offset, strict=True))
        padded = [
            not (o == Const(0, INDEX) and surely_equal(n, a.extent))
            for o, n, a in zip(offset, frame.shape, axes, strict=True)
        ]
        if not any(padded):
            return
        first = padded.index(True)
        outer = tuple(Axis(self.fresh(a.name), a.extent) for a in axes[:first])
        boxes: list[Stmt] = []
        for d in range(first, len(axes)):
            low, high = offset[d], frame.shape[d] - offset[d] - axes[d].extent
            for start, extent in ((Const(0, INDEX), low), (low + axes[d].extent, high)):
                if not padded[d] or surely_equal(extent, 0):
                    continue
                loops: list[Axis] = []
                at: list[Expr] = [
                    f + Var(a.name) for f, a in zip(frame.offset, outer, strict=False)
                ]
                for e in range(first, len(axes)):
                    begin, size = (
                        (offset[e], axes[e].extent) if e < d
                        else (start, extent) if e == d
                        else (Const(0, INDEX), frame.shape[e])
                    )  # fmt: skip
                    loops.append(Axis(self.fresh(axes[e].name), canonical(size)))
                    at.append(frame.offset[e] + (begin + Var(loops[-1].name)))
                boxes.append(nest(tuple(loops), Store(buffer.name, tuple(at), fill)))
        self.nests.append(nest(outer, block(*boxes)))

    def fresh(self, name: str) -> str:
        """A name nobody has, as near to `name` as possible."""
        return fresh_name(name, self.names)


def nest(axes: tuple[Axis, ...], body: Stmt) -> Stmt:
    """Serial loops over `axes` around `body`; nothing where an axis surely has no element."""
    if any(axis.extent == Const(0, INDEX) for axis in axes):
        return Block(())
    for axis in reversed(axes):
        body = For(axis.name, axis.extent, LoopKind.SERIAL, body)
    return body


def used_names(body: Stmt, params: Iterable[Buffer]) -> set[str]:
    """The variables that shapes, extents and expressions of a function read."""
    used: set[str] = set()
    for param in params:
        for size in param.type.shape:
            used |= free_vars(size)
    for stmt in walk(body):
        match stmt:
            case For(_, extent, _, _, _):
                used |= free_vars(extent)
            case Alloc(buffer, _, _):
                for size in buffer.type.shape:
                    used |= free_vars(size)
            case _:
                pass
    for expr in exprs(body):
        used |= free_vars(expr)
    return used
