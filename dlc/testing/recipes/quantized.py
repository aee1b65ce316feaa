"""Integers that stand for floats."""

from __future__ import annotations

import numpy as np

from dlc.testing.draft import Draft
from dlc.testing.recipes.recipe import Recipe


def _quantize(draft: Draft, op: str) -> None:
    """Scales are powers of two, so that no quotient is a rounding away from a half."""
    kind = draft.rng.choice((np.uint8, np.int8))
    scale = draft.constant(np.asarray(draft.rng.choice((0.25, 0.5, 0.125)), np.float32))
    zero = draft.constant(np.asarray(draft.rng.randint(0, 9), kind))
    if op == "DequantizeLinear":
        draft.add(
            op, [draft.make(np.dtype(kind).name, draft.shape(), 0, 100), scale, zero], exact=True
        )
        return
    a = draft.pick(exact=True, dtypes=("float32",))
    made = draft.add("QuantizeLinear", [a, scale, zero])[0]
    if draft.rng.random() < 0.7:
        draft.add("DequantizeLinear", [made, scale, zero], exact=True)


def _integer(draft: Draft, op: str) -> None:
    m, k, n = (draft.rng.randint(1, 17) for _ in range(3))
    kinds = draft.rng.choice((("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")))
    zeros = [draft.constant(np.asarray(draft.rng.randint(0, 5), d)) for d in kinds]
    zeros = zeros[: draft.rng.choice((0, 2))]
    if op == "MatMulInteger":
        a, b = draft.make(kinds[0], (m, k), 0, 100), draft.make(kinds[1], (k, n), 0, 100)
        draft.add(op, [a, b, *zeros])
        return
    image = draft.make(kinds[0], (1, 3, 5, 6), 0, 100)
    draft.add(op, [image, draft.make(kinds[1], (n, 3, 3, 2), 0, 100), *zeros], pads=[1, 0, 1, 1])


def _linear(draft: Draft, op: str) -> None:
    m, k, n = (draft.rng.randint(1, 9) for _ in range(3))
    half, quarter = (draft.constant(np.asarray(v, np.float32)) for v in (0.5, 0.25))
    zero = draft.constant(np.asarray(draft.rng.randint(0, 5), np.uint8))
    if op == "QLinearMatMul":
        a, b = draft.make("uint8", (m, k), 0, 20), draft.make("uint8", (k, n), 0, 20)
    else:
        a = draft.make("uint8", (1, 2, 5, 6), 0, 20)
        b = draft.make("uint8", (n, 2, 3, 3), 0, 20, constant=True)
    draft.add(op, [a, half, zero, b, quarter, zero, half, zero])


QUANTIZED = (
    Recipe(("QuantizeLinear", "DequantizeLinear"), _quantize, 1.2),
    Recipe(("MatMulInteger", "ConvInteger"), _integer),
    Recipe(("QLinearMatMul", "QLinearConv"), _linear),
)
