"""Converters of If, Loop and Scan.

Source: https://onnx.ai/onnx/operators/onnx__If.html, onnx__Loop.html, onnx__Scan.html
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.body import Body, Step, scan
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.model import OnnxGraph
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, transpose
from dlc.frontend.onnx.slicing import slice_axes
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Where
from dlc.graph.ops.from_sizes import Range
from dlc.te.expr import Const, Expr, index
from dlc.te.simplify import surely_equal, surely_less
from dlc.te.types import TensorType

_MAX_UNROLLED = 64


@converter("If", since=1)
def convert_if(
    ctx: Context, cond: Value, *, then_branch: OnnxGraph, else_branch: OnnxGraph
) -> tuple[Value, ...]:
    """One branch if the condition is known; else both, and a choice for each result.

    Operators have no side effects, so computing both costs time only.
    """
    if not surely_equal(cond.type.elems, 1) or cond.type.dtype is not DType.BOOL:
        ctx.refuse(f"its condition is {cond.type}, not one bool")
    known = ctx.sizes(cond)
    decided = None if known is None else known[0]
    if isinstance(decided, Const):
        return ctx.run_graph(ctx, then_branch if decided.value else else_branch, ())
    first = ctx.run_graph(ctx, then_branch, ())
    second = ctx.run_graph(ctx, else_branch, ())
    if len(first) != len(second):
        ctx.refuse(f"its branches have {len(first)} and {len(second)} results")
    choice = reshape_to(ctx, cond, ())
    results = []
    for a, b in zip(first, second, strict=True):
        if a.type != b.type:
            ctx.refuse(f"which branch runs decides whether a result is {a.type} or {b.type}")
        results.append(ctx.call(Where(), choice, a, b))
    return tuple(results)


@converter("Loop", since=1)
def convert_loop(
    ctx: Context,
    trip_count: Value | None = None,
    cond: Value | None = None,
    *initial: Value,
    body: OnnxGraph,
) -> tuple[Value, ...]:
    """A loop whose number of steps is known before it starts."""
    if trip_count is None:
        ctx.refuse("it runs until a condition fails; only counted loops are handled")
    steps = ctx.one_size(trip_count, "the number of steps")
    if len(body.outputs) <= len(initial) or surely_less(steps, 0):
        ctx.refuse(f"{len(body.outputs)} results of a step do not fit, or {steps} steps")
    if cond is not None and not _is_true(ctx, cond):
        ctx.refuse("its condition is computed at run time; only counted loops are handled")
    if isinstance(steps, Const) and _changes_types(ctx, body, initial):
        if steps.value > _MAX_UNROLLED:
            ctx.refuse(f"a value changes its type in each of {steps} steps")
        return _unrolled(ctx, body, int(steps.value), initial)

    def step(inner: Body, carries: list[Value], elements: list[Value]) -> Step:
        made = inner.run_graph(inner, body, (*elements, _true(inner), *carries))
        _check_condition(inner, made[0])
        return Step(made[1 : 1 + len(carries)], made[1 + len(carries) :])

    return scan(ctx, "loop", initial, [counter(ctx, steps)], step)


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


def _check_condition(ctx: Context, cond: Value) -> None:
    if not _is_true(ctx, cond):
        ctx.refuse("its condition is computed in each step; only counted loops are handled")


def _changes_types(ctx: Context, body: OnnxGraph, initial: Sequence[Value]) -> bool:
    """Whether a step would carry on values of other types than it took."""
    trial = Body(ctx)
    number = trial.parameter("number", TensorType((), DType.I64))
    made = trial.run_graph(trial, body, (number, _true(trial), *initial))
    carried = made[1 : 1 + len(initial)]
    return any(a.type != b.type for a, b in zip(initial, carried, strict=True))


def _unrolled(
    ctx: Context, body: OnnxGraph, steps: int, initial: Sequence[Value]
) -> tuple[Value, ...]:
    if len(body.outputs) > 1 + len(initial):
        ctx.refuse("it collects results while a value changes its type")
    carries = tuple(initial)
    for number in range(steps):
        index_now = ctx.constant(np.array(number, np.int64))
        made = ctx.run_graph(ctx, body, (index_now, _true(ctx), *carries))
        _check_condition(ctx, made[0])
        carries = made[1:]
    return carries


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

    def step(inner: Body, carries: list[Value], elements: list[Value]) -> Step:
        made = inner.run_graph(inner, body, (*carries, *elements))
        return Step(made[:split], made[split:])

    made = scan(ctx, "scan", initial, sequences, step, reverse=reverse)
    results = list(made[:split])
    for value, axis, flip in zip(
        made[split:], _per(ctx, scan_output_axes, made_count), flips[1], strict=True
    ):
        ordered = _flipped(ctx, value) if flip and not reverse else value
        results.append(_move_axis(ctx, ordered, 0, axis))
    return tuple(results)


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
