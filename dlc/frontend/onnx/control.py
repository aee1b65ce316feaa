"""Converters of If, Loop and Scan.

Source: https://onnx.ai/onnx/operators/onnx__If.html, onnx__Loop.html, onnx__Scan.html
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import numpy as np

from dlc.core.errors import UnsupportedOperator
from dlc.core.types import DType
from dlc.frontend.onnx.body import Body, OpenRows, Step, scan
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.loop_sequences import (
    carries_of,
    tensors_of,
    with_sequences,
    with_tensors,
)
from dlc.frontend.onnx.loops import StepGraph, branch, loop_while
from dlc.frontend.onnx.model import OnnxGraph
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import transpose, unsqueeze
from dlc.frontend.onnx.sequence_parts import Items, Nothing, parts_of, sequence, stacked
from dlc.frontend.onnx.slicing import concat, slice_axes
from dlc.graph.graph import Value
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.binary import Add, Sub
from dlc.graph.ops.from_sizes import Range
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.shape import Expand
from dlc.te.expr import ZERO, Const, Expr, index, maximum
from dlc.te.simplify import surely_equal, surely_less
from dlc.te.types import TensorType

_MAX_UNROLLED = 64
_ENDLESS = 1 << 62


@converter("If", since=1)
def convert_if(
    ctx: Context, cond: Value, *, then_branch: OnnxGraph, else_branch: OnnxGraph
) -> tuple[Value, ...]:
    """One branch if the condition is known; else both, of which a run chooses."""
    if not surely_equal(cond.type.elems, 1) or cond.type.dtype is not DType.BOOL:
        ctx.refuse(f"its condition is {cond.type}, not one bool")
    known = ctx.sizes(cond)
    decided = None if known is None else known[0]
    if isinstance(decided, Const):
        return ctx.run_graph(ctx, then_branch if decided.value else else_branch, ())
    return branch(ctx, cond, then_branch, else_branch)


@converter("Loop", since=1)
def convert_loop(
    ctx: Context,
    trip_count: Value | None = None,
    cond: Value | None = None,
    *initial: Value,
    body: OnnxGraph,
) -> tuple[Value, ...]:
    """A loop: counted, or until a condition fails."""
    if len(body.outputs) <= len(initial):
        ctx.refuse(f"{len(body.outputs)} results of a step do not fit")
    steps = index(_ENDLESS) if trip_count is None else _step_count(ctx, trip_count)
    graph = StepGraph(lambda inner, values: ctx.run_graph(inner, body, values), len(body.outputs))
    if not any(isinstance(v, Items | Nothing) for v in initial):
        return loop_over(ctx, graph, steps, cond, initial)
    if isinstance(steps, Const):
        with contextlib.suppress(UnsupportedOperator):  # then it stays as exact as it is
            _unrolled(Body(ctx), graph, steps, cond, initial)
            return _unrolled(ctx, graph, steps, cond, initial)
    if any(isinstance(v, Nothing) for v in initial):
        ctx.refuse("it carries an optional without a value, and only a run knows how many steps")
    return loop_over(ctx, graph, steps, cond, initial)


def loop_over(
    ctx: Context, graph: StepGraph, steps: Expr, cond: Value | None, initial: Sequence[Value]
) -> tuple[Value, ...]:
    """A loop over tensors and sequences, with any number of steps.

    Values that differ in size from step to step are collected in sequences; a run refuses to make
    a tensor of those that do not fit each other.
    """
    over = _looped_sequences if any(isinstance(v, Items) for v in initial) else _looped
    try:
        return over(ctx, graph, steps, cond, initial)
    except OpenRows as found:
        return _collected(ctx, graph, steps, cond, initial, found.places)


def _collected(
    ctx: Context,
    graph: StepGraph,
    steps: Expr,
    cond: Value | None,
    initial: Sequence[Value],
    open_rows: Sequence[int],
) -> tuple[Value, ...]:
    """The same loop, which carries a sequence for each value that differs in size."""
    places = [1 + len(initial) + row for row in open_rows]

    def run(inner: Context, operands: Sequence[Value]) -> tuple[Value, ...]:
        made = graph.run(inner, operands[: 2 + len(initial)])
        before = operands[2 + len(initial) :]
        after = [
            sequence(inner, (*parts_of(inner, old), made[place]))
            for old, place in zip(before, places, strict=True)
        ]
        kept = (v for i, v in enumerate(made) if i > len(initial) and i not in places)
        return (*made[: 1 + len(initial)], *after, *kept)

    none = [sequence(ctx, ()) for _ in places]
    made = _looped_sequences(ctx, StepGraph(run, graph.outputs), steps, cond, [*initial, *none])
    collected = iter(made[len(initial) : len(initial) + len(places)])
    others = iter(made[len(initial) + len(places) :])
    rows = (
        stacked(ctx, parts_of(ctx, next(collected))) if 1 + i in places else next(others)
        for i in range(len(initial), graph.outputs - 1)
    )
    return (*made[: len(initial)], *rows)


def _looped_sequences(
    ctx: Context, graph: StepGraph, steps: Expr, cond: Value | None, initial: Sequence[Value]
) -> tuple[Value, ...]:
    """A loop that carries sequences."""
    carries = carries_of(ctx, graph, initial)
    tensors, grown = tensors_of(ctx, carries)
    inner = with_tensors(graph, carries)
    if grown:
        made = loop_while(ctx, steps, cond, tensors, inner, grown)
    else:
        made = _looped(ctx, inner, steps, cond, tensors)
    return with_sequences(ctx, carries, made)


def _looped(
    ctx: Context, body: StepGraph, steps: Expr, cond: Value | None, initial: Sequence[Value]
) -> tuple[Value, ...]:
    """A loop over tensors: counted, or until a condition fails."""
    rows = body.outputs - 1 - len(initial)
    try:
        changes = _changes_types(ctx, body, initial)
    except UnsupportedOperator:  # a step may be known that any step is not
        if _is_small(steps):
            return _unrolled(ctx, body, steps, cond, initial)
        raise
    counted = steps != index(_ENDLESS) and (cond is None or _is_true(ctx, cond))
    if changes is None or not counted:
        return loop_while(ctx, steps, cond, initial, body)
    if changes and (not _is_small(steps) or rows):
        return loop_while(ctx, steps, cond, initial, body)
    if changes:
        return _unrolled(ctx, body, steps, cond, initial)

    def step(inner: Body, carries: list[Value], elements: list[Value]) -> Step:
        number, *before = carries
        made = body.run(inner, (number, _true(inner), *before))
        after = inner.call(Add(), number, inner.constant(np.ones((), np.int64)))
        return Step((after, *made[1 : 1 + len(before)]), made[1 + len(before) :])

    first = ctx.constant(np.zeros((), np.int64))
    # As many rows as there are steps, without elements: a run may ask for any number of steps.
    rows_of_none = ctx.call(Expand(shape=as_sizes((steps, 0))), _true(ctx))
    return scan(ctx, "loop", [first, *initial], [rows_of_none], step)[1:]


def _step_count(ctx: Context, trip_count: Value) -> Expr:
    """How many steps there are at most."""
    steps = ctx.one_size(trip_count, "the number of steps")
    if surely_less(steps, 0):
        return ZERO
    return ctx.data.size(maximum(steps, ZERO)) if ctx.data.reads_any(steps) else steps


def _is_small(steps: Expr) -> bool:
    return isinstance(steps, Const) and steps.value <= _MAX_UNROLLED


def counter(ctx: Context, steps: Expr) -> Value:
    """The numbers of the steps: 0, 1, 2, ..."""
    if isinstance(steps, Const) and steps.value <= ctx.limits.folded_elems:
        return ctx.constant(np.arange(int(steps.value), dtype=np.int64))
    return ctx.call(Range(size=steps))


def _true(ctx: Context) -> Value:
    return ctx.constant(np.ones((), np.bool_))


def _is_true(ctx: Context, cond: Value) -> bool:
    array = ctx.array(cond)
    return array is not None and bool(array.all())


def _changes_types(ctx: Context, body: StepGraph, initial: Sequence[Value]) -> bool | None:
    """Whether a step would carry on values of other types; None if it computes its condition."""
    trial = Body(ctx)
    number = trial.parameter("number", TensorType((), DType.I64))
    made = body.run(trial, (number, _true(trial), *initial))
    if not _is_true(trial, made[0]):
        return None
    carried = made[1 : 1 + len(initial)]
    return any(a.type != b.type for a, b in zip(initial, carried, strict=True))


def _unrolled(
    ctx: Context, body: StepGraph, steps: Expr, cond: Value | None, initial: Sequence[Value]
) -> tuple[Value, ...]:
    """The steps one behind the other: how many there are is known."""
    carries = tuple(initial)
    rows: list[tuple[Value, ...]] = []
    number = 0
    while surely_less(number, steps) and (cond is None or _known(ctx, cond)):
        if number == _MAX_UNROLLED:
            ctx.refuse(f"more than {_MAX_UNROLLED} steps build a sequence")
        index_now = ctx.constant(np.array(number, np.int64))
        cond, *made = body.run(ctx, (index_now, _true(ctx), *carries))
        carries = tuple(made[: len(initial)])
        rows.append(tuple(made[len(initial) :]))
        number += 1
    if not rows and body.outputs > 1 + len(initial):
        ctx.refuse("it collects values and has no step, so nobody knows their type")
    collected = [
        concat(ctx, [unsqueeze(ctx, value, (0,)) for value in column], 0)
        for column in zip(*rows, strict=True)
    ]
    return (*carries, *collected)


def _known(ctx: Context, cond: Value) -> bool:
    array = ctx.array(cond)
    if array is None:
        ctx.refuse_variable("the condition of a loop that builds a sequence", cond)
    return bool(array.all())


@converter("Scan", since=9)
def convert_scan(
    ctx: Context,
    *operands: Value,
    body: OnnxGraph,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] = (),
    scan_input_directions: Sequence[int] = (),
    scan_output_axes: Sequence[int] = (),
    scan_output_directions: Sequence[int] = (),
) -> tuple[Value, ...]:
    """A loop over the elements of sequences."""
    split = len(operands) - num_scan_inputs
    if num_scan_inputs < 1 or split < 0 or len(body.outputs) < split:
        ctx.refuse(f"num_scan_inputs = {num_scan_inputs} does not fit")
    initial, inputs = operands[:split], operands[split:]
    made_count = len(body.outputs) - split
    flips = [_per(ctx, scan_input_directions, num_scan_inputs)]
    flips.append(_per(ctx, scan_output_directions, made_count))
    reverse = all(flips[0]) and all(flips[1])  # then the loop itself runs backwards
    sequences = []
    for value, axis, flip in zip(
        inputs, _per(ctx, scan_input_axes, num_scan_inputs), flips[0], strict=True
    ):
        moved = _move_axis(ctx, value, axis, 0)
        sequences.append(_flipped(ctx, moved) if flip and not reverse else moved)

    def step(inner: Context, carries: list[Value], elements: list[Value]) -> Step:
        made = inner.run_graph(inner, body, (*carries, *elements))
        return Step(made[:split], made[split:])

    try:
        made = scan(ctx, "scan", initial, sequences, step, reverse=reverse)
    except OpenRows:
        made = _scanned_by_number(ctx, initial, sequences, step, len(body.outputs), reverse)
    results = list(made[:split])
    for value, axis, flip in zip(
        made[split:], _per(ctx, scan_output_axes, made_count), flips[1], strict=True
    ):
        ordered = _flipped(ctx, value) if flip and not reverse else value
        results.append(_move_axis(ctx, ordered, 0, axis))
    return tuple(results)


def _scanned_by_number(
    ctx: Context,
    initial: Sequence[Value],
    sequences: Sequence[Value],
    step: Callable[[Context, list[Value], list[Value]], Step],
    outputs: int,
    reverse: bool,
) -> tuple[Value, ...]:
    """The same as a loop whose steps take the elements themselves."""
    count = sequences[0].type.shape[0]

    def run(inner: Context, operands: Sequence[Value]) -> tuple[Value, ...]:
        number, going, *carries = operands
        if reverse:
            last = inner.size_tensor(np.array(count - 1, np.object_))
            number = inner.call(Sub(), last, number)
        made = step(inner, carries, [inner.call(Gather(axis=0), v, number) for v in sequences])
        return (going, *made.carries, *made.outputs)

    made = loop_over(ctx, StepGraph(run, 1 + outputs), count, None, initial)
    rows = made[len(initial) :]
    return (*made[: len(initial)], *(_flipped(ctx, v) if reverse else v for v in rows))


@converter("Scan", since=8)
def convert_scan_8(
    ctx: Context,
    sequence_lens: Value | None = None,
    *operands: Value,
    body: OnnxGraph,
    num_scan_inputs: int,
    directions: Sequence[int] = (),
) -> tuple[Value, ...]:
    """A loop over the elements of sequences, for each row of a batch by itself."""
    if sequence_lens is not None:
        ctx.refuse("sequences of several lengths in a batch are not handled")

    def row(inner: Body, carries: list[Value], elements: list[Value]) -> Step:
        made = convert_scan(
            inner,
            *elements,
            body=body,
            num_scan_inputs=num_scan_inputs,
            scan_input_directions=directions,
        )
        return Step((), made)

    return scan(ctx, "batch", (), operands, row)


def _per(ctx: Context, values: Sequence[int], count: int) -> tuple[int, ...]:
    if values and len(values) != count:
        ctx.refuse(f"{len(values)} axes or directions for {count} sequences")
    return tuple(values) or (0,) * count


def _move_axis(ctx: Context, value: Value, source: int, target: int) -> Value:
    source, target = axes_of(ctx, (source, target), value.type.rank)
    order = [axis for axis in range(value.type.rank) if axis != source]
    order.insert(target, source)
    return transpose(ctx, value, order)


def _flipped(ctx: Context, value: Value) -> Value:
    """The sequence from its end to its start."""
    far = 1 << 40
    return slice_axes(ctx, value, [index(-1)], [index(-far)], [0], [-1])
