"""The converter of classifiers by support vectors.

Source: https://onnx.ai/onnx/operators/onnx_aionnxml_SVMClassifier.html
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.body import Body, Step, scan
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.control import counter
from dlc.frontend.onnx.generate import expand_to
from dlc.frontend.onnx.learning import DOMAIN, linear, rows_of
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, unsqueeze
from dlc.frontend.onnx.slicing import concat, slice_axes
from dlc.frontend.onnx.support_vectors import kernel
from dlc.frontend.onnx.trees import labels_of, transformed
from dlc.graph.graph import Value
from dlc.graph.ops.activation import Clip, Sigmoid
from dlc.graph.ops.binary import Add, Div, Greater, Less, Mul, Or, Sub, Where
from dlc.graph.ops.elementwise import Abs, Neg
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.reduce import ArgMax, Reduce
from dlc.te.expr import index

_STEPS = 100
"""At most so many improvements of probabilities, as libsvm makes."""


@converter("SVMClassifier", since=1, domain=DOMAIN)
def convert_svm_classifier(
    ctx: Context,
    x: Value,
    *,
    classlabels_ints: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (),
    coefficients: Sequence[float],
    kernel_params: Sequence[float] = (),
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Sequence[float] = (),
    prob_b: Sequence[float] = (),
    rho: Sequence[float] = (),
    support_vectors: Sequence[float] = (),
    vectors_per_class: Sequence[int] = (),
) -> tuple[Value, Value]:
    """The class that wins most of the duels, each of two classes; the duels, or probabilities."""
    labels = labels_of(ctx, classlabels_ints, classlabels_strings)
    classes = len(classlabels_ints or classlabels_strings)
    x = cast_to(ctx, unsqueeze(ctx, x, (0,)) if x.type.rank == 1 else x, DType.F32)
    if not vectors_per_class:
        rows = rows_of(ctx, coefficients, classes, "coefficients")
        scores = linear(ctx, x, rows, np.full(classes, (*rho, 0.0)[0]))
        best = ctx.call(ArgMax(axis=1, keepdims=False), scores)
        return ctx.call(Gather(axis=0), labels, best), transformed(ctx, scores, post_transform)
    pairs = list(itertools.combinations(range(classes), 2))
    if len(vectors_per_class) != classes or classes < 2 or len(rho) != len(pairs):
        ctx.refuse(f"{len(vectors_per_class)} counts and {len(rho)} rho for {classes} classes")
    duels = _duels(
        ctx, x, pairs, coefficients, vectors_per_class, support_vectors, kernel_type, kernel_params,
        rho,
    )  # fmt: skip
    best = _most_votes(ctx, duels, pairs, classes)
    if prob_a:
        if not len(prob_a) == len(prob_b) == len(pairs):
            ctx.refuse(f"{len(prob_a)} prob_a and {len(prob_b)} prob_b for {len(pairs)} pairs")
        scores = _probabilities(ctx, duels, pairs, classes, prob_a, prob_b)
        return ctx.call(Gather(axis=0), labels, best), transformed(ctx, scores, post_transform)
    if classes == 2:
        return ctx.call(Gather(axis=0), labels, best), _of_two(ctx, duels, post_transform)
    return ctx.call(Gather(axis=0), labels, best), transformed(ctx, duels, post_transform)


def _duels(
    ctx: Context,
    x: Value,
    pairs: Sequence[tuple[int, int]],
    coefficients: Sequence[float],
    counts: Sequence[int],
    support_vectors: Sequence[float],
    kernel_type: str,
    params: Sequence[float],
    rho: Sequence[float],
) -> Value:
    """A score for each pair of classes, positive where the first one wins: [n, pairs]."""
    if min(counts) < 0:
        ctx.refuse("a class has fewer than no vectors")
    vectors = rows_of(ctx, support_vectors, sum(counts), "numbers of support vectors")
    table = rows_of(ctx, coefficients, len(counts) - 1, "coefficients")
    if table.shape[1] != sum(counts):
        ctx.refuse(f"{table.shape[1]} coefficients for {sum(counts)} vectors")
    ends = np.cumsum([0, *counts])
    weights = np.zeros((sum(counts), len(pairs)), np.float32)
    for column, (i, j) in enumerate(pairs):
        mine, other = slice(ends[i], ends[i + 1]), slice(ends[j], ends[j + 1])
        weights[mine, column] = table[j - 1, mine]
        weights[other, column] = table[i, other]
    near = kernel(ctx, x, vectors, kernel_type, params)
    total = ctx.call(MatMul(), near, ctx.constant(weights))
    return ctx.call(Add(), total, ctx.constant(np.array(rho, np.float32)))


def _most_votes(
    ctx: Context, duels: Value, pairs: Sequence[tuple[int, int]], classes: int
) -> Value:
    """The class that wins most often, the first of several."""
    first, second = (
        ctx.constant(np.eye(classes, dtype=np.float32)[[p[k] for p in pairs]]) for k in (0, 1)
    )
    wins = cast_to(ctx, ctx.call(Greater(), duels, ctx.scalar(0.0, DType.F32)), DType.F32)
    losses = ctx.call(Sub(), ctx.scalar(1.0, DType.F32), wins)
    votes = ctx.call(Add(), ctx.call(MatMul(), wins, first), ctx.call(MatMul(), losses, second))
    return ctx.call(ArgMax(axis=1, keepdims=False), votes)


def _of_two(ctx: Context, duel: Value, how: str) -> Value:
    """The scores of two classes: the opposite of the duel, and the duel, as onnxruntime has it."""
    if how not in ("NONE", "LOGISTIC"):  # onnxruntime and ONNX's evaluator differ
        ctx.refuse(f"post_transform = '{how}' of one score for two classes")
    both = concat(ctx, [ctx.call(Neg(), duel), duel], 1)
    return transformed(ctx, both, how)


def _probabilities(
    ctx: Context,
    duels: Value,
    pairs: Sequence[tuple[int, int]],
    classes: int,
    a: Sequence[float],
    b: Sequence[float],
) -> Value:
    """Probabilities of classes from those of each duel.

    Source: Wu, Lin and Weng, "Probability Estimates for Multi-class Classification by Pairwise
    Coupling" (2004), algorithm 2
    """
    slope, shift = (ctx.constant(np.array(v, np.float32)) for v in (a, b))
    value = ctx.call(Add(), ctx.call(Mul(), duels, slope), shift)
    won = ctx.call(Sigmoid(), ctx.call(Neg(), value))
    won = ctx.call(Clip(min=1e-7, max=1 - 1e-7), won)
    lost = ctx.call(Sub(), ctx.scalar(1.0, DType.F32), won)
    both = concat(ctx, [won, lost], 1)  # r[i, j]: the probability of i where it is i or j
    place = {pair: k for k, pair in enumerate(pairs)}
    place |= {(j, i): len(pairs) + k for k, (i, j) in enumerate(pairs)}
    grid = np.array([[place.get((i, j), 0) for j in range(classes)] for i in range(classes)])
    rates = ctx.call(Gather(axis=1), both, ctx.constant(grid))  # [n, i, j]
    turned = ctx.call(Gather(axis=1), both, ctx.constant(np.ascontiguousarray(grid.T)))
    apart = 1 - np.eye(classes, dtype=np.float32)
    squares = ctx.call(Mul(), ctx.call(Mul(), turned, turned), ctx.constant(apart))
    own = ctx.call(Reduce(kind="sum", axes=(2,), keepdims=True), squares)
    cross = ctx.call(Mul(), ctx.call(Mul(), rates, turned), ctx.constant(-apart))
    q = ctx.call(
        Add(), cross, ctx.call(Mul(), own, ctx.constant(np.eye(classes, dtype=np.float32)))
    )
    return _improved(ctx, q, classes)


def _improved(ctx: Context, q: Value, classes: int) -> Value:
    """p that is least in p' q p among those that sum to 1, for each row: [n, classes]."""
    n = q.type.shape[0]
    even = ctx.constant(np.full((1, classes), 1 / classes, np.float32))
    start = expand_to(ctx, even, (n, index(classes)))
    never = expand_to(ctx, ctx.constant(np.zeros((1, 1), np.bool_)), (n, index(1)))
    threshold = 0.005 / classes

    def step(body: Body, state: list[Value], elements: list[Value]) -> Step:
        p, done = state
        qp = _product(body, q, p)
        pqp = _sum(body, body.call(Mul(), p, qp))
        error = body.call(Abs(), body.call(Sub(), qp, pqp))
        worst = body.call(Reduce(kind="max", axes=(1,), keepdims=True), error)
        small = body.call(Less(), worst, body.scalar(threshold, DType.F32))
        done = body.call(Or(), done, small)
        better = _round(body, q, p, qp, pqp, classes)
        return Step((body.call(Where(), done, p, better), done), ())

    p, _ = scan(ctx, "improve", [start, never], [counter(ctx, index(_STEPS))], step)
    return p


