"""Operators that are told by data which elements to take, and sorting."""

from __future__ import annotations

import numpy as np

from dlc.testing.draft import Draft, Known
from dlc.testing.recipes.recipe import Recipe, axis_of


def _table(draft: Draft) -> Known:
    found = draft.pick("ffi", smallest=1)
    return found if found.rank else draft.make("float32", (5, 3))


def _gather(draft: Draft, op: str) -> None:
    a = _table(draft)
    axis = axis_of(draft, a.rank)
    n = a.shape[axis]
    shape = draft.shape(draft.rng.choice((0, 1, 1, 2)))
    if op == "GatherElements":
        shape = tuple(draft.rng.randint(1, m) for m in a.shape)
    dtype = draft.rng.choice(("int64", "int32"))
    draft.add(op, [a, draft.make(dtype, shape, -n, n - 1)], exact=True, axis=axis)


def _gather_nd(draft: Draft, op: str) -> None:
    a = _table(draft)
    depth = draft.rng.randint(1, a.rank)
    high = min(a.shape[:depth]) - 1
    indices = draft.make("int64", (draft.rng.randint(1, 4), depth), 0, high)
    draft.add(op, [a, indices], exact=True)


def _scatter(draft: Draft, op: str) -> None:
    a = _table(draft)
    kind = draft.rng.choice(("none", "add", "max", "min"))
    if op == "ScatterElements":
        axis = axis_of(draft, a.rank)
        shape = tuple(1 if i == axis % a.rank else n for i, n in enumerate(a.shape))
        indices = draft.make("int64", shape, 0, a.shape[axis] - 1)
        updates = draft.make(a.array.dtype.name, shape)
        draft.add(op, [a, indices, updates], exact=True, axis=axis, reduction=kind)
        return
    rows = draft.rng.randint(1, a.shape[0])
    places = np.asarray(draft.rng.sample(range(a.shape[0]), rows), np.int64)[:, None]
    updates = draft.make(a.array.dtype.name, (rows, *a.shape[1:]))
    draft.add(op, [a, draft.constant(places), updates], exact=True, reduction=kind)


def _one_hot(draft: Draft, op: str) -> None:
    depth = draft.rng.randint(1, 6)
    indices = draft.make("int64", draft.shape(draft.rng.choice((1, 2))), -depth, depth - 1)
    operands = [
        indices,
        draft.data(np.asarray(depth, np.int64)),
        draft.constant(np.asarray([0, 1], np.float32)),
    ]
    draft.add(op, operands, exact=True, axis=draft.rng.choice((-1, 0, 1)))


def _top_k(draft: Draft, op: str) -> None:
    a = draft.pick("f", exact=True, smallest=1, dtypes=("float32", "float64"))
    if not a.rank:
        a = draft.make("float32", (7,))
    axis = axis_of(draft, a.rank)
    k = draft.data(np.asarray([draft.rng.randint(1, a.shape[axis])], np.int64))
    draft.add(op, [a, k], outputs=2, exact=True, axis=axis, largest=draft.rng.randint(0, 1))


def _places(draft: Draft, op: str) -> None:
    """How many elements there are is known only once the data is."""
    a = draft.pick("fib" if op == "NonZero" else "fi", exact=True, smallest=1)
    if not a.rank:
        a = draft.make("float32", (5,))
    if op == "NonZero":
        draft.add(op, [a], exact=True)
        return
    axis = draft.rng.choice((None, axis_of(draft, a.rank)))
    n = a.array.size if axis is None else a.shape[axis]
    if op == "Compress":
        draft.add(op, [a, draft.make("bool", (draft.rng.randint(1, n),))], exact=True, axis=axis)
    else:
        draft.add(op, [a], outputs=4, exact=True, axis=axis, sorted=draft.rng.randint(0, 1))


INDICES = (
    Recipe(("Gather", "GatherElements"), _gather, 2.5),
    Recipe(("GatherND",), _gather_nd),
    Recipe(("ScatterElements", "ScatterND"), _scatter, 1.2),
    Recipe(("OneHot",), _one_hot),
    Recipe(("TopK",), _top_k),
    Recipe(("NonZero", "Compress", "Unique"), _places, 1.2),
)
