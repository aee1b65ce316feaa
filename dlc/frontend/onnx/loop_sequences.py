"""Loops that carry sequences, and whose number of steps only a run knows.

A sequence that a step leaves alone is not carried; to one that a step only adds to, the loop
collects what is added. Any other is carried as the rows of a tensor, which is copied in each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dlc.core.errors import ShapeError, UnsupportedOperator
from dlc.core.types import DType
from dlc.frontend.onnx.body import Body
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.loops import StepGraph
from dlc.frontend.onnx.reshape import reshape_to, unsqueeze
from dlc.frontend.onnx.sequence_parts import (
    Earlier,
    Items,
    Part,
    Rows,
    element_type,
    elements,
    parts_of,
    sequence,
    sizes_known_outside,
    stacked,
)
from dlc.frontend.onnx.slicing import concat
from dlc.graph.graph import Value
from dlc.te.types import TensorType


@dataclass(frozen=True, slots=True)
class Added:
    """A sequence to which each step adds so many elements; with none, it stays as it is."""

    initial: Items
    count: int


@dataclass(frozen=True, slots=True)
class Grown:
    """A sequence that each step may change: the rows of a tensor."""

    initial: Value


Carry = Value | Added | Grown
"""How a value is carried: a tensor as it is."""


def carries_of(ctx: Context, graph: StepGraph, initial: Sequence[Value]) -> tuple[Carry, ...]:
    """How each value can be carried, found out by converting a step.

    Raises:
        UnsupportedOperator: the step cannot be converted, whatever is known of the sequences.
    """
    blind = [_hidden(ctx) if isinstance(v, Items) else v for v in initial]
    try:
        return _seen(initial, blind, _trial(ctx, graph, blind)[0])
    except (UnsupportedOperator, ShapeError):
        made, trial = _trial(ctx, graph, initial)
    seeing = [
        known if isinstance(known, Items) and _parts(new) == known.parts else hidden
        for known, hidden, new in zip(initial, blind, made, strict=True)
    ]
    try:
        return _seen(initial, seeing, _trial(ctx, graph, seeing)[0])
    except (UnsupportedOperator, ShapeError):
        return tuple(
            Grown(_as_rows(ctx, old, new, trial)) if isinstance(old, Items) else old
            for old, new in zip(initial, made, strict=True)
        )


def _hidden(ctx: Context) -> Items:
    return sequence(ctx, (Earlier(ctx.names.fresh("earlier")),))


def _trial(
    ctx: Context, graph: StepGraph, carries: Sequence[Value]
) -> tuple[tuple[Value, ...], Body]:
    """What a step makes of the carries, and its context."""
    trial = Body(ctx)
    number = trial.parameter("number", TensorType((), DType.I64))
    true = trial.constant(np.ones((), np.bool_))
    state = [v if isinstance(v, Items) else trial.parameter("carried", v.type) for v in carries]
    made = graph.run(trial, (number, true, *state))
    return made[1 : 1 + len(carries)], trial


def _parts(value: Value) -> tuple[Part, ...] | None:
    return value.parts if isinstance(value, Items) else None


def _seen(
    initial: Sequence[Value], given: Sequence[Value], made: Sequence[Value]
) -> tuple[Carry, ...]:
    """How values are carried of which a step that was given these made those."""
    found: list[Carry] = []
    for known, old, new in zip(initial, given, made, strict=True):
        if not isinstance(known, Items):
            found.append(known)
            continue
        before, after = _parts(old) or (), _parts(new) or ()
        added = elements(after[len(before) :])
        alike = added is not None and len({v.type for v in added}) < 2
        if after[: len(before)] != before or added is None or not alike or (added and old is known):
            reason = f"a step changes the sequence '{known.name}'"
            raise UnsupportedOperator(node="", op="Loop", reason=reason, needs="")
        found.append(Added(known, len(added)))
    return tuple(found)


def _as_rows(ctx: Context, known: Items, new: Value, trial: Body) -> Value:
    """A sequence before the loop as a tensor; a step tells what an empty one is to hold."""
    found = element_type(_parts(new) or ())
    return stacked(ctx, known.parts, sizes_known_outside(trial, found))


def tensors_of(carries: Sequence[Carry]) -> list[Value]:
    """The tensors that a loop carries in place of these."""
    return [c.initial if isinstance(c, Grown) else c for c in carries if not isinstance(c, Added)]


def with_tensors(graph: StepGraph, carries: Sequence[Carry]) -> StepGraph:
    """The step over the tensors of the carries alone; what it adds, it gives after all else."""

    def given(inner: Context, state: Sequence[Value]) -> Iterator[Value]:
        left = iter(state)
        for carry in carries:
            match carry:
                case Added(initial, count):
                    yield _hidden(inner) if count else initial
                case Grown():
                    yield sequence(inner, (Rows(next(left)),))
                case _:
                    yield next(left)

    def run(inner: Context, operands: Sequence[Value]) -> tuple[Value, ...]:
        number, going, *state = operands
        start = tuple(given(inner, state))
        cond, *made = graph.run(inner, (number, going, *start))
        kept: list[Value] = []
        added: list[Value] = []
        for carry, old, new in zip(carries, start, made, strict=False):
            match carry:
                case Added(_, count):
                    added += elements((_parts(new) or ())[-count:] if count else ()) or ()
                case Grown():
                    own = element_type(_parts(old) or ())
                    kept.append(stacked(inner, parts_of(inner, new), own))
                case _:
                    kept.append(new)
        return (cond, *kept, *made[len(carries) :], *added)

    changes = sum(c.count - 1 for c in carries if isinstance(c, Added))
    return StepGraph(run, graph.outputs + changes)


def with_sequences(
    ctx: Context, carries: Sequence[Carry], results: Sequence[Value]
) -> tuple[Value, ...]:
    """What the loop gives, from what the loop over tensors gave."""
    added = sum(c.count for c in carries if isinstance(c, Added))
    tensors = len(tensors_of(carries))
    left, columns = iter(results[:tensors]), iter(results[len(results) - added :])
    found: list[Value] = []
    for carry in carries:
        match carry:
            case Added(initial, count):
                new = [next(columns) for _ in range(count)]
                rows = (Rows(_interleaved(ctx, new)),) if new else ()
                found.append(sequence(ctx, (*initial.parts, *rows)))
            case Grown():
                found.append(sequence(ctx, (Rows(next(left)),)))
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