def _round(body: Body, q: Value, p: Value, qp: Value, pqp: Value, classes: int) -> Value:
    """One improvement of each probability in turn."""
    one, two = body.scalar(1.0, DType.F32), body.scalar(2.0, DType.F32)
    for t in range(classes):
        row = reshape_to(body, _slice(body, q, t, 1), p.type.shape)  # q is symmetric
        corner, here = _slice(body, row, t, 1), _slice(body, qp, t, 1)
        change = body.call(Div(), body.call(Sub(), pqp, here), corner)
        scale = body.call(Add(), one, change)
        gain = body.call(Add(), body.call(Mul(), change, corner), body.call(Mul(), two, here))
        pqp = body.call(Add(), pqp, body.call(Mul(), change, gain))
        pqp = body.call(Div(), pqp, body.call(Mul(), scale, scale))
        unit = np.zeros((1, classes), np.float32)
        unit[0, t] = 1
        p = body.call(Add(), p, body.call(Mul(), change, body.constant(unit)))
        p = body.call(Div(), p, scale)
        qp = body.call(Div(), body.call(Add(), qp, body.call(Mul(), change, row)), scale)
    return p


def _slice(ctx: Context, x: Value, at: int, axis: int) -> Value:
    return slice_axes(ctx, x, [index(at)], [index(at + 1)], [axis], [1])


def _product(ctx: Context, q: Value, p: Value) -> Value:
    made = ctx.call(MatMul(), q, unsqueeze(ctx, p, (2,)))
    return reshape_to(ctx, made, p.type.shape)


def _sum(ctx: Context, x: Value) -> Value:
    return ctx.call(Reduce(kind="sum", axes=(1,), keepdims=True), x)
