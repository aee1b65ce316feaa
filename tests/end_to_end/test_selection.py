"""What data chooses, of long and of empty tensors: distinct rows, places, running sums, boxes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import dlc


def module(text: str, opset: int = 18) -> dlc.Module:
    return dlc.compile(parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]>\n{text}'))


def distinct(rows: np.ndarray, *, sort: bool) -> tuple[list[int], list[int], list[int]]:
    """Where each distinct row is first, which one each row is, and how many equal it."""
    keys = [tuple((v != v, 0 if v != v else v) for v in row) for row in rows.tolist()]
    first: dict[tuple, int] = {}
    for place, key in enumerate(keys):
        first.setdefault(key, place)
    order = sorted(first) if sort else list(first)
    ranks = [order.index(key) for key in keys]
    return [first[key] for key in order], ranks, [ranks.count(n) for n in range(len(order))]


@pytest.mark.parametrize("sort", [0, 1])
@pytest.mark.parametrize(
    ("axis", "shape", "typed"),
    [
        (None, (200,), "float"),
        (None, (3, 5), "int64"),
        (0, (70, 2), "float"),
        (1, (2, 90), "uint8"),
        (0, (1, 3), "int32"),
        (0, (0, 2), "float16"),
        (0, (4, 0), "float"),
        (1, (3, 9, 2), "bool"),
    ],
)
def test_distinct_rows(sort, axis, shape, typed):
    dims = ",".join(f"d{i}" for i in range(len(shape)))
    along = "" if axis is None else f"axis={axis}, "
    found = ",".join("m" if i == (axis or 0) else f"d{i}" for i in range(len(shape)))
    kind = f"{typed}[{'m' if axis is None else found}]"
    size = "n" if axis is None else f"d{axis}"
    build = module(
        f"main ({typed}[{dims}] x) => ({kind} y, int64[m] i, int64[{size}] v, int64[m] c)"
        f" {{ y, i, v, c = Unique<{along}sorted={sort}>(x) }}"
    )
    random = np.random.default_rng(4)
    for high in (2, 4, 1000):
        x = random.integers(0, min(high, 250), shape)
        x = x.astype({"float": "f4", "float16": "f2"}.get(typed, typed))
        if x.dtype.kind == "f":
            x[random.random(shape) < 0.1] = np.nan
            x[random.random(shape) < 0.1] *= -0.0
        moved = x.reshape(-1, 1) if axis is None else np.moveaxis(x, axis, 0)
        rows = moved.reshape(len(moved), -1 if moved.size else 0)
        firsts, ranks, counts = distinct(rows, sort=bool(sort))
        y, i, v, c = build.run({"x": x}).values()
        np.testing.assert_array_equal(i, firsts)
        np.testing.assert_array_equal(v, ranks)
        np.testing.assert_array_equal(c, counts)
        np.testing.assert_array_equal(y, np.take(x, firsts, axis))


def test_places_of_many_and_of_none():
    build = module("main (float[a,b] x) => (int64[2,m] y) { y = NonZero(x) }")
    random = np.random.default_rng(0)
    for shape in ((1, 1), (3, 70), (40, 41), (0, 3), (5, 64)):
        for share in (0.0, 0.01, 0.5, 1.0):
            x = (random.random(shape) < share).astype(np.float32)
            np.testing.assert_array_equal(build.run({"x": x})["y"], np.nonzero(x))


@pytest.mark.parametrize(
    "flags", ["reverse=0", "exclusive=1", "reverse=1", "exclusive=1, reverse=1"]
)
def test_running_sums_of_open_axes(flags):
    build = module(
        f"main (int32[a,b,c] x, int64 k) => (int32[a,b,c] y) {{ y = CumSum<{flags}>(x, k) }}", 14
    )
    few = module(
        "main (float[3000,4] x) => (float[3000,4] y) { k = Constant<value_int = 0>()\n "
        f"y = CumSum<{flags}>(x, k) }}", 14)  # fmt: skip
    known = module(
        "main (float[11,40] x) => (float[11,40] y, float[11,40] z) { "
        "j = Constant<value_int = 0>()\n k = Constant<value_int = -1>()\n "
        f"y = CumSum<{flags}>(x, j)\n z = CumSum<{flags}>(x, k) }}", 14)  # fmt: skip

    def expected(x: np.ndarray, axis: int) -> np.ndarray:
        turned = np.flip(x, axis) if "reverse=1" in flags else x
        total = np.cumsum(turned, axis, dtype=x.dtype)
        total = total - turned if "exclusive" in flags else total
        return np.flip(total, axis) if "reverse=1" in flags else total

    random = np.random.default_rng(1)
    for shape in ((2, 33, 5), (9, 1, 1), (1, 20, 17), (0, 4, 3), (10, 3, 0)):
        x = random.integers(-9, 9, shape).astype(np.int32)
        for axis in range(3):
            found = build.run({"x": x, "k": np.array(axis)})["y"]
            np.testing.assert_array_equal(found, expected(x, axis))
    x = random.integers(-9, 9, (11, 40)).astype(np.float32)
    for axis, found in enumerate(known.run({"x": x}).values()):
        np.testing.assert_array_equal(found, expected(x, axis))
    x = random.integers(-9, 9, (3000, 4)).astype(np.float32)
    np.testing.assert_array_equal(few.run({"x": x})["y"], expected(x, 0))


def greedy(boxes, scores, most, iou, low) -> list[tuple[int, int, int]]:
    """Rows of (batch, class, box), after the words of the standard."""
    rows = []
    for b, c in np.ndindex(scores.shape[:2]):
        picked: list[int] = []
        for box in np.argsort(-scores[b, c], kind="stable"):
            fits = scores[b, c, box] > low and len(picked) < most
            if fits and all(share(boxes[b, box], boxes[b, p]) <= iou for p in picked):
                picked.append(int(box))
        rows += [(b, c, p) for p in picked]
    return rows


def share(a: np.ndarray, b: np.ndarray) -> float:
    sides = [min(a[i + 2], b[i + 2]) - max(a[i], b[i]) for i in (0, 1)]
    both = max(sides[0], 0) * max(sides[1], 0)
    union = sum((p[2] - p[0]) * (p[3] - p[1]) for p in (a, b)) - both
    return both / union if union else 0.0


def test_boxes_of_many_classes():
    build = module(
        "main (float[a,n,4] b, float[a,c,n] s, int64 m, float t, float u) => (int64[k,3] y)"
        " { y = NonMaxSuppression(b, s, m, t, u) }"
    )
    random = np.random.default_rng(2)
    for batch, classes, count in ((2, 3, 150), (1, 1, 1), (1, 0, 4), (1, 2, 0), (3, 1, 70)):
        low = random.integers(0, 24, (batch, count, 2))
        boxes = np.concatenate([low, low + random.integers(0, 12, low.shape)], -1)
        boxes = boxes.astype(np.float32)
        scores = random.integers(0, 16, (batch, classes, count)).astype(np.float32) / 16
        for most, iou, least in ((5, 0.25, 0.5), (1000, 0.5, -1.0), (17, 0.0, 0.0), (3, 0.5, 2.0)):
            feeds = {"m": np.array(most), "t": np.float32(iou), "u": np.float32(least)}
            found = build.run({"b": boxes, "s": scores, **feeds})["y"]
            wanted = greedy(boxes, scores, most, iou, least)
            np.testing.assert_array_equal(found, np.array(wanted, np.int64).reshape(-1, 3))
