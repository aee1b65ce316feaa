"""Groups of nodes as they are common in models: what rewriting and fusion look for."""

from __future__ import annotations

import numpy as np

from dlc.testing.draft import Draft, Known
from dlc.testing.recipes.recipe import Recipe


def _weights(draft: Draft, *shape: int) -> Known:
    return draft.make("float32", shape, -1, 1, constant=True)


def _conv(draft: Draft, x: Known, channels: int, kernel: int, dilation: int = 1) -> Known:
    """Of the size of its image."""
    pad = (kernel - 1) * dilation
    low = pad // 2
    return draft.add(
        "Conv",
        [x, _weights(draft, channels, x.shape[1], kernel, kernel), _weights(draft, channels)],
        pads=[low, low, pad - low, pad - low],
        dilations=[dilation, dilation],
    )[0]


def _branches(draft: Draft, op: str) -> None:
    """Convolutions of several sizes of one result, side by side."""
    h, w = draft.rng.choice((5, 6, 8)), draft.rng.choice((5, 7, 9))
    stem = _conv(draft, draft.make("float32", (1, 3, h, w)), draft.rng.choice((4, 16, 17)), 3)
    stem = draft.add("Relu", [stem])[0]
    parts = [
        _conv(draft, stem, draft.rng.choice((3, 8, 16)), kernel, draft.rng.choice((1, 2)))
        for kernel in draft.rng.sample((1, 2, 3, 5), draft.rng.randint(2, 3))
    ]
    if draft.rng.random() < 0.4:
        parts += draft.add("MaxPool", [stem], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    draft.rng.shuffle(parts)
    draft.add("Concat", parts, axis=1)


def _decoder(draft: Draft, op: str) -> None:
    """An image that is made small, enlarged again, padded to its size and joined with it."""
    h, w = draft.rng.choice((4, 5, 6)), draft.rng.choice((5, 7, 8))
    skip = _conv(draft, draft.make("float32", (1, 3, h, w)), draft.rng.choice((4, 16, 17)), 3)
    small = draft.add("MaxPool", [skip], kernel_shape=[2, 2], strides=[2, 2])[0]
    small = draft.add("Relu", [_conv(draft, small, draft.rng.choice((8, 16)), 3)])[0]
    kernel = _weights(draft, small.shape[1], draft.rng.choice((5, 8, 16)), 2, 2)
    large = draft.add("ConvTranspose", [small, kernel], strides=[2, 2])[0]
    gaps = [a - b for a, b in zip(skip.shape, large.shape, strict=True)][2:]
    pads = [0, 0, *(n // 2 for n in gaps), 0, 0, *(n - n // 2 for n in gaps)]
    large = draft.add("Pad", [large, draft.constant(np.asarray(pads, np.int64))])[0]
    parts = [skip, large]
    draft.rng.shuffle(parts)
    _conv(draft, draft.add("Concat", parts, axis=1)[0], draft.rng.choice((3, 8)), 3)


def _excite(draft: Draft, op: str) -> None:
    """The channels of an image scaled by what its means say."""
    c = draft.rng.choice((4, 8, 17))
    image = _conv(draft, draft.make("float32", (2, 3, 5, 6)), c, 3)
    gate = draft.add("GlobalAveragePool", [image])[0]
    gate = draft.add("Relu", [_conv(draft, gate, draft.rng.choice((1, 2, 4)), 1)])[0]
    gate = draft.add(draft.rng.choice(("Sigmoid", "HardSigmoid")), [_conv(draft, gate, c, 1)])[0]
    draft.add("Mul", [image, gate] if draft.rng.random() < 0.5 else [gate, image])


def _affine(draft: Draft, op: str) -> None:
    """Constants added, subtracted and multiplied one after the other, some by channel."""
    x = draft.pick(dtypes=("float32",), smallest=1)
    for _ in range(draft.rng.randint(2, 4)):
        shape = [n if draft.rng.random() < 0.4 else 1 for n in x.shape]
        c = draft.make("float32", shape, 0.5, 2, constant=True)
        op = draft.rng.choice(("Add", "Sub", "Mul", "Div"))
        swapped = op in ("Add", "Mul") and draft.rng.random() < 0.3
        x = draft.add(op, [c, x] if swapped else [x, c])[0]


def _scaled(draft: Draft, op: str) -> None:
    """A product with a constant matrix, scaled and shifted before and behind."""
    rank = draft.rng.choice((2, 2, 3))
    x = draft.make("float32", [*(draft.dim(1) for _ in range(rank - 1)), draft.dim(1)])
    k, n = x.shape[-1], draft.dim(1)
    if draft.rng.random() < 0.4:
        x = draft.add("Mul", [x, _weights(draft, *draft.rng.choice(((k,), (1,))))])[0]
    y = draft.add("MatMul", [x, _weights(draft, k, n)])[0]
    for _ in range(draft.rng.randint(1, 3)):
        c = _weights(draft, *draft.rng.choice(((n,), (1,), (x.shape[-2], 1), ())))
        y = draft.add(draft.rng.choice(("Add", "Mul", "Sub")), [y, c])[0]


def _dense(draft: Draft, op: str) -> None:
    """A product large enough for tiles, of inputs that may hold special values."""
    m, k, n = (draft.rng.choice((16, 17, 32, 48, 64)) for _ in range(3))
    draft.special = draft.special or (not draft.nodes and draft.rng.random() < 0.5)
    x = draft.make("float32", (m, k), constant=False)
    y = draft.add("MatMul", [x, _weights(draft, k, n)])[0]
    if draft.rng.random() < 0.5:
        y = draft.add("Add", [y, _weights(draft, n)])[0]
    draft.add(draft.rng.choice(("Relu", "Tanh", "Gelu", "Softmax")), [y])


def _parallel(draft: Draft, op: str) -> None:
    """Several products of one value, as of queries, keys and values."""
    m, k = draft.dim(1), draft.dim(1)
    x = draft.make("float32", (m, k), constant=False)
    parts = []
    for _ in range(draft.rng.randint(2, 3)):
        n = draft.rng.choice((k, 8, 16))
        y = draft.add("MatMul", [x, _weights(draft, k, n)])[0]
        parts.append(draft.add("Add", [y, _weights(draft, n)])[0])
    draft.add("Tanh", [draft.rng.choice(parts)])


def _two_kinds(draft: Draft, op: str) -> None:
    """Values mixed by the softmax of scores that two products make side by side."""
    m, k, *columns = (draft.rng.choice((3, 5, 8, 16)) for _ in range(4))
    rows = draft.make("float32", (2, m, k))
    parts = [draft.add("MatMul", [rows, draft.make("float32", (2, k, n))])[0] for n in columns]
    weights = draft.add("Softmax", draft.add("Concat", parts, axis=-1), axis=-1)[0]
    draft.add("MatMul", [weights, draft.make("float32", (2, sum(columns), k))])


def _moves(draft: Draft, op: str) -> None:
    """Transposes, reshapes and slices one after the other."""
    x = draft.make("float32", draft.shape(draft.rng.choice((3, 4)), 2))
    for _ in range(draft.rng.randint(2, 3)):
        order = list(range(x.rank))
        draft.rng.shuffle(order)
        match draft.rng.randrange(3):
            case 0:
                x = draft.add("Transpose", [x], exact=True, perm=order)[0]
            case 1:
                shape = [*x.shape[:-2], x.shape[-2] * x.shape[-1]]
                shape = shape if draft.rng.random() < 0.5 and x.rank > 2 else [*x.shape, 1]
                sizes = draft.constant(np.asarray(shape, np.int64))
                x = draft.add("Reshape", [x, sizes], exact=True)[0]
            case _:
                axis = draft.rng.randrange(x.rank)
                start, step = draft.rng.choice(((0, 2), (1, 1), (1, 2), (-1, -1), (-1, -2)))
                end = 1 << 40 if step > 0 else -(1 << 40)
                bounds = [
                    draft.constant(np.asarray([v], np.int64)) for v in (start, end, axis, step)
                ]
                x = draft.add("Slice", [x, *bounds], exact=True)[0]


def _turned(draft: Draft, op: str) -> None:
    """What is put together and turned, scaled by its own means."""
    columns = draft.rng.choice((3, 7, 16))
    parts = [draft.make("float32", (draft.dim(1), columns)) for _ in range(2)]
    turned = draft.add("Transpose", draft.add("Concat", parts, axis=0), perm=[1, 0])[0]
    if draft.opset < 18:
        means = draft.add("ReduceMean", [turned], axes=[1])[0]
    else:
        means = draft.add("ReduceMean", [turned, draft.constant(np.asarray([1], np.int64))])[0]
    draft.add("Mul", [turned, means])


BLOCKS = (
    Recipe(("branches",), _branches, 1.2),
    Recipe(("decoder",), _decoder, 0.6),
    Recipe(("excite",), _excite, 0.6),
    Recipe(("affine",), _affine, 1.2),
    Recipe(("scaled",), _scaled),
    Recipe(("dense",), _dense, 0.8),
    Recipe(("parallel",), _parallel, 0.8),
    Recipe(("two kinds",), _two_kinds, 0.6),
    Recipe(("turned",), _turned, 0.6),
    Recipe(("moves",), _moves, 1.2),
)
