"""Operators that move elements and compute nothing."""

from __future__ import annotations

import numpy as np

from dlc.testing.draft import Draft, Known
from dlc.testing.recipes.recipe import Recipe, axis_of, some_axes


def _i64(draft: Draft, values: object) -> Known:
    return draft.data(np.asarray(values, np.int64))


def _any(draft: Draft, smallest_rank: int = 1) -> Known:
    found = draft.pick("ffib")
    if found.rank >= smallest_rank:
        return found
    return draft.make("float32", draft.shape(draft.rng.randint(smallest_rank, 4)))


def _reshape(draft: Draft, op: str) -> None:
    a = _any(draft)
    shape = list(a.shape)
    kind = draft.rng.random()
    if kind < 0.15:
        _reshape_by_zeros(draft, a)
        return
    if kind < 0.35:
        shape = [-1]
    elif kind < 0.6 and len(shape) > 1:
        at = draft.rng.randrange(len(shape) - 1)
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    else:
        at = draft.rng.randrange(len(shape))
        factors = [f for f in range(1, shape[at] + 1) if shape[at] % f == 0] or [1]
        factor = draft.rng.choice(factors)
        shape[at : at + 1] = [factor, shape[at] // factor]
    if draft.rng.random() < 0.4 and -1 not in shape and 0 not in shape:
        shape[draft.rng.randrange(len(shape))] = -1
    draft.add(op, [a, _i64(draft, shape)], exact=True)


def _reshape_by_zeros(draft: Draft, a: Known) -> None:
    """A 0 stands for the size that was there, or for a size of 0 where `allowzero` is set."""
    shape = [0 if draft.rng.random() < 0.6 else n for n in a.shape]
    if 0 in a.shape or draft.rng.random() < 0.5:
        sizes = [draft.dim(1) for _ in range(draft.rng.randint(1, 3))]
        sizes[draft.rng.randrange(len(sizes))] = 0
        empty = a if 0 in a.shape else draft.make("float32", sizes)
        shape = [draft.rng.randint(0, 3) for _ in range(draft.rng.randint(1, 3))]
        shape[draft.rng.randrange(len(shape))] = 0
        draft.add("Reshape", [empty, _i64(draft, shape)], exact=True, allowzero=1)
    else:
        draft.add("Reshape", [a, _i64(draft, shape)], exact=True)


def _flatten(draft: Draft, op: str) -> None:
    a = _any(draft)
    draft.add(op, [a], exact=True, axis=draft.rng.randint(-a.rank, a.rank))


def _transpose(draft: Draft, op: str) -> None:
    a = _any(draft)
    order = list(range(a.rank))
    draft.rng.shuffle(order)
    draft.add(op, [a], exact=True, perm=order if draft.rng.random() < 0.8 else None)


def _squeeze(draft: Draft, op: str) -> None:
    a = _any(draft)
    ones = [i for i, n in enumerate(a.shape) if n == 1]
    if op == "Unsqueeze" or not ones:
        rank = a.rank + 1
        draft.add("Unsqueeze", [a, _i64(draft, [axis_of(draft, rank)])], exact=True)
    else:
        axes = [draft.rng.choice(ones)]
        draft.add(op, [a, _i64(draft, axes) if draft.rng.random() < 0.7 else None], exact=True)


def _concat(draft: Draft, op: str) -> None:
    a = _any(draft)
    axis = axis_of(draft, a.rank)
    parts = [a]
    for _ in range(draft.rng.randint(1, 3)):
        same = [v for v in draft.values if v.shape == a.shape and v.array.dtype == a.array.dtype]
        shape = list(a.shape)
        shape[axis] = draft.dim()
        other = draft.make(a.array.dtype.name, shape)
        parts.append(draft.rng.choice(same) if draft.rng.random() < 0.6 else other)
    draft.rng.shuffle(parts)
    draft.add(op, parts, exact=True, axis=axis)


def _split(draft: Draft, op: str) -> None:
    a = _any(draft)
    axis = axis_of(draft, a.rank)
    size = a.shape[axis]
    if draft.rng.random() < 0.5:
        first = draft.rng.randint(0, size)
        draft.add(op, [a, _i64(draft, [first, size - first])], outputs=2, exact=True, axis=axis)
    else:
        divisors = [p for p in (1, 2, 3) if size % p == 0]
        parts = draft.rng.choice((1, 2, 3) if draft.opset >= 18 and size > 3 else divisors)
        number = parts if draft.opset >= 18 else None
        draft.add(op, [a], outputs=parts, exact=True, axis=axis, num_outputs=number)


def _slice(draft: Draft, op: str) -> None:
    a = _any(draft)
    axes = some_axes(draft, a.rank)
    starts, ends, steps = [], [], []
    for axis in axes:
        n = a.shape[axis]
        step = draft.rng.choice((1, 1, 2, 3, -1, -2))
        low, high = sorted((draft.rng.randint(-n - 1, n + 1), draft.rng.randint(-n - 1, n + 1)))
        if draft.rng.random() < 0.3:
            low, high = draft.rng.choice(((0, 1 << 40), (-(1 << 40), n), (-(1 << 62), 1 << 62)))
        starts.append(low if step > 0 else high)
        ends.append(high if step > 0 else low)
        steps.append(step)
    operands = [a, *(_i64(draft, v) for v in (starts, ends, axes, steps))]
    draft.add(op, operands, exact=True)


def _pad(draft: Draft, op: str) -> None:
    a = _any(draft)
    mode = draft.rng.choice(("constant", "constant", "reflect", "edge", "wrap"))
    lowest = -1 if mode == "constant" else 0
    most = 3 if mode == "constant" else max(0, min((*a.shape, 4)) - 1)
    pads = [draft.rng.randint(lowest, most) for _ in range(2 * a.rank)]
    value = draft.data(np.asarray(1, a.array.dtype)) if draft.rng.random() < 0.4 else None
    operands = [a, _i64(draft, pads), value if mode == "constant" else None]
    draft.add(op, operands, exact=True, mode=mode)


def _expand(draft: Draft, op: str) -> None:
    a = draft.pick("ffib")
    shape = [draft.dim() if n == 1 else n for n in a.shape]
    if draft.rng.random() < 0.3:
        shape = [draft.dim(), *shape]
    draft.add(op, [a, _i64(draft, shape)], exact=True)


def _tile(draft: Draft, op: str) -> None:
    a = _any(draft)
    draft.add(op, [a, _i64(draft, [draft.rng.choice((1, 1, 2, 3)) for _ in a.shape])], exact=True)


def _space(draft: Draft, op: str) -> None:
    block = draft.rng.choice((1, 2, 3))
    n, c, h, w = (draft.rng.randint(1, 3) for _ in range(4))
    dtype = draft.rng.choice(("float32", "float32", "float64"))
    if op == "DepthToSpace":
        a = draft.make(dtype, (n, c * block * block, h, w))
        mode = draft.rng.choice(("DCR", "CRD"))
        draft.add(op, [a], exact=True, blocksize=block, mode=mode)
    else:
        draft.add(
            op, [draft.make(dtype, (n, c, h * block, w * block))], exact=True, blocksize=block
        )


def _trilu(draft: Draft, op: str) -> None:
    a = _any(draft, 2)
    k = _i64(draft, draft.rng.randint(-3, 3)) if draft.rng.random() < 0.6 else None
    draft.add(op, [a, k], exact=True, upper=draft.rng.randint(0, 1))


def _shape(draft: Draft, op: str) -> None:
    a = _any(draft)
    if op == "Size" or draft.rng.random() < 0.5:
        draft.add(op, [a])
    else:
        draft.add(op, [a], start=draft.rng.randint(-a.rank, 0), end=draft.rng.randint(0, a.rank))


def _fill(draft: Draft, op: str) -> None:
    """ConstantOfShape and Range of constants; EyeLike."""
    if op == "EyeLike":
        a = draft.pick("f", rank=2)
        draft.add(op, [a], k=draft.rng.randint(-2, 2))
    elif op == "Range":
        start, limit, step = draft.rng.choice(((0, 7, 2), (5, -3, -2), (1, 1, 1), (0, 17, 1)))
        dtype = draft.rng.choice((np.int64, np.float32, np.int32))
        draft.add(op, [draft.data(np.asarray(v, dtype)) for v in (start, limit, step)], exact=True)
    else:
        draft.add(op, [_i64(draft, list(draft.shape()))], exact=True)


def _reverse(draft: Draft, op: str) -> None:
    time, batch = draft.rng.randint(1, 6), draft.rng.randint(1, 4)
    lengths = draft.make("int64", (batch,), 1, time)
    axes = draft.rng.choice(((0, 1), (1, 0)))
    shape = (time, batch, 3) if axes == (0, 1) else (batch, time, 3)
    a = draft.make("float32", shape)
    draft.add(op, [a, lengths], exact=True, time_axis=axes[0], batch_axis=axes[1])


MOVES = (
    Recipe(("Reshape",), _reshape, 3),
    Recipe(("Flatten",), _flatten),
    Recipe(("Transpose",), _transpose, 3),
    Recipe(("Squeeze", "Unsqueeze"), _squeeze, 2),
    Recipe(("Concat",), _concat, 3),
    Recipe(("Split",), _split, 2),
    Recipe(("Slice",), _slice, 3),
    Recipe(("Pad",), _pad, 2),
    Recipe(("Expand",), _expand, 1.5),
    Recipe(("Tile",), _tile),
    Recipe(("DepthToSpace", "SpaceToDepth"), _space),
    Recipe(("Trilu",), _trilu),
    Recipe(("Shape", "Size"), _shape),
    Recipe(("ConstantOfShape", "Range", "EyeLike"), _fill),
    Recipe(("ReverseSequence",), _reverse, 0.5),
)
