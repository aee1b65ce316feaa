"""Branches and loops that the host program runs, because only the data says what they do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dlc.core.errors import ShapeError, UnsupportedOperator
from dlc.core.types import DType
from dlc.frontend.onnx.body import Body, check_rows, computed
from dlc.frontend.onnx.branch_sequences import together
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.model import OnnxGraph
from dlc.frontend.onnx.reshape import reshape_to
from dlc.frontend.onnx.sequence_parts import Nothing, sequence
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.graph import Graph, Value
from dlc.graph.ops.control import If, Loop
from dlc.graph.ops.shape import Concat, Reshape
from dlc.graph.sizes import bound_sizes, graph_reads
from dlc.te.expr import Expr, Var
from dlc.te.types import TensorType

_LOG = logging.getLogger(__name__)


class RanksDiffer(Exception):
    """Which branch runs decides the rank of a result, so no buffer can hold either."""

    def __init__(
        self,
        cond: Value,
        branches: tuple[OnnxGraph, OnnxGraph],
        results: tuple[tuple[TensorType, ...], tuple[TensorType, ...]],
    ) -> None:
        super().__init__(cond, branches, results)
        self.cond = cond
        self.branches = branches
        self.results = results
        """The types that each branch gives."""


def branch(
    ctx: Context, cond: Value, then_branch: OnnxGraph, else_branch: OnnxGraph
) -> tuple[Value, ...]:
    """The results of one subgraph or the other, as a run finds the condition.

    A subgraph that has no meaning for the sizes of this model is left out, with a warning; a run
    refuses to need it.

    Raises:
        RanksDiffer: a result has another rank in one subgraph than in the other.
    """
    bodies: list[tuple[Body, tuple[Value, ...]]] = []
    failed: list[UnsupportedOperator | ShapeError] = []
    kept: list[tuple[bool, OnnxGraph]] = []
    for label, graph in (("then", then_branch), ("other", else_branch)):
        body = Body(ctx)
        body.conditional = True
        try:
            results = ctx.run_graph(body, graph, ())
            if any(isinstance(v, Nothing) for v in results):
                ctx.refuse("which branch runs decides whether an optional has a value")
        except (UnsupportedOperator, ShapeError) as error:
            failed.append(error)
            continue
        bodies.append((body, results))
        kept.append((label == "then", graph))
    if len(failed) == 2:
        raise failed[0]
    if failed:
        return only_branch(ctx, cond, *kept[0], str(failed[0]))
    same, flat = together(ctx, *bodies)
    flats = [(body, values) for (body, _), values in zip(bodies, flat, strict=True)]
    _let_single_elements_agree(flats)
    (then, first), (other, second) = [
        (_finished(body, label, (), [computed(body, v) for v in values]), body)
        for label, (body, values) in zip(("then", "other"), flats, strict=True)
    ]
    ranks = [[v.type.rank for v in graph.outputs] for graph in (then, other)]
    if ranks[0] != ranks[1]:
        types = [tuple(v.type for v in graph.outputs) for graph in (then, other)]
        raise RanksDiffer(cond, (then_branch, else_branch), (types[0], types[1]))
    open_sizes = 0
    op = If(then=then, other=other)
    for a, b in zip(then.outputs, other.outputs, strict=True):
        if a.type.dtype is not b.type.dtype:
            ctx.refuse(f"which branch runs decides whether a result is {a.type} or {b.type}")
        pairs = zip(a.type.shape, b.type.shape, strict=True)
        open_sizes += sum(not op.agreed(m, n) for m, n in pairs)
    op = replace(op, results=tuple(ctx.data.fresh() for _ in range(open_sizes)))
    count = len(then.outputs)
    operands = (cond, *first.captured, *second.captured)
    made = iter(ctx.call_all(op, *operands, count=count) if count else ())
    return tuple(
        next(made) if form is None else sequence(ctx, form.with_rest(made)) for form in same
    )


def _let_single_elements_agree(bodies: Sequence[tuple[Body, list[Value]]]) -> None:
    """Where both branches give one element, of different ranks, let it be of the lower rank.

    That broadcasts as the other one does.
    """
    (_, then), (_, other) = bodies
    for place, pair in enumerate(zip(then, other, strict=False)):
        single = all(v.type.is_static and set(v.type.static_shape) <= {1} for v in pair)
        if single and pair[0].type.rank != pair[1].type.rank:
            lower = min((v.type.shape for v in pair), key=len)
            for body, flat in bodies:
                flat[place] = reshape_to(body, flat[place], lower)


def only_branch(
    ctx: Context,
    cond: Value,
    wanted: bool,
    graph: OnnxGraph,
    reason: str,
) -> tuple[Value, ...]:
    """The results of the one branch there is; a run refuses to need the other, for this reason."""
    name = "else" if wanted else "then"
    message = f"node '{ctx.node.label}': its {name} branch cannot run: {reason}"
    _LOG.info("%s", message)  # a run that needs the branch says so
    ctx.data.require(cond, wanted, message)
    return ctx.run_graph(ctx, graph, ())


def _finished(body: Body, name: str, inputs: Sequence[Value], results: Sequence[Value]) -> Graph:
    graph = body.graph(name, (), (*inputs, *body.captured.values()), results)
    return replace(graph, sizes=tuple(sorted(graph_reads(graph))))


@dataclass(frozen=True, slots=True)
class StepGraph:
    """A step of a loop, to be converted into some context."""

    run: Callable[[Context, Sequence[Value]], tuple[Value, ...]]
    """Its condition, carries and rows, of the number of the step, a condition and the carries."""
    outputs: int
    """How many it gives."""


def loop_while(
    ctx: Context,
    limit: Expr,
    cond: Value | None,
    initial: Sequence[Value],
    body: StepGraph,
    grown: Collection[int] = (),
) -> tuple[Value, ...]:
    """A loop that ends when its condition fails, or after `limit` steps.

    The first axis of a `grown` carry changes for sure. What the steps collect grows, element by
    element, in vectors that are carried along.

    Raises:
        OpenRows: only a step knows the size of what it gives to be collected.
    """
    start = ctx.constant(np.ones((), np.bool_)) if cond is None else reshape_to(ctx, cond, ())
    types = [v.type for v in initial]
    sizes: list[str] = []
    for position in grown:
        sizes.append(ctx.data.fresh())
        whole = types[position]
        types[position] = TensorType((Var(sizes[-1]), *whole.shape[1:]), whole.dtype)
    while True:
        trial = _Step(ctx, body, types, sizes)
        wider = widened(ctx, types, trial.carried, sizes)
        if wider == types:
            break
        types = wider
    rows = trial.rows
    check_rows(ctx, rows, {*sizes, *bound_sizes(trial.inner.nodes)})
    collected = [ctx.constant(np.zeros(0, NUMPY_DTYPES[row.type.dtype])) for row in rows]
    for value in collected:
        sizes.append(ctx.data.fresh())
        types.append(TensorType((Var(sizes[-1]),), value.type.dtype))
    step = _Step(ctx, body, types, sizes, len(initial))
    carries = [*initial, *collected]
    op = Loop(
        body=step.graph(),
        carries=len(carries),
        limit=limit,
        sizes=tuple(sizes),
        results=tuple(ctx.data.fresh() for _ in sizes),
    )
    made = ctx.call_all(op, start, *carries, *step.inner.captured, count=1 + len(carries))
    steps = ctx.one_size(made[0], "the number of steps")
    vectors = zip(made[1 + len(initial) :], step.rows, strict=True)
    found = (ctx.call(Reshape(shape=(steps, *row.type.shape)), vector) for vector, row in vectors)
    return (*made[1 : 1 + len(initial)], *found)


def widened(
    ctx: Context, types: list[TensorType], made: Sequence[TensorType], sizes: list[str]
) -> list[TensorType]:
    """The types of carries with a size variable, one of `sizes`, where a step changes a size."""
    wider: list[TensorType] = []
    for old, new in zip(types, made, strict=True):
        if old.rank != new.rank or old.dtype is not new.dtype:
            ctx.refuse(f"a value carried by the loop changes from {old} to {new}")
        shape = list(old.shape)
        for axis, (a, b) in enumerate(zip(old.shape, new.shape, strict=True)):
            own = isinstance(a, Var) and a.name in sizes
            if a != b and not own:
                sizes.append(ctx.data.fresh())
                shape[axis] = Var(sizes[-1])
        wider.append(TensorType(tuple(shape), old.dtype))
    return wider


class _Step:
    """The body of a loop, converted for carries of given types, of which steps change `sizes`.

    The first `own` carries (default: all) are the model's; behind them comes, for each value that a
    step collects, the vector of all so far.
    """

    def __init__(
        self,
        ctx: Context,
        body: StepGraph,
        types: Sequence[TensorType],
        sizes: Sequence[str],
        own: int | None = None,
    ) -> None:
        self.inner = inner = Body(ctx)
        inner.data.change(sizes)
        self.number = inner.parameter("number", TensorType((), DType.I64))
        self.state = [inner.parameter("carried", t) for t in types]
        count = len(types) if own is None else own
        true = inner.constant(np.ones((), np.bool_))
        made = body.run(inner, (self.number, true, *self.state[:count]))
        self.condition = reshape_to(inner, made[0], ())
        self.made, self.rows = list(made[1 : 1 + count]), list(made[1 + count :])
        self.carried = [v.type for v in self.made]
        if own is not None:
            self._collect(self.state[count : count + len(self.rows)])

    def _collect(self, vectors: Sequence[Value]) -> None:
        inner = self.inner
        for vector, row in zip(vectors, self.rows, strict=True):
            flat = reshape_to(inner, row, (row.type.elems,))
            self.made.append(inner.call(Concat(axis=0), vector, flat))

    def graph(self) -> Graph:
        """The finished body."""
        results = [computed(self.inner, v) for v in (self.condition, *self.made)]
        return _finished(self.inner, "loop", (self.number, *self.state), results)
