"""Loops: the graph of one step, which may read any value around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from dlc.core.errors import UnsupportedOperator
from dlc.frontend.onnx.context import Context
from dlc.graph.graph import Node, Value, call
from dlc.graph.ops.elementwise import Identity
from dlc.graph.ops.scan import Scan
from dlc.graph.ops.shape import Reshape
from dlc.graph.sizes import bound_sizes, graph_reads, names_in
from dlc.te.simplify import surely_differ
from dlc.te.types import TensorType


class Body(Context):
    """Builds the graph of one step of a loop.

    What is known of a value around the loop is known inside; once a node inside reads it, it
    becomes an operand of the loop that stays the same in every step. So do constants, so that the
    body itself has none.
    """

    def __init__(self, parent: Context) -> None:
        super().__init__(parent.names, parent.limits)
        self.parent = parent
        self.conditional = parent.conditional
        self.node = parent.node
        self.operators = parent.operators
        self.run_graph = parent.run_graph
        self.bounds = parent.bounds
        self.stretcher = parent.stretcher
        self.data.around = parent.data
        self._arrays = parent._arrays.new_child()
        self._elements = parent._elements.new_child()
        self.captured: dict[Value, Value] = {}
        """Value around the loop -> the body's parameter for it."""
        self._own: set[str] = set()

    def parameter(self, hint: str, type_: TensorType) -> Value:
        """A new input of the body."""
        value = Value(self.names.fresh(hint), type_)
        self._own.add(value.name)
        return value

    def materialise(self, value: Value) -> Value:
        """A value that nodes of the body can read."""
        if value.name in self._own:
            return value
        if value.name in self._elements.maps[0]:  # known inside only
            made = super().materialise(value)
            self._own.add(made.name)
            return made
        outer = value
        if value.name in self._arrays.maps[0]:
            self.parent.adopt(value, self._arrays[value.name])
        if outer not in self.captured:
            self.captured[outer] = self.parameter(outer.name, outer.type)
        return self.captured[outer]

    def _emit(self, node: Node) -> None:
        super()._emit(node)
        self._own.update(v.name for v in node.outputs)

    def rename(self, value: Value, hint: str, since: int) -> Value:
        """Call a result by the name ONNX gives it."""
        renamed = super().rename(value, hint, since)
        if value.name in self._own:
            self._own.add(renamed.name)
        return renamed


class OpenRows(UnsupportedOperator):
    """Values that each step of a loop gives have sizes that only the step knows.

    `places` are their numbers among the values that are collected.
    """

    def __init__(self, ctx: Context, places: Sequence[int]) -> None:
        reason = "a step gives values whose sizes only the step knows"
        super().__init__(node=ctx.node.label, op=ctx.node.operator, reason=reason, needs="")
        self.places = tuple(places)


def check_rows(ctx: Context, rows: Sequence[Value], inner: Iterable[str]) -> None:
    """Refuse values of a step whose sizes read one of the variables that are known inside.

    Raises:
        OpenRows: there is such a value.
    """
    known = frozenset(inner)
    if places := [i for i, row in enumerate(rows) if names_in(row.type.shape) & known]:
        raise OpenRows(ctx, places)


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of a loop gives: the next carries, and an element of each sequence made."""

    carries: Sequence[Value]
    outputs: Sequence[Value]


def scan(
    ctx: Context,
    name: str,
    carries: Sequence[Value],
    sequences: Sequence[Value],
    step: Callable[[Body, list[Value], list[Value]], Step],
    *,
    reverse: bool = False,
) -> tuple[Value, ...]:
    """Run a step for each element of the sequences' first axis: last carries, made sequences.

    Raises:
        OpenRows: only a step knows the size of what it gives to be stacked.
    """
    body = Body(ctx)
    state = [body.parameter(f"{name}_state", v.type) for v in carries]
    elements = [
        body.parameter(f"{name}_element", TensorType(v.type.shape[1:], v.type.dtype))
        for v in sequences
    ]
    made = step(body, list(state), list(elements))
    check_rows(ctx, made.outputs, bound_sizes(body.nodes))
    after = [conformed(body, new, old.type) for old, new in zip(state, made.carries, strict=True)]
    results = [computed(body, v) for v in (*after, *made.outputs)]
    graph = body.graph(name, (), (*state, *elements, *body.captured.values()), results)
    graph = replace(graph, sizes=tuple(sorted(graph_reads(graph))))
    op = Scan(body=graph, carries=len(carries), reverse=reverse)
    return ctx.call_all(op, *carries, *sequences, *body.captured, count=len(results))


def conformed(ctx: Context, value: Value, wanted: TensorType) -> Value:
    """A value as one of the type it has to have; a run compares sizes that may differ.

    Raises:
        UnsupportedOperator: the types surely differ.
    """
    have = value.type
    if have == wanted:
        return value
    pairs = list(zip(have.shape, wanted.shape, strict=False))
    differ = have.dtype is not wanted.dtype or have.rank != wanted.rank
    if differ or any(surely_differ(a, b, ctx.bounds) for a, b in pairs):
        ctx.refuse(f"a value carried by the loop changes from {wanted} to {have}")
    for axis, (a, b) in enumerate(pairs):
        if a != b:  # one axis at a time: the number of elements is what a reshape compares
            shape = (*wanted.shape[: axis + 1], *have.shape[axis + 1 :])
            value = ctx.call(Reshape(shape=shape), value)
    return value


def computed(body: Body, value: Value) -> Value:
    """A result that a node of the body computes; what is only passed on is copied."""
    inner = body.materialise(value)
    if any(inner in node.outputs for node in body.nodes):
        return inner
    name = body.names.fresh(value.name)
    node = call(Identity(), inner, name=name, source=body.node.label)
    body.emit(node)  # not folded: a result is made by a node
    return node.output
