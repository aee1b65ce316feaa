"""Loops that carry sequences, and whose number of steps only a run knows.

A sequence that a step leaves alone is not carried; to one that a step only adds to, the loop
collects what is added. Any other is carried as the rows of a tensor, which is copied in each step.
Elements that differ in size from step to step are carried one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np

from dlc.core.errors import ShapeError, UnsupportedOperator
from dlc.core.types import DType
from dlc.frontend.onnx.body import Body
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.loops import StepGraph, widened
from dlc.frontend.onnx.ragged import ElementType, Ragged
from dlc.frontend.onnx.reshape import reshape_to, unsqueeze
from dlc.frontend.onnx.sequence_parts import (
    Earlier,
    Items,
    Part,
    Rows,
    common_type,
    element_type,
    elements,
    ragged,
    sequence,
    stacked_as,
)
from dlc.frontend.onnx.slicing import concat
from dlc.graph.graph import Value
from dlc.graph.sizes import bound_sizes
from dlc.te.expr import Expr, Var, index
from dlc.te.types import TensorType


@dataclass(frozen=True, slots=True)
class Added:
    """A sequence to which each step adds so many elements; with none, it stays as it is."""

    initial: Items
    count: int


@dataclass(frozen=True, slots=True)
class Grown:
    """A sequence that each step may change.

    With elements of one type, it is carried as the rows of a tensor. What each step puts `behind`
    the sequence, without reading it, is carried alone.
    """

    initial: Items
    element: ElementType
    behind: bool = False

    def tensors(self, ctx: Context) -> tuple[Value, ...]:
        """What the loop starts with."""
        return _tensors(ctx, () if self.behind else self.initial.parts, self.element)

    def parts(self, carried: Iterator[Value]) -> tuple[Part, ...]:
        """The elements, given what is carried."""
        if self.element.fixed is not None:
            return (Rows(next(carried)),)
        return (Ragged(next(carried), next(carried), self.element),)


Carry = Value | Added | Grown
"""How a value is carried: a tensor as it is."""


def _tensors(ctx: Context, parts: Sequence[Part], element: ElementType) -> tuple[Value, ...]:
    if element.fixed is not None:
        return (stacked_as(ctx, parts, element),)
    values = ragged(ctx, parts, element)
    return values.data, values.shapes


def carries_of(ctx: Context, graph: StepGraph, initial: Sequence[Value]) -> tuple[Carry, ...]:
    """How each value can be carried, found out by converting a step.

    Raises:
        UnsupportedOperator: the step cannot be converted, whatever is known of the sequences.
    """
    blind = [_hidden(ctx) if isinstance(v, Items) else v for v in initial]
    try:
        return _seen(initial, blind, _trial(ctx, graph, blind))
    except (UnsupportedOperator, ShapeError):
        trial = _trial(ctx, graph, initial)
    seeing = [
        known if isinstance(known, Items) and _parts(new) == known.parts else hidden
        for known, hidden, new in zip(initial, blind, trial.made, strict=True)
    ]
    try:
        return _seen(initial, seeing, _trial(ctx, graph, seeing))
    except (UnsupportedOperator, ShapeError):
        return _changed(ctx, graph, initial, trial)


def _hidden(ctx: Context) -> Items:
    return sequence(ctx, (Earlier(ctx.names.fresh("earlier")),))


@dataclass(frozen=True, slots=True)
class _Trial:
    """What a step makes of the carries, and the sizes that may differ from step to step."""

    inner: Body
    made: tuple[Value, ...]
    sizes: frozenset[str]


def _trial(ctx: Context, graph: StepGraph, carries: Sequence[Value]) -> _Trial:
    types = [v.type for v in carries if not isinstance(v, Items)]
    changing: list[str] = []
    while True:
        inner = Body(ctx)
        inner.data.change(changing)
        number = inner.parameter("number", TensorType((), DType.I64))
        true = inner.constant(np.ones((), np.bool_))
        left = iter(types)
        state = [
            v if isinstance(v, Items) else inner.parameter("carried", next(left)) for v in carries
        ]
        made = graph.run(inner, (number, true, *state))[1 : 1 + len(carries)]
        tensors = [
            new.type for old, new in zip(carries, made, strict=True) if not isinstance(old, Items)
        ]
        wider = widened(ctx, types, tensors, changing)
        if wider == types:
            return _Trial(inner, made, frozenset({*changing, *bound_sizes(inner.nodes)}))
        types = wider


def _parts(value: Value) -> tuple[Part, ...] | None:
    return value.parts if isinstance(value, Items) else None


def _seen(initial: Sequence[Value], given: Sequence[Value], trial: _Trial) -> tuple[Carry, ...]:
    """How values are carried of which a step that was given these made those."""
    found: list[Carry] = []
    for known, old, new in zip(initial, given, trial.made, strict=True):
        if not isinstance(known, Items):
            found.append(known)
            continue
        before, after = _parts(old) or (), _parts(new) or ()
        new_parts = after[len(before) :]
        if after[: len(before)] != before or (new_parts and old is known):
            reason = f"a step changes the sequence '{known.name}'"
            raise UnsupportedOperator(node="", op="Loop", reason=reason, needs="")
        added, element = elements(new_parts), element_type(trial.inner, new_parts, trial.sizes)
        if element is None or (added is not None and element.fixed is not None):
            found.append(Added(known, len(new_parts)))
        else:
            found.append(Grown(known, element, behind=True))
    return tuple(found)


def _changed(
    ctx: Context, graph: StepGraph, initial: Sequence[Value], trial: _Trial
) -> tuple[Carry, ...]:
    """How values are carried if a step may change each sequence: as elements of one type.

    The type of what an empty sequence is to hold may come from another one that a step gives.
    """
    carries: tuple[Value | Grown, ...] = tuple(initial)
    given: Sequence[Value] = initial
    while True:
        wider = tuple(
            _grown(trial, c, old, new)
            for c, old, new in zip(carries, given, trial.made, strict=True)
        )
        if wider == carries:
            break
        carries = wider
        given = [
            sequence(ctx, _stand_in(ctx, c.element)) if isinstance(c, Grown) else c for c in carries
        ]
        trial = _trial(ctx, graph, given)
    if any(isinstance(c, Items) for c in carries):
        ctx.refuse("nobody knows the type of what is in an empty sequence")
    return carries


def _grown(trial: _Trial, carry: Value | Grown, old: Value, new: Value) -> Value | Grown:
    """How to carry what a step was given as `old` and gave back as `new`.

    A sequence has what is common to the types of the elements before and after a step.
    """
    initial = carry.initial if isinstance(carry, Grown) else carry
    if not isinstance(initial, Items):
        return carry
    found = (element_type(trial.inner, _parts(v) or (), trial.sizes) for v in (old, new))
    types = [t for t in found if t is not None]
    return Grown(initial, reduce(partial(common_type, trial.inner), types)) if types else carry


def _stand_in(ctx: Context, element: ElementType) -> tuple[Part, ...]:
    """Any number of elements of a type, which no node computes."""
    count = Var(ctx.data.fresh())

    def tensor(dtype: DType, *shape: Expr) -> Value:
        return Value(ctx.names.fresh("carried"), TensorType(shape, dtype))

    if (row := element.fixed) is not None:
        return (Rows(tensor(row.dtype, count, *row.shape)),)
    data = tensor(element.dtype, Var(ctx.data.fresh()))
    return (Ragged(data, tensor(DType.I64, count, index(len(element.dims))), element),)


def tensors_of(ctx: Context, carries: Sequence[Carry]) -> tuple[list[Value], list[int]]:
    """The tensors that a loop carries in place of these, and which of them have open lengths."""
    found: list[Value] = []
    grown: list[int] = []
    for carry in carries:
        match carry:
            case Added():
                pass
            case Grown():
                made = carry.tensors(ctx)
                grown += range(len(found), len(found) + len(made))
                found += made
            case _:
                found.append(carry)
    return found, grown


def _carried(carry: Carry) -> int:
    """How many tensors a loop carries in place of a value."""
    match carry:
        case Added():
            return 0
        case Grown(element=element):
            return 1 if element.fixed is not None else 2
        case _:
            return 1


def with_tensors(graph: StepGraph, carries: Sequence[Carry]) -> StepGraph:
    """The step over the tensors of the carries alone; what it adds, it gives after all else."""

    def run(inner: Context, operands: Sequence[Value]) -> tuple[Value, ...]:
        number, going, *state = operands
        left = iter(state)
        start: list[Value] = []
        so_far: list[tuple[Part, ...]] = []
        for carry in carries:
            so_far.append(carry.parts(left) if isinstance(carry, Grown) else ())
            match carry:
                case Added(initial, count):
                    start.append(_hidden(inner) if count else initial)
                case Grown(behind=behind):
                    start.append(_hidden(inner) if behind else sequence(inner, so_far[-1]))
                case _:
                    start.append(next(left))
        cond, *made = graph.run(inner, (number, going, *start))
        kept: list[Value] = []
        added: list[Value] = []
        for carry, before, new in zip(carries, so_far, made, strict=False):
            parts = _parts(new) or ()
            match carry:
                case Added(_, count):
                    added += elements(parts[-count:] if count else ()) or ()
                case Grown(element=element, behind=behind):
                    kept += _tensors(inner, (*before, *parts[1:]) if behind else parts, element)
                case _:
                    kept.append(new)
        return (cond, *kept, *made[len(carries) :], *added)

    gives = (c.count if isinstance(c, Added) else _carried(c) for c in carries)
    changes = sum(gives) - len(carries)
    return StepGraph(run, graph.outputs + changes)


def with_sequences(
    ctx: Context, carries: Sequence[Carry], results: Sequence[Value]
) -> tuple[Value, ...]:
    """What the loop gives, from what the loop over tensors gave."""
    added = sum(c.count for c in carries if isinstance(c, Added))
    tensors = sum(_carried(c) for c in carries)
    left, columns = iter(results[:tensors]), iter(results[len(results) - added :])
    found: list[Value] = []
    for carry in carries:
        match carry:
            case Added(initial, count):
                new = [next(columns) for _ in range(count)]
                rows = (Rows(_interleaved(ctx, new)),) if new else ()
                found.append(sequence(ctx, (*initial.parts, *rows)))
            case Grown(initial, behind=behind):
                first = initial.parts if behind else ()
                found.append(sequence(ctx, (*first, *carry.parts(left))))
            case _:
                found.append(next(left))
    return (*found, *results[tensors : len(results) - added])


def _interleaved(ctx: Context, columns: Sequence[Value]) -> Value:
    """One row of each, then the next row of each, and on."""
    if len(columns) == 1:
        return columns[0]
    joined = concat(ctx, [unsqueeze(ctx, c, (1,)) for c in columns], 1)
    steps, count, *row = joined.type.shape
    return reshape_to(ctx, joined, (steps * count, *row))
