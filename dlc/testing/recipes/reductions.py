"""Reductions and normalisations."""

from __future__ import annotations

import numpy as np

from dlc.testing.draft import Draft, Known
from dlc.testing.recipes.recipe import Recipe, axis_of, some_axes

_SUMS = ("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceProd")
_LOGS = ("ReduceLogSum", "ReduceLogSumExp")
_ORDER = ("ReduceMax", "ReduceMin")


def _ranked(draft: Draft, smallest_rank: int = 1, smallest: int = 1) -> Known:
    found = draft.pick("f", smallest=smallest)
    if found.rank >= smallest_rank:
        return found
    return draft.make("float32", draft.shape(draft.rng.randint(smallest_rank, 4), smallest))


def _reduce(draft: Draft, op: str) -> None:
    smallest = 0 if op in ("ReduceSum", "ReduceL1", "ReduceSumSquare") else 1
    a = _ranked(draft, 1, smallest)
    if op == "ReduceProd" and not _fits_in_any_order(a):
        a = draft.make("float32", draft.shape(2, 1))
    if op == "ReduceLogSum":
        a = draft.make("float32", draft.shape(draft.rng.randint(1, 4), 1), 0.5, 3)
    axes = some_axes(draft, a.rank)
    keep = draft.rng.randint(0, 1)
    exact = op in _ORDER
    if draft.rng.random() < 0.15:
        draft.add(op, [a], exact=exact, keepdims=keep)
    elif draft.opset >= 18 or op == "ReduceSum":
        operand = draft.data(np.asarray(axes, np.int64))
        draft.add(op, [a, operand], exact=exact, keepdims=keep)
    else:
        draft.add(op, [a], exact=exact, axes=axes, keepdims=keep)


def _fits_in_any_order(a: Known) -> bool:
    """Whether no product of some elements overflows: infinity times a later 0 is no number."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.maximum(np.abs(a.array), 1).prod()))


def _softmax(draft: Draft, op: str) -> None:
    a = _ranked(draft)
    if op == "Hardmax":
        a = draft.pick(exact=True, rank=2, smallest=1)
    draft.add(op, [a], axis=axis_of(draft, a.rank))


def _layer_norm(draft: Draft, op: str) -> None:
    a = _ranked(draft, 2, 2)
    axis = draft.rng.randrange(1, a.rank)
    axis = axis - a.rank if draft.rng.random() < 0.5 else axis
    shape = a.shape[axis:]
    dtype = a.array.dtype.name
    scale = draft.make(dtype, shape)
    extra = (
        [draft.make(dtype, shape)]
        if op == "LayerNormalization" and draft.rng.random() < 0.7
        else []
    )
    if op == "RMSNormalization" and draft.opset < 23:
        op, extra = "LayerNormalization", []
    draft.add(op, [a, scale, *extra], axis=axis)


def _channel_norm(draft: Draft, op: str) -> None:
    groups = draft.rng.choice((1, 2, 3))
    channels = groups * draft.rng.choice((1, 2, 3, 8))
    shape = (draft.rng.randint(1, 3), channels, *(draft.rng.randint(1, 7) for _ in range(2)))
    a = draft.make("float32", shape)
    operands = [a, draft.make("float32", (channels,)), draft.make("float32", (channels,))]
    if op == "InstanceNormalization":
        draft.add(op, operands)
    elif op == "GroupNormalization" and draft.opset >= 21:
        draft.add(op, operands, num_groups=groups)
    else:
        mean = draft.make("float32", (channels,))
        variance = draft.make("float32", (channels,), 0.25, 2)
        draft.add("BatchNormalization", [*operands, mean, variance])


def _norm(draft: Draft, op: str) -> None:
    a = _ranked(draft)
    if op == "LRN":
        a = draft.make("float32", draft.shape(4, 1))
        draft.add(op, [a], size=draft.rng.choice((1, 3, 5)))
    else:
        draft.add(op, [a], axis=axis_of(draft, a.rank), p=draft.rng.choice((1, 2)))


def _arg(draft: Draft, op: str) -> None:
    a = draft.pick("fi", exact=True, smallest=1)
    if not a.rank:
        a = draft.make("float32", (7,))
    draft.add(
        op,
        [a],
        axis=axis_of(draft, a.rank),
        keepdims=draft.rng.randint(0, 1),
        select_last_index=draft.rng.randint(0, 1),
    )


def _skip_norm(draft: Draft, op: str) -> None:
    a = draft.make("float32", draft.shape(3, 2))
    skip, gamma = draft.make("float32", a.shape), draft.make("float32", a.shape[-1:])
    name = op.removeprefix("com.microsoft:")
    beta = [draft.make("float32", a.shape[-1:])] if name == "SkipLayerNormalization" else []
    draft.add(name, [a, skip, gamma, *beta], domain="com.microsoft", epsilon=1e-5)


REDUCTIONS = (
    Recipe((*_SUMS, *_LOGS, *_ORDER), _reduce, 4),
    Recipe(("Softmax", "LogSoftmax"), _softmax, 2),
    Recipe(("Hardmax",), _softmax, 0.3),
    Recipe(("LayerNormalization", "RMSNormalization"), _layer_norm, 1.5),
    Recipe(
        ("BatchNormalization", "InstanceNormalization", "GroupNormalization"), _channel_norm, 1.5
    ),
    Recipe(("LRN", "LpNormalization"), _norm, 0.6),
    Recipe(("ArgMax", "ArgMin"), _arg),
    Recipe(
        (
            "com.microsoft:SkipLayerNormalization",
            "com.microsoft:SkipSimplifiedLayerNormalization",
        ),
        _skip_norm,
        0.5,
    ),
)
